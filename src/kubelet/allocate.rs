//! What a container gets for its device ids. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
};

use super::{cdi::Nodes, devices::Offer, v1beta1};
use crate::{config::Resource, hardware::HcaFacts, report::Transport};

/// The default resource, whose variable has no suffix.
const DEFAULT_RESOURCE: &str = "gpudirect-rdma/hca";

/// Where the node's RDMA device nodes are, on the node and in every container.
const NODES: &str = "/dev/infiniband";

/// What is needed beside the ids.
pub(super) struct Situation<'a> {
    /// The resource asked for.
    pub(super) resource: &'a Resource,
    /// What it offers.
    pub(super) offers: &'a [Offer<'a>],
    /// The HCAs that are here at this moment.
    pub(super) hcas: &'a [HcaFacts],
    /// Whether the machine is made up.
    pub(super) simulated: bool,
    /// Whether `/dev/infiniband/rdma_cm` is there.
    pub(super) rdma_cm: bool,
    /// Where the report and the socket are, on the node.
    pub(super) run_dir: &'a str,
    /// HCAs are handed out by CDI names, whose spec is written.
    pub(super) cdi: bool,
    /// UUIDs of GPUs that the node has a CDI name for.
    pub(super) gpus_by_cdi: &'a BTreeSet<String>,
}

impl Situation<'_> {
    /// The nodes of each HCA that the resource offers and that is here, by its id.
    pub(super) fn all_nodes(&self) -> Nodes {
        let here = |offer: &Offer<'_>| self.hcas.iter().find(|hca| hca.is_same_as(&offer.device.hca));
        let all = self.offers.iter().filter_map(|offer| Some((offer.device.id.clone(), nodes(here(offer)?, self)?)));
        all.collect()
    }
}

/// Exactly the ids asked for, or the reason why not.
pub(super) fn container(
    ids: &[String],
    situation: &Situation<'_>,
) -> Result<v1beta1::ContainerAllocateResponse, String> {
    let resource = &situation.resource.name;
    let mut hcas = BTreeMap::new();
    let mut gpus = BTreeSet::new();
    // The kubelet gives the ids of a set, in no order.
    for id in ids.iter().collect::<BTreeSet<_>>() {
        let offer = situation
            .offers
            .iter()
            .find(|offer| offer.id == *id)
            .ok_or_else(|| format!("{resource} has no device {id}"))?;
        let (device, name) = (offer.device, &offer.device.hca.name);
        if let Some(other) = device.also_in.as_ref().filter(|_| !situation.resource.shared) {
            return Err(format!("{id} ({name}) is also in {other} (OfferedTwice)"));
        }
        if !offer.healthy {
            return Err(format!("{id} ({name}) is unhealthy; `gdr-agent status` on this node says why"));
        }
        let hca = situation
            .hcas
            .iter()
            .find(|hca| hca.is_same_as(&device.hca))
            .ok_or_else(|| format!("{id} ({name}) is gone from this node"))?;
        let nodes = nodes(hca, situation).ok_or_else(|| format!("{id} ({}) has no device node", hca.name))?;
        hcas.insert(device.id.clone(), (hca, nodes));
        gpus.extend(offer.gpu.and_then(|gpu| gpu.uuid.clone()));
    }
    let mut response = v1beta1::ContainerAllocateResponse {
        envs: variables(&hcas.values().map(|(hca, _)| *hca).collect::<Vec<_>>(), situation),
        mounts: vec![v1beta1::Mount {
            container_path: "/run/gdr-agent".to_owned(),
            host_path: situation.run_dir.to_owned(),
            read_only: true,
        }],
        ..v1beta1::ContainerAllocateResponse::default()
    };
    if situation.cdi {
        let names = hcas.keys().map(|id| v1beta1::CdiDevice { name: format!("{resource}={id}") });
        response.cdi_devices.extend(names);
    } else {
        let all: BTreeSet<_> = hcas.into_values().flat_map(|(_, nodes)| nodes).collect();
        response.devices.extend(all.into_iter().map(|node| device_spec(&node, situation.simulated)));
    }
    add_gpus(gpus, situation, &mut response);
    Ok(response)
}

/// Whether there is the node of `rdma_cm`, which a made-up machine has always.
pub(super) fn has_rdma_cm(dev_root: &Path, simulated: bool) -> bool {
    simulated || dev_root.join("infiniband/rdma_cm").exists()
}

fn device_spec(node: &str, simulated: bool) -> v1beta1::DeviceSpec {
    let [host_path, container_path] = node_paths(node, simulated);
    v1beta1::DeviceSpec { host_path, container_path, permissions: "rw".to_owned() }
}

/// A device node's path on the node and in a container.
pub(super) fn node_paths(node: &str, simulated: bool) -> [String; 2] {
    let path = format!("{NODES}/{node}");
    if simulated { ["/dev/null".to_owned(), path] } else { [path.clone(), path] }
}

/// The names of an HCA's device nodes, with what every program needs beside them.
fn nodes(hca: &HcaFacts, situation: &Situation<'_>) -> Option<BTreeSet<String>> {
    let mut nodes = BTreeSet::from([hca.node.as_ref()?.name.clone()]);
    if situation.rdma_cm {
        nodes.insert("rdma_cm".to_owned());
    }
    // Subnet management: of InfiniBand alone, and never required.
    if situation.resource.mad && hca.transport == Transport::Infiniband {
        nodes.extend(hca.mad.iter().cloned());
    }
    Some(nodes)
}

fn variables(hcas: &[&HcaFacts], situation: &Situation<'_>) -> HashMap<String, String> {
    let names: Vec<_> = hcas.iter().map(|hca| hca.name.as_str()).collect();
    let mut envs = HashMap::from([(variable(&situation.resource.name), names.join(","))]);
    if situation.resource.nccl_env {
        let ports = hcas.iter().flat_map(|hca| ports(hca)).collect::<Vec<_>>().join(",");
        // `=`: these names exactly, not all that begin so.
        envs.insert("NCCL_IB_HCA".to_owned(), format!("={ports}"));
        envs.insert("UCX_NET_DEVICES".to_owned(), ports);
    }
    if situation.simulated {
        envs.insert("GPUDIRECT_RDMA_SIMULATED".to_owned(), "1".to_owned());
    }
    envs
}

/// `mlx5_0:1` for each port that can carry data; without one the name alone.
fn ports(hca: &HcaFacts) -> Vec<String> {
    let active = hca.ports.iter().filter(|port| port.state == "ACTIVE");
    let ports: Vec<_> = active.map(|port| format!("{}:{}", hca.name, port.number)).collect();
    if ports.is_empty() { vec![hca.name.clone()] } else { ports }
}

/// The GPUs of pairs: by CDI where the node has names for all of them, else in the nvidia runtime's way.
/// Made-up ones nobody can inject.
fn add_gpus(gpus: BTreeSet<String>, situation: &Situation<'_>, response: &mut v1beta1::ContainerAllocateResponse) {
    if gpus.is_empty() || situation.simulated {
        return;
    }
    if gpus.is_subset(situation.gpus_by_cdi) {
        let names = gpus.into_iter().map(|uuid| v1beta1::CdiDevice { name: format!("nvidia.com/gpu={uuid}") });
        response.cdi_devices.extend(names);
    } else {
        let uuids = gpus.into_iter().collect::<Vec<_>>().join(",");
        response.envs.insert("NVIDIA_VISIBLE_DEVICES".to_owned(), uuids);
    }
}

/// Two resources in one pod must not fight over a variable.
fn variable(resource: &str) -> String {
    const BARE: &str = "GPUDIRECT_RDMA_HCAS";
    if resource == DEFAULT_RESOURCE {
        return BARE.to_owned();
    }
    let name = resource.rsplit('/').next().unwrap_or(resource);
    let suffix: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
    format!("{BARE}_{suffix}")
}
