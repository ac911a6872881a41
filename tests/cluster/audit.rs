//! What the agents asked of the API server, by its audit log.

use std::path::Path;

use jiff::Timestamp;
use serde_json::Value;

/// One request that was answered.
#[derive(Debug)]
pub(crate) struct Asked {
    /// When the server got it, in seconds since 1970.
    pub(crate) at: f64,
    /// Seconds until it was answered.
    #[allow(dead_code, reason = "for the bench")]
    pub(crate) took: f64,
    /// `patch nodes/status`.
    pub(crate) what: String,
    /// The object's name, where the request has one.
    pub(crate) name: String,
    pub(crate) code: u64,
    /// The node of the pod that the token is bound to.
    #[allow(dead_code, reason = "for agents in pods")]
    pub(crate) node: String,
    /// Which token it came with.
    #[allow(dead_code, reason = "for agents in pods")]
    pub(crate) token: String,
    /// Sent by the agent's own client; tests ask with its account too.
    #[allow(dead_code, reason = "for agents in pods")]
    pub(crate) by_agent: bool,
}

/// All since then, in order.
pub(crate) fn asked(state: &Path, since: Timestamp) -> Vec<Asked> {
    let log = std::fs::read_to_string(state.join("audit.log")).expect("there is an audit log");
    let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let complete = entries.filter(|entry| entry["stage"] == "ResponseComplete");
    let mut asked: Vec<Asked> = complete.map(|entry| read(&entry)).collect();
    asked.retain(|asked| asked.at >= seconds(since));
    asked.sort_by(|a, b| a.at.total_cmp(&b.at));
    asked
}

fn read(entry: &Value) -> Asked {
    let at = |key: &str| seconds(entry[key].as_str().and_then(|at| at.parse().ok()).expect("a time"));
    let object = &entry["objectRef"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of_token = |key: &str| text(&entry["user"]["extra"][format!("authentication.kubernetes.io/{key}")][0]);
    let below = object["subresource"].as_str().map(|below| format!("/{below}")).unwrap_or_default();
    Asked {
        at: at("requestReceivedTimestamp"),
        took: at("stageTimestamp") - at("requestReceivedTimestamp"),
        what: format!("{} {}{below}", text(&entry["verb"]), text(&object["resource"])),
        name: text(&object["name"]),
        code: entry["responseStatus"]["code"].as_u64().unwrap_or_default(),
        node: of_token("node-name"),
        token: of_token("credential-id"),
        by_agent: entry["userAgent"].as_str().is_some_and(|client| client.starts_with("gdr-agent/")),
    }
}

pub(crate) fn seconds(at: Timestamp) -> f64 {
    at.as_duration().as_secs_f64()
}
