//! `gdr-agent topology`: the machine as a tree, and distances.

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;

use super::{Context, Global, Outcome, context::runtime, print};
use crate::{
    agent::check::{self, Checked},
    render::{self, Style},
    verdict::Stamp,
};

/// In which form.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Print the XML that NCCL reads as `NCCL_TOPO_FILE`
    #[arg(long)]
    nccl: bool,
}

pub(super) fn main(global: &Global, arguments: &Arguments) -> Outcome {
    crate::telemetry::log::to_stderr();
    let context = Context::new(global)?;
    let inventory = runtime()?.block_on(context.machine.inventory());
    context.warn_of_foreign_file(&inventory);
    if arguments.nccl {
        print(&render::nccl(&inventory));
        return Ok(ExitCode::SUCCESS);
    }
    let mut memory = context.store.load(&inventory.boot_id);
    memory.saw_active(context.machine.known_active());
    // Roles as far as they are known without a check.
    let report = check::conclude(&inventory, &Checked::default(), &memory, &context.config).into_report(
        &inventory,
        &Stamp {
            node: &context.node,
            simulated: context.machine.simulated(),
            started_at: Timestamp::now(),
            duration_ms: 0,
        },
    );
    print(&render::topology(&inventory, &report, Style::of_stdout()));
    Ok(ExitCode::SUCCESS)
}
