//! RDMA devices, from `/sys/class/infiniband`.

use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use super::{
    Pass, PciAddress, PciPath, Roots, link_name, list_dir, read_hex, read_numa, read_trimmed, resolve, transport,
};
use crate::report::{Port, Transport};

/// One RDMA device as sysfs shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct HcaFacts {
    /// Name, `mlx5_0`; it can change in the life of a device.
    pub name: String,
    /// PCI address of its function; none for software devices.
    pub pci: Option<PciAddress>,
    /// Kernel driver of that function.
    pub driver: Option<String>,
    /// PCI vendor and device.
    pub ids: Option<(u32, u32)>,
    /// NUMA node.
    pub numa: Option<u32>,
    /// Its way up to the host bridge.
    pub path: PciPath,
    /// What runs on its wire.
    pub transport: Transport,
    /// Its ports.
    pub ports: Vec<Port>,
    /// Firmware version.
    pub firmware: Option<String>,
    /// Its PF's address when it is a virtual function whose PF is on this host.
    pub vf_of: Option<PciAddress>,
    /// Its character device.
    pub node: Option<DeviceNode>,
    /// Its nodes for subnet management, `umad0` and `issm0`; of InfiniBand alone.
    pub mad: Vec<String>,
    /// An adapter function that only manages NVLink (NVSwitch), and never carries data of GPUs.
    pub nvlink_management: bool,
    /// A network interface of its function is in this network namespace.
    pub netdev: bool,
    /// What of it is elsewhere. Ports are as last seen.
    pub away: Option<Away>,
    /// Its driver does not answer: everything that it would say is as last seen, or not known.
    pub silent: bool,
}

/// What of an HCA is in a pod's network namespace or in a virtual machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Away {
    /// Its RDMA device, or all of it.
    Device,
    /// Its network interface alone, without which RoCE's port is down here.
    Netdev,
}

/// By PCI address, software devices last.
pub(super) fn sort(hcas: &mut [HcaFacts]) {
    hcas.sort_by(|a, b| (a.pci.is_none(), a.pci, &a.name).cmp(&(b.pci.is_none(), b.pci, &b.name)));
}

/// `/dev/infiniband/uverbsN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceNode {
    /// `uverbs0`.
    pub name: String,
    /// Its path beneath `--dev-root`.
    pub path: PathBuf,
    /// Whether it was there at the look.
    pub present: bool,
}

impl HcaFacts {
    /// Whether a port of it can carry data. One that never answered is not held to have none.
    #[must_use]
    pub fn usable(&self) -> bool {
        self.is_active() || self.silent && self.ports.is_empty()
    }

    /// Whether a port of it was seen to be ACTIVE. EFA's port state is a constant.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.transport == Transport::Efa || self.ports.iter().any(|p| p.state == "ACTIVE")
    }

    /// What tells one sort of adapter from another: PCI device id and link layer.
    #[must_use]
    pub fn sort(&self) -> (Option<(u32, u32)>, Transport) {
        (self.ids, self.transport)
    }

    /// How it is known over time: by PCI address, software devices by name.
    #[must_use]
    pub fn key(&self) -> String {
        self.pci.map_or_else(|| self.name.clone(), |pci| pci.to_string())
    }

    /// Whether both have one key.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.pci == other.pci && (self.pci.is_some() || self.name == other.name)
    }
}

impl HcaFacts {
    /// The same HCA by the links of sysfs, with the name and the device nodes that it has now; everything else
    /// as it is known, because a device that does not answer would block.
    #[must_use]
    pub fn as_now(&self, roots: &Roots) -> Option<Self> {
        // Beneath a PCI function there are its own alone, as a rule one of each.
        let classes = roots.sysfs.join("class");
        let own = self.pci.map(|pci| roots.sysfs.join("bus/pci/devices").join(pci.to_string()));
        let own = own.as_ref().unwrap_or(&classes);
        let mut names = list_dir(&own.join("infiniband"));
        let same = names.iter().position(|name| *name == self.name);
        let at = same.or_else(|| (self.pci.is_some() && !names.is_empty()).then_some(0))?;
        let (name, mut nodes) = (names.swap_remove(at), Nodes::beneath(own));
        if !classes.join("infiniband").join(&name).exists() {
            return None;
        }
        if nodes.verbs.is_empty() {
            nodes = Nodes::beneath(&classes); // where somebody has put a tree together
        }
        Some(Self { node: nodes.verbs_of(roots, &name), mad: nodes.mad_of(&name), name, ..self.clone() })
    }

    /// Its folder in sysfs.
    fn dir(&self, roots: &Roots) -> PathBuf {
        roots.sysfs.join("class/infiniband").join(&self.name)
    }

    /// Which entry of a port's GID table RoCE goes by: of version 2 by its type, never index 0 by
    /// habit; one with an IP address of the network rather than a link-local one.
    #[must_use]
    pub fn roce_gid(&self, roots: &Roots, port: u8) -> Option<u8> {
        let dir = self.dir(roots).join("ports").join(port.to_string());
        let mut of_version_2: Vec<u8> = list_dir(&dir.join("gid_attrs/types"))
            .into_iter()
            .filter(|index| read_trimmed(&dir.join("gid_attrs/types").join(index)).as_deref() == Some("RoCE v2"))
            .filter_map(|index| index.parse().ok())
            .collect();
        of_version_2.sort_unstable();
        let gid = |index: &u8| read_trimmed(&dir.join("gids").join(index.to_string())).unwrap_or_default();
        let set: Vec<u8> =
            of_version_2.into_iter().filter(|i| gid(i).bytes().any(|b| b.is_ascii_hexdigit() && b != b'0')).collect();
        set.iter().find(|i| !gid(i).starts_with("fe80")).or_else(|| set.first()).copied()
    }
}

/// All RDMA devices, by PCI address, software devices last.
pub(super) fn discover(pass: &Pass, roots: &Roots) -> Vec<HcaFacts> {
    let class = roots.sysfs.join("class/infiniband");
    let nodes = Nodes::beneath(&roots.sysfs.join("class"));
    let mut all: Vec<_> = list_dir(&class).into_iter().map(|name| read(pass, &nodes, roots, &class, name)).collect();
    sort(&mut all);
    all
}

fn read(pass: &Pass, nodes: &Nodes, roots: &Roots, class: &Path, name: String) -> HcaFacts {
    let dir = class.join(&name);
    let function = resolve(&dir.join("device")).ok();
    let pci = function.as_deref().and_then(|f| f.file_name()?.to_str()?.parse().ok());
    let attribute = |file: &str| read_hex(&function.as_ref()?.join(file));
    let driver = function.as_ref().and_then(|f| link_name(&f.join("driver")));
    let answer = pass.device(&name, || Answer::read(&dir, function.as_deref(), driver.as_deref()));
    let silent = answer.is_none();
    let answer = answer.unwrap_or_default();
    HcaFacts {
        pci,
        ids: attribute("vendor").zip(attribute("device")),
        numa: function.as_deref().and_then(read_numa),
        path: function.as_deref().map(PciPath::parse).unwrap_or_default(),
        transport: answer.transport,
        ports: answer.ports,
        firmware: answer.firmware,
        vf_of: function.as_ref().and_then(|f| link_name(&f.join("physfn"))?.parse().ok()),
        node: nodes.verbs_of(roots, &name),
        mad: nodes.mad_of(&name),
        nvlink_management: answer.nvlink_management,
        netdev: function.as_deref().is_some_and(has_netdev),
        away: None,
        silent,
        driver,
        name,
    }
}

/// What only the driver or the device itself can say.
#[derive(Default)]
struct Answer {
    transport: Transport,
    ports: Vec<Port>,
    firmware: Option<String>,
    nvlink_management: bool,
}

impl Answer {
    fn read(dir: &Path, function: Option<&Path>, driver: Option<&str>) -> Self {
        let node_type = read_trimmed(&dir.join("node_type")).unwrap_or_default();
        let ports_dir = dir.join("ports");
        let mut numbers: Vec<u32> = list_dir(&ports_dir).iter().filter_map(|n| n.parse().ok()).collect();
        numbers.sort_unstable();
        let first = numbers.first().map(|n| ports_dir.join(n.to_string()));
        let link_layer = first.and_then(|port| read_trimmed(&port.join("link_layer"))).unwrap_or_default();
        Self {
            transport: transport(driver, &node_type, &link_layer),
            ports: numbers.into_iter().map(|n| read_port(&ports_dir.join(n.to_string()), n)).collect(),
            firmware: read_trimmed(&dir.join("fw_ver")),
            nvlink_management: function.is_some_and(is_nvlink_management),
        }
    }
}

/// The kernel shows interfaces of its own network namespace alone.
fn has_netdev(function: &Path) -> bool {
    !list_dir(&function.join("net")).is_empty()
}

/// Whether an HCA whose interface was elsewhere works here again.
pub(super) fn is_back(roots: &Roots, hca: &HcaFacts, states: &[String]) -> bool {
    has_netdev(&hca.dir(roots).join("device")) || states.iter().any(|state| state == "ACTIVE")
}

/// The states of an HCA's ports as they are now, and nothing else of it. Once a second for each port, opening
/// its file would be most of the work.
pub(super) fn port_states(pass: &Pass, roots: &Roots, hca: &HcaFacts) -> Vec<String> {
    let ports = hca.dir(roots).join("ports");
    let mut kept = pass.kept(&hca.name).into_iter();
    let (mut states, mut files) = (Vec::new(), Vec::new());
    for port in &hca.ports {
        let again = kept.next().and_then(|open| Some((state_of(&open)?, open)));
        if let Some((state, open)) = again.or_else(|| open_state(&ports.join(port.number.to_string()))) {
            states.push(state);
            files.push(open);
        } else {
            states.push(UNKNOWN.to_owned());
        }
    }
    if files.len() == states.len() {
        pass.keep(&hca.name, files);
    }
    states
}

/// The sum of its ports' `counters/link_downed`. A read asks the firmware.
pub(super) fn link_downed(roots: &Roots, hca: &HcaFacts) -> Option<u64> {
    let ports = hca.dir(roots).join("ports");
    let count = |p: &Port| read_trimmed(&ports.join(p.number.to_string()).join("counters/link_downed"))?.parse().ok();
    hca.ports.iter().filter_map(count).reduce(|a: u64, b| a.saturating_add(b))
}

const UNKNOWN: &str = "UNKNOWN";

/// A port's state, with the file that shows it.
fn open_state(port: &Path) -> Option<(String, fs::File)> {
    let open = fs::File::open(port.join("state")).ok()?;
    Some((state_of(&open)?, open))
}

/// `4: ACTIVE`, by an open file; none where it is not that port's any more.
fn state_of(open: &fs::File) -> Option<String> {
    let mut text = [0; 64];
    let length = open.read_at(&mut text, 0).ok()?;
    if open.metadata().ok()?.nlink() == 0 {
        return None;
    }
    let (_, name) = str::from_utf8(&text[..length]).ok()?.split_once(':')?;
    Some(name.trim().to_owned())
}

/// State, and a rate like `400 Gb/sec (4X NDR)`.
fn read_port(dir: &Path, number: u32) -> Port {
    let state = open_state(dir).map_or_else(|| UNKNOWN.to_owned(), |(state, _)| state);
    let rate = read_trimmed(&dir.join("rate")).and_then(|r| r.split_whitespace().next()?.parse::<f64>().ok());
    let infiniband = read_trimmed(&dir.join("link_layer")).is_some_and(|l| l == "InfiniBand");
    let subnet_prefix = infiniband
        .then(|| read_trimmed(&dir.join("gids/0")))
        .flatten()
        .map(|gid| gid.split(':').take(4).collect::<Vec<_>>().join(":"));
    Port { number, state, rate_gbps: rate.map(Into::into), subnet_prefix }
}

/// Device nodes of HCAs, each with the HCA that its `ibdev` names.
struct Nodes {
    verbs: Vec<(String, String)>,
    mad: Vec<(String, String)>,
}

impl Nodes {
    /// From the folders of both classes: those of all devices, or a PCI function's own.
    fn beneath(folder: &Path) -> Self {
        let of_class = |class: &str| {
            let dir = folder.join(class);
            let of = |node: String| Some((read_trimmed(&dir.join(&node).join("ibdev"))?, node));
            list_dir(&dir).into_iter().filter_map(of).collect()
        };
        Self { verbs: of_class("infiniband_verbs"), mad: of_class("infiniband_mad") }
    }

    /// Whether it is there, and can be opened, the child finds out.
    fn verbs_of(&self, roots: &Roots, hca: &str) -> Option<DeviceNode> {
        let (_, name) = self.verbs.iter().find(|(of, name)| of == hca && name.starts_with("uverbs"))?;
        let path = roots.dev.join("infiniband").join(name);
        Some(DeviceNode { name: name.clone(), present: path.exists(), path })
    }

    /// `umadN` and `issmN`.
    fn mad_of(&self, hca: &str) -> Vec<String> {
        self.mad.iter().filter(|(of, _)| of == hca).map(|(_, node)| node.clone()).collect()
    }
}

/// `NVSwitch` systems have `ConnectX` functions that only manage NVLink; their VPD says so.
fn is_nvlink_management(function: &Path) -> bool {
    fs::read(function.join("vpd")).is_ok_and(|vpd| vpd.windows(9).any(|w| w == b"SW_MNG_PF"))
}
