//! What the kubelet says: whose pod's a GPU is.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use crate::{
    support::{evidence, find, finding, standins::Node, uuid},
    usage::{FIRST, is},
};

/// The kubelet's list, as it is on the wire.
mod v1 {
    #![allow(clippy::pedantic, missing_docs, unreachable_pub, dead_code)] // generated code
    tonic::include_proto!("v1");
}

/// What the one pod holds; it can change.
type Held = Arc<Mutex<String>>;

struct Kubelet(Held);

#[tonic::async_trait]
impl v1::pod_resources_lister_server::PodResourcesLister for Kubelet {
    async fn list(
        &self,
        _: Request<v1::ListPodResourcesRequest>,
    ) -> Result<Response<v1::ListPodResourcesResponse>, Status> {
        let id = self.0.lock().unwrap().clone();
        let resource = if id.starts_with("0000:") { "gpudirect-rdma/hca" } else { "nvidia.com/gpu" };
        let devices = v1::ContainerDevices { resource_name: resource.into(), device_ids: vec![id] };
        let container = v1::ContainerResources { devices: vec![devices], ..Default::default() };
        let pod = v1::PodResources { name: "train-0".into(), namespace: "ml".into(), containers: vec![container] };
        Ok(Response::new(v1::ListPodResourcesResponse { pod_resources: vec![pod] }))
    }

    /// What begins with a PCI address is SR-IOV's.
    async fn get_allocatable_resources(
        &self,
        _: Request<v1::AllocatableResourcesRequest>,
    ) -> Result<Response<v1::AllocatableResourcesResponse>, Status> {
        let id = self.0.lock().unwrap().clone();
        let resource = if id.starts_with("0000:") { "openshift.io/rails" } else { "nvidia.com/gpu" };
        let devices = v1::ContainerDevices { resource_name: resource.into(), device_ids: vec![id] };
        Ok(Response::new(v1::AllocatableResourcesResponse { devices: vec![devices] }))
    }
}

/// Serves until the test's process ends.
fn kubelet(folder: &Path, id: &str) -> Held {
    let held = Held::new(Mutex::new(id.to_owned()));
    let service = Kubelet(Arc::clone(&held));
    fs::create_dir_all(folder).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(folder.join("kubelet.sock")).unwrap();
    socket.set_nonblocking(true).unwrap();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let incoming = UnixListenerStream::new(UnixListener::from_std(socket).unwrap());
            let service = v1::pod_resources_lister_server::PodResourcesListerServer::new(service);
            tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
        });
    });
    held
}

/// A node whose kubelet says this of its one pod.
fn node(id: &str, more: &str) -> (Node, Held) {
    let node = Node::new(2, 2);
    let folder = node.home.path("pods");
    let held = kubelet(&folder, id);
    node.home.configure(&format!("kubelet: {{ podResources: '{}' }}\n{more}", folder.display()));
    (node, held)
}

#[test]
fn a_pods_gpu_is_not_touched() {
    for id in [uuid(0), format!("{}::2", uuid(0)), "nvidia0".to_owned()] {
        let (node, _) = node(&id, "");
        let report = node.check(&[]).exits(0).json();
        is(&report, "skipped", Some("PodResources"));
        assert_eq!(report["pairs"][2]["dmaBuf"]["outcome"], "verified", "the neighbour's");
        let busy = finding(&report, "GpuBusy");
        assert_eq!(evidence(busy), format!("PodResources: pod ml/train-0 holds nvidia.com/gpu {id}"));
        assert_eq!(busy["gpus"], json!([FIRST]));
        assert_eq!(node.ledger().iter().filter(|line| line.starts_with("+context")).count(), 1, "of the other");
    }
    let (beside, _) = node(&uuid(0), "check: { busyGpus: check }\n");
    is(&beside.check(&[]).exits(0).json(), "verified", None);
}

/// Its part must not come and go with the pods that hold it; and the newer kind of id names no GPU.
#[test]
fn a_gpu_in_mig_mode_is_that_first() {
    for id in [uuid(0), "MIG-6ba7b810-9dad-11d1-80b4-00c04fd430c8".to_owned()] {
        let (mut node, _) = node(&id, "");
        node.set("STANDIN_NVML_MIG", &format!("{FIRST}=1;0000:21:00.0=0"));
        assert_eq!(node.check(&[]).exits(0).json()["gpus"][0]["role"], "mig");
    }
}

#[test]
fn without_a_kubelet_nobody_holds_anything() {
    let node = Node::new(1, 1);
    node.home.configure(&format!("kubelet: {{ podResources: '{}' }}\n", node.home.path("nowhere").display()));
    is(&node.check(&[]).exits(0).json(), "verified", None);
}

/// What the agent has left in a file, once it is as wanted.
fn left(node: &Node, file: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let text = fs::read_to_string(node.home.path(file)).unwrap_or_default();
        let left: Value = serde_json::from_str(&text).unwrap_or_default();
        if wanted(&left) {
            return left;
        }
        assert!(Instant::now() < end, "never {what}: {left:#}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// A job that comes takes nothing away from what is known of its GPU.
#[test]
fn what_was_known_of_a_gpu_stays_while_a_pod_has_it() {
    let (node, held) = node("nothing", "publish: { mode: none }\nhttp: { listen: null }\nresources: []\n");
    let agent = node.run();
    let checked = |wanted: &str| {
        left(&node, "run/report.json", wanted, |report| report["pairs"][0]["dmaBuf"]["outcome"] == wanted)
    };
    assert_eq!(checked("verified")["verdict"]["state"], "ready");
    *held.lock().unwrap() = uuid(0);
    node.command(&["recheck"]).output().unwrap();
    let report = checked("skipped");
    assert_eq!(report["verdict"]["state"], "ready");
    let pair = &report["pairs"][0];
    assert_eq!((&pair["good"], pair["checkedAt"].is_string()), (&json!(true), true), "its age shows: {pair:#}");
    assert_eq!(report["gpus"][0]["served"], true);
    *held.lock().unwrap() = "nothing".to_owned();
    node.command(&["recheck"]).output().unwrap();
    assert!(checked("verified")["pairs"][0]["checkedAt"].is_null());
    drop(agent);
}

/// Two plugins that promise one HCA to two pods.
#[test]
fn an_hca_that_another_plugin_offers_too() {
    let (node, _) = node("0000:40:00.0", "");
    let report = node.check(&[]).exits(0).json();
    let twice = finding(&report, "OfferedTwice");
    assert_eq!((&twice["hcas"], &twice["severity"]), (&json!(["mlx5_0"]), &json!("warning")));
    assert_eq!(evidence(twice), "also in openshift.io/rails");
    for more in ["resources: [ { shared: true } ]\n", "resources: [ { select: [ { name: mlx5_1 } ] } ]\n"] {
        let (node, _) = self::node("0000:40:00.0", more);
        assert!(find(&node.check(&[]).exits(0).json(), "OfferedTwice").is_none(), "{more}");
    }
}

/// For the agent that starts next, which has not asked the kubelet yet.
#[test]
fn what_another_plugin_offers_too_is_remembered() {
    let (node, _held) = node("0000:40:00.0", "publish: { mode: none }\nhttp: { listen: null }\nresources: [ {} ]\n");
    let agent = node.run();
    let offered = |store: &Value, id: &str| store["devices"][id]["alsoIn"].clone();
    let store =
        left(&node, "store/state.json", "in both", |store| offered(store, "0000:40:00.0") == "openshift.io/rails");
    assert!(offered(&store, "0000:41:00.0").is_null(), "{store:#}");
    drop(agent);
}

/// As a VF that is taken away: capacity does not shrink for what a pod is using, and shrinks when it is free.
#[test]
fn a_device_whose_function_is_gone_leaves_when_no_pod_holds_it() {
    let (node, held) = node("0000:41:00.0", "publish: { mode: none }\nhttp: { listen: null }\nresources: [ {} ]\n");
    let agent = node.run();
    let devices = |wanted: usize| {
        let many = |store: &Value| store["devices"].as_object().is_some_and(|all| all.len() == wanted);
        left(&node, "store/state.json", &format!("{wanted} devices"), many);
    };
    let recheck = || node.command(&["recheck"]).output().unwrap();
    devices(2);
    for gone in ["class/infiniband/mlx5_1", "bus/pci/devices/0000:41:00.0"] {
        fs::remove_file(node.tree.sys(gone)).unwrap();
    }
    recheck();
    devices(2);
    *held.lock().unwrap() = "nothing".to_owned();
    recheck();
    devices(1);
    drop(agent);
}
