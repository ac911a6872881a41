//! The agent against the kernel's own verbs: one virtual machine with software RDMA, and one test for each of its
//! cases.
//!
//! `tests/vm/guest/` is what happens in there. It needs QEMU and two minutes: `make vm-test`.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod kube;
mod lost;
mod tree;
mod unprivileged;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{LazyLock, Mutex, PoisonError};

use serde_json::{Value, json};

const GPU: &str = "0000:13:00.0";

/// What a case wrote, by section.
type Sections = BTreeMap<String, String>;

static GUEST: LazyLock<BTreeMap<String, Sections>> = LazyLock::new(|| boot("run"));

/// What a guest's script wrote, by case.
fn boot(script: &str) -> BTreeMap<String, Sections> {
    boot_with(script, None)
}

/// The same for a guest that gets files.
fn boot_with(script: &str, files: Option<&Path>) -> BTreeMap<String, Sections> {
    /// Two machines at a time: each is a processor's work, and has its deadline.
    static LANES: [Mutex<()>; 2] = [Mutex::new(()), Mutex::new(())];
    let lane = usize::from(["tree", "lost", "kube"].contains(&script));
    let _lane = LANES[lane].lock().unwrap_or_else(PoisonError::into_inner);
    // The script dies with this process, and QEMU with the script.
    let output = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vm/boot"), script])
        .args(files)
        .output()
        .expect("setpriv, of util-linux, is on this machine");
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the virtual machine has not come to its end:\n{text}\n{said}");
    parse(&text)
}

fn parse(text: &str) -> BTreeMap<String, Sections> {
    let mut cases = BTreeMap::<String, Sections>::new();
    let (mut case, mut section) = (None, String::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("@@CASE ") {
            case = Some(name.to_owned());
            "case".clone_into(&mut section);
        } else if let Some(name) = line.strip_prefix("@@SECTION ") {
            name.clone_into(&mut section);
        } else if line.starts_with("@@END ") {
            case = None;
        } else if let Some(case) = &case {
            let text = cases.entry(case.clone()).or_default().entry(section.clone()).or_default();
            text.push_str(line);
            text.push('\n');
        }
    }
    cases
}

fn section(case: &str, section: &str) -> &'static str {
    let guest = if lost::CASES.contains(&case) { &lost::GUEST } else { &GUEST };
    guest
        .get(case)
        .unwrap_or_else(|| panic!("no case {case}"))
        .get(section)
        .unwrap_or_else(|| panic!("{case} has no section {section}"))
        .trim()
}

/// One check that the guest ran: its report and its exit status.
struct Check {
    case: &'static str,
    report: Value,
}

impl Check {
    fn of(case: &'static str, status: u8) -> Self {
        let text = section(case, "report");
        let report = serde_json::from_str(text)
            .unwrap_or_else(|e| panic!("{case}: the report is no JSON: {e}\n{text}\n{}", section(case, "stderr")));
        let check = Self { case, report };
        assert_eq!(section(case, "status"), status.to_string(), "{check}");
        check
    }

    #[track_caller]
    fn same(&self, pointer: &str, wanted: &Value) {
        assert_eq!(self.report.pointer(pointer).unwrap_or(&Value::Null), wanted, "{pointer} in {self}");
    }

    /// The outcome of one method of the only pair.
    #[track_caller]
    fn outcome(&self, method: &str, outcome: &str, step: &str, code: &str) {
        self.same(&format!("/pairs/0/{method}/outcome"), &json!(outcome));
        self.same(&format!("/pairs/0/{method}/step"), &json!(step));
        self.same(&format!("/pairs/0/{method}/code"), &if code.is_empty() { Value::Null } else { json!(code) });
    }

    #[track_caller]
    fn verdict(&self, state: &str, reason: &str) {
        self.same("/verdict/state", &json!(state));
        self.same("/verdict/reason", &json!(reason));
    }

    #[track_caller]
    fn finding(&self, reason: &str, who: &str) -> &Value {
        let findings = self.report["findings"].as_array().expect("findings are a list");
        let finding =
            findings.iter().find(|f| f["reason"] == reason).unwrap_or_else(|| panic!("no finding {reason} in {self}"));
        assert_eq!(finding["who"], who, "who must act on {reason}, in {self}");
        assert!(finding["remedy"].as_str().is_some_and(|r| !r.is_empty()), "{reason} has no remedy in {self}");
        finding
    }

    /// The peermem region's keys, both of them not zero.
    #[track_caller]
    fn keys(&self) -> (u64, u64) {
        let key = |name: &str| {
            let text = self.report["pairs"][0]["peermem"]["mr"][name]
                .as_str()
                .unwrap_or_else(|| panic!("no {name} in {self}"));
            u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("keys are hexadecimal")
        };
        let keys = (key("lkey"), key("rkey"));
        assert!(keys.0 != 0 && keys.1 != 0, "a key is zero in {self}");
        keys
    }
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {:#}", self.case, self.report)
    }
}

/// The kernel's list of objects of one kind, from a section that lists them all.
fn held(case: &str, name: &str, kind: &str) -> Vec<Value> {
    let text = section(case, name);
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))
        .unwrap_or_else(|| panic!("{case}: no list of {kind} in {name}:\n{text}"));
    serde_json::from_str::<Vec<Value>>(line).unwrap_or_else(|e| panic!("{case}: {kind} in {name}: {e}: {line}"))
}

/// Objects that belong to a process. The kernel's own have none.
fn of_processes(case: &str, name: &str, kind: &str) -> Vec<Value> {
    held(case, name, kind).into_iter().filter(|object| object.get("pid").is_some()).collect()
}

#[track_caller]
fn nothing_of_ours(case: &str, name: &str) {
    for kind in ["mr", "pd", "qp", "ctx"] {
        let left = of_processes(case, name, kind);
        assert!(left.is_empty(), "{case}: {kind} {name}: {left:?}");
    }
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn pair_is_verified_by_peermem_with_the_kernels_keys() {
    let check = Check::of("verified", 0);
    check.same("/pairs/0/gpu", &json!(GPU));
    check.same("/pairs/0/hca", &json!("mlx5_0"));
    check.same("/pairs/0/distance", &json!("PIX"));
    check.same("/pairs/0/peermem/outcome", &json!("verified"));
    check.same("/pairs/0/peermem/mr/length", &json!(2 << 20));
    check.keys();
    check.outcome("dmaBuf", "unsupported", "ibv_reg_dmabuf_mr", "EOPNOTSUPP (95)");
    assert_eq!(check.finding("DmabufVerbUnsupported", "node")["severity"], "info", "the pair is good without: {check}");
    check.same("/simulated", &json!(false));
    check.verdict("ready", "AllRailsVerified");
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn every_step_is_told() {
    let mut rest = section("steps", "text");
    // The text up to the part, and what is between the part and the end of its word.
    let mut after = |part: &str| {
        let (_, tail) = rest.split_once(part).unwrap_or_else(|| panic!("no `{part}` in its place in:\n{rest}"));
        rest = tail;
        tail.split([' ', ',', '\n']).next().expect("a word")
    };
    let _ = after("by peermem:");
    let address = after("GPU memory allocated at ");
    let _ = after("RDMA device mlx5_0 opened");
    let keys = [after("MR registered: lkey=0x"), after("rkey=0x")];
    assert!(keys.iter().all(|key| !key.trim_start_matches('0').is_empty()), "a key is zero: {keys:?}");
    assert_eq!(after("addr="), address, "the region is of other memory");
    let _ = after("cleaned up");
}

/// Memory with a region on it must not be freed: a real driver takes it away from under the adapter.
#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn nothing_is_registered_any_more_when_memory_is_freed() {
    let ledger = section("steps", "ledger");
    let freed: Vec<_> = ledger.lines().filter(|line| line.contains(" pinned ")).collect();
    assert_eq!(freed.len(), 1, "{ledger}");
    assert!(freed[0].ends_with(" 0kB"), "still pinned: {ledger}");
}

/// Bytes cross the kernel's own transport, both ways.
#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn transfers_are_proven_in_both_directions() {
    let check = Check::of("loopback", 0);
    for part in ["outcome", "write", "read"] {
        check.same(&format!("/pairs/0/peermem/loopback/{part}"), &json!("verified"));
    }
    let moved = check.report["pairs"][0]["peermem"]["loopback"]["bytes"].as_u64().expect("bytes are counted");
    assert!(moved > 2 << 20, "all of 1 MiB twice, and its corners: {moved}");
    check.verdict("ready", "AllRailsVerified");
}

/// What comes back wrong is seen, and in which direction.
#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn a_wrong_byte_is_seen_in_the_direction_that_brought_it() {
    for (case, write, read, step) in [
        ("loopback-flipped", "failed", "verified", "loopback write"),
        ("loopback-short", "failed", "verified", "loopback write"),
        ("loopback-stale", "verified", "failed", "loopback read"),
    ] {
        let check = Check::of(case, 1);
        check.same("/pairs/0/peermem/outcome", &json!("failed"));
        check.same("/pairs/0/peermem/step", &json!(step));
        check.same("/pairs/0/peermem/loopback/write", &json!(write));
        check.same("/pairs/0/peermem/loopback/read", &json!(read));
        check.verdict("not-ready", "TransferCorrupt");
        check.finding("TransferCorrupt", "hardware");
    }
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn without_an_active_port_nothing_is_transferred() {
    let check = Check::of("loopback-port-down", 1);
    check.same("/pairs/0/peermem/outcome", &json!("verified"));
    check.same("/pairs/0/peermem/loopback/outcome", &json!("skipped"));
}

/// What the report calls the region's keys are the kernel's.
#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn keys_are_those_that_the_kernel_has() {
    let check = Check::of("keys", 0);
    check.same("/pairs/0/peermem/outcome", &json!("verified"));
    let regions = of_processes("keys", "during", "mr");
    let region = regions.iter().find(|r| r["mrlen"] == 64 << 20).unwrap_or_else(|| panic!("no region in {regions:?}"));
    assert_eq!(region["pid"].to_string(), section("keys", "stopped"), "the region is another process's");
    let key = |name: &str| u64::from_str_radix(region[name].as_str().expect("a key"), 16).expect("hexadecimal");
    assert_eq!(check.keys(), (key("lkey"), key("rkey")), "the kernel has {region}, and {check}");
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn memory_that_cannot_be_pinned_is_peermem_not_loaded() {
    let check = Check::of("vgem-without-module", 1);
    check.outcome("peermem", "failed", "ibv_reg_mr", "EFAULT (14)");
    check.finding("PeermemNotLoaded", "node");
    check.verdict("not-ready", "PeermemNotLoaded");
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn ordinary_ethernet_without_a_method_is_a_node_that_nobody_set_up() {
    let check = Check::of("not-configured", 1);
    let findings = check.report["findings"].as_array().expect("findings");
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0]["reason"], "NotConfigured");
    assert_eq!(findings[0]["severity"], "info");
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn the_same_with_the_module_is_peermem_refused() {
    let check = Check::of("vgem-with-module", 1);
    check.outcome("peermem", "failed", "ibv_reg_mr", "EFAULT (14)");
    check.finding("PeermemRefused", "driver");
    check.verdict("not-ready", "PeermemRefused");
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn memory_that_is_no_gpus_proves_nothing() {
    for case in ["managed", "malloc"] {
        let check = Check::of(case, 3);
        for method in ["dmaBuf", "peermem"] {
            check.outcome(method, "unknown", "device memory", "");
        }
        let finding = check.finding("NotDeviceMemory", "driver");
        assert!(finding["evidence"].to_string().contains("libcuda is /opt/cuda/libcuda.so.1"), "{finding:#}");
        check.verdict("unknown", "NotDeviceMemory");
    }
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn no_device_node_is_the_sandboxs_fault() {
    let check = Check::of("no-nodes", 3);
    check.outcome("peermem", "unknown", "stat node", "ENOENT (2)");
    check.finding("UverbsNodeMissing", "agent");
    check.verdict("unknown", "UverbsNodeMissing");
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn a_limit_on_locked_memory_is_the_sandboxs_fault() {
    let check = Check::of("memlock", 3);
    check.outcome("peermem", "unknown", "ibv_reg_mr", "EPERM (1)");
    let finding = check.finding("MemlockLimit", "agent");
    let evidence = finding["evidence"].to_string();
    assert!(evidence.contains("RLIMIT_MEMLOCK 0 bytes, CAP_IPC_LOCK no"), "{finding:#}");
    check.verdict("unknown", "MemlockLimit");
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn a_port_down_on_the_first_look_is_idle() {
    let check = Check::of("port-down-first-look", 1);
    check.same("/hcas/0/ports/0/state", &json!("DOWN"));
    check.same("/hcas/0/role", &json!("idle"));
    check.same("/hcas/0/rail", &json!(false));
    check.finding("PortNeverActive", "hardware");
    check.verdict("not-ready", "PortNeverActive");
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn a_port_down_after_it_was_active_is_a_finding() {
    let case = "port-down-after-active";
    assert_eq!(section(case, "agent"), "0", "the agent does not end well of SIGTERM:\n{}", section(case, "log"));
    let store: Value = serde_json::from_str(section(case, "store")).expect("the store is JSON");
    assert_eq!(store["seenActive"], json!(["0000:14:00.0"]), "{store:#}");
    assert_eq!(store["report"]["verdict"]["state"], "ready", "before the port went down: {store:#}");
    let check = Check::of(case, 1);
    check.same("/hcas/0/ports/0/state", &json!("DOWN"));
    check.same("/hcas/0/role", &json!("eligible"));
    check.same("/hcas/0/rail", &json!(true));
    assert_eq!(check.finding("PortDown", "hardware")["hcas"], json!(["mlx5_0"]));
    // The registration needs no port.
    check.same("/pairs/0/good", &json!(true));
    check.same("/gpus/0/served", &json!(false));
    check.verdict("not-ready", "PortDown");
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn a_child_that_is_killed_is_unknown_and_leaves_nothing() {
    let case = "child-killed";
    let child: u64 = section(case, "stopped").parse().expect("a process was met");
    for kind in ["mr", "pd"] {
        let before = of_processes(case, "during", kind);
        assert!(before.iter().any(|o| o["pid"] == child), "no {kind} of {child}: {before:?}");
    }
    nothing_of_ours(case, "after-kill");
    let check = Check::of(case, 3);
    check.outcome("peermem", "unknown", "ibv_reg_mr", "SIGKILL (9)");
    check.finding("ProbeCrashed", "agent");
    check.verdict("unknown", "ProbeCrashed");
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn a_child_dies_with_its_agent_and_leaves_nothing() {
    let case = "agent-killed";
    assert_eq!(section(case, "status"), "137");
    let before = of_processes(case, "during", "mr");
    let child: u64 = section(case, "stopped").parse().expect("a process was met");
    assert!(before.iter().any(|o| o["pid"] == child), "no region of {child}: {before:?}");
    nothing_of_ours(case, "after-kill");
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn no_case_leaves_anything_in_the_kernel() {
    let mut looks = 0;
    for (case, sections) in GUEST.iter() {
        for name in ["after-kill", "left"].into_iter().filter(|name| sections.contains_key(*name)) {
            nothing_of_ours(case, name);
            looks += 1;
        }
        // The kernel's own: the list can be read at all.
        assert!(!held(case, "left", "pd").is_empty(), "{case}: not even the kernel's own PD");
    }
    assert_eq!(looks, 24, "cases, and looks after a kill");
}

/// A child in a wait that no signal ends: the agent goes on, says where it hangs, starts no second one for that GPU,
/// and checks again when the kernel lets it go.
#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn a_child_that_survives_sigkill_is_alone_until_it_is_gone() {
    let states = section("stuck", "children");
    assert_eq!(states.lines().count(), 1, "children: {states}\n{}", section("stuck", "log"));
    assert!(states.contains("D (disk sleep)"), "{states}");
    let held = Check { case: "stuck", report: serde_json::from_str(section("stuck", "held")).expect("a report") };
    held.same("/pairs/0/peermem/outcome", &json!("unknown"));
    held.same("/pairs/0/peermem/step", &json!("cuMemAlloc"));
    held.verdict("unknown", "ProbeTimeout");
    held.finding("ProbeTimeout", "agent");
    assert!(section("stuck", "answers").contains("unknown"), "{}", section("stuck", "answers"));
    let thawed = Check { case: "stuck", report: serde_json::from_str(section("stuck", "thawed")).expect("a report") };
    thawed.verdict("ready", "AllRailsVerified");
    assert_eq!(section("stuck", "children-left"), "0");
    assert_eq!(section("stuck", "agent"), "0", "{}", section("stuck", "log"));
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn the_kernel_has_nothing_to_complain_of() {
    assert!(section("machine", "kernel").starts_with("6.1."));
    assert!(section("end", "log").parse::<u32>().expect("a count of lines") > 100, "the kernel's log can be read");
    assert_eq!(GUEST["end"].get("dmesg").map(|text| text.trim()), None, "the kernel's log");
}
