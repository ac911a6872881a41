//! A cluster for the length of a test, and the words to talk to it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Where the scripts are.
pub(crate) const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster");
/// Long enough for a machine that is busy with other things; nothing here asserts that something is fast.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A cluster that ends with this value, however that comes about.
pub(crate) struct Cluster {
    up: Child,
    /// The script ends the cluster when this closes: also when the test is killed.
    input: Option<ChildStdin>,
    state: PathBuf,
}

impl Cluster {
    /// Two nodes, n1 and n2, with the agent's image.
    pub(crate) fn start(image: &Path) -> Self {
        Self::up("2", &[image])
    }

    /// One node, n1, with these images.
    pub(crate) fn small(images: &[&Path]) -> Self {
        Self::up("1", images)
    }

    fn up(nodes: &str, images: &[&Path]) -> Self {
        let mut command = Command::new(format!("{HERE}/up"));
        command.args(["--nodes", nodes]);
        for image in images {
            assert!(image.exists(), "there is no {}: make image", image.display());
            command.arg("--image").arg(image);
        }
        let mut up = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("tests/cluster/up starts");
        let input = up.stdin.take();
        let mut line = String::new();
        BufReader::new(up.stdout.take().expect("a pipe")).read_line(&mut line).expect("up's output is text");
        assert!(!line.is_empty(), "the cluster did not come up; see above");
        Self { up, input, state: PathBuf::from(line.trim_end()) }
    }

    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// What leads to the API server with this token.
    pub(crate) fn kubeconfig(&self, token: &str) -> Value {
        let cluster = json!({ "server": "https://10.99.0.1", "certificate-authority": self.state.join("pki/ca.crt") });
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": cluster }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "users": [{ "name": "u", "user": { "token": token } }],
        })
    }

    /// Runs one of the scripts in the state folder: `kubectl`, `helm`, `enter`, `on-node`.
    pub(crate) fn try_run(&self, tool: &str, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new(self.state.join(tool))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("the state folder's scripts start");
        text(&output).map_err(|error| format!("{tool} {}: {error}", arguments.join(" ")))
    }

    pub(crate) fn run(&self, tool: &str, arguments: &[&str]) -> String {
        self.try_run(tool, arguments).unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        self.run("kubectl", arguments)
    }

    /// An object, as the API server has it.
    pub(crate) fn get(&self, arguments: &[&str]) -> Value {
        let json = self.kubectl(&[&["get", "-o", "json"], arguments].concat());
        serde_json::from_str(&json).expect("kubectl prints JSON")
    }

    pub(crate) fn apply(&self, name: &str, object: &Value) {
        let file = self.state.join(format!("{name}.json"));
        std::fs::write(&file, object.to_string()).expect("the state folder can be written");
        self.kubectl(&["apply", "-f", &file.to_string_lossy()]);
    }

    /// Starts to note what `jsonpath` says of a node, at each change of the node.
    pub(crate) fn watch(&self, node: &str, jsonpath: &str) -> Watch<'_> {
        let format = format!("-o=jsonpath={{.metadata.labels.{MARK}}}|{jsonpath}{{\"\\n\"}}");
        // As a list: of a single object, kubectl keeps the first event to itself, and with it what came between its
        // look and its watch.
        let only = format!("--field-selector=metadata.name={node}");
        let mut child = Command::new(self.state.join("kubectl"))
            .args(["get", "nodes", &only, "--watch", &format])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                sink.lock().expect("no thread died").push(line);
            }
        });
        let watch = Watch { cluster: self, node: node.to_owned(), child, lines };
        watch.mark("begun"); // from here on it is known to see what happens
        watch
    }

    /// What a person would look at first, when something went wrong.
    fn dump(&self) {
        let show = |tool: &str, arguments: &[&str]| {
            let said = self.try_run(tool, arguments).unwrap_or_else(|error| error);
            eprintln!("── {tool} {}\n{said}", arguments.join(" "));
        };
        show("kubectl", &["describe", "node", "n1"]);
        show("kubectl", &["get", "pods", "-A", "-o", "wide"]);
        show("kubectl", &["get", "events", "-A", "--sort-by=.lastTimestamp"]);
        let agents = ["-n", "gdr-system", "logs", "-l", "app.kubernetes.io/name=gdr-agent", "--tail=60", "--prefix"];
        show("kubectl", &agents);
        show("kubectl", &[&agents[..], &["--previous"]].concat());
        show("kubectl", &["-n", "gdr-system", "logs", "job/gdr-agent-cleanup", "--tail=40"]);
        let tails = format!("tail -n 15 {}/log/*.log | cut -c1-300", self.state.display());
        show("enter", &["bash", "-c", &tails]);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            self.dump();
        }
        drop(self.input.take());
        let _ = self.up.wait();
    }
}

/// The label by which a watch shows how far it has come.
pub(crate) const MARK: &str = "test-mark";

/// A node's past, as far as it was watched.
pub(crate) struct Watch<'a> {
    cluster: &'a Cluster,
    node: String,
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Watch<'_> {
    fn mark(&self, mark: &str) {
        self.cluster.kubectl(&["label", "--overwrite", "node", &self.node, &format!("{MARK}={mark}")]);
        eventually("the watch has come up to now", || {
            let lines = self.lines.lock().expect("no thread died");
            let seen = lines.last().is_some_and(|line| line.split('|').next() == Some(mark));
            if seen { Ok(()) } else { Err(format!("{lines:?}")) }
        });
    }

    /// Each value that differed from the one before it.
    pub(crate) fn values(mut self) -> Vec<String> {
        self.mark("ended");
        let _ = self.child.kill();
        let _ = self.child.wait();
        let lines = self.lines.lock().expect("no thread died");
        let mut values: Vec<String> =
            lines.iter().filter_map(|line| line.split_once('|')).map(|(_, value)| value.to_owned()).collect();
        values.dedup();
        values
    }
}

/// Asks until it is so.
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Ok(value) => return value,
            Err(last) if Instant::now() > deadline => {
                panic!("gave up after {PATIENCE:?} waiting until {what}; last seen: {last}")
            }
            Err(_) => thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// `Ok` if both are equal, else what was seen.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(seen: &T, wanted: &T) -> Result<(), String> {
    if seen == wanted { Ok(()) } else { Err(format!("{seen:?} instead of {wanted:?}")) }
}

fn text(output: &Output) -> Result<String, String> {
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
    }
}
