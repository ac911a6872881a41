//! Machines of `tests/topologies`: their PCI trees in a compact form, made into sysfs, and what
//! must be seen of them.
//!
//! ```text
//! topology physical                                  what the report must say
//! cpu hypervisor                                     /proc/cpuinfo: hypervisor or bare; none: no such file
//! numa 0 cpus=0-15 socket=0
//! root pci0000:15 numa=0 [below=PATH]                a host bridge, PATH below /sys/devices
//!  0000:15:01.0 8086:352a 060400                     address, vendor:device, class; indented below its bridge
//!   0000:18:00.0 15b3:1021 020700 mlx5_core [key=value …]   driver; acs= (control bits), iommu=, link=, max=, physfn=
//! hca mlx5_0 0000:18:00.0 1:ACTIVE:InfiniBand:400    RDMA device of a function (`-`: of none); port:state:layer:Gb/s
//! distance GPU PIX SYS …                             for each HCA, in the order of the `hca` lines; `NODE|SYS`: either
//! nccl GPU PIX SYS …                                 what NCCL makes of the same tree
//! nearest GPU PIX mlx5_0 …                           the rails that serve it, and how near they are
//! idle|excluded|bare|advice|verdict NAME …           roles; functions without RDMA device; findings; state and reason
//! ```

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use gdr_agent::hardware::Roots;
use tempfile::TempDir;

/// One PCI function.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) address: String,
    pub(crate) ids: (String, String),
    pub(crate) class: String,
    pub(crate) driver: Option<String>,
    /// `acs`, `iommu`, `link`, `max`, `physfn`.
    pub(crate) facts: BTreeMap<String, String>,
    /// Its folder below `/sys/devices`.
    path: String,
    numa: String,
}

/// One RDMA device.
#[derive(Debug, Clone)]
pub(crate) struct Hca {
    pub(crate) name: String,
    pub(crate) pci: Option<String>,
    /// Number, state, link layer, rate.
    pub(crate) ports: Vec<[String; 4]>,
}

/// A machine and what is known of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) functions: Vec<Function>,
    pub(crate) hcas: Vec<Hca>,
    /// Node, CPUs, socket.
    numa: Vec<(String, String, Option<String>)>,
    /// Everything else, by its first word.
    known: BTreeMap<String, Vec<Vec<String>>>,
}

/// All machines of `tests/topologies`.
pub(crate) fn machines() -> Vec<Spec> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/topologies");
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "txt"));
    files.sort();
    files
        .iter()
        .map(|f| Spec::parse(f.file_stem().unwrap().to_str().unwrap(), &fs::read_to_string(f).unwrap()))
        .collect()
}

/// One of them.
pub(crate) fn machine(name: &str) -> Spec {
    edited(name, str::to_owned)
}

/// One of them, after a change to its text.
pub(crate) fn edited(name: &str, edit: impl FnOnce(&str) -> String) -> Spec {
    let file = format!("{}/tests/topologies/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    Spec::parse(name, &edit(&fs::read_to_string(file).unwrap()))
}

fn value<'a>(words: &'a [String], key: &str) -> Option<&'a str> {
    words.iter().find_map(|w| w.strip_prefix(key)?.strip_prefix('='))
}

impl Spec {
    pub(crate) fn parse(name: &str, text: &str) -> Self {
        let mut spec = Self { name: name.to_owned(), ..Self::default() };
        let mut above: Vec<String> = Vec::new();
        let mut numa = String::new();
        for line in text.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
            let depth = line.len() - line.trim_start().len();
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            match words[0].as_str() {
                "root" => {
                    let below = value(&words, "below").map(|b| format!("{b}/")).unwrap_or_default();
                    above = vec![format!("{below}{}", words[1])];
                    value(&words, "numa").unwrap().clone_into(&mut numa);
                }
                address if depth > 0 => {
                    above.truncate(depth);
                    above.push(address.to_owned());
                    spec.functions.push(Function::parse(&words, above.join("/"), numa.clone()));
                }
                "numa" => {
                    let socket = value(&words, "socket").map(str::to_owned);
                    spec.numa.push((words[1].clone(), value(&words, "cpus").unwrap().to_owned(), socket));
                }
                "hca" => spec.hcas.push(Hca {
                    name: words[1].clone(),
                    pci: (words[2] != "-").then(|| words[2].clone()),
                    ports: words[3..]
                        .iter()
                        .map(|p| p.split(':').map(str::to_owned).collect::<Vec<_>>().try_into().unwrap())
                        .collect(),
                }),
                key => spec.known.entry(key.to_owned()).or_default().push(words[1..].to_vec()),
            }
        }
        spec
    }

    /// The lines that begin with a word, without it.
    pub(crate) fn lines(&self, key: &str) -> &[Vec<String>] {
        self.known.get(key).map_or(&[], Vec::as_slice)
    }

    /// The words of the one line that begins with a word.
    pub(crate) fn words(&self, key: &str) -> Vec<&str> {
        self.lines(key).iter().flatten().map(String::as_str).collect()
    }

    /// Changes one fact of a function.
    pub(crate) fn set(&mut self, address: &str, key: &str, to: &str) {
        let function = self.functions.iter_mut().find(|f| f.address == address).unwrap();
        function.facts.insert(key.to_owned(), to.to_owned());
    }

    /// Changes one fact of every function of a class, `0604` for bridges.
    pub(crate) fn set_all(&mut self, class: &str, key: &str, to: &str) {
        for function in self.functions.iter_mut().filter(|f| f.class.starts_with(class)) {
            function.facts.insert(key.to_owned(), to.to_owned());
        }
    }

    /// Makes the machine's file systems.
    pub(crate) fn build(&self) -> Built {
        // Thousands of small files: in memory, where there is such a place.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let built = Built { dir: dir.unwrap() };
        for dir in ["bus/pci/devices", "class/infiniband", "class/infiniband_verbs", "module/nvidia_peermem"] {
            fs::create_dir_all(built.sys(dir)).unwrap();
        }
        built.put("proc/sys/kernel/random/boot_id", format!("{}\n", super::BOOT_ID));
        built.put("proc/driver/nvidia/version", super::DRIVER_VERSION);
        if let [kind] = self.words("cpu")[..] {
            let flag = if kind == "hypervisor" { " hypervisor" } else { "" };
            built.put("proc/cpuinfo", format!("processor\t: 0\nflags\t\t: fpu vme de pse{flag} lahf_lm\n"));
        }
        for (node, cpus, socket) in &self.numa {
            built.put(&format!("sys/devices/system/node/node{node}/cpulist"), format!("{cpus}\n"));
            let first = cpus.split(['-', ',']).next().unwrap();
            if let Some(socket) = socket {
                let file = format!("sys/devices/system/cpu/cpu{first}/topology/physical_package_id");
                built.put(&file, format!("{socket}\n"));
            }
        }
        self.functions.iter().for_each(|f| built.function(f));
        for function in &self.functions {
            if let Some(physfn) = function.facts.get("physfn") {
                symlink(built.pci(physfn), built.pci(&function.address).join("physfn")).unwrap();
            }
        }
        self.hcas.iter().enumerate().for_each(|(i, h)| built.hca(h, i));
        built
    }
}

impl Function {
    fn parse(words: &[String], path: String, numa: String) -> Self {
        let (vendor, device) = words[1].split_once(':').unwrap();
        let facts = words[3..].iter().filter_map(|w| w.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned()));
        Self {
            address: words[0].clone(),
            ids: (vendor.to_owned(), device.to_owned()),
            class: words[2].clone(),
            driver: words.get(3).filter(|w| !w.contains('=')).cloned(),
            facts: facts.collect(),
            path,
            numa,
        }
    }

    /// What a privileged reader sees when `acs` is given: an AER capability, then ACS; else the 64
    /// bytes that anybody may read.
    fn config(&self) -> Vec<u8> {
        let mut bytes = vec![0_u8; 64];
        bytes[..2].copy_from_slice(&u16::from_str_radix(&self.ids.0, 16).unwrap().to_le_bytes());
        if let Some(control) = self.facts.get("acs") {
            bytes.resize(4096, 0);
            bytes[0x100..0x104].copy_from_slice(&0x1482_0001_u32.to_le_bytes());
            bytes[0x148..0x14c].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
            bytes[0x14c..0x14e].copy_from_slice(&0x007f_u16.to_le_bytes());
            bytes[0x14e..0x150].copy_from_slice(&u16::from_str_radix(control, 16).unwrap().to_le_bytes());
        }
        bytes
    }
}

/// File systems of a made-up machine.
pub(crate) struct Built {
    dir: TempDir,
}

impl Built {
    /// Where they are.
    pub(crate) fn roots(&self) -> Roots {
        let at = |name: &str| self.dir.path().join(name);
        Roots { sysfs: at("sys"), procfs: at("proc"), dev: at("dev") }
    }

    /// What leads the binary to them.
    pub(crate) fn flags(&self) -> Vec<String> {
        let at = |name: &str| self.dir.path().join(name).display().to_string();
        [("--sysfs-root", "sys"), ("--procfs-root", "proc"), ("--dev-root", "dev")]
            .into_iter()
            .flat_map(|(flag, name)| [flag.to_owned(), at(name)])
            .collect()
    }

    pub(crate) fn sys(&self, path: &str) -> PathBuf {
        self.dir.path().join("sys").join(path)
    }

    fn pci(&self, address: &str) -> PathBuf {
        fs::canonicalize(self.sys("bus/pci/devices").join(address)).unwrap()
    }

    pub(crate) fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let file = self.dir.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }

    fn function(&self, function: &Function) {
        let dir = format!("sys/devices/{}", function.path);
        let put = |file: &str, text: &str| self.put(&format!("{dir}/{file}"), format!("{text}\n"));
        put("vendor", &format!("0x{}", function.ids.0));
        put("device", &format!("0x{}", function.ids.1));
        put("class", &format!("0x{}", function.class));
        put("numa_node", &function.numa);
        self.put(&format!("{dir}/config"), function.config());
        for (fact, names) in
            [("link", ["current_link_width", "current_link_speed"]), ("max", ["max_link_width", "max_link_speed"])]
        {
            if let Some((width, speed)) = function.facts.get(fact).and_then(|l| l.split_once('@')) {
                put(names[0], width);
                put(names[1], speed.replace('_', " ").as_str());
            }
        }
        let real = self.dir.path().join(&dir);
        if let Some(iommu) = function.facts.get("iommu") {
            let group = format!("kernel/iommu_groups/{}", function.address);
            self.put(&format!("sys/{group}/type"), format!("{iommu}\n"));
            symlink(self.sys(&group), real.join("iommu_group")).unwrap();
        }
        let driver = function.driver.as_deref().or(function.class.starts_with("0604").then_some("pcieport"));
        if let Some(driver) = driver {
            let of_bus = self.sys("bus/pci/drivers").join(driver);
            fs::create_dir_all(&of_bus).unwrap();
            symlink(of_bus, real.join("driver")).unwrap();
        }
        symlink(real, self.sys("bus/pci/devices").join(&function.address)).unwrap();
    }

    fn hca(&self, hca: &Hca, index: usize) {
        let parent = hca.pci.as_ref().map(|pci| self.pci(pci));
        let device = match &parent {
            Some(function) => function.join("infiniband").join(&hca.name),
            None => self.sys("devices/virtual/infiniband").join(&hca.name),
        };
        let mut files = vec![("node_type".to_owned(), "1: CA".to_owned()), ("fw_ver".into(), "28.43.2566".into())];
        for [number, state, layer, rate] in &hca.ports {
            let state_number = ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE"].iter().position(|s| s == state).unwrap();
            let mut port = |file: &str, text: String| files.push((format!("ports/{number}/{file}"), text));
            port("state", format!("{state_number}: {state}"));
            port("link_layer", layer.clone());
            port("rate", format!("{rate} Gb/sec (4X)"));
            port("gids/0", format!("fec0:0000:0000:{:04x}:a088:c203:0042:7b10", index + 1));
        }
        for (file, text) in files {
            let file = device.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{text}\n")).unwrap();
        }
        let verbs = match &parent {
            Some(function) => function.join(format!("infiniband_verbs/uverbs{index}")),
            None => self.sys(&format!("devices/virtual/infiniband_verbs/uverbs{index}")),
        };
        fs::create_dir_all(&verbs).unwrap();
        fs::write(verbs.join("ibdev"), format!("{}\n", hca.name)).unwrap();
        if let Some(function) = parent {
            symlink(function, device.join("device")).unwrap();
        }
        symlink(&device, self.sys("class/infiniband").join(&hca.name)).unwrap();
        symlink(&verbs, self.sys(&format!("class/infiniband_verbs/uverbs{index}"))).unwrap();
    }
}
