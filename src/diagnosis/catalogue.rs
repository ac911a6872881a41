//! The catalogue: one row for each reason. `gdr-agent explain` and `docs/reasons.md` are this table.

use crate::report::{Reason, Who};

/// What can be said of a reason without a node at hand.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The name.
    pub reason: Reason,
    /// Who must act.
    pub who: Who,
    /// Whether it can pass by itself, so that one look is not enough.
    pub transient: bool,
    /// What it means, in one line.
    pub summary: &'static str,
    /// What raises it.
    pub detected: &'static str,
    /// What a person can do.
    pub remedy: &'static str,
}

/// The row of a reason.
#[must_use]
pub fn entry(reason: Reason) -> &'static Entry {
    // A test sees to it that every reason has its row.
    CATALOGUE.iter().find(|e| e.reason == reason).unwrap_or(&CATALOGUE[0])
}

/// Where a reason stands; the earlier is the more specific.
#[must_use]
pub(super) fn position(reason: Reason) -> usize {
    CATALOGUE.iter().position(|e| e.reason == reason).unwrap_or(usize::MAX)
}

macro_rules! catalogue {
    ($($reason:ident, $who:ident, $passing:ident, $summary:literal, $detected:literal, $remedy:literal;)+) => {
        /// Every row, the more specific first.
        pub const CATALOGUE: &[Entry] = &[$(Entry {
            reason: Reason::$reason,
            who: Who::$who,
            transient: catalogue!(@ $passing),
            summary: $summary,
            detected: $detected,
            remedy: $remedy,
        },)+];
    };
    (@ passing) => { true };
    (@ lasting) => { false };
}

catalogue! {
    GpuLost, Hardware, lasting,
        "The GPU has fallen off the bus.",
        "Its PCI configuration space reads as all ones, or NVML calls it lost and CUDA can't use it.",
        "Drain the node and reset it or power it off and on; if the GPU is lost again, look for Xid 79 in the kernel log and have it replaced.";
    HardwareMissing, Hardware, lasting,
        "There is less hardware than this machine once had, or than policy.expect asks for.",
        "PCI functions of GPUs and HCAs, counted by kind, beside the most that was ever seen here (kept on the host, for this serial number).",
        "Power the machine off and on, reseat the device, and look for PCIe errors in the kernel log; where it was taken out on purpose, run `gdr-agent accept` on the node.";
    GpuEccUncorrectable, Hardware, lasting,
        "The GPU's memory reports an uncorrectable error.",
        "A CUDA call answers CUDA_ERROR_ECC_UNCORRECTABLE (214).",
        "Drain the node and reset the GPU (`nvidia-smi --gpu-reset`); if it comes back, have the GPU replaced.";
    TransferCorrupt, Hardware, lasting,
        "GPU memory can be registered, and the bytes that a transfer brings are wrong.",
        "Loopback: RDMA WRITE or READ completes, and the first byte that differs is in the evidence.",
        "Unexplained by what the agent can read. Keep jobs off this pair; collect `gdr-agent check --loopback -o json`, the kernel log and `nvidia-bug-report.sh`, and compare with another slot, driver and firmware.";
    PeerMmioUnmapped, Driver, lasting,
        "GPU memory can be registered, transfers over it are refused, and the NVIDIA driver does not map other devices' memory through the IOMMU.",
        "Loopback fails, and /proc/driver/nvidia/params has DmaRemapPeerMmio: 0.",
        "Load the nvidia module with NVreg_DmaRemapPeerMmio=1.";
    TransferRefused, Hardware, lasting,
        "GPU memory can be registered, and a transfer over it is refused.",
        "Loopback: the completion's status is in the evidence; host memory could be transferred a moment before.",
        "Candidates: ACS redirect on a bridge between the two (see AcsRedirect), an IOMMU that translates (boot with iommu=pt), a dma-buf mapping this platform can't do; in a virtual machine, address translation services switched off on the adapter (mlxconfig ATS_ENABLED). If none applies it is unexplained: collect `gdr-agent check --loopback -o json` and the kernel log.";
    UnsignedModule, Driver, lasting,
        "The kernel refuses the NVIDIA module because of its signature (Secure Boot).",
        "No NVIDIA driver is loaded, and the kernel log says that its key was rejected.",
        "Sign the modules and enrol the key (mokutil), use the distribution's signed driver, or turn Secure Boot off.";
    DriverAbsent, Driver, passing,
        "The NVIDIA driver is not there: no kernel module, or no libcuda.so.1.",
        "/proc/driver/nvidia/version is missing, or libcuda.so.1 can't be loaded from any of the places that the finding lists.",
        "Install the NVIDIA driver on the node, or wait for the GPU operator's driver container; if the library is in another place, set driver.root or driver.mode.";
    DriverLibraryMismatch, Driver, passing,
        "libcuda and the NVIDIA kernel module are of different versions.",
        "cuInit answers CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803).",
        "Finish the driver's upgrade: reload the kernel modules or reboot the node.";
    FabricManagerDown, Driver, passing,
        "The GPUs are not ready: on NVSwitch machines the fabric manager has not set them up.",
        "cuInit answers CUDA_ERROR_SYSTEM_NOT_READY (802).",
        "Start nvidia-fabricmanager in the driver's version; shortly after boot this passes by itself. On a machine without NVSwitch: load nvidia_uvm with uvm_disable_hmm=1.";
    GpuNotVisible, Agent, passing,
        "The driver shows no such GPU to this process.",
        "cuInit answers CUDA_ERROR_NO_DEVICE (100), or the GPU of this PCI address is not among CUDA's devices.",
        "See that /dev/nvidia0, /dev/nvidiactl and /dev/nvidia-uvm are in the agent's container and may be opened, and that nvidia-smi on the node shows the GPU.";
    NotDeviceMemory, Driver, passing,
        "What CUDA gave as GPU memory is not the GPU's own: a registration of it would prove nothing.",
        "CUDA calls the allocation managed or host memory, or the kernel can read it.",
        "See which libcuda.so.1 is loaded (the evidence names it): a stub, a simulator or a preloaded library stands where the driver's should.";
    ControlAccepted, Agent, passing,
        "A registration that must be refused was accepted, so that an accepted one proves nothing.",
        "Memory that nobody may touch was registered, or a range past the end of a dma-buf.",
        "See which libibverbs and provider are loaded: a simulator or a preloaded library stands where the real one should.";
    MrMismatch, Driver, passing,
        "A memory region was registered whose keys or length are not what they must be.",
        "Two live memory regions have the same key, or the length is not the one asked for.",
        "Update the adapter's driver and the provider library; report it with the output of `gdr-agent check -v -o json`.";
    MemlockLimit, Agent, lasting,
        "The limit on locked memory forbids the registration.",
        "ibv_reg_mr answers EPERM or ENOMEM, RLIMIT_MEMLOCK is smaller than what is to be registered, and CAP_IPC_LOCK is not effective.",
        "Give the container CAP_IPC_LOCK as user 0, or raise the limit for all containers (LimitMEMLOCK=infinity for containerd).";
    UverbsNotLoaded, Node, passing,
        "The kernel module ib_uverbs is not loaded, so that no program can use the HCAs.",
        "RDMA devices in /sys/class/infiniband, but no /sys/class/infiniband_verbs.",
        "modprobe ib_uverbs, and list it in /etc/modules-load.d.";
    UverbsNodeMissing, Agent, passing,
        "The HCA's device node is not there.",
        "sysfs has the HCA and its uverbs number, and the node is missing beneath the device root.",
        "Mount the node's /dev into the container (the chart does); on the node itself, see why udev made no /dev/infiniband.";
    UverbsPermission, Agent, passing,
        "The HCA's device node can't be opened.",
        "open(2) of the node answers EPERM, EACCES or ENXIO.",
        "Run the agent privileged or allow the device in its container (device cgroup); the node's mode should be 0666.";
    ProviderMissing, Agent, passing,
        "libibverbs has no provider for this HCA, or is not there at all.",
        "The kernel has the device and its node can be opened, and libibverbs does not list it.",
        "Use an image whose rdma-core has the HCA's provider (libibverbs/lib*-rdmav*.so and its file in /etc/libibverbs.d).";
    RdmaCoreTooOld, Agent, lasting,
        "This libibverbs has no dma-buf registration: its rdma-core is older than version 34.",
        "libibverbs.so.1 has no function ibv_reg_dmabuf_mr.",
        "Use an image with a newer rdma-core (this project's has 56 or newer); the node needs nothing.";
    ProviderAbiMismatch, Agent, lasting,
        "libibverbs and the HCA's provider library are not of one rdma-core, so that the HCA can't be used.",
        "libibverbs complains of an ABI on stderr, and does not list or open the HCA.",
        "Use one source of RDMA libraries: this project's image as it is, with nothing of OFED mounted over it.";
    RdmaModuleMissing, Node, lasting,
        "There are RDMA adapters, and mlx5_ib is not on this node: without it they are plain network cards.",
        "mlx5_core is loaded, there is no RDMA device, and modules.dep of this kernel has no mlx5_ib.",
        "Install the package that has it (Ubuntu: linux-modules-extra-$(uname -r); Red Hat: kernel-modules-extra), then `modprobe mlx5_ib` and list it in /etc/modules-load.d.";
    NoRdmaDevices, Node, passing,
        "There are RDMA adapters, but no RDMA device: the driver is missing or still loading.",
        "PCI functions of RDMA adapters without an entry in /sys/class/infiniband.",
        "modprobe mlx5_ib (ConnectX) or efa; some distributions have it in a package of its own (kernel-modules-extra).";
    KernelLacksPeerMemory, Node, lasting,
        "This kernel has no peer-memory interface: nvidia_peermem can't be loaded.",
        "ibv_reg_mr answers EFAULT (14), nvidia_peermem is not loaded, and /proc/kallsyms has no ib_register_peer_memory_client.",
        "Use dma-buf (open NVIDIA kernel modules, Linux 5.12 or newer), or install DOCA-OFED, which brings the interface, and rebuild the GPU driver.";
    PeermemSymbolMismatch, Driver, lasting,
        "nvidia_peermem was built for another version of OFED than the one that runs.",
        "ibv_reg_mr answers EFAULT (14), nvidia_peermem is not loaded, and the kernel log says that it disagrees about a symbol's version.",
        "Rebuild the GPU driver after OFED: delete the driver pod, or reinstall the package.";
    PeermemModuleMissing, Driver, lasting,
        "The kernel module nvidia_peermem is not on this node.",
        "ibv_reg_mr answers EFAULT (14), nvidia_peermem is not loaded, and modules.dep of this kernel does not have it.",
        "Reinstall the GPU driver with its kernel modules (for a driver container: FORCE_REINSTALL=true), after OFED; or use dma-buf.";
    EfaPeermemMissing, Node, lasting,
        "EFA takes GPU memory through a module of its own, efa_nv_peermem, which is not loaded.",
        "ibv_reg_mr on an EFA device answers an error, and /sys/module/efa_nv_peermem is missing.",
        "Install the EFA driver that brings efa_nv_peermem, or use the open NVIDIA kernel modules (dma-buf).";
    LegacyNvPeerMem, Node, lasting,
        "nv_peer_mem, the forerunner of nvidia_peermem, is loaded; it does not serve drivers of today, and keeps its successor out.",
        "/sys/module/nv_peer_mem is there, alone with registrations that fail, or beside nvidia_peermem.",
        "Remove the package nv_peer_mem (nvidia-peer-memory), unload it, and then load nvidia-peermem, or use dma-buf.";
    PeermemInvalidContext, Driver, passing,
        "nvidia_peermem has lost track of a mapping after a race at a process's end.",
        "ibv_reg_mr fails with nvidia_peermem loaded, and the kernel log says `invalid context`.",
        "Restart the jobs on this node and update the driver; if it stays, reload nvidia_peermem or reboot.";
    KernelWithoutP2pdma, Node, lasting,
        "This kernel is built without PCI peer-to-peer support, so that no dma-buf of GPU memory can be used.",
        "dma-buf fails, and the kernel's configuration has CONFIG_PCI_P2PDMA not set.",
        "Use a kernel with CONFIG_PCI_P2PDMA=y, or DOCA-OFED with nvidia-peermem.";
    KernelWithoutOdp, Node, lasting,
        "This kernel is built without on-demand paging for RDMA, which mlx5 needs for dma-bufs.",
        "ibv_reg_dmabuf_mr is not supported by an mlx5 device, and CONFIG_INFINIBAND_ON_DEMAND_PAGING is not set.",
        "Use a kernel with CONFIG_INFINIBAND_ON_DEMAND_PAGING=y, or load nvidia-peermem.";
    NoPeerToPeerPath, Hardware, lasting,
        "The platform gives this GPU and this HCA no way to each other's memory.",
        "ibv_reg_dmabuf_mr answers ENOMEM (12), and the kernel log has what the driver says of it.",
        "See ACS and the root complex between the two (`lspci -t`); other pairs of this node may have a way. On Grace, see the driver's note on FORCE_PCIE.";
    Bar1Exhausted, Node, passing,
        "BAR1, through which the HCA reaches the GPU's memory, has no room.",
        "A registration answers EFAULT or ENOMEM, and the kernel log says so, or BAR1 is small.",
        "See `nvidia-smi -q -d MEMORY`: end what holds BAR1 (GDRCopy, other registrations), or enable a large BAR (resizable BAR, `above 4G decoding`) in the firmware; in a VM, give it more MMIO space.";
    VgpuWithoutGpuDirect, Node, lasting,
        "A vGPU's memory can't be registered: its profile, or its host's driver, has no GPUDirect RDMA.",
        "A registration or an export is refused, and NVML says that the GPU is a vGPU.",
        "Give the virtual machine a profile with GPUDirect RDMA (a whole GPU on a supported host, open kernel modules in the guest), or pass the GPU through.";
    PeermemNotLoaded, Node, lasting,
        "The kernel module nvidia_peermem is not loaded: ibv_reg_mr can't take GPU memory.",
        "ibv_reg_mr answers EFAULT (14) and there is no /sys/module/nvidia_peermem.",
        "modprobe nvidia-peermem and list it in /etc/modules-load.d; if modprobe answers `Invalid argument` and the kernel log is silent, the NVIDIA driver was built before OFED: build it again. Or use dma-buf (open NVIDIA kernel modules, Linux 5.12 or newer).";
    PeermemRefused, Driver, passing,
        "nvidia_peermem is loaded, and the registration of GPU memory is refused.",
        "ibv_reg_mr on GPU memory answers an errno while the module is there.",
        "Look for `nvidia-peermem` and `NVRM` in the kernel log: candidates are a driver built before OFED, BAR1 exhausted, and a vGPU profile without GPUDirect; then reload the module.";
    PeermemUnsupported, Driver, lasting,
        "The GPU, its driver or the kernel has no peer-memory path (ibv_reg_mr on GPU memory).",
        "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED is 0, or ibv_reg_mr answers that the operation does not exist.",
        "Use dma-buf: the open NVIDIA kernel modules, Linux 5.12 or newer, and an rdma-core that has it.";
    DmabufClosedModule, Driver, lasting,
        "The GPU driver exports no dma-buf: the closed kernel module, or a GPU before Turing.",
        "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0, or cuMemGetHandleForAddressRange answers CUDA_ERROR_NOT_SUPPORTED (801).",
        "Switch to the open NVIDIA kernel modules (version 515 or newer), or load nvidia-peermem.";
    DmabufVerbUnsupported, Node, lasting,
        "The HCA's provider or kernel driver has no dma-buf registration.",
        "ibv_reg_dmabuf_mr answers EOPNOTSUPP (95) or EPROTONOSUPPORT (93).",
        "Use a kernel of 5.12 or newer whose HCA driver has the operation (mlx5, efa, irdma, bnxt_re, mana, ionic) and an rdma-core that matches; or load nvidia-peermem.";
    DmabufRefused, Driver, passing,
        "A dma-buf of GPU memory was exported, or should have been, and its registration is refused.",
        "cuMemGetHandleForAddressRange or ibv_reg_dmabuf_mr answers an error other than `not supported`.",
        "Look for `NVRM` and `mlx5` in the kernel log: candidates are BAR1 exhausted, an IOMMU that does not map peer memory, and no peer-to-peer path on this platform.";
    ProbeTimeout, Agent, passing,
        "A step of the check took longer than its deadline.",
        "The child fell silent at the step that the finding names.",
        "See what the driver says in the kernel log; if the child is stuck in the kernel, only the driver's reset or a reboot frees it.";
    ProbeNotStarted, Agent, passing,
        "The process that checks this GPU could not be started.",
        "fork, exec, a folder in /run/gdr-agent or dropping capabilities failed; the errno is in the evidence.",
        "See the pod's limits (pids, memory) and that /run/gdr-agent can be written.";
    ProbeCrashed, Agent, passing,
        "The process that checks this GPU died.",
        "The child ended by a signal or without finishing, at the step that the finding names.",
        "Report it with the output of `gdr-agent check -v -o json`; see that the driver's libraries and kernel module are of one version.";
    StubLibrary, Node, lasting,
        "libcuda is the CUDA toolkit's stub, not the driver's library.",
        "A CUDA call answers CUDA_ERROR_STUB_LIBRARY (34).",
        "Take the toolkit's stubs folder off the library path of the node; the driver's libcuda.so.1 comes with the driver.";
    CompatLibrary, Node, lasting,
        "A forward-compatibility libcuda (cuda-compat) is in use, and this GPU or driver does not take it.",
        "A CUDA call answers CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE (804).",
        "Remove the cuda-compat package from the library path of the node, or update the driver.";
    MpsUnreachable, Workload, passing,
        "An MPS server has this GPU, and can't be reached.",
        "A CUDA call answers one of CUDA's MPS errors (805 to 809).",
        "Nothing to do while jobs use MPS; else end the daemon on the node (`echo quit | nvidia-cuda-mps-control`).";
    HcaFirmwareFault, Hardware, lasting,
        "The HCA's firmware has failed, or the slot gives it too little power.",
        "A verbs call answers that the HCA is gone or does not answer, and its driver says so in the kernel log.",
        "Power the node off and on (a reboot does not reset the card) and update the card's firmware; if it comes back, have the card replaced.";
    HcaGone, Driver, passing,
        "The HCA went away while it was checked: its driver was reloaded, it was moved, or its firmware failed.",
        "A verbs call answers EIO (5), ENXIO (6) or ENODEV (19).",
        "Nothing to do while the network driver is being updated; if it stays, see the kernel log (`mlx5_core`, `health`) and the card's firmware.";
    HcaNotAnswering, Hardware, passing,
        "The HCA does not answer its driver in time.",
        "A verbs call answers EINTR (4), EAGAIN (11), EBUSY (16) or ETIMEDOUT (110).",
        "See the kernel log for the card's command interface (`mlx5_core`, `timeout`); if it stays, reset the card (`mlxfwreset`) or power the node off and on.";
    HcaOutOfResources, Workload, passing,
        "The HCA, or this container, has no room for another context, PD or queue.",
        "A verbs call answers ENOMEM (12), ENFILE (23), EMFILE (24) or ENOSPC (28).",
        "See who holds them with `rdma resource show`; a virtual function may need larger limits, and the rdma cgroup may set some.";
    VerbsFailed, Driver, passing,
        "A verbs call failed for a reason that has no row of its own.",
        "The call and its errno are in the evidence.",
        "See the kernel log for the HCA's driver on the node.";
    LoopbackImpossible, Node, passing,
        "The proof by transfer could not be tried: this HCA does not carry even what is no GPU memory, or something else stopped it first.",
        "Loopback: making queue pairs, moving host memory, copying to the GPU, or the larger registration failed; the code is in the evidence.",
        "The registration's result stands. See the port (an InfiniBand LID, a RoCE address), the limits of the HCA, and BAR1 for the larger region (check.deepSize).";
    NoUsableGid, Node, passing,
        "The RoCE port has no GID of version 2, so that nothing can be sent over it.",
        "sysfs, ports/N/gid_attrs/types: no entry `RoCE v2` with an address.",
        "Give the port's network interface an IP address, and see that it is up.";
    CudaFailed, Driver, passing,
        "A CUDA call failed for a reason that has no row of its own.",
        "The call and its CUresult are in the evidence.",
        "See nvidia-smi and the kernel log (`NVRM`, `Xid`) on the node.";
    CpusetHidesGpuMemory, Agent, passing,
        "This container may not allocate on the NUMA nodes that are the GPU's memory, so that CUDA can make no context.",
        "A context or an allocation is refused for want of memory, and Mems_allowed_list leaves out nodes that have memory.",
        "Leave cpuset.mems of the agent's pod alone (memory manager, static CPU policy, batch system); jobs started under the same cpuset fail alike.";
    GpuBusy, Workload, passing,
        "The GPU is in use, and was not checked.",
        "A pod holds it (the kubelet's PodResources), NVML shows another process or more than 256 MiB in use, or CUDA answers that the device is unavailable or out of memory.",
        "Nothing to do: the last result stays, and the GPU is checked when it is free. `check.busyGpus: check` registers memory beside a workload.";
    ComputeModeProhibited, Node, lasting,
        "The GPU's compute mode forbids that anybody uses it, and so it was not checked.",
        "NVML shows the compute mode `prohibited`.",
        "`nvidia-smi -i GPU -c DEFAULT` on the node, if it should be used.";
    PortDown, Hardware, passing,
        "A port that was ACTIVE is not.",
        "The port's state in sysfs.",
        "Look at the cable, the transceiver and the switch port; on InfiniBand at the subnet manager; `ip link` or `ibstat` on the node show more.";
    LinkFlapping, Hardware, passing,
        "The link went down several times within an hour.",
        "The port's counter link_downed in sysfs rose by 3 or more.",
        "Clean or replace the cable and the transceiver and look at the switch port's counters; jobs over this rail stall or end at each drop.";
    PodsMemlockLow, Node, lasting,
        "Containers on this node start with a small locked-memory limit: other pods will fail to register memory, although this one, with CAP_IPC_LOCK, does not.",
        "RLIMIT_MEMLOCK of this container is below 64 MiB.",
        "Set LimitMEMLOCK=infinity for containerd (a systemd drop-in), or give pods that use RDMA the capability IPC_LOCK.";
    OfferedTwice, Node, lasting,
        "Another device plugin hands out the same HCA, so that two pods could get it.",
        "The kubelet lists its PCI address or its name under a resource that is not the agent's.",
        "Take it out of one of the two: narrow resources[].select, or the other plugin's selector; or say resources[].shared where both may.";
    PersistenceOff, Node, lasting,
        "Persistence mode is off: the driver initialises the GPU anew for each process, for seconds, and forgets its settings.",
        "nvmlDeviceGetPersistenceMode.",
        "Run nvidia-persistenced on the node.";
    MemoryPeersAbsent, Node, lasting,
        "nvidia_peermem works, and NCCL before 2.23.4 does not see that it does.",
        "nvidia_peermem is the only method that works, and /sys/kernel/mm/memory_peers is missing, as on Linux 6.4 and newer.",
        "Use NCCL 2.23.4 or newer, or dma-buf.";
    OldDriverP2pRace, Driver, lasting,
        "This GPU driver can crash the kernel when a registration is taken away while it is in use.",
        "nvidia_peermem is loaded, and the driver is from 515 to before 525.105.17, or before 535.14.",
        "Update the GPU driver to 525.105.17, 535.14 or newer.";
    LargeMappingFault, Driver, lasting,
        "On kernels with 64 KiB pages some drivers of this series fault on mappings of 4 GiB and more (Xid 31); smaller ones, as this check uses, work.",
        "The page size is 64 KiB, and the driver is of series 590 or newer.",
        "See NVIDIA's release notes for this driver; prove it with `gdr-agent check --loopback` and check.deepSize of more than 4GiB, or use a driver of series 580.";
    RailMissing, Hardware, passing,
        "A GPU has no HCA that serves it.",
        "None of its nearest HCAs has a usable port and a good registration, or there is none.",
        "See that every adapter of this GPU is cabled and its link came up; compare with a node of the same model.";
    HcasInPods, Workload, passing,
        "HCAs are in pods or bound to vfio-pci.",
        "The RDMA device or its network interface is in another network namespace, or the function is bound to vfio-pci.",
        "Nothing to do: they come back with the pods' end.";
    NotConfigured, Node, passing,
        "GPUDirect RDMA was never set up here.",
        "No method is installed, no pair was ever good, and the network is ordinary Ethernet.",
        "If this node should do GPUDirect RDMA, load nvidia-peermem or use the open NVIDIA kernel modules; else leave it out by a node selector.";
    PortNeverActive, Hardware, passing,
        "No port of any HCA was ever ACTIVE.",
        "Every port's state since the agent's store began.",
        "If this node should be on the RDMA network, see its cables and links; else there is nothing to do.";
    AcsRedirect, Node, lasting,
        "Bridges between a GPU and its HCA redirect what passes between them up to the root complex.",
        "A pair that counts meets under a PCIe switch, and a bridge below the meeting point has request redirect, completion redirect or egress control set in its ACS control register.",
        "On bare metal that runs no virtual machines, turn ACS off for these bridges, in the firmware or by `pci=disable_acs_redir=` on the kernel's command line; registrations work either way, transfers are slower, and some platforms fail them.";
    IommuTranslating, Node, lasting,
        "The IOMMU translates what passes between a GPU and its HCA.",
        "The type of the device's IOMMU group is DMA or DMA-FQ (`iommu_group/type` in sysfs).",
        "On x86 bare metal boot with `iommu=pt`, so that devices reach memory without translation; registrations work either way, transfers may be slower or fail.";
    PcieDegraded, Hardware, lasting,
        "A PCIe link trained below what both its ends can do.",
        "The link of a GPU is narrower, or that of an HCA narrower or slower, than the lesser maximum of the device and of the port that it is plugged into.",
        "Reseat the card or its riser and look for PCIe errors in the kernel log; if the firmware or the slot limits it on purpose, there is nothing to do.";
    CrossSocketPath, Hardware, lasting,
        "A GPU has no HCA on its own socket: all its traffic crosses between the processors.",
        "The GPU's NUMA node belongs to another socket than the NUMA node of every HCA.",
        "If the machine has a slot for an HCA there, use it; else keep network-heavy jobs on the GPUs of the other socket.";
    GpuGdrUnsupported, Hardware, lasting,
        "The GPU has no GPUDirect RDMA.",
        "CUDA's attributes for GPUDirect RDMA and dma-buf are both 0.",
        "Use a data-centre or professional GPU.";
    MigEnabled, Workload, lasting,
        "The GPU is in MIG mode, which this agent does not check.",
        "NVML shows MIG mode.",
        "Nothing to do.";
    CcMode, Node, lasting,
        "Confidential computing is on: other devices can't reach the GPU's memory, and this agent does not check it.",
        "NVML shows that the system's confidential-computing feature is enabled.",
        "Nothing to do; where GPUDirect RDMA is wanted, turn confidential computing off.";
    GpuPassedThrough, Workload, lasting,
        "The GPU is bound to vfio-pci, for a virtual machine.",
        "The function's driver is vfio-pci.",
        "Nothing to do.";
    GpusBusySinceBoot, Workload, passing,
        "No GPU could be checked since boot, because all are in use.",
        "Every counted pair is open because its GPU was skipped.",
        "Nothing to do: the check runs when a GPU is free.";
    DriverNotReady, Driver, passing,
        "The driver is still loading, or a change of it is under way.",
        "Within policy.settle of boot, and only what a missing driver explains is wrong.",
        "Wait; if it stays, see the driver's installation.";
    CheckPending, Agent, passing,
        "No check has finished since boot.",
        "The agent has just started.",
        "Wait a minute; if it stays, see the agent's log.";
    Paused, Agent, passing,
        "Checks are paused.",
        "The Node's annotation paused-until.",
        "Remove the annotation, or wait until it ends.";
    NoRdmaHardware, Node, passing,
        "This node has GPUs, and no RDMA adapter.",
        "No RDMA device and no PCI function that could be one.",
        "Nothing to do.";
    NoGpu, Node, passing,
        "This node has no NVIDIA GPU.",
        "No NVIDIA PCI function of class 0300 or 0302.",
        "Nothing to do.";
    AllRailsVerified, Agent, passing,
        "Every rail is verified, and nothing is bad.",
        "GPU memory was registered on every nearest HCA of every GPU, and verified.",
        "Nothing to do.";
}
