//! NVML, as far as the check asks it who uses a GPU.
//!
//! Nothing of it is needed: whatever a driver's library lacks or refuses is an error of that one
//! question. Numbers, not enums, because a newer driver may answer codes that nobody here knows.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    fmt,
    path::Path,
    ptr,
};

use super::{LoadError, functions};
use crate::report::Code;

type Handle = *mut c_void;
type ListProcesses<T> = unsafe extern "C" fn(Handle, *mut c_uint, *mut T) -> u32;

functions! {
    /// Names and signatures as in nvml.h.
    Table {
        required init = "nvmlInit_v2": fn() -> u32;
        required shutdown = "nvmlShutdown": fn() -> u32;
        required by_pci = "nvmlDeviceGetHandleByPciBusId_v2": fn(*const c_char, *mut Handle) -> u32;
        optional mig = "nvmlDeviceGetMigMode": fn(Handle, *mut c_uint, *mut c_uint) -> u32;
        optional confidential = "nvmlSystemGetConfComputeState": fn(*mut Confidential) -> u32;
        optional mode = "nvmlDeviceGetComputeMode": fn(Handle, *mut c_int) -> u32;
        optional persistence = "nvmlDeviceGetPersistenceMode": fn(Handle, *mut c_uint) -> u32;
        optional virtualization = "nvmlDeviceGetVirtualizationMode": fn(Handle, *mut c_uint) -> u32;
        optional memory_v2 = "nvmlDeviceGetMemoryInfo_v2": fn(Handle, *mut MemoryV2) -> u32;
        optional memory_v1 = "nvmlDeviceGetMemoryInfo": fn(Handle, *mut MemoryV1) -> u32;
        optional compute_v3 = "nvmlDeviceGetComputeRunningProcesses_v3": fn(Handle, *mut c_uint, *mut Process) -> u32;
        optional compute_v2 = "nvmlDeviceGetComputeRunningProcesses_v2": fn(Handle, *mut c_uint, *mut Process) -> u32;
        optional compute_v1 = "nvmlDeviceGetComputeRunningProcesses": fn(Handle, *mut c_uint, *mut ProcessV1) -> u32;
        optional mps_v3 = "nvmlDeviceGetMPSComputeRunningProcesses_v3": fn(Handle, *mut c_uint, *mut Process) -> u32;
        optional mps_v2 = "nvmlDeviceGetMPSComputeRunningProcesses_v2": fn(Handle, *mut c_uint, *mut Process) -> u32;
        optional mps_v1 = "nvmlDeviceGetMPSComputeRunningProcesses": fn(Handle, *mut c_uint, *mut ProcessV1) -> u32;
    }
}

/// `nvmlConfComputeSystemState_t`.
#[repr(C)]
#[derive(Default)]
pub(super) struct Confidential {
    environment: c_uint,
    feature: c_uint,
    dev_tools: c_uint,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Default)]
pub(super) struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
pub(super) struct MemoryV1 {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlProcessInfo_t`, which its versions 2 and 3 share.
#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(super) struct Process {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(super) struct ProcessV1 {
    pid: c_uint,
    used: u64,
}

/// Where either version of a process has its number.
trait HasPid: Default + Clone {
    fn pid(&self) -> u32;
}

impl HasPid for Process {
    fn pid(&self) -> u32 {
        self.pid
    }
}

impl HasPid for ProcessV1 {
    fn pid(&self) -> u32 {
        self.pid
    }
}

/// The header's `NVML_STRUCT_VERSION(Memory, 2)`: the size, and the version in the upper byte.
const MEMORY_V2: c_uint = 0x0200_0028;
const _: () = assert!(size_of::<MemoryV2>() == 40 && size_of::<Process>() == 24 && size_of::<ProcessV1>() == 16);

/// An `nvmlReturn_t` that is not success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NvmlError {
    /// The number.
    pub number: u32,
}

impl NvmlError {
    const NOT_SUPPORTED: Self = Self { number: 3 };
    const INSUFFICIENT_SIZE: Self = Self { number: 7 };
    const FUNCTION_NOT_FOUND: Self = Self { number: 13 };
    /// What an answer that can't be is given.
    const UNKNOWN: Self = Self { number: 999 };

    /// The GPU has fallen off the bus.
    #[must_use]
    pub fn is_lost(self) -> bool {
        self.number == 15
    }

    /// This GPU, driver or library has no such thing.
    #[must_use]
    pub fn is_absent(self) -> bool {
        self == Self::NOT_SUPPORTED || self == Self::FUNCTION_NOT_FOUND
    }
}

impl From<NvmlError> for Code {
    fn from(error: NvmlError) -> Self {
        Self::nvml(error.number)
    }
}

impl fmt::Display for NvmlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Code::from(*self).fmt(f)
    }
}

fn check(result: u32) -> Result<(), NvmlError> {
    if result == 0 { Ok(()) } else { Err(NvmlError { number: result }) }
}

/// What of a GPU's memory is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// All of it.
    pub total: u64,
    /// What nobody has.
    pub free: u64,
    /// What somebody has.
    pub used: u64,
    /// Whether `used` has in it what the driver keeps for itself (version 1 of the question).
    pub with_reserved: bool,
}

/// A loaded libnvidia-ml.
pub struct Nvml {
    table: Table,
}

impl Nvml {
    /// Loads a library and looks up what it must have.
    pub fn load(file: &Path) -> Result<Self, LoadError> {
        Table::load(file).map(|table| Self { table })
    }

    /// `nvmlInit_v2`, which attaches to no GPU yet.
    pub fn init(&self) -> Result<Session<'_>, NvmlError> {
        // SAFETY: takes nothing.
        check(unsafe { (self.table.init)() })?;
        Ok(Session { table: &self.table })
    }
}

/// An initialised NVML; shut down when dropped.
pub struct Session<'n> {
    table: &'n Table,
}

impl<'n> Session<'n> {
    /// A GPU by its PCI address. This attaches to it, which without persistence mode initialises it.
    pub fn gpu(&self, pci: &str) -> Result<Gpu<'n>, NvmlError> {
        let pci = CString::new(pci).map_err(|_| NvmlError::UNKNOWN)?;
        let mut handle = ptr::null_mut();
        // SAFETY: a string that ends, and a place for one handle.
        check(unsafe { (self.table.by_pci)(CStr::as_ptr(&pci), &raw mut handle) })?;
        if handle.is_null() { Err(NvmlError::UNKNOWN) } else { Ok(Gpu { table: self.table, handle }) }
    }

    /// Whether confidential computing is on; it is so for the whole system.
    pub fn confidential(&self) -> Result<bool, NvmlError> {
        let ask = self.table.confidential.ok_or(NvmlError::FUNCTION_NOT_FOUND)?;
        let mut state = Confidential::default();
        // SAFETY: a place for one structure of this shape.
        check(unsafe { ask(&raw mut state) })?;
        one_of(state.feature)
    }

    /// `nvmlShutdown`, and what came of it.
    pub fn shutdown(self) -> Result<(), NvmlError> {
        let result = self.do_shutdown();
        std::mem::forget(self);
        result
    }

    fn do_shutdown(&self) -> Result<(), NvmlError> {
        // SAFETY: undoes one `init`.
        check(unsafe { (self.table.shutdown)() })
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let _ = self.do_shutdown(); // on the way out of another error
    }
}

/// A GPU of a session.
pub struct Gpu<'n> {
    table: &'n Table,
    handle: Handle,
}

impl Gpu<'_> {
    /// Whether it is in MIG mode now.
    pub fn mig(&self) -> Result<bool, NvmlError> {
        let ask = self.table.mig.ok_or(NvmlError::FUNCTION_NOT_FOUND)?;
        let (mut current, mut pending) = (0, 0);
        // SAFETY: a handle of this session, and places for two numbers.
        check(unsafe { ask(self.handle, &raw mut current, &raw mut pending) })?;
        one_of(current)
    }

    /// `nvmlComputeMode_t`: 0 default, 2 prohibited, 3 exclusive to one process.
    pub fn mode(&self) -> Result<i32, NvmlError> {
        let ask = self.table.mode.ok_or(NvmlError::FUNCTION_NOT_FOUND)?;
        let mut mode = 0;
        // SAFETY: a handle of this session, and a place for one enumerator.
        check(unsafe { ask(self.handle, &raw mut mode) })?;
        Ok(mode)
    }

    /// Whether the driver keeps it initialised while nobody uses it.
    pub fn persistence(&self) -> Result<bool, NvmlError> {
        let ask = self.table.persistence.ok_or(NvmlError::FUNCTION_NOT_FOUND)?;
        let mut mode = 0;
        // SAFETY: a handle of this session, and a place for one number.
        check(unsafe { ask(self.handle, &raw mut mode) })?;
        one_of(mode)
    }

    /// Whether it is a vGPU in a virtual machine (`NVML_GPU_VIRTUALIZATION_MODE_VGPU`), which shares a
    /// GPU with others; one that is passed through whole is none.
    pub fn virtual_gpu(&self) -> Result<bool, NvmlError> {
        const VGPU: c_uint = 2;
        const LAST: c_uint = 4;
        let ask = self.table.virtualization.ok_or(NvmlError::FUNCTION_NOT_FOUND)?;
        let mut mode = 0;
        // SAFETY: a handle of this session, and a place for one enumerator.
        check(unsafe { ask(self.handle, &raw mut mode) })?;
        if mode <= LAST { Ok(mode == VGPU) } else { Err(NvmlError::UNKNOWN) }
    }

    /// Its memory: by version 2, else by version 1. Numbers that can't be are an error.
    pub fn memory(&self) -> Result<MemoryInfo, NvmlError> {
        let info = self.memory_v2().or_else(|error| self.memory_v1().map_err(|_| error))?;
        let taken = info.used.checked_add(info.free);
        if info.total > 0 && taken.is_some_and(|taken| taken <= info.total) {
            Ok(info)
        } else {
            Err(NvmlError::UNKNOWN)
        }
    }

    fn memory_v2(&self) -> Result<MemoryInfo, NvmlError> {
        let ask = self.table.memory_v2.ok_or(NvmlError::FUNCTION_NOT_FOUND)?;
        let mut info = MemoryV2 { version: MEMORY_V2, ..MemoryV2::default() };
        // SAFETY: a handle of this session, and a structure that says its version.
        check(unsafe { ask(self.handle, &raw mut info) })?;
        Ok(MemoryInfo { total: info.total, free: info.free, used: info.used, with_reserved: false })
    }

    fn memory_v1(&self) -> Result<MemoryInfo, NvmlError> {
        let ask = self.table.memory_v1.ok_or(NvmlError::FUNCTION_NOT_FOUND)?;
        let mut info = MemoryV1::default();
        // SAFETY: a handle of this session, and a place for one structure of this shape.
        check(unsafe { ask(self.handle, &raw mut info) })?;
        Ok(MemoryInfo { total: info.total, free: info.free, used: info.used, with_reserved: true })
    }

    /// Processes with a compute context on it, as far as this PID namespace shows them.
    pub fn compute_processes(&self) -> Result<Vec<u32>, NvmlError> {
        self.processes([self.table.compute_v3, self.table.compute_v2], self.table.compute_v1)
    }

    /// Clients of an MPS server with a context on it.
    pub fn mps_processes(&self) -> Result<Vec<u32>, NvmlError> {
        self.processes([self.table.mps_v3, self.table.mps_v2], self.table.mps_v1)
    }

    /// By the newest version that is there and answers; the first one's error counts.
    fn processes(
        &self,
        newer: [Option<ListProcesses<Process>>; 2],
        oldest: Option<ListProcesses<ProcessV1>>,
    ) -> Result<Vec<u32>, NvmlError> {
        let mut answer = Err(NvmlError::FUNCTION_NOT_FOUND);
        for ask in newer.into_iter().flatten() {
            if answer.is_err() {
                answer = keep_first(answer, self.list(ask));
            }
        }
        if answer.is_err()
            && let Some(ask) = oldest
        {
            answer = keep_first(answer, self.list(ask));
        }
        answer
    }

    fn list<T: HasPid>(&self, ask: ListProcesses<T>) -> Result<Vec<u32>, NvmlError> {
        let mut room = 64;
        loop {
            let mut infos = vec![T::default(); room];
            let mut count = c_uint::try_from(room).map_err(|_| NvmlError::UNKNOWN)?;
            // SAFETY: a handle of this session, and room for as many structures as `count` says.
            let result = check(unsafe { ask(self.handle, &raw mut count, infos.as_mut_ptr()) });
            let told = usize::try_from(count).map_err(|_| NvmlError::UNKNOWN)?;
            match result {
                // More may come while we ask; but no GPU has thousands.
                Err(NvmlError::INSUFFICIENT_SIZE) if told > room && told <= 4096 => room = told * 2,
                Err(error) => return Err(error),
                Ok(()) if told > room => return Err(NvmlError::UNKNOWN),
                Ok(()) => return Ok(infos.iter().take(told).map(HasPid::pid).collect()),
            }
        }
    }
}

/// A success stays, an older version's answer takes the place of its absence, and of several errors
/// the newest version's is the one to show.
fn keep_first(so_far: Result<Vec<u32>, NvmlError>, next: Result<Vec<u32>, NvmlError>) -> Result<Vec<u32>, NvmlError> {
    match (so_far, next) {
        (Ok(list), _) | (Err(_), Ok(list)) => Ok(list),
        (Err(NvmlError::FUNCTION_NOT_FOUND), Err(error)) | (Err(error), Err(_)) => Err(error),
    }
}

/// A switch of NVML's: off or on, and nothing else.
fn one_of(value: c_uint) -> Result<bool, NvmlError> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(NvmlError::UNKNOWN),
    }
}
