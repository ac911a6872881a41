//! The look each second, and what it sets off.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

use super::{Agent, Pace};
use crate::{agent::sight::Glance, config::Interval, hardware::Inventory, verdict::devices};

/// Between two readings of counters that ask firmware, unless a state has changed.
const COUNT_EVERY: Duration = Duration::from_secs(30);
const TRIGGERED_APART: Duration = Duration::from_secs(10);
/// A device's files come one after another. After so long all of them are there, udev's too.
pub(super) const SETTLES: Duration = Duration::from_secs(5);

impl Agent {
    /// The passive tier: ports, modules, inventory.
    pub(super) async fn look(&mut self) {
        self.wake();
        let whole = self.read_again.is_some_and(|at| at <= Instant::now());
        let Ok(seen) = self.sight.glance(Arc::clone(&self.inventory), whole).await else {
            tracing::warn!("a driver blocks the look at sysfs");
            return;
        };
        let changed = match seen {
            Glance::Same => None,
            Glance::Changed(inventory) => Some(self.met(inventory)),
            Glance::Whole(inventory) => {
                self.read_again = None;
                Some(self.met(inventory)).filter(|inventory| !inventory.has_devices_of(&self.inventory))
            }
        };
        let now = Timestamp::now();
        let before: Vec<bool> = self.memory.devices.values().map(devices::healthy).collect();
        let differs = changed.is_some();
        if let Some(inventory) = changed {
            tracing::info!("the hardware's state has changed");
            self.note_driver(&inventory, now);
            self.take_inventory(Arc::new(inventory));
            self.trigger();
        }
        self.count_links(now).await;
        for hca in self.inventory.hcas.iter().filter(|hca| !hca.silent) {
            if let Some(memory) = self.memory.devices.get_mut(&hca.key()) {
                devices::looked(memory, hca.usable(), &self.context.config.policy.damping, now);
            }
        }
        let health_changed = before != self.memory.devices.values().map(devices::healthy).collect::<Vec<_>>();
        if differs || health_changed || self.memory.damping.candidate.is_some() {
            self.tell_all(false);
        }
    }

    fn met(&mut self, mut inventory: Inventory) -> Inventory {
        self.memory.meet(&mut inventory);
        inventory
    }

    /// What is new was perhaps read while the kernel was still making it.
    pub(super) fn take_inventory(&mut self, inventory: Arc<Inventory>) {
        if !inventory.has_devices_of(&self.inventory) {
            self.links_due = Instant::now();
            self.read_again = Some(Instant::now() + SETTLES);
        }
        self.inventory = inventory;
    }

    /// Reads the counters of links, when a state has changed and now and then.
    async fn count_links(&mut self, now: Timestamp) {
        if Instant::now() < self.links_due {
            return;
        }
        if let Some(readings) = self.sight.links(Arc::clone(&self.inventory)).await {
            self.links_due = Instant::now() + COUNT_EVERY;
            self.links.note(readings, now);
            self.checked.surroundings.link_drops = self.links.drops();
        }
    }

    /// The end of a rest is a check at once: what is published meanwhile is that nothing is known.
    fn wake(&mut self) {
        let pace = if self.is_resting(false) { Pace::Resting } else { Pace::Awake };
        let woke = (self.pace, pace) == (Pace::Resting, Pace::Awake);
        if woke && self.context.config.check.interval != Interval::Never {
            self.next_check = Some(Instant::now());
        }
        self.pace = pace;
    }

    /// A change that matters is checked at once; two such checks are some time apart.
    fn trigger(&mut self) {
        let earliest = self.last_triggered.map_or_else(Instant::now, |at| (at + TRIGGERED_APART).max(Instant::now()));
        if self.context.config.check.interval == Interval::Never {
            return;
        }
        self.triggered = true;
        if self.next_check.is_none_or(|at| at > earliest) {
            self.next_check = Some(earliest);
            self.last_triggered = Some(earliest);
        }
    }
}
