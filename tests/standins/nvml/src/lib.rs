//! A stand-in `libnvidia-ml.so.1` for tests: NVML's C ABI over what `STANDIN_NVML_…` says.
//!
//! As strict as the real one about initialisation, handles, versions of structures and sizes of lists;
//! `tests/standins/README.md` lists the variables.
#![allow(unsafe_code)] // a C ABI is what this crate is
#![allow(non_snake_case)] // the library's own names
#![allow(clippy::missing_safety_doc)] // every pointer is the caller's, as in nvml.h, and null is refused

mod state;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, c_char, c_int, c_uint};

use state::{Gpu, STATE, State};

type Result = std::result::Result<(), u32>;

const UNINITIALIZED: u32 = 1;
const INVALID_ARGUMENT: u32 = 2;
const NOT_SUPPORTED: u32 = 3;
const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;
const ARGUMENT_VERSION_MISMATCH: u32 = 25;

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 81_920;

/// `nvmlMemory_t`.
#[repr(C)]
pub struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `nvmlConfComputeSystemState_t`.
#[repr(C)]
pub struct Confidential {
    environment: c_uint,
    feature: c_uint,
    dev_tools: c_uint,
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
pub struct ProcessV1 {
    pid: c_uint,
    used: u64,
}

/// `nvmlProcessInfo_t` since its version 2.
#[repr(C)]
pub struct Process {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// Writes an answer where the caller wants it; a null place is refused.
unsafe fn put<T>(place: *mut T, value: T) -> Result {
    if place.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null; the rest is the caller's promise, as in C.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// A list in the caller's room; too little of it answers how much is needed.
unsafe fn list<T>(pids: &[u32], state: &State, count: *mut c_uint, infos: *mut T, make: fn(u32) -> T) -> Result {
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null; the caller's promise, as in C.
    let room = unsafe { count.read() } as usize;
    if state.wrong("many") {
        return unsafe { put(count, c_uint::MAX) };
    }
    unsafe { put(count, pids.len() as c_uint)? };
    if room < pids.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    for (n, pid) in pids.iter().enumerate() {
        // SAFETY: within the room that the caller says there is.
        unsafe { put(infos.add(n), make(*pid))? };
    }
    Ok(())
}

fn process_v1(pid: u32) -> ProcessV1 {
    ProcessV1 { pid, used: 512 * MIB }
}

fn process(pid: u32) -> Process {
    Process { pid, used: 512 * MIB, gpu_instance: c_uint::MAX, compute_instance: c_uint::MAX }
}

/// Used and reserved MiB.
fn taken(gpu: &Gpu) -> (u64, u64) {
    (gpu.number("USED").unwrap_or(4), gpu.number("RESERVED").unwrap_or(600))
}

/// Declares exported calls; `[bare]` ones work before `nvmlInit`.
macro_rules! entry {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),*) $([$bare:ident])? |$state:ident| $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> u32 {
            let wrong = match standin::fault(stringify!($name), &state::meant()) {
                Some(standin::Fault::Code(code)) => return code as u32,
                Some(standin::Fault::Wrong(word)) => Some(word),
                None => None,
            };
            let mut guard = STATE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let $state = &mut *guard;
            $state.wrong = wrong;
            let bare = false $(|| stringify!($bare) == "bare")?;
            if !bare && !$state.is_open() {
                return UNINITIALIZED;
            }
            #[allow(unused_unsafe)]
            let call = || -> Result { $body };
            #[allow(unused_mut)]
            let mut call = call;
            call().err().unwrap_or(0)
        }
    )*};
}

entry! {
    fn nvmlInit_v2() [bare] |state| {
        state.open();
        Ok(())
    }

    fn nvmlShutdown() |state| { state.shut() }

    fn nvmlDeviceGetHandleByPciBusId_v2(pci: *const c_char, device: *mut usize) |state| {
        if pci.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        let pci = unsafe { CStr::from_ptr(pci) }.to_string_lossy();
        let handle = state::handle(&pci)?;
        unsafe { put(device, if state.wrong("null") { 0 } else { handle }) }
    }

    /// `STANDIN_NVML_MIG`: 0 or 1; none: a GPU that has no such mode.
    fn nvmlDeviceGetMigMode(device: usize, current: *mut c_uint, pending: *mut c_uint) |state| {
        let mode = Gpu::of(device)?.number("MIG").ok_or(NOT_SUPPORTED)? as c_uint;
        unsafe {
            put(current, if state.wrong("nonsense") { 7 } else { mode })?;
            put(pending, mode)
        }
    }

    /// `STANDIN_NVML_CC`: 0 or 1; none: not supported.
    fn nvmlSystemGetConfComputeState(place: *mut Confidential) |state| {
        let feature = std::env::var("STANDIN_NVML_CC").map_err(|_| NOT_SUPPORTED)?;
        let feature = feature.parse().unwrap_or_else(|_| state::refuse("CC", &feature));
        let feature = if state.wrong("nonsense") { 7 } else { feature };
        unsafe { put(place, Confidential { environment: 0, feature, dev_tools: 0 }) }
    }

    /// `STANDIN_NVML_MODE`: 0, 2 or 3.
    fn nvmlDeviceGetComputeMode(device: usize, mode: *mut c_int) |state| {
        let set = Gpu::of(device)?.number("MODE").unwrap_or(0) as c_int;
        unsafe { put(mode, if state.wrong("nonsense") { 9 } else { set }) }
    }

    fn nvmlDeviceGetPersistenceMode(device: usize, mode: *mut c_uint) |state| {
        let set = Gpu::of(device)?.number("PERSISTENCE").unwrap_or(1) as c_uint;
        unsafe { put(mode, if state.wrong("nonsense") { 7 } else { set }) }
    }

    fn nvmlDeviceGetVirtualizationMode(device: usize, mode: *mut c_uint) |state| {
        let set = Gpu::of(device)?.number("VIRTUALIZATION").unwrap_or(0) as c_uint;
        unsafe { put(mode, if state.wrong("nonsense") { 9 } else { set }) }
    }

    /// `used` has `reserved` in it, as in the driver's.
    fn nvmlDeviceGetMemoryInfo(device: usize, memory: *mut Memory) |state| {
        let (used, reserved) = taken(&Gpu::of(device)?);
        let taken = if state.wrong("nonsense") { TOTAL * 2 } else { used + reserved };
        unsafe { put(memory, Memory { total: TOTAL * MIB, free: TOTAL.saturating_sub(taken) * MIB, used: taken * MIB }) }
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: usize, memory: *mut MemoryV2) |state| {
        let (used, reserved) = taken(&Gpu::of(device)?);
        if memory.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null; the caller's promise, as in C.
        let version = unsafe { memory.read() }.version;
        if version != (size_of::<MemoryV2>() as c_uint | 2 << 24) {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        let (total, used) = match state.wrong.as_deref() {
            Some("nonsense") => (TOTAL, TOTAL * 2),
            Some("zero") => (0, 0),
            Some("overflow") => (TOTAL, u64::MAX / MIB),
            _ => (TOTAL, used),
        };
        let free = TOTAL.saturating_sub(used + reserved);
        let answer =
            MemoryV2 { version, total: total * MIB, reserved: reserved * MIB, free: free * MIB, used: used * MIB };
        unsafe { put(memory, answer) }
    }

    fn nvmlDeviceGetComputeRunningProcesses_v3(device: usize, count: *mut c_uint, infos: *mut Process) |state| {
        unsafe { list(&Gpu::of(device)?.processes("PROCESSES"), state, count, infos, process) }
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(device: usize, count: *mut c_uint, infos: *mut Process) |state| {
        unsafe { list(&Gpu::of(device)?.processes("PROCESSES"), state, count, infos, process) }
    }

    fn nvmlDeviceGetComputeRunningProcesses(device: usize, count: *mut c_uint, infos: *mut ProcessV1) |state| {
        unsafe { list(&Gpu::of(device)?.processes("PROCESSES"), state, count, infos, process_v1) }
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device: usize, count: *mut c_uint, infos: *mut Process) |state| {
        unsafe { list(&Gpu::of(device)?.processes("MPS"), state, count, infos, process) }
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(device: usize, count: *mut c_uint, infos: *mut Process) |state| {
        unsafe { list(&Gpu::of(device)?.processes("MPS"), state, count, infos, process) }
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses(device: usize, count: *mut c_uint, infos: *mut ProcessV1) |state| {
        unsafe { list(&Gpu::of(device)?.processes("MPS"), state, count, infos, process_v1) }
    }
}
