//! `gdr-agent status`: what the running agent last saw.

use std::{fs, process::ExitCode};

use clap::Args;

use super::{
    CliError, Context, Global, Outcome,
    check::{Format, to_json},
    context::runtime,
    exit, print,
};
use crate::{
    agent::{self, REPORT_FILE},
    render::{self, Style},
    report::Report,
    store::Transition,
};

/// Form of the output.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// What to show, and how.
#[derive(Debug, Args)]
pub struct StatusArguments {
    #[command(flatten)]
    form: Arguments,
    /// The last 200 changes of the state, the newest last, in place of the report
    #[arg(long)]
    history: bool,
}

pub(super) fn main(global: &Global, arguments: &StatusArguments) -> Outcome {
    if arguments.history { history(global, arguments.form.output) } else { status(global, &arguments.form) }
}

fn status(global: &Global, arguments: &Arguments) -> Outcome {
    let asked = runtime()?.block_on(agent::ask::<Report>(&global.run_dir, agent::STATUS));
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

/// From the running agent, else from its store.
fn history(global: &Global, form: Format) -> Outcome {
    let asked = runtime()?.block_on(agent::ask::<Vec<Transition>>(&global.run_dir, agent::HISTORY));
    let history: Vec<Transition> = if let Ok(history) = asked {
        history
    } else {
        let context = Context::new(global)?;
        eprintln!("gdr-agent: no agent runs here; this is what its store remembers");
        context.store.history()
    };
    match form {
        Format::Json => {
            let json = serde_json::to_string_pretty(&history).map_err(|e| CliError::Internal(e.to_string()))?;
            print(&(json + "\n"));
        }
        Format::Html => return Err(CliError::Usage("--history has no HTML; choose -o text or -o json".to_owned())),
        Format::Text => print(&render::history(&history, Style::of_stdout())),
    }
    Ok(history.last().map_or(ExitCode::from(3), |last| exit::of_state(last.to)))
}

pub(super) fn show(report: &Report, arguments: &Arguments) -> Result<ExitCode, CliError> {
    match arguments.output {
        Format::Json => print(&to_json(report)?),
        Format::Html => print(&render::html(report, None)),
        Format::Text => print(&render::report(report, Style::of_stdout())),
    }
    Ok(exit::of_state(report.verdict.state))
}
