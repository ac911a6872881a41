//! How often each HCA's link went down lately, from counters that only ever rise. Pure.

use std::collections::{BTreeMap, VecDeque};

use jiff::{SignedDuration, Timestamp};

/// What counts as lately.
const LATELY: SignedDuration = SignedDuration::from_hours(1);

/// Readings of `link_downed`, by the HCA's name, each with when it was first seen.
#[derive(Debug, Clone, Default)]
pub struct Links(BTreeMap<String, VecDeque<(Timestamp, u64)>>);

impl Links {
    /// Takes new readings. A counter that fell was set back with its driver, and begins anew.
    pub fn note(&mut self, readings: BTreeMap<String, u64>, now: Timestamp) {
        self.0.retain(|name, _| readings.contains_key(name));
        for (name, count) in readings {
            let seen = self.0.entry(name).or_default();
            if seen.back().is_some_and(|(_, last)| *last > count) {
                seen.clear();
            }
            if seen.back().is_none_or(|(_, last)| *last != count) {
                seen.push_back((now, count));
            }
            // What it was when the time began stays.
            while seen.get(1).is_some_and(|(at, _)| now.duration_since(*at) > LATELY) {
                seen.pop_front();
            }
        }
    }

    /// How often each went down lately; those that did not are left out.
    #[must_use]
    pub fn drops(&self) -> BTreeMap<String, u64> {
        let drops = |seen: &VecDeque<(Timestamp, u64)>| Some(seen.back()?.1 - seen.front()?.1).filter(|n| *n > 0);
        self.0.iter().filter_map(|(name, seen)| Some((name.clone(), drops(seen)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
    }

    fn drops(readings: &[(i64, u64)]) -> u64 {
        let mut links = Links::default();
        for (minutes, count) in readings {
            links.note(BTreeMap::from([("mlx5_0".to_owned(), *count)]), at(*minutes));
        }
        links.drops().get("mlx5_0").copied().unwrap_or(0)
    }

    #[test]
    fn only_what_rose_within_the_hour_counts() {
        assert_eq!(drops(&[(0, 7)]), 0, "what was before the first look is not lately");
        assert_eq!(drops(&[(0, 7), (1, 8), (2, 8), (3, 10)]), 3);
        assert_eq!(drops(&[(0, 7), (1, 8), (90, 9)]), 1);
        assert_eq!(drops(&[(0, 7), (1, 10), (200, 10)]), 0, "an hour later it is over");
        assert_eq!(drops(&[(0, 7), (1, 2), (2, 3)]), 1, "set back with its driver");
    }

    #[test]
    fn one_that_is_gone_is_forgotten() {
        let mut links = Links::default();
        links.note(BTreeMap::from([("mlx5_0".to_owned(), 1)]), at(0));
        links.note(BTreeMap::from([("mlx5_0".to_owned(), 4)]), at(1));
        links.note(BTreeMap::new(), at(2));
        assert!(links.drops().is_empty());
    }
}
