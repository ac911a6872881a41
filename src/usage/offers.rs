//! Who else hands out an HCA. Pure.

use crate::{
    config::Resource,
    hardware::{HcaFacts, Listed},
};

/// Whether a pod holds an HCA, a share of it or a pair with it, by a resource of the agent's own.
#[must_use]
pub fn is_held(id: &str, held: &[Listed], own: &[Resource]) -> bool {
    let is_part =
        |of: &Listed| of.id.strip_prefix(id).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_hexdigit()));
    held.iter().any(|of| own.iter().any(|resource| resource.name == of.resource) && is_part(of))
}

/// The resource of another plugin that hands out this HCA too, among what the kubelet lists. Plugins call
/// a device by its PCI address (SR-IOV's) or by its name; those that only count say nothing.
#[must_use]
pub fn also_in<'l>(hca: &HcaFacts, listed: &'l [Listed], own: &[Resource]) -> Option<&'l str> {
    let is_hca = |id: &str| {
        let whole = id.split("::").next().unwrap_or(id);
        whole == hca.name || hca.pci.is_some() && whole.parse().ok() == hca.pci
    };
    let others = listed.iter().filter(|other| own.iter().all(|resource| resource.name != other.resource));
    others.into_iter().find(|other| is_hca(&other.id)).map(|other| other.resource.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::SimulatedMachine;

    #[test]
    fn what_a_pod_holds_is_whole_or_a_part() {
        let own = [Resource::default()];
        let held = |resource: &str, id: &str| {
            is_held("0000:18:00.0", &[Listed { resource: resource.into(), id: id.into() }], &own)
        };
        for id in ["0000:18:00.0", "0000:18:00.0::3", "0000:18:00.0_GPU-1"] {
            assert!(held("gpudirect-rdma/hca", id), "{id}");
            assert!(!held("openshift.io/rails", id), "another's");
        }
        assert!(!held("gpudirect-rdma/hca", "0000:19:00.0"));
    }

    #[test]
    fn knows_an_hca_by_its_address_and_its_name() {
        let machine = SimulatedMachine::new("hgx-h100", String::new()).unwrap();
        let hca = machine.inventory().hcas.swap_remove(0);
        let own = [Resource::default()];
        let in_listed = |resource: &str, id: &str| {
            let listed = [Listed { resource: resource.into(), id: id.into() }];
            also_in(&hca, &listed, &own).map(str::to_owned)
        };
        for id in ["0000:18:00.0", "0000:18:00.0::3", "mlx5_0"] {
            assert_eq!(in_listed("openshift.io/rails", id).as_deref(), Some("openshift.io/rails"), "{id}");
            assert_eq!(in_listed("gpudirect-rdma/hca", id), None, "our own");
        }
        for id in ["0", "mlx5_00", "0000:18:00.1", "GPU-1"] {
            assert_eq!(in_listed("rdma/hca", id), None, "{id}");
        }
    }
}
