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
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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

/// The profile with the machine that it makes, and of which file it is.
#[derive(Debug)]
struct Last {
    profile: Profile,
    machine: Inventory,
    of: Option<FileId>,
}

impl Last {
    fn new(profile: Profile, of: Option<FileId>, boot_id: &str) -> Result<Self, ProfileError> {
        let machine = Inventory { boot_id: boot_id.to_owned(), ..profile.machine()? };
        Ok(Self { profile, machine, of })
    }
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
        let seen = Mutex::new(profile.faults.clone());
        let last = Mutex::new(Last::new(profile, of, &boot_id)?);
        Ok(Self { file, last, seen, boot_id, topology: None })
    }

    /// Takes distances from a topology file.
    #[must_use]
    pub fn with_topology(self, topology: Option<Arc<TopologyFile>>) -> Self {
        Self { topology, ..self }
    }

    /// What is here, as the profile has it now.
    #[must_use]
    pub fn inventory(&self) -> Inventory {
        self.shown(&self.last())
    }

    /// The profile as it is now; one that can't be read any more leaves the last one in force.
    fn last(&self) -> MutexGuard<'_, Last> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &self.file {
            let of = file_id(file);
            if of.is_none() || of != last.of {
                match Profile::read(file).and_then(|profile| Last::new(profile, of, &self.boot_id)) {
                    Ok(now) => *last = now,
                    Err(error) => tracing::warn!(%error, "keeping the last profile that could be read"),
                }
            }
        }
        last
    }

    fn shown(&self, last: &Last) -> Inventory {
        last.machine.clone().with_file(self.topology.as_ref())
    }

    /// Whether the faults are others than at the last call: a fault in a registration shows only to
    /// a check, and a real machine's would come with a change that the agent sees.
    fn faults_changed(&self, faults: &[Fault]) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = *seen != faults;
        faults.clone_into(&mut seen);
        changed
    }

    /// The made-up machine without any fault.
    fn pristine(&self) -> Inventory {
        profiles::machine(&self.last().profile.base).unwrap_or_else(profiles::empty)
    }
}

impl Machine for SimulatedMachine {
    fn inventory(&self) -> Answer<'_, Inventory> {
        Box::pin(ready(self.inventory()))
    }

    fn hca(&self, known: &HcaFacts) -> Option<HcaFacts> {
        self.last().machine.hcas.iter().find(|hca| hca.is_same_as(known)).cloned()
    }

    fn changed_since(&self, last: &Arc<Inventory>) -> Answer<'_, bool> {
        let now = self.last();
        let changed = self.shown(&now) != **last || self.faults_changed(&now.profile.faults);
        Box::pin(ready(changed))
    }

    fn links_downed(&self, _: &Arc<Inventory>) -> Answer<'_, BTreeMap<String, u64>> {
        Box::pin(ready(BTreeMap::new()))
    }

    fn probe(&self, task: Task) -> Answer<'_> {
        let row: Row = self.last().profile.row(&task);
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
