//! Takes away everything that any version of the agent ever wrote to a Node, and nothing else.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};

use super::{
    body::removal,
    publisher::{call, client},
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
    let api: Api<Node> = Api::all(client().await.map_err(CleanupError)?);
    let nodes = nodes(&api, target).await?;
    let (mut cleaned, mut failed) = (0, Vec::new());
    for node in &nodes {
        let name = node.metadata.name.clone().unwrap_or_default();
        let Some(body) = removal(node, prefix) else { continue };
        match call("patch nodes/status of", api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(body)))
            .await
        {
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
                let page = call("list", api.list(&params)).await.map_err(|e| CleanupError(e.text))?;
                all.extend(page.items);
                match page.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => params = params.continue_token(&token),
                    None => return Ok(all),
                }
            }
        }
    };
    call("get", api.get(name)).await.map(|node| vec![node]).map_err(|e| CleanupError(e.text))
}
