//! `publish.mode: nfd` with the real Node Feature Discovery, installed by its own chart: the agent writes a file, and
//! has no rights at all.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::cluster::{Cluster, HERE, eventually, same};
use crate::node::Node;
use crate::{agents_go, helm, image, port_down, step};

const FILE: &str = "/etc/kubernetes/node-feature-discovery/features.d/gdr-agent";
/// Three of these are a file's life.
const MODE: [&str; 2] = ["--set", "config.publish.mode=nfd,config.publish.heartbeat=10s"];

#[test]
#[ignore = "needs root and a cluster: make cluster-test"]
fn labels_by_node_feature_discovery() {
    let cluster = Cluster::small(&[&image(), &nfd_image()]);
    let node = Node { cluster: &cluster, name: "n1" };

    step("nfd-worker and nfd-master, by their own chart");
    let chart = format!("{}/nfd-chart", tools());
    let mut install = vec!["install", "nfd", &chart, "-n", "nfd", "--create-namespace", "--wait", "--timeout", "2m"];
    let own_image = "image.repository=docker.io/local/nfd,image.tag=1,gc.enable=false";
    let user = "master.securityContext.runAsUser=65532,worker.securityContext.runAsUser=65532";
    // Only files, and each second.
    let local = r#"worker.config.core={"sleepInterval":"1s","featureSources":["local"],"labelSources":["local"]}"#;
    install.extend(["--set", own_image, "--set", user, "--set-json", local]);
    cluster.run("helm", &install);

    step("helm install: the labels are NFD's, and there is nothing else of the agent's");
    helm(&cluster, "install", &[&["--create-namespace"], &MODE[..]].concat());
    shows(&node, &json!({ "state": "ready" }));
    let labels = labels_of(&node);
    same(&labels["gpus"], &json!("8")).unwrap();
    same(&labels["simulated"], &json!("true")).unwrap();
    same(&node.object()["metadata"]["labels"]["gpudirect-rdma"], &Value::Null).expect("NFD takes no bare label");
    same(&node.condition(), &None).expect("nobody may write a condition");
    let managed = node.object()["metadata"]["annotations"]["nfd.node.kubernetes.io/feature-labels"].clone();
    let managed = managed.as_str().unwrap_or_default();
    for key in labels.as_object().expect("an object").keys() {
        let ours = format!("gpudirect-rdma/{key}");
        assert!(managed.split(',').any(|key| key == ours), "NFD does not know of {ours}: {managed}");
    }

    step("the pod has no token, and asks the API server for nothing");
    let pod = cluster.get(&["-n", "gdr-system", "pod", &node.agent()]);
    let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().expect("mounts");
    let paths: Vec<_> = mounts.iter().filter_map(|mount| mount["mountPath"].as_str()).collect();
    assert!(paths.contains(&FILE.trim_end_matches("/gdr-agent")), "the folder is not mounted: {paths:?}");
    assert!(!paths.iter().any(|path| path.contains("serviceaccount")), "a token is mounted: {paths:?}");
    let asked = std::fs::read_to_string(cluster.state().join("audit.log")).unwrap_or_default();
    same(&asked.as_str(), &"").expect("no request of the agents");

    step("a port goes down: the labels follow");
    helm(&cluster, "upgrade", &[&MODE[..], &["--set-json", &port_down("mlx5_4")]].concat());
    shows(&node, &json!({ "state": "degraded", "reason": "PortDown" }));

    step("no agent: the file's word ends by itself");
    agents_go(&cluster, true);
    eventually("no label is left", || same(&labels_of(&node), &json!({})));
    cluster.run("on-node", &["n1", "test", "-e", FILE]); // it has expired, and is there
    agents_go(&cluster, false);
    shows(&node, &json!({ "state": "degraded" }));

    step("a node that is to have no GPUs: no file, no label");
    helm(&cluster, "upgrade", &[&MODE[..], &["--set", "simulate.yaml.base=cpu-only"]].concat());
    shows(&node, &json!({ "state": "not-ready", "reason": "HardwareMissing" }));
    cluster.kubectl(&["-n", "gdr-system", "exec", &node.agent(), "--", "/gdr-agent", "accept"]);
    eventually("no label is left", || same(&labels_of(&node), &json!({})));
    let file = cluster.try_run("on-node", &["n1", "test", "-e", FILE]);
    assert!(file.is_err(), "the file is there");
}

/// Waits until the labels below our prefix have these values.
fn shows(node: &Node<'_>, wanted: &Value) {
    eventually(&format!("the labels say {wanted}"), || {
        let seen = labels_of(node);
        let differs = wanted.as_object().into_iter().flatten().any(|(key, value)| seen[key] != *value);
        if differs { Err(seen.to_string()) } else { Ok(()) }
    });
}

/// Those below our prefix, without it.
fn labels_of(node: &Node<'_>) -> Value {
    let labels = node.object()["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let ours = |(key, value): (String, Value)| Some((key.strip_prefix("gpudirect-rdma/")?.to_owned(), value));
    Value::Object(labels.into_iter().filter_map(ours).collect())
}

/// Where the cluster's tools are.
fn tools() -> String {
    let output = Command::new(format!("{HERE}/deps")).output().expect("tests/cluster/deps starts");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Both programs in an image, as the chart wants them.
fn nfd_image() -> PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nfd.tar");
    let root = tempfile::tempdir().expect("a folder");
    for program in ["nfd-master", "nfd-worker"] {
        std::fs::copy(format!("{}/{program}", tools()), root.path().join(program)).expect("a program of the tools");
    }
    let mut archive = Command::new(format!("{HERE}/archive"));
    archive.arg(root.path()).arg("docker.io/local/nfd:1").arg(&file).arg("/nfd-worker");
    assert!(archive.status().expect("tests/cluster/archive starts").success(), "no image of NFD");
    file
}
