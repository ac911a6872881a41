//! `gdr-agent run`: checks at start, on a timer and on a change; looks every second; tells.

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
    sync::{Semaphore, mpsc, watch},
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    check::{self, Checked, Progress},
    lock::{RunError, io_error, only_one},
    pace,
    publish::{Pending, Published, same, write_report},
    sight::Sight,
    socket::{self, Done, Request},
};
use crate::{
    cli::Context,
    config::{Interval, Loopback, Publish, PublishMode},
    hardware::{HcaFacts, Inventory, Roots},
    kubelet::{self, Device, Supervised},
    node,
    report::{Hca, HcaRole, NodeView},
    store::{Memory, Transition},
    telemetry::{http, metrics::Metrics},
    usage::also_in,
    verdict::{self, Assessment, Input, Stamp, damping, devices},
};

const LOOK_EVERY: Duration = Duration::from_secs(1);
const TRIGGERED_APART: Duration = Duration::from_secs(10);
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
    unconfirmed: usize,
    sight: Sight,
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
        if let Some(report) = &memory.report {
            inventory.recall(&report.hcas);
        }
        verdict::forget_another_driver(&mut memory, &inventory);
        memory.saw_active(context.machine.known_active());
        memory.saw_active(inventory.hcas.iter().filter(|h| h.usable()).map(HcaFacts::key));
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
            unconfirmed: 0,
            sight,
            view: watch::channel(None),
            context,
        };
        // What is known is told before anybody asks.
        agent.tell_all(false);
        agent.spawn_others(&state, requests_in)?;
        agent.serve_resources(&state, end, resources);
        Ok(agent)
    }

    /// Everybody downstream, each in a task of its own.
    fn spawn_others(
        &self,
        state: &watch::Receiver<Arc<Published>>,
        requests: mpsc::Sender<Request>,
    ) -> Result<(), RunError> {
        let config = &self.context.config;
        let listener =
            socket::bind(&self.run_dir).map_err(io_error(format!("can't listen in {}", self.run_dir.display())))?;
        tokio::spawn(socket::serve(listener, state.clone(), requests));
        if let Some(listen) = &config.http.listen {
            tokio::spawn(http::serve(listen.clone(), state.clone(), Arc::clone(&self.metrics)));
        }
        self.publish(&config.publish, state);
        Ok(())
    }

    fn serve_resources(
        &self,
        state: &watch::Receiver<Arc<Published>>,
        end: &CancellationToken,
        resources: &TaskTracker,
    ) {
        let config = Arc::new(self.context.config.clone());
        let dev_root = self.context.roots.dev.clone();
        tokio::spawn(kubelet::keep_specs(Arc::clone(&config), state.clone(), dev_root));
        tokio::spawn(kubelet::say_what_is_empty(Arc::clone(&config), state.clone()));
        let looks = Arc::new(Semaphore::new(kubelet::LOOKS));
        let changes = kubelet::watch_folder(config.kubelet.device_plugins.clone());
        for resource in &config.resources {
            resources.spawn(kubelet::supervise(Supervised {
                resource: resource.clone(),
                config: Arc::clone(&config),
                folder: config.kubelet.device_plugins.clone(),
                changes: changes.clone(),
                looks: Arc::clone(&looks),
                state: state.clone(),
                machine: Arc::clone(&self.context.machine),
                metrics: Arc::clone(&self.metrics),
                run_dir: self.run_dir.clone(),
                dev_root: self.context.roots.dev.clone(),
                end: end.clone(),
            }));
        }
    }

    fn publish(&self, config: &Publish, state: &watch::Receiver<Arc<Published>>) {
        if config.dry_run || config.mode == PublishMode::None {
            return;
        }
        if self.context.machine.simulated() && has_hardware() {
            tracing::error!("this node has NVIDIA or RDMA hardware: a simulation does not publish here");
            return;
        }
        let (config, state, metrics) = (config.clone(), state.clone(), Arc::clone(&self.metrics));
        match config.mode {
            PublishMode::Node => {
                let (name, view) = (self.context.node.clone(), self.view.0.clone());
                tokio::spawn(node::publish(node::Publisher { name, config, state, view, metrics }));
            }
            PublishMode::Nfd => {
                tokio::spawn(node::write_features(config, state, metrics));
            }
            PublishMode::None => {}
        }
    }

    async fn live(mut self) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
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
                Ok(()) = self.view.1.changed() => self.tell_all(false),
                _ = looks.tick() => self.look().await,
            }
        }
    }

    /// Who asks is always answered. A paused node is left alone, and while what is checked is about to change
    /// only what has changed is looked at.
    fn may_check(&self) -> bool {
        let view = self.view.1.borrow();
        let paused = |node: &NodeView| node.paused_until.is_some_and(|until| Timestamp::now() < until);
        let rests = |node: &NodeView| paused(node) || node.change_under_way.is_some() && !self.triggered;
        !self.waiting.is_empty() || !view.as_ref().is_some_and(rests)
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
        let (last_seen, last, sight) = (self.last_seen(), Arc::clone(&self.inventory), self.sight.clone());
        Box::pin(async move {
            let Ok(mut inventory) = sight.read().await else {
                tracing::warn!("a driver blocks the look at sysfs: no child is started");
                let checked = Checked::blind(&last, &context.config);
                return (last, checked, started_at);
            };
            inventory.recall(&last_seen);
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
        self.note_driver(&inventory, started_at);
        self.inventory = inventory;
        self.checked = checked;
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

    /// The passive tier: ports, modules, inventory.
    async fn look(&mut self) {
        let Ok(changed) = self.sight.glance(Arc::clone(&self.inventory)).await else {
            tracing::warn!("a driver blocks the look at sysfs");
            return;
        };
        let now = Timestamp::now();
        let before: Vec<bool> = self.memory.devices.values().map(devices::healthy).collect();
        let differs = changed.is_some();
        if let Some(mut inventory) = changed {
            inventory.recall(&self.last_seen());
            tracing::info!("the hardware's state has changed");
            self.note_driver(&inventory, now);
            self.inventory = Arc::new(inventory);
            self.trigger();
        }
        for hca in &self.inventory.hcas {
            if let Some(memory) = self.memory.devices.get_mut(&hca.key()) {
                devices::looked(memory, hca.usable(), &self.context.config.policy.damping, now);
            }
        }
        let health_changed = before != self.memory.devices.values().map(devices::healthy).collect::<Vec<_>>();
        if differs || health_changed || self.memory.damping.candidate.is_some() {
            self.tell_all(false);
        }
    }

    /// HCAs as they were last seen.
    fn last_seen(&self) -> Vec<Hca> {
        self.memory.report.as_ref().map(|report| report.hcas.clone()).unwrap_or_default()
    }

    /// A change that matters is checked at once; two such checks are some time apart.
    fn trigger(&mut self) {
        let earliest = self.last_triggered.map_or_else(Instant::now, |at| (at + TRIGGERED_APART).max(Instant::now()));
        if self.context.config.check.interval == Interval::Never {
            return;
        }
        self.triggered = true;
        if self.next_check.is_none_or(|at| at > earliest) {
            self.next_check = Some(earliest);
            self.last_triggered = Some(earliest);
        }
    }

    /// Assesses what is known, damps it, and tells everybody when something differs.
    fn tell_all(&mut self, full_check: bool) {
        let now = Timestamp::now();
        let context = Arc::clone(&self.context);
        let config = &context.config;
        let known = self.checked_here || !self.checked_in_boot;
        let assessment = self.assess(now);
        if full_check {
            verdict::remember(&mut self.memory, &self.inventory, &assessment, now);
        }
        self.take_devices(&assessment, full_check);
        let old = self.tell.borrow().report.verdict.clone();
        let counts = full_check && self.saw_itself(&assessment, now);
        let (verdict, findings) = (&assessment.verdict, &assessment.findings);
        let seen = damping::Seen { verdict, findings, full_check: counts, now };
        // Before this process has checked, an earlier one's verdict of this boot stands.
        let verdict = if known { damping::step(&mut self.memory.damping, &config.policy, &seen) } else { old.clone() };
        if (old.state, old.reason) != (verdict.state, verdict.reason) {
            tracing::info!(from = %old.state, to = %verdict.state, reason = %verdict.reason, message = %verdict.message, "the node's state has changed");
            self.metrics.transition(old.state, verdict.state);
            let (reason, message) = (verdict.reason, verdict.message.clone());
            self.memory.note(Transition { at: now, from: old.state, to: verdict.state, reason, message });
        }
        let stale = !known && self.memory.report.is_some();
        let mut report = assessment.into_report(
            &self.inventory,
            &Stamp {
                node: &self.context.node,
                simulated: self.context.machine.simulated(),
                started_at: self.started_at,
                duration_ms: u64::try_from(self.checked.took.as_millis()).unwrap_or(u64::MAX),
            },
        );
        if stale && let Some(stored) = self.memory.report.clone() {
            report = stored;
        }
        report.verdict = verdict;
        report.valid_until = pace::valid_until(&config.check.interval, now);
        let published = Published {
            devices: self.devices(),
            listed: self.checked.surroundings.listed.clone(),
            history: self.memory.history.iter().cloned().collect(),
            checked: self.checked_in_boot,
            report: Arc::new(report),
        };
        let differs = !same(&self.tell.borrow(), &published);
        if differs || full_check {
            self.metrics.report(&published, self.context.machine.stuck());
            // Who asks gets the check that has just ended; who waits for a change is not woken by
            // none, and does not wait for a disk.
            let published = Arc::new(published);
            self.tell.send_if_modified(|told| {
                *told = Arc::clone(&published);
                differs
            });
            write_report(&self.run_dir, &published.report);
            self.memory.report = Some(published.report.as_ref().clone());
            self.save();
        }
    }

    /// Whether a check comes to the same without what is carried from earlier ones.
    fn saw_itself(&self, assessment: &Assessment, now: Timestamp) -> bool {
        self.assess_with(&self.memory.without_outcomes(), now).verdict.state == assessment.verdict.state
    }

    fn assess(&self, now: Timestamp) -> Assessment {
        self.assess_with(&self.memory, now)
    }

    fn assess_with(&self, memory: &Memory, now: Timestamp) -> Assessment {
        verdict::assess(&Input {
            inventory: &self.inventory,
            surroundings: &self.checked.surroundings,
            rows: &self.checked.rows,
            memory,
            config: &self.context.config,
            node: self.view.1.borrow().as_ref(),
            checked: self.checked_in_boot,
            now,
        })
    }

    fn save(&self) {
        if let Err(error) = self.context.store.save(&self.memory) {
            tracing::warn!(%error, "can't write the store; a restart would begin without memory");
        }
    }

    /// Keeps each device's health in memory; a new one begins unhealthy until a check ends.
    fn take_devices(&mut self, assessment: &Assessment, full_check: bool) {
        for (facts, hca) in self.inventory.hcas.iter().zip(&assessment.hcas) {
            if !matches!(hca.role, HcaRole::Eligible | HcaRole::Away) {
                continue;
            }
            self.known.insert(facts.key(), (facts.clone(), hca.rail));
            let fresh = !self.memory.devices.contains_key(&facts.key());
            let memory = self.memory.devices.entry(facts.key()).or_default();
            if fresh {
                memory.port = facts.usable();
            }
            if full_check {
                let each: Vec<_> = assessment.pairs.iter().filter(|p| p.hca == hca.name).map(|p| p.good).collect();
                let good = if each.contains(&Some(true)) {
                    Some(true)
                } else {
                    each.iter().all(|g| *g == Some(false)).then_some(false)
                };
                devices::checked(memory, good, &self.context.config.policy.damping);
            }
        }
    }

    fn devices(&self) -> Vec<Device> {
        let listed = self.checked.surroundings.listed.as_deref().unwrap_or_default();
        self.memory
            .devices
            .iter()
            .filter_map(|(id, memory)| {
                let (hca, rail) = self.known.get(id)?.clone();
                let here = self.inventory.hcas.iter().any(|h| h.key() == *id);
                let also_in = also_in(&hca, listed, &self.context.config.resources).map(str::to_owned);
                Some(Device { id: id.clone(), hca, rail, healthy: here && devices::healthy(memory), also_in })
            })
            .collect()
    }
}

fn has_hardware() -> bool {
    let real = Inventory::read(&Roots::default());
    !real.gpus.is_empty() || real.has_rdma_hardware()
}
