//! `gdr-agent accept`: takes today's hardware as the node's baseline.

use std::process::ExitCode;

use super::{CliError, Global, Outcome, context::runtime, print};
use crate::{agent, report::Report};

pub(super) fn main(global: &Global) -> Outcome {
    let asked = runtime()?.block_on(agent::ask::<Report>(&global.run_dir, agent::ACCEPT));
    let report = asked.map_err(|error| {
        CliError::Unknown(format!(
            "no agent answers in {}: {error}; start one with `gdr-agent run`",
            global.run_dir.display()
        ))
    })?;
    let (gpus, hcas) = (report.gpus.len(), report.hcas.len());
    print(&format!("{gpus} GPUs and {hcas} HCAs are the baseline of {} from now on\n", report.node));
    Ok(ExitCode::SUCCESS)
}
