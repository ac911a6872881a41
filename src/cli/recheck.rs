//! `gdr-agent recheck`: asks the running agent for a check now.

use super::{
    CliError, Global, Outcome,
    context::runtime,
    status::{Arguments, show},
};
use crate::agent;

pub(super) fn main(global: &Global, arguments: &Arguments) -> Outcome {
    let report = runtime()?.block_on(agent::ask(&global.run_dir, agent::RECHECK)).map_err(|e| {
        CliError::Unknown(format!(
            "no agent answers in {}: {e}; start one with `gdr-agent run`",
            global.run_dir.display()
        ))
    })?;
    show(&report, arguments)
}
