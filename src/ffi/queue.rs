//! Two RC queue pairs of one HCA, connected to each other: RDMA WRITE and RDMA READ within one adapter.

use std::{
    ffi::c_int,
    mem,
    ptr::{self, NonNull},
    time::{Duration, Instant},
};

use rdma_sys::{
    ibv_ah_attr, ibv_cq, ibv_gid, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_init_attr,
    ibv_qp_state as QpState, ibv_qp_type, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc, ibv_wr_opcode,
};

use super::verbs::{Access, Errno, Pd, clear_errno, done};
use crate::report::Code;

/// `IBV_PORT_ACTIVE`.
const ACTIVE: u32 = 4;
/// How long a completion may take. The adapter's own retries give up before (6 × 4.096 µs × 2^14 ≈ 0.4 s).
const COMPLETION: Duration = Duration::from_secs(5);

/// By which port, and on Ethernet by which entry of its GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Port number.
    pub port: u8,
    /// Index in the port's GID table; without one the LID leads the way.
    pub gid_index: Option<u8>,
}

/// Why there is no loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotConnected {
    /// The port is in this state, of `enum ibv_port_state`.
    Port(u32),
    /// A verb refused.
    Refused(Errno),
}

impl From<Errno> for NotConnected {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

/// Why a transfer did not come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotMoved {
    /// The request was refused.
    Post(Errno),
    /// It completed with this status, of `enum ibv_wc_status`.
    Status(u32),
    /// It never completed.
    Silent,
}

impl NotMoved {
    /// The code to show.
    #[must_use]
    pub fn code(self) -> Code {
        match self {
            Self::Post(errno) => errno.into(),
            Self::Status(status) => Code::completion(status),
            Self::Silent => Code::errno(libc::ETIMEDOUT),
        }
    }
}

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// RDMA WRITE: from the local MR to the remote one.
    Write,
    /// RDMA READ: from the remote MR to the local one.
    Read,
}

/// Bytes in an MR, by the address that the adapter knows them by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Address of the first.
    pub address: u64,
    /// Local or remote key.
    pub key: u32,
}

/// A completion queue; destroyed when dropped.
struct Cq<'p> {
    pd: &'p Pd<'p>,
    cq: NonNull<ibv_cq>,
}

impl Drop for Cq<'_> {
    fn drop(&mut self) {
        // SAFETY: destroys what was created, once; its queue pairs are gone.
        let _ = unsafe { (self.pd.device.table().destroy_cq)(self.cq.as_ptr()) };
    }
}

/// A queue pair; destroyed when dropped.
struct Qp<'p> {
    pd: &'p Pd<'p>,
    qp: NonNull<ibv_qp>,
}

impl Drop for Qp<'_> {
    fn drop(&mut self) {
        // SAFETY: destroys what was created, once.
        let _ = unsafe { (self.pd.device.table().destroy_qp)(self.qp.as_ptr()) };
    }
}

/// Two connected queue pairs. Fields are dropped in their order, the last that was made first. What
/// can't be destroyed keeps the PD from being deallocated, which the caller reports.
pub struct Loopback<'p> {
    _far: Qp<'p>,
    near: Qp<'p>,
    cq: Cq<'p>,
}

impl<'p> Loopback<'p> {
    /// Creates and connects them.
    pub fn connect(pd: &'p Pd<'p>, route: Route) -> Result<Self, NotConnected> {
        let port = query_port(pd, route.port)?;
        if port.state != ACTIVE {
            return Err(NotConnected::Port(port.state));
        }
        let way = address(pd, route, &port)?;
        let cq = create_cq(pd)?;
        let (near, far) = (create_qp(pd, &cq)?, create_qp(pd, &cq)?);
        for (qp, peer) in [(&near, &far), (&far, &near)] {
            qp.bring_up(route.port, &port, way, peer.number())?;
        }
        Ok(Self { near, _far: far, cq })
    }

    /// Moves `length` bytes and waits for the completion.
    pub fn transfer(&self, direction: Direction, local: Place, remote: Place, length: u32) -> Result<(), NotMoved> {
        let mut sge = ibv_sge { addr: local.address, length, lkey: local.key };
        // SAFETY: a C structure of numbers, pointers and unions of both, for which zeros are a value.
        let mut request = unsafe { mem::zeroed::<ibv_send_wr>() };
        request.sg_list = &raw mut sge;
        request.num_sge = 1;
        request.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        request.opcode = match direction {
            Direction::Write => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            Direction::Read => ibv_wr_opcode::IBV_WR_RDMA_READ,
        };
        request.wr.rdma = rdma_sys::rdma_t { remote_addr: remote.address, rkey: remote.key };
        let mut bad = ptr::null_mut();
        let qp = self.near.qp.as_ptr();
        // SAFETY: verbs.h dispatches this inline through the context's table, which lives as long as
        // the context; the request and its one entry live until the call returns.
        let posted = unsafe {
            match (*(*qp).context).ops.post_send {
                Some(post) => post(qp, &raw mut request, &raw mut bad),
                None => libc::EOPNOTSUPP,
            }
        };
        done(posted).map_err(NotMoved::Post)?;
        self.wait()
    }

    fn wait(&self) -> Result<(), NotMoved> {
        let end = Instant::now() + COMPLETION;
        let cq = self.cq.cq.as_ptr();
        // SAFETY: as for the request above.
        let mut completion = unsafe { mem::zeroed::<ibv_wc>() };
        while Instant::now() < end {
            // SAFETY: dispatched inline like `post_send`; there is room for one completion.
            let found = unsafe {
                match (*(*cq).context).ops.poll_cq {
                    Some(poll) => poll(cq, 1, &raw mut completion),
                    None => -libc::EOPNOTSUPP,
                }
            };
            match found {
                0 => std::thread::sleep(Duration::from_micros(20)),
                1 if completion.status == 0 => return Ok(()),
                1 => return Err(NotMoved::Status(completion.status)),
                errno => return Err(NotMoved::Post(Errno(errno.abs()))),
            }
        }
        Err(NotMoved::Silent)
    }
}

fn query_port(pd: &Pd<'_>, port: u8) -> Result<ibv_port_attr, Errno> {
    // SAFETY: a C structure of numbers. The exported function fills its older, shorter form; the
    // rest stays zero.
    let mut attributes = unsafe { mem::zeroed::<ibv_port_attr>() };
    // SAFETY: the context is open, and the place is large enough.
    done(unsafe { (pd.device.table().query_port)(pd.device.context, port, &raw mut attributes) })?;
    Ok(attributes)
}

/// The way back to the same port: its LID, or its GID.
fn address(pd: &Pd<'_>, route: Route, port: &ibv_port_attr) -> Result<ibv_ah_attr, Errno> {
    // SAFETY: a C structure of numbers and a union of bytes.
    let mut way = unsafe { mem::zeroed::<ibv_ah_attr>() };
    way.port_num = route.port;
    way.dlid = port.lid;
    if let Some(index) = route.gid_index {
        let mut gid = ibv_gid { raw: [0; 16] };
        clear_errno();
        // SAFETY: the context is open, and the place is one GID.
        let result =
            unsafe { (pd.device.table().query_gid)(pd.device.context, route.port, c_int::from(index), &raw mut gid) };
        if result != 0 {
            return Err(Errno::last());
        }
        way.is_global = 1;
        way.grh.dgid = gid;
        way.grh.sgid_index = index;
        way.grh.hop_limit = 1;
    }
    Ok(way)
}

fn create_cq<'p>(pd: &'p Pd<'p>) -> Result<Cq<'p>, Errno> {
    clear_errno();
    // SAFETY: the context is open; no channel and no context of our own.
    let cq = unsafe { (pd.device.table().create_cq)(pd.device.context, 16, ptr::null_mut(), ptr::null_mut(), 0) };
    NonNull::new(cq).map(|cq| Cq { pd, cq }).ok_or_else(Errno::last)
}

fn create_qp<'p>(pd: &'p Pd<'p>, cq: &Cq<'p>) -> Result<Qp<'p>, Errno> {
    // SAFETY: a C structure of numbers and pointers.
    let mut wanted = unsafe { mem::zeroed::<ibv_qp_init_attr>() };
    wanted.send_cq = cq.cq.as_ptr();
    wanted.recv_cq = cq.cq.as_ptr();
    wanted.qp_type = ibv_qp_type::IBV_QPT_RC;
    wanted.cap.max_send_wr = 4;
    wanted.cap.max_recv_wr = 1;
    wanted.cap.max_send_sge = 1;
    wanted.cap.max_recv_sge = 1;
    clear_errno();
    // SAFETY: the PD is allocated, and the queue lives longer than the pair.
    let qp = unsafe { (pd.device.table().create_qp)(pd.pd, &raw mut wanted) };
    NonNull::new(qp).map(|qp| Qp { pd, qp }).ok_or_else(Errno::last)
}

impl Qp<'_> {
    fn number(&self) -> u32 {
        // SAFETY: libibverbs filled the structure, and it lives until it is destroyed.
        unsafe { self.qp.as_ref() }.qp_num
    }

    /// INIT, RTR, RTS, with what each transition needs for RC (`ibv_modify_qp(3)`).
    fn bring_up(&self, port: u8, attributes: &ibv_port_attr, way: ibv_ah_attr, peer: u32) -> Result<(), Errno> {
        // SAFETY: a C structure of numbers, and unions of bytes.
        let mut wanted = unsafe { mem::zeroed::<ibv_qp_attr>() };
        wanted.qp_access_flags = u32::try_from(Access::ReadWrite.flags()).unwrap_or_default();
        wanted.port_num = port;
        wanted.path_mtu = attributes.active_mtu;
        wanted.ah_attr = way;
        wanted.dest_qp_num = peer;
        wanted.max_rd_atomic = 1;
        wanted.max_dest_rd_atomic = 1;
        wanted.min_rnr_timer = 12;
        wanted.timeout = 14;
        // Not 7: software RDMA (rxe) takes it for "for ever", and there would be no completion at all.
        wanted.retry_cnt = 6;
        wanted.rnr_retry = 7;
        let init = Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        let receive = Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        let send = Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        for (state, mask) in
            [(QpState::IBV_QPS_INIT, init), (QpState::IBV_QPS_RTR, receive), (QpState::IBV_QPS_RTS, send)]
        {
            wanted.qp_state = state;
            let mask = c_int::try_from((mask | Mask::IBV_QP_STATE).0).unwrap_or_default();
            // SAFETY: the pair is alive, and the structure is read during the call only.
            done(unsafe { (self.pd.device.table().modify_qp)(self.qp.as_ptr(), &raw mut wanted, mask) })?;
        }
        Ok(())
    }
}
