//! Reading sysfs without ever waiting for a driver: it can block a read of its device for as long as it likes,
//! and a thread that waits for it can't be ended. So the reads run on a thread of their own. One that stays too
//! long at a device is left there, and the device is passed over until that thread comes back.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// How long the reads of one device may take.
const DEADLINE: Duration = Duration::from_secs(3);

type Shared<T> = Arc<Mutex<T>>;

fn lock<T>(shared: &Shared<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers which devices are silent: at each of them a thread still waits.
#[derive(Debug, Clone, Default)]
pub struct Reader {
    silent: Shared<BTreeSet<String>>,
}

/// One pass over the devices.
#[derive(Debug, Clone, Default)]
pub struct Pass {
    silent: Shared<BTreeSet<String>>,
    at: Shared<At>,
}

#[derive(Debug, Default)]
struct At {
    device: Option<(String, Instant)>,
    /// Nobody waits for this pass any more.
    left: bool,
}

impl Reader {
    /// Reads; where a device does not answer in time, again without it.
    pub fn read<T: Send + 'static>(&self, read: impl Fn(&Pass) -> T + Clone + Send + 'static) -> T {
        loop {
            let pass = Pass { silent: Arc::clone(&self.silent), at: Arc::default() };
            let (tell, answer) = mpsc::channel();
            let (its_read, its_pass) = (read.clone(), pass.clone());
            let its = move || {
                let _ = tell.send(its_read(&its_pass)); // perhaps nobody waits any more
            };
            if thread::Builder::new().name("sysfs".into()).spawn(its).is_err() {
                return read(&pass);
            }
            match pass.wait(&answer) {
                Ok(Some(read)) => return read,
                Ok(None) => {}
                Err(mpsc::RecvError) => return read(&pass),
            }
        }
    }
}

impl Pass {
    /// Reads of one device, by its name or its PCI address. `None`: it does not answer.
    pub(crate) fn device<T>(&self, device: &str, read: impl FnOnce() -> T) -> Option<T> {
        {
            let mut at = lock(&self.at);
            if at.left || lock(&self.silent).contains(device) {
                return None;
            }
            at.device = Some((device.to_owned(), Instant::now()));
        }
        let read = read();
        let mut at = lock(&self.at);
        at.device = None;
        if at.left {
            lock(&self.silent).remove(device);
            return None;
        }
        Some(read)
    }

    /// What the pass comes to; `None` once it stays too long at a device, which is silent from then on.
    fn wait<T>(&self, answer: &mpsc::Receiver<T>) -> Result<Option<T>, mpsc::RecvError> {
        loop {
            let since = lock(&self.at).device.as_ref().map(|(_, since)| *since);
            let left = since.map_or(DEADLINE, |since| DEADLINE.saturating_sub(since.elapsed()));
            match answer.recv_timeout(left) {
                Ok(read) => return Ok(Some(read)),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(mpsc::RecvError),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            let mut at = lock(&self.at);
            if let Some((device, _)) = at.device.clone().filter(|(_, since)| since.elapsed() >= DEADLINE) {
                tracing::warn!(%device, "a driver blocks the reads of this device");
                lock(&self.silent).insert(device);
                at.left = true;
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_silent_device_is_passed_over_until_it_answers() {
        let (reader, blocked) = (Reader::default(), Arc::new(AtomicBool::new(true)));
        let read = {
            let blocked = Arc::clone(&blocked);
            move |pass: &Pass| {
                ["a", "b", "c"].map(|name| {
                    pass.device(name, || {
                        while name == "b" && blocked.load(Ordering::Acquire) {
                            thread::sleep(Duration::from_millis(5));
                        }
                        name
                    })
                })
            }
        };
        assert_eq!(reader.read(read.clone()), [Some("a"), None, Some("c")]);
        let start = Instant::now();
        assert_eq!(reader.read(read.clone()), [Some("a"), None, Some("c")]);
        assert!(start.elapsed() < DEADLINE, "no second thread goes there");
        blocked.store(false, Ordering::Release);
        while lock(&reader.silent).contains("b") {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(reader.read(read), [Some("a"), Some("b"), Some("c")]);
    }

    /// A machine of many devices that take their time is not one whose devices are silent.
    #[test]
    fn the_deadline_is_each_devices_own() {
        let reader = Reader::default();
        let slow =
            |pass: &Pass| (0..10).filter_map(|n| pass.device(&format!("{n}"), || thread::sleep(DEADLINE / 8))).count();
        assert_eq!(reader.read(slow), 10);
    }
}
