//! The matrix as a picture of cells: the left half is dma-buf, the right half peermem, and a frame
//! marks the pairs that count.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::{Tone, moment};
use crate::{
    hardware::PciAddress,
    render::summary::{port_state, sign},
    report::{Gpu, GpuRole, Hca, HcaRole, Method, MethodResult, Outcome, Pair, Report},
};

type Cells<'a> = BTreeMap<(PciAddress, &'a str), &'a Pair>;

pub(super) fn section(report: &Report) -> Markup {
    let cells: Cells<'_> = report.pairs.iter().map(|p| ((p.gpu, p.hca.as_str()), p)).collect();
    html! {
        @if !report.gpus.is_empty() && !report.hcas.is_empty() {
            section {
                h2 { "Pairs" }
                div.card.scroll tabindex="0" role="region" aria-label="GPU and HCA pairs" {
                    table.matrix {
                        thead { tr {
                            td {}
                            @for hca in &report.hcas { (column(hca)) }
                        } }
                        tbody { @for gpu in &report.gpus { (row(gpu, report, &cells)) } }
                    }
                }
                (legend(report))
                (not_verified(report))
            }
        }
    }
}

fn column(hca: &Hca) -> Markup {
    let state = if hca.role == HcaRole::Eligible { port_state(hca) } else { hca.role.to_string() };
    let off = hca.rail && state != "ACTIVE";
    html! { th scope="col" title={ (hca.name) ": " (state) } { span.off[off] { (hca.name) @if off { " " (state) } } } }
}

fn row(gpu: &Gpu, report: &Report, cells: &Cells<'_>) -> Markup {
    let (class, mark, meaning) = match gpu.served {
        Some(true) => ("", "", "served"),
        Some(false) => ("off", "! ", "not served"),
        None => ("open", "? ", "not known"),
    };
    html! { tr {
        th.(class) scope="row" title={ (gpu.pci) ": " (meaning) } { (mark) (gpu.pci) }
        @for hca in &report.hcas {
            @match cells.get(&(gpu.pci, hca.name.as_str())) {
                Some(pair) => (cell(gpu, pair)),
                None => td {},
            }
        }
    } }
}

fn cell(gpu: &Gpu, pair: &Pair) -> Markup {
    let text = words(pair);
    html! {
        td.pair.counted[pair.counted].excluded[gpu.role == GpuRole::Excluded] title=(text) {
            @for method in Method::ALL { (half(pair.by(method).outcome)) }
            span.hidden { (text) }
        }
    }
}

fn half(outcome: Outcome) -> Markup {
    html! { span.half.(Tone::of_outcome(outcome).class()) aria-hidden="true" { (sign(outcome)) } }
}

/// A cell in words: for whoever hovers over it, and for a screen reader.
fn words(pair: &Pair) -> String {
    let near = if pair.counted { ", nearest: counts" } else { "" };
    let carried = pair.checked_at.map(|at| format!("; last result, of {}", moment(at))).unwrap_or_default();
    let [dma_buf, peermem] = Method::ALL.map(|m| format!("{m} {}", result_words(pair.by(m))));
    format!("{} with {} ({}{near}): {dma_buf}, {peermem}{carried}", pair.gpu, pair.hca, pair.distance)
}

fn result_words(result: &MethodResult) -> String {
    let at = result.step.as_ref().map(|s| format!(" at {s}")).unwrap_or_default();
    let code = result.code.as_ref().map(|c| format!(": {c}")).unwrap_or_default();
    let transfer = result.loopback.as_ref().map(|l| format!(", transfer {}", l.outcome)).unwrap_or_default();
    format!("{}{at}{code}{transfer}", result.outcome)
}

fn legend(report: &Report) -> Markup {
    const OUTCOMES: [Outcome; 5] =
        [Outcome::Verified, Outcome::Failed, Outcome::Unsupported, Outcome::Skipped, Outcome::Unknown];
    html! {
        p.legend {
            span { "left dma-buf, right peermem" }
            @for outcome in OUTCOMES { span { (half(outcome)) (outcome) } }
            span { span.pair.counted {} "nearest: counts" }
            @if report.gpus.iter().any(|g| g.served == Some(false)) { span { "! GPU that nothing serves" } }
            @if report.pairs.iter().any(|p| p.checked_at.is_some()) { span { "an open pair keeps its last result" } }
        }
    }
}

/// What hovering shows, for a screen that has no pointer.
fn not_verified(report: &Report) -> Markup {
    let pairs: Vec<&Pair> =
        report.pairs.iter().filter(|p| Method::ALL.into_iter().any(|m| p.by(m).outcome != Outcome::Verified)).collect();
    html! {
        @if !pairs.is_empty() {
            details {
                summary { (pairs.len()) " of " (report.pairs.len()) " pairs are not verified by both methods" }
                div.scroll { table {
                    thead { tr { @for name in ["GPU", "HCA", "distance", "dma-buf", "peermem"] { th scope="col" { (name) } } } }
                    tbody { @for pair in pairs { tr {
                        td.mono { (pair.gpu) }
                        td.mono { (pair.hca) }
                        td { (pair.distance) @if pair.counted { ", counts" } }
                        @for method in Method::ALL { td { (result_words(pair.by(method))) } }
                    } } }
                } }
            }
        }
    }
}
