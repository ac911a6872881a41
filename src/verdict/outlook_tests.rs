//! What hardware there should be: the baseline, what the configuration expects, and what a person accepts.

use jiff::Timestamp;

use super::{
    accept,
    fixture::{Scene, bare},
    forget_another_driver, note_driver,
};
use crate::{
    config::Expect,
    hardware::NvidiaModule,
    report::{NodeView, Reason, State},
};

/// After a check that saw eight GPUs and eight HCAs.
fn grown() -> Scene {
    let mut scene = Scene::new();
    scene.inventory.machine.serial = Some("S1".into());
    scene.finish_check();
    scene
}

fn judged(scene: &Scene) -> (State, Reason) {
    let verdict = scene.assess().verdict;
    (verdict.state, verdict.reason)
}

fn expecting(entry: Expect) -> Scene {
    let mut scene = Scene::new();
    scene.config.policy.expect = vec![entry];
    scene
}

#[test]
fn a_gpu_that_is_gone_after_the_reboot_is_missed() {
    let mut scene = grown();
    let gone = scene.inventory.gpus.remove(3).pci;
    scene.verify_all();
    assert_eq!(judged(&scene), (State::Degraded, Reason::HardwareMissing));
    let finding = scene.assess().findings.remove(0);
    assert!(
        finding.evidence[0].contains(&format!("7 of 8 GPUs 10de:2330; not in PCI any more: {gone}")),
        "{finding:?}"
    );
    scene.finish_check();
    assert_eq!(judged(&scene), (State::Degraded, Reason::HardwareMissing), "a check without it forgets nothing");
    accept(&mut scene.memory, &scene.inventory);
    assert_eq!(judged(&scene), (State::Ready, Reason::AllRailsVerified));
}

#[test]
fn a_node_that_lost_all_of_them_is_not_ready_and_not_silent() {
    let mut scene = grown();
    scene.inventory.gpus.clear();
    scene.verify_all();
    assert_eq!(judged(&scene), (State::NotReady, Reason::HardwareMissing));
    let mut scene = grown();
    scene.inventory.hcas.clear();
    scene.verify_all();
    assert_eq!(judged(&scene), (State::NotReady, Reason::HardwareMissing));
}

#[test]
fn another_machine_begins_anew() {
    let mut scene = grown();
    scene.inventory.machine.serial = Some("S2".into());
    scene.inventory.gpus.truncate(4);
    scene.verify_all();
    assert_eq!(judged(&scene).0, State::Ready, "a store on a disk that moved");
    scene.finish_check();
    assert_eq!(scene.memory.baseline.as_ref().unwrap().gpus["10de:2330"].len(), 4);
    // Without serial numbers it is taken for the same.
    scene.inventory.machine.serial = None;
    scene.inventory.gpus.truncate(2);
    scene.verify_all();
    assert_eq!(judged(&scene).1, Reason::HardwareMissing);
}

/// Only a port that was seen ACTIVE can be down, whatever else was checked or accepted.
#[test]
fn a_dead_port_is_never_remembered_as_active() {
    let mut scene = grown();
    scene.memory.seen_active.clear();
    scene.port(0, "DOWN");
    scene.finish_check();
    assert_eq!(judged(&scene).0, State::Ready, "a check ended");
    accept(&mut scene.memory, &scene.inventory);
    assert_eq!(judged(&scene).0, State::Ready, "a person took it so");
    scene.port(2, "DOWN");
    assert_eq!(judged(&scene), (State::Degraded, Reason::PortDown), "and the others were");
}

/// A port that was ACTIVE in one machine says nothing of another, and outlives a store without a baseline.
#[test]
fn what_was_active_belongs_to_its_machine() {
    let mut scene = grown();
    scene.memory.active_in_boot.clear();
    scene.inventory.machine.serial = Some("S2".into());
    scene.port(0, "DOWN");
    scene.finish_check();
    assert_eq!(judged(&scene).0, State::Ready);
    let mut scene = Scene::new();
    scene.memory.active_in_boot.clear();
    scene.port(0, "DOWN");
    scene.finish_check();
    assert_eq!(judged(&scene), (State::Degraded, Reason::PortDown));
}

/// Firmware that shows no serial number for once makes no other machine the same.
#[test]
fn a_serial_number_is_kept() {
    let mut scene = grown();
    scene.inventory.machine.serial = None;
    scene.finish_check();
    scene.inventory.machine.serial = Some("S2".into());
    scene.inventory.gpus.truncate(4);
    scene.verify_all();
    assert_eq!(judged(&scene).0, State::Ready);
}

/// A driver that is not loaded, a slot that changed and virtual functions take no hardware away.
#[test]
fn what_only_looks_like_less_is_not_missed() {
    let mut scene = grown();
    let function = scene.inventory.hcas[0].clone();
    scene.inventory.hcas.remove(0);
    let mut without_device = bare(&function.key());
    without_device.ids = function.ids;
    scene.inventory.bare_functions.push(without_device);
    assert!(scene.assess().findings.iter().all(|f| f.reason != Reason::HardwareMissing), "no RDMA device");
    scene.inventory.bare_functions.clear();
    scene.inventory.present.insert(function.pci.unwrap());
    assert!(scene.assess().findings.iter().all(|f| f.reason != Reason::HardwareMissing), "a driver nobody knows");

    let mut scene = grown();
    scene.inventory.hcas[7].pci = "0000:f0:00.0".parse().ok();
    scene.finish_check();
    assert!(scene.memory.baseline.unwrap().hcas["15b3:1021"].contains(&"0000:f0:00.0".to_owned()), "another slot");

    let mut scene = Scene::new();
    scene.inventory.hcas[7].vf_of = "0000:f0:00.0".parse().ok();
    scene.finish_check();
    scene.inventory.hcas.pop();
    assert!(scene.assess().findings.iter().all(|f| f.reason != Reason::HardwareMissing), "virtual functions");
}

#[test]
fn the_configuration_expects_by_number() {
    for (gpus, rails, state) in [
        (Some(8), Some(8), State::Ready),
        (Some(4), None, State::Ready),
        (Some(9), None, State::Degraded),
        (None, Some(9), State::Degraded),
    ] {
        let scene = expecting(Expect { gpus, rails, ..Expect::default() });
        assert_eq!(judged(&scene).0, state, "{gpus:?} {rails:?}");
    }
    // What is expected and not there at all is not "does not apply"; what is expected to be none is.
    for (expected, state) in [(Some(8), State::NotReady), (Some(0), State::NotApplicable), (None, State::NotApplicable)]
    {
        let mut scene = expecting(Expect { gpus: expected, ..Expect::default() });
        scene.inventory.gpus.clear();
        scene.rows.clear();
        assert_eq!(judged(&scene).0, state, "of no GPUs {expected:?}");
        let mut scene = expecting(Expect { rails: expected, ..Expect::default() });
        scene.inventory.hcas.clear();
        scene.verify_all();
        assert_eq!(judged(&scene).0, state, "of no HCAs {expected:?}");
    }
    let scene = expecting(Expect { gpus: Some(9), ..Expect::default() });
    let finding = scene.assess().findings.remove(0);
    assert!(finding.evidence[0].contains("policy.expect[0] asks for 9 GPUs, and 8 are here"), "{finding:?}");
}

#[test]
fn the_first_entry_that_speaks_of_this_node_holds() {
    let entry = |model: Option<&str>, product: Option<&str>, label: Option<&str>| Expect {
        gpu_model: model.map(Into::into),
        product: product.map(Into::into),
        node_labels: label.map(|value| ("pool".to_owned(), value.to_owned())).into_iter().collect(),
        gpus: Some(9),
        rails: None,
    };
    for (expect, holds) in [
        (entry(Some("*H100*"), None, None), true),
        (entry(Some("*A100*"), None, None), false),
        (entry(None, Some("PowerEdge*"), None), true),
        (entry(None, Some("ProLiant*"), None), false),
        (entry(None, None, Some("train")), true),
        (entry(None, None, Some("serve")), false),
        (entry(Some("*H100*"), Some("PowerEdge*"), Some("serve")), false),
    ] {
        let mut scene = expecting(expect.clone());
        scene.inventory.machine.product = Some("PowerEdge XE9680".into());
        scene.node = Some(NodeView { labels: [("pool".into(), "train".into())].into(), ..NodeView::default() });
        assert_eq!(judged(&scene).0 == State::Degraded, holds, "{expect:?}");
        scene.node = None;
        assert_eq!(judged(&scene).0 == State::Degraded, holds && expect.node_labels.is_empty(), "labels not known yet");
    }
    let mut scene = expecting(entry(Some("*A100*"), None, None));
    scene.config.policy.expect.push(Expect { gpus: Some(8), ..Expect::default() });
    assert_eq!(judged(&scene).0, State::Ready);
}

/// What was never meant to be is no rail that is missing; the baseline is silent.
#[test]
fn what_is_expected_replaces_the_baseline_and_a_missing_rail() {
    let dead_cable = |scene: &mut Scene| {
        for hca in [0, 1] {
            scene.port(hca, "DOWN");
            let key = scene.inventory.hcas[hca].key();
            scene.memory.seen_active.remove(&key);
        }
    };
    let mut scene = Scene::new();
    dead_cable(&mut scene);
    assert_eq!(judged(&scene), (State::Degraded, Reason::RailMissing), "dead since bring-up beside its siblings");
    let mut scene = expecting(Expect { rails: Some(6), ..Expect::default() });
    dead_cable(&mut scene);
    assert_eq!(judged(&scene), (State::Ready, Reason::AllRailsVerified));
    scene.config.policy.expect[0].rails = Some(8);
    assert_eq!(judged(&scene).0, State::Degraded);

    let mut scene = grown();
    scene.config.policy.expect = vec![Expect { gpus: Some(7), ..Expect::default() }];
    scene.inventory.gpus.remove(0);
    scene.verify_all();
    assert_eq!(judged(&scene).0, State::Ready);
}

#[test]
fn a_paused_node_says_so_until_then() {
    let mut scene = Scene::new();
    let until = |second| Some(NodeView { paused_until: Timestamp::from_second(second).ok(), ..NodeView::default() });
    scene.node = until(1);
    assert_eq!(judged(&scene), (State::Unknown, Reason::Paused));
    scene.node = until(0);
    assert_eq!(judged(&scene).0, State::Ready, "the time has come");
    scene.inventory.gpus.clear();
    scene.node = until(1);
    assert_eq!(judged(&scene).0, State::NotApplicable, "nothing is paused there");
}

/// Only what an absent driver explains is excused, and only while labels say so, or for a while afterwards.
#[test]
fn a_change_under_way_is_no_fault() {
    let mut scene = Scene::new();
    let under_way = NodeView { change_under_way: Some("x".into()), ..NodeView::default() };
    let before = scene.inventory.clone();
    scene.inventory.bare_functions = vec![bare("0000:18:00.0")];
    scene.inventory.hcas.clear();
    scene.verify_all();
    assert_eq!(judged(&scene), (State::NotReady, Reason::NoRdmaDevices));
    scene.node = Some(under_way.clone());
    assert_eq!(judged(&scene), (State::Unknown, Reason::DriverNotReady));
    scene.node = None;
    note_driver(&mut scene.memory, &before, &scene.inventory, Timestamp::UNIX_EPOCH);
    assert_eq!(judged(&scene), (State::Unknown, Reason::DriverNotReady), "it was unloaded a moment ago");

    let mut scene = Scene::new();
    scene.node = Some(under_way);
    scene.break_gpu(0);
    assert_eq!(judged(&scene).0, State::Degraded, "a refused registration is none of it");
}

/// What spoke against a state under the old driver says nothing under the new one.
#[test]
fn another_driver_ends_count_and_hold() {
    let mut scene = Scene::new();
    let before = scene.inventory.clone();
    note_driver(&mut scene.memory, &before, &before, Timestamp::UNIX_EPOCH);
    scene.memory.damping.fell_at = Some(Timestamp::UNIX_EPOCH);
    note_driver(&mut scene.memory, &before, &before, Timestamp::UNIX_EPOCH);
    assert!(scene.memory.damping.fell_at.is_some() && scene.memory.driver_changed_at.is_none(), "the same");
    scene.inventory.nvidia = None;
    note_driver(&mut scene.memory, &before, &scene.inventory, Timestamp::UNIX_EPOCH);
    assert!(scene.memory.damping.fell_at.is_some(), "it may come back as it was");
    let gone = scene.inventory.clone();
    scene.inventory.nvidia = Some(NvidiaModule { version: "999.1".into(), open: true });
    note_driver(&mut scene.memory, &gone, &scene.inventory, Timestamp::UNIX_EPOCH);
    assert!(scene.memory.damping.fell_at.is_none());
}

/// The driver was replaced while no agent ran.
#[test]
fn what_was_published_under_another_driver_is_not_known_any_more() {
    let mut scene = grown();
    let (before, version) = (scene.inventory.clone(), "570.133.20");
    note_driver(&mut scene.memory, &before, &before, Timestamp::UNIX_EPOCH);
    let verdict = scene.assess().verdict;
    scene.memory.damping.published = Some(verdict);
    forget_another_driver(&mut scene.memory, &before);
    assert!(scene.memory.damping.published.is_some(), "{version} it was, and is");
    scene.inventory.nvidia = None;
    forget_another_driver(&mut scene.memory, &scene.inventory);
    assert!(scene.memory.damping.published.is_some(), "it may still be loading");
    scene.inventory.nvidia = Some(NvidiaModule { version: "999.1".into(), open: true });
    forget_another_driver(&mut scene.memory, &scene.inventory);
    assert!(scene.memory.damping.published.is_none());
}
