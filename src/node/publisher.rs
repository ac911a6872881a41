//! The writer: one patch to `nodes/status` when something differs, and a heartbeat. The latest state
//! wins; nothing is queued, and nobody waits for it.

use std::{sync::Arc, time::Duration};

use axum::http::{HeaderValue, header::USER_AGENT};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use tokio::{sync::watch, time::timeout};

use super::body::{Desired, desired, patch, shows};
use crate::{
    agent::{Published, jittered},
    config::Publish,
    telemetry::metrics::Metrics,
};

/// For one call.
const CALL: Duration = Duration::from_secs(15);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

/// Keeps a Node telling what the agent knows.
pub async fn publish(name: String, config: Publish, mut state: watch::Receiver<Arc<Published>>, metrics: Arc<Metrics>) {
    let mut writer = Writer { name, config, node: None, client: None };
    let mut pause = FIRST_PAUSE;
    loop {
        let wanted = desired(&state.borrow_and_update().report, &writer.config);
        match writer.write(&wanted).await {
            Ok(()) => {
                metrics.published(true);
                pause = FIRST_PAUSE;
                let heartbeat = jittered(writer.config.heartbeat.0, 1.0, 0.1);
                if !until_changed(&mut state, heartbeat, &wanted, &writer.config).await {
                    return;
                }
            }
            Err(why) => {
                metrics.published(false);
                tracing::warn!(node = %writer.name, %why, pause_s = pause.as_secs(), "can't publish; trying again");
                tokio::time::sleep(jittered(pause, 0.5, 1.0)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// Waits for a state that asks for something else, or for the heartbeat. False: the agent ends.
async fn until_changed(
    state: &mut watch::Receiver<Arc<Published>>,
    heartbeat: Duration,
    wanted: &Desired,
    config: &Publish,
) -> bool {
    let end = tokio::time::Instant::now() + heartbeat;
    loop {
        match tokio::time::timeout_at(end, state.changed()).await {
            Err(_) => return true,
            Ok(Err(_)) => return false,
            Ok(Ok(())) if desired(&state.borrow_and_update().report, config) != *wanted => return true,
            Ok(Ok(())) => {}
        }
    }
}

struct Writer {
    name: String,
    config: Publish,
    client: Option<Client>,
    /// The Node as the last answer showed it.
    node: Option<Node>,
}

impl Writer {
    async fn write(&mut self, wanted: &Desired) -> Result<(), String> {
        let api = self.api().await?;
        let node = match self.node.take() {
            Some(node) => node,
            None => call("get", api.get(&self.name)).await.map_err(|e| e.text)?,
        };
        if *wanted == Desired::default() && shows(&node, wanted, &self.config.prefix) {
            self.node = Some(node);
            return Ok(()); // nothing to say, and nothing to take back
        }
        let body = patch(&node, wanted, &self.config.prefix, Timestamp::now());
        let written = call(
            "patch nodes/status of",
            api.patch_status(&self.name, &PatchParams::default(), &Patch::Strategic(body)),
        )
        .await;
        match written {
            Ok(node) => {
                self.node = Some(node);
                Ok(())
            }
            // A node of this name was made anew: read it, and publish in full.
            Err(error) if error.recreated => Err(format!("{}; the node was made anew, reading it again", error.text)),
            Err(error) => Err(error.text),
        }
    }

    async fn api(&mut self) -> Result<Api<Node>, String> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => self.client.insert(client().await?).clone(),
        };
        Ok(Api::all(client))
    }
}

/// A client from the pod's service account, or from a kubeconfig.
pub(super) async fn client() -> Result<Client, String> {
    let mut config = kube::Config::infer().await.map_err(|e| format!("no way to the API server: {e}"))?;
    config.default_retry = false; // our own clock tries again
    config.headers.push((USER_AGENT, HeaderValue::from_static(concat!("gdr-agent/", env!("CARGO_PKG_VERSION")))));
    Client::try_from(config).map_err(|e| format!("can't make a client: {e}"))
}

/// Why a call failed.
pub(super) struct CallError {
    pub(super) text: String,
    /// The node is another one, or gone.
    recreated: bool,
}

/// One call with its deadline; an error says what was tried and, for a missing right, which.
pub(super) async fn call<T>(what: &str, future: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    let error = match timeout(CALL, future).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => error,
        Err(_) => {
            let text = format!("{what} the node: no answer within {} s", CALL.as_secs());
            return Err(CallError { text, recreated: false });
        }
    };
    let kube::Error::Api(status) = &error else {
        return Err(CallError { text: format!("{what} the node: {error}"), recreated: false });
    };
    let uid = status.details.as_ref().is_some_and(|d| d.causes.iter().any(|c| c.field == "metadata.uid"));
    let hint =
        if status.code == 403 { " (the chart's ClusterRole grants nodes get and nodes/status patch)" } else { "" };
    Err(CallError {
        text: format!("{what} the node: {} {}{hint}", status.code, status.message),
        recreated: status.code == 404 || (status.code == 422 && uid),
    })
}
