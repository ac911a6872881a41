//! Adapters' PCI functions without an RDMA device: the driver is missing or still loading, or the device is
//! elsewhere, and then it is taken for what it was.

use std::collections::BTreeSet;

use super::{
    Away, HcaFacts, PciAddress, PciPath, Roots, hca::sort, link_name, pci_functions, read_hex, read_numa, resolve,
};
use crate::report::{Hca, Transport};

/// An adapter's PCI function without an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BareFunction {
    /// PCI address.
    pub pci: PciAddress,
    /// The kernel driver that is bound.
    pub driver: Option<String>,
    /// PCI vendor and device.
    pub ids: Option<(u32, u32)>,
    /// NUMA node.
    pub numa: Option<u32>,
    /// Its way up to the host bridge.
    pub path: PciPath,
    /// Its PF's address when it is a virtual function whose PF is on this host.
    pub vf_of: Option<PciAddress>,
}

impl BareFunction {
    /// The HCA that it was when it was last seen with its RDMA device.
    fn as_known(&self, known: &Hca) -> HcaFacts {
        HcaFacts {
            name: known.name.clone(),
            pci: Some(self.pci),
            driver: self.driver.clone(),
            ids: self.ids,
            numa: self.numa,
            path: self.path.clone(),
            transport: known.transport,
            ports: known.ports.clone(),
            firmware: known.firmware.clone(),
            vf_of: self.vf_of,
            node: None,
            mad: Vec::new(),
            nvlink_management: false,
            netdev: false,
            away: Some(Away::Device),
            silent: false,
        }
    }
}

/// What is remembered of HCAs of this boot.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// As they were last seen.
    pub hcas: Vec<Hca>,
    /// Keys of those whose network interface was here.
    pub with_netdev: BTreeSet<String>,
}

/// Gives the silent ones what they last said, and moves those that are elsewhere from the bare functions to the
/// HCAs, as they were last seen.
pub(super) fn recall(bare: &mut Vec<BareFunction>, hcas: &mut Vec<HcaFacts>, known: &Known, exclusive: bool) {
    for hca in hcas.iter_mut().filter(|hca| has_lost_its_netdev(hca, &known.with_netdev)) {
        let is_it = |last: &&Hca| last.pci == hca.pci && last.ports.iter().any(|port| port.state == "ACTIVE");
        if let Some(last) = known.hcas.iter().find(is_it) {
            hca.ports.clone_from(&last.ports);
            hca.away = Some(Away::Netdev);
        }
    }
    let known = &known.hcas;
    for silent in hcas.iter_mut().filter(|hca| hca.silent) {
        let is_it = |last: &&Hca| (last.pci, &last.name) == (silent.pci, &silent.name);
        if let Some(last) = known.iter().find(is_it) {
            silent.transport = last.transport;
            silent.ports.clone_from(&last.ports);
            silent.firmware.clone_from(&last.firmware);
        }
    }
    bare.retain(|function| {
        let last = known.iter().find(|hca| hca.pci == Some(function.pci));
        let Some(last) = last.filter(|_| is_elsewhere(function, exclusive)) else { return true };
        hcas.push(function.as_known(last));
        false
    });
    sort(hcas);
}

/// Its interface was here and no driver took it away: it is in a pod.
fn has_lost_its_netdev(hca: &HcaFacts, with_netdev: &BTreeSet<String>) -> bool {
    hca.transport == Transport::Roce
        && !hca.silent
        && !hca.netdev
        && !hca.is_active()
        && with_netdev.contains(&hca.key())
}

/// Bound for a virtual machine; or, where RDMA devices belong to one network namespace each, in another
/// one than this.
pub(super) fn is_elsewhere(function: &BareFunction, exclusive: bool) -> bool {
    match function.driver.as_deref() {
        Some(VFIO) => true,
        Some(driver) => exclusive && RDMA_DRIVERS.contains(&driver),
        None => false,
    }
}

const VFIO: &str = "vfio-pci";

/// Drivers whose functions have an RDMA device when everything is loaded.
const RDMA_DRIVERS: &[&str] = &["mlx5_core", "mlx4_core", "efa"];

/// `ConnectX` and EFA functions without an RDMA device: the driver is missing, still loading, or the
/// device is elsewhere.
pub(super) fn discover(roots: &Roots, hcas: &[HcaFacts]) -> Vec<BareFunction> {
    const MELLANOX: u32 = 0x15b3;
    const AMAZON: u32 = 0x1d0f;
    const NETWORK: u32 = 0x02;
    const INFINIBAND: u32 = 0x0207;
    pci_functions(roots)
        .into_iter()
        .filter(|(_, address)| hcas.iter().all(|h| h.pci != Some(*address)))
        .filter_map(|(dir, pci)| {
            let driver = link_name(&dir.join("driver"));
            let ids = read_hex(&dir.join("vendor")).zip(read_hex(&dir.join("device")));
            let class = read_hex(&dir.join("class")).unwrap_or(0) >> 8;
            let of_rdma = driver.as_deref().is_some_and(|d| RDMA_DRIVERS.contains(&d));
            let of_vm = driver.as_deref() == Some(VFIO)
                && class >> 8 == NETWORK
                && ids.is_some_and(|(vendor, _)| vendor == MELLANOX);
            let efa = ids.is_some_and(|(vendor, device)| vendor == AMAZON && device >> 4 == 0xefa);
            (of_rdma || of_vm || efa || class == INFINIBAND).then(|| BareFunction {
                pci,
                driver,
                ids,
                numa: read_numa(&dir),
                path: PciPath::parse(&resolve(&dir).unwrap_or_default()),
                vf_of: link_name(&dir.join("physfn")).and_then(|name| name.parse().ok()),
            })
        })
        .collect()
}
