//! What NVML knows: the GPUs of the environment, and how often it was initialised.

use std::{env, sync::Mutex};

use standin::ledger;

use crate::{INVALID_ARGUMENT, NOT_FOUND, Result, UNINITIALIZED};

pub(crate) static STATE: Mutex<State> = Mutex::new(State { opened: 0, wrong: None });

/// Handles are addresses of nothing, and never null.
const FIRST: usize = 0x9000;
const STEP: usize = 0x100;

/// Everything behind one lock.
pub(crate) struct State {
    /// How often `nvmlInit` was called and not undone.
    opened: u32,
    /// What the call under way was told to answer wrong.
    pub(crate) wrong: Option<String>,
}

impl State {
    pub(crate) fn wrong(&self, word: &str) -> bool {
        self.wrong.as_deref() == Some(word)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.opened > 0
    }

    pub(crate) fn open(&mut self) {
        self.opened += 1;
        ledger("+nvml");
    }

    pub(crate) fn shut(&mut self) -> Result {
        self.opened = self.opened.checked_sub(1).ok_or(UNINITIALIZED)?;
        ledger("-nvml");
        Ok(())
    }
}

/// GPUs are those of the stand-in of libcuda, all of them: NVML knows no `CUDA_VISIBLE_DEVICES`.
fn gpus() -> Vec<(String, String)> {
    let list = env::var("STANDIN_CUDA_GPUS").unwrap_or_default();
    let items = list.split([',', ' ']).filter_map(|item| item.split_once('='));
    items.map(|(pci, uuid)| (pci.to_lowercase(), uuid.to_owned())).collect()
}

/// The GPU that a fault is about: the one that CUDA shows this process.
pub(crate) fn meant() -> String {
    let visible = env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let all = gpus();
    let meant = all.iter().find(|(_, uuid)| *uuid == visible).or(all.first());
    meant.map_or_else(String::new, |(pci, _)| pci.clone())
}

/// By a PCI address, with a domain of four or eight digits.
pub(crate) fn handle(pci: &str) -> std::result::Result<usize, u32> {
    let short = |pci: &str| pci.strip_prefix("0000").filter(|rest| rest.len() == 12).unwrap_or(pci).to_owned();
    let wanted = short(&pci.to_lowercase());
    let at = gpus().iter().position(|(pci, _)| *pci == wanted).ok_or(NOT_FOUND)?;
    Ok(FIRST + at * STEP)
}

/// A GPU that a handle of ours means.
pub(crate) struct Gpu {
    pci: String,
}

impl Gpu {
    pub(crate) fn of(handle: usize) -> std::result::Result<Self, u32> {
        let offset = handle.checked_sub(FIRST).filter(|offset| offset.is_multiple_of(STEP)).ok_or(INVALID_ARGUMENT)?;
        let (pci, _) = gpus().into_iter().nth(offset / STEP).ok_or(INVALID_ARGUMENT)?;
        Ok(Self { pci })
    }

    /// `STANDIN_NVML_NAME`: a value for all GPUs, or `pci=value;pci=value`.
    pub(crate) fn setting(&self, name: &str) -> Option<String> {
        let text = env::var(format!("STANDIN_NVML_{name}")).ok()?;
        if !text.contains('=') {
            return Some(text);
        }
        let mut items = text.split(';').filter_map(|item| item.split_once('='));
        items.find(|(pci, _)| pci.eq_ignore_ascii_case(&self.pci)).map(|(_, value)| value.to_owned())
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.setting(name).map(|text| text.parse().unwrap_or_else(|_| refuse(name, &text)))
    }

    /// `4711,4712`
    pub(crate) fn processes(&self, name: &str) -> Vec<u32> {
        let text = self.setting(name).unwrap_or_default();
        let items = text.split(',').filter(|item| !item.is_empty());
        items.map(|item| item.parse().unwrap_or_else(|_| refuse(name, &text))).collect()
    }
}

/// A test that sets nonsense must not pass.
pub(crate) fn refuse(name: &str, value: &str) -> ! {
    eprintln!("standin-nvml: STANDIN_NVML_{name}={value}: not a value of it");
    std::process::abort()
}
