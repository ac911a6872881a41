//! `gdr-agent schema`: the JSON Schema of what the agent reads or writes, from its own types.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use schemars::schema_for;

use super::{CliError, Outcome, print};
use crate::{config::Config, report::Report};

/// Of what.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Of what
    #[arg(value_enum)]
    what: What,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// What `check -o json` writes.
    Report,
    /// The configuration file.
    Config,
}

pub(super) fn main(arguments: &Arguments) -> Outcome {
    let schema = match arguments.what {
        What::Report => schema_for!(Report),
        What::Config => schema_for!(Config),
    };
    let text = serde_json::to_string_pretty(&schema)
        .map_err(|e| CliError::Internal(format!("can't write the schema: {e}")))?;
    print(&(text + "\n"));
    Ok(ExitCode::SUCCESS)
}
