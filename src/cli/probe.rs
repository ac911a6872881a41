//! `gdr-agent probe`: the child that touches CUDA and verbs. A plan on stdin, JSON lines on stdout.

use std::{io, process::ExitCode};

use super::{CliError, Outcome};
use crate::probe::{Plan, child};

pub(super) fn main() -> Outcome {
    let plan: Plan = serde_json::from_reader(io::stdin().lock()).map_err(|e| {
        CliError::Usage(format!("probe is started by check and run, with a plan on its standard input: {e}"))
    })?;
    // The parent that does not listen any more has ended; there is nobody to tell.
    match child::run(&plan, &mut io::stdout().lock()) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(CliError::Unknown(format!("nobody listens: {error}"))),
    }
}
