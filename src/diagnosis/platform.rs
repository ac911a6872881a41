//! Advice on the platform: what PCIe, the IOMMU and the sockets make slow. A registration does not
//! feel any of it, so none of it is ever more than information; and where a hypervisor shows the
//! tree, or GPU and CPU meet over C2C, it is as it should be.

use std::collections::{BTreeMap, BTreeSet};

use super::{Facts, gather::Gathered};
use crate::{
    hardware::{Acs, GpuFacts, HcaFacts, Lanes, PciAddress, PciPath, topology::private_bridges},
    report::{Distance, Finding, GpuRole, HcaRole, Reason, Severity},
};

/// Reasons that never explain a node's state.
pub(crate) const ADVICE: [Reason; 4] =
    [Reason::AcsRedirect, Reason::IommuTranslating, Reason::PcieDegraded, Reason::CrossSocketPath];

pub(super) fn all(facts: &Facts<'_>) -> Vec<Finding> {
    let mut out = Gathered::default();
    if !facts.inventory.platform.virtual_machine {
        acs(facts, &mut out);
        iommu(facts, &mut out);
        links(facts, &mut out);
        sockets(facts, &mut out);
    }
    out.into_findings(facts)
}

/// The pairs that count, outside of Grace.
fn counted<'a>(facts: &Facts<'a>) -> impl Iterator<Item = (&'a GpuFacts, &'a HcaFacts)> {
    let inventory = facts.inventory;
    facts.pairs.iter().filter(|p| p.counted).filter_map(move |pair| {
        let gpu = inventory.gpus.iter().find(|g| g.pci == pair.gpu)?;
        let hca = inventory.hca(&pair.hca)?;
        let grace = inventory.platform.is_grace(&gpu.path) || inventory.platform.is_grace(&hca.path);
        (!grace).then_some((gpu, hca))
    })
}

/// Bridges that send what could turn around below a switch up to the root complex.
fn acs(facts: &Facts<'_>, out: &mut Gathered) {
    let functions = &facts.inventory.platform.functions;
    let redirecting = |bridge: &PciAddress| match functions.get(bridge).map(|f| f.acs) {
        Some(acs @ Acs::Control(bits)) if acs.redirects() == Some(true) => Some((bits, *bridge)),
        _ => None,
    };
    let mut bridges: BTreeMap<u16, BTreeSet<PciAddress>> = BTreeMap::new();
    for (gpu, hca) in counted(facts) {
        let between = private_bridges(&gpu.path, &hca.path).unwrap_or_default();
        let found: Vec<_> = between.iter().filter_map(redirecting).collect();
        if !found.is_empty() {
            out.raise(Reason::AcsRedirect, Severity::Info, Some(gpu.pci), Some(&hca.name), "");
        }
        for (bits, bridge) in found {
            bridges.entry(bits).or_default().insert(bridge);
        }
    }
    for (bits, bridges) in bridges {
        let evidence = format!("ACS control {bits:#06x} at {}", listed(&bridges));
        out.raise(Reason::AcsRedirect, Severity::Info, None, None, evidence);
    }
}

/// A few, and how many more.
fn listed(addresses: &BTreeSet<PciAddress>) -> String {
    const SHOWN: usize = 6;
    let shown: Vec<_> = addresses.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = addresses.len().saturating_sub(SHOWN);
    shown.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

/// Domains of the IOMMU that translate, `DMA` and `DMA-FQ`; `identity` does not, and other types are
/// no driver's.
fn iommu(facts: &Facts<'_>, out: &mut Gathered) {
    let translating = |pci: PciAddress| {
        let domain = facts.inventory.platform.functions.get(&pci)?.iommu.as_deref()?;
        domain.starts_with("DMA").then_some(domain)
    };
    for (gpu, hca) in counted(facts) {
        if let Some(domain) = translating(gpu.pci) {
            let evidence = format!("iommu_group/type of the GPU is {domain}");
            out.raise(Reason::IommuTranslating, Severity::Info, Some(gpu.pci), None, evidence);
        }
        if let Some(domain) = hca.pci.and_then(translating) {
            let evidence = format!("iommu_group/type of the HCA is {domain}");
            out.raise(Reason::IommuTranslating, Severity::Info, None, Some(&hca.name), evidence);
        }
    }
}

/// Links that trained below what both ends can do. A GPU's speed says nothing: an idle one lowers
/// it to save power.
fn links(facts: &Facts<'_>, out: &mut Gathered) {
    for (gpu, hca) in counted(facts) {
        if let Some((is, could)) = lanes(facts, gpu.pci, &gpu.path)
            && is.width < could.width
        {
            let evidence = format!("{}: x{} of x{}", gpu.pci, is.width, could.width);
            out.raise(Reason::PcieDegraded, Severity::Info, Some(gpu.pci), None, evidence);
        }
        if let Some(pci) = hca.pci
            && let Some((is, could)) = lanes(facts, pci, &hca.path)
            && (is.width < could.width || is.speed < could.speed)
        {
            let speed = |lanes: Lanes| lanes.speed_text().trim_end_matches(" PCIe").to_owned();
            let evidence = format!("{pci}: x{} of x{}, {} of {}", is.width, could.width, speed(is), speed(could));
            out.raise(Reason::PcieDegraded, Severity::Info, None, Some(&hca.name), evidence);
        }
    }
}

/// A link as it is, and what both its ends can do. Where the other end is not known, neither is
/// whether a slot was ever meant to give more.
fn lanes(facts: &Facts<'_>, pci: PciAddress, path: &PciPath) -> Option<(Lanes, Lanes)> {
    let functions = &facts.inventory.platform.functions;
    let own = functions.get(&pci)?.link?;
    let other = functions.get(path.bridges.last()?)?.link?;
    let could = Lanes { width: own.max.width.min(other.max.width), speed: own.max.speed.min(other.max.speed) };
    Some((own.current, could))
}

/// GPUs that have no HCA on their own socket. Of one socket's several NUMA nodes, and where the
/// kernel does not say, nothing follows.
fn sockets(facts: &Facts<'_>, out: &mut Gathered) {
    let inventory = facts.inventory;
    let socket = |numa: Option<u32>| inventory.platform.sockets.get(&numa?).copied();
    let hcas: Vec<_> = inventory
        .hcas
        .iter()
        .zip(facts.hcas)
        .filter(|(_, known)| known.role != HcaRole::Excluded)
        .map(|(hca, _)| hca)
        .collect();
    for (gpu, _) in inventory.gpus.iter().zip(facts.gpus).filter(|(_, known)| known.role == GpuRole::Eligible) {
        let Some(own) = socket(gpu.numa) else { continue };
        let others: Option<BTreeSet<u32>> = hcas.iter().map(|h| socket(h.numa)).collect();
        let Some(others) = others.filter(|o| !o.is_empty() && !o.contains(&own)) else { continue };
        if hcas.iter().all(|h| inventory.distance(gpu, h) == Distance::Sys) {
            let others = others.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let evidence = format!("GPU on socket {own}, HCAs on socket {others}");
            out.raise(Reason::CrossSocketPath, Severity::Info, Some(gpu.pci), None, evidence);
        }
    }
}
