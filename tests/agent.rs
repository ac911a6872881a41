//! `run`: what an agent on a node shows, how it answers, how it ends, and what it remembers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{
    fs,
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::Value;
use support::{Home, PROFILE, Running, text};

/// On two busy cores everything takes its time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until something is there.
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

/// A running agent, which does not outlive its test.
struct Agent<'h> {
    home: &'h Home,
    child: Running,
    port: u16,
}

impl<'h> Agent<'h> {
    fn start(home: &'h Home, profile: &str) -> Self {
        let port = support::free_port();
        let plugins = home.path("device-plugins");
        fs::create_dir_all(&plugins).unwrap();
        home.configure(&format!(
            "kubelet: {{ devicePlugins: '{}' }}\npublish: {{ mode: none }}\n\
             http: {{ listen: \"127.0.0.1:{port}\" }}\nlog: {{ format: text }}\n",
            plugins.display()
        ));
        let log = fs::OpenOptions::new().create(true).append(true).open(home.path("log")).unwrap();
        let mut command = Command::new(support::BINARY);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("GDR_AGENT_")) {
            command.env_remove(name);
        }
        command.args(["run", "--simulate", profile, "--node-name", "n1"]);
        command.arg("--config").arg(home.path("config.yaml")).arg("--run-dir").arg(home.path("run"));
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Self { home, child: Running(command.spawn().unwrap()), port }
    }

    /// The report that lies in the run folder, once it is as wanted.
    fn report(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || read_report(&self.home.path("run/report.json")).filter(&wanted))
    }

    fn becomes(&self, state: &str) -> Value {
        self.report(state, |r| r["verdict"]["state"] == state)
    }

    /// Status and body of an HTTP answer.
    fn get(&self, path: &str) -> (u16, String) {
        support::get(eventually("the HTTP server", || TcpStream::connect(("127.0.0.1", self.port)).ok()), path)
    }

    /// Sends SIGTERM and answers how it ended, and after how long.
    fn terminate(mut self) -> (Option<i32>, Duration) {
        let start = Instant::now();
        let pid = self.child.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let status = eventually("the end of the agent", || self.child.0.try_wait().unwrap());
        (status.code(), start.elapsed())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.home.path("log")).unwrap()
    }
}

/// It is replaced atomically: whoever reads it reads a whole one.
fn read_report(path: &Path) -> Option<Value> {
    let text = fs::read_to_string(path).ok()?;
    Some(serde_json::from_str(&text).unwrap_or_else(|e| panic!("half a report: {e}: {text}")))
}

#[test]
fn what_is_here_can_be_accepted_and_what_was_is_remembered() {
    let home = Home::new();
    assert!(home.run(&["accept"]).exits(3).err.contains("no agent answers"));
    let mut agent = Agent::start(&home, "hgx-h100");
    agent.becomes("ready");
    let changes = home.run(&["status", "--history", "-o", "json"]).exits(0).json();
    let last = changes.as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["from"], &last["to"], &last["reason"]),
        (&"unknown".into(), &"ready".into(), &"AllRailsVerified".into())
    );
    assert!(home.run(&["status", "--history"]).exits(0).out.contains("unknown        -> ready"));
    assert!(home.run(&["status", "--history", "-o", "html"]).exits(64).err.contains("-o json"));
    assert_eq!(home.run(&["accept"]).exits(0).out, "8 GPUs and 8 HCAs are the baseline of n1 from now on\n");
    agent.terminate();
    // The store has them too, and the next agent goes on from them.
    let left = home.run(&["status", "--history", "-o", "json", "--simulate", "hgx-h100"]).exits(0);
    assert_eq!((left.json(), left.err.contains("its store")), (changes.clone(), true));
    agent = Agent::start(&home, "hgx-h100");
    assert_eq!(agent.get("/healthz").0, 200);
    assert_eq!(home.run(&["status", "--history", "-o", "json"]).exits(0).json(), changes, "a restart is no change");
}

/// One bad check, and then the GPU is in use: what is carried from the first is no second one.
#[test]
fn a_carried_outcome_is_not_another_failed_check() {
    let home = Home::new();
    let faults = |faults: &str| home.file("profile.yaml", &format!("{PROFILE}faults: [ {faults} ]\n"));
    let profile = faults("");
    let agent = Agent::start(&home, profile.to_str().unwrap());
    agent.becomes("ready");
    faults("{ gpu: \"0000:1b:00.0\", outcome: failed, code: ENOMEM (12) }");
    agent.report("a first bad check", |report| report["verdict"]["damped"] == true);
    faults("{ gpu: \"0000:1b:00.0\", outcome: skipped }");
    for _ in 0..3 {
        let report = home.run(&["recheck", "-o", "json"]).exits(0).json();
        assert_eq!(report["verdict"]["state"], "ready");
        assert_eq!(report["pairs"][0]["good"], false, "it is remembered all the same");
    }
    faults("{ gpu: \"0000:1b:00.0\", outcome: failed, code: ENOMEM (12) }");
    assert_eq!(home.run(&["recheck", "-o", "json"]).exits(2).json()["verdict"]["state"], "degraded");
}

#[test]
fn it_publishes_answers_and_ends() {
    let home = Home::new();
    let agent = Agent::start(&home, "hgx-h100");
    let report = agent.becomes("ready");
    assert_eq!((&report["node"], &report["simulated"]), (&"n1".into(), &true.into()));
    assert_eq!(report["pairs"].as_array().unwrap().len(), 64);
    assert!(report["validUntil"].as_str().unwrap() > report["startedAt"].as_str().unwrap());

    assert_eq!(agent.get("/healthz").0, 200);
    assert_eq!(agent.get("/readyz").0, 200);
    assert_eq!(agent.get("/report.json").0, 404, "the report is for the socket and the file");
    let (status, metrics) = agent.get("/metrics");
    assert_eq!(status, 200);
    for line in [
        "gdr_agent_state{state=\"ready\"} 1",
        "gdr_agent_gpus 8",
        "gdr_agent_rails 8",
        "gdr_agent_rails_good 8",
        "gdr_agent_devices{resource=\"gpudirect-rdma/hca\",health=\"healthy\"} 8",
        "gdr_agent_devices{resource=\"gpudirect-rdma/hca\",health=\"unhealthy\"} 0",
        "# EOF",
    ] {
        assert!(metrics.contains(line), "no `{line}` in {metrics}");
    }

    let answered = home.run(&["status", "-o", "json"]).exits(0);
    assert_eq!(answered.json(), report);
    assert_eq!(answered.err, "", "it comes from the socket");
    assert!(home.run(&["status"]).exits(0).out.starts_with("GPUDirect RDMA: ready (simulated)"));

    let rechecked = home.run(&["recheck", "-o", "json"]).exits(0).json();
    assert!(rechecked["startedAt"].as_str().unwrap() > report["startedAt"].as_str().unwrap(), "no new check");
    assert!(metric(&agent.get("/metrics").1, "gdr_agent_checks_total") >= 2.0);

    assert!(!agent.log().contains("ERROR"), "{}", agent.log());
    let (code, took) = agent.terminate();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(5), "{took:?}");
    let left = read_report(&home.path("run/report.json")).expect("the report stays");
    assert_eq!(left["verdict"]["state"], "ready");
    let last = home.run(&["status", "-o", "json"]).exits(0);
    assert!(last.err.contains("no agent runs here"), "{}", last.err);
}

/// The sum of a metric's series.
fn metric(text: &str, name: &str) -> f64 {
    let values = text.lines().filter(|l| l.starts_with(name)).filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum()
}

#[test]
fn a_restart_goes_on_with_the_last_verdict_at_once() {
    let home = Home::new();
    let agent = Agent::start(&home, "hgx-h100");
    let before = agent.becomes("ready");
    assert_eq!(agent.terminate().0, Some(0));
    fs::remove_file(home.path("run/report.json")).unwrap();

    let agent = Agent::start(&home, "hgx-h100");
    // Whatever it says first is what it said last, and it was so since then.
    let first = agent.report("the first report", |_| true);
    assert_eq!(first["verdict"]["state"], "ready", "{:#}", first["verdict"]);
    assert_eq!(first["verdict"]["since"], before["verdict"]["since"]);
    assert!(!agent.log().contains("to=unknown"), "{}", agent.log());
    assert_eq!(agent.terminate().0, Some(0));
}

#[test]
fn without_memory_it_begins_by_not_knowing() {
    let home = Home::new();
    fs::create_dir_all(home.path("store")).unwrap();
    home.file("store/simulated.json", "{ half a file");
    let agent = Agent::start(&home, "hgx-h100");
    agent.becomes("ready");
    assert_eq!(fs::read_to_string(home.path("store/simulated.bad")).unwrap(), "{ half a file");
    assert!(agent.log().contains("setting the store aside"), "{}", agent.log());
    assert_eq!(agent.terminate().0, Some(0));
}

/// One look is not enough to accuse a port: the state waits, the report says that something was seen.
#[test]
fn a_port_that_goes_down_is_seen_and_damped() {
    let home = Home::new();
    let profile = home.file("profile.yaml", &format!("{PROFILE}faults: []\n"));
    let agent = Agent::start(&home, text(&profile));
    agent.becomes("ready");
    fs::write(&profile, format!("{PROFILE}faults: [ {{ hca: mlx5_4, port: DOWN }} ]\n")).unwrap();
    let report = agent.report("the port", |r| r["verdict"]["damped"] == true);
    assert_eq!(report["verdict"]["state"], "ready", "60 s of grace have not passed");
    assert_eq!(report["hcas"][4]["ports"][0]["state"], "DOWN");
    assert_eq!(report["findings"][0]["reason"], "PortDown");
    // Back in time, and nothing has happened.
    fs::write(&profile, format!("{PROFILE}faults: []\n")).unwrap();
    let report = agent.report("the port again", |r| r["verdict"]["damped"] == false);
    assert_eq!((&report["verdict"]["state"], &report["findings"]), (&"ready".into(), &Value::Array(Vec::new())));
    assert_eq!(agent.terminate().0, Some(0));
}

/// A fault that cannot pass by itself is published after one check.
#[test]
fn a_lasting_fault_falls_at_once() {
    let home = Home::new();
    let profile = home.file("profile.yaml", &format!("{PROFILE}faults: []\n"));
    let agent = Agent::start(&home, text(&profile));
    agent.becomes("ready");
    let faults = "faults: [ { peermem: false }, { openModule: false } ]";
    fs::write(&profile, format!("{PROFILE}{faults}\n")).unwrap();
    let report = agent.becomes("not-ready");
    assert_eq!(report["verdict"]["reason"], "PeermemNotLoaded");
    let checks = metric(&agent.get("/metrics").1, "gdr_agent_checks_total");
    assert!(checks <= 2.0, "the first one and the one that the change triggered, not {checks}");
    home.run(&["status"]).exits(1);
    assert_eq!(agent.terminate().0, Some(0));
}
