//! What the kernel tells of devices and modules that come and go (`NETLINK_KOBJECT_UEVENT` of netlink(7), where
//! udev has it from), so that the next look does not wait for its second. Ports change their state without a
//! word, and a node where nothing is told is looked at every second all the same.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind,
    netlink::{KOBJECT_UEVENT, SocketAddrNetlink},
    recv, socket_with,
};
use tokio::{io::unix::AsyncFd, time::sleep};

use crate::ffi::sys;

/// The kernel's own messages; 2 would be udev's.
const KERNEL: u32 = 1;
/// What comes together is looked at once.
const TOGETHER: Duration = Duration::from_millis(100);
/// Subsystems whose devices matter here, each as a line of a message.
const SUBSYSTEMS: [&[u8]; 6] = [
    b"SUBSYSTEM=infiniband",
    b"SUBSYSTEM=infiniband_verbs",
    b"SUBSYSTEM=infiniband_mad",
    b"SUBSYSTEM=module",
    b"SUBSYSTEM=net",
    b"SUBSYSTEM=pci",
];

/// An ear at the kernel, where it can be had.
pub(super) struct Uevents {
    socket: Option<AsyncFd<OwnedFd>>,
    /// Something that may matter was heard and not told yet.
    heard: bool,
}

impl Uevents {
    pub(super) fn listen() -> Self {
        let socket = open().inspect_err(|error| tracing::info!(%error, "no uevents; looking once a second")).ok();
        Self { socket, heard: false }
    }

    /// Waits for something that may matter. Nothing is lost when it is dropped and called again.
    pub(super) async fn next(&mut self) {
        let Some(socket) = &self.socket else { return std::future::pending().await };
        while !self.heard {
            let Ok(mut ready) = socket.readable().await else { return std::future::pending().await };
            self.heard = drain(socket.get_ref());
            ready.clear_ready();
        }
        sleep(TOGETHER).await;
        drain(socket.get_ref());
        self.heard = false;
        tracing::debug!("the kernel tells of a change");
    }
}

fn open() -> io::Result<AsyncFd<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(KOBJECT_UEVENT))?;
    bind(&socket, &SocketAddrNetlink::new(0, KERNEL))?;
    sys::readable(socket)
}

/// Reads all there is; whether any of it matters. Of what did not fit the kernel says so.
fn drain(socket: &OwnedFd) -> bool {
    let (mut message, mut matters) = ([0; 8192], false);
    loop {
        match recv(socket, &mut message[..], RecvFlags::empty()) {
            Ok((length, _)) => matters |= concerns_us(&message[..length]),
            Err(rustix::io::Errno::NOBUFS) => matters = true,
            Err(_) => return matters,
        }
    }
}

/// Strings that end with a null, `add@/devices/…` and then `NAME=value`.
fn concerns_us(message: &[u8]) -> bool {
    message.split(|byte| *byte == 0).any(|line| SUBSYSTEMS.contains(&line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_matter_is_heard() {
        let message = |subsystem: &str| format!("add@/devices/x\0ACTION=add\0SUBSYSTEM={subsystem}\0SEQNUM=1\0");
        for subsystem in ["infiniband", "infiniband_verbs", "pci", "module"] {
            assert!(concerns_us(message(subsystem).as_bytes()), "{subsystem}");
        }
        for subsystem in ["block", "cpu", "netx"] {
            assert!(!concerns_us(message(subsystem).as_bytes()), "{subsystem}");
        }
        assert!(!concerns_us(b"") && !concerns_us(&[0xff; 64]));
    }
}
