//! RDMA WRITE and RDMA READ between two queue pairs of one adapter, with the completions that an adapter gives.

use std::ffi::c_int;

use rdma_sys::{ibv_cq, ibv_qp, ibv_send_wr, ibv_wc, ibv_wr_opcode};
use standin::{Fault, fault};

use crate::state::{State, name_of, state};

const LOCAL_WRITE: c_int = 1;
const REMOTE_WRITE: c_int = 2;
const REMOTE_READ: c_int = 4;

const SUCCESS: u32 = 0;
const LOC_LEN_ERR: u32 = 1;
const LOC_PROT_ERR: u32 = 4;
const WR_FLUSH_ERR: u32 = 5;
const REM_ACCESS_ERR: u32 = 10;
const RETRY_EXC_ERR: u32 = 12;

pub(crate) unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: a QP of ours; the rest is the caller's promise.
    let (number, name, request) = unsafe { ((*qp).qp_num, name_of((*(*qp).context).device), &*wr) };
    let refuse = |errno| {
        // SAFETY: a place for one pointer is the caller's promise.
        unsafe { *bad = wr };
        errno
    };
    if let Some(Fault::Code(errno)) = fault("ibv_post_send", &name) {
        return refuse(errno);
    }
    if !request.next.is_null() || request.num_sge != 1 {
        return refuse(libc::EINVAL); // all that this adapter needs to do
    }
    let call = match request.opcode {
        ibv_wr_opcode::IBV_WR_RDMA_WRITE => "rdma_write",
        ibv_wr_opcode::IBV_WR_RDMA_READ => "rdma_read",
        _ => return refuse(libc::EINVAL),
    };
    let order = fault(call, &name);
    let mut state = state();
    let Some(own) = state.qps.get(&number).filter(|qp| qp.state >= 3) else { return refuse(libc::EINVAL) };
    let cq = own.cq;
    let status = match &order {
        _ if own.state == 6 => WR_FLUSH_ERR,
        Some(Fault::Wrong(word)) if word == "lost" => return 0, // and no completion, ever
        Some(Fault::Code(status)) => *status as u32,
        _ => carry_out(&state, number, request, order.as_ref()),
    };
    if status != SUCCESS
        && let Some(qp) = state.qps.get_mut(&number)
    {
        qp.state = 6;
    }
    // SAFETY: plain numbers, for which zeros are a value.
    let mut done = unsafe { std::mem::zeroed::<ibv_wc>() };
    done.wr_id = request.wr_id;
    done.status = status;
    done.vendor_err = if status == SUCCESS { 0 } else { 0x51 };
    done.qp_num = number;
    state.completions.entry(cq).or_default().push_back(done);
    0
}

/// Looks at both regions as an adapter does, and copies.
fn carry_out(state: &State, number: u32, request: &ibv_send_wr, order: Option<&Fault>) -> u32 {
    let write = request.opcode == ibv_wr_opcode::IBV_WR_RDMA_WRITE;
    // SAFETY: one entry, and the part of the union that both opcodes use.
    let (sge, remote) = unsafe { (&*request.sg_list, request.wr.rdma) };
    let length = sge.length as usize;
    if length > 1 << 30 {
        return LOC_LEN_ERR;
    }
    let Some(own) = state.qps.get(&number) else { return WR_FLUSH_ERR };
    let within = |key, address: u64, access: c_int, pd: usize| {
        let region = state.region(key)?;
        let offset = address.checked_sub(region.iova)?;
        let fits = offset.checked_add(length as u64)? <= region.length as u64;
        (fits && region.access & access == access && region.pd == pd && !region.bytes.is_null())
            .then(|| region.bytes.wrapping_add(offset as usize))
    };
    let Some(local) = within(sge.lkey, sge.addr, if write { 0 } else { LOCAL_WRITE }, own.pd) else {
        return LOC_PROT_ERR;
    };
    let Some(peer) = state.qps.get(&own.peer).filter(|peer| peer.state >= 2 && peer.state != 6 && peer.peer == number)
    else {
        return RETRY_EXC_ERR;
    };
    let wanted = if write { REMOTE_WRITE } else { REMOTE_READ };
    if peer.access as c_int & wanted == 0 {
        return REM_ACCESS_ERR;
    }
    let Some(there) = within(remote.rkey, remote.remote_addr, wanted, peer.pd) else { return REM_ACCESS_ERR };
    let (from, to) = if write { (local, there) } else { (there, local) };
    copy(from, to, length, order);
    SUCCESS
}

fn copy(from: *const u8, to: *mut u8, length: usize, order: Option<&Fault>) {
    let word = match order {
        Some(Fault::Wrong(word)) => word.as_str(),
        _ => "",
    };
    // SAFETY: both ranges lie in registered regions, whose bytes can be reached.
    unsafe {
        match word {
            "stale" => {}
            "short" => from.copy_to(to, length - 1),
            "shift" => from.copy_to(to.add(4096.min(length)), length.saturating_sub(4096)),
            _ => from.copy_to(to, length),
        }
        if word == "flip" {
            *to.add(length / 2) ^= 1;
        }
    }
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, place: *mut ibv_wc) -> c_int {
    // SAFETY: a CQ of ours.
    let name = unsafe { name_of((*(*cq).context).device) };
    if let Some(Fault::Code(errno)) = fault("ibv_poll_cq", &name) {
        return -errno;
    }
    let mut state = state();
    let Some(queue) = state.completions.get_mut(&(cq as usize)) else { return -libc::EINVAL };
    let mut given = 0;
    while given < room {
        let Some(done) = queue.pop_front() else { break };
        // SAFETY: room for `room` entries is the caller's promise.
        unsafe { place.add(given as usize).write(done) };
        given += 1;
    }
    given
}
