//! The fleet, from what its Nodes show: labels, condition and annotation, nothing else.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{
    CONDITION,
    annotation::Annotation,
    api::{CallError, client},
    body::ANNOTATION,
    list::Pages,
};
use crate::{
    config::Publish,
    report::{Reason, State},
};

/// Nodes in one page: a few megabytes, where each has images and annotations of others.
const PAGE: u32 = 250;
/// Heartbeats that may be missed.
const PERIODS: u32 = 3;

/// Every node that shows something of this agent's, the worst first.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Fleet {
    /// They, the worst first.
    pub nodes: Vec<Member>,
    /// Nodes that show nothing of it.
    pub without_agent: usize,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its state; `unknown` where its agent has fallen silent.
    pub state: State,
    /// Why, by name.
    pub reason: String,
    /// The condition's message.
    pub message: String,
    /// The last heartbeat is too old: what the Node shows is nobody's word any more.
    pub stale: bool,
    /// Of a simulation.
    pub simulated: bool,
    /// When the agent last confirmed it.
    pub heartbeat_at: Option<Timestamp>,
    /// When its last check began, as far as the Node was told.
    pub checked_at: Option<Timestamp>,
    /// GPUs, and those that an HCA serves.
    pub gpus: usize,
    /// GPUs that an HCA serves.
    pub served: usize,
    /// Rails.
    pub rails: usize,
    /// Rails that are good with a GPU.
    pub rails_good: usize,
    /// GPU models, with their number.
    pub models: Vec<String>,
    /// What siblings are compared by: name and value.
    pub traits: Vec<(&'static str, String)>,
}

/// Why there is no fleet to show.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FleetError(String);

impl From<CallError> for FleetError {
    fn from(error: CallError) -> Self {
        Self(error.text)
    }
}

/// What is read of a Node; all else is skipped while it is read.
#[derive(Debug, Deserialize)]
struct Slim {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    labels: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Debug, Deserialize, Default)]
struct Status {
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    last_heartbeat_time: Option<Timestamp>,
}

/// Asks the API server for the Nodes that `selector` (of labels) takes, page by page.
pub async fn fleet(publish: &Publish, selector: Option<&str>) -> Result<Fleet, FleetError> {
    let mut pages = Pages::<Slim>::new(client().await?, selector, PAGE);
    let mut fleet = Fleet::default();
    while let Some(page) = pages.next().await? {
        if page.is_first {
            fleet = Fleet::default();
        }
        for node in page.nodes {
            match member(node, publish, Timestamp::now()) {
                Some(member) => fleet.nodes.push(member),
                None => fleet.without_agent += 1,
            }
        }
    }
    fleet.nodes.sort_by(|a, b| (rank(a.state), &a.name).cmp(&(rank(b.state), &b.name)));
    Ok(fleet)
}

/// The worst first.
fn rank(state: State) -> u8 {
    match state {
        State::NotReady => 0,
        State::Degraded => 1,
        State::Unknown => 2,
        State::Ready => 3,
        State::NotApplicable => 4,
    }
}

/// What a Node shows; `None`: nothing of this agent's.
fn member(node: Slim, publish: &Publish, now: Timestamp) -> Option<Member> {
    let prefix = &publish.prefix;
    let labels = &node.metadata.labels;
    let label = |name: &str| labels.get(&format!("{prefix}/{name}"));
    let shown = labels.get(prefix).or_else(|| label("state"));
    let condition = node.status.conditions.into_iter().find(|condition| condition.kind == CONDITION);
    let text = node.metadata.annotations.get(&format!("{prefix}/{ANNOTATION}"));
    let told: Annotation = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let says = shown.and_then(|text| serde_json::from_value(text.as_str().into()).ok()).or(told.state)?;
    let heartbeat_at = condition.as_ref().and_then(|condition| condition.last_heartbeat_time);
    let oldest = SignedDuration::try_from(publish.heartbeat.0.mul_f64(1.1) * PERIODS).unwrap_or(SignedDuration::MAX);
    let stale = heartbeat_at.is_some_and(|at| now.duration_since(at) > oldest);
    let reason = condition.as_ref().map(|c| c.reason.clone()).filter(|reason| !reason.is_empty());
    let reason = reason.or_else(|| label("reason").cloned()).or_else(|| told.reason.map(|r: Reason| r.to_string()));
    Some(Member {
        name: node.metadata.name,
        state: if stale { State::Unknown } else { says },
        reason: if stale { "Stale".to_owned() } else { reason.unwrap_or_default() },
        message: condition.map(|condition| condition.message).unwrap_or_default(),
        stale,
        simulated: label("simulated").is_some(),
        heartbeat_at,
        checked_at: told.checked_at,
        gpus: told.gpus,
        served: told.served,
        rails: told.rails,
        rails_good: told.rails_good,
        traits: traits(&told),
        models: told.models,
    })
}

fn traits(told: &Annotation) -> Vec<(&'static str, String)> {
    let some = |name, value: Option<String>| value.filter(|text| !text.is_empty()).map(|text| (name, text));
    [
        some("driver", told.driver.clone()),
        some("module", told.module.map(|module| module.to_string())),
        some("methods", Some(told.methods.join("+"))),
        some("rails", Some(told.rails.to_string())),
        some("rates", Some(told.rates.join(", "))),
        some("transport", told.transport.clone()),
        some("distance", told.distance.map(|distance| distance.to_string())),
        some("version", Some(told.version.clone())),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(label: &str, seconds_ago: i64) -> Slim {
        let heartbeat = at(0).saturating_sub(SignedDuration::from_secs(seconds_ago)).unwrap().to_string();
        serde_json::from_value(json!({
            "metadata": {
                "name": "n1", "uid": "u",
                "labels": { "gpudirect-rdma": label, "kubernetes.io/hostname": "n1" },
                "annotations": {
                    "gpudirect-rdma/report": json!({ "gpus": 8, "served": 7, "rails": 8, "railsGood": 7, "driver": "570", "models": ["H100 x8"] }).to_string(),
                },
            },
            "status": {
                "conditions": [
                    { "type": "Ready", "status": "True" },
                    { "type": CONDITION, "status": "False", "reason": "PortDown", "message": "7 of 8", "lastHeartbeatTime": heartbeat },
                ],
                "images": [ { "names": ["x"] } ],
            },
        }))
        .unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn a_member_is_what_its_node_shows() {
        let member = member(node("degraded", 60), &Publish::default(), at(0)).unwrap();
        assert_eq!((member.state, member.reason.as_str(), member.stale), (State::Degraded, "PortDown", false));
        assert_eq!((member.gpus, member.served, member.rails, member.rails_good), (8, 7, 8, 7));
        assert!(member.traits.contains(&("driver", "570".to_owned())));
    }

    #[test]
    fn a_dead_agents_word_is_nobodys() {
        for (seconds, stale) in [(980, false), (1000, true), (1_000_000, true)] {
            let member = member(node("ready", seconds), &Publish::default(), at(0)).unwrap();
            assert_eq!(member.stale, stale, "{seconds}");
            assert_eq!(member.state == State::Ready, !stale);
        }
    }

    #[test]
    fn a_node_without_the_agent_is_none() {
        let mut bare = node("ready", 0);
        bare.metadata.labels.remove("gpudirect-rdma");
        assert!(member(bare, &Publish::default(), at(0)).is_none());
        let other = Publish { prefix: "example.com".into(), ..Publish::default() };
        assert!(member(node("ready", 0), &other, at(0)).is_none());
        let garbage: Slim =
            serde_json::from_value(json!({ "metadata": { "name": "x", "labels": { "gpudirect-rdma": "?" } } }))
                .unwrap();
        assert!(member(garbage, &Publish::default(), at(0)).is_none());
    }

    #[test]
    fn the_long_label_is_read_too() {
        let mut long = node("ready", 0);
        let value = long.metadata.labels.remove("gpudirect-rdma").unwrap();
        long.metadata.labels.insert("gpudirect-rdma/state".into(), value);
        assert_eq!(member(long, &Publish::default(), at(0)).unwrap().state, State::Ready);
    }
}
