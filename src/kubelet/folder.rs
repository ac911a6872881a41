//! Notices what happens in the kubelet's folder: by inotify(7), and by a slow look in case there is none.
//! The limit of inotify instances (`fs.inotify.max_user_instances`) is small and shared by all of root's
//! programs, so that one is used for all resources, and doing without it costs a second.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::{io::unix::AsyncFd, sync::watch, time::sleep};

use super::socket::{Identity, kubelet};
use crate::ffi::sys;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Counts up at each change in the folder; ends with its last receiver.
#[must_use]
pub fn watch_folder(folder: PathBuf) -> watch::Receiver<u64> {
    let (changes, receiver) = watch::channel(0);
    tokio::spawn(watch(folder, changes));
    receiver
}

async fn watch(folder: PathBuf, changes: watch::Sender<u64>) {
    let mut notices = Notices::new(&folder);
    if let Err(error) = &notices {
        tracing::info!(%error, folder = %folder.display(), "no inotify; looking once a second");
    }
    let mut last = Identity::of(&kubelet(&folder));
    loop {
        let next = async {
            match &notices {
                Ok(inotify) => inotify.next().await,
                Err(_) => std::future::pending().await,
            }
        };
        let seen = tokio::select! {
            () = changes.closed() => return,
            seen = next => seen,
            () = sleep(LOOK) => Noticed::Nothing,
        };
        let now = Identity::of(&kubelet(&folder));
        if seen != Noticed::Nothing || now != last {
            changes.send_modify(|n| *n += 1);
        }
        // A folder that is there again, or for the first time.
        if seen == Noticed::FolderGone || now != last && notices.is_err() {
            notices = Notices::new(&folder);
        }
        last = now;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Noticed {
    Nothing,
    Change,
    FolderGone,
}

struct Notices(AsyncFd<OwnedFd>);

impl Notices {
    fn new(folder: &Path) -> io::Result<Self> {
        let instance = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let of_files = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
        let of_itself = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        inotify::add_watch(&instance, folder, of_files | of_itself | WatchFlags::ONLYDIR)?;
        Ok(Self(sys::readable(instance)?))
    }

    /// Waits for something; all that has piled up is one change.
    async fn next(&self) -> Noticed {
        let Ok(mut ready) = self.0.readable().await else { return Noticed::FolderGone };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.0.get_ref(), &mut buffer);
        let mut noticed = Noticed::Nothing;
        while let Ok(event) = reader.next() {
            let gone = ReadFlags::IGNORED | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF;
            noticed = if event.events().intersects(gone) { Noticed::FolderGone } else { Noticed::Change };
            if noticed == Noticed::FolderGone {
                break;
            }
        }
        ready.clear_ready();
        noticed
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::time::timeout;

    use super::*;

    /// A generous deadline.
    const SOON: Duration = Duration::from_secs(20);

    async fn notices(changes: &mut watch::Receiver<u64>) -> bool {
        timeout(SOON, changes.changed()).await.is_ok()
    }

    #[tokio::test]
    async fn a_file_that_comes_or_goes_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let mut changes = watch_folder(dir.path().to_owned());
        sleep(Duration::from_millis(50)).await;
        for _ in 0..2 {
            fs::write(dir.path().join("kubelet.sock"), "").unwrap();
            assert!(notices(&mut changes).await);
            fs::remove_file(dir.path().join("kubelet.sock")).unwrap();
            assert!(notices(&mut changes).await);
        }
    }

    #[tokio::test]
    async fn a_folder_that_comes_later_or_again_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("device-plugins");
        let mut changes = watch_folder(folder.clone());
        sleep(Duration::from_millis(50)).await;
        for _ in 0..2 {
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("kubelet.sock"), "").unwrap();
            assert!(notices(&mut changes).await);
            sleep(Duration::from_millis(1500)).await;
            changes.mark_unchanged();
            fs::remove_dir_all(&folder).unwrap();
            assert!(notices(&mut changes).await);
            sleep(Duration::from_millis(1500)).await;
            changes.mark_unchanged();
        }
    }
}
