//! A list of Nodes, page by page.

use std::marker::PhantomData;

use kube::{Client, api::ListParams};
use serde::{Deserialize, de::DeserializeOwned};

use super::api::{CallError, Trouble, call};

/// A list whose continuation has expired begins anew, so often.
const TRIES: u32 = 3;

/// What is left of a list; each Node is read as a `T`.
pub(super) struct Pages<T> {
    client: Client,
    /// Where the next page begins; `None` after the last one.
    params: Option<ListParams>,
    tries: u32,
    of: PhantomData<T>,
}

/// Some Nodes of it.
pub(super) struct Page<T> {
    /// The list begins with it: also anew, and then what came of earlier pages comes once more.
    pub(super) is_first: bool,
    pub(super) nodes: Vec<T>,
}

#[derive(Debug, Deserialize)]
struct NodeList<T> {
    metadata: Metadata,
    items: Vec<T>,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    #[serde(default, rename = "continue")]
    next: String,
}

impl<T: DeserializeOwned> Pages<T> {
    /// Of the Nodes that `selector` (of labels) takes, at most so many in a page.
    pub(super) fn new(client: Client, selector: Option<&str>, limit: u32) -> Self {
        let params = ListParams { label_selector: selector.map(str::to_owned), ..ListParams::default() }.limit(limit);
        Self { client, params: Some(params), tries: 0, of: PhantomData }
    }

    /// The next page; `None` after the last one.
    pub(super) async fn next(&mut self) -> Result<Option<Page<T>>, CallError> {
        loop {
            let Some(params) = &mut self.params else { return Ok(None) };
            let request = kube::core::Request::new("/api/v1/nodes").list(params).map_err(|error| CallError {
                text: format!("can't list the nodes: {error}"),
                trouble: Trouble::Refused,
            })?;
            let list: NodeList<T> = match call("list the nodes", "list nodes", self.client.request(request)).await {
                Err(error) if error.trouble == Trouble::Expired && self.tries < TRIES => {
                    self.tries += 1;
                    params.continue_token = None;
                    continue;
                }
                list => list?,
            };
            let is_first = params.continue_token.is_none();
            let next = Some(list.metadata.next).filter(|token| !token.is_empty());
            self.params = next.map(|token| params.clone().continue_token(&token));
            return Ok(Some(Page { is_first, nodes: list.items }));
        }
    }
}
