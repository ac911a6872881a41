//! What the adapter and the kernel know: contexts, PDs, regions, queue pairs, completions.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ffi::{CStr, c_int, c_uint},
    sync::{Mutex, MutexGuard, PoisonError},
};

use rdma_sys::{ibv_context, ibv_cq, ibv_device, ibv_qp, ibv_qp_attr, ibv_send_wr, ibv_wc};

/// One memory region as the adapter has it.
pub(crate) struct Region {
    pub(crate) pd: usize,
    pub(crate) iova: u64,
    pub(crate) length: usize,
    pub(crate) access: c_int,
    /// Where its first byte can be reached.
    pub(crate) bytes: *mut u8,
    /// Whether the reach is a mapping of our own.
    pub(crate) mapped: bool,
}

pub(crate) struct Qp {
    pub(crate) pd: usize,
    pub(crate) cq: usize,
    /// Of `enum ibv_qp_state`: 0 RESET, 1 INIT, 2 RTR, 3 RTS, 6 ERR.
    pub(crate) state: u32,
    pub(crate) peer: u32,
    pub(crate) access: c_uint,
}

const STATE: c_uint = 1;
const ACCESS: c_uint = 1 << 3;
const PKEY_INDEX: c_uint = 1 << 4;
const PORT: c_uint = 1 << 5;
const AV: c_uint = 1 << 7;
const PATH_MTU: c_uint = 1 << 8;
const TIMEOUT: c_uint = 1 << 9;
const RETRY: c_uint = 1 << 10;
const RNR_RETRY: c_uint = 1 << 11;
const RQ_PSN: c_uint = 1 << 12;
const MAX_RD: c_uint = 1 << 13;
const MIN_RNR: c_uint = 1 << 15;
const SQ_PSN: c_uint = 1 << 16;
const MAX_DEST_RD: c_uint = 1 << 17;
const DEST_QPN: c_uint = 1 << 20;

impl Qp {
    /// The transitions and their attributes as `ib_modify_qp_is_ok` has them for RC.
    pub(crate) fn modify(&mut self, wanted: &ibv_qp_attr, mask: c_uint) -> c_int {
        let needs = match (self.state, wanted.qp_state) {
            (_, 6) => STATE,
            (0, 1) => STATE | PKEY_INDEX | PORT | ACCESS,
            (1, 2) => STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD | MIN_RNR,
            (2, 3) => STATE | TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | MAX_RD,
            _ => return libc::EINVAL,
        };
        if mask & needs != needs || (mask & PORT != 0 && wanted.port_num != 1) {
            return libc::EINVAL;
        }
        if mask & AV != 0 && wanted.ah_attr.is_global == 0 && wanted.ah_attr.dlid == 0 {
            return libc::EINVAL;
        }
        if mask & ACCESS != 0 {
            self.access = wanted.qp_access_flags;
        }
        if mask & DEST_QPN != 0 {
            self.peer = wanted.dest_qp_num;
        }
        self.state = wanted.qp_state;
        0
    }
}

pub(crate) struct State {
    made: u32,
    pub(crate) contexts: BTreeSet<usize>,
    /// PD → its context.
    pub(crate) pds: BTreeMap<usize, usize>,
    /// By the MR's address.
    pub(crate) regions: BTreeMap<usize, Region>,
    pub(crate) qps: BTreeMap<u32, Qp>,
    pub(crate) completions: BTreeMap<usize, VecDeque<ibv_wc>>,
}

// SAFETY: pointers in it are used under its lock alone.
unsafe impl Send for State {}

impl State {
    /// A number never given before.
    pub(crate) fn number(&mut self) -> u32 {
        self.made += 1;
        self.made
    }

    /// The key of the youngest region, or one of nobody's.
    pub(crate) fn last_key(&self) -> u32 {
        let key = |mr: &usize| {
            // SAFETY: a region's MR lives as long as it is registered.
            unsafe { (*(*mr as *const rdma_sys::ibv_mr)).lkey }
        };
        self.regions.keys().map(key).max().unwrap_or(0x15)
    }

    /// The region that a key names.
    pub(crate) fn region(&self, key: u32) -> Option<&Region> {
        // SAFETY: as above.
        self.regions.iter().find(|(mr, _)| unsafe { (*(**mr as *const rdma_sys::ibv_mr)).lkey } == key).map(|(_, r)| r)
    }
}

pub(crate) fn state() -> MutexGuard<'static, State> {
    static STATE: Mutex<State> = Mutex::new(State {
        made: 0,
        contexts: BTreeSet::new(),
        pds: BTreeMap::new(),
        regions: BTreeMap::new(),
        qps: BTreeMap::new(),
        completions: BTreeMap::new(),
    });
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn zeroed<T>() -> *mut T {
    // SAFETY: only for the plain C structures of verbs.h, for which zeros are a value.
    Box::into_raw(Box::new(unsafe { std::mem::zeroed::<T>() }))
}

/// A device that lives for ever.
pub(crate) fn device(name: &str) -> usize {
    let device = zeroed::<ibv_device>();
    let text = crate::c_string(name);
    // SAFETY: fresh memory of ours; a name of 63 bytes at most is copied.
    unsafe {
        let room = &mut (*device).name;
        for (place, byte) in room.iter_mut().zip(text.as_bytes().iter().take(63)) {
            *place = *byte as std::ffi::c_char;
        }
    }
    device as usize
}

/// The name of a device of ours.
pub(crate) unsafe fn name_of(device: *const ibv_device) -> String {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr((*device).name.as_ptr()) }.to_string_lossy().into_owned()
}

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;

pub(crate) fn context(device: *mut ibv_device, post: Option<PostSend>, poll: Option<PollCq>) -> *mut ibv_context {
    let context = zeroed::<ibv_context>();
    // SAFETY: fresh memory of ours.
    unsafe {
        (*context).device = device;
        (*context).cmd_fd = -1;
        (*context).async_fd = -1;
        (*context).ops.post_send = post;
        (*context).ops.poll_cq = poll;
    }
    context
}

/// An ACTIVE InfiniBand port with MTU 4096.
pub(crate) unsafe fn put_port(place: *mut rdma_sys::ibv_port_attr, lid: u16) {
    // SAFETY: the caller's promise.
    let port = unsafe { &mut *place };
    port.state = 4;
    port.max_mtu = 5;
    port.active_mtu = 5;
    port.gid_tbl_len = 4;
    port.lid = lid;
    port.link_layer = 1;
}
