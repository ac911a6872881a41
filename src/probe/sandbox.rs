//! What the child gives up before it loads a foreign library: the tokens of the pod and, beneath the host's root, of
//! every pod of the node, other devices than those it needs, and every capability that it does not need. It keeps the
//! host's network namespace, because RDMA devices and RoCE GIDs live there.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use landlock::{
    AccessFs, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError,
    RulesetStatus,
};
use rustix::{
    mount::{
        MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change, mount_move, unmount,
    },
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

/// Where Kubernetes mounts a pod's tokens.
const SECRETS: &[&str] = &["/var/run/secrets", "/run/secrets"];
const DEV: &str = "/dev";
/// What every library may ask for, the RDMA nodes, and the GPUs' render nodes.
const NODES: &[&str] = &["null", "zero", "full", "random", "urandom", "shm", "infiniband", "dri"];
/// To pin memory beyond the limit (`ib_umem_get`), and to open nodes that are not root's.
const KEPT: CapabilitySet = CapabilitySet::IPC_LOCK.union(CapabilitySet::DAC_OVERRIDE);

/// Gives up what can be given up. Without `CAP_SYS_ADMIN` there are no mounts of its own, and Landlock, which asks for
/// no privilege, keeps it from the tokens. Where a security module or an old kernel forbids either: the check is worth
/// more than its fence.
pub(super) fn enter(own_dev: Option<&OwnDev>) -> io::Result<()> {
    let sets = capabilities(None)?;
    if sets.effective.contains(CapabilitySet::SYS_ADMIN) {
        if let Err(error) = fence(own_dev) {
            eprintln!("the probe has no mounts of its own: {error}");
        }
    } else {
        let own = SECRETS.iter().filter_map(|dir| fs::canonicalize(dir).ok());
        let secrets: Vec<_> = own.chain(volumes(&mounts())).collect();
        match hide(&secrets) {
            Ok(true) => {}
            Ok(false) => eprintln!("the probe can read the pod's token: this kernel has no Landlock (Linux 5.13)"),
            Err(error) => eprintln!("the probe can read the pod's token: {error}"),
        }
    }
    let kept = CapabilitySets {
        effective: sets.effective & KEPT,
        permitted: sets.permitted & KEPT,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, kept)?;
    Ok(())
}

fn mounts() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
}

/// Where the kubelet mounts the volumes of the node's pods, tokens and secrets among them
/// (`…/volumes/kubernetes.io~projected/…`), by `proc_pid_mountinfo(5)`.
fn volumes(mountinfo: &str) -> Vec<PathBuf> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|point| point.contains("/kubernetes.io~")).map(PathBuf::from).collect()
}

/// Files can be read everywhere but there, `landlock(7)`: what is allowed is named, and so all that lies beside the ways
/// to them. `false` where the kernel does not see to it.
fn hide(denied: &[PathBuf]) -> Result<bool, RulesetError> {
    if denied.is_empty() {
        return Ok(true);
    }
    let rules = Ruleset::default().handle_access(AccessFs::ReadFile)?.create()?;
    let status = allow(rules, Path::new("/"), denied)?.restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

fn allow(mut rules: RulesetCreated, dir: &Path, denied: &[PathBuf]) -> Result<RulesetCreated, RulesetError> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    // Where a link leads is reached by its own way.
    for path in entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_symlink())).map(|e| e.path()) {
        if denied.contains(&path) {
            continue;
        }
        rules = match PathFd::new(&path) {
            _ if denied.iter().any(|denied| denied.starts_with(&path)) => allow(rules, &path, denied)?,
            Ok(place) => rules.add_rule(PathBeneath::new(place, AccessFs::ReadFile))?,
            Err(_) => rules, // gone, or not ours
        };
    }
    Ok(rules)
}

fn fence(own_dev: Option<&OwnDev>) -> io::Result<()> {
    sys::own_mounts()?;
    // Nothing of this may reach the pod's or the node's mounts.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    for secrets in SECRETS.iter().map(Path::new).filter(|dir| dir.is_dir()) {
        cover(secrets)?;
    }
    // From here on no pod that comes or goes changes them.
    for volume in volumes(&mounts()) {
        unmount(&volume, UnmountFlags::DETACH)?;
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
    fn tokens_of_other_pods_are_known_by_their_mounts() {
        let pod = "/host/var/lib/kubelet/pods/5cd0/volumes";
        let mountinfo = format!(
            "25 1 8:1 / / ro,relatime - ext4 /dev/sda1 ro\n\
             30 25 0:40 / {pod}/kubernetes.io~projected/kube-api-access-x rw shared:7 - tmpfs tmpfs rw\n\
             31 25 0:41 / {pod}/kubernetes.io~secret/key rw - tmpfs tmpfs rw\n\
             32 25 0:42 / /dev/shm rw - tmpfs shm rw\n"
        );
        let wanted = ["kubernetes.io~projected/kube-api-access-x", "kubernetes.io~secret/key"];
        assert_eq!(volumes(&mountinfo), wanted.map(|volume| Path::new(pod).join(volume)));
    }

    /// By the kernel itself; it holds for this thread alone.
    #[test]
    fn what_is_hidden_cannot_be_read_and_all_else_can() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        for name in ["pods/a/token", "pods/b/token", "pods/b/log", "beside"] {
            let file = dir.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, name).unwrap();
        }
        std::os::unix::fs::symlink(dir.join("pods/a"), dir.join("way")).unwrap();
        let hidden = [dir.join("pods/a"), dir.join("pods/b/token"), dir.join("pods/none")];
        let read = |name: &str| fs::read_to_string(dir.join(name)).map_err(|error| error.kind());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                hide(&hidden).unwrap();
                for name in ["pods/a/token", "pods/b/token", "way/token"] {
                    assert_eq!(read(name), Err(io::ErrorKind::PermissionDenied), "{name}");
                }
                for name in ["pods/b/log", "beside"] {
                    assert_eq!(read(name).as_deref(), Ok(name));
                }
                assert!(fs::read("/proc/self/status").is_ok() && fs::File::open("/dev/null").is_ok());
            });
        });
        assert!(read("pods/a/token").is_ok(), "another thread");
    }

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
