//! The CUDA driver API, as far as the check needs it.
//!
//! cudarc supplies types and constants; the calls go through a table of our own whose results are
//! plain numbers, because a newer driver may answer codes that no enum here knows.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    fmt,
    os::fd::{FromRawFd, OwnedFd},
    path::Path,
    ptr,
};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdeviceptr};

use super::{LoadError, functions};
use crate::report::Code;

functions! {
    /// Names and signatures as in cuda.h; `_v2` where the header's macro says so.
    Table {
        required init = "cuInit": fn(c_uint) -> u32;
        required error_name = "cuGetErrorName": fn(u32, *mut *const c_char) -> u32;
        required device_count = "cuDeviceGetCount": fn(*mut c_int) -> u32;
        required device_get = "cuDeviceGet": fn(*mut CUdevice, c_int) -> u32;
        required pci_bus_id = "cuDeviceGetPCIBusId": fn(*mut c_char, c_int, CUdevice) -> u32;
        required attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_int, CUdevice) -> u32;
        required retain = "cuDevicePrimaryCtxRetain": fn(*mut CUcontext, CUdevice) -> u32;
        required release = "cuDevicePrimaryCtxRelease_v2": fn(CUdevice) -> u32;
        required set_current = "cuCtxSetCurrent": fn(CUcontext) -> u32;
        required alloc = "cuMemAlloc_v2": fn(*mut CUdeviceptr, usize) -> u32;
        required free = "cuMemFree_v2": fn(CUdeviceptr) -> u32;
        required set_pointer_attribute = "cuPointerSetAttribute": fn(*const c_void, c_int, CUdeviceptr) -> u32;
        required pointer_attribute = "cuPointerGetAttribute": fn(*mut c_void, c_int, CUdeviceptr) -> u32;
        required copy_in = "cuMemcpyHtoD_v2": fn(CUdeviceptr, *const c_void, usize) -> u32;
        required copy_out = "cuMemcpyDtoH_v2": fn(*mut c_void, CUdeviceptr, usize) -> u32;
        optional set_flags = "cuDevicePrimaryCtxSetFlags_v2": fn(CUdevice, c_uint) -> u32;
        optional export = "cuMemGetHandleForAddressRange": fn(*mut c_void, CUdeviceptr, usize, c_int, u64) -> u32;
        optional driver_version = "cuDriverGetVersion": fn(*mut c_int) -> u32;
    }
}

/// A `CUresult` that is not success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaError {
    /// The number.
    pub number: u32,
    name: Option<&'static str>,
}

impl From<CudaError> for Code {
    fn from(error: CudaError) -> Self {
        Self::cuda(error.number, error.name.map(str::to_owned))
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Code::from(*self).fmt(f)
    }
}

/// `CU_MEMORYTYPE_DEVICE`.
const MEMORY_IS_DEVICE: c_uint = 2;

/// A loaded libcuda.
pub struct Cuda {
    table: Table,
}

/// One device attribute that the check asks for.
#[derive(Debug, Clone, Copy)]
pub enum Attribute {
    /// Memory is the host's.
    Integrated,
    /// 0 default, 2 prohibited, 3 exclusive to one process.
    ComputeMode,
    /// CPU and GPU share page tables (Grace).
    HostPageTables,
    /// nv-p2p, and so peermem, can work.
    GpuDirectRdma,
    /// dma-bufs can be exported.
    DmaBuf,
}

impl Attribute {
    fn number(self) -> c_int {
        use sys::CUdevice_attribute as A;
        (match self {
            Self::Integrated => A::CU_DEVICE_ATTRIBUTE_INTEGRATED,
            Self::ComputeMode => A::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE,
            Self::HostPageTables => A::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
            Self::GpuDirectRdma => A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
            Self::DmaBuf => A::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
        }) as c_int
    }
}

impl Cuda {
    /// Loads a library and looks up what it must have.
    pub fn load(file: &Path) -> Result<Self, LoadError> {
        Table::load(file).map(|table| Self { table })
    }

    fn check(&self, result: u32) -> Result<(), CudaError> {
        if result == 0 {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: `name` is a place for one pointer; a code that the driver does not know leaves
        // it null, and one that it knows leaves a string that lives as long as the library, which
        // is never unloaded while the child lives.
        let name = unsafe {
            (self.table.error_name)(result, &raw mut name);
            (!name.is_null()).then(|| CStr::from_ptr(name)).and_then(|n| n.to_str().ok())
        };
        Err(CudaError { number: result, name })
    }

    /// `cuInit(0)`.
    pub fn init(&self) -> Result<(), CudaError> {
        // SAFETY: takes a number.
        self.check(unsafe { (self.table.init)(0) })
    }

    /// The driver API's version, 12040 for 12.4.
    #[must_use]
    pub fn version(&self) -> Option<i32> {
        let mut version = 0;
        // SAFETY: `version` is a place for one int.
        let result = unsafe { (self.table.driver_version?)(&raw mut version) };
        (result == 0).then_some(version)
    }

    /// How many GPUs this process may see.
    pub fn count(&self) -> Result<i32, CudaError> {
        let mut count = 0;
        // SAFETY: `count` is a place for one int.
        self.check(unsafe { (self.table.device_count)(&raw mut count) })?;
        Ok(count)
    }

    /// A GPU by its ordinal.
    pub fn device(&self, ordinal: i32) -> Result<Device<'_>, CudaError> {
        let mut device = 0;
        // SAFETY: `device` is a place for one handle.
        self.check(unsafe { (self.table.device_get)(&raw mut device, ordinal) })?;
        Ok(Device { cuda: self, device })
    }

    /// Whether dma-bufs can be asked for at all (CUDA 11.7).
    #[must_use]
    pub fn can_export(&self) -> bool {
        self.table.export.is_some()
    }
}

/// A GPU.
#[derive(Clone, Copy)]
pub struct Device<'c> {
    cuda: &'c Cuda,
    device: CUdevice,
}

impl<'c> Device<'c> {
    /// Its PCI address as CUDA writes it.
    pub fn pci(&self) -> Result<String, CudaError> {
        let mut text = [0_u8; 32];
        // SAFETY: the length given is one less than the buffer's, so that its end stays zero.
        self.cuda.check(unsafe { (self.cuda.table.pci_bus_id)(text.as_mut_ptr().cast(), 31, self.device) })?;
        Ok(CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy().into_owned())
    }

    /// An attribute; one that this driver does not know is an error (`INVALID_VALUE`).
    pub fn attribute(&self, attribute: Attribute) -> Result<i32, CudaError> {
        let mut value = 0;
        // SAFETY: `value` is a place for one int.
        self.cuda.check(unsafe { (self.cuda.table.attribute)(&raw mut value, attribute.number(), self.device) })?;
        Ok(value)
    }

    /// Retains the primary context, with blocking waits, and makes it this thread's.
    pub fn retain(self) -> Result<Context<'c>, CudaError> {
        if let Some(set_flags) = self.cuda.table.set_flags {
            // SAFETY: takes a handle and a number. A refusal (the context is active already) only
            // costs CPU time in waits, so the answer does not matter.
            let _ = unsafe { set_flags(self.device, sys::CUctx_flags_enum::CU_CTX_SCHED_BLOCKING_SYNC as c_uint) };
        }
        let mut context = ptr::null_mut();
        // SAFETY: `context` is a place for one handle.
        self.cuda.check(unsafe { (self.cuda.table.retain)(&raw mut context, self.device) })?;
        let retained = Context { device: self };
        // SAFETY: the context is the one just retained. On an error `retained` releases it.
        self.cuda.check(unsafe { (self.cuda.table.set_current)(context) })?;
        Ok(retained)
    }
}

/// A retained primary context; released when dropped.
pub struct Context<'c> {
    device: Device<'c>,
}

impl<'c> Context<'c> {
    /// `cuMemAlloc`.
    pub fn alloc(&self, size: usize) -> Result<Memory<'_>, CudaError> {
        let mut pointer = 0;
        // SAFETY: `pointer` is a place for one address.
        self.cuda().check(unsafe { (self.cuda().table.alloc)(&raw mut pointer, size) })?;
        Ok(Memory { context: self, pointer, size })
    }

    fn cuda(&self) -> &'c Cuda {
        self.device.cuda
    }

    /// Releases the context and says what came of it.
    pub fn release(self) -> Result<(), CudaError> {
        let result = self.do_release();
        std::mem::forget(self);
        result
    }

    fn do_release(&self) -> Result<(), CudaError> {
        // SAFETY: releases what `retain` retained, once.
        self.cuda().check(unsafe { (self.cuda().table.release)(self.device.device) })
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        let _ = self.do_release(); // on the way out of another error
    }
}

/// GPU memory; freed when dropped.
pub struct Memory<'c> {
    context: &'c Context<'c>,
    pointer: CUdeviceptr,
    size: usize,
}

impl Memory<'_> {
    /// Its address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.pointer
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    fn cuda(&self) -> &Cuda {
        self.context.cuda()
    }

    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`, as the GPUDirect RDMA guide asks for.
    pub fn sync_memops(&self) -> Result<(), CudaError> {
        let on: c_uint = 1;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as c_int;
        // SAFETY: this attribute is an unsigned int.
        self.cuda().check(unsafe {
            (self.cuda().table.set_pointer_attribute)((&raw const on).cast(), attribute, self.pointer)
        })
    }

    /// Whether CUDA calls it device memory that is not managed.
    pub fn is_plain_device_memory(&self) -> Result<bool, CudaError> {
        use sys::CUpointer_attribute as A;
        let kind = self.pointer_attribute(A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as c_int)?;
        let managed = self.pointer_attribute(A::CU_POINTER_ATTRIBUTE_IS_MANAGED as c_int)?;
        Ok(kind == MEMORY_IS_DEVICE && managed == 0)
    }

    fn pointer_attribute(&self, attribute: c_int) -> Result<c_uint, CudaError> {
        let mut value: c_uint = 0;
        // SAFETY: both attributes that are asked for are at most an unsigned int.
        self.cuda().check(unsafe {
            (self.cuda().table.pointer_attribute)((&raw mut value).cast(), attribute, self.pointer)
        })?;
        Ok(value)
    }

    /// Copies bytes to an offset in it; the caller keeps within its size.
    pub fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<(), CudaError> {
        // SAFETY: `bytes` is readable; CUDA refuses a range that is not within the allocation.
        self.cuda()
            .check(unsafe { (self.cuda().table.copy_in)(self.pointer + offset, bytes.as_ptr().cast(), bytes.len()) })
    }

    /// Copies bytes from an offset in it.
    pub fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        // SAFETY: `bytes` is writable; CUDA refuses a range that is not within the allocation.
        self.cuda().check(unsafe {
            (self.cuda().table.copy_out)(bytes.as_mut_ptr().cast(), self.pointer + offset, bytes.len())
        })
    }

    /// Exports the whole as a dma-buf. The caller has asked [`Cuda::can_export`].
    pub fn export(&self) -> Result<OwnedFd, CudaError> {
        let not_supported = CudaError { number: 801, name: Some("CUDA_ERROR_NOT_SUPPORTED") };
        let export = self.cuda().table.export.ok_or(not_supported)?;
        let mut fd: c_int = -1;
        let kind = sys::CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD as c_int;
        // SAFETY: for this handle type the place is one int; address and size are the
        // allocation's own, both multiples of the host's page (64 KiB granule).
        self.cuda().check(unsafe { export((&raw mut fd).cast(), self.pointer, self.size, kind, 0) })?;
        if fd < 0 {
            return Err(CudaError { number: 999, name: Some("CUDA_ERROR_UNKNOWN") });
        }
        // SAFETY: the driver made it for us, and nobody else knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Frees it and says what came of it.
    pub fn free(self) -> Result<(), CudaError> {
        let result = self.do_free();
        std::mem::forget(self);
        result
    }

    fn do_free(&self) -> Result<(), CudaError> {
        // SAFETY: frees what `alloc` gave, once.
        self.cuda().check(unsafe { (self.cuda().table.free)(self.pointer) })
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let _ = self.do_free(); // on the way out of another error
    }
}
