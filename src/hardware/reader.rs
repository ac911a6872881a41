//! Reading sysfs without ever waiting for a driver: it can block a read of its device for as long as it likes,
//! and a thread that waits for it can't be ended. So the reads run on a thread of their own. One that stays too
//! long at a device is left there, and the device is passed over until that thread comes back.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc},
    thread,
    time::{Duration, Instant},
};

use tokio::{
    sync::oneshot::{self, error::RecvError},
    time::timeout,
};

/// How long the reads of one device may take.
const DEADLINE: Duration = Duration::from_secs(3);

type Shared<T> = Arc<Mutex<T>>;

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers which devices are silent: at each of them a thread still waits.
#[derive(Debug, Clone, Default)]
pub struct Reader {
    silent: Shared<BTreeSet<String>>,
    /// Files that are read each second, by the device's name.
    open: Shared<BTreeMap<String, Vec<File>>>,
    /// A thread that has nothing to do.
    idle: Shared<Option<mpsc::Sender<Job>>>,
}

/// One pass over the devices.
#[derive(Debug, Clone, Default)]
pub struct Pass {
    silent: Shared<BTreeSet<String>>,
    open: Shared<BTreeMap<String, Vec<File>>>,
    at: Shared<At>,
}

#[derive(Debug, Default)]
struct At {
    device: Option<(String, Instant)>,
    /// Nobody waits for this pass any more.
    left: bool,
}

/// What a thread does, and answers with what tells of it once the thread can be had again.
type Work = Box<dyn FnOnce() -> Box<dyn FnOnce()> + Send>;

struct Job {
    work: Work,
    thread: mpsc::Sender<Self>,
}

impl Reader {
    /// Reads; where a device does not answer in time, again without it.
    pub async fn read<T: Send + 'static>(&self, read: impl Fn(&Pass) -> T + Clone + Send + 'static) -> T {
        loop {
            let pass = Pass { silent: Arc::clone(&self.silent), open: Arc::clone(&self.open), at: Arc::default() };
            let (tell, answer) = oneshot::channel();
            let (its_read, its_pass) = (read.clone(), pass.clone());
            self.run(Box::new(move || {
                let answer = its_read(&its_pass);
                Box::new(move || drop(tell.send(answer))) // perhaps nobody waits any more
            }));
            match pass.wait(answer).await {
                Ok(Some(read)) => return read,
                Ok(None) => {}
                // There is no thread to be had.
                Err(_) => return read(&pass),
            }
        }
    }

    fn run(&self, work: Work) {
        let idle = lock(&self.idle).take();
        let thread = idle.or_else(|| self.start());
        if let Some(thread) = thread {
            let _ = thread.send(Job { work, thread: thread.clone() }); // it waits for this
        }
    }

    /// Ends with the reader, or when there is another one that has nothing to do.
    fn start(&self) -> Option<mpsc::Sender<Job>> {
        let (thread, jobs) = mpsc::channel::<Job>();
        let idle: Weak<_> = Arc::downgrade(&self.idle);
        let work = move || {
            while let Ok(Job { work, thread }) = jobs.recv() {
                let tell = work();
                if let Some(idle) = idle.upgrade() {
                    lock(&idle).get_or_insert(thread);
                }
                tell();
            }
        };
        thread::Builder::new().name("sysfs".into()).spawn(work).ok().map(|_| thread)
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

    /// Files of a device that an earlier pass left open; to be given back with [`Pass::keep`].
    pub(super) fn kept(&self, device: &str) -> Vec<File> {
        lock(&self.open).remove(device).unwrap_or_default()
    }

    /// Leaves files of a device open for the next pass. They are attributes, not the device.
    pub(super) fn keep(&self, device: &str, files: Vec<File>) {
        lock(&self.open).insert(device.to_owned(), files);
    }

    /// Closes the files of other devices than these.
    pub(super) fn keep_only(&self, devices: &[String]) {
        lock(&self.open).retain(|device, _| devices.contains(device));
    }

    /// What the pass comes to; `None` once it stays too long at a device, which is silent from then on.
    async fn wait<T>(&self, mut answer: oneshot::Receiver<T>) -> Result<Option<T>, RecvError> {
        loop {
            let since = lock(&self.at).device.as_ref().map(|(_, since)| *since);
            let left = since.map_or(DEADLINE, |since| DEADLINE.saturating_sub(since.elapsed()));
            if let Ok(answer) = timeout(left, &mut answer).await {
                return answer.map(Some);
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

    #[tokio::test]
    async fn a_silent_device_is_passed_over_until_it_answers() {
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
        assert_eq!(reader.read(read.clone()).await, [Some("a"), None, Some("c")]);
        let start = Instant::now();
        assert_eq!(reader.read(read.clone()).await, [Some("a"), None, Some("c")]);
        assert!(start.elapsed() < DEADLINE, "no second thread goes there");
        blocked.store(false, Ordering::Release);
        while lock(&reader.silent).contains("b") {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(reader.read(read).await, [Some("a"), Some("b"), Some("c")]);
    }

    /// A machine of many devices that take their time is not one whose devices are silent.
    #[tokio::test]
    async fn the_deadline_is_each_devices_own() {
        let reader = Reader::default();
        let slow =
            |pass: &Pass| (0..10).filter_map(|n| pass.device(&format!("{n}"), || thread::sleep(DEADLINE / 8))).count();
        assert_eq!(reader.read(slow).await, 10);
    }

    /// Threads that were left behind come back, and end.
    #[tokio::test]
    async fn one_thread_does_for_all_that_answers() {
        let reader = Reader::default();
        let first = reader.read(|_| thread::current().id()).await;
        for _ in 0..20 {
            assert_eq!(reader.read(|_| thread::current().id()).await, first);
        }
        // Neither waits for the other.
        let both = Arc::new(std::sync::Barrier::new(2));
        let met = |both: Arc<std::sync::Barrier>| reader.read(move |_| both.wait().is_leader());
        let (one, other) = tokio::join!(met(Arc::clone(&both)), met(both));
        assert_ne!(one, other);
    }
}
