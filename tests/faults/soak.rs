//! Ten thousand checks with faults: the agent's memory and threads do not grow.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use crate::support::standins::Node;

/// `VmRSS` in KiB, threads and open files of a process.
fn weight(process: u32) -> (u64, u64, usize) {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let files = fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    (number("VmRSS:"), number("Threads:"), files)
}

/// `SOAK_CHECKS` of them, else ten thousand; each with a child that crashes and one that is refused.
#[test]
#[ignore = "takes ten minutes: cargo test --test faults soak -- --ignored"]
fn ten_thousand_checks_leave_nothing_behind() {
    let checks: u32 = std::env::var("SOAK_CHECKS").ok().map_or(10_000, |n| n.parse().unwrap());
    let mut node = Node::new(2, 1);
    node.set("STANDIN_LEDGER", "/dev/null");
    node.order("cuInit/0000:21:00.0=crash:SEGV;ibv_reg_mr/mlx5_0@2=code:12");
    let plugins = node.home.path("device-plugins");
    fs::create_dir_all(&plugins).unwrap();
    node.home.configure(&format!(
        "check: {{ interval: never }}\nkubelet: {{ devicePlugins: '{}' }}\npublish: {{ mode: none }}\nhttp: {{ listen: null }}\n",
        plugins.display()
    ));
    let mut agent =
        node.free(&["run", "--node-name", "n1"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let socket = node.home.path("run/agent.sock");
    let end = Instant::now() + Duration::from_secs(30);
    while UnixStream::connect(&socket).is_err() {
        assert!(Instant::now() < end, "no agent answers at {}", socket.display());
        thread::sleep(Duration::from_millis(50));
    }
    let mut early = None;
    for n in 1..=checks {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(b"recheck\n").unwrap();
        let mut report = String::new();
        stream.read_to_string(&mut report).unwrap();
        assert!(report.contains("ProbeCrashed"), "check {n}: {report}");
        if n == checks / 10 {
            early = Some(weight(agent.id()));
        }
    }
    let (early, late) = (early.unwrap(), weight(agent.id()));
    let left = fs::read_dir(node.home.path("run")).unwrap().count();
    agent.kill().unwrap();
    agent.wait().unwrap();
    println!(
        "after {} checks {early:?}, after {checks} {late:?} (KiB, threads, files); {left} in the run folder",
        checks / 10
    );
    assert!(late.0 < early.0 + early.0 / 5, "memory grows: {early:?} to {late:?}");
    assert_eq!((late.1, late.2), (early.1, early.2), "threads and files");
    assert!(left < 10, "{left} files in the run folder");
}
