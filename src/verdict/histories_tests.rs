//! Whole nodes over time: what is checked and looked at, second by second, and what is published.

use jiff::Timestamp;

use super::{
    fixture::{Scene, bare, refused, unknown},
    note_driver,
};
use crate::{
    config::Span,
    hardware::{Away, Surroundings},
    probe::{Step, protocol::End},
    report::{Code, NodeView, Outcome, Reason, State},
};

use State::{Degraded, NotReady, Ready, Unknown};

impl Scene {
    /// `cuInit` ends with this number for every GPU.
    fn no_cuda(&mut self, number: u32) {
        (0..8).for_each(|gpu| {
            self.stop(gpu, Step::Init, End::Refused(Some(Code::cuda(number, None))), Outcome::Unknown);
        });
    }

    /// The driver as it is from now on, noticed in that second.
    fn driver(&mut self, second: i64, version: Option<&str>) {
        let before = self.inventory.clone();
        let nvidia = Scene::new().inventory.nvidia.unwrap();
        self.inventory.nvidia =
            version.map(|version| crate::hardware::NvidiaModule { version: version.into(), ..nvidia });
        note_driver(&mut self.memory, &before, &self.inventory, Timestamp::from_second(second).unwrap());
    }

    fn reason(&self) -> Reason {
        self.memory.damping.published.as_ref().unwrap().reason
    }
}

/// A GPU fails in a check of that second, and in the next one.
fn falls_at(scene: &mut Scene, second: i64) {
    scene.break_gpu(0);
    assert_eq!(checks(scene, [second, second + 10]), [Ready, Degraded]);
}

/// A check in each of these seconds.
fn checks<const N: usize>(scene: &mut Scene, seconds: [i64; N]) -> [State; N] {
    seconds.map(|second| scene.check_at(second))
}

#[test]
fn what_is_carried_neither_lowers_nor_raises() {
    let mut scene = Scene::new();
    scene.check_at(0);
    scene.break_gpu(0);
    assert_eq!(scene.check_at(10), Ready, "one of two");
    (0..8).for_each(|gpu| scene.busy(gpu));
    assert_eq!(checks(&mut scene, [20, 30, 40]), [Ready; 3], "nobody saw it again");
    scene.break_gpu(0);
    assert_eq!(scene.check_at(50), Degraded);
    // And up: one good check, and then jobs, for longer than any hold.
    scene.verify_all();
    assert_eq!(scene.check_at(60), Degraded);
    (0..8).for_each(|gpu| scene.busy(gpu));
    assert_eq!(checks(&mut scene, [70, 80, 1000, 10_000]), [Degraded; 4]);
    scene.verify_all();
    assert_eq!(checks(&mut scene, [10_010, 10_020]), [Degraded, Ready], "the second and the third that saw it");
}

/// Nothing that is carried ends by a clock.
#[test]
fn a_job_of_three_days_changes_nothing() {
    for broken in [false, true] {
        let mut scene = Scene::new();
        if broken {
            scene.break_gpu(0);
            scene.check_at(-900);
        }
        let state = scene.check_at(0);
        assert_eq!(state, if broken { Degraded } else { Ready });
        (0..8).for_each(|gpu| scene.busy(gpu));
        for quarter in 1..=3 * 24 * 4 {
            assert_eq!(scene.check_at(quarter * 900), state, "after {quarter} quarters of an hour");
            assert_eq!(scene.look_at(quarter * 900 + 1), state);
        }
    }
}

/// Of 20 minutes, or as long as the policy says.
#[test]
fn after_an_unload_the_driver_has_its_time_and_no_more() {
    for (settle, minutes) in [(None, 20), (Some(Span::seconds(300)), 5)] {
        let mut scene = Scene::new();
        scene.config.policy.settle = settle.unwrap_or(scene.config.policy.settle);
        scene.check_at(0);
        let before = scene.inventory.clone();
        // Their functions stay.
        scene.inventory.present.extend(scene.inventory.hcas.drain(..).filter_map(|hca| hca.pci));
        scene.inventory.bare_functions = vec![bare("0000:18:00.0")];
        scene.verify_all();
        note_driver(&mut scene.memory, &before, &scene.inventory, Timestamp::from_second(1000).unwrap());
        let end = 1000 + minutes * 60;
        assert_eq!(checks(&mut scene, [1000, 1010, end - 1]), [Unknown; 3]);
        assert_eq!(scene.reason(), Reason::DriverNotReady);
        assert_eq!(checks(&mut scene, [end, end + 10]), [Unknown, NotReady], "confirmed as any fall is");
        assert_eq!(scene.reason(), Reason::NoRdmaDevices);
    }
}

/// What a driver that still loads explains, beside a port that has not come up yet.
#[test]
fn after_a_boot_each_part_of_a_driver_has_its_time() {
    type Change = fn(&mut Scene);
    let each: [(&str, Change); 5] = [
        ("a port alone", |_| {}),
        ("no driver", |scene| {
            scene.inventory.nvidia = None;
            scene.no_cuda(100);
        }),
        ("no fabric manager", |scene| scene.no_cuda(802)),
        ("no ib_uverbs", |scene| scene.inventory.uverbs = false),
        ("no mlx5_ib", |scene| {
            scene.inventory.hcas.clear();
            scene.inventory.bare_functions = vec![bare("0000:18:00.0")];
            let (loaded, loadable) = (["mlx5_core"].into(), Some(std::collections::BTreeSet::new()));
            scene.surroundings = Surroundings { loaded, loadable, ..Surroundings::default() };
        }),
    ];
    for (what, change) in each {
        let mut scene = Scene::new();
        scene.inventory.booted_at = Some(Timestamp::UNIX_EPOCH);
        scene.port(4, "DOWN");
        change(&mut scene);
        assert_eq!(checks(&mut scene, [60, 70, 1199]), [Unknown; 3], "{what}");
        assert_eq!(scene.reason(), Reason::DriverNotReady, "{what}");
        scene.check_at(1200);
        scene.check_at(1300);
        let state = scene.check_at(1400);
        assert!(matches!(state, Degraded | NotReady), "{what}: {state}");
    }
    // A GPU whose memory is broken is no driver that loads.
    let mut scene = Scene::new();
    scene.inventory.booted_at = Some(Timestamp::UNIX_EPOCH);
    scene.port(4, "DOWN");
    scene.stop(0, Step::Alloc, End::Refused(Some(Code::cuda(214, None))), Outcome::Failed);
    assert_eq!(checks(&mut scene, [60]), [Degraded]);
    assert_eq!(scene.reason(), Reason::GpuEccUncorrectable);
}

/// A driver container is replaced: neither a fall nor a hold, whether it comes back as it was or newer.
#[test]
fn a_driver_that_is_replaced_leads_through_unknown_and_back() {
    let version = Scene::new().inventory.nvidia.unwrap().version;
    for next in [version.as_str(), "999.1"] {
        let mut scene = Scene::new();
        scene.driver(0, Some(&version));
        assert_eq!(scene.check_at(1), Ready);
        scene.driver(100, None);
        scene.no_cuda(100);
        assert_eq!([scene.look_at(100), scene.check_at(101), scene.check_at(400)], [Unknown; 3], "{next}");
        // The ports go with the network driver, which is often replaced along with it.
        scene.port(4, "DOWN");
        scene.memory.active_in_boot.clear();
        assert_eq!(checks(&mut scene, [410, 420]), [Unknown; 2], "{next}");
        assert_eq!(scene.reason(), Reason::DriverNotReady, "{next}");
        scene.port(4, "ACTIVE");
        scene.driver(500, Some(next));
        scene.verify_all();
        assert_eq!(scene.check_at(501), Ready, "{next}: no hold, and one check is enough");
        assert!(scene.memory.damping.falls.is_empty());
    }
}

/// A cable that is pulled for less than `policy.portGrace` is nobody's business; three that were longer, within an
/// hour, are a rail that flaps: the way up takes twice the hold.
#[test]
fn a_rail_that_flaps_keeps_the_node_down() {
    let mut scene = Scene::new();
    scene.check_at(0);
    for start in [100, 200, 300] {
        scene.port(4, "DOWN");
        (start..start + 59).for_each(|second| assert_eq!(scene.look_at(second), Ready, "{second}"));
        scene.port(4, "ACTIVE");
        assert_eq!(scene.look_at(start + 59), Ready);
    }
    for (nth, start) in [1000, 2000, 3000].into_iter().enumerate() {
        scene.port(4, "DOWN");
        assert_eq!(
            [scene.look_at(start), scene.look_at(start + 59), scene.look_at(start + 60)],
            [Ready, Ready, Degraded]
        );
        assert_eq!(scene.reason(), Reason::PortDown);
        scene.port(4, "ACTIVE");
        let hold = if nth < 2 { 300 } else { 600 };
        let up = start + 60 + hold;
        assert_eq!(checks(&mut scene, [start + 70, start + 80, up - 1, up]), [Degraded, Degraded, Degraded, Ready]);
    }
}

/// Every VF is in a pod, and its PF is here: what was known of each stays.
#[test]
fn virtual_functions_in_pods_stay_what_they_were() {
    use crate::config::{Function, Selector};
    let mut scene = Scene::new();
    let pf = scene.inventory.hcas[0].clone();
    for hca in 1..8 {
        scene.inventory.hcas[hca].vf_of = pf.pci;
    }
    scene.config.check.select.hcas = vec![Selector { function: Some(Function::Vf), ..Selector::default() }];
    assert_eq!(scene.check_at(0), Ready);
    for hca in 1..8 {
        scene.inventory.hcas[hca].away = Some(Away::Device);
    }
    scene.rows.values_mut().for_each(|row| row.hcas.clear());
    assert_eq!(checks(&mut scene, [900, 1800, 90_000]), [Ready; 3]);
    // One comes back broken: it is seen, and the others are still what they were.
    scene.inventory.hcas[1].away = None;
    scene.verify_all();
    (0..8).for_each(|gpu| scene.set_both(gpu, 1, &refused(Step::RegMr, 12)));
    assert_eq!(checks(&mut scene, [90_010, 90_020]), [Ready, Degraded]);
}

/// All GPUs are served by others, and of one rail nobody knows.
#[test]
fn a_rail_that_nobody_could_try_makes_it_unknown() {
    let mut scene = Scene::new();
    (0..8).for_each(|gpu| scene.set_both(gpu, 0, &unknown(Step::Pd, Some(5))));
    assert_eq!(scene.check_at(0), Unknown);
    assert!(scene.assess().gpus.iter().all(|gpu| gpu.served == Some(true)));
    assert_eq!(scene.reason(), Reason::HcaGone);
}

#[test]
fn a_paused_node_says_nothing_and_is_what_it_was_afterwards() {
    let mut scene = Scene::new();
    scene.check_at(0);
    falls_at(&mut scene, 10);
    scene.node = Some(NodeView { paused_until: Timestamp::from_second(1000).ok(), ..NodeView::default() });
    assert_eq!([scene.look_at(30), scene.look_at(999)], [Unknown; 2]);
    scene.verify_all();
    assert_eq!(checks(&mut scene, [1000, 1010, 1020]), [Unknown, Unknown, Ready], "three checks and the hold");
}

/// What another clock once wrote holds nothing for days, and a clock that jumps ahead raises nothing by itself.
#[test]
fn a_clock_that_jumps_neither_holds_nor_proves() {
    let mut scene = Scene::new();
    scene.check_at(1_000_000);
    falls_at(&mut scene, 1_000_010);
    scene.verify_all();
    // Back by eleven days: the hold begins anew, and ends.
    assert_eq!(checks(&mut scene, [0, 10, 20, 299, 300]), [Degraded, Degraded, Degraded, Degraded, Ready]);
    falls_at(&mut scene, 310);
    scene.verify_all();
    assert_eq!(checks(&mut scene, [330, 10_000_000]), [Degraded; 2], "two checks, whatever the clock says");
    assert_eq!(scene.look_at(20_000_000), Degraded, "a look is no check");
    assert_eq!(scene.check_at(20_000_001), Ready);
}
