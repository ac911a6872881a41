//! What makes other plugins' resources go to zero for ever. Each fault is survived; how fast is measured, and
//! only a generous deadline is asserted: `cargo test --test kubelet times -- --ignored --nocapture`.

use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    Agent, HCA,
    fake::{Kubelet, Mood},
};

/// A fault is gone by then, whatever the machine does beside.
const LATEST: Duration = Duration::from_secs(15);

/// One fault on a running agent: answers how long the resource was away, as its kubelet sees it.
type Fault = fn(&mut Agent) -> Duration;

fn with_kubelet(agent: &Agent) -> Kubelet {
    let kubelet = Kubelet::start(&agent.folder());
    kubelet.offers(HCA, 8);
    kubelet
}

fn back(kubelet: &Kubelet, since: Instant) -> Duration {
    kubelet.offers(HCA, 8).duration_since(since)
}

fn restart(agent: &mut Agent) -> Duration {
    with_kubelet(agent).stop();
    sleep(Duration::from_millis(100));
    let next = Kubelet::start(&agent.folder());
    back(&next, next.began)
}

fn restart_twice(agent: &mut Agent) -> Duration {
    with_kubelet(agent).stop();
    Kubelet::start(&agent.folder()).stop();
    sleep(Duration::from_millis(700));
    let next = Kubelet::start(&agent.folder());
    back(&next, next.began)
}

fn killed(agent: &mut Agent) -> Duration {
    with_kubelet(agent).kill();
    sleep(Duration::from_millis(300));
    let next = Kubelet::start(&agent.folder());
    back(&next, next.began)
}

fn wiped_and_restarted(agent: &mut Agent) -> Duration {
    with_kubelet(agent).stop();
    fs::remove_dir_all(agent.folder()).unwrap();
    sleep(Duration::from_millis(100));
    let next = Kubelet::start(&agent.folder());
    back(&next, next.began)
}

/// The stream goes on; when it ends a new socket is there at once.
fn wiped(agent: &mut Agent) -> Duration {
    let kubelet = with_kubelet(agent);
    for socket in agent.sockets() {
        fs::remove_file(socket).unwrap();
    }
    sleep(Duration::from_millis(100));
    assert_eq!(kubelet.allocatable(HCA), 8, "a working stream is kept");
    let begin = Instant::now();
    kubelet.cut(HCA);
    kubelet.offers(HCA, 0);
    back(&kubelet, begin)
}

/// Gone and there again between two looks, by another process that deletes nothing.
fn replaced(agent: &mut Agent) -> Duration {
    let old = with_kubelet(agent);
    let next = Kubelet::beside(&agent.folder(), Mood::Fair, false);
    let took = back(&next, next.began);
    drop(old);
    took
}

/// The same, while the first one has not answered Register yet; it then opens its stream, and keeps it.
fn replaced_while_registering(agent: &mut Agent) -> Duration {
    let old = Kubelet::with(&agent.folder(), Mood::Slow(Duration::from_secs(1)), false);
    old.is_asked();
    let next = Kubelet::beside(&agent.folder(), Mood::Fair, false);
    let took = back(&next, next.began);
    drop(old);
    took
}

fn half_open(agent: &mut Agent) -> Duration {
    let kubelet = Kubelet::with(&agent.folder(), Mood::Forget(1), false);
    back(&kubelet, kubelet.began)
}

fn cut(agent: &mut Agent) -> Duration {
    let kubelet = with_kubelet(agent);
    let begin = Instant::now();
    kubelet.cut(HCA);
    kubelet.offers(HCA, 0);
    back(&kubelet, begin)
}

fn ten_errors(agent: &mut Agent) -> Duration {
    let kubelet = Kubelet::with(&agent.folder(), Mood::Refuse(10), false);
    back(&kubelet, kubelet.began)
}

/// The first kubelet is still busy with Register when the second one deletes the socket.
fn second_while_registering(agent: &mut Agent) -> Duration {
    let slow = Kubelet::with(&agent.folder(), Mood::Slow(Duration::from_secs(60)), false);
    slow.is_asked();
    let next = Kubelet::start(&agent.folder());
    let took = back(&next, next.began);
    drop(slow);
    // Who waits for Register's own deadline comes back too, fifteen seconds later.
    assert!(took < Duration::from_secs(10), "{took:?}");
    took
}

/// Nothing can be made in the folder for a while.
fn full_disk(agent: &mut Agent) -> Duration {
    let kubelet = with_kubelet(agent);
    let aside = agent.home.path("aside");
    fs::rename(agent.folder(), &aside).unwrap();
    kubelet.cut(HCA);
    sleep(Duration::from_millis(500));
    drop(kubelet);
    fs::rename(&aside, agent.folder()).unwrap();
    let next = Kubelet::start(&agent.folder());
    back(&next, next.began)
}

fn own_restart(agent: &mut Agent) -> Duration {
    let kubelet = with_kubelet(agent);
    agent.stop();
    kubelet.offers(HCA, 0);
    let begin = Instant::now();
    agent.start();
    back(&kubelet, begin)
}

fn own_overlap(agent: &mut Agent) -> Duration {
    let kubelet = with_kubelet(agent);
    agent.start();
    sleep(Duration::from_millis(300));
    agent.stop();
    let begin = Instant::now();
    kubelet.offers(HCA, 8);
    begin.elapsed()
}

/// Long before the kubelet, which is then met without help.
fn before_the_kubelet(agent: &mut Agent) -> Duration {
    let folder = agent.folder();
    let _ = fs::remove_file(folder.join("kubelet.sock"));
    sleep(Duration::from_millis(2500));
    let kubelet = Kubelet::start(&folder);
    back(&kubelet, kubelet.began)
}

const FAULTS: &[(&str, Fault)] = &[
    ("kubelet restarts", restart),
    ("kubelet restarts twice in 2 s", restart_twice),
    ("kubelet is killed", killed),
    ("folder wiped, kubelet restarts", wiped_and_restarted),
    ("sockets wiped, stream then cut", wiped),
    ("kubelet.sock replaced", replaced),
    ("kubelet.sock replaced, Register pending", replaced_while_registering),
    ("Register accepted, no stream", half_open),
    ("stream cut", cut),
    ("Register refused ten times", ten_errors),
    ("second kubelet while Register is pending", second_while_registering),
    ("folder away for a while", full_disk),
    ("agent restarts", own_restart),
    ("agent restarts with overlap", own_overlap),
    ("agent long before the kubelet", before_the_kubelet),
];

#[test]
fn every_fault_is_survived() {
    std::thread::scope(|scope| {
        for (name, fault) in FAULTS {
            // By the thread's name a panic says which fault it was.
            let thread = std::thread::Builder::new().name((*name).to_owned());
            let survive = move || {
                let mut agent = Agent::running("");
                let took = fault(&mut agent);
                assert!(took < LATEST, "{took:?}\n{}", agent.log());
            };
            thread.spawn_scoped(scope, survive).unwrap();
        }
    });
}

/// Worst and median of twenty, for `docs/kubelet.md`.
#[test]
#[ignore = "takes minutes, and measures: cargo test --test kubelet times -- --ignored --nocapture"]
fn times() {
    println!("{:<44} {:>10} {:>10}", "fault", "median", "worst");
    for (name, fault) in FAULTS {
        let mut agent = Agent::running("");
        let mut times: Vec<_> = (0..20).map(|_| fault(&mut agent)).collect();
        times.sort();
        println!("{name:<44} {:>7.1} ms {:>7.1} ms", times[10].as_secs_f64() * 1e3, times[19].as_secs_f64() * 1e3);
    }
}

/// A kubelet that closes each stream is not registered with as fast as it can answer.
#[test]
fn streams_that_end_at_once_are_no_storm() {
    let agent = Agent::running("");
    let kubelet = with_kubelet(&agent);
    let end = Instant::now() + Duration::from_secs(6);
    while Instant::now() < end {
        kubelet.cut(HCA);
        sleep(Duration::from_millis(1));
    }
    let asked = kubelet.seen().requests.len();
    assert!(asked < 200, "{asked} registrations in 6 s");
    kubelet.offers(HCA, 8);
}

/// The new kubelet's stream counts, whatever becomes of the old one's.
#[test]
fn a_cut_after_a_replacement_is_noticed() {
    let agent = Agent::running("");
    let old = with_kubelet(&agent);
    let next = Kubelet::beside(&agent.folder(), Mood::Fair, false);
    next.offers(HCA, 8);
    sleep(Duration::from_secs(2));
    next.cut(HCA);
    next.offers(HCA, 0);
    next.offers(HCA, 8);
    assert_eq!(old.allocatable(HCA), 8, "nobody closed it");
}

#[test]
fn a_resource_with_nothing_in_it_is_said() {
    let agent = Agent::running("resources: [ { name: a.io/none, select: [ { name: none } ] } ]");
    agent.says("no HCA of this node is in this resource");
    assert!(agent.log().contains("a.io/none"));
}

/// The second waits for the first one's end, and then refuses by its name.
#[test]
fn a_second_agent_waits_and_then_names_the_first() {
    let agent = Agent::running("");
    let kubelet = with_kubelet(&agent);
    let ran = agent.home.run(&["run", "--simulate", "hgx-h100"]).exits(70);
    assert!(ran.err.contains("another gdr-agent") && ran.err.contains("stop it first"), "{}", ran.err);
    assert_eq!(kubelet.allocatable(HCA), 8, "the first one was not disturbed");
}

/// Ends at once, and its streams with it: the kubelet must not wait for a dead plugin.
#[test]
fn sigterm_ends_the_streams_and_leaves_no_socket() {
    let mut agent = Agent::running("");
    let kubelet = with_kubelet(&agent);
    let took = agent.stop();
    assert!(took < Duration::from_secs(5), "{took:?}");
    kubelet.offers(HCA, 0);
    assert_eq!(agent.sockets().len(), 0);
}
