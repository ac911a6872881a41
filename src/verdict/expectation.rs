//! What hardware must be here, and what of it is not: by `policy.expect`, else by what was here before.

use std::collections::{BTreeMap, BTreeSet};

use super::{Input, NodeView, nearest::Nearest, roles::Roles, selectors::glob};
use crate::{
    config::Expect,
    hardware::{Inventory, PciAddress},
    report::{Gpu, GpuRole, Hca, HcaRole},
    store::{Baseline, Memory},
};

/// Of what something is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// GPUs.
    Gpu,
    /// HCAs, with or without an RDMA device.
    Hca,
    /// Ways of a GPU to the network.
    Rail,
}

/// Less than there must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// Of what.
    pub kind: Kind,
    /// Of which model, where it is about one: its name where a device of it is here, else its PCI ids.
    pub model: Option<String>,
    /// How many there must be.
    pub want: usize,
    /// How many are here.
    pub have: usize,
    /// Slots that are empty now, where that is known: an address may change with the devices before it.
    pub slots: Vec<PciAddress>,
}

/// What must be here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Expectation {
    /// What of it is not.
    pub missing: Vec<Shortfall>,
    /// Whether an entry of `policy.expect` is met that says how many rails there are: a GPU without one
    /// is meant to have none.
    pub rails_met: bool,
    /// Whether an entry of `policy.expect` speaks of this node.
    pub named: bool,
}

pub(super) fn find(input: &Input<'_>, roles: &Roles, nearest: &Nearest) -> Expectation {
    let entry = input.config.policy.expect.iter().find(|entry| matches(entry, input.inventory, input.node));
    let baseline = input.memory.baseline.as_ref();
    let gpus = roles.gpus.iter().filter(|role| **role != GpuRole::Excluded).count();
    let rails = nearest.rail.iter().filter(|rail| **rail).count();
    let count = |want: u32| usize::try_from(want).unwrap_or(usize::MAX);
    let mut missing = Vec::new();
    match entry.and_then(|e| e.gpus) {
        Some(want) => missing.extend(short(Kind::Gpu, count(want), gpus)),
        None => missing.extend(baseline.into_iter().flat_map(|b| gone(Kind::Gpu, &b.gpus, input.inventory, roles))),
    }
    let wanted_rails = entry.and_then(|e| e.rails);
    match wanted_rails {
        Some(want) => missing.extend(short(Kind::Rail, count(want), rails)),
        None => missing.extend(baseline.into_iter().flat_map(|b| gone(Kind::Hca, &b.hcas, input.inventory, roles))),
    }
    Expectation { rails_met: wanted_rails.is_some() && missing.is_empty(), named: entry.is_some(), missing }
}

/// HCAs that stay rails although the GPU next to them is gone, by their keys.
pub(super) fn rails_of_missing_gpus<'a>(input: &Input<'a>, roles: &Roles) -> Option<&'a BTreeSet<String>> {
    let baseline = input.memory.baseline.as_ref()?;
    (!gone(Kind::Gpu, &baseline.gpus, input.inventory, roles).is_empty()).then_some(&baseline.rails)
}

/// Everything that an entry names must hold; labels that are not known yet do not.
fn matches(entry: &Expect, inventory: &Inventory, node: Option<&NodeView>) -> bool {
    let model = |pattern: &String| inventory.gpus.iter().filter_map(|g| g.model.as_ref()).any(|m| glob(pattern, m));
    let product = |pattern: &String| inventory.chassis.product.as_ref().is_some_and(|p| glob(pattern, p));
    let label = |(key, value): (&String, &String)| node.is_some_and(|node| node.labels.get(key) == Some(value));
    entry.gpu_model.as_ref().is_none_or(model)
        && entry.product.as_ref().is_none_or(product)
        && entry.node_labels.iter().all(label)
}

fn short(kind: Kind, want: usize, have: usize) -> Option<Shortfall> {
    (have < want).then(|| Shortfall { kind, model: None, want, have, slots: Vec::new() })
}

/// Models of which less is plugged in than was. A driver that is not loaded takes nothing away.
fn gone(
    kind: Kind,
    before: &BTreeMap<String, BTreeSet<PciAddress>>,
    inventory: &Inventory,
    roles: &Roles,
) -> Vec<Shortfall> {
    let excluded = excluded(inventory, roles);
    let functions = &inventory.chassis.functions;
    let shortfall = |(model, slots): (&String, &BTreeSet<PciAddress>)| {
        let here = |pci: &PciAddress| functions.get(pci).is_some_and(|m| m.to_string() == *model);
        let have = functions.keys().filter(|pci| here(pci) && !excluded.contains(pci)).count();
        let empty: Vec<_> = slots.iter().filter(|pci| !here(pci)).copied().collect();
        let named = inventory.gpus.iter().find(|g| here(&g.pci)).and_then(|g| g.model.clone());
        let short = short(kind, slots.len(), have)?;
        let known = empty.len() == short.want - short.have;
        Some(Shortfall {
            model: Some(named.unwrap_or_else(|| model.clone())),
            slots: if known { empty } else { Vec::new() },
            ..short
        })
    };
    before.iter().filter_map(shortfall).collect()
}

/// Slots of what a selector leaves out: neither expected nor counted.
fn excluded(inventory: &Inventory, roles: &Roles) -> BTreeSet<PciAddress> {
    let gpus = inventory.gpus.iter().zip(&roles.gpus).filter(|(_, role)| **role == GpuRole::Excluded);
    let hcas = inventory.hcas.iter().zip(&roles.hcas).filter(|(_, role)| **role == HcaRole::Excluded);
    gpus.map(|(gpu, _)| gpu.pci).chain(hcas.filter_map(|(hca, _)| hca.pci)).collect()
}

/// What is here today. VFs whose PF is here are no hardware of their own.
fn today(inventory: &Inventory, gpus: &[Gpu], hcas: &[Hca]) -> Baseline {
    let mut today = Baseline::default();
    let model = |pci: &PciAddress| inventory.chassis.functions.get(pci).map(ToString::to_string);
    for pci in gpus.iter().filter(|gpu| gpu.role != GpuRole::Excluded).map(|gpu| gpu.pci) {
        if let Some(model) = model(&pci) {
            today.gpus.entry(model).or_default().insert(pci);
        }
    }
    for hca in hcas.iter().filter(|hca| hca.role != HcaRole::Excluded) {
        if let Some((pci, model)) = hca.pci.and_then(|pci| Some((pci, model(&pci)?))) {
            today.hcas.entry(model).or_default().insert(pci);
            if hca.rail {
                today.rails.insert(pci.to_string());
            }
        }
    }
    today
}

/// Takes what is here into the baseline, where that is more than there was.
pub(super) fn remember(memory: &mut Memory, inventory: &Inventory, gpus: &[Gpu], hcas: &[Hca]) {
    let today = today(inventory, gpus, hcas);
    let baseline = memory.baseline.get_or_insert_default();
    grow(&mut baseline.hcas, &today.hcas);
    // Where a GPU is missing, the HCA next to it stays a rail.
    if grow(&mut baseline.gpus, &today.gpus) {
        baseline.rails = today.rails;
    }
}

/// Whether nothing is missing of what was there.
fn grow(
    known: &mut BTreeMap<String, BTreeSet<PciAddress>>,
    today: &BTreeMap<String, BTreeSet<PciAddress>>,
) -> bool {
    for (model, slots) in today {
        let before = known.entry(model.clone()).or_default();
        if slots.len() >= before.len() {
            before.clone_from(slots);
        }
    }
    known.iter().all(|(model, slots)| today.get(model).is_some_and(|t| t.len() >= slots.len()))
}

/// Takes today's hardware for what must be here, and forgets which ports were ever ACTIVE but for those
/// that are. Answers how many GPUs and HCAs that is.
pub fn accept(memory: &mut Memory, inventory: &Inventory, gpus: &[Gpu], hcas: &[Hca]) -> (usize, usize) {
    let today = today(inventory, gpus, hcas);
    let count = |of: &BTreeMap<String, BTreeSet<PciAddress>>| of.values().map(BTreeSet::len).sum();
    let counts = (count(&today.gpus), count(&today.hcas));
    memory.baseline = Some(today);
    memory.seen_active.clear();
    memory.active_in_boot.clear();
    memory.saw_active(inventory.hcas.iter().filter(|h| h.usable()).map(crate::hardware::HcaFacts::key));
    counts
}
