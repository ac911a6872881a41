//! One agent on a node, and why it can't run.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::probe::lock_within;

/// Why the agent can't run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Another one runs here.
    #[error("another gdr-agent ({owner}) runs on this node: it holds {}; stop it first", path.display())]
    Second {
        /// Its process id.
        owner: String,
        /// The lock.
        path: PathBuf,
    },
    /// Something is not to be had.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why not.
        source: io::Error,
    },
}

pub(super) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> RunError {
    let what = what.into();
    move |source| RunError::Io { what, source }
}

/// The agent's lock; waits 30 s for another one to end.
pub(super) async fn only_one(run_dir: &Path) -> Result<std::fs::File, RunError> {
    let path = run_dir.join("agent.lock");
    std::fs::create_dir_all(run_dir).map_err(io_error(format!("can't make {}", run_dir.display())))?;
    let file = std::fs::OpenOptions::new()
        .create(true)
        .read(true)
        .write(true)
        .truncate(false)
        .open(&path)
        .map_err(io_error(format!("can't open {}", path.display())))?;
    if !lock_within(&file, Duration::from_secs(30)).await {
        let owner = std::fs::read_to_string(&path).unwrap_or_default();
        return Err(RunError::Second { owner: format!("process {}", owner.trim()), path });
    }
    let pid = format!("{}\n", std::process::id());
    file.set_len(0)
        .and_then(|()| io::Write::write_all(&mut &file, pid.as_bytes()))
        .map_err(io_error("can't write the lock"))?;
    Ok(file)
}
