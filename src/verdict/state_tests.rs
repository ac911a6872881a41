//! What explains a state away, and what does not: settling, GPUs that were never meant to be served, GPUs whose HCAs
//! are elsewhere; and which HCAs count as near.

use jiff::Timestamp;

use super::fixture::{Scene, refused, unknown, unsupported};
use crate::{
    config::Expect,
    hardware::{Away, HcaFacts, PciPath, Surroundings},
    probe::{Step, protocol::End},
    report::{Code, Method, Outcome, Reason, Severity, State, Transport},
};

fn judged(scene: &Scene) -> (State, Reason) {
    let verdict = scene.assess().verdict;
    (verdict.state, verdict.reason)
}

const READY: (State, Reason) = (State::Ready, Reason::AllRailsVerified);
const SETTLING: (State, Reason) = (State::Unknown, Reason::DriverNotReady);

/// The closed driver has no dma-buf, and its peermem is built and loaded after it.
#[test]
fn whatever_keeps_peermem_away_settles_beside_a_driver_without_dma_buf() {
    type Around = fn(&mut Surroundings);
    let around: [(Reason, Around); 4] = [
        (Reason::PeermemNotLoaded, |_| {}),
        (Reason::PeermemModuleMissing, |around| around.loadable = Some(std::collections::BTreeSet::new())),
        (Reason::KernelLacksPeerMemory, |around| around.peer_interface = Some(false)),
        (Reason::PeermemSymbolMismatch, |around| {
            around.log.push("disagrees about version of symbol ib_register_peer_memory_client".to_owned());
        }),
    ];
    for lacks in [unsupported(Step::Export, None), unsupported(Step::RegDmabuf, Some(95))] {
        for (reason, change) in around {
            let mut scene = Scene::new();
            scene.inventory.peermem = false;
            scene.set_all(Method::DmaBuf, &lacks);
            scene.set_all(Method::Peermem, &refused(Step::RegMr, 14));
            change(&mut scene.surroundings);
            assert_eq!(judged(&scene), (State::NotReady, reason), "booted long ago");
            scene.inventory.booted_at = Some(Timestamp::UNIX_EPOCH);
            assert_eq!(judged(&scene), SETTLING, "{reason}");
        }
    }
}

/// Every reason that a kernel without a method is refined to settles as what it was refined from.
#[test]
fn a_kernel_without_an_option_settles_too() {
    for (lacks, option, reason) in [
        (unsupported(Step::Export, None), "CONFIG_PCI_P2PDMA", Reason::KernelWithoutP2pdma),
        (unsupported(Step::RegDmabuf, Some(95)), "CONFIG_INFINIBAND_ON_DEMAND_PAGING", Reason::KernelWithoutOdp),
    ] {
        let mut scene = Scene::new();
        scene.inventory.peermem = false;
        scene.surroundings.options.insert(option, false);
        scene.set_all(Method::DmaBuf, &lacks);
        scene.set_all(Method::Peermem, &refused(Step::RegMr, 14));
        assert!(scene.assess().findings.iter().any(|finding| finding.reason == reason), "{reason}");
        scene.inventory.booted_at = Some(Timestamp::UNIX_EPOCH);
        assert_eq!(judged(&scene), SETTLING, "{reason}");
    }
}

/// No module that comes makes another refusal good.
#[test]
fn a_driver_without_dma_buf_settles_beside_nothing_else() {
    let mut scene = Scene::new();
    scene.inventory.booted_at = Some(Timestamp::UNIX_EPOCH);
    scene.set_all(Method::DmaBuf, &unsupported(Step::Export, None));
    scene.set_all(Method::Peermem, &refused(Step::RegMr, 14));
    assert_eq!(judged(&scene), (State::NotReady, Reason::PeermemRefused), "the module is there");
}

mod excused {
    use super::*;

    /// The first GPU's adapters were never cabled, and six rails are all that is asked for.
    fn scene() -> Scene {
        let mut scene = Scene::new();
        for hca in [0, 1] {
            scene.port(hca, "DOWN");
            let key = scene.inventory.hcas[hca].key();
            scene.memory.seen_active.remove(&key);
        }
        scene.config.policy.expect = vec![Expect { gpus: Some(8), rails: Some(6), ..Expect::default() }];
        scene
    }

    #[test]
    fn what_another_device_has_is_none_of_it() {
        let mut scene = scene();
        scene.set_both(2, 7, &refused(Step::RegMr, 12)); // far from each other: it does not count
        let findings = scene.assess().findings;
        assert!(
            findings.iter().any(|finding| finding.hcas == ["mlx5_7"] && finding.severity == Severity::Error),
            "{findings:?}"
        );
        assert_eq!(judged(&scene), READY);
    }

    #[test]
    fn a_gpu_that_is_broken_itself_is_not() {
        let mut scene = scene();
        let code = Code::cuda(214, Some("CUDA_ERROR_ECC_UNCORRECTABLE".into()));
        scene.stop(0, Step::Alloc, End::Refused(Some(code)), Outcome::Failed);
        assert_eq!(judged(&scene), (State::Degraded, Reason::GpuEccUncorrectable));
    }
}

/// A GPU was in use when its HCAs were checked, and is free when a pod has them: nobody can tell more of its pairs
/// than that its rails are good with others.
#[test]
fn pairs_that_nobody_can_try_are_skipped_whatever_others_have() {
    let mut scene = Scene::new();
    scene.busy(0);
    assert_eq!(scene.finish_check().verdict.state, State::Ready);
    scene.verify_all();
    for hca in [0, 1] {
        scene.inventory.hcas[hca].away = Some(Away::Device);
        let name = scene.inventory.hcas[hca].name.clone();
        scene.rows.values_mut().for_each(|row| drop(row.hcas.remove(&name)));
    }
    let assessment = scene.assess();
    assert_eq!((assessment.gpus[0].served, assessment.gpus[1].served), (None, Some(true)));
    assert_eq!(judged(&scene), READY);
}

#[test]
fn a_rail_that_is_bad_with_all_is_not_counted_as_good() {
    let mut scene = Scene::new();
    (0..8).for_each(|gpu| scene.set_both(gpu, 7, &refused(Step::RegMr, 12)));
    let message = scene.assess().verdict.message;
    assert!(message.starts_with("7 of 8 rails, 8 of 8 GPUs served; "), "{message}");
}

/// Some kept shut are no rails; where all are, nothing says that they are none.
#[test]
fn a_sandbox_that_keeps_all_shut_takes_no_rail_away() {
    let mut scene = Scene::new();
    let mut rails = |shut: usize| {
        let hcas = 0..shut;
        hcas.for_each(|hca| (0..8).for_each(|gpu| scene.set_both(gpu, hca, &unknown(Step::Open, Some(1)))));
        scene.assess().hcas.iter().filter(|hca| hca.rail).count()
    };
    assert_eq!([rails(1), rails(8)], [7, 8]);
}

/// Nearer than every rail, and of another kind: a storage adapter without a cable is no way to the network.
#[test]
fn an_idle_adapter_of_another_kind_is_never_nearest() {
    let mut scene = Scene::new();
    let storage = HcaFacts {
        name: "mlx5_8".into(),
        pci: "0000:05:00.0".parse().ok(),
        ids: Some((0x15b3, 0x101d)),
        transport: Transport::Roce,
        ..scene.inventory.hcas[0].clone()
    };
    for hca in [0, 1] {
        scene.inventory.hcas[hca].path = PciPath::default();
    }
    scene.inventory.hcas.push(storage);
    scene.port(8, "DOWN");
    scene.verify_all();
    let nearest = scene.assess().gpus[0].nearest.clone();
    assert!(!nearest.is_empty() && !nearest.contains(&"mlx5_8".to_owned()), "{nearest:?}");
    assert_eq!(judged(&scene), READY);
}
