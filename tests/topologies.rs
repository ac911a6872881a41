//! Inventory, distances, roles and verdict of every machine of `tests/topologies`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use gdr_agent::{
    hardware::HcaFacts,
    probe::Rows,
    report::{Distance, Finding, HcaRole, Severity},
    verdict::Assessment,
};
use support::{
    look::{conclude, look},
    topology::{Spec, edited, machine, machines},
};

/// Distance of a pair by the GPU's address and the HCA's name.
fn distances(assessment: &Assessment) -> BTreeMap<(String, String), Distance> {
    assessment.pairs.iter().map(|p| ((p.gpu.to_string(), p.hca.clone()), p.distance)).collect()
}

#[test]
fn every_pair_is_as_far_apart_as_it_is() {
    let mut compared = 0;
    for spec in machines() {
        let (_, assessment) = look(&spec);
        let seen = distances(&assessment);
        for line in spec.lines("distance") {
            assert_eq!(line.len() - 1, spec.hcas.len(), "{}: {line:?}", spec.name);
            for (hca, accept) in spec.hcas.iter().zip(&line[1..]) {
                let distance = seen[&(line[0].clone(), hca.name.clone())].to_string();
                let right = accept.split('|').any(|a| a == distance);
                assert!(right, "{}: {} {} is {distance}, not {accept}", spec.name, line[0], hca.name);
                compared += 1;
            }
        }
        assert_eq!(seen.len(), spec.lines("distance").len() * spec.hcas.len(), "{}: no pair more", spec.name);
    }
    assert!(compared >= 700, "only {compared} pairs were compared");
}

#[test]
fn the_inventory_is_complete() {
    for spec in machines() {
        let name = &spec.name;
        let (inventory, _) = look(&spec);
        assert_eq!(inventory.topology.to_string(), spec.words("topology")[0], "{name}");
        let gpus: Vec<_> = inventory.gpus.iter().map(|g| g.pci.to_string()).collect();
        let expected: Vec<_> = spec.lines("distance").iter().map(|l| l[0].clone()).collect();
        assert_eq!(gpus, expected, "{name}");
        let hcas: BTreeSet<_> = inventory.hcas.iter().map(|h| (h.name.clone(), h.pci.map(|p| p.to_string()))).collect();
        assert_eq!(hcas, spec.hcas.iter().map(|h| (h.name.clone(), h.pci.clone())).collect(), "{name}");
        for (i, known) in spec.hcas.iter().enumerate() {
            ports(inventory.hca(&known.name).unwrap(), known, i, name);
        }
        let bare: Vec<_> = inventory.bare_functions.iter().map(|f| f.pci.to_string()).collect();
        assert_eq!(bare, spec.words("bare"), "{name}: adapters without an RDMA device");
    }
}

fn ports(hca: &HcaFacts, known: &support::topology::Hca, index: usize, name: &str) {
    assert_eq!(hca.ports.len(), known.ports.len(), "{name}: {}", hca.name);
    for (port, [number, state, layer, rate]) in hca.ports.iter().zip(&known.ports) {
        assert_eq!((&port.number.to_string(), &port.state), (number, state), "{name}: {}", hca.name);
        assert_eq!(port.rate_gbps.map(f64::from), rate.parse().ok(), "{name}: {}", hca.name);
        let prefix = (layer == "InfiniBand").then(|| format!("fec0:0000:0000:{:04x}", index + 1));
        assert_eq!(port.subnet_prefix, prefix, "{name}: {}", hca.name);
    }
    let transport = match (hca.driver.as_deref(), known.ports[0][2].as_str()) {
        (Some("efa"), _) => "efa",
        (_, "InfiniBand") => "infiniband",
        _ => "roce",
    };
    assert_eq!(hca.transport.to_string(), transport, "{name}: {}", hca.name);
    assert_eq!(hca.node.as_ref().map(|n| n.name.clone()), Some(format!("uverbs{index}")), "{name}: {}", hca.name);
}

#[test]
fn nearest_hcas_rails_and_roles_are_those_of_the_machine() {
    for spec in machines() {
        let name = &spec.name;
        let (inventory, assessment) = look(&spec);
        let rails: BTreeSet<_> = assessment.hcas.iter().filter(|h| h.rail).map(|h| h.name.as_str()).collect();
        let expected: BTreeSet<_> = spec.lines("nearest").iter().flat_map(|l| &l[2..]).map(String::as_str).collect();
        assert_eq!(rails, expected, "{name}: rails");
        let seen = distances(&assessment);
        for line in spec.lines("nearest") {
            let gpu = assessment.gpus.iter().find(|g| g.pci.to_string() == line[0]).unwrap();
            let near: Vec<_> = gpu.nearest.iter().filter(|n| rails.contains(n.as_str())).collect();
            assert_eq!(near, line[2..].iter().collect::<Vec<_>>(), "{name}: {}", line[0]);
            for hca in near {
                assert_eq!(seen[&(line[0].clone(), hca.clone())].to_string(), line[1], "{name}: {} {hca}", line[0]);
            }
        }
        // Without a check too.
        let unchecked = conclude(&inventory, &Rows::new());
        for hca in assessment.hcas.iter().chain(&unchecked.hcas) {
            let role = if spec.words("idle").contains(&hca.name.as_str()) {
                HcaRole::Idle
            } else if spec.words("excluded").contains(&hca.name.as_str()) {
                HcaRole::Excluded
            } else {
                HcaRole::Eligible
            };
            assert_eq!(hca.role, role, "{name}: {}", hca.name);
        }
    }
}

/// Where nothing is wrong, nothing is said: whatever the machine's best distance is, however many
/// of its ports were never cabled.
#[test]
fn a_healthy_machine_is_not_accused() {
    for spec in machines() {
        let (_, assessment) = look(&spec);
        let verdict = &assessment.verdict;
        assert_eq!(
            [verdict.state.to_string(), verdict.reason.to_string()].as_slice(),
            spec.words("verdict"),
            "{}",
            spec.name
        );
        let above = |f: &&Finding| f.severity != Severity::Info;
        assert!(assessment.findings.iter().find(above).is_none(), "{}: {:#?}", spec.name, assessment.findings);
        let advice: Vec<_> = assessment.findings.iter().map(|f| f.reason.to_string()).collect();
        assert_eq!(advice, spec.words("advice"), "{}", spec.name);
    }
}

/// Where the processor says nothing (no x86), virtio behind real bridges is a card, on a root bus a
/// hypervisor's.
#[test]
fn virtio_alone_makes_no_virtual_machine() {
    const NAME: &str = "cloud-bare-metal-virtio";
    let kind = |spec: &Spec| look(spec).0.topology.to_string();
    assert_eq!(kind(&edited(NAME, |t| t.replace("cpu bare\n", ""))), "physical");
    let moved = |t: &str| t.replace("cpu bare\n", "").replace("  0000:38:00.0 1af4", " 0000:37:02.0 1af4");
    assert_eq!(kind(&edited(NAME, moved)), "virtual");
    assert_eq!(kind(&edited(NAME, |t| t.replace("cpu bare", "cpu hypervisor"))), "virtual");
}

/// Names change with the order in which drivers load; one machine type was seen with two sets.
#[test]
fn names_of_hcas_decide_nothing() {
    for mut spec in machines() {
        let (_, before) = look(&spec);
        let known: BTreeMap<String, String> = spec
            .hcas
            .iter_mut()
            .enumerate()
            .map(|(i, hca)| {
                let other =
                    ["rdmap16s27", "ibP2p3s0", "roceo12399", "mlx5_bond_0", "z"][i % 5].to_owned() + &i.to_string();
                (other.clone(), std::mem::replace(&mut hca.name, other))
            })
            .collect();
        let (_, after) = look(&spec);
        let renamed = distances(&after).into_iter().map(|((gpu, hca), d)| ((gpu, known[&hca].clone()), d)).collect();
        assert_eq!(distances(&before), renamed, "{}", spec.name);
        let rails = |a: &Assessment| a.hcas.iter().filter(|h| h.rail).filter_map(|h| h.pci).collect::<Vec<_>>();
        assert_eq!(rails(&before), rails(&after), "{}", spec.name);
    }
}

/// Seven of the sixteen ports of a DGX B200 may be dark.
#[test]
fn ports_that_serve_no_gpu_may_be_down() {
    for (name, dark) in [("dgx-b200", 7), ("dgx-a100", 3)] {
        let mut spec = machine(name);
        let rails: BTreeSet<_> = spec.lines("nearest").iter().flat_map(|l| l[2..].to_vec()).collect();
        let mut left = dark;
        for hca in spec.hcas.iter_mut().filter(|h| !rails.contains(&h.name)).take(dark) {
            hca.ports[0][1] = "DOWN".to_owned();
            left -= 1;
        }
        assert_eq!(left, 0, "{name}");
        assert_eq!(look(&spec).1.verdict.state.to_string(), "ready", "{name}");
    }
}
