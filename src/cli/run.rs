//! `gdr-agent run`: the node's agent.

use std::process::ExitCode;

use super::{CliError, Context, Global, Outcome};
use crate::{
    agent::{self, RunError},
    telemetry::log,
};

pub(super) fn main(global: &Global) -> Outcome {
    let context = Context::new(global)?;
    log::start(&context.config.log).map_err(CliError::Usage)?;
    let effective = serde_json::to_string(&context.config).unwrap_or_default();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), node = %context.node, simulated = context.machine.simulated(), config = %effective, "gdr-agent starts");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| CliError::Internal(format!("can't start the runtime: {e}")))?;
    if context.config.hardware.topology_file.is_some() {
        context.warn_of_foreign_file(&runtime.block_on(context.machine.inventory()));
    }
    // The loop, and with it every child's parent thread, is the main thread.
    let result = runtime.block_on(agent::run(context, global.run_dir.clone()));
    // A look that is stuck in a driver must not keep the process.
    runtime.shutdown_background();
    match result {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error @ (RunError::Second { .. } | RunError::Io { .. })) => Err(CliError::Internal(error.to_string())),
    }
}
