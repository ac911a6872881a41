//! Drivers that block a read of sysfs or procfs: it costs what is known of that device, and nothing else.

use std::{fs, thread, time::Duration};

use serde_json::Value;

use crate::{
    away::Agent,
    support::{block, evidence, find, finding, standins::Node},
};

fn pair<'r>(report: &'r Value, gpu: &str, hca: &str) -> &'r Value {
    let mut pairs = report["pairs"].as_array().into_iter().flatten();
    pairs.find(|pair| pair["gpu"] == gpu && pair["hca"] == hca).unwrap_or(&Value::Null)
}

#[test]
fn an_hca_whose_driver_blocks_is_unknown_and_the_others_go_on() {
    let node = Node::new(1, 2);
    let agent = Agent::start(&node);
    agent.becomes("ready");
    let threads = || fs::read_dir(format!("/proc/{}/task", agent.process.0.id())).unwrap().count();
    let before = threads();
    let answer = block(node.tree.sys("class/infiniband/mlx5_0/ports/1/state"));
    let is_silent = |report: &Value| pair(report, "0000:20:00.0", "mlx5_0")["peermem"]["step"] == "sysfs";
    let report =
        agent.report("blind for mlx5_0", |report| is_silent(report) && report["verdict"]["state"] == "unknown");
    assert_eq!(pair(&report, "0000:20:00.0", "mlx5_0")["dmaBuf"]["outcome"], "unknown");
    assert_eq!(pair(&report, "0000:20:00.0", "mlx5_1")["dmaBuf"]["outcome"], "verified");
    assert_eq!(report["hcas"][0]["ports"][0]["state"], "ACTIVE", "as last seen");
    let timeout = finding(&report, "ProbeTimeout");
    assert_eq!(timeout["hcas"], serde_json::json!(["mlx5_0"]));
    assert!(evidence(timeout).contains("sysfs"), "{timeout:#}");
    assert!(find(&report, "PortDown").is_none());
    let socket = std::os::unix::net::UnixStream::connect(node.home.path("run/agent.sock"));
    assert!(socket.is_ok(), "it answers");
    thread::sleep(Duration::from_secs(8));
    assert!(threads() <= before + 3, "{before} threads, then {}", threads());
    answer();
    agent.report("seeing again", |report| pair(report, "0000:20:00.0", "mlx5_0")["peermem"]["outcome"] == "verified");
}

#[test]
fn a_gpu_whose_driver_blocks_gets_no_child() {
    let node = Node::new(2, 1);
    let _ = block(node.tree.sys("../proc").join("driver/nvidia/gpus/0000:20:00.0/information"));
    let report = node.check(&[]).exits(3).json();
    let [silent, other] = ["0000:20:00.0", "0000:21:00.0"].map(|gpu| &pair(&report, gpu, "mlx5_0")["dmaBuf"]);
    assert_eq!((&silent["outcome"], &silent["step"]), (&"unknown".into(), &"sysfs".into()));
    assert_eq!(other["outcome"], "verified");
    assert_eq!(finding(&report, "ProbeTimeout")["gpus"], serde_json::json!(["0000:20:00.0"]));
    assert!(find(&report, "GpuLost").is_none());
}

/// Nothing was ever known of it: nobody is accused.
#[test]
fn an_hca_that_never_answered_is_not_down() {
    let node = Node::new(1, 2);
    let _ = block(node.tree.sys("class/infiniband/mlx5_0/ports/1/state"));
    let report = node.check(&[]).exits(3).json();
    assert_eq!(report["verdict"]["state"], "unknown", "{:#}", report["verdict"]);
    assert!(["PortDown", "PortNeverActive", "RailMissing"].iter().all(|reason| find(&report, reason).is_none()));
}
