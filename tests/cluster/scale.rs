//! Two hundred agents' publishers on one API server: how often they ask, counted by its audit log.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use gdr_agent::config::{Publish, Span};
use jiff::Timestamp;
use tokio::time::sleep;

use crate::agents::{self, Agents};
use crate::audit::{Asked, asked};
use crate::cluster::{Cluster, PATIENCE};
use crate::step;

const NODES: usize = 200;
const HEARTBEAT: Duration = Duration::from_secs(10);
const PATCH: &str = "patch nodes/status";

#[test]
#[ignore = "needs root and a cluster: make cluster-test"]
fn two_hundred_agents_ask_no_more_than_they_must() {
    if let Some(state) = std::env::var_os(agents::STATE) {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        return runtime.block_on(inside(Path::new(&state)));
    }
    let cluster = Cluster::small(&[]);
    agents::prepare(&cluster);
    let name = concat!(module_path!(), "::two_hundred_agents_ask_no_more_than_they_must");
    let name = name.split_once("::").map_or(name, |(_, name)| name);
    let status = agents::run_inside(&cluster, &[name, "--exact", "--ignored", "--nocapture"]);
    assert!(status.success(), "the run inside the cluster failed; see above");
}

async fn inside(state: &Path) {
    step("200 Nodes, and an agent for each");
    agents::make_nodes(state, NODES).await;
    let (pending, ready) = (agents::published(state, "", false).await, agents::published(state, "", true).await);
    let failed = agents::published(state, "{ port: DOWN }", true).await;
    let config = Publish { heartbeat: Span(HEARTBEAT), ..Publish::default() };
    let begun = Timestamp::now();
    let mut agents = Agents::start(&config, NODES, &pending);
    agents.tell_within(Duration::from_secs(2), &ready).await;
    all_are(state, "ready").await;
    let asked = since(state, begun);
    each(&asked, "get nodes", 1..=1);
    each(&asked, PATCH, 1..=3); // before the check, after it, and a heartbeat
    assert!(events(&asked) <= NODES, "{} events", events(&asked));

    step("nothing changes: heartbeats alone");
    sleep(Duration::from_secs(2)).await; // what is left of the events
    let begun = Timestamp::now();
    sleep(HEARTBEAT.mul_f64(2.2)).await;
    let asked = since(state, begun);
    each(&asked, PATCH, 1..=3);
    let others: Vec<_> = asked.iter().filter(|asked| asked.what != PATCH).map(|asked| &asked.what).collect();
    assert!(others.is_empty(), "nothing had changed: {others:?}");

    step("all ports of all nodes go down at once");
    let begun = Timestamp::now();
    agents.tell(&failed);
    all_are(state, "not-ready").await;
    sleep(Duration::from_secs(2)).await; // the events
    let asked = since(state, begun);
    each(&asked, PATCH, 1..=2); // it, and perhaps a heartbeat
    each(&asked, "get nodes", 0..=0);
    assert_eq!(events(&asked), NODES, "an event for each");

    step("all agents are replaced, and go on with what they know");
    let begun = Timestamp::now();
    agents.restart(NODES, &failed);
    sleep(HEARTBEAT.mul_f64(1.4) + Duration::from_secs(1)).await;
    let asked = since(state, begun);
    each(&asked, "get nodes", 1..=1);
    each(&asked, PATCH, 1..=2);
    assert_eq!(events(&asked), 0, "what was told is told again");
    all_are(state, "not-ready").await;
}

/// All that was asked since then, none of which was refused.
fn since(state: &Path, begun: Timestamp) -> Vec<Asked> {
    let asked = asked(state, begun);
    let refused: Vec<_> = asked.iter().filter(|asked| asked.code >= 400).map(|a| (a.code, &a.what)).collect();
    assert!(refused.is_empty(), "{refused:?}");
    asked
}

/// So many requests of this kind for each Node.
fn each(asked: &[Asked], what: &str, wanted: std::ops::RangeInclusive<usize>) {
    let mut counts: BTreeMap<String, usize> = (0..NODES).map(|n| (agents::name(n), 0)).collect();
    for asked in asked.iter().filter(|asked| asked.what == what) {
        *counts.entry(asked.name.clone()).or_default() += 1;
    }
    counts.retain(|_, count| !wanted.contains(count));
    assert!(counts.is_empty(), "{what}: not {wanted:?} for each, but {counts:?}");
}

fn events(asked: &[Asked]) -> usize {
    asked.iter().filter(|asked| asked.what.ends_with(" events")).count()
}

async fn all_are(state: &Path, wanted: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut others = agents::all_nodes(state).await;
        let label =
            |node: &k8s_openapi::api::core::v1::Node| node.metadata.labels.as_ref()?.get("gpudirect-rdma").cloned();
        others.retain(|node| label(node).as_deref() != Some(wanted));
        if others.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{} nodes are not {wanted}: {:?}", others.len(), others.first().map(label));
        sleep(Duration::from_millis(500)).await;
    }
}
