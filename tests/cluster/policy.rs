//! What the API server lets an agent do, asked with the agents' own kind of token.

use serde_json::{Value, json};

use crate::cluster::{Cluster, eventually, same};
use crate::node::Node;
use crate::others;

/// The agents' requests that were refused, from the audit log.
pub(crate) fn refusals(cluster: &Cluster) -> Vec<String> {
    let log = std::fs::read_to_string(cluster.state().join("audit.log")).expect("there is an audit log");
    let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let answers: Vec<Value> = entries.filter(|entry| entry["stage"] == "ResponseComplete").collect();
    assert!(!answers.is_empty(), "the audit log shows no request of the agents");
    answers
        .iter()
        .filter(|entry| entry["responseStatus"]["code"].as_u64().is_some_and(|code| code >= 400))
        .map(|entry| format!("{} {} {}", entry["verb"], entry["requestURI"], entry["responseStatus"]))
        .collect()
}

/// What RBAC gives the agents' account, beyond what any account has.
pub(crate) fn rights(cluster: &Cluster) -> Vec<String> {
    let of = |account: &str| -> Vec<String> {
        let user = format!("--as=system:serviceaccount:gdr-system:{account}");
        let table = cluster.kubectl(&["auth", "can-i", "--list", "--no-headers", "-n", "gdr-system", &user]);
        table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    let any = of("default");
    let mut rights: Vec<String> = of("gdr-agent").into_iter().filter(|right| !any.contains(right)).collect();
    rights.sort();
    rights
}

/// What the policies say of what they refuse.
const NODE: &str = "the agent may only update the Node that its token is bound to";
const SPEC: &str = "the agent may not change a Node's spec";
const OWNERS: &str = "the agent may not change finalizers or ownerReferences";
const LABELS: &str = "the agent may only change labels that begin with gpudirect-rdma";
const NOTES: &str = "the agent may only change annotations that begin with gpudirect-rdma";
const CONDITION: &str = "the agent may only change the condition GPUDirectRDMAReady";
const STATUS: &str = "the agent may change nothing else in a Node's status";
const EVENT: &str = "the agent may only tell its own events, of the Node that its token is bound to";

/// Keys that only look like the agent's, beside those that others have there already.
const TRICKS: &[&str] = &["example.com/evil", "evil/gpudirect-rdma", "gpudirect-rdma.evil/x", "rdma/gpudirect-rdma"];

/// One who asks, and what was not as it should be.
struct Tries<'a> {
    cluster: &'a Cluster,
    token: &'a str,
    wrong: Vec<String>,
}

impl Tries<'_> {
    /// The policy lets it through.
    fn passes(&mut self, what: &str, method: &str, path: &str, body: &Value) {
        let (code, message) = request(self.cluster, self.token, method, path, body);
        if !(200..300).contains(&code) {
            self.wrong.push(format!("{what}: {code} {message}"));
        }
    }

    /// The policy refuses it, by the rule that is meant for it.
    fn refused(&mut self, what: &str, rule: &str, method: &str, path: &str, body: &Value) {
        let (code, message) = request(self.cluster, self.token, method, path, body);
        let denied = "ValidatingAdmissionPolicy 'gdr-agent-own-";
        if code != 403 || !message.contains(denied) || !message.ends_with(rule) {
            self.wrong.push(format!("{what}: {code} {message}, not 403 {rule}"));
        }
    }
}

/// What the policies must let through, and what they must not, whatever RBAC allows. `node` is the token's own.
pub(crate) fn holds(cluster: &Cluster, node: &Node<'_>) {
    are_sound(cluster);
    let (bound, unbound) = (bound_token(node), token(cluster, &[]));
    let [own, other] = ["n1", "n2"].map(|name| format!("/api/v1/nodes/{name}/status"));
    let ours = label("gpudirect-rdma/test", &json!("x"));

    let mut tries = Tries { cluster, token: &bound, wrong: Vec::new() };
    tries.passes("a label of ours", PATCH, &own, &ours);
    tries.passes("its removal", PATCH, &own, &label("gpudirect-rdma/test", &Value::Null));
    tries.refused("another node", NODE, PATCH, &other, &ours);
    metadata(&mut tries, &own);
    rest_of_status(&mut tries, &own);
    events(&mut tries);
    tries.token = &unbound;
    tries.refused("a token of no node", NODE, PATCH, &own, &ours);
    tries.refused("a token of no node", EVENT, "POST", EVENTS, &event("n1", &json!({})));
    tries.token = &bound;

    // What RBAC refuses before any policy is asked.
    let generous = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "generous" },
        "rules": [{ "apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["*"] }],
    });
    cluster.apply("generous", &generous);
    let account = "--serviceaccount=gdr-system:gdr-agent";
    cluster.kubectl(&["create", "clusterrolebinding", "generous", "--clusterrole=generous", account]);
    beyond_rbac(&mut tries);
    cluster.kubectl(&["delete", "clusterrolebinding/generous", "clusterrole/generous"]);
    assert!(tries.wrong.is_empty(), "{}", tries.wrong.join("\n"));
}

/// Whether the API server understands every expression of theirs; until it has looked, it says nothing of any.
fn are_sound(cluster: &Cluster) {
    for name in ["gdr-agent-own-node", "gdr-agent-own-events"] {
        eventually("the API server has checked the policy's types", || {
            let policy = cluster.get(&["validatingadmissionpolicy", name]);
            let (now, checked) = (&policy["metadata"]["generation"], &policy["status"]["observedGeneration"]);
            same(checked, now)?;
            same(&policy["status"]["typeChecking"]["expressionWarnings"], &Value::Null)
        });
    }
}

fn metadata(tries: &mut Tries<'_>, own: &str) {
    for key in others::KEYS.iter().chain(TRICKS) {
        tries.refused(&format!("the label {key}"), LABELS, PATCH, own, &label(key, &json!("x")));
        tries.refused(&format!("the annotation {key}"), NOTES, PATCH, own, &annotation(key, &json!("x")));
    }
    tries.refused("a foreign label's change", LABELS, PATCH, own, &label("example.com/team", &json!("x")));
    tries.refused("a foreign label's removal", LABELS, PATCH, own, &label("example.com/team", &Value::Null));
    tries.refused("a foreign annotation's change", NOTES, PATCH, own, &annotation("example.com/note", &json!("x")));
    tries.refused("a foreign annotation's removal", NOTES, PATCH, own, &annotation("example.com/note", &Value::Null));
    tries.refused("a finalizer", OWNERS, PATCH, own, &json!({ "metadata": { "finalizers": ["example.com/stay"] } }));
    let owner = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x" });
    tries.refused("an owner", OWNERS, PATCH, own, &json!({ "metadata": { "ownerReferences": [owner] } }));
}

fn rest_of_status(tries: &mut Tries<'_>, own: &str) {
    let condition = |condition: Value| json!({ "status": { "conditions": [condition] } });
    let mut refused = |what: &str, of: Value| tries.refused(what, CONDITION, PATCH, own, &condition(of));
    refused("another condition", json!({ "type": "Evil", "status": "True" }));
    refused("one called almost so", json!({ "type": "GPUDirectRDMAReady2", "status": "False" }));
    refused("the kubelet's condition", json!({ "type": "Ready", "status": "False" }));
    refused("the kubelet's condition's removal", json!({ "type": "PIDPressure", "$patch": "delete" }));
    let fields = [
        ("capacity", json!({ "example.com/gold": "7" })),
        ("allocatable", json!({ "example.com/gold": "7" })),
        ("phase", json!("Terminated")),
        ("addresses", json!([{ "type": "InternalIP", "address": "192.0.2.1" }])),
        ("daemonEndpoints", json!({ "kubeletEndpoint": { "Port": 1 } })),
        ("nodeInfo", json!({ "kernelVersion": "0" })),
        ("images", json!([{ "names": ["x"], "sizeBytes": 1 }])),
        ("volumesInUse", json!(["x"])),
        ("volumesAttached", json!([{ "name": "x", "devicePath": "x" }])),
        ("runtimeHandlers", json!([{ "name": "x" }])),
        ("features", json!({ "supplementalGroupsPolicy": false })),
        ("declaredFeatures", json!(["TestFeature"])),
    ];
    for (field, value) in &fields {
        tries.refused(field, STATUS, PATCH, own, &json!({ "status": { *field: value } }));
    }
    // `conditions` was tried above; `config` the API server itself leaves as it is.
    let known: Vec<&str> = fields.iter().map(|(field, _)| *field).chain(["conditions", "config"]).collect();
    let api = tries.cluster.kubectl(&["get", "--raw", "/openapi/v3/api/v1"]);
    let api: Value = serde_json::from_str(&api).expect("JSON");
    let schema =
        api["components"]["schemas"]["io.k8s.api.core.v1.NodeStatus"]["properties"].as_object().expect("fields");
    let new = schema.keys().filter(|field| !known.contains(&field.as_str()));
    tries.wrong.extend(new.map(|new| format!("{new}: not tried")));
}

/// A role by which the account may do anything to Nodes.
fn beyond_rbac(tries: &mut Tries<'_>) {
    let own = "/api/v1/nodes/n1";
    let spec = |spec: Value| json!({ "spec": spec });
    tries.passes("a label of ours", PATCH, own, &label("gpudirect-rdma/test", &json!("x")));
    tries.passes("its removal", PATCH, own, &label("gpudirect-rdma/test", &Value::Null));
    let taint = json!({ "key": "example.com/evil", "effect": "NoExecute" });
    tries.refused("a taint", SPEC, PATCH, own, &spec(json!({ "taints": [taint] })));
    tries.refused("a cordon", SPEC, PATCH, own, &spec(json!({ "unschedulable": true })));
    tries.refused(
        "a pod CIDR",
        SPEC,
        PATCH,
        own,
        &spec(json!({ "podCIDR": "192.0.2.0/24", "podCIDRs": ["192.0.2.0/24"] })),
    );
    tries.refused("a provider's id", SPEC, PATCH, own, &spec(json!({ "providerID": "evil://1" })));
    tries.refused("a foreign label", LABELS, PATCH, own, &label("example.com/evil", &json!("x")));
    tries.refused("a foreign annotation", NOTES, PATCH, own, &annotation("example.com/evil", &json!("x")));
    tries.refused("a finalizer", OWNERS, PATCH, own, &json!({ "metadata": { "finalizers": ["example.com/stay"] } }));
    tries.refused("another node's taint", NODE, PATCH, "/api/v1/nodes/n2", &spec(json!({ "taints": [taint] })));
    tries.refused("its deletion", NODE, "DELETE", own, &Value::Null);
    tries.refused("another node's deletion", NODE, "DELETE", "/api/v1/nodes/n2", &Value::Null);
    let new = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "evil" } });
    tries.refused("a new node", NODE, "POST", "/api/v1/nodes", &new);
}

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

/// As the agent's, of a node, but for `other`.
fn event(node: &str, other: &Value) -> Value {
    let mut event = json!({
        "metadata": { "generateName": "test-" }, "eventTime": "2026-01-01T00:00:00.000000Z", "action": "Test",
        "reason": "Test", "type": "Normal", "reportingController": "gpudirect-rdma/gdr-agent",
        "reportingInstance": node, "regarding": { "apiVersion": "v1", "kind": "Node", "name": node },
    });
    for (key, value) in other.as_object().expect("fields") {
        event[key] = value.clone();
    }
    event
}

/// Whoever believes an event of somebody else does what it says.
fn events(tries: &mut Tries<'_>) {
    tries.passes("an event of our node", "POST", EVENTS, &event("n1", &json!({})));
    tries.refused("another node's event", EVENT, "POST", EVENTS, &event("n2", &json!({})));
    let regarding = json!({ "regarding": { "apiVersion": "v1", "kind": "Pod", "name": "n1", "namespace": "default" } });
    tries.refused("a pod's event", EVENT, "POST", EVENTS, &event("n1", &regarding));
    tries.refused("an event of nothing", EVENT, "POST", EVENTS, &event("n1", &json!({ "regarding": null })));
    let kubelet = json!({ "reportingController": "kubelet" });
    tries.refused("the kubelet's word", EVENT, "POST", EVENTS, &event("n1", &kubelet));
    for (name, other) in [("theirs", kubelet), ("ours", json!({}))] {
        let metadata = json!({ "name": name, "namespace": "default" });
        let mut object = event("n1", &other);
        object["metadata"] = metadata;
        (object["apiVersion"], object["kind"]) = (json!("events.k8s.io/v1"), json!("Event"));
        tries.cluster.apply(name, &object);
    }
    let series = json!({ "series": { "count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z" } });
    tries.passes("an event of ours again", MERGE, &format!("{EVENTS}/ours"), &series);
    tries.refused("an event of the kubelet's again", EVENT, MERGE, &format!("{EVENTS}/theirs"), &series);
    tries.cluster.kubectl(&["delete", "events.events.k8s.io", "theirs", "ours"]);
}

fn label(key: &str, value: &Value) -> Value {
    json!({ "metadata": { "labels": { key: value } } })
}

fn annotation(key: &str, value: &Value) -> Value {
    json!({ "metadata": { "annotations": { key: value } } })
}

/// One like the node's agent has.
pub(crate) fn bound_token(node: &Node<'_>) -> String {
    token(node.cluster, &["--bound-object-kind", "Pod", "--bound-object-name", &node.agent()])
}

fn token(cluster: &Cluster, more: &[&str]) -> String {
    cluster.kubectl(&[&["-n", "gdr-system", "create", "token", "gdr-agent"], more].concat()).trim().to_owned()
}

/// Kinds of patches: of Nodes, and of events.
const PATCH: &str = "PATCH strategic-merge-patch+json";
const MERGE: &str = "PATCH merge-patch+json";

/// HTTP status and message of an answer.
fn request(cluster: &Cluster, token: &str, method: &str, path: &str, body: &Value) -> (u16, String) {
    let ca = cluster.state().join("pki/ca.crt");
    let (method, kind) = method.split_once(' ').unwrap_or((method, "json"));
    let answer = cluster.run(
        "enter",
        &[
            "curl",
            "-s",
            "-w",
            "\n%{http_code}",
            "--cacert",
            &ca.to_string_lossy(),
            "-X",
            method,
            "-H",
            &format!("Authorization: Bearer {token}"),
            "-H",
            &format!("Content-Type: application/{kind}"),
            "-d",
            &if body.is_null() { String::new() } else { body.to_string() },
            &format!("https://10.99.0.1{path}"),
        ],
    );
    let (body, code) = answer.trim_end().rsplit_once('\n').expect("a body and an HTTP status");
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    (code.parse().expect("an HTTP status"), body["message"].as_str().unwrap_or_default().to_owned())
}
