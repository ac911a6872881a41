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

/// Patches that the policy must let through, and those that it must not. `node` is the token's own.
pub(crate) fn holds(cluster: &Cluster, node: &Node<'_>) {
    let checked = cluster.kubectl(&[
        "get",
        "validatingadmissionpolicy",
        "-o",
        "jsonpath={.items[*].status.typeChecking.expressionWarnings}",
    ]);
    assert_eq!(checked, "", "the API server is not content with the policy's expressions");

    let bound = bound_token(node);
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
    let annotation = |key: &str, value: Value| json!({ "metadata": { "annotations": { key: value } } });
    expect("a foreign annotation", 403, "n1", &bound, &annotation("example.com/evil", json!("x")));
    expect("a foreign annotation's change", 403, "n1", &bound, &annotation("example.com/note", json!("x")));
    expect("a foreign annotation's removal", 403, "n1", &bound, &annotation("example.com/note", Value::Null));
    expect("a finalizer", 403, "n1", &bound, &json!({ "metadata": { "finalizers": ["example.com/stay"] } }));
    let owner = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x" });
    expect("an owner", 403, "n1", &bound, &json!({ "metadata": { "ownerReferences": [owner] } }));
    let condition = |condition: Value| json!({ "status": { "conditions": [condition] } });
    expect("another condition", 403, "n1", &bound, &condition(json!({ "type": "Evil", "status": "True" })));
    expect("the kubelet's condition", 403, "n1", &bound, &condition(json!({ "type": "Ready", "status": "False" })));
    let removal = condition(json!({ "type": "PIDPressure", "$patch": "delete" }));
    expect("the kubelet's condition's removal", 403, "n1", &bound, &removal);
    let status = [
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
    for (field, value) in &status {
        expect(field, 403, "n1", &bound, &json!({ "status": { *field: value } }));
    }
    // `conditions` was tried above; `config` the API server itself leaves as it is.
    let tried: Vec<&str> = status.iter().map(|(field, _)| *field).chain(["conditions", "config"]).collect();
    let api: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", "/openapi/v3/api/v1"])).expect("JSON");
    let fields =
        api["components"]["schemas"]["io.k8s.api.core.v1.NodeStatus"]["properties"].as_object().expect("fields");
    wrong.extend(fields.keys().filter(|field| !tried.contains(&field.as_str())).map(|new| format!("{new}: not tried")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// One like the node's agent has.
pub(crate) fn bound_token(node: &Node<'_>) -> String {
    token(node.cluster, &["--bound-object-kind", "Pod", "--bound-object-name", &node.agent()])
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
