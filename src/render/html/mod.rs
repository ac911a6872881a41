//! The report as one page for a browser: no script, nothing fetched, all that comes from a machine
//! escaped by [`maud`].

mod devices;
mod matrix;
mod tree;

use jiff::Timestamp;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::summary::Summary;
use crate::{
    hardware::Inventory,
    report::{Finding, Outcome, Report, Severity, State, TopologyKind},
};

/// Looks of the page, in it.
const STYLE: &str = include_str!("page.css");
/// Whatever a machine's names may hold, a browser runs and fetches nothing.
const CONTENT_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// The whole page; the tree is in it where the machine is at hand.
#[must_use]
pub fn html(report: &Report, inventory: Option<&Inventory>) -> String {
    let title = format!("{}: GPUDirect RDMA {}", report.node, report.verdict.state);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(CONTENT_POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                @if report.simulated {
                    p.simulated { strong { "Simulated." } " This machine is made up; no hardware was touched." }
                }
                main {
                    (verdict(report))
                    (findings(report))
                    (matrix::section(report))
                    (devices::hcas(report))
                    (devices::gpus(report))
                    @if let Some(inventory) = inventory { (tree::section(inventory, report)) }
                }
                footer { "gdr-agent " (report.version) ", " code { (report.api_version) } ", boot " code { (report.boot_id) } }
            }
        }
    };
    page.into_string() + "\n"
}

/// How something is: the class that colours it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tone {
    Good,
    Bad,
    Doubt,
    None,
}

impl Tone {
    const fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Doubt => "doubt",
            Self::None => "none",
        }
    }

    const fn of_state(state: State) -> Self {
        match state {
            State::Ready => Self::Good,
            State::Degraded | State::NotReady => Self::Bad,
            State::Unknown | State::NotApplicable => Self::Doubt,
        }
    }

    const fn of_severity(severity: Severity) -> Self {
        match severity {
            Severity::Error => Self::Bad,
            Severity::Warning => Self::Doubt,
            Severity::Info => Self::None,
        }
    }

    const fn of_outcome(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Verified => Self::Good,
            Outcome::Failed => Self::Bad,
            Outcome::Unknown => Self::Doubt,
            Outcome::Unsupported | Outcome::Skipped => Self::None,
        }
    }
}

fn verdict(report: &Report) -> Markup {
    let verdict = &report.verdict;
    let summary = Summary::of(report);
    html! {
        section.card.verdict.(Tone::of_state(verdict.state).class()) {
            h1 { "GPUDirect RDMA on " (report.node) }
            p.state { (verdict.state) " " span.reason { (verdict.reason) } }
            p { (verdict.message) }
            @if verdict.damped { p.faint { "What was last seen differs, and waits for confirmation." } }
            dl {
                (fact("checked", &moment(report.started_at)))
                (fact("took", &format!("{} ms", report.duration_ms)))
                @if let Some(until) = report.valid_until { (fact("holds until", &moment(until))) }
                (fact("state since", &moment(verdict.since)))
                (fact("GPUs served", &format!("{} of {}", summary.served, summary.counted)))
                (fact("rails", &summary.rails.to_string()))
                (fact("pairs", &report.pairs.len().to_string()))
                (fact("topology", topology_words(report.topology)))
            }
        }
    }
}

fn fact(name: &str, value: &str) -> Markup {
    html! { div { dt { (name) } dd { (value) } } }
}

/// To the second, and in UTC: a page is read away from its node.
fn moment(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

const fn topology_words(kind: TopologyKind) -> &'static str {
    match kind {
        TopologyKind::Physical => "physical",
        TopologyKind::Virtual => "made up by a hypervisor",
        TopologyKind::File => "from a topology file",
    }
}

fn findings(report: &Report) -> Markup {
    html! {
        @if !report.findings.is_empty() {
            section {
                h2 { "Findings" }
                @for finding in &report.findings { (one_finding(finding)) }
            }
        }
    }
}

fn one_finding(finding: &Finding) -> Markup {
    let gpus = finding.gpus.iter().map(ToString::to_string);
    let devices: Vec<String> = gpus.chain(finding.hcas.iter().cloned()).collect();
    html! {
        article.card.finding.(Tone::of_severity(finding.severity).class()) {
            header {
                span.tag { (finding.severity) }
                h3 { (finding.reason) }
                span.faint { "to act: " (finding.who) }
                @if let Some(method) = finding.method { span.faint { "by " (method) } }
            }
            p { (finding.message) }
            @if !devices.is_empty() {
                p { @for device in &devices { code.tag { (device) } " " } }
            }
            @if !finding.evidence.is_empty() {
                p.label { "seen" }
                ul { @for line in &finding.evidence { li { code { (line) } } } }
            }
            p.label { "remedy" }
            p.remedy { (finding.remedy) }
        }
    }
}

#[cfg(test)]
mod tests;
