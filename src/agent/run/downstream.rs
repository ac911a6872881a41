//! Everybody downstream, each in a task of its own.

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Agent, Published, Request, RunError, io_error, socket};
use crate::{
    config::{Publish, PublishMode},
    hardware::{Inventory, Roots},
    kubelet::{self, Supervised},
    node,
    telemetry::http,
};

impl Agent {
    /// Who asks, who scrapes, and the API server.
    pub(super) fn spawn_others(
        &mut self,
        state: &watch::Receiver<Arc<Published>>,
        requests: mpsc::Sender<Request>,
    ) -> Result<(), RunError> {
        let context = Arc::clone(&self.context);
        let config = &context.config;
        let listener =
            socket::bind(&self.run_dir).map_err(io_error(format!("can't listen in {}", self.run_dir.display())))?;
        tokio::spawn(socket::serve(listener, state.clone(), requests));
        if let Some(listen) = &config.http.listen {
            tokio::spawn(http::serve(listen.clone(), state.clone(), Arc::clone(&self.metrics)));
        }
        if config.publish.dry_run || config.publish.mode != PublishMode::Node {
            self.memory.paused_until = None; // whose end nobody would hear of
        }
        self.publish(&config.publish, state);
        Ok(())
    }

    /// The kubelet: a supervisor for each resource.
    pub(super) fn serve_resources(
        &self,
        state: &watch::Receiver<Arc<Published>>,
        end: &CancellationToken,
        resources: &TaskTracker,
    ) {
        let config = Arc::new(self.context.config.clone());
        let dev_root = self.context.roots.dev.clone();
        tokio::spawn(kubelet::keep_specs(Arc::clone(&config), state.clone(), dev_root));
        tokio::spawn(kubelet::say_what_is_left_out(Arc::clone(&config), state.clone()));
        let looks = Arc::new(Semaphore::new(kubelet::LOOKS));
        let changes = kubelet::watch_folder(config.kubelet.device_plugins.clone());
        for resource in &config.resources {
            resources.spawn(kubelet::supervise(Supervised {
                resource: resource.clone(),
                config: Arc::clone(&config),
                folder: config.kubelet.device_plugins.clone(),
                changes: changes.clone(),
                looks: Arc::clone(&looks),
                state: state.clone(),
                machine: Arc::clone(&self.context.machine),
                metrics: Arc::clone(&self.metrics),
                run_dir: self.run_dir.clone(),
                dev_root: self.context.roots.dev.clone(),
                end: end.clone(),
            }));
        }
    }

    fn publish(&self, config: &Publish, state: &watch::Receiver<Arc<Published>>) {
        if config.dry_run || config.mode == PublishMode::None {
            return;
        }
        if self.context.machine.simulated() && has_hardware() {
            tracing::error!("this node has NVIDIA or RDMA hardware: a simulation does not publish here");
            return;
        }
        let (config, state, metrics) = (config.clone(), state.clone(), Arc::clone(&self.metrics));
        match config.mode {
            PublishMode::Node => {
                let (name, view) = (self.context.node.clone(), self.view.0.clone());
                tokio::spawn(node::publish(node::Publisher { name, config, state, view, metrics }));
            }
            PublishMode::Nfd => {
                tokio::spawn(node::write_features(config, state, metrics));
            }
            PublishMode::None => {}
        }
    }
}

fn has_hardware() -> bool {
    let real = Inventory::read(&Roots::default());
    !real.gpus.is_empty() || real.has_rdma_hardware()
}
