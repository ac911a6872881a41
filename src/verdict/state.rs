//! The node's state: a total function of what was seen.

use jiff::Timestamp;

use crate::{
    diagnosis::{Facts, is_advice},
    report::{Finding, Gpu, GpuRole, HcaRole, Method, NodeView, Outcome, Pair, Reason, Severity, State, Verdict},
    store::Memory,
};

/// What a state is judged by.
pub struct View<'a> {
    /// The assessed facts.
    pub facts: &'a Facts<'a>,
    /// The findings, worst first.
    pub findings: &'a [Finding],
    /// Whether a check has finished in this boot.
    pub checked: bool,
    /// What is remembered.
    pub memory: &'a Memory,
    /// What the Node says.
    pub node: Option<&'a NodeView>,
    /// Now.
    pub now: Timestamp,
}

/// The first state whose condition holds, in this order: nothing to say, not known yet, not ready,
/// degraded, not known, ready.
#[must_use]
pub fn judge(view: &View<'_>) -> Verdict {
    let (state, reason) = match state_and_reason(view) {
        (State::NotReady | State::Degraded, reason) if is_settling(view, reason) => {
            (State::Unknown, Reason::DriverNotReady)
        }
        other => other,
    };
    let message = message(view, state, reason);
    Verdict { state, reason, message, since: view.now, damped: false }
}

fn state_and_reason(view: &View<'_>) -> (State, Reason) {
    let facts = view.facts;
    let outlook = facts.outlook;
    let counting = || facts.gpus.iter().filter(|g| g.role.counts());
    let served: Vec<Option<bool>> = counting().filter(|g| !is_excused(view, g)).map(|g| g.served).collect();
    // Advice explains no state.
    let telling = || view.findings.iter().find(|f| !is_advice(f.reason));
    let worst = || telling().map_or(Reason::RailMissing, |f| f.reason);
    let rail_without_port =
        facts.inventory.hcas.iter().zip(facts.hcas).any(|(f, h)| h.rail && h.role != HcaRole::Away && !f.usable());
    let rail_unproven = facts
        .hcas
        .iter()
        .filter(|h| h.rail)
        .any(|h| !facts.pairs.iter().any(|p| p.hca == h.name && p.good == Some(true)));
    let counted_bad = facts.pairs.iter().any(|p| p.counted && p.good == Some(false));
    let methods = &facts.config.check.methods;
    let skipped = |g: &crate::report::Gpu| {
        let mut counted = facts.pairs.iter().filter(|p| p.gpu == g.pci && p.counted).peekable();
        g.skipped.is_some() || counted.peek().is_some() && counted.all(|p| only_skipped(p, methods))
    };
    let open_gpus: Vec<_> = facts.gpus.iter().filter(|g| g.role == GpuRole::Eligible && g.served.is_none()).collect();

    // Where nothing is wrong but that, no advice may stand in its place.
    let never_active = view.findings.iter().any(|f| f.reason == Reason::PortNeverActive)
        && view.findings.iter().all(|f| f.severity != Severity::Error);

    if facts.gpus.is_empty() && !outlook.gpus {
        (State::NotApplicable, Reason::NoGpu)
    } else if counting().next().is_none() && !facts.gpus.is_empty() {
        (State::NotApplicable, role_reason(facts))
    } else if !facts.inventory.has_rdma_hardware() && !outlook.rdma {
        (State::NotApplicable, Reason::NoRdmaHardware)
    } else if view.node.and_then(|node| node.paused_until).is_some_and(|until| view.now < until) {
        (State::Unknown, Reason::Paused)
    } else if !view.checked {
        (State::Unknown, Reason::CheckPending)
    } else if served.iter().all(|s| *s == Some(false)) {
        (State::NotReady, if never_active { Reason::PortNeverActive } else { worst() })
    } else if counted_bad || rail_without_port || served.contains(&Some(false)) || !outlook.lacking.is_empty() {
        (State::Degraded, worst())
    } else if open_gpus.iter().any(|g| !skipped(g)) {
        (State::Unknown, worst())
    } else if rail_unproven || !served.contains(&Some(true)) {
        let busy = |g: &&crate::report::Gpu| g.skipped == Some(Reason::GpuBusy);
        let in_use = |g: &&crate::report::Gpu| g.skipped.is_none() || busy(g);
        let all_busy = open_gpus.len() == served.len() && open_gpus.iter().any(busy) && open_gpus.iter().all(in_use);
        (State::Unknown, if all_busy { Reason::GpusBusySinceBoot } else { worst() })
    } else {
        (State::Ready, Reason::AllRailsVerified)
    }
}

/// Whether a GPU that nothing serves was never meant to be served: what the configuration expects is
/// here, and nothing that is broken says why.
fn is_excused(view: &View<'_>, gpu: &Gpu) -> bool {
    let names =
        |finding: &Finding| finding.gpus.contains(&gpu.pci) || finding.hcas.iter().any(|hca| gpu.nearest.contains(hca));
    let broken = || view.findings.iter().any(|finding| finding.severity == Severity::Error && names(finding));
    view.facts.outlook.met == Some(true) && gpu.role == GpuRole::Eligible && gpu.served == Some(false) && !broken()
}

/// Whether what is wrong is no more than a driver that has not finished loading explains, and the machine has booted,
/// or its driver was unloaded, lately, or a change is under way: an absent driver, module or RDMA device, a fabric
/// manager that is not up, or a port that was not ACTIVE since boot.
fn is_settling(view: &View<'_>, reason: Reason) -> bool {
    let settle = view.facts.config.policy.settle.signed();
    let since = [view.facts.inventory.booted_at, view.memory.driver_changed_at];
    let lately = since.into_iter().flatten().any(|at| view.now.duration_since(at) < settle)
        || view.node.is_some_and(|node| node.change_under_way.is_some());
    let errors = || view.findings.iter().filter(|f| f.severity == Severity::Error);
    // No fault, and yet nothing that is known before links and modules had their time.
    let quiet = matches!(reason, Reason::PortNeverActive | Reason::NotConfigured);
    lately
        && (quiet || errors().next().is_some())
        && errors().all(|f| match f.reason {
            Reason::DriverAbsent
            | Reason::UverbsNotLoaded
            | Reason::NoRdmaDevices
            | Reason::RdmaModuleMissing
            | Reason::FabricManagerDown
            | Reason::RailMissing
            | Reason::PeermemNotLoaded
            | Reason::PeermemModuleMissing
            | Reason::PeermemSymbolMismatch
            | Reason::KernelLacksPeerMemory
            | Reason::EfaPeermemMissing
            // A path that a kernel or driver has not is no fault of its own: that peermem fails beside it is.
            | Reason::DmabufClosedModule
            | Reason::DmabufVerbUnsupported
            | Reason::KernelWithoutP2pdma
            | Reason::KernelWithoutOdp => true,
            Reason::PortDown => f.hcas.iter().all(|name| {
                view.facts.inventory.hca(name).is_some_and(|h| !view.memory.active_in_boot.contains(&h.key()))
            }),
            _ => false,
        })
}

/// Whether a pair is open for no other cause than that a method that counts was skipped.
fn only_skipped(pair: &Pair, methods: &[Method]) -> bool {
    let outcomes = || methods.iter().map(|m| pair.by(*m).outcome);
    outcomes().all(|o| o != Outcome::Unknown) && outcomes().any(|o| o == Outcome::Skipped)
}

fn role_reason(facts: &Facts<'_>) -> Reason {
    match facts.gpus.first().map(|g| g.role) {
        Some(GpuRole::Mig) => Reason::MigEnabled,
        Some(GpuRole::Confidential) => Reason::CcMode,
        Some(GpuRole::PassedThrough) => Reason::GpuPassedThrough,
        _ => Reason::GpuGdrUnsupported,
    }
}

/// Counts, the worst finding with its devices, who must act, and its remedy.
fn message(view: &View<'_>, state: State, reason: Reason) -> String {
    let facts = view.facts;
    let rails = facts.hcas.iter().filter(|h| h.rail).count();
    let good =
        facts.inventory.hcas.iter().zip(facts.hcas).filter(|(f, h)| {
            h.rail && f.usable() && facts.pairs.iter().any(|p| p.hca == h.name && p.good == Some(true))
        });
    let gpus = facts.gpus.iter().filter(|g| g.role.counts());
    let served = gpus.clone().filter(|g| g.served == Some(true)).count();
    let open = gpus.clone().filter(|g| g.served.is_none()).count();
    let counts = format!("{} of {rails} rails, {served} of {} GPUs served", good.count(), gpus.count());
    match state {
        State::Ready if open > 0 => format!("{counts}; {open} in use and not checked"),
        State::Ready => counts,
        State::NotApplicable => crate::diagnosis::entry(reason).summary.to_owned(),
        _ => match view.findings.iter().find(|f| f.reason == reason) {
            Some(finding) => {
                format!(
                    "{counts}; {}: {} (to act: {}). {}",
                    finding.reason, finding.message, finding.who, finding.remedy
                )
            }
            None => format!("{counts}; {reason}: {}", crate::diagnosis::entry(reason).summary),
        },
    }
}
