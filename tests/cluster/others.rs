//! What others keep on the nodes, some of it under names like the agent's; it must come to no harm.

use serde_json::{Value, json};

use crate::cluster::{Cluster, MARK};
use crate::node::Node;

pub(crate) const KEYS: &[&str] = &[
    "example.com/gpudirect-rdma",
    "gdr.io-rdma/x",
    "gpudirect",
    "gpudirect-rdma-2",
    "gpudirect-rdma.example.com/x",
    "gpudirect-rdma.gpudirect-rdma/gpudirect-rdma",
    "gpudirect-rdmas/x",
    "x.gpudirect-rdma/x",
];
const CONDITIONS: &[&str] = &["GPUDirectRDMAReady2", "GPUDirectRDMA", "gpudirect-rdma/Ready"];

/// Puts them on a node, or again on one that was made anew.
pub(crate) fn put(node: &Node<'_>) {
    let pairs = |value: &str| KEYS.iter().map(|key| format!("{key}={value}")).collect::<Vec<_>>();
    let run = |verb: &str, value: &str| {
        let pairs = pairs(value);
        let pairs: Vec<&str> = pairs.iter().map(String::as_str).collect();
        node.cluster.kubectl(&[&[verb, "node", node.name], &pairs[..]].concat());
    };
    run("label", "other");
    run("annotate", "keep");
    let conditions: Vec<Value> = CONDITIONS
        .iter()
        .map(|kind| json!({ "type": kind, "status": "True", "reason": "Other", "message": "keep" }))
        .collect();
    let patch = json!({ "status": { "conditions": conditions } }).to_string();
    node.cluster.kubectl(&["patch", "node", node.name, "--subresource=status", "-p", &patch]);
}

/// All that a node shows of anybody: labels and annotations, and conditions as far as they do not change by themselves.
pub(crate) fn shown(cluster: &Cluster, name: &str) -> Vec<String> {
    let node = cluster.get(&["node", name]);
    let mut all = Vec::new();
    for kind in ["labels", "annotations"] {
        let map = node["metadata"][kind].as_object().cloned().unwrap_or_default();
        all.extend(map.iter().filter(|(key, _)| *key != MARK).map(|(key, value)| format!("{kind} {key}={value}")));
    }
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.extend(conditions.iter().map(|c| format!("condition {}={} {}", c["type"], c["status"], c["message"])));
    all.sort();
    all
}
