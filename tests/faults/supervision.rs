//! Deadlines, signals, and the order of dying.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::support::{evidence, finding, standins::Node};

const PATIENCE: Duration = Duration::from_secs(20);

/// What the check is called with.
const CHECK: &[&str] = &["check", "-o", "json"];

/// A command that goes on by itself.
pub(crate) fn begin(node: &Node, arguments: &[&str]) -> Child {
    let mut free = node.free(arguments);
    free.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn().unwrap()
}

/// The probe that a process has started.
fn probe_of(parent: u32) -> u32 {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|c| c.parse().ok()) {
            let command = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            if command.split(|b| *b == 0).nth(1) == Some(b"probe") {
                return child;
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("process {parent} has started no probe");
}

/// Waits until the stand-ins' ledger has a line.
fn until_ledger(node: &Node, part: &str) {
    let end = Instant::now() + PATIENCE;
    while !node.ledger().iter().any(|line| line.contains(part)) {
        assert!(Instant::now() < end, "the ledger never has {part}: {:?}", node.ledger());
        thread::sleep(Duration::from_millis(20));
    }
}

fn gone(process: u32) -> bool {
    // A zombie holds nothing.
    fs::read_to_string(format!("/proc/{process}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

fn until_gone(process: u32) {
    let end = Instant::now() + PATIENCE;
    while !gone(process) {
        assert!(Instant::now() < end, "process {process} is still there");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_parents_death_is_the_childs() {
    let mut node = Node::new(1, 1);
    node.order("ibv_alloc_pd=hang");
    let mut parent = begin(&node, CHECK);
    until_ledger(&node, "+device");
    let child = probe_of(parent.id());
    parent.kill().unwrap();
    parent.wait().unwrap();
    until_gone(child);
}

#[test]
fn a_step_that_never_ends_is_named_after_its_own_deadline() {
    let mut node = Node::new(1, 1);
    node.order("cuMemAlloc_v2=hang");
    let start = Instant::now();
    let report = node.check(&[]).exits(3).json();
    let took = start.elapsed();
    assert!(took < Duration::from_secs(40), "the step's deadline is 10 s and the whole one's 60, and it took {took:?}");
    assert!(evidence(finding(&report, "ProbeTimeout")).contains("cuMemAlloc"));
}

#[test]
fn who_ignores_sigterm_gets_sigkill() {
    let mut node = Node::new(1, 1);
    node.home.configure("check: { timeout: 1s }\n");
    node.order("cuInit=stubborn");
    let report = node.check(&[]).exits(3).json();
    assert!(evidence(finding(&report, "ProbeTimeout")).contains("cuInit"));
}

/// `PR_SET_PDEATHSIG` follows the thread that spawned, and a runtime's worker threads end when they
/// have been idle for ten seconds: a child that outlives that must not die of it.
#[test]
fn a_child_outlives_the_idle_threads_of_its_parent() {
    let mut node = Node::new(1, 1);
    node.order("cuInit=delay:9000;cuDevicePrimaryCtxRetain=delay:6000");
    let report = node.check(&[]).exits(0).json();
    assert!(report["durationMs"].as_u64().unwrap() > 15_000);
}

#[test]
fn a_child_inherits_nothing_but_its_three_descriptors() {
    let mut node = Node::new(1, 1);
    node.order("cuInit=delay:3000");
    let mut parent = begin(&node, CHECK);
    let child = probe_of(parent.id());
    thread::sleep(Duration::from_millis(500));
    let mut open: Vec<_> = fs::read_dir(format!("/proc/{child}/fd"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    open.sort();
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert_eq!(open, ["0", "1", "2"]);
}

#[test]
fn two_checks_never_meet_on_a_gpu() {
    let mut node = Node::new(1, 1);
    node.home.configure("check: { timeout: 2s }\n");
    node.order("cuInit=delay:1500");
    let mut first = begin(&node, CHECK);
    let child = probe_of(first.id());
    let report = node.check(&[]).json();
    // It waited for the first one's end, or gave up saying so; side by side they never were.
    let met = report["pairs"][0]["dmaBuf"]["step"] == "lock" || gone(child);
    assert!(met, "{report:#}");
    first.wait().unwrap();
}

/// A line of `/proc/PID/status`.
fn status(process: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
}

const TOKEN: &str = "/run/secrets/kubernetes.io/serviceaccount/token";

/// Mounts of the test's own, with a token where Kubernetes puts it, and another pod's as the host has it.
const TOKENS: &str = "mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io/serviceaccount && \
    echo secret > /run/secrets/kubernetes.io/serviceaccount/token && \
    other=/run/host/pods/1/volumes/kubernetes.io~projected/api && mkdir -p $other && \
    mount -t tmpfs none $other && echo secret > $other/token && exec \"$@\"";
const OTHER_TOKEN: &str = "/run/host/pods/1/volumes/kubernetes.io~projected/api/token";

/// A check among such mounts.
fn among_tokens(node: &Node, inside: &[&str]) -> Command {
    let command = node.command(&["check"]);
    let mut unshared = Command::new("unshare");
    unshared
        .args(["--mount", "sh", "-c", TOKENS, "sh"])
        .args(inside)
        .arg(command.get_program())
        .args(command.get_args());
    unshared.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    unshared.stdout(Stdio::null()).stderr(Stdio::null());
    unshared
}

/// Without mounts of its own: by Landlock, which hides them from no child but this one's own reads.
#[test]
fn an_unprivileged_child_cannot_read_tokens_either() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: no mounts");
        return;
    }
    for (inside, seen) in [(&["setpriv", "--bounding-set", "-sys_admin"][..], "PermissionDenied"), (&[], "NotFound")] {
        let mut node = Node::new(1, 1);
        node.order(&format!("cuInit=read:{TOKEN};cuInit=read:{OTHER_TOKEN};cuInit=read:/proc/self/status"));
        let status = among_tokens(&node, inside).status().unwrap();
        assert_eq!(status.code(), Some(0), "the check is as good as any");
        let ledger = node.ledger();
        for token in [TOKEN, OTHER_TOKEN] {
            let line = format!("can't read {token}: {seen}");
            assert!(ledger.iter().any(|entry| entry.contains(&line)), "no `{line}` in {ledger:?}");
        }
        assert!(ledger.iter().any(|entry| entry.contains("read /proc/self/status")), "{ledger:?}");
    }
}

/// It loads foreign libraries: it can pin memory and open nodes, and nothing else that root can, and
/// the pod's token is out of its reach.
#[test]
fn a_child_has_neither_token_nor_capabilities() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: nothing to give up");
        return;
    }
    let mut node = Node::new(1, 1);
    node.order("cuInit=delay:5000");
    let mut parent = among_tokens(&node, &[]).spawn().unwrap();
    let child = probe_of(parent.id());
    thread::sleep(Duration::from_millis(700));
    let reaches =
        |process: u32| [TOKEN, OTHER_TOKEN].map(|token| fs::exists(format!("/proc/{process}/root{token}")).unwrap());
    let seen = (reaches(parent.id()), reaches(child));
    let capabilities = ["CapEff:", "CapPrm:", "CapInh:"].map(|set| status(child, set));
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert_eq!(seen, ([true; 2], [false; 2]), "what the parent sees, and the child");
    // DAC_OVERRIDE (1) and IPC_LOCK (14), as far as this test itself has them.
    for set in capabilities {
        assert_eq!(u64::from_str_radix(&set, 16).unwrap() & !0x4002, 0, "{set}");
    }
}
