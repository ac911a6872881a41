//! The labels as a local feature file of Node Feature Discovery, for clusters where no agent may write to
//! Nodes: `KEY=VALUE` lines below the time at which they expire
//! (<https://kubernetes-sigs.github.io/node-feature-discovery/stable/usage/customization-guide.html>).

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp, Unit};
use tokio::{sync::watch, time::timeout};

use super::body::desired;
use crate::{
    agent::{Published, jittered},
    config::Publish,
    report::Report,
    store::write_atomically,
    telemetry::metrics::Metrics,
};

/// Name of the file; NFD reads every file of its folder that is not hidden.
const FILE: &str = "gdr-agent";
const PAUSE: Duration = Duration::from_secs(30);

/// Keeps the file telling what the agent knows.
pub async fn write_features(config: Publish, mut state: watch::Receiver<Arc<Published>>, metrics: Arc<Metrics>) {
    let file = config.nfd_dir.join(FILE);
    let mut said = None;
    loop {
        let report = Arc::clone(&state.borrow_and_update().report);
        let written = write(&file, features(&report, &config, Timestamp::now()));
        metrics.published(written.is_ok());
        let trouble = written.err().map(|error| error.to_string());
        if let Some(why) = trouble.as_ref().filter(|_| trouble != said) {
            tracing::warn!(why, file = %file.display(), "can't write NFD's feature file; trying again");
        }
        let wait = if trouble.is_some() { PAUSE } else { jittered(config.heartbeat.0, 1.0, 0.1) };
        said = trouble;
        if let Ok(Err(_)) = timeout(wait, state.changed()).await {
            return;
        }
    }
}

fn write(file: &Path, text: Option<String>) -> io::Result<()> {
    match text {
        Some(text) => write_atomically(file, text.as_bytes()),
        None => match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    }
}

/// The file's text; none where nothing is published. NFD refuses a label without a prefix, so that the
/// state is under its long name.
fn features(report: &Report, config: &Publish, now: Timestamp) -> Option<String> {
    let labels = desired(report, &Publish { short_label: false, ..config.clone() }).labels;
    let lifetime = SignedDuration::try_from(config.heartbeat.0 * 3).unwrap_or(SignedDuration::MAX);
    let expiry = now.saturating_add(lifetime).and_then(|at| at.round(Unit::Second)).unwrap_or(now);
    let mut lines = vec![format!("# +expiry-time={expiry}")];
    lines.extend(labels.iter().map(|(key, value)| format!("{key}={value}")));
    (!labels.is_empty()).then(|| lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::{Reason, State},
        verdict::fixture::Scene,
    };

    #[test]
    fn a_file_has_its_expiry_and_labels_with_a_prefix_alone() {
        let report = Scene::new().report();
        let text = features(&report, &Publish::default(), Timestamp::UNIX_EPOCH).unwrap();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("# +expiry-time=1970-01-01T00:15:00Z"));
        let labels: Vec<_> = lines.collect();
        assert!(labels.contains(&"gpudirect-rdma/state=ready") && labels.contains(&"gpudirect-rdma/gpus=8"), "{text}");
        for label in labels {
            let (key, value) = label.split_once('=').unwrap();
            assert!(key.starts_with("gpudirect-rdma/") && !value.contains(['=', ' ']), "{label}");
        }
    }

    #[test]
    fn what_does_not_apply_has_no_file() {
        let mut report = Scene::new().report();
        (report.verdict.state, report.verdict.reason) = (State::NotApplicable, Reason::NoGpu);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        write(&file, Some("x".into())).unwrap();
        write(&file, features(&report, &Publish::default(), Timestamp::UNIX_EPOCH)).unwrap();
        assert!(!file.exists());
        write(&file, None).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "no temporary file");
    }
}
