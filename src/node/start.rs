//! When agents that start together tell for the first time, and when they first confirm it.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::body::desired;
use crate::{
    agent::{Published, jittered},
    config::Publish,
};

/// Agents that are rolled out have nothing new to say: they come one after another, within so many heartbeats,
/// and the first of these is after the last of them.
const ROLLOUT: f64 = 1.4;
/// Heartbeats before three are missed, with what chance adds.
const LONGEST_SILENCE: f64 = 2.4;
/// Agents on nodes that have been up for long were installed together.
const LONG_UP: Duration = Duration::from_secs(900);

/// Thousands of agents that are rolled out or installed together must not ask at once. What is new is
/// told at once all the same, and after a boot everything is. Answers whether an agent that is rolled out has
/// waited for its turn.
pub(super) async fn start_late(
    first: &Published,
    state: &mut watch::Receiver<Arc<Published>>,
    config: &Publish,
) -> bool {
    start_within(latest(first, config, up()), first, state, config).await
}

/// How long the last of those that start together waits.
fn latest(first: &Published, config: &Publish, up: Duration) -> Duration {
    if first.checked {
        config.heartbeat.0.mul_f64(ROLLOUT)
    } else if up > LONG_UP {
        config.spread.0
    } else {
        Duration::ZERO
    }
}

async fn start_within(
    latest: Duration,
    first: &Published,
    state: &mut watch::Receiver<Arc<Published>>,
    config: &Publish,
) -> bool {
    let goes_on = first.checked;
    let told = desired(&first.report, config);
    let end = Instant::now() + jittered(latest, 0.0, 1.0);
    while let Ok(Ok(())) = timeout_at(end, state.changed()).await {
        let now = desired(&state.borrow_and_update().report, config);
        // The annotation says which version it is, which is nothing new to wait for.
        if goes_on && (&now.labels, &now.condition) != (&told.labels, &told.condition) {
            return false;
        }
    }
    goes_on
}

/// Heartbeats keep a clock of their own, which no news sets: what thousands of nodes told in one second they would
/// else confirm in one second, every five minutes. Those that come one after another are spread already, and in a rollout
/// as in an install that is spread the first heartbeat is after the last of them.
pub(super) fn first_beat(config: &Publish, late: bool) -> Duration {
    let heartbeat = config.heartbeat.0;
    let install = config.spread.0.min(heartbeat.mul_f64(LONGEST_SILENCE));
    if late {
        jittered(heartbeat.mul_f64(ROLLOUT), 1.0, 0.1)
    } else if install > heartbeat {
        install + jittered(heartbeat, 0.0, 0.5)
    } else {
        jittered(heartbeat, 0.1, 0.9)
    }
}

/// From one heartbeat to the next.
pub(super) fn next_beat(config: &Publish) -> Duration {
    jittered(config.heartbeat.0, 1.0, 0.1)
}

/// Since the boot, by sysinfo(2).
fn up() -> Duration {
    Duration::from_secs(u64::try_from(rustix::system::sysinfo().uptime).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::ops::{Range, RangeInclusive};

    use tokio::time::sleep;

    use super::*;
    use crate::{
        config::Span,
        report::{Reason, State},
        verdict::fixture::Scene,
    };

    fn told(state: State, checked: bool) -> Arc<Published> {
        let mut report = Scene::new().report();
        (report.verdict.state, report.verdict.reason) = (state, Reason::PortDown);
        Arc::new(Published { checked, ..Published::of(report) })
    }

    fn each_minute_has(waits: &[u64], minutes: Range<u64>, range: RangeInclusive<usize>) {
        for minute in minutes {
            let came = waits.iter().filter(|wait| **wait / 60 == minute).count();
            assert!(range.contains(&came), "{came} of {} in minute {minute}", waits.len());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn agents_that_are_rolled_out_come_one_after_another() {
        let mut waits = Vec::new();
        for _ in 0..1000 {
            let first = told(State::Ready, true);
            let (_tell, mut state) = watch::channel(Arc::clone(&first));
            let begun = Instant::now();
            assert!(start_late(&first, &mut state, &Publish::default()).await);
            waits.push(begun.elapsed().as_secs());
        }
        // Two requests each, within 420 s: less than five a second for a thousand.
        each_minute_has(&waits, 0..7, 90..=200);
        assert!(waits.iter().all(|wait| *wait <= 420));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_new_does_not_wait_and_what_is_not_does() {
        let first = told(State::Ready, true);
        let (tell, mut state) = watch::channel(Arc::clone(&first));
        let begun = Instant::now();
        tokio::spawn(async move {
            sleep(Duration::from_millis(1)).await;
            tell.send_replace(told(State::Ready, true));
            sleep(Duration::from_millis(1)).await;
            tell.send_replace(told(State::Degraded, true));
            std::future::pending::<()>().await;
        });
        // (One of 200,000 runs has its turn sooner.)
        assert!(!start_late(&first, &mut state, &Publish::default()).await);
        assert_eq!(begun.elapsed().as_millis(), 2);
    }

    /// On a machine that has been up for long, as those of an install are.
    #[tokio::test(start_paused = true)]
    async fn agents_that_are_installed_come_one_after_another() {
        let config = Publish { spread: Span::minutes(12), ..Publish::default() };
        let mut waits = Vec::new();
        for _ in 0..1000 {
            let (_tell, mut state) = watch::channel(told(State::Ready, true));
            let begun = Instant::now();
            let latest = latest(&told(State::Unknown, false), &config, LONG_UP + Duration::from_secs(1));
            start_within(latest, &told(State::Unknown, false), &mut state, &config).await;
            waits.push(begun.elapsed().as_secs());
        }
        // A read, a patch and an event each: less than five requests a second for a thousand.
        each_minute_has(&waits, 0..12, 45..=130);
        let boot = latest(&told(State::Unknown, false), &config, LONG_UP);
        assert_eq!(boot, Duration::ZERO, "after a boot everything is told at once");
    }

    /// A check that ends before the writer first runs makes no rollout of an install.
    #[tokio::test(start_paused = true)]
    async fn what_was_known_at_the_start_decides() {
        let (_tell, mut state) = watch::channel(told(State::Ready, true));
        let config = Publish { spread: Span::minutes(1), ..Publish::default() };
        let begun = Instant::now();
        assert!(!start_late(&told(State::Unknown, false), &mut state, &config).await);
        assert!(begun.elapsed() <= Duration::from_secs(60));
    }

    #[test]
    fn heartbeats_are_spread_and_none_is_missed() {
        let config = Publish::default();
        let spread = |minutes| Publish { spread: Span::minutes(minutes), ..Publish::default() };
        for _ in 0..1000 {
            let (at_once, late) = (first_beat(&config, false), first_beat(&config, true));
            assert!((30..=300).contains(&at_once.as_secs()), "{at_once:?}");
            // Not before the last of a rollout has come, and nowhere near three periods.
            assert!((420..=462).contains(&late.as_secs()), "{late:?}");
            let installed = first_beat(&spread(12), false);
            assert!((720..=870).contains(&installed.as_secs()), "{installed:?}");
            assert!(first_beat(&spread(60), false) < Duration::from_secs(900));
            assert!(first_beat(&spread(12), true) <= Duration::from_secs(462), "a rollout is none");
        }
        let mut beats: Vec<_> = (0..1000).map(|_| next_beat(&config).as_secs_f64()).collect();
        beats.sort_by(f64::total_cmp);
        assert!(beats[0] >= 300.0 && beats[999] <= 330.0, "{} to {}", beats[0], beats[999]);
        assert!(beats[900] - beats[100] > 15.0, "what begins together drifts apart");
    }
}
