//! What every command that looks at a machine begins with.

use std::{fs, sync::Arc};

use super::{CliError, Global};
use crate::{
    config::{self, Config},
    hardware::{Inventory, Roots, TopologyFile},
    probe::{Machine, RealMachine},
    report::TopologyKind,
    simulate::SimulatedMachine,
    store::Store,
};

/// Configuration, machine and store.
pub struct Context {
    /// The configuration in effect.
    pub config: Config,
    /// The machine, real or made up.
    pub machine: Arc<dyn Machine>,
    /// What is remembered.
    pub store: Store,
    /// Where the live file systems are.
    pub roots: Roots,
    /// The node's name.
    pub node: String,
}

impl Context {
    /// Reads the configuration and chooses the machine.
    pub fn new(global: &Global) -> Result<Self, CliError> {
        let config = config::load(global.config.as_deref(), std::env::vars())?;
        let roots = Roots::from_flags(global.sysfs_root.clone(), global.procfs_root.clone(), global.dev_root.clone());
        let file = config.hardware.topology_file.as_deref();
        let topology = file.map(|f| TopologyFile::read(&config.driver.root, f)).transpose()?.map(Arc::new);
        let machine: Arc<dyn Machine> = match &global.simulate {
            Some(profile) => Arc::new(SimulatedMachine::new(profile, boot_id(&roots))?.with_topology(topology)),
            None => Arc::new(RealMachine::new(roots.clone(), &config, &global.run_dir).with_topology(topology)),
        };
        let store = Store::new(&config.store.dir, machine.simulated());
        let node = global.node_name.clone().unwrap_or_else(host_name);
        Ok(Self { config, machine, store, roots, node })
    }

    /// Says so when the topology file speaks of another machine: it is not wrong, and does nothing.
    pub fn warn_of_foreign_file(&self, inventory: &Inventory) {
        if let Some(file) = self.config.hardware.topology_file.as_deref()
            && inventory.topology != TopologyKind::File
            && !inventory.gpus.is_empty()
        {
            let file = file.display();
            tracing::warn!(%file, "hardware.topologyFile has no GPU of this node with an HCA of it; distances are the kernel's");
        }
    }
}

fn boot_id(roots: &Roots) -> String {
    fs::read_to_string(roots.procfs.join("sys/kernel/random/boot_id")).unwrap_or_default().trim().to_owned()
}

pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A runtime for commands that do one thing. Children die with the thread that spawns them, and
/// here that is the main one.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| CliError::Internal(format!("can't start the runtime: {e}")))
}
