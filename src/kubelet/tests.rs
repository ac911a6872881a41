//! What is offered, which ids go together, and what a container gets.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    Device,
    allocate::{Situation, container},
    devices::{Offer, message, of_resource},
    preference::preferred,
    v1beta1,
};
use crate::{
    agent::Published,
    config::{Resource, ResourceKind, Selector},
    hardware::{HcaFacts, Listed},
    report::Transport,
    verdict::fixture::Scene,
};

const FIRST: &str = "0000:18:00.0";
const GPU: &str = "GPU-";

/// A node with eight GPUs and eight HCAs, two and two on a switch, all of them good.
struct Node {
    state: Published,
    resource: Resource,
    before: Vec<Resource>,
    hcas: Vec<HcaFacts>,
    simulated: bool,
    cdi: bool,
    gpus_by_cdi: BTreeSet<String>,
}

impl Node {
    fn new() -> Self {
        let scene = Scene::new();
        let hcas = scene.inventory.hcas.clone();
        let device =
            |hca: &HcaFacts| Device { id: hca.key(), hca: hca.clone(), rail: true, healthy: true, also_in: None };
        let devices = hcas.iter().map(device).collect();
        Self {
            state: Published { devices, listed: Some(Vec::new()), ..Published::of(scene.report()) },
            resource: Resource::default(),
            before: Vec::new(),
            hcas,
            simulated: false,
            cdi: false,
            gpus_by_cdi: BTreeSet::new(),
        }
    }

    fn pairs() -> Self {
        let mut node = Self::new();
        node.resource =
            Resource { name: "gpudirect-rdma/pair".into(), kind: ResourceKind::Pair, ..Resource::default() };
        node
    }

    fn offers(&self) -> Vec<Offer<'_>> {
        of_resource(&self.resource, &self.before, &self.state)
    }

    fn ids(&self) -> Vec<String> {
        self.offers().into_iter().map(|offer| offer.id).collect()
    }

    fn health(&self) -> Vec<bool> {
        self.offers().into_iter().map(|offer| offer.healthy).collect()
    }

    fn allocate(&self, ids: &[&str]) -> Result<v1beta1::ContainerAllocateResponse, String> {
        let ids: Vec<_> = ids.iter().map(|id| (*id).to_owned()).collect();
        let situation = Situation {
            resource: &self.resource,
            offers: &self.offers(),
            hcas: &self.hcas,
            simulated: self.simulated,
            rdma_cm: true,
            run_dir: "/run/gdr-agent",
            cdi: self.cdi,
            gpus_by_cdi: &self.gpus_by_cdi,
        };
        container(&ids, &situation)
    }

    fn prefer(&self, available: &[&str], must: &[&str], size: i32) -> Vec<String> {
        let own = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        let request = v1beta1::ContainerPreferredAllocationRequest {
            available_device_i_ds: own(available),
            must_include_device_i_ds: own(must),
            allocation_size: size,
        };
        preferred(&request, &self.offers())
    }
}

fn selecting(name: &str, pattern: &str) -> Resource {
    let select = vec![Selector { name: Some(pattern.into()), ..Selector::default() }];
    Resource { name: name.into(), select, ..Resource::default() }
}

fn paths(answer: &v1beta1::ContainerAllocateResponse) -> Vec<(&str, &str)> {
    answer.devices.iter().map(|d| (d.container_path.as_str(), d.host_path.as_str())).collect()
}

#[test]
fn gives_exactly_what_was_asked_for_in_order() {
    let mut node = Node::new();
    node.simulated = true;
    let answer = node.allocate(&["0000:4d:00.0", FIRST]).unwrap();
    assert_eq!(answer.envs["GPUDIRECT_RDMA_HCAS"], "mlx5_0,mlx5_2");
    assert_eq!(answer.envs["GPUDIRECT_RDMA_SIMULATED"], "1");
    let expected = ["rdma_cm", "uverbs0", "uverbs2"].map(|node| (format!("/dev/infiniband/{node}"), "/dev/null"));
    assert_eq!(paths(&answer), expected.iter().map(|(path, null)| (path.as_str(), *null)).collect::<Vec<_>>());
    assert!(answer.mounts[0].read_only);
}

#[test]
fn a_real_node_is_the_one_of_this_moment() {
    let mut node = Node::new();
    node.hcas[0].node.as_mut().unwrap().name = "uverbs7".into();
    let answer = node.allocate(&[FIRST]).unwrap();
    assert_eq!(paths(&answer)[1], ("/dev/infiniband/uverbs7", "/dev/infiniband/uverbs7"));
    assert!(!answer.envs.contains_key("GPUDIRECT_RDMA_SIMULATED"));
    node.hcas[0].node = None;
    assert!(node.allocate(&[FIRST]).unwrap_err().contains("no device node"));
}

#[test]
fn refuses_the_unhealthy_the_unknown_and_the_vanished() {
    let mut node = Node::new();
    node.state.devices[1].healthy = false;
    for (id, why) in [("0000:19:00.0", "unhealthy"), ("0000:ff:00.0", "no device")] {
        let error = node.allocate(&[FIRST, id]).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    node.hcas.remove(0);
    assert!(node.allocate(&[FIRST]).unwrap_err().contains("gone"));
}

#[test]
fn each_resource_has_its_own_variable() {
    let mut node = Node::new();
    node.resource.name = "example.com/fast-hca".into();
    assert_eq!(node.allocate(&[FIRST]).unwrap().envs["GPUDIRECT_RDMA_HCAS_FAST_HCA"], "mlx5_0");
}

#[test]
fn subnet_management_is_for_infiniband_when_asked_for_and_never_required() {
    let mut node = Node::new();
    node.hcas[0].mad = vec!["issm0".into(), "umad0".into()];
    let nodes = |node: &Node| node.allocate(&[FIRST]).unwrap().devices.len();
    assert_eq!(nodes(&node), 2);
    node.resource.mad = true;
    assert_eq!(nodes(&node), 4);
    node.hcas[0].mad = Vec::new();
    assert_eq!(nodes(&node), 2, "not there, and no failure");
    node.hcas[0].mad = vec!["umad0".into()];
    node.hcas[0].transport = Transport::Roce;
    assert_eq!(nodes(&node), 2);
}

#[test]
fn nccl_and_ucx_get_names_with_ports() {
    let mut node = Node::new();
    assert!(!node.allocate(&[FIRST]).unwrap().envs.contains_key("NCCL_IB_HCA"));
    node.resource.nccl_env = true;
    let second = crate::report::Port { number: 2, ..node.hcas[0].ports[0].clone() };
    node.hcas[0].ports.push(second);
    node.hcas[1].ports[0].state = "DOWN".into();
    let envs = node.allocate(&["0000:19:00.0", FIRST]).unwrap().envs;
    assert_eq!(envs["NCCL_IB_HCA"], "=mlx5_0:1,mlx5_0:2,mlx5_1");
    assert_eq!(envs["UCX_NET_DEVICES"], "mlx5_0:1,mlx5_0:2,mlx5_1");
}

#[test]
fn shares_are_ids_of_one_hca() {
    let mut node = Node::new();
    node.resource.replicas = 3;
    let ids = node.ids();
    assert_eq!((ids.len(), ids[0].as_str(), ids[23].as_str()), (24, "0000:18:00.0::0", "0000:ce:00.0::2"));
    node.state.devices[0].healthy = false;
    assert_eq!(node.health()[..4], [false, false, false, true], "health is the HCA's, not the share's");
    let answer = node.allocate(&["0000:19:00.0::0", "0000:19:00.0::2"]).unwrap();
    assert_eq!(answer.envs["GPUDIRECT_RDMA_HCAS"], "mlx5_1", "once");
    assert_eq!(paths(&answer).len(), 2);
}

/// The kubelet ends a stream whose message is longer than 4 MiB, and opens no other.
#[test]
fn as_many_shares_are_offered_as_the_kubelet_takes() {
    use prost::Message as _;
    let mut node = Node::new();
    let first = node.state.devices[0].clone();
    let many = (0..64).map(|n| Device { id: format!("1000{n:x}:18:00.0"), ..first.clone() });
    node.state.devices = many.collect();
    for healthy in [true, false] {
        node.state.devices.iter_mut().for_each(|device| device.healthy = healthy);
        for (replicas, shares) in [(128, 128), (1024, 1024), (2048, 1219)] {
            node.resource.replicas = replicas;
            let offers = node.offers();
            assert!(message(&offers).encoded_len() <= 4 << 20, "{replicas}");
            assert_eq!(offers.len() / 64, shares, "{replicas}");
        }
    }
}

#[test]
fn a_device_is_in_the_first_resource_that_takes_it() {
    let mut node = Node::new();
    node.before = vec![selecting("a/first", "mlx5_[0]"), selecting("a/second", "mlx5_?")];
    assert_eq!(node.ids(), Vec::<String>::new());
    node.before = vec![selecting("a/first", "mlx5_0")];
    assert_eq!(node.ids().len(), 7);
    node.before[0].kind = ResourceKind::Pair;
    assert_eq!(node.ids().len(), 8, "pairs are of another kind");
}

#[test]
fn a_pair_is_a_gpu_with_the_hca_that_topology_gives_it() {
    let node = Node::pairs();
    let offers = node.offers();
    assert_eq!(offers.len(), 8);
    let mut hcas: Vec<_> = offers.iter().map(|offer| offer.device.id.clone()).collect();
    hcas.sort();
    hcas.dedup();
    assert_eq!(hcas.len(), 8, "two GPUs on a switch take its two HCAs, one each");
    for offer in &offers {
        let gpu = offer.gpu.unwrap();
        assert!(gpu.nearest.contains(&offer.device.hca.name));
        assert_eq!(offer.id, format!("{}_{}", offer.device.id, gpu.uuid.as_deref().unwrap()));
        assert!(offer.id.len() <= 63, "{}", offer.id);
    }
    assert_eq!(node.health(), [true; 8]);
}

#[test]
fn a_pair_is_healthy_while_the_two_work_together() {
    let mut node = Node::pairs();
    let (gpu, hca) = {
        let offers = node.offers();
        (offers[0].gpu.unwrap().pci, offers[0].device.hca.name.clone())
    };
    let mut report = node.state.report.as_ref().clone();
    report.pairs.iter_mut().find(|p| p.gpu == gpu && p.hca == hca).unwrap().good = Some(false);
    node.state.report = Arc::new(report);
    assert_eq!(node.health().iter().filter(|healthy| !**healthy).count(), 1);
    node.state.devices[7].healthy = false;
    assert_eq!(node.health().iter().filter(|healthy| !**healthy).count(), 2, "a port that is down");
}

#[test]
fn a_gpu_that_another_resource_hands_out_is_in_no_pair() {
    let mut node = Node::pairs();
    let uuid = node.state.report.gpus[0].uuid.clone().unwrap();
    assert!(uuid.starts_with(GPU));
    for id in [uuid.clone(), format!("{uuid}::1")] {
        node.state.listed = Some(vec![Listed { resource: "nvidia.com/gpu".into(), id }]);
        assert_eq!(node.ids().len(), 7);
    }
    node.state.listed = Some(vec![Listed { resource: node.resource.name.clone(), id: uuid }]);
    assert_eq!(node.ids().len(), 8, "our own");
    node.state.listed = None;
    assert_eq!(node.ids().len(), 0, "nobody knows who has them");
}

#[test]
fn the_gpu_of_a_pair_comes_by_cdi_or_by_the_runtime() {
    let mut node = Node::pairs();
    let (first, second) = (node.ids()[0].clone(), node.ids()[1].clone());
    let uuid = |id: &str| id.split_once('_').unwrap().1.to_owned();
    let answer = node.allocate(&[&first]).unwrap();
    assert_eq!(answer.envs["NVIDIA_VISIBLE_DEVICES"], uuid(&first));
    assert_eq!(answer.envs["GPUDIRECT_RDMA_HCAS_PAIR"], "mlx5_0");
    assert!(answer.cdi_devices.is_empty());
    node.gpus_by_cdi.insert(uuid(&first));
    let answer = node.allocate(&[&first]).unwrap();
    assert_eq!(answer.cdi_devices[0].name, format!("nvidia.com/gpu={}", uuid(&first)));
    assert!(!answer.envs.contains_key("NVIDIA_VISIBLE_DEVICES"));
    let answer = node.allocate(&[&first, &second]).unwrap();
    assert!(answer.envs["NVIDIA_VISIBLE_DEVICES"].contains(','), "one way for all of them");
    node.simulated = true;
    let answer = node.allocate(&[&first]).unwrap();
    assert!(answer.cdi_devices.is_empty() && !answer.envs.contains_key("NVIDIA_VISIBLE_DEVICES"));
}

#[test]
fn by_cdi_the_names_stand_for_the_nodes() {
    let mut node = Node::new();
    node.cdi = true;
    node.resource.replicas = 2;
    let answer = node.allocate(&["0000:19:00.0::1", "0000:19:00.0::0", "0000:18:00.0::0"]).unwrap();
    let names: Vec<_> = answer.cdi_devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["gpudirect-rdma/hca=0000:18:00.0", "gpudirect-rdma/hca=0000:19:00.0"]);
    assert!(answer.devices.is_empty());
    assert_eq!(answer.envs["GPUDIRECT_RDMA_HCAS"], "mlx5_0,mlx5_1");
}

#[test]
fn what_another_plugin_offers_too_is_not_handed_out() {
    let mut node = Node::new();
    node.state.devices[0].also_in = Some("openshift.io/rails".into());
    assert_eq!(node.health()[..2], [false, true]);
    assert!(node.allocate(&[FIRST]).unwrap_err().contains("openshift.io/rails"));
    node.resource.shared = true;
    assert!(node.health()[0]);
    node.allocate(&[FIRST]).unwrap();
}

#[test]
fn an_unknown_numa_node_is_left_out() {
    let mut node = Node::new();
    node.state.devices[0].hca.numa = None;
    let devices = message(&node.offers()).devices;
    assert_eq!(devices[0].topology, None);
    assert_eq!(devices[1].topology.as_ref().unwrap().nodes.len(), 1);
}

#[test]
fn prefers_distinct_hcas_then_one_switch_then_one_numa_node() {
    let node = Node::new();
    let all = node.ids();
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    assert_eq!(node.prefer(&all, &[], 2), ["0000:18:00.0", "0000:19:00.0"], "one switch, the lowest ids");
    assert_eq!(
        node.prefer(&[all[1], all[2], all[3], all[4]], &[], 2),
        [all[2], all[3]],
        "a switch beyond the lowest id"
    );
    assert_eq!(node.prefer(&[all[1], all[4], all[2]], &[], 2), [all[1], all[2]], "one NUMA node");
    assert_eq!(node.prefer(&[all[0], all[5], all[7]], &[all[7]], 2), [all[7], all[5]], "near what must be in");
    assert_eq!(node.prefer(&all, &[], 8).len(), 8);
    for (available, must, size) in
        [(vec![all[0]], vec![], 2), (vec!["bogus"], vec![], 1), (vec![], vec![], -1), (vec![all[0]], vec!["bogus"], 1)]
    {
        assert!(node.prefer(&available, &must, size).is_empty(), "silent on doubt");
    }
}

#[test]
fn prefers_another_hca_to_a_second_share() {
    let mut node = Node::new();
    node.resource.replicas = 4;
    let all = node.ids();
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    let four = node.prefer(&all, &[], 4);
    let mut hcas: Vec<_> = four.iter().map(|id| id.split("::").next().unwrap()).collect();
    hcas.dedup();
    assert_eq!(hcas.len(), 4, "{four:?}");
    assert_eq!(node.prefer(&all[..4], &[], 2), [all[0], all[1]], "there is no other");
}
