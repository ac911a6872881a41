//! System calls without a safe form.

use std::{io, ptr};

use rustix::process::{Signal, set_parent_process_death_signal};

/// Makes a command's process die with the thread that spawns it (`prctl(2)`, `PR_SET_PDEATHSIG`:
/// the *thread*, so it must be one that lives as long as the process).
pub fn die_with_parent(command: &mut tokio::process::Command) {
    // SAFETY: the closure makes one async-signal-safe system call and allocates nothing.
    unsafe {
        command.pre_exec(|| set_parent_process_death_signal(Some(Signal::KILL)).map_err(Into::into));
    }
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
