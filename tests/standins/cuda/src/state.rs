//! What the driver knows of this process: GPUs, contexts, allocations.

use std::{cell::RefCell, collections::BTreeMap, env, sync::Mutex};

use standin::ledger;

use crate::{
    CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, Result,
    memory::{Export, Kind, Range},
};

pub(crate) static STATE: Mutex<State> =
    Mutex::new(State { config: None, wrong: None, contexts: BTreeMap::new(), made: 0, ranges: BTreeMap::new() });

thread_local! {
    /// The calling thread's stack of contexts.
    pub(crate) static CONTEXTS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gpu {
    pub(crate) pci: String,
    pub(crate) uuid: String,
}

impl Gpu {
    pub(crate) fn uuid_bytes(&self) -> [u8; 16] {
        let digits: Vec<u8> =
            self.uuid.bytes().skip(4).filter_map(|b| (b as char).to_digit(16)).map(|d| d as u8).collect();
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        bytes
    }
}

#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) integrated: bool,
    pub(crate) memory: Kind,
    pub(crate) dmabuf: Option<Export>,
    pub(crate) gdr: bool,
}

impl Config {
    pub(crate) fn from_environment() -> Self {
        Self::read(|name| env::var(name).ok())
    }

    pub(crate) fn read(get: impl Fn(&str) -> Option<String>) -> Self {
        let own = |name: &str| get(&format!("STANDIN_CUDA_{name}"));
        let all: Vec<Gpu> = own("GPUS")
            .unwrap_or_default()
            .split([',', ' '])
            .filter_map(|item| item.split_once('='))
            .map(|(pci, uuid)| Gpu { pci: pci.to_lowercase(), uuid: uuid.to_owned() })
            .collect();
        let unknown = |what: &str, value: &str| -> ! {
            eprintln!("standin-cuda: STANDIN_CUDA_{what}={value}: not a value of it");
            std::process::abort()
        };
        Self {
            gpus: match get("CUDA_VISIBLE_DEVICES") {
                None => all,
                Some(list) => visible(&all, &list),
            },
            integrated: own("INTEGRATED").as_deref() == Some("1"),
            memory: match own("MEMORY").as_deref() {
                None | Some("anon") => Kind::Anonymous,
                Some("vgem") => Kind::Vgem,
                Some("malloc") => Kind::Malloc,
                Some("managed") => Kind::Managed,
                Some("unanswered") => Kind::Unanswered,
                Some("device") => Kind::Device,
                Some(other) => unknown("MEMORY", other),
            },
            dmabuf: match own("DMABUF").as_deref() {
                None | Some("unsupported") => None,
                Some("vgem") => Some(Export::Vgem),
                Some("memfd") => Some(Export::Memfd),
                Some("device") => Some(Export::Device),
                Some(other) => unknown("DMABUF", other),
            },
            gdr: own("GDR").as_deref() != Some("0"),
        }
    }
}

/// The list ends at its first entry that names no GPU, as the driver's does.
fn visible(all: &[Gpu], list: &str) -> Vec<Gpu> {
    list.split(',')
        .map_while(|item| match item.parse::<usize>() {
            Ok(index) => all.get(index),
            Err(_) if item.len() > 4 => all.iter().find(|g| g.uuid.starts_with(item)),
            Err(_) => None,
        })
        .cloned()
        .collect()
}

/// Everything behind one lock.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) config: Option<Config>,
    /// What the call under way was told to answer wrong.
    pub(crate) wrong: Option<String>,
    /// Device → (handle, how often retained).
    contexts: BTreeMap<i32, (usize, u32)>,
    made: usize,
    ranges: BTreeMap<u64, Range>,
}

impl State {
    /// Whether the call under way was told to answer wrong in this way.
    pub(crate) fn wrong(&self, word: &str) -> bool {
        self.wrong.as_deref() == Some(word)
    }

    pub(crate) fn config(&self) -> &Config {
        self.config.as_ref().unwrap_or_else(|| std::process::abort()) // each call has looked before
    }

    pub(crate) fn gpus(&self) -> &[Gpu] {
        &self.config().gpus
    }

    pub(crate) fn gpu(&self, device: i32) -> std::result::Result<&Gpu, u32> {
        usize::try_from(device).ok().and_then(|i| self.gpus().get(i)).ok_or(INVALID_DEVICE)
    }

    pub(crate) fn retained(&self, device: i32) -> u32 {
        self.contexts.get(&device).map_or(0, |(_, count)| *count)
    }

    pub(crate) fn retain(&mut self, device: i32) -> usize {
        let made = &mut self.made;
        let entry = self.contexts.entry(device).or_insert_with(|| {
            *made += 1;
            (0xc0_0000 + *made * 64, 0) // a handle is never given twice
        });
        entry.1 += 1;
        ledger(&format!("+context {device}"));
        entry.0
    }

    /// The last release destroys the context and all memory in it.
    pub(crate) fn release(&mut self, device: i32) -> Result {
        let entry = self.contexts.get_mut(&device).ok_or(INVALID_CONTEXT)?;
        entry.1 -= 1;
        let handle = entry.0;
        ledger(&format!("-context {device}"));
        if entry.1 == 0 {
            self.contexts.remove(&device);
            self.ranges.retain(|_, range| range.context != handle);
        }
        Ok(())
    }

    pub(crate) fn is_context(&self, handle: usize) -> bool {
        self.contexts.values().any(|(h, _)| *h == handle)
    }

    pub(crate) fn device_of(&self, handle: usize) -> i32 {
        self.contexts.iter().find(|(_, (h, _))| *h == handle).map_or(-1, |(device, _)| *device)
    }

    /// The calling thread's context.
    pub(crate) fn current(&self) -> std::result::Result<usize, u32> {
        let handle = CONTEXTS.with_borrow(|stack| stack.last().copied()).ok_or(INVALID_CONTEXT)?;
        if self.is_context(handle) { Ok(handle) } else { Err(CONTEXT_IS_DESTROYED) }
    }

    pub(crate) fn allocate(&mut self, context: usize, kind: Kind, size: usize) -> std::result::Result<u64, u32> {
        let range = Range::new(context, kind, size)?;
        let address = range.address;
        ledger(&format!("+memory {address:#x}"));
        self.ranges.insert(address, range);
        Ok(address)
    }

    /// Only the address that an allocation began with can be freed, once.
    pub(crate) fn free(&mut self, address: u64) -> Result {
        if !self.ranges.contains_key(&address) {
            return Err(INVALID_VALUE);
        }
        ledger(&format!("pinned {}", pinned()));
        self.ranges.remove(&address);
        ledger(&format!("-memory {address:#x}"));
        Ok(())
    }

    /// The allocation that `size` bytes at `address` lie in, whole.
    pub(crate) fn range(&self, address: u64, size: usize) -> std::result::Result<&Range, u32> {
        let (_, range) = self.ranges.range(..=address).next_back().ok_or(INVALID_VALUE)?;
        let offset = address - range.address;
        let fits =
            offset.checked_add(size as u64).is_some_and(|end| end <= range.size as u64) && offset < range.size as u64;
        if fits { Ok(range) } else { Err(INVALID_VALUE) }
    }
}

/// What drivers hold of this process's memory, by `VmPin` in `proc_pid_status(5)`.
fn pinned() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    line.map_or_else(|| "unknown".to_owned(), |kib| kib.replace(char::is_whitespace, ""))
}
