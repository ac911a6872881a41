//! In the child, before libcuda: what NVML says of the GPU's use. It is a help, never a condition:
//! whatever it does not answer is noted, and the check learns by trying.

use std::{fmt::Display, io, path::Path};

use super::{
    child::Reporter,
    protocol::{Line, Plan, Step},
};
use crate::{
    ffi::nvml::{Gpu, MemoryInfo, Nvml, NvmlError, Session},
    usage::{ComputeMode, Memory, Usage},
};

/// Beside libcuda on the node, and in the child's private folder of links.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Asks, shuts NVML down, and reports.
pub(super) fn ask(plan: &Plan, r: &mut Reporter<'_>) -> io::Result<Usage> {
    let mut asking = Asking { usage: Usage::default(), r };
    asking.r.step(Step::LoadNvml)?;
    match Nvml::load(Path::new(LIBRARY)) {
        Ok(nvml) => {
            asking.session(&nvml, plan)?;
            // To unload a driver's library gains nothing, and may run code that expects more.
            std::mem::forget(nvml);
        }
        Err(error) => asking.note(Step::LoadNvml, &error),
    }
    let Asking { usage, r } = asking;
    r.say(&Line::Usage(usage.clone()))?;
    Ok(usage)
}

struct Asking<'a, 'w> {
    usage: Usage,
    r: &'a mut Reporter<'w>,
}

impl Asking<'_, '_> {
    fn note(&mut self, step: Step, why: &dyn Display) {
        self.usage.untold.push(format!("{step}: {why}"));
    }

    /// One question: named before it is asked, its failure noted, and what the GPU or the driver does
    /// not have is no failure.
    fn one<T>(&mut self, step: Step, ask: impl FnOnce() -> Result<T, NvmlError>) -> io::Result<Option<T>> {
        self.r.step(step)?;
        Ok(match ask() {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.usage.lost |= error.is_lost();
                if !error.is_absent() {
                    self.note(step, &error);
                }
                None
            }
        })
    }

    fn session(&mut self, nvml: &Nvml, plan: &Plan) -> io::Result<()> {
        let Some(session) = self.one(Step::NvmlInit, || nvml.init())? else { return Ok(()) };
        if let Some(gpu) = self.one(Step::NvmlHandle, || session.gpu(&plan.gpu.to_string()))? {
            self.gpu(&session, &gpu)?;
        }
        self.one(Step::NvmlShutdown, || session.shutdown())?;
        Ok(())
    }

    fn gpu(&mut self, session: &Session<'_>, gpu: &Gpu<'_>) -> io::Result<()> {
        self.usage.mig = self.one(Step::NvmlMig, || gpu.mig())?;
        self.usage.confidential = self.one(Step::NvmlConfidential, || session.confidential())?;
        let mode = self.one(Step::NvmlMode, || gpu.mode())?;
        self.usage.mode = mode.and_then(|mode| self.mode(mode));
        self.usage.processes = self.processes(gpu)?;
        self.usage.memory = self.one(Step::NvmlMemory, || gpu.memory())?.map(memory);
        self.usage.persistence = self.one(Step::NvmlPersistence, || gpu.persistence())?;
        self.usage.virtual_gpu = self.one(Step::NvmlVirtualization, || gpu.virtual_gpu())?;
        Ok(())
    }

    fn mode(&mut self, mode: i32) -> Option<ComputeMode> {
        match mode {
            0 => Some(ComputeMode::Default),
            2 => Some(ComputeMode::Prohibited),
            // 1 was exclusive to one thread, which drivers take for 3 since long.
            1 | 3 => Some(ComputeMode::Exclusive),
            other => {
                self.note(Step::NvmlMode, &format_args!("mode {other}"));
                None
            }
        }
    }

    /// Processes with contexts of their own, and those that an MPS server has contexts for; without
    /// ourselves. What one list does not tell does not take the other's away.
    fn processes(&mut self, gpu: &Gpu<'_>) -> io::Result<Option<Vec<u32>>> {
        let own = std::process::id();
        let compute = self.one(Step::NvmlProcesses, || gpu.compute_processes())?;
        let mps = self.one(Step::NvmlProcesses, || gpu.mps_processes())?;
        if compute.is_none() && mps.is_none() {
            return Ok(None);
        }
        let mut all: Vec<u32> = compute.into_iter().chain(mps).flatten().filter(|pid| *pid != own).collect();
        all.sort_unstable();
        all.dedup();
        Ok(Some(all))
    }
}

fn memory(info: MemoryInfo) -> Memory {
    Memory { used: info.used, free: info.free, with_reserved: info.with_reserved }
}
