//! Gentle on workloads: whose GPU it is, is asked before anything is made on it.

use std::fs;

use serde_json::{Value, json};

use crate::{
    neighbours::forget,
    support::{
        evidence, find, finding,
        standins::{NVML, Node},
    },
};

const PROCESSES: &str = "nvmlDeviceGetComputeRunningProcesses";
const MEMORY: &str = "nvmlDeviceGetMemoryInfo";
/// The first GPU, and the second.
pub(crate) const FIRST: &str = "0000:20:00.0";

/// Both methods of the first pair have this outcome, decided at this step.
pub(crate) fn is(report: &Value, outcome: &str, step: Option<&str>) {
    for method in ["dmaBuf", "peermem"] {
        let result = &report["pairs"][0][method];
        assert_eq!((&result["outcome"], result["step"].as_str()), (&json!(outcome), step), "{report:#}");
    }
}

/// The first GPU was left alone: no context was made, and NVML was shut down.
fn untouched(node: &Node) {
    assert_eq!(node.ledger(), ["+nvml", "-nvml"]);
}

#[test]
fn a_gpu_in_use_is_not_touched() {
    for (name, value, step, seen) in [
        ("STANDIN_NVML_PROCESSES", "4711", PROCESSES, "in use by process 4711"),
        ("STANDIN_NVML_PROCESSES", "1,2,3,4,5", PROCESSES, "in use by process 1, 2, 3, 4, …"),
        ("STANDIN_NVML_MPS", "4712", PROCESSES, "in use by process 4712"),
        ("STANDIN_NVML_USED", "257", MEMORY, "257 MiB of its memory are in use"),
    ] {
        let mut node = Node::new(1, 1);
        node.set(name, value);
        let report = node.check(&["--loopback"]).exits(3).json();
        is(&report, "skipped", Some(step));
        let busy = finding(&report, "GpuBusy");
        assert_eq!((&busy["severity"], evidence(busy)), (&json!("info"), format!("{step}: {seen}")));
        assert_eq!(report["gpus"][0]["skipped"], "GpuBusy");
        assert_eq!(report["verdict"]["reason"], "GpusBusySinceBoot");
        untouched(&node);
    }
}

#[test]
fn a_gpu_with_little_on_it_is_checked() {
    for (name, value) in [("STANDIN_NVML_USED", "256"), ("STANDIN_NVML_RESERVED", "2000"), ("STANDIN_NVML_MODE", "3")] {
        let mut node = Node::new(1, 1);
        node.home.configure("check: { deepSize: 128KiB }\n");
        node.set(name, value);
        is(&node.check(&["--loopback"]).exits(0).json(), "verified", None);
        node.nothing_held().unwrap();
    }
}

/// The kernel's pages, and anybody's, lie in a coherent GPU's memory.
#[test]
fn memory_that_is_a_numa_node_says_nothing_of_use() {
    for (node_of_its_own, outcome, step) in [(true, "verified", None), (false, "skipped", Some(MEMORY))] {
        let mut node = Node::new(1, 1);
        node.set("STANDIN_NVML_USED", "9000");
        if node_of_its_own {
            let told = "Node: 2\nStatus: online\n";
            node.tree.put(&format!("proc/driver/nvidia/gpus/{FIRST}/numa_status"), told);
        }
        is(&node.check(&[]).json(), outcome, step);
    }
}

/// A process list that is longer than the first room for it.
#[test]
fn a_long_list_is_read_to_its_end() {
    let mut node = Node::new(1, 1);
    let many: Vec<_> = (1..=500).map(|pid| pid.to_string()).collect();
    node.set("STANDIN_NVML_PROCESSES", &many.join(","));
    is(&node.check(&[]).exits(3).json(), "skipped", Some(PROCESSES));
}

/// What one question does not tell takes no other's answer away.
#[test]
fn one_answer_is_enough_to_stay_away() {
    let calls = [
        "nvmlDeviceGetMigMode",
        "nvmlSystemGetConfComputeState",
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetPersistenceMode",
        "nvmlShutdown",
    ];
    for call in calls {
        let mut node = Node::new(1, 1);
        node.order(&format!("{call}=code:999"));
        node.set("STANDIN_NVML_PROCESSES", "4711");
        is(&node.check(&[]).exits(3).json(), "skipped", Some(PROCESSES));
    }
    let mut node = Node::new(1, 1);
    node.order("nvmlDeviceGetComputeRunningProcesses_v3=wrong:many;nvmlDeviceGetComputeRunningProcesses_v2=code:3");
    node.set("STANDIN_NVML_USED", "300");
    is(&node.check(&[]).exits(3).json(), "skipped", Some(MEMORY));
    let mut node = Node::new(1, 1);
    node.order("nvmlDeviceGetComputeRunningProcesses_v3=code:999;nvmlDeviceGetComputeRunningProcesses_v2=code:999;nvmlDeviceGetComputeRunningProcesses=code:999");
    node.set("STANDIN_NVML_MPS", "4712");
    is(&node.check(&[]).exits(3).json(), "skipped", Some(PROCESSES));
}

/// Initialising a GPU anew, without persistence mode, may take longer than other steps may.
#[test]
fn a_slow_initialisation_is_no_timeout() {
    let mut node = Node::new(1, 1);
    node.order("nvmlDeviceGetHandleByPciBusId_v2=delay:11000");
    is(&node.check(&[]).exits(0).json(), "verified", None);
    node.order("nvmlDeviceGetMemoryInfo_v2=hang");
    node.set("STANDIN_NVML_PERSISTENCE", "0");
    let report = node.check(&[]).exits(3).json();
    is(&report, "unknown", Some(MEMORY));
    // It hung before that was told.
    assert!(!evidence(finding(&report, "ProbeTimeout")).contains("persistence"));
    node.order("cuMemAlloc_v2=hang");
    let report = node.check(&[]).exits(3).json();
    assert!(evidence(finding(&report, "ProbeTimeout")).contains("persistence mode is off"), "{report:#}");
}

#[test]
fn a_busy_gpu_leaves_its_neighbour_to_prove_the_rails() {
    let mut node = Node::new(2, 2);
    node.set("STANDIN_NVML_PROCESSES", &format!("{FIRST}=4711"));
    let report = node.check(&[]).exits(0).json();
    is(&report, "skipped", Some(PROCESSES));
    assert_eq!(report["pairs"][2]["dmaBuf"]["outcome"], "verified", "the neighbour's");
    assert_eq!(finding(&report, "GpuBusy")["gpus"], json!([FIRST]));
    assert_eq!(report["verdict"]["state"], "ready");
}

#[test]
fn older_libraries_show_who_is_there_too() {
    let lacking = |functions: &[&str]| {
        let node = Node::new(1, 1);
        for function in functions {
            forget(&node.home.path("host").join(NVML), function);
        }
        node
    };
    for older in [
        &["nvmlDeviceGetComputeRunningProcesses_v3"][..],
        &["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"],
    ] {
        let mut node = lacking(older);
        node.set("STANDIN_NVML_PROCESSES", "4711");
        let report = node.check(&[]).exits(3).json();
        assert!(evidence(finding(&report, "GpuBusy")).contains("process 4711"), "{older:?}");
    }
    // Version 1 does not tell apart what the driver keeps for itself.
    for (used, outcome) in [("600", "verified"), ("700", "skipped")] {
        let mut node = lacking(&["nvmlDeviceGetMemoryInfo_v2"]);
        node.set("STANDIN_NVML_USED", used);
        let report = node.check(&[]).json();
        is(&report, outcome, (outcome == "skipped").then_some(MEMORY));
    }
    // An ancient one has none of the optional questions.
    let node = lacking(&[
        "nvmlDeviceGetMigMode",
        "nvmlSystemGetConfComputeState",
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceGetPersistenceMode",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v2",
        "nvmlDeviceGetMPSComputeRunningProcesses",
    ]);
    is(&node.check(&[]).exits(0).json(), "verified", None);
    node.nothing_held().unwrap();
}

#[test]
fn without_nvml_it_is_learned_by_trying() {
    let mut node = Node::new(1, 1);
    fs::remove_file(node.home.path("host").join(NVML)).unwrap();
    node.set("STANDIN_NVML_PROCESSES", "4711");
    let ran = node.check(&[]).exits(0);
    is(&ran.json(), "verified", None);
    assert_eq!(ran.json()["findings"], json!([]));
    let mut command = node.command(&["check", "-v"]);
    let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(said.contains("not told: dlopen libnvidia-ml: libnvidia-ml.so.1"), "{said}");
    // What CUDA refuses then names NVML's absence.
    node.order("cuDevicePrimaryCtxRetain=code:999");
    let report = node.check(&[]).exits(3).json();
    assert!(evidence(finding(&report, "CudaFailed")).contains("NVML: dlopen libnvidia-ml"));
}

#[test]
fn what_the_agent_does_not_check_is_no_fault() {
    for (name, value, role, reason) in
        [("STANDIN_NVML_MIG", "1", "mig", "MigEnabled"), ("STANDIN_NVML_CC", "1", "confidential", "CcMode")]
    {
        let mut node = Node::new(1, 1);
        node.set(name, value);
        let report = node.check(&[]).exits(3).json();
        assert_eq!((&report["gpus"][0]["role"], &report["gpus"][0]["skipped"]), (&json!(role), &json!(reason)));
        assert_eq!(report["verdict"]["state"], "not-applicable");
        assert_eq!(report["verdict"]["reason"], reason);
        assert_eq!(finding(&report, reason)["severity"], "info");
        untouched(&node);
    }
    let mut node = Node::new(2, 2);
    node.set("STANDIN_NVML_MIG", &format!("{FIRST}=1;0000:21:00.0=0"));
    let report = node.check(&[]).exits(0).json();
    assert_eq!(report["gpus"][0]["role"], "mig");
    assert_eq!(report["verdict"]["state"], "ready", "of the other GPU alone");
}

#[test]
fn a_mode_that_forbids_contexts_is_not_called_use() {
    let mut node = Node::new(1, 1);
    node.set("STANDIN_NVML_MODE", "2");
    let report = node.check(&[]).exits(3).json();
    is(&report, "skipped", Some("nvmlDeviceGetComputeMode"));
    assert_eq!(report["verdict"]["state"], "unknown");
    assert_eq!(report["verdict"]["reason"], "ComputeModeProhibited");
    untouched(&node);
}

#[test]
fn beside_a_workload_it_registers_where_it_may() {
    let node = |settings: &[(&str, &str)]| {
        let mut node = Node::new(1, 1);
        node.home.configure("check: { busyGpus: check, deepSize: 128KiB }\n");
        for (name, value) in settings {
            node.set(name, value);
        }
        let ran = node.check(&["--loopback"]);
        (node, ran)
    };
    let process = ("STANDIN_NVML_PROCESSES", "4711");
    let (beside, ran) = node(&[process]);
    let report = ran.exits(0).json();
    is(&report, "verified", None);
    assert_eq!(report["pairs"][0]["dmaBuf"]["loopback"]["outcome"], "skipped", "{report:#}");
    beside.nothing_held().unwrap();
    assert!(!ran_says(&beside, "has no effect"), "the key works");

    let (full, ran) = node(&[process, ("STANDIN_NVML_USED", "80000")]);
    is(&ran.exits(3).json(), "skipped", Some(PROCESSES));
    untouched(&full);
    let (exclusive, ran) = node(&[process, ("STANDIN_NVML_MODE", "3")]);
    is(&ran.exits(3).json(), "skipped", Some(PROCESSES));
    untouched(&exclusive);
    let (_, ran) = node(&[]);
    assert_eq!(ran.exits(0).json()["pairs"][0]["dmaBuf"]["loopback"]["outcome"], "verified", "nobody is there");
}

fn ran_says(node: &Node, what: &str) -> bool {
    let ran = node.check(&[]);
    ran.err.contains(what) || ran.out.contains(what)
}

/// NVML alone is no witness against a GPU that works; with CUDA it is.
#[test]
fn a_lost_gpu_needs_two_witnesses() {
    let lost = format!("nvmlDeviceGetHandleByPciBusId_v2/{FIRST}=code:15");
    let mut node = Node::new(1, 1);
    node.order(&lost);
    let report = node.check(&[]).exits(0).json();
    is(&report, "verified", None);
    node.order(&format!("{lost};cuInit=code:100"));
    let report = node.check(&[]).json();
    let finding = finding(&report, "GpuLost");
    assert!(evidence(finding).contains("NVML_ERROR_GPU_IS_LOST (15)"), "{finding:#}");
    assert!(find(&report, "GpuNotVisible").is_none());
    is(&report, "unknown", Some("cuInit"));
}
