//! Health of the devices that the kubelet is told of: pairs act damped, ports after two looks.

use jiff::{SignedDuration, Timestamp};

use crate::{config::Damping, store::DeviceMemory};

/// Looks in a row that a port's change takes.
const LOOKS: u32 = 2;
/// So many drops within [`DROP_WINDOW`] make the rise wait for the hold.
const DROPS: usize = 3;
const DROP_WINDOW: SignedDuration = SignedDuration::from_mins(10);

/// Takes in a finished check: whether the HCA is good with at least one GPU, or open.
pub fn checked(memory: &mut DeviceMemory, good: Option<bool>, damping: &Damping) {
    let Some(good) = good else { return }; // unknown leaves health as it was
    if good == memory.good {
        memory.against = 0;
        return;
    }
    memory.against += 1;
    if good || memory.against >= damping.fall {
        memory.good = good;
        memory.against = 0;
    }
}

/// Takes in a look at the HCA's ports.
pub fn looked(memory: &mut DeviceMemory, usable: bool, damping: &Damping, now: Timestamp) {
    if usable == memory.port {
        memory.port_against = 0;
        return;
    }
    memory.port_against += 1;
    memory.port_drops.retain(|at| now.duration_since(*at) < DROP_WINDOW);
    let flapping = memory.port_drops.len() >= DROPS
        && memory.port_drops.last().is_some_and(|at| now.duration_since(*at) < damping.hold.signed());
    if memory.port_against >= LOOKS && !(usable && flapping) {
        if !usable {
            memory.port_drops.push(now);
        }
        memory.port = usable;
        memory.port_against = 0;
    }
}

/// Whether the kubelet may hand it out.
#[must_use]
pub fn healthy(memory: &DeviceMemory) -> bool {
    memory.good && memory.port
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    #[test]
    fn pairs_fall_by_counts_rise_at_once_and_unknown_changes_nothing() {
        let damping = Damping::default();
        let mut memory = DeviceMemory { good: true, port: true, ..DeviceMemory::default() };
        for (good, healthy_then) in
            [(Some(false), true), (None, true), (Some(false), false), (None, false), (Some(true), true)]
        {
            checked(&mut memory, good, &damping);
            assert_eq!(healthy(&memory), healthy_then, "after {good:?}");
        }
    }

    #[test]
    fn ports_act_after_two_looks_and_a_third_drop_is_held() {
        let damping = Damping::default();
        let mut memory = DeviceMemory { good: true, port: true, ..DeviceMemory::default() };
        let mut now = 0;
        let mut look = |usable, memory: &mut DeviceMemory| {
            now += 1;
            looked(memory, usable, &damping, at(now));
            memory.port
        };
        assert!(look(false, &mut memory), "one look is no change");
        assert!(look(true, &mut memory));
        for drop in 1..=3 {
            assert!(look(false, &mut memory) && !look(false, &mut memory), "drop {drop}");
            if drop < 3 {
                assert!(!look(true, &mut memory) && look(true, &mut memory), "rise {drop}");
            }
        }
        assert!(!look(true, &mut memory) && !look(true, &mut memory), "the third drop waits for the hold");
        looked(&mut memory, true, &damping, at(400));
        assert!(memory.port, "and rises after it");
    }
}
