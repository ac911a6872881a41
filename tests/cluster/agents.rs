//! Publishers by the hundred in one process, each with a Node of its own: what a large cluster's agents ask of its
//! API server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use gdr_agent::agent::check::{Progress, conclude, probe_all};
use gdr_agent::agent::{FirstCheck, Published};
use gdr_agent::config::{Config, Publish};
use gdr_agent::node::{Publisher, publish};
use gdr_agent::probe::Machine as _;
use gdr_agent::simulate::SimulatedMachine;
use gdr_agent::telemetry::metrics::Metrics;
use gdr_agent::verdict::{self, Stamp};
use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::cluster::{Cluster, HERE};

/// The agents' account, which the audit log and the API server's fairness go by.
const KUBECONFIG: &str = "agents.kubeconfig";

/// Gives the agents' account its rights and a token, and ends what would write to Nodes without a kubelet.
pub(crate) fn prepare(cluster: &Cluster) {
    let chart = format!("{HERE}/../../charts/gdr-agent");
    let rendered = ["template", "gdr-agent", &chart, "-n", "gdr-system", "-s", "templates/rbac.yaml"];
    let rights = cluster.state().join("rights.yaml");
    std::fs::write(&rights, cluster.run("helm", &rendered)).expect("the state folder can be written");
    cluster.kubectl(&["create", "namespace", "gdr-system"]);
    cluster.kubectl(&["apply", "-f", &rights.to_string_lossy()]);
    let token = cluster.kubectl(&["-n", "gdr-system", "create", "token", "gdr-agent", "--duration", "24h"]);
    let config = cluster.kubeconfig(token.trim());
    std::fs::write(cluster.state().join(KUBECONFIG), config.to_string()).expect("the state folder can be written");
    let end = "for p in /proc/[0-9]*; do case $(cat $p/comm 2>/dev/null) in kube-controller|kube-scheduler) kill ${p#/proc/};; esac; done";
    cluster.run("enter", &["sh", "-c", end]);
}

/// Runs this program once more where the API server is, with the agents' account.
pub(crate) fn run_inside(cluster: &Cluster, arguments: &[&str]) -> std::process::ExitStatus {
    let program = std::env::current_exe().expect("this program has a path");
    let config = format!("KUBECONFIG={}", cluster.state().join(KUBECONFIG).display());
    let mut command = std::process::Command::new(cluster.state().join("enter"));
    command.args(["env", &config]).arg(program).args(arguments);
    command.env(STATE, cluster.state()).status().expect("the state folder's scripts start")
}

/// Where the run inside finds the cluster's state folder.
pub(crate) const STATE: &str = "GDR_SCALE_STATE";

/// What an agent tells of a made-up machine with these faults, after a check or before the first.
pub(crate) async fn published(dir: &Path, faults: &str, checked: bool) -> Arc<Published> {
    let profile = dir.join("scale-profile.yaml");
    let text = format!("apiVersion: gdr-agent/v1\nkind: Profile\nbase: hgx-h100\nfaults: [ {faults} ]\n");
    std::fs::write(&profile, text).expect("the state folder can be written");
    let boot = "5f0e3c1a-9d52-4a3e-8d8b-0c6a4e0b7f11";
    let machine = SimulatedMachine::new(&profile.to_string_lossy(), boot.to_owned()).expect("a good profile");
    let (config, inventory) = (Config::default(), machine.inventory());
    let mut memory = gdr_agent::store::Store::new(&dir.join("no-store"), true).load(boot);
    memory.saw_active(machine.known_active());
    let now = jiff::Timestamp::now();
    let assessment = if checked {
        let found = probe_all(&machine, &inventory, &config, false, &Progress::new(false)).await;
        conclude(&inventory, &found, &memory, &config)
    } else {
        verdict::assess(&verdict::Input {
            inventory: &inventory,
            surroundings: &gdr_agent::hardware::Surroundings::default(),
            rows: &gdr_agent::probe::Rows::new(),
            memory: &memory,
            config: &config,
            node: None,
            checked: false,
            now,
        })
    };
    let stamp = Stamp { node: "scale", simulated: true, started_at: now, duration_ms: 1500 };
    let report = Arc::new(assessment.into_report(&inventory, &stamp));
    let (history, first_check) = (Arc::from([]), FirstCheck::Over);
    Arc::new(Published { report, devices: Vec::new(), listed: None, history, checked, first_check })
}

/// Publishers, one for each Node.
pub(crate) struct Agents {
    config: Publish,
    tell: Vec<watch::Sender<Arc<Published>>>,
    running: Vec<JoinHandle<()>>,
}

impl Agents {
    pub(crate) fn start(config: &Publish, nodes: usize, first: &Arc<Published>) -> Self {
        let mut agents = Self { config: config.clone(), tell: Vec::new(), running: Vec::new() };
        agents.restart(nodes, first);
        agents
    }

    /// All end, and others begin with what they know.
    pub(crate) fn restart(&mut self, nodes: usize, first: &Arc<Published>) {
        self.running.drain(..).for_each(|old| old.abort());
        self.tell.clear();
        for n in 0..nodes {
            let (tell, state) = watch::channel(Arc::clone(first));
            let (view, metrics) = (watch::channel(None).0, Arc::new(Metrics::new()));
            let publisher = Publisher { name: name(n), config: self.config.clone(), state, view, metrics };
            self.running.push(tokio::spawn(publish(publisher)));
            self.tell.push(tell);
        }
    }

    /// Tells all at once.
    pub(crate) fn tell(&self, news: &Arc<Published>) {
        for tell in &self.tell {
            tell.send_replace(Arc::clone(news));
        }
    }

    /// Tells one after another within so long, as their checks end.
    pub(crate) async fn tell_within(&self, length: Duration, news: &Arc<Published>) {
        for part in self.tell.chunks(self.tell.len().div_ceil(20)) {
            for tell in part {
                tell.send_replace(Arc::clone(news));
            }
            tokio::time::sleep(length / 20).await;
        }
    }
}

pub(crate) fn name(n: usize) -> String {
    format!("scale-{n:04}")
}

/// Makes the Nodes, as an administrator.
pub(crate) async fn make_nodes(state: &Path, nodes: usize) {
    let api: &Api<Node> = &Api::all(admin(state).await);
    let parameters = &PostParams::default();
    let made = stream::iter(0..nodes).map(|n| async move {
        let node = serde_json::from_value(node(n)).expect("a Node");
        api.create(parameters, &node).await.expect("a Node can be made");
    });
    made.buffer_unordered(16).collect::<Vec<()>>().await;
}

/// All of them, as the API server has them.
pub(crate) async fn all_nodes(state: &Path) -> Vec<Node> {
    let api: Api<Node> = Api::all(admin(state).await);
    let nodes = api.list(&kube::api::ListParams::default()).await.expect("Nodes can be listed").items;
    nodes
        .into_iter()
        .filter(|node| node.metadata.name.as_ref().is_some_and(|name| name.starts_with("scale-")))
        .collect()
}

async fn admin(state: &Path) -> Client {
    let file = Kubeconfig::read_from(state.join("pki/admin.kubeconfig")).expect("there is a kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a good one");
    Client::try_from(config).expect("a client")
}

/// A GPU node as it is in large clusters, about 30 KB: fifty images, the labels of NFD and of NVIDIA's operators.
fn node(n: usize) -> Value {
    let labels: serde_json::Map<String, Value> = (0..60)
        .map(|i| (format!("feature.node.kubernetes.io/cpu-cpuid.FEATURE{i:02}"), json!("true")))
        .chain((0..30).map(|i| (format!("nvidia.com/gpu.property-{i:02}"), json!("NVIDIA-H100-80GB-HBM3"))))
        .chain([("kubernetes.io/hostname".to_owned(), json!(name(n)))])
        .collect();
    let images: Vec<Value> = (0..50_usize)
        .map(|i| {
            let repository = format!("registry.example.com/platform/team-{:02}/training-image-{i:02}", n % 20);
            let digest = format!("{:016x}", (n * 50 + i).wrapping_mul(0x9e37_79b9_7f4a_7c15)).repeat(4);
            let tags = (0..3).map(|t| format!("{repository}:2026.{t:02}.{i:03}-cuda13.0-ubuntu24.04-{digest:.16}"));
            let names: Vec<String> = std::iter::once(format!("{repository}@sha256:{digest}")).chain(tags).collect();
            json!({ "names": names, "sizeBytes": 9_000_000_000_u64 + i as u64 })
        })
        .collect();
    let condition = |kind: &str, status: &str| {
        json!({
            "type": kind, "status": status, "reason": "KubeletSaysSo", "message": "kubelet says so",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name(n), "labels": labels, "annotations": { "csi.volume.kubernetes.io/nodeid": "{\"csi.example.com\":\"node\"}".repeat(20) } },
        "spec": { "podCIDR": format!("10.{}.{}.0/24", n / 256, n % 256), "providerID": format!("cloud:///zone-a/{}", name(n)) },
        "status": {
            "capacity": { "cpu": "192", "memory": "2113484748Ki", "nvidia.com/gpu": "8", "gpudirect-rdma/hca": "8", "pods": "110" },
            "allocatable": { "cpu": "190", "memory": "2100000000Ki", "nvidia.com/gpu": "8", "gpudirect-rdma/hca": "8", "pods": "110" },
            "conditions": [
                condition("MemoryPressure", "False"), condition("DiskPressure", "False"),
                condition("PIDPressure", "False"), condition("Ready", "True"),
            ],
            "images": images,
        },
    })
}
