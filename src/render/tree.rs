//! The PCI tree from host bridges down to GPUs and HCAs, as data to draw.

use std::collections::BTreeMap;

use crate::hardware::{GpuFacts, HcaFacts, Inventory, PciAddress, PciPath};

/// A GPU or an HCA.
#[derive(Debug, Clone, Copy)]
pub(super) enum Device<'a> {
    Gpu(&'a GpuFacts),
    Hca(&'a HcaFacts),
}

/// What hangs below a switch or a host bridge.
#[derive(Debug, Default)]
pub(super) struct Branch<'a> {
    pub(super) switches: BTreeMap<PciAddress, Branch<'a>>,
    pub(super) devices: BTreeMap<PciAddress, Vec<Device<'a>>>,
}

impl<'a> Branch<'a> {
    /// Puts a device below the switches of its way.
    pub(super) fn put(&mut self, path: &PciPath, at: PciAddress, device: Device<'a>) {
        let mut branch = self;
        for switch in switches(&path.bridges) {
            branch = branch.switches.entry(switch).or_default();
        }
        branch.devices.entry(at).or_default().push(device);
    }
}

/// A switch is two bridges, its upstream port and a downstream port, and known by the former. NCCL
/// too keeps every other bridge, counted from the device.
fn switches(bridges: &[PciAddress]) -> Vec<PciAddress> {
    let mut upstream: Vec<_> = bridges.iter().rev().skip(1).step_by(2).copied().collect();
    upstream.reverse();
    upstream
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
