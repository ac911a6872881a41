//! What is worth knowing on a node where everything works. Never more than `info`.

use super::Facts;
use crate::report::{Method, Outcome, Reason};

/// The reasons that are nothing else.
pub(super) const ADVICE: &[Reason] = &[
    Reason::LinkFlapping,
    Reason::PodsMemlockLow,
    Reason::PersistenceOff,
    Reason::MemoryPeersAbsent,
    Reason::OldDriverP2pRace,
    Reason::LargeMappingFault,
];

/// All advice, with what it was concluded from.
pub(super) fn all(facts: &Facts<'_>) -> Vec<(Reason, String)> {
    [memlock_of_pods(facts), memory_peers(facts), both_modules(facts), p2p_race(facts), large_mappings(facts)]
        .into_iter()
        .flatten()
        .collect()
}

/// What other pods get too when they start: a limit that a capability lifts for this one alone.
fn memlock_of_pods(facts: &Facts<'_>) -> Option<(Reason, String)> {
    const ENOUGH: u64 = 64 << 20;
    let limits = facts.rows.values().find_map(|row| row.limits.as_ref())?;
    let limit = limits.memlock.filter(|limit| *limit < ENOUGH && limits.ipc_lock && limits.in_pod)?;
    Some((Reason::PodsMemlockLow, format!("RLIMIT_MEMLOCK of this container is {} KiB", limit >> 10)))
}

fn verified(facts: &Facts<'_>, method: Method) -> bool {
    facts.pairs.iter().any(|pair| pair.by(method).outcome == Outcome::Verified)
}

/// Older NCCL looks for a folder that newer kernels do not have.
fn memory_peers(facts: &Facts<'_>) -> Option<(Reason, String)> {
    let only_way = verified(facts, Method::Peermem) && !verified(facts, Method::DmaBuf);
    let absent = facts.surroundings.loaded.contains("nvidia_peermem") && !facts.surroundings.memory_peers;
    (only_way && absent).then(|| (Reason::MemoryPeersAbsent, "/sys/kernel/mm/memory_peers is missing".to_owned()))
}

fn both_modules(facts: &Facts<'_>) -> Option<(Reason, String)> {
    let both = ["nv_peer_mem", "nvidia_peermem"].iter().all(|name| facts.surroundings.loaded.contains(name));
    both.then(|| (Reason::LegacyNvPeerMem, "/sys/module has both nv_peer_mem and nvidia_peermem".to_owned()))
}

/// The version of the NVIDIA module in numbers.
fn version(facts: &Facts<'_>) -> Option<(String, Vec<u32>)> {
    let text = facts.inventory.nvidia.as_ref()?.version.clone();
    let numbers: Vec<u32> = text.split('.').filter_map(|part| part.parse().ok()).collect();
    Some((text, numbers))
}

/// A mapping that is taken away while it is in use could crash the kernel, from 515 on, until it was
/// mended in 525.105.17 and 535.14 (NVIDIA's GPUDirect RDMA guide).
fn p2p_race(facts: &Facts<'_>) -> Option<(Reason, String)> {
    let (text, numbers) = version(facts)?;
    let has_it = numbers >= vec![515]
        && numbers < vec![535, 14]
        && !(numbers >= vec![525, 105, 17] && numbers < vec![526])
        && facts.surroundings.loaded.contains("nvidia_peermem");
    has_it.then(|| (Reason::OldDriverP2pRace, format!("NVIDIA driver {text}")))
}

/// Large mappings fault below each 4 GiB where the kernel's pages are 64 KiB, with some drivers.
fn large_mappings(facts: &Facts<'_>) -> Option<(Reason, String)> {
    let (text, numbers) = version(facts)?;
    let has_it = facts.surroundings.page_size == 64 << 10 && numbers.first().is_some_and(|major| *major >= 590);
    has_it.then(|| (Reason::LargeMappingFault, format!("NVIDIA driver {text}, pages of 64 KiB")))
}
