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

/// What a look saw.
pub(super) enum Glance {
    /// Nothing new; also while another read is under way.
    Same,
    /// Something may have changed.
    Changed(Inventory),
    /// Nothing that shows at a glance.
    Whole(Inventory),
}

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
        let over = loop {
            match self.begin() {
                Some(over) => break over,
                None if Instant::now() >= end => return Err(Blocked),
                None => sleep(Duration::from_millis(20)).await,
            }
        };
        let machine = Arc::clone(&self.machine);
        go_on(over, async move { machine.inventory().await }).await
    }

    /// Reads everything if anything that matters may have changed, or where `whole` is wanted.
    pub(super) async fn glance(&self, last: Arc<Inventory>, whole: bool) -> Result<Glance, Blocked> {
        let Some(over) = self.begin() else { return Ok(Glance::Same) };
        let machine = Arc::clone(&self.machine);
        let look = async move {
            if machine.changed_since(&last).await {
                Glance::Changed(machine.inventory().await)
            } else if whole {
                Glance::Whole(machine.inventory().await)
            } else {
                Glance::Same
            }
        };
        go_on(over, look).await
    }

    /// How often the links of each HCA went down; `None` too while a read is under way.
    pub(super) async fn links(&self, last: Arc<Inventory>) -> Option<BTreeMap<String, u64>> {
        let over = self.begin()?;
        let machine = Arc::clone(&self.machine);
        go_on(over, async move { machine.links_downed(&last).await }).await.ok()
    }

    fn begin(&self) -> Option<Over> {
        let begun = self.reading.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire).is_ok();
        begun.then(|| Over(Arc::clone(&self.reading)))
    }
}

async fn go_on<T: Send + 'static>(over: Over, read: impl Future<Output = T> + Send + 'static) -> Result<T, Blocked> {
    let mut reading = Box::pin(async move {
        let _over = over;
        read.await
    });
    if let Ok(read) = timeout(DEADLINE, &mut reading).await {
        return Ok(read);
    }
    tokio::spawn(reading);
    Err(Blocked)
}
