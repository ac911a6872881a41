//! The agent in a real cluster: API server, scheduler, kubelets, containerd and Helm, on simulated hardware.
//!
//! One scenario in order, because each step is what a cluster goes through after the one before it; and one of an API
//! server in trouble (`troubles`). It needs root and a few minutes: `make cluster-test`.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod agents;
mod audit;
mod cluster;
mod inside;
mod nfd;
mod node;
mod others;
mod policy;
mod proxy;
mod rights;
mod scale;
mod troubles;

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use cluster::{Cluster, HERE, eventually, same};
use node::Node;

const RESOURCE: &str = "gpudirect-rdma/hca";
/// A set of capabilities, as procfs shows it: number 14 alone.
const IPC_LOCK: &str = "0000000000004000";

#[test]
#[expect(clippy::too_many_lines, reason = "a story in order")]
#[ignore = "needs root and a cluster: make cluster-test"]
fn from_install_to_uninstall() {
    let cluster = Cluster::start(&image());
    let node = Node { cluster: &cluster, name: "n1" };
    // Somebody else's, which must come to no harm.
    cluster.kubectl(&["label", "nodes", "--all", "example.com/team=other"]);
    cluster.kubectl(&["annotate", "nodes", "--all", "example.com/note=keep"]);
    let nodes = ["n1", "n2"].map(|name| Node { cluster: &cluster, name });
    nodes.iter().for_each(others::put);
    let before_us = nodes.each_ref().map(|node| others::shown(&cluster, node.name));

    step("the examples of the documentation are what a server takes");
    cluster.kubectl(&["apply", "--dry-run=server", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/docs/examples")]);

    the_chart_counts_nodes(&cluster);

    step("helm install: label, condition, resource");
    helm(&cluster, "install", &["--create-namespace"]);
    node.becomes("ready", 8);
    let condition = node.condition().expect("there is a condition");
    same(&condition["status"], &json!("True")).unwrap();
    same(&condition["reason"], &json!("AllRailsVerified")).unwrap();
    let described = cluster.kubectl(&["describe", "node", "n1"]);
    let line =
        described.lines().find(|line| line.contains("GPUDirectRDMAReady")).expect("describe shows the condition");
    assert!(line.contains("AllRailsVerified"), "no reason in: {line}");
    let message = condition["message"].as_str().expect("a message");
    assert!(!message.is_empty() && line.contains(message), "no message in: {line}");
    let labels = &node.object()["metadata"]["labels"];
    same(&labels["gpudirect-rdma/simulated"], &json!("true")).unwrap();
    let report = node.object()["metadata"]["annotations"]["gpudirect-rdma/report"].clone();
    let report: Value = serde_json::from_str(report.as_str().expect("a report")).expect("the report is JSON");
    node.agent_cannot_write_its_root();
    // Not the kernel's boot, which all containers see, but this node's.
    same(&report["bootId"], &node.object()["status"]["nodeInfo"]["bootID"]).unwrap();

    step("a pod by nodeSelector and limits: its variables and device");
    let mut training = pod("training", 1);
    training["spec"]["nodeSelector"]["gpudirect-rdma"] = json!("ready");
    cluster.apply("training", &training);
    runs(&cluster, "training");
    let held = hcas_of(&cluster, "training");
    same(&held.len(), &1).unwrap();
    let before = identity(&cluster, "training");

    step("a port goes down: degraded, one device less, the pod untouched");
    let agents = agent_pods(&cluster);
    let hca = if held[0] == "mlx5_4" { "mlx5_3" } else { "mlx5_4" };
    helm(&cluster, "upgrade", &["--set-json", &port_down(hca)]);
    node.becomes("degraded", 7);
    let condition = node.condition().expect("there is a condition");
    same(&condition["status"], &json!("False")).unwrap();
    same(&condition["reason"], &json!("PortDown")).unwrap();
    let message = condition["message"].as_str().expect("a message");
    assert!(message.contains(hca), "the condition does not name {hca}: {message}");
    same(&node.object()["metadata"]["labels"]["gpudirect-rdma/reason"], &json!("PortDown")).unwrap();
    eventually("describe shows the event", || {
        let described = cluster.kubectl(&["describe", "node", "n1"]);
        let events = described.split_once("Events:").map_or("", |(_, events)| events);
        let parts = ["Warning", "PortDown", "gpudirect-rdma/gdr-agent", "degraded (was ready)"];
        let tells = |line: &str| parts.iter().all(|part| line.contains(part));
        if events.lines().any(tells) { Ok(()) } else { Err(events.to_owned()) }
    });
    let explained = cluster.kubectl(&[
        "-n",
        "gdr-system",
        "exec",
        "daemonset/gdr-agent",
        "--",
        "/gdr-agent",
        "explain",
        "PortDown",
    ]);
    assert!(tells_the_remedy(message, &explained), "no remedy of PortDown in the condition: {message}\n\n{explained}");
    same(&identity(&cluster, "training"), &before).unwrap();

    step("with the other devices taken, a new pod waits");
    cluster.apply("filler", &pod("filler", 6));
    runs(&cluster, "filler");
    cluster.apply("waiting", &pod("waiting", 1));
    eventually("the scheduler says what is missing", || {
        let events =
            cluster.kubectl(&["get", "events", "--field-selector", "involvedObject.name=waiting", "-o", "json"]);
        if events.contains(&format!("Insufficient {RESOURCE}")) { Ok(()) } else { Err(events) }
    });
    same(&cluster.get(&["pod", "waiting"])["status"]["phase"], &json!("Pending")).unwrap();

    step("the port comes back: ready, eight devices, and the waiting pod gets the one");
    helm(&cluster, "upgrade", &[]);
    node.becomes("ready", 8);
    runs(&cluster, "waiting");
    same(&hcas_of(&cluster, "waiting"), &vec![hca.to_owned()]).unwrap();
    same(&identity(&cluster, "training"), &before).unwrap();
    same(&agent_pods(&cluster), &agents).expect("a profile's change rolls no pod");
    cluster.kubectl(&["delete", "pod", "filler", "waiting", "--now"]);

    step("the port of a device that a pod holds: the pod's own status says so, and nothing else happens to it");
    helm(&cluster, "upgrade", &["--set-json", &port_down(&held[0])]);
    health_of(&cluster, "training", "Unhealthy");
    same(&identity(&cluster, "training"), &before).unwrap();
    helm(&cluster, "upgrade", &[]);
    health_of(&cluster, "training", "Healthy");
    same(&identity(&cluster, "training"), &before).unwrap();
    node.becomes("ready", 8);

    step("kubelet killed: the resource comes back, the label never moves");
    let watch = cluster.watch("n1", node::STATE);
    node.kill_kubelet();
    eventually("the kubelet hands out devices again", || {
        // A pod that comes before the plugin is refused for good: another may have better luck.
        cluster.kubectl(&["delete", "pod", "after", "--ignore-not-found", "--now"]);
        cluster.apply("after", &pod("after", 1));
        cluster.try_run("kubectl", &["wait", "--for=condition=Ready", "--timeout=10s", "pod/after"]).map(drop)
    });
    node.becomes("ready", 8);
    same(&hcas_of(&cluster, "after").len(), &1).unwrap();
    same(&identity(&cluster, "training"), &before).unwrap();
    same(&watch.values(), &vec!["ready True".to_owned()]).unwrap();
    cluster.kubectl(&["delete", "pod", "after", "--now"]);

    step("the agent's pod deleted: the label's values have one member");
    let watch = cluster.watch("n1", node::STATE);
    let old = node.agent();
    cluster.kubectl(&["-n", "gdr-system", "delete", "pod", &old]);
    node.agent_is_another_than(&old);
    node.becomes("ready", 8);
    same(&watch.values(), &vec!["ready True".to_owned()]).unwrap();

    step("helm upgrade with another configuration: the same");
    let watch = cluster.watch("n1", node::STATE);
    let old = node.agent();
    helm(&cluster, "upgrade", &["--set", "config.publish.heartbeat=10s"]);
    node.agent_is_another_than(&old);
    node.becomes("ready", 8);
    same(&watch.values(), &vec!["ready True".to_owned()]).unwrap();
    same(&identity(&cluster, "training"), &before).unwrap();

    a_bad_rollout_stops(&nodes);

    step("the API server never had to refuse the agent anything");
    same(&policy::refusals(&cluster), &Vec::new()).unwrap();

    step("an agent's token: its own node, its own keys, and no further");
    same(&policy::rights(&cluster), &vec!["nodes [] [] [get]".to_owned(), "nodes/status [] [] [patch]".to_owned()])
        .unwrap();
    policy::holds(&cluster, &node);

    step("a node deleted and made again under its name: published in full by the next heartbeat");
    let again = Node { cluster: &cluster, name: "n2" };
    again.becomes("ready", 8);
    let uid = again.object()["metadata"]["uid"].clone();
    cluster.kubectl(&["delete", "node", "n2"]);
    again.kill_kubelet();
    eventually("the kubelet has made it again", || cluster.try_run("kubectl", &["get", "node", "n2"]).map(drop));
    again.becomes("ready", 8);
    assert_ne!(again.object()["metadata"]["uid"], uid);
    same(&again.condition().expect("a condition")["status"], &json!("True")).unwrap();
    same(&again.object()["metadata"]["labels"]["gpudirect-rdma/simulated"], &json!("true")).unwrap();
    // Whoever else labelled the old node must do it again.
    cluster.kubectl(&["label", "node", "n2", "example.com/team=other"]);
    cluster.kubectl(&["annotate", "node", "n2", "example.com/note=keep"]);
    others::put(&again);

    step("devices by CDI: the container runtime reads what the agent wrote");
    let cdi = ["--set", "config.cdi.enabled=true,config.policy.damping.hold=10m"];
    let old = node.agent();
    helm(&cluster, "upgrade", &cdi);
    node.agent_is_another_than(&old);
    node.offers(8);
    cluster.apply("by-cdi", &pod("by-cdi", 2));
    runs(&cluster, "by-cdi");
    same(&hcas_of(&cluster, "by-cdi").len(), &2).unwrap();
    let specs = cluster.run("on-node", &["n1", "sh", "-c", "cat /var/run/cdi/*"]);
    assert!(specs.contains("cdiVersion") && specs.contains("gpudirect-rdma"), "{specs}");

    step("a pod without privileges: one capability, and the same answer");
    let old = node.agent();
    helm(&cluster, "upgrade", &[&cdi[..], &["--set", "privileged=false"]].concat());
    node.agent_is_another_than(&old);
    node.becomes("ready", 8);
    let status = format!("/proc/{}/status", node.pids("gdr-agent"));
    let what = "^(CapEff|CapBnd|NoNewPrivs|Seccomp):";
    let status = cluster.run("on-node", &["n1", "grep", "-E", what, &status]);
    let status: Vec<&str> = status.split_whitespace().collect();
    let wanted = ["CapEff:", IPC_LOCK, "CapBnd:", IPC_LOCK, "NoNewPrivs:", "1", "Seccomp:", "2"];
    same(&status, &wanted.to_vec()).unwrap();
    let old = node.agent();
    helm(&cluster, "upgrade", &cdi);
    node.agent_is_another_than(&old);
    node.becomes("ready", 8);

    if std::env::var_os("CLUSTER_SLOW").is_some() {
        step("the agent away for six minutes: no capacity, pods still run, and all is back without help");
        agents_go(&cluster, true);
        thread::sleep(Duration::from_secs(360));
        node.offers(0);
        same(&node.object()["status"]["capacity"][RESOURCE], &json!("0")).unwrap();
        same(&identity(&cluster, "training"), &before).unwrap();
        agents_go(&cluster, false);
        node.offers(8);
        same(&node.object()["status"]["capacity"][RESOURCE], &json!("8")).unwrap();
        same(&identity(&cluster, "training"), &before).unwrap();
    }

    step("a port that flaps: from the third drop on its device waits, and no pod is refused at admission");
    let flapping = port_down(&free_hca(&cluster));
    let down = [&cdi[..], &["--set-json", &flapping]].concat();
    for drop in 1..=6 {
        helm(&cluster, "upgrade", &down);
        node.offers(7);
        helm(&cluster, "upgrade", &cdi);
        if drop < 3 {
            node.offers(8);
        } else {
            // It would be back by now.
            thread::sleep(Duration::from_secs(4));
            node.offers(7);
        }
        let name = format!("flap-{drop}");
        cluster.apply(&name, &pod(&name, 1));
        runs(&cluster, &name);
        cluster.kubectl(&["delete", "pod", &name, "--now"]);
    }
    same(&identity(&cluster, "training"), &before).unwrap();

    step("helm uninstall: nothing of the agent stays on the nodes");
    let uninstall =
        || cluster.run("helm", &["uninstall", "gdr-agent", "-n", "gdr-system", "--wait", "--timeout", "2m"]);
    uninstall();
    thread::sleep(Duration::from_secs(3)); // an agent that dies late would write again
    a_dry_run_writes_nothing(&nodes);
    uninstall();
    for (node, before) in nodes.iter().zip(&before_us) {
        same(&node.ours(), &Vec::<String>::new()).expect("nothing of ours on the node");
        same(&node.object()["metadata"]["labels"]["example.com/team"], &json!("other")).unwrap();
        same(&node.object()["metadata"]["annotations"]["example.com/note"], &json!("keep")).unwrap();
        same(&others::shown(&cluster, node.name), before).expect("what others keep there is as it was");
    }
    let left = cluster.kubectl(&["get", "all,serviceaccounts,configmaps,roles,rolebindings,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings", "-A", "-o", "name"]);
    let left: Vec<&str> = left.lines().filter(|name| name.contains("gdr-agent")).collect();
    same(&left, &Vec::new()).expect("nothing of the chart in the cluster");
}

/// The agent's, as it was built.
fn image() -> PathBuf {
    std::env::var_os("GDR_AGENT_IMAGE")
        .map_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/target/image/gdr-agent.tar").into(), PathBuf::from)
}

fn step(name: &str) {
    eprintln!("── {name}");
}

fn helm(cluster: &Cluster, verb: &str, more: &[&str]) {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/gdr-agent");
    let values = format!("{HERE}/demo.d/values.yaml");
    let arguments = [verb, "gdr-agent", chart, "-n", "gdr-system", "--wait", "--timeout", "2m", "-f", &values];
    let image = ["--set", "image.repository=docker.io/local/gdr-agent,image.tag=dev,maxUnavailable=100%"];
    // Whatever the nodes show in between, the agents saw by themselves: no timer came to their help.
    let untimed = ["--set", "config.check.interval=1h"];
    cluster.run("helm", &[&arguments[..], &image, &untimed, more].concat());
}

/// The agents' pods by uid, with how often each was started again.
fn agent_pods(cluster: &Cluster) -> Vec<(String, Value)> {
    let pods = cluster.get(&["pods", "-n", "gdr-system", "-l", "app.kubernetes.io/name=gdr-agent"]);
    let pods = pods["items"].as_array().expect("a list").iter();
    let mut pods: Vec<_> = pods
        .map(|pod| (pod["metadata"]["uid"].to_string(), pod["status"]["containerStatuses"][0]["restartCount"].clone()))
        .collect();
    pods.sort_by(|a, b| a.0.cmp(&b.0));
    pods
}

/// The more nodes there are, the longer an install takes to tell of all of them.
fn the_chart_counts_nodes(cluster: &Cluster) {
    step("a hundred nodes more: an install takes longer to tell of all");
    let lease = |n| {
        let metadata =
            json!({ "name": format!("counted-{n}"), "namespace": "kube-node-lease", "labels": { "counted": "" } });
        json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata })
    };
    let leases: Vec<_> = (0..100).map(lease).collect();
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/gdr-agent");
    let rendered = || cluster.run("helm", &["install", "gdr-agent", chart, "-n", "default", "--dry-run=server"]);
    assert!(rendered().contains("spread: 3s"), "two nodes take the least");
    cluster.apply("leases", &json!({ "apiVersion": "v1", "kind": "List", "items": leases }));
    let rendered = rendered();
    // The youngest node has perhaps no Lease yet.
    let takes =
        |time: &str| rendered.contains(&format!("spread: {time}")) && rendered.contains(&format!("within {time} of"));
    assert!(takes("72s") || takes("73s"), "{rendered}");
    cluster.kubectl(&["-n", "kube-node-lease", "delete", "leases", "-l", "counted"]);
}

/// The first install that the documentation proposes.
fn a_dry_run_writes_nothing(nodes: &[Node<'_>; 2]) {
    step("a dry run: status in the pod says what it is, the Nodes say nothing");
    let cluster = nodes[0].cluster;
    let since = Timestamp::now();
    helm(cluster, "install", &["--set", "config.publish.dryRun=true"]);
    let status = cluster.kubectl(&["-n", "gdr-system", "exec", "daemonset/gdr-agent", "--", "/gdr-agent", "status"]);
    assert!(status.contains("ready") && status.contains("AllRailsVerified"), "{status}");
    thread::sleep(Duration::from_secs(5)); // whoever restarts tells within three
    for node in nodes {
        same(&node.ours(), &Vec::<String>::new()).expect("nothing of ours on the node");
        node.offers(8);
    }
    let mut asked = audit::asked(cluster.state(), since);
    asked.retain(|asked| asked.by_agent);
    assert!(asked.is_empty(), "the agents asked the API server: {asked:?}");
}

/// Agents whose sandbox lets them open no HCA are rolled out, one by one.
fn a_bad_rollout_stops(nodes: &[Node<'_>; 2]) {
    step("a rollout of agents that can't check stops at the first of them");
    let cluster = nodes[0].cluster;
    let before = agent_pods(cluster);
    let profile = "apiVersion: gdr-agent/v1\nkind: Profile\nbase: hgx-h100\n\
        faults: [{ outcome: unknown, step: ibv_open_device, code: EPERM (1) }]\n";
    let shut = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "shut", "namespace": "gdr-system" },
        "data": { "profile.yaml": profile },
    });
    cluster.apply("shut", &shut);
    let volume = json!({ "name": "profile", "configMap": { "name": "shut" } });
    let one_by_one = json!({ "rollingUpdate": { "maxUnavailable": 1 } });
    patch_agents(cluster, &json!({ "updateStrategy": one_by_one, "template": { "spec": { "volumes": [volume] } } }));
    let stands = || {
        let pods = agent_pods(cluster);
        let ready = &cluster.get(&["-n", "gdr-system", "daemonset", "gdr-agent"])["status"]["numberReady"];
        let old = before.iter().filter(|pod| pods.contains(pod)).count();
        same(&(pods.len(), old, ready), &(2, 1, &json!(1)))
    };
    eventually("one agent is a new one, and not ready", stands);
    thread::sleep(Duration::from_secs(15)); // the next would have had its turn
    stands().expect("the rollout stands");
    helm(cluster, "upgrade", &["--set", "config.publish.heartbeat=10s", "--force-conflicts"]);
    for node in nodes {
        node.becomes("ready", 8);
    }
}

/// Takes the agents off all nodes, or lets them come back.
fn agents_go(cluster: &Cluster, away: bool) {
    let selector = json!({ "nowhere": away.then_some("at-all") });
    patch_agents(cluster, &json!({ "template": { "spec": { "nodeSelector": selector } } }));
}

/// Changes the agents' pods behind the chart's back.
fn patch_agents(cluster: &Cluster, spec: &Value) {
    let patch = json!({ "spec": spec }).to_string();
    cluster.kubectl(&["-n", "gdr-system", "patch", "daemonset", "gdr-agent", "-p", &patch]);
}

/// A pod on n1 that holds so many devices. It tolerates nothing and selects no state: the devices alone decide.
fn pod(name: &str, devices: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "nodeSelector": { "kubernetes.io/hostname": "n1" },
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": "docker.io/local/busybox:1", "args": ["sleep", "1000000"],
                "resources": { "limits": { RESOURCE: devices } },
            }],
        },
    })
}

fn runs(cluster: &Cluster, name: &str) {
    cluster.kubectl(&["wait", "--for=condition=Ready", "--timeout=90s", &format!("pod/{name}")]);
}

/// The chart's value for a profile with one fault.
fn port_down(hca: &str) -> String {
    format!(r#"simulate.yaml.faults=[{{"hca":"{hca}","port":"DOWN"}}]"#)
}

/// An adapter that no pod holds.
fn free_hca(cluster: &Cluster) -> String {
    let held: Vec<String> = ["training", "by-cdi"].iter().flat_map(|pod| hcas_of(cluster, pod)).collect();
    (0..8).map(|n| format!("mlx5_{n}")).find(|name| !held.contains(name)).expect("one is free")
}

/// Waits until the kubelet says so of the device that a pod holds (`allocatedResourcesStatus`).
fn health_of(cluster: &Cluster, pod: &str, health: &str) {
    eventually(&format!("the device of {pod} is {health} in its status"), || {
        let pod = cluster.get(&["pod", pod]);
        let all = &pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"];
        let ours = all.as_array().into_iter().flatten().find(|status| status["name"] == RESOURCE);
        same(&ours.map(|status| status["resources"][0]["health"].clone()), &Some(json!(health)))
    });
}

/// What a pod would lose by a restart.
fn identity(cluster: &Cluster, name: &str) -> (String, String) {
    let pod = cluster.get(&["pod", name]);
    same(&pod["status"]["phase"], &json!("Running")).unwrap();
    (pod["metadata"]["uid"].to_string(), pod["status"]["containerStatuses"][0]["containerID"].to_string())
}

/// The adapters that a pod was told of, after looking at its devices from inside.
fn hcas_of(cluster: &Cluster, pod: &str) -> Vec<String> {
    let inside = |script: &str| cluster.kubectl(&["exec", pod, "--", "sh", "-c", script]);
    same(&inside("echo $GPUDIRECT_RDMA_SIMULATED").trim_end(), &"1").expect("the pod is told that it is a simulation");
    let told = inside("echo $GPUDIRECT_RDMA_HCAS");
    let hcas: Vec<String> = told.trim_end().split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let nodes = inside("for node in /dev/infiniband/uverbs*; do [ -c $node ] && : <$node && echo $node; done");
    same(&nodes.lines().count(), &hcas.len()).expect("a device node that opens for each adapter");
    let report: Value = serde_json::from_str(&inside("cat /run/gdr-agent/report.json")).expect("the report is JSON");
    same(&report["node"], &json!("n1")).expect("the pod reads its node's report");
    hcas
}

/// Whether a message has five words in a row of what `explain` says after the word "remedy". (The wording is the
/// catalogue's business, and long messages are cut.)
fn tells_the_remedy(message: &str, explained: &str) -> bool {
    let explained = explained.to_lowercase();
    let remedy = explained.split_once("remedy").map_or("", |(_, remedy)| remedy);
    let remedy: Vec<&str> = remedy.split_whitespace().collect();
    let message = message.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
    remedy.windows(5).any(|words| message.contains(&words.join(" ")))
}
