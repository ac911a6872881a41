//! What the agents of a thousand nodes ask of one API server: `make scale`, or `cargo bench --bench scale -- NODES
//! [HEARTBEAT] [bursts | spread]`, the heartbeat in seconds, 300 by default; `bursts`: without the phases that take their
//! time; `spread`: an install with `publish.spread: 12m` and nothing else.
//!
//! The real publishers, all in one process, and a real API server; its audit log counts. Server and publishers share
//! this machine's cores: latencies are an upper bound. docs/scale.md has the figures.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench fails by panicking")]
#![allow(dead_code, reason = "what is shared with the tests")]

#[path = "../tests/cluster/agents.rs"]
mod agents;
#[path = "../tests/cluster/audit.rs"]
mod audit;
#[path = "../tests/cluster/cluster.rs"]
mod cluster;
#[path = "scale/servers.rs"]
mod servers;

use std::{
    collections::HashSet,
    env,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use agents::Agents;
use audit::{Asked, asked, seconds};
use gdr_agent::config::{Publish, Span};
use jiff::Timestamp;
use servers::{Servers, Usage};
use tokio::time::sleep;

/// Within so long all nodes' first checks end.
const CHECKS: Duration = Duration::from_secs(2);
/// What docs/scale.md advises a thousand nodes and more to set.
const SPREAD: Duration = Duration::from_secs(720);

#[derive(Clone, Copy, PartialEq)]
enum Part {
    All,
    Bursts,
    Spread,
}

impl Part {
    const NAMES: [(&str, Self); 2] = [("bursts", Self::Bursts), ("spread", Self::Spread)];

    fn asked() -> Self {
        let asked = Self::NAMES.into_iter().find(|(name, _)| env::args().any(|argument| argument == *name));
        asked.map_or(Self::All, |(_, part)| part)
    }

    fn name(self) -> &'static str {
        Self::NAMES.into_iter().find(|(_, part)| *part == self).map_or("", |(name, _)| name)
    }
}

fn main() {
    let part = Part::asked();
    let numbers: Vec<u32> = env::args().filter_map(|argument| argument.parse().ok()).collect();
    let (nodes, heartbeat) = (numbers.first().copied().unwrap_or(1000), numbers.get(1).copied().unwrap_or(300));
    if let Some(state) = env::var_os(agents::STATE) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let heartbeat = Duration::from_secs(heartbeat.into());
        return runtime.block_on(inside(Path::new(&state), nodes as usize, heartbeat, part));
    }
    let cluster = cluster::Cluster::small(&[]);
    agents::prepare(&cluster);
    let status = agents::run_inside(&cluster, &[&nodes.to_string(), &heartbeat.to_string(), part.name()]);
    assert!(status.success(), "the run inside the cluster failed; see above");
}

async fn inside(state: &Path, nodes: usize, heartbeat: Duration, part: Part) {
    let begun = Instant::now();
    agents::make_nodes(state, nodes).await;
    eprintln!("{nodes} Nodes of {} KB made in {:.0} s", size_of_one(state).await / 1000, begun.elapsed().as_secs_f64());
    let pending = agents::published(state, "", false).await;
    let ready = agents::published(state, "", true).await;
    let failed = agents::published(state, "{ port: DOWN }", true).await;
    let config = Publish { heartbeat: Span(heartbeat), ..Publish::default() };
    let burst = heartbeat.mul_f64(0.3); // long enough for all that is said at once
    let bench = Bench { state, servers: Servers::find() };
    println!("{HEAD}");

    if part == Part::Spread {
        let config = Publish { spread: Span(SPREAD), ..config };
        let phase = bench.begin("install with `publish.spread: 12m`");
        let agents = Agents::start(&config, nodes, &pending);
        agents.tell_within(CHECKS, &ready).await;
        sleep(SPREAD + Duration::from_secs(30)).await;
        return bench.end(&phase);
    }
    let phase = bench.begin("install: all agents start in the same second");
    let mut agents = Agents::start(&config, nodes, &pending);
    agents.tell_within(CHECKS, &ready).await;
    sleep(burst).await;
    bench.end(&phase);
    if part == Part::All {
        let phase = bench.begin("steady state");
        sleep(heartbeat.mul_f64(1.1)).await;
        bench.end(&phase);
    }
    let phase = bench.begin("all HCAs of all nodes go down at once");
    agents.tell(&failed);
    sleep(burst).await;
    bench.end(&phase);
    let phase = bench.begin("and come back");
    agents.tell(&ready);
    sleep(burst).await;
    bench.end(&phase);
    if part == Part::All {
        let phase = bench.begin("all agents replaced at once");
        agents.restart(nodes, &ready);
        sleep(heartbeat.mul_f64(1.45)).await;
        bench.end(&phase);
        let phase = bench.begin("steady state after it");
        sleep(heartbeat.mul_f64(0.5)).await;
        bench.end(&phase);
        let phase = bench.begin("all replaced at once, stores lost");
        agents.restart(nodes, &pending);
        agents.tell_within(CHECKS, &ready).await;
        sleep(burst).await;
        bench.end(&phase);
    }
    drop(agents);
    fleet(state);
}

const PATCH: &str = "patch nodes/status";
const HEAD: &str = "| | requests: get + patch + event | refused | patched, the last after | requests/s: mean | in the worst 10 s | in the worst 1 s | answered in: p50 | p99 | worst | API server | etcd | publishers |
|---|---|---|---|---|---|---|---|---|---|---|---|---|";

struct Bench<'a> {
    state: &'a Path,
    servers: Servers,
}

struct Phase {
    name: &'static str,
    begun: Timestamp,
    usage: [Usage; 3],
}

impl Bench<'_> {
    fn begin(&self, name: &'static str) -> Phase {
        Phase { name, begun: Timestamp::now(), usage: self.servers.usage() }
    }

    fn end(&self, phase: &Phase) {
        let now = self.servers.usage();
        let length = seconds(Timestamp::now()) - seconds(phase.begun);
        let asked = asked(self.state, phase.begun);
        let count = |what: &str| asked.iter().filter(|asked| asked.what == what).count();
        let (gets, patches) = (count("get nodes"), count(PATCH));
        let mut took: Vec<f64> = asked.iter().map(|asked| asked.took * 1e3).collect();
        took.sort_by(f64::total_cmp);
        let share = |of: usize| took.get(took.len() * of / 100).or(took.last()).copied().unwrap_or_default();
        let (reached, last) = reached(&asked);
        let load: Vec<String> = now.iter().zip(&phase.usage).map(|(now, then)| now.since(then, length)).collect();
        println!(
            "| {}, {length:.0} s | {gets} + {patches} + {} | {} | {reached} {:.1} s | {:.1} | {:.1} | {} | {:.0} ms | {:.0} ms | {:.0} ms | {} |",
            phase.name,
            asked.len() - patches - gets,
            asked.iter().filter(|asked| asked.code >= 400).count(),
            last - seconds(phase.begun),
            rate(asked.len(), length),
            rate(peak(&asked, 10.0), 10.0),
            peak(&asked, 1.0),
            share(50),
            share(99),
            share(100),
            load.join(" | "),
        );
    }
}

#[allow(clippy::cast_precision_loss, reason = "thousands")]
fn rate(requests: usize, seconds: f64) -> f64 {
    requests as f64 / seconds
}

/// How many nodes were patched, and when the last of them was for the first time.
fn reached(asked: &[Asked]) -> (usize, f64) {
    let mut known = HashSet::new();
    let first = asked.iter().filter(|asked| asked.what == PATCH && asked.code < 400 && known.insert(&asked.name));
    let last = first.map(|asked| asked.at + asked.took).fold(f64::NAN, f64::max);
    (known.len(), last)
}

/// The most requests within so many seconds.
fn peak(asked: &[Asked], window: f64) -> usize {
    let mut first = 0;
    let within = asked.iter().enumerate().map(|(last, now)| {
        while asked[first].at < now.at - window {
            first += 1;
        }
        last + 1 - first
    });
    within.max().unwrap_or(0)
}

async fn size_of_one(state: &Path) -> usize {
    let nodes = agents::all_nodes(state).await;
    nodes.first().map_or(0, |node| serde_json::to_vec(node).unwrap().len())
}

/// `gdr-agent nodes` on what is there now.
fn fleet(state: &Path) {
    for form in ["table", "json"] {
        let begun = Instant::now();
        let mut child = Command::new(env!("CARGO_BIN_EXE_gdr-agent"))
            .args(["nodes", "-o", form])
            .env("KUBECONFIG", state.join("pki/admin.kubeconfig"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut most = 0;
        let status = loop {
            most = most.max(servers::most_memory(child.id()));
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        println!(
            "\n`gdr-agent nodes -o {form}`: {:.2} s, at most {most} MiB ({status})",
            begun.elapsed().as_secs_f64()
        );
    }
}
