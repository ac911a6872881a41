//! The parent's side: starts a child for a GPU, listens, keeps its deadlines, and never waits for
//! what it cannot kill.

use std::{
    collections::BTreeMap,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
    time::{Instant, sleep_until, timeout},
};

use super::{
    folder::{Folder, make_folder, sweep},
    library::{Found, link_folder},
    lock::lock_within,
    protocol::{End, Line, Plan, Row, Step, Stopped},
};
use crate::{
    ffi::sys,
    hardware::{HcaFacts, PciAddress},
    report::{Code, Method, MethodResult, Outcome},
};

const STEP_DEADLINE: Duration = Duration::from_secs(10);
const INIT_DEADLINE: Duration = Duration::from_secs(30);
/// How long a child may take to die of a signal before the next one, or before it is given up.
const DEATH_DEADLINE: Duration = Duration::from_secs(2);
/// What of a library's complaints is kept.
const STDERR_KEPT: u64 = 8 << 10;

/// Starts children, and remembers those that would not die.
#[derive(Debug, Clone)]
pub struct Supervisor {
    run_dir: PathBuf,
    stuck: Arc<Mutex<BTreeMap<PciAddress, Step>>>,
}

impl Supervisor {
    /// `run_dir` holds the lock of each GPU, so that `check` and the agent never meet on one.
    #[must_use]
    pub fn new(run_dir: &Path) -> Self {
        sweep(run_dir);
        Self { run_dir: run_dir.to_owned(), stuck: Arc::default() }
    }

    /// How many children are stuck in the kernel.
    #[must_use]
    pub fn stuck(&self) -> usize {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Runs a GPU's row to its end, or to its deadline.
    pub async fn probe(&self, plan: &Plan, uuid: Option<&str>, found: &Found, limit: Duration) -> Row {
        let mut row = Row { libcuda: found.tried.clone(), ..Row::default() };
        let stuck_at = self.stuck.lock().unwrap_or_else(PoisonError::into_inner).get(&plan.gpu).copied();
        if let Some(step) = stuck_at {
            let detail = "an earlier child of this GPU is still stuck in the kernel at this step";
            row.stop(step, None, End::TimedOut, detail);
        } else {
            match self.lock(plan.gpu, limit).await {
                Err(detail) => row.stop(Step::Lock, None, End::TimedOut, detail),
                Ok(_lock) => self.run_children(plan, uuid, found, limit, &mut row).await,
            }
        }
        row.fill(plan.hcas.iter().map(|target| target.name.as_str()), &plan.methods);
        row
    }

    /// One child as a rule; where it falls at an HCA, another one goes on with the next: a provider's
    /// crash, or an HCA that never answers, must not take those behind it along.
    async fn run_children(&self, plan: &Plan, uuid: Option<&str>, found: &Found, limit: Duration, row: &mut Row) {
        let end = Instant::now() + limit;
        let mut rest = plan.clone();
        loop {
            let before = row.stops.len();
            self.run_child(&rest, uuid, found, end.saturating_duration_since(Instant::now()), row).await;
            let fell_at = row.stops.get(before).and_then(|stop| stop.hca.clone());
            let Some(at) = rest.hcas.iter().position(|target| Some(&target.name) == fell_at.as_ref()) else { return };
            rest.hcas.drain(..=at);
            let stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&plan.gpu);
            if stuck || rest.hcas.is_empty() || Instant::now() >= end {
                return;
            }
        }
    }

    /// The GPU's lock; without a writable folder there is none to take, and nobody to meet.
    async fn lock(&self, gpu: PciAddress, limit: Duration) -> Result<Option<std::fs::File>, String> {
        let path = self.run_dir.join(format!("gpu-{gpu}.lock"));
        let open = || {
            std::fs::create_dir_all(&self.run_dir)?;
            std::fs::OpenOptions::new().create(true).append(true).open(&path)
        };
        let file = match open() {
            Ok(file) => file,
            Err(error) => {
                tracing::debug!(%error, path = %path.display(), "no lock for this GPU");
                return Ok(None);
            }
        };
        if lock_within(&file, limit).await {
            Ok(Some(file))
        } else {
            Err(format!("another gdr-agent has held {} for {}s", path.display(), limit.as_secs()))
        }
    }

    async fn run_child(&self, plan: &Plan, uuid: Option<&str>, found: &Found, limit: Duration, row: &mut Row) {
        // Two folders that live as long as the child: the driver's files, and an empty one where an
        // MPS client would look for its pipe (the child is never one).
        let made = make_folder(&self.run_dir).and_then(|links| Ok((links, make_folder(&self.run_dir)?)));
        let (links, no_mps) = match made {
            Ok(folders) => folders,
            Err(error) => return row.not_started(&error),
        };
        let injected = found.file.parent().is_none_or(|dir| dir.as_os_str().is_empty());
        if !injected && let Err(error) = link_folder(&found.file, &links.0) {
            tracing::warn!(%error, libcuda = %found.file.display(), "can't link the driver's libraries");
        }
        let mut plan = plan.clone();
        if let Some(own) = &mut plan.own_dev {
            own.staging.clone_from(&no_mps.0.join("dev"));
            if let Err(error) = std::fs::create_dir(&own.staging) {
                return row.not_started(&error);
            }
        }
        let command = command(uuid, &no_mps.0, (!injected).then_some(links.0.as_path()));
        let mut child = match command.and_then(|mut c| c.spawn()) {
            Ok(child) => child,
            Err(error) => return row.not_started(&error),
        };
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let complaints = tokio::spawn(collect(stderr));
        if let Some(mut stdin) = stdin {
            let text = serde_json::to_vec(&plan).unwrap_or_default();
            // A child that died already shows in its exit status.
            let _ = stdin.write_all(&text).await;
        }
        let at = listen(stdout, limit, row).await;
        if let Some(status) = finish(&mut child).await {
            if !at.stopped && !at.done {
                let end = if at.late { End::TimedOut } else { End::Died(death(status)) };
                row.stop(at.step, at.hca, end, "");
            }
        } else {
            self.stuck.lock().unwrap_or_else(PoisonError::into_inner).insert(plan.gpu, at.step);
            tracing::error!(gpu = %plan.gpu, step = %at.step, "the probe is stuck in the kernel and can't be killed");
            row.stop(at.step, at.hca, End::TimedOut, "the child does not die of SIGKILL");
            self.wait_for_the_stuck(plan.gpu, child, (links, no_mps));
        }
        if let Ok(Ok(lines)) = timeout(Duration::from_millis(200), complaints).await {
            row.stderr.extend(lines);
        }
    }

    /// Frees the GPU for checks when the kernel lets its child go at last.
    fn wait_for_the_stuck(&self, gpu: PciAddress, mut child: Child, folders: (Folder, Folder)) {
        let stuck = Arc::clone(&self.stuck);
        tokio::spawn(async move {
            let _ = child.wait().await;
            drop(folders);
            stuck.lock().unwrap_or_else(PoisonError::into_inner).remove(&gpu);
            tracing::info!(%gpu, "the stuck probe is gone");
        });
    }
}

fn command(uuid: Option<&str>, no_mps: &Path, libraries: Option<&Path>) -> std::io::Result<Command> {
    // The running binary, also when its file was replaced.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg("probe")
        .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        .env("CUDA_MPS_PIPE_DIRECTORY", no_mps)
        .env("CUDA_MODULE_LOADING", "LAZY")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    match uuid {
        Some(uuid) => command.env("CUDA_VISIBLE_DEVICES", uuid),
        None => command.env_remove("CUDA_VISIBLE_DEVICES"),
    };
    if let Some(libraries) = libraries {
        let inherited = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let path = std::iter::once(libraries.to_owned()).chain(std::env::split_paths(&inherited));
        command.env("LD_LIBRARY_PATH", std::env::join_paths(path).map_err(std::io::Error::other)?);
    }
    sys::contain(&mut command);
    Ok(command)
}

/// How far a child had come when it fell silent.
struct At {
    step: Step,
    hca: Option<String>,
    late: bool,
    /// It said itself why it could not go on.
    stopped: bool,
    done: bool,
}

async fn listen(stdout: Option<impl AsyncRead + Unpin>, limit: Duration, row: &mut Row) -> At {
    let mut at = At { step: Step::Start, hca: None, late: false, stopped: false, done: false };
    let Some(stdout) = stdout else { return at };
    let mut lines = BufReader::new(stdout).lines();
    let end = Instant::now() + limit;
    loop {
        // Without persistence mode these initialise the GPU.
        let initialises = matches!(at.step, Step::Init | Step::NvmlInit | Step::NvmlHandle);
        let allowed = if initialises { INIT_DEADLINE } else { STEP_DEADLINE };
        let deadline = end.min(Instant::now() + allowed);
        let line = tokio::select! {
            line = lines.next_line() => line,
            () = sleep_until(deadline) => { at.late = true; return at; }
        };
        let Ok(Some(text)) = line else { return at };
        match serde_json::from_str(&text) {
            Ok(Line::Step(step, hca)) => (at.step, at.hca) = (step, hca),
            Ok(Line::Limits(limits)) => row.limits = Some(limits),
            Ok(Line::Usage(usage)) => row.usage = Some(usage),
            Ok(Line::Spared(step, why, detail)) => {
                at.stopped = true;
                row.stop(step, None, End::Spared(why), detail);
            }
            Ok(Line::Gpu(answer)) => row.gpu = answer,
            Ok(Line::Method(hca, method, result)) => {
                row.hcas.entry(hca).or_default().methods.insert(method, result);
            }
            Ok(Line::Stopped(step, code, detail)) => {
                at.stopped = true;
                row.stop(step, None, End::Refused(code), detail);
            }
            Ok(Line::Done) => at.done = true,
            // A library that writes to stdout; it is no answer of ours.
            Err(_) => row.stderr.push(text),
        }
    }
}

/// Ends a child: waits a moment for one that is done, then SIGTERM, then SIGKILL. `None`: it is
/// still there.
async fn finish(child: &mut Child) -> Option<ExitStatus> {
    use rustix::process::{Pid, Signal, kill_process};
    if let Ok(Ok(status)) = timeout(Duration::from_millis(500), child.wait()).await {
        return Some(status);
    }
    let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    for signal in [Signal::TERM, Signal::KILL] {
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal); // gone already is as good
        }
        if let Ok(Ok(status)) = timeout(DEATH_DEADLINE, child.wait()).await {
            return Some(status);
        }
    }
    None
}

fn death(status: ExitStatus) -> Code {
    status.signal().map_or_else(|| Code::exit(status.code().unwrap_or(-1)), Code::signal)
}

async fn collect(stderr: Option<impl AsyncRead + Unpin>) -> Vec<String> {
    let mut text = Vec::new();
    if let Some(stderr) = stderr {
        let _ = stderr.take(STDERR_KEPT).read_to_end(&mut text).await;
    }
    String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
}

impl Row {
    fn stop(&mut self, step: Step, hca: Option<String>, end: End, detail: impl Into<String>) {
        self.stops.push(Stopped { step, hca, end, detail: detail.into() });
    }

    fn not_started(&mut self, error: &std::io::Error) {
        self.stop(Step::Spawn, None, End::Refused(error.raw_os_error().map(Code::errno)), error.to_string());
    }

    /// A row of which no step could be taken.
    #[must_use]
    pub fn never_began(step: Step, hcas: &[HcaFacts], methods: &[Method]) -> Self {
        let mut row = Self::default();
        row.stop(step, None, End::TimedOut, "a driver blocks it");
        row.fill(hcas.iter().map(|hca| hca.name.as_str()), methods);
        row
    }

    /// Adds HCAs that no child was sent to.
    pub(super) fn add_silent(&mut self, silent: &[HcaFacts], methods: &[Method]) {
        for hca in silent {
            self.stop(Step::Sysfs, Some(hca.name.clone()), End::TimedOut, "a driver blocks the reads of this device");
        }
        self.fill(silent.iter().map(|hca| hca.name.as_str()), methods);
    }

    /// Gives every pair its result: what a child that ended too early left out has the step at which it
    /// ended, or was not reached.
    fn fill<'n>(&mut self, hcas: impl Iterator<Item = &'n str>, methods: &[Method]) {
        for name in hcas {
            let own = self.stops.iter().find(|stop| stop.hca.as_deref() == Some(name));
            let stop = own.or_else(|| self.stops.last());
            let result = MethodResult {
                outcome: stop.map_or(Outcome::Unknown, Stopped::outcome),
                step: stop.map(|stop| {
                    let reached = stop.hca.as_deref().is_none_or(|hca| hca == name);
                    if reached { stop.step } else { Step::NotReached }.to_string()
                }),
                code: stop.and_then(|stop| stop.end.code()),
                duration_us: 0,
                mr: None,
                loopback: None,
            };
            let answers = &mut self.hcas.entry(name.to_owned()).or_default().methods;
            for method in methods {
                answers.entry(*method).or_insert_with(|| result.clone());
            }
        }
    }
}

impl Stopped {
    /// What a row's early end says of its pairs: nothing, but for a GPU that is in use, and for one
    /// whose memory is broken.
    fn outcome(&self) -> Outcome {
        match (&self.end, self.end.code().and_then(|c| c.as_cuda())) {
            _ if self.spared().is_some() => Outcome::Skipped,
            // ECC_UNCORRECTABLE
            (End::Refused(_), Some(214)) => Outcome::Failed,
            _ => Outcome::Unknown,
        }
    }
}
