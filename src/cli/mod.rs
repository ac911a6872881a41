//! The commands, one file each.

mod accept;
mod check;
mod cleanup;
mod context;
mod explain;
mod nodes;
mod probe;
mod recheck;
mod run;
mod schema;
mod status;
mod topology;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub use context::Context;

use crate::{config::ConfigError, hardware::TopologyError, simulate::ProfileError};

/// Exit statuses, beside those of [`exit::of_state`].
pub mod exit {
    use std::process::ExitCode;

    use crate::report::State;

    /// Bad usage or configuration, or a filter that matches nothing (sysexits' `EX_USAGE`).
    pub const USAGE: u8 = 64;
    /// Internal (sysexits' `EX_SOFTWARE`).
    pub const INTERNAL: u8 = 70;

    /// 0 ready, 1 not ready, 2 degraded, 3 anything that is not known.
    #[must_use]
    pub fn of_state(state: State) -> ExitCode {
        match state {
            State::Ready => ExitCode::SUCCESS,
            State::NotReady => ExitCode::from(1),
            State::Degraded => ExitCode::from(2),
            State::Unknown | State::NotApplicable => ExitCode::from(3),
        }
    }
}

/// Knows, for every GPU and every RDMA adapter of this node, whether GPUDirect RDMA works.
#[derive(Debug, Parser)]
#[command(name = "gdr-agent", version, about, long_about = None, max_term_width = 100)]
#[command(after_help = "Exit status of check, status and recheck: 0 ready, 1 not ready, 2 degraded,\n\
    3 unknown or not applicable, 64 bad usage or configuration.\n\n\
    Try:  gdr-agent check --simulate hgx-h100\n      gdr-agent explain PeermemNotLoaded")]
pub struct Cli {
    /// Where the machine and the configuration are.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// By this name kubectl takes it for its own `kubectl gdr`.
const PLUGIN: &str = "kubectl-gdr";

impl Cli {
    /// Reads a command line, the program's own name first. Under kubectl, one that does not begin with a command is
    /// about the nodes, as `kubectl gdr -o wide`.
    pub fn of(line: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut line: Vec<OsString> = line.into_iter().collect();
        let program = line.first().and_then(|program| Path::new(program).file_name());
        if program.is_none_or(|name| name != PLUGIN) {
            return Self::try_parse_from(line);
        }
        let mut command = Self::command().bin_name("kubectl gdr");
        let says = |word: &OsString| {
            let word = word.to_string_lossy();
            command.find_subcommand(&*word).is_some() || ["help", "-h", "--help", "-V", "--version"].contains(&&*word)
        };
        if !line.get(1).is_some_and(says) {
            line.insert(1, "nodes".into());
        }
        Self::from_arg_matches(&command.try_get_matches_from_mut(line)?)
    }
}

/// Flags of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Everywhere")]
pub struct Global {
    /// Configuration file [default: /etc/gdr-agent/config.yaml when it is there]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Use a made-up machine: hgx-h100, cpu-only, or a profile file
    #[arg(long, global = true, value_name = "PROFILE")]
    pub simulate: Option<String>,
    /// Read sysfs here; once one of the three is given, nothing is read from the live machine
    #[arg(long, global = true, value_name = "DIR")]
    pub sysfs_root: Option<PathBuf>,
    /// Read procfs (boot id, NVIDIA driver) here
    #[arg(long, global = true, value_name = "DIR")]
    pub procfs_root: Option<PathBuf>,
    /// Look for device nodes here
    #[arg(long, global = true, value_name = "DIR")]
    pub dev_root: Option<PathBuf>,
    /// Name of this node in Kubernetes [default: the host's name]
    #[arg(long, global = true, value_name = "NAME", env = "GDR_AGENT_NODE_NAME")]
    pub node_name: Option<String>,
    /// Where the agent's socket, report and locks are
    #[arg(long, global = true, value_name = "DIR", env = "GDR_AGENT_RUN_DIR", default_value = "/run/gdr-agent")]
    pub run_dir: PathBuf,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check every GPU with every HCA once, and show the matrix
    Check(check::Arguments),
    /// Run as the node's agent: check, publish, serve the kubelet
    Run,
    /// Show what the running agent last saw
    Status(status::StatusArguments),
    /// Ask the running agent for a check now
    Recheck(status::Arguments),
    /// Take today's hardware as this node's baseline, after a change that was meant
    Accept,
    /// Show the machine as a tree, and how far each GPU is from each HCA
    Topology(topology::Arguments),
    /// Show the whole cluster, the worst nodes first
    Nodes(nodes::Arguments),
    /// Explain a reason: what it means, how it is detected, what to do
    Explain(explain::Arguments),
    /// Remove every label, annotation and condition of this agent from Nodes
    Cleanup(cleanup::Arguments),
    /// Print a JSON Schema, as docs/*.schema.json have it
    #[command(hide = true)]
    Schema(schema::Arguments),
    /// The child that touches CUDA and verbs
    #[command(hide = true)]
    Probe,
}

/// Why a command ended early.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The configuration was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The profile was refused.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The topology file was refused.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The command line asks for what is not there.
    #[error("{0}")]
    Usage(String),
    /// It could not be found out.
    #[error("{0}")]
    Unknown(String),
    /// Something went wrong that should not.
    #[error("{0}")]
    Internal(String),
}

impl CliError {
    /// The exit status that says so.
    #[must_use]
    pub fn exit(&self) -> ExitCode {
        match self {
            Self::Config(_) | Self::Profile(_) | Self::Topology(_) | Self::Usage(_) => ExitCode::from(exit::USAGE),
            Self::Unknown(_) => ExitCode::from(3),
            Self::Internal(_) => ExitCode::from(exit::INTERNAL),
        }
    }
}

/// What a command answers.
pub type Outcome = Result<ExitCode, CliError>;

/// Runs a command.
pub fn dispatch(cli: Cli) -> Outcome {
    match cli.command {
        Command::Check(arguments) => check::main(&cli.global, &arguments),
        Command::Run => run::main(&cli.global),
        Command::Status(arguments) => status::main(&cli.global, &arguments),
        Command::Recheck(arguments) => recheck::main(&cli.global, &arguments),
        Command::Accept => accept::main(&cli.global),
        Command::Topology(arguments) => topology::main(&cli.global, &arguments),
        Command::Nodes(arguments) => nodes::main(&cli.global, &arguments),
        Command::Explain(arguments) => explain::main(&arguments),
        Command::Cleanup(arguments) => cleanup::main(&cli.global, &arguments),
        Command::Schema(arguments) => schema::main(&arguments),
        Command::Probe => probe::main(),
    }
}

/// Writes to standard output. A reader that has gone away (`| head`) is no error.
fn print(text: &str) {
    use std::io::Write;
    let _ = std::io::stdout().write_all(text.as_bytes());
}
