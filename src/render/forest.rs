//! The machine as words in a tree: sockets, NUMA nodes, host bridges, switches, devices.

use std::collections::BTreeMap;

use super::tree::{Branch, Device, Seated, seated};
use crate::{
    hardware::{GpuFacts, HcaFacts, Inventory},
    report::{HcaRole, Report},
};

/// One entry with what hangs below it.
#[derive(Debug)]
pub(super) struct Twig {
    pub(super) text: String,
    pub(super) kind: Kind,
    pub(super) below: Vec<Twig>,
}

/// What an entry is, for its looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A socket or a NUMA node.
    Place,
    /// A host bridge or a switch.
    Bridge,
    Gpu,
    Hca {
        usable: bool,
    },
}

type Bridges<'a> = BTreeMap<&'a str, Branch<'a>>;
type Nodes<'a> = BTreeMap<Option<u32>, Bridges<'a>>;

/// A group for each socket, one for what is on none that is known, one for what is not in PCI.
pub(super) fn forest(inventory: &Inventory, report: &Report) -> Vec<Vec<Twig>> {
    let mut sockets: BTreeMap<Option<u32>, Nodes<'_>> = BTreeMap::new();
    for Seated { device, pci, path, numa } in seated(inventory) {
        let socket = numa.and_then(|n| inventory.platform.sockets.get(&n).copied());
        let bridges = sockets.entry(socket).or_default().entry(numa).or_default();
        bridges.entry(&path.root).or_default().put(path, pci, device);
    }
    let mut groups = Vec::new();
    for (socket, nodes) in sockets {
        let nodes = nodes.into_iter().map(|(numa, bridges)| node(numa, bridges, report)).collect();
        groups.push(match socket {
            Some(socket) => vec![place(format!("socket {socket}"), nodes)],
            None => nodes,
        });
    }
    let software: Vec<_> =
        inventory.hcas.iter().filter(|h| h.pci.is_none()).map(|h| leaf(Device::Hca(h), report)).collect();
    if !software.is_empty() {
        groups.push(vec![place("without a PCI function".to_owned(), software)]);
    }
    groups
}

fn place(text: String, below: Vec<Twig>) -> Twig {
    Twig { text, kind: Kind::Place, below }
}

fn node(numa: Option<u32>, bridges: Bridges<'_>, report: &Report) -> Twig {
    let name = numa.map_or_else(|| "NUMA node unknown".to_owned(), |n| format!("NUMA node {n}"));
    let bridges = bridges.into_iter().map(|(root, below)| {
        let root = if root.is_empty() { "unknown" } else { root };
        bridge(format!("host bridge {root}"), below, report)
    });
    place(name, bridges.collect())
}

fn bridge(text: String, branch: Branch<'_>, report: &Report) -> Twig {
    let switches =
        branch.switches.into_iter().map(|(address, below)| bridge(format!("switch {address}"), below, report));
    let devices = branch.devices.into_values().flatten().map(|device| leaf(device, report));
    Twig { text, kind: Kind::Bridge, below: switches.chain(devices).collect() }
}

fn leaf(device: Device<'_>, report: &Report) -> Twig {
    let (text, kind) = match device {
        Device::Gpu(gpu) => (gpu_line(gpu), Kind::Gpu),
        Device::Hca(hca) => (hca_line(hca, report), Kind::Hca { usable: hca.usable() }),
    };
    Twig { text, kind, below: Vec::new() }
}

fn hca_line(hca: &HcaFacts, report: &Report) -> String {
    let known = report.hcas.iter().find(|h| h.name == hca.name);
    let role = known.map(|h| if h.rail { "rail".to_owned() } else { h.role.to_string() });
    let role = role.filter(|r| *r != HcaRole::Eligible.to_string());
    let several = hca.ports.len() > 1;
    let states = hca.ports.iter().map(|p| {
        let number = if several { format!("{}: ", p.number) } else { String::new() };
        let rate = p.rate_gbps.filter(|_| p.state == "ACTIVE").map(|r| format!(" {} Gb/s", f64::from(r)));
        format!("{number}{}{}", p.state, rate.unwrap_or_default())
    });
    let pci = hca.pci.map(|p| p.to_string());
    let links = states.collect::<Vec<_>>().join(", ");
    let parts = [Some(hca.name.clone()), pci, Some(hca.transport.to_string()), Some(links), role];
    parts.into_iter().flatten().filter(|p| !p.is_empty()).collect::<Vec<_>>().join("  ")
}

fn gpu_line(gpu: &GpuFacts) -> String {
    let state = if gpu.lost { "  LOST" } else { "" };
    let model = gpu.model.as_ref().map(|m| format!("  {m}")).unwrap_or_default();
    format!("GPU {}{model}{state}", gpu.pci)
}
