//! What a code at a step means: a `CUresult` that ended a row, an errno that ended a pair. Pure.

use crate::{
    probe::{Step, protocol::End},
    report::{Code, Loopback, Outcome, Reason, Severity},
    usage::Spared,
};

/// Numbers of cuda.h's `CUresult` that mean something of their own here.
mod cuda {
    pub(super) const OUT_OF_MEMORY: i64 = 2;
    pub(super) const STUB_LIBRARY: i64 = 34;
    pub(super) const DEVICE_UNAVAILABLE: i64 = 46;
    pub(super) const NO_DEVICE: i64 = 100;
    pub(super) const ECC_UNCORRECTABLE: i64 = 214;
    pub(super) const SYSTEM_NOT_READY: i64 = 802;
    pub(super) const SYSTEM_DRIVER_MISMATCH: i64 = 803;
    pub(super) const COMPAT_NOT_SUPPORTED: i64 = 804;
    pub(super) const MPS: std::ops::RangeInclusive<i64> = 805..=809;
}

/// Why a row ended too early. `driver`: whether the NVIDIA kernel module is loaded.
pub(super) fn of_row(end: &End, step: Step, driver: bool) -> (Reason, Severity) {
    let code = end.code();
    match (end, step, code.as_ref().and_then(Code::as_cuda)) {
        (End::Spared(why), ..) => of_spared(*why),
        (End::TimedOut, ..) => (Reason::ProbeTimeout, Severity::Warning),
        (End::Died(_), ..) => (Reason::ProbeCrashed, Severity::Warning),
        (_, Step::Spawn | Step::Sandbox, _) => (Reason::ProbeNotStarted, Severity::Warning),
        (_, Step::LoadCuda, _) => (Reason::DriverAbsent, Severity::Error),
        (_, Step::LoadVerbs, _) => (Reason::ProviderMissing, Severity::Warning),
        (_, Step::DeviceMemory, None) => (Reason::NotDeviceMemory, Severity::Warning),
        // Without the kernel module there is no GPU to be seen; DriverAbsent says so already.
        (_, Step::Init, Some(cuda::NO_DEVICE)) if !driver => (Reason::DriverAbsent, Severity::Error),
        (_, Step::Init, Some(cuda::NO_DEVICE)) | (_, Step::Device, None) => (Reason::GpuNotVisible, Severity::Warning),
        (.., Some(cuda::DEVICE_UNAVAILABLE | cuda::OUT_OF_MEMORY)) => of_spared(Spared::Busy),
        (.., Some(cuda::ECC_UNCORRECTABLE)) => (Reason::GpuEccUncorrectable, Severity::Error),
        (.., Some(cuda::SYSTEM_NOT_READY)) => (Reason::FabricManagerDown, Severity::Error),
        (.., Some(cuda::SYSTEM_DRIVER_MISMATCH)) => (Reason::DriverLibraryMismatch, Severity::Error),
        (.., Some(cuda::STUB_LIBRARY)) => (Reason::StubLibrary, Severity::Error),
        (.., Some(cuda::COMPAT_NOT_SUPPORTED)) => (Reason::CompatLibrary, Severity::Error),
        (.., Some(number)) if cuda::MPS.contains(&number) => (Reason::MpsUnreachable, Severity::Warning),
        _ => (Reason::CudaFailed, Severity::Warning),
    }
}

/// Why a GPU was left alone. Only a mode that somebody set keeps the agent from ever knowing.
pub(super) fn of_spared(why: Spared) -> (Reason, Severity) {
    let severity = if why == Spared::Prohibited { Severity::Warning } else { Severity::Info };
    (why.reason(), severity)
}

/// Why it is not known whether a pair works, by the step that ended it and what it answered.
pub(super) fn of_unknown(step: Step, code: Option<&Code>) -> Option<Reason> {
    let errno = code.and_then(Code::as_errno);
    Some(match (step, errno) {
        (Step::Node, _) => Reason::UverbsNodeMissing,
        // What the HCA or the kernel answers of itself.
        (_, Some(5 | 6 | 19)) => Reason::HcaGone,
        (_, Some(4 | 11 | 16 | 110)) => Reason::HcaNotAnswering,
        (Step::OpenNode | Step::Open, Some(1 | 13)) => Reason::UverbsPermission,
        (Step::List, Some(38)) => Reason::UverbsNotLoaded,
        (Step::OpenNode | Step::Open | Step::Pd, Some(12 | 23 | 24 | 28)) => Reason::HcaOutOfResources,
        (Step::LoadVerbs | Step::List | Step::OpenNode | Step::Open, _) => Reason::ProviderMissing,
        (Step::Control, None) => Reason::ControlAccepted,
        (Step::Verify, _) => Reason::MrMismatch,
        (Step::Pd | Step::RegDmabuf | Step::RegMr | Step::Control | Step::Dereg | Step::DeallocPd | Step::Close, _) => {
            Reason::VerbsFailed
        }
        (Step::Export, _) => Reason::CudaFailed,
        _ => return None,
    })
}

/// Why no transfer was tried, where that deserves a word. A port that is down has its own.
pub(super) fn of_no_transfer(loopback: &Loopback) -> Option<(Reason, String)> {
    let code = loopback.code.as_ref()?;
    match loopback.outcome {
        Outcome::Unknown => Some((Reason::LoopbackImpossible, format!("loopback {code}"))),
        Outcome::Skipped => Some((Reason::NoUsableGid, "no GID of RoCE v2".to_owned())),
        _ => None,
    }
}

/// Why a transfer over a registration that works did not bring the bytes.
pub(super) fn of_transfer(code: Option<&Code>) -> Reason {
    if code.is_some_and(Code::is_difference) { Reason::TransferCorrupt } else { Reason::TransferRefused }
}
