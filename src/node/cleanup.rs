//! Takes away everything that any version of the agent ever wrote to a Node, and nothing else.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{ListParams, ObjectList, Patch, PatchParams},
};

use super::{
    api::{CallError, Trouble, call, client},
    body::removal,
};

/// Nodes in one page of a list, which are cleaned before the next one is asked for.
const PAGE: u32 = 100;
/// A list whose continuation has expired begins anew, so often; what is clean already costs nothing.
const TRIES: u32 = 3;

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
    let api: Api<Node> = Api::all(client().await?);
    let mut sweep = Sweep { api, prefix, done: Cleaned::default(), failed: Vec::new() };
    match target {
        Target::One(name) => {
            let node = call("read the node", "get nodes", sweep.api.get(name)).await?;
            sweep.clean(&node).await;
        }
        Target::All => {
            if let Err(error) = sweep.all().await {
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
    async fn all(&mut self) -> Result<(), CallError> {
        let (mut params, mut tries) = (ListParams::default().limit(PAGE), 0);
        loop {
            let page: ObjectList<Node> = match call("list the nodes", "list nodes", self.api.list(&params)).await {
                Ok(page) => page,
                Err(error) if error.trouble == Trouble::Expired && tries < TRIES => {
                    (params.continue_token, tries) = (None, tries + 1);
                    self.done.looked_at = 0;
                    self.failed.clear();
                    continue;
                }
                Err(error) => return Err(error),
            };
            for node in &page.items {
                self.clean(node).await;
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(());
            }
        }
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
