//! Which pod holds a GPU, by the kubelet's PodResources.
//!
//! It is asked just before the child of each GPU starts, not once for a check: a pod that got a GPU
//! while its neighbours were checked is seen too. A pod that has a GPU may not have touched it yet,
//! so that NVML shows nothing; that is what this question is for.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tonic::{Response, Status, transport::Channel};

use crate::{
    hardware::{GpuFacts, Listed, PciAddress},
    kubelet::dial,
};

/// The kubelet's contract, generated from `proto/`.
#[allow(clippy::pedantic, missing_docs, unreachable_pub)] // generated code
mod v1 {
    tonic::include_proto!("v1");
}

use v1::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ListPodResourcesRequest,
    ListPodResourcesResponse, pod_resources_lister_client::PodResourcesListerClient,
};

const DEADLINE: Duration = Duration::from_secs(2);
/// What the kubelet's own server allows; hundreds of pods with many devices go beyond gRPC's 4 MiB.
const LARGEST: usize = 16 << 20;
/// The DRA driver whose devices are called `gpu-MINOR` and `gpu-MINOR-mig-…`.
const NVIDIA_DRA: &str = "gpu.nvidia.com";

/// The kubelet's list of who holds what.
#[derive(Debug, Clone)]
pub struct Pods {
    socket: Option<PathBuf>,
    /// The trouble that was last said, and whether it is only that there is no kubelet.
    said: Arc<Mutex<Option<(String, bool)>>>,
}

impl Pods {
    /// Asks in this folder; `None`: nobody, and nobody holds anything.
    #[must_use]
    pub fn new(folder: Option<&Path>) -> Self {
        Self { socket: folder.map(|folder| folder.join("kubelet.sock")), said: Arc::default() }
    }

    /// Who holds a GPU. Without an answer nobody does: what NVML shows still protects it.
    pub async fn holder(&self, gpu: &GpuFacts) -> Option<String> {
        let socket = self.socket.as_deref()?;
        let asked = tokio::time::timeout(DEADLINE, list(socket)).await;
        match asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(list) => {
                self.say(None);
                among(&list, gpu)
            }
            Err(error) => {
                // A machine that is no Kubernetes node, as `check` meets them, is nothing to be warned of.
                let none_here = error.kind() == io::ErrorKind::NotFound;
                self.say(Some((format!("{}: {error}", socket.display()), none_here)));
                None
            }
        }
    }

    /// Everything that device plugins offer here; `None` where the kubelet does not say.
    pub async fn listed(&self) -> Option<Vec<Listed>> {
        let socket = self.socket.as_deref()?;
        match tokio::time::timeout(DEADLINE, allocatable(socket)).await {
            Ok(Ok(answer)) => Some(flat(answer.devices)),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the kubelet does not say what device plugins offer");
                None
            }
            Err(_) => None,
        }
    }

    /// Everything of device plugins that pods hold; `None` where the kubelet does not say.
    pub async fn held(&self) -> Option<Vec<Listed>> {
        let socket = self.socket.as_deref()?;
        let list = tokio::time::timeout(DEADLINE, list(socket)).await.ok()?.ok()?;
        let containers = list.pod_resources.into_iter().flat_map(|pod| pod.containers);
        Some(flat(containers.flat_map(|container| container.devices)))
    }

    /// Says a trouble once, and again when it is another one.
    fn say(&self, trouble: Option<(String, bool)>) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if *said != trouble {
            if let Some((trouble, true)) = &trouble {
                tracing::info!("no kubelet here ({trouble}); what NVML shows decides alone");
            } else if let Some((trouble, false)) = &trouble {
                tracing::warn!("can't ask the kubelet which pods hold GPUs ({trouble}); what NVML shows decides alone");
            } else {
                tracing::info!("the kubelet says again which pods hold GPUs");
            }
            *said = trouble;
        }
    }
}

async fn client(socket: &Path) -> io::Result<PodResourcesListerClient<Channel>> {
    if !socket.exists() {
        return Err(io::ErrorKind::NotFound.into()); // gRPC would say it in three lines
    }
    Ok(PodResourcesListerClient::new(dial(socket).await?).max_decoding_message_size(LARGEST))
}

fn answer<T>(answer: Result<Response<T>, Status>) -> io::Result<T> {
    answer.map(Response::into_inner).map_err(|status| io::Error::other(status.message().to_owned()))
}

async fn list(socket: &Path) -> io::Result<ListPodResourcesResponse> {
    answer(client(socket).await?.list(ListPodResourcesRequest {}).await)
}

async fn allocatable(socket: &Path) -> io::Result<AllocatableResourcesResponse> {
    answer(client(socket).await?.get_allocatable_resources(AllocatableResourcesRequest {}).await)
}

fn flat(devices: impl IntoIterator<Item = ContainerDevices>) -> Vec<Listed> {
    let of_resource = |devices: ContainerDevices| {
        let resource = devices.resource_name;
        devices.device_ids.into_iter().map(move |id| Listed { resource: resource.clone(), id })
    };
    devices.into_iter().flat_map(of_resource).collect()
}

/// The first pod that has a GPU or a part of it, with what it is called there.
fn among(list: &ListPodResourcesResponse, gpu: &GpuFacts) -> Option<String> {
    list.pod_resources.iter().find_map(|pod| {
        let held = pod.containers.iter().find_map(|container| {
            let devices = container.devices.iter().find_map(|devices| {
                let id = devices.device_ids.iter().find(|id| is_of(id, gpu))?;
                Some(format!("{} {id}", devices.resource_name))
            });
            devices.or_else(|| {
                let claims = container.dynamic_resources.iter().flat_map(|dynamic| &dynamic.claim_resources);
                let mut claims = claims.filter(|claim| claim.driver_name == NVIDIA_DRA);
                let claim = claims.find(|claim| is_minor(&claim.device_name, "gpu-", gpu))?;
                Some(format!("{} {}", claim.driver_name, claim.device_name))
            })
        })?;
        Some(format!("pod {}/{} holds {held}", pod.namespace, pod.name))
    })
}

/// Whether a device plugin's id means a GPU, a share or a part of it: `GPU-…`, `GPU-…::3` (time-slicing),
/// `MIG-GPU-…/1/0`, `nvidia0`, `nvidia0/gi1` (GKE), or a PCI address. A `MIG-` id of the newer kind
/// names no GPU; NVML says of one in MIG mode that it is.
fn is_of(id: &str, gpu: &GpuFacts) -> bool {
    let whole = id.strip_prefix("MIG-").unwrap_or(id);
    gpu.uuid.as_deref().is_some_and(|uuid| begins_with(whole, uuid))
        || is_minor(id, "nvidia", gpu)
        || id.split("::").next().and_then(|id| id.parse::<PciAddress>().ok()) == Some(gpu.pci)
}

fn is_minor(id: &str, prefix: &str, gpu: &GpuFacts) -> bool {
    let minor = gpu.minor.map(|minor| minor.to_string());
    id.strip_prefix(prefix).zip(minor).is_some_and(|(rest, minor)| begins_with(rest, &minor))
}

/// The whole name, or what comes after it can't be a part of it.
fn begins_with(id: &str, name: &str) -> bool {
    let rest = id.get(..name.len()).filter(|begin| begin.eq_ignore_ascii_case(name)).and(id.get(name.len()..));
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;
    use tokio_stream::wrappers::UnixListenerStream;
    use tonic::{Request, Response, Status};

    use super::{
        v1::{
            ClaimResource, ContainerDevices, ContainerResources, DynamicResource, PodResources,
            pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
        },
        *,
    };
    use crate::simulate::SimulatedMachine;

    const UUID: &str = "GPU-51000000-0000-4000-8000-000000000001";

    /// Minor 1.
    fn gpu() -> GpuFacts {
        let machine = SimulatedMachine::new("hgx-h100", "boot".to_owned()).unwrap();
        let gpu = machine.inventory().gpus.swap_remove(1);
        GpuFacts { uuid: Some(UUID.to_owned()), minor: Some(1), ..gpu }
    }

    fn pod(container: ContainerResources) -> ListPodResourcesResponse {
        let pod = PodResources { name: "train".into(), namespace: "ml".into(), containers: vec![container] };
        ListPodResourcesResponse { pod_resources: vec![PodResources::default(), pod] }
    }

    fn with_device(resource: &str, id: &str) -> ListPodResourcesResponse {
        let devices =
            ContainerDevices { resource_name: resource.into(), device_ids: vec!["other".into(), id.to_owned()] };
        pod(ContainerResources { devices: vec![devices], ..ContainerResources::default() })
    }

    fn with_claim(driver: &str, device: &str) -> ListPodResourcesResponse {
        let claim =
            ClaimResource { driver_name: driver.into(), device_name: device.into(), ..ClaimResource::default() };
        let dynamic = DynamicResource { claim_resources: vec![claim], ..DynamicResource::default() };
        pod(ContainerResources { dynamic_resources: vec![dynamic], ..ContainerResources::default() })
    }

    #[test]
    fn knows_a_gpu_by_each_of_its_names() {
        let gpu = gpu();
        let pci = gpu.pci.to_string();
        for (id, expected) in [
            (UUID, true),
            (&*UUID.to_lowercase(), true),
            (&*format!("{UUID}::0"), true),
            (&*format!("{UUID}-3"), true),
            (&*format!("MIG-{UUID}/1/0"), true),
            ("nvidia1", true),
            ("nvidia1/gi2", true),
            ("nvidia1/vgpu0", true),
            (&*pci, true),
            (&*format!("{pci}::1"), true),
            ("GPU-51000000-0000-4000-8000-000000000002", false),
            (&*format!("{UUID}0"), false),
            ("MIG-6ba7b810-9dad-11d1-80b4-00c04fd430c8", false),
            ("nvidia10", false),
            ("nvidia0", false),
            ("nvidia", false),
            ("1", false),
            ("0000:fe:00.0", false),
            ("", false),
            ("GPÜ-", false),
        ] {
            let held = among(&with_device("nvidia.com/gpu", id), &gpu);
            assert_eq!(held, expected.then(|| format!("pod ml/train holds nvidia.com/gpu {id}")), "{id}");
        }
        let nameless = GpuFacts { uuid: None, minor: None, ..gpu };
        assert_eq!(among(&with_device("nvidia.com/gpu", "nvidia1"), &nameless), None);
        assert_eq!(among(&with_device("nvidia.com/gpu", UUID), &nameless), None);
    }

    #[test]
    fn knows_a_claim() {
        let held = |driver, device| among(&with_claim(driver, device), &gpu());
        assert_eq!(held(NVIDIA_DRA, "gpu-1").as_deref(), Some("pod ml/train holds gpu.nvidia.com gpu-1"));
        assert!(held(NVIDIA_DRA, "gpu-1-mig-9-4-4").is_some());
        assert!(held(NVIDIA_DRA, "gpu-10").is_none());
        assert!(held("gpu.example.com", "gpu-1").is_none());
    }

    struct Kubelet(Option<Duration>);

    #[tonic::async_trait]
    impl PodResourcesLister for Kubelet {
        async fn list(
            &self,
            _: Request<ListPodResourcesRequest>,
        ) -> Result<Response<ListPodResourcesResponse>, Status> {
            match self.0 {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(Status::unavailable("not now")),
            }
            // Beyond gRPC's own limit of 4 MiB.
            let mut list = with_device("nvidia.com/gpu", UUID);
            list.pod_resources[0].name = "x".repeat(5 << 20);
            Ok(Response::new(list))
        }

        async fn get_allocatable_resources(
            &self,
            _: Request<AllocatableResourcesRequest>,
        ) -> Result<Response<AllocatableResourcesResponse>, Status> {
            Err(Status::unimplemented("an older kubelet"))
        }
    }

    async fn asked(kubelet: Kubelet) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("kubelet.sock")).unwrap();
        let server = tonic::transport::Server::builder().add_service(PodResourcesListerServer::new(kubelet));
        let server = tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        let holder = Pods::new(Some(folder.path())).holder(&gpu()).await;
        server.abort();
        holder
    }

    #[tokio::test]
    async fn asks_the_kubelet() {
        let holder = asked(Kubelet(Some(Duration::ZERO))).await;
        assert_eq!(holder, Some(format!("pod ml/train holds nvidia.com/gpu {UUID}")));
    }

    #[tokio::test]
    async fn without_an_answer_nobody_holds_anything() {
        assert_eq!(asked(Kubelet(None)).await, None, "it refuses");
        let start = std::time::Instant::now();
        assert_eq!(asked(Kubelet(Some(Duration::from_secs(30)))).await, None, "it is silent");
        assert!(start.elapsed() < Duration::from_secs(10));
        let folder = tempfile::tempdir().unwrap();
        let pods = Pods::new(Some(folder.path()));
        assert_eq!(pods.holder(&gpu()).await, None, "there is no socket");
        assert!(pods.said.lock().unwrap().as_ref().is_some_and(|(said, none)| *none && said.contains("kubelet.sock")));
        assert_eq!(Pods::new(None).holder(&gpu()).await, None);
    }
}
