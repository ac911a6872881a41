//! When the next check begins, and until when a report holds. Pure, but for the jitter.

use std::time::Duration;

use jiff::Timestamp;

use crate::config::{Interval, Span};

/// Pauses between checks while what was seen and what is published differ.
const CONFIRM: [u64; 5] = [10, 30, 60, 120, 300];

/// The pause before the next check: at the interval, ± 10 %; sooner after the `unconfirmed`-th check in
/// a row (from 1) that differs from what is published. `None`: no check comes by itself.
pub(super) fn pause(interval: &Interval, unconfirmed: usize) -> Option<Duration> {
    let every = match interval {
        Interval::Every(span) => Some(span.0),
        Interval::Never => None,
    };
    match unconfirmed.checked_sub(1) {
        None => every.map(|every| jittered(every, 0.9, 0.2)),
        Some(n) => {
            let soon = CONFIRM.get(n).or(CONFIRM.last()).copied().map(Duration::from_secs);
            [soon, every].into_iter().flatten().min()
        }
    }
}

/// Three periods, as for a heartbeat.
pub(super) fn valid_until(interval: &Interval, now: Timestamp) -> Option<Timestamp> {
    match interval {
        Interval::Every(Span(period)) => now.checked_add(Span(*period * 3).signed()).ok(),
        Interval::Never => None,
    }
}

/// A duration between `from` and `from + width` of itself.
pub(crate) fn jittered(duration: Duration, from: f64, width: f64) -> Duration {
    use std::hash::{BuildHasher, Hasher};
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    #[allow(clippy::cast_precision_loss)] // a rough fraction is all that is wanted
    let fraction = (random >> 11) as f64 / (1_u64 << 53) as f64;
    duration.mul_f64(from + width * fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soon_while_unconfirmed_and_never_later_than_the_interval() {
        let every = Interval::Every(Span::seconds(100));
        let seconds = |n| pause(&every, n).unwrap().as_secs();
        assert_eq!([1, 2, 3, 4, 5, 99].map(seconds), [10, 30, 60, 100, 100, 100]);
        assert!((90..=110).contains(&seconds(0)));
        assert_eq!(pause(&Interval::Never, 0), None);
        assert_eq!(pause(&Interval::Never, 9), Some(Duration::from_secs(300)), "a change is confirmed all the same");
    }
}
