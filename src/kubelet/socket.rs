//! Files in the kubelet's folder: which one it is, what ours are called, and which are left of an agent
//! that was killed.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// Which file it is: an inode alone is used again.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(super) struct Identity(u64, i64, i64);

impl Identity {
    pub(super) fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        Some(Self(meta.ino(), meta.ctime(), meta.ctime_nsec()))
    }
}

/// The kubelet's own socket.
pub(super) fn kubelet(folder: &Path) -> PathBuf {
    folder.join("kubelet.sock")
}

/// Unique for each bind: kubelets before 1.36 know a plugin by its resource's name alone, newer ones
/// by its socket's path too. In a pod the process has the same number after each restart: the time tells.
pub(super) fn name(resource: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{}{now:x}-{}.sock", prefix(resource), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Short: a socket's path has 107 bytes at most (unix(7)).
fn prefix(resource: &str) -> String {
    let hash =
        resource.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("gdr-agent-{:08x}-", hash & 0xffff_ffff)
}

/// Sockets of an agent that was killed.
pub(super) fn remove_old(folder: &Path, resource: &str) {
    let prefix = prefix(resource);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            let _ = fs::remove_file(entry.path()); // the next start tries again
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_never_the_same() {
        let long = format!("{}/{}", "x".repeat(253), "y".repeat(63));
        let (first, second) = (name(&long), name(&long));
        assert_ne!(first, second);
        assert!("/var/lib/kubelet/device-plugins/".len() + first.len() < 108, "{first}");
        assert!(!first.starts_with('.'), "the kubelet's watcher leaves hidden files out");
    }

    #[test]
    fn only_its_own_old_sockets_go() {
        let dir = tempfile::tempdir().unwrap();
        for file in [name("a/b"), name("a/c"), "kubelet.sock".into(), "nvidia-gpu.sock".into()] {
            fs::write(dir.path().join(file), "").unwrap();
        }
        remove_old(dir.path(), "a/b");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
