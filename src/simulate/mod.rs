//! Machines that are made up: for demonstrations, for testing scheduling without hardware, and for
//! scale tests. Everything that comes of one says so.

mod profile;
mod profiles;

use std::{
    collections::BTreeMap,
    fs,
    future::ready,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

pub use profile::{Fault, Profile, ProfileError};
pub use profiles::NAMES;

use crate::{
    hardware::{HcaFacts, Inventory, PciAddress, Surroundings, TopologyFile},
    probe::{Answer, Machine, Row, Task},
};

/// A made-up machine. A profile that is a file is read again at each look.
#[derive(Debug)]
pub struct SimulatedMachine {
    file: Option<PathBuf>,
    last: Mutex<Last>,
    /// The faults at the last look.
    seen: Mutex<Vec<Fault>>,
    boot_id: String,
    topology: Option<Arc<TopologyFile>>,
}

/// The profile, and of which file it is.
#[derive(Debug)]
struct Last {
    profile: Profile,
    of: Option<FileId>,
}

/// Another file, or another content of it: inode, size, and the change's time.
type FileId = (u64, u64, i64, i64);

fn file_id(file: &Path) -> Option<FileId> {
    fs::metadata(file).ok().map(|meta| (meta.ino(), meta.size(), meta.ctime(), meta.ctime_nsec()))
}

impl SimulatedMachine {
    /// `profile` is a built-in name or a file. `boot_id` is the node's own.
    pub fn new(profile: &str, boot_id: String) -> Result<Self, ProfileError> {
        let file = (!NAMES.contains(&profile)).then(|| PathBuf::from(profile));
        let of = file.as_deref().and_then(file_id);
        let profile = file.as_deref().map_or_else(|| Ok(Profile::built_in(profile)), Profile::read)?;
        profile.machine()?;
        let seen = Mutex::new(profile.faults.clone());
        Ok(Self { file, last: Mutex::new(Last { profile, of }), seen, boot_id, topology: None })
    }

    /// Takes distances from a topology file.
    #[must_use]
    pub fn with_topology(self, topology: Option<Arc<TopologyFile>>) -> Self {
        Self { topology, ..self }
    }

    /// What is here, as the profile has it now.
    #[must_use]
    pub fn inventory(&self) -> Inventory {
        self.shown(&self.profile())
    }

    /// The profile as it is now; one that can't be read any more leaves the last one in force.
    fn profile(&self) -> Profile {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &self.file {
            let of = file_id(file);
            if of.is_none() || of != last.of {
                match Profile::read(file).and_then(|p| p.machine().map(|_| p)) {
                    Ok(profile) => *last = Last { profile, of },
                    Err(error) => tracing::warn!(%error, "keeping the last profile that could be read"),
                }
            }
        }
        last.profile.clone()
    }

    /// The machine as a profile has it.
    fn shown(&self, profile: &Profile) -> Inventory {
        let mut inventory = profile.machine().unwrap_or_else(|_| profiles::empty());
        inventory.boot_id.clone_from(&self.boot_id);
        inventory.with_file(self.topology.as_ref())
    }

    /// Whether the faults are others than at the last call: a fault in a registration shows only to
    /// a check, and a real machine's would come with a change that the agent sees.
    fn faults_changed(&self, faults: Vec<Fault>) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = *seen != faults;
        *seen = faults;
        changed
    }

    /// The made-up machine without any fault.
    fn pristine(&self) -> Inventory {
        profiles::machine(&self.profile().base).unwrap_or_else(profiles::empty)
    }
}

impl Machine for SimulatedMachine {
    fn inventory(&self) -> Answer<'_, Inventory> {
        Box::pin(ready(self.inventory()))
    }

    fn hca(&self, known: &HcaFacts) -> Option<HcaFacts> {
        self.inventory().hcas.into_iter().find(|hca| hca.key() == known.key())
    }

    fn changed_since(&self, last: &Arc<Inventory>) -> Answer<'_, bool> {
        let profile = self.profile();
        let changed = self.shown(&profile) != **last || self.faults_changed(profile.faults);
        Box::pin(ready(changed))
    }

    fn links_downed(&self, _: &Arc<Inventory>) -> Answer<'_, BTreeMap<String, u64>> {
        Box::pin(ready(BTreeMap::new()))
    }

    fn probe(&self, task: Task) -> Answer<'_> {
        let row: Row = self.profile().row(&task);
        Box::pin(ready(row))
    }

    fn surroundings(&self, _: Vec<PciAddress>, _: bool) -> Answer<'_, Surroundings> {
        Box::pin(ready(Surroundings { listed: Some(Vec::new()), ..Surroundings::default() }))
    }

    fn simulated(&self) -> bool {
        true
    }

    /// A made-up machine worked before its faults began.
    fn known_active(&self) -> Vec<String> {
        self.pristine().hcas.iter().filter(|h| h.is_active()).map(crate::hardware::HcaFacts::key).collect()
    }

    fn stuck(&self) -> usize {
        0
    }
}
