//! Takes away everything that any version of the agent ever wrote to a Node, and nothing else.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};

use super::{
    api::{CallError, call, client},
    body::removal,
    list::Pages,
};

/// Nodes in one page of a list, which are cleaned before the next one is asked for.
const PAGE: u32 = 100;

/// Which Nodes.
#[derive(Debug, Clone)]
pub enum Target {
    /// One, by name.
    One(String),
    /// All of the cluster.
    All,
}

/// What could not be done.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CleanupError(String);

impl From<CallError> for CleanupError {
    fn from(error: CallError) -> Self {
        Self(error.text)
    }
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cleaned {
    /// Nodes that had something.
    pub cleaned: usize,
    /// Nodes that were looked at.
    pub looked_at: usize,
}

/// Removes. A Node that fails does not keep the others from being cleaned.
pub async fn cleanup(target: &Target, prefix: &str) -> Result<Cleaned, CleanupError> {
    let client = client().await?;
    let api = Api::all(client.clone());
    let mut sweep = Sweep { api, prefix, done: Cleaned::default(), failed: Vec::new() };
    match target {
        Target::One(name) => {
            let node = call("read the node", "get nodes", sweep.api.get(name)).await?;
            sweep.clean(&node).await;
        }
        Target::All => {
            if let Err(error) = sweep.all(Pages::new(client, None, PAGE)).await {
                sweep.failed.push(error.text); // beside the Nodes that failed before it
            }
        }
    }
    if sweep.failed.is_empty() { Ok(sweep.done) } else { Err(CleanupError(sweep.failed.join("; "))) }
}

struct Sweep<'a> {
    api: Api<Node>,
    prefix: &'a str,
    done: Cleaned,
    failed: Vec<String>,
}

impl Sweep<'_> {
    async fn all(&mut self, mut pages: Pages<Node>) -> Result<(), CallError> {
        while let Some(page) = pages.next().await? {
            if page.is_first {
                // What is clean already costs nothing.
                self.done.looked_at = 0;
                self.failed.clear();
            }
            for node in &page.nodes {
                self.clean(node).await;
            }
        }
        Ok(())
    }

    async fn clean(&mut self, node: &Node) {
        self.done.looked_at += 1;
        let Some(body) = removal(node, self.prefix) else { return };
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let (parameters, body) = (PatchParams::default(), Patch::Strategic(body));
        let patched = self.api.patch_status(name, &parameters, &body);
        match call("patch the node's status", "patch nodes/status", patched).await {
            Ok(_) => self.done.cleaned += 1,
            Err(error) => self.failed.push(format!("{name}: {}", error.text)),
        }
    }
}
