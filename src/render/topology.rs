//! The machine as a tree, and how far each GPU is from each HCA.

use std::fmt::Write;

use super::{
    Style,
    forest::{Kind, Twig, forest},
    matrix::{GPU_COLUMN, WIDTH, clip, end_line, wrap},
};
use crate::{
    hardware::Inventory,
    report::{Distance, Report, TopologyKind},
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
    for group in forest(inventory, report) {
        draw(&mut out, &group, style);
    }
    matrix(&mut out, report, style);
    out
}

fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

pub(super) fn note(kind: TopologyKind) -> Option<&'static str> {
    match kind {
        TopologyKind::Physical => None,
        TopologyKind::Virtual => Some(
            "A hypervisor shows this tree; what shares a switch in the hardware may not be seen in it. \
             hardware.topologyFile takes the cloud's own.",
        ),
        TopologyKind::File => Some("The tree is the kernel's; distances are those of hardware.topologyFile."),
    }
}

fn draw(out: &mut String, group: &[Twig], style: Style) {
    out.push('\n');
    for root in group {
        line(out, "", root, style);
        children(out, "", &root.below, style);
    }
}

fn children(out: &mut String, prefix: &str, twigs: &[Twig], style: Style) {
    for (i, twig) in twigs.iter().enumerate() {
        let (here, deeper) = limbs(i + 1 == twigs.len());
        line(out, &format!("{prefix}{here}"), twig, style);
        children(out, &format!("{prefix}{deeper}"), &twig.below, style);
    }
}

fn line(out: &mut String, limb: &str, twig: &Twig, style: Style) {
    let room = WIDTH.saturating_sub(limb.chars().count());
    let text = &twig.text;
    let text = if text.chars().count() > room {
        text.chars().take(room.saturating_sub(1)).chain(['…']).collect()
    } else {
        text.clone()
    };
    let painted = match twig.kind {
        Kind::Place => style.strong(&text),
        Kind::Bridge | Kind::Gpu => text,
        Kind::Hca { usable: true } => style.good(&text),
        Kind::Hca { usable: false } => style.doubtful(&text),
    };
    let _ = writeln!(out, "{limb}{painted}");
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
