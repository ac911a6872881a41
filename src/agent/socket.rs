//! The agent's unix socket: a word in (`status`, `recheck`), a report out.

use std::{io, os::unix::fs::FileTypeExt, path::Path, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use super::{AGENT_SOCKET, Published};
use crate::report::Report;

/// A request for a check; answered when it has finished.
pub(super) type CheckRequest = oneshot::Sender<()>;

/// A client that says nothing is not waited for.
const WORD_DEADLINE: Duration = Duration::from_secs(5);
/// No report is larger.
const REPORT_LIMIT: u64 = 4 << 20;

/// Binds the socket; one left by an agent that was killed is replaced (its lock was free).
pub(super) fn bind(run_dir: &Path) -> io::Result<UnixListener> {
    let path = run_dir.join(AGENT_SOCKET);
    if std::fs::symlink_metadata(&path).is_ok_and(|m| m.file_type().is_socket()) {
        std::fs::remove_file(&path)?;
    }
    UnixListener::bind(path)
}

/// Answers until the process ends.
pub(super) async fn serve(
    listener: UnixListener,
    state: watch::Receiver<Arc<Published>>,
    requests: mpsc::Sender<CheckRequest>,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(answer(stream, state.clone(), requests.clone()));
            }
            Err(error) => {
                // Out of descriptors, most likely; they come back.
                tracing::warn!(%error, "can't accept on the agent's socket");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn answer(stream: UnixStream, state: watch::Receiver<Arc<Published>>, requests: mpsc::Sender<CheckRequest>) {
    let mut stream = BufReader::new(stream);
    let mut word = String::new();
    if !matches!(timeout(WORD_DEADLINE, (&mut stream).take(64).read_line(&mut word)).await, Ok(Ok(_))) {
        return;
    }
    if word.trim() == "recheck" {
        let (done, finished) = oneshot::channel();
        if requests.send(done).await.is_err() || finished.await.is_err() {
            return;
        }
    }
    let report = Arc::clone(&state.borrow().report);
    if let Ok(json) = serde_json::to_vec(report.as_ref()) {
        let _ = stream.write_all(&json).await; // the client may be gone
    }
}

/// Asks the running agent, as `status` and `recheck` do.
pub async fn ask(run_dir: &Path, word: &str) -> io::Result<Report> {
    let mut stream = UnixStream::connect(run_dir.join(AGENT_SOCKET)).await?;
    stream.write_all(format!("{word}\n").as_bytes()).await?;
    let mut json = Vec::new();
    stream.take(REPORT_LIMIT).read_to_end(&mut json).await?;
    serde_json::from_slice(&json).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}
