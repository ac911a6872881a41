//! The machine as a tree, and how far each GPU is from each HCA.

use std::{collections::BTreeMap, fmt::Write};

use super::{
    Style,
    matrix::{GPU_COLUMN, WIDTH, clip, end_line, wrap},
    tree::{Branch, Device, Seated, seated},
};
use crate::{
    hardware::{GpuFacts, HcaFacts, Inventory},
    report::{Distance, HcaRole, Report, TopologyKind},
};

const CELL: usize = 8;

/// Tree, matrix and legend.
#[must_use]
pub fn topology(inventory: &Inventory, report: &Report, style: Style) -> String {
    let mut out = String::new();
    let simulated = if report.simulated { " (simulated)" } else { "" };
    let _ = writeln!(
        out,
        "{} {}{simulated}, {}, {}",
        style.strong("topology:"),
        report.topology,
        counted(report.gpus.len(), "GPU"),
        counted(report.hcas.len(), "HCA")
    );
    for line in note(report.topology).into_iter().flat_map(|n| wrap(n, WIDTH)) {
        let _ = writeln!(out, "{}", style.faint(&line));
    }
    Tree { inventory, report, style, out: &mut out }.draw();
    matrix(&mut out, report, style);
    out
}

fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn note(kind: TopologyKind) -> Option<&'static str> {
    match kind {
        TopologyKind::Physical => None,
        TopologyKind::Virtual => Some(
            "A hypervisor shows this tree; what shares a switch in the hardware may not be seen in it. \
             hardware.topologyFile takes the cloud's own.",
        ),
        TopologyKind::File => Some("The tree is the kernel's; distances are those of hardware.topologyFile."),
    }
}

struct Tree<'a> {
    inventory: &'a Inventory,
    report: &'a Report,
    style: Style,
    out: &'a mut String,
}

type Bridges<'a> = BTreeMap<&'a str, Branch<'a>>;
type Nodes<'a> = BTreeMap<Option<u32>, Bridges<'a>>;

impl<'a> Tree<'a> {
    fn draw(&mut self) {
        let mut sockets: BTreeMap<Option<u32>, Nodes<'a>> = BTreeMap::new();
        for Seated { device, pci, path, numa } in seated(self.inventory) {
            let socket = numa.and_then(|n| self.inventory.platform.sockets.get(&n).copied());
            let bridges = sockets.entry(socket).or_default().entry(numa).or_default();
            bridges.entry(&path.root).or_default().put(path, pci, device);
        }
        for (socket, nodes) in sockets {
            self.out.push('\n');
            let Some(socket) = socket else {
                for (numa, bridges) in nodes {
                    self.node("", "", numa, bridges);
                }
                continue;
            };
            let _ = writeln!(self.out, "{}", self.style.strong(&format!("socket {socket}")));
            let last = nodes.len();
            for (i, (numa, bridges)) in nodes.into_iter().enumerate() {
                let (here, below) = limbs(i + 1 == last);
                self.node(here, below, numa, bridges);
            }
        }
        let software: Vec<&HcaFacts> = self.inventory.hcas.iter().filter(|h| h.pci.is_none()).collect();
        if !software.is_empty() {
            let _ = writeln!(self.out, "\n{}", self.style.strong("without a PCI function"));
            for (i, hca) in software.iter().enumerate() {
                self.device(limbs(i + 1 == software.len()).0, Device::Hca(hca));
            }
        }
    }

    fn node(&mut self, here: &str, below: &str, numa: Option<u32>, bridges: Bridges<'a>) {
        let name = numa.map_or_else(|| "NUMA node unknown".to_owned(), |n| format!("NUMA node {n}"));
        let _ = writeln!(self.out, "{here}{}", self.style.strong(&name));
        let last = bridges.len();
        for (i, (root, branch)) in bridges.into_iter().enumerate() {
            let (limb, deeper) = limbs(i + 1 == last);
            let root = if root.is_empty() { "unknown" } else { root };
            let _ = writeln!(self.out, "{below}{limb}host bridge {root}");
            self.branch(&format!("{below}{deeper}"), branch);
        }
    }

    fn branch(&mut self, prefix: &str, branch: Branch<'a>) {
        let total = branch.switches.len() + branch.devices.values().map(Vec::len).sum::<usize>();
        let mut drawn = 0;
        let mut limb = || {
            drawn += 1;
            limbs(drawn == total)
        };
        for (address, below) in branch.switches {
            let (here, deeper) = limb();
            let _ = writeln!(self.out, "{prefix}{here}switch {address}");
            self.branch(&format!("{prefix}{deeper}"), below);
        }
        for device in branch.devices.into_values().flatten() {
            let (here, _) = limb();
            self.device(&format!("{prefix}{here}"), device);
        }
    }

    fn device(&mut self, limb: &str, device: Device<'_>) {
        let text = match device {
            Device::Gpu(gpu) => gpu_line(gpu),
            Device::Hca(hca) => self.hca_line(hca),
        };
        let room = WIDTH - limb.chars().count();
        let text =
            if text.chars().count() > room { text.chars().take(room - 1).chain(['…']).collect() } else { text };
        let painted = match device {
            Device::Gpu(_) => text,
            Device::Hca(hca) if hca.usable() => self.style.good(&text),
            Device::Hca(_) => self.style.doubtful(&text),
        };
        let _ = writeln!(self.out, "{limb}{painted}");
    }

    fn hca_line(&self, hca: &HcaFacts) -> String {
        let known = self.report.hcas.iter().find(|h| h.name == hca.name);
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
}

fn gpu_line(gpu: &GpuFacts) -> String {
    let state = if gpu.lost { "  LOST" } else { "" };
    let model = gpu.model.as_ref().map(|m| format!("  {m}")).unwrap_or_default();
    format!("GPU {}{model}{state}", gpu.pci)
}

/// The limb of an entry, and what stands before those below it.
fn limbs(last: bool) -> (&'static str, &'static str) {
    if last { ("└─ ", "   ") } else { ("├─ ", "│  ") }
}

fn matrix(out: &mut String, report: &Report, style: Style) {
    if report.pairs.is_empty() {
        return;
    }
    for hcas in report.hcas.chunks((WIDTH - GPU_COLUMN) / CELL) {
        let _ = write!(out, "\n{:GPU_COLUMN$}", "");
        for hca in hcas {
            let _ = write!(out, "{:CELL$}", clip(&hca.name, CELL - 1));
        }
        end_line(out);
        for gpu in &report.gpus {
            let _ = write!(out, "{:GPU_COLUMN$}", format!("  {}", gpu.pci));
            for hca in hcas {
                let pair = report.pairs.iter().find(|p| p.gpu == gpu.pci && p.hca == hca.name);
                let Some(pair) = pair else { continue };
                let mark = if pair.counted { "*" } else { "" };
                let cell = format!("{:CELL$}", format!("{}{mark}", pair.distance));
                out.push_str(&painted(&cell, pair.distance, pair.counted, style));
            }
            end_line(out);
        }
    }
    let legend = "* nearest: counts\n\
        PIX  one PCIe switch            NODE  another host bridge, same NUMA node\n\
        PXB  several switches           SYS   another NUMA node, or unknown\n\
        PHB  the host bridge";
    for line in legend.lines() {
        let _ = writeln!(out, "{}", style.faint(line));
    }
}

fn painted(cell: &str, distance: Distance, counted: bool, style: Style) -> String {
    match distance {
        Distance::Pix | Distance::Pxb if counted => style.good(cell),
        _ if counted => style.strong(cell),
        _ => style.faint(cell),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::fixture::Scene;

    #[test]
    fn colour_adds_nothing_but_colour() {
        let scene = Scene::new();
        let stamp = crate::verdict::Stamp {
            node: "n1",
            simulated: true,
            started_at: jiff::Timestamp::UNIX_EPOCH,
            duration_ms: 0,
        };
        let report = scene.assess().into_report(&scene.inventory, &stamp);
        let coloured = topology(&scene.inventory, &report, Style::coloured());
        let mut bare = String::new();
        for (i, piece) in coloured.split('\x1b').enumerate() {
            bare.push_str(if i == 0 { piece } else { piece.split_once('m').unwrap().1 });
        }
        // Blanks that end a line are cut where no colour ends it.
        let trimmed = |text: &str| text.lines().map(|l| l.trim_end().to_owned()).collect::<Vec<_>>();
        let plain = topology(&scene.inventory, &report, Style::plain());
        assert_eq!(trimmed(&bare), trimmed(&plain));
        assert!(!plain.contains('\x1b') && plain.len() < coloured.len());
    }
}
