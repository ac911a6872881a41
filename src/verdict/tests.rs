//! The state's table row by row, what open pairs carry, and damping as histories.

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::{
    accept,
    damping::{Seen, step},
    fixture::{Scene, bare, finding, refused, result, unsupported},
};
use crate::{
    config::{Config, Pairs, Selector, Span},
    diagnosis::entry,
    probe::Step,
    report::{HcaRole, Method, Outcome, Reason, Severity, State, Transport, Verdict},
    store::Damping,
};

fn judged(scene: &Scene) -> (State, Reason) {
    let verdict = scene.assess().verdict;
    (verdict.state, verdict.reason)
}

mod table {
    use super::*;

    #[test]
    fn all_verified_is_ready() {
        let assessment = Scene::new().assess();
        assert_eq!((assessment.verdict.state, assessment.verdict.reason), (State::Ready, Reason::AllRailsVerified));
        assert_eq!(assessment.verdict.message, "8 of 8 rails, 8 of 8 GPUs served");
        assert_eq!(assessment.findings, []);
    }

    #[test]
    fn one_method_is_enough() {
        let mut scene = Scene::new();
        scene.set_all(Method::Peermem, &refused(Step::RegMr, 14));
        assert_eq!(judged(&scene).0, State::Ready);
        scene.config.check.methods = vec![Method::Peermem];
        assert_eq!(judged(&scene).0, State::NotReady, "the other one is not wanted");
    }

    #[test]
    fn without_gpus_it_is_not_applicable() {
        let mut scene = Scene::new();
        scene.inventory.gpus.clear();
        assert_eq!(judged(&scene), (State::NotApplicable, Reason::NoGpu));
    }

    #[test]
    fn gpus_of_other_parts_are_not_applicable() {
        let mut scene = Scene::new();
        scene.inventory.gpus.iter_mut().for_each(|g| g.bound_to = Some("vfio-pci".into()));
        assert_eq!(judged(&scene), (State::NotApplicable, Reason::GpuPassedThrough));
        let mut scene = Scene::new();
        (0..8).for_each(|g| (scene.row(g).gpu.gdr, scene.row(g).gpu.dma_buf) = (Some(false), Some(false)));
        assert_eq!(judged(&scene), (State::NotApplicable, Reason::GpuGdrUnsupported));
    }

    #[test]
    fn without_rdma_hardware_it_is_not_applicable_but_a_bare_function_is_hardware() {
        let mut scene = Scene::new();
        scene.truncate(8, 0);
        assert_eq!(judged(&scene), (State::NotApplicable, Reason::NoRdmaHardware));
        scene.inventory.bare_functions = vec![bare("0000:18:00.0")];
        assert_eq!(judged(&scene), (State::NotReady, Reason::NoRdmaDevices));
    }

    /// Nothing is held against a driver that is still loading.
    #[test]
    fn shortly_after_boot_what_a_missing_driver_explains_is_not_known() {
        let mut scene = Scene::new();
        scene.inventory.peermem = false;
        scene.set_all(Method::DmaBuf, &unsupported(Step::Export, None));
        scene.set_all(Method::Peermem, &refused(Step::RegMr, 14));
        assert_eq!(judged(&scene), (State::NotReady, Reason::PeermemNotLoaded), "booted long ago");
        scene.inventory.booted_at = Some(Timestamp::UNIX_EPOCH);
        assert_eq!(judged(&scene), (State::Unknown, Reason::DriverNotReady));
        scene.set_both(0, 0, &refused(Step::RegMr, 12));
        assert_eq!(judged(&scene).0, State::NotReady, "a refusal for another cause is no driver that loads");
    }

    #[test]
    fn shortly_after_boot_a_port_that_was_active_since_is_down_all_the_same() {
        let mut scene = Scene::new();
        scene.inventory.booted_at = Some(Timestamp::UNIX_EPOCH);
        scene.port(4, "DOWN");
        assert_eq!(judged(&scene), (State::Unknown, Reason::DriverNotReady));
        let key = scene.inventory.hcas[4].key();
        scene.memory.saw_active([key]);
        assert_eq!(judged(&scene), (State::Degraded, Reason::PortDown));
    }

    #[test]
    fn ordinary_ethernet_without_any_method_is_not_configured() {
        let mut scene = Scene::new();
        scene.inventory.peermem = false;
        scene.set_all(Method::DmaBuf, &unsupported(Step::Export, None));
        scene.set_all(Method::Peermem, &refused(Step::RegMr, 14));
        for hca in &mut scene.inventory.hcas {
            hca.transport = Transport::Roce;
            hca.ports[0].rate_gbps = Some(25.0.into());
        }
        assert_eq!(judged(&scene), (State::NotReady, Reason::NotConfigured));
        assert!(scene.assess().findings.iter().all(|f| f.severity == Severity::Info));
        scene.finish_check();
        assert_eq!(judged(&scene).1, Reason::NotConfigured, "a check in which nothing worked makes it no fault");
        scene.inventory.hcas[0].ports[0].rate_gbps = Some(400.0.into());
        assert_eq!(judged(&scene), (State::NotReady, Reason::PeermemNotLoaded), "nobody buys that for nothing");
    }

    /// Where it worked once, a module that is not loaded any more is a fault, in this boot and the next.
    #[test]
    fn what_worked_once_was_configured() {
        let mut scene = Scene::new();
        for hca in &mut scene.inventory.hcas {
            hca.transport = Transport::Roce;
            hca.ports[0].rate_gbps = Some(25.0.into());
        }
        scene.finish_check();
        scene.memory.pairs.clear(); // another boot
        scene.inventory.peermem = false;
        scene.set_all(Method::DmaBuf, &unsupported(Step::Export, None));
        scene.set_all(Method::Peermem, &refused(Step::RegMr, 14));
        scene.finish_check();
        assert_eq!(judged(&scene), (State::NotReady, Reason::PeermemNotLoaded));
        accept(&mut scene.memory, &scene.inventory);
        assert_eq!(judged(&scene), (State::NotReady, Reason::NotConfigured), "somebody wants it so");
    }

    #[test]
    fn before_a_check_has_finished_nothing_is_known() {
        let mut scene = Scene::new();
        scene.rows.clear();
        scene.checked = false;
        assert_eq!(judged(&scene), (State::Unknown, Reason::CheckPending));
    }

    #[test]
    fn all_gpus_unserved_is_not_ready_and_some_is_degraded() {
        let mut scene = Scene::new();
        for gpu in 0..8 {
            scene.break_gpu(gpu);
            let expected = if gpu < 7 { State::Degraded } else { State::NotReady };
            assert_eq!(judged(&scene).0, expected, "{} GPUs", gpu + 1);
        }
    }

    #[test]
    fn one_bad_pair_degrades_where_it_counts() {
        let mut scene = Scene::new();
        scene.set_both(0, 7, &refused(Step::RegMr, 12));
        assert_eq!(judged(&scene).0, State::Ready, "far away, it does not count");
        scene.config.policy.pairs = Pairs::All;
        assert_eq!(judged(&scene).0, State::Degraded, "all pairs count");
        let mut scene = Scene::new();
        scene.set_both(0, 1, &refused(Step::RegMr, 12));
        assert_eq!(judged(&scene).0, State::Degraded);
    }

    #[test]
    fn a_rail_that_lost_its_port_degrades() {
        let mut scene = Scene::new();
        scene.port(4, "DOWN");
        assert_eq!(judged(&scene), (State::Degraded, Reason::PortDown));
        (0..8).for_each(|hca| scene.port(hca, "DOWN"));
        assert_eq!(judged(&scene), (State::NotReady, Reason::PortDown));
    }

    /// A cable that was dead since bring-up looks like that beside its siblings.
    #[test]
    fn a_port_that_never_was_active_is_no_rail_unless_a_gpu_needs_it() {
        let mut scene = Scene::new();
        scene.memory.seen_active.clear();
        scene.port(0, "DOWN");
        let assessment = scene.assess();
        assert_eq!((assessment.hcas[0].role, assessment.hcas[0].rail), (HcaRole::Idle, false));
        assert_eq!(assessment.verdict.state, State::Ready, "its neighbour serves both GPUs");
        scene.port(1, "DOWN");
        assert_eq!(judged(&scene), (State::Degraded, Reason::RailMissing), "and no far one stands in");
    }

    #[test]
    fn a_lost_gpu_degrades() {
        let mut scene = Scene::new();
        scene.inventory.gpus[3].lost = true;
        let pci = scene.inventory.gpus[3].pci;
        scene.rows.remove(&pci);
        assert_eq!(judged(&scene), (State::Degraded, Reason::GpuLost));
    }

    /// A row says of what was not tried why it was not.
    #[test]
    fn what_has_no_answer_says_why() {
        let mut scene = Scene::new();
        scene.rows.clear();
        scene.inventory.gpus[3].lost = true;
        scene.config.check.methods = vec![Method::DmaBuf];
        let assessment = scene.assess();
        let of = |gpu: usize| assessment.pairs.iter().find(|pair| pair.gpu == scene.inventory.gpus[gpu].pci).unwrap();
        assert_eq!((of(0).dma_buf.outcome, of(0).peermem.outcome), (Outcome::Unknown, Outcome::Skipped));
        assert_eq!((of(3).dma_buf.outcome, of(3).dma_buf.step.as_deref()), (Outcome::Failed, Some("config space")));
        scene.config.check.select.hcas = vec![Selector { name: Some("mlx5_1".into()), ..Selector::default() }];
        let pairs = scene.assess().pairs;
        let excluded: Vec<_> =
            pairs.iter().filter(|pair| pair.gpu != scene.inventory.gpus[3].pci && pair.hca != "mlx5_1").collect();
        assert!(excluded.iter().all(|pair| pair.dma_buf.outcome == Outcome::Skipped), "{excluded:?}");
    }

    #[test]
    fn an_open_gpu_makes_it_unknown_but_a_bad_one_weighs_more() {
        let mut scene = Scene::new();
        scene.silent(0);
        assert_eq!(judged(&scene), (State::Unknown, Reason::ProbeTimeout));
        scene.set_both(2, 2, &refused(Step::RegMr, 12));
        assert_eq!(judged(&scene).0, State::Degraded);
    }

    #[test]
    fn busy_gpus_do_no_harm_while_a_neighbour_proves_their_rails() {
        let mut scene = Scene::new();
        scene.busy(0);
        let verdict = scene.assess().verdict;
        assert_eq!((verdict.state, verdict.reason), (State::Ready, Reason::AllRailsVerified));
        assert!(verdict.message.ends_with("; 1 in use and not checked"), "{}", verdict.message);
        scene.busy(1);
        assert_eq!(judged(&scene).0, State::Ready, "a far GPU proves them too");
        (0..8).for_each(|gpu| scene.busy(gpu));
        assert_eq!(judged(&scene), (State::Unknown, Reason::GpusBusySinceBoot));
    }

    /// A dead adapter, or one without any method, must not make another kind the way to the network.
    #[test]
    fn health_never_changes_which_are_nearest() {
        let mut scene = Scene::new();
        let nearest = scene.assess().gpus[0].nearest.clone();
        assert_eq!(nearest, ["mlx5_0", "mlx5_1"]);
        scene.port(0, "DOWN");
        (0..8).for_each(|gpu| scene.set_both(gpu, 1, &refused(Step::RegMr, 12)));
        assert_eq!(scene.assess().gpus[0].nearest, nearest);
    }

    #[test]
    fn the_message_names_the_worst_finding_its_device_who_must_act_and_the_remedy() {
        let mut scene = Scene::new();
        scene.port(4, "DOWN");
        let message = scene.assess().verdict.message;
        for part in
            ["7 of 8 rails", "PortDown", "mlx5_4 (0000:98:00.0)", "to act: hardware", entry(Reason::PortDown).remedy]
        {
            assert!(message.contains(part), "no `{part}` in {message}");
        }
        assert!(message.len() <= 1024);
    }
}

mod carried {
    use super::*;

    #[test]
    fn a_busy_pair_keeps_its_outcome_without_end() {
        for (now, then) in [(State::Ready, false), (State::Degraded, true)] {
            let mut scene = Scene::new();
            if then {
                scene.break_gpu(0);
            }
            scene.finish_check();
            (0..8).for_each(|gpu| scene.busy(gpu));
            for _ in 0..5 {
                let assessment = scene.finish_check();
                assert_eq!(assessment.verdict.state, now);
                assert_eq!(assessment.pairs[0].good, Some(!then));
                assert_eq!(assessment.pairs[0].checked_at, Some(Timestamp::UNIX_EPOCH), "its age shows");
            }
        }
    }

    #[test]
    fn an_unknown_pair_keeps_it_for_some_checks_only() {
        let mut scene = Scene::new();
        scene.finish_check();
        scene.silent(0);
        let states: Vec<_> = (0..4).map(|_| scene.finish_check().verdict.state).collect();
        assert_eq!(states, [State::Ready, State::Ready, State::Unknown, State::Unknown], "damping.fall is 2");
        scene.verify_all();
        scene.finish_check();
        scene.silent(0);
        assert_eq!(scene.finish_check().verdict.state, State::Ready, "a good check begins anew");
    }

    #[test]
    fn other_circumstances_end_it_and_another_devices_do_not() {
        type Change = fn(&mut Scene);
        let changes: [(&str, Change, bool); 7] = [
            ("boot", |s| s.inventory.boot_id = "next".into(), false),
            ("driver", |s| s.inventory.nvidia.as_mut().unwrap().version = "580.65.06".into(), false),
            ("kind of module", |s| s.inventory.nvidia.as_mut().unwrap().open = false, false),
            ("peermem", |s| s.inventory.peermem = false, false),
            ("HCA's driver", |s| s.inventory.hcas[0].driver = Some("mlx4_core".into()), false),
            ("firmware", |s| s.inventory.hcas[0].firmware = Some("28.99".into()), false),
            ("another HCA's firmware", |s| s.inventory.hcas[5].firmware = Some("28.99".into()), true),
        ];
        for (what, change, kept) in changes {
            let mut scene = Scene::new();
            scene.finish_check();
            scene.busy(0);
            change(&mut scene);
            assert_eq!(scene.assess().pairs[0].good, kept.then_some(true), "{what}");
        }
    }

    /// A reset brings a lost GPU back; that it was lost says nothing of its pairs.
    #[test]
    fn a_gpu_that_came_back_is_not_held_to_have_failed() {
        let mut scene = Scene::new();
        scene.inventory.gpus[0].lost = true;
        let row = scene.rows.remove(&scene.inventory.gpus[0].pci).unwrap();
        assert_eq!(scene.finish_check().verdict.reason, Reason::GpuLost);
        scene.inventory.gpus[0].lost = false;
        scene.rows.insert(scene.inventory.gpus[0].pci, row);
        scene.busy(0);
        assert_eq!(scene.assess().pairs[0].good, None);
        assert_eq!(judged(&scene).0, State::Ready);
    }
}

proptest! {
    /// Never ready when it is not known, and never an accusation without a failure.
    #[test]
    fn neither_ready_unknown_nor_guilty_unproven(outcomes in prop::collection::vec(0_u8..4, 128)) {
        let mut scene = Scene::new();
        let mut outcomes = outcomes.into_iter();
        for gpu in 0..8 {
            for hca in 0..8 {
                for method in Method::ALL {
                    let result = match outcomes.next().unwrap() {
                        0 => continue,
                        1 => refused(Step::RegMr, 12),
                        2 => result(Outcome::Skipped, Some(Step::Context), None),
                        _ => result(Outcome::Unknown, Some(Step::Pd), None),
                    };
                    scene.set(gpu, hca, method, &result);
                }
            }
        }
        let assessment = scene.assess();
        let bad = assessment.pairs.iter().any(|p| p.counted && p.good == Some(false));
        match assessment.verdict.state {
            State::Ready => {
                prop_assert!(!bad);
                for hca in assessment.hcas.iter().filter(|h| h.rail) {
                    prop_assert!(assessment.pairs.iter().any(|p| p.hca == hca.name && p.good == Some(true)));
                }
            }
            State::Degraded | State::NotReady => prop_assert!(bad),
            State::Unknown => prop_assert!(!bad),
            State::NotApplicable => prop_assert!(false),
        }
        for pair in &assessment.pairs {
            let outcomes = [pair.dma_buf.outcome, pair.peermem.outcome];
            prop_assert_eq!(pair.good == Some(true), outcomes.contains(&Outcome::Verified));
            prop_assert_eq!(pair.good == Some(false), outcomes == [Outcome::Failed; 2]);
        }
    }
}

#[test]
fn an_hca_that_only_other_drivers_beat_is_incapable() {
    let mut scene = Scene::new();
    scene.inventory.hcas[7].driver = Some("irdma".into());
    for gpu in 0..8 {
        scene.set(gpu, 7, Method::DmaBuf, &unsupported(Step::RegDmabuf, Some(95)));
        scene.set(gpu, 7, Method::Peermem, &refused(Step::RegMr, 14));
    }
    let assessment = scene.assess();
    assert_eq!(assessment.hcas[7].role, HcaRole::Incapable);
    assert_eq!(assessment.verdict.state, State::Ready);
    // Of the same driver as the others, it is broken.
    scene.inventory.hcas[7].driver = Some("mlx5_core".into());
    assert_eq!(judged(&scene).0, State::Degraded);
}

/// What was seen, second by second, and what was published.
mod damping {
    use super::*;

    /// How something was seen.
    #[derive(Clone, Copy)]
    enum By {
        Check,
        Look,
    }
    use By::{Check, Look};
    use State::{Degraded, NotApplicable, NotReady, Ready, Unknown};

    struct Node {
        memory: Damping,
        config: Config,
        start: Timestamp,
    }

    impl Node {
        fn new() -> Self {
            let start = "2026-01-01T00:00:00Z".parse().unwrap();
            Self { memory: Damping::default(), config: Config::default(), start }
        }

        /// A node that is ready since second 0.
        fn ready() -> Self {
            let mut node = Self::new();
            node.sees(&[(0, Check, Ready, Ready)]);
            node
        }

        fn sees(&mut self, history: &[(i64, By, State, State)]) {
            for (second, by, seen, published) in history {
                let reason = match seen {
                    Ready => Reason::AllRailsVerified,
                    Unknown => Reason::ProbeTimeout,
                    _ => Reason::PeermemRefused,
                };
                self.sees_reason(*second, *by, *seen, reason, *published);
            }
        }

        fn sees_reason(&mut self, second: i64, by: By, state: State, reason: Reason, published: State) {
            let now = self.start + SignedDuration::from_secs(second);
            let verdict = Verdict { state, reason, message: String::new(), since: now, damped: false };
            let finding = finding(reason);
            let full_check = matches!(by, Check);
            let seen = Seen { verdict: &verdict, findings: &[finding], full_check, now };
            let next = step(&mut self.memory, &self.config.policy, &seen);
            assert_eq!(next.state, published, "at second {second}");
            assert_eq!(next.damped, state != published, "at second {second}");
        }
    }

    #[test]
    fn begins_by_not_knowing_and_rises_after_one_check() {
        Node::new().sees(&[(0, Look, Unknown, Unknown), (1, Check, Ready, Ready)]);
        Node::new().sees(&[(0, Look, Ready, Unknown), (1, Check, Ready, Ready)]);
        Node::new().sees(&[(0, Check, Degraded, Unknown), (10, Check, Degraded, Degraded)]);
    }

    #[test]
    fn falls_after_two_checks_and_looks_do_not_count() {
        Node::ready().sees(&[
            (10, Check, Degraded, Ready),
            (11, Look, Degraded, Ready),
            (19, Look, Degraded, Ready),
            (20, Check, Degraded, Degraded),
        ]);
        Node::ready().sees(&[(10, Check, NotReady, Ready), (20, Check, Degraded, Degraded)]);
    }

    #[test]
    fn a_good_check_in_between_begins_anew() {
        Node::ready().sees(&[
            (10, Check, Degraded, Ready),
            (20, Check, Ready, Ready),
            (30, Check, Degraded, Ready),
            (40, Check, Degraded, Degraded),
        ]);
    }

    #[test]
    fn what_cannot_pass_by_itself_falls_after_one_check() {
        let mut node = Node::ready();
        node.sees_reason(10, Look, Degraded, Reason::GpuLost, Ready);
        node.sees_reason(11, Check, Degraded, Reason::GpuLost, Degraded);
    }

    #[test]
    fn a_port_falls_by_time_alone() {
        let mut node = Node::ready();
        for second in 10..70 {
            let by = if second % 10 == 0 { Check } else { Look };
            node.sees_reason(second, by, Degraded, Reason::PortDown, Ready);
        }
        node.sees_reason(70, Look, Degraded, Reason::PortDown, Degraded);
        // One that comes back in time was never down.
        let mut node = Node::ready();
        node.sees_reason(10, Look, Degraded, Reason::PortDown, Ready);
        node.sees(&[(50, Look, Ready, Ready)]);
        node.sees_reason(71, Look, Degraded, Reason::PortDown, Ready);
        node.sees_reason(131, Look, Degraded, Reason::PortDown, Degraded);
    }

    /// Three checks and the hold, of 300 s, after a fall.
    fn fallen() -> Node {
        let mut node = Node::ready();
        node.sees(&[(10, Check, Degraded, Ready), (20, Check, Degraded, Degraded)]);
        node
    }

    #[test]
    fn rises_after_three_checks_and_the_hold() {
        fallen().sees(&[
            (30, Check, Ready, Degraded),
            (40, Check, Ready, Degraded),
            (50, Check, Ready, Degraded),
            (319, Check, Ready, Degraded),
            (320, Look, Ready, Ready),
        ]);
        fallen().sees(&[(400, Check, Ready, Degraded), (410, Check, Ready, Degraded), (420, Check, Ready, Ready)]);
        fallen().sees(&[
            (400, Check, Ready, Degraded),
            (410, Check, Ready, Degraded),
            (420, Check, Degraded, Degraded),
            (430, Check, Ready, Degraded),
            (440, Check, Ready, Degraded),
            (450, Check, Ready, Ready),
        ]);
    }

    #[test]
    fn falls_never_wait_for_the_hold() {
        fallen().sees(&[(30, Check, NotReady, Degraded), (40, Check, NotReady, NotReady)]);
    }

    #[test]
    fn unknown_is_said_at_once_and_ends_neither_count_nor_hold() {
        // The count of a fall goes on.
        Node::ready().sees(&[
            (10, Check, Degraded, Ready),
            (20, Check, Unknown, Unknown),
            (30, Check, Unknown, Unknown),
            (40, Check, Degraded, Degraded),
        ]);
        // A drop from unknown is a fall too, and is confirmed like one.
        Node::ready().sees(&[
            (10, Check, Unknown, Unknown),
            (20, Check, Degraded, Unknown),
            (30, Check, Degraded, Degraded),
            (40, Check, Ready, Degraded),
        ]);
        // From unknown alone one good check leads back.
        Node::ready().sees(&[(10, Check, Unknown, Unknown), (20, Check, Ready, Ready)]);
        // The hold and the count of a rise go on.
        fallen().sees(&[
            (100, Check, Ready, Degraded),
            (110, Check, Unknown, Unknown),
            (120, Check, Ready, Unknown),
            (330, Check, Ready, Ready),
        ]);
        // What speaks for the other side does not.
        Node::ready().sees(&[
            (10, Check, Degraded, Ready),
            (20, Check, Unknown, Unknown),
            (30, Check, Ready, Ready),
            (40, Check, Degraded, Ready),
        ]);
    }

    #[test]
    fn three_falls_in_an_hour_double_the_hold() {
        let mut node = Node::ready();
        node.config.policy.damping.rise = 1;
        for begin in [0, 1000, 2000] {
            node.sees(&[(begin + 10, Check, Degraded, Ready), (begin + 20, Check, Degraded, Degraded)]);
            node.sees(&[(begin + 319, Check, Ready, Degraded)]);
            if begin < 2000 {
                node.sees(&[(begin + 320, Check, Ready, Ready)]);
            }
        }
        node.sees(&[(2320, Check, Ready, Degraded), (2619, Check, Ready, Degraded), (2620, Check, Ready, Ready)]);
        // An hour later the first are forgotten.
        node.sees(&[(6000, Check, Degraded, Ready), (6010, Check, Degraded, Degraded), (6310, Check, Ready, Ready)]);
    }

    /// Checks that saw less do not speak for more.
    #[test]
    fn a_look_is_no_proof_of_what_no_check_saw() {
        let mut node = Node::ready();
        node.sees(&[(10, Check, NotReady, Ready), (20, Check, NotReady, NotReady)]);
        node.sees(&[
            (100, Check, Degraded, NotReady),
            (200, Check, Degraded, NotReady),
            (300, Check, Degraded, NotReady),
        ]);
        node.sees(&[(400, Look, Ready, NotReady)]);
    }

    #[test]
    fn nothing_waits_for_what_does_not_apply() {
        Node::ready().sees(&[(10, Look, NotApplicable, NotApplicable), (11, Look, Unknown, Unknown)]);
    }

    /// Whoever gives a GPU to a virtual machine, or makes MIG devices of it, and takes it back has proven nothing.
    #[test]
    fn after_what_does_not_apply_counts_what_was_known_before_it() {
        let mut node = Node::ready();
        node.sees(&[(10, Look, NotApplicable, NotApplicable), (20, Look, Ready, NotApplicable)]);
        node.sees(&[(30, Check, Ready, Ready), (40, Check, Degraded, Ready), (50, Check, Degraded, Degraded)]);
        node.sees(&[(60, Look, NotApplicable, NotApplicable), (70, Check, Ready, NotApplicable)]);
        node.sees(&[(80, Check, Degraded, Degraded), (90, Look, NotApplicable, NotApplicable)]);
        node.sees(&[
            (360, Check, Ready, NotApplicable),
            (370, Check, Ready, NotApplicable),
            (380, Check, Ready, Ready),
        ]);
    }

    #[test]
    fn since_changes_with_the_state_alone() {
        let mut node = Node::ready();
        let since = node.memory.published.clone().unwrap().since;
        node.sees(&[(10, Check, Ready, Ready), (20, Check, Degraded, Ready)]);
        assert_eq!(node.memory.published.clone().unwrap().since, since);
        node.sees(&[(30, Check, Degraded, Degraded)]);
        assert_eq!(node.memory.published.unwrap().since, since + SignedDuration::from_secs(30));
    }

    #[test]
    fn a_clock_that_goes_back_confirms_nothing() {
        let mut node = Node::ready();
        node.sees_reason(10, Look, Degraded, Reason::PortDown, Ready);
        node.sees_reason(-100_000, Look, Degraded, Reason::PortDown, Ready);
    }

    /// A port that drops while something else is on its way down has all of its time.
    #[test]
    fn a_port_has_its_own_clock() {
        let mut node = Node::ready();
        node.sees(&[(10, Check, Degraded, Ready)]);
        node.sees_reason(200, Look, Degraded, Reason::PortDown, Ready);
        node.sees_reason(259, Look, Degraded, Reason::PortDown, Ready);
        node.sees_reason(260, Look, Degraded, Reason::PortDown, Degraded);
    }

    /// From a level to `unknown` and to a higher one is a rise, to the same no change.
    #[test]
    fn unknown_forgets_no_level() {
        let down = || {
            let mut node = Node::ready();
            node.sees(&[(10, Check, NotReady, Ready), (20, Check, NotReady, NotReady), (30, Check, Unknown, Unknown)]);
            node
        };
        down().sees(&[(40, Check, Degraded, Unknown), (50, Check, Degraded, Unknown), (60, Check, Degraded, Unknown)]);
        down().sees(&[(40, Check, NotReady, NotReady)]);
    }

    #[test]
    fn the_policy_sets_the_numbers() {
        let mut node = Node::ready();
        node.config.policy.damping.fall = 1;
        node.config.policy.damping.hold = Span::seconds(0);
        node.config.policy.damping.rise = 2;
        node.sees(&[(10, Check, Degraded, Degraded), (11, Check, Ready, Degraded), (12, Check, Ready, Ready)]);
    }
}
