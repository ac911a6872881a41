//! How fast the kubelet is served, beside a plugin whose handlers are empty: `make bench`.
//!
//! A fake kubelet, and the agent on a simulated machine, each a process of its own. Times are of this machine; what
//! counts beside the bars is the ratio to the empty handler, whose calls alternate with the agent's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench fails by panicking")]
#![allow(dead_code, reason = "what is shared with the tests")]

#[path = "../tests/kubelet/agent.rs"]
mod agent;
#[path = "../tests/kubelet/fake.rs"]
mod fake;
#[path = "../tests/support/mod.rs"]
mod support;

use std::{
    env,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use agent::Agent;
use fake::{
    Kubelet,
    v1beta1::{
        AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerPreferredAllocationRequest, Device,
        DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
        PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest, device_plugin_server,
        registration_client::RegistrationClient,
    },
};
use prost::Message as _;
use support::{Running, standins::Node};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, transport::Endpoint};

const HCA: &str = "gpudirect-rdma/hca";
const NOTHING: &str = "bench.io/nothing";
const QUIET: &str = "publish: { mode: none }\nhttp: { listen: null }\n";
const TIMES: usize = 20;
const CALLS: usize = 300;
const ROUNDS: usize = 10;

fn main() {
    if let Some(folder) = env::args().skip_while(|argument| argument != "empty").nth(1) {
        return serve_nothing(Path::new(&folder));
    }
    calls();
    lives();
    many();
}

fn show(what: &str, mut times: Vec<Duration>) -> Duration {
    times.sort();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!("{what:<44} {:>9.3} ms {:>9.3} ms", median.as_secs_f64() * 1e3, worst.as_secs_f64() * 1e3);
    median
}

/// `Allocate` and `GetPreferredAllocation`, each beside an answer without any work. Where the scheduler puts a process
/// makes more of a difference than any handler: so there are several rounds, each with new ones.
fn calls() {
    println!("{:<44} {:>12} {:>12}", "", "median", "worst");
    let mut times = Times::default();
    for _ in 0..ROUNDS {
        let mut agent = Agent::new("");
        agent.profile = "hgx-h100".into();
        agent.start();
        calls_of(&agent.folder(), "0000:18:00.0", &mut times);
    }
    show_calls("simulated", times);
    // Where the look at the device nodes is a real one.
    let mut times = Times::default();
    for _ in 0..ROUNDS {
        let node = Node::new(1, 8);
        let folder = node.home.path("device-plugins");
        node.home.configure(&format!("kubelet: {{ devicePlugins: '{}' }}\n{QUIET}", folder.display()));
        std::fs::create_dir_all(&folder).unwrap();
        let _agent = node.run();
        calls_of(&folder, "0000:40:00.0", &mut times);
    }
    show_calls("of a tree of files", times);
}

#[derive(Default)]
struct Times {
    empty: Vec<Duration>,
    allocate: Vec<Duration>,
    prefer: Vec<Duration>,
}

fn calls_of(folder: &Path, id: &str, times: &mut Times) {
    let kubelet = Kubelet::start(folder);
    kubelet.offers(HCA, 8);
    let _nothing = start_nothing(&kubelet, folder);
    let ids = || vec![id.to_owned()];
    let allocation = || AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids: ids() }] };
    let preference = || PreferredAllocationRequest {
        container_requests: vec![ContainerPreferredAllocationRequest {
            available_device_i_ds: (0..8).map(|n| format!("0000:{n:02x}:00.0")).chain(ids()).collect(),
            allocation_size: 2,
            ..ContainerPreferredAllocationRequest::default()
        }],
    };
    for _ in 0..CALLS {
        let start = Instant::now();
        kubelet.call(NOTHING, |mut client| async move { client.allocate(allocation()).await }).unwrap();
        times.empty.push(start.elapsed());
        let start = Instant::now();
        kubelet.call(HCA, |mut client| async move { client.allocate(allocation()).await }).unwrap();
        times.allocate.push(start.elapsed());
        let start = Instant::now();
        kubelet.call(HCA, |mut client| async move { client.get_preferred_allocation(preference()).await }).unwrap();
        times.prefer.push(start.elapsed());
    }
}

fn show_calls(what: &str, times: Times) {
    let empty = show("empty Allocate", times.empty);
    let allocate = show(&format!("Allocate, {what}"), times.allocate);
    let prefer = show(&format!("GetPreferredAllocation, {what}"), times.prefer);
    println!("Allocate is {:.2} times the empty one;", allocate.as_secs_f64() / empty.as_secs_f64());
    println!("GetPreferredAllocation is {:.2} times Allocate.", prefer.as_secs_f64() / allocate.as_secs_f64());
}

/// Start, end, and the kubelet's restart, with a verdict of this boot in the store.
fn lives() {
    let mut agent = Agent::running("");
    let kubelet = Kubelet::start(&agent.folder());
    kubelet.offers(HCA, 8);
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        ends.push(agent.stop());
        kubelet.offers(HCA, 0);
        let start = Instant::now();
        agent.start();
        starts.push(kubelet.offers(HCA, 8) - start);
    }
    show("start, until the kubelet has the devices", starts);
    show("SIGTERM, until the process is gone", ends);
    let mut kubelet = kubelet;
    let mut restarts = Vec::new();
    for _ in 0..TIMES {
        kubelet.stop();
        std::thread::sleep(Duration::from_millis(300));
        kubelet = Kubelet::start(&agent.folder());
        restarts.push(kubelet.offers(HCA, 8) - kubelet.began);
    }
    show("kubelet restarts, until it has the devices", restarts);
}

/// 16 resources over 64 HCAs with 128 shares of each.
fn many() {
    let node = Node::new(1, 64);
    let folder = node.home.path("device-plugins");
    let resource = |n: usize| {
        let select: Vec<_> = (4 * n..4 * n + 4).map(|h| format!("{{ name: mlx5_{h} }}")).collect();
        format!("- {{ name: bench.io/hca-{n}, replicas: 128, select: [ {} ] }}\n", select.join(", "))
    };
    let resources: String = (0..16).map(resource).collect();
    node.home
        .configure(&format!("kubelet: {{ devicePlugins: '{}' }}\n{QUIET}resources:\n{resources}", folder.display()));
    std::fs::create_dir_all(&folder).unwrap();
    let agent = node.run();
    let mut kubelet = Kubelet::start(&folder);
    let all = |kubelet: &Kubelet| (0..16).map(|n| kubelet.offers(&format!("bench.io/hca-{n}"), 512)).max().unwrap();
    all(&kubelet);
    let mut times = Vec::new();
    for _ in 0..TIMES {
        kubelet.stop();
        kubelet = Kubelet::start(&folder);
        times.push(all(&kubelet) - kubelet.began);
    }
    show("16 resources, 64 HCAs, 128 shares of each", times);
    let largest = (0..16)
        .flat_map(|n| kubelet.messages(&format!("bench.io/hca-{n}")))
        .map(|message| ListAndWatchResponse { devices: message.devices }.encoded_len())
        .max();
    println!("their largest message has {} KiB.", largest.unwrap_or_default() >> 10);
    drop(agent);
}

/// The plugin with empty handlers, in a process of its own.
fn start_nothing(kubelet: &Kubelet, folder: &Path) -> Running {
    let process = Command::new(env::current_exe().unwrap()).arg("empty").arg(folder).spawn().unwrap();
    kubelet.offers(NOTHING, 1);
    Running(process)
}

struct Empties;

#[tonic::async_trait]
impl device_plugin_server::DevicePlugin for Empties {
    type ListAndWatchStream =
        std::pin::Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send + 'static>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let device = Device { id: "nothing".to_owned(), health: "Healthy".to_owned(), topology: None };
        let message = ListAndWatchResponse { devices: vec![device] };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(message)).chain(tokio_stream::pending()))))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Ok(Response::new(PreferredAllocationResponse::default()))
    }

    async fn allocate(&self, _: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        Ok(Response::new(AllocateResponse::default()))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse::default()))
    }
}

/// On a runtime like the agent's, and known to the kubelet like the agent's.
fn serve_nothing(folder: &Path) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::UnixListener::bind(folder.join("nothing.sock")).unwrap();
        let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
        let service = device_plugin_server::DevicePluginServer::new(Empties);
        let serving =
            tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        let kubelet = Endpoint::try_from(format!("unix://{}", folder.join("kubelet.sock").display())).unwrap();
        let mut client = RegistrationClient::new(kubelet.connect().await.unwrap());
        let request = RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: "nothing.sock".to_owned(),
            resource_name: NOTHING.to_owned(),
            options: None,
        };
        client.register(request).await.unwrap();
        serving.await.unwrap().unwrap();
    });
}
