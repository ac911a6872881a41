//! Why not: a catalogue of reasons, and the rules that raise them over what was seen. Pure.

mod advice;
pub mod catalogue;
mod causes;
mod gather;
mod platform;
mod refine;
mod results;
mod rules;
#[cfg(test)]
mod tests;

use jiff::Timestamp;

use crate::{
    config::Config,
    hardware::{Inventory, PciAddress, Surroundings},
    probe::Rows,
    report::{Finding, Gpu, Hca, Pair, Reason},
    verdict::Outlook,
};

pub use catalogue::{Entry, entry};

/// What findings are made of.
pub struct Facts<'a> {
    /// What is here.
    pub inventory: &'a Inventory,
    /// What is around the devices.
    pub surroundings: &'a Surroundings,
    /// What the children found.
    pub rows: &'a Rows,
    /// What hardware there should be.
    pub outlook: &'a Outlook,
    /// What is wanted.
    pub config: &'a Config,
    /// GPUs with their roles.
    pub gpus: &'a [Gpu],
    /// HCAs with their roles.
    pub hcas: &'a [Hca],
    /// All pairs.
    pub pairs: &'a [Pair],
    /// Why pairs are bad that could not be tried this time.
    pub carried: &'a [CarriedReason],
}

/// What an earlier check found of a pair.
pub struct CarriedReason {
    /// The GPU.
    pub gpu: PciAddress,
    /// The HCA's name.
    pub hca: String,
    /// The worst reason.
    pub reason: Reason,
    /// When it was seen.
    pub at: Timestamp,
}

/// Whether a reason is advice alone, that never explains a node's state.
#[must_use]
pub fn is_advice(reason: Reason) -> bool {
    platform::ADVICE.contains(&reason) || advice::ADVICE.contains(&reason)
}

/// All findings: one for each reason, with its GPUs and HCAs; worst first, and among equals the
/// more specific first (the catalogue's order).
#[must_use]
pub fn diagnose(facts: &Facts<'_>) -> Vec<Finding> {
    let mut findings = rules::all(facts);
    findings.extend(platform::all(facts));
    findings.sort_by_key(|f| (f.severity, catalogue::position(f.reason)));
    findings
}
