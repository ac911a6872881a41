//! The one seam of simulation: what is here, and does it work.

use std::{collections::BTreeMap, future::Future, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use super::{Found, Plan, Row, Supervisor, find_libcuda, protocol::Target};
use crate::{
    config::{Config, Driver},
    hardware::{GpuFacts, HcaFacts, Inventory, Roots, TopologyFile},
    report::{Method, Transport},
};

/// A future that a machine answers with.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Row> + Send + 'a>>;

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
    /// For all of it.
    pub limit: Duration,
    /// Version of the NVIDIA kernel module.
    pub driver: Option<String>,
}

/// A machine, real or made up.
pub trait Machine: Send + Sync {
    /// What is here; looks, and touches nothing.
    fn inventory(&self) -> Inventory;
    /// Whether anything that matters may have changed; much cheaper than another inventory.
    fn changed_since(&self, last: &Inventory) -> bool;
    /// Does it work; touches the devices, in a child.
    fn probe(&self, task: Task) -> Answer<'_>;
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
    driver: Driver,
    supervisor: Supervisor,
    topology: Option<Arc<TopologyFile>>,
}

impl RealMachine {
    /// Reads beneath `roots`, and starts children that lock in `run_dir`.
    #[must_use]
    pub fn new(roots: Roots, config: &Config, run_dir: &std::path::Path) -> Self {
        Self { roots, driver: config.driver.clone(), supervisor: Supervisor::new(run_dir), topology: None }
    }

    /// Takes distances from a topology file.
    #[must_use]
    pub fn with_topology(self, topology: Option<Arc<TopologyFile>>) -> Self {
        Self { topology, ..self }
    }
}

impl Machine for RealMachine {
    fn inventory(&self) -> Inventory {
        Inventory::read(&self.roots).with_file(self.topology.as_ref())
    }

    fn changed_since(&self, last: &Inventory) -> bool {
        last.differs_at_a_glance(&self.roots)
    }

    fn probe(&self, task: Task) -> Answer<'_> {
        Box::pin(async move {
            let found: Found = find_libcuda(&self.driver, task.driver.as_deref());
            let plan = Plan {
                gpu: task.gpu.pci,
                libcuda: found.file.clone(),
                size: task.size,
                methods: task.methods,
                hcas: task.hcas.iter().map(target).collect(),
            };
            self.supervisor.probe(&plan, task.gpu.uuid.as_deref(), &found, task.limit).await
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

fn target(hca: &HcaFacts) -> Target {
    let node: Option<PathBuf> = hca.node.as_ref().map(|n| n.path.clone());
    Target { name: hca.name.clone(), node, efa: hca.transport == Transport::Efa }
}

/// The rows of a check, by GPU.
pub type Rows = BTreeMap<crate::hardware::PciAddress, Row>;
