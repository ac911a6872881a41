//! A profile: a machine and what is wrong with it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::profiles::{self, NAMES};
use crate::{
    hardware::{Inventory, PciAddress},
    probe::{GpuAnswer, HcaAnswer, Limits, Row, Step, Task},
    report::{API_VERSION, Code, Loopback, Method, MethodResult, Mr, Outcome},
};

/// A profile file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Profile {
    /// `gdr-agent/v1`.
    pub api_version: String,
    /// `Profile`.
    pub kind: String,
    /// The machine, one of [`NAMES`].
    pub base: String,
    /// What is wrong with it; a later one wins.
    #[serde(default)]
    pub faults: Vec<Fault>,
}

/// One thing that is wrong. Fields that choose (`gpu`, `hca`, `method`) mean all when left out.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Fault {
    /// The GPU concerned, by PCI address.
    pub gpu: Option<PciAddress>,
    /// The HCA concerned, by name.
    pub hca: Option<String>,
    /// The method concerned.
    pub method: Option<Method>,
    /// State of the HCA's ports, `DOWN`.
    pub port: Option<String>,
    /// Outcome of the pairs concerned.
    pub outcome: Option<Outcome>,
    /// The step that decided it.
    pub step: Option<Step>,
    /// Its code, `EFAULT (14)`.
    pub code: Option<Code>,
    /// Whether `nvidia_peermem` is loaded.
    pub peermem: Option<bool>,
    /// Whether the GPU driver is the open kernel module.
    pub open_module: Option<bool>,
    /// Whether the GPU has fallen off the bus.
    pub lost: Option<bool>,
}

/// A profile that was refused.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// It is no built-in name, and no file that can be read.
    #[error("no profile is called `{}`, and it is no file that can be read ({source}); built in are {}", path.display(), NAMES.join(", "))]
    Read {
        /// What was given.
        path: PathBuf,
        /// Why it can't be read.
        source: std::io::Error,
    },
    /// Its content is wrong.
    #[error("{}: {key}: {problem}", path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// Path of the key.
        key: String,
        /// What is wrong.
        problem: String,
    },
}

impl Profile {
    /// A built-in machine with nothing wrong.
    pub(super) fn built_in(name: &str) -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: "Profile".to_owned(),
            base: name.to_owned(),
            faults: Vec::new(),
        }
    }

    /// Reads a file and checks that what it names is there.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        let bad =
            |key: &str, problem: String| ProfileError::Bad { path: path.to_owned(), key: key.to_owned(), problem };
        let text = fs::read_to_string(path).map_err(|source| ProfileError::Read { path: path.to_owned(), source })?;
        let tree: serde_json::Value =
            serde_saphyr::from_str(&text).map_err(|e| bad(".", format!("is not YAML: {e}")))?;
        let profile: Self =
            serde_path_to_error::deserialize(tree).map_err(|e| bad(&e.path().to_string(), e.inner().to_string()))?;
        if profile.api_version != API_VERSION || profile.kind != "Profile" {
            return Err(bad("apiVersion, kind", format!("must be `{API_VERSION}` and `Profile`")));
        }
        let machine = profiles::machine(&profile.base).ok_or_else(|| {
            bad("base", format!("no machine is called `{}`; there are {}", profile.base, NAMES.join(", ")))
        })?;
        for (i, fault) in profile.faults.iter().enumerate() {
            if let Some(name) = fault.hca.as_deref().filter(|n| machine.hca(n).is_none()) {
                return Err(bad(&format!("faults[{i}].hca"), format!("{} has no HCA `{name}`", profile.base)));
            }
            if let Some(gpu) = fault.gpu.filter(|gpu| machine.gpus.iter().all(|g| g.pci != *gpu)) {
                return Err(bad(&format!("faults[{i}].gpu"), format!("{} has no GPU {gpu}", profile.base)));
            }
        }
        Ok(profile)
    }

    /// The machine with its faults, as sysfs would show it.
    pub(super) fn machine(&self) -> Result<Inventory, ProfileError> {
        let mut machine = profiles::machine(&self.base).ok_or_else(|| ProfileError::Read {
            path: self.base.clone().into(),
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        for fault in &self.faults {
            for hca in machine.hcas.iter_mut().filter(|h| fault.takes_hca(&h.name)) {
                for port in &mut hca.ports {
                    port.state = fault.port.clone().unwrap_or_else(|| port.state.clone());
                }
            }
            for gpu in machine.gpus.iter_mut().filter(|g| fault.takes_gpu(g.pci)) {
                gpu.lost = fault.lost.unwrap_or(gpu.lost);
            }
            machine.peermem = fault.peermem.unwrap_or(machine.peermem);
            if let Some(nvidia) = &mut machine.nvidia {
                nvidia.open = fault.open_module.unwrap_or(nvidia.open);
            }
        }
        Ok(machine)
    }

    /// What a child would have found.
    pub(super) fn row(&self, task: &Task) -> Row {
        let address = 0x7f00_0000_0000_u64;
        let open = self.faults.iter().filter_map(|f| f.open_module).next_back().unwrap_or(true);
        let peermem = self.faults.iter().filter_map(|f| f.peermem).next_back().unwrap_or(true);
        let hcas = task.hcas.iter().zip(1..).map(|(hca, n)| {
            let methods = task.methods.iter().map(|method| {
                let mut result = match method {
                    Method::DmaBuf if !open => refused(Outcome::Unsupported, Step::Export, None),
                    Method::Peermem if !peermem => refused(Outcome::Failed, Step::RegMr, Some(Code::errno(14))),
                    _ => verified(*method, address, task.size as u64, n),
                };
                result.loopback = task.deep.filter(|_| result.mr.is_some()).map(|size| Loopback {
                    outcome: Outcome::Verified,
                    write: Outcome::Verified,
                    read: Outcome::Verified,
                    bytes: 2 * size as u64,
                    code: None,
                });
                for fault in self.faults.iter().filter(|f| f.takes(task.gpu.pci, &hca.name, *method)) {
                    if let Some(outcome) = fault.outcome {
                        result = refused(outcome, fault.step.unwrap_or(Step::RegMr), fault.code.clone());
                    }
                }
                (*method, result)
            });
            (hca.name.clone(), HcaAnswer { methods: methods.collect::<BTreeMap<_, _>>() })
        });
        Row {
            gpu: GpuAnswer {
                cuda_version: Some(12_080),
                gdr: Some(true),
                dma_buf: Some(open),
                allocated: Some((address, task.size as u64)),
            },
            limits: Some(Limits { ipc_lock: true, ..Limits::default() }),
            hcas: hcas.collect(),
            ..Row::default()
        }
    }
}

impl Fault {
    fn takes_hca(&self, name: &str) -> bool {
        self.hca.as_deref().is_none_or(|h| h == name)
    }

    fn takes_gpu(&self, pci: PciAddress) -> bool {
        self.gpu.is_none_or(|g| g == pci)
    }

    fn takes(&self, gpu: PciAddress, hca: &str, method: Method) -> bool {
        self.takes_gpu(gpu) && self.takes_hca(hca) && self.method.is_none_or(|m| m == method)
    }
}

fn refused(outcome: Outcome, step: Step, code: Option<Code>) -> MethodResult {
    MethodResult { outcome, step: Some(step.to_string()), code, duration_us: 1_500, mr: None, loopback: None }
}

fn verified(method: Method, address: u64, length: u64, n: u32) -> MethodResult {
    let addr = if method == Method::DmaBuf { 0 } else { address };
    let key = format!("{:#x}", 0x20_0000 + n * 0x100 + method as u32);
    let mr = Mr { addr: format!("{addr:#x}"), length, lkey: key.clone(), rkey: key };
    MethodResult {
        outcome: Outcome::Verified,
        step: None,
        code: None,
        duration_us: 1_500,
        mr: Some(mr),
        loopback: None,
    }
}
