//! Reading the hardware without ever waiting for it: a driver can block a read of sysfs for as long as
//! it likes, and a thread that waits for it can't be ended.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};

use crate::{hardware::Inventory, probe::Machine};

/// How long a read may take, with some devices that do not answer in their time. One that takes longer goes on
/// alone, and no other one begins meanwhile.
const DEADLINE: Duration = Duration::from_secs(10);

/// A driver blocks the read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Blocked;

/// One read at a time.
#[derive(Clone)]
pub(super) struct Sight {
    machine: Arc<dyn Machine>,
    reading: Arc<AtomicBool>,
}

/// Says that a read is over, also when it panics.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Sight {
    pub(super) fn new(machine: Arc<dyn Machine>) -> Self {
        Self { machine, reading: Arc::default() }
    }

    /// Reads everything; waits for a read that is under way, but not for ever.
    pub(super) async fn read(&self) -> Result<Inventory, Blocked> {
        let end = Instant::now() + DEADLINE;
        while !self.begin() {
            if Instant::now() >= end {
                return Err(Blocked);
            }
            sleep(Duration::from_millis(20)).await;
        }
        self.go_on(|machine| machine.inventory()).await
    }

    /// Reads everything if anything that matters may have changed; `None` too while another read is
    /// under way.
    pub(super) async fn glance(&self, last: Arc<Inventory>) -> Result<Option<Inventory>, Blocked> {
        if !self.begin() {
            return Ok(None);
        }
        self.go_on(move |machine| machine.changed_since(&last).then(|| machine.inventory())).await
    }

    /// How often the links of each HCA went down; `None` too while a read is under way.
    pub(super) async fn links(&self, last: Arc<Inventory>) -> Option<BTreeMap<String, u64>> {
        if !self.begin() {
            return None;
        }
        self.go_on(move |machine| machine.links_downed(&last)).await.ok()
    }

    fn begin(&self) -> bool {
        self.reading.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    async fn go_on<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn Machine) -> T + Send + 'static,
    ) -> Result<T, Blocked> {
        let (machine, over) = (Arc::clone(&self.machine), Over(Arc::clone(&self.reading)));
        let reading = tokio::task::spawn_blocking(move || {
            let _over = over;
            read(machine.as_ref())
        });
        timeout(DEADLINE, reading).await.ok().and_then(Result::ok).ok_or(Blocked)
    }
}
