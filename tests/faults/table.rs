//! The table: each library call of the child × each way in which it can fail → what comes of it.

/// What one method of the pair comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    Verified,
    Failed(&'static str),
    Unsupported(&'static str),
    Skipped(&'static str),
    Unknown(&'static str),
}

impl Ends {
    pub(crate) fn outcome(self) -> &'static str {
        match self {
            Self::Verified => "verified",
            Self::Failed(_) => "failed",
            Self::Unsupported(_) => "unsupported",
            Self::Skipped(_) => "skipped",
            Self::Unknown(_) => "unknown",
        }
    }

    /// The step that decided it.
    pub(crate) fn step(self) -> Option<&'static str> {
        match self {
            Self::Verified => None,
            Self::Failed(step) | Self::Unsupported(step) | Self::Skipped(step) | Self::Unknown(step) => Some(step),
        }
    }
}

/// Faults of one call that come to the same.
pub(crate) struct Row {
    /// The call, with `@n` for its n-th in a check.
    pub(crate) call: &'static str,
    /// As the stand-ins take them; `CODES` of a row are separate cells.
    pub(crate) faults: &'static [&'static str],
    pub(crate) dma_buf: Ends,
    pub(crate) peermem: Ends,
    /// The finding, `-` for none.
    pub(crate) finding: &'static str,
    /// Whether the check asks for loopback.
    pub(crate) loopback: bool,
    /// Another fault, without which the call is not made; empty for none.
    pub(crate) given: &'static str,
}

use Ends::{Failed, Skipped, Unknown, Unsupported, Verified};

const fn row(
    call: &'static str,
    faults: &'static [&'static str],
    dma_buf: Ends,
    peermem: Ends,
    finding: &'static str,
) -> Row {
    Row { call, faults, dma_buf, peermem, finding, loopback: false, given: "" }
}

/// The whole row of the matrix ends at a step.
const fn ends(call: &'static str, faults: &'static [&'static str], ends: Ends, finding: &'static str) -> Row {
    row(call, faults, ends, ends, finding)
}

const fn moves(
    call: &'static str,
    faults: &'static [&'static str],
    dma_buf: Ends,
    peermem: Ends,
    finding: &'static str,
) -> Row {
    Row { call, faults, dma_buf, peermem, finding, loopback: true, given: "" }
}

/// Of a GPU that exports no dma-buf.
const fn asks(faults: &'static [&'static str], dma_buf: Ends, peermem: Ends, finding: &'static str) -> Row {
    let given = "cuDeviceGetAttribute@2=code:1";
    Row { given, ..row("ibv_reg_dmabuf_mr@1", faults, dma_buf, peermem, finding) }
}

const CRASH: &[&str] = &["crash:SEGV", "crash:BUS", "crash:ABRT", "exit:0", "exit:7"];
const HANG: &[&str] = &["hang"];

const INIT: &str = "cuInit";
const DEVICE: &str = "cuDeviceGet";
const ATTRIBUTE: &str = "cuDeviceGetAttribute";
const CONTEXT: &str = "cuDevicePrimaryCtxRetain";
const ALLOC: &str = "cuMemAlloc";
const SYNC: &str = "cuPointerSetAttribute";
const MEMORY: &str = "device memory";
const EXPORT: &str = "cuMemGetHandleForAddressRange";
const LIST: &str = "ibv_get_device_list";
const OPEN: &str = "ibv_open_device";
const PD: &str = "ibv_alloc_pd";
const DMABUF: &str = "ibv_reg_dmabuf_mr";
const REG: &str = "ibv_reg_mr";
const HOST_MR: &str = "ibv_reg_mr of host memory";
const VERIFY: &str = "verify";
const CONTROL: &str = "control";
const DEREG: &str = "ibv_dereg_mr";
const DEALLOC: &str = "ibv_dealloc_pd";
const CLOSE: &str = "ibv_close_device";
const WRITE: &str = "loopback write";
const READ: &str = "loopback read";

/// Codes of a context that is gone, of a driver that is not up, of an argument, and one of a newer
/// driver: none says anything of GPUDirect.
const PLAIN: &[&str] =
    &["code:1", "code:3", "code:4", "code:101", "code:201", "code:709", "code:719", "code:999", "code:9999"];

/// errnos that say something of the process, the moment or the HCA, and nothing of the registration.
const GONE: &[&str] = &["code:5", "code:6", "code:19"];
const NOT_ANSWERING: &[&str] = &["code:4", "code:11", "code:16", "code:110"];
const SILENT: &[&str] = &["code:1", "code:13", "code:9", "code:23", "code:24", "wrong:null"];
const NO_SUCH_PATH: &[&str] = &["code:95", "code:93", "code:38", "code:524"];
const REFUSED: &[&str] = &["code:12", "code:14", "code:22", "code:28", "code:9999"];

const NVML: &str = "nvmlInit";
const HANDLE: &str = "nvmlDeviceGetHandleByPciBusId";
const MIG: &str = "nvmlDeviceGetMigMode";
const CONFIDENTIAL: &str = "nvmlSystemGetConfComputeState";
const MODE: &str = "nvmlDeviceGetComputeMode";
const PROCESSES: &str = "nvmlDeviceGetComputeRunningProcesses";
const IN_USE: &str = "nvmlDeviceGetMemoryInfo";
const PERSISTENCE: &str = "nvmlDeviceGetPersistenceMode";
const VIRTUALIZATION: &str = "nvmlDeviceGetVirtualizationMode";
const SHUTDOWN: &str = "nvmlShutdown";
/// What NVML does not answer is learned by trying.
const ASKED: &[&str] =
    &["code:1", "code:2", "code:3", "code:10", "code:13", "code:15", "code:16", "code:999", "code:9999"];

pub(crate) const TABLE: &[Row] = &[
    // ---- libnvidia-ml: who uses the GPU; without it, learn by trying
    ends("nvmlInit_v2", &["code:4", "code:9", "code:12", "code:18", "code:999", "code:9999"], Verified, "-"),
    ends("nvmlInit_v2", HANG, Unknown(NVML), "ProbeTimeout"),
    ends("nvmlInit_v2", CRASH, Unknown(NVML), "ProbeCrashed"),
    ends(
        "nvmlDeviceGetHandleByPciBusId_v2",
        &[
            "code:1",
            "code:2",
            "code:4",
            "code:6",
            "code:8",
            "code:11",
            "code:15",
            "code:999",
            "code:9999",
            "wrong:null",
        ],
        Verified,
        "-",
    ),
    ends("nvmlDeviceGetHandleByPciBusId_v2", HANG, Unknown(HANDLE), "ProbeTimeout"),
    ends("nvmlDeviceGetHandleByPciBusId_v2", CRASH, Unknown(HANDLE), "ProbeCrashed"),
    ends(MIG, ASKED, Verified, "-"),
    ends(MIG, &["wrong:nonsense"], Verified, "-"),
    ends(MIG, HANG, Unknown(MIG), "ProbeTimeout"),
    ends(MIG, CRASH, Unknown(MIG), "ProbeCrashed"),
    ends(CONFIDENTIAL, ASKED, Verified, "-"),
    ends(CONFIDENTIAL, &["wrong:nonsense"], Verified, "-"),
    ends(CONFIDENTIAL, HANG, Unknown(CONFIDENTIAL), "ProbeTimeout"),
    ends(CONFIDENTIAL, CRASH, Unknown(CONFIDENTIAL), "ProbeCrashed"),
    ends(MODE, ASKED, Verified, "-"),
    ends(MODE, &["wrong:nonsense"], Verified, "-"),
    ends(MODE, HANG, Unknown(MODE), "ProbeTimeout"),
    ends(MODE, CRASH, Unknown(MODE), "ProbeCrashed"),
    ends("nvmlDeviceGetComputeRunningProcesses_v3", ASKED, Verified, "-"),
    ends("nvmlDeviceGetComputeRunningProcesses_v3", &["code:4", "code:7", "wrong:many"], Verified, "-"),
    ends("nvmlDeviceGetComputeRunningProcesses_v3", HANG, Unknown(PROCESSES), "ProbeTimeout"),
    ends("nvmlDeviceGetComputeRunningProcesses_v3", CRASH, Unknown(PROCESSES), "ProbeCrashed"),
    ends("nvmlDeviceGetMPSComputeRunningProcesses_v3", ASKED, Verified, "-"),
    ends("nvmlDeviceGetMPSComputeRunningProcesses_v3", &["code:4", "code:7", "wrong:many"], Verified, "-"),
    ends("nvmlDeviceGetMPSComputeRunningProcesses_v3", HANG, Unknown(PROCESSES), "ProbeTimeout"),
    ends("nvmlDeviceGetMPSComputeRunningProcesses_v3", CRASH, Unknown(PROCESSES), "ProbeCrashed"),
    ends("nvmlDeviceGetMemoryInfo_v2", ASKED, Verified, "-"),
    ends("nvmlDeviceGetMemoryInfo_v2", &["code:25", "wrong:nonsense", "wrong:zero", "wrong:overflow"], Verified, "-"),
    ends("nvmlDeviceGetMemoryInfo_v2", HANG, Unknown(IN_USE), "ProbeTimeout"),
    ends("nvmlDeviceGetMemoryInfo_v2", CRASH, Unknown(IN_USE), "ProbeCrashed"),
    ends(PERSISTENCE, ASKED, Verified, "-"),
    ends(PERSISTENCE, &["wrong:nonsense"], Verified, "-"),
    ends(PERSISTENCE, HANG, Unknown(PERSISTENCE), "ProbeTimeout"),
    ends(PERSISTENCE, CRASH, Unknown(PERSISTENCE), "ProbeCrashed"),
    ends(VIRTUALIZATION, ASKED, Verified, "-"),
    ends(VIRTUALIZATION, &["wrong:nonsense"], Verified, "-"),
    ends(VIRTUALIZATION, HANG, Unknown(VIRTUALIZATION), "ProbeTimeout"),
    ends(VIRTUALIZATION, CRASH, Unknown(VIRTUALIZATION), "ProbeCrashed"),
    ends(SHUTDOWN, &["code:1", "code:999", "code:9999"], Verified, "-"),
    ends(SHUTDOWN, HANG, Unknown(SHUTDOWN), "ProbeTimeout"),
    ends(SHUTDOWN, CRASH, Unknown(SHUTDOWN), "ProbeCrashed"),
    // ---- libcuda: finding the GPU
    ends(INIT, &["code:1", "code:3", "code:101", "code:201", "code:999", "code:9999"], Unknown(INIT), "CudaFailed"),
    ends(INIT, &["code:100"], Unknown(INIT), "GpuNotVisible"),
    ends(INIT, &["code:2", "code:46"], Skipped(INIT), "GpuBusy"),
    ends(INIT, &["code:34"], Unknown(INIT), "StubLibrary"),
    ends(INIT, &["code:802"], Unknown(INIT), "FabricManagerDown"),
    ends(INIT, &["code:803"], Unknown(INIT), "DriverLibraryMismatch"),
    ends(INIT, &["code:804"], Unknown(INIT), "CompatLibrary"),
    ends(INIT, &["code:805", "code:807", "code:808"], Unknown(INIT), "MpsUnreachable"),
    ends(INIT, HANG, Unknown(INIT), "ProbeTimeout"),
    ends(INIT, CRASH, Unknown(INIT), "ProbeCrashed"),
    ends("cuDriverGetVersion", PLAIN, Verified, "-"),
    ends("cuDriverGetVersion", HANG, Unknown(ATTRIBUTE), "ProbeTimeout"),
    ends("cuDriverGetVersion", CRASH, Unknown(ATTRIBUTE), "ProbeCrashed"),
    ends("cuDeviceGetCount", PLAIN, Unknown(DEVICE), "CudaFailed"),
    ends("cuDeviceGetCount", &["wrong:none"], Unknown(DEVICE), "GpuNotVisible"),
    ends("cuDeviceGetCount", HANG, Unknown(DEVICE), "ProbeTimeout"),
    ends("cuDeviceGetCount", CRASH, Unknown(DEVICE), "ProbeCrashed"),
    ends("cuDeviceGet", PLAIN, Unknown(DEVICE), "CudaFailed"),
    ends("cuDeviceGet", HANG, Unknown(DEVICE), "ProbeTimeout"),
    ends("cuDeviceGet", CRASH, Unknown(DEVICE), "ProbeCrashed"),
    ends("cuDeviceGetPCIBusId", PLAIN, Unknown(DEVICE), "CudaFailed"),
    ends("cuDeviceGetPCIBusId", &["wrong:other"], Unknown(DEVICE), "GpuNotVisible"),
    ends("cuDeviceGetPCIBusId", HANG, Unknown(DEVICE), "ProbeTimeout"),
    ends("cuDeviceGetPCIBusId", CRASH, Unknown(DEVICE), "ProbeCrashed"),
    // ---- libcuda: attributes; 1 means that this driver does not know the one that was asked for
    row("cuDeviceGetAttribute@1", &["code:1"], Verified, Unsupported(ATTRIBUTE), "PeermemUnsupported"),
    row("cuDeviceGetAttribute@2", &["code:1"], Unsupported(EXPORT), Verified, "DmabufClosedModule"),
    ends(
        ATTRIBUTE,
        &["code:3", "code:4", "code:101", "code:201", "code:999", "code:9999"],
        Unknown(ATTRIBUTE),
        "CudaFailed",
    ),
    ends(ATTRIBUTE, HANG, Unknown(ATTRIBUTE), "ProbeTimeout"),
    ends(ATTRIBUTE, CRASH, Unknown(ATTRIBUTE), "ProbeCrashed"),
    // ---- libcuda: context and memory
    ends("cuDevicePrimaryCtxSetFlags_v2", PLAIN, Verified, "-"),
    ends("cuDevicePrimaryCtxSetFlags_v2", HANG, Unknown(CONTEXT), "ProbeTimeout"),
    ends("cuDevicePrimaryCtxSetFlags_v2", CRASH, Unknown(CONTEXT), "ProbeCrashed"),
    ends(CONTEXT, PLAIN, Unknown(CONTEXT), "CudaFailed"),
    ends(CONTEXT, &["code:2", "code:46"], Skipped(CONTEXT), "GpuBusy"),
    ends(CONTEXT, &["code:214"], Failed(CONTEXT), "GpuEccUncorrectable"),
    ends(CONTEXT, &["code:802"], Unknown(CONTEXT), "FabricManagerDown"),
    ends(CONTEXT, &["code:805", "code:806", "code:809"], Unknown(CONTEXT), "MpsUnreachable"),
    ends(CONTEXT, HANG, Unknown(CONTEXT), "ProbeTimeout"),
    ends(CONTEXT, CRASH, Unknown(CONTEXT), "ProbeCrashed"),
    ends("cuCtxSetCurrent", PLAIN, Unknown(CONTEXT), "CudaFailed"),
    ends("cuCtxSetCurrent", HANG, Unknown(CONTEXT), "ProbeTimeout"),
    ends("cuCtxSetCurrent", CRASH, Unknown(CONTEXT), "ProbeCrashed"),
    ends("cuMemAlloc_v2", PLAIN, Unknown(ALLOC), "CudaFailed"),
    ends("cuMemAlloc_v2", &["code:2", "code:46"], Skipped(ALLOC), "GpuBusy"),
    ends("cuMemAlloc_v2", &["code:214"], Failed(ALLOC), "GpuEccUncorrectable"),
    ends("cuMemAlloc_v2", &["wrong:null"], Unknown(SYNC), "CudaFailed"),
    ends("cuMemAlloc_v2", &["wrong:host"], Unknown(MEMORY), "NotDeviceMemory"),
    ends("cuMemAlloc_v2", HANG, Unknown(ALLOC), "ProbeTimeout"),
    ends("cuMemAlloc_v2", CRASH, Unknown(ALLOC), "ProbeCrashed"),
    ends(SYNC, PLAIN, Unknown(SYNC), "CudaFailed"),
    ends(SYNC, &["code:214"], Failed(SYNC), "GpuEccUncorrectable"),
    ends(SYNC, HANG, Unknown(SYNC), "ProbeTimeout"),
    ends(SYNC, CRASH, Unknown(SYNC), "ProbeCrashed"),
    ends("cuPointerGetAttribute", PLAIN, Unknown(MEMORY), "CudaFailed"),
    ends("cuPointerGetAttribute", &["wrong:host", "wrong:managed"], Unknown(MEMORY), "NotDeviceMemory"),
    ends("cuPointerGetAttribute", HANG, Unknown(MEMORY), "ProbeTimeout"),
    ends("cuPointerGetAttribute", CRASH, Unknown(MEMORY), "ProbeCrashed"),
    row(EXPORT, &["code:801"], Unsupported(EXPORT), Verified, "DmabufClosedModule"),
    row(EXPORT, &["code:1", "code:304", "code:999"], Failed(EXPORT), Verified, "DmabufRefused"),
    row(EXPORT, &["code:2", "code:201", "code:214", "code:709", "code:9999"], Unknown(EXPORT), Verified, "CudaFailed"),
    row(EXPORT, &["wrong:none"], Failed(EXPORT), Verified, "DmabufRefused"),
    ends(EXPORT, HANG, Unknown(EXPORT), "ProbeTimeout"),
    ends(EXPORT, CRASH, Unknown(EXPORT), "ProbeCrashed"),
    ends("cuMemFree_v2", PLAIN, Verified, "CudaFailed"),
    ends("cuMemFree_v2", &["code:214"], Verified, "GpuEccUncorrectable"),
    ends("cuMemFree_v2", HANG, Verified, "ProbeTimeout"),
    ends("cuMemFree_v2", CRASH, Verified, "ProbeCrashed"),
    ends("cuDevicePrimaryCtxRelease_v2", PLAIN, Verified, "CudaFailed"),
    ends("cuDevicePrimaryCtxRelease_v2", HANG, Verified, "ProbeTimeout"),
    ends("cuDevicePrimaryCtxRelease_v2", CRASH, Verified, "ProbeCrashed"),
    // ---- libibverbs: reaching the HCA
    ends(LIST, &["code:38"], Unknown(LIST), "UverbsNotLoaded"),
    ends(
        LIST,
        &["code:2", "code:12", "code:13", "code:9999", "wrong:null", "wrong:empty"],
        Unknown(LIST),
        "ProviderMissing",
    ),
    ends(LIST, HANG, Unknown(LIST), "ProbeTimeout"),
    ends(LIST, CRASH, Unknown(LIST), "ProbeCrashed"),
    ends("ibv_get_device_name", HANG, Unknown(OPEN), "ProbeTimeout"),
    ends("ibv_get_device_name", CRASH, Unknown(OPEN), "ProbeCrashed"),
    ends("ibv_free_device_list", HANG, Unknown(OPEN), "ProbeTimeout"),
    ends("ibv_free_device_list", CRASH, Unknown(OPEN), "ProbeCrashed"),
    ends(OPEN, &["code:1", "code:13"], Unknown(OPEN), "UverbsPermission"),
    ends(OPEN, GONE, Unknown(OPEN), "HcaGone"),
    ends(OPEN, NOT_ANSWERING, Unknown(OPEN), "HcaNotAnswering"),
    ends(OPEN, &["code:12", "code:23", "code:24", "code:28"], Unknown(OPEN), "HcaOutOfResources"),
    ends(
        OPEN,
        &["code:2", "code:22", "code:38", "code:524", "code:9999", "wrong:null"],
        Unknown(OPEN),
        "ProviderMissing",
    ),
    ends(OPEN, HANG, Unknown(OPEN), "ProbeTimeout"),
    ends(OPEN, CRASH, Unknown(OPEN), "ProbeCrashed"),
    ends(PD, GONE, Unknown(PD), "HcaGone"),
    ends(PD, NOT_ANSWERING, Unknown(PD), "HcaNotAnswering"),
    ends(PD, &["code:12", "code:28"], Unknown(PD), "HcaOutOfResources"),
    ends(PD, &["code:1", "code:22", "code:524", "code:9999", "wrong:null"], Unknown(PD), "VerbsFailed"),
    ends(PD, HANG, Unknown(PD), "ProbeTimeout"),
    ends(PD, CRASH, Unknown(PD), "ProbeCrashed"),
    // ---- dma-buf: the question, where the GPU exports none
    asks(NO_SUCH_PATH, Unsupported(DMABUF), Verified, "DmabufVerbUnsupported"),
    asks(&["code:12", "code:22", "code:9999", "wrong:null"], Unsupported(EXPORT), Verified, "DmabufClosedModule"),
    asks(HANG, Unknown(DMABUF), Unknown(DMABUF), "ProbeTimeout"),
    asks(CRASH, Unknown(DMABUF), Unknown(DMABUF), "ProbeCrashed"),
    // ---- dma-buf: 1 the registration, 2 the control
    row("ibv_reg_dmabuf_mr@1", NO_SUCH_PATH, Unsupported(DMABUF), Verified, "DmabufVerbUnsupported"),
    row("ibv_reg_dmabuf_mr@1", REFUSED, Failed(DMABUF), Verified, "DmabufRefused"),
    row("ibv_reg_dmabuf_mr@1", GONE, Unknown(DMABUF), Verified, "HcaGone"),
    row("ibv_reg_dmabuf_mr@1", NOT_ANSWERING, Unknown(DMABUF), Verified, "HcaNotAnswering"),
    row("ibv_reg_dmabuf_mr@1", SILENT, Unknown(DMABUF), Verified, "VerbsFailed"),
    row("ibv_reg_dmabuf_mr@1", &["wrong:length"], Unknown(VERIFY), Verified, "MrMismatch"),
    ends("ibv_reg_dmabuf_mr@1", HANG, Unknown(DMABUF), "ProbeTimeout"),
    ends("ibv_reg_dmabuf_mr@1", CRASH, Unknown(DMABUF), "ProbeCrashed"),
    row("ibv_reg_dmabuf_mr@2", &["wrong:accept"], Unknown(CONTROL), Verified, "ControlAccepted"),
    row("ibv_reg_dmabuf_mr@2", GONE, Unknown(CONTROL), Verified, "HcaGone"),
    row(
        "ibv_reg_dmabuf_mr@2",
        &["code:12", "code:14", "code:524", "code:9999", "wrong:null"],
        Unknown(CONTROL),
        Verified,
        "VerbsFailed",
    ),
    ends("ibv_reg_dmabuf_mr@2", HANG, Unknown(CONTROL), "ProbeTimeout"),
    ends("ibv_reg_dmabuf_mr@2", CRASH, Unknown(CONTROL), "ProbeCrashed"),
    // ---- peermem: 1 is the host page whose keys are compared, 2 the registration, 3 the control
    row("ibv_reg_mr@1", &["code:1", "code:12", "code:14", "code:9999", "wrong:null"], Verified, Verified, "-"),
    ends("ibv_reg_mr@1", HANG, Unknown(HOST_MR), "ProbeTimeout"),
    ends("ibv_reg_mr@1", CRASH, Unknown(HOST_MR), "ProbeCrashed"),
    row("ibv_reg_dmabuf_mr@1", &["wrong:keys"], Unknown(VERIFY), Verified, "MrMismatch"),
    row("ibv_reg_mr@2", NO_SUCH_PATH, Verified, Unsupported(REG), "PeermemUnsupported"),
    row("ibv_reg_mr@2", REFUSED, Verified, Failed(REG), "PeermemRefused"),
    row("ibv_reg_mr@2", GONE, Verified, Unknown(REG), "HcaGone"),
    row("ibv_reg_mr@2", NOT_ANSWERING, Verified, Unknown(REG), "HcaNotAnswering"),
    row("ibv_reg_mr@2", SILENT, Verified, Unknown(REG), "VerbsFailed"),
    row("ibv_reg_mr@2", &["wrong:length", "wrong:address", "wrong:keys"], Verified, Unknown(VERIFY), "MrMismatch"),
    row("ibv_reg_mr@2", HANG, Verified, Unknown(REG), "ProbeTimeout"),
    row("ibv_reg_mr@2", CRASH, Verified, Unknown(REG), "ProbeCrashed"),
    row("ibv_reg_mr@3", &["wrong:accept"], Verified, Unknown(CONTROL), "ControlAccepted"),
    row("ibv_reg_mr@3", GONE, Verified, Unknown(CONTROL), "HcaGone"),
    row("ibv_reg_mr@3", &["code:12", "code:22", "code:9999", "wrong:null"], Verified, Unknown(CONTROL), "VerbsFailed"),
    row("ibv_reg_mr@3", HANG, Verified, Unknown(CONTROL), "ProbeTimeout"),
    row("ibv_reg_mr@3", CRASH, Verified, Unknown(CONTROL), "ProbeCrashed"),
    // ---- clean-up: 1 is dma-buf's region, 2 peermem's, 3 the host page's; a region that stays keeps the PD
    row("ibv_dereg_mr@1", &["code:12", "code:22", "code:9999"], Unknown(DEREG), Unknown(DEALLOC), "VerbsFailed"),
    row("ibv_dereg_mr@1", GONE, Unknown(DEREG), Unknown(DEALLOC), "HcaGone"),
    row("ibv_dereg_mr@1", NOT_ANSWERING, Unknown(DEREG), Unknown(DEALLOC), "HcaNotAnswering"),
    ends("ibv_dereg_mr@1", HANG, Unknown(DEREG), "ProbeTimeout"),
    ends("ibv_dereg_mr@1", CRASH, Unknown(DEREG), "ProbeCrashed"),
    row("ibv_dereg_mr@2", &["code:12", "code:22", "code:9999"], Unknown(DEALLOC), Unknown(DEREG), "VerbsFailed"),
    row("ibv_dereg_mr@2", HANG, Verified, Unknown(DEREG), "ProbeTimeout"),
    row("ibv_dereg_mr@2", CRASH, Verified, Unknown(DEREG), "ProbeCrashed"),
    ends("ibv_dereg_mr@3", &["code:12", "code:22", "code:9999"], Unknown(DEREG), "VerbsFailed"),
    ends("ibv_dereg_mr@3", GONE, Unknown(DEREG), "HcaGone"),
    ends("ibv_dereg_mr@3", NOT_ANSWERING, Unknown(DEREG), "HcaNotAnswering"),
    ends("ibv_dereg_mr@3", HANG, Verified, "ProbeTimeout"),
    ends("ibv_dereg_mr@3", CRASH, Verified, "ProbeCrashed"),
    ends(DEALLOC, &["code:22", "code:9999"], Unknown(DEALLOC), "VerbsFailed"),
    ends(DEALLOC, GONE, Unknown(DEALLOC), "HcaGone"),
    ends(DEALLOC, NOT_ANSWERING, Unknown(DEALLOC), "HcaNotAnswering"),
    ends(DEALLOC, HANG, Verified, "ProbeTimeout"),
    ends(DEALLOC, CRASH, Verified, "ProbeCrashed"),
    ends(CLOSE, &["code:22", "code:9999"], Unknown(CLOSE), "VerbsFailed"),
    ends(CLOSE, GONE, Unknown(CLOSE), "HcaGone"),
    ends(CLOSE, HANG, Verified, "ProbeTimeout"),
    ends(CLOSE, CRASH, Verified, "ProbeCrashed"),
    // ---- loopback: what is no fault of GPU memory leaves the methods as the registration left them
    moves("ibv_query_port", &["code:22", "code:19"], Verified, Verified, "LoopbackImpossible"),
    moves("ibv_create_cq", &["code:12", "code:22", "wrong:null"], Verified, Verified, "LoopbackImpossible"),
    moves("ibv_create_qp", &["code:12", "code:22", "wrong:null"], Verified, Verified, "LoopbackImpossible"),
    moves("ibv_modify_qp", &["code:22", "code:110"], Verified, Verified, "LoopbackImpossible"),
    moves("ibv_create_qp", &["code:95"], Verified, Verified, "-"),
    moves("rdma_write@1", &["code:12", "wrong:lost"], Verified, Verified, "LoopbackImpossible"),
    moves("ibv_poll_cq", &["code:5"], Verified, Verified, "LoopbackImpossible"),
    moves("ibv_create_qp", HANG, Unknown("loopback connect"), Unknown("loopback connect"), "ProbeTimeout"),
    moves("ibv_create_qp", CRASH, Unknown("loopback connect"), Unknown("loopback connect"), "ProbeCrashed"),
    // Of dma-buf: the first transfer is from host to host, the second from host to GPU.
    moves("rdma_write@2", &["code:4", "code:10", "code:11", "code:9999"], Failed(WRITE), Verified, "TransferRefused"),
    moves(
        "rdma_write@2",
        &["wrong:flip", "wrong:short", "wrong:stale", "wrong:shift"],
        Failed(WRITE),
        Verified,
        "TransferCorrupt",
    ),
    moves("rdma_read@2", &["code:4", "code:10"], Failed(READ), Verified, "TransferRefused"),
    moves(
        "rdma_read@2",
        &["wrong:flip", "wrong:short", "wrong:stale", "wrong:shift"],
        Failed(READ),
        Verified,
        "TransferCorrupt",
    ),
    moves("rdma_write@2", &["wrong:lost"], Verified, Verified, "LoopbackImpossible"),
    moves("rdma_write@2", HANG, Unknown(WRITE), Unknown(WRITE), "ProbeTimeout"),
    moves("rdma_write@2", CRASH, Unknown(WRITE), Unknown(WRITE), "ProbeCrashed"),
    // The region covers less than it says: the end can't be written.
    moves("ibv_reg_dmabuf_mr@3", &["wrong:short"], Failed(WRITE), Verified, "TransferRefused"),
    moves("ibv_reg_dmabuf_mr@3", &["code:12"], Verified, Verified, "LoopbackImpossible"),
    moves("cuMemcpyHtoD_v2", &["code:1", "code:201", "code:999"], Verified, Verified, "LoopbackImpossible"),
    moves("cuMemcpyDtoH_v2", &["code:1", "code:201", "code:999"], Verified, Verified, "LoopbackImpossible"),
    moves("cuMemcpyDtoH_v2", HANG, Unknown(WRITE), Unknown(WRITE), "ProbeTimeout"),
    moves("cuMemAlloc_v2@2", &["code:2"], Verified, Verified, "-"),
];
