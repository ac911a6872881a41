//! Waiting for a lock that another process may hold.

use std::{fs::File, time::Duration};

use rustix::fs::{FlockOperation, flock};
use tokio::time::{Instant, sleep};

/// Takes an exclusive flock(2), trying until the limit. False: somebody else still has it.
pub(crate) async fn lock_within(file: &File, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= deadline {
            return false;
        }
        sleep(Duration::from_millis(50)).await;
    }
    true
}
