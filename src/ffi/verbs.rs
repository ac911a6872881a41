//! libibverbs, as far as the check needs it.
//!
//! rdma-sys supplies the structures; the exported verbs are loaded at run time.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    io,
    os::fd::{AsRawFd, BorrowedFd},
    path::Path,
};

use rdma_sys::{
    ibv_context, ibv_cq, ibv_device, ibv_gid, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};

use super::{LoadError, functions};
use crate::report::Code;

functions! {
    /// Names and signatures as in infiniband/verbs.h.
    Table {
        required get_list = "ibv_get_device_list": fn(*mut c_int) -> *mut *mut ibv_device;
        required free_list = "ibv_free_device_list": fn(*mut *mut ibv_device) -> ();
        required name = "ibv_get_device_name": fn(*mut ibv_device) -> *const c_char;
        required open = "ibv_open_device": fn(*mut ibv_device) -> *mut ibv_context;
        required close = "ibv_close_device": fn(*mut ibv_context) -> c_int;
        required alloc_pd = "ibv_alloc_pd": fn(*mut ibv_context) -> *mut ibv_pd;
        required dealloc_pd = "ibv_dealloc_pd": fn(*mut ibv_pd) -> c_int;
        required reg = "ibv_reg_mr": fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        required dereg = "ibv_dereg_mr": fn(*mut ibv_mr) -> c_int;
        required query_port = "ibv_query_port": fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        required query_gid = "ibv_query_gid": fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
        required create_cq = "ibv_create_cq": fn(*mut ibv_context, c_int, *mut c_void, *mut c_void, c_int) -> *mut ibv_cq;
        required destroy_cq = "ibv_destroy_cq": fn(*mut ibv_cq) -> c_int;
        required create_qp = "ibv_create_qp": fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        required modify_qp = "ibv_modify_qp": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        required destroy_qp = "ibv_destroy_qp": fn(*mut ibv_qp) -> c_int;
        optional reg_dmabuf = "ibv_reg_dmabuf_mr": fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    }
}

/// What a verb answered when it failed. 0 means: null, and no errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Of the last call of this thread; must be the very next thing after it.
    pub(super) fn last() -> Self {
        Self(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }
}

impl From<Errno> for Code {
    fn from(errno: Errno) -> Self {
        Self::errno(errno.0)
    }
}

/// `EOPNOTSUPP`: what a library without the function would answer.
pub const NOT_OFFERED: Errno = Errno(libc::EOPNOTSUPP);

/// Access that a remote side may have to an MR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Local write, remote read and write: what GPUDirect RDMA needs.
    ReadWrite,
    /// Local write and remote read: what EFA without RDMA write grants.
    Read,
}

impl Access {
    pub(super) fn flags(self) -> c_int {
        use rdma_sys::ibv_access_flags as F;
        let read = F::IBV_ACCESS_LOCAL_WRITE.0 | F::IBV_ACCESS_REMOTE_READ.0;
        let flags = match self {
            Self::ReadWrite => read | F::IBV_ACCESS_REMOTE_WRITE.0,
            Self::Read => read,
        };
        c_int::try_from(flags).unwrap_or_default()
    }
}

/// A loaded libibverbs.
pub struct Verbs {
    table: Table,
}

impl Verbs {
    /// Loads a library and looks up what it must have.
    pub fn load(file: &Path) -> Result<Self, LoadError> {
        Table::load(file).map(|table| Self { table })
    }

    /// `ibv_get_device_list`.
    pub fn list(&self) -> Result<List<'_>, Errno> {
        let mut count = 0;
        clear_errno();
        // SAFETY: `count` is a place for one int.
        let devices = unsafe { (self.table.get_list)(&raw mut count) };
        if devices.is_null() {
            return Err(Errno::last());
        }
        Ok(List { verbs: self, devices, count: usize::try_from(count).unwrap_or(0) })
    }

    /// Whether this libibverbs has `ibv_reg_dmabuf_mr` (rdma-core 34).
    #[must_use]
    pub fn has_dmabuf(&self) -> bool {
        self.table.reg_dmabuf.is_some()
    }
}

/// The devices that libibverbs lists; freed when dropped. An open device outlives it.
pub struct List<'v> {
    verbs: &'v Verbs,
    devices: *mut *mut ibv_device,
    count: usize,
}

impl<'v> List<'v> {
    /// Opens a device by its name. `Ok(None)`: it is not in the list.
    pub fn open(&self, name: &str) -> Result<Option<Device<'v>>, Errno> {
        let table = &self.verbs.table;
        // SAFETY: the list has `count` entries and lives as long as `self`; names are C strings.
        let found = unsafe {
            (0..self.count)
                .map(|i| *self.devices.add(i))
                .find(|device| CStr::from_ptr((table.name)(*device)).to_bytes() == name.as_bytes())
        };
        let Some(device) = found else { return Ok(None) };
        clear_errno();
        // SAFETY: the device is one of the list.
        let context = unsafe { (table.open)(device) };
        if context.is_null() { Err(Errno::last()) } else { Ok(Some(Device { verbs: self.verbs, context })) }
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: frees what `list` got, once.
        unsafe { (self.verbs.table.free_list)(self.devices) };
    }
}

pub(super) fn clear_errno() {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = 0 };
}

/// Turns the answer of a verb that returns its errno into a result.
pub(super) fn done(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno(result)) }
}

/// An open HCA; closed when dropped.
pub struct Device<'v> {
    verbs: &'v Verbs,
    pub(super) context: *mut ibv_context,
}

impl<'v> Device<'v> {
    /// `ibv_alloc_pd`.
    pub fn alloc_pd(&self) -> Result<Pd<'_>, Errno> {
        clear_errno();
        // SAFETY: the context is open as long as `self`.
        let pd = unsafe { (self.table().alloc_pd)(self.context) };
        if pd.is_null() { Err(Errno::last()) } else { Ok(Pd { device: self, pd }) }
    }

    pub(super) fn table(&self) -> &'v Table {
        &self.verbs.table
    }

    /// Closes it and says what came of it.
    pub fn close(self) -> Result<(), Errno> {
        let result = self.do_close();
        std::mem::forget(self);
        result
    }

    fn do_close(&self) -> Result<(), Errno> {
        // SAFETY: closes what was opened, once; it has no PD any more.
        done(unsafe { (self.table().close)(self.context) })
    }
}

impl Drop for Device<'_> {
    fn drop(&mut self) {
        let _ = self.do_close(); // on the way out of another error
    }
}

/// A protection domain; deallocated when dropped.
pub struct Pd<'d> {
    pub(super) device: &'d Device<'d>,
    pub(super) pd: *mut ibv_pd,
}

impl Pd<'_> {
    /// `ibv_reg_mr` on an address that need not be the process's own: the kernel answers for it.
    pub fn register(&self, address: u64, length: usize, access: Access) -> Result<Mr<'_>, Errno> {
        clear_errno();
        // SAFETY: nothing here reads or writes through the address; the kernel checks it, and an
        // address that is not mapped is refused with EFAULT, which one control relies on.
        let mr = unsafe {
            (self.device.table().reg)(
                self.pd,
                std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0)),
                length,
                access.flags(),
            )
        };
        self.mr(mr)
    }

    /// `ibv_reg_dmabuf_mr`; without a descriptor it is the question whether there is such a path,
    /// to which EBADF means yes. `offset` is where in the buffer the MR begins, and `iova` what the
    /// adapter calls that place; both must have the same offset in a page.
    pub fn register_dmabuf(
        &self,
        fd: Option<BorrowedFd<'_>>,
        offset: u64,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<Mr<'_>, Errno> {
        let reg = self.device.table().reg_dmabuf.ok_or(NOT_OFFERED)?;
        let (fd, flags) = fd.map_or((-1, 0), |fd| (fd.as_raw_fd(), access.flags()));
        clear_errno();
        // SAFETY: takes numbers and a descriptor that is open or -1.
        self.mr(unsafe { reg(self.pd, offset, length, iova, fd, flags) })
    }

    fn mr(&self, mr: *mut ibv_mr) -> Result<Mr<'_>, Errno> {
        if mr.is_null() { Err(Errno::last()) } else { Ok(Mr { pd: self, mr }) }
    }

    /// Deallocates it and says what came of it.
    pub fn dealloc(self) -> Result<(), Errno> {
        let result = self.do_dealloc();
        std::mem::forget(self);
        result
    }

    fn do_dealloc(&self) -> Result<(), Errno> {
        // SAFETY: deallocates what was allocated, once; it has no MR any more.
        done(unsafe { (self.device.table().dealloc_pd)(self.pd) })
    }
}

impl Drop for Pd<'_> {
    fn drop(&mut self) {
        let _ = self.do_dealloc(); // on the way out of another error
    }
}

/// A memory region; deregistered when dropped.
pub struct Mr<'p> {
    pd: &'p Pd<'p>,
    mr: *mut ibv_mr,
}

/// What an MR says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MrFacts {
    /// Its address; with dma-buf the offset.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Its local key.
    pub lkey: u32,
    /// Its remote key.
    pub rkey: u32,
}

impl Mr<'_> {
    /// What it says of itself.
    #[must_use]
    pub fn facts(&self) -> MrFacts {
        // SAFETY: libibverbs filled the structure, and it lives until it is deregistered.
        let mr = unsafe { &*self.mr };
        MrFacts { addr: mr.addr.expose_provenance() as u64, length: mr.length as u64, lkey: mr.lkey, rkey: mr.rkey }
    }

    /// Deregisters it and says what came of it.
    pub fn deregister(self) -> Result<(), Errno> {
        let result = self.do_deregister();
        std::mem::forget(self);
        result
    }

    fn do_deregister(&self) -> Result<(), Errno> {
        // SAFETY: deregisters what was registered, once.
        done(unsafe { (self.pd.device.table().dereg)(self.mr) })
    }
}

impl Drop for Mr<'_> {
    fn drop(&mut self) {
        let _ = self.do_deregister(); // on the way out of another error
    }
}
