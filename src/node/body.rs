//! What a Node shall show, and the patch that makes it so. Pure.

use std::collections::BTreeMap;

use jiff::{Timestamp, Unit};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Map, Value, json};

use super::{
    CONDITION,
    annotation::{Annotation, distance, transport, works},
};
use crate::{
    config::Publish,
    report::{Method, Reason, Report, State, Verdict},
};

const MESSAGE_LIMIT: usize = 1024;
/// Of the annotation, below the prefix.
pub(super) const ANNOTATION: &str = "report";

/// Everything of ours that a Node shall have; what is not in it is removed.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Desired {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) report: Option<Annotation>,
    pub(super) condition: Option<Condition>,
}

impl Desired {
    /// Whether another asks for the same, but for the time of the last check.
    pub(super) fn asks_as(&self, other: &Self) -> bool {
        let timeless = |desired: &Self| desired.report.clone().map(Annotation::timeless);
        (&self.labels, &self.condition) == (&other.labels, &other.condition) && timeless(self) == timeless(other)
    }

    fn annotations(&self, prefix: &str) -> BTreeMap<String, String> {
        self.report.iter().map(|report| (format!("{prefix}/{ANNOTATION}"), report.text())).collect()
    }
}

/// The condition without its times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) status: &'static str,
    pub(super) reason: String,
    pub(super) message: String,
}

/// What a report asks for.
pub(super) fn desired(report: &Report, publish: &Publish) -> Desired {
    let verdict = &report.verdict;
    if verdict.state == State::NotApplicable && verdict.reason == Reason::NoGpu {
        return Desired::default();
    }
    let name = |suffix: &str| format!("{}/{suffix}", publish.prefix);
    let state_label = if publish.short_label { publish.prefix.clone() } else { name("state") };
    let mut labels = BTreeMap::from([(state_label, verdict.state.to_string())]);
    if verdict.state != State::Ready {
        labels.insert(name("reason"), label_value(verdict.reason.as_str()));
    }
    if report.simulated {
        labels.insert(name("simulated"), "true".to_owned());
    }
    if matches!(verdict.state, State::Ready | State::Degraded) {
        labels.extend(facts(report).into_iter().map(|(key, value)| (name(key), label_value(&value))));
    }
    Desired {
        labels,
        report: Some(Annotation::of(report)),
        condition: (verdict.state != State::NotApplicable).then(|| condition(verdict, report.simulated)),
    }
}

/// What is worth selecting by, on a node that works at least in part.
fn facts(report: &Report) -> Vec<(&'static str, String)> {
    let gpus = report.gpus.iter().filter(|g| g.role.counts());
    let rails: Vec<_> = report.hcas.iter().filter(|h| h.rail).collect();
    let mut facts = vec![
        ("gpus", gpus.clone().count().to_string()),
        ("hcas", rails.len().to_string()),
        ("dma-buf", works(report, Method::DmaBuf).to_string()),
        ("peermem", works(report, Method::Peermem).to_string()),
    ];
    facts.extend(transport(report).map(|transport| ("transport", transport)));
    facts.extend(distance(report).map(|distance| ("distance", distance.to_string())));
    facts
}

fn condition(verdict: &Verdict, simulated: bool) -> Condition {
    let status = match verdict.state {
        State::Ready => "True",
        State::Degraded | State::NotReady => "False",
        State::Unknown | State::NotApplicable => "Unknown",
    };
    let since = verdict.since.strftime(" (since %Y-%m-%d %H:%M UTC)").to_string();
    let marked = if simulated { "[simulated] " } else { "" };
    let told = cut(&format!("{marked}{}", verdict.message), MESSAGE_LIMIT - since.len());
    Condition { status, reason: verdict.reason.to_string(), message: told + &since }
}

/// At most so many bytes, cut at a character.
pub(super) fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let end = (0..=limit - '…'.len_utf8()).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// A label's value: at most 63 of `[A-Za-z0-9-_.]`, a letter or digit at both ends.
fn label_value(text: &str) -> String {
    let mapped: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).take(63).collect();
    mapped.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

/// Whether a key is ours: the prefix itself or beneath it.
fn is_ours(key: &str, prefix: &str) -> bool {
    key.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Annotations that people write.
fn is_theirs(key: &str, prefix: &str) -> bool {
    key.strip_prefix(prefix) == Some("/paused-until")
}

/// The strategic-merge patch for `nodes/status` that makes a node show what is desired, with the
/// heartbeat of now; and removes every other key of ours.
pub(super) fn patch(node: &Node, desired: &Desired, prefix: &str, now: Timestamp) -> Value {
    let metadata = &node.metadata;
    let mut body = json!({
        "metadata": {
            "labels": keys(metadata.labels.as_ref(), &desired.labels, prefix),
            "annotations": keys(metadata.annotations.as_ref(), &desired.annotations(prefix), prefix),
        }
    });
    if let Some(uid) = &metadata.uid {
        body["metadata"]["uid"] = json!(uid);
    }
    let present = existing(node);
    if let Some(condition) = &desired.condition {
        let now = now.round(Unit::Second).unwrap_or(now).to_string();
        let transition = present
            .filter(|c| c.status == condition.status)
            .and_then(|c| c.last_transition_time.as_ref())
            .map_or_else(|| now.clone(), |t| t.0.to_string());
        body["status"]["conditions"] = json!([{
            "type": CONDITION,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": transition,
        }]);
    } else if present.is_some() {
        body["status"]["conditions"] = json!([{ "type": CONDITION, "$patch": "delete" }]);
    }
    body
}

fn existing(node: &Node) -> Option<&k8s_openapi::api::core::v1::NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == CONDITION)
}

/// What is wanted, and `null` for every other key of ours that is there.
fn keys(
    present: Option<&BTreeMap<String, String>>,
    wanted: &BTreeMap<String, String>,
    prefix: &str,
) -> Map<String, Value> {
    let stale =
        present.into_iter().flatten().map(|(key, _)| key).filter(|key| is_ours(key, prefix) && !is_theirs(key, prefix));
    stale.map(|key| (key.clone(), Value::Null)).chain(wanted.iter().map(|(k, v)| (k.clone(), json!(v)))).collect()
}

/// The patch that removes everything of ours; `None` when there is nothing.
pub(super) fn removal(node: &Node, prefix: &str) -> Option<Value> {
    let body = patch(node, &Desired::default(), prefix, Timestamp::UNIX_EPOCH);
    let metadata = &body["metadata"];
    let empty = [&metadata["labels"], &metadata["annotations"]].iter().all(|m| m.as_object().is_none_or(Map::is_empty));
    (!empty || !body["status"].is_null()).then_some(body)
}

/// Whether a node has nothing of ours.
pub(super) fn is_bare(node: &Node, prefix: &str) -> bool {
    removal(node, prefix).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::fixture::Scene;
    use proptest::prelude::*;

    fn node() -> Node {
        serde_json::from_value(json!({
            "metadata": {
                "name": "n1", "uid": "u1",
                "labels": { "gpudirect-rdma": "ready", "gpudirect-rdma/old": "x", "gpudirect-rdma.evil/x": "1", "other": "1" },
                "annotations": { "gpudirect-rdma/paused-until": "2030-01-01T00:00:00Z" },
            },
            "status": { "conditions": [
                { "type": "Ready", "status": "True" },
                { "type": "GPUDirectRDMAReady", "status": "True", "reason": "AllRailsVerified", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z" },
            ] },
        }))
        .unwrap()
    }

    fn wanted(status: &'static str) -> Desired {
        Desired {
            labels: BTreeMap::from([("gpudirect-rdma".to_owned(), "ready".to_owned())]),
            report: None,
            condition: Some(Condition { status, reason: "AllRailsVerified".into(), message: "m".into() }),
        }
    }

    /// A selector on `ready` must find what works, and one on the reason only what doesn't.
    #[test]
    fn each_state_has_its_labels() {
        let mut scene = Scene::new();
        scene.memory.seen_active.clear();
        scene.port(0, "DOWN"); // idle, and no rail
        let labels = |state: State, simulated: bool| {
            let mut report = scene.report();
            (report.verdict.state, report.verdict.reason, report.simulated) = (state, Reason::PortDown, simulated);
            desired(&report, &Publish::default()).labels
        };
        let keys = |labels: &BTreeMap<String, String>| labels.keys().cloned().collect::<Vec<_>>().join(" ");
        let facts =
            ["distance", "dma-buf", "gpus", "hcas", "peermem"].map(|key| format!("gpudirect-rdma/{key}")).join(" ");
        let transport = "gpudirect-rdma/transport";
        let ready = labels(State::Ready, false);
        assert_eq!(keys(&ready), format!("gpudirect-rdma {facts} {transport}"));
        assert_eq!((ready["gpudirect-rdma"].as_str(), ready["gpudirect-rdma/hcas"].as_str()), ("ready", "7"));
        let degraded = labels(State::Degraded, true);
        let reason = "gpudirect-rdma/reason gpudirect-rdma/simulated";
        assert_eq!(keys(&degraded), format!("gpudirect-rdma {facts} {reason} {transport}"));
        assert_eq!(degraded["gpudirect-rdma/reason"], "PortDown");
        for state in [State::NotReady, State::Unknown] {
            assert_eq!(keys(&labels(state, false)), "gpudirect-rdma gpudirect-rdma/reason", "{state}");
        }
    }

    #[test]
    fn removes_what_an_older_version_wrote_and_nothing_of_others() {
        let body = patch(&node(), &wanted("True"), "gpudirect-rdma", Timestamp::UNIX_EPOCH);
        assert_eq!(body["metadata"]["labels"], json!({ "gpudirect-rdma": "ready", "gpudirect-rdma/old": null }));
        assert_eq!(body["metadata"]["annotations"], json!({}), "what a person wrote stays");
        assert_eq!(body["metadata"]["uid"], "u1");
    }

    #[test]
    fn the_transition_time_changes_with_the_status_alone() {
        let times = |status| {
            let body = patch(&node(), &wanted(status), "gpudirect-rdma", Timestamp::UNIX_EPOCH);
            body["status"]["conditions"][0]["lastTransitionTime"].as_str().unwrap().to_owned()
        };
        assert_eq!(times("True"), "2026-01-01T00:00:00Z");
        assert_eq!(times("False"), "1970-01-01T00:00:00Z");
    }

    /// However much there is to say: what is worst comes first, and since when it is so comes last.
    #[test]
    fn a_long_message_is_cut_and_says_since_when() {
        let mut verdict = Scene::new().report().verdict;
        let message = |verdict: &Verdict| condition(verdict, true).message;
        verdict.since = "2026-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(
            message(&verdict),
            "[simulated] 8 of 8 rails, 8 of 8 GPUs served (since 2026-01-02 03:04 UTC)",
            "nothing is cut"
        );
        for word in ["x", "é", "…", "🦀"] {
            verdict.message = format!("PortDown: {}", word.repeat(2000));
            let message = message(&verdict);
            assert!((1021..=1024).contains(&message.len()), "{}", message.len());
            assert!(message.starts_with("[simulated] PortDown: "), "{message}");
            assert!(message.ends_with("… (since 2026-01-02 03:04 UTC)"), "{message}");
        }
    }

    /// A node without RDMA says so by its label, and has no condition that alerts could fire on.
    #[test]
    fn what_does_not_apply_has_a_label_and_no_condition() {
        let mut scene = Scene::new();
        scene.inventory.hcas.clear();
        scene.verify_all();
        let wanted = desired(&scene.report(), &Publish::default());
        assert_eq!(wanted.labels["gpudirect-rdma"], "not-applicable");
        assert_eq!(wanted.condition, None);
        let body = patch(&node(), &wanted, "gpudirect-rdma", Timestamp::UNIX_EPOCH);
        assert_eq!(body["status"]["conditions"], json!([{ "type": CONDITION, "$patch": "delete" }]));
        scene.inventory.gpus.clear();
        assert_eq!(desired(&scene.report(), &Publish::default()), Desired::default(), "and one without GPUs nothing");
    }

    #[test]
    fn nothing_left_is_nothing_to_remove() {
        let body = removal(&node(), "gpudirect-rdma").unwrap();
        assert_eq!(body["status"]["conditions"], json!([{ "type": CONDITION, "$patch": "delete" }]));
        assert_eq!(body["metadata"]["labels"].as_object().unwrap().len(), 2);
        let clean: Node =
            serde_json::from_value(json!({ "metadata": { "name": "n1", "labels": { "other": "1" } } })).unwrap();
        assert_eq!(removal(&clean, "gpudirect-rdma"), None);
    }

    #[test]
    fn the_time_of_a_check_alone_is_no_reason_to_write() {
        let at = |second| Desired {
            report: Some(Annotation {
                checked_at: Timestamp::from_second(second).ok(),
                gpus: 8,
                ..Annotation::default()
            }),
            ..wanted("True")
        };
        assert!(at(0).asks_as(&at(1)) && at(0) != at(1));
        assert!(!at(0).asks_as(&Desired { report: None, ..at(0) }));
        assert!(!at(0).asks_as(&Desired { condition: None, ..at(0) }));
        let body = patch(&node(), &at(0), "gpudirect-rdma", Timestamp::UNIX_EPOCH);
        assert!(body["metadata"]["annotations"]["gpudirect-rdma/report"].as_str().unwrap().contains("checkedAt"));
    }

    proptest! {
        #[test]
        fn a_label_value_is_always_valid(text in ".*") {
            let value = label_value(&text);
            prop_assert!(value.len() <= 63);
            prop_assert!(value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)));
            prop_assert!(value.chars().next().is_none_or(|c| c.is_ascii_alphanumeric()));
            prop_assert!(value.chars().last().is_none_or(|c| c.is_ascii_alphanumeric()));
        }

        /// Nothing that hardware is called makes the server refuse a label, and with it the whole patch.
        #[test]
        fn labels_are_valid_whatever_hardware_is_called(name in ".{0,80}", model in ".{0,80}", reason in 0..Reason::ALL.len()) {
            let mut scene = Scene::new();
            scene.inventory.hcas.iter_mut().for_each(|hca| hca.driver = Some(name.clone()));
            scene.inventory.gpus.iter_mut().for_each(|gpu| gpu.model = Some(model.clone()));
            scene.port(0, &name);
            let mut report = scene.report();
            report.verdict.reason = Reason::ALL[reason];
            for state in [State::Ready, State::NotReady] {
                report.verdict.state = state;
                for (key, value) in desired(&report, &Publish::default()).labels {
                    prop_assert!(!value.is_empty() && label_value(&value) == value, "{key}: {value}");
                }
            }
        }

        #[test]
        fn a_message_is_cut_at_a_character(text in ".{0,600}") {
            let short = cut(&text, 256);
            prop_assert!(short.len() <= 256);
            prop_assert!(text.starts_with(short.trim_end_matches('…')) );
        }
    }
}
