//! The machine as nested lists.

use maud::{Markup, html};

use super::Tone;
use crate::{
    hardware::Inventory,
    render::{
        forest::{Kind, Twig, forest},
        topology::note,
    },
    report::Report,
};

pub(super) fn section(inventory: &Inventory, report: &Report) -> Markup {
    let groups = forest(inventory, report);
    html! {
        @if !groups.is_empty() {
            section {
                h2 { "Topology" }
                @if let Some(note) = note(report.topology) { p.faint { (note) } }
                div.card.tree tabindex="0" role="region" aria-label="Topology" {
                    @for group in &groups { (branch(group)) }
                }
            }
        }
    }
}

fn branch(twigs: &[Twig]) -> Markup {
    html! { ul { @for twig in twigs { li {
        span.(class(twig.kind)) { (twig.text) }
        @if !twig.below.is_empty() { (branch(&twig.below)) }
    } } } }
}

fn class(kind: Kind) -> String {
    match kind {
        Kind::Place => "place".to_owned(),
        Kind::Bridge => "faint".to_owned(),
        Kind::Gpu => "gpu".to_owned(),
        Kind::Hca { usable } => format!("hca {}", if usable { Tone::Good } else { Tone::Bad }.class()),
    }
}
