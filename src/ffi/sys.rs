//! System calls without a safe form.

use std::{io, ptr};

use rustix::process::{Signal, set_parent_process_death_signal};

/// Makes a command's process die with the thread that spawns it (`prctl(2)`, `PR_SET_PDEATHSIG`:
/// the *thread*, so it must be one that lives as long as the process), and inherit no descriptor but
/// its three, whatever this process was itself given.
pub fn contain(command: &mut tokio::process::Command) {
    let closed = || {
        // SAFETY: only sets flags of descriptors, in the process that is about to execute something.
        // Linux before 5.11 doesn't know it; what this process opens is close-on-exec anyway.
        let _ = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
    };
    // SAFETY: the closure makes async-signal-safe system calls alone, and allocates nothing.
    unsafe {
        command.pre_exec(closed);
    }
}

/// Gives this process mounts of its own (`unshare(2)`, `CLONE_NEWNS`).
pub fn own_mounts() -> io::Result<()> {
    // SAFETY: descriptors stay shared; only mounts, root and working folder become this thread's, and
    // the child has no other thread yet.
    Ok(unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }?)
}

/// Whether the kernel can read a byte at an address of this process: `write` to a pipe answers
/// EFAULT where it can't. Memory of a discrete GPU can't be read so.
pub fn kernel_can_read(address: u64) -> io::Result<bool> {
    use std::os::fd::AsRawFd;
    let (_reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let pointer: *const libc::c_void = ptr::with_exposed_provenance(usize::try_from(address).unwrap_or(0));
    // SAFETY: the kernel checks the address; nothing in this process reads it.
    match unsafe { libc::write(writer.as_raw_fd(), pointer, 1) } {
        1 => Ok(true),
        _ => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::EFAULT) => Ok(false),
            e => Err(e),
        },
    }
}

/// Address space that nothing may touch, and that nothing else will be mapped into: registering it
/// must fail. Unmapped when dropped.
pub struct Reservation {
    address: *mut libc::c_void,
    length: usize,
}

impl Reservation {
    /// Reserves whole pages.
    pub fn new(length: usize) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe {
            mmap_anonymous(ptr::null_mut(), length, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        }?;
        Ok(Self { address, length })
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address.expose_provenance() as u64
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: unmaps what `new` mapped, which nobody else knows.
        let _ = unsafe { rustix::mm::munmap(self.address, self.length) };
    }
}

/// A descriptor whose being readable can be waited for.
pub fn readable(fd: std::os::fd::OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>> {
    // SAFETY: an `OwnedFd` is the same open descriptor for as long as it lives, and it lives in here.
    let registered = unsafe { tokio::io::unix::AsyncFd::register_with_interest(fd, tokio::io::Interest::READABLE) };
    Ok(registered?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_reads_memory_but_no_reservation() {
        let byte = 1_u8;
        assert!(kernel_can_read((&raw const byte).expose_provenance() as u64).unwrap());
        let reservation = Reservation::new(1 << 16).unwrap();
        assert!(!kernel_can_read(reservation.address()).unwrap());
    }
}
