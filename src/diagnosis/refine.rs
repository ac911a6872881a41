//! The more specific reason behind a general one, where something around the devices shows it. Pure.

use crate::{
    hardware::Surroundings,
    report::{Method, Reason},
};

/// What a general reason was raised for.
pub(super) struct Subject<'a> {
    pub(super) method: Option<Method>,
    /// PCI address of the HCA, where it is of one.
    pub(super) hca: Option<String>,
    /// Kernel driver of the HCA.
    pub(super) driver: Option<&'a str>,
    pub(super) errno: Option<i64>,
    /// Size of the GPU's BAR1, where it is known.
    pub(super) bar1: Option<u64>,
}

/// A reason with what shows it.
type Specific = (Reason, String);

/// BAR1 of a GPU whose memory can't all be reached through it; of this an unknown part is reserved.
const SMALL_BAR1: u64 = 512 << 20;

/// The more specific reason, if there is one.
pub(super) fn refine(reason: Reason, of: &Subject<'_>, around: &Surroundings) -> Option<Specific> {
    match reason {
        Reason::PeermemNotLoaded => own_module_of_efa(of, around).or_else(|| cannot_be_loaded(around)),
        Reason::PeermemRefused => own_module_of_efa(of, around)
            .or_else(|| legacy(around))
            .or_else(|| logged(Reason::PeermemInvalidContext, around, &["nvidia-peermem", "invalid context"]))
            .or_else(|| bar1(of, around)),
        Reason::DmabufRefused => without(Reason::KernelWithoutP2pdma, "CONFIG_PCI_P2PDMA", around)
            .or_else(|| no_path(of, around))
            .or_else(|| bar1(of, around)),
        Reason::DmabufClosedModule => without(Reason::KernelWithoutP2pdma, "CONFIG_PCI_P2PDMA", around),
        Reason::DmabufVerbUnsupported if of.driver == Some("mlx5_core") => {
            without(Reason::KernelWithoutOdp, "CONFIG_INFINIBAND_ON_DEMAND_PAGING", around)
        }
        Reason::DriverAbsent => logged(Reason::UnsignedModule, around, &["nvidia", "Key was rejected"])
            .or_else(|| logged(Reason::UnsignedModule, around, &["nvidia", "module verification failed"])),
        Reason::HcaGone | Reason::HcaNotAnswering => firmware(of, around),
        Reason::NoRdmaDevices => no_rdma_module(of, around),
        Reason::TransferRefused => (around.remaps_peer_mmio == Some(false))
            .then(|| (Reason::PeerMmioUnmapped, "/proc/driver/nvidia/params: DmaRemapPeerMmio is 0".to_owned())),
        _ => None,
    }
}

fn logged(reason: Reason, around: &Surroundings, words: &[&str]) -> Option<Specific> {
    around.logged(words).map(|line| (reason, format!("kernel log: {line}")))
}

fn without(reason: Reason, option: &str, around: &Surroundings) -> Option<Specific> {
    (around.options.get(option) == Some(&false))
        .then(|| (reason, format!("the kernel's configuration: {option} is not set")))
}

/// EFA takes GPU memory through a module of its own.
fn own_module_of_efa(of: &Subject<'_>, around: &Surroundings) -> Option<Specific> {
    let missing = of.driver == Some("efa") && !around.loaded.contains("efa_nv_peermem");
    missing.then(|| (Reason::EfaPeermemMissing, "/sys/module/efa_nv_peermem is missing".to_owned()))
}

/// Why `modprobe nvidia-peermem` would not help.
fn cannot_be_loaded(around: &Surroundings) -> Option<Specific> {
    logged(Reason::PeermemSymbolMismatch, around, &["disagrees about version of symbol ib_register_peer_memory_client"])
        .or_else(|| {
            let lacks = around.peer_interface == Some(false);
            let seen = "kallsyms has no ib_register_peer_memory_client".to_owned();
            lacks.then_some((Reason::KernelLacksPeerMemory, seen))
        })
        .or_else(|| {
            let none = around.can_load("nvidia_peermem") == Some(false);
            none.then(|| (Reason::PeermemModuleMissing, "modules.dep has no nvidia-peermem".to_owned()))
        })
}

/// `nv_peer_mem` alone does not serve drivers of today.
fn legacy(around: &Surroundings) -> Option<Specific> {
    let alone = around.loaded.contains("nv_peer_mem") && !around.loaded.contains("nvidia_peermem");
    let seen = "/sys/module/nv_peer_mem is there, /sys/module/nvidia_peermem is not".to_owned();
    alone.then_some((Reason::LegacyNvPeerMem, seen))
}

/// BAR1 has no room: EFAULT by peermem, ENOMEM by dma-buf.
fn bar1(of: &Subject<'_>, around: &Surroundings) -> Option<Specific> {
    let like_it = match of.method {
        Some(Method::Peermem) => matches!(of.errno, Some(14 | 12)),
        _ => of.errno == Some(12),
    };
    if !like_it {
        return None;
    }
    logged(Reason::Bar1Exhausted, around, &["NVRM", "can't alloc VA space"]).or_else(|| {
        let size = of.bar1.filter(|size| *size <= SMALL_BAR1)?;
        Some((Reason::Bar1Exhausted, format!("BAR1 is {} MiB, of which a part is reserved", size >> 20)))
    })
}

/// The platform gives these two no way to each other.
fn no_path(of: &Subject<'_>, around: &Surroundings) -> Option<Specific> {
    if of.errno != Some(12) {
        return None;
    }
    [&["NVRM", "no P2P support"][..], &["NVRM", "FORCE_PCIE"], &["cannot be used for peer-to-peer DMA"]]
        .iter()
        .find_map(|words| logged(Reason::NoPeerToPeerPath, around, words))
}

/// What `mlx5_core` says of its card (`health.c`, `cmd.c`, and the port module events).
fn firmware(of: &Subject<'_>, around: &Surroundings) -> Option<Specific> {
    let card = of.hca.as_deref()?;
    ["health compromised", "Fatal error", "firmware internal error", "insufficient power"]
        .iter()
        .find_map(|words| logged(Reason::HcaFirmwareFault, around, &["mlx5_core", card, words]))
}

/// The RDMA half of the network driver is not on this node at all.
fn no_rdma_module(of: &Subject<'_>, around: &Surroundings) -> Option<Specific> {
    let missing = of.driver == Some("mlx5_core") && around.can_load("mlx5_ib") == Some(false);
    missing.then(|| (Reason::RdmaModuleMissing, "modules.dep of this kernel has no mlx5_ib".to_owned()))
}
