//! Memory that stands in for a GPU's, and dma-bufs of it.

use std::{
    fs::OpenOptions,
    os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd},
    ptr,
};

use crate::{INVALID_VALUE, OUT_OF_MEMORY};

/// What an allocation is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Anonymous pages: `ibv_reg_mr` pins them.
    Anonymous,
    /// A mapped dma-buf: the kernel refuses to pin it, as it refuses a GPU pointer without peermem.
    Vgem,
    /// The heap.
    Malloc,
    /// Anonymous pages, called managed.
    Managed,
    /// Pages whose first touch waits for an answer that nobody gives (userfaultfd(2)): a registration hangs in
    /// the kernel.
    Unanswered,
    /// An address that neither the process nor the kernel can touch, with memory behind it that only
    /// this library, and an adapter's stand-in, can: what a discrete GPU's is.
    Device,
}

/// What an export gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Export {
    /// A genuine dma-buf.
    Vgem,
    /// A memfd, which is none.
    Memfd,
    /// The memory behind a `Device` allocation; the stand-in for libibverbs takes it for a dma-buf.
    Device,
}

/// One allocation; gives its memory back when dropped.
#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) address: u64,
    pub(crate) size: usize,
    pub(crate) kind: Kind,
    pub(crate) context: usize,
    /// Where its bytes can be reached.
    pub(crate) bytes: *mut u8,
    buffer: Option<OwnedFd>,
}

// SAFETY: the address is used under the state's lock alone.
unsafe impl Send for Range {}

impl Range {
    pub(crate) fn new(context: usize, kind: Kind, size: usize) -> Result<Self, u32> {
        let size = size.checked_next_multiple_of(4096).ok_or(OUT_OF_MEMORY)?;
        let (address, buffer) = match kind {
            Kind::Anonymous | Kind::Managed => (map(size, None)?, None),
            Kind::Unanswered => {
                let address = map(size, None)?;
                (address, Some(unanswered(address, size)?))
            }
            Kind::Device => {
                let buffer = memfd()?;
                // SAFETY: a length for our own file.
                if unsafe { libc::ftruncate(buffer.as_raw_fd(), size as libc::off_t) } != 0 {
                    return Err(OUT_OF_MEMORY);
                }
                (reserve(size)?, Some(buffer))
            }
            Kind::Malloc => {
                // SAFETY: plain malloc; null is looked at below.
                let address = unsafe { libc::malloc(size) } as u64;
                if address == 0 {
                    return Err(OUT_OF_MEMORY);
                }
                (address, None)
            }
            Kind::Vgem => {
                let buffer = vgem(size)?;
                (map(size, Some(&buffer))?, Some(buffer))
            }
        };
        let bytes = match (&buffer, kind) {
            (Some(buffer), Kind::Device) => map(size, Some(buffer))?,
            _ => address,
        };
        Ok(Self { address, size, kind, context, bytes: bytes as *mut u8, buffer })
    }

    /// Where the bytes at an address of this range can be reached.
    pub(crate) fn at(&self, address: u64) -> *mut u8 {
        self.bytes.wrapping_add((address - self.address) as usize)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: as it was made in `new`, once.
        unsafe {
            match self.kind {
                Kind::Malloc => libc::free(self.address as *mut _),
                _ => {
                    libc::munmap(self.address as *mut _, self.size);
                    if self.bytes as u64 != self.address {
                        libc::munmap(self.bytes.cast(), self.size);
                    }
                }
            }
        }
    }
}

fn map(size: usize, file: Option<&OwnedFd>) -> Result<u64, u32> {
    let (flags, fd) = file.map_or((libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1), |f| (libc::MAP_SHARED, f.as_raw_fd()));
    // SAFETY: a fresh mapping where the kernel likes.
    let address = unsafe { libc::mmap(ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
    if address == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(address as u64) }
}

/// An address of the process's own that nothing may touch.
fn reserve(size: usize) -> Result<u64, u32> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping where the kernel likes.
    let address = unsafe { libc::mmap(ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0) };
    if address == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(address as u64) }
}

/// Makes each first touch of a mapping wait for this descriptor's reader, who never comes (userfaultfd.h,
/// `UFFDIO_API` and `UFFDIO_REGISTER`).
fn unanswered(address: u64, size: usize) -> Result<OwnedFd, u32> {
    const API: u64 = 0xc018_aa3f;
    const REGISTER: u64 = 0xc020_aa00;
    const MISSING: u64 = 1;
    let mut api = [0xaa_u64, 0, 0];
    let mut range = [address, size as u64, MISSING, 0];
    // SAFETY: a flag; the descriptor is ours.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or(INVALID_VALUE)?;
    // SAFETY: as above.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    for (request, words) in [(API, api.as_mut_ptr()), (REGISTER, range.as_mut_ptr())] {
        // SAFETY: the structures are the kernel's own, of three and four words.
        if unsafe { libc::ioctl(fd.as_raw_fd(), request, words) } != 0 {
            eprintln!("standin-cuda: userfaultfd: {}", std::io::Error::last_os_error());
            return Err(INVALID_VALUE);
        }
    }
    Ok(fd)
}

fn memfd() -> Result<OwnedFd, u32> {
    // SAFETY: a name and flags; the descriptor is ours.
    let fd = unsafe { libc::memfd_create(c"standin-gpu-memory".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A dma-buf of vgem: a dumb buffer, exported (drm.h, `DRM_IOCTL_MODE_CREATE_DUMB` and `PRIME_HANDLE_TO_FD`).
fn vgem(size: usize) -> Result<OwnedFd, u32> {
    #[repr(C)]
    struct CreateDumb {
        height: u32,
        width: u32,
        bpp: u32,
        flags: u32,
        handle: u32,
        pitch: u32,
        size: u64,
    }
    #[repr(C)]
    struct PrimeHandle {
        handle: u32,
        flags: u32,
        fd: i32,
    }
    const fn iowr(number: u64, size: usize) -> u64 {
        3 << 30 | (size as u64) << 16 | (b'd' as u64) << 8 | number
    }

    let failed = |what: &str| {
        eprintln!("standin-cuda: vgem: {what}: {}", std::io::Error::last_os_error());
        OUT_OF_MEMORY
    };
    let card =
        OpenOptions::new().read(true).write(true).open("/dev/dri/card0").map_err(|_| failed("/dev/dri/card0"))?;
    let height = u32::try_from(size / 4096).map_err(|_| OUT_OF_MEMORY)?;
    let mut dumb = CreateDumb { height, width: 1024, bpp: 32, flags: 0, handle: 0, pitch: 0, size: 0 };
    // SAFETY: the structures are the kernel's own.
    if unsafe { libc::ioctl(card.as_raw_fd(), iowr(0xb2, size_of::<CreateDumb>()), &raw mut dumb) } != 0 {
        return Err(failed("CREATE_DUMB"));
    }
    let mut prime = PrimeHandle { handle: dumb.handle, flags: (libc::O_RDWR | libc::O_CLOEXEC) as u32, fd: -1 };
    // SAFETY: as above.
    if unsafe { libc::ioctl(card.as_raw_fd(), iowr(0x2d, size_of::<PrimeHandle>()), &raw mut prime) } != 0 {
        return Err(failed("PRIME_HANDLE_TO_FD"));
    }
    // SAFETY: the kernel made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(prime.fd) })
}

/// A file descriptor for an export, the caller's to close.
pub(crate) fn export(kind: Export, range: &Range) -> Result<i32, u32> {
    let fd = match (kind, &range.buffer) {
        (Export::Vgem, Some(buffer)) => buffer.try_clone().map_err(|_| OUT_OF_MEMORY)?,
        (Export::Vgem, None) => vgem(range.size)?,
        (Export::Device, Some(buffer)) if range.kind == Kind::Device => {
            buffer.try_clone().map_err(|_| OUT_OF_MEMORY)?
        }
        (Export::Device, _) => return Err(INVALID_VALUE),
        (Export::Memfd, _) => memfd()?,
    };
    Ok(fd.into_raw_fd())
}
