//! The joint between what is known and who is told.

use std::{path::Path, sync::Arc};

use jiff::Timestamp;

use crate::{
    cli::Context,
    hardware::{Inventory, Listed, Surroundings},
    kubelet::Device,
    report::Report,
    store::{Memory, Transition, write_atomically},
    verdict::{self, Input, Stamp},
};

/// Name of the agent's socket in its run folder.
pub const AGENT_SOCKET: &str = "agent.sock";
/// Name of the last report in its run folder.
pub const REPORT_FILE: &str = "report.json";

/// What everybody downstream is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// The last report, with the damped verdict.
    pub report: Arc<Report>,
    /// The devices of this boot.
    pub devices: Vec<Device>,
    /// What device plugins offer on this node, by the last check; `None` where that is not known.
    pub listed: Option<Vec<Listed>>,
    /// The last changes of the state, the newest last.
    pub history: Arc<[Transition]>,
    /// Whether a check has finished in this boot, by this process or an earlier one.
    pub checked: bool,
    /// This process's own first check, and whether its last one saw anything.
    pub first_check: FirstCheck,
}

#[cfg(test)]
impl Published {
    /// What an agent tells that has checked; nothing of devices.
    pub(crate) fn of(report: Report) -> Self {
        Self {
            report: Arc::new(report),
            devices: Vec::new(),
            listed: None,
            history: Arc::default(),
            checked: true,
            first_check: FirstCheck::Over,
        }
    }
}

/// How far an agent's own first check is. What an earlier agent of this boot found says nothing of how this one fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstCheck {
    /// It is due, or goes on.
    Pending,
    /// None comes by itself: the Node is paused, a change of its driver is under way, or checks are asked for.
    NotDue,
    /// It has finished.
    Over,
    /// It has finished, and the last one came to nothing: what is told of the pairs is from earlier ones.
    Blind,
}

/// Leaves the report where everybody on the node can read it.
pub(super) fn write_report(run_dir: &Path, report: &Report) {
    let written = serde_json::to_vec(report)
        .map_err(Into::into)
        .and_then(|json| write_atomically(&run_dir.join(REPORT_FILE), &json));
    if let Err(error) = written {
        tracing::warn!(%error, dir = %run_dir.display(), "can't write the report; the socket still has it");
    }
}

/// What is told before anything was checked: the stored report of this boot, else that nothing is
/// known yet.
pub(super) struct Pending<'a> {
    pub(super) context: &'a Context,
    pub(super) inventory: &'a Inventory,
    pub(super) memory: &'a Memory,
}

impl Pending<'_> {
    pub(super) fn published(&self) -> Published {
        let now = Timestamp::now();
        let rows = crate::probe::Rows::new();
        let input = Input {
            inventory: self.inventory,
            surroundings: &Surroundings::default(),
            rows: &rows,
            memory: self.memory,
            config: &self.context.config,
            node: None,
            checked: false,
            now,
        };
        let stamp = Stamp {
            node: &self.context.node,
            simulated: self.context.machine.simulated(),
            started_at: now,
            duration_ms: 0,
        };
        let mut report = verdict::assess(&input).into_report(self.inventory, &stamp);
        if let (Some(stored), Some(verdict)) = (&self.memory.report, &self.memory.damping.published) {
            report = stored.clone();
            report.verdict = verdict.clone();
        }
        let checked = self.memory.damping.published.is_some();
        Published {
            report: Arc::new(report),
            devices: Vec::new(),
            listed: None,
            history: self.memory.history.iter().cloned().collect(),
            checked,
            first_check: FirstCheck::Pending,
        }
    }
}

/// Equal but for times that change with every check.
pub(super) fn same(a: &Published, b: &Published) -> bool {
    let timeless = |p: &Published| {
        let mut report = p.report.as_ref().clone();
        report.started_at = Timestamp::UNIX_EPOCH;
        report.duration_ms = 0;
        report.valid_until = None;
        for pair in &mut report.pairs {
            pair.checked_at = None;
            for result in [&mut pair.dma_buf, &mut pair.peermem] {
                result.duration_us = 0;
                result.mr = None;
            }
        }
        report
    };
    a.devices == b.devices
        && a.listed == b.listed
        && (a.checked, a.first_check) == (b.checked, b.first_check)
        && timeless(a) == timeless(b)
}
