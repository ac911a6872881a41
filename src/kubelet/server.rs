//! The gRPC service that the kubelet calls.

use std::{path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{
    allocate::{self, Situation},
    devices,
    v1beta1::{self, device_plugin_server::DevicePlugin},
};
use crate::{agent::Published, config::Resource, probe::Machine, telemetry::metrics::Metrics};

/// The kubelet waits for ever; a pod's admission must not.
const ALLOCATE_DEADLINE: Duration = Duration::from_secs(5);

/// One resource's service.
pub(super) struct Plugin {
    pub(super) resource: Resource,
    pub(super) state: watch::Receiver<Arc<Published>>,
    pub(super) machine: Arc<dyn Machine>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) run_dir: PathBuf,
    pub(super) dev_root: PathBuf,
    /// How many streams are open.
    pub(super) streams: Arc<watch::Sender<usize>>,
    /// Ends the streams, which the server's own shutdown would wait for.
    pub(super) end: CancellationToken,
}

pub(super) fn options() -> v1beta1::DevicePluginOptions {
    v1beta1::DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true }
}

/// Counts a stream as open for as long as it lives.
struct OpenStream(Arc<watch::Sender<usize>>);

impl OpenStream {
    fn new(count: &Arc<watch::Sender<usize>>) -> Self {
        count.send_modify(|n| *n += 1);
        Self(Arc::clone(count))
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

impl Plugin {
    fn message(&self) -> v1beta1::ListAndWatchResponse {
        let state = self.state.borrow();
        devices::message(&devices::of_resource(&self.resource, &state.devices))
    }

    async fn containers(&self, request: v1beta1::AllocateRequest) -> Result<v1beta1::AllocateResponse, Status> {
        // What is here at this moment: numbers of device nodes change when drivers reload.
        let machine = Arc::clone(&self.machine);
        let inventory = tokio::task::spawn_blocking(move || machine.inventory())
            .await
            .map_err(|e| Status::internal(format!("can't look at the hardware: {e}")))?;
        let state = Arc::clone(&self.state.borrow());
        let of_resource = devices::of_resource(&self.resource, &state.devices);
        let situation = Situation {
            resource: &self.resource.name,
            devices: &of_resource,
            inventory: &inventory,
            simulated: state.report.simulated,
            rdma_cm: self.dev_root.join("infiniband/rdma_cm").exists(),
            run_dir: &self.run_dir.to_string_lossy(),
        };
        let container_responses = request
            .container_requests
            .iter()
            .map(|container| allocate::container(&container.devices_ids, &situation))
            .collect::<Result<_, _>>()
            .map_err(Status::failed_precondition)?;
        Ok(v1beta1::AllocateResponse { container_responses })
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
        Ok(Response::new(options()))
    }

    /// The first message is the current state; then one for each change.
    async fn list_and_watch(&self, _: Request<v1beta1::Empty>) -> Result<Response<Snapshots>, Status> {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let mut state = self.state.clone();
        state.mark_unchanged();
        let resource = self.resource.clone();
        let end = self.end.clone();
        let open = OpenStream::new(&self.streams);
        let mut last = self.message();
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
                let next = devices::message(&devices::of_resource(&resource, &state.borrow_and_update().devices));
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
        let of_resource = devices::of_resource(&self.resource, &state.devices);
        let container_responses = request
            .get_ref()
            .container_requests
            .iter()
            .map(|c| v1beta1::ContainerPreferredAllocationResponse {
                device_i_ds: allocate::preferred(c, &of_resource),
            })
            .collect();
        Ok(Response::new(v1beta1::PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<v1beta1::AllocateRequest>,
    ) -> Result<Response<v1beta1::AllocateResponse>, Status> {
        let answer = tokio::time::timeout(ALLOCATE_DEADLINE, self.containers(request.into_inner()))
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("the node's hardware did not answer within 5 s")));
        self.metrics.allocation(&self.resource.name, answer.is_ok());
        if let Err(status) = &answer {
            tracing::warn!(resource = %self.resource.name, why = status.message(), "an allocation was refused");
        }
        answer.map(Response::new)
    }

    async fn pre_start_container(
        &self,
        _: Request<v1beta1::PreStartContainerRequest>,
    ) -> Result<Response<v1beta1::PreStartContainerResponse>, Status> {
        Ok(Response::new(v1beta1::PreStartContainerResponse {}))
    }
}
