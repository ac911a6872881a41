//! `hardware.topologyFile`: distances from NCCL's XML in place of the PCI tree's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::fs;

use serde_json::{Value, json};
use support::{Home, Ran, text, topology::machine};

fn azure_file() -> String {
    format!("{}/tests/topologies/azure-ndv5-h100.xml", env!("CARGO_MANIFEST_DIR"))
}

/// `check -o json` of a machine with a topology file.
fn check(home: &Home, name: &str, file: &str) -> Ran {
    home.configure(&format!("hardware: {{ topologyFile: '{file}' }}\n"));
    let built = machine(name).build();
    let mut command = home.agent(&["check", "-o", "json"]);
    command.args(built.flags());
    Ran::of(command)
}

/// What the guest of this cloud sees is NODE and SYS; what its vendor's file says is that each GPU
/// shares a switch with its adapter.
#[test]
fn a_clouds_file_says_what_its_guest_cannot_see() {
    let home = Home::new();
    let ran = check(&home, "azure-ndv5-h100", &azure_file()).exits(3);
    assert_eq!(ran.err, "", "nothing to complain of");
    let report = ran.json();
    assert_eq!(report["topology"], "file");
    let gpus = report["gpus"].as_array().unwrap();
    for (i, gpu) in gpus.iter().enumerate() {
        assert_eq!(gpu["nearest"], json!([format!("mlx5_{i}")]), "{gpu:#}");
    }
    let pairs = report["pairs"].as_array().unwrap();
    for (i, pair) in pairs.iter().enumerate() {
        let (gpu, hca) = (i / 8, i % 8);
        let expected = match (gpu == hca, gpu / 4 == hca / 4) {
            (true, _) => "PIX",
            (_, true) => "PHB",
            _ => "SYS",
        };
        assert_eq!(pair["distance"], expected, "{pair:#}");
    }
    // Without it the report says that the distances are a hypervisor's.
    let mut command = home.agent(&["check", "-o", "json"]);
    home.configure("");
    let built = machine("azure-ndv5-h100").build();
    command.args(built.flags());
    assert_eq!(Ran::of(command).exits(3).json()["topology"], "virtual");
}

/// A path on the node leads below the node's root, where the agent sees it in its container.
#[test]
fn the_file_is_looked_for_below_the_nodes_root() {
    let home = Home::new();
    fs::create_dir_all(home.path("host/opt")).unwrap();
    fs::copy(azure_file(), home.path("host/opt/nothing-like-it.xml")).unwrap();
    let report = check(&home, "azure-ndv5-h100", "/opt/nothing-like-it.xml").exits(3).json();
    assert_eq!(report["topology"], "file");
}

/// One that speaks of another machine changes nothing.
#[test]
fn a_file_of_another_machine_is_not_believed() {
    let home = Home::new();
    let ran = check(&home, "dgx-a100", &azure_file()).exits(3);
    assert!(ran.err.contains("hardware.topologyFile has no GPU of this node"), "{}", ran.err);
    let report = ran.json();
    assert_eq!(report["topology"], "physical");
    let near: Vec<&Value> = report["pairs"].as_array().unwrap().iter().filter(|p| p["distance"] == "PXB").collect();
    assert_eq!(near.len(), 16);
}

#[test]
fn a_broken_file_is_refused_with_its_line_and_what_would_be_right() {
    let home = Home::new();
    let good = fs::read_to_string(azure_file()).unwrap();
    for (from, to, line, hint) in [
        ("busid=\"0003:00:00.0\"", "busid=\"3:0:0\"", 13, "0000:1b:00.0"),
        ("busid=\"0003:00:00.0\"", "busid=\"0002:00:00.0\"", 13, "twice"),
        ("numaid=\"1\"", "numa=\"1\"", 21, "numaid"),
        ("version=\"1\"", "version=\"3\"", 2, "version=\"1\""),
        ("</cpu>", "", 39, "not XML"),
    ] {
        assert!(good.contains(from), "{from}");
        let file = home.file("broken.xml", &good.replace(from, to));
        let ran = check(&home, "azure-ndv5-h100", text(&file)).exits(64);
        for part in ["hardware.topologyFile", &format!("{}:{line}:", file.display()), hint] {
            assert!(ran.err.contains(part), "{to}: no `{part}` in {}", ran.err);
        }
        assert_eq!(ran.out, "", "{to}");
    }
    let ran = check(&home, "azure-ndv5-h100", "/nonexistent/topo.xml").exits(64);
    assert!(ran.err.contains("/nonexistent/topo.xml") && ran.err.contains("can be read"), "{}", ran.err);
    // A simulated machine too: what is wrong with a configuration is found before it is rolled out.
    let ran = home.run(&["check", "--simulate", "hgx-h100"]).exits(64);
    assert!(ran.err.contains("/nonexistent/topo.xml"), "{}", ran.err);
}
