//! The child: asks NVML who uses one GPU, touches CUDA and verbs for it, says each step before it
//! takes it, unwinds on every failure, and ends.

use std::{io, path::Path};

use super::{
    method::{Ready, check_hca},
    nvml,
    protocol::{GpuAnswer, Limits, Line, Plan, Step},
    sandbox,
};
use crate::{
    ffi::{
        cuda::{Attribute, Context, Cuda, CudaError, Device, Memory},
        sys,
        verbs::Verbs,
    },
    hardware::PciAddress,
    report::{Code, Method},
    usage::{Decision, Spared, judge},
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

/// Why a row ends: the parent is gone, the GPU is not to be touched, or a step says no.
enum Halt {
    Io(io::Error),
    Spared(Step, Spared, String),
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
    reporter.step(Step::Sandbox)?;
    if let Err(error) = sandbox::enter(plan.own_dev.as_ref()) {
        let code = error.raw_os_error().map(Code::errno);
        return reporter.say(&Line::Stopped(Step::Sandbox, code, error.to_string()));
    }
    let limits = limits();
    reporter.say(&Line::Limits(limits.clone()))?;
    match row(plan, limits, &mut reporter) {
        Ok(()) => reporter.say(&Line::Done),
        Err(Halt::Spared(step, why, evidence)) => reporter.say(&Line::Spared(step, why, evidence)),
        Err(Halt::At(step, code, detail)) => reporter.say(&Line::Stopped(step, code, detail)),
        Err(Halt::Io(error)) => Err(error),
    }
}

/// Whether bytes may be moved on the GPU; that it may not be touched at all ends the row.
fn may_move_bytes(plan: &Plan, r: &mut Reporter<'_>) -> Result<bool, Halt> {
    match judge(&nvml::ask(plan, r)?, &plan.terms) {
        Decision::Check { loopback } => Ok(loopback),
        Decision::Spare { why, step, evidence } => Err(Halt::Spared(step, why, evidence)),
    }
}

fn row(plan: &Plan, limits: Limits, r: &mut Reporter<'_>) -> Result<(), Halt> {
    let loopback = may_move_bytes(plan, r)?;
    r.step(Step::LoadCuda)?;
    let cuda = Cuda::load(&plan.libcuda).map_err(|e| Halt::At(Step::LoadCuda, None, e.to_string()))?;
    r.step(Step::Init)?;
    cuda.init().map_err(at(Step::Init))?;
    r.step(Step::Device)?;
    let device = find(&cuda, plan.gpu)?;
    r.step(Step::Attributes)?;
    let mut answer = GpuAnswer {
        cuda_version: cuda.version(),
        gdr: Some(has(device, Attribute::GpuDirectRdma)?),
        dma_buf: Some(has(device, Attribute::DmaBuf)? && cuda.can_export()),
        allocated: None,
    };
    let coherent = has(device, Attribute::Integrated)? || has(device, Attribute::HostPageTables)?;
    r.say(&Line::Gpu(answer.clone()))?;
    r.step(Step::Context)?;
    let context = device.retain().map_err(at(Step::Context))?;
    with_memory(plan, Found { context: &context, coherent, loopback, limits }, &mut answer, r)?;
    r.step(Step::Release)?;
    context.release().map_err(at(Step::Release))
}

/// Whether a GPU has an attribute. One that an older driver does not know (`INVALID_VALUE`) it has
/// not; any other error says nothing of the GPU.
fn has(device: Device<'_>, attribute: Attribute) -> Result<bool, Halt> {
    const INVALID_VALUE: u32 = 1;
    match device.attribute(attribute) {
        Ok(value) => Ok(value != 0),
        Err(error) if error.number == INVALID_VALUE => Ok(false),
        Err(error) => Err(at(Step::Attributes)(error)),
    }
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

/// A GPU that can be tried.
struct Found<'c> {
    context: &'c Context<'c>,
    /// CPU and GPU share memory.
    coherent: bool,
    /// Bytes may be moved.
    loopback: bool,
    limits: Limits,
}

fn with_memory(plan: &Plan, gpu: Found<'_>, answer: &mut GpuAnswer, r: &mut Reporter<'_>) -> Result<(), Halt> {
    let context = gpu.context;
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
    if !gpu.coherent && sys::kernel_can_read(memory.address())? {
        return Err(none_of_the_gpus("the kernel can read the allocation, as it can't read a GPU's own memory"));
    }
    r.step(Step::LoadVerbs)?;
    let verbs =
        Verbs::load(Path::new("libibverbs.so.1")).map_err(|e| Halt::At(Step::LoadVerbs, None, e.to_string()))?;
    let deep = if gpu.loopback { deep(plan, context, r)? } else { None };
    let ready = Ready { plan, verbs: &verbs, memory: &memory, deep: deep.as_ref(), gpu: answer, limits: gpu.limits };
    for target in &plan.hcas {
        check_hca(&ready, target, r)?;
    }
    r.step(Step::Free)?;
    if let Some(deep) = deep {
        deep.free().map_err(at(Step::Free))?;
    }
    memory.free().map_err(at(Step::Free))
}

/// What loopback transfers over. No memory to spare is no trouble: there is no loopback then.
fn deep<'c>(plan: &Plan, context: &'c Context<'c>, r: &mut Reporter<'_>) -> Result<Option<Memory<'c>>, Halt> {
    const OUT_OF_MEMORY: u32 = 2;
    let Some(size) = plan.deep else { return Ok(None) };
    r.step(Step::Alloc)?;
    match context.alloc(size) {
        Ok(memory) => {
            r.step(Step::SyncMemops)?;
            memory.sync_memops().map_err(at(Step::SyncMemops))?;
            Ok(Some(memory))
        }
        Err(error) if error.number == OUT_OF_MEMORY => Ok(None),
        Err(error) => Err(Halt::At(Step::Alloc, Some(error.into()), error.to_string())),
    }
}

/// Where the loader took libcuda from, by `proc_pid_maps(5)`.
fn loaded_libcuda(plan: &Plan) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]))
        .find(|path| path.rsplit('/').next().is_some_and(|name| name.starts_with("libcuda.so")))
        .map_or_else(|| plan.libcuda.display().to_string(), str::to_owned)
}

/// Locked-memory limit and capability, from getrlimit(2) and `CapEff` in `proc_pid_status(5)`.
fn limits() -> Limits {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok()).unwrap_or(0);
    Limits {
        memlock: rustix::process::getrlimit(rustix::process::Resource::Memlock).current,
        ipc_lock: effective >> CAP_IPC_LOCK & 1 == 1,
        in_pod: std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
        nodes_allowed: status.lines().find_map(|line| Some(line.strip_prefix("Mems_allowed_list:")?.trim().to_owned())),
    }
}

/// The methods of a plan that can say anything, in their order.
pub(super) fn methods(plan: &Plan) -> impl Iterator<Item = Method> + '_ {
    Method::ALL.into_iter().filter(|m| plan.methods.contains(m))
}
