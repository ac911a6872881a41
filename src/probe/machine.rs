//! The one seam of simulation: what is here, and does it work.

use std::{collections::BTreeMap, future::Future, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use super::{
    DRIVER_CONTAINER, Found, Plan, Row, Step, Supervisor, find_libcuda,
    loopback::Way,
    protocol::Target,
    sandbox::{OwnDev, nvidia_nodes},
};
use crate::{
    config::{BusyGpus, Config, Driver, Kubelet},
    hardware::{GpuFacts, HcaFacts, Inventory, Pass, PciAddress, Reader, Roots, Surroundings, TopologyFile},
    report::{Method, Transport},
    usage::{Pods, Terms},
};

/// A future that a machine answers with.
pub type Answer<'a, T = Row> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What is to be tried with one GPU.
#[derive(Debug, Clone)]
pub struct Task {
    /// The GPU.
    pub gpu: GpuFacts,
    /// The HCAs.
    pub hcas: Vec<HcaFacts>,
    /// The methods.
    pub methods: Vec<Method>,
    /// Bytes of GPU memory.
    pub size: usize,
    /// Bytes of GPU memory to transfer over, when loopback is wanted.
    pub deep: Option<usize>,
    /// What to do with a GPU in use.
    pub busy: BusyGpus,
    /// For all of it.
    pub limit: Duration,
    /// Version of the NVIDIA kernel module.
    pub driver: Option<String>,
}

/// A machine, real or made up.
pub trait Machine: Send + Sync {
    /// What is here; looks, and touches nothing.
    fn inventory(&self) -> Answer<'_, Inventory>;
    /// An HCA with its name and its device nodes as they are now; asks no device anything.
    fn hca(&self, known: &HcaFacts) -> Option<HcaFacts>;
    /// Whether anything that matters may have changed; much cheaper than another inventory.
    fn changed_since(&self, last: &Arc<Inventory>) -> Answer<'_, bool>;
    /// How often the links of each HCA went down, where that is counted. Asks firmware.
    fn links_downed(&self, last: &Arc<Inventory>) -> Answer<'_, BTreeMap<String, u64>>;
    /// Does it work; touches the devices, in a child.
    fn probe(&self, task: Task) -> Answer<'_>;
    /// What is around its devices; `troubled`: with what only a failure is worth.
    fn surroundings(&self, gpus: Vec<PciAddress>, troubled: bool) -> Answer<'_, Surroundings>;
    /// Whether it is made up.
    fn simulated(&self) -> bool;
    /// Keys of HCAs known to have been ACTIVE before the agent ever looked.
    fn known_active(&self) -> Vec<String>;
    /// Children that the kernel does not let go.
    fn stuck(&self) -> usize;
}

/// The machine that the agent runs on.
#[derive(Debug, Clone)]
pub struct RealMachine {
    roots: Roots,
    reader: Reader,
    driver: Driver,
    supervisor: Supervisor,
    topology: Option<Arc<TopologyFile>>,
    pods: Pods,
}

impl RealMachine {
    /// Reads beneath `roots`, and starts children that lock in `run_dir`.
    #[must_use]
    pub fn new(roots: Roots, config: &Config, run_dir: &std::path::Path) -> Self {
        // A machine of files has no kubelet, unless it is told where.
        let live = roots.dev == Roots::default().dev;
        let folder = &config.kubelet.pod_resources;
        let pods = Pods::new((live || *folder != Kubelet::default().pod_resources).then_some(folder));
        Self {
            roots,
            reader: Reader::default(),
            driver: config.driver.clone(),
            supervisor: Supervisor::new(run_dir),
            topology: None,
            pods,
        }
    }

    /// Takes distances from a topology file.
    #[must_use]
    pub fn with_topology(self, topology: Option<Arc<TopologyFile>>) -> Self {
        Self { topology, ..self }
    }
}

impl Machine for RealMachine {
    fn inventory(&self) -> Answer<'_, Inventory> {
        let roots = self.roots.clone();
        Box::pin(async move {
            self.reader.read(move |pass| Inventory::read_in(pass, &roots)).await.with_file(self.topology.as_ref())
        })
    }

    fn hca(&self, known: &HcaFacts) -> Option<HcaFacts> {
        known.as_now(&self.roots)
    }

    fn changed_since(&self, last: &Arc<Inventory>) -> Answer<'_, bool> {
        let (last, roots) = (Arc::clone(last), self.roots.clone());
        Box::pin(self.reader.read(move |pass| last.differs_at_a_glance(pass, &roots)))
    }

    fn links_downed(&self, last: &Arc<Inventory>) -> Answer<'_, BTreeMap<String, u64>> {
        let (last, roots) = (Arc::clone(last), self.roots.clone());
        Box::pin(self.reader.read(move |pass| last.links_downed(pass, &roots)))
    }

    fn probe(&self, task: Task) -> Answer<'_> {
        Box::pin(async move {
            if task.gpu.silent {
                return Row::never_began(Step::Sysfs, &task.hcas, &task.methods);
            }
            let (silent, answering): (Vec<_>, Vec<_>) = task.hcas.into_iter().partition(|hca| hca.silent);
            let ways = if task.deep.is_some() { self.ways(&answering).await } else { Vec::new() };
            let way = |n: usize| ways.get(n).copied().unwrap_or(Way::PortDown);
            let found: Found = find_libcuda(&self.driver, task.driver.as_deref());
            let terms = Terms {
                busy: task.busy,
                held_by: self.pods.holder(&task.gpu).await,
                memory_is_node: task.gpu.memory_is_node,
            };
            let plan = Plan {
                gpu: task.gpu.pci,
                libcuda: found.file.clone(),
                size: task.size,
                deep: task.deep,
                // Of a machine made of files nothing is mounted.
                own_dev: (self.roots.dev == Roots::default().dev).then(|| OwnDev {
                    staging: PathBuf::new(),
                    nvidia: nvidia_nodes(&found.file, &self.driver.root.join(DRIVER_CONTAINER)),
                }),
                methods: task.methods,
                hcas: answering.iter().enumerate().map(|(n, hca)| target(hca, way(n))).collect(),
                terms,
            };
            let mut row = self.supervisor.probe(&plan, task.gpu.uuid.as_deref(), &found, task.limit).await;
            row.add_silent(&silent, &plan.methods);
            row
        })
    }

    fn surroundings(&self, gpus: Vec<PciAddress>, troubled: bool) -> Answer<'_, Surroundings> {
        let (roots, host) = (self.roots.clone(), self.driver.root.clone());
        Box::pin(async move {
            // kallsyms alone is ten megabytes.
            let read = move || Surroundings::read(&roots, &host, &gpus, troubled);
            let read = tokio::task::spawn_blocking(read).await.unwrap_or_default();
            Surroundings { listed: self.pods.listed().await, held: self.pods.held().await, ..read }
        })
    }

    fn simulated(&self) -> bool {
        false
    }

    fn known_active(&self) -> Vec<String> {
        Vec::new()
    }

    fn stuck(&self) -> usize {
        self.supervisor.stuck()
    }
}

impl RealMachine {
    /// How to reach each HCA's own port. One that stops answering just then has none.
    async fn ways(&self, hcas: &[HcaFacts]) -> Vec<Way> {
        let (roots, hcas) = (self.roots.clone(), hcas.to_vec());
        let ways = move |pass: &Pass| {
            let way = |hca: &HcaFacts| pass.device(&hca.name, || way(hca, &roots)).unwrap_or(Way::PortDown);
            hcas.iter().map(way).collect()
        };
        self.reader.read(ways).await
    }
}

fn target(hca: &HcaFacts, way: Way) -> Target {
    let node: Option<PathBuf> = hca.node.as_ref().map(|n| n.path.clone());
    Target { name: hca.name.clone(), node, efa: hca.transport == Transport::Efa, way }
}

/// By the first ACTIVE port: its LID, or on Ethernet a GID of RoCE v2.
fn way(hca: &HcaFacts, roots: &Roots) -> Way {
    if matches!(hca.transport, Transport::Efa | Transport::Iwarp) {
        return Way::NoRc;
    }
    let active = hca.ports.iter().find(|p| p.state == "ACTIVE").and_then(|p| u8::try_from(p.number).ok());
    match active {
        None => Way::PortDown,
        Some(port) if hca.transport == Transport::Infiniband => Way::Route(port, None),
        Some(port) => hca.roce_gid(roots, port).map_or(Way::NoGid, |gid| Way::Route(port, Some(gid))),
    }
}

/// The rows of a check, by GPU.
pub type Rows = BTreeMap<crate::hardware::PciAddress, Row>;
