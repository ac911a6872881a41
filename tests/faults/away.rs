//! HCAs that come and go under a running agent: into a pod, into a virtual machine, and back.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::support::{Running, find, finding, standins::Node};

const PATIENCE: Duration = Duration::from_secs(30);

/// An agent on a node of stand-ins.
pub(crate) struct Agent<'n> {
    node: &'n Node,
    pub(crate) process: Running,
}

impl<'n> Agent<'n> {
    pub(crate) fn start(node: &'n Node) -> Self {
        Self::checking(node, "1s")
    }

    /// With checks so far apart, but for those that a change asks for.
    fn checking(node: &'n Node, interval: &str) -> Self {
        let plugins = node.home.path("device-plugins");
        fs::create_dir_all(&plugins).unwrap();
        node.home.configure(&format!(
            "check: {{ interval: {interval} }}\npolicy: {{ damping: {{ fall: 1, rise: 1, hold: 0s }} }}\n\
             kubelet: {{ devicePlugins: '{}' }}\npublish: {{ mode: none }}\nhttp: {{ listen: null }}\n",
            plugins.display()
        ));
        Self { node, process: node.run() }
    }

    /// The report in the run folder, once it is as wanted.
    pub(crate) fn report(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let text = fs::read_to_string(self.node.home.path("run/report.json")).unwrap_or_default();
            let report: Value = serde_json::from_str(&text).unwrap_or_default();
            if wanted(&report) {
                return report;
            }
            assert!(Instant::now() < end, "never {what}: {report:#}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn becomes(&self, state: &str) -> Value {
        self.report(state, |report| report["verdict"]["state"] == state)
    }
}

fn role<'r>(report: &'r Value, hca: &str) -> &'r Value {
    report["hcas"].as_array().and_then(|all| all.iter().find(|h| h["name"] == hca)).map_or(&Value::Null, |h| &h["role"])
}

#[test]
fn an_hca_in_a_pod_keeps_what_was_known_of_it() {
    let node = Node::new(1, 2);
    node.tree.put("sys/module/ib_core/parameters/netns_mode", "N\n");
    let agent = Agent::start(&node);
    agent.becomes("ready");
    let back = node.tree.take("mlx5_1");
    let report = agent.report("away", |report| role(report, "mlx5_1") == "away");
    assert_eq!(report["verdict"]["state"], "ready", "{report:#}");
    assert!(find(&report, "RailMissing").is_none() && find(&report, "PortDown").is_none());
    let pair = &report["pairs"][1];
    assert_eq!((&pair["hca"], &pair["good"]), (&"mlx5_1".into(), &true.into()), "carried");
    assert_eq!(pair["peermem"]["outcome"], "skipped");
    back();
    agent.report("back", |report| {
        role(report, "mlx5_1") == "eligible" && report["pairs"][1]["peermem"]["outcome"] == "verified"
    });
}

/// A device's files come one after another: the entry of its device node is there before it says whose it is.
#[test]
fn what_was_still_being_made_is_read_again() {
    let node = Node::new(1, 2);
    let back = node.tree.take("mlx5_1");
    let agent = Agent::checking(&node, "1h");
    agent.becomes("ready");
    let (ibdev, aside) = (node.tree.sys("class/infiniband_verbs/uverbs1/ibdev"), node.home.path("aside"));
    fs::rename(&ibdev, &aside).unwrap();
    back();
    thread::sleep(Duration::from_millis(1500));
    fs::rename(&aside, &ibdev).unwrap();
    agent.report("verified", |report| {
        role(report, "mlx5_1") == "eligible" && report["pairs"][1]["peermem"]["outcome"] == "verified"
    });
}

#[test]
fn all_of_them_in_pods_is_no_fault() {
    let node = Node::new(1, 1);
    node.tree.put("sys/module/ib_core/parameters/netns_mode", "N\n");
    let agent = Agent::start(&node);
    agent.becomes("ready");
    let _back = node.tree.take("mlx5_0");
    let report = agent.report("away", |report| role(report, "mlx5_0") == "away");
    assert_eq!(report["verdict"]["state"], "ready", "{report:#}");
    assert_eq!(finding(&report, "HcasInPods")["severity"], "info");
}

/// Where RDMA devices are shared by all namespaces, one that vanishes is gone.
#[test]
fn an_hca_that_vanishes_is_not_in_a_pod_where_namespaces_share() {
    let node = Node::new(1, 1);
    node.tree.put("sys/module/ib_core/parameters/netns_mode", "Y\n");
    let agent = Agent::start(&node);
    agent.becomes("ready");
    let _back = node.tree.take("mlx5_0");
    // As if its driver had been unloaded, which has its time to come back.
    let report = agent.becomes("unknown");
    assert_eq!(report["verdict"]["reason"], "DriverNotReady");
    finding(&report, "NoRdmaDevices");
    assert!(report["hcas"].as_array().unwrap().is_empty());
}

/// Its RDMA device stays where namespaces share; without its interface the port is down here, and up in the pod.
#[test]
fn an_hca_whose_interface_is_in_a_pod_is_away_also_for_the_next_agent() {
    let node = Node::new(1, 2);
    let roce = |hca: &str| node.tree.sys("class/infiniband").join(hca).join("ports/1");
    let net =
        |hca: &str| fs::canonicalize(node.tree.sys("class/infiniband").join(hca).join("device")).unwrap().join("net");
    for hca in ["mlx5_0", "mlx5_1"] {
        fs::write(roce(hca).join("link_layer"), "Ethernet\n").unwrap();
    }
    fs::create_dir_all(net("mlx5_1").join("eth1")).unwrap();
    let agent = Agent::start(&node);
    agent.becomes("ready");
    fs::remove_dir(net("mlx5_1").join("eth1")).unwrap();
    fs::write(roce("mlx5_1").join("state"), "1: DOWN\n").unwrap();
    let away = |agent: &Agent<'_>| {
        let report = agent.report("away", |report| role(report, "mlx5_1") == "away");
        assert_eq!(report["verdict"]["state"], "ready", "{report:#}");
        assert!(find(&report, "PortDown").is_none(), "{report:#}");
        assert_eq!(finding(&report, "HcasInPods")["hcas"], serde_json::json!(["mlx5_1"]));
    };
    away(&agent);
    drop(agent);
    fs::remove_file(node.home.path("run/report.json")).unwrap();
    let agent = Agent::start(&node);
    away(&agent);
    fs::create_dir(net("mlx5_1").join("eth1")).unwrap();
    // It has come back, and is down like any other.
    agent.report("here", |report| role(report, "mlx5_1") == "eligible" && find(report, "PortDown").is_some());
    // One whose interface was never seen is down, wherever it is.
    fs::write(roce("mlx5_0").join("state"), "1: DOWN\n").unwrap();
    agent.report("down", |report| finding_of(report, "mlx5_0"));
}

fn finding_of(report: &Value, hca: &str) -> bool {
    find(report, "PortDown").is_some_and(|down| down["hcas"].as_array().unwrap().iter().any(|h| h == hca))
}

/// Never seen here: nothing is known, and nothing is accused.
#[test]
fn adapters_that_were_always_elsewhere_are_not_missing() {
    let node = Node::new(1, 0);
    let function = node.tree.function("0000:40:00.0", ("0x15b3", "0x1021"), "0x020700", "vfio-pci");
    assert!(function.exists());
    let report = node.check(&[]).exits(3).json();
    assert_eq!(report["verdict"]["state"], "unknown");
    assert_eq!(report["verdict"]["reason"], "HcasInPods");
    assert!(find(&report, "NoRdmaDevices").is_none());
}

/// Drops between two looks show in a counter alone.
#[test]
fn a_link_that_flaps_is_told_of() {
    let node = Node::new(1, 1);
    let counter = node.tree.sys("class/infiniband/mlx5_0/ports/1/counters/link_downed");
    fs::create_dir_all(counter.parent().unwrap()).unwrap();
    fs::write(&counter, "17\n").unwrap();
    let agent = Agent::start(&node);
    let report = agent.becomes("ready");
    assert!(find(&report, "LinkFlapping").is_none(), "what was before is not lately");
    thread::sleep(Duration::from_secs(2));
    fs::write(&counter, "20\n").unwrap();
    // A change of state has the counters read at once.
    node.tree.function("0000:60:00.0", ("0x8086", "0x1521"), "0x020000", "igb");
    let report = agent.report("told", |report| find(report, "LinkFlapping").is_some());
    assert_eq!(finding(&report, "LinkFlapping")["hcas"], serde_json::json!(["mlx5_0"]));
    assert_eq!(report["verdict"]["state"], "ready");
}
