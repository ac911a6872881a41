//! The PCI tree from host bridges down to GPUs and HCAs, as data to draw.

use std::collections::BTreeMap;

use crate::hardware::{GpuFacts, HcaFacts, Inventory, PciAddress, PciPath};

/// A GPU or an HCA.
#[derive(Debug, Clone, Copy)]
pub(super) enum Device<'a> {
    Gpu(&'a GpuFacts),
    Hca(&'a HcaFacts),
}

/// What hangs below a bridge.
#[derive(Debug, Default)]
pub(super) struct Branch<'a> {
    pub(super) bridges: BTreeMap<PciAddress, Branch<'a>>,
    pub(super) devices: BTreeMap<PciAddress, Vec<Device<'a>>>,
}

impl<'a> Branch<'a> {
    /// Puts a device below a chain of bridges.
    pub(super) fn put(&mut self, bridges: impl IntoIterator<Item = PciAddress>, at: PciAddress, device: Device<'a>) {
        let branch = bridges.into_iter().fold(self, |branch, bridge| branch.bridges.entry(bridge).or_default());
        branch.devices.entry(at).or_default().push(device);
    }

    /// Leaves out bridges with a single thing below them: ports.
    pub(super) fn without_ports(self) -> Self {
        let mut out = Self { devices: self.devices, ..Self::default() };
        for (address, branch) in self.bridges {
            let branch = branch.without_ports();
            if branch.bridges.len() + branch.devices.len() == 1 {
                out.bridges.extend(branch.bridges);
                out.devices.extend(branch.devices);
            } else {
                out.bridges.insert(address, branch);
            }
        }
        out
    }
}

/// A device with its seat.
pub(super) struct Seated<'a> {
    pub(super) device: Device<'a>,
    pub(super) pci: PciAddress,
    pub(super) path: &'a PciPath,
    pub(super) numa: Option<u32>,
}

/// All GPUs and all HCAs that are PCI functions.
pub(super) fn seated(inventory: &Inventory) -> impl Iterator<Item = Seated<'_>> {
    let gpus =
        inventory.gpus.iter().map(|g| Seated { device: Device::Gpu(g), pci: g.pci, path: &g.path, numa: g.numa });
    let hcas = inventory
        .hcas
        .iter()
        .filter_map(|h| Some(Seated { device: Device::Hca(h), pci: h.pci?, path: &h.path, numa: h.numa }));
    gpus.chain(hcas)
}
