//! Parse, dispatch, exit status.

use std::process::ExitCode;

use gdr_agent::cli::{self, Cli};

fn main() -> ExitCode {
    let cli = match Cli::of(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            let asked_for = !error.use_stderr();
            let _ = error.print(); // nothing better to do where stderr is closed
            return if asked_for { ExitCode::SUCCESS } else { ExitCode::from(cli::exit::USAGE) };
        }
    };
    cli::dispatch(cli).unwrap_or_else(|error| {
        eprintln!("gdr-agent: {error}");
        error.exit()
    })
}
