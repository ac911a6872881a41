//! What an error of a registration or an export means. Pure: an errno in, an outcome out.
//!
//! The kernel's answers are those of `drivers/infiniband/core` (`uverbs`, `umem`, `umem_dmabuf`), of the
//! peer-memory patch and of the HCA drivers; CUDA's are those of cuda.h.

use super::protocol::Limits;
use crate::{ffi::verbs::Errno, report::Outcome};

/// `ENOTSUPP`: kernel-internal, and let through by some drivers.
const ENOTSUPP: i32 = 524;

/// There is no such path here: in the kernel, its driver, or the library.
#[must_use]
pub fn is_unsupported(errno: Errno) -> bool {
    matches!(errno.0, libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOSYS | ENOTSUPP)
}

/// Says something of this process, of this moment, or of an HCA that is going away or does not
/// answer; nothing of whether GPU memory can be registered. 0 is a null without an errno.
#[must_use]
pub fn says_nothing(errno: Errno) -> bool {
    matches!(
        errno.0,
        0 | libc::EPERM
            | libc::EACCES
            | libc::EINTR
            | libc::EAGAIN
            | libc::EBUSY
            | libc::ETIMEDOUT
            | libc::EIO
            | libc::ENXIO
            | libc::ENODEV
            | libc::EMFILE
            | libc::ENFILE
            | libc::EBADF
    )
}

/// The locked-memory limit of this process explains it: EPERM is `can_do_mlock()`, ENOMEM a limit
/// smaller than what was asked for, which no capability lifts.
#[must_use]
pub fn is_memlock(errno: i64, limits: &Limits, size: u64) -> bool {
    !limits.ipc_lock && matches!(errno, 1 | 12) && limits.memlock.is_some_and(|limit| limit < size)
}

/// Of `ibv_reg_dmabuf_mr` on an exported dma-buf, which is not charged to the limit.
#[must_use]
pub fn of_dmabuf(errno: Errno) -> Outcome {
    if is_unsupported(errno) {
        Outcome::Unsupported
    } else if says_nothing(errno) {
        Outcome::Unknown
    } else {
        Outcome::Failed
    }
}

/// Of `ibv_reg_mr` on a device pointer, which is.
#[must_use]
pub fn of_peermem(errno: Errno, limits: &Limits, size: u64) -> Outcome {
    if is_memlock(i64::from(errno.0), limits, size) { Outcome::Unknown } else { of_dmabuf(errno) }
}

/// Of `cuMemGetHandleForAddressRange`: what it says of the export, and not of a context that is
/// broken for some other reason.
#[must_use]
pub fn of_export(result: u32) -> Outcome {
    match result {
        801 => Outcome::Unsupported,
        // INVALID_VALUE, OPERATING_SYSTEM, UNKNOWN
        1 | 304 | 999 => Outcome::Failed,
        _ => Outcome::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_explains_only_what_it_forbids() {
        let limits = |memlock, ipc_lock| Limits { memlock, ipc_lock, ..Limits::default() };
        let size = 2 << 20;
        assert!(is_memlock(12, &limits(Some(65_536), false), size));
        assert!(is_memlock(1, &limits(Some(0), false), size));
        assert!(!is_memlock(12, &limits(Some(65_536), true), size), "the capability lifts it");
        assert!(!is_memlock(12, &limits(None, false), size), "unlimited");
        assert!(!is_memlock(12, &limits(Some(size), false), size), "large enough");
        assert!(!is_memlock(14, &limits(Some(0), false), size));
        assert_eq!(of_peermem(Errno(12), &limits(None, false), size), Outcome::Failed);
    }
}
