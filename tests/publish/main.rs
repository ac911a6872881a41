//! Publishing under the real binary: what a Node shows, and every way in which an API server fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod cleanup;
mod fleet;
mod server;
#[path = "../support/mod.rs"]
mod support;
mod tls;

use std::{
    fs,
    net::TcpStream,
    os::unix::fs::MetadataExt,
    process::{Child, Command, Stdio},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use server::{EVENTS, NODE, STATUS, Server, Trouble, node};
use support::{Home, PROFILE};

/// On two busy cores everything takes its time.
const PATIENCE: Duration = Duration::from_secs(40);

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(20));
    }
}

/// An agent with an API server of its own.
struct Agent {
    home: Home,
    server: Server,
    child: Option<Child>,
    port: u16,
}

impl Drop for Agent {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("{}", self.log());
        }
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Agent {
    /// Not started yet; `more` is further configuration.
    fn new(more: &str) -> Self {
        let home = Home::new();
        let port = support::free_port();
        home.configure(&format!(
            "resources: []\nhttp: {{ listen: \"127.0.0.1:{port}\" }}\nlog: {{ format: text }}\npolicy: {{ damping: {{ hold: 0s, rise: 1, fall: 1 }}, portGrace: 0s }}\n{more}\n"
        ));
        let agent = Self { home, server: Server::new(), child: None, port };
        agent.faults("");
        agent.server.kubeconfig(&agent.home.path("."), "first");
        agent
    }

    fn running(more: &str) -> Self {
        Self::running_with(more, &[])
    }

    fn running_with(more: &str, environment: &[(&str, &str)]) -> Self {
        let mut agent = Self::new(more);
        agent.start_with(environment);
        agent
    }

    fn faults(&self, faults: &str) {
        self.home.file("profile.yaml", &format!("{PROFILE}faults: [ {faults} ]\n"));
    }

    fn start(&mut self) {
        self.start_with(&[]);
    }

    fn start_with(&mut self, environment: &[(&str, &str)]) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.home.path("log")).unwrap();
        let mut command = Command::new(support::BINARY);
        command.arg("run").arg("--simulate").arg(self.home.path("profile.yaml")).args(["--node-name", "n1"]);
        command.arg("--config").arg(self.home.path("config.yaml")).arg("--run-dir").arg(self.home.path("run"));
        command.env("KUBECONFIG", self.home.path("kubeconfig")).envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    fn stop(&mut self) {
        let mut child = self.child.take().unwrap();
        assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
        child.wait().unwrap();
    }

    fn node(&self) -> Option<Value> {
        self.server.world().node.clone()
    }

    fn label(&self) -> Option<String> {
        Some(self.node()?["metadata"]["labels"]["gpudirect-rdma"].as_str()?.to_owned())
    }

    fn shows(&self, state: &str) -> Value {
        eventually(state, || self.label().filter(|label| label == state));
        self.node().unwrap()
    }

    /// Whether a rollout goes on.
    fn is_ready(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.port)).is_ok_and(|stream| support::get(stream, "/readyz").0 == 200)
    }

    /// When the last check began.
    fn last_check(&self) -> Value {
        let text = fs::read_to_string(self.home.path("run/report.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["startedAt"].clone()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.home.path("log")).unwrap()
    }

    fn says(&self, text: &str) {
        eventually(text, || self.log().contains(text).then_some(()));
    }
}

fn condition(node: &Value) -> &Value {
    node["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "GPUDirectRDMAReady").unwrap()
}

#[test]
fn a_node_shows_the_state_and_keeps_what_is_others() {
    let agent = Agent::running("");
    let node = agent.shows("ready");
    assert_eq!(condition(&node)["status"], "True");
    assert_eq!(node["metadata"]["labels"]["gpudirect-rdma/gpus"], "8");
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "n1");
    assert_eq!(node["metadata"]["annotations"]["a"], "b");
    assert_eq!(node["status"]["conditions"][0]["type"], "Ready");
    agent.faults("{ hca: mlx5_4, port: DOWN }");
    let node = agent.shows("degraded");
    assert_eq!(condition(&node)["reason"], "PortDown");
    assert!(condition(&node)["message"].as_str().unwrap().contains("mlx5_4"));
}

/// With what the file did not say, and the environment's word over the file's.
#[test]
fn the_effective_configuration_is_logged() {
    let agent = Agent::running_with("check: { interval: 7m, parallelism: 3 }", &[("GDR_AGENT_CHECK_INTERVAL", "9m")]);
    agent.says("gdr-agent starts");
    let log = agent.log();
    for part in [r#""interval":"9m""#, r#""parallelism":3"#, r#""settle":"20m""#] {
        assert!(log.contains(part) || log.contains(&part.replace('"', "\\\"")), "no {part} in {log}");
    }
}

#[test]
fn nothing_is_written_while_nothing_changes() {
    let agent = Agent::running("check: { interval: 1s }");
    agent.shows("ready");
    sleep(Duration::from_secs(2));
    let before = agent.server.count("");
    sleep(Duration::from_secs(5));
    assert_eq!(agent.server.since(before), Vec::<String>::new());
}

#[test]
fn a_heartbeat_heals_what_somebody_removed() {
    let agent = Agent::running("publish: { heartbeat: 10s }");
    agent.shows("ready");
    agent.server.world().node = Some(node("uid-1"));
    let healed = agent.shows("ready");
    assert_eq!(condition(&healed)["status"], "True");
    assert_eq!(agent.server.count(&format!("GET {NODE}")), 1, "the Node is read once");
}

#[test]
fn each_change_is_an_event_and_a_repeated_one_is_counted() {
    let agent = Agent::running("");
    agent.shows("ready");
    let events = |reason: &str| -> Vec<Value> {
        agent.server.world().events.values().filter(|event| event["reason"] == reason).cloned().collect()
    };
    let ready = eventually("the event", || events("AllRailsVerified").pop());
    assert_eq!((&ready["type"], &ready["regarding"]["uid"]), (&json!("Normal"), &json!("uid-1")));
    for turn in 1..=2 {
        agent.faults("{ hca: mlx5_4, port: DOWN }");
        agent.shows("degraded");
        let down = eventually("the event", || {
            events("PortDown").into_iter().find(|event| turn == 1 || event["series"]["count"] == turn)
        });
        assert_eq!(down["type"], "Warning");
        assert!(down["note"].as_str().unwrap().contains("mlx5_4"), "{down:#}");
        agent.faults("");
        agent.shows("ready");
    }
    assert_eq!(agent.server.count(&format!("GET {EVENTS}")), 0, "none is listed");
}

#[test]
fn events_can_be_off_and_a_refused_one_does_not_matter() {
    let agent = Agent::running("publish: { events: false }");
    agent.shows("ready");
    sleep(Duration::from_secs(1));
    assert!(agent.server.world().events.is_empty());
    let mut refused = Agent::new("");
    refused.server.trouble(&format!("POST {EVENTS}"), &vec![Trouble::Status(403, Value::Null); 20]);
    refused.start();
    refused.shows("ready");
    refused.says("create and patch events.k8s.io");
    refused.faults("{ hca: mlx5_4, port: DOWN }");
    refused.shows("degraded");
    assert_eq!(refused.server.count(&format!("GET {NODE}")), 1);
}

/// All troubles before the first success, and the latest state wins.
#[test]
fn a_server_in_trouble_is_asked_again() {
    for code in [429, 500, 503, 409] {
        let mut agent = Agent::new("");
        agent.server.trouble(&format!("PATCH {STATUS}"), &vec![Trouble::Status(code, Value::Null); 2]);
        agent.start();
        agent.shows("ready");
        agent.says(&format!(": {code} "));
        assert!(agent.server.count(&format!("PATCH {STATUS}")) >= 3, "{code}");
    }
}

/// Somebody else's event has the name: that says nothing of the Node, which is not read again.
#[test]
fn an_event_that_is_in_the_way_costs_the_node_nothing() {
    let mut agent = Agent::new("publish: { heartbeat: 10s }");
    agent.server.trouble(&format!("POST {EVENTS}"), &[Trouble::Status(409, Value::Null)]);
    agent.start();
    agent.shows("ready");
    eventually("the event", || (!agent.server.world().events.is_empty()).then_some(()));
    let patches = agent.server.count(&format!("PATCH {STATUS}"));
    eventually("a heartbeat", || (agent.server.count(&format!("PATCH {STATUS}")) > patches).then_some(()));
    assert_eq!(agent.server.count(&format!("GET {NODE}")), 1, "{:?}", agent.server.since(0));
}

/// What was understood is not said again: neither the Node is read, nor patched for its events' sake.
#[test]
fn a_busy_server_is_asked_for_no_more_than_what_it_refused() {
    let mut agent = Agent::new("");
    let busy = vec![Trouble::Status(429, Value::Null); 2];
    agent.server.trouble(&format!("PATCH {STATUS}"), &busy);
    agent.server.trouble(&format!("POST {EVENTS}"), &busy);
    agent.start();
    eventually("the event", || (!agent.server.world().events.is_empty()).then_some(()));
    agent.shows("ready");
    let counts = ["GET", "PATCH", "POST"].map(|verb| agent.server.count(verb));
    assert_eq!(counts[0], 1, "{:?}", agent.server.since(0));
    // Two that were refused; the first word, where the check had not ended yet, and the next.
    assert!((3..=4).contains(&counts[1]) && counts[2] == 3, "{:?}", agent.server.since(0));
}

/// What is told of a change can wait; the Node's state can't.
#[test]
fn events_that_fail_hold_up_no_state() {
    let mut agent = Agent::new("");
    agent.server.trouble(&format!("POST {EVENTS}"), &[Trouble::Status(429, json!({ "retryAfterSeconds": 120 }))]);
    agent.start();
    agent.shows("ready");
    eventually("an event that is refused", || (agent.server.count("POST") > 0).then_some(()));
    agent.faults("{ hca: mlx5_4, port: DOWN }");
    agent.shows("degraded");
    // Not a request more for the event itself.
    assert_eq!(agent.server.count("POST"), 1, "{:?}", agent.server.since(0));
}

#[test]
fn a_server_that_names_a_time_is_left_alone_until_then() {
    for later in [Trouble::Status(429, json!({ "retryAfterSeconds": 6 })), Trouble::Busy(6)] {
        let mut agent = Agent::new("");
        agent.server.trouble(&format!("GET {NODE}"), &[later]);
        agent.start();
        eventually("the first request", || (agent.server.count("GET") > 0).then_some(()));
        let start = Instant::now();
        agent.shows("ready");
        assert!(start.elapsed() >= Duration::from_secs(5), "{:?}", start.elapsed());
    }
}

#[test]
fn a_missing_right_is_named_and_its_coming_is_noticed() {
    let mut agent = Agent::new("");
    agent.server.trouble(&format!("PATCH {STATUS}"), &vec![Trouble::Status(403, Value::Null); 2]);
    agent.start();
    agent.says("it needs the right to patch nodes/status");
    agent.shows("ready");
}

#[test]
fn a_rotated_token_is_read_again() {
    let agent = Agent::running("publish: { heartbeat: 10s }");
    agent.shows("ready");
    fs::write(agent.home.path("token"), "second").unwrap();
    agent.server.world().token = "second".into();
    agent.faults("{ hca: mlx5_4, port: DOWN }");
    agent.shows("degraded");
}

/// The pod's `ca.crt` follows some time after the server's certificate.
#[test]
fn a_certificate_authority_that_is_rotated_is_read_again() {
    let mut agent = Agent::new("publish: { heartbeat: 10s }");
    let front = agent.server.behind_tls(&agent.home.path("."), "first");
    agent.start();
    agent.shows("ready");
    let next = front.rotate();
    let before = agent.server.world().requests.len();
    agent.faults("{ hca: mlx5_4, port: DOWN }");
    agent.says("invalid peer certificate");
    assert_eq!(agent.server.since(before), Vec::<String>::new(), "nobody who can't prove who he is learns anything");
    tls::trust(&agent.home.path("."), &next);
    agent.shows("degraded");
}

#[test]
fn a_server_that_hangs_is_given_up_and_asked_anew() {
    let mut agent = Agent::new("");
    agent.server.trouble(&format!("PATCH {STATUS}"), &[Trouble::Hang]);
    agent.start();
    agent.says("no answer within 15 s");
    agent.shows("ready");
}

#[test]
fn a_node_that_was_made_anew_is_published_in_full() {
    let agent = Agent::running("publish: { heartbeat: 10s }");
    agent.shows("ready");
    agent.server.world().node = Some(node("uid-2"));
    let anew = agent.shows("ready");
    assert_eq!((&anew["metadata"]["uid"], &condition(&anew)["status"]), (&json!("uid-2"), &json!("True")));
    // Gone for a while, and back under the same name.
    agent.server.world().node = None;
    agent.says("404");
    agent.server.world().node = Some(node("uid-3"));
    agent.shows("ready");
}

/// Both are read from the answer to a patch, so that they count from the next heartbeat on.
#[test]
fn a_pause_and_an_operators_change_are_heeded_and_end() {
    let agent = Agent::running("publish: { heartbeat: 10s }\ncheck: { interval: 1s }");
    agent.shows("ready");
    let set = |map: &str, key: &str, value: Value| {
        agent.server.world().node.as_mut().unwrap()["metadata"][map][key] = value;
    };
    set("annotations", "gpudirect-rdma/paused-until", json!("2099-01-01T00:00:00Z"));
    let paused = agent.shows("unknown");
    assert_eq!(condition(&paused)["reason"], "Paused");
    assert_eq!(paused["metadata"]["annotations"]["gpudirect-rdma/paused-until"], "2099-01-01T00:00:00Z", "a person's");
    let before = agent.last_check();
    sleep(Duration::from_secs(3));
    assert_eq!(agent.last_check(), before, "no check while it is paused");
    set("annotations", "gpudirect-rdma/paused-until", json!("2020-01-01T00:00:00Z"));
    agent.shows("ready");
    // A driver's upgrade: what it takes away is no fault.
    set("labels", "nvidia.com/gpu-driver-upgrade-state", json!("pod-restart-required"));
    sleep(Duration::from_secs(12));
    let before = agent.last_check();
    sleep(Duration::from_secs(3));
    assert_eq!(agent.last_check(), before, "no check by the clock while it lasts");
    agent.faults("{ peermem: false }, { openModule: false }");
    agent.shows("unknown");
    assert_eq!(condition(&agent.node().unwrap())["reason"], "DriverNotReady");
    eventually("what has changed is checked", || (agent.last_check() != before).then_some(()));
}

/// The next agent checks nothing either, although it has not read the Node yet.
#[test]
fn a_pause_is_heeded_by_the_next_agent_too() {
    let mut agent = Agent::running("publish: { heartbeat: 10s }\ncheck: { interval: 1h }");
    agent.shows("ready");
    agent.server.world().node.as_mut().unwrap()["metadata"]["annotations"]["gpudirect-rdma/paused-until"] =
        json!("2099-01-01T00:00:00Z");
    agent.shows("unknown");
    let before = agent.last_check();
    agent.stop();
    agent.server.trouble("", &vec![Trouble::Status(503, Value::Null); 20]);
    agent.start();
    eventually("no rollout waits for a check that is not due", || agent.is_ready().then_some(()));
    sleep(Duration::from_secs(3));
    assert_eq!(agent.last_check(), before, "no check while it is paused");
}

/// What was published in the meantime is no longer so: nobody waits for the timer to say it.
#[test]
fn the_end_of_a_pause_is_a_check_at_once() {
    let agent = Agent::running("publish: { heartbeat: 10s }\ncheck: { interval: 1h }");
    agent.shows("ready");
    let until = |text: Value| {
        agent.server.world().node.as_mut().unwrap()["metadata"]["annotations"]["gpudirect-rdma/paused-until"] = text;
    };
    until(json!("2099-01-01T00:00:00Z"));
    agent.shows("unknown");
    until(json!("2020-01-01T00:00:00Z"));
    agent.shows("ready");
}

#[test]
fn without_any_server_the_node_is_checked_all_the_same() {
    let mut agent = Agent::new("");
    fs::remove_file(agent.home.path("kubeconfig")).unwrap();
    agent.start();
    agent.says("can't publish");
    eventually("a report", || {
        let text = fs::read_to_string(agent.home.path("run/report.json")).ok()?;
        text.contains("\"state\":\"ready\"").then_some(())
    });
    agent.server.kubeconfig(&agent.home.path("."), "first");
    agent.shows("ready");
}

#[test]
fn a_dry_run_asks_nothing_of_the_server() {
    let agent = Agent::running("publish: { dryRun: true }");
    eventually("a report", || {
        let text = fs::read_to_string(agent.home.path("run/report.json")).ok()?;
        text.contains("\"state\":\"ready\"").then_some(())
    });
    sleep(Duration::from_secs(1));
    assert!(agent.server.world().requests.is_empty());
}

/// A rollout has nothing new to say: it does not blink, and does not hurry.
#[test]
fn a_restart_writes_nothing_at_once_and_a_change_at_once() {
    let mut agent = Agent::running("publish: { heartbeat: 1h }");
    agent.shows("ready");
    sleep(Duration::from_secs(1));
    agent.stop();
    let before = agent.server.count("");
    agent.start();
    sleep(Duration::from_secs(5));
    assert_eq!(agent.server.since(before), Vec::<String>::new());
    agent.faults("{ hca: mlx5_4, port: DOWN }");
    agent.shows("degraded");
}

#[test]
fn for_nfd_it_is_a_file_that_expires() {
    let mut agent = Agent::new("");
    let dir = agent.home.path("features.d");
    fs::create_dir(&dir).unwrap();
    agent.home.configure(&format!(
        "resources: []\nhttp: {{ listen: null }}\npublish: {{ mode: nfd, nfdDir: '{}', heartbeat: 10s }}\n",
        dir.display()
    ));
    agent.start();
    let text = eventually("the file", || {
        fs::read_to_string(dir.join("gdr-agent")).ok().filter(|text| text.contains("gpudirect-rdma/state=ready\n"))
    });
    assert!(text.starts_with("# +expiry-time=") && !text.contains("\ngpudirect-rdma=ready"), "{text}");
    // Renewed although nothing has changed, and by another file: NFD never reads half of one.
    let inode = || fs::metadata(dir.join("gdr-agent")).unwrap().ino();
    let before = inode();
    let renewed = eventually("a later expiry", || {
        let now = fs::read_to_string(dir.join("gdr-agent")).unwrap();
        (now != text).then_some(now)
    });
    let labels = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(labels(&renewed), labels(&text), "the same but for its first line");
    assert_ne!(inode(), before);
    assert!(agent.server.world().requests.is_empty());
    agent.stop();
    assert!(dir.join("gdr-agent").exists(), "it expires by itself");
}
