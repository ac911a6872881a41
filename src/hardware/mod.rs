//! What is here: GPUs, HCAs, modules and drivers, from sysfs and procfs alone. No FFI, no opening
//! of devices.

mod bare;
pub mod gpu;
pub mod hca;
mod hypervisor;
pub mod nccl;
pub mod pci;
pub mod pcie;
mod reader;
pub mod surroundings;
pub mod topology;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;

pub use bare::{BareFunction, Known};
pub use gpu::GpuFacts;
pub use hca::{Away, DeviceNode, HcaFacts};
pub use nccl::{TopologyError, TopologyFile};
pub use pci::{PciAddress, PciPath};
pub use pcie::{Acs, Lanes, Link, PcieFacts, Platform};
pub use reader::{Pass, Reader};
pub use surroundings::{Listed, Surroundings};

use crate::report::{Distance, TopologyKind, Transport};

/// Where the machine's file systems are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// sysfs, `/sys`.
    pub sysfs: PathBuf,
    /// procfs of the node, `/proc`.
    pub procfs: PathBuf,
    /// Device nodes, `/dev`.
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { sysfs: "/sys".into(), procfs: "/proc".into(), dev: "/dev".into() }
    }
}

impl Roots {
    /// The live machine, or what the flags say: once one is given, the others that are not given
    /// lead to nothing, so that two machines are never mixed.
    #[must_use]
    pub fn from_flags(sysfs: Option<PathBuf>, procfs: Option<PathBuf>, dev: Option<PathBuf>) -> Self {
        if sysfs.is_none() && procfs.is_none() && dev.is_none() {
            return Self::default();
        }
        let nothing = || PathBuf::from("/nonexistent");
        Self {
            sysfs: sysfs.unwrap_or_else(nothing),
            procfs: procfs.unwrap_or_else(nothing),
            dev: dev.unwrap_or_else(nothing),
        }
    }

    /// Whether a kernel module is loaded (built in counts).
    #[must_use]
    pub fn has_module(&self, name: &str) -> bool {
        self.sysfs.join("module").join(name).is_dir()
    }
}

/// Version of the NVIDIA kernel module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvidiaModule {
    /// `535.247.01`.
    pub version: String,
    /// Whether it is the open kernel module.
    pub open: bool,
}

/// Which machine it is, by its firmware (DMI).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MachineId {
    /// Serial number; root alone may read it.
    pub serial: Option<String>,
    /// Product name.
    pub product: Option<String>,
}

impl MachineId {
    fn read(roots: &Roots) -> Self {
        let dmi = |name: &str| read_trimmed(&roots.sysfs.join("class/dmi/id").join(name)).filter(|t| !t.is_empty());
        Self { serial: dmi("product_serial"), product: dmi("product_name") }
    }
}

/// Everything that can be known of a machine without touching a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Inventory {
    /// The kernel's boot id; empty when it can't be read.
    pub boot_id: String,
    /// When the kernel booted (`btime` in `proc_stat(5)`), when that can be read.
    pub booted_at: Option<Timestamp>,
    /// Physical or virtual.
    pub topology: TopologyKind,
    /// NVIDIA GPUs by PCI address.
    pub gpus: Vec<GpuFacts>,
    /// RDMA devices by PCI address, then name.
    pub hcas: Vec<HcaFacts>,
    /// PCI functions of RDMA adapters that have no RDMA device.
    pub bare_functions: Vec<BareFunction>,
    /// Whether an RDMA device belongs to one network namespace alone (`rdma-system(8)`, exclusive).
    pub netns_exclusive: bool,
    /// How many PCI functions there are in all.
    pub functions: usize,
    /// Their addresses.
    pub present: BTreeSet<PciAddress>,
    /// Which machine it is.
    pub machine: MachineId,
    /// The NVIDIA kernel module, when it is loaded.
    pub nvidia: Option<NvidiaModule>,
    /// Whether `nvidia_peermem` (or its forerunner, or EFA's) is loaded.
    pub peermem: bool,
    /// Whether `ib_uverbs` is there.
    pub uverbs: bool,
    /// Its entries, `uverbs0`; that of a new RDMA device comes after the device.
    pub verbs: Vec<String>,
    /// PCIe, IOMMU and sockets.
    pub platform: Platform,
    /// What replaces the tree's distances.
    pub file: Option<Arc<TopologyFile>>,
}

impl Inventory {
    /// Reads the machine. What can't be read is left out; nothing here fails.
    #[must_use]
    pub fn read(roots: &Roots) -> Self {
        Self::read_in(&Pass::default(), roots)
    }

    /// The same, past devices that do not answer.
    #[must_use]
    pub fn read_in(pass: &Pass, roots: &Roots) -> Self {
        // First what tells of a change: what comes while the rest is read is then seen as one.
        let functions = list_dir(&roots.sysfs.join("bus/pci/devices"));
        let verbs = list_dir(&roots.sysfs.join("class/infiniband_verbs"));
        let hcas = hca::discover(pass, roots);
        let gpus = gpu::discover(pass, roots);
        let bare_functions = bare::discover(roots, &hcas);
        let topology = hypervisor::topology_kind(roots, &gpus, &hcas);
        Self {
            boot_id: read_trimmed(&roots.procfs.join("sys/kernel/random/boot_id")).unwrap_or_default(),
            booted_at: booted_at(roots),
            topology,
            platform: Platform::read(pass, roots, &gpus, &hcas, topology == TopologyKind::Virtual),
            file: None,
            nvidia: nvidia_module(roots),
            functions: functions.len(),
            present: functions.iter().filter_map(|name| name.parse().ok()).collect(),
            machine: MachineId::read(roots),
            peermem: peermem(roots),
            uverbs: roots.sysfs.join("class/infiniband_verbs").is_dir(),
            verbs,
            gpus,
            hcas,
            bare_functions,
            netns_exclusive: read_trimmed(&roots.sysfs.join("module/ib_core/parameters/netns_mode")).as_deref()
                == Some("N"),
        }
    }

    /// Takes HCAs that are silent now, or elsewhere, in a pod or a virtual machine, for what they were when they
    /// were last seen.
    pub fn recall(&mut self, known: &Known) {
        bare::recall(&mut self.bare_functions, &mut self.hcas, known, self.netns_exclusive);
    }

    /// Whether there are adapters that are elsewhere, and were never seen here.
    #[must_use]
    pub fn has_strangers_elsewhere(&self) -> bool {
        self.bare_functions.iter().any(|function| bare::is_elsewhere(function, self.netns_exclusive))
    }

    /// Whether names, ports, modules or functions differ from this inventory. Reads a file for each
    /// port and a few folders; everything else of a device comes and goes with these.
    #[must_use]
    pub fn differs_at_a_glance(&self, pass: &Pass, roots: &Roots) -> bool {
        let names = list_dir(&roots.sysfs.join("class/infiniband"));
        let here = || self.hcas.iter().filter(|h| h.away != Some(Away::Device));
        let mut known: Vec<_> = here().map(|h| h.name.clone()).collect();
        known.sort();
        pass.keep_only(&names);
        let functions = list_dir(&roots.sysfs.join("bus/pci/devices")).len();
        let other_state = |hca: &HcaFacts| match pass.device(&hca.name, || hca::port_states(pass, roots, hca)) {
            Some(states) if hca.away.is_some() => hca::is_back(roots, hca, &states),
            Some(states) => hca.silent || !states.iter().eq(hca.ports.iter().map(|port| &port.state)),
            None => !hca.silent,
        };
        // Asked for by name each of them would cost a walk down its path.
        let nodes = list_dir(&roots.dev.join("infiniband"));
        names != known
            || functions != self.functions
            || here().any(other_state)
            || here().filter_map(|h| h.node.as_ref()).any(|node| nodes.contains(&node.name) != node.present)
            || roots.procfs.join("driver/nvidia/version").exists() != self.nvidia.is_some()
            || peermem(roots) != self.peermem
            || roots.sysfs.join("class/infiniband_verbs").is_dir() != self.uverbs
            || list_dir(&roots.sysfs.join("class/infiniband_verbs")) != self.verbs
    }

    /// Whether devices, drivers and modules are those of another reading, to the last file. Left out is what changes
    /// by itself, such as the speed of a PCIe link at rest.
    #[must_use]
    pub fn has_devices_of(&self, other: &Self) -> bool {
        (&self.gpus, &self.hcas, &self.bare_functions) == (&other.gpus, &other.hcas, &other.bare_functions)
            && (&self.nvidia, self.peermem, &self.verbs) == (&other.nvidia, other.peermem, &other.verbs)
    }

    /// How often the links of each HCA went down in its driver's life; many drivers do not count.
    #[must_use]
    pub fn links_downed(&self, pass: &Pass, roots: &Roots) -> BTreeMap<String, u64> {
        let reading = |hca: &HcaFacts| {
            let count = pass.device(&hca.name, || hca::link_downed(roots, hca)).flatten()?;
            Some((hca.name.clone(), count))
        };
        self.hcas.iter().filter(|hca| hca.away.is_none()).filter_map(reading).collect()
    }

    /// Takes distances from a topology file. One that knows no pair of this machine changes nothing.
    #[must_use]
    pub fn with_file(mut self, file: Option<&Arc<TopologyFile>>) -> Self {
        self.file = file.cloned();
        let knows = |g: &GpuFacts, h: &HcaFacts| self.by_file(g, h).is_some();
        if self.gpus.iter().any(|g| self.hcas.iter().any(|h| knows(g, h))) {
            self.topology = TopologyKind::File;
        }
        self
    }

    fn by_file(&self, gpu: &GpuFacts, hca: &HcaFacts) -> Option<Distance> {
        self.file.as_ref()?.distance(gpu.pci, hca.pci?)
    }

    /// How far a GPU and an HCA are apart: by the file where it has both, else by the PCI tree.
    #[must_use]
    pub fn distance(&self, gpu: &GpuFacts, hca: &HcaFacts) -> Distance {
        self.by_file(gpu, hca).unwrap_or_else(|| {
            let seat = |path, numa| topology::Seat { path, numa };
            topology::distance(seat(&gpu.path, gpu.numa), seat(&hca.path, hca.numa))
        })
    }

    /// An HCA by its name.
    #[must_use]
    pub fn hca(&self, name: &str) -> Option<&HcaFacts> {
        self.hcas.iter().find(|h| h.name == name)
    }

    /// Whether there is anything that could do RDMA.
    #[must_use]
    pub fn has_rdma_hardware(&self) -> bool {
        !self.bare_functions.is_empty() || self.hcas.iter().any(|h| h.pci.is_some())
    }
}

fn booted_at(roots: &Roots) -> Option<Timestamp> {
    let stat = fs::read_to_string(roots.procfs.join("stat")).ok()?;
    let seconds = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Timestamp::from_second(seconds).ok()
}

fn peermem(roots: &Roots) -> bool {
    ["nvidia_peermem", "nv_peer_mem", "efa_nv_peermem"].iter().any(|m| roots.has_module(m))
}

fn nvidia_module(roots: &Roots) -> Option<NvidiaModule> {
    let text = fs::read_to_string(roots.procfs.join("driver/nvidia/version")).ok()?;
    let line = text.lines().find(|l| l.starts_with("NVRM version:"))?;
    let version = line.split_whitespace().find(|word| {
        word.contains('.') && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    })?;
    Some(NvidiaModule { version: version.to_owned(), open: line.contains("Open Kernel Module") })
}

/// All PCI functions with their resolved directories, in the order of their addresses.
fn pci_functions(roots: &Roots) -> Vec<(PathBuf, PciAddress)> {
    let mut all: Vec<_> = list_dir(&roots.sysfs.join("bus/pci/devices"))
        .into_iter()
        .filter_map(|name| {
            let address = name.parse().ok()?;
            Some((roots.sysfs.join("bus/pci/devices").join(name), address))
        })
        .collect();
    all.sort_by_key(|(_, address)| *address);
    all
}

/// The names in a directory, in their order; none when it can't be read.
fn list_dir(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// A sysfs attribute without its line's end.
fn read_trimmed(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}

/// A hexadecimal attribute such as `vendor`.
fn read_hex(path: &Path) -> Option<u32> {
    u32::from_str_radix(read_trimmed(path)?.trim_start_matches("0x"), 16).ok()
}

/// `numa_node`, where -1 means that the kernel does not know.
fn read_numa(function: &Path) -> Option<u32> {
    read_trimmed(&function.join("numa_node"))?.parse::<i64>().ok()?.try_into().ok()
}

/// The name that a link leads to, such as `driver` to `mlx5_core`.
fn link_name(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned())
}

/// A resolved path.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    fs::canonicalize(path)
}

/// What runs on a port, from its HCA's kind and its link layer.
fn transport(driver: Option<&str>, node_type: &str, link_layer: &str) -> Transport {
    if driver == Some("efa") {
        Transport::Efa
    } else if node_type.contains("RNIC") {
        Transport::Iwarp
    } else {
        match link_layer {
            "InfiniBand" => Transport::Infiniband,
            "Ethernet" => Transport::Roce,
            _ => Transport::Other,
        }
    }
}
