//! Logs: JSON lines for the agent, plain text for a person's command.

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, fmt, prelude::*};

use crate::config::{Log, LogFormat};

/// The agent's log, on standard output.
pub fn start(config: &Log) -> Result<(), String> {
    let filter = EnvFilter::try_new(&config.level)
        .map_err(|e| format!("log.level: `{}` is no level or filter: {e}", config.level))?;
    let registry = tracing_subscriber::registry().with(filter);
    match config.format {
        LogFormat::Json => registry.with(fmt::layer().json().flatten_event(true)).try_init(),
        LogFormat::Text => registry.with(fmt::layer().with_ansi(std::io::stdout().is_terminal())).try_init(),
    }
    .map_err(|e| e.to_string())
}

/// Warnings of a command, on standard error.
pub fn to_stderr() {
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let layer = fmt::layer().with_writer(std::io::stderr).with_ansi(colour).without_time().with_target(false);
    // A second start in one process (tests) keeps the first.
    let _ = tracing_subscriber::registry().with(EnvFilter::new("warn")).with(layer).try_init();
}
