//! The machine as NCCL's topology file. What is left out (the GPU's architecture, NVLink, the
//! adapter's GUID) NCCL finds out itself; what is written here it believes.

use std::{collections::BTreeMap, fmt::Write};

use super::tree::{Branch, Device, seated};
use crate::hardware::{HcaFacts, Inventory, PciAddress};

const BRIDGE: u32 = 0x06_0400;
const GPU: u32 = 0x03_0200;
const ADAPTER: u32 = 0x02_0000;

/// `<system>` with a `cpu` for each NUMA node and the PCI tree below it.
#[must_use]
pub fn nccl(inventory: &Inventory) -> String {
    let mut nodes: BTreeMap<Option<u32>, Branch<'_>> = BTreeMap::new();
    for seat in seated(inventory) {
        // Ports of one adapter are one device to NCCL.
        let at = if matches!(seat.device, Device::Hca(_)) { seat.pci.first_function() } else { seat.pci };
        nodes.entry(seat.numa).or_default().put(seat.path, at, seat.device);
    }
    let mut out = "<system version=\"1\">\n".to_owned();
    for (numa, branch) in &nodes {
        let id = numa.map_or_else(|| "-1".to_owned(), |n| n.to_string());
        let _ = writeln!(out, "  <cpu numaid=\"{id}\">");
        write_branch(&mut out, branch, inventory, 2);
        out.push_str("  </cpu>\n");
    }
    out.push_str("</system>\n");
    out
}

fn write_branch(out: &mut String, branch: &Branch<'_>, inventory: &Inventory, depth: usize) {
    let pad = "  ".repeat(depth);
    for (address, below) in &branch.switches {
        let _ = writeln!(out, "{pad}<pci {}>", attributes(*address, BRIDGE, inventory));
        write_branch(out, below, inventory, depth + 1);
        let _ = writeln!(out, "{pad}</pci>");
    }
    for (address, devices) in &branch.devices {
        let usual = if matches!(devices[..], [Device::Gpu(_)]) { GPU } else { ADAPTER };
        let _ = writeln!(out, "{pad}<pci {}>", attributes(*address, usual, inventory));
        let hcas: Vec<&HcaFacts> =
            devices.iter().filter_map(|d| if let Device::Hca(h) = d { Some(*h) } else { None }).collect();
        if hcas.is_empty() {
            let _ = writeln!(out, "{pad}  <gpu/>");
        } else {
            let _ = writeln!(out, "{pad}  <nic>");
            for hca in hcas {
                net(out, hca, depth + 2);
            }
            let _ = writeln!(out, "{pad}  </nic>");
        }
        let _ = writeln!(out, "{pad}</pci>");
    }
}

/// NCCL needs a class; where a made-up machine has none, the usual one.
fn attributes(address: PciAddress, usual: u32, inventory: &Inventory) -> String {
    let facts = inventory.platform.functions.get(&address);
    let class = facts.and_then(|f| f.class).unwrap_or(usual);
    let mut out = format!("busid=\"{address}\" class=\"{class:#08x}\"");
    if let Some((vendor, device)) = facts.and_then(|f| f.ids) {
        let _ = write!(out, " vendor=\"{vendor:#06x}\" device=\"{device:#06x}\"");
    }
    if let Some(link) = facts.and_then(|f| f.link) {
        let (speed, width) = (link.max.speed_text(), link.max.width);
        let _ = write!(out, " link_speed=\"{speed}\" link_width=\"{width}\"");
    }
    out
}

/// Name and speed in Mb/s; the speed of a dark port is not known.
fn net(out: &mut String, hca: &HcaFacts, depth: usize) {
    let rate = hca.ports.iter().filter(|p| p.state == "ACTIVE").filter_map(|p| p.rate_gbps).max();
    let speed = rate.map(|r| format!(" speed=\"{:.0}\"", f64::from(r) * 1000.0)).unwrap_or_default();
    let _ = writeln!(out, "{}<net name=\"{}\"{speed}/>", "  ".repeat(depth), escaped(&hca.name));
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
