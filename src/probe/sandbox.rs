//! What the child gives up before it loads a foreign library: the pod's API token, other devices
//! than those it needs, and every capability that it does not need. It keeps the host's network
//! namespace, because RDMA devices and RoCE GIDs live there.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change, mount_move},
    thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities},
};
use serde::{Deserialize, Serialize};

use crate::ffi::sys;

/// A `/dev` of the child's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnDev {
    /// An empty folder to build it in.
    pub staging: PathBuf,
    /// Where the driver keeps the GPU's nodes: `/dev`, or the driver container's `dev`.
    pub nvidia: PathBuf,
}

/// Where Kubernetes mounts tokens.
const SECRETS: &[&str] = &["/var/run/secrets", "/run/secrets"];
const DEV: &str = "/dev";
/// What every library may ask for, the RDMA nodes, and the GPUs' render nodes.
const NODES: &[&str] = &["null", "zero", "full", "random", "urandom", "shm", "infiniband", "dri"];
/// To pin memory beyond the limit (`ib_umem_get`), and to open nodes that are not root's.
const KEPT: CapabilitySet = CapabilitySet::IPC_LOCK.union(CapabilitySet::DAC_OVERRIDE);

/// Gives up what can be given up. Mounts stay as they were without `CAP_SYS_ADMIN`, and where a
/// security module forbids what the capability allows: the check is worth more than its fence.
pub(super) fn enter(own_dev: Option<&OwnDev>) -> io::Result<()> {
    let sets = capabilities(None)?;
    if sets.effective.contains(CapabilitySet::SYS_ADMIN)
        && let Err(error) = fence(own_dev)
    {
        eprintln!("the probe has no mounts of its own: {error}");
    }
    let kept = CapabilitySets {
        effective: sets.effective & KEPT,
        permitted: sets.permitted & KEPT,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, kept)?;
    Ok(())
}

fn fence(own_dev: Option<&OwnDev>) -> io::Result<()> {
    sys::own_mounts()?;
    // Nothing of this may reach the pod's or the node's mounts.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    for secrets in SECRETS.iter().map(Path::new).filter(|dir| dir.is_dir()) {
        cover(secrets)?;
    }
    if let Some(own) = own_dev {
        populate(own)?;
        mount_move(&own.staging, DEV)?;
    }
    Ok(())
}

/// Puts an empty file system over a folder.
fn cover(dir: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    Ok(mount("none", dir, "tmpfs", flags, Some(c"size=64k,mode=755"))?)
}

/// Binds the nodes that are needed into the staging folder.
fn populate(own: &OwnDev) -> io::Result<()> {
    cover(&own.staging)?;
    let dev = NODES.iter().map(|name| Path::new(DEV).join(name));
    let nvidia = fs::read_dir(&own.nvidia)?.flatten().map(|entry| entry.path()).filter(|path| is_nvidia(path));
    for source in dev.chain(nvidia).filter(|source| source.exists()) {
        let Some(name) = source.file_name() else { continue };
        let target = own.staging.join(name);
        if source.is_dir() {
            fs::create_dir(&target)?;
        } else {
            fs::write(&target, "")?;
        }
        mount_bind_recursive(&source, &target)?;
    }
    Ok(())
}

fn is_nvidia(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("nvidia"))
}

/// Where the GPUs' nodes are: a driver container keeps its own.
#[must_use]
pub fn nvidia_nodes(libcuda: &Path, driver_container: &Path) -> PathBuf {
    let its_own = driver_container.join("dev");
    let is_its = libcuda.starts_with(driver_container) && its_own.join("nvidiactl").exists();
    if is_its { its_own } else { DEV.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_containers_nodes_go_with_its_library() {
        let root = tempfile::tempdir().unwrap();
        let container = root.path().join("run/nvidia/driver");
        let library = container.join("usr/lib64/libcuda.so.1");
        assert_eq!(nvidia_nodes(&library, &container), Path::new(DEV), "it has none");
        fs::create_dir_all(container.join("dev")).unwrap();
        fs::write(container.join("dev/nvidiactl"), "").unwrap();
        assert_eq!(nvidia_nodes(&library, &container), container.join("dev"));
        assert_eq!(nvidia_nodes(&root.path().join("usr/lib64/libcuda.so.1"), &container), Path::new(DEV));
    }
}
