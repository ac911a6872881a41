//! Twelve nodes to get right. GB200 and other machines as their sysfs shows them: `tests/machines.rs`.

use super::fixture::{Scene, bare, refused, unsupported};
use crate::{
    hardware::{Away, HcaFacts, PciPath},
    probe::Step,
    report::{Method, Reason, Severity, State, TopologyKind, Transport},
};

fn judged(scene: &Scene) -> (State, Reason) {
    let verdict = scene.assess().verdict;
    (verdict.state, verdict.reason)
}

const READY: (State, Reason) = (State::Ready, Reason::AllRailsVerified);

/// Nothing louder than information.
fn is_quiet(scene: &Scene) -> bool {
    scene.assess().findings.iter().all(|finding| finding.severity == Severity::Info)
}

#[test]
fn n01_storage_ports_down() {
    let mut scene = Scene::new();
    let storage = HcaFacts {
        name: "mlx5_8".into(),
        pci: "0000:05:00.0".parse().ok(),
        ids: Some((0x15b3, 0x101d)),
        transport: Transport::Roce,
        path: PciPath::default(),
        ..scene.inventory.hcas[0].clone()
    };
    scene.inventory.hcas.push(storage);
    scene.port(8, "DOWN");
    scene.verify_all();
    assert_eq!(judged(&scene), READY, "it was never cabled");
    scene.memory.seen_active.insert("0000:05:00.0".into());
    assert_eq!(judged(&scene), READY, "and it is no rail");
    assert!(is_quiet(&scene));
}

#[test]
fn n02_a_rail_flapping() {
    use super::devices::{healthy, looked};
    use crate::{config::Damping, store::DeviceMemory};
    let (damping, mut memory) =
        (Damping::default(), DeviceMemory { good: true, port: true, ..DeviceMemory::default() });
    let at = |second: i64| jiff::Timestamp::from_second(1_800_000_000 + second).unwrap();
    // Down and up every five seconds for five minutes.
    let changes = (0..300_i64).filter(|second| {
        let before = healthy(&memory);
        looked(&mut memory, second / 5 % 2 == 0, &damping, at(*second));
        healthy(&memory) != before
    });
    assert_eq!(changes.count(), 5, "the third drop is held");
}

#[test]
fn n03_no_rdma() {
    let mut scene = Scene::new();
    scene.inventory.hcas.clear();
    scene.verify_all();
    assert_eq!(judged(&scene), (State::NotApplicable, Reason::NoRdmaHardware));
    assert!(is_quiet(&scene));
}

#[test]
fn n04_a_storage_node_without_gpu() {
    let mut scene = Scene::new();
    scene.inventory.gpus.clear();
    scene.verify_all();
    scene.port(0, "DOWN");
    assert_eq!(judged(&scene), (State::NotApplicable, Reason::NoGpu));
    assert!(scene.assess().findings.is_empty());
}

#[test]
fn n05_thirty_two_efa() {
    let mut scene = Scene::new();
    scene.grow(8, 32);
    for hca in &mut scene.inventory.hcas {
        hca.transport = Transport::Efa;
        hca.driver = Some("efa".into());
        hca.ports[0].state = "DOWN".into(); // a constant that says nothing
    }
    scene.set_all(Method::Peermem, &refused(Step::RegMr, 14));
    assert_eq!(judged(&scene), READY);
    assert!(is_quiet(&scene));
}

#[test]
fn n06_a_flat_vm() {
    let mut scene = Scene::new();
    scene.inventory.topology = TopologyKind::Virtual;
    for hca in &mut scene.inventory.hcas {
        (hca.path, hca.numa) = (PciPath::default(), None);
    }
    for gpu in &mut scene.inventory.gpus {
        (gpu.path, gpu.numa) = (PciPath::default(), None);
    }
    assert_eq!(judged(&scene), READY);
    assert!(is_quiet(&scene), "{:?}", scene.assess().findings);
}

#[test]
fn n08_a_driver_container_upgrading() {
    let mut scene = Scene::new();
    scene.finish_check();
    let before = scene.inventory.clone();
    scene.inventory.nvidia = None;
    scene.rows.clear();
    super::note_driver(&mut scene.memory, &before, &scene.inventory, jiff::Timestamp::UNIX_EPOCH);
    assert_eq!(judged(&scene).0, State::Unknown, "gone, and nobody's fault");
    scene.inventory.nvidia.clone_from(&before.nvidia);
    scene.inventory.nvidia.as_mut().unwrap().version = "999.1".into();
    assert_eq!(judged(&scene).0, State::Unknown, "another driver has proved nothing yet");
    scene.verify_all();
    assert_eq!(judged(&scene), READY);
}

#[test]
fn n09_busy_since_boot_and_training_for_three_days() {
    let mut scene = Scene::new();
    (0..8).for_each(|gpu| scene.busy(gpu));
    assert_eq!(judged(&scene), (State::Unknown, Reason::GpusBusySinceBoot));
    // Checked once before the job came: it stays what it was, for as long as that is.
    let mut scene = Scene::new();
    scene.finish_check();
    (0..8).for_each(|gpu| scene.busy(gpu));
    for _ in 0..3 * 24 * 4 {
        let verdict = scene.finish_check().verdict;
        assert_eq!((verdict.state, verdict.reason), READY);
    }
}

#[test]
fn n10_peermem_missing_with_dma_buf_fine() {
    let mut scene = Scene::new();
    scene.inventory.peermem = false;
    scene.set_all(Method::Peermem, &refused(Step::RegMr, 14));
    assert_eq!(judged(&scene), READY);
    assert!(is_quiet(&scene));
    // And the other way round.
    let mut scene = Scene::new();
    scene.set_all(Method::DmaBuf, &unsupported(Step::RegDmabuf, Some(95)));
    assert_eq!(judged(&scene), READY);
    assert!(is_quiet(&scene));
}

#[test]
fn n11_all_hcas_in_pods() {
    let mut scene = Scene::new();
    scene.finish_check();
    for hca in &mut scene.inventory.hcas {
        hca.away = Some(Away::Device);
    }
    scene.rows.values_mut().for_each(|row| row.hcas.clear());
    for _ in 0..10 {
        let verdict = scene.finish_check().verdict;
        assert_eq!((verdict.state, verdict.reason), READY, "as they were when they were seen");
    }
    // Never seen since boot: nothing is known of them, and nothing is wrong.
    let mut scene = Scene::new();
    scene.inventory.netns_exclusive = true;
    scene.inventory.hcas.clear();
    scene.inventory.bare_functions = vec![bare("0000:18:00.0")];
    scene.inventory.bare_functions[0].driver = Some("mlx5_core".into());
    scene.verify_all();
    let found = scene.assess().findings;
    assert!(found.iter().any(|finding| finding.reason == Reason::HcasInPods), "{found:?}");
    assert!(is_quiet(&scene));
}

#[test]
fn n12_a_gpu_off_the_bus_and_after_the_reboot() {
    let mut scene = Scene::new();
    scene.finish_check();
    scene.inventory.gpus[2].lost = true;
    assert_eq!(judged(&scene), (State::Degraded, Reason::GpuLost));
    scene.finish_check();
    scene.inventory.gpus.remove(2);
    scene.verify_all();
    assert_eq!(judged(&scene), (State::Degraded, Reason::HardwareMissing), "it did not come back");
}
