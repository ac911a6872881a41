//! A stand-in `libcuda.so.1` for tests: the driver's C ABI over ordinary memory.
//!
//! As strict as the real one about order, contexts and pointers. What it does beside working is set by
//! `STANDIN_CUDA_…` in the environment; `tests/standins/README.md` lists the variables.
#![allow(unsafe_code)] // a C ABI is what this crate is
#![allow(non_snake_case)] // the driver's own names
#![allow(clippy::missing_safety_doc)] // every pointer is the caller's, as in cuda.h, and null is refused

mod entry;
mod memory;
mod names;
mod state;
#[cfg(test)]
mod tests;

use std::ffi::{c_char, c_int, c_uint, c_void};

use entry::entry;
use state::{CONTEXTS, Config, Gpu, STATE};

type Result = std::result::Result<(), u32>;

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const NOT_INITIALIZED: u32 = 3;
const NO_DEVICE: u32 = 100;
const INVALID_DEVICE: u32 = 101;
const INVALID_CONTEXT: u32 = 201;
const PRIMARY_CONTEXT_ACTIVE: u32 = 708;
const CONTEXT_IS_DESTROYED: u32 = 709;
const NOT_SUPPORTED: u32 = 801;

/// Writes an answer where the caller wants it; a null place is refused.
unsafe fn put<T>(place: *mut T, value: T) -> Result {
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null; the rest is the caller's promise, as in C.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// Copies, or does it wrong.
unsafe fn copy(from: *const u8, to: *mut u8, size: usize, wrong: Option<&str>) {
    // SAFETY: both ranges are the caller's promise.
    unsafe {
        match wrong {
            Some("stale") => {}
            Some("short") => from.copy_to_nonoverlapping(to, size - 1),
            _ => from.copy_to_nonoverlapping(to, size),
        }
        if wrong == Some("flip") {
            *to.add(size / 2) ^= 1;
        }
    }
}

unsafe fn put_text(place: *mut c_char, room: c_int, text: &str) -> Result {
    let room = usize::try_from(room).map_err(|_| INVALID_VALUE)?;
    if place.is_null() || room == 0 {
        return Err(INVALID_VALUE);
    }
    let length = text.len().min(room - 1);
    // SAFETY: `room` bytes are the caller's promise.
    unsafe {
        text.as_ptr().copy_to(place.cast(), length);
        place.add(length).write(0);
    }
    Ok(())
}

entry! {
    /// Reads the environment; with no visible GPU it fails as the real one does.
    fn cuInit(flags: c_uint) [bare] |state| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let config = Config::from_environment();
        if config.gpus.is_empty() {
            return Err(NO_DEVICE);
        }
        state.config.get_or_insert(config);
        Ok(())
    }

    fn cuDriverGetVersion(version: *mut c_int) [bare] |_state| { unsafe { put(version, 12_020) } }

    fn cuGetErrorName(code: c_uint, name: *mut *const c_char) [bare] |_state| { unsafe { names::put_name(code, name) } }

    fn cuGetErrorString(code: c_uint, text: *mut *const c_char) [bare] |_state| { unsafe { names::put_name(code, text) } }

    fn cuDeviceGetCount(count: *mut c_int) |state| {
        let gpus = if state.wrong("none") { 0 } else { state.gpus().len() as c_int };
        unsafe { put(count, gpus) }
    }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) |state| {
        state.gpu(ordinal)?;
        unsafe { put(device, ordinal) }
    }

    fn cuDeviceGetByPCIBusId(device: *mut c_int, pci: *const c_char) |state| {
        if pci.is_null() {
            return Err(INVALID_VALUE);
        }
        let pci = unsafe { std::ffi::CStr::from_ptr(pci) }.to_string_lossy().to_lowercase();
        let ordinal = state.gpus().iter().position(|g| g.pci == pci).ok_or(INVALID_DEVICE)?;
        unsafe { put(device, ordinal as c_int) }
    }

    fn cuDeviceGetPCIBusId(text: *mut c_char, room: c_int, device: c_int) |state| {
        let pci = state.gpu(device)?.pci.to_uppercase();
        unsafe { put_text(text, room, if state.wrong("other") { "0000:FE:00.0" } else { &pci }) }
    }

    fn cuDeviceGetName(text: *mut c_char, room: c_int, device: c_int) |state| {
        state.gpu(device)?;
        unsafe { put_text(text, room, "Stand-in GPU") }
    }

    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) |state| { unsafe { put(uuid, state.gpu(device)?.uuid_bytes()) } }

    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) |state| { unsafe { put(uuid, state.gpu(device)?.uuid_bytes()) } }

    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) |state| {
        let Gpu { pci, .. } = state.gpu(device)?;
        let config = state.config();
        let pci_part = |range: std::ops::Range<usize>| pci.get(range).and_then(|t| c_int::from_str_radix(t, 16).ok()).unwrap_or(0);
        let answer = match attribute {
            18 => c_int::from(config.integrated),
            33 => pci_part(5..7),
            34 => pci_part(8..10),
            50 => pci_part(0..4),
            75 => 9,                              // compute capability, major
            116 => c_int::from(config.gdr),
            124 => c_int::from(config.dmabuf.is_some()),
            1..=130 => 0,
            _ => return Err(INVALID_VALUE),
        };
        unsafe { put(value, answer) }
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) |state| {
        state.gpu(device)?;
        unsafe { put(bytes, 80 << 30) }
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) |state| {
        state.gpu(device)?;
        if flags & !0x1f != 0 {
            return Err(INVALID_VALUE);
        }
        if state.retained(device) > 0 {
            return Err(PRIMARY_CONTEXT_ACTIVE);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) |state| {
        state.gpu(device)?;
        if context.is_null() {
            return Err(INVALID_VALUE);
        }
        let handle = state.retain(device);
        unsafe { put(context, handle) }
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) |state| {
        state.gpu(device)?;
        state.release(device)
    }

    fn cuCtxSetCurrent(context: usize) |state| {
        if context != 0 && !state.is_context(context) {
            return Err(INVALID_CONTEXT);
        }
        CONTEXTS.with_borrow_mut(|stack| {
            stack.pop();
            if context != 0 { stack.push(context) }
        });
        Ok(())
    }

    fn cuCtxGetCurrent(context: *mut usize) |_state| {
        unsafe { put(context, CONTEXTS.with_borrow(|stack| stack.last().copied().unwrap_or(0))) }
    }

    fn cuCtxPushCurrent_v2(context: usize) |state| {
        if !state.is_context(context) {
            return Err(INVALID_CONTEXT);
        }
        CONTEXTS.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: *mut usize) |_state| {
        let popped = CONTEXTS.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        if context.is_null() { Ok(()) } else { unsafe { put(context, popped) } }
    }

    fn cuCtxSynchronize() |state| { state.current().map(|_| ()) }

    fn cuMemAlloc_v2(pointer: *mut u64, size: usize) |state| {
        let context = state.current()?;
        if pointer.is_null() || size == 0 {
            return Err(INVALID_VALUE);
        }
        let kind = state.config().memory;
        let kind = if state.wrong("host") { memory::Kind::Malloc } else { kind };
        let address = if state.wrong("null") { 0 } else { state.allocate(context, kind, size)? };
        unsafe { put(pointer, address) }
    }

    fn cuMemAllocManaged(pointer: *mut u64, size: usize, flags: c_uint) |state| {
        let context = state.current()?;
        if pointer.is_null() || size == 0 || !(1..=2).contains(&flags) {
            return Err(INVALID_VALUE);
        }
        let address = state.allocate(context, memory::Kind::Managed, size)?;
        unsafe { put(pointer, address) }
    }

    fn cuMemFree_v2(pointer: u64) |state| {
        state.current()?;
        state.free(pointer)
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |state| {
        state.current()?;
        unsafe { put(free, 79 << 30)?; put(total, 80 << 30) }
    }

    fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, pointer: u64) |state| {
        state.current()?;
        let range = state.range(pointer, 1)?;
        let (address, length) = (range.address, range.size);
        unsafe {
            if !base.is_null() { put(base, address)? }
            if !size.is_null() { put(size, length)? }
        }
        Ok(())
    }

    fn cuMemGetHandleForAddressRange(handle: *mut c_void, pointer: u64, size: usize, kind: c_int, flags: u64) |state| {
        state.current()?;
        if handle.is_null() || kind != 1 || flags > 1 || size == 0 || !pointer.is_multiple_of(4096) || !size.is_multiple_of(4096) {
            return Err(INVALID_VALUE);
        }
        let range = state.range(pointer, size)?;
        let fd = match state.config().dmabuf {
            None => return Err(NOT_SUPPORTED),
            Some(kind) => memory::export(kind, range)?,
        };
        if state.wrong("none") {
            // SAFETY: made a moment ago, and nobody else knows it.
            unsafe { libc::close(fd) };
            return Ok(()); // the place is left as it was
        }
        unsafe { put(handle.cast::<c_int>(), fd) }
    }

    fn cuPointerSetAttribute(value: *const c_void, attribute: c_int, pointer: u64) |state| {
        state.current()?;
        if value.is_null() || attribute != 6 {
            return Err(INVALID_VALUE);
        }
        state.range(pointer, 1).map(|_| ())
    }

    fn cuPointerGetAttribute(value: *mut c_void, attribute: c_int, pointer: u64) |state| {
        state.current()?;
        let range = state.range(pointer, 1)?;
        unsafe {
            match attribute {
                1 => put(value.cast::<usize>(), range.context),
                2 => put(value.cast::<c_uint>(), if state.wrong("host") { 1 } else { 2 }), // CU_MEMORYTYPE_DEVICE
                3 => put(value.cast::<u64>(), pointer),
                6 => put(value.cast::<c_uint>(), 1),
                8 => put(
                    value.cast::<c_uint>(),
                    c_uint::from(range.kind == memory::Kind::Managed || state.wrong("managed")),
                ),
                9 => put(value.cast::<c_int>(), state.device_of(range.context)),
                11 => put(value.cast::<u64>(), range.address),
                12 => put(value.cast::<usize>(), range.size),
                _ => Err(INVALID_VALUE),
            }
        }
    }

    fn cuMemsetD32_v2(pointer: u64, word: c_uint, count: usize) |state| {
        state.current()?;
        let bytes = count.checked_mul(4).ok_or(INVALID_VALUE)?;
        if !pointer.is_multiple_of(4) {
            return Err(INVALID_VALUE);
        }
        let range = state.range(pointer, bytes)?;
        // SAFETY: within one allocation of ours.
        unsafe { std::slice::from_raw_parts_mut(range.at(pointer).cast::<c_uint>(), count) }.fill(word);
        Ok(())
    }

    fn cuMemcpyDtoH_v2(host: *mut c_void, pointer: u64, size: usize) |state| {
        state.current()?;
        if host.is_null() { return Err(INVALID_VALUE) }
        let bytes = state.range(pointer, size)?.at(pointer);
        // SAFETY: within one allocation of ours; `host` is the caller's promise.
        unsafe { copy(bytes, host.cast(), size, state.wrong.as_deref()) };
        Ok(())
    }

    /// No call of the driver's: where the bytes behind `size` bytes of GPU memory can be reached, for the
    /// stand-in of an adapter, which reaches them by DMA. 1 when they are none.
    fn standin_cuda_bytes(place: *mut *mut u8, pointer: u64, size: usize) |state| {
        unsafe { put(place, state.range(pointer, size)?.at(pointer)) }
    }

    fn cuMemcpyHtoD_v2(pointer: u64, host: *const c_void, size: usize) |state| {
        state.current()?;
        if host.is_null() { return Err(INVALID_VALUE) }
        let bytes = state.range(pointer, size)?.at(pointer);
        // SAFETY: as above.
        unsafe { copy(host.cast(), bytes, size, state.wrong.as_deref()) };
        Ok(())
    }
}
