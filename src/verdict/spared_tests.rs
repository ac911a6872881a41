//! GPUs that were left alone: what part they play, what they are called, and what stays of before.

use super::fixture::Scene;
use crate::{
    probe::{Step, protocol::End},
    report::{GpuRole, Outcome, Reason, Severity, State},
    usage::Spared,
};

impl Scene {
    fn spare(&mut self, gpu: usize, why: Spared) {
        self.stop(gpu, Step::NvmlMode, End::Spared(why), Outcome::Skipped);
    }
}

const EACH: [(Spared, GpuRole, Reason); 4] = [
    (Spared::Busy, GpuRole::Eligible, Reason::GpuBusy),
    (Spared::Prohibited, GpuRole::Eligible, Reason::ComputeModeProhibited),
    (Spared::Mig, GpuRole::Mig, Reason::MigEnabled),
    (Spared::Confidential, GpuRole::Confidential, Reason::CcMode),
];

#[test]
fn one_of_eight_is_named_and_harms_nobody() {
    for (why, role, reason) in EACH {
        let mut scene = Scene::new();
        scene.spare(0, why);
        let assessment = scene.assess();
        assert_eq!((assessment.gpus[0].role, assessment.gpus[0].skipped), (role, Some(reason)), "{why:?}");
        assert_eq!(assessment.gpus[1].skipped, None);
        assert_eq!(assessment.verdict.state, State::Ready, "{why:?}: its neighbour proves the rails");
        let [finding] = &assessment.findings[..] else { panic!("{why:?}: {:?}", assessment.findings) };
        assert_eq!((finding.reason, &finding.gpus[..]), (reason, &[scene.inventory.gpus[0].pci][..]));
        assert!(finding.severity != Severity::Error, "{why:?}");
    }
}

#[test]
fn where_all_are_the_reason_is_the_true_one() {
    for (why, expected) in [
        (Spared::Busy, (State::Unknown, Reason::GpusBusySinceBoot)),
        (Spared::Prohibited, (State::Unknown, Reason::ComputeModeProhibited)),
        (Spared::Mig, (State::NotApplicable, Reason::MigEnabled)),
        (Spared::Confidential, (State::NotApplicable, Reason::CcMode)),
    ] {
        let mut scene = Scene::new();
        (0..8).for_each(|gpu| scene.spare(gpu, why));
        let verdict = scene.assess().verdict;
        assert_eq!((verdict.state, verdict.reason), expected, "{why:?}");
    }
    let mut scene = Scene::new();
    (0..7).for_each(|gpu| scene.spare(gpu, Spared::Busy));
    scene.spare(7, Spared::Prohibited);
    assert_eq!(scene.assess().verdict.reason, Reason::ComputeModeProhibited, "not all are in use");
}

/// A job that comes, good or bad as its GPU was, changes nothing of what is known; and what was bad
/// does not count again.
#[test]
fn the_last_outcome_stays() {
    for bad in [false, true] {
        let mut scene = Scene::new();
        if bad {
            scene.break_gpu(0);
        }
        let before = scene.finish_check();
        (0..8).for_each(|gpu| scene.spare(gpu, Spared::Busy));
        for _ in 0..5 {
            let assessment = scene.finish_check();
            assert_eq!(assessment.verdict.state, before.verdict.state);
            assert_eq!(assessment.pairs[0].good, Some(!bad));
            assert!(assessment.pairs[0].checked_at.is_some(), "its age shows");
            assert_eq!(assessment.gpus[0].skipped, Some(Reason::GpuBusy));
        }
    }
}

/// Whether a GPU without GPUDirect counts must not depend on whether it is in use.
#[test]
fn an_incapable_gpu_stays_so_while_it_is_in_use() {
    let mut scene = Scene::new();
    let told = |scene: &mut Scene, has: Option<bool>| {
        for gpu in 0..8 {
            (scene.row(gpu).gpu.gdr, scene.row(gpu).gpu.dma_buf) = (has, has);
        }
    };
    told(&mut scene, Some(false));
    let incapable = (State::NotApplicable, Reason::GpuGdrUnsupported);
    let verdict = scene.finish_check().verdict;
    assert_eq!((verdict.state, verdict.reason), incapable);
    told(&mut scene, None);
    scene.silent(0);
    scene.finish_check();
    (0..8).for_each(|gpu| scene.spare(gpu, Spared::Busy));
    for _ in 0..3 {
        let verdict = scene.finish_check().verdict;
        assert_eq!((verdict.state, verdict.reason), incapable);
    }
    // Another driver may know better, and so may the GPU when it is asked again.
    let mut newer = scene.inventory.clone();
    newer.nvidia.as_mut().unwrap().version = "999.1".to_owned();
    let old = std::mem::replace(&mut scene.inventory, newer);
    assert_eq!(scene.assess().verdict.reason, Reason::GpusBusySinceBoot);
    scene.inventory = old;
    scene.verify_all();
    assert_eq!(scene.finish_check().verdict.state, State::Ready);
    told(&mut scene, None);
    (0..8).for_each(|gpu| scene.spare(gpu, Spared::Busy));
    assert_eq!(scene.assess().gpus[0].role, GpuRole::Eligible, "that it was incapable is forgotten");
}
