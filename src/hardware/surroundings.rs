//! What explains a failure and is no device: the kernel's options, modules and log. Read at the end of
//! a check, the costly parts only after one that found trouble.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read,
    path::Path,
};

use rustix::fs::{Mode, OFlags};

use super::{PciAddress, Roots, read_trimmed};

/// What is known of the node around its devices. What could not be read is `None` or empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Surroundings {
    /// Bytes in a page of memory.
    pub page_size: u64,
    /// Modules that are loaded, of those that matter here.
    pub loaded: BTreeSet<&'static str>,
    /// Modules that could be loaded (`modules.dep` of this kernel), of those that matter here.
    pub loadable: Option<BTreeSet<&'static str>>,
    /// Whether the kernel has the peer-memory interface (`ib_register_peer_memory_client` in kallsyms).
    pub peer_interface: Option<bool>,
    /// Whether `/sys/kernel/mm/memory_peers` is there.
    pub memory_peers: bool,
    /// Kernel options that matter here, and whether they are set.
    pub options: BTreeMap<&'static str, bool>,
    /// NUMA nodes that have memory, as the kernel lists them.
    pub nodes_with_memory: Option<String>,
    /// Size of each GPU's BAR1 in bytes (`resource` in sysfs).
    pub bar1: BTreeMap<PciAddress, u64>,
    /// `DmaRemapPeerMmio` of the NVIDIA module.
    pub remaps_peer_mmio: Option<bool>,
    /// How often the link of each HCA went down within the last hour, as the agent has counted.
    pub link_drops: BTreeMap<String, u64>,
    /// What the kubelet's device plugins offer; it does not say so to everybody.
    pub listed: Option<Vec<Listed>>,
    /// What pods hold of device plugins, where the kubelet says so.
    pub held: Option<Vec<Listed>>,
    /// Lines of the kernel's log that name the drivers concerned, the newest last.
    pub log: Vec<String>,
}

/// One device of a device plugin on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The resource, `nvidia.com/gpu`.
    pub resource: String,
    /// The device's id there.
    pub id: String,
}

const MODULES: &[&str] =
    &["nvidia", "nvidia_peermem", "nv_peer_mem", "efa_nv_peermem", "mlx5_core", "mlx5_ib", "ib_uverbs", "efa"];
const OPTIONS: &[&str] = &["CONFIG_PCI_P2PDMA", "CONFIG_INFINIBAND_ON_DEMAND_PAGING", "CONFIG_DMABUF_MOVE_NOTIFY"];
/// What makes a line of the log one of ours.
const NAMES: &[&str] = &["NVRM", "nvidia", "nv_peer_mem", "mlx5", "peer-to-peer"];
const LINES_KEPT: usize = 200;

impl Surroundings {
    /// Reads them. `host` is the node's root; `troubled`: with what only a failure is worth.
    #[must_use]
    pub fn read(roots: &Roots, host: &Path, gpus: &[PciAddress], troubled: bool) -> Self {
        let mut all = Self {
            page_size: rustix::param::page_size() as u64,
            loaded: MODULES.iter().copied().filter(|name| roots.has_module(name)).collect(),
            memory_peers: roots.sysfs.join("kernel/mm/memory_peers").is_dir(),
            nodes_with_memory: read_trimmed(&roots.sysfs.join("devices/system/node/has_memory")),
            ..Self::default()
        };
        if troubled {
            let release = read_trimmed(&roots.procfs.join("sys/kernel/osrelease")).unwrap_or_default();
            all.loadable = loadable(host, &release);
            all.peer_interface = peer_interface(roots);
            all.options = options(roots, host, &release);
            all.bar1 = gpus.iter().filter_map(|gpu| Some((*gpu, bar1(roots, *gpu)?))).collect();
            all.remaps_peer_mmio = remaps_peer_mmio(roots);
            all.log = log(&roots.dev.join("kmsg"));
        }
        all
    }

    /// The newest line of the log that has all of these words.
    #[must_use]
    pub fn logged(&self, words: &[&str]) -> Option<&str> {
        self.log.iter().rev().find(|line| words.iter().all(|word| line.contains(word))).map(String::as_str)
    }

    /// Whether a module could be loaded; `None` where that is not known.
    #[must_use]
    pub fn can_load(&self, module: &str) -> Option<bool> {
        self.loadable.as_ref().map(|modules| modules.contains(module))
    }
}

fn loadable(host: &Path, release: &str) -> Option<BTreeSet<&'static str>> {
    let text = ["lib/modules", "usr/lib/modules"]
        .iter()
        .find_map(|dir| fs::read_to_string(host.join(dir).join(release).join("modules.dep")).ok())?;
    // `kernel/drivers/…/mlx5_ib.ko.xz: …`; a file's name may have dashes where the module's has not.
    let names: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.split(':').next()?.rsplit('/').next()?.split('.').next())
        .map(|name| name.replace('-', "_"))
        .collect();
    Some(MODULES.iter().copied().filter(|name| names.contains(*name)).collect())
}

/// `None` where kallsyms can't be read, or shows no name of `ib_core`'s at all.
fn peer_interface(roots: &Roots) -> Option<bool> {
    let text = fs::read_to_string(roots.procfs.join("kallsyms")).ok()?;
    text.contains("ib_register_device").then(|| text.contains("ib_register_peer_memory_client"))
}

fn options(roots: &Roots, host: &Path, release: &str) -> BTreeMap<&'static str, bool> {
    let unpacked = || {
        let mut text = String::new();
        let packed = fs::File::open(roots.procfs.join("config.gz")).ok()?;
        flate2::read::GzDecoder::new(packed).read_to_string(&mut text).ok()?;
        Some(text)
    };
    let plain = || {
        [format!("boot/config-{release}"), format!("lib/modules/{release}/config")]
            .iter()
            .find_map(|file| fs::read_to_string(host.join(file)).ok())
    };
    let Some(text) = unpacked().or_else(plain) else { return BTreeMap::new() };
    let set = |option: &str| text.lines().any(|line| line == format!("{option}=y"));
    OPTIONS.iter().map(|option| (*option, set(option))).collect()
}

/// The second line of `resource`: first and last address of BAR1.
fn bar1(roots: &Roots, gpu: PciAddress) -> Option<u64> {
    let file = roots.sysfs.join("bus/pci/devices").join(gpu.to_string()).join("resource");
    let text = fs::read_to_string(file).ok()?;
    let mut words =
        text.lines().nth(1)?.split_whitespace().map(|w| u64::from_str_radix(w.trim_start_matches("0x"), 16));
    let (first, last) = (words.next()?.ok()?, words.next()?.ok()?);
    Some(if last > first { last - first + 1 } else { 0 })
}

/// `DmaRemapPeerMmio: 1` in `/proc/driver/nvidia/params`.
fn remaps_peer_mmio(roots: &Roots) -> Option<bool> {
    let text = fs::read_to_string(roots.procfs.join("driver/nvidia/params")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix("DmaRemapPeerMmio:"))?.trim();
    Some(value != "0")
}

/// A record for each read (`Documentation/ABI/testing/dev-kmsg`), without waiting for new ones.
fn log(file: &Path) -> Vec<String> {
    let Ok(fd) = rustix::fs::open(file, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) else {
        return Vec::new();
    };
    let mut lines: Vec<String> = Vec::new();
    let mut record = vec![0; 8192];
    loop {
        match rustix::io::read(&fd, &mut record) {
            Ok(0) => break,
            Ok(length) => {
                let text = String::from_utf8_lossy(&record[..length]);
                let messages = text.lines().filter_map(|line| Some(line.split_once(';')?.1));
                lines.extend(messages.filter(|m| NAMES.iter().any(|name| m.contains(name))).map(str::to_owned));
            }
            // Overwritten while it was read: the next one is there.
            Err(rustix::io::Errno::PIPE) => {}
            Err(_) => break,
        }
    }
    lines.drain(..lines.len().saturating_sub(LINES_KEPT));
    lines
}

/// Numbers of a list as the kernel writes it, `0-1,3-9`.
#[must_use]
pub fn numbers(list: &str) -> BTreeSet<u32> {
    list.trim()
        .split(',')
        .filter_map(|part| {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            Some(low.trim().parse().ok()?..=high.trim().parse().ok()?)
        })
        .flat_map(|range: std::ops::RangeInclusive<u32>| range.take(4096))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_list_of_numbers() {
        assert_eq!(numbers("0-1,3,5-6\n"), BTreeSet::from([0, 1, 3, 5, 6]));
        assert!(numbers("").is_empty());
        assert!(numbers("x-y").is_empty());
    }

    #[test]
    fn finds_modules_by_their_files() {
        let host = tempfile::tempdir().unwrap();
        let dir = host.path().join("lib/modules/6.8.0");
        fs::create_dir_all(&dir).unwrap();
        fs::write(
            dir.join("modules.dep"),
            "updates/dkms/nvidia-peermem.ko.zst: updates/dkms/nvidia.ko.zst\nkernel/drivers/net/mlx5_core.ko: \n",
        )
        .unwrap();
        assert_eq!(loadable(host.path(), "6.8.0"), Some(BTreeSet::from(["nvidia_peermem", "mlx5_core"])));
        assert_eq!(loadable(host.path(), "6.9.0"), None, "of another kernel nothing is known");
    }

    #[test]
    fn a_log_that_is_a_file_ends() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, "4,1,2,-;NVRM: one\n4,2,3,-;eth0: no\n4,3,4,-;nvidia-peermem: two\n").unwrap();
        assert_eq!(log(file.path()), ["NVRM: one", "nvidia-peermem: two"]);
        assert!(log(Path::new("/nonexistent")).is_empty());
    }
}
