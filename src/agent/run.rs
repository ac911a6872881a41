//! `gdr-agent run`: checks at start, on a timer and on a change; looks every second; tells.

mod downstream;
mod look;
mod tell;

use std::{
    collections::BTreeMap,
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    check::{self, Checked, Progress},
    lock::{RunError, io_error, only_one},
    pace,
    publish::{FirstCheck, Pending, Published, same, write_report},
    sight::Sight,
    socket::{self, Done, Request},
    uevents::Uevents,
};
use crate::{
    cli::Context,
    config::{Interval, Loopback},
    hardware::{HcaFacts, Inventory},
    report::NodeView,
    store::Memory,
    telemetry::metrics::Metrics,
    verdict::{self, Links},
};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What the resources may take to end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Runs until SIGTERM or SIGINT, and removes nothing.
pub async fn run(context: Context, run_dir: PathBuf) -> Result<(), RunError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(io_error("can't wait for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io_error("can't wait for SIGINT"))?;
    let end = CancellationToken::new();
    let resources = TaskTracker::new();
    let work = async {
        let _lock = only_one(&run_dir).await?;
        Agent::start(context, &run_dir, &end, &resources).await?.live().await;
        Ok(())
    };
    let result = tokio::select! {
        result = work => result,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    end.cancel();
    // They end their streams and take their sockets away.
    resources.close();
    let _ = timeout(LAST_WORDS, resources.wait()).await;
    tracing::info!("the agent ends; labels, condition and resources stay as they are");
    result
}

type Running = Pin<Box<dyn Future<Output = (Arc<Inventory>, Checked, Timestamp)> + Send>>;

/// Whether the Node wanted checks at the last look.
#[derive(Clone, Copy, PartialEq)]
enum Pace {
    Awake,
    Resting,
}

struct Agent {
    context: Arc<Context>,
    run_dir: PathBuf,
    metrics: Arc<Metrics>,
    inventory: Arc<Inventory>,
    checked: Checked,
    /// Whether a check has finished in this boot, by this process or an earlier one.
    checked_in_boot: bool,
    checked_here: bool,
    started_at: Timestamp,
    memory: Memory,
    /// HCAs of this boot as they were last seen, with whether each is a rail.
    known: BTreeMap<String, (HcaFacts, bool)>,
    tell: watch::Sender<Arc<Published>>,
    requests: mpsc::Receiver<Request>,
    waiting: Vec<Done>,
    next_check: Option<Instant>,
    last_triggered: Option<Instant>,
    /// The next check is one that a change asked for.
    triggered: bool,
    pace: Pace,
    unconfirmed: usize,
    sight: Sight,
    links: Links,
    links_due: Instant,
    /// When everything is read once more, after a change.
    read_again: Option<Instant>,
    /// What the Node says; its sender stays here where nobody publishes.
    view: (watch::Sender<Option<NodeView>>, watch::Receiver<Option<NodeView>>),
}

impl Agent {
    async fn start(
        context: Context,
        run_dir: &Path,
        end: &CancellationToken,
        resources: &TaskTracker,
    ) -> Result<Self, RunError> {
        let context = Arc::new(context);
        let sight = Sight::new(Arc::clone(&context.machine));
        let mut inventory = loop {
            if let Ok(inventory) = sight.read().await {
                break inventory;
            }
            tracing::warn!("a driver blocks the first look at sysfs");
        };
        let mut memory = context.store.load(&inventory.boot_id);
        memory.meet(&mut inventory);
        verdict::forget_another_driver(&mut memory, &inventory);
        memory.saw_active(context.machine.known_active());
        memory.saw_ports(&inventory);
        let known = inventory.hcas.iter().map(|h| (h.key(), (h.clone(), false))).collect();
        let metrics = Arc::new(Metrics::new());
        let (requests_in, requests) = mpsc::channel(4);
        let pending = Pending { context: &context, inventory: &inventory, memory: &memory };
        let (tell, state) = watch::channel(Arc::new(pending.published()));
        let mut agent = Self {
            run_dir: run_dir.to_owned(),
            metrics: Arc::clone(&metrics),
            checked_in_boot: memory.damping.published.is_some(),
            checked: Checked::default(),
            checked_here: false,
            started_at: Timestamp::now(),
            inventory: Arc::new(inventory),
            memory,
            known,
            tell,
            requests,
            waiting: Vec::new(),
            next_check: (context.config.check.interval != Interval::Never).then(Instant::now),
            last_triggered: None,
            triggered: false,
            pace: Pace::Awake,
            unconfirmed: 0,
            sight,
            links: Links::default(),
            links_due: Instant::now(),
            read_again: Some(Instant::now() + look::SETTLES),
            view: watch::channel(None),
            context,
        };
        // What is known is told before anybody asks.
        agent.tell_all(false);
        agent.spawn_others(&state, requests_in)?;
        agent.serve_resources(&state, end, resources);
        Ok(agent)
    }

    async fn live(mut self) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut uevents = Uevents::listen();
        let mut running: Option<Running> = None;
        loop {
            let due = self.next_check.filter(|_| running.is_none() && self.may_check());
            tokio::select! {
                done = async { match &mut running { Some(check) => check.await, None => std::future::pending().await } } => {
                    running = None;
                    self.finished(done);
                }
                () = async { match due { Some(at) => sleep_until(at).await, None => std::future::pending().await } } => {
                    self.triggered = false;
                    running = Some(self.begin());
                }
                Some(request) = self.requests.recv() => self.take(request),
                Ok(()) = self.view.1.changed() => self.see_node(),
                _ = looks.tick() => self.look().await,
                () = uevents.next() => self.look().await,
            }
        }
    }

    /// Who asks is always answered. A paused node is left alone, and while what is checked is about to change
    /// only what has changed is looked at.
    fn may_check(&self) -> bool {
        !self.waiting.is_empty() || !self.is_resting(self.triggered)
    }

    /// Before the Node is seen, a pause is as long as it was when an earlier process saw it.
    fn is_resting(&self, triggered: bool) -> bool {
        let view = self.view.1.borrow();
        let changing = view.as_ref().is_some_and(|node| node.change_under_way.is_some());
        self.memory.paused_until.is_some_and(|until| Timestamp::now() < until) || changing && !triggered
    }

    fn see_node(&mut self) {
        let until = self.view.1.borrow_and_update().as_ref().and_then(|node| node.paused_until);
        if self.memory.paused_until != until {
            self.memory.paused_until = until;
            self.save();
        }
        self.tell_all(false);
    }

    fn take(&mut self, request: Request) {
        match request {
            Request::Check(done) => {
                self.waiting.push(done);
                self.next_check = Some(Instant::now());
            }
            Request::Accept(done) => {
                verdict::accept(&mut self.memory, &self.inventory);
                tracing::info!("what is here now is the node's baseline");
                self.tell_all(false);
                self.save();
                self.next_check = Some(Instant::now());
                let _ = done.send(()); // who asked may be gone
            }
        }
    }

    fn begin(&self) -> Running {
        let context = Arc::clone(&self.context);
        let started_at = Timestamp::now();
        let loopback = match self.context.config.check.loopback {
            Loopback::Never => false,
            // A transfer that went wrong is tried again until it goes well: a registration alone is no
            // proof that it would.
            Loopback::Start => !self.checked_here || self.checked.has_failed_transfer(),
            Loopback::Always => true,
        };
        let (known, last, sight) = (self.memory.known(), Arc::clone(&self.inventory), self.sight.clone());
        Box::pin(async move {
            let Ok(mut inventory) = sight.read().await else {
                tracing::warn!("a driver blocks the look at sysfs: no child is started");
                let checked = Checked::blind(&last, &context.config);
                return (last, checked, started_at);
            };
            inventory.recall(&known);
            let checked = check::probe_all(
                context.machine.as_ref(),
                &inventory,
                &context.config,
                loopback,
                &Progress::new(false),
            )
            .await;
            (Arc::new(inventory), checked, started_at)
        })
    }

    fn finished(&mut self, (inventory, checked, started_at): (Arc<Inventory>, Checked, Timestamp)) {
        self.metrics.check(&checked);
        self.memory.saw_netdevs(&inventory);
        self.note_driver(&inventory, started_at);
        self.take_inventory(inventory);
        self.checked = checked;
        self.checked.surroundings.link_drops = self.links.drops();
        self.started_at = started_at;
        self.checked_in_boot = true;
        self.checked_here = true;
        self.tell_all(true);
        self.schedule();
        for request in self.waiting.drain(..) {
            let _ = request.send(()); // who asked may be gone
        }
    }

    /// What was checked under another driver says nothing of this one.
    fn note_driver(&mut self, inventory: &Inventory, now: Timestamp) {
        let before = self.memory.driver.clone();
        if verdict::note_driver(&mut self.memory, &self.inventory, inventory, now) {
            self.checked = Checked::default();
        }
        self.checked_in_boot &= before.is_none() || self.memory.driver == before;
    }

    /// While what was seen and what is published differ, soon.
    fn schedule(&mut self) {
        let damped = self.tell.borrow().report.verdict.damped;
        self.unconfirmed = if damped { self.unconfirmed + 1 } else { 0 };
        let pause = pace::pause(&self.context.config.check.interval, self.unconfirmed);
        self.next_check = pause.map(|pause| Instant::now() + pause);
    }
}
