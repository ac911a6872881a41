//! Gentle on workloads: who uses a GPU, and whether a check may touch it. What NVML says is asked in
//! the child, what the kubelet says in the parent; deciding is pure.

mod offers;
mod pods;
mod rules;

use serde::{Deserialize, Serialize};

pub use offers::{also_in, is_held};
pub use pods::Pods;
pub use rules::{Decision, judge};

use crate::{config::BusyGpus, report::Reason};

/// What NVML says of a GPU; `None`: it did not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Whether it is in MIG mode.
    pub mig: Option<bool>,
    /// Whether the system does confidential computing.
    pub confidential: Option<bool>,
    /// Who may make contexts on it.
    pub mode: Option<ComputeMode>,
    /// Compute processes of others, MPS clients among them.
    pub processes: Option<Vec<u32>>,
    /// Its memory.
    pub memory: Option<Memory>,
    /// Whether the driver keeps it initialised while nobody uses it.
    pub persistence: Option<bool>,
    /// Whether it is a vGPU, of which several share one GPU.
    pub virtual_gpu: Option<bool>,
    /// Whether NVML calls it lost.
    pub lost: bool,
    /// What NVML could not be asked or did not answer, in words.
    pub untold: Vec<String>,
}

/// `nvmlComputeMode_t`, as far as drivers still have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ComputeMode {
    /// Anybody.
    Default,
    /// Nobody.
    Prohibited,
    /// One process at a time.
    Exclusive,
}

/// What of a GPU's memory is taken, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// What somebody has.
    pub used: u64,
    /// What nobody has.
    pub free: u64,
    /// Whether `used` has in it what the driver keeps for itself, which older libraries don't tell
    /// apart.
    pub with_reserved: bool,
}

/// What a GPU's usage is judged by, beside itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Terms {
    /// What to do with a GPU in use.
    pub busy: BusyGpus,
    /// The pod that holds it, with what it is called there.
    pub held_by: Option<String>,
    /// Whether its memory is a NUMA node, where the kernel and any process may have put pages.
    pub memory_is_node: bool,
}

/// Why a GPU is left alone, before anything is made on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Spared {
    /// A workload has it.
    Busy,
    /// Its compute mode forbids contexts.
    Prohibited,
    /// It is in MIG mode.
    Mig,
    /// It is in confidential-computing mode.
    Confidential,
}

impl Spared {
    /// What it is called.
    #[must_use]
    pub fn reason(self) -> Reason {
        match self {
            Self::Busy => Reason::GpuBusy,
            Self::Prohibited => Reason::ComputeModeProhibited,
            Self::Mig => Reason::MigEnabled,
            Self::Confidential => Reason::CcMode,
        }
    }
}
