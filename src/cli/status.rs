//! `gdr-agent status`: what the running agent last saw.

use std::{fs, process::ExitCode};

use clap::Args;

use super::{
    CliError, Global, Outcome,
    check::{Format, to_json},
    context::runtime,
    exit, print,
};
use crate::{
    agent::{self, REPORT_FILE},
    render::{self, Style},
    report::Report,
};

/// Form of the output.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

pub(super) fn main(global: &Global, arguments: &Arguments) -> Outcome {
    let asked = runtime()?.block_on(agent::ask(&global.run_dir, "status"));
    let report = match asked {
        Ok(report) => report,
        Err(error) => {
            let file = global.run_dir.join(REPORT_FILE);
            let report = fs::read(&file).ok().and_then(|json| serde_json::from_slice::<Report>(&json).ok());
            let report = report.ok_or_else(|| {
                CliError::Unknown(format!(
                    "no agent answers in {} ({error}), and there is no report in {}; start one with `gdr-agent run`, or check once with `gdr-agent check`",
                    global.run_dir.display(),
                    file.display()
                ))
            })?;
            eprintln!("gdr-agent: no agent runs here; this is its last report, of {}", report.started_at);
            report
        }
    };
    show(&report, arguments)
}

pub(super) fn show(report: &Report, arguments: &Arguments) -> Result<ExitCode, CliError> {
    match arguments.output {
        Format::Json => print(&to_json(report)?),
        Format::Html => print(&render::html(report, None)),
        Format::Text => print(&render::report(report, Style::of_stdout())),
    }
    Ok(exit::of_state(report.verdict.state))
}
