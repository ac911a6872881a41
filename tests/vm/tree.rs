//! Distances in a PCIe tree that a real kernel enumerated, against the wiring that QEMU was told.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::Value;

use super::{Sections, boot};

static TREE: LazyLock<Sections> = LazyLock::new(|| boot("tree").remove("tree").expect("the case"));

fn report() -> Value {
    serde_json::from_str(TREE["report"].trim()).unwrap_or_else(|e| panic!("{e}: {}", TREE["report"]))
}

/// Every class of distance, each by its wiring: one switch, two of them, one host bridge, two host bridges of a node,
/// two nodes.
#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn distances_are_those_of_the_wiring() {
    let report = report();
    let pairs = report["pairs"].as_array().expect("pairs");
    let seen: BTreeMap<(&str, &str), &str> = pairs
        .iter()
        .map(|p| {
            let text = |name: &str| p[name].as_str().expect("a text");
            ((text("gpu"), text("hca")), text("distance"))
        })
        .collect();
    let wired =
        [("0000:13:00.0", ["PIX", "PXB", "PHB", "NODE", "SYS"]), ("0000:83:00.0", ["SYS", "SYS", "SYS", "SYS", "PIX"])];
    for (gpu, distances) in wired {
        for (n, distance) in distances.iter().enumerate() {
            assert_eq!(seen[&(gpu, format!("mlx5_{n}").as_str())], *distance, "{gpu} to mlx5_{n}\n{}", TREE["paths"]);
        }
    }
    assert_eq!(seen.len(), 10);
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn nearest_and_numa_are_the_kernels() {
    let report = report();
    let gpus = report["gpus"].as_array().expect("GPUs");
    let of = |n: usize| (gpus[n]["numa"].as_u64(), gpus[n]["nearest"].as_array().expect("a list").clone());
    assert_eq!(of(0), (Some(0), vec!["mlx5_0".into()]));
    assert_eq!(of(1), (Some(1), vec!["mlx5_4".into()]));
    let numas: Vec<_> = report["hcas"].as_array().expect("HCAs").iter().map(|h| h["numa"].as_u64()).collect();
    assert_eq!(numas, [Some(0), Some(0), Some(0), Some(0), Some(1)]);
    assert_eq!(report["topology"], "virtual", "QEMU says what it is");
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn the_tree_is_shown_and_written_for_nccl() {
    for part in ["NUMA node 1", "pci0000:40", "GPU 0000:83:00.0", "mlx5_1", "switch"] {
        assert!(TREE["topology"].contains(part), "no {part} in:\n{}", TREE["topology"]);
    }
    for part in ["<system", "numaid=\"1\"", "0000:14:00.0", "mlx5_4"] {
        assert!(TREE["nccl"].contains(part), "no {part} in:\n{}", TREE["nccl"]);
    }
}
