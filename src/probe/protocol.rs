//! What parent and child say to each other: a plan on the child's stdin, then a line of JSON for
//! each step before it is taken and for each answer.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{loopback::Way, sandbox::OwnDev};
use crate::{
    hardware::PciAddress,
    report::{Code, Method, MethodResult},
    usage::{Spared, Terms, Usage},
};

/// What one child shall do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The GPU.
    pub gpu: PciAddress,
    /// The library to load.
    pub libcuda: PathBuf,
    /// Bytes of GPU memory to register.
    pub size: usize,
    /// The methods to try.
    pub methods: Vec<Method>,
    /// Bytes of GPU memory to transfer over, when loopback is wanted.
    pub deep: Option<usize>,
    /// The HCAs.
    pub hcas: Vec<Target>,
    /// What of `/dev` it shall see; none: what there is.
    pub own_dev: Option<OwnDev>,
    /// When the GPU shall be left alone.
    pub terms: Terms,
}

/// One HCA of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// Its device node; `None` where sysfs knows none.
    pub node: Option<PathBuf>,
    /// Whether it is EFA, which may refuse remote writes.
    pub efa: bool,
    /// How loopback can go over it.
    pub way: Way,
}

/// A step that can fail or hang. Its name is what reports and messages show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Step {
    /// The parent could not start a child.
    #[serde(rename = "spawn")]
    Spawn,
    /// The child has not said anything yet.
    #[serde(rename = "start")]
    Start,
    /// An earlier step of the row took all the time, or its child.
    #[serde(rename = "not reached")]
    NotReached,
    /// Reading sysfs.
    #[serde(rename = "sysfs")]
    Sysfs,
    /// Giving up what it does not need.
    #[serde(rename = "sandbox")]
    Sandbox,
    /// Waiting for the GPU's lock.
    #[serde(rename = "lock")]
    Lock,
    /// The kubelet's list of who holds the GPU.
    #[serde(rename = "PodResources")]
    Pods,
    /// Loading libnvidia-ml.
    #[serde(rename = "dlopen libnvidia-ml")]
    LoadNvml,
    /// `nvmlInit_v2`.
    #[serde(rename = "nvmlInit")]
    NvmlInit,
    /// Finding the GPU by its PCI address, which attaches to it.
    #[serde(rename = "nvmlDeviceGetHandleByPciBusId")]
    NvmlHandle,
    /// Is it in MIG mode?
    #[serde(rename = "nvmlDeviceGetMigMode")]
    NvmlMig,
    /// Is confidential computing on?
    #[serde(rename = "nvmlSystemGetConfComputeState")]
    NvmlConfidential,
    /// Who may make contexts?
    #[serde(rename = "nvmlDeviceGetComputeMode")]
    NvmlMode,
    /// Who has contexts, MPS clients included?
    #[serde(rename = "nvmlDeviceGetComputeRunningProcesses")]
    NvmlProcesses,
    /// How much of its memory is in use?
    #[serde(rename = "nvmlDeviceGetMemoryInfo")]
    NvmlMemory,
    /// Does the driver keep it initialised?
    #[serde(rename = "nvmlDeviceGetPersistenceMode")]
    NvmlPersistence,
    /// Is it a vGPU?
    #[serde(rename = "nvmlDeviceGetVirtualizationMode")]
    NvmlVirtualization,
    /// `nvmlShutdown`.
    #[serde(rename = "nvmlShutdown")]
    NvmlShutdown,
    /// Loading libcuda.
    #[serde(rename = "dlopen libcuda")]
    LoadCuda,
    /// `cuInit`.
    #[serde(rename = "cuInit")]
    Init,
    /// Finding the GPU among CUDA's devices.
    #[serde(rename = "cuDeviceGet")]
    Device,
    /// Reading attributes.
    #[serde(rename = "cuDeviceGetAttribute")]
    Attributes,
    /// Retaining the primary context.
    #[serde(rename = "cuDevicePrimaryCtxRetain")]
    Context,
    /// Allocating.
    #[serde(rename = "cuMemAlloc")]
    Alloc,
    /// `SYNC_MEMOPS`.
    #[serde(rename = "cuPointerSetAttribute")]
    SyncMemops,
    /// Is it device memory, and unreadable for the kernel?
    #[serde(rename = "device memory")]
    DeviceMemory,
    /// Loading libibverbs.
    #[serde(rename = "dlopen libibverbs")]
    LoadVerbs,
    /// Looking for the device node.
    #[serde(rename = "stat node")]
    Node,
    /// Opening the device node ourselves, because libibverbs hides why it can't.
    #[serde(rename = "open node")]
    OpenNode,
    /// Finding the HCA in libibverbs' list.
    #[serde(rename = "ibv_get_device_list")]
    List,
    /// `ibv_open_device`.
    #[serde(rename = "ibv_open_device")]
    Open,
    /// `ibv_alloc_pd`.
    #[serde(rename = "ibv_alloc_pd")]
    Pd,
    /// Registering a host page, whose keys a GPU's region must not have.
    #[serde(rename = "ibv_reg_mr of host memory")]
    HostMr,
    /// Exporting a dma-buf.
    #[serde(rename = "cuMemGetHandleForAddressRange")]
    Export,
    /// `ibv_reg_dmabuf_mr`.
    #[serde(rename = "ibv_reg_dmabuf_mr")]
    RegDmabuf,
    /// `ibv_reg_mr`.
    #[serde(rename = "ibv_reg_mr")]
    RegMr,
    /// Looking at keys, address and length.
    #[serde(rename = "verify")]
    Verify,
    /// The negative control.
    #[serde(rename = "control")]
    Control,
    /// Connecting two queue pairs, and a transfer from host memory to host memory.
    #[serde(rename = "loopback connect")]
    Connect,
    /// RDMA WRITE from host memory to GPU memory.
    #[serde(rename = "loopback write")]
    Write,
    /// RDMA READ from GPU memory to host memory.
    #[serde(rename = "loopback read")]
    Read,
    /// `ibv_dereg_mr`.
    #[serde(rename = "ibv_dereg_mr")]
    Dereg,
    /// `ibv_dealloc_pd`.
    #[serde(rename = "ibv_dealloc_pd")]
    DeallocPd,
    /// `ibv_close_device`.
    #[serde(rename = "ibv_close_device")]
    Close,
    /// `cuMemFree`.
    #[serde(rename = "cuMemFree")]
    Free,
    /// Releasing the context.
    #[serde(rename = "cuDevicePrimaryCtxRelease")]
    Release,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl std::str::FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        use serde::de::{IntoDeserializer, value::Error};
        Self::deserialize(IntoDeserializer::<Error>::into_deserializer(text)).map_err(|e| e.to_string())
    }
}

/// A line of the child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Line {
    /// About to take a step; of an HCA when it is one's.
    Step(Step, Option<String>),
    /// What the child may do.
    Limits(Limits),
    /// What NVML says of the GPU.
    Usage(Usage),
    /// The GPU is left alone, by the answer to this step's question.
    Spared(Step, Spared, String),
    /// What was learned of the GPU.
    Gpu(GpuAnswer),
    /// One HCA by one method.
    Method(String, Method, MethodResult),
    /// The GPU's row can't go on.
    Stopped(Step, Option<Code>, String),
    /// Everything is cleaned up.
    Done,
}

/// What the child's sandbox lets it do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Limits {
    /// `RLIMIT_MEMLOCK` in bytes; none: unlimited.
    pub memlock: Option<u64>,
    /// Whether `CAP_IPC_LOCK` is effective.
    pub ipc_lock: bool,
    /// Whether it runs in a pod, whose limits are other pods' too.
    pub in_pod: bool,
    /// NUMA nodes that it may allocate on (`Mems_allowed_list` in `proc_pid_status(5)`).
    pub nodes_allowed: Option<String>,
}

/// What was learned of the GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct GpuAnswer {
    /// The CUDA version of the driver, 12040 for 12.4.
    pub cuda_version: Option<i32>,
    /// Attribute 116.
    pub gdr: Option<bool>,
    /// Attribute 124.
    pub dma_buf: Option<bool>,
    /// Address and size of the allocation.
    pub allocated: Option<(u64, u64)>,
}

/// What came of one HCA in one row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HcaAnswer {
    /// By method.
    pub methods: BTreeMap<Method, MethodResult>,
}

/// What came of one child: a row of the matrix.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    /// What NVML says of it, if it was asked.
    pub usage: Option<Usage>,
    /// What was learned of the GPU.
    pub gpu: GpuAnswer,
    /// What the sandbox lets a child do.
    pub limits: Option<Limits>,
    /// By name of the HCA; complete.
    pub hcas: BTreeMap<String, HcaAnswer>,
    /// Where its children ended too early: at an HCA, after which another one goes on with the next,
    /// or for good.
    pub stops: Vec<Stopped>,
    /// Where libcuda was found, or the places that were tried.
    pub libcuda: Vec<PathBuf>,
    /// What libraries wrote to stderr.
    pub stderr: Vec<String>,
}

/// Why a row ended too early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// The step.
    pub step: Step,
    /// The HCA whose step it was.
    pub hca: Option<String>,
    /// What kind of end.
    pub end: End,
    /// What the library or the loader said.
    pub detail: String,
}

impl Stopped {
    /// Why the GPU was left alone, if it was; CUDA says by `DEVICE_UNAVAILABLE` and `OUT_OF_MEMORY`
    /// that somebody else has it.
    #[must_use]
    pub fn spared(&self) -> Option<Spared> {
        match &self.end {
            End::Spared(why) => Some(*why),
            End::Refused(Some(code)) if matches!(code.as_cuda(), Some(46 | 2)) => Some(Spared::Busy),
            _ => None,
        }
    }
}

/// How a row can end too early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The step answered with an error.
    Refused(Option<Code>),
    /// The GPU is not to be touched.
    Spared(Spared),
    /// The step did not answer in time.
    TimedOut,
    /// The child died.
    Died(Code),
}

impl End {
    /// The code to show.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(code) => code.clone(),
            Self::Spared(_) | Self::TimedOut => None,
            Self::Died(code) => Some(code.clone()),
        }
    }
}
