//! Keeps the CDI specs as the node is: a container that starts again gets the nodes of that moment, not
//! those of its pod's admission.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::sync::watch;

use super::{
    allocate::{Situation, has_rdma_cm},
    cdi,
    server::offers,
};
use crate::{
    agent::Published,
    config::{Config, Resource},
};

/// Writes the spec of each resource at each change; where CDI is off it removes what an earlier agent
/// left, once.
pub async fn keep_specs(config: Arc<Config>, mut state: watch::Receiver<Arc<Published>>, dev_root: PathBuf) {
    let dir = &config.cdi.dir;
    let wanted: Vec<_> = config.resources.iter().filter(|_| config.cdi.enabled).map(|r| r.name.as_str()).collect();
    cdi::sweep(dir, &wanted);
    let mut said = None;
    if !config.cdi.enabled {
        return;
    }
    loop {
        let now = Arc::clone(&state.borrow_and_update());
        let written = config.resources.iter().try_for_each(|resource| write(resource, &config, &now, &dev_root));
        let trouble = written.err().map(|error| error.to_string());
        if let Some(error) = trouble.as_ref().filter(|_| said != trouble) {
            tracing::warn!(error, dir = %dir.display(), "can't write the CDI specs");
        }
        said = trouble;
        if state.changed().await.is_err() {
            return;
        }
    }
}

/// Says once, after the first check, which resources are not what the configuration asks for on this node: those
/// with nothing in them, and those with more shares than the kubelet can be told of.
pub async fn say_what_is_left_out(config: Arc<Config>, mut state: watch::Receiver<Arc<Published>>) {
    if state.wait_for(|state| state.checked).await.is_err() {
        return;
    }
    let state = Arc::clone(&state.borrow());
    for resource in &config.resources {
        let offers = offers(resource, &config, &state);
        if offers.is_empty() {
            let select = serde_json::to_string(&resource.select).unwrap_or_default();
            tracing::info!(resource = %resource.name, select, "no HCA of this node is in this resource");
            continue;
        }
        let shares = offers.iter().filter(|offer| offer.device.id == offers[0].device.id && offer.gpu == offers[0].gpu);
        let (shares, replicas) = (shares.count(), resource.replicas);
        if u32::try_from(shares).is_ok_and(|shares| shares < replicas) {
            tracing::warn!(resource = %resource.name, replicas, shares, "the kubelet takes no message above 4 MiB: fewer shares are offered; lower `replicas`");
        }
    }
}

fn write(resource: &Resource, config: &Config, state: &Published, dev_root: &Path) -> std::io::Result<()> {
    let hcas: Vec<_> = state.devices.iter().map(|device| device.hca.clone()).collect();
    let situation = Situation {
        resource,
        offers: &offers(resource, config, state),
        hcas: &hcas,
        simulated: state.report.simulated,
        rdma_cm: has_rdma_cm(dev_root, state.report.simulated),
        run_dir: "",
        cdi: true,
        gpus_by_cdi: &BTreeSet::new(),
    };
    cdi::update(&config.cdi.dir, &resource.name, &situation.all_nodes(), situation.simulated)
}
