//! What holds for every history and every combination of facts.

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::{
    damping::{Seen, step},
    fixture::{Scene, refused, result, unknown, unsupported},
};
use crate::{
    config::Policy,
    probe::Step,
    report::{Method, MethodResult, Outcome, Reason, State, Verdict},
    store::Damping,
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
    let mut memory = Damping::default();
    let mut now = Timestamp::from_second(1_800_000_000).unwrap();
    let mut out = Vec::new();
    for (seconds, full_check, state) in looks {
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
    fn the_same_history_gives_the_same_state(looks in looks()) {
        prop_assert_eq!(published(&looks, &Policy::default()), published(&looks, &Policy::default()));
    }

    /// Of two GPUs and two HCAs every combination of outcomes, ports and circumstances has a state, and
    /// `ready` only what is.
    #[test]
    fn ready_is_only_what_is_verified(
        outcomes in prop::collection::vec(0..5_u8, 8),
        ports in prop::collection::vec(any::<bool>(), 2),
        active in prop::collection::vec(any::<bool>(), 2),
        checked in any::<bool>(),
        driver in any::<bool>(),
    ) {
        let mut scene = Scene::new();
        scene.truncate(2, 2);
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
        let assessment = scene.assess();
        if assessment.verdict.state == State::Ready {
            prop_assert!(checked);
            let rails: Vec<_> = assessment.hcas.iter().filter(|hca| hca.rail).collect();
            prop_assert!(!rails.is_empty());
            for rail in rails {
                prop_assert!(rail.ports.iter().any(|port| port.state == "ACTIVE"));
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
                (0..8).for_each(|hca| scene.set_both(gpu, hca, &refused(Step::RegMr, 12)));
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
