//! The child: touches CUDA and verbs for one GPU, says each step before it takes it, unwinds on
//! every failure, and ends.

use std::{io, path::Path};

use super::{
    method::check_hca,
    protocol::{GpuAnswer, Limits, Line, Plan, Step},
};
use crate::{
    ffi::{
        cuda::{Attribute, Context, Cuda, CudaError, Device},
        sys,
        verbs::Verbs,
    },
    hardware::PciAddress,
    report::{Code, Method},
};

/// Where the child's lines go.
pub struct Reporter<'w> {
    out: &'w mut dyn io::Write,
}

impl Reporter<'_> {
    /// Writes one line and flushes it: what comes next may never return.
    pub(super) fn say(&mut self, line: &Line) -> io::Result<()> {
        serde_json::to_writer(&mut *self.out, line)?;
        self.out.write_all(b"\n")?;
        self.out.flush()
    }

    pub(super) fn step(&mut self, step: Step) -> io::Result<()> {
        self.say(&Line::Step(step, None))
    }
}

/// Why a row ends: the parent is gone, or a step says no.
enum Halt {
    Io(io::Error),
    At(Step, Option<Code>, String),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn at(step: Step) -> impl Fn(CudaError) -> Halt {
    move |error| Halt::At(step, Some(error.into()), error.to_string())
}

/// Carries out a plan. An error means that nobody listens any more.
pub fn run(plan: &Plan, out: &mut dyn io::Write) -> io::Result<()> {
    let mut reporter = Reporter { out };
    reporter.say(&Line::Limits(limits()))?;
    match row(plan, &mut reporter) {
        Ok(()) => reporter.say(&Line::Done),
        Err(Halt::At(step, code, detail)) => reporter.say(&Line::Stopped(step, code, detail)),
        Err(Halt::Io(error)) => Err(error),
    }
}

fn row(plan: &Plan, r: &mut Reporter<'_>) -> Result<(), Halt> {
    r.step(Step::LoadCuda)?;
    let cuda = Cuda::load(&plan.libcuda).map_err(|e| Halt::At(Step::LoadCuda, None, e.to_string()))?;
    r.step(Step::Init)?;
    cuda.init().map_err(at(Step::Init))?;
    r.step(Step::Device)?;
    let device = find(&cuda, plan.gpu)?;
    r.step(Step::Attributes)?;
    // An attribute that an older driver does not know (INVALID_VALUE) is one that it has not.
    let has = |attribute| device.attribute(attribute).is_ok_and(|v| v != 0);
    let mut answer = GpuAnswer {
        cuda_version: cuda.version(),
        gdr: Some(has(Attribute::GpuDirectRdma)),
        dma_buf: Some(has(Attribute::DmaBuf) && cuda.can_export()),
        allocated: None,
    };
    r.say(&Line::Gpu(answer.clone()))?;
    r.step(Step::Context)?;
    let context = device.retain().map_err(at(Step::Context))?;
    let coherent = has(Attribute::Integrated) || has(Attribute::HostPageTables);
    with_memory(plan, &context, coherent, &mut answer, r)?;
    r.step(Step::Release)?;
    context.release().map_err(at(Step::Release))
}

/// The GPU of the plan among those that CUDA shows, by PCI address.
fn find(cuda: &Cuda, wanted: PciAddress) -> Result<Device<'_>, Halt> {
    let count = cuda.count().map_err(at(Step::Device))?;
    let mut seen = Vec::new();
    for ordinal in 0..count {
        let device = cuda.device(ordinal).map_err(at(Step::Device))?;
        let pci = device.pci().map_err(at(Step::Device))?;
        if pci.parse() == Ok(wanted) {
            return Ok(device);
        }
        seen.push(pci);
    }
    let detail = format!("CUDA shows {} GPUs ({}), and {wanted} is not among them", count, seen.join(", "));
    Err(Halt::At(Step::Device, None, detail))
}

fn with_memory(
    plan: &Plan,
    context: &Context<'_>,
    coherent: bool,
    answer: &mut GpuAnswer,
    r: &mut Reporter<'_>,
) -> Result<(), Halt> {
    r.step(Step::Alloc)?;
    let memory = context.alloc(plan.size).map_err(at(Step::Alloc))?;
    answer.allocated = Some((memory.address(), memory.size() as u64));
    r.say(&Line::Gpu(answer.clone()))?;
    r.step(Step::SyncMemops)?;
    memory.sync_memops().map_err(at(Step::SyncMemops))?;
    r.step(Step::DeviceMemory)?;
    let none_of_the_gpus =
        |what: &str| Halt::At(Step::DeviceMemory, None, format!("{what}; libcuda is {}", loaded_libcuda(plan)));
    if !memory.is_plain_device_memory().map_err(at(Step::DeviceMemory))? {
        return Err(none_of_the_gpus("CUDA says that the allocation is managed or host memory"));
    }
    // Where CPU and GPU share memory the kernel reads it by right.
    if !coherent && sys::kernel_can_read(memory.address())? {
        return Err(none_of_the_gpus("the kernel can read the allocation, as it can't read a GPU's own memory"));
    }
    r.step(Step::LoadVerbs)?;
    let verbs =
        Verbs::load(Path::new("libibverbs.so.1")).map_err(|e| Halt::At(Step::LoadVerbs, None, e.to_string()))?;
    for target in &plan.hcas {
        check_hca(plan, target, &verbs, &memory, answer, r)?;
    }
    r.step(Step::Free)?;
    memory.free().map_err(at(Step::Free))
}

/// Where the loader took libcuda from, by `proc_pid_maps(5)`.
fn loaded_libcuda(plan: &Plan) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]))
        .find(|path| path.rsplit('/').next().is_some_and(|name| name.starts_with("libcuda.so")))
        .map_or_else(|| plan.libcuda.display().to_string(), str::to_owned)
}

/// Locked-memory limit and capability, from getrlimit(2) and `CapEff` in proc_pid_status(5).
fn limits() -> Limits {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok()).unwrap_or(0);
    Limits {
        memlock: rustix::process::getrlimit(rustix::process::Resource::Memlock).current,
        ipc_lock: effective >> CAP_IPC_LOCK & 1 == 1,
    }
}

/// The methods of a plan that can say anything, in their order.
pub(super) fn methods(plan: &Plan) -> impl Iterator<Item = Method> + '_ {
    Method::ALL.into_iter().filter(|m| plan.methods.contains(m))
}
