//! What one device's trouble does to the others: nothing. And what no stand-in may pass with.

use serde_json::Value;

use crate::support::{evidence, find, finding, standins::Node};

/// The outcome of every pair by both methods, `gpu hca method`.
fn outcomes(report: &Value) -> Vec<(String, String)> {
    let pairs = report["pairs"].as_array().unwrap().iter();
    pairs
        .flat_map(|pair| {
            ["dmaBuf", "peermem"].map(|method| {
                let name = format!("{} {} {method}", pair["gpu"].as_str().unwrap(), pair["hca"].as_str().unwrap());
                (name, pair[method]["outcome"].as_str().unwrap().to_owned())
            })
        })
        .collect()
}

/// Those that are not verified.
fn troubled(report: &Value) -> Vec<(String, String)> {
    outcomes(report).into_iter().filter(|(_, outcome)| outcome != "verified").collect()
}

fn only(report: &Value, part: &str, outcome: &str) {
    let troubled = troubled(report);
    assert!(!troubled.is_empty(), "nothing is wrong");
    for (name, is) in troubled {
        assert!(name.contains(part) && is == outcome, "{name} is {is}, where only {part} is {outcome}");
    }
}

#[test]
fn one_hca_changes_no_other_pairs_outcome() {
    for (faults, outcome, reason) in [
        ("ibv_open_device/mlx5_1=code:1", "unknown", "UverbsPermission"),
        ("ibv_open_device/mlx5_1=code:19", "unknown", "HcaGone"),
        ("ibv_alloc_pd/mlx5_1=code:12", "unknown", "HcaOutOfResources"),
        ("ibv_reg_mr/mlx5_1=code:14;ibv_reg_dmabuf_mr/mlx5_1@1=code:12", "failed", "PeermemRefused"),
        ("ibv_reg_mr/mlx5_1=code:95;ibv_reg_dmabuf_mr/mlx5_1=code:524", "unsupported", "DmabufVerbUnsupported"),
        ("ibv_close_device/mlx5_1=code:16", "unknown", "HcaNotAnswering"),
        ("ibv_open_device/mlx5_1=crash:SEGV", "unknown", "ProbeCrashed"),
    ] {
        let mut node = Node::new(2, 3);
        node.order(faults);
        let report = node.check(&[]).json();
        only(&report, "mlx5_1", outcome);
        assert_eq!(finding(&report, reason)["hcas"], serde_json::json!(["mlx5_1"]), "{faults}");
    }
}

#[test]
fn an_hca_that_hangs_takes_no_other_along() {
    let mut node = Node::new(1, 3);
    node.order("ibv_alloc_pd/mlx5_1=hang");
    let report = node.check(&[]).json();
    only(&report, "mlx5_1", "unknown");
    let timeout = finding(&report, "ProbeTimeout");
    assert!(evidence(timeout).contains("ibv_alloc_pd"), "{timeout:#}");
}

/// Where the time is over for good, what comes behind was never tried, and says so.
#[test]
fn what_was_not_reached_is_not_said_to_hang() {
    let mut node = Node::new(1, 2);
    node.home.configure("check: { timeout: 2s }\n");
    node.order("ibv_alloc_pd/mlx5_0=hang");
    let report = node.check(&[]).exits(3).json();
    let steps = |n: usize| (&report["pairs"][n]["dmaBuf"]["outcome"], &report["pairs"][n]["dmaBuf"]["step"]);
    assert_eq!(steps(0), (&"unknown".into(), &"ibv_alloc_pd".into()));
    assert_eq!(steps(1), (&"unknown".into(), &"not reached".into()));
    assert_eq!(finding(&report, "ProbeTimeout")["hcas"], serde_json::json!(["mlx5_0"]));
}

#[test]
fn one_sick_gpu_fails_no_other_row() {
    for (fault, outcome, reason) in [
        ("cuInit/0000:21:00.0=code:999", "unknown", "CudaFailed"),
        ("cuInit/0000:21:00.0=crash:SEGV", "unknown", "ProbeCrashed"),
        ("cuDevicePrimaryCtxRetain/0000:21:00.0=code:214", "failed", "GpuEccUncorrectable"),
        ("cuMemAlloc_v2/0000:21:00.0=code:2", "skipped", "GpuBusy"),
    ] {
        let mut node = Node::new(3, 2);
        node.order(fault);
        let report = node.check(&[]).json();
        only(&report, "0000:21:00.0", outcome);
        assert_eq!(finding(&report, reason)["gpus"], serde_json::json!(["0000:21:00.0"]), "{fault}");
    }
}

/// Later each one speaks for itself, also where all say the same.
#[test]
fn what_all_gpus_say_alike_after_cuinit_is_each_ones() {
    let mut node = Node::new(2, 1);
    node.order("cuDevicePrimaryCtxRetain=code:999");
    let report = node.check(&[]).exits(3).json();
    assert_eq!(finding(&report, "CudaFailed")["gpus"], serde_json::json!(["0000:20:00.0", "0000:21:00.0"]));
}

#[test]
fn what_all_gpus_say_alike_at_cuinit_is_the_nodes() {
    let mut node = Node::new(4, 1);
    node.order("cuInit=code:802");
    let report = node.check(&[]).json();
    let down = finding(&report, "FabricManagerDown");
    assert_eq!(down["gpus"], serde_json::json!([]), "{down:#}");
    assert!(down["message"].as_str().unwrap().starts_with("every GPU"), "{down:#}");
}

#[test]
fn a_person_is_told_what_was_transferred() {
    let node = Node::new(1, 1);
    node.home.configure("check: { deepSize: 128KiB }\n");
    let output = node.free(&["check", "-v", "--loopback"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("transferred")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("RDMA WRITE to the GPU verified, RDMA READ from it verified"), "{line}");
    let bytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(bytes > 2 * (128 << 10), "all of it, twice, and its corners: {line}");
}

#[test]
fn who_accepts_everything_proves_nothing() {
    let mut node = Node::new(1, 1);
    node.order("ibv_reg_mr=wrong:accept;ibv_reg_dmabuf_mr=wrong:accept");
    let report = node.check(&[]).exits(3).json();
    assert!(outcomes(&report).iter().all(|(_, outcome)| outcome == "unknown"), "{:?}", outcomes(&report));
    finding(&report, "ControlAccepted");
    node.nothing_held().unwrap();
}

#[test]
fn managed_and_host_memory_are_never_verified() {
    for kind in ["managed", "malloc", "anon"] {
        let mut node = Node::new(1, 1);
        node.set("STANDIN_CUDA_MEMORY", kind);
        let report = node.check(&[]).exits(3).json();
        assert!(outcomes(&report).iter().all(|(_, outcome)| outcome == "unknown"), "{kind}: {:?}", outcomes(&report));
        finding(&report, "NotDeviceMemory");
    }
}

#[test]
fn without_peermem_an_efault_is_the_modules_absence() {
    let mut node = Node::new(1, 1);
    node.set("STANDIN_VERBS_PEERMEM", "0");
    node.set("STANDIN_VERBS_NO_DMABUF", "1");
    std::fs::remove_dir(node.tree.sys("module/nvidia_peermem")).unwrap();
    let report = node.check(&[]).exits(1).json();
    assert_eq!(report["pairs"][0]["peermem"]["code"], "EFAULT (14)");
    assert_eq!(report["verdict"]["reason"], "PeermemNotLoaded");
    assert_eq!(report["verdict"]["state"], "not-ready");
}

/// What an older driver or rdma-core does not have is a path that is missing, never a panic.
#[test]
fn functions_that_an_older_library_lacks() {
    let node = Node::new(1, 1);
    let cuda = node.library("usr/lib/x86_64-linux-gnu/libcuda.so.1", "libstandin_cuda.so");
    forget(&cuda, "cuMemGetHandleForAddressRange");
    forget(&cuda, "cuDevicePrimaryCtxSetFlags_v2");
    forget(&cuda, "cuDriverGetVersion");
    let report = node.check(&[]).exits(0).json();
    assert_eq!(report["pairs"][0]["dmaBuf"]["outcome"], "unsupported");
    assert_eq!(report["pairs"][0]["peermem"]["outcome"], "verified");
    finding(&report, "DmabufClosedModule");

    let node = Node::new(1, 1);
    forget(&node.home.path("verbs/libibverbs.so.1"), "ibv_reg_dmabuf_mr");
    let report = node.check(&[]).exits(0).json();
    assert_eq!(report["pairs"][0]["dmaBuf"]["outcome"], "unsupported");
    assert_eq!(finding(&report, "RdmaCoreTooOld")["who"], "agent");
    assert!(find(&report, "DmabufVerbUnsupported").is_none());

    for (library, function, reason) in [
        ("host/usr/lib/x86_64-linux-gnu/libcuda.so.1", "cuMemAlloc_v2", "DriverAbsent"),
        ("verbs/libibverbs.so.1", "ibv_alloc_pd", "ProviderMissing"),
    ] {
        let node = Node::new(1, 1);
        forget(&node.home.path(library), function);
        let report = node.check(&[]).exits(3).json();
        assert!(evidence(finding(&report, reason)).contains(function), "{:#}", report["findings"]);
    }
}

/// Renames a function in a library, so that nobody finds it.
pub(crate) fn forget(library: &std::path::Path, function: &str) {
    let mut bytes = std::fs::read(library).unwrap();
    let name = format!("\0{function}\0");
    let mut found = 0;
    while let Some(at) = bytes.windows(name.len()).position(|window| window == name.as_bytes()) {
        bytes[at + 1] = b'X';
        found += 1;
    }
    assert!(found > 0, "{function} is in no table of {}", library.display());
    std::fs::write(library, bytes).unwrap();
}
