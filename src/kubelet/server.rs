//! The gRPC service that the kubelet calls.

use std::{collections::BTreeSet, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{
    allocate::{self, Situation},
    cdi,
    devices::{self, Offer},
    preference,
    prestart::{self, Before},
    v1beta1::{self, device_plugin_server::DevicePlugin},
};
use crate::{
    agent::Published,
    config::{Config, Resource, ResourceKind},
    hardware::Inventory,
    probe::Machine,
    telemetry::metrics::Metrics,
};

/// The kubelet waits for ever; a pod's admission must not.
const ALLOCATE_DEADLINE: Duration = Duration::from_secs(5);

/// One resource's service.
pub(super) struct Plugin {
    pub(super) resource: Resource,
    pub(super) config: Arc<Config>,
    pub(super) state: watch::Receiver<Arc<Published>>,
    pub(super) machine: Arc<dyn Machine>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) run_dir: PathBuf,
    pub(super) dev_root: PathBuf,
    /// The kubelet's streams.
    pub(super) streams: Arc<watch::Sender<Streams>>,
    /// Looks at hardware and disk that may be under way at once.
    pub(super) looks: Arc<Semaphore>,
    /// Ends the streams, which the server's own shutdown would wait for.
    pub(super) end: CancellationToken,
}

pub(super) fn options(resource: &Resource) -> v1beta1::DevicePluginOptions {
    v1beta1::DevicePluginOptions { pre_start_required: resource.pre_start, get_preferred_allocation_available: true }
}

/// What a resource offers now; those before it in the configuration come first.
pub(super) fn offers<'a>(resource: &Resource, config: &Config, state: &'a Published) -> Vec<Offer<'a>> {
    let at = config.resources.iter().position(|other| other.name == resource.name).unwrap_or_default();
    devices::of_resource(resource, &config.resources[..at], state)
}

/// How many streams there are, and were.
#[derive(Debug, Clone, Default)]
pub(super) struct Streams {
    /// Those that are open, by their number.
    pub(super) open: BTreeSet<u64>,
    /// How many were ever opened, which is the last one's number.
    pub(super) opened: u64,
}

/// Counts a stream as open for as long as it lives.
struct OpenStream(Arc<watch::Sender<Streams>>, u64);

impl OpenStream {
    fn new(count: &Arc<watch::Sender<Streams>>) -> Self {
        let mut number = 0;
        count.send_modify(|streams| {
            streams.opened += 1;
            number = streams.opened;
            streams.open.insert(number);
        });
        Self(Arc::clone(count), number)
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.send_modify(|streams| {
            streams.open.remove(&self.1);
        });
    }
}

/// A driver or a disk can block for as long as it likes: more looks at them than these are never stuck.
pub const LOOKS: usize = 4;

impl Plugin {
    /// What is here; the look goes on alone when nobody waits for it any more.
    async fn inventory(&self) -> Result<Inventory, Status> {
        let (place, machine) = (self.place().await?, Arc::clone(&self.machine));
        let looking = tokio::spawn(async move {
            let _place = place;
            machine.inventory().await
        });
        looking.await.map_err(|e| Status::internal(format!("can't look at the hardware: {e}")))
    }

    /// Reads or writes the node's disk, on a thread that may never come back.
    async fn on_disk<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
        let place = self.place().await?;
        let working = tokio::task::spawn_blocking(move || {
            let _place = place;
            work()
        });
        working.await.map_err(|e| Status::internal(format!("can't reach the node's disk: {e}")))
    }

    async fn place(&self) -> Result<OwnedSemaphorePermit, Status> {
        let ended = |_| Status::unavailable("the agent ends");
        Arc::clone(&self.looks).acquire_owned().await.map_err(ended)
    }

    async fn containers(&self, request: v1beta1::AllocateRequest) -> Result<v1beta1::AllocateResponse, Status> {
        let state = Arc::clone(&self.state.borrow());
        let offers = offers(&self.resource, &self.config, &state);
        // As they are at this moment: numbers of device nodes change when drivers reload.
        let all = self.config.cdi.enabled;
        let asked =
            |offer: &&Offer<'_>| all || request.container_requests.iter().any(|c| c.devices_ids.contains(&offer.id));
        // Links and names alone, which no driver is asked for: no thread of its own is worth its time.
        let known = offers.iter().filter(asked).map(|offer| &offer.device.hca);
        let hcas: Vec<_> = known.filter_map(|hca| self.machine.hca(hca)).collect();
        let simulated = state.report.simulated;
        let gpus_by_cdi = if self.resource.kind == ResourceKind::Pair && !simulated {
            let root = self.config.driver.root.clone();
            self.on_disk(move || cdi::nvidia_gpus(&root)).await?
        } else {
            BTreeSet::new()
        };
        let mut situation = Situation {
            resource: &self.resource,
            offers: &offers,
            hcas: &hcas,
            simulated,
            rdma_cm: allocate::has_rdma_cm(&self.dev_root, simulated),
            run_dir: &self.run_dir.to_string_lossy(),
            cdi: false,
            gpus_by_cdi: &gpus_by_cdi,
        };
        if self.config.cdi.enabled {
            situation.cdi = self.write_spec(situation.all_nodes(), simulated).await?;
        }
        let container_responses = request
            .container_requests
            .iter()
            .map(|container| allocate::container(&container.devices_ids, &situation))
            .collect::<Result<_, _>>()
            .map_err(Status::failed_precondition)?;
        Ok(v1beta1::AllocateResponse { container_responses })
    }

    /// Whether the spec says what is here now; without it the nodes are named one by one.
    async fn write_spec(&self, nodes: cdi::Nodes, simulated: bool) -> Result<bool, Status> {
        let (dir, resource) = (self.config.cdi.dir.clone(), self.resource.name.clone());
        let written = self.on_disk(move || cdi::update(&dir, &resource, &nodes, simulated)).await?;
        if let Err(error) = &written {
            let dir = self.config.cdi.dir.display();
            tracing::warn!(%error, %dir, "can't write the CDI spec; devices are handed out without it");
        }
        Ok(written.is_ok())
    }

    async fn before_start(&self, ids: &[String]) -> Result<(), Status> {
        let inventory = self.inventory().await?;
        let state = Arc::clone(&self.state.borrow());
        let offers = offers(&self.resource, &self.config, &state);
        let wanted: Vec<_> = offers.iter().filter(|offer| ids.contains(&offer.id)).collect();
        let (machine, config) = (self.machine.as_ref(), self.config.as_ref());
        let before = Before { machine, inventory: &inventory, config, state: &state };
        before.check(&wanted).await.map_err(Status::failed_precondition)
    }
}

type Snapshots = Pin<Box<dyn Stream<Item = Result<v1beta1::ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Snapshots;

    async fn get_device_plugin_options(
        &self,
        _: Request<v1beta1::Empty>,
    ) -> Result<Response<v1beta1::DevicePluginOptions>, Status> {
        Ok(Response::new(options(&self.resource)))
    }

    /// The first message is the current state; then one for each change.
    async fn list_and_watch(&self, _: Request<v1beta1::Empty>) -> Result<Response<Snapshots>, Status> {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let mut state = self.state.clone();
        state.mark_unchanged();
        let resource = self.resource.clone();
        let end = self.end.clone();
        let open = OpenStream::new(&self.streams);
        let config = Arc::clone(&self.config);
        let message = move |state: &Published| devices::message(&offers(&resource, &config, state));
        let mut last = message(&self.state.borrow());
        tokio::spawn(async move {
            let _open = open;
            if sender.send(Ok(last.clone())).await.is_err() {
                return;
            }
            loop {
                tokio::select! {
                    () = end.cancelled() => return,
                    () = sender.closed() => return,
                    changed = state.changed() => if changed.is_err() { return },
                }
                let next = message(&state.borrow_and_update());
                if next != last {
                    last = next.clone();
                    if sender.send(Ok(next)).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(receiver))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<v1beta1::PreferredAllocationRequest>,
    ) -> Result<Response<v1beta1::PreferredAllocationResponse>, Status> {
        let state = Arc::clone(&self.state.borrow());
        let offers = offers(&self.resource, &self.config, &state);
        let container_responses = request
            .get_ref()
            .container_requests
            .iter()
            .map(|c| v1beta1::ContainerPreferredAllocationResponse { device_i_ds: preference::preferred(c, &offers) })
            .collect();
        Ok(Response::new(v1beta1::PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<v1beta1::AllocateRequest>,
    ) -> Result<Response<v1beta1::AllocateResponse>, Status> {
        let answer = tokio::time::timeout(ALLOCATE_DEADLINE, self.containers(request.into_inner()))
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("the node did not answer within 5 s")));
        self.metrics.allocation(&self.resource.name, answer.is_ok());
        if let Err(status) = &answer {
            tracing::warn!(resource = %self.resource.name, why = status.message(), "an allocation was refused");
        }
        answer.map(Response::new)
    }

    async fn pre_start_container(
        &self,
        request: Request<v1beta1::PreStartContainerRequest>,
    ) -> Result<Response<v1beta1::PreStartContainerResponse>, Status> {
        let ids = request.into_inner().devices_ids;
        let checked = tokio::time::timeout(prestart::DEADLINE, self.before_start(&ids)).await;
        // Nothing was found in time: nothing speaks against the container.
        if let Ok(Err(status)) = checked {
            tracing::warn!(resource = %self.resource.name, why = status.message(), "a container's start was refused");
            return Err(status);
        }
        Ok(Response::new(v1beta1::PreStartContainerResponse {}))
    }
}
