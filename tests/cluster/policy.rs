//! What the API server lets an agent do, asked with the agents' own kind of token.

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::node::Node;

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

/// Patches that the policy must let through, and those that it must not. `node` is the token's own.
pub(crate) fn holds(cluster: &Cluster, node: &Node<'_>) {
    let checked = cluster.kubectl(&[
        "get",
        "validatingadmissionpolicy",
        "-o",
        "jsonpath={.items[*].status.typeChecking.expressionWarnings}",
    ]);
    assert_eq!(checked, "", "the API server is not content with the policy's expressions");

    let agent = node.agent();
    let bound = token(cluster, &["--bound-object-kind", "Pod", "--bound-object-name", &agent]);
    let unbound = token(cluster, &[]);
    let label = |key: &str, value: Value| json!({ "metadata": { "labels": { key: value } } });
    let ours = label("gpudirect-rdma/test", json!("x"));

    let mut wrong = Vec::new();
    let mut expect = |what: &str, wanted: u16, name: &str, token: &str, patch: &Value| {
        let code = patch_status(cluster, name, token, patch);
        if code != wanted {
            wrong.push(format!("{what}: {code} instead of {wanted}"));
        }
    };
    expect("a label of ours", 200, "n1", &bound, &ours);
    expect("its removal", 200, "n1", &bound, &label("gpudirect-rdma/test", Value::Null));
    expect("another node", 403, "n2", &bound, &ours);
    expect("a token of no node", 403, "n1", &unbound, &ours);
    expect("a foreign label", 403, "n1", &bound, &label("example.com/evil", json!("x")));
    expect("a foreign label's change", 403, "n1", &bound, &label("example.com/team", json!("x")));
    expect("a foreign label's removal", 403, "n1", &bound, &label("example.com/team", Value::Null));
    expect("a prefix that only looks like ours", 403, "n1", &bound, &label("gpudirect-rdma.evil/x", json!("x")));
    let annotation = json!({ "metadata": { "annotations": { "example.com/note": null } } });
    expect("a foreign annotation's removal", 403, "n1", &bound, &annotation);
    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    expect("the kubelet's condition", 403, "n1", &bound, &ready);
    let capacity = json!({ "status": { "capacity": { "example.com/gold": "7" } } });
    expect("capacity", 403, "n1", &bound, &capacity);
    let address = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }] } });
    expect("an address", 403, "n1", &bound, &address);
    let port = json!({ "status": { "daemonEndpoints": { "kubeletEndpoint": { "Port": 1 } } } });
    expect("the kubelet's port", 403, "n1", &bound, &port);
    let finalizer = json!({ "metadata": { "finalizers": ["example.com/stay"] } });
    expect("a finalizer", 403, "n1", &bound, &finalizer);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn token(cluster: &Cluster, more: &[&str]) -> String {
    cluster.kubectl(&[&["-n", "gdr-system", "create", "token", "gdr-agent"], more].concat()).trim().to_owned()
}

/// The HTTP status of the agent's kind of patch.
fn patch_status(cluster: &Cluster, node: &str, token: &str, patch: &Value) -> u16 {
    let ca = cluster.state().join("pki/ca.crt");
    let code = cluster.run(
        "enter",
        &[
            "curl",
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "--cacert",
            &ca.to_string_lossy(),
            "-X",
            "PATCH",
            "-H",
            &format!("Authorization: Bearer {token}"),
            "-H",
            "Content-Type: application/strategic-merge-patch+json",
            "-d",
            &patch.to_string(),
            &format!("https://10.99.0.1/api/v1/nodes/{node}/status"),
        ],
    );
    code.trim().parse().expect("an HTTP status")
}
