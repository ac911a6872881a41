//! The writer: one patch to `nodes/status` when something differs, and a heartbeat; and events on what
//! changed. The latest state wins; nothing is queued, and nobody waits for it.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Node, events::v1::Event};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};

use super::{
    api::{CallError, Trouble, call, client},
    body::{Desired, desired, is_bare, patch},
    events::{Recorder, Telling, news},
    start::{first_beat, next_beat, start_late},
    view::view,
};
use crate::{
    agent::{Published, jittered},
    config::Publish,
    report::{NodeView, Report},
    telemetry::metrics::Metrics,
};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

/// What the writer works with.
pub struct Publisher {
    /// The Node's name.
    pub name: String,
    /// What is shown.
    pub config: Publish,
    /// What is known.
    pub state: watch::Receiver<Arc<Published>>,
    /// What the Node says to the agent.
    pub view: watch::Sender<Option<NodeView>>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
}

/// Keeps a Node telling what the agent knows. What is known at this call is what the first change is from, however
/// late the future runs: a first check that has ended by then was none of an earlier agent's.
pub fn publish(mut publisher: Publisher) -> impl Future<Output = ()> + Send {
    let first = Arc::clone(&publisher.state.borrow_and_update());
    publish_from(first, publisher)
}

async fn publish_from(first: Arc<Published>, publisher: Publisher) {
    let Publisher { name, config, mut state, view, metrics } = publisher;
    let mut last = Arc::clone(&first.report);
    let mut recorder = Recorder::new(Timestamp::now());
    let late = start_late(&first, &mut state, &config).await;
    let mut beat = Instant::now() + first_beat(&config, late);
    let mut writer = Writer { name, config, view, metrics, node: None, shown: None, client: None };
    let (mut of_node, mut of_events) = (Pause::new(), Pause::new());
    loop {
        let report = Arc::clone(&state.borrow_and_update().report);
        if writer.config.events {
            recorder.take(news(&last, &report));
        }
        last = Arc::clone(&report);
        let wanted = desired(&report, &writer.config);
        if beat <= Instant::now() {
            writer.shown = None;
        }
        if let Err(error) = writer.write(&wanted).await {
            sleep(writer.failed("can't publish", &error, &mut of_node)).await;
            continue;
        }
        of_node = Pause::new();
        while beat <= Instant::now() {
            beat += next_beat(&writer.config);
        }
        if of_events.is_over() {
            match writer.tell(&mut recorder).await {
                Ok(()) => of_events = Pause::new(),
                Err(error) => {
                    writer.failed("events wait", &error, &mut of_events);
                }
            }
        }
        if !until_due(&mut state, of_events.or(beat), &wanted, &last, &writer.config).await {
            return;
        }
    }
}

/// Waits for a state that asks for something else, for news, or until this time. False: the agent ends.
async fn until_due(
    state: &mut watch::Receiver<Arc<Published>>,
    due: Instant,
    wanted: &Desired,
    last: &Report,
    config: &Publish,
) -> bool {
    loop {
        match timeout_at(due, state.changed()).await {
            Err(_) => return true,
            Ok(Err(_)) => return false,
            Ok(Ok(())) => {
                let report = Arc::clone(&state.borrow_and_update().report);
                if !desired(&report, config).asks_as(wanted) || config.events && !news(last, &report).is_empty() {
                    return true;
                }
            }
        }
    }
}

/// How long what failed is left alone: twice as long each time, and as long as the server says. Events have one of
/// their own, so that they hold up no state.
struct Pause {
    next: Duration,
    until: Option<Instant>,
}

impl Pause {
    const fn new() -> Self {
        Self { next: FIRST_PAUSE, until: None }
    }

    fn after(&mut self, trouble: Trouble) -> Duration {
        let own = jittered(self.next, 0.5, 1.0);
        let wait = match trouble {
            Trouble::Later(Some(asked)) => jittered(asked, 1.0, 0.5).max(own),
            _ => own,
        };
        self.next = (self.next * 2).min(LONGEST_PAUSE);
        self.until = Some(Instant::now() + wait);
        wait
    }

    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| until <= Instant::now())
    }

    /// Its end, where that is sooner.
    fn or(&self, other: Instant) -> Instant {
        self.until.map_or(other, |until| until.min(other))
    }
}

struct Writer {
    name: String,
    config: Publish,
    view: watch::Sender<Option<NodeView>>,
    metrics: Arc<Metrics>,
    client: Option<Client>,
    /// The Node as the last answer showed it.
    node: Option<Node>,
    /// What it shows already, by the last patch, until a heartbeat is due.
    shown: Option<Desired>,
}

impl Writer {
    /// Makes the Node show it, where it does not yet.
    async fn write(&mut self, wanted: &Desired) -> Result<(), CallError> {
        if self.shown.as_ref().is_some_and(|shown| shown.asks_as(wanted)) {
            return Ok(());
        }
        self.shown = None;
        let api: Api<Node> = Api::all(self.client().await?);
        let node = match self.node.take() {
            Some(node) => node,
            None => call("read the node", "get nodes", api.get(&self.name)).await?,
        };
        let nothing_to_say = *wanted == Desired::default() && is_bare(&node, &self.config.prefix);
        let node = if nothing_to_say {
            node
        } else {
            let body = Patch::Strategic(patch(&node, wanted, &self.config.prefix, Timestamp::now()));
            let parameters = PatchParams::default();
            let patched = api.patch_status(&self.name, &parameters, &body);
            match call("patch the node's status", "patch nodes/status", patched).await {
                Ok(patched) => patched,
                Err(error) => {
                    self.node = Some(node); // a server that is busy is not asked for it once more
                    return Err(error);
                }
            }
        };
        let seen = view(&node, &self.config.prefix);
        self.view.send_if_modified(|told| {
            let differs = told.as_ref() != Some(&seen);
            *told = Some(seen);
            differs
        });
        (self.node, self.shown) = (Some(node), Some(wanted.clone()));
        self.metrics.published(true);
        Ok(())
    }

    /// Events; one that is refused is no reason to write the Node again.
    async fn tell(&mut self, recorder: &mut Recorder) -> Result<(), CallError> {
        let api: Api<Event> = Api::namespaced(self.client().await?, "default");
        let uid = self.node.as_ref().and_then(|node| node.metadata.uid.clone()).unwrap_or_default();
        while let Some((event, telling)) = recorder.next(&self.name, &uid, Timestamp::now()) {
            let (what, right) = ("tell an event", "create and patch events.k8s.io in the namespace default");
            let told = match &telling {
                Telling::New(body) => match serde_json::from_value(body.clone()) {
                    Ok(object) => call(what, right, api.create(&PostParams::default(), &object)).await.map(drop),
                    Err(error) => {
                        tracing::warn!(%error, "an event that is none");
                        continue;
                    }
                },
                Telling::Again(name, series) => {
                    let patch = Patch::Merge(series);
                    call(what, right, api.patch(name, &PatchParams::default(), &patch)).await.map(drop)
                }
            };
            match told {
                Ok(()) => recorder.told(event, &telling, Timestamp::now()),
                Err(error) if error.trouble == Trouble::Refused => {
                    tracing::warn!(why = %error.text, "an event is left out");
                }
                Err(error) => {
                    let gone = error.trouble == Trouble::Recreated && matches!(telling, Telling::Again(..));
                    recorder.missed(event, gone);
                    if !gone {
                        // An event that is in the way says nothing about the Node.
                        let in_the_way = error.trouble == Trouble::Recreated;
                        return Err(if in_the_way {
                            CallError { trouble: Trouble::Later(None), ..error }
                        } else {
                            error
                        });
                    }
                }
            }
        }
        match recorder.take_dropped() {
            0 => {}
            events => tracing::warn!(events, "too many events; these are left out"),
        }
        Ok(())
    }

    async fn client(&mut self) -> Result<Client, CallError> {
        Ok(match &self.client {
            Some(client) => client.clone(),
            None => self.client.insert(client().await?).clone(),
        })
    }

    /// Gives up what a failure shows to be old, and answers for how long what failed is left alone.
    fn failed(&mut self, what: &str, error: &CallError, pause: &mut Pause) -> Duration {
        self.metrics.published(false);
        match error.trouble {
            Trouble::Recreated => self.node = None,
            Trouble::NoAnswer => self.client = None,
            Trouble::Later(_) | Trouble::Expired | Trouble::Refused => {}
        }
        let wait = pause.after(error.trouble);
        tracing::warn!(node = %self.name, why = %error.text, again_in_s = wait.as_secs(), "{what}");
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thousands that were refused in one second do not come back in one second, nor all two minutes later.
    #[tokio::test(start_paused = true)]
    async fn pauses_are_jittered_and_end() {
        let mut pauses = [(); 200].map(|()| Pause::new());
        for (nth, longest) in [1, 2, 4, 8, 16, 32, 64, 120, 120, 120].into_iter().enumerate() {
            let mut waits: Vec<_> = pauses.iter_mut().map(|pause| pause.after(Trouble::NoAnswer)).collect();
            waits.sort();
            let longest = Duration::from_secs(longest);
            assert!(waits[0] >= longest / 2 && waits[199] < longest * 3 / 2, "{nth}: {waits:?}");
            assert!(waits[199] > waits[0] + longest / 2, "{nth}: they come at once, {waits:?}");
        }
        let asked = Trouble::Later(Some(Duration::from_secs(30)));
        let mut waits: Vec<_> = (0..200).map(|_| Pause::new().after(asked)).collect();
        waits.sort();
        assert!(waits[0] >= Duration::from_secs(30) && waits[199] < Duration::from_secs(45), "{waits:?}");
        let mut pause = Pause::new();
        assert!(pause.is_over());
        let wait = pause.after(Trouble::NoAnswer);
        assert!(!pause.is_over());
        sleep(wait).await;
        assert!(pause.is_over());
    }
}
