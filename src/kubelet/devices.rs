//! Which devices a resource has. Pure.

use std::collections::BTreeMap;

use super::v1beta1;
use crate::{
    agent::Published,
    config::{Resource, ResourceKind},
    hardware::HcaFacts,
    report::{Gpu, GpuRole},
    verdict::matches_hca,
};

/// gRPC takes no more where nobody asks for more, and the kubelet does not.
const LARGEST_MESSAGE: usize = 4 << 20;
/// Bytes of a share in a message, at most: its number, its health, its NUMA node, and what frames them.
const BESIDE_ITS_ID: usize = 40;

/// One HCA that the kubelet is told of; it stays for this boot, whatever its health.
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
    /// Another plugin's resource that hands it out too.
    pub also_in: Option<String>,
}

/// What one id of a resource stands for.
#[derive(Debug, Clone)]
pub(super) struct Offer<'a> {
    /// PCI address, for a pair with the GPU's UUID, for a share with its number: stable, and each part
    /// fit for a CDI name.
    pub(super) id: String,
    /// The HCA.
    pub(super) device: &'a Device,
    /// Its GPU, of a pair.
    pub(super) gpu: Option<&'a Gpu>,
    /// Whether it may be handed out.
    pub(super) healthy: bool,
}

/// What a resource offers, in the order of its ids. A device is in the first resource of its kind that
/// takes it: `before` are those that come first.
pub(super) fn of_resource<'a>(resource: &Resource, before: &[Resource], state: &'a Published) -> Vec<Offer<'a>> {
    let takes = |resource: &Resource, device: &Device| {
        resource.select.iter().any(|selector| matches_hca(selector, &device.hca, Some(device.rail)))
    };
    let gone = |device: &Device| before.iter().any(|other| other.kind == resource.kind && takes(other, device));
    let mine = |device: &&Device| takes(resource, device) && !gone(device);
    let whole: Vec<_> = match resource.kind {
        ResourceKind::Hca => state.devices.iter().filter(mine).map(|device| of_hca(device, resource)).collect(),
        ResourceKind::Pair => {
            let partners = partners(state);
            let pairs = partners.into_iter().filter(|(_, device)| mine(device));
            pairs.filter_map(|(gpu, device)| of_pair(gpu, device, resource, state)).collect()
        }
    };
    if resource.replicas == 1 {
        return whole;
    }
    let replicas = resource.replicas.min(shares_that_fit(&whole));
    let shares =
        |offer: Offer<'a>| (0..replicas).map(move |n| Offer { id: format!("{}::{n}", offer.id), ..offer.clone() });
    whole.into_iter().flat_map(shares).collect()
}

/// How many devices each resource has that are healthy, and that are not.
#[must_use]
pub fn by_health(resources: &[Resource], state: &Published) -> BTreeMap<String, [usize; 2]> {
    let count = |(at, resource): (usize, &Resource)| {
        let offers = of_resource(resource, &resources[..at], state);
        let healthy = offers.iter().filter(|offer| offer.healthy).count();
        (resource.name.clone(), [healthy, offers.len() - healthy])
    };
    resources.iter().enumerate().map(count).collect()
}

/// How many shares of each may be offered: a stream whose message is too long would end, for ever.
fn shares_that_fit(whole: &[Offer<'_>]) -> u32 {
    let each: usize = whole.iter().map(|offer| offer.id.len() + BESIDE_ITS_ID).sum();
    u32::try_from(LARGEST_MESSAGE / each.max(1)).unwrap_or(u32::MAX).max(1)
}

fn of_hca<'a>(device: &'a Device, resource: &Resource) -> Offer<'a> {
    Offer { id: device.id.clone(), device, gpu: None, healthy: may(device, resource) }
}

/// What another plugin hands out too, nobody can promise to anybody.
fn may(device: &Device, resource: &Resource) -> bool {
    device.healthy && (resource.shared || device.also_in.is_none())
}

/// A GPU that no other resource hands out, with its HCA; good while the two work together.
fn of_pair<'a>(gpu: &'a Gpu, device: &'a Device, resource: &Resource, state: &Published) -> Option<Offer<'a>> {
    let uuid = gpu.uuid.as_deref()?;
    let listed = state.listed.as_ref()?;
    if listed.iter().any(|other| other.id.contains(uuid) && other.resource != resource.name) {
        return None;
    }
    let good = state.report.pairs.iter().find(|pair| pair.gpu == gpu.pci && pair.hca == device.hca.name);
    let healthy = may(device, resource) && good.is_some_and(|pair| pair.good == Some(true));
    Some(Offer { id: format!("{}_{uuid}", device.id), device, gpu: Some(gpu), healthy })
}

/// Each GPU with the HCA that topology gives it: of several equally near the i-th GPU takes the i-th,
/// in the order of PCI.
fn partners(state: &Published) -> Vec<(&Gpu, &Device)> {
    let mut so_far: BTreeMap<&[String], usize> = BTreeMap::new();
    let eligible = state.report.gpus.iter().filter(|gpu| matches!(gpu.role, GpuRole::Eligible | GpuRole::Lost));
    eligible
        .filter_map(|gpu| {
            let mut near: Vec<_> = state.devices.iter().filter(|d| gpu.nearest.contains(&d.hca.name)).collect();
            near.sort_by(|a, b| a.id.cmp(&b.id));
            let turn = so_far.entry(&gpu.nearest).or_default();
            let device = near.get(*turn % near.len().max(1)).copied()?;
            *turn += 1;
            Some((gpu, device))
        })
        .collect()
}

/// As the kubelet reads it. A NUMA node that is not known is left out: an empty one would make
/// pods unplaceable.
#[must_use]
pub(super) fn message(offers: &[Offer<'_>]) -> v1beta1::ListAndWatchResponse {
    let topology = |node| v1beta1::TopologyInfo { nodes: vec![v1beta1::NumaNode { id: i64::from(node) }] };
    let devices = offers.iter().map(|offer| v1beta1::Device {
        id: offer.id.clone(),
        health: if offer.healthy { "Healthy" } else { "Unhealthy" }.to_owned(),
        topology: offer.device.hca.numa.map(topology),
    });
    v1beta1::ListAndWatchResponse { devices: devices.collect() }
}
