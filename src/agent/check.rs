//! One check: a child for each GPU, some at a time, then the conclusions.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use jiff::Timestamp;
use tokio::sync::Semaphore;

use crate::{
    config::{ByteSize, Config},
    hardware::{GpuFacts, Inventory, Surroundings},
    probe::{Machine, Row, Rows, Step, Task},
    report::{MethodResult, Outcome},
    store::Memory,
    verdict::{self, Assessment, Input, hcas_to_probe, is_checked},
};

/// What a check found.
#[derive(Debug, Clone, Default)]
pub struct Checked {
    /// By GPU.
    pub rows: Rows,
    /// What is around the devices.
    pub surroundings: Surroundings,
    /// How long it took.
    pub took: Duration,
}

impl Checked {
    /// What is known when not even sysfs can be read: of each pair, that nothing is.
    #[must_use]
    pub fn blind(inventory: &Inventory, config: &Config) -> Self {
        let hcas = hcas_to_probe(inventory, config);
        let row = |gpu: &GpuFacts| (gpu.pci, Row::never_began(Step::Sysfs, &hcas, &config.check.methods));
        Self { rows: inventory.gpus.iter().filter(|gpu| is_checked(gpu, config)).map(row).collect(), ..Self::default() }
    }

    /// Whether it tried something, and learned nothing of any pair.
    #[must_use]
    pub fn saw_nothing(&self) -> bool {
        let mut results = results(&self.rows).peekable();
        results.peek().is_some() && results.all(|result| result.outcome == Outcome::Unknown)
    }

    /// Whether a transfer went wrong in it.
    #[must_use]
    pub fn has_failed_transfer(&self) -> bool {
        results(&self.rows)
            .filter_map(|result| result.loopback.as_ref())
            .any(|loopback| loopback.outcome == Outcome::Failed)
    }
}

/// Says on a terminal how far a check is.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
}

impl Progress {
    /// Shows something, or nothing.
    #[must_use]
    pub const fn new(shown: bool) -> Self {
        Self { shown }
    }

    fn say(&self, done: usize, of: usize) {
        if self.shown {
            let mut out = std::io::stderr();
            let line = if done < of { format!("\rchecking GPUs: {done} of {of} ") } else { "\r\x1b[K".to_owned() };
            let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush()); // only decoration
        }
    }
}

/// Probes every GPU that a check touches with every HCA that it touches; `loopback`: with the proof by
/// transfer.
pub async fn probe_all(
    machine: &dyn Machine,
    inventory: &Inventory,
    config: &Config,
    loopback: bool,
    progress: &Progress,
) -> Checked {
    let bytes = |size: ByteSize| usize::try_from(size.0).unwrap_or(usize::MAX);
    let start = Instant::now();
    let hcas = hcas_to_probe(inventory, config);
    let gpus: Vec<_> = inventory.gpus.iter().filter(|g| is_checked(g, config)).cloned().collect();
    let of = gpus.len();
    let places = Semaphore::new(config.check.parallelism);
    let mut rows = Rows::new();
    progress.say(0, of);
    // All in this task: the children belong to the thread that started them.
    let running = gpus.into_iter().map(|gpu| {
        let task = Task {
            gpu,
            hcas: hcas.clone(),
            methods: config.check.methods.clone(),
            size: bytes(config.check.size),
            deep: loopback.then(|| bytes(config.check.deep_size)),
            busy: config.check.busy_gpus,
            limit: config.check.timeout.0,
            driver: inventory.nvidia.as_ref().map(|n| n.version.clone()),
        };
        let places = &places;
        async move {
            let _place = places.acquire().await;
            (task.gpu.pci, machine.probe(task).await)
        }
    });
    let mut running: FuturesUnordered<_> = running.collect();
    while let Some((gpu, row)) = running.next().await {
        rows.insert(gpu, row);
        progress.say(rows.len(), of);
    }
    let gpus = inventory.gpus.iter().map(|gpu| gpu.pci).collect();
    let surroundings = machine.surroundings(gpus, is_troubled(&rows, inventory)).await;
    Checked { rows, surroundings, took: start.elapsed() }
}

/// What came of every pair by every method.
fn results(rows: &Rows) -> impl Iterator<Item = &MethodResult> {
    rows.values().flat_map(|row| row.hcas.values()).flat_map(|hca| hca.methods.values())
}

/// Whether anything is there to be explained; a GPU in use is not.
fn is_troubled(rows: &Rows, inventory: &Inventory) -> bool {
    inventory.nvidia.is_none()
        || inventory.hcas.is_empty()
        || rows.values().flat_map(|row| &row.stops).any(|stop| stop.spared().is_none())
        || results(rows).any(|result| !matches!(result.outcome, Outcome::Verified | Outcome::Skipped))
}

/// Draws the conclusions of a finished check.
#[must_use]
pub fn conclude(inventory: &Inventory, checked: &Checked, memory: &Memory, config: &Config) -> Assessment {
    verdict::assess(&Input {
        inventory,
        surroundings: &checked.surroundings,
        rows: &checked.rows,
        memory,
        config,
        node: None,
        checked: true,
        now: Timestamp::now(),
    })
}
