//! An API server of a test's own: one Node, strategic-merge patches as far as the agent sends them, events,
//! and troubles on command. By plain HTTP, which a kubeconfig may ask for.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    http::{Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use crate::tls::{Front, trust};

pub(crate) const NODES: &str = "/api/v1/nodes";
pub(crate) const NODE: &str = "/api/v1/nodes/n1";
pub(crate) const STATUS: &str = "/api/v1/nodes/n1/status";
pub(crate) const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

/// What the next request meets, in place of an answer.
#[derive(Debug, Clone)]
pub(crate) enum Trouble {
    /// This status, with these details.
    Status(u16, Value),
    /// 429 by a text, with so many seconds in the header alone (API Priority and Fairness).
    Busy(u32),
    /// Nothing, for an hour.
    Hang,
    /// None; the request after it meets the next.
    Pass,
}

#[derive(Default)]
pub(crate) struct World {
    pub(crate) node: Option<Value>,
    /// All that a list has.
    pub(crate) fleet: Vec<Value>,
    /// What each list asked for, after its `?`.
    pub(crate) queries: Vec<String>,
    pub(crate) events: BTreeMap<String, Value>,
    /// Method and path of each request, with the answer's status.
    pub(crate) requests: Vec<(String, u16)>,
    /// The token that is let in.
    pub(crate) token: String,
    /// By the beginning of `METHOD path`.
    troubles: Vec<(String, VecDeque<Trouble>)>,
}

/// It, until the test's process ends.
#[derive(Clone)]
pub(crate) struct Server {
    world: Arc<Mutex<World>>,
    port: u16,
}

impl Server {
    pub(crate) fn new() -> Self {
        let world = World { node: Some(node("uid-1")), token: "first".into(), ..World::default() };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let server = Self { port: listener.local_addr().unwrap().port(), world: Arc::new(Mutex::new(world)) };
        let shared = server.clone();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let router = Router::new().fallback(serve).with_state(shared);
                axum::serve(listener, router).await.unwrap();
            });
        });
        server
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next requests that begin so meet these, one each.
    pub(crate) fn trouble(&self, request: &str, troubles: &[Trouble]) {
        self.world().troubles.push((request.to_owned(), troubles.iter().cloned().collect()));
    }

    /// A kubeconfig whose token is in a file, as a pod's is.
    pub(crate) fn kubeconfig(&self, dir: &Path, token: &str) -> PathBuf {
        kubeconfig(dir, token, &json!({ "server": format!("http://127.0.0.1:{}", self.port) }))
    }

    /// The same by TLS; what is trusted is in a file too.
    pub(crate) fn behind_tls(&self, dir: &Path, token: &str) -> Front {
        let (front, authority) = Front::new(self.port);
        trust(dir, &authority);
        let server = format!("https://127.0.0.1:{}", front.port);
        kubeconfig(dir, token, &json!({ "server": server, "certificate-authority": dir.join("ca.crt") }));
        front
    }

    /// The requests after the first so many.
    pub(crate) fn since(&self, before: usize) -> Vec<String> {
        self.world().requests.iter().skip(before).map(|(line, status)| format!("{line}: {status}")).collect()
    }

    pub(crate) fn count(&self, request: &str) -> usize {
        self.world().requests.iter().filter(|(line, _)| line.starts_with(request)).count()
    }
}

fn kubeconfig(dir: &Path, token: &str, cluster: &Value) -> PathBuf {
    let file = dir.join("token");
    fs::write(&file, token).unwrap();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [ { "name": "c", "cluster": cluster } ],
        "contexts": [ { "name": "c", "context": { "cluster": "c", "user": "u" } } ],
        "users": [ { "name": "u", "user": { "tokenFile": file } } ],
    });
    let path = dir.join("kubeconfig");
    fs::write(&path, config.to_string()).unwrap();
    path
}

/// A Node as a kubelet makes it, with keys of others.
pub(crate) fn node(uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "n1", "uid": uid, "labels": { "kubernetes.io/hostname": "n1" }, "annotations": { "a": "b" } },
        "status": { "conditions": [ { "type": "Ready", "status": "True" } ] },
    })
}

async fn serve(State(server): State<Server>, request: Request) -> Response {
    let line = format!("{} {}", request.method(), request.uri().path());
    let bearer =
        request.headers().get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let bytes = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap_or_default();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let trouble = {
        let mut world = server.world();
        let due = world.troubles.iter_mut().find(|(begin, left)| line.starts_with(begin.as_str()) && !left.is_empty());
        due.and_then(|(_, left)| left.pop_front())
    };
    let (status, answer) = match trouble {
        Some(Trouble::Hang) => {
            server.world().requests.push((line, 0));
            tokio::time::sleep(Duration::from_secs(3600)).await;
            return StatusCode::OK.into_response();
        }
        Some(Trouble::Busy(seconds)) => {
            server.world().requests.push((line, 429));
            let (plain, after) = ("text/plain; charset=utf-8", seconds.to_string());
            let header = [(header::CONTENT_TYPE, plain), (header::RETRY_AFTER, after.as_str())];
            return (StatusCode::TOO_MANY_REQUESTS, header, "Too many requests, please try again later.\n")
                .into_response();
        }
        Some(Trouble::Status(code, details)) => (code, failure(code, &details)),
        None | Some(Trouble::Pass) if bearer != format!("Bearer {}", server.world().token) => {
            (401, failure(401, &Value::Null))
        }
        None | Some(Trouble::Pass) => answer(&mut server.world(), (&method, &path, query), body),
    };
    server.world().requests.push((line, status));
    let json = [(header::CONTENT_TYPE, "application/json")];
    (StatusCode::from_u16(status).unwrap(), json, answer.to_string()).into_response()
}

fn failure(code: u16, details: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "message": "not now", "reason": "Test", "details": details })
}

/// `asked`: method, path, and what came after its `?`.
fn answer(world: &mut World, asked: (&Method, &str, String), body: Value) -> (u16, Value) {
    let (method, path, query) = asked;
    match (method, path) {
        (&Method::GET, NODES) => list(world, query),
        (&Method::GET, NODE) => world.node.clone().map_or((404, failure(404, &Value::Null)), |node| (200, node)),
        (&Method::PATCH, path) if path.starts_with(NODES) => {
            let name = path.trim_end_matches("/status").rsplit('/').next();
            let mut nodes = world.fleet.iter_mut().chain(&mut world.node);
            patch_node(nodes.find(|node| node["metadata"]["name"].as_str() == name), &body)
        }
        (&Method::POST, EVENTS) => {
            let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            world.events.insert(name, body.clone());
            (201, body)
        }
        (&Method::PATCH, path) if path.starts_with(EVENTS) => {
            let name = path.rsplit('/').next().unwrap_or_default();
            match world.events.get_mut(name) {
                Some(event) => {
                    event["series"] = body["series"].clone();
                    (200, event.clone())
                }
                None => (404, failure(404, &Value::Null)),
            }
        }
        _ => (405, failure(405, &Value::Null)),
    }
}

/// A page of the fleet; the next one begins at its `continue`. Selectors are noted, and select nothing.
fn list(world: &mut World, query: String) -> (u16, Value) {
    let of = |name: &str| query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str| of(name).and_then(|text| text.parse::<usize>().ok());
    let (from, limit) = (number("continue").unwrap_or(0), number("limit").unwrap_or(usize::MAX));
    let items: Vec<_> = world.fleet.iter().skip(from).take(limit).cloned().collect();
    let next = from + items.len();
    let next = if next < world.fleet.len() { next.to_string() } else { String::new() };
    world.queries.push(query);
    let metadata = json!({ "resourceVersion": "1", "continue": next });
    (200, json!({ "apiVersion": "v1", "kind": "NodeList", "metadata": metadata, "items": items }))
}

/// As the server merges: maps by key, `null` deletes; conditions by their type.
fn patch_node(node: Option<&mut Value>, body: &Value) -> (u16, Value) {
    let Some(node) = node else { return (404, failure(404, &Value::Null)) };
    let uid = &body["metadata"]["uid"];
    if !uid.is_null() && *uid != node["metadata"]["uid"] {
        let causes = json!({ "causes": [ { "field": "metadata.uid", "reason": "FieldValueInvalid" } ] });
        return (422, failure(422, &causes));
    }
    for map in ["labels", "annotations"] {
        for (key, value) in body["metadata"][map].as_object().into_iter().flatten() {
            let own = node["metadata"][map].as_object_mut().unwrap();
            if value.is_null() {
                own.remove(key)
            } else {
                own.insert(key.clone(), value.clone())
            };
        }
    }
    for condition in body["status"]["conditions"].as_array().into_iter().flatten() {
        let own = node["status"]["conditions"].as_array_mut().unwrap();
        own.retain(|other| other["type"] != condition["type"]);
        if condition["$patch"] != "delete" {
            own.push(condition.clone());
        }
    }
    (200, node.clone())
}
