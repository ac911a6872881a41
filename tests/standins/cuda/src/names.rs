//! Names of results, as the driver spells them.

use std::ffi::{CStr, c_char};

use crate::{INVALID_VALUE, Result, put};

const NAMES: &[(u32, &CStr)] = &[
    (0, c"CUDA_SUCCESS"),
    (1, c"CUDA_ERROR_INVALID_VALUE"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED"),
    (4, c"CUDA_ERROR_DEINITIALIZED"),
    (46, c"CUDA_ERROR_DEVICE_UNAVAILABLE"),
    (100, c"CUDA_ERROR_NO_DEVICE"),
    (101, c"CUDA_ERROR_INVALID_DEVICE"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT"),
    (214, c"CUDA_ERROR_ECC_UNCORRECTABLE"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS"),
    (708, c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE"),
    (709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED"),
    (802, c"CUDA_ERROR_SYSTEM_NOT_READY"),
    (803, c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    (804, c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"),
    (805, c"CUDA_ERROR_MPS_CONNECTION_FAILED"),
    (999, c"CUDA_ERROR_UNKNOWN"),
];

/// As the driver: an unknown code is refused, and the place set to null.
pub(crate) unsafe fn put_name(code: u32, place: *mut *const c_char) -> Result {
    let known = NAMES.iter().find(|(number, _)| *number == code);
    // SAFETY: null is refused, the rest is the caller's promise.
    unsafe { put(place, known.map_or(std::ptr::null(), |(_, name)| name.as_ptr())) }?;
    known.map(|_| ()).ok_or(INVALID_VALUE)
}
