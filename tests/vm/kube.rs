//! The agent beside a real kubelet and containerd, on the kernel's own RDMA device.

use std::{collections::BTreeMap, sync::LazyLock};

use super::{Sections, boot};

static GUEST: LazyLock<BTreeMap<String, Sections>> = LazyLock::new(|| boot("kube"));

fn section(name: &str) -> &'static str {
    let sections = GUEST.get("kubelet").expect("the case");
    sections.get(name).unwrap_or_else(|| panic!("no section {name} in {sections:#?}")).trim()
}

/// In hundredths of a second, of a machine in software emulation.
fn within(name: &str, seconds: u32) {
    let took = section(name);
    let logs = || format!("{}\n{}", section("log"), section("kubelet-log"));
    let took: u32 = took.parse().unwrap_or_else(|_| panic!("{name}: {took}\n{}", logs()));
    println!("{name}: {}.{:02} s", took / 100, took % 100);
    assert!(took <= seconds * 100, "{name}: {took} hundredths of a second\n{}", logs());
}

/// The bar is three seconds; the machine is ten times slower than a real one.
#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn the_kubelet_hears_of_a_port_that_goes_down_and_comes_back() {
    within("registered", 60);
    within("down", 10);
    within("up", 10);
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn a_name_is_not_what_a_device_is_known_by() {
    let (seen, healthy) = section("renamed").split_once('\n').expect("two waits");
    assert!(seen.parse::<u32>().is_ok(), "its new name was never seen: {}", section("log"));
    assert!(healthy.parse::<u32>().is_ok(), "under its new name it is nobody's: {}", section("log"));
}

#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn a_device_that_is_lost_is_unhealthy_until_it_is_back() {
    within("lost", 20);
    within("back", 60);
}

/// Capacity does not shrink for what a pod is using, also after the agent's restart.
#[test]
#[ignore = "boots a virtual machine: make vm-test"]
fn a_device_in_a_pods_namespace_keeps_its_place() {
    assert_eq!(section("moved").lines().collect::<Vec<_>>(), ["healthy", "healthy"], "{}", section("log"));
    assert!(section("checkpoint").contains("0000:14:00.0"));
    assert_eq!(section("agent"), "0", "{}", section("log"));
}
