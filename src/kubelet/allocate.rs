//! What a container gets for its device ids. Pure.

use std::collections::{BTreeSet, HashMap};

use super::{Device, v1beta1};
use crate::hardware::Inventory;

/// The default resource, whose variable has no suffix.
const DEFAULT_RESOURCE: &str = "gpudirect-rdma/hca";

/// Where the node's RDMA device nodes are, on the node and in every container.
const NODES: &str = "/dev/infiniband";

/// What is needed beside the ids.
pub(super) struct Situation<'a> {
    /// The resource asked for.
    pub(super) resource: &'a str,
    /// Its devices.
    pub(super) devices: &'a [&'a Device],
    /// What is here at this moment.
    pub(super) inventory: &'a Inventory,
    /// Whether the machine is made up.
    pub(super) simulated: bool,
    /// Whether `/dev/infiniband/rdma_cm` is there.
    pub(super) rdma_cm: bool,
    /// Where the report and the socket are, on the node.
    pub(super) run_dir: &'a str,
}

/// Exactly the ids asked for, or the reason why not.
pub(super) fn container(
    ids: &[String],
    situation: &Situation<'_>,
) -> Result<v1beta1::ContainerAllocateResponse, String> {
    let mut names = Vec::new();
    let mut nodes = BTreeSet::new();
    // The kubelet gives the ids of a set, in no order.
    for id in ids.iter().collect::<BTreeSet<_>>() {
        let device = situation
            .devices
            .iter()
            .find(|d| d.id == *id)
            .ok_or_else(|| format!("{} has no device {id}", situation.resource))?;
        if !device.healthy {
            return Err(format!("{id} ({}) is unhealthy; `gdr-agent status` on this node says why", device.hca.name));
        }
        let hca = situation
            .inventory
            .hcas
            .iter()
            .find(|h| h.key() == *id)
            .ok_or_else(|| format!("{id} ({}) is gone from this node", device.hca.name))?;
        nodes.insert(node_name(hca, situation).ok_or_else(|| format!("{id} ({}) has no device node", hca.name))?);
        names.push(hca.name.clone());
    }
    if situation.rdma_cm || situation.simulated {
        nodes.insert("rdma_cm".to_owned());
    }
    let devices = nodes.into_iter().map(|node| v1beta1::DeviceSpec {
        host_path: if situation.simulated { "/dev/null".to_owned() } else { format!("{NODES}/{node}") },
        container_path: format!("{NODES}/{node}"),
        permissions: "rw".to_owned(),
    });
    let mut envs = HashMap::from([(variable(situation.resource), names.join(","))]);
    if situation.simulated {
        envs.insert("GPUDIRECT_RDMA_SIMULATED".to_owned(), "1".to_owned());
    }
    Ok(v1beta1::ContainerAllocateResponse {
        envs,
        mounts: vec![v1beta1::Mount {
            container_path: "/run/gdr-agent".to_owned(),
            host_path: situation.run_dir.to_owned(),
            read_only: true,
        }],
        devices: devices.collect(),
        ..v1beta1::ContainerAllocateResponse::default()
    })
}

fn node_name(hca: &crate::hardware::HcaFacts, situation: &Situation<'_>) -> Option<String> {
    if situation.simulated {
        let index = situation.inventory.hcas.iter().position(|h| h.key() == hca.key())?;
        return Some(format!("uverbs{index}"));
    }
    hca.node.as_ref().map(|n| n.name.clone())
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

/// What must be in, then one NUMA node with another, then the lowest id. Empty on any doubt: an
/// error here would fail the pod.
pub(super) fn preferred(request: &v1beta1::ContainerPreferredAllocationRequest, devices: &[&Device]) -> Vec<String> {
    let Ok(size) = usize::try_from(request.allocation_size) else { return Vec::new() };
    let known = |id: &String| devices.iter().any(|d| d.id == *id);
    if size > request.available_device_i_ds.len() || !request.available_device_i_ds.iter().all(known) {
        return Vec::new();
    }
    let numa = |id: &str| devices.iter().find(|d| d.id == *id).and_then(|d| d.hca.numa);
    let mut chosen: Vec<String> = request.must_include_device_i_ds.clone();
    let mut rest: Vec<&String> = request.available_device_i_ds.iter().filter(|id| !chosen.contains(id)).collect();
    // Those on the NUMA node of what must be in, else on the one with the most to give.
    let home = chosen.first().map_or_else(
        || rest.iter().map(|id| numa(id)).max_by_key(|n| rest.iter().filter(|id| numa(id) == *n).count()).flatten(),
        |id| numa(id),
    );
    rest.sort_by_key(|id| (numa(id) != home, (*id).clone()));
    chosen.extend(rest.into_iter().take(size.saturating_sub(chosen.len())).cloned());
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{probe::Machine, simulate::SimulatedMachine};

    fn devices(inventory: &Inventory) -> Vec<Device> {
        inventory.hcas.iter().map(|h| Device { id: h.key(), hca: h.clone(), rail: true, healthy: true }).collect()
    }

    fn machine() -> Inventory {
        SimulatedMachine::new("hgx-h100", String::new()).unwrap().inventory()
    }

    fn allocate(
        devices: &[Device],
        inventory: &Inventory,
        simulated: bool,
        ids: &[&str],
    ) -> Result<v1beta1::ContainerAllocateResponse, String> {
        let devices: Vec<_> = devices.iter().collect();
        let ids: Vec<_> = ids.iter().map(|s| (*s).to_owned()).collect();
        container(
            &ids,
            &Situation {
                resource: DEFAULT_RESOURCE,
                devices: &devices,
                inventory,
                simulated,
                rdma_cm: false,
                run_dir: "/run/gdr-agent",
            },
        )
    }

    #[test]
    fn gives_exactly_what_was_asked_for_in_order() {
        let inventory = machine();
        let answer = allocate(&devices(&inventory), &inventory, true, &["0000:4d:00.0", "0000:18:00.0"]).unwrap();
        assert_eq!(answer.envs["GPUDIRECT_RDMA_HCAS"], "mlx5_0,mlx5_2");
        assert_eq!(answer.envs["GPUDIRECT_RDMA_SIMULATED"], "1");
        let paths: Vec<_> = answer.devices.iter().map(|d| (d.container_path.as_str(), d.host_path.as_str())).collect();
        assert_eq!(
            paths,
            [
                ("/dev/infiniband/rdma_cm", "/dev/null"),
                ("/dev/infiniband/uverbs0", "/dev/null"),
                ("/dev/infiniband/uverbs2", "/dev/null")
            ]
        );
        assert!(answer.mounts[0].read_only);
    }

    #[test]
    fn a_real_node_is_the_one_of_this_moment() {
        let mut inventory = machine();
        let all = devices(&inventory);
        let error = allocate(&all, &inventory, false, &["0000:18:00.0"]).unwrap_err();
        assert!(error.contains("no device node"), "{error}");
        inventory.hcas[0].node =
            Some(crate::hardware::DeviceNode { name: "uverbs7".into(), path: "/x".into(), present: true });
        let answer = allocate(&all, &inventory, false, &["0000:18:00.0"]).unwrap();
        assert_eq!(answer.devices[0].host_path, "/dev/infiniband/uverbs7");
        assert!(!answer.envs.contains_key("GPUDIRECT_RDMA_SIMULATED"));
    }

    #[test]
    fn refuses_the_unhealthy_the_unknown_and_the_vanished() {
        let mut inventory = machine();
        let mut all = devices(&inventory);
        all[1].healthy = false;
        for (id, why) in [("0000:19:00.0", "unhealthy"), ("0000:ff:00.0", "no device")] {
            let error = allocate(&all, &inventory, true, &[id]).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        inventory.hcas.remove(0);
        assert!(allocate(&all, &inventory, true, &["0000:18:00.0"]).unwrap_err().contains("gone"));
    }

    #[test]
    fn prefers_one_numa_node_and_is_silent_on_doubt() {
        let inventory = machine();
        let all = devices(&inventory);
        let all: Vec<_> = all.iter().collect();
        let ask = |available: &[&str], must: &[&str], size| {
            let own = |ids: &[&str]| ids.iter().map(|s| (*s).to_owned()).collect();
            preferred(
                &v1beta1::ContainerPreferredAllocationRequest {
                    available_device_i_ds: own(available),
                    must_include_device_i_ds: own(must),
                    allocation_size: size,
                },
                &all,
            )
        };
        assert_eq!(ask(&["0000:18:00.0", "0000:98:00.0", "0000:99:00.0"], &[], 2), ["0000:98:00.0", "0000:99:00.0"]);
        assert_eq!(
            ask(&["0000:98:00.0", "0000:18:00.0", "0000:19:00.0"], &["0000:19:00.0"], 2),
            ["0000:19:00.0", "0000:18:00.0"]
        );
        assert!(
            ask(&["0000:18:00.0"], &[], 2).is_empty()
                && ask(&["bogus"], &[], 1).is_empty()
                && ask(&[], &[], -1).is_empty()
        );
    }

    #[test]
    fn each_resource_has_its_own_variable() {
        assert_eq!(variable("gpudirect-rdma/hca"), "GPUDIRECT_RDMA_HCAS");
        assert_eq!(variable("example.com/fast-hca"), "GPUDIRECT_RDMA_HCAS_FAST_HCA");
    }
}
