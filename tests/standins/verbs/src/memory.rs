//! What the kernel does before an adapter may touch memory: pins pages, asks peer-memory clients, attaches to
//! dma-bufs.

use std::{
    env, fs,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr,
    sync::OnceLock,
};

use crate::{c_string, state::Region};

/// `ib_umem_get` with the peer-memory patch: the limit first, then the pages, then whoever claims the address.
pub(crate) fn pin(address: u64, length: usize) -> Result<*mut u8, i32> {
    within_limit(length)?;
    if length == 0 {
        return Err(libc::EINVAL);
    }
    let last = address.checked_add(length as u64 - 1).ok_or(libc::EINVAL)?;
    if readable(address) && readable(last) {
        return Ok(address as *mut u8);
    }
    let peermem = env::var("STANDIN_VERBS_PEERMEM").is_ok_and(|v| v == "1");
    peermem.then(|| of_gpu(address, length)).flatten().ok_or(libc::EFAULT)
}

/// `can_do_mlock` and `RLIMIT_MEMLOCK`, which a capability lifts.
fn within_limit(length: usize) -> Result<(), i32> {
    const IPC_LOCK: u32 = 14;
    let effective = effective_capabilities();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a place for the structure.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    if effective >> IPC_LOCK & 1 == 1 {
        Ok(())
    } else if limit.rlim_cur == 0 {
        Err(libc::EPERM)
    } else if (length as u64) > limit.rlim_cur {
        Err(libc::ENOMEM)
    } else {
        Ok(())
    }
}

/// The lower half of `capget(2)`'s effective set.
fn effective_capabilities() -> u32 {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0]; // and this thread
    let mut sets = [0_u32; 6];
    // SAFETY: places for a header and two sets of three words each.
    unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    sets[0]
}

/// Whether the kernel can read the byte at an address of this process.
fn readable(address: u64) -> bool {
    let mut ends = [0; 2];
    // SAFETY: a place for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return false;
    }
    // SAFETY: the kernel made both for us.
    let [_reader, writer] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    // SAFETY: the kernel checks the address.
    unsafe { libc::write(writer.as_raw_fd(), address as *const _, 1) == 1 }
}

type Bytes = unsafe extern "C" fn(*mut *mut u8, u64, usize) -> u32;

/// What `nvidia_peermem` would say: the stand-in of libcuda in this process knows its memory.
fn of_gpu(address: u64, length: usize) -> Option<*mut u8> {
    static BYTES: OnceLock<Option<Bytes>> = OnceLock::new();
    let bytes = (*BYTES.get_or_init(bytes_of_gpu))?;
    let mut place = ptr::null_mut();
    // SAFETY: the stand-in's signature.
    let answer = unsafe { bytes(&raw mut place, address, length) };
    (answer == 0).then_some(place)
}

/// Once it is loaded it stays.
fn bytes_of_gpu() -> Option<Bytes> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let file = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]))
        .find(|path| path.rsplit('/').next().is_some_and(|name| name.starts_with("libcuda.so")))?;
    // SAFETY: the library is loaded already; this only finds it.
    let library = unsafe { libc::dlopen(c_string(file).as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if library.is_null() {
        return None;
    }
    // SAFETY: a name in a loaded library.
    let symbol = unsafe { libc::dlsym(library, c"standin_cuda_bytes".as_ptr()) };
    // SAFETY: the stand-in's signature.
    (!symbol.is_null()).then(|| unsafe { std::mem::transmute::<*mut libc::c_void, Bytes>(symbol) })
}

/// `dma_buf_get`, and the range.
pub(crate) fn attach(fd: i32, offset: u64, length: usize) -> Result<*mut u8, i32> {
    // SAFETY: a structure of numbers, for which zeros are a value.
    let mut stat = unsafe { std::mem::zeroed::<libc::stat>() };
    // SAFETY: a place for the structure.
    if unsafe { libc::fstat(fd, &raw mut stat) } != 0 {
        return Err(libc::EBADF);
    }
    let name = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    if !name.to_string_lossy().contains("standin-gpu-memory") {
        return Err(libc::EINVAL); // a file that is no dma-buf
    }
    let end = offset.checked_add(length as u64).ok_or(libc::EINVAL)?;
    if end > stat.st_size as u64 || length == 0 {
        return Err(libc::EINVAL);
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping where the kernel likes.
    let bytes = unsafe { libc::mmap(ptr::null_mut(), length, protection, libc::MAP_SHARED, fd, offset as libc::off_t) };
    if bytes == libc::MAP_FAILED { Err(libc::ENOMEM) } else { Ok(bytes.cast()) }
}

pub(crate) fn unpin(region: &Region) {
    if region.mapped {
        // SAFETY: mapped by `attach`, once.
        unsafe { libc::munmap(region.bytes.cast(), region.length) };
    }
}
