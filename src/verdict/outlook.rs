//! What hardware there should be: by the configuration, else by what this machine once had. Pure.

use jiff::Timestamp;

use super::{Input, roles::glob};
use crate::{
    config::Expect,
    hardware::Inventory,
    report::{Gpu, Hca, Pair},
    store::{Baseline, Memory},
};

/// What is known of the hardware that should be here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outlook {
    /// What is less than it should be, in words.
    pub lacking: Vec<String>,
    /// Whether all that the configuration asks for is here, so that what is not ready beside it was never
    /// meant to be; `None`: it asks for nothing.
    pub met: Option<bool>,
    /// GPUs should be here.
    pub gpus: bool,
    /// RDMA hardware should be here.
    pub rdma: bool,
    /// A pair of this machine was good once.
    pub worked: bool,
}

pub(super) fn of(input: &Input<'_>, gpus: &[Gpu], hcas: &[Hca]) -> Outlook {
    let entry = input.config.policy.expect.iter().position(|entry| matches(entry, input));
    match entry {
        Some(at) => by_policy(&input.config.policy.expect[at], at, gpus, hcas),
        None => by_baseline(input.memory.baseline.as_ref(), input.inventory),
    }
}

/// Whether an entry speaks of this node. Labels that are not known yet match nothing.
fn matches(entry: &Expect, input: &Input<'_>) -> bool {
    let labels = input.node.map(|node| &node.labels);
    entry.gpu_model.as_ref().is_none_or(|pattern| {
        input.inventory.gpus.iter().filter_map(|gpu| gpu.model.as_deref()).any(|model| glob(pattern, model))
    }) && entry
        .product
        .as_ref()
        .is_none_or(|pattern| input.inventory.machine.product.as_deref().is_some_and(|product| glob(pattern, product)))
        && entry.node_labels.iter().all(|(key, value)| labels.and_then(|all| all.get(key)) == Some(value))
}

fn by_policy(entry: &Expect, at: usize, gpus: &[Gpu], hcas: &[Hca]) -> Outlook {
    let here = [
        (entry.gpus, gpus.iter().filter(|gpu| gpu.role.counts()).count(), "GPUs"),
        (entry.rails, hcas.iter().filter(|hca| hca.rail).count(), "rails"),
    ];
    let lacking: Vec<_> = here
        .into_iter()
        .filter_map(|(wanted, have, what)| {
            let wanted = wanted.filter(|wanted| have < *wanted as usize)?;
            Some(format!("policy.expect[{at}] asks for {wanted} {what}, and {have} are here"))
        })
        .collect();
    Outlook {
        met: Some(lacking.is_empty()),
        lacking,
        gpus: entry.gpus.is_some_and(|n| n > 0),
        rdma: entry.rails.is_some_and(|n| n > 0),
        worked: false, // what is expected says enough
    }
}

fn by_baseline(baseline: Option<&Baseline>, inventory: &Inventory) -> Outlook {
    let Some(baseline) = baseline.filter(|baseline| is_same_machine(baseline, inventory)) else {
        return Outlook::default();
    };
    let today = today(inventory);
    let mut lacking = Vec::new();
    for (what, then, now) in [("GPUs", &baseline.gpus, &today.gpus), ("HCAs", &baseline.hcas, &today.hcas)] {
        for (kind, slots) in then {
            let (seen, wanted) = (now.get(kind).map_or(0, Vec::len), slots.len());
            // A driver that is not loaded takes no hardware away.
            let is_here = |slot: &&String| {
                now.get(kind).is_some_and(|here| here.contains(slot))
                    || slot.parse().is_ok_and(|at| inventory.present.contains(&at))
            };
            let gone: Vec<_> = slots.iter().filter(|slot| !is_here(slot)).collect();
            if seen < wanted && !gone.is_empty() {
                let have = seen.max(wanted - gone.len());
                let gone = gone.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                lacking.push(format!("{have} of {wanted} {what} {kind}; not in PCI any more: {gone}"));
            }
        }
    }
    Outlook {
        lacking,
        met: None,
        gpus: !baseline.gpus.is_empty(),
        rdma: !baseline.hcas.is_empty(),
        worked: baseline.worked,
    }
}

/// A machine without a serial number is taken for the one that it was.
fn is_same_machine(baseline: &Baseline, inventory: &Inventory) -> bool {
    let serial = inventory.machine.serial.as_deref().unwrap_or_default();
    baseline.serial.is_empty() || serial.is_empty() || baseline.serial == serial
}

/// What is here, by kind: functions of PCI, whether or not their drivers are loaded; not what comes and goes
/// by configuration, such as virtual functions.
fn today(inventory: &Inventory) -> Baseline {
    let mut today = Baseline { serial: inventory.machine.serial.clone().unwrap_or_default(), ..Baseline::default() };
    for gpu in &inventory.gpus {
        let kind = gpu.device.map_or_else(|| "of an unknown kind".to_owned(), |device| format!("10de:{device:04x}"));
        today.gpus.entry(kind).or_default().push(gpu.pci.to_string());
    }
    let hcas = inventory.hcas.iter().filter(|hca| hca.vf_of.is_none() && !hca.nvlink_management);
    let hcas = hcas.filter_map(|hca| Some((hca.pci?, hca.ids?)));
    let bare = inventory.bare_functions.iter().filter(|function| function.vf_of.is_none());
    let bare = bare.filter_map(|function| Some((function.pci, function.ids?)));
    for (pci, (vendor, device)) in hcas.chain(bare) {
        today.hcas.entry(format!("{vendor:04x}:{device:04x}")).or_default().push(pci.to_string());
    }
    today
}

/// Takes in what a finished check found: of each kind the most that this machine ever had, and whether it works.
pub(super) fn remember(memory: &mut Memory, inventory: &Inventory, pairs: &[Pair]) {
    let works = pairs.iter().any(|pair| pair.good == Some(true));
    let today = Baseline { worked: works, ..today(inventory) };
    let Some(baseline) = memory.baseline.as_mut().filter(|baseline| is_same_machine(baseline, inventory)) else {
        // What was ever ACTIVE in another machine says nothing of this one.
        if memory.baseline.replace(today).is_some() {
            memory.seen_active.clone_from(&memory.active_in_boot);
        }
        return;
    };
    if !today.serial.is_empty() {
        baseline.serial = today.serial;
    }
    baseline.worked |= works;
    for (then, now) in [(&mut baseline.gpus, today.gpus), (&mut baseline.hcas, today.hcas)] {
        for (kind, slots) in now {
            let known = then.entry(kind).or_default();
            if slots.len() >= known.len() {
                *known = slots;
            }
        }
    }
}

/// Notes when the GPU driver, or all RDMA devices, went away, or came in another version. What spoke against
/// the published state under the old driver says nothing under the new one. Answers whether what was checked
/// before is void.
pub fn note_driver(memory: &mut Memory, before: &Inventory, now: &Inventory, at: Timestamp) -> bool {
    let version = |inventory: &Inventory| inventory.nvidia.as_ref().map(|nvidia| nvidia.version.clone());
    let replaced = version(before) != version(now) && before.nvidia.is_some();
    let unloaded = !before.hcas.is_empty() && now.hcas.is_empty();
    if replaced || unloaded {
        memory.driver_changed_at = Some(at);
    }
    if let (Some(old), Some(new)) = (&memory.driver, version(now))
        && *old != new
    {
        memory.damping.candidate = None;
        memory.damping.fell_at = None;
    }
    memory.driver = version(now).or(memory.driver.take());
    replaced
}

/// An earlier process of this boot checked under another driver: what it published is not known any more.
pub fn forget_another_driver(memory: &mut Memory, inventory: &Inventory) {
    let now = inventory.nvidia.as_ref().map(|nvidia| &nvidia.version);
    if now.is_some_and(|now| memory.driver.as_ref().is_some_and(|before| before != now)) {
        memory.damping = crate::store::Damping::default();
        memory.report = None;
        memory.driver = now.cloned();
    }
}

/// Takes what is here for all that should be, and forgets which ports were ever ACTIVE and that it ever worked.
pub fn accept(memory: &mut Memory, inventory: &Inventory) {
    memory.baseline = Some(today(inventory));
    memory.seen_active.clear();
    memory.active_in_boot.clear();
    memory.saw_ports(inventory);
}
