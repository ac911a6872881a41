//! What comes and goes while it is held, on a kernel that takes it away at once (Linux 7.3 and later).

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Value, json};

use super::{Check, Sections, boot, nothing_of_ours, of_processes, section};

pub(super) static GUEST: LazyLock<BTreeMap<String, Sections>> = LazyLock::new(|| boot("lost"));

pub(super) const CASES: [&str; 6] =
    ["renamed", "renamed-after", "disassociated", "disassociated-after", "registration-hangs", "away"];

/// Whoever holds a device keeps it under any name.
#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn a_device_renamed_while_it_is_held_fails_nothing() {
    assert_eq!(section("renamed", "command").lines().last(), Some("0"), "{}", section("renamed", "command"));
    let check = Check::of("renamed", 0);
    check.same("/pairs/0/peermem/outcome", &json!("verified"));
    let after = Check::of("renamed-after", 0);
    after.same("/hcas/0/name", &json!("rocep20s0"));
    after.same("/hcas/0/pci", &json!("0000:14:00.0"));
    after.same("/pairs/0/peermem/outcome", &json!("verified"));
}

/// The kernel answers EIO from then on; that accuses nobody, and the next check knows better.
#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn a_device_taken_away_while_it_is_held_is_gone_and_not_broken() {
    assert_eq!(section("disassociated", "command").lines().last(), Some("0"), "the kernel waits for who holds it");
    let check = Check::of("disassociated", 3);
    check.same("/pairs/0/peermem/outcome", &json!("unknown"));
    check.same("/pairs/0/peermem/code", &json!("EIO (5)"));
    check.finding("HcaGone", "driver");
    check.verdict("unknown", "HcaGone");
    let after = Check::of("disassociated-after", 0);
    after.same("/pairs/0/peermem/outcome", &json!("verified"));
}

/// In a wait that SIGTERM ends: the step is named, the child is gone and what it held too.
#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn a_registration_that_hangs_in_the_kernel_is_ended() {
    let case = "registration-hangs";
    let state = section(case, "state");
    assert!(state.contains("D (disk sleep)") && state.contains("handle_userfault"), "{state}");
    assert!(!of_processes(case, "during", "pd").is_empty(), "it holds a PD while it hangs");
    let check = Check::of(case, 3);
    check.outcome("peermem", "unknown", "ibv_reg_mr", "");
    check.finding("ProbeTimeout", "agent");
    check.verdict("unknown", "ProbeTimeout");
    assert_eq!(section(case, "children-left"), "0");
    nothing_of_ours(case, "left");
}

fn seen(name: &'static str) -> Check {
    let text = section("away", name);
    let report = serde_json::from_str::<Value>(text).unwrap_or_else(|e| panic!("{name}: {e}: {text}"));
    Check { case: "away", report }
}

/// An HCA that moves into a pod's network namespace keeps what was found of it, across the agent's restart too.
#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn an_hca_in_another_network_namespace_is_away() {
    seen("here").verdict("ready", "AllRailsVerified");
    assert_eq!(section("away", "moved"), "0", "the kernel moves it");
    for look in ["away", "restarted"] {
        let away = seen(look);
        away.same("/hcas/0/role", &json!("away"));
        away.same("/hcas/0/rail", &json!(true));
        away.same("/pairs/0/good", &json!(true));
        away.same("/verdict/state", &json!("ready"));
    }
    let back = seen("back");
    back.same("/hcas/0/role", &json!("eligible"));
    back.same("/pairs/0/peermem/outcome", &json!("verified"));
    back.verdict("ready", "AllRailsVerified");
    assert_eq!(section("away", "agent"), "0", "{}", section("away", "log"));
}

/// The kernel tells of it. Whether that or the look each second sees it first is chance.
#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn the_agent_hears_of_devices_that_come_and_go() {
    let log = section("away", "log");
    assert!(log.contains("the kernel tells of a change"), "never told:\n{log}");
    assert!(log.contains("the hardware's state has changed"), "never seen:\n{log}");
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn the_newer_kernel_has_nothing_to_complain_of() {
    let version = GUEST["machine"]["kernel"].trim();
    assert!(!version.starts_with("6.1."), "{version}");
    assert_eq!(GUEST["end"].get("dmesg").map(|text| text.trim()), None, "the kernel's log");
    for case in CASES {
        nothing_of_ours(case, "left");
    }
}
