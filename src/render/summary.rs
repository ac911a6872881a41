//! What every form of the report says in the same words.

use crate::report::{Hca, Outcome, Report};

/// The numbers of the headline.
pub(super) struct Summary {
    /// GPUs that an HCA serves.
    pub(super) served: usize,
    /// GPUs that the verdict speaks of.
    pub(super) counted: usize,
    pub(super) rails: usize,
}

impl Summary {
    pub(super) fn of(report: &Report) -> Self {
        Self {
            served: report.gpus.iter().filter(|g| g.served == Some(true)).count(),
            counted: report.gpus.iter().filter(|g| g.role.counts()).count(),
            rails: report.hcas.iter().filter(|h| h.rail).count(),
        }
    }
}

/// The best port's.
pub(super) fn port_state(hca: &Hca) -> String {
    let best = hca.ports.iter().find(|p| p.state == "ACTIVE").or(hca.ports.first());
    best.map_or_else(|| "no port".to_owned(), |p| p.state.clone())
}

/// Tells outcomes apart without colour.
pub(super) const fn sign(outcome: Outcome) -> char {
    match outcome {
        Outcome::Verified => '✓',
        Outcome::Failed => '✗',
        Outcome::Unsupported => '-',
        Outcome::Skipped => '.',
        Outcome::Unknown => '?',
    }
}
