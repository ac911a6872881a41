//! The shipping binary beside a kubelet of a test's own.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::support::{self, Home, PROFILE, Running};

/// An agent with a folder of its own for a kubelet.
pub(crate) struct Agent {
    pub(crate) home: Home,
    /// What it simulates: a built-in name, or a file.
    pub(crate) profile: PathBuf,
    children: Vec<Running>,
}

impl Agent {
    /// Not started yet; `more` is further configuration.
    pub(crate) fn new(more: &str) -> Self {
        let home = Home::new();
        let agent = Self { profile: home.path("profile.yaml"), home, children: Vec::new() };
        fs::create_dir_all(agent.folder()).unwrap();
        agent.home.configure(&format!(
            "kubelet: {{ devicePlugins: '{}', podResources: '{}' }}\npublish: {{ mode: none }}\nhttp: {{ listen: null }}\nlog: {{ format: text }}\n{more}\n",
            agent.folder().display(),
            agent.home.path("none").display()
        ));
        agent.faults("");
        agent
    }

    pub(crate) fn running(more: &str) -> Self {
        let mut agent = Self::new(more);
        agent.start();
        agent
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.home.path("device-plugins")
    }

    pub(crate) fn faults(&self, faults: &str) {
        // Replaced as a whole: the agent reads it at each look.
        let file = self.home.file("new.yaml", &format!("{PROFILE}faults: [ {faults} ]\n"));
        fs::rename(file, self.home.path("profile.yaml")).unwrap();
    }

    pub(crate) fn start(&mut self) {
        self.start_in("run");
    }

    /// With a run folder of its own, so that it does not know of the others.
    pub(crate) fn start_in(&mut self, run: &str) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.home.path("log")).unwrap();
        let mut command = Command::new(support::BINARY);
        command.arg("run").arg("--simulate").arg(&self.profile).args(["--node-name", "n1"]);
        command.arg("--config").arg(self.home.path("config.yaml")).arg("--run-dir").arg(self.home.path(run));
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.children.push(Running(command.spawn().unwrap()));
    }

    /// SIGTERM, and how long it took.
    pub(crate) fn stop(&mut self) -> Duration {
        let mut child = self.children.remove(0);
        let start = Instant::now();
        assert!(Command::new("kill").args(["-TERM", &child.0.id().to_string()]).status().unwrap().success());
        assert!(child.0.wait().unwrap().success());
        start.elapsed()
    }

    pub(crate) fn kill(&mut self) {
        let mut child = self.children.remove(0);
        child.0.kill().unwrap();
        child.0.wait().unwrap();
    }

    /// A check now, as soon as the agent answers.
    pub(crate) fn recheck(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.home.run(&["recheck"]).status != Some(0) {
            assert!(Instant::now() < deadline, "{}", self.log());
            sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.home.path("log")).unwrap_or_default()
    }

    pub(crate) fn says(&self, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(15);
        while !self.log().contains(what) {
            assert!(Instant::now() < deadline, "never `{what}`:\n{}", self.log());
            sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn sockets(&self) -> Vec<PathBuf> {
        let all = fs::read_dir(self.folder()).unwrap().flatten().map(|entry| entry.path());
        all.filter(|path| !path.ends_with("kubelet.sock")).collect()
    }
}
