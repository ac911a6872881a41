//! Events on the Node: what changed, and what was newly found. Deciding which is pure; the same event
//! again counts up the one that is there, and of too many the rest is left out. None is ever listed.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::body::cut;
use crate::report::{Finding, Report, Severity, State};

/// Of `note`, by the API server's validation.
const NOTE_LIMIT: usize = 1024;
/// As long as an event is taken for the same one.
const WINDOW_S: i64 = 600;
/// So many at once, and one more for each [`REFILL_S`].
const BURST: f64 = 10.0;
const REFILL_S: f64 = 60.0;
/// What waits for an API server that does not answer; older ones are left out.
const WAITING: usize = 16;

/// One event before it is told.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event {
    reason: String,
    note: String,
    warning: bool,
}

/// What is sent: a new event, or one more of one that is there.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Telling {
    /// To be created.
    New(Value),
    /// The name of the one that is there, and the patch of its series.
    Again(String, Value),
}

/// Which events the change from one report to the next is worth: the node's new state, and findings that
/// were not there before.
pub(super) fn news(before: &Report, now: &Report) -> Vec<Event> {
    let mut events = Vec::new();
    let (old, new) = (&before.verdict, &now.verdict);
    if (old.state, old.reason) != (new.state, new.reason) {
        let note = format!("{} (was {}): {}", new.state, old.state, new.message);
        let warning = !matches!(new.state, State::Ready | State::NotApplicable);
        events.push(Event { reason: new.reason.to_string(), note: cut(&note, NOTE_LIMIT), warning });
    }
    let known = |finding: &Finding| {
        let same = |old: &&Finding| old.reason == finding.reason;
        before.findings.iter().find(same).is_some_and(|old| {
            finding.hcas.iter().all(|hca| old.hcas.contains(hca))
                && finding.gpus.iter().all(|gpu| old.gpus.contains(gpu))
        })
    };
    for finding in now.findings.iter().filter(|finding| finding.severity != Severity::Info && !known(finding)) {
        if finding.reason == new.reason && !events.is_empty() {
            continue; // the state's own event says it
        }
        let note = cut(&format!("{} {}", finding.message, finding.remedy), NOTE_LIMIT);
        events.push(Event { reason: finding.reason.to_string(), note, warning: true });
    }
    events
}

/// Remembers what was told, and how much may be told yet.
#[derive(Debug)]
pub(super) struct Recorder {
    waiting: VecDeque<Event>,
    told: BTreeMap<Event, Told>,
    tokens: f64,
    refilled: Timestamp,
    serial: u32,
    dropped: u64,
}

#[derive(Debug, Clone)]
struct Told {
    name: String,
    count: u32,
    last: Timestamp,
}

impl Recorder {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { waiting: VecDeque::new(), told: BTreeMap::new(), tokens: BURST, refilled: now, serial: 0, dropped: 0 }
    }

    /// Takes in events; beyond what can wait the oldest are left out.
    pub(super) fn take(&mut self, events: Vec<Event>) {
        self.waiting.extend(events);
        while self.waiting.len() > WAITING {
            self.waiting.pop_front();
            self.dropped += 1;
        }
    }

    /// The next that may be told now, about this Node.
    pub(super) fn next(&mut self, node: &str, uid: &str, now: Timestamp) -> Option<(Event, Telling)> {
        let event = self.waiting.front()?.clone();
        let seconds = now.duration_since(self.refilled).as_secs_f64().max(0.0);
        self.tokens = (self.tokens + seconds / REFILL_S).min(BURST);
        self.refilled = now;
        if self.tokens < 1.0 {
            self.dropped += u64::try_from(self.waiting.len()).unwrap_or(u64::MAX);
            self.waiting.clear(); // news of a minute ago are none
            return None;
        }
        self.tokens -= 1.0;
        self.waiting.pop_front();
        self.told.retain(|_, told| now.duration_since(told.last).as_secs() < WINDOW_S);
        let telling = match self.told.get(&event) {
            Some(told) => {
                let series = json!({ "count": told.count + 1, "lastObservedTime": micro(now) });
                Telling::Again(told.name.clone(), json!({ "series": series }))
            }
            None => Telling::New(self.create(&event, node, uid, now)),
        };
        Some((event, telling))
    }

    fn create(&mut self, event: &Event, node: &str, uid: &str, now: Timestamp) -> Value {
        self.serial += 1;
        // As the kubelet's: the object's name, and what no other process and no other event has.
        let stem = node.get(..200).unwrap_or(node).trim_end_matches(['.', '-']);
        let name = format!("{stem}.{:x}{:03x}", now.as_nanosecond(), self.serial & 0xfff);
        json!({
            "metadata": { "name": name, "namespace": "default" },
            "eventTime": micro(now),
            "reportingController": "gpudirect-rdma/gdr-agent",
            "reportingInstance": node.get(..128).unwrap_or(node),
            "action": "CheckGPUDirectRDMA",
            "reason": event.reason,
            "note": event.note,
            "type": if event.warning { "Warning" } else { "Normal" },
            "regarding": { "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid },
        })
    }

    /// It is told.
    pub(super) fn told(&mut self, event: Event, telling: &Telling, now: Timestamp) {
        match telling {
            Telling::New(body) => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                self.told.insert(event, Told { name, count: 1, last: now });
            }
            Telling::Again(..) => {
                if let Some(told) = self.told.get_mut(&event) {
                    (told.count, told.last) = (told.count + 1, now);
                }
            }
        }
    }

    /// It could not be told: one that has expired is made anew, with the next try.
    pub(super) fn missed(&mut self, event: Event, gone: bool) {
        if gone {
            self.told.remove(&event);
        }
        self.waiting.push_front(event);
    }

    /// How many were left out since the last question.
    pub(super) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

/// `MicroTime` of Kubernetes: six digits, no more.
fn micro(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{report::Reason, verdict::fixture::Scene};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn with(state: State, reason: Reason, change: impl FnOnce(&mut Scene)) -> Report {
        let mut scene = Scene::new();
        change(&mut scene);
        let mut report = scene.report();
        (report.verdict.state, report.verdict.reason) = (state, reason);
        report
    }

    fn ready() -> Report {
        with(State::Ready, Reason::AllRailsVerified, |_| {})
    }

    fn down(hcas: &[usize]) -> Report {
        with(State::Degraded, Reason::PortDown, |scene| hcas.iter().for_each(|hca| scene.port(*hca, "DOWN")))
    }

    fn event(note: &str) -> Event {
        Event { reason: "PortDown".into(), note: note.into(), warning: true }
    }

    #[test]
    fn a_transition_is_one_event_and_its_finding_no_other() {
        let events = news(&ready(), &down(&[3]));
        assert_eq!(events.len(), 1, "{events:?}");
        assert!(
            events[0].warning && events[0].reason == "PortDown" && events[0].note.starts_with("degraded (was ready)")
        );
        let back = news(&down(&[3]), &ready());
        assert_eq!((back.len(), back[0].warning, back[0].reason.as_str()), (1, false, "AllRailsVerified"));
        assert_eq!(news(&ready(), &ready()), []);
    }

    #[test]
    fn a_finding_is_news_once_and_again_with_another_device() {
        assert_eq!(news(&down(&[3]), &down(&[3])), []);
        let more = news(&down(&[3]), &down(&[3, 4]));
        assert_eq!(more.len(), 1);
        assert!(more[0].note.contains("mlx5_4"), "{more:?}");
        assert_eq!(news(&down(&[3, 4]), &down(&[3])), [], "less is no news");
        let take_off = |scene: &mut Scene, gpus: &[usize]| {
            for gpu in gpus {
                scene.inventory.gpus[*gpu].lost = true;
            }
        };
        let lost = |gpus: &[usize]| with(State::Degraded, Reason::GpuLost, |scene| take_off(scene, gpus));
        assert_eq!(news(&lost(&[3]), &lost(&[3, 5])).len(), 1, "another GPU is");
        assert_eq!(news(&lost(&[3]), &lost(&[3])), []);
    }

    #[test]
    fn an_event_is_what_the_server_takes_and_describe_finds() {
        let mut recorder = Recorder::new(at(0));
        recorder.take(vec![event("x")]);
        let Some((_, Telling::New(body))) = recorder.next("n1", "uid-1", at(0)) else { panic!() };
        assert_eq!(body["metadata"]["namespace"], "default");
        assert_eq!(body["regarding"], json!({ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-1" }));
        assert_eq!(body["type"], "Warning");
        assert_eq!(body["eventTime"], "2027-01-15T08:00:00.000000Z");
    }

    #[test]
    fn the_same_again_counts_up_until_it_has_expired() {
        let mut recorder = Recorder::new(at(0));
        let mut tell_of = |note: &str, second: i64| {
            recorder.take(vec![event(note)]);
            let (event, telling) = recorder.next("n1", "u", at(second)).unwrap();
            recorder.told(event, &telling, at(second));
            telling
        };
        let Telling::New(body) = tell_of("x", 0) else { panic!() };
        let name = body["metadata"]["name"].as_str().unwrap();
        let Telling::Again(again, series) = tell_of("x", 60) else { panic!() };
        assert_eq!((again.as_str(), &series["series"]["count"]), (name, &json!(2)));
        assert!(matches!(tell_of("y", 61), Telling::New(_)), "another note is another event");
        let Telling::Again(_, series) = tell_of("x", 120) else { panic!() };
        assert_eq!(series["series"]["count"], 3);
        assert!(matches!(tell_of("x", 120 + WINDOW_S), Telling::New(_)), "a new one after a while");
        let (again, _) = {
            recorder.take(vec![event("x")]);
            recorder.next("n1", "u", at(800)).unwrap()
        };
        recorder.missed(again, true);
        assert!(matches!(recorder.next("n1", "u", at(801)), Some((_, Telling::New(_)))), "the server has lost it");
    }

    #[test]
    fn a_storm_is_ten_events_and_then_one_a_minute() {
        let mut recorder = Recorder::new(at(0));
        let mut told = 0;
        for second in 0..600 {
            recorder.take(vec![event(&second.to_string())]);
            told += usize::from(recorder.next("n1", "u", at(second)).is_some());
        }
        assert!((19..=21).contains(&told), "{told}");
        assert_eq!(recorder.take_dropped(), 600 - told as u64);
        // A server that is away for long: the newest wait.
        let mut recorder = Recorder::new(at(0));
        recorder.take((0..100).map(|n| event(&n.to_string())).collect());
        assert_eq!(recorder.next("n1", "u", at(0)).unwrap().0.note, "84");
        // A clock that goes back tells no less.
        assert!(recorder.next("n1", "u", at(-10_000)).is_some());
    }
}
