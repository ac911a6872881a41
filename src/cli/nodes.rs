//! `gdr-agent nodes`: the fleet, from what its Nodes show. Installed as `kubectl-gdr` too, it is `kubectl gdr`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use jiff::Timestamp;

use super::{CliError, Global, Outcome, context::runtime, print};
use crate::{
    config,
    node::{self, Fleet},
    render::{self, Style},
    report::State,
};

/// Which nodes, and how.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    output: Form,
    /// Only nodes in one of these states
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = state)]
    state: Vec<State>,
    /// Only nodes with one of these reasons, `Stale` for those whose agent has fallen silent
    #[arg(long, value_name = "REASON", value_delimiter = ',')]
    reason: Vec<String>,
    /// Only nodes with these labels, as kubectl takes them
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// What sets a node apart from those with the same GPUs
    #[arg(long)]
    outliers: bool,
}

impl Arguments {
    fn takes(&self, one: &node::Member) -> bool {
        (self.state.is_empty() || self.state.contains(&one.state))
            && (self.reason.is_empty() || self.reason.iter().any(|reason| reason.eq_ignore_ascii_case(&one.reason)))
    }
}

/// Form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// One line for each node
    Table,
    /// The same with models, driver, methods and the message
    Wide,
    /// For programs
    Json,
}

fn state(text: &str) -> Result<State, String> {
    serde_json::from_value(text.into())
        .map_err(|_| "must be ready, degraded, not-ready, unknown or not-applicable".to_owned())
}

pub(super) fn main(global: &Global, arguments: &Arguments) -> Outcome {
    let config = config::load(global.config.as_deref(), std::env::vars())?;
    let asked = runtime()?.block_on(node::fleet(&config.publish, arguments.selector.as_deref()));
    let mut fleet = asked.map_err(|error| {
        CliError::Unknown(format!("{error}; it asks as kubectl does, with KUBECONFIG or ~/.kube/config"))
    })?;
    if arguments.outliers {
        // All are siblings; the filters say whose differences are shown.
        let mut outliers = node::outliers(&fleet.nodes);
        fleet.nodes.retain(|one| arguments.takes(one));
        outliers.retain(|odd| fleet.nodes.iter().any(|one| one.name == odd.node));
        return show_outliers(&outliers, arguments.output);
    }
    fleet.nodes.retain(|one| arguments.takes(one));
    match arguments.output {
        Form::Json => print(&(json(&fleet)? + "\n")),
        form => print(&render::fleet(&fleet, form == Form::Wide, Timestamp::now(), Style::of_stdout())),
    }
    Ok(exit(&fleet))
}

fn show_outliers(outliers: &[node::Outlier], form: Form) -> Outcome {
    match form {
        Form::Json => print(&(json(&outliers)? + "\n")),
        Form::Table | Form::Wide => print(&render::outliers(outliers, Style::of_stdout())),
    }
    Ok(ExitCode::from(u8::from(!outliers.is_empty())))
}

fn json(value: &impl serde::Serialize) -> Result<String, CliError> {
    serde_json::to_string_pretty(value).map_err(|error| CliError::Internal(error.to_string()))
}

/// 0 all ready, 1 something is not, 3 not known, or nobody there. What does not apply does not count.
fn exit(fleet: &Fleet) -> ExitCode {
    let any = |states: &[State]| fleet.nodes.iter().any(|node| states.contains(&node.state));
    if any(&[State::NotReady, State::Degraded]) {
        ExitCode::from(1)
    } else if any(&[State::Unknown]) || !any(&[State::Ready]) {
        ExitCode::from(3)
    } else {
        ExitCode::SUCCESS
    }
}
