//! What raises each reason. One function for each subject: the node, rows, pairs, ports.

use std::collections::BTreeMap;

use super::{Facts, causes, entry};
use crate::{
    hardware::PciAddress,
    probe::{
        Row, Step,
        outcome::is_memlock,
        protocol::{End, Stopped},
    },
    report::{Finding, GpuRole, HcaRole, Method, MethodResult, Outcome, Pair, Reason, Severity, Transport},
};

/// Findings of one kind are gathered into one, with all their devices.
#[derive(Default)]
struct Gathered {
    by_reason: BTreeMap<Reason, Raised>,
}

#[derive(Default)]
struct Raised {
    severity: Option<Severity>,
    every_gpu: bool,
    gpus: Vec<PciAddress>,
    hcas: Vec<String>,
    methods: Vec<Method>,
    evidence: Vec<String>,
}

impl Gathered {
    /// Raises a reason; of several severities the worst holds.
    fn raise(
        &mut self,
        reason: Reason,
        severity: Severity,
        gpu: Option<PciAddress>,
        hca: Option<&str>,
        evidence: impl Into<String>,
    ) -> &mut Raised {
        let raised = self.by_reason.entry(reason).or_default();
        raised.severity = Some(raised.severity.map_or(severity, |s| s.min(severity)));
        push_new(&mut raised.gpus, gpu);
        push_new(&mut raised.hcas, hca.map(str::to_owned));
        push_new(&mut raised.evidence, Some(evidence.into()).filter(|e| !e.is_empty()));
        raised
    }
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, item: Option<T>) {
    if let Some(item) = item.filter(|i| !list.contains(i)) {
        list.push(item);
    }
}

pub(super) fn all(facts: &Facts<'_>) -> Vec<Finding> {
    let mut gathered = Gathered::default();
    if !facts.gpus.is_empty() {
        node(facts, &mut gathered);
        for (gpu, row) in facts.rows {
            for stop in &row.stops {
                stopped(*gpu, row, stop, facts, &mut gathered);
            }
        }
        for pair in facts.pairs {
            for method in Method::ALL {
                method_result(pair, method, facts, &mut gathered);
            }
        }
        ports(facts, &mut gathered);
        unserved(facts, &mut gathered);
        not_configured(facts, &mut gathered);
    }
    let mut raised = gathered.by_reason;
    for of_all in raised.values_mut().filter(|raised| is_the_nodes(raised, facts)) {
        of_all.gpus.clear();
        of_all.every_gpu = true;
    }
    raised.into_iter().map(|(reason, raised)| finding(reason, raised, facts)).collect()
}

/// What every child says of `cuInit` is no GPU's own.
fn is_the_nodes(raised: &Raised, facts: &Facts<'_>) -> bool {
    let at_init = |row: &Row| row.stops.iter().any(|stop| stop.step == Step::Init);
    facts.rows.len() > 1
        && raised.gpus.len() == facts.rows.len()
        && facts.rows.values().all(at_init)
        && raised.hcas.is_empty()
}

fn finding(reason: Reason, raised: Raised, facts: &Facts<'_>) -> Finding {
    let row = entry(reason);
    let severity = raised.severity.unwrap_or(Severity::Info);
    let devices = devices(&raised, facts);
    let message = if devices.is_empty() { row.summary.to_owned() } else { format!("{devices}: {}", row.summary) };
    Finding {
        reason,
        severity,
        who: row.who,
        gpus: raised.gpus,
        hcas: raised.hcas,
        // One that concerns both methods names none.
        method: <[Method; 1]>::try_from(raised.methods).ok().map(|[only]| only),
        message,
        evidence: raised.evidence,
        remedy: row.remedy.to_owned(),
    }
}

/// `mlx5_4 (0000:98:00.0)`; many are counted.
fn devices(raised: &Raised, facts: &Facts<'_>) -> String {
    let hcas = raised.hcas.iter().map(|name| {
        let pci = facts.hcas.iter().find(|h| h.name == *name).and_then(|h| h.pci);
        pci.map_or_else(|| name.clone(), |pci| format!("{name} ({pci})"))
    });
    let several = |all: Vec<String>, what: &str| match all.len() {
        0..=3 => all.join(", "),
        n => format!("{n} {what}"),
    };
    let hcas = several(hcas.collect(), "HCAs");
    if raised.every_gpu {
        return "every GPU".to_owned();
    }
    let gpus = several(raised.gpus.iter().map(|g| format!("GPU {g}")).collect(), "GPUs");
    [hcas, gpus].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(", ")
}

/// Modules and devices of the node as a whole.
fn node(facts: &Facts<'_>, out: &mut Gathered) {
    let inventory = facts.inventory;
    if inventory.nvidia.is_none() && facts.gpus.iter().any(|g| g.role == GpuRole::Eligible) {
        out.raise(Reason::DriverAbsent, Severity::Error, None, None, "/proc/driver/nvidia/version is missing");
    }
    if inventory.hcas.is_empty() && !inventory.bare_functions.is_empty() {
        let functions: Vec<_> = inventory.bare_functions.iter().map(ToString::to_string).collect();
        out.raise(
            Reason::NoRdmaDevices,
            Severity::Error,
            None,
            None,
            format!("no RDMA device on {}", functions.join(", ")),
        );
    }
    if !inventory.hcas.is_empty() && !inventory.uverbs {
        out.raise(Reason::UverbsNotLoaded, Severity::Error, None, None, "/sys/class/infiniband_verbs is missing");
    }
    for gpu in facts.gpus {
        match gpu.role {
            GpuRole::Lost => out.raise(
                Reason::GpuLost,
                Severity::Error,
                Some(gpu.pci),
                None,
                "configuration space reads ff ff ff ff",
            ),
            GpuRole::Incapable => out.raise(
                Reason::GpuGdrUnsupported,
                Severity::Info,
                Some(gpu.pci),
                None,
                "attributes 116 and 124 are 0",
            ),
            _ => continue,
        };
    }
}

/// A row that ended before its HCAs were reached, or in the middle.
fn stopped(gpu: PciAddress, row: &Row, stopped: &Stopped, facts: &Facts<'_>, out: &mut Gathered) {
    let code = stopped.end.code();
    let evidence =
        [stopped.step.to_string(), code.as_ref().map(ToString::to_string).unwrap_or_default(), stopped.detail.clone()];
    let evidence = evidence.into_iter().filter(|p| !p.is_empty()).collect::<Vec<_>>().join(": ");
    let (reason, severity) = causes::of_row(&stopped.end, stopped.step, facts.inventory.nvidia.is_some());
    // Two witnesses: NVML calls it lost, and CUDA can't use it.
    let lost = row.usage.as_ref().is_some_and(|usage| usage.lost)
        && matches!(reason, Reason::CudaFailed | Reason::GpuNotVisible);
    let (reason, severity) = if lost { (Reason::GpuLost, Severity::Error) } else { (reason, severity) };
    let raised = out.raise(reason, severity, Some(gpu), stopped.hca.as_deref(), evidence);
    if stopped.hca.is_none() && stopped.spared().is_none() {
        nvml(row, stopped, raised);
    }
    if stopped.step == Step::LoadCuda {
        let places: Vec<_> = row.libcuda.iter().map(|p| p.display().to_string()).collect();
        push_new(
            &mut raised.evidence,
            (!places.is_empty()).then(|| format!("looked for libcuda.so.1 at {}", places.join(", "))),
        );
    }
    for line in row.stderr.iter().take(3) {
        push_new(&mut raised.evidence, Some(format!("stderr: {line}")));
    }
}

/// What NVML says of a GPU that could not be checked.
fn nvml(row: &Row, stopped: &Stopped, raised: &mut Raised) {
    let Some(usage) = &row.usage else { return };
    for line in usage.untold.iter().take(3) {
        push_new(&mut raised.evidence, Some(format!("NVML: {line}")));
    }
    let anew = stopped.end == End::TimedOut && usage.persistence == Some(false);
    let told = "persistence mode is off: the driver initialises the GPU anew for each process";
    push_new(&mut raised.evidence, anew.then(|| told.to_owned()));
}

/// One pair by one method, where the row was not what ended it.
fn method_result(pair: &Pair, method: Method, facts: &Facts<'_>, out: &mut Gathered) {
    let Some(row) = facts.rows.get(&pair.gpu) else { return };
    let result = pair.by(method);
    if let Some((reason, evidence)) = result.loopback.as_ref().and_then(causes::of_no_transfer) {
        out.raise(reason, Severity::Info, Some(pair.gpu), Some(&pair.hca), evidence);
    }
    let Some(step) = result.step.as_deref() else { return };
    let is_of = |stop: &Stopped| stop.step.to_string() == step && stop.hca.as_deref().is_none_or(|hca| hca == pair.hca);
    if row.stops.iter().any(is_of) {
        return;
    }
    let Some((reason, severity)) = classify(pair, method, result, row, facts) else { return };
    let code = result.code.as_ref().map(ToString::to_string).unwrap_or_default();
    let evidence = format!("{step} {code}").trim().to_owned();
    let raised = out.raise(reason, severity, Some(pair.gpu), Some(&pair.hca), evidence);
    push_new(&mut raised.methods, Some(method));
    if reason == Reason::MemlockLimit
        && let Some(limits) = row.limits
    {
        let limit = limits.memlock.map_or_else(|| "unlimited".to_owned(), |l| format!("{l} bytes"));
        push_new(
            &mut raised.evidence,
            Some(format!("RLIMIT_MEMLOCK {limit}, CAP_IPC_LOCK {}", if limits.ipc_lock { "yes" } else { "no" })),
        );
    }
    if reason == Reason::ProviderMissing {
        for line in row.stderr.iter().take(3) {
            push_new(&mut raised.evidence, Some(format!("stderr: {line}")));
        }
    }
}

/// The reason behind one result, the more specific first. A trouble of one method alone is advice
/// where the other method works.
fn classify(
    pair: &Pair,
    method: Method,
    result: &MethodResult,
    row: &Row,
    facts: &Facts<'_>,
) -> Option<(Reason, Severity)> {
    let step = result.step.as_deref()?.parse::<Step>().ok()?;
    let errno = result.code.as_ref().and_then(crate::report::Code::as_errno);
    let role = facts.hcas.iter().find(|h| h.name == pair.hca).map(|h| h.role);
    let harm =
        |severity| if pair.good == Some(true) || role != Some(HcaRole::Eligible) { Severity::Info } else { severity };
    // What one method lacks is no fault while it is open whether the other works.
    let lacking = if pair.good == Some(false) { harm(Severity::Error) } else { Severity::Info };
    let reason = match result.outcome {
        Outcome::Verified | Outcome::Skipped => return None,
        _ if memlock(result, row, errno) => return Some((Reason::MemlockLimit, harm(Severity::Warning))),
        Outcome::Unknown => {
            return causes::of_unknown(step, result.code.as_ref()).map(|reason| (reason, harm(Severity::Warning)));
        }
        Outcome::Failed if matches!(step, Step::Write | Step::Read) => causes::of_transfer(result.code.as_ref()),
        Outcome::Unsupported if step == Step::LoadVerbs => return Some((Reason::RdmaCoreTooOld, lacking)),
        Outcome::Unsupported if method == Method::DmaBuf && step == Step::RegDmabuf => {
            return Some((Reason::DmabufVerbUnsupported, lacking));
        }
        Outcome::Unsupported if method == Method::DmaBuf => return Some((Reason::DmabufClosedModule, lacking)),
        Outcome::Unsupported => return Some((Reason::PeermemUnsupported, lacking)),
        Outcome::Failed if method == Method::DmaBuf => Reason::DmabufRefused,
        Outcome::Failed if errno == Some(14) && !facts.inventory.peermem => Reason::PeermemNotLoaded,
        Outcome::Failed if step == Step::RegMr => Reason::PeermemRefused,
        Outcome::Failed => return None,
    };
    Some((reason, harm(Severity::Error)))
}

/// Whether this process's locked-memory limit explains it.
fn memlock(result: &MethodResult, row: &Row, errno: Option<i64>) -> bool {
    let needed = row.gpu.allocated.map_or(0, |(_, size)| size);
    let at_registration = result.step.as_deref().is_some_and(|s| s.parse() == Ok(Step::RegMr));
    at_registration && errno.zip(row.limits).is_some_and(|(errno, limits)| is_memlock(errno, limits, needed))
}

/// A rail without a usable port; and where no port was ever ACTIVE, that alone.
fn ports(facts: &Facts<'_>, out: &mut Gathered) {
    for (hca, known) in facts.inventory.hcas.iter().zip(facts.hcas) {
        if known.rail && known.role == HcaRole::Eligible && !hca.usable() {
            let states: Vec<_> = hca.ports.iter().map(|p| format!("port {} is {}", p.number, p.state)).collect();
            out.raise(Reason::PortDown, Severity::Error, None, Some(&hca.name), states.join(", "));
        }
    }
    let mut adapters = facts.hcas.iter().filter(|h| h.role != HcaRole::Excluded).peekable();
    if adapters.peek().is_some() && adapters.all(|h| h.role == HcaRole::Idle) {
        out.raise(Reason::PortNeverActive, Severity::Info, None, None, "");
    }
}

/// A GPU that nothing serves, where nothing else says why.
fn unserved(facts: &Facts<'_>, out: &mut Gathered) {
    let explained = |gpu: &crate::report::Gpu| {
        gpu.role == GpuRole::Lost
            || out.by_reason.iter().any(|(reason, raised)| {
                *reason == Reason::PortNeverActive
                    || raised.severity == Some(Severity::Error)
                        && (raised.gpus.contains(&gpu.pci)
                            || raised.hcas.iter().any(|h| gpu.nearest.contains(h))
                            || raised.gpus.is_empty() && raised.hcas.is_empty())
            })
    };
    let missing: Vec<_> = facts.gpus.iter().filter(|g| g.served == Some(false) && !explained(g)).collect();
    for gpu in missing {
        out.raise(
            Reason::RailMissing,
            Severity::Error,
            Some(gpu.pci),
            None,
            format!("nearest HCAs: {}", gpu.nearest.join(", ")),
        );
    }
}

/// A node on ordinary Ethernet where no method was ever installed is no broken one: one piece of
/// information stands in place of what is missing.
fn not_configured(facts: &Facts<'_>, out: &mut Gathered) {
    const FAST_GBPS: f64 = 100.0;
    const MISSING: [Reason; 4] =
        [Reason::PeermemNotLoaded, Reason::DmabufClosedModule, Reason::DmabufVerbUnsupported, Reason::RailMissing];
    let ordinary = facts.hcas.iter().filter(|h| h.rail).all(|h| {
        h.transport == Transport::Roce && h.ports.iter().filter_map(|p| p.rate_gbps).all(|r| f64::from(r) <= FAST_GBPS)
    });
    let tried = out.by_reason.contains_key(&Reason::PeermemNotLoaded);
    let never_good = facts.pairs.iter().all(|p| p.good != Some(true));
    let only_missing = out.by_reason.keys().all(|r| MISSING.contains(r));
    if tried && ordinary && never_good && only_missing && facts.config.policy.expect.is_empty() {
        out.by_reason.clear();
        out.raise(Reason::NotConfigured, Severity::Info, None, None, "no nvidia_peermem, and no dma-buf path");
    }
}
