//! The pairs: their results, whether they count, whether they are good, and what an open one
//! carries of its past.

use jiff::Timestamp;

use super::{Input, nearest::Nearest, roles::Roles};
use crate::{
    config::Pairs,
    diagnosis::CarriedReason,
    hardware::{GpuFacts, HcaFacts, Inventory},
    report::{Finding, GpuRole, HcaRole, Method, MethodResult, Outcome, Pair, Reason, Severity},
    store::{Memory, Remembered},
};

/// With why those are bad that could not be tried this time: it is still so, as far as anybody knows.
pub(super) fn build(input: &Input<'_>, roles: &Roles, nearest: &Nearest) -> (Vec<Pair>, Vec<CarriedReason>) {
    let inventory = input.inventory;
    let mut reasons = Vec::new();
    let mut pairs = Vec::with_capacity(inventory.gpus.len() * inventory.hcas.len());
    for (g, gpu) in inventory.gpus.iter().enumerate() {
        for (h, hca) in inventory.hcas.iter().enumerate() {
            let result = |method| result_of(input, gpu, hca, method, roles.hcas[h], roles.gpus[g]);
            let (dma_buf, peermem) = (result(Method::DmaBuf), result(Method::Peermem));
            let now = outcome_of(&input.config.check.methods, &dma_buf, &peermem);
            let carried = if now.is_none() { carried(input, gpu, hca, [&dma_buf, &peermem]) } else { None };
            if let Some(Remembered { good: false, reason: Some(reason), at, .. }) = carried {
                reasons.push(CarriedReason { gpu: gpu.pci, hca: hca.name.clone(), reason, at });
            }
            let counts = match input.config.policy.pairs {
                Pairs::Nearest => nearest.rail[h] && nearest.of_gpu[g].contains(&h),
                Pairs::All => roles.hcas[h] == HcaRole::Eligible && !roles.shut[h],
            };
            pairs.push(Pair {
                gpu: gpu.pci,
                hca: hca.name.clone(),
                distance: nearest.distance[g][h],
                counted: counts && roles.gpus[g] == GpuRole::Eligible,
                good: now.or(carried.as_ref().map(|r| r.good)),
                checked_at: carried.map(|r| r.at),
                dma_buf,
                peermem,
            });
        }
    }
    (pairs, reasons)
}

fn result_of(
    input: &Input<'_>,
    gpu: &GpuFacts,
    hca: &HcaFacts,
    method: Method,
    role: HcaRole,
    gpu_role: GpuRole,
) -> MethodResult {
    let answer = input.rows.get(&gpu.pci).and_then(|row| row.hcas.get(&hca.name)).and_then(|a| a.methods.get(&method));
    match answer {
        // What was found before it went is remembered, not seen.
        _ if role == HcaRole::Away => MethodResult::bare(Outcome::Skipped, None),
        Some(result) => result.clone(),
        None if gpu_role == GpuRole::Lost => MethodResult::bare(Outcome::Failed, Some("config space")),
        None if gpu_role != GpuRole::Eligible || role == HcaRole::Excluded => {
            MethodResult::bare(Outcome::Skipped, None)
        }
        None if !input.config.check.methods.contains(&method) => MethodResult::bare(Outcome::Skipped, None),
        None => MethodResult::bare(Outcome::Unknown, Some("not checked yet")),
    }
}

/// Good when a method that counts is verified; bad when each is failed or unsupported and one is
/// failed; else open.
fn outcome_of(methods: &[Method], dma_buf: &MethodResult, peermem: &MethodResult) -> Option<bool> {
    let outcomes: Vec<Outcome> = methods
        .iter()
        .map(|m| match m {
            Method::DmaBuf => dma_buf.outcome,
            Method::Peermem => peermem.outcome,
        })
        .collect();
    if outcomes.contains(&Outcome::Verified) {
        Some(true)
    } else if outcomes.contains(&Outcome::Failed)
        && outcomes.iter().all(|o| matches!(o, Outcome::Failed | Outcome::Unsupported))
    {
        Some(false)
    } else {
        None
    }
}

/// What an open pair carries: its last good or bad outcome of the same circumstances; when it is
/// open by `unknown`, for `damping.fall` checks only.
fn carried(input: &Input<'_>, gpu: &GpuFacts, hca: &HcaFacts, results: [&MethodResult; 2]) -> Option<Remembered> {
    let remembered = input.memory.pairs.get(&key(gpu, hca))?;
    let same = remembered.circumstances == circumstances(input.inventory, hca);
    let unknown = results.iter().any(|r| r.outcome == Outcome::Unknown);
    (same && (!unknown || remembered.unknown_since < input.config.policy.damping.fall)).then(|| remembered.clone())
}

fn key(gpu: &GpuFacts, hca: &HcaFacts) -> String {
    format!("{}/{}", gpu.pci, hca.key())
}

/// What an outcome is bound to: boot, drivers, the method's module, the HCA's firmware. Never
/// another device's coming or going.
fn circumstances(inventory: &Inventory, hca: &HcaFacts) -> String {
    let nvidia = inventory
        .nvidia
        .as_ref()
        .map_or_else(String::new, |n| format!("{}{}", n.version, if n.open { " open" } else { "" }));
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    format!("{}|{nvidia}|{}|{}|{}", inventory.boot_id, inventory.peermem, text(&hca.driver), text(&hca.firmware))
}

/// The worst finding that speaks of a pair.
fn why(findings: &[Finding], pair: &Pair) -> Option<Reason> {
    let of_it = |finding: &&Finding| {
        finding.severity == Severity::Error
            && (finding.gpus.is_empty() || finding.gpus.contains(&pair.gpu))
            && (finding.hcas.is_empty() || finding.hcas.contains(&pair.hca))
    };
    findings.iter().find(of_it).map(|finding| finding.reason)
}

/// Takes the outcomes of a finished check into memory.
pub(super) fn remember(
    memory: &mut Memory,
    inventory: &Inventory,
    pairs: &[Pair],
    findings: &[Finding],
    now: Timestamp,
) {
    for (pair, (gpu, hca)) in
        pairs.iter().zip(inventory.gpus.iter().flat_map(|g| inventory.hcas.iter().map(move |h| (g, h))))
    {
        if gpu.lost {
            continue; // says nothing of its pairs, once a reset has brought it back
        }
        let unknown = [&pair.dma_buf, &pair.peermem].iter().any(|r| r.outcome == Outcome::Unknown);
        match (pair.good, pair.checked_at) {
            (Some(good), None) => {
                let reason = if good { None } else { why(findings, pair) };
                let circumstances = circumstances(inventory, hca);
                let fresh = Remembered { good, at: now, circumstances, unknown_since: 0, reason };
                memory.pairs.insert(key(gpu, hca), fresh);
            }
            _ => {
                if let Some(old) = memory.pairs.get_mut(&key(gpu, hca)).filter(|_| unknown) {
                    old.unknown_since += 1;
                }
            }
        }
    }
    memory.saw_ports(inventory);
}

/// Whether a GPU is served: by a nearest HCA that is good with it and has a usable port. Unserved
/// when it is lost or each nearest HCA is bad or has no usable port; else open.
pub(super) fn served(input: &Input<'_>, roles: &Roles, nearest: &Nearest, pairs: &[Pair], g: usize) -> Option<bool> {
    let inventory = input.inventory;
    match roles.gpus[g] {
        GpuRole::Lost => return Some(false),
        GpuRole::Eligible => {}
        _ => return None,
    }
    let near = &nearest.of_gpu[g];
    if near.is_empty() {
        // Where the sandbox keeps HCAs shut, or nothing is known of any, that is no verdict.
        return (!roles.shut.contains(&true) && !inventory.has_strangers_elsewhere()).then_some(false);
    }
    let each: Vec<Option<bool>> = near
        .iter()
        .map(|h| {
            let usable = inventory.hcas[*h].usable() || roles.hcas[*h] == HcaRole::Away;
            if usable { pairs[g * inventory.hcas.len() + h].good } else { Some(false) }
        })
        .collect();
    if each.contains(&Some(true)) {
        Some(true)
    } else if each.contains(&None) {
        None
    } else {
        Some(false)
    }
}
