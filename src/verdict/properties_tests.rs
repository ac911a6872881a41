//! What holds for every history and every combination of facts.

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::{
    damping::{Seen, step},
    fixture::{Scene, bare, refused, result, unknown, unsupported},
    note_driver, outlook,
};
use crate::{
    config::{Expect, Policy},
    hardware::Away,
    probe::{Step, protocol::End},
    report::{HcaRole, Method, MethodResult, NodeView, Outcome, Reason, State, Verdict},
    store::{Damping, Store},
    usage::Spared,
};

/// One look or check: how many seconds later, and what was seen.
type Look = (u16, bool, State);

fn looks() -> impl Strategy<Value = Vec<Look>> {
    let states = prop::sample::select(vec![
        State::Ready,
        State::Degraded,
        State::NotReady,
        State::Unknown,
        State::NotApplicable,
    ]);
    prop::collection::vec((1..90_u16, prop::bool::weighted(0.8), states), 1..60)
}

fn rank(state: State) -> u8 {
    match state {
        State::Ready => 3,
        State::Degraded => 2,
        State::NotReady => 1,
        State::Unknown | State::NotApplicable => 0,
    }
}

fn says_nothing(state: State) -> bool {
    rank(state) == 0
}

/// What is published after each.
fn published(looks: &[Look], policy: &Policy) -> Vec<(Timestamp, State)> {
    published_by_agents(looks, policy, usize::MAX)
}

/// By an agent, and from that look on by the next one, which has what the store kept.
fn published_by_agents(looks: &[Look], policy: &Policy, next_from: usize) -> Vec<(Timestamp, State)> {
    let mut memory = Damping::default();
    let mut now = Timestamp::from_second(1_800_000_000).unwrap();
    let mut out = Vec::new();
    for (n, (seconds, full_check, state)) in looks.iter().enumerate() {
        if n == next_from {
            memory = serde_json::from_str(&serde_json::to_string(&memory).unwrap()).unwrap();
        }
        now += SignedDuration::from_secs(i64::from(*seconds));
        // Neither a port nor anything that lasts, which have clocks of their own.
        let verdict =
            Verdict { state: *state, reason: Reason::CudaFailed, message: String::new(), since: now, damped: false };
        let seen = Seen { verdict: &verdict, findings: &[], full_check: *full_check, now };
        out.push((now, step(&mut memory, policy, &seen).state));
    }
    out
}

proptest! {
    #[test]
    fn what_says_nothing_never_waits(looks in looks()) {
        for ((_, _, seen), (_, shown)) in looks.iter().zip(published(&looks, &Policy::default())) {
            prop_assert!(!says_nothing(*seen) || shown == *seen);
        }
    }

    #[test]
    fn nothing_is_ready_without_a_check_that_saw_it(looks in looks()) {
        let shown = published(&looks, &Policy::default());
        let first = shown.iter().position(|(_, state)| *state == State::Ready);
        if let Some(first) = first {
            prop_assert!(looks[..=first].iter().any(|(_, full, state)| *full && *state == State::Ready));
        }
    }

    /// Whatever lies in between, `unknown` and `not-applicable` too.
    #[test]
    fn nothing_rises_within_the_hold_after_a_fall(looks in looks()) {
        let policy = Policy::default();
        let hold = policy.damping.hold.signed();
        let mut last = (Timestamp::UNIX_EPOCH, State::Unknown);
        let mut fell: Option<(Timestamp, State)> = None;
        for (now, shown) in published(&looks, &policy) {
            if let Some((at, to)) = fell && rank(shown) > rank(to) {
                prop_assert!(now.duration_since(at) >= hold, "{to} to {shown} after {:?}", now.duration_since(at));
                fell = None;
            }
            let falls = rank(shown) < rank(last.1) || says_nothing(last.1) && shown != State::Ready;
            if !says_nothing(shown) && shown != last.1 && falls {
                fell = Some((now, shown));
            }
            if !says_nothing(shown) {
                last = (now, shown);
            }
        }
    }

    #[test]
    fn a_fall_never_waits_for_a_hold(looks in looks(), to in prop::sample::select(vec![State::Degraded, State::NotReady])) {
        let policy = Policy::default();
        let before = published(&looks, &policy).last().unwrap().1;
        let mut more = looks.clone();
        more.extend([(1, true, to), (1, true, to)]);
        let after = published(&more, &policy).last().unwrap().1;
        prop_assert!(rank(after) <= rank(to) || rank(before) < rank(to), "{before} to {after}, two checks saw {to}");
    }

    #[test]
    fn the_same_history_gives_the_same_state_whoever_saw_it(looks in looks(), next_from in 0..60_usize) {
        let policy = Policy::default();
        prop_assert_eq!(published_by_agents(&looks, &policy, next_from), published(&looks, &policy));
    }

    /// Checks, jobs, silent GPUs, agents, drivers and boots that come and go: `ready` is only what a check found with
    /// this driver in this boot.
    #[test]
    fn nothing_is_ready_that_was_not_seen_in_these_circumstances(events in prop::collection::vec(0..9_u8, 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path(), false);
        let mut scene = Scene::new();
        scene.inventory.boot_id = "0".into();
        let (mut second, mut driver, mut proven) = (0, 0, false);
        for event in events {
            second += 400;
            scene.now = Timestamp::from_second(second).unwrap();
            match event {
                0..=2 => {
                    scene.verify_all();
                    proven = true;
                }
                3 => (0..8).for_each(|gpu| scene.busy(gpu)),
                4 => (0..8).for_each(|gpu| scene.silent(gpu)),
                5 => (0..8).for_each(|gpu| scene.set_both(gpu, gpu, &refused(Step::RegMr, 12))),
                6 => {
                    let before = scene.inventory.clone();
                    driver += 1;
                    scene.inventory.nvidia.as_mut().unwrap().version = format!("{driver}");
                    note_driver(&mut scene.memory, &before, &scene.inventory, scene.now);
                    (0..8).for_each(|gpu| scene.busy(gpu));
                    proven = false;
                }
                _ => {
                    if event == 7 {
                        scene.inventory.boot_id = format!("{second}");
                        proven = false;
                    }
                    // The next agent goes on from what is stored.
                    store.save(&scene.memory).unwrap();
                    scene.memory = store.load(&scene.inventory.boot_id);
                    (0..8).for_each(|gpu| scene.busy(gpu));
                }
            }
            let shown = scene.publish(true).1.state;
            prop_assert!(shown != State::Ready || proven, "after {event}");
        }
    }

    /// Of two GPUs and two HCAs every combination of outcomes, ports and circumstances has a state, and `ready` only what
    /// is: while nobody asked for a pause, and with as much as there should be.
    #[test]
    fn ready_is_only_what_is_verified(
        outcomes in prop::collection::vec(0..5_u8, 8),
        ports in prop::collection::vec(any::<bool>(), 2),
        active in prop::collection::vec(any::<bool>(), 2),
        checked in any::<bool>(),
        driver in any::<bool>(),
        around in prop::collection::vec(prop::bool::weighted(0.2), 10),
    ) {
        let mut scene = Scene::new();
        scene.truncate(2, 2);
        let around: [bool; 10] = around.try_into().unwrap();
        let [lost, mig, away, function, more_before, expected, paused, changing, booted, shut] = around;
        if more_before {
            let more = Scene::new();
            outlook::remember(&mut scene.memory, &more.inventory, &[]);
        }
        scene.checked = checked;
        for (n, outcome) in outcomes.iter().enumerate() {
            let method = [Method::DmaBuf, Method::Peermem][n % 2];
            scene.set(n / 4, n / 2 % 2, method, &outcome_of(*outcome));
        }
        for hca in 0..2 {
            scene.port(hca, if ports[hca] { "ACTIVE" } else { "DOWN" });
            if !active[hca] {
                let key = scene.inventory.hcas[hca].key();
                scene.memory.seen_active.remove(&key);
            }
        }
        if !driver {
            scene.inventory.nvidia = None;
        }
        scene.inventory.gpus[0].lost = lost;
        if mig {
            scene.stop(1, Step::NvmlMode, End::Spared(Spared::Mig), Outcome::Skipped);
        }
        scene.inventory.hcas[0].away = away.then_some(Away::Device);
        if function {
            scene.inventory.bare_functions = vec![bare("0000:f0:00.0")];
        }
        if expected {
            scene.config.policy.expect = vec![Expect { gpus: Some(2), rails: Some(2), ..Expect::default() }];
        }
        let paused_until = paused.then(|| scene.now + SignedDuration::from_secs(1));
        let change_under_way = changing.then(|| "x".to_owned());
        scene.node = Some(NodeView { paused_until, change_under_way, ..NodeView::default() });
        scene.inventory.booted_at = booted.then_some(scene.now);
        if shut {
            (0..2).for_each(|gpu| scene.set_both(gpu, 1, &unknown(Step::Open, Some(1))));
        }
        let assessment = scene.assess();
        let state = assessment.verdict.state;
        prop_assert!(!paused || !matches!(state, State::Ready | State::Degraded | State::NotReady), "{state}");
        if state == State::Ready {
            prop_assert!(checked && !lost);
            prop_assert!(!more_before || expected, "what is expected replaces what was");
            let rails: Vec<_> = assessment.hcas.iter().filter(|hca| hca.rail).collect();
            prop_assert!(!rails.is_empty());
            prop_assert!(!expected || !mig && rails.len() == 2, "a GPU in MIG mode is none of those expected");
            for rail in rails {
                let here = rail.role != HcaRole::Away;
                prop_assert!(!here || rail.ports.iter().any(|port| port.state == "ACTIVE"));
                prop_assert!(assessment.pairs.iter().any(|pair| pair.hca == rail.name && pair.good == Some(true)));
            }
            prop_assert!(assessment.pairs.iter().all(|pair| !pair.counted || pair.good != Some(false)));
        }
    }
}

fn outcome_of(n: u8) -> MethodResult {
    match n {
        0 => result(Outcome::Verified, None, None),
        1 => refused(Step::RegMr, 12),
        2 => unsupported(Step::RegDmabuf, Some(95)),
        3 => result(Outcome::Skipped, Some(Step::Context), None),
        _ => unknown(Step::Control, None),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// Jobs that come and go for three days, with a check each quarter of an hour: what is carried neither raises
    /// nor lowers anything, good or bad.
    #[test]
    fn a_node_that_trains_for_three_days_stays_as_it_was(
        busy in prop::collection::vec(any::<u8>(), 288),
        broken in prop::option::of(0..8_usize),
    ) {
        let mut scene = Scene::new();
        let break_it = |scene: &mut Scene| {
            if let Some(gpu) = broken {
                scene.break_gpu(gpu);
            }
        };
        break_it(&mut scene);
        let before = scene.finish_check().verdict;
        for busy in busy {
            scene.verify_all();
            break_it(&mut scene);
            (0..8).filter(|gpu| busy & (1 << gpu) != 0).for_each(|gpu| scene.busy(gpu));
            let now = scene.finish_check();
            prop_assert_eq!((now.verdict.state, now.verdict.reason), (before.state, before.reason));
            prop_assert!(now.pairs.iter().all(|pair| pair.good.is_some()), "nothing is forgotten");
        }
    }
}
