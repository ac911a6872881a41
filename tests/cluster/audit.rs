//! The agents' requests, as the API server noted them.

use jiff::Timestamp;
use serde_json::Value;

use crate::cluster::Cluster;

/// One that was answered.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) at: Timestamp,
    /// Of the pod that its token is bound to.
    pub(crate) node: String,
    /// `patch nodes/status`.
    pub(crate) what: String,
}

/// What the agents' own client sent since then. (Tests ask with the same account, and another client.)
pub(crate) fn since(cluster: &Cluster, start: Timestamp) -> Vec<Request> {
    let log = std::fs::read_to_string(cluster.state().join("audit.log")).expect("there is an audit log");
    let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ours = entries.filter(|entry| {
        let agent = entry["userAgent"].as_str().is_some_and(|agent| agent.starts_with("gdr-agent/"));
        agent && entry["stage"] == "ResponseComplete"
    });
    let requests = ours.map(|entry| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let object = &entry["objectRef"];
        let part = object["subresource"].as_str().map(|part| format!("/{part}")).unwrap_or_default();
        Request {
            at: text(&entry["requestReceivedTimestamp"]).parse().expect("a time"),
            node: text(&entry["user"]["extra"]["authentication.kubernetes.io/node-name"][0]),
            what: format!("{} {}{part}", text(&entry["verb"]), text(&object["resource"])),
        }
    });
    requests.filter(|request| request.at >= start).collect()
}
