//! The agent's unix socket: a word in, a report or the history out.

use serde::de::DeserializeOwned;
use std::{io, os::unix::fs::FileTypeExt, path::Path, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use super::{AGENT_SOCKET, Published};

/// The report as it is.
pub const STATUS: &str = "status";
/// The report after another check.
pub const RECHECK: &str = "recheck";
/// The report after today's hardware was taken for the baseline.
pub const ACCEPT: &str = "accept";
/// The last changes of the state.
pub const HISTORY: &str = "history";

/// Who asked is told when it is done.
pub(super) type Done = oneshot::Sender<()>;

/// What is asked of the agent.
pub(super) enum Request {
    /// A check now; done when it has finished.
    Check(Done),
    /// To take what is here now for the node's baseline.
    Accept(Done),
}

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
    requests: mpsc::Sender<Request>,
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

async fn answer(stream: UnixStream, state: watch::Receiver<Arc<Published>>, requests: mpsc::Sender<Request>) {
    let mut stream = BufReader::new(stream);
    let mut word = String::new();
    if !matches!(timeout(WORD_DEADLINE, (&mut stream).take(64).read_line(&mut word)).await, Ok(Ok(_))) {
        return;
    }
    let ask: Option<fn(Done) -> Request> = match word.trim() {
        RECHECK => Some(Request::Check),
        ACCEPT => Some(Request::Accept),
        _ => None,
    };
    if let Some(ask) = ask {
        let (done, finished) = oneshot::channel();
        if requests.send(ask(done)).await.is_err() || finished.await.is_err() {
            return;
        }
    }
    let told = Arc::clone(&state.borrow());
    let json = if word.trim() == HISTORY {
        serde_json::to_vec(&told.history[..])
    } else {
        serde_json::to_vec(told.report.as_ref())
    };
    if let Ok(json) = json {
        let _ = stream.write_all(&json).await; // the client may be gone
    }
}

/// Asks the running agent: for its report ([`STATUS`], or after [`RECHECK`] or [`ACCEPT`] is done), or for its
/// [`HISTORY`].
pub async fn ask<T: DeserializeOwned>(run_dir: &Path, word: &str) -> io::Result<T> {
    let mut stream = UnixStream::connect(run_dir.join(AGENT_SOCKET)).await?;
    stream.write_all(format!("{word}\n").as_bytes()).await?;
    let mut json = Vec::new();
    stream.take(REPORT_LIMIT).read_to_end(&mut json).await?;
    serde_json::from_slice(&json).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}
