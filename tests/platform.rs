//! Advice on PCIe, IOMMU and sockets: each where it belongs, and nowhere else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use gdr_agent::{
    hardware::Inventory,
    probe::Rows,
    report::{Finding, Reason, Severity, State},
};
use support::{
    look::{conclude, look},
    topology::{Spec, edited, machine, machines},
};

/// The finding, which is information and leaves the node ready; or that there is none at all.
fn advice(spec: &Spec, reason: Reason) -> Option<Finding> {
    let (_, assessment) = look(spec);
    assert_eq!(assessment.verdict.state, State::Ready, "{}: {:#?}", spec.name, assessment.findings);
    let advice = assessment.findings.into_iter().find(|f| f.reason == reason)?;
    assert_eq!(advice.severity, Severity::Info);
    assert!(!advice.evidence.is_empty() && advice.evidence.iter().all(|e| !e.is_empty()), "{advice:#?}");
    Some(advice)
}

fn silent(spec: &Spec, why: &str) {
    let (_, assessment) = look(spec);
    assert_eq!(assessment.findings, [], "{}: {why}", spec.name);
}

const BRIDGES: &str = "0604";

#[test]
fn bridges_that_redirect_between_a_gpu_and_its_rail_are_named() {
    let mut spec = machine("dgx-b200");
    spec.set_all(BRIDGES, "acs", "001d");
    let found = advice(&spec, Reason::AcsRedirect).unwrap();
    assert_eq!((found.gpus.len(), found.hcas.len()), (8, 8), "{found:#?}");
    let [evidence] = &found.evidence[..] else { panic!("{found:#?}") };
    // Below the switch where they meet: the adapter's port, and three on the GPU's side, eight times.
    assert!(evidence.starts_with("ACS control 0x001d at 0000:17:00.0, 0000:17:02.0, "), "{evidence}");
    assert!(evidence.ends_with(" and 26 more"), "{evidence}");
    // One bridge of one pair is enough, and it alone is named.
    let mut spec = machine("l40s-roce");
    spec.set("0000:17:04.0", "acs", "0004");
    let found = advice(&spec, Reason::AcsRedirect).unwrap();
    assert_eq!(found.evidence, ["ACS control 0x0004 at 0000:17:04.0"]);
    assert_eq!((found.gpus.len(), &found.hcas[..]), (4, &["rocep28s0f0".to_owned()][..]), "{found:#?}");
}

#[test]
fn acs_elsewhere_is_nobodys_business() {
    let mut spec = machine("dgx-b200");
    for above in ["0000:15:01.0", "0000:16:00.0"] {
        spec.set(above, "acs", "001d");
    }
    silent(&spec, "what leads up from where they meet");
    let mut spec = machine("dgx-b200");
    spec.set_all(BRIDGES, "acs", "0043");
    silent(&spec, "source validation, blocking and direct translation redirect nothing");
    let mut spec = machine("l40s-roce");
    spec.set("0000:37:01.0", "acs", "001d");
    silent(&spec, "a pair that does not count");
    for (name, why) in [
        ("dual-port", "no switch joins them"),
        ("epyc-nps4", "no switch joins them"),
        ("gb200", "Grace"),
        ("gh200-roce", "Grace"),
        ("h200-vm-flat", "a virtual machine"),
        ("azure-ndv5-h100", "a virtual machine"),
    ] {
        let mut spec = machine(name);
        spec.set_all(BRIDGES, "acs", "001d");
        silent(&spec, why);
    }
    let mut spec = edited("l40s-roce", |text| text.replace("8086:352a", "10de:22b2"));
    spec.set_all(BRIDGES, "acs", "001d");
    silent(&spec, "a switch on Grace has its own pattern");
    // A virtual machine with switches, as some hypervisors show.
    let mut spec = as_guest("dgx-b200");
    spec.set_all(BRIDGES, "acs", "001d");
    silent(&spec, "a virtual machine");
}

/// The machine below a hypervisor.
fn as_guest(name: &str) -> Spec {
    edited(name, |text| text.replace("topology physical", "cpu hypervisor"))
}

#[test]
fn a_translating_iommu_is_told_of() {
    for (class, devices, whose) in [("0302", (8, 0), "GPU"), ("0207", (0, 8), "HCA")] {
        for kind in ["DMA", "DMA-FQ"] {
            let mut spec = machine("dgx-b200");
            spec.set_all(class, "iommu", kind);
            let found = advice(&spec, Reason::IommuTranslating).unwrap();
            assert_eq!((found.gpus.len(), found.hcas.len()), devices, "{found:#?}");
            assert_eq!(found.evidence, [format!("iommu_group/type of the {whose} is {kind}")]);
        }
    }
    for (mut spec, kind, why) in [
        (machine("dgx-b200"), "identity", "passthrough"),
        (machine("gb200"), "DMA-FQ", "Grace needs it"),
        (machine("gh200-roce"), "DMA", "Grace needs it"),
        (machine("h200-vm-flat"), "DMA-FQ", "a virtual machine"),
        (as_guest("dgx-b200"), "DMA-FQ", "a virtual machine"),
    ] {
        spec.set_all("0", "iommu", kind);
        silent(&spec, why);
    }
}

/// A link of a device and of the port above it: as it is, and at best.
fn link(spec: &mut Spec, device: &str, current: &str, max: &str, port: Option<(&str, &str)>) {
    spec.set(device, "link", current);
    spec.set(device, "max", max);
    if let Some((port, could)) = port {
        spec.set(port, "link", current);
        spec.set(port, "max", could);
    }
}

#[test]
fn a_link_below_what_both_ends_can_do_is_named() {
    const FULL: &str = "16@32.0_GT/s_PCIe";
    const NARROW: &str = "8@32.0_GT/s_PCIe";
    const SLOW: &str = "16@16.0_GT/s_PCIe";
    const IDLE: &str = "16@2.5_GT/s_PCIe";
    const HCA: (&str, &str) = ("0000:1c:00.0", "0000:17:04.0");
    const GPU: (&str, &str) = ("0000:18:00.0", "0000:17:00.0");
    const IDLE_HCA: (&str, &str) = ("0000:1c:00.1", "0000:17:04.0");
    for ((device, port), current, could, evidence) in [
        (HCA, NARROW, Some(FULL), Some("0000:1c:00.0: x8 of x16, 32.0 GT/s of 32.0 GT/s")),
        (HCA, SLOW, Some(FULL), Some("0000:1c:00.0: x16 of x16, 16.0 GT/s of 32.0 GT/s")),
        (GPU, NARROW, Some(FULL), Some("0000:18:00.0: x8 of x16")),
        (HCA, FULL, Some(FULL), None),
        // A slot that gives no more, or that nothing is known of.
        (HCA, NARROW, Some(NARROW), None),
        (HCA, SLOW, Some(SLOW), None),
        (HCA, NARROW, None, None),
        (GPU, NARROW, Some(NARROW), None),
        // An idle GPU saves power.
        (GPU, IDLE, Some(FULL), None),
        // No rail.
        (IDLE_HCA, NARROW, Some(FULL), None),
    ] {
        let mut spec = machine("l40s-roce");
        link(&mut spec, device, current, FULL, could.map(|c| (port, c)));
        match evidence {
            Some(evidence) => assert_eq!(advice(&spec, Reason::PcieDegraded).unwrap().evidence, [evidence]),
            None => silent(&spec, &format!("{device} {current} {could:?}")),
        }
    }
    let mut spec = as_guest("l40s-roce");
    link(&mut spec, HCA.0, NARROW, FULL, Some((HCA.1, FULL)));
    silent(&spec, "a virtual machine");
}

#[test]
fn a_gpu_whose_hcas_are_all_on_the_other_socket_is_named() {
    let found = advice(&machine("sriov-host"), Reason::CrossSocketPath).unwrap();
    assert_eq!(found.gpus, ["0000:98:00.0".parse().unwrap()]);
    assert_eq!(found.evidence, ["GPU on socket 1, HCAs on socket 0"]);
    // What is not known is not held against it.
    silent(&edited("sriov-host", |t| t.replace(" socket=1", "")), "the kernel does not say");
    silent(&edited("sriov-host", |t| t.replace("socket=1", "socket=0")), "one socket, two NUMA nodes");
    silent(&as_guest("sriov-host"), "a virtual machine");
}

/// All that a privileged reader of a well-kept machine sees, and still not a word.
#[test]
fn a_well_kept_machine_hears_no_advice() {
    for mut spec in machines().into_iter().filter(|s| s.words("advice").is_empty()) {
        spec.set_all(BRIDGES, "acs", "0000");
        spec.set_all("0", "iommu", "identity");
        for fact in ["link", "max"] {
            spec.set_all("0", fact, "16@32.0_GT/s_PCIe");
        }
        silent(&spec, "nothing is wrong");
    }
}

/// A node of which nothing is known has another reason for it than advice.
#[test]
fn advice_explains_no_state() {
    let mut spec = machine("dgx-b200");
    spec.set_all(BRIDGES, "acs", "001d");
    spec.set_all("0", "iommu", "DMA-FQ");
    let inventory = Inventory::read(&spec.build().roots());
    let assessment = conclude(&inventory, &Rows::new());
    assert_eq!(assessment.verdict.state, State::Unknown);
    let reason = assessment.verdict.reason;
    assert!(assessment.findings.iter().any(|f| f.reason == Reason::AcsRedirect), "{:#?}", assessment.findings);
    let advice = [Reason::AcsRedirect, Reason::IommuTranslating, Reason::PcieDegraded, Reason::CrossSocketPath];
    assert!(!advice.contains(&reason), "{reason}");
}
