//! The chart's pod with `privileged: false`, started by a real kubelet, containerd, NVIDIA's container runtime and runc:
//! the kernel's device cgroup lets it open what the runtime class gave, and nothing else.

use std::{collections::BTreeMap, fs, path::Path, process::Command, sync::LazyLock};

use serde_json::{Value, json};

use super::{Check, GPU, Sections, boot_with};

static GUEST: LazyLock<BTreeMap<String, Sections>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let config = &rendered("configmap", ALL)["data"]["config.yaml"];
    for (name, content) in [
        ("pod.json", pod(ALL).to_string()),
        ("named.json", pod("nvidia.com/gpu=all\\,rdma.example.com/hca=all").to_string()),
        ("config.yaml", config.as_str().expect("a file").to_owned()),
    ] {
        fs::write(folder.path().join(name), content).expect("the folder can be written");
    }
    boot_with("unprivileged", Some(folder.path()))
});

/// `runtimeDevices` where nobody sets it.
const ALL: &str = "all";

/// One object of the chart, as docs/operating.md says to install it for a runtime class.
fn rendered(template: &str, devices: &str) -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tools = Command::new(root.join("tests/cluster/deps")).output().expect("tests/cluster/deps starts");
    assert!(tools.status.success(), "{}", String::from_utf8_lossy(&tools.stderr));
    let tools = String::from_utf8(tools.stdout).expect("a path");
    let output = Command::new(Path::new(tools.trim()).join("helm"))
        .args(["template", "gdr-agent", "--namespace", "gdr-system", "--show-only"])
        .arg(format!("templates/{template}.yaml"))
        .args(["--set", "privileged=false,runtimeClassName=nvidia,config.driver.mode=runtime"])
        .arg("--set")
        .arg(format!("runtimeDevices={devices}"))
        // There is no API server, and the image is nowhere but here.
        .args(["--set", "nodes=all,config.publish.mode=none"])
        .args(["--set", "image.repository=docker.io/local/gdr-agent,image.tag=dev,image.pullPolicy=Never"])
        .arg(root.join("charts/gdr-agent"))
        .output()
        .expect("helm starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_saphyr::from_str(&String::from_utf8_lossy(&output.stdout)).expect("one object")
}

/// The pod of the chart's `DaemonSet`. A kubelet's own pods may name no object of an API server: the configuration is a folder
/// instead, and the runtime class is the node's default one.
fn pod(devices: &str) -> Value {
    let template = &rendered("daemonset", devices)["spec"]["template"];
    let mut pod =
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "agent", "namespace": "gdr-system" } });
    for part in ["labels", "annotations"] {
        pod["metadata"][part] = template["metadata"][part].clone();
    }
    let mut spec = template["spec"].clone();
    let own = spec.as_object_mut().expect("a pod");
    assert!(own.remove("serviceAccountName").is_some());
    assert_eq!(own.remove("runtimeClassName"), Some(json!("nvidia")));
    let volumes = spec["volumes"].as_array_mut().expect("volumes");
    let config = volumes.iter_mut().find(|volume| volume["name"] == "config").expect("the configuration");
    *config = json!({ "name": "config", "hostPath": { "path": "/etc/gdr-agent" } });
    // What the stand-in for the driver's library is told.
    let variables = spec["containers"][0]["env"].as_array_mut().expect("variables");
    let gpu = format!("{GPU}=GPU-00000000-1111-2222-3333-444444444444");
    variables.push(json!({ "name": "STANDIN_CUDA_GPUS", "value": gpu }));
    variables.push(json!({ "name": "STANDIN_CUDA_INTEGRATED", "value": "1" }));
    pod["spec"] = spec;
    pod
}

fn section(case: &str, name: &str) -> &'static str {
    let sections = GUEST.get(case).unwrap_or_else(|| panic!("no case {case}"));
    sections.get(name).unwrap_or_else(|| panic!("{case} has no section {name}")).trim()
}

fn logs(case: &str) -> String {
    let own = ["report", "pods", "agent-log"].map(|name| section(case, name));
    let node = ["toolkit-log", "kubelet-log", "containerd-log"].map(|name| section("without", name));
    [own, node].concat().join("\n")
}

fn check(case: &'static str) -> Check {
    let text = section(case, "report");
    Check { case, report: serde_json::from_str(text).unwrap_or_else(|e| panic!("{case}: {e}: {text}\n{}", logs(case))) }
}

#[track_caller]
fn is_ready(case: &str) {
    let took = section(case, "ready");
    let took: u32 = took.parse().unwrap_or_else(|_| panic!("{case}: {took}\n{}", logs(case)));
    println!("{case}: ready after {}.{:02} s", took / 100, took % 100);
}

/// The kubelet's socket too.
#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn a_runtime_class_gives_all_that_the_check_needs() {
    verifies("granted");
    assert!(section("granted", "registered").parse::<u32>().is_ok(), "{}", logs("granted"));
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn devices_by_their_cdi_names_do_too() {
    verifies("named");
}

#[track_caller]
fn verifies(case: &'static str) {
    is_ready(case);
    let check = check(case);
    check.same("/pairs/0/peermem/outcome", &json!("verified"));
    check.keys();
    check.verdict("ready", "AllRailsVerified");
}

/// 14 is `IPC_LOCK`; 2 a seccomp filter.
#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn it_has_one_capability_and_no_more() {
    let wanted = format!("CapEff: {0:016x} CapBnd: {0:016x} NoNewPrivs: 1 Seccomp: 2", 1 << 14);
    let process = section("granted", "process").split_whitespace().collect::<Vec<_>>().join(" ");
    let (wanted, process) = (sorted(&wanted), sorted(&process));
    assert_eq!(process, wanted, "{}", logs("granted"));
}

/// Name and value, in the order of the names: the kernel has its own.
fn sorted(pairs: &str) -> Vec<(&str, &str)> {
    let words = pairs.split(' ').collect::<Vec<_>>();
    let mut pairs = words.chunks(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>();
    pairs.sort_unstable();
    pairs
}

/// What the pod may not open is the sandbox's fault, and a rollout sees that this pod does not check.
#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn a_device_that_was_not_given_accuses_nobody_and_the_pod_is_not_ready() {
    let check = check("refused");
    assert_eq!(section("refused", "ready"), "no", "{check}");
    check.outcome("peermem", "unknown", "open node", "EPERM (1)");
    check.finding("UverbsPermission", "agent");
    check.verdict("unknown", "UverbsPermission");
}

/// NVIDIA's runtime starts the pod on nodes that have nothing of RDMA.
#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn a_node_without_rdma_starts_the_pod_all_the_same() {
    is_ready("without");
    check("without").same("/hcas", &json!([]));
}
