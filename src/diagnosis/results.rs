//! What raises a reason in a check's results: rows that ended, and pairs.

use super::{
    Facts, causes,
    gather::{Gathered, Raised, push_new},
    refine::{Subject, refine},
};
use crate::{
    hardware::{PciAddress, surroundings::numbers},
    probe::{
        Limits, Row, Step,
        outcome::is_memlock,
        protocol::{End, Stopped},
    },
    report::{Code, HcaRole, Method, MethodResult, Outcome, Pair, Reason, Severity},
};

/// A row that ended before its HCAs were reached, or in the middle.
pub(super) fn stopped(gpu: PciAddress, row: &Row, stopped: &Stopped, facts: &Facts<'_>, out: &mut Gathered) {
    let code = stopped.end.code();
    let evidence =
        [stopped.step.to_string(), code.as_ref().map(ToString::to_string).unwrap_or_default(), stopped.detail.clone()];
    let evidence = evidence.into_iter().filter(|p| !p.is_empty()).collect::<Vec<_>>().join(": ");
    let (reason, severity) = match hidden_memory(stopped, row, facts) {
        Some(seen) => {
            out.raise(Reason::CpusetHidesGpuMemory, Severity::Warning, Some(gpu), None, seen);
            (Reason::CpusetHidesGpuMemory, Severity::Warning)
        }
        None => specific_of_row(
            causes::of_row(&stopped.end, stopped.step, facts.inventory.nvidia.is_some()),
            gpu,
            facts,
            out,
        ),
    };
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
    complaints(row, raised);
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

/// The more specific reason, with what shows it.
fn specific_of_row(
    (reason, severity): (Reason, Severity),
    gpu: PciAddress,
    facts: &Facts<'_>,
    out: &mut Gathered,
) -> (Reason, Severity) {
    let subject = Subject { method: None, hca: None, driver: None, errno: None, bar1: None };
    match refine(reason, &subject, facts.surroundings) {
        Some((specific, seen)) => {
            out.raise(specific, severity, Some(gpu), None, seen);
            (specific, severity)
        }
        None => (reason, severity),
    }
}

/// Where a GPU's memory is NUMA nodes (Grace), a context needs them, and a cpuset can leave them out:
/// CUDA then speaks of memory that is short, or of an unknown error.
fn hidden_memory(stopped: &Stopped, row: &Row, facts: &Facts<'_>) -> Option<String> {
    let code = stopped.end.code().and_then(|code| code.as_cuda());
    if !matches!(stopped.step, Step::Context | Step::Alloc) || !matches!(code, Some(2 | 999)) {
        return None;
    }
    let allowed = row.limits.as_ref()?.nodes_allowed.as_deref()?;
    let with_memory = facts.surroundings.nodes_with_memory.as_deref()?;
    let hidden = numbers(with_memory).difference(&numbers(allowed)).count();
    (hidden > 0).then(|| format!("Mems_allowed_list is {allowed}, and the nodes {with_memory} have memory"))
}

/// One pair by one method, where the row was not what ended it.
pub(super) fn method_result(pair: &Pair, method: Method, facts: &Facts<'_>, out: &mut Gathered) {
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
    let hca = facts.hcas.iter().find(|h| h.name == pair.hca);
    let subject = Subject {
        method: Some(method),
        hca: hca.and_then(|h| h.pci).map(|pci| pci.to_string()),
        driver: hca.and_then(|h| h.driver.as_deref()),
        errno: result.code.as_ref().and_then(Code::as_errno),
        bar1: facts.surroundings.bar1.get(&pair.gpu).copied(),
    };
    let (reason, seen) = refine(reason, &subject, facts.surroundings)
        .or_else(|| of_a_virtual_gpu(reason, row))
        .unwrap_or((reason, String::new()));
    let raised = out.raise(reason, severity, Some(pair.gpu), Some(&pair.hca), evidence);
    push_new(&mut raised.evidence, Some(seen).filter(|seen| !seen.is_empty()));
    push_new(&mut raised.methods, Some(method));
    if reason == Reason::MemlockLimit
        && let Some(limits) = &row.limits
    {
        push_new(&mut raised.evidence, Some(limit_in_words(limits)));
    }
    if matches!(reason, Reason::ProviderMissing | Reason::ProviderAbiMismatch) {
        complaints(row, raised);
    }
}

/// What a vGPU lacks no driver in its virtual machine can mend.
fn of_a_virtual_gpu(reason: Reason, row: &Row) -> Option<(Reason, String)> {
    const LACKING: [Reason; 4] =
        [Reason::PeermemRefused, Reason::PeermemUnsupported, Reason::DmabufRefused, Reason::DmabufClosedModule];
    let is_one = row.usage.as_ref().is_some_and(|usage| usage.virtual_gpu == Some(true));
    (is_one && LACKING.contains(&reason)).then(|| (Reason::VgpuWithoutGpuDirect, "NVML: the GPU is a vGPU".to_owned()))
}

fn limit_in_words(limits: &Limits) -> String {
    let limit = limits.memlock.map_or_else(|| "unlimited".to_owned(), |l| format!("{l} bytes"));
    format!("RLIMIT_MEMLOCK {limit}, CAP_IPC_LOCK {}", if limits.ipc_lock { "yes" } else { "no" })
}

/// What libraries said for themselves.
fn complaints(row: &Row, raised: &mut Raised) {
    for line in row.stderr.iter().take(3) {
        push_new(&mut raised.evidence, Some(format!("stderr: {line}")));
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
    let errno = result.code.as_ref().and_then(Code::as_errno);
    let role = facts.hcas.iter().find(|h| h.name == pair.hca).map(|h| h.role);
    let harm =
        |severity| if pair.good == Some(true) || role != Some(HcaRole::Eligible) { Severity::Info } else { severity };
    // What one method lacks is no fault while it is open whether the other works.
    let lacking = if pair.good == Some(false) { harm(Severity::Error) } else { Severity::Info };
    let reason = match result.outcome {
        Outcome::Verified | Outcome::Skipped => return None,
        _ if memlock(result, row, errno) => return Some((Reason::MemlockLimit, harm(Severity::Warning))),
        Outcome::Unknown => {
            let reason = match causes::of_unknown(step, result.code.as_ref())? {
                Reason::ProviderMissing if row.stderr.iter().any(|line| line.contains("ABI")) => {
                    Reason::ProviderAbiMismatch
                }
                reason => reason,
            };
            return Some((reason, harm(Severity::Warning)));
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
    at_registration && errno.zip(row.limits.as_ref()).is_some_and(|(errno, limits)| is_memlock(errno, limits, needed))
}
