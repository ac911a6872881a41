//! Folders that live as long as a child, in the agent's run folder.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Removes folders of processes that were killed, once no child can be using them any more.
pub(super) fn sweep(run_dir: &Path) {
    const LONGER_THAN_ANY_CHECK: Duration = Duration::from_secs(2 * 3600);
    for entry in fs::read_dir(run_dir).into_iter().flatten().flatten() {
        let modified = entry.metadata().and_then(|m| m.modified()).ok();
        let old = modified.and_then(|at| at.elapsed().ok()).is_some_and(|age| age > LONGER_THAN_ANY_CHECK);
        if old && entry.file_name().to_string_lossy().starts_with(NAME) {
            let _ = fs::remove_dir_all(entry.path()); // tried again at the next start
        }
    }
}

/// How the folders of children are called.
const NAME: &str = "probe-";

/// A folder that goes when it is dropped.
pub(super) struct Folder(pub(super) PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // a leftover of an empty folder harms nobody
    }
}

pub(super) fn make_folder(run_dir: &Path) -> io::Result<Folder> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("{NAME}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let make = |parent: &Path| {
        fs::create_dir_all(parent)?;
        let dir = parent.join(&name);
        fs::create_dir(&dir)?;
        Ok(Folder(dir))
    };
    make(run_dir).or_else(|_: io::Error| make(&std::env::temp_dir()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_what_is_old_and_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, hours: u64| {
            let path = dir.path().join(name);
            fs::create_dir(&path).unwrap();
            let at = std::time::SystemTime::now() - Duration::from_secs(hours * 3600);
            fs::File::open(&path).unwrap().set_modified(at).unwrap();
            path
        };
        let (old, young, other) = (make("probe-1-0", 3), make("probe-2-0", 1), make("something", 3));
        sweep(dir.path());
        assert_eq!((old.exists(), young.exists(), other.exists()), (false, true, true));
    }
}
