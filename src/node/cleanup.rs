//! Takes away everything that any version of the agent ever wrote to a Node, and nothing else.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};

use super::{
    api::{call, client},
    body::removal,
};

/// Nodes in one page of a list.
const PAGE: u32 = 500;

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

/// Removes; answers how many Nodes had something and how many were looked at. A Node that fails
/// does not keep the others from being cleaned.
pub async fn cleanup(target: &Target, prefix: &str) -> Result<(usize, usize), CleanupError> {
    let api: Api<Node> = Api::all(client().await.map_err(|e| CleanupError(e.text))?);
    let nodes = nodes(&api, target).await?;
    let (mut cleaned, mut failed) = (0, Vec::new());
    for node in &nodes {
        let name = node.metadata.name.clone().unwrap_or_default();
        let Some(body) = removal(node, prefix) else { continue };
        let (parameters, body) = (PatchParams::default(), Patch::Strategic(body));
        let patched = api.patch_status(&name, &parameters, &body);
        match call("patch the node's status", "patch nodes/status", patched).await {
            Ok(_) => cleaned += 1,
            Err(error) => failed.push(format!("{name}: {}", error.text)),
        }
    }
    if failed.is_empty() { Ok((cleaned, nodes.len())) } else { Err(CleanupError(failed.join("; "))) }
}

async fn nodes(api: &Api<Node>, target: &Target) -> Result<Vec<Node>, CleanupError> {
    let name = match target {
        Target::One(name) => name,
        Target::All => {
            let mut all = Vec::new();
            let mut params = ListParams::default().limit(PAGE);
            loop {
                let page =
                    call("list the nodes", "list nodes", api.list(&params)).await.map_err(|e| CleanupError(e.text))?;
                all.extend(page.items);
                match page.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => params = params.continue_token(&token),
                    None => return Ok(all),
                }
            }
        }
    };
    call("read the node", "get nodes", api.get(name)).await.map(|node| vec![node]).map_err(|e| CleanupError(e.text))
}
