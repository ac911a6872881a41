//! Which devices a resource has. Pure.

use super::v1beta1;
use crate::{config::Resource, hardware::HcaFacts, verdict::matches_hca};

/// One device that the kubelet is told of; it stays for this boot, whatever its health.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// PCI address; stable across restarts and boots.
    pub id: String,
    /// The HCA as it was last seen.
    pub hca: HcaFacts,
    /// Whether it is a rail.
    pub rail: bool,
    /// Whether it may be handed out.
    pub healthy: bool,
}

/// The devices that a resource takes, in the order of their ids.
#[must_use]
pub(super) fn of_resource<'a>(resource: &Resource, all: &'a [Device]) -> Vec<&'a Device> {
    all.iter().filter(|d| resource.select.iter().any(|s| matches_hca(s, &d.hca, Some(d.rail)))).collect()
}

/// As the kubelet reads it. A NUMA node that is not known is left out: an empty one would make
/// pods unplaceable.
#[must_use]
pub(super) fn message(devices: &[&Device]) -> v1beta1::ListAndWatchResponse {
    let devices = devices
        .iter()
        .map(|device| v1beta1::Device {
            id: device.id.clone(),
            health: if device.healthy { "Healthy" } else { "Unhealthy" }.to_owned(),
            topology: device
                .hca
                .numa
                .map(|node| v1beta1::TopologyInfo { nodes: vec![v1beta1::NumaNode { id: i64::from(node) }] }),
        })
        .collect();
    v1beta1::ListAndWatchResponse { devices }
}
