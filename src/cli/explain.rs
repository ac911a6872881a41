//! `gdr-agent explain`.

use std::process::ExitCode;

use clap::Args;

use super::{CliError, Outcome, print};
use crate::{
    diagnosis::{catalogue::CATALOGUE, entry},
    render,
    report::Reason,
};

/// Which reason.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The reason, as findings, conditions and events name it; none: list them all
    reason: Option<String>,
    /// Print docs/reasons.md
    #[arg(long, hide = true)]
    markdown: bool,
}

pub(super) fn main(arguments: &Arguments) -> Outcome {
    match &arguments.reason {
        _ if arguments.markdown => print(&render::reasons_table()),
        Some(text) => {
            let reason: Reason =
                text.parse().map_err(|e| CliError::Usage(format!("{e}; `gdr-agent explain` lists them")))?;
            print(&render::explain(entry(reason)));
        }
        None => {
            for entry in CATALOGUE {
                print(&format!("{:24} {}\n", entry.reason, entry.summary));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
