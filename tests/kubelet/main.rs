//! The kubelet's contract, point by point, under the real binary; `docs/kubelet.md` has the points.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod agent;
mod allocation;
mod fake;
mod faults;
mod nested;
#[path = "../support/mod.rs"]
mod support;
mod tree;

use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};

use agent::Agent;
use fake::{Kubelet, Mood, v1beta1::Device};

pub(crate) const HCA: &str = "gpudirect-rdma/hca";

#[test]
fn p02_the_endpoint_is_a_bare_name_of_a_socket_that_is_served() {
    let agent = Agent::running("");
    let kubelet = Kubelet::start(&agent.folder());
    kubelet.offers(HCA, 8);
    let request = kubelet.seen().requests.last().cloned().unwrap();
    assert_eq!((request.version.as_str(), request.resource_name.as_str()), ("v1beta1", HCA));
    assert!(!request.endpoint.contains('/') && agent.folder().join(&request.endpoint).exists());
}

/// The options are asked for before Register is answered, which only a plugin that serves already survives.
#[test]
fn p03_p04_it_serves_before_it_registers_and_says_its_options_twice_alike() {
    for (more, pre_start) in [("", false), ("resources: [ { preStart: true } ]", true)] {
        let agent = Agent::running(more);
        let kubelet = Kubelet::start(&agent.folder());
        kubelet.offers(HCA, 8);
        let seen = kubelet.seen();
        let (asked, said) = (seen.options.last().unwrap(), seen.requests.last().unwrap().options.as_ref().unwrap());
        assert_eq!(asked, said);
        assert!(asked.get_preferred_allocation_available);
        assert_eq!(asked.pre_start_required, pre_start);
    }
}

#[test]
fn p05_a_stream_that_ends_is_registered_again() {
    let agent = Agent::running("");
    let kubelet = Kubelet::start(&agent.folder());
    kubelet.offers(HCA, 8);
    for turn in 2..5 {
        kubelet.cut(HCA);
        kubelet.offers(HCA, 0);
        kubelet.offers(HCA, 8);
        assert_eq!(kubelet.seen().requests.len(), turn);
    }
}

#[test]
fn p06_each_message_is_whole_and_comes_only_with_a_change() {
    let agent = Agent::running("check: { interval: 1s }");
    let kubelet = Kubelet::start(&agent.folder());
    kubelet.offers(HCA, 8);
    let before = kubelet.messages(HCA).len();
    sleep(Duration::from_secs(4));
    assert_eq!(kubelet.messages(HCA).len(), before, "checks that change nothing");
    agent.faults("{ hca: mlx5_4, port: DOWN }");
    kubelet.offers(HCA, 7);
    let messages = kubelet.messages(HCA);
    assert_eq!(messages.len(), before + 1);
    assert_eq!(messages.last().unwrap().devices.len(), 8, "the list does not change with health");
    agent.faults("");
    kubelet.offers(HCA, 8);
}

#[test]
fn p08_p09_a_kubelet_that_starts_deletes_every_socket_and_is_registered_with() {
    let agent = Agent::running("");
    let kubelet = Kubelet::start(&agent.folder());
    kubelet.offers(HCA, 8);
    for kill in [false, true, false] {
        let brief = Kubelet::start(&agent.folder());
        if kill {
            brief.kill();
        } else {
            brief.stop();
        }
        let next = Kubelet::start(&agent.folder());
        next.offers(HCA, 8);
    }
    drop(kubelet);
}

/// Known by its name alone, the client of a new process goes with the old one's stream.
#[test]
fn p10_a_plugin_that_overlaps_with_its_successor_is_registered_again() {
    let mut agent = Agent::running("");
    let kubelet = Kubelet::with(&agent.folder(), Mood::Fair, true);
    kubelet.offers(HCA, 8);
    agent.start(); // waits for the first one's end
    sleep(Duration::from_millis(500));
    agent.stop();
    kubelet.offers(HCA, 8);
    sleep(Duration::from_secs(2));
    kubelet.offers(HCA, 8);
}

/// Two at once, as a surge of a rollout would have it: the old one's end takes the new one's client along.
#[test]
fn p10_streams_that_overlap_end_together_and_the_newer_one_comes_back() {
    let mut agent = Agent::running("");
    let kubelet = Kubelet::with(&agent.folder(), Mood::Fair, true);
    kubelet.offers(HCA, 8);
    let before = kubelet.seen().requests.len();
    agent.start_in("another");
    let deadline = Instant::now() + Duration::from_secs(20);
    while kubelet.seen().options.len() < before + 1 {
        assert!(Instant::now() < deadline, "the second never registered");
        sleep(Duration::from_millis(5));
    }
    kubelet.offers(HCA, 8);
    agent.stop();
    kubelet.offers(HCA, 8);
    sleep(Duration::from_secs(2));
    kubelet.offers(HCA, 8);
    assert!(kubelet.seen().requests.len() > before + 1, "nobody lost anything: {}", agent.log());
}

/// The devices that the last message does not call healthy.
fn not_healthy(kubelet: &Kubelet) -> Vec<Device> {
    let devices = kubelet.messages(HCA).pop().unwrap().devices;
    devices.into_iter().filter(|device| device.health != "Healthy").collect()
}

#[test]
fn p11_p12_a_port_that_is_down_is_unhealthy_in_the_list_and_comes_back() {
    let agent = Agent::running("");
    let kubelet = Kubelet::start(&agent.folder());
    kubelet.offers(HCA, 8);
    let began = Instant::now();
    agent.faults("{ hca: mlx5_4, port: DOWN }");
    let down = kubelet.offers(HCA, 7).duration_since(began);
    let unhealthy = not_healthy(&kubelet);
    assert_eq!(unhealthy.len(), 1);
    assert_eq!(unhealthy[0].health, "Unhealthy");
    agent.faults("");
    let began = Instant::now();
    let up = kubelet.offers(HCA, 8).duration_since(began);
    assert!(down.max(up) < Duration::from_secs(20), "{down:?} {up:?}");
}

/// A GPU that one HCA does not work with takes nothing from the others; where none works with it, nobody gets it.
#[test]
fn p11_an_hca_that_no_gpu_can_use_is_unhealthy_and_it_alone() {
    let agent = Agent::running("");
    let kubelet = Kubelet::start(&agent.folder());
    kubelet.offers(HCA, 8);
    agent.faults("{ hca: mlx5_0, gpu: '0000:1b:00.0', outcome: failed, code: ENOMEM (12) }");
    let recheck = || (0..2).for_each(|_| drop(agent.home.run(&["recheck"])));
    recheck();
    sleep(Duration::from_millis(500));
    assert_eq!(kubelet.allocatable(HCA), 8, "{}", agent.log());
    agent.faults("{ hca: mlx5_0, outcome: failed, code: ENOMEM (12) }");
    recheck();
    kubelet.offers(HCA, 7);
    assert_eq!(not_healthy(&kubelet).into_iter().map(|device| device.id).collect::<Vec<_>>(), ["0000:18:00.0"]);
    agent.faults("");
    recheck();
    kubelet.offers(HCA, 8);
}

/// Each drop costs pods their admission; from the third on a port's return has to last.
#[test]
fn p12_a_port_that_flaps_is_held_back() {
    let agent = Agent::running("");
    let kubelet = Kubelet::start(&agent.folder());
    for drop in 1..=3 {
        kubelet.offers(HCA, 8);
        agent.faults("{ hca: mlx5_4, port: DOWN }");
        kubelet.offers(HCA, 7);
        agent.faults("");
        if drop == 3 {
            sleep(Duration::from_secs(6));
            assert_eq!(kubelet.allocatable(HCA), 7, "{}", agent.log());
        }
    }
}

/// 64 resources' worth of ids stay far below gRPC's limit; a stream that met it would end for ever.
#[test]
fn p19_a_thousand_shares_are_one_message() {
    let agent = Agent::running("resources: [ { replicas: 1024 } ]");
    let kubelet = Kubelet::start(&agent.folder());
    kubelet.offers(HCA, 8192);
}

#[test]
fn p20_ids_are_short_and_the_same_after_a_restart() {
    let mut agent = Agent::running("resources: [ { replicas: 2 } ]");
    let kubelet = Kubelet::start(&agent.folder());
    let ids = |kubelet: &Kubelet| {
        let devices = kubelet.messages(HCA).pop().unwrap().devices;
        devices.into_iter().map(|device| device.id).collect::<Vec<_>>()
    };
    kubelet.offers(HCA, 16);
    let before = ids(&kubelet);
    assert!(before.iter().all(|id| id.len() <= 63));
    agent.stop();
    kubelet.offers(HCA, 0);
    agent.start();
    kubelet.offers(HCA, 16);
    assert_eq!(ids(&kubelet), before);
}

#[test]
fn p23_a_socket_in_a_long_folder_is_said_and_no_crash() {
    let agent = Agent::new("");
    let long = agent.home.path(&"x".repeat(90));
    fs::create_dir(&long).unwrap();
    agent.home.configure(&format!(
        "kubelet: {{ devicePlugins: '{}' }}\npublish: {{ mode: none }}\nhttp: {{ listen: null }}\nlog: {{ format: text }}\n",
        long.display()
    ));
    let mut agent = agent;
    agent.start();
    agent.says("can't serve gpudirect-rdma/hca");
    assert!(agent.stop() < Duration::from_secs(10));
}

/// What an earlier process knew of this boot is told at once, before anything was checked.
#[test]
fn p24_p25_the_first_message_is_what_is_known_of_this_boot() {
    let mut agent = Agent::running("check: { interval: never }");
    let kubelet = Kubelet::start(&agent.folder());
    sleep(Duration::from_secs(1));
    kubelet.offers(HCA, 0);
    let first = kubelet.messages(HCA).remove(0);
    assert!(first.devices.iter().all(|device| device.health == "Unhealthy"), "nothing was checked in this boot");
    agent.recheck();
    kubelet.offers(HCA, 8);
    agent.kill();
    kubelet.offers(HCA, 0);
    agent.start();
    kubelet.offers(HCA, 8);
    let messages = kubelet.messages(HCA);
    assert!(messages.iter().all(|message| message.devices.len() == 8), "never an empty list");
    let healthy = |n: usize| messages[n].devices.iter().filter(|device| device.health == "Healthy").count();
    assert_eq!((healthy(messages.len() - 1), messages.last().unwrap().devices.len()), (8, 8));
    assert!(agent.sockets().len() == 1, "the killed one's socket is gone: {:?}", agent.sockets());
}

/// Its folder is a constant of the kubelet's, whatever `--root-dir` says.
#[test]
fn p01_the_folder_is_the_kubelets_constant_unless_it_is_configured() {
    let default = gdr_agent::config::Config::default().kubelet;
    assert_eq!(default.device_plugins, std::path::Path::new("/var/lib/kubelet/device-plugins"));
    let agent = Agent::running("");
    let kubelet = Kubelet::start(&agent.folder());
    kubelet.offers(HCA, 8);
    assert_eq!(agent.sockets().len(), 1, "and nothing else is put into it");
}

/// Its devices stay in the kubelet's list for five minutes, at 0; the next agent takes the name up again.
#[test]
fn p07_a_plugin_that_is_gone_is_at_zero_and_comes_back_without_help() {
    let mut agent = Agent::running("");
    let kubelet = Kubelet::start(&agent.folder());
    kubelet.offers(HCA, 8);
    agent.kill();
    kubelet.offers(HCA, 0);
    agent.start();
    kubelet.offers(HCA, 8);
}

/// Found in two places, a resource would have two lives.
#[test]
fn p26_the_plugin_watchers_folder_is_left_alone() {
    let mut agent = Agent::new("");
    let registry = agent.home.path("plugins_registry");
    fs::create_dir(&registry).unwrap();
    agent.start();
    let kubelet = Kubelet::start(&agent.folder());
    kubelet.offers(HCA, 8);
    assert_eq!(fs::read_dir(registry).unwrap().count(), 0);
}

/// As a kubelet before 1.26 calls: with the socket's path in place of a host's name. It is refused, and nobody
/// else is.
#[test]
fn p27_an_authority_that_is_none_harms_nobody_else() {
    use std::io::{Read, Write};
    let agent = Agent::running("");
    let kubelet = Kubelet::start(&agent.folder());
    kubelet.offers(HCA, 8);
    let text = |start: u8, value: &str| {
        let mut field = vec![start, u8::try_from(value.len()).unwrap()];
        field.extend(value.bytes());
        field
    };
    // POST, http, :path, :authority, content-type (RFC 7541, appendix A).
    let mut headers = vec![0x83, 0x86];
    headers.extend(text(0x44, "/v1beta1.DevicePlugin/GetDevicePluginOptions"));
    headers.extend(text(0x41, "/var/lib/kubelet/device-plugins/x.sock"));
    headers.extend(text(0x5f, "application/grpc"));
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    sent.extend([0, 0, u8::try_from(headers.len()).unwrap(), 1, 4, 0, 0, 0, 1]);
    sent.extend(headers);
    for _ in 0..3 {
        let mut stream = std::os::unix::net::UnixStream::connect(&agent.sockets()[0]).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&sent).unwrap();
        let (mut answer, mut part) = (Vec::new(), [0; 1024]);
        // RST_STREAM (type 3) of stream 1.
        while !answer.windows(6).any(|frame: &[u8]| frame == [3, 0, 0, 0, 0, 1]) {
            let length = stream.read(&mut part).expect("an answer");
            assert!(length > 0, "{answer:?}");
            answer.extend(&part[..length]);
        }
    }
    assert_eq!(kubelet.allocatable(HCA), 8);
    kubelet.cut(HCA);
    kubelet.offers(HCA, 0);
    kubelet.offers(HCA, 8);
}
