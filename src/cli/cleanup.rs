//! `gdr-agent cleanup`: removes what the agent ever wrote to Nodes.

use std::process::ExitCode;

use clap::Args;

use super::{CliError, Global, Outcome, context::runtime, print};
use crate::{
    config,
    node::{self, Target},
};

/// Which Nodes, and under which prefix.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Every Node of the cluster, not only this one
    #[arg(long)]
    all_nodes: bool,
    /// Prefix of the keys to remove, when it was another one [default: publish.prefix]. The condition has none and goes
    /// too; an agent that runs writes it anew with its next heartbeat
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<String>,
}

pub(super) fn main(global: &Global, arguments: &Arguments) -> Outcome {
    let mut publish = config::load(global.config.as_deref(), std::env::vars())?.publish;
    if let Some(prefix) = &arguments.prefix {
        publish.prefix.clone_from(prefix);
        // What no agent was ever allowed to write, none has to take away.
        config::validate_prefix(&publish).map_err(|(_, problem)| CliError::Usage(format!("--prefix {problem}")))?;
    }
    let prefix = publish.prefix;
    let target = if arguments.all_nodes {
        Target::All
    } else {
        Target::One(global.node_name.clone().unwrap_or_else(super::context::host_name))
    };
    match runtime()?.block_on(node::cleanup(&target, &prefix)) {
        Ok(done) => {
            print(&format!("removed everything under {prefix} from {} of {} nodes\n", done.cleaned, done.looked_at));
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            eprintln!("gdr-agent: {error}");
            Ok(ExitCode::from(1))
        }
    }
}
