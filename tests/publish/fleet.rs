//! `gdr-agent nodes`, from an API server's list of Nodes.

use std::{fs, process, thread::sleep, time::Duration};

use assert_cmd::Command;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::server::{Server, Trouble};
use crate::support::{Home, Ran, Running};

const GET: &str = "GET /api/v1/nodes";

/// A command beside a server.
pub(crate) struct Beside {
    pub(crate) home: Home,
    pub(crate) server: Server,
}

impl Beside {
    pub(crate) fn new(fleet: Vec<Value>) -> Self {
        let (home, server) = (Home::new(), Server::new());
        home.configure("");
        server.kubeconfig(&home.path("."), "first");
        server.world().fleet = fleet;
        Self { home, server }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.home.agent(arguments);
        command.env("KUBECONFIG", self.home.path("kubeconfig"));
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command(arguments))
    }
}

fn ago(minutes: i64) -> String {
    (Timestamp::now() - SignedDuration::from_mins(minutes)).to_string()
}

/// What an agent tells of a node of eight and eight.
fn report(state: &str) -> Value {
    json!({
        "state": state, "checkedAt": ago(4), "gpus": 8, "served": 8, "rails": 8, "railsGood": 8, "models": ["H100 x8"],
        "driver": "570", "module": "open", "methods": ["dma-buf", "peermem"], "rates": ["400 Gb/s x8"],
        "transport": "infiniband", "distance": "PIX", "version": "0.1.0",
    })
}

fn member(name: &str, state: &str, reason: &str, report: &Value) -> Value {
    let condition = json!({
        "type": "GPUDirectRDMAReady", "status": "False", "reason": reason, "message": format!("of {name}"),
        "lastHeartbeatTime": ago(1),
    });
    json!({
        "metadata": {
            "name": name, "uid": name, "labels": { "gpudirect-rdma": state },
            "annotations": { "gpudirect-rdma/report": report.to_string() },
        },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }, condition] },
    })
}

fn ready(name: &str) -> Value {
    member(name, "ready", "AllRailsVerified", &report("ready"))
}

/// One of each, not in order; one whose agent died, one by its labels alone, one without an agent.
fn motley() -> Vec<Value> {
    let mut seven = report("degraded");
    (seven["railsGood"], seven["served"]) = (json!(7), json!(6));
    let mut stale = ready("stale");
    stale["status"]["conditions"][1]["lastHeartbeatTime"] = json!(ago(120));
    let by_labels = json!({
        "metadata": { "name": "labels", "labels": { "gpudirect-rdma/state": "unknown", "gpudirect-rdma/reason": "GpuBusy" } },
    });
    vec![
        ready("fine"),
        member("n-a", "not-applicable", "NoRdmaHardware", &report("not-applicable")),
        json!({ "metadata": { "name": "other", "labels": { "gpudirect-rdma.example.com": "ready" } } }),
        member("down", "degraded", "PortDown", &seven),
        stale,
        by_labels,
        member("dead", "not-ready", "DriverAbsent", &report("not-ready")),
    ]
}

/// The first words of each line.
fn columns(ran: &Ran, n: usize) -> Vec<String> {
    ran.out.lines().map(|line| line.split_whitespace().take(n).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn every_node_is_listed_the_worst_first() {
    let beside = Beside::new(motley());
    let ran = beside.run(&["nodes"]).exits(1);
    let wanted = [
        "NODE STATE REASON GPUS RAILS CHECKED",
        "dead not-ready DriverAbsent 8/8 8/8 4m",
        "down degraded PortDown 6/8 7/8 4m",
        "labels unknown GpuBusy - - -",
        "stale unknown Stale 8/8 8/8 4m",
        "fine ready AllRailsVerified 8/8 8/8 4m",
        "n-a not-applicable NoRdmaHardware 8/8 8/8 4m",
        "1 not-ready, 1 degraded, 2 unknown,",
    ];
    assert_eq!(columns(&ran, 6), wanted);
    assert!(ran.out.ends_with("1 ready, 1 not-applicable; 1 without the agent\n"), "{}", ran.out);
    assert_eq!(beside.server.since(0), [format!("{GET}: 200")], "nothing else is asked for");
}

#[test]
fn wide_and_json_say_more() {
    let beside = Beside::new(motley());
    let wide = beside.run(&["nodes", "-o", "wide"]).exits(1).out;
    let lines: Vec<_> = wide.lines().collect();
    let head = "NODE STATE REASON GPUS RAILS CHECKED MODELS DRIVER MODULE METHODS TRANSPORT DISTANCE VERSION MESSAGE";
    assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>().join(" "), head);
    let down: Vec<_> = lines[2].split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!(down[6..], ["H100 x8", "570", "open", "dma-buf+peermem", "infiniband", "PIX", "0.1.0", "of down"]);
    let json = beside.run(&["nodes", "-o", "json"]).exits(1).json();
    assert_eq!((&json["withoutAgent"], json["nodes"].as_array().unwrap().len()), (&json!(1), 6));
    let down = &json["nodes"][1];
    assert_eq!(
        (&down["name"], &down["state"], &down["reason"]),
        (&json!("down"), &json!("degraded"), &json!("PortDown"))
    );
    assert_eq!((&down["gpus"], &down["served"], &down["railsGood"]), (&json!(8), &json!(6), &json!(7)));
    assert_eq!(json["nodes"][3]["stale"], true);
}

#[test]
fn filters_take_what_they_name() {
    let beside = Beside::new(motley());
    for (arguments, names, status) in [
        (&["--state", "ready"][..], &["fine"][..], 0),
        (&["--state", "ready,degraded"], &["down", "fine"], 1),
        (&["--state", "unknown"], &["labels", "stale"], 3),
        (&["--reason", "portdown"], &["down"], 1),
        (&["--reason", "Stale,GpuBusy"], &["labels", "stale"], 3),
        (&["--state", "ready", "--reason", "PortDown"], &[], 3),
        (&["--state", "not-applicable"], &["n-a"], 3),
    ] {
        let ran = beside.run(&[&["nodes", "-o", "json"], arguments].concat()).exits(status);
        let json = ran.json();
        let found: Vec<_> =
            json["nodes"].as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap()).collect();
        assert_eq!(found, names, "{arguments:?}");
    }
    beside.run(&["nodes", "-l", "pool=train,example.com/x!=y"]).exits(1);
    let queries = beside.server.world().queries.clone();
    assert!(queries.last().unwrap().contains("labelSelector=pool%3Dtrain%2Cexample.com%2Fx%21%3Dy"), "{queries:?}");
}

/// 0: all are ready; what does not apply does not count.
#[test]
fn the_exit_status_says_whether_all_are_ready() {
    let applies_not = member("n-a", "not-applicable", "NoRdmaHardware", &report("not-applicable"));
    Beside::new(vec![ready("a"), applies_not.clone(), ready("b")]).run(&["nodes"]).exits(0);
    Beside::new(vec![applies_not]).run(&["nodes"]).exits(3);
    let ran = Beside::new(Vec::new()).run(&["nodes"]).exits(3);
    assert_eq!(columns(&ran, 9).last().unwrap(), "no node shows a state");
}

/// 250 nodes at a time; a list that has expired meanwhile begins anew.
#[test]
fn a_large_fleet_comes_in_pages() {
    let fleet: Vec<_> = (0..600).map(|n| ready(&format!("n{n:03}"))).collect();
    let beside = Beside::new(fleet);
    let json = beside.run(&["nodes", "-o", "json"]).exits(0).json();
    assert_eq!(json["nodes"].as_array().unwrap().len(), 600);
    let asked = ["limit=250", "limit=250&continue=250", "limit=250&continue=500"];
    assert_eq!(beside.server.world().queries.iter().map(|query| query.trim_matches('&')).collect::<Vec<_>>(), asked);
    beside.server.trouble(GET, &[Trouble::Pass, Trouble::Status(410, Value::Null)]);
    let json = beside.run(&["nodes", "-o", "json"]).exits(0).json();
    assert_eq!(json["nodes"].as_array().unwrap().len(), 600, "no node twice, none left out");
    beside.server.trouble(GET, &[Trouble::Status(403, Value::Null)]);
    let ran = beside.run(&["nodes"]).exits(3);
    for part in ["403", "list nodes", "KUBECONFIG"] {
        assert!(ran.err.contains(part), "no `{part}` in {}", ran.err);
    }
}

#[test]
fn what_sets_a_node_apart_is_named() {
    let odd = |name: &str, field: &str, value: Value| {
        let mut report = report("ready");
        report[field] = value;
        member(name, "ready", "AllRailsVerified", &report)
    };
    let mut fleet: Vec<_> = (0..8).map(|n| ready(&format!("n{n}"))).collect();
    fleet.extend([
        odd("driver", "driver", json!("535")),
        odd("module", "module", json!("closed")),
        odd("methods", "methods", json!(["dma-buf"])),
        odd("rails", "rails", json!(7)),
        odd("rates", "rates", json!(["400 Gb/s x7", "200 Gb/s"])),
        odd("distance", "distance", json!("SYS")),
        odd("models", "models", json!(["A100 x8"])),
    ]);
    let beside = Beside::new(fleet);
    let ran = beside.run(&["nodes", "--outliers"]).exits(1);
    let wanted = [
        "NODE WHAT",
        "distance distance",
        "driver driver",
        "methods methods",
        "module module",
        "rails rails",
        "rates rates",
    ];
    assert_eq!(columns(&ran, 2), wanted);
    let json = beside.run(&["nodes", "--outliers", "-o", "json"]).exits(1).json();
    assert_eq!(
        json[3],
        json!({ "node": "module", "what": "module", "has": "closed", "siblings": "open", "share": [13, 14] })
    );
    assert_eq!(beside.server.since(0), vec![format!("{GET}: 200"); 2], "from the list alone");
    // Compared with all, shown for some.
    let mut odd = report("degraded");
    odd["driver"] = json!("535");
    beside.server.world().fleet.push(member("odd", "degraded", "RailMissing", &odd));
    for filter in [["--state", "degraded"], ["--reason", "railmissing"]] {
        let ran = beside.run(&[&["nodes", "--outliers"][..], &filter].concat()).exits(1);
        assert_eq!(columns(&ran, 2), ["NODE WHAT", "odd driver"]);
    }
    let ran = beside.run(&["nodes", "--outliers", "--state", "unknown"]).exits(0);
    assert_eq!(ran.out, "no node differs from its siblings\n");
    Beside::new(vec![ready("a"), ready("b"), ready("c")]).run(&["nodes", "--outliers"]).exits(0);
}

/// What a Node really has: images, and other people's annotations.
#[test]
fn a_fleet_of_thousands_takes_little_memory() {
    const MANY: usize = 2000;
    let images: Vec<_> =
        (0..50).map(|n| json!({ "names": [format!("registry.example.com/{n}@sha256:{}", "0".repeat(500))] })).collect();
    let fleet = (0..MANY).map(|n| {
        let mut node = ready(&format!("n{n:04}"));
        node["status"]["images"] = json!(images);
        node
    });
    let beside = Beside::new(fleet.collect());
    let bytes = beside.server.world().fleet[0].to_string().len();
    assert!(bytes > 25_000, "{bytes}");
    let asked = beside.command(&["nodes"]);
    let mut command = process::Command::new(asked.get_program());
    command.args(asked.get_args()).env("KUBECONFIG", beside.home.path("kubeconfig"));
    let out = beside.home.path("out");
    let mut child = Running(command.stdout(fs::File::create(&out).unwrap()).spawn().unwrap());
    let mut peak = 0;
    while child.0.try_wait().unwrap().is_none() {
        let status = fs::read_to_string(format!("/proc/{}/status", child.0.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        peak = line.map_or(peak, |line| line.trim().trim_end_matches(" kB").parse::<u64>().unwrap());
        sleep(Duration::from_millis(2));
    }
    let out = fs::read_to_string(out).unwrap();
    assert!(out.ends_with(&format!("{MANY} ready\n")), "{out}");
    assert!((5000..100_000).contains(&peak), "{peak} KiB for {} MiB of Nodes", (MANY * bytes) >> 20);
}
