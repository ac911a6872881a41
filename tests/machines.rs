//! Every machine of `tests/topologies`, healthy, under the real binary with stand-in libraries: `ready` or
//! `not-applicable`, nothing found that is more than advice, and a clean matrix. No reason is raised on a machine
//! that has no such trouble.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{fs, time::Instant};

use gdr_agent::hardware::{Inventory, Pass, Roots};
use serde_json::Value;
use support::{
    standins::Node,
    topology::{Spec, machine, machines},
    uuid,
};

/// The machine with its driver's part of procfs and its device nodes, and a node of stand-ins around it.
fn node(spec: &Spec) -> Node {
    let built = spec.build();
    let gpus: Vec<String> = spec.lines("distance").iter().map(|line| line[0].clone()).collect();
    for (n, gpu) in gpus.iter().enumerate() {
        let text = format!("Model: \t\t NVIDIA H100\nGPU UUID: \t {}\nDevice Minor: \t {n}\n", uuid(n));
        built.put(&format!("proc/driver/nvidia/gpus/{gpu}/information"), text);
    }
    for n in 0..spec.hcas.len() {
        built.put(&format!("dev/infiniband/uverbs{n}"), "");
    }
    Node::around(built, &gpus, spec.hcas.iter().map(|hca| hca.name.clone()).collect())
}

/// Findings that are more than advice.
fn complaints(report: &Value) -> Vec<&Value> {
    report["findings"].as_array().unwrap().iter().filter(|f| f["severity"] != "info").collect()
}

#[test]
fn healthy_machines_are_ready_and_nothing_is_said_of_them() {
    let mut checked = 0;
    for spec in machines() {
        let [state, reason] = spec.words("verdict")[..] else { panic!("{}: no verdict", spec.name) };
        let report = node(&spec).check(&[]).exits(if state == "ready" { 0 } else { 3 }).json();
        assert_eq!(report["verdict"]["state"], state, "{}: {:#}", spec.name, report["findings"]);
        assert_eq!(report["verdict"]["reason"], reason, "{}", spec.name);
        assert!(complaints(&report).is_empty(), "{}: {:#?}", spec.name, complaints(&report));
        for pair in report["pairs"].as_array().unwrap() {
            for method in ["dmaBuf", "peermem"] {
                let outcome = pair[method]["outcome"].as_str().unwrap();
                assert!(["verified", "skipped"].contains(&outcome), "{}: {pair:#}", spec.name);
            }
            checked += 1;
        }
    }
    assert!(checked >= 700, "only {checked} pairs were checked");
}

/// What is broken on one of them has its own reason, and only that.
#[test]
fn a_fault_on_a_large_machine_is_named_alone() {
    let spec = machine("dgx-b200");
    let gpu = spec.lines("distance")[0][0].clone();
    for (fault, state, reason) in [
        (format!("cuInit/{gpu}=code:999"), "unknown", "CudaFailed"),
        (format!("cuDevicePrimaryCtxRetain/{gpu}=code:214"), "degraded", "GpuEccUncorrectable"),
    ] {
        let mut node = node(&spec);
        node.order(&fault);
        let report = node.check(&[]).json();
        let reasons: Vec<_> = complaints(&report).iter().map(|f| f["reason"].clone()).collect();
        assert_eq!(reasons, [reason], "{fault}");
        assert_eq!(report["verdict"]["state"], state, "{fault}: {:#}", report["findings"]);
    }
}

fn roots(node: &Node) -> Roots {
    let flags = node.tree.flags();
    Roots { sysfs: flags[1].clone().into(), procfs: flags[3].clone().into(), dev: flags[5].clone().into() }
}

/// What the passive look must see without opening a device: each alone is a difference, and back is none.
#[test]
fn a_glance_sees_ports_nodes_modules_and_devices() {
    let node = Node::new(1, 2);
    let tree = &node.tree;
    let roots = roots(&node);
    let before = Inventory::read(&roots);
    let differs = || before.differs_at_a_glance(&Pass::default(), &roots);
    assert!(!differs());
    let state = tree.sys("class/infiniband/mlx5_0/ports/1/state");
    for (what, away, back) in
        [("a port", "1: DOWN\n", "4: ACTIVE\n"), ("a state that a newer kernel invents", "9: RESTING\n", "4: ACTIVE\n")]
    {
        fs::write(&state, away).unwrap();
        assert!(differs(), "{what}");
        fs::write(&state, back).unwrap();
        assert!(!differs(), "{what} is back");
    }
    for (what, path) in [
        ("a device node", roots.dev.join("infiniband/uverbs1")),
        ("the driver", roots.procfs.join("driver/nvidia/version")),
        ("the module", tree.sys("module/nvidia_peermem")),
        ("an HCA", tree.sys("class/infiniband/mlx5_1")),
        ("a function", tree.sys("bus/pci/devices/0000:20:00.0")),
        ("a verbs entry", tree.sys("class/infiniband_verbs/uverbs1")),
        ("ib_uverbs", tree.sys("class/infiniband_verbs")),
    ] {
        let elsewhere = node.home.path("aside");
        fs::rename(&path, &elsewhere).unwrap();
        assert!(differs(), "{what}");
        fs::rename(&elsewhere, &path).unwrap();
        assert!(!differs(), "{what} is back");
    }
}

/// A link sleeps and wakes by itself, and wakes for the check that asked for it: that is no change.
#[test]
fn a_link_at_rest_is_no_other_machine() {
    let node = Node::new(1, 2);
    let roots = roots(&node);
    let link = |which: &str, speed: &str| {
        let function = fs::canonicalize(node.tree.sys("bus/pci/devices/0000:20:00.0")).unwrap();
        fs::write(function.join(format!("{which}_link_width")), "16\n").unwrap();
        fs::write(function.join(format!("{which}_link_speed")), format!("{speed} GT/s PCIe\n")).unwrap();
    };
    link("max", "32.0");
    link("current", "32.0");
    let before = Inventory::read(&roots);
    link("current", "2.5");
    let at_rest = Inventory::read(&roots);
    assert_ne!(at_rest, before);
    assert!(at_rest.has_devices_of(&before));
    fs::remove_file(node.tree.sys("class/infiniband_verbs/uverbs1/ibdev")).unwrap();
    assert!(!Inventory::read(&roots).has_devices_of(&before));
}

/// The entry of a new HCA's device node comes after the HCA, perhaps in the middle of a reading. The next look sees it.
#[test]
fn what_comes_while_it_is_read_is_seen_at_the_next_look() {
    let node = Node::new(1, 2);
    let roots = roots(&node);
    let (entry, aside) = (node.tree.sys("class/infiniband_verbs/uverbs1"), node.home.path("aside"));
    let mut missed = 0;
    let whole = Instant::now();
    let _ = Inventory::read(&roots);
    let whole = whole.elapsed();
    for n in 0..400 {
        fs::rename(&entry, &aside).unwrap();
        let read = std::thread::scope(|scope| {
            let reading = scope.spawn(|| Inventory::read(&roots));
            std::thread::sleep(whole * n / 400);
            fs::rename(&aside, &entry).unwrap();
            reading.join().unwrap()
        });
        if read.hca("mlx5_1").unwrap().node.is_none() {
            missed += 1;
            assert!(read.differs_at_a_glance(&Pass::default(), &roots), "after {n} of 400");
        }
    }
    assert!(missed > 0, "it never came late enough");
}
