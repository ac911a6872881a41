//! `gdr-agent cleanup`: everything that an agent ever wrote, and nothing of anybody else.

use serde_json::{Value, json};

use crate::fleet::Beside;
use crate::server::{Trouble, node};

/// Keys that only look like the agent's, and what a person wrote.
const THEIRS: &[&str] = &[
    "example.com/gpudirect-rdma",
    "gpudirect",
    "gpudirect-rdma-2",
    "gpudirect-rdma.example.com/x",
    "gpudirect-rdmas/x",
    "x.gpudirect-rdma/x",
];
const PAUSE: &str = "gpudirect-rdma/paused-until";

/// A node with what some version wrote under this prefix, beside what others did.
fn written(name: &str, prefix: &str) -> Value {
    let mut node = node("u");
    node["metadata"]["name"] = json!(name);
    for map in ["labels", "annotations"] {
        let map = &mut node["metadata"][map];
        for key in THEIRS {
            map[key] = json!("keep");
        }
        map[format!("{prefix}/of-an-older-version")] = json!("x");
        map[format!("{prefix}/report")] = json!("{}");
    }
    node["metadata"]["labels"][prefix] = json!("ready");
    node["metadata"]["annotations"][PAUSE] = json!("2030-01-01T00:00:00Z");
    let condition = |kind: &str| json!({ "type": kind, "status": "True" });
    node["status"]["conditions"] = json!(["Ready", "GPUDirectRDMAReady", "GPUDirectRDMAReady2"].map(condition));
    node
}

/// The same node without anything of the agent's.
fn clean(name: &str) -> Value {
    let mut node = written(name, "x");
    for map in ["labels", "annotations"] {
        node["metadata"][map].as_object_mut().unwrap().retain(|key, _| !key.starts_with("x/") && key != "x");
    }
    node["status"]["conditions"].as_array_mut().unwrap().retain(|condition| condition["type"] != "GPUDirectRDMAReady");
    node
}

fn fleet(n: usize) -> Vec<Value> {
    (0..n).map(|n| written(&format!("n{n}"), "gpudirect-rdma")).collect()
}

fn patches(beside: &Beside) -> usize {
    beside.server.count("PATCH")
}

#[test]
fn one_node_is_left_as_others_made_it() {
    let beside = Beside::new(Vec::new());
    beside.server.world().node = Some(written("n1", "gpudirect-rdma"));
    let ran = beside.run(&["cleanup", "--node-name", "n1"]).exits(0);
    assert_eq!(ran.out, "removed everything under gpudirect-rdma from 1 of 1 nodes\n");
    assert_eq!(beside.server.world().node, Some(clean("n1")));
    // Once more is no request to write.
    let ran = beside.run(&["cleanup", "--node-name", "n1"]).exits(0);
    assert_eq!(ran.out, "removed everything under gpudirect-rdma from 0 of 1 nodes\n");
    assert_eq!(patches(&beside), 1);
    let ran = beside.run(&["cleanup", "--node-name", "gone"]).exits(1);
    assert!(ran.err.contains("can't read the node: 405"), "{}", ran.err);
}

/// A hundred at a time; a list that has expired meanwhile begins anew.
#[test]
fn all_nodes_are_cleaned_page_by_page() {
    let beside = Beside::new(fleet(230));
    beside.server.trouble("GET", &[Trouble::Pass, Trouble::Status(410, Value::Null)]);
    let ran = beside.run(&["cleanup", "--all-nodes"]).exits(0);
    assert_eq!(ran.out, "removed everything under gpudirect-rdma from 230 of 230 nodes\n");
    let left: Vec<Value> = (0..230).map(|n| clean(&format!("n{n}"))).collect();
    assert_eq!(beside.server.world().fleet, left);
    assert_eq!(patches(&beside), 230, "what is clean is not written");
    beside.run(&["cleanup", "--all-nodes"]).exits(0);
    assert_eq!(patches(&beside), 230, "nor is it the next time");
}

#[test]
fn another_prefix_is_cleaned_alone() {
    let old = written("n0", "rdma.example.com");
    let beside = Beside::new(vec![old, written("n1", "gpudirect-rdma")]);
    let ran = beside.run(&["cleanup", "--all-nodes", "--prefix", "rdma.example.com"]).exits(0);
    assert!(ran.out.starts_with("removed everything under rdma.example.com from 2 of 2"), "{}", ran.out);
    let world = beside.server.world();
    assert_eq!(world.fleet[0], clean("n0"));
    let label = &world.fleet[1]["metadata"]["labels"]["gpudirect-rdma"];
    assert_eq!(label, "ready", "the condition, which has no prefix, is all that it loses");
}

/// Kubernetes' own labels were never an agent's to write.
#[test]
fn a_prefix_that_no_agent_can_have_is_refused() {
    let beside = Beside::new(fleet(1));
    for prefix in ["kubernetes.io", "node.kubernetes.io", "k8s.io", "Bad_Prefix", ""] {
        let ran = beside.run(&["cleanup", "--all-nodes", "--prefix", prefix]).exits(64);
        assert!(ran.err.contains("--prefix is `") && ran.err.contains("must be"), "{}", ran.err);
    }
    assert_eq!(beside.server.since(0), Vec::<String>::new(), "nothing was asked for");
}

#[test]
fn a_list_that_ends_halfway_hides_no_node_that_failed() {
    let beside = Beside::new(fleet(150));
    beside.server.trouble("GET", &[Trouble::Pass, Trouble::Status(403, Value::Null)]);
    beside.server.trouble("PATCH /api/v1/nodes/n7/status", &[Trouble::Status(500, Value::Null)]);
    let ran = beside.run(&["cleanup", "--all-nodes"]).exits(1);
    for part in ["n7: can't patch", "can't list the nodes: 403"] {
        assert!(ran.err.contains(part), "no `{part}` in {}", ran.err);
    }
}

#[test]
fn a_node_that_fails_keeps_no_other_from_it() {
    for code in [403, 409, 500] {
        let beside = Beside::new(fleet(3));
        beside.server.trouble("PATCH /api/v1/nodes/n1/status", &[Trouble::Status(code, Value::Null)]);
        let ran = beside.run(&["cleanup", "--all-nodes"]).exits(1);
        assert!(ran.err.contains(&format!("n1: can't patch the node's status: {code}")), "{}", ran.err);
        let ours = |n: usize| !beside.server.world().fleet[n]["metadata"]["labels"]["gpudirect-rdma"].is_null();
        assert_eq!([ours(0), ours(1), ours(2)], [false, true, false]);
        beside.run(&["cleanup", "--all-nodes"]).exits(0);
        assert!(!ours(1), "the next one mends it");
    }
}
