//! One GPU with one HCA: what came of it by each method.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Code;
use crate::hardware::pci::PciAddress;

/// One GPU with one HCA.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pair {
    /// The GPU's PCI address.
    pub gpu: PciAddress,
    /// The HCA's name.
    pub hca: String,
    /// How far apart they are.
    pub distance: Distance,
    /// Whether the verdict counts it.
    pub counted: bool,
    /// Good, bad, or open (`null`), carried outcomes included.
    pub good: Option<bool>,
    /// When `good` was last seen to be so, when it is not of this check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_at: Option<Timestamp>,
    /// By `ibv_reg_dmabuf_mr`.
    pub dma_buf: MethodResult,
    /// By `ibv_reg_mr` on the device pointer.
    pub peermem: MethodResult,
}

impl Pair {
    /// The result by one method.
    #[must_use]
    pub fn by(&self, method: Method) -> &MethodResult {
        match method {
            Method::DmaBuf => &self.dma_buf,
            Method::Peermem => &self.peermem,
        }
    }
}

/// How far apart a GPU and an HCA are; the order is from near to far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Distance {
    /// At most one PCIe bridge between them.
    Pix,
    /// Several PCIe bridges, no host bridge.
    Pxb,
    /// A host bridge.
    Phb,
    /// Two host bridges of one NUMA node.
    Node,
    /// Two NUMA nodes, or unknown ones.
    Sys,
}

/// The two kernel paths by which GPU memory becomes an MR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// `ibv_reg_dmabuf_mr`.
    DmaBuf,
    /// `ibv_reg_mr` on a device pointer.
    Peermem,
}

impl Method {
    /// Both, in the order in which they are tried.
    pub const ALL: [Self; 2] = [Self::DmaBuf, Self::Peermem];
}

/// What came of one pair by one method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MethodResult {
    /// The outcome.
    pub outcome: Outcome,
    /// The step that decided it, unless it is `verified`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The step's errno or `CUresult`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// Time in the method's own steps, in microseconds.
    pub duration_us: u64,
    /// The memory region that was registered (and is gone again).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mr: Option<Mr>,
    /// The proof by transfer, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loopback: Option<Loopback>,
}

impl MethodResult {
    /// An outcome that no step of the method decided.
    #[must_use]
    pub fn bare(outcome: Outcome, step: Option<&str>) -> Self {
        Self { outcome, step: step.map(str::to_owned), code: None, duration_us: 0, mr: None, loopback: None }
    }
}

/// What came of one pair by one method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Registered, verified, and the negative control refused.
    Verified,
    /// Refused.
    Failed,
    /// Driver or provider has no such path.
    Unsupported,
    /// Not tried, for a reason that is nobody's fault.
    Skipped,
    /// Not known: a timeout, a crash, or a fault of the agent's own sandbox.
    Unknown,
}

/// The proof by transfer: what came of RDMA between host and GPU memory within one HCA.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Loopback {
    /// Both directions together.
    pub outcome: Outcome,
    /// RDMA WRITE, host to GPU.
    pub write: Outcome,
    /// RDMA READ, GPU to host.
    pub read: Outcome,
    /// How many bytes arrived right, in both directions together.
    pub bytes: u64,
    /// What ended it: an errno, a `CUresult`, a completion's status, or where bytes differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
}

/// A memory region, as it says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Mr {
    /// Address of the region, hexadecimal.
    pub addr: String,
    /// Length in bytes.
    pub length: u64,
    /// Local key, hexadecimal.
    pub lkey: String,
    /// Remote key, hexadecimal.
    pub rkey: String,
}
