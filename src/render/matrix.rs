//! The GPU × HCA matrix with its legend, the findings, and the verdict.

use std::fmt::Write;

use super::{
    Style,
    summary::{Summary, port_state, sign},
};
use crate::report::{Finding, Gpu, GpuRole, Hca, HcaRole, Pair, Report, Severity, State};

/// Width that everything fits into.
pub(super) const WIDTH: usize = 80;
pub(super) const GPU_COLUMN: usize = 16;
const CELL: usize = 8;

/// The whole report for people.
#[must_use]
pub fn report(report: &Report, style: Style) -> String {
    let mut out = String::new();
    headline(&mut out, report, style);
    if !report.gpus.is_empty() && !report.hcas.is_empty() {
        let per_block = (WIDTH - GPU_COLUMN) / CELL;
        for hcas in report.hcas.chunks(per_block) {
            out.push('\n');
            block(&mut out, report, hcas, style);
        }
        legend(&mut out, report, style);
    }
    for finding in &report.findings {
        out.push('\n');
        one_finding(&mut out, finding, style);
    }
    out
}

fn headline(out: &mut String, report: &Report, style: Style) {
    let verdict = &report.verdict;
    let state = verdict.state.to_string();
    let state = match verdict.state {
        State::Ready => style.good(&state),
        State::Degraded | State::NotReady => style.bad(&state),
        State::Unknown | State::NotApplicable => style.doubtful(&state),
    };
    let simulated = if report.simulated { " (simulated)" } else { "" };
    let Summary { served, counted, rails } = Summary::of(report);
    let _ = writeln!(
        out,
        "{} {state}{simulated}  {}",
        style.strong("GPUDirect RDMA:"),
        style.faint(verdict.reason.as_str())
    );
    if counted > 0 {
        let _ = writeln!(
            out,
            "{served} of {counted} GPUs served, {rails} rails, {} pairs, {} ms",
            report.pairs.len(),
            report.duration_ms
        );
    } else {
        let _ = writeln!(out, "{}", verdict.message);
    }
}

fn block(out: &mut String, report: &Report, hcas: &[Hca], style: Style) {
    let _ = write!(out, "{:GPU_COLUMN$}", "");
    for hca in hcas {
        let _ = write!(out, "{:CELL$}", clip(&hca.name, CELL - 1));
    }
    end_line(out);
    let _ = write!(out, "{}", style.faint(&format!("{:GPU_COLUMN$}", "")));
    for hca in hcas {
        let state = if hca.role == HcaRole::Eligible { port_state(hca) } else { hca.role.to_string() };
        let cell = format!("{:CELL$}", clip(&state, CELL - 1));
        let painted = if hca.rail && state != "ACTIVE" { style.bad(&cell) } else { style.faint(&cell) };
        let _ = write!(out, "{painted}");
    }
    end_line(out);
    for gpu in &report.gpus {
        let mark = match gpu.served {
            Some(true) => ' ',
            Some(false) => '!',
            None => '?',
        };
        let _ = write!(out, "{:GPU_COLUMN$}", format!("{mark} {}", gpu.pci));
        for hca in hcas {
            if let Some(pair) = report.pairs.iter().find(|p| p.gpu == gpu.pci && p.hca == hca.name) {
                cell(out, gpu, pair, style);
            }
        }
        end_line(out);
    }
}

pub(super) fn end_line(out: &mut String) {
    out.truncate(out.trim_end_matches(' ').len());
    out.push('\n');
}

/// One cell: a sign for dma-buf, one for peermem, and a star where the pair counts.
fn cell(out: &mut String, gpu: &Gpu, pair: &Pair, style: Style) {
    let text =
        format!("{}{}{}", sign(pair.dma_buf.outcome), sign(pair.peermem.outcome), if pair.counted { "*" } else { " " });
    let padded = format!("{text:CELL$}");
    let painted = match pair.good {
        _ if gpu.role == GpuRole::Excluded => style.faint(&padded),
        Some(true) if pair.counted => style.good(&padded),
        Some(true) => style.faint(&padded),
        Some(false) => style.bad(&padded),
        None => style.doubtful(&padded),
    };
    out.push_str(&painted);
}

fn legend(out: &mut String, report: &Report, style: Style) {
    let mut text = "each cell: dma-buf, then peermem; * nearest: counts\n\
        ✓ verified  ✗ failed  - unsupported  . skipped  ? unknown"
        .to_owned();
    if report.gpus.iter().any(|g| g.served == Some(false)) {
        text.push_str("\n! GPU that nothing serves");
    }
    if report.pairs.iter().any(|p| p.checked_at.is_some()) {
        text.push_str("\nan open pair keeps its last result");
    }
    for line in text.lines() {
        let _ = writeln!(out, "{}", style.faint(line));
    }
}

fn one_finding(out: &mut String, finding: &Finding, style: Style) {
    let severity = finding.severity.to_string();
    let severity = match finding.severity {
        Severity::Error => style.bad(&severity),
        Severity::Warning => style.doubtful(&severity),
        Severity::Info => style.faint(&severity),
    };
    let _ = writeln!(
        out,
        "{severity} {} {}",
        style.strong(finding.reason.as_str()),
        style.faint(&format!("(to act: {})", finding.who))
    );
    for line in wrap(&finding.message, WIDTH - 2) {
        let _ = writeln!(out, "  {line}");
    }
    for evidence in &finding.evidence {
        for line in wrap(&format!("seen: {evidence}"), WIDTH - 2) {
            let _ = writeln!(out, "  {}", style.faint(&line));
        }
    }
    for (i, line) in wrap(&finding.remedy, WIDTH - 10).iter().enumerate() {
        let _ = writeln!(out, "  {}{line}", if i == 0 { "remedy: " } else { "        " });
    }
}

/// Breaks a text at blanks; a word longer than a line stands alone.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut().filter(|l| l.chars().count() + 1 + word.chars().count() <= width) {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Names longer than a column keep their end, which is what tells them apart.
pub(super) fn clip(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        text.to_owned()
    } else {
        std::iter::once('…').chain(text.chars().skip(length + 1 - width)).collect()
    }
}

#[cfg(test)]
mod tests;
