//! A stand-in `libibverbs.so.1` for tests: the C ABI of the real one over an adapter like a ConnectX with
//! dma-buf registration, whose DMA is memory copies in this process.
//!
//! As strict as kernel and adapter: what it refuses, and with which errno, is what `ib_uverbs`, `ib_core` and
//! mlx5 refuse. `../README.md` has what the environment can order.
#![allow(unsafe_code)] // a C ABI is what this crate is
#![allow(clippy::missing_safety_doc)] // every pointer is the caller's, as in verbs.h

mod memory;
mod state;
mod transfer;

use std::{
    env,
    ffi::{CString, c_char, c_int, c_uint, c_void},
    ptr,
    sync::OnceLock,
};

use rdma_sys::{ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr};
use standin::{Fault, fault, ledger};
use state::{Qp, Region, name_of, state};

/// Ends a call that answers a pointer: null, and this errno.
fn refuse<T>(errno: c_int) -> *mut T {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = errno };
    ptr::null_mut()
}

/// What was ordered of a call that answers a pointer.
macro_rules! ordered {
    ($call:literal, $hca:expr) => {
        match fault($call, $hca) {
            Some(Fault::Code(errno)) => return refuse(errno),
            Some(Fault::Wrong(word)) if word == "null" => return refuse(0),
            Some(Fault::Wrong(word)) => Some(word),
            None => None,
        }
    };
}

/// The devices, made once: a device's address is its identity.
fn devices() -> &'static [usize] {
    static DEVICES: OnceLock<Vec<usize>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let names = env::var("STANDIN_VERBS_HCAS").unwrap_or_default();
        names.split([',', ' ']).filter(|name| !name.is_empty()).map(state::device).collect()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let wrong = ordered!("ibv_get_device_list", "");
    if wrong.as_deref() == Some("abi") {
        eprintln!("libibverbs: Warning: Driver mlx5 does not support the kernel ABI of 99 (supports 1 to 1)");
    }
    let all: &[usize] = if matches!(wrong.as_deref(), Some("empty" | "abi")) { &[] } else { devices() };
    let mut list: Vec<*mut ibv_device> = all.iter().map(|device| *device as *mut ibv_device).collect();
    if !count.is_null() {
        // SAFETY: a place for one int is the caller's promise.
        unsafe { *count = list.len() as c_int };
    }
    list.push(ptr::null_mut());
    ledger("+list");
    Box::leak(list.into_boxed_slice()).as_mut_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    let _ = fault("ibv_free_device_list", ""); // it has no answer
    if !list.is_null() {
        ledger("-list"); // a few bytes, and the process is short
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    let _ = fault("ibv_get_device_name", ""); // it has no error
    // SAFETY: a device of ours, which lives for ever.
    unsafe { (*device).name.as_ptr() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: a device of ours.
    let name = unsafe { name_of(device) };
    let _ = ordered!("ibv_open_device", &name);
    let context = state::context(device, Some(transfer::post_send), Some(transfer::poll_cq));
    state().contexts.insert(context as usize);
    ledger(&format!("+device {name}"));
    context
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: a context of ours.
    let name = unsafe { name_of((*context).device) };
    if let Some(Fault::Code(errno)) = fault("ibv_close_device", &name) {
        return errno;
    }
    let mut state = state();
    if state.pds.values().any(|owner| *owner == context as usize) {
        return libc::EBUSY;
    }
    if !state.contexts.remove(&(context as usize)) {
        return libc::EINVAL;
    }
    ledger(&format!("-device {name}"));
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: a context of ours.
    let name = unsafe { name_of((*context).device) };
    let _ = ordered!("ibv_alloc_pd", &name);
    let mut state = state();
    let handle = state.number();
    let pd = Box::into_raw(Box::new(ibv_pd { context, handle }));
    state.pds.insert(pd as usize, context as usize);
    ledger(&format!("+pd {handle}"));
    pd
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: a PD of ours.
    let (name, handle) = unsafe { (name_of((*(*pd).context).device), (*pd).handle) };
    if let Some(Fault::Code(errno)) = fault("ibv_dealloc_pd", &name) {
        return errno;
    }
    let mut state = state();
    if state.regions.values().any(|region| region.pd == pd as usize)
        || state.qps.values().any(|qp| qp.pd == pd as usize)
    {
        return libc::EBUSY;
    }
    if state.pds.remove(&(pd as usize)).is_none() {
        return libc::EINVAL;
    }
    ledger(&format!("-pd {handle}"));
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: a PD of ours.
    let name = unsafe { name_of((*(*pd).context).device) };
    let wrong = ordered!("ibv_reg_mr", &name);
    let bytes = match memory::pin(address as u64, length) {
        Ok(bytes) => bytes,
        Err(_) if wrong.as_deref() == Some("accept") => address.cast(),
        Err(errno) => return refuse(errno),
    };
    let region = Region { pd: pd as usize, iova: address as u64, length, access, bytes, mapped: false };
    register(pd, address, region, wrong.as_deref())
}

/// What the kernel asks, in its order: the operation, the page offset, the descriptor, the range
/// (`UVERBS_METHOD_REG_DMABUF_MR`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: a PD of ours.
    let name = unsafe { name_of((*(*pd).context).device) };
    let wrong = ordered!("ibv_reg_dmabuf_mr", &name);
    let lacks = env::var("STANDIN_VERBS_NO_DMABUF").unwrap_or_default();
    if lacks == "1" || lacks.split(',').any(|hca| hca == name) {
        return refuse(libc::EOPNOTSUPP);
    }
    if (offset ^ iova) & 4095 != 0 {
        return refuse(libc::EINVAL);
    }
    let accept = wrong.as_deref() == Some("accept");
    let bytes = match memory::attach(fd, offset, length) {
        Ok(bytes) => bytes,
        Err(_) if accept => ptr::null_mut(),
        Err(errno) => return refuse(errno),
    };
    let region = Region { pd: pd as usize, iova, length, access, bytes, mapped: !bytes.is_null() };
    // libibverbs puts the offset where the address would be.
    register(pd, offset as *mut c_void, region, wrong.as_deref())
}

fn register(pd: *mut ibv_pd, addr: *mut c_void, region: Region, wrong: Option<&str>) -> *mut ibv_mr {
    let mut state = state();
    let handle = state.number();
    let key = if wrong == Some("keys") { state.last_key() } else { handle << 8 | 0x15 };
    let length = if wrong == Some("length") { region.length / 2 } else { region.length };
    let addr = if wrong == Some("address") { addr.wrapping_byte_add(4096) } else { addr };
    // SAFETY: a PD of ours.
    let context = unsafe { (*pd).context };
    let mr = Box::into_raw(Box::new(ibv_mr { context, pd, addr, length, handle, lkey: key, rkey: key }));
    let mut region = region;
    if wrong == Some("short") {
        region.length -= 4096; // covers less than it says
    }
    state.regions.insert(mr as usize, region);
    ledger(&format!("+mr {handle}"));
    mr
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: an MR of ours.
    let (name, handle) = unsafe { (name_of((*(*mr).context).device), (*mr).handle) };
    if let Some(Fault::Code(errno)) = fault("ibv_dereg_mr", &name) {
        return errno;
    }
    match state().regions.remove(&(mr as usize)) {
        None => return libc::EINVAL,
        Some(region) => memory::unpin(&region),
    }
    ledger(&format!("-mr {handle}"));
    0
}

/// The compatible structure is the one of verbs.h up to `flags`; a ConnectX on InfiniBand.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut rdma_sys::ibv_port_attr,
) -> c_int {
    // SAFETY: a context of ours.
    let name = unsafe { name_of((*context).device) };
    match fault("ibv_query_port", &name) {
        Some(Fault::Code(errno)) => return errno,
        Some(Fault::Wrong(word)) if word == "lid" => {
            // SAFETY: a place for the structure is the caller's promise.
            unsafe { state::put_port(attributes, 0) };
            return 0;
        }
        _ => {}
    }
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: as above.
    unsafe { state::put_port(attributes, 0x17) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut rdma_sys::ibv_gid,
) -> c_int {
    // SAFETY: a context of ours.
    let name = unsafe { name_of((*context).device) };
    if let Some(Fault::Code(errno)) = fault("ibv_query_gid", &name) {
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = errno };
        return -1;
    }
    if port != 1 || !(0..4).contains(&index) {
        return -1;
    }
    // SAFETY: a place for the union is the caller's promise.
    unsafe { (*gid).raw = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, index as u8 + 1] };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    _cq_context: *mut c_void,
    _channel: *mut c_void,
    _vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: a context of ours.
    let name = unsafe { name_of((*context).device) };
    let _ = ordered!("ibv_create_cq", &name);
    if entries < 1 {
        return refuse(libc::EINVAL);
    }
    let mut state = state();
    let handle = state.number();
    let cq = state::zeroed::<ibv_cq>();
    // SAFETY: fresh memory of ours.
    unsafe {
        (*cq).context = context;
        (*cq).handle = handle;
        (*cq).cqe = entries;
    }
    state.completions.insert(cq as usize, Default::default());
    ledger(&format!("+cq {handle}"));
    cq
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: a CQ of ours.
    let (name, handle) = unsafe { (name_of((*(*cq).context).device), (*cq).handle) };
    if let Some(Fault::Code(errno)) = fault("ibv_destroy_cq", &name) {
        return errno;
    }
    let mut state = state();
    if state.qps.values().any(|qp| qp.cq == cq as usize) {
        return libc::EBUSY;
    }
    if state.completions.remove(&(cq as usize)).is_none() {
        return libc::EINVAL;
    }
    ledger(&format!("-cq {handle}"));
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, wanted: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: a PD of ours; the rest is the caller's promise.
    let (context, wanted) = unsafe { ((*pd).context, &*wanted) };
    // SAFETY: a context of ours.
    let name = unsafe { name_of((*context).device) };
    let _ = ordered!("ibv_create_qp", &name);
    let mut state = state();
    if wanted.qp_type != rdma_sys::ibv_qp_type::IBV_QPT_RC
        || !state.completions.contains_key(&(wanted.send_cq as usize))
        || !state.completions.contains_key(&(wanted.recv_cq as usize))
    {
        return refuse(libc::EINVAL);
    }
    let handle = state.number();
    let qp = state::zeroed::<ibv_qp>();
    // SAFETY: fresh memory of ours.
    unsafe {
        (*qp).context = context;
        (*qp).pd = pd;
        (*qp).send_cq = wanted.send_cq;
        (*qp).recv_cq = wanted.recv_cq;
        (*qp).handle = handle;
        (*qp).qp_num = handle;
        (*qp).qp_type = wanted.qp_type;
    }
    state.qps.insert(handle, Qp { pd: pd as usize, cq: wanted.send_cq as usize, state: 0, peer: 0, access: 0 });
    ledger(&format!("+qp {handle}"));
    qp
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: a QP of ours; the rest is the caller's promise.
    let (name, number, wanted) = unsafe { (name_of((*(*qp).context).device), (*qp).qp_num, &*attributes) };
    if let Some(Fault::Code(errno)) = fault("ibv_modify_qp", &name) {
        return errno;
    }
    state().qps.get_mut(&number).map_or(libc::EINVAL, |qp| qp.modify(wanted, mask as c_uint))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: a QP of ours.
    let (name, number) = unsafe { (name_of((*(*qp).context).device), (*qp).qp_num) };
    if let Some(Fault::Code(errno)) = fault("ibv_destroy_qp", &name) {
        return errno;
    }
    if state().qps.remove(&number).is_none() {
        return libc::EINVAL;
    }
    ledger(&format!("-qp {number}"));
    0
}

fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}
