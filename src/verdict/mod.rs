//! What it means: roles, nearest HCAs, pairs, the node's state, and how slowly it changes. Pure.

pub mod damping;
pub mod devices;
#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod histories_tests;
mod links;
mod nearest;
mod outlook;
#[cfg(test)]
mod outlook_tests;
mod pairs;
#[cfg(test)]
mod properties_tests;
mod roles;
#[cfg(test)]
mod selectors_tests;
#[cfg(test)]
mod spared_tests;
mod state;
#[cfg(test)]
mod state_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twelve_tests;

use jiff::Timestamp;

use crate::{
    config::Config,
    diagnosis,
    hardware::{GpuFacts, HcaFacts, Inventory, Surroundings},
    probe::{Rows, protocol::Stopped},
    report::{API_VERSION, Finding, Gpu, Hca, HcaRole, KernelModule, NodeView, Pair, Report, Verdict},
    store::Memory,
    usage::Spared,
};

pub use links::Links;
pub use outlook::{Outlook, accept, forget_another_driver, note_driver};
pub use roles::{hcas_to_probe, is_checked, matches_hca};
pub use state::judge;

/// Everything that a verdict is made of.
pub struct Input<'a> {
    /// What is here.
    pub inventory: &'a Inventory,
    /// What is around the devices.
    pub surroundings: &'a Surroundings,
    /// What the children found.
    pub rows: &'a Rows,
    /// What is remembered.
    pub memory: &'a Memory,
    /// What is wanted.
    pub config: &'a Config,
    /// What the Node says; `None` where that is not known.
    pub node: Option<&'a NodeView>,
    /// Whether a check has finished in this boot.
    pub checked: bool,
    /// Now.
    pub now: Timestamp,
}

/// Everything that follows from it, before damping.
pub struct Assessment {
    /// GPUs by PCI address.
    pub gpus: Vec<Gpu>,
    /// HCAs by PCI address.
    pub hcas: Vec<Hca>,
    /// Every GPU with every HCA.
    pub pairs: Vec<Pair>,
    /// What can be explained, worst first.
    pub findings: Vec<Finding>,
    /// The node's state as it is right now.
    pub verdict: Verdict,
}

/// Takes what a finished check found into memory, before the next one is assessed.
fn remember(memory: &mut Memory, inventory: &Inventory, assessment: &Assessment, now: Timestamp) {
    pairs::remember(memory, inventory, &assessment.pairs, &assessment.findings, now);
    roles::remember(memory, inventory, &assessment.gpus);
    outlook::remember(memory, inventory, &assessment.pairs);
}

/// Takes in a look, or the end of a check, and answers what it comes to, and whether it counts as a check that saw
/// that itself: an outcome that is carried from an earlier one never counts again. `assess`: what follows from what
/// was seen and a memory.
pub fn take_in(
    memory: &mut Memory,
    inventory: &Inventory,
    full_check: bool,
    now: Timestamp,
    assess: impl Fn(&Memory) -> Assessment,
) -> (Assessment, bool) {
    let assessment = assess(memory);
    if !full_check {
        return (assessment, false);
    }
    remember(memory, inventory, &assessment, now);
    let saw_itself = assess(&memory.without_outcomes()).verdict.state == assessment.verdict.state;
    (assessment, saw_itself)
}

/// Draws all conclusions.
#[must_use]
pub fn assess(input: &Input<'_>) -> Assessment {
    let roles = roles::assign(input);
    let nearest = nearest::find(input.inventory, &roles);
    let (pairs, carried) = pairs::build(input, &roles, &nearest);
    let hcas: Vec<Hca> = input
        .inventory
        .hcas
        .iter()
        .zip(&roles.hcas)
        .zip(&nearest.rail)
        .map(|((facts, role), rail)| hca(facts, *role, *rail))
        .collect();
    let gpus: Vec<Gpu> = (0..input.inventory.gpus.len()).map(|g| gpu(input, &roles, &nearest, &pairs, g)).collect();
    let outlook = outlook::of(input, &gpus, &hcas);
    let facts = diagnosis::Facts {
        outlook: &outlook,
        inventory: input.inventory,
        surroundings: input.surroundings,
        rows: input.rows,
        config: input.config,
        gpus: &gpus,
        hcas: &hcas,
        pairs: &pairs,
        carried: &carried,
    };
    let findings = diagnosis::diagnose(&facts);
    let verdict = judge(&state::View {
        facts: &facts,
        findings: &findings,
        checked: input.checked,
        memory: input.memory,
        node: input.node,
        now: input.now,
    });
    Assessment { gpus, hcas, pairs, findings, verdict }
}

/// Who and when a report speaks of.
pub struct Stamp<'a> {
    /// The node's name.
    pub node: &'a str,
    /// Whether the machine is made up.
    pub simulated: bool,
    /// When the check began.
    pub started_at: Timestamp,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
}

impl Assessment {
    /// Makes it a report.
    #[must_use]
    pub fn into_report(self, inventory: &Inventory, stamp: &Stamp<'_>) -> Report {
        Report {
            api_version: API_VERSION.to_owned(),
            kind: "Report".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: stamp.node.to_owned(),
            boot_id: inventory.boot_id.clone(),
            simulated: stamp.simulated,
            started_at: stamp.started_at,
            duration_ms: stamp.duration_ms,
            valid_until: None,
            topology: inventory.topology,
            gpus: self.gpus,
            hcas: self.hcas,
            pairs: self.pairs,
            findings: self.findings,
            verdict: self.verdict,
        }
    }
}

fn gpu(input: &Input<'_>, roles: &roles::Roles, nearest: &nearest::Nearest, pairs: &[Pair], g: usize) -> Gpu {
    let facts: &GpuFacts = &input.inventory.gpus[g];
    let row = input.rows.get(&facts.pci);
    let names = nearest.of_gpu[g].iter().map(|h| input.inventory.hcas[*h].name.clone()).collect();
    Gpu {
        pci: facts.pci,
        uuid: facts.uuid.clone(),
        model: facts.model.clone(),
        driver: input.inventory.nvidia.as_ref().map(|n| n.version.clone()),
        module: input.inventory.nvidia.as_ref().map(|n| if n.open { KernelModule::Open } else { KernelModule::Closed }),
        numa: facts.numa,
        role: roles.gpus[g],
        gdr_supported: row.and_then(|r| r.gpu.gdr),
        dma_buf_supported: row.and_then(|r| r.gpu.dma_buf),
        nearest: names,
        served: pairs::served(input, roles, nearest, pairs, g),
        skipped: row.and_then(|r| r.stops.iter().find_map(Stopped::spared)).map(Spared::reason),
    }
}

fn hca(facts: &HcaFacts, role: HcaRole, rail: bool) -> Hca {
    Hca {
        name: facts.name.clone(),
        pci: facts.pci,
        driver: facts.driver.clone(),
        vendor: facts.ids.map(|(vendor, _)| format!("{vendor:#06x}")),
        numa: facts.numa,
        firmware: facts.firmware.clone(),
        transport: facts.transport,
        role,
        rail,
        used_by: None,
        ports: facts.ports.clone(),
    }
}
