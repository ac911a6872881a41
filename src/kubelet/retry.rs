//! Our own clock for tries: gRPC's reconnection waits a full second.

use std::{path::Path, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::socket::{Identity, kubelet};

/// Tries follow each other at this pace for [`EAGER`], then ever slower.
const PACE: Duration = Duration::from_millis(20);
const EAGER: Duration = Duration::from_secs(2);
const SLOWEST: Duration = Duration::from_secs(30);

/// Eager at first, and whenever the kubelet's socket is a new one.
pub(super) struct Retry {
    since: Option<Instant>,
    pause: Duration,
    warned: Option<String>,
}

impl Retry {
    pub(super) const fn new() -> Self {
        Self { since: None, pause: PACE, warned: None }
    }

    /// It has worked.
    pub(super) fn reset(&mut self) {
        *self = Self::new();
    }

    /// Says a trouble once, not at each try.
    pub(super) fn warn(&mut self, text: &str) {
        if self.warned.as_deref() != Some(text) {
            tracing::warn!("{text}");
            self.warned = Some(text.to_owned());
        }
    }

    /// Waits before the next try; not longer than until there is another kubelet than the one that was tried.
    pub(super) async fn wait(&mut self, folder: &Path, changes: &mut watch::Receiver<u64>, tried: Option<&Identity>) {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() > EAGER {
            self.pause = (self.pause * 2).min(SLOWEST);
        }
        let until = Instant::now() + self.pause;
        loop {
            let now = Identity::of(&kubelet(folder));
            if now.is_some() && now.as_ref() != tried {
                self.since = None;
                self.pause = PACE;
                return;
            }
            if !matches!(timeout_at(until, changes.changed()).await, Ok(Ok(()))) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn eager_for_two_seconds_then_ever_slower() {
        let (_changes, mut receiver) = watch::channel(0);
        let mut retry = Retry::new();
        let start = Instant::now();
        let mut tries = Vec::new();
        for _ in 0..125 {
            retry.wait(Path::new("/nowhere"), &mut receiver, None).await;
            tries.push(start.elapsed());
        }
        let eager = tries.iter().filter(|at| **at <= EAGER).count();
        assert!((95..=101).contains(&eager), "{eager}");
        let pauses: Vec<_> = tries.windows(2).map(|pair| pair[1].checked_sub(pair[0]).unwrap()).collect();
        assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1] + Duration::from_millis(2)));
        assert!(pauses.last().unwrap().as_secs() >= 29, "{:?}", pauses.last());
    }

    #[tokio::test]
    async fn another_kubelet_ends_the_wait() {
        let dir = tempfile::tempdir().unwrap();
        let (changes, mut receiver) = watch::channel(0);
        let mut retry = Retry { since: Instant::now().checked_sub(EAGER * 2), pause: SLOWEST, warned: None };
        let path = kubelet(dir.path());
        let comes = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            changes.send_modify(|n| *n += 1); // something else
            tokio::time::sleep(Duration::from_millis(50)).await;
            std::fs::write(path, "").unwrap();
            changes.send_modify(|n| *n += 1);
        };
        let start = Instant::now();
        tokio::join!(retry.wait(dir.path(), &mut receiver, None), comes);
        assert!(start.elapsed() < Duration::from_secs(15));
        assert_eq!(retry.pause, PACE, "eager again");
    }
}
