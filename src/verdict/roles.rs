//! What part each GPU and each HCA plays.

use super::Input;
use crate::{
    config::{Config, Function, Selector},
    hardware::{GpuFacts, HcaFacts, Inventory},
    probe::{Step, protocol::Stopped},
    report::{Code, Gpu, GpuRole, HcaRole, Method, MethodResult, Outcome, Port},
    store::Memory,
    usage::Spared,
};

/// The parts, in the order of the inventory.
pub(super) struct Roles {
    pub(super) gpus: Vec<GpuRole>,
    pub(super) hcas: Vec<HcaRole>,
    /// HCAs that the agent's own sandbox keeps shut while others could be opened: no rails, not
    /// counted.
    pub(super) shut: Vec<bool>,
}

/// Steps at which it is the sandbox, not the hardware, that says no.
const SANDBOX_STEPS: [Step; 5] = [Step::LoadVerbs, Step::Node, Step::OpenNode, Step::List, Step::Open];

pub(super) fn assign(input: &Input<'_>) -> Roles {
    let gpus = input.inventory.gpus.iter().map(|g| gpu_role(g, input)).collect();
    let hcas = input.inventory.hcas.iter().map(|h| hca_role(h, input)).collect();
    let shut: Vec<bool> = input.inventory.hcas.iter().map(|h| is_shut(h, input)).collect();
    let any_open = input.inventory.hcas.iter().zip(&shut).any(|(h, shut)| !shut && results(h, input).next().is_some());
    Roles { gpus, hcas, shut: shut.into_iter().map(|s| s && any_open).collect() }
}

fn gpu_role(gpu: &GpuFacts, input: &Input<'_>) -> GpuRole {
    if let Some(role) = role_at_a_glance(gpu, input.config) {
        return role;
    }
    let Some(row) = input.rows.get(&gpu.pci) else { return GpuRole::Eligible };
    match (row.stops.iter().find_map(Stopped::spared), row.gpu.gdr, row.gpu.dma_buf) {
        (Some(Spared::Mig), ..) => GpuRole::Mig,
        (Some(Spared::Confidential), ..) => GpuRole::Confidential,
        (_, Some(false), Some(false)) => GpuRole::Incapable,
        // A job that comes must not make it another.
        (Some(_), None, None) if was_incapable(gpu, input) => GpuRole::Incapable,
        _ => GpuRole::Eligible,
    }
}

fn was_incapable(gpu: &GpuFacts, input: &Input<'_>) -> bool {
    input.memory.incapable.get(&gpu.pci.to_string()).is_some_and(|driver| *driver == driver_of(input.inventory))
}

fn driver_of(inventory: &Inventory) -> String {
    inventory.nvidia.as_ref().map_or_else(String::new, |nvidia| nvidia.version.clone())
}

/// Takes into memory which GPUs a finished check found incapable.
pub(super) fn remember(memory: &mut Memory, inventory: &Inventory, gpus: &[Gpu]) {
    // One that did not come to tell is what it was.
    for gpu in gpus.iter().filter(|gpu| gpu.gdr_supported.is_some()) {
        if gpu.role == GpuRole::Incapable {
            memory.incapable.insert(gpu.pci.to_string(), driver_of(inventory));
        } else {
            memory.incapable.remove(&gpu.pci.to_string());
        }
    }
}

/// What sysfs alone says of a GPU that will not be checked.
fn role_at_a_glance(gpu: &GpuFacts, config: &Config) -> Option<GpuRole> {
    let selectors = &config.check.select.gpus;
    if !selectors.is_empty() && !selectors.iter().any(|selector| matches_gpu(selector, gpu)) {
        Some(GpuRole::Excluded)
    } else if gpu.lost {
        Some(GpuRole::Lost)
    } else if gpu.bound_to.as_deref() == Some("vfio-pci") {
        Some(GpuRole::PassedThrough)
    } else {
        None
    }
}

/// Whether a child is started for a GPU.
#[must_use]
pub fn is_checked(gpu: &GpuFacts, config: &Config) -> bool {
    role_at_a_glance(gpu, config).is_none()
}

fn hca_role(hca: &HcaFacts, input: &Input<'_>) -> HcaRole {
    if is_excluded(hca, input.config) {
        HcaRole::Excluded
    } else if hca.away.is_some() {
        HcaRole::Away
    } else if is_incapable(hca, input) {
        HcaRole::Incapable
    } else if hca.usable() || input.memory.seen_active.contains(&hca.key()) {
        HcaRole::Eligible
    } else {
        HcaRole::Idle
    }
}

/// By a selector, or by default: software devices, NVLink management, VFs whose PF is here.
fn is_excluded(hca: &HcaFacts, config: &Config) -> bool {
    let selectors = &config.check.select.hcas;
    if selectors.is_empty() {
        hca.pci.is_none() || hca.nvlink_management || hca.vf_of.is_some()
    } else {
        !selectors.iter().any(|s| matches_hca(s, hca, None))
    }
}

/// The HCAs that a check touches.
#[must_use]
pub fn hcas_to_probe(inventory: &Inventory, config: &Config) -> Vec<HcaFacts> {
    inventory.hcas.iter().filter(|h| h.away.is_none() && !is_excluded(h, config)).cloned().collect()
}

/// Both methods unsupported wherever it was tried; or no dma-buf, and peermem refused for every HCA
/// of its driver while another driver's HCA has it with the same GPU.
fn is_incapable(hca: &HcaFacts, input: &Input<'_>) -> bool {
    let mut tried = false;
    for (gpu, row) in input.rows {
        let Some(answer) = row.hcas.get(&hca.name) else { continue };
        // A method that nobody asked for says nothing.
        let outcome = |m| answer.methods.get(&m).map(|r| r.outcome);
        let no_dma_buf = outcome(Method::DmaBuf) == Some(Outcome::Unsupported);
        match outcome(Method::Peermem) {
            Some(Outcome::Unsupported) if no_dma_buf => {}
            Some(Outcome::Failed) if no_dma_buf && only_other_drivers_work(hca, *gpu, input) => {}
            _ => return false,
        }
        tried = true;
    }
    tried
}

fn only_other_drivers_work(hca: &HcaFacts, gpu: crate::hardware::PciAddress, input: &Input<'_>) -> bool {
    let Some(row) = input.rows.get(&gpu) else { return false };
    let verified = |h: &HcaFacts| {
        row.hcas
            .get(&h.name)
            .and_then(|a| a.methods.get(&Method::Peermem))
            .is_some_and(|r| r.outcome == Outcome::Verified)
    };
    let of_driver = |same: bool| input.inventory.hcas.iter().filter(move |h| (h.driver == hca.driver) == same);
    !of_driver(true).any(verified) && of_driver(false).any(verified)
}

fn results<'a>(hca: &'a HcaFacts, input: &'a Input<'_>) -> impl Iterator<Item = &'a MethodResult> {
    input.rows.values().filter_map(|row| row.hcas.get(&hca.name)).flat_map(|a| a.methods.values())
}

fn is_shut(hca: &HcaFacts, input: &Input<'_>) -> bool {
    let mut tried = false;
    for result in results(hca, input) {
        // An HCA that answers EIO or ENODEV is not kept shut, but going away.
        let errno = result.code.as_ref().and_then(Code::as_errno);
        let sandbox = result.outcome == Outcome::Unknown
            && !matches!(errno, Some(5 | 6 | 19))
            && SANDBOX_STEPS.iter().any(|s| result.step.as_deref() == Some(s.to_string().as_str()));
        if !sandbox {
            return false;
        }
        tried = true;
    }
    tried
}

/// Whether a selector takes an HCA. `rail` is what `nearest` asks for, where it is known.
#[must_use]
pub fn matches_hca(selector: &Selector, hca: &HcaFacts, rail: Option<bool>) -> bool {
    let text = |want: &Option<String>, have: &dyn Fn() -> Option<String>| {
        want.as_ref().is_none_or(|w| have().is_some_and(|h| h.eq_ignore_ascii_case(w)))
    };
    let fastest = || hca.ports.iter().filter_map(|p: &Port| p.rate_gbps).max();
    selector.nearest.is_none_or(|n| rail == Some(n))
        && text(&selector.driver, &|| hca.driver.clone())
        && text(&selector.vendor, &|| hca.ids.map(|(vendor, _)| format!("{vendor:#06x}")))
        && text(&selector.device, &|| hca.ids.map(|(_, device)| format!("{device:#06x}")))
        && selector.name.as_ref().is_none_or(|pattern| glob(pattern, &hca.name))
        && text(&selector.link_layer, &|| Some(hca.transport.to_string()))
        && selector.min_rate_gbps.is_none_or(|min| fastest().is_some_and(|r| f64::from(r) >= min))
        && selector.pci.is_none_or(|pci| hca.pci == Some(pci))
        && selector.function.is_none_or(|f| (f == Function::Vf) == hca.vf_of.is_some())
}

/// Whether a selector takes a GPU, by what a GPU has: a model for its name, driver, ids and place.
fn matches_gpu(selector: &Selector, gpu: &GpuFacts) -> bool {
    const NVIDIA: u32 = 0x10de;
    let id = |want: &Option<String>, have: Option<u32>| {
        want.as_ref().is_none_or(|w| have.is_some_and(|h| format!("{h:#06x}").eq_ignore_ascii_case(w)))
    };
    id(&selector.vendor, Some(NVIDIA))
        && id(&selector.device, gpu.device)
        && selector.driver.as_ref().is_none_or(|driver| gpu.bound_to.as_ref() == Some(driver))
        && selector.name.as_ref().is_none_or(|pattern| gpu.model.as_ref().is_some_and(|model| glob(pattern, model)))
        && selector.pci.is_none_or(|pci| gpu.pci == pci)
}

/// `*` and `?`, nothing else.
pub(super) fn glob(pattern: &str, text: &str) -> bool {
    fn go(p: &[u8], t: &[u8]) -> bool {
        match p.split_first() {
            None => t.is_empty(),
            Some((b'*', rest)) => (0..=t.len()).any(|i| go(rest, &t[i..])),
            Some((b'?', rest)) => t.split_first().is_some_and(|(_, t)| go(rest, t)),
            Some((c, rest)) => t.split_first().is_some_and(|(d, t)| c == d && go(rest, t)),
        }
    }
    go(pattern.as_bytes(), text.as_bytes())
}
