//! The stable names of what can be said of a node. What each means, and what to do about it, is in
//! [`crate::diagnosis::catalogue`].

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A stable `CamelCase` name: of a finding, of a condition's reason, of an event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum Reason { $($(#[doc = $doc])+ $name,)+ }

        impl Reason {
            /// Every reason there is.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The name.
            #[must_use]
            pub fn as_str(self) -> &'static str { match self { $(Self::$name => stringify!($name),)+ } }
        }
    };
}

reasons! {
    /// Every rail is verified, nothing is bad.
    AllRailsVerified,
    /// No NVIDIA GPU here.
    NoGpu,
    /// No check has finished in this boot with this driver.
    CheckPending,
    /// The driver is still loading, or being changed.
    DriverNotReady,
    /// No RDMA device, and no PCI function that could be one.
    NoRdmaHardware,
    /// RDMA-capable PCI functions, but no RDMA device.
    NoRdmaDevices,
    /// `ib_uverbs` is not loaded.
    UverbsNotLoaded,
    /// The device node of an HCA is not there.
    UverbsNodeMissing,
    /// The device node of an HCA can't be opened.
    UverbsPermission,
    /// libibverbs, or its provider for this HCA, is missing or too old.
    ProviderMissing,
    /// libibverbs is older than dma-buf registration.
    RdmaCoreTooOld,
    /// No kernel driver for the GPU, or no libcuda.
    DriverAbsent,
    /// libcuda and the kernel module are of different versions.
    DriverLibraryMismatch,
    /// The driver is there, but shows no GPU to this process.
    GpuNotVisible,
    /// The GPU has fallen off the bus.
    GpuLost,
    /// The GPU's memory reports uncorrectable errors.
    GpuEccUncorrectable,
    /// The GPU has neither GPUDirect attribute.
    GpuGdrUnsupported,
    /// The GPU is in MIG mode.
    MigEnabled,
    /// Confidential computing keeps the GPU's memory to itself.
    CcMode,
    /// The GPU's compute mode forbids contexts.
    ComputeModeProhibited,
    /// The GPU is bound to vfio-pci.
    GpuPassedThrough,
    /// The GPU is in use.
    GpuBusy,
    /// No good check since boot, because all GPUs are in use.
    GpusBusySinceBoot,
    /// The NVSwitch fabric manager is not up.
    FabricManagerDown,
    /// libcuda is a toolkit's stub.
    StubLibrary,
    /// A forward-compatibility libcuda on a GPU or driver that does not take it.
    CompatLibrary,
    /// An MPS server keeps the GPU, and can't be reached.
    MpsUnreachable,
    /// Some other failure inside CUDA.
    CudaFailed,
    /// The HCA went away, or its driver was reloaded, during the check.
    HcaGone,
    /// The HCA does not answer its driver.
    HcaNotAnswering,
    /// The HCA's firmware or power failed, by its driver's own words.
    HcaFirmwareFault,
    /// A link that is down again and again.
    LinkFlapping,
    /// No room for another context, PD or queue on the HCA.
    HcaOutOfResources,
    /// Some other failure inside verbs.
    VerbsFailed,
    /// The kernel or the GPU has no peer-memory path.
    PeermemUnsupported,
    /// The proof by transfer could not be tried.
    LoopbackImpossible,
    /// A RoCE port has no address to go by.
    NoUsableGid,
    /// The registration works, and a transfer over it is refused.
    TransferRefused,
    /// A transfer completes, and the bytes are not those that were sent.
    TransferCorrupt,
    /// There is less hardware than there was, or than there should be.
    HardwareMissing,
    /// Another plugin hands out the same HCA.
    OfferedTwice,
    /// A vGPU's profile, or its host, has no GPUDirect RDMA.
    VgpuWithoutGpuDirect,
    /// `nvidia_peermem` is not loaded.
    PeermemNotLoaded,
    /// The kernel has no peer-memory interface, so that `nvidia_peermem` can't be loaded.
    KernelLacksPeerMemory,
    /// `nvidia_peermem` is not on this node.
    PeermemModuleMissing,
    /// `nvidia_peermem` was built for another OFED.
    PeermemSymbolMismatch,
    /// `nv_peer_mem`, the forerunner, is loaded.
    LegacyNvPeerMem,
    /// `efa_nv_peermem` is not loaded.
    EfaPeermemMissing,
    /// `nvidia_peermem` has lost track of its mappings.
    PeermemInvalidContext,
    /// BAR1 of the GPU has no room.
    Bar1Exhausted,
    /// The kernel is built without `CONFIG_PCI_P2PDMA`.
    KernelWithoutP2pdma,
    /// The kernel is built without `CONFIG_INFINIBAND_ON_DEMAND_PAGING`.
    KernelWithoutOdp,
    /// The platform gives GPU and HCA no way to each other.
    NoPeerToPeerPath,
    /// The NVIDIA driver does not map other devices' memory through the IOMMU.
    PeerMmioUnmapped,
    /// The kernel refuses the NVIDIA module's signature.
    UnsignedModule,
    /// The RDMA half of the network driver is not on this node.
    RdmaModuleMissing,
    /// libibverbs and its provider are not of one source.
    ProviderAbiMismatch,
    /// This container may not use the NUMA nodes of GPU memory.
    CpusetHidesGpuMemory,
    /// Pods here start with a small locked-memory limit.
    PodsMemlockLow,
    /// The driver initialises the GPU anew for each process.
    PersistenceOff,
    /// A folder that older NCCL looks for is not there.
    MemoryPeersAbsent,
    /// This driver can crash when a mapping is taken away.
    OldDriverP2pRace,
    /// Large mappings can fault with this driver on this kernel.
    LargeMappingFault,
    /// `nvidia_peermem` is loaded, and the registration is refused.
    PeermemRefused,
    /// The provider or the kernel has no dma-buf registration.
    DmabufVerbUnsupported,
    /// The GPU driver's closed kernel module exports no dma-buf.
    DmabufClosedModule,
    /// The dma-buf is exported, and the registration is refused.
    DmabufRefused,
    /// The locked-memory limit forbids the registration.
    MemlockLimit,
    /// A registration that must be refused was accepted.
    ControlAccepted,
    /// The memory that was registered is not GPU memory.
    NotDeviceMemory,
    /// An MR's keys, address or length are not what they must be.
    MrMismatch,
    /// A step took longer than its deadline.
    ProbeTimeout,
    /// The probe's process could not be started.
    ProbeNotStarted,
    /// The probe's process died.
    ProbeCrashed,
    /// A port that was ACTIVE is not.
    PortDown,
    /// No port was ever ACTIVE.
    PortNeverActive,
    /// A GPU has no HCA that serves it.
    RailMissing,
    /// Every HCA is in a pod or bound to vfio-pci.
    HcasInPods,
    /// Bridges send what passes between a GPU and its HCA up to the root complex.
    AcsRedirect,
    /// The IOMMU translates what passes between a GPU and its HCA.
    IommuTranslating,
    /// A PCIe link trained below what both its ends can do.
    PcieDegraded,
    /// A GPU has no HCA on its own socket.
    CrossSocketPath,
    /// GPUDirect RDMA was never set up here.
    NotConfigured,
    /// Checks are paused by an annotation.
    Paused,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Reason {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .iter()
            .copied()
            .find(|r| r.as_str().eq_ignore_ascii_case(text))
            .ok_or_else(|| format!("no reason is called `{text}`"))
    }
}
