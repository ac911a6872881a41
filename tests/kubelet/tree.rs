//! The same on a machine of files, whose drivers can be made to block and whose boot can be another one.

use std::{
    fs,
    os::unix::fs::symlink,
    time::{Duration, Instant},
};

use tonic::Code;

use crate::{
    HCA,
    allocation::{allocate, own},
    fake::{Kubelet, v1beta1::PreStartContainerRequest},
    support::{Running, block, standins::Node},
};

const FIRST: &str = "0000:40:00.0";

/// An agent on it, with a kubelet.
struct Machine {
    node: Node,
    agent: Option<Running>,
}

impl Machine {
    fn new(more: &str) -> (Self, Kubelet) {
        let node = Node::new(1, 2);
        let folder = node.home.path("device-plugins");
        fs::create_dir_all(&folder).unwrap();
        node.home.configure(&format!(
            "kubelet: {{ devicePlugins: '{}' }}\npublish: {{ mode: none }}\nhttp: {{ listen: null }}\n{more}",
            folder.display()
        ));
        let agent = Some(node.run());
        (Self { node, agent }, Kubelet::start(&folder))
    }

    /// One that checks when it is asked to, and was once.
    fn checked() -> (Self, Kubelet) {
        let (machine, kubelet) = Self::new("check: { interval: never }\n");
        kubelet.offers(HCA, 0);
        machine.recheck();
        kubelet.offers(HCA, 2);
        (machine, kubelet)
    }

    fn end(&mut self) {
        self.agent = None;
    }

    fn again(&mut self) {
        self.end();
        self.agent = Some(self.node.run());
    }

    fn recheck(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.node.command(&["recheck"]).output().unwrap().status.success() {
            assert!(Instant::now() < deadline, "the agent never answers");
        }
    }
}

fn healthy(kubelet: &Kubelet, message: usize) -> usize {
    kubelet.messages(HCA)[message].devices.iter().filter(|device| device.health == "Healthy").count()
}

/// The number of a device node changes when a driver is loaded again: what counts is the function.
#[test]
fn p13_a_device_node_is_found_by_its_pci_address_at_that_moment() {
    let (machine, kubelet) = Machine::checked();
    let verbs = machine.node.tree.sys("class/infiniband_verbs");
    let function = fs::read_link(verbs.join("uverbs0")).unwrap();
    let other = function.with_file_name("uverbs7");
    fs::rename(&function, &other).unwrap();
    fs::remove_file(verbs.join("uverbs0")).unwrap();
    symlink(&other, verbs.join("uverbs7")).unwrap();
    let answer = allocate(&kubelet, HCA, &[FIRST]).unwrap().container_responses.remove(0);
    let paths: Vec<_> = answer.devices.iter().map(|device| device.host_path.as_str()).collect();
    assert_eq!(paths, ["/dev/infiniband/uverbs7"]);
    // Its RDMA device is gone, which the agent may not have seen yet.
    fs::remove_file(machine.node.tree.sys("class/infiniband/mlx5_0")).unwrap();
    let refused = allocate(&kubelet, HCA, &[FIRST]).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(
        refused.message().contains("is gone from this node") || refused.message().contains("unhealthy"),
        "{refused}"
    );
}

/// The kubelet waits for ever, and every pod of the node behind it.
#[test]
fn p15_a_driver_that_blocks_keeps_no_pod_waiting() {
    let (machine, kubelet) = Machine::new("resources: [ { preStart: true } ]\n");
    kubelet.offers(HCA, 2);
    let answers = block(machine.node.tree.sys("class/infiniband/mlx5_0/ports/1/state"));
    let begin = Instant::now();
    for id in [FIRST, "0000:41:00.0"] {
        allocate(&kubelet, HCA, &[id]).unwrap();
        let request = PreStartContainerRequest { devices_ids: own(&[id]) };
        kubelet.call(HCA, |mut client| async move { client.pre_start_container(request).await }).unwrap();
    }
    assert!(begin.elapsed() < Duration::from_secs(50), "{:?}", begin.elapsed());
    answers();
}

/// What was known belongs to another boot, in which everything may have been different.
#[test]
fn p25_after_a_reboot_nothing_is_healthy_until_a_check_has_ended() {
    let (mut machine, kubelet) = Machine::checked();
    let before = kubelet.messages(HCA).len();
    machine.again();
    kubelet.offers(HCA, 0);
    kubelet.offers(HCA, 2);
    assert_eq!(healthy(&kubelet, before), 2, "in the same boot it goes on");
    let before = kubelet.messages(HCA).len();
    machine.end();
    kubelet.offers(HCA, 0);
    machine.node.tree.put("proc/sys/kernel/random/boot_id", "another\n");
    machine.again();
    let deadline = Instant::now() + Duration::from_secs(20);
    while kubelet.messages(HCA).len() == before {
        assert!(Instant::now() < deadline, "nothing was told");
    }
    let first = kubelet.messages(HCA).swap_remove(before);
    assert_eq!((first.devices.len(), healthy(&kubelet, before)), (2, 0));
    machine.recheck();
    kubelet.offers(HCA, 2);
}

/// Its driver may come back: the list stays as long as it was, so that no count shrinks under a pod.
#[test]
fn an_hca_that_is_lost_keeps_its_place_and_is_given_to_nobody() {
    let (machine, kubelet) = Machine::checked();
    let back = machine.node.tree.take("mlx5_0");
    kubelet.offers(HCA, 1);
    let told = kubelet.messages(HCA).pop().unwrap().devices;
    let told: Vec<_> = told.iter().map(|device| (device.id.as_str(), device.health.as_str())).collect();
    assert_eq!(told, [(FIRST, "Unhealthy"), ("0000:41:00.0", "Healthy")]);
    back();
    kubelet.offers(HCA, 2);
}

/// Before this process has asked the kubelet who else offers an HCA, what an earlier one knew stands.
#[test]
fn what_another_plugin_offered_too_is_not_promised_at_the_start() {
    let (mut machine, kubelet) = Machine::checked();
    machine.end();
    kubelet.offers(HCA, 0);
    let file = machine.node.home.path("store/state.json");
    let mut store: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    store["devices"][FIRST]["alsoIn"] = "openshift.io/rails".into();
    fs::write(&file, store.to_string()).unwrap();
    machine.again();
    kubelet.offers(HCA, 1);
    let refused = allocate(&kubelet, HCA, &[FIRST]).unwrap_err();
    assert!(refused.message().contains("openshift.io/rails"), "{refused}");
}
