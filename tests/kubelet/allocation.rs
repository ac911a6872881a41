//! What a pod gets, asked as the kubelet asks.

use std::time::Duration;

use tonic::{Code, Status};

use crate::{
    Agent, HCA,
    fake::{
        Kubelet,
        v1beta1::{
            AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerPreferredAllocationRequest,
            PreStartContainerRequest, PreferredAllocationRequest,
        },
    },
};

pub(crate) fn own(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

pub(crate) fn allocate(kubelet: &Kubelet, resource: &str, ids: &[&str]) -> Result<AllocateResponse, Status> {
    let container = ContainerAllocateRequest { devices_ids: own(ids) };
    let request = AllocateRequest { container_requests: vec![container] };
    kubelet.call(resource, |mut client| async move { client.allocate(request).await }).map(tonic::Response::into_inner)
}

fn ready(more: &str, count: usize) -> (Agent, Kubelet) {
    let agent = Agent::running(more);
    let kubelet = Kubelet::start(&agent.folder());
    kubelet.offers(HCA, count);
    (agent, kubelet)
}

#[test]
fn p12_what_is_unhealthy_unknown_or_gone_is_refused_with_the_reason() {
    let (agent, kubelet) = ready("", 8);
    agent.faults("{ hca: mlx5_0, port: DOWN }");
    kubelet.offers(HCA, 7);
    for (ids, why) in [(["0000:18:00.0"], "unhealthy"), (["0000:ff:00.0"], "no device")] {
        let refused = allocate(&kubelet, HCA, &ids).unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains(why), "{refused}");
    }
}

#[test]
fn p16_one_answer_for_a_container_with_exactly_its_ids_in_order() {
    let (_agent, kubelet) = ready("", 8);
    let answer = allocate(&kubelet, HCA, &["0000:4d:00.0", "0000:18:00.0"]).unwrap();
    assert_eq!(answer.container_responses.len(), 1);
    let container = &answer.container_responses[0];
    assert_eq!(container.envs["GPUDIRECT_RDMA_HCAS"], "mlx5_0,mlx5_2");
    assert_eq!(container.envs["GPUDIRECT_RDMA_SIMULATED"], "1");
    assert_eq!(container.devices.len(), 3);
}

#[test]
fn p17_a_preference_is_never_an_error() {
    let (_agent, kubelet) = ready("", 8);
    let prefer = |available: &[&str], size: i32| {
        let container = ContainerPreferredAllocationRequest {
            available_device_i_ds: own(available),
            must_include_device_i_ds: Vec::new(),
            allocation_size: size,
        };
        let request = PreferredAllocationRequest { container_requests: vec![container] };
        let answer = kubelet.call(HCA, |mut client| async move { client.get_preferred_allocation(request).await });
        answer.unwrap().into_inner().container_responses.remove(0).device_i_ds
    };
    assert_eq!(prefer(&["0000:19:00.0", "0000:98:00.0", "0000:99:00.0"], 2), ["0000:98:00.0", "0000:99:00.0"]);
    for (available, size) in [(vec!["bogus"], 1), (vec!["0000:19:00.0"], 5), (vec![], 1), (vec!["0000:19:00.0"], -1)] {
        assert_eq!(prefer(&available, size), Vec::<String>::new(), "{available:?} {size}");
    }
}

#[test]
fn p18_a_numa_node_that_is_known_is_told() {
    let (_agent, kubelet) = ready("", 8);
    let devices = kubelet.messages(HCA).pop().unwrap().devices;
    let nodes: Vec<_> = devices.iter().map(|device| device.topology.as_ref().unwrap().nodes[0].id).collect();
    assert_eq!(nodes, [0, 0, 0, 0, 1, 1, 1, 1]);
}

#[test]
fn p21_a_name_that_the_kubelet_would_refuse_is_refused_at_the_start() {
    for name in ["hca", "kubernetes.io/hca", "x.kubernetes.io/hca", "requests.example.com/hca", "a/b/c", "a/-b"] {
        let agent = Agent::new(&format!("resources: [ {{ name: {name} }} ]"));
        let ran = agent.home.run(&["run", "--simulate", "hgx-h100"]).exits(64);
        assert!(ran.err.contains("resources[0].name") && ran.err.contains(name), "{}", ran.err);
    }
}

#[test]
fn p22_resources_of_one_pod_do_not_fight_over_a_variable() {
    let more = "resources:\n- { name: a.io/first, select: [ { name: mlx5_0 } ] }\n- { name: a.io/second, select: [ { name: 'mlx5_*' } ] }\n";
    let agent = Agent::running(more);
    let kubelet = Kubelet::start(&agent.folder());
    kubelet.offers("a.io/first", 1);
    kubelet.offers("a.io/second", 7);
    let first = allocate(&kubelet, "a.io/first", &["0000:18:00.0"]).unwrap().container_responses.remove(0);
    let second = allocate(&kubelet, "a.io/second", &["0000:19:00.0"]).unwrap().container_responses.remove(0);
    assert_eq!(first.envs["GPUDIRECT_RDMA_HCAS_FIRST"], "mlx5_0");
    assert_eq!(second.envs["GPUDIRECT_RDMA_HCAS_SECOND"], "mlx5_1");
    // In both of them: identical device nodes are one in the kubelet's eyes.
    assert!(first.devices.iter().all(|device| device.permissions == "rw"));
}

/// A renumbered device is found by a container that starts again, because the runtime reads the spec anew.
#[test]
fn p13_by_cdi_the_nodes_are_those_of_each_start() {
    let mut agent = Agent::new("");
    let cdi = agent.home.path("cdi");
    std::fs::create_dir(&cdi).unwrap();
    std::fs::write(cdi.join("gdr-agent-old_hca.json"), "{}").unwrap();
    std::fs::write(cdi.join("nvidia.json"), "{}").unwrap();
    let text = std::fs::read_to_string(agent.home.path("config.yaml")).unwrap();
    std::fs::write(
        agent.home.path("config.yaml"),
        format!("{text}cdi: {{ enabled: true, dir: '{}' }}\n", cdi.display()),
    )
    .unwrap();
    agent.start();
    let kubelet = Kubelet::start(&agent.folder());
    kubelet.offers(HCA, 8);
    let container = allocate(&kubelet, HCA, &["0000:18:00.0"]).unwrap().container_responses.remove(0);
    assert_eq!(container.cdi_devices[0].name, "gpudirect-rdma/hca=0000:18:00.0");
    assert!(container.devices.is_empty());
    let spec = std::fs::read_to_string(cdi.join("gdr-agent-gpudirect-rdma_hca.json")).unwrap();
    assert_eq!(spec.matches("\"name\"").count(), 8, "{spec}");
    assert!(!cdi.join("gdr-agent-old_hca.json").exists() && cdi.join("nvidia.json").exists());
}

#[test]
fn p14_before_a_container_starts_its_hca_is_registered_again() {
    let (agent, kubelet) = ready("resources: [ { preStart: true } ]\ncheck: { interval: never }", 0);
    agent.recheck();
    kubelet.offers(HCA, 8);
    let start = |id: &str| {
        let request = PreStartContainerRequest { devices_ids: own(&[id]) };
        kubelet.call(HCA, |mut client| async move { client.pre_start_container(request).await })
    };
    start("0000:18:00.0").unwrap();
    // Broken since the last check, which the kubelet has not been told yet.
    agent.faults("{ hca: mlx5_0, outcome: failed, code: ENOMEM (12) }");
    let refused = start("0000:18:00.0").unwrap_err();
    assert!(refused.message().contains("mlx5_0: ") && refused.message().contains("Refused"), "{refused}");
    start("0000:19:00.0").unwrap();
}

#[test]
fn p15_an_admission_is_never_kept_waiting() {
    let (_agent, kubelet) = ready("", 8);
    let begin = std::time::Instant::now();
    for _ in 0..100 {
        allocate(&kubelet, HCA, &["0000:18:00.0"]).unwrap();
    }
    assert!(begin.elapsed() < Duration::from_secs(20));
}
