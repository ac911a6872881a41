//! What is remembered on the host: the last report, and what the verdict needs of the past.
//!
//! One JSON file, replaced atomically. A damaged, foreign or newer one is set aside with a warning;
//! a disk that is full or read-only is a warning too. Nothing here stops a check.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    hardware::{HcaFacts, Inventory, Known},
    report::{Reason, Report, State, Verdict},
};

/// Version of the file's form.
const SCHEMA: u32 = 1;
/// Changes of the state that are kept.
const HISTORY: usize = 200;

/// Everything that is remembered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// Version of the file's form.
    schema: u32,
    /// The boot of which the rest speaks.
    pub boot_id: String,
    /// Keys of HCAs that had an ACTIVE port since the store began; outlives boots.
    pub seen_active: BTreeSet<String>,
    /// The same, of this boot alone.
    pub active_in_boot: BTreeSet<String>,
    /// Keys of HCAs whose network interface was here in this boot.
    pub with_netdev: BTreeSet<String>,
    /// The most hardware that this machine ever had; outlives boots.
    pub baseline: Option<Baseline>,
    /// The last changes of the published state, the newest last; outlives boots.
    pub history: VecDeque<Transition>,
    /// Until when the Node asked for no checks; outlives boots.
    pub paused_until: Option<Timestamp>,
    /// The last version of the GPU driver that was loaded in this boot.
    pub driver: Option<String>,
    /// When the GPU driver was last unloaded or loaded in another version.
    pub driver_changed_at: Option<Timestamp>,
    /// Last good or bad outcome of each pair, by `GPU/HCA` (PCI addresses).
    pub pairs: BTreeMap<String, Remembered>,
    /// GPUs by PCI address that have neither GPUDirect attribute, with the driver that said so: one in
    /// use is not asked again.
    pub incapable: BTreeMap<String, String>,
    /// The published verdict and what argues against it.
    pub damping: Damping,
    /// Health of each device that the kubelet was told of.
    pub devices: BTreeMap<String, DeviceMemory>,
    /// The last report.
    pub report: Option<Report>,
}

impl Memory {
    /// Takes in the keys of HCAs that have an ACTIVE port.
    pub fn saw_active(&mut self, keys: impl IntoIterator<Item = String>) {
        for key in keys {
            self.active_in_boot.insert(key.clone());
            self.seen_active.insert(key);
        }
    }

    /// Takes in the ports that are ACTIVE here.
    pub fn saw_ports(&mut self, inventory: &Inventory) {
        self.saw_active(inventory.hcas.iter().filter(|hca| hca.is_active()).map(HcaFacts::key));
    }

    /// Takes in the HCAs whose network interface is here.
    pub fn saw_netdevs(&mut self, inventory: &Inventory) {
        self.with_netdev.extend(inventory.hcas.iter().filter(|hca| hca.netdev).map(HcaFacts::key));
    }

    /// Takes in what is here, and lets what is elsewhere be what it was.
    pub fn meet(&mut self, inventory: &mut Inventory) {
        self.saw_netdevs(inventory);
        inventory.recall(&self.known());
    }

    /// The HCAs of this boot, as they were.
    #[must_use]
    pub fn known(&self) -> Known {
        let hcas = self.report.as_ref().map(|report| report.hcas.clone()).unwrap_or_default();
        Known { hcas, with_netdev: self.with_netdev.clone() }
    }
}

/// Hardware by kind (`15b3:1021`), each with its places in PCI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Baseline {
    /// The machine's serial number; empty where it has none.
    pub serial: String,
    /// GPUs.
    pub gpus: BTreeMap<String, Vec<String>>,
    /// HCAs, but virtual functions whose PF is here.
    pub hcas: BTreeMap<String, Vec<String>>,
    /// Whether a pair of it was ever good.
    pub worked: bool,
}

/// One change of the published state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Transition {
    /// When.
    pub at: Timestamp,
    /// The state before.
    pub from: State,
    /// The state from then on.
    pub to: State,
    /// Why, by name.
    pub reason: Reason,
    /// Why, in words.
    pub message: String,
}

/// Last good or bad outcome of a pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Remembered {
    /// Good or bad.
    pub good: bool,
    /// When it was seen.
    pub at: Timestamp,
    /// Under which circumstances (boot, drivers, module, firmware).
    pub circumstances: String,
    /// How many checks in a row ended `unknown` since.
    pub unknown_since: u32,
    /// Why it was bad.
    pub reason: Option<Reason>,
}

/// The published verdict and what argues against it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Damping {
    /// The verdict that is published.
    pub published: Option<Verdict>,
    /// The last state that was published and was neither `unknown` nor `not-applicable`.
    pub known: Option<State>,
    /// A state that was seen and is not published yet.
    pub candidate: Option<Candidate>,
    /// When the state last fell, until it has risen again.
    pub fell_at: Option<Timestamp>,
    /// Times of the falls of the last hour.
    pub falls: Vec<Timestamp>,
}

/// A state that was seen and is not published yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// The state.
    pub state: State,
    /// Finished checks in a row that saw it, or something further on the same side.
    pub checks: u32,
    /// When it was first seen, for a port's reason or another one.
    pub since: Timestamp,
    /// Whether it is for a port alone, which has a clock of its own.
    #[serde(default)]
    pub port: bool,
}

/// Health of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceMemory {
    /// Whether its pairs are good, damped.
    pub good: bool,
    /// Checks in a row that saw the opposite.
    pub against: u32,
    /// Whether its port is usable, after two looks.
    pub port: bool,
    /// Looks in a row that saw the opposite.
    pub port_against: u32,
    /// When its port went down lately.
    pub port_drops: Vec<Timestamp>,
    /// Another plugin's resource that hands it out too, when that was last known.
    pub also_in: Option<String>,
}

impl Memory {
    /// What is remembered but for what earlier checks found.
    #[must_use]
    pub fn without_outcomes(&self) -> Self {
        Self { pairs: BTreeMap::new(), report: None, ..self.clone() }
    }

    /// Notes a change of the published state.
    pub fn note(&mut self, transition: Transition) {
        self.history.push_back(transition);
        while self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }
}

/// A place to keep it.
#[derive(Debug, Clone)]
pub struct Store {
    file: PathBuf,
}

impl Store {
    /// A store in a folder; a simulation keeps one of its own.
    #[must_use]
    pub fn new(dir: &Path, simulated: bool) -> Self {
        Self { file: dir.join(if simulated { "simulated.json" } else { "state.json" }) }
    }

    /// The last changes of the published state, as they were written.
    #[must_use]
    pub fn history(&self) -> Vec<Transition> {
        self.read().history.into()
    }

    fn read(&self) -> Memory {
        match fs::read(&self.file) {
            Ok(bytes) => match serde_json::from_slice::<Memory>(&bytes) {
                Ok(memory) if memory.schema == SCHEMA => memory,
                Ok(memory) => self.set_aside(&format!("its schema is {}, this agent's is {SCHEMA}", memory.schema)),
                Err(error) => self.set_aside(&error.to_string()),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Memory::default(),
            Err(error) => {
                tracing::warn!(%error, file = %self.file.display(), "can't read the store; starting without memory");
                Memory::default()
            }
        }
    }

    /// Reads it. What does not belong to this boot is dropped, but for what outlives one.
    #[must_use]
    pub fn load(&self, boot_id: &str) -> Memory {
        let memory = self.read();
        if memory.boot_id == boot_id {
            return memory;
        }
        let before = memory.damping.published.map_or(State::Unknown, |verdict| verdict.state);
        let Memory { seen_active, baseline, history, paused_until, .. } = memory;
        let boot_id = boot_id.to_owned();
        let mut memory = Memory { boot_id, seen_active, baseline, history, paused_until, ..Memory::default() };
        if before != State::Unknown {
            memory.note(Transition {
                at: Timestamp::now(),
                from: before,
                to: State::Unknown,
                reason: Reason::CheckPending,
                message: "the node was started anew".to_owned(),
            });
        }
        memory
    }

    fn set_aside(&self, why: &str) -> Memory {
        let aside = self.file.with_extension("bad");
        tracing::warn!(why, file = %self.file.display(), aside = %aside.display(), "setting the store aside");
        if let Err(error) = fs::rename(&self.file, &aside) {
            tracing::warn!(%error, "can't set the store aside");
        }
        Memory::default()
    }

    /// Writes it, atomically.
    pub fn save(&self, memory: &Memory) -> io::Result<()> {
        let memory = Memory { schema: SCHEMA, ..memory.clone() };
        write_atomically(&self.file, &serde_json::to_vec(&memory)?)
    }
}

/// Replaces a file so that a reader sees the old or the new one, never a part.
pub fn write_atomically(file: &Path, content: &[u8]) -> io::Result<()> {
    let dir = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let temporary = dir.join(format!(".{name}.{}", std::process::id()));
    let written = fs::File::create(&temporary).and_then(|mut f| {
        f.write_all(content)?;
        f.sync_data()?;
        fs::rename(&temporary, file)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary); // the first error is the one to tell
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Memory {
        Memory {
            boot_id: "a".into(),
            seen_active: ["0000:18:00.0".to_owned()].into(),
            damping: Damping { fell_at: Some(Timestamp::UNIX_EPOCH), ..Damping::default() },
            baseline: Some(Baseline { serial: "S1".into(), ..Baseline::default() }),
            paused_until: Some(Timestamp::UNIX_EPOCH),
            history: [Transition {
                at: Timestamp::UNIX_EPOCH,
                from: State::Unknown,
                to: State::Ready,
                reason: Reason::AllRailsVerified,
                message: String::new(),
            }]
            .into(),
            ..Memory::default()
        }
    }

    #[test]
    fn remembers_within_a_boot_and_forgets_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path(), false);
        store.save(&seen()).unwrap();
        assert_eq!(store.load("a").damping, seen().damping);
        let next = store.load("b");
        assert_eq!((next.boot_id.as_str(), &next.damping), ("b", &Damping::default()));
        assert_eq!(next.seen_active, seen().seen_active);
        assert_eq!((&next.baseline, next.paused_until), (&seen().baseline, seen().paused_until), "they outlive a boot");
        assert_eq!(next.history, seen().history, "nothing was known before it either");
        assert_eq!(Store::new(dir.path(), true).load("a").seen_active.len(), 0, "a simulation has a store of its own");
    }

    #[test]
    fn a_new_boot_is_a_change_in_the_history() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path(), false);
        let mut memory = seen();
        let ready = Verdict {
            state: State::Ready,
            reason: Reason::AllRailsVerified,
            message: String::new(),
            since: Timestamp::UNIX_EPOCH,
            damped: false,
        };
        memory.damping.published = Some(ready);
        store.save(&memory).unwrap();
        assert_eq!(store.load("a").history, seen().history);
        let history = store.load("b").history;
        let last = history.back().unwrap();
        assert_eq!((history.len(), last.from, last.to), (2, State::Ready, State::Unknown));
        assert_eq!(last.reason, Reason::CheckPending);
    }

    #[test]
    fn the_last_two_hundred_changes_are_kept() {
        let mut memory = Memory::default();
        for second in 0..250 {
            let at = Timestamp::from_second(second).unwrap();
            memory.note(Transition { at, ..seen().history[0].clone() });
        }
        let kept: Vec<_> = memory.history.iter().map(|transition| transition.at.as_second()).collect();
        assert_eq!(kept, (50..250).collect::<Vec<_>>());
    }

    /// Whoever reads while it is written sees the one or the other, whole.
    #[test]
    fn a_reader_never_sees_a_part() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path(), false);
        let of = |n: usize| Memory { boot_id: n.to_string().repeat(200_000), ..Memory::default() };
        store.save(&of(1)).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..100).for_each(|n| store.save(&of(1 + n % 2)).unwrap());
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                let read: Memory = serde_json::from_slice(&fs::read(&store.file).unwrap()).unwrap();
                assert_eq!(read.boot_id.len(), 200_000);
            }
        });
    }

    #[test]
    fn sets_aside_what_it_does_not_know() {
        for content in ["{", "[]", r#"{"schema": 99}"#, ""] {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::new(dir.path(), false);
            fs::write(dir.path().join("state.json"), content).unwrap();
            assert_eq!(store.load("a"), Memory { boot_id: "a".into(), ..Memory::default() });
            assert_eq!(fs::read_to_string(dir.path().join("state.bad")).unwrap(), content);
        }
    }

    /// A rollout that is taken back leaves a file with what this agent has not heard of.
    #[test]
    fn what_a_later_agent_of_the_same_form_adds_does_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path(), false);
        store.save(&seen()).unwrap();
        let file = dir.path().join("state.json");
        let mut later: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        later["later"] = serde_json::json!({ "new": 1 });
        later["damping"]["later"] = 1.into();
        let fewer = later.as_object_mut().unwrap().remove("incapable");
        fs::write(&file, later.to_string()).unwrap();
        assert!(fewer.is_some());
        assert_eq!(store.load("a"), Memory { schema: SCHEMA, ..seen() });
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error_that_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(Store::new(&dir.path().join("file"), false).save(&seen()).is_err());
    }
}
