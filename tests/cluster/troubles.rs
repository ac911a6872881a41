//! What an agent may ask of the API server, how often it does, and what it makes of a server in trouble, of a token
//! that has ended, and of a node that was cut from power.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::audit::{Asked, asked};
use crate::cluster::{Cluster, eventually, same};
use crate::node::{Node, STATE};
use crate::proxy::{Met, PORT, Proxy, Trouble, Weather};
use crate::{agent_pods, helm, image, patch_agents, policy, port_down, rights, step};

const HEARTBEAT: Duration = Duration::from_secs(10);
const SETTINGS: &[&str] = &["--set", "config.publish.heartbeat=10s,config.check.interval=10s"];
/// As the publisher's: after the first failure at most the first, then twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

#[test]
#[ignore = "needs root and a cluster: make cluster-test"]
fn the_api_server_in_trouble() {
    let cluster = Cluster::start(&image());
    let nodes = ["n1", "n2"].map(|name| Node { cluster: &cluster, name });
    helm(&cluster, "install", &[&["--create-namespace"], SETTINGS].concat());
    for node in &nodes {
        node.becomes("ready", 8);
    }
    least_privilege(&nodes[0]);
    steady_state(&nodes);
    tokens_end(&nodes);
    power_cycle(&nodes[0]);
    storm(&nodes);
}

fn least_privilege(node: &Node<'_>) {
    step("of every verb on everything, an agent's token has four");
    let allowed = rights::allowed(node.cluster, &policy::bound_token(node));
    let wanted = [
        "get nodes",
        "patch nodes/status",
        "create events.k8s.io/events in default",
        "patch events.k8s.io/events in default",
    ];
    same(&allowed, &wanted.map(str::to_owned).to_vec()).unwrap();
}

/// Checks go on meanwhile. One request a heartbeat is at most twelve an hour at the default of five minutes.
fn steady_state(nodes: &[Node<'_>]) {
    step("a minute in which nothing changes: one request a heartbeat, and no other");
    thread::sleep(HEARTBEAT); // events of the beginning
    let start = Timestamp::now();
    thread::sleep(6 * HEARTBEAT);
    let requests = by_agents(nodes[0].cluster, start);
    for node in nodes {
        let own = of_node(&requests, node.name);
        assert!(own.iter().all(|request| request.what == "patch nodes/status"), "{own:#?}");
        for pair in own.windows(2) {
            let apart = pair[1].at - pair[0].at;
            assert!(apart >= HEARTBEAT.as_secs_f64(), "{}: {apart} s after the one before", node.name);
        }
        assert!((5..=6).contains(&own.len()), "{}: {own:#?}", node.name);
    }
}

/// The account made anew ends every token of the old one; the kubelet, when it starts, puts new ones where the old
/// were. (By itself it does so after four fifths of a token's hour.)
fn tokens_end(nodes: &[Node<'_>]) {
    step("the agents' tokens end: no state is lost, and the new ones are read from the same file");
    let cluster = nodes[0].cluster;
    let agents = agent_pods(cluster);
    let mut account = cluster.get(&["-n", "gdr-system", "serviceaccount", "gdr-agent"]);
    for own in ["uid", "resourceVersion", "creationTimestamp"] {
        account["metadata"].as_object_mut().expect("metadata").remove(own);
    }
    cluster.kubectl(&["-n", "gdr-system", "delete", "serviceaccount", "gdr-agent"]);
    cluster.apply("account", &account);
    for node in nodes {
        says(node, "can't patch the node's status: 401");
    }
    helm(cluster, "upgrade", &[SETTINGS, &["--set-json", &port_down("mlx5_2")]].concat());
    for node in nodes {
        node.offers(7);
        same(&label(node), &json!("ready")).expect("nobody can have told");
        node.kill_kubelet();
        node.becomes("degraded", 7);
    }
    helm(cluster, "upgrade", SETTINGS);
    for node in nodes {
        node.becomes("ready", 8);
    }
    same(&agent_pods(cluster), &agents).expect("no agent was started again");
}

/// As long as the shortest life that a token can have. The kubelet puts another in its place after four fifths of it.
const LIFE: Duration = Duration::from_secs(600);

#[test]
#[ignore = "needs root, a cluster, and eleven minutes, which it has with CLUSTER_SLOW=1 alone"]
fn tokens_grow_old() {
    if std::env::var_os("CLUSTER_SLOW").is_none() {
        return;
    }
    let cluster = &Cluster::start(&image());
    helm(cluster, "install", &[&["--create-namespace"], SETTINGS].concat());
    step("eleven minutes with tokens that end after ten: the kubelet's next ones are used, and none that has ended");
    let token = json!([
        { "serviceAccountToken": { "path": "token", "expirationSeconds": LIFE.as_secs() } },
        { "configMap": { "name": "kube-root-ca.crt" } },
        { "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } }] } },
    ]);
    let mount = json!([{ "name": "short", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount" }]);
    let pod = json!({
        "volumes": [{ "name": "short", "projected": { "sources": token } }],
        "containers": [{ "name": "agent", "volumeMounts": mount }],
    });
    patch_agents(cluster, &json!({ "template": { "spec": pod } }));
    rolled_out(cluster);
    let (agents, begun) = (agent_pods(cluster), Timestamp::now());
    thread::sleep(LIFE + Duration::from_secs(60));
    let asked = by_agents(cluster, begun);
    for name in ["n1", "n2"] {
        let own = of_node(&asked, name);
        let tokens: BTreeSet<&str> = own.iter().map(|request| request.token.as_str()).collect();
        same(&tokens.len(), &2).unwrap_or_else(|error| panic!("{name}: {error}: {own:#?}"));
        assert!(own.iter().all(|request| request.code < 400), "{own:#?}");
    }
    same(&agent_pods(cluster), &agents).expect("no agent was started again");
}

/// The agent's first word after a boot is that nothing is known. (One that checks by itself may know more within a
/// moment: this one waits to be asked.)
fn power_cycle(node: &Node<'_>) {
    step("an agent rolled out, its label watched: it stays as it is");
    let cluster = node.cluster;
    let watch = cluster.watch(node.name, STATE);
    let old = node.agent();
    helm(cluster, "upgrade", &["--set", "config.check.interval=never"]);
    node.agent_is_another_than(&old);
    node.becomes("ready", 8);
    same(&watch.values(), &vec!["ready True".to_owned()]).unwrap();

    step("the node is cut from power: unknown before anything else, and ready after a check");
    let watch = cluster.watch(node.name, STATE);
    node.power_cycle();
    node.becomes("unknown", 0);
    let object = node.object();
    let report = object["metadata"]["annotations"]["gpudirect-rdma/report"].as_str().expect("a report");
    let report: Value = serde_json::from_str(report).expect("the report is JSON");
    same(&report["bootId"], &object["status"]["nodeInfo"]["bootID"]).unwrap();
    cluster.kubectl(&["-n", "gdr-system", "exec", &node.agent(), "--", "/gdr-agent", "recheck"]);
    node.becomes("ready", 8);
    let values = ["ready True", "unknown Unknown", "ready True"].map(str::to_owned);
    same(&watch.values(), &values.to_vec()).unwrap();
}

const SLOW: Trouble = Trouble::Slow(Duration::from_secs(1));
/// With pauses in which it goes well, as a server's trouble has, each long enough for the node read, the node patched,
/// and what events are due: what fails before all of that is done is one more failure in the row.
const STORM: &[Trouble] = &[
    SLOW,
    SLOW,
    SLOW,
    SLOW,
    SLOW,
    Trouble::Answers(500),
    Trouble::Answers(429),
    Trouble::CutBefore,
    SLOW,
    SLOW,
    SLOW,
    Trouble::CutAfter,
    Trouble::CutMidway,
    Trouble::Answers(503),
    SLOW,
    SLOW,
    SLOW,
    Trouble::Hangs,
    Trouble::Answers(504),
];
const NOTHING_GOES: &[Trouble] = &[Trouble::Answers(503); 99];

fn storm(nodes: &[Node<'_>]) {
    let cluster = nodes[0].cluster;
    step("the agents ask by way of a proxy");
    helm(cluster, "upgrade", SETTINGS);
    let proxy = Proxy::start(cluster);
    let port = format!("KUBERNETES_SERVICE_PORT={PORT}");
    cluster.kubectl(&["-n", "gdr-system", "set", "env", "daemonset/gdr-agent", &port]);
    rolled_out(cluster);
    for node in nodes {
        eventually("the agent is a client of the proxy", || {
            if proxy.connections(node.name) > 0 { Ok(()) } else { Err("none".to_owned()) }
        });
        node.becomes("ready", 8);
    }
    let agents = agent_pods(cluster);
    let (begun, started) = (Timestamp::now(), Instant::now());

    step("the API server is away: devices go on without it");
    proxy.turns(Weather::Away);
    helm(cluster, "upgrade", &[SETTINGS, &["--set-json", &port_down("mlx5_4")]].concat());
    for node in nodes {
        node.offers(7);
        same(&label(node), &json!("ready")).expect("nobody can have told");
        says(node, "Connection refused");
    }

    step("it answers 429 and 5xx, hangs, is slow, and connections are cut; the port comes back");
    proxy.turns(Weather::Storm(STORM));
    helm(cluster, "upgrade", SETTINGS);
    for node in nodes {
        node.offers(8);
    }
    for node in nodes {
        for part in (0..=STORM.len()).step_by(6) {
            asks(&proxy, node, part);
        }
        let met = eventually("a heartbeat goes well, long after what was before it", || {
            let met = proxy.met(node.name);
            let quiet = met.len() > STORM.len() + 1 && met[met.len() - 2].at + HEARTBEAT <= met[met.len() - 1].at;
            if quiet { Ok(met) } else { Err(format!("{met:#?}")) }
        });
        backs_off(&met);
        node.becomes("ready", 8);
    }

    step("another port goes down while nothing is heard");
    proxy.turns(Weather::Storm(NOTHING_GOES));
    helm(cluster, "upgrade", &[SETTINGS, &["--set-json", &port_down("mlx5_6")]].concat());
    for node in nodes {
        node.offers(7);
        same(&label(node), &json!("ready")).expect("nobody can have told");
        asks(&proxy, node, 3);
    }

    step("the troubles end: the right state within the back-off, and no more was asked than is due");
    let last = nodes.iter().map(|node| proxy.met(node.name)).collect::<Vec<_>>();
    proxy.turns(Weather::Calm);
    let calm = Instant::now();
    for (node, met) in nodes.iter().zip(&last) {
        backs_off(met);
        node.becomes("degraded", 7);
        let within = FIRST_PAUSE * 2_u32.pow(u32::try_from(met.len()).expect("few"));
        assert!(calm.elapsed() < within + Duration::from_secs(5), "{:?} after {} failures", calm.elapsed(), met.len());
        let condition = node.condition().expect("there is a condition");
        same(&condition["reason"], &json!("PortDown")).unwrap();
        let message = condition["message"].as_str().expect("a message");
        assert!(message.contains("mlx5_6") && !message.contains("mlx5_4"), "{message}");
    }
    same(&agent_pods(cluster), &agents).expect("no agent was started again");
    // What was refused loses nothing of the node, so that it is not read again. A heartbeat is one request, a change a
    // patch and its event; after each of the storm's rows these may come again, and two were cut after they had come.
    let heartbeats = usize::try_from(started.elapsed().as_secs() / HEARTBEAT.as_secs()).expect("few");
    let budget = heartbeats + 3 * 2 + 3 * 2 + 2;
    let asked = by_agents(cluster, begun);
    for node in nodes {
        let own = of_node(&asked, node.name);
        assert!(own.len() <= budget, "{}: {} instead of {budget}: {own:#?}", node.name, own.len());
        let read = own.iter().filter(|request| request.what == "get nodes").count();
        same(&read, &0).unwrap_or_else(|error| panic!("{}: {error}: {own:#?}", node.name));
        eprintln!("   {}: {} requests of {budget}", node.name, own.len());
    }
}

fn by_agents(cluster: &Cluster, since: Timestamp) -> Vec<Asked> {
    asked(cluster.state(), since).into_iter().filter(|asked| asked.by_agent).collect()
}

fn of_node<'a>(asked: &'a [Asked], name: &str) -> Vec<&'a Asked> {
    asked.iter().filter(|request| request.node == name).collect()
}

fn rolled_out(cluster: &Cluster) {
    cluster.kubectl(&["-n", "gdr-system", "rollout", "status", "daemonset/gdr-agent", "--timeout=90s"]);
}

/// Waits until so many requests of this weather have met what they meet.
fn asks(proxy: &Proxy, node: &Node<'_>, times: usize) {
    eventually(&format!("the agent of {} has asked {times} times", node.name), || {
        let met = proxy.met(node.name);
        if met.len() >= times { Ok(()) } else { Err(format!("{met:#?}")) }
    });
}

fn label(node: &Node<'_>) -> Value {
    node.object()["metadata"]["labels"]["gpudirect-rdma"].clone()
}

/// Waits for it in the agent's log.
fn says(node: &Node<'_>, text: &str) {
    eventually(&format!("the agent of {} says: {text}", node.name), || {
        let log = node.cluster.kubectl(&["-n", "gdr-system", "logs", &node.agent(), "--tail=40"]);
        if log.contains(text) { Ok(()) } else { Err(log) }
    });
}

/// After each failure in a row at least half of twice as long as after the one before; the Node's state and events have
/// a clock each.
fn backs_off(met: &[Met]) {
    for events in [false, true] {
        let mut pause = FIRST_PAUSE;
        let own: Vec<_> = met.iter().filter(|met| met.is_event() == events).collect();
        for pair in own.windows(2) {
            if pair[0].is_well() {
                pause = FIRST_PAUSE;
                continue;
            }
            assert!(pair[1].at - pair[0].at >= pause / 2, "sooner than {:?}: {met:#?}", pause / 2);
            pause *= 2;
        }
    }
}
