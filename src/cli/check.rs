//! `gdr-agent check`: one check, printed.

use std::{io::IsTerminal, process::ExitCode};

use clap::{Args, ValueEnum};
use jiff::Timestamp;

use super::{CliError, Context, Global, Outcome, context::runtime, exit, print};
use crate::{
    agent::check::{self, Progress},
    config::{ByteSize, Loopback},
    hardware::{Inventory, PciAddress},
    render::{self, Style},
    report::Method,
    verdict::Stamp,
};

/// Narrows a check or shows more of it.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
    /// Show every step of every pair
    #[arg(short, long)]
    verbose: bool,
    /// Only this GPU, by PCI address or UUID; may be repeated
    #[arg(long, value_name = "GPU")]
    gpu: Vec<String>,
    /// Only this HCA, by name or PCI address; may be repeated
    #[arg(long, value_name = "HCA")]
    hca: Vec<String>,
    /// Only this method
    #[arg(long, value_enum)]
    method: Option<MethodArgument>,
    /// GPU memory to register, such as 2MiB
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// Prove it by transfer: RDMA WRITE and READ between host and GPU memory, compared byte by byte
    #[arg(long)]
    loopback: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// The matrix, with findings and remedies.
    Text,
    /// The report.
    Json,
    /// A page for a browser, with nothing outside it.
    Html,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum MethodArgument {
    DmaBuf,
    Peermem,
}

impl From<MethodArgument> for Method {
    fn from(argument: MethodArgument) -> Self {
        match argument {
            MethodArgument::DmaBuf => Self::DmaBuf,
            MethodArgument::Peermem => Self::Peermem,
        }
    }
}

pub(super) fn main(global: &Global, arguments: &Arguments) -> Outcome {
    crate::telemetry::log::to_stderr();
    let mut context = Context::new(global)?;
    if let Some(method) = arguments.method {
        context.config.check.methods = vec![method.into()];
    }
    if let Some(size) = arguments.size {
        if size.0 < 64 << 10 || !size.0.is_multiple_of(64 << 10) {
            return Err(CliError::Usage(format!("--size is {size}; must be a multiple of 64KiB, the GPU's page")));
        }
        context.config.check.size = size;
    }
    runtime()?.block_on(async {
        tokio::select! {
            result = run(&context, arguments) => result,
            // Dropping the check kills its children.
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(130)),
        }
    })
}

async fn run(context: &Context, arguments: &Arguments) -> Outcome {
    let started_at = Timestamp::now();
    let mut inventory = context.machine.inventory().await;
    context.warn_of_foreign_file(&inventory);
    narrow(&mut inventory, arguments)?;
    let mut memory = context.store.load(&inventory.boot_id);
    memory.meet(&mut inventory);
    memory.saw_active(context.machine.known_active());
    let progress = Progress::new(std::io::stderr().is_terminal());
    let loopback = arguments.loopback || context.config.check.loopback != Loopback::Never;
    let checked = check::probe_all(context.machine.as_ref(), &inventory, &context.config, loopback, &progress).await;
    let report = check::conclude(&inventory, &checked, &memory, &context.config).into_report(
        &inventory,
        &Stamp {
            node: &context.node,
            simulated: context.machine.simulated(),
            started_at,
            duration_ms: u64::try_from(checked.took.as_millis()).unwrap_or(u64::MAX),
        },
    );
    match arguments.output {
        Format::Json => print(&to_json(&report)?),
        Format::Html => print(&render::html(&report, Some(&inventory))),
        Format::Text => {
            if arguments.verbose {
                print(&render::steps(&report, &checked.rows));
            }
            print(&render::report(&report, Style::of_stdout()));
        }
    }
    Ok(exit::of_state(report.verdict.state))
}

pub(super) fn to_json(report: &crate::report::Report) -> Result<String, CliError> {
    serde_json::to_string_pretty(report)
        .map(|text| text + "\n")
        .map_err(|e| CliError::Internal(format!("can't write the report: {e}")))
}

/// Leaves only what the filters name; a filter that names nothing here is an error.
fn narrow(inventory: &mut Inventory, arguments: &Arguments) -> Result<(), CliError> {
    for wanted in &arguments.gpu {
        let address: Option<PciAddress> = wanted.parse().ok();
        if !inventory.gpus.iter().any(|g| Some(g.pci) == address || g.uuid.as_ref() == Some(wanted)) {
            let have: Vec<_> = inventory.gpus.iter().map(|g| g.pci.to_string()).collect();
            return Err(nothing("--gpu", wanted, &have));
        }
    }
    for wanted in &arguments.hca {
        let address: Option<PciAddress> = wanted.parse().ok();
        if !inventory.hcas.iter().any(|h| h.name == *wanted || (address.is_some() && h.pci == address)) {
            let have: Vec<_> = inventory.hcas.iter().map(|h| h.name.clone()).collect();
            return Err(nothing("--hca", wanted, &have));
        }
    }
    if !arguments.gpu.is_empty() {
        inventory.gpus.retain(|g| arguments.gpu.iter().any(|w| w.parse() == Ok(g.pci) || g.uuid.as_ref() == Some(w)));
    }
    if !arguments.hca.is_empty() {
        inventory
            .hcas
            .retain(|h| arguments.hca.iter().any(|w| h.name == *w || h.pci.is_some_and(|p| w.parse() == Ok(p))));
    }
    Ok(())
}

fn nothing(flag: &str, wanted: &str, have: &[String]) -> CliError {
    let have = if have.is_empty() { "none".to_owned() } else { have.join(", ") };
    CliError::Usage(format!("{flag} {wanted} matches nothing here; there are: {have}"))
}
