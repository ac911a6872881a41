//! Each reason is produced: by files around the devices and answers of the libraries. The general
//! reason never stands beside the specific one.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use serde_json::Value;

use crate::support::{evidence, find, finding, standins::Node};

const RELEASE: &str = "6.8.0-test";

/// A node whose kernel's files can be read.
fn node() -> Node {
    let node = Node::new(1, 1);
    node.tree.put("proc/sys/kernel/osrelease", format!("{RELEASE}\n"));
    node
}

/// Neither method works unless a test says so: peermem answers EFAULT, dma-buf EOPNOTSUPP.
fn without_methods() -> Node {
    let mut node = node();
    node.set("STANDIN_VERBS_PEERMEM", "0");
    node.set("STANDIN_VERBS_NO_DMABUF", "1");
    unload(&node, "nvidia_peermem");
    node
}

fn unload(node: &Node, module: &str) {
    fs::remove_dir(node.tree.sys("module").join(module)).unwrap();
}

/// A file beneath the node's root.
fn host(node: &Node, name: &str, text: &str) {
    let file = node.home.path("host").join(name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

fn modules(node: &Node, names: &[&str]) {
    let lines: Vec<_> = names.iter().map(|name| format!("updates/{name}.ko.zst:")).collect();
    host(node, &format!("lib/modules/{RELEASE}/modules.dep"), &lines.join("\n"));
}

fn logged(node: &Node, message: &str) {
    node.tree.put("dev/kmsg", format!("4,100,5000,-;eth0: link up\n4,101,5001,-;{message}\n"));
}

/// The report has the reason, with this in its evidence and this severity, and not the general one.
#[track_caller]
fn raises(report: &Value, reason: &str, severity: &str, seen: &str, instead_of: &str) {
    let found = finding(report, reason);
    assert_eq!(found["severity"], severity, "{found:#}");
    assert!(evidence(found).contains(seen), "no `{seen}` in {found:#}");
    assert!(find(report, instead_of).is_none(), "{instead_of} too: {:#}", report["findings"]);
}

#[test]
fn a_kernel_without_the_peer_memory_interface() {
    let node = without_methods();
    node.tree.put("proc/kallsyms", "ffffffff00000000 T ib_register_device\t[ib_core]\n");
    // It could not be loaded anyway: the kernel's lack is the more specific.
    modules(&node, &["mlx5_core"]);
    let report = node.check(&[]).exits(1).json();
    raises(&report, "KernelLacksPeerMemory", "error", "kallsyms", "PeermemNotLoaded");
    assert!(find(&report, "PeermemModuleMissing").is_none());
}

#[test]
fn a_module_that_is_not_there_or_only_not_loaded() {
    let node = without_methods();
    node.tree
        .put("proc/kallsyms", "f T ib_register_device\t[ib_core]\nf T ib_register_peer_memory_client\t[ib_core]\n");
    modules(&node, &["mlx5_core"]);
    let report = node.check(&[]).exits(1).json();
    raises(&report, "PeermemModuleMissing", "error", "modules.dep", "PeermemNotLoaded");
    modules(&node, &["mlx5_core", "nvidia-peermem"]);
    let report = node.check(&[]).exits(1).json();
    raises(&report, "PeermemNotLoaded", "error", "EFAULT", "PeermemModuleMissing");
}

#[test]
fn a_module_built_for_another_ofed() {
    let node = without_methods();
    logged(&node, "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client");
    let report = node.check(&[]).exits(1).json();
    raises(&report, "PeermemSymbolMismatch", "error", "disagrees about version", "PeermemNotLoaded");
}

#[test]
fn efa_without_its_own_module() {
    let mut node = without_methods();
    node.tree.module("nvidia_peermem");
    let driver = node.tree.sys("bus/pci/devices/0000:40:00.0/driver");
    fs::remove_file(&driver).unwrap();
    fs::create_dir_all(node.tree.sys("bus/pci/drivers/efa")).unwrap();
    symlink(node.tree.sys("bus/pci/drivers/efa"), driver).unwrap();
    let report = node.check(&[]).exits(1).json();
    raises(&report, "EfaPeermemMissing", "error", "efa_nv_peermem", "PeermemRefused");
    // With dma-buf it is a piece of advice.
    node.set("STANDIN_VERBS_NO_DMABUF", "0");
    let report = node.check(&[]).exits(0).json();
    raises(&report, "EfaPeermemMissing", "info", "efa_nv_peermem", "PeermemRefused");
}

#[test]
fn the_forerunner_alone_and_beside_its_successor() {
    let node = without_methods();
    node.tree.module("nv_peer_mem");
    let report = node.check(&[]).exits(1).json();
    raises(&report, "LegacyNvPeerMem", "error", "nv_peer_mem", "PeermemRefused");
    let node = Node::new(1, 1);
    node.tree.module("nv_peer_mem");
    let report = node.check(&[]).exits(0).json();
    raises(&report, "LegacyNvPeerMem", "info", "both", "PeermemRefused");
}

#[test]
fn peermem_that_lost_track() {
    let node = without_methods();
    node.tree.module("nvidia_peermem");
    logged(&node, "nvidia-peermem nv_get_p2p_free_callback:135 ERROR detected invalid context, skipping");
    let report = node.check(&[]).exits(1).json();
    raises(&report, "PeermemInvalidContext", "error", "invalid context", "PeermemRefused");
}

#[test]
fn a_small_bar1_and_a_full_one() {
    let node = without_methods();
    node.tree.module("nvidia_peermem");
    let resource = node.tree.sys("bus/pci/devices/0000:20:00.0/resource");
    let lines = |size: u64| format!("0x0 0x0 0x0\n{:#x} {:#x} 0x14220c\n", 1_u64 << 40, (1_u64 << 40) + size - 1);
    fs::write(&resource, lines(256 << 20)).unwrap();
    let report = node.check(&[]).exits(1).json();
    raises(&report, "Bar1Exhausted", "error", "256 MiB", "PeermemRefused");
    fs::write(&resource, lines(128 << 30)).unwrap();
    let report = node.check(&[]).exits(1).json();
    raises(&report, "PeermemRefused", "error", "EFAULT", "Bar1Exhausted");
    logged(&node, "NVRM: GPU at PCI:0000:20:00: dmaAllocMapping_GM107: can't alloc VA space for mapping.");
    let report = node.check(&[]).exits(1).json();
    raises(&report, "Bar1Exhausted", "error", "can't alloc VA space", "PeermemRefused");
}

#[test]
fn a_kernel_without_peer_to_peer() {
    let mut node = without_methods();
    node.set("STANDIN_VERBS_NO_DMABUF", "0");
    node.order("cuMemGetHandleForAddressRange=code:801");
    host(&node, &format!("boot/config-{RELEASE}"), "# CONFIG_PCI_P2PDMA is not set\n");
    let report = node.check(&[]).exits(1).json();
    raises(&report, "KernelWithoutP2pdma", "error", "CONFIG_PCI_P2PDMA", "DmabufClosedModule");
    host(&node, &format!("boot/config-{RELEASE}"), "CONFIG_PCI_P2PDMA=y\n");
    let report = node.check(&[]).exits(1).json();
    raises(&report, "DmabufClosedModule", "error", "801", "KernelWithoutP2pdma");
}

#[test]
fn a_kernel_without_on_demand_paging() {
    let node = without_methods();
    host(&node, &format!("boot/config-{RELEASE}"), "CONFIG_PCI_P2PDMA=y\n");
    let report = node.check(&[]).exits(1).json();
    raises(&report, "KernelWithoutOdp", "error", "ON_DEMAND_PAGING", "DmabufVerbUnsupported");
}

#[test]
fn a_platform_without_a_way() {
    let mut node = node();
    node.set("STANDIN_VERBS_PEERMEM", "0");
    node.order("ibv_reg_dmabuf_mr@1=code:12");
    logged(&node, "NVRM: nv_dma_buf_map: failed to map dynamic attachment with no P2P support");
    let report = node.check(&[]).exits(1).json();
    raises(&report, "NoPeerToPeerPath", "error", "no P2P support", "DmabufRefused");
}

#[test]
fn transfers_refused_because_nothing_maps_peers() {
    let mut node = node();
    node.home.configure("check: { deepSize: 128KiB }\n");
    node.order("rdma_write=code:4");
    // Host memory must pass: only what follows it fails.
    node.order("rdma_write@2=code:4;rdma_write@4=code:4");
    node.tree.put("proc/driver/nvidia/params", "EnableMSI: 1\nDmaRemapPeerMmio: 0\n");
    let report = node.check(&["--loopback"]).exits(1).json();
    raises(&report, "PeerMmioUnmapped", "error", "DmaRemapPeerMmio", "TransferRefused");
}

#[test]
fn a_module_whose_signature_is_refused() {
    let node = node();
    fs::remove_file(node.tree.sys("../proc/driver/nvidia/version")).unwrap();
    let mut node = node;
    node.order("cuInit=code:100");
    logged(&node, "Loading of module nvidia: Key was rejected by service");
    let report = node.check(&[]).exits(3).json();
    raises(&report, "UnsignedModule", "error", "Key was rejected", "DriverAbsent");
}

#[test]
fn adapters_without_their_rdma_module() {
    let node = node();
    fs::remove_file(node.tree.sys("class/infiniband/mlx5_0")).unwrap();
    node.tree.module("mlx5_core");
    modules(&node, &["mlx5_core"]);
    let report = node.check(&[]).exits(1).json();
    raises(&report, "RdmaModuleMissing", "error", "mlx5_ib", "NoRdmaDevices");
    modules(&node, &["mlx5_core", "mlx5_ib"]);
    let report = node.check(&[]).exits(1).json();
    raises(&report, "NoRdmaDevices", "error", "0000:40:00.0", "RdmaModuleMissing");
}

#[test]
fn libraries_of_two_sources() {
    let mut node = node();
    node.order("ibv_get_device_list=wrong:abi");
    let report = node.check(&[]).exits(3).json();
    raises(&report, "ProviderAbiMismatch", "warning", "kernel ABI", "ProviderMissing");
    assert_eq!(finding(&report, "ProviderAbiMismatch")["who"], "agent");
}

#[test]
fn only_older_nccl_minds_a_folder() {
    let mut node = node();
    node.set("STANDIN_VERBS_NO_DMABUF", "1");
    let report = node.check(&[]).exits(0).json();
    raises(&report, "MemoryPeersAbsent", "info", "memory_peers", "PeermemNotLoaded");
    fs::create_dir_all(node.tree.sys("kernel/mm/memory_peers")).unwrap();
    assert!(find(&node.check(&[]).exits(0).json(), "MemoryPeersAbsent").is_none());
}

#[test]
fn a_limit_that_other_pods_get_too() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: no capability lifts the limit");
        return;
    }
    let mut node = node();
    node.set("KUBERNETES_SERVICE_HOST", "10.0.0.1");
    let command = node.command(&["check", "-o", "json"]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -l 64 && exec \"$@\"", "sh"]).arg(command.get_program()).args(command.get_args());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = limited.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    raises(&report, "PodsMemlockLow", "info", "64 KiB", "MemlockLimit");
    assert_eq!(report["verdict"]["state"], "ready");
}

/// Everything above is silent where everything works.
#[test]
fn nothing_is_said_of_a_healthy_node() {
    let node = Node::new(2, 2);
    node.tree.put("proc/sys/kernel/osrelease", format!("{RELEASE}\n"));
    node.tree.put("proc/driver/nvidia/params", "DmaRemapPeerMmio: 1\n");
    logged(&node, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.247.01");
    let report = node.check(&[]).exits(0).json();
    assert_eq!(report["findings"], serde_json::json!([]));
    assert!(Path::new(&node.home.path("run")).exists());
}

/// What a profile lacks no module in the guest can mend; a GPU that is passed through whole is one of its own.
#[test]
fn a_vgpu_without_gpudirect() {
    let mut node = node();
    node.set("STANDIN_VERBS_PEERMEM", "0");
    node.order("cuDeviceGetAttribute@2=code:1");
    node.set("STANDIN_NVML_VIRTUALIZATION", "2");
    let report = node.check(&[]).exits(1).json();
    raises(&report, "VgpuWithoutGpuDirect", "error", "NVML: the GPU is a vGPU", "PeermemRefused");
    assert!(find(&report, "DmabufClosedModule").is_none());
    node.set("STANDIN_NVML_VIRTUALIZATION", "1");
    let report = node.check(&[]).exits(1).json();
    raises(&report, "PeermemRefused", "error", "EFAULT", "VgpuWithoutGpuDirect");
}

#[test]
fn a_gpu_that_is_initialised_anew_each_time() {
    let mut node = node();
    assert!(find(&node.check(&[]).exits(0).json(), "PersistenceOff").is_none());
    node.set("STANDIN_NVML_PERSISTENCE", "0");
    let report = node.check(&[]).exits(0).json();
    assert_eq!(finding(&report, "PersistenceOff")["severity"], "info");
}

#[test]
fn a_child_that_cannot_be_started_is_the_sandboxs_fault() {
    let mut node = node();
    // Nothing can be put in the run folder, or in the one for temporary files.
    let run = node.home.path("run");
    fs::write(&run, "").unwrap();
    node.set("TMPDIR", run.to_str().unwrap());
    let report = node.check(&[]).exits(3).json();
    raises(&report, "ProbeNotStarted", "warning", "spawn", "ProbeCrashed");
    assert_eq!(finding(&report, "ProbeNotStarted")["who"], "agent");
    assert_eq!(report["verdict"]["state"], "unknown");
}

#[test]
fn a_roce_port_without_an_address_can_send_nothing() {
    let node = node();
    node.home.configure("check: { deepSize: 128KiB }\n");
    let port = node.tree.sys("class/infiniband/mlx5_0/ports/1");
    fs::write(port.join("link_layer"), "Ethernet\n").unwrap();
    let report = node.check(&["--loopback"]).exits(0).json();
    raises(&report, "NoUsableGid", "info", "RoCE v2", "LoopbackImpossible");
    assert_eq!(report["pairs"][0]["peermem"]["loopback"]["outcome"], "skipped");
    fs::create_dir_all(port.join("gid_attrs/types")).unwrap();
    fs::write(port.join("gid_attrs/types/0"), "RoCE v2\n").unwrap();
    let report = node.check(&["--loopback"]).exits(0).json();
    assert!(find(&report, "NoUsableGid").is_none(), "{:#}", report["findings"]);
}

/// Of another card its driver says nothing.
#[test]
fn a_card_whose_firmware_failed_by_its_drivers_words() {
    let mut node = node();
    node.order("ibv_open_device=code:5");
    logged(&node, "mlx5_core 0000:99:00.0: mlx5_health_check_fatal_sensors: Fatal error 1 detected");
    let report = node.check(&[]).exits(3).json();
    raises(&report, "HcaGone", "warning", "EIO", "HcaFirmwareFault");
    logged(&node, "mlx5_core 0000:40:00.0: device's health compromised - reached miss count");
    let report = node.check(&[]).exits(3).json();
    raises(&report, "HcaFirmwareFault", "warning", "miss count", "HcaGone");
}
