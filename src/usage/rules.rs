//! Whether a GPU may be touched. Pure.

use super::{ComputeMode, Memory, Spared, Terms, Usage};
use crate::{config::BusyGpus, probe::Step};

const MIB: u64 = 1 << 20;
/// More than this `used` is somebody's: an idle GPU has a few MiB, a CUDA context 100 and more.
const IDLE: u64 = 256 * MIB;
/// What the driver may have reserved for itself where `used` has that in it: hundreds of MiB on large
/// GPUs. Rather touch a GPU with a small context on it than never check an older driver's; a process
/// shows by itself.
const RESERVED: u64 = 1024 * MIB;
/// What must be free for a registration beside a workload.
const SPARE: u64 = 2048 * MIB;

/// What may be done with a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Register; with loopback where it is asked for, unless somebody is on the GPU.
    Check {
        /// Whether bytes may be moved.
        loopback: bool,
    },
    /// Leave it alone.
    Spare {
        /// Why.
        why: Spared,
        /// The question whose answer decided.
        step: Step,
        /// What was seen.
        evidence: String,
    },
}

/// Judges. What NVML did not say keeps nobody from trying: CUDA then says by itself that a GPU is
/// taken.
#[must_use]
pub fn judge(usage: &Usage, terms: &Terms) -> Decision {
    let spare = |why, step, evidence: &str| Decision::Spare { why, step, evidence: evidence.to_owned() };
    if usage.mig == Some(true) {
        return spare(Spared::Mig, Step::NvmlMig, "MIG mode is enabled");
    }
    if usage.confidential == Some(true) {
        return spare(Spared::Confidential, Step::NvmlConfidential, "confidential computing is enabled");
    }
    if usage.mode == Some(ComputeMode::Prohibited) {
        return spare(Spared::Prohibited, Step::NvmlMode, "compute mode is prohibited");
    }
    let Some((step, evidence)) = used(usage, terms) else { return Decision::Check { loopback: true } };
    let busy = |evidence| Decision::Spare { why: Spared::Busy, step, evidence };
    // Whoever has an exclusive GPU, or is about to, must not find us on it.
    if terms.busy == BusyGpus::Skip || usage.mode == Some(ComputeMode::Exclusive) {
        return busy(evidence);
    }
    match usage.memory.map(|memory| memory.free) {
        Some(free) if free >= SPARE => Decision::Check { loopback: false },
        Some(free) => busy(format!("{evidence}; {} MiB are free", free / MIB)),
        None => busy(format!("{evidence}; how much memory is free is not known")),
    }
}

/// Whether somebody has it, and by which question that shows.
fn used(usage: &Usage, terms: &Terms) -> Option<(Step, String)> {
    if let Some(holder) = &terms.held_by {
        return Some((Step::Pods, holder.clone()));
    }
    if let Some(processes) = usage.processes.as_deref().filter(|list| !list.is_empty()) {
        let shown: Vec<_> = processes.iter().take(4).map(ToString::to_string).collect();
        let more = if processes.len() > shown.len() { ", …" } else { "" };
        return Some((Step::NvmlProcesses, format!("in use by process {}{more}", shown.join(", "))));
    }
    let memory = usage.memory.filter(|memory| !terms.memory_is_node && memory.used > limit(memory))?;
    Some((Step::NvmlMemory, format!("{} MiB of its memory are in use", memory.used / MIB)))
}

fn limit(memory: &Memory) -> u64 {
    if memory.with_reserved { IDLE + RESERVED } else { IDLE }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: u64 = 80 << 30;

    fn idle() -> Usage {
        Usage {
            mig: Some(false),
            confidential: Some(false),
            mode: Some(ComputeMode::Default),
            processes: Some(Vec::new()),
            memory: Some(memory(4)),
            persistence: Some(true),
            virtual_gpu: Some(false),
            ..Usage::default()
        }
    }

    fn memory(used: u64) -> Memory {
        Memory { used: used * MIB, free: TOTAL - used * MIB, with_reserved: false }
    }

    fn nearly_full(free: u64) -> Memory {
        memory(TOTAL / MIB - free)
    }

    fn with_reserved(used: u64) -> Memory {
        Memory { with_reserved: true, ..memory(used) }
    }

    fn terms() -> Terms {
        Terms { busy: BusyGpus::Skip, held_by: None, memory_is_node: false }
    }

    fn held() -> Terms {
        Terms { held_by: Some("pod a/b holds nvidia.com/gpu GPU-1".to_owned()), ..terms() }
    }

    fn checking(terms: Terms) -> Terms {
        Terms { busy: BusyGpus::Check, ..terms }
    }

    #[derive(Debug, PartialEq)]
    enum Is {
        Checked,
        WithoutLoopback,
        Spared(Spared, Step),
    }

    use ComputeMode::{Default as Shared, Exclusive, Prohibited};
    use Is::{Checked, WithoutLoopback};

    fn is(usage: &Usage, terms: &Terms) -> Is {
        match judge(usage, terms) {
            Decision::Check { loopback: true } => Checked,
            Decision::Check { loopback: false } => WithoutLoopback,
            Decision::Spare { why, step, evidence } => {
                assert!(!evidence.is_empty());
                Is::Spared(why, step)
            }
        }
    }

    #[test]
    fn who_has_it_is_left_alone() {
        let busy = |step| Is::Spared(Spared::Busy, step);
        let node = Terms { memory_is_node: true, ..terms() };
        for (what, usage, terms, expected) in [
            ("idle", idle(), terms(), Checked),
            ("NVML is not there", Usage::default(), terms(), Checked),
            ("another process", Usage { processes: Some(vec![4711]), ..idle() }, terms(), busy(Step::NvmlProcesses)),
            ("exactly the limit", Usage { memory: Some(memory(256)), ..idle() }, terms(), Checked),
            ("more than the limit", Usage { memory: Some(memory(257)), ..idle() }, terms(), busy(Step::NvmlMemory)),
            ("reserved in it", Usage { memory: Some(with_reserved(1280)), ..idle() }, terms(), Checked),
            (
                "more than reserved",
                Usage { memory: Some(with_reserved(1281)), ..idle() },
                terms(),
                busy(Step::NvmlMemory),
            ),
            ("memory is a node", Usage { memory: Some(memory(9000)), ..idle() }, node.clone(), Checked),
            ("a process there", Usage { processes: Some(vec![1]), ..idle() }, node, busy(Step::NvmlProcesses)),
            (
                "nothing of processes",
                Usage { processes: None, memory: Some(memory(257)), ..idle() },
                terms(),
                busy(Step::NvmlMemory),
            ),
            ("a pod holds it", idle(), held(), busy(Step::Pods)),
            ("a pod, no NVML", Usage::default(), held(), busy(Step::Pods)),
        ] {
            assert_eq!(is(&usage, &terms), expected, "{what}");
        }
    }

    #[test]
    fn what_can_t_be_checked_is_said_before_who_has_it() {
        for (what, usage, expected) in [
            ("MIG", Usage { mig: Some(true), ..idle() }, Is::Spared(Spared::Mig, Step::NvmlMig)),
            (
                "confidential",
                Usage { confidential: Some(true), ..idle() },
                Is::Spared(Spared::Confidential, Step::NvmlConfidential),
            ),
            ("prohibited", Usage { mode: Some(Prohibited), ..idle() }, Is::Spared(Spared::Prohibited, Step::NvmlMode)),
            ("exclusive, nobody on it", Usage { mode: Some(Exclusive), ..idle() }, Checked),
        ] {
            assert_eq!(is(&usage, &terms()), expected, "{what}");
            let busy = Usage { processes: Some(vec![1]), ..usage };
            let expected = if expected == Checked { Is::Spared(Spared::Busy, Step::NvmlProcesses) } else { expected };
            assert_eq!(is(&busy, &terms()), expected, "{what}, and busy");
            assert_eq!(is(&busy, &checking(held())), is(&busy, &held()), "{what}, busyGpus: check");
        }
    }

    #[test]
    fn beside_a_workload_only_with_room_and_without_loopback() {
        let busy = |step| Is::Spared(Spared::Busy, step);
        let process = Usage { processes: Some(vec![4711]), mode: Some(Shared), ..idle() };
        for (what, usage, terms, expected) in [
            ("idle", idle(), terms(), Checked),
            ("room", process.clone(), terms(), WithoutLoopback),
            ("just room", Usage { memory: Some(nearly_full(2048)), ..process.clone() }, terms(), WithoutLoopback),
            ("none", Usage { memory: Some(nearly_full(2047)), ..process.clone() }, terms(), busy(Step::NvmlProcesses)),
            ("unknown", Usage { memory: None, ..process }, terms(), busy(Step::NvmlProcesses)),
            ("a pod's", idle(), held(), WithoutLoopback),
            ("a pod's, no NVML", Usage::default(), held(), busy(Step::Pods)),
            ("a pod's, exclusive", Usage { mode: Some(Exclusive), ..idle() }, held(), busy(Step::Pods)),
        ] {
            assert_eq!(is(&usage, &checking(terms)), expected, "{what}");
        }
    }
}
