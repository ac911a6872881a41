//! The data types that travel: what one check saw, why, and what it means. No logic.
//!
//! This is an interface (`check -o json`, `status -o json`, `/run/gdr-agent/report.json`, the
//! store): additive changes only, [`API_VERSION`] bumped otherwise.

mod code;
mod node;
mod pair;
mod reason;

pub use code::Code;
pub use node::NodeView;
pub use pair::{Distance, Loopback, Method, MethodResult, Mr, Outcome, Pair};
pub use reason::Reason;

use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::hardware::pci::PciAddress;

/// Version of this interface and of the configuration file.
pub const API_VERSION: &str = "gdr-agent/v1";

/// Everything one check saw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Always [`API_VERSION`].
    pub api_version: String,
    /// Always `Report`.
    pub kind: String,
    /// Version of the agent that made it.
    pub version: String,
    /// The node's name in Kubernetes, else its host name.
    pub node: String,
    /// The kernel's boot id (`/proc/sys/kernel/random/boot_id` of the node).
    pub boot_id: String,
    /// True when the machine is made up.
    pub simulated: bool,
    /// When the check began.
    pub started_at: Timestamp,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// Until when a reader may rely on it; only in the agent's published report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<Timestamp>,
    /// Where the distances come from.
    pub topology: TopologyKind,
    /// One entry for each NVIDIA GPU, by PCI address.
    pub gpus: Vec<Gpu>,
    /// One entry for each RDMA device, by PCI address.
    pub hcas: Vec<Hca>,
    /// Every GPU with every HCA.
    pub pairs: Vec<Pair>,
    /// What the agent can explain, the worst first.
    pub findings: Vec<Finding>,
    /// What it means for the node.
    pub verdict: Verdict,
}

/// Where the distances come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TopologyKind {
    /// The PCI tree of a physical machine.
    Physical,
    /// The PCI tree that a hypervisor made up.
    Virtual,
    /// An NCCL topology file.
    File,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// PCI address.
    pub pci: PciAddress,
    /// `GPU-…` from `/proc/driver/nvidia/gpus/*/information`.
    pub uuid: Option<String>,
    /// Product name from the same file.
    pub model: Option<String>,
    /// Version of the NVIDIA kernel driver.
    pub driver: Option<String>,
    /// Which of the two forms of that driver it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<KernelModule>,
    /// NUMA node; `null` when the kernel does not know it.
    pub numa: Option<u32>,
    /// What part it plays.
    pub role: GpuRole,
    /// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED`.
    pub gdr_supported: Option<bool>,
    /// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`.
    pub dma_buf_supported: Option<bool>,
    /// Names of its nearest HCAs, by topology alone.
    pub nearest: Vec<String>,
    /// Whether a nearest HCA works with it and has a usable port; `null` when open.
    pub served: Option<bool>,
    /// Why its row was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Reason>,
}

/// NVIDIA's kernel modules come in two forms; the closed one exports no dma-buf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KernelModule {
    /// Open source ("Open Kernel Module" in `/proc/driver/nvidia/version`).
    Open,
    /// Proprietary.
    Closed,
}

/// What part a GPU plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GpuRole {
    /// Checked.
    Eligible,
    /// Left out by a selector.
    Excluded,
    /// Has neither GPUDirect attribute.
    Incapable,
    /// In MIG mode.
    Mig,
    /// Bound to vfio-pci, for a virtual machine.
    PassedThrough,
    /// In confidential-computing mode.
    Confidential,
    /// In PCI, but fallen off the bus.
    Lost,
}

impl GpuRole {
    /// Whether the node's state speaks of such a GPU.
    #[must_use]
    pub fn counts(self) -> bool {
        matches!(self, Self::Eligible | Self::Lost)
    }
}

/// One HCA.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hca {
    /// Name as libibverbs has it.
    pub name: String,
    /// PCI address; `null` for software devices.
    pub pci: Option<PciAddress>,
    /// Kernel driver of its PCI function.
    pub driver: Option<String>,
    /// PCI vendor id, `0x15b3`.
    pub vendor: Option<String>,
    /// NUMA node; `null` when the kernel does not know it.
    pub numa: Option<u32>,
    /// Firmware version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// What runs on its wire.
    pub transport: Transport,
    /// What part it plays.
    pub role: HcaRole,
    /// Whether it is the way of some GPU to the network.
    pub rail: bool,
    /// Who holds it, when that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by: Option<String>,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// What runs on an HCA's wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// `InfiniBand`.
    Infiniband,
    /// RDMA over Converged Ethernet.
    Roce,
    /// AWS Elastic Fabric Adapter (SRD).
    Efa,
    /// iWARP.
    Iwarp,
    /// None of these.
    #[default]
    Other,
}

/// What part an HCA plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HcaRole {
    /// Checked, and may be a rail.
    Eligible,
    /// No port of it was ACTIVE since the store began.
    Idle,
    /// Left out by a selector or by default.
    Excluded,
    /// Neither method is offered by its driver.
    Incapable,
    /// In a pod's network namespace, or bound to vfio-pci.
    Away,
}

/// One port of an HCA.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Port number, from 1.
    pub number: u32,
    /// Logical state as the kernel names it: `ACTIVE`, `DOWN`, `INIT`, `ARMED`, …
    pub state: String,
    /// Rate in Gb/s.
    pub rate_gbps: Option<Rate>,
    /// `InfiniBand` subnet prefix (upper half of GID 0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet_prefix: Option<String>,
}

/// A rate in Gb/s, kept in tenths so that ports can be compared; written as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(from = "f64", into = "f64")]
#[schemars(with = "f64")]
pub struct Rate(u32);

impl From<f64> for Rate {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // clamped to what fits
    fn from(gbps: f64) -> Self {
        Self((gbps.clamp(0.0, 1e6) * 10.0).round() as u32)
    }
}

impl From<Rate> for f64 {
    fn from(rate: Rate) -> Self {
        Self::from(rate.0) / 10.0
    }
}

/// Something the agent can explain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Its stable name.
    pub reason: Reason,
    /// How bad it is.
    pub severity: Severity,
    /// Who must act.
    pub who: Who,
    /// GPUs concerned, by PCI address.
    pub gpus: Vec<PciAddress>,
    /// HCAs concerned, by name.
    pub hcas: Vec<String>,
    /// The method concerned, when it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// One line.
    pub message: String,
    /// What it was concluded from.
    pub evidence: Vec<String>,
    /// What a person can do.
    pub remedy: String,
}

/// How bad a finding is; the order is from bad to harmless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Keeps something from working.
    Error,
    /// Keeps the agent from knowing, or will hurt.
    Warning,
    /// Advice.
    Info,
}

/// Who must act on a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Who {
    /// Cables, cards, slots, firmware.
    Hardware,
    /// The GPU's or the HCA's driver.
    Driver,
    /// The node's set-up.
    Node,
    /// This agent's own sandbox or image.
    Agent,
    /// A workload.
    Workload,
}

/// What a check means for the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// The state.
    pub state: State,
    /// The worst finding's reason, or `AllRailsVerified`.
    pub reason: Reason,
    /// One line for people.
    pub message: String,
    /// Since when the state is so.
    pub since: Timestamp,
    /// True when what was last seen differs and waits for confirmation.
    pub damped: bool,
}

/// The node's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Every rail verified, nothing bad.
    Ready,
    /// Something is bad, something works.
    Degraded,
    /// No GPU is served.
    NotReady,
    /// Not known.
    Unknown,
    /// Nothing to say here.
    NotApplicable,
}

/// Writes a serde unit enum by its serialised name, so that no name is written twice.
macro_rules! display_by_serde {
    ($($ty:ty),+) => { $(impl fmt::Display for $ty {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.serialize(f) }
    })+ };
}
display_by_serde!(
    TopologyKind,
    GpuRole,
    KernelModule,
    Transport,
    HcaRole,
    Distance,
    Method,
    Outcome,
    Severity,
    Who,
    State
);
