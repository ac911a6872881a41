//! The joint between what is known and who is told.

use std::{path::Path, sync::Arc};

use crate::{kubelet::Device, report::Report, store::write_atomically};

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
    /// Whether a check has finished since this process started.
    pub checked: bool,
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
