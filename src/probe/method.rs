//! One HCA of a row: look, open, PD, then each method with its verification and its negative
//! control. Whatever happens here leaves the other HCAs' outcomes as they are.

use std::{
    fs::OpenOptions,
    io,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use super::{
    child::{Reporter, methods},
    loopback,
    outcome::{is_unsupported, of_dmabuf, of_export, of_peermem},
    protocol::{GpuAnswer, Limits, Line, Plan, Step, Target},
};
use crate::{
    ffi::{
        cuda::Memory,
        sys::Reservation,
        verbs::{Access, Device, Errno, Mr, MrFacts, Pd, Verbs},
    },
    report::{Code, Loopback, Method, MethodResult, Mr as ReportedMr, Outcome},
};

/// What a row has ready for each of its HCAs.
pub(super) struct Ready<'a> {
    pub(super) plan: &'a Plan,
    pub(super) verbs: &'a Verbs,
    /// What is registered.
    pub(super) memory: &'a Memory<'a>,
    /// What loopback transfers over, where it is wanted.
    pub(super) deep: Option<&'a Memory<'a>>,
    pub(super) gpu: &'a GpuAnswer,
    pub(super) limits: Limits,
}

/// Runs all methods of one HCA and says what came of each, as soon as it is known: a later crash
/// must not take it back.
pub(super) fn check_hca(ready: &Ready<'_>, target: &Target, r: &mut Reporter<'_>) -> io::Result<()> {
    let mut hca = HcaCheck { ready, target, memory: ready.memory, gpu: ready.gpu, r, verdicts: Vec::new() };
    match hca.open(ready.verbs)? {
        Err((step, code)) => hca.all_unknown(step, code.as_ref()),
        Ok(device) => hca.with_device(device),
    }
}

/// A step that said no, with its code.
type Refusal = (Step, Option<Code>);

struct HcaCheck<'a, 'w> {
    ready: &'a Ready<'a>,
    target: &'a Target,
    memory: &'a Memory<'a>,
    gpu: &'a GpuAnswer,
    r: &'a mut Reporter<'w>,
    verdicts: Vec<(Method, MethodResult)>,
}

impl HcaCheck<'_, '_> {
    fn conclude_method(&mut self, method: Method, result: MethodResult) -> io::Result<()> {
        self.r.say(&Line::Method(self.target.name.clone(), method, result.clone()))?;
        self.verdicts.push((method, result));
        Ok(())
    }

    fn all_unknown(&mut self, step: Step, code: Option<&Code>) -> io::Result<()> {
        for method in methods(self.ready.plan) {
            self.conclude_method(method, result(Outcome::Unknown, Some(step), code.cloned(), Duration::ZERO))?;
        }
        Ok(())
    }

    fn step(&mut self, step: Step) -> io::Result<()> {
        self.r.say(&Line::Step(step, Some(self.target.name.clone())))
    }

    /// Looks before it leaps: libibverbs answers ENOENT for EACCES, waits 5 s for a node that is
    /// not there, or leaves the device out of its list.
    fn open<'v>(&mut self, verbs: &'v Verbs) -> io::Result<Result<Device<'v>, Refusal>> {
        self.step(Step::Node)?;
        let Some(node) = self.target.node.as_ref().filter(|n| n.exists()) else {
            return Ok(Err((Step::Node, Some(Code::errno(libc::ENOENT)))));
        };
        self.step(Step::OpenNode)?;
        if let Err(error) = OpenOptions::new().read(true).write(true).open(node) {
            return Ok(Err((Step::OpenNode, error.raw_os_error().map(Code::errno))));
        }
        self.step(Step::List)?;
        let list = match verbs.list() {
            Ok(list) => list,
            Err(errno) => return Ok(Err((Step::List, Some(errno.into())))),
        };
        self.step(Step::Open)?;
        Ok(match list.open(&self.target.name) {
            Ok(Some(device)) => Ok(device),
            Ok(None) => Err((Step::List, None)),
            Err(errno) => Err((Step::Open, Some(errno.into()))),
        })
    }

    fn with_device(&mut self, device: Device<'_>) -> io::Result<()> {
        self.step(Step::Pd)?;
        match device.alloc_pd() {
            Err(errno) => self.all_unknown(Step::Pd, Some(&errno.into()))?,
            Ok(pd) => {
                self.with_pd(&pd)?;
                self.step(Step::DeallocPd)?;
                self.cleaned_up(Step::DeallocPd, pd.dealloc())?;
            }
        }
        self.step(Step::Close)?;
        let closed = device.close();
        self.cleaned_up(Step::Close, closed)
    }

    fn with_pd(&mut self, pd: &Pd<'_>) -> io::Result<()> {
        self.step(Step::HostMr)?;
        let page = vec![0_u8; 4096];
        // Charged to the locked-memory limit; where that forbids it there is no second key.
        let witness = pd.register(page.as_ptr().expose_provenance() as u64, page.len(), Access::ReadWrite).ok();
        for method in methods(self.ready.plan) {
            let verdict = match method {
                Method::DmaBuf => self.dma_buf(pd, witness.as_ref())?,
                Method::Peermem => self.peermem(pd, witness.as_ref())?,
            };
            self.conclude_method(method, verdict)?;
        }
        let Some(witness) = witness else { return Ok(()) };
        self.step(Step::Dereg)?;
        self.cleaned_up(Step::Dereg, witness.deregister())
    }

    /// A clean-up that fails leaves something behind, so nothing of this HCA counts as verified.
    fn cleaned_up(&mut self, step: Step, done: Result<(), Errno>) -> io::Result<()> {
        let Err(errno) = done else { return Ok(()) };
        for (method, verdict) in &mut self.verdicts {
            if verdict.outcome == Outcome::Verified {
                let took = Duration::from_micros(verdict.duration_us);
                *verdict = result(Outcome::Unknown, Some(step), Some(errno.into()), took);
                self.r.say(&Line::Method(self.target.name.clone(), *method, verdict.clone()))?;
            }
        }
        Ok(())
    }

    /// Exports, registers, verifies, and tries a range past the buffer's end, which must be refused.
    fn dma_buf(&mut self, pd: &Pd<'_>, witness: Option<&Mr<'_>>) -> io::Result<MethodResult> {
        let start = Instant::now();
        if !self.ready.verbs.has_dmabuf() {
            return Ok(result(Outcome::Unsupported, Some(Step::LoadVerbs), None, start.elapsed()));
        }
        if self.gpu.dma_buf != Some(true) {
            let refused = self.has_no_dmabuf_path(pd)?;
            let step = if refused.is_some() { Step::RegDmabuf } else { Step::Export };
            return Ok(result(Outcome::Unsupported, Some(step), refused.map(Into::into), start.elapsed()));
        }
        self.step(Step::Export)?;
        let fd = match self.memory.export() {
            Ok(fd) => fd,
            Err(error) => {
                return Ok(result(of_export(error.number), Some(Step::Export), Some(error.into()), start.elapsed()));
            }
        };
        self.step(Step::RegDmabuf)?;
        let address = self.memory.address();
        let size = self.memory.size();
        let mr = self.register(|access| pd.register_dmabuf(Some(fd.as_fd()), 0, size, address, access));
        let mr = match mr {
            Ok(mr) => mr,
            Err(errno) => {
                return Ok(result(of_dmabuf(errno), Some(Step::RegDmabuf), Some(errno.into()), start.elapsed()));
            }
        };
        // libibverbs sets `addr` to the offset, which is 0 here.
        let facts = self.verify(&mr, witness, None)?;
        self.step(Step::Control)?;
        let control = pd.register_dmabuf(Some(fd.as_fd()), 0, size + (1 << 20), address, Access::Read);
        let refused = matches!(control, Err(Errno(libc::EINVAL)));
        let loopback = self.loopback_over_dmabuf(pd)?;
        self.conclude(Seen { facts, control, refused, loopback }, mr, start)
    }

    /// Asks with descriptor -1, where the GPU has nothing to register: a path answers EBADF, and what lacks one
    /// says so before it looks at the descriptor (`ib_uverbs_reg_dmabuf_mr`, and the providers).
    fn has_no_dmabuf_path(&mut self, pd: &Pd<'_>) -> io::Result<Option<Errno>> {
        self.step(Step::RegDmabuf)?;
        let answer = pd.register_dmabuf(None, 0, 0, 0, Access::Read);
        Ok(answer.err().filter(|errno| is_unsupported(*errno)))
    }

    /// Registers the device pointer, verifies, and tries a reservation that nobody may touch, which
    /// must be refused.
    fn peermem(&mut self, pd: &Pd<'_>, witness: Option<&Mr<'_>>) -> io::Result<MethodResult> {
        let start = Instant::now();
        self.step(Step::RegMr)?;
        if self.gpu.gdr != Some(true) {
            return Ok(result(Outcome::Unsupported, Some(Step::Attributes), None, start.elapsed()));
        }
        let address = self.memory.address();
        let size = self.memory.size();
        let mr = match self.register(|access| pd.register(address, size, access)) {
            Ok(mr) => mr,
            Err(errno) => {
                let outcome = of_peermem(errno, &self.ready.limits, size as u64);
                return Ok(result(outcome, Some(Step::RegMr), Some(errno.into()), start.elapsed()));
            }
        };
        let facts = self.verify(&mr, witness, Some(address))?;
        self.step(Step::Control)?;
        let reservation = Reservation::new(size)?;
        let control = pd.register(reservation.address(), size, Access::Read);
        let refused = matches!(control, Err(Errno(libc::EFAULT)));
        let loopback = match self.ready.deep {
            None => self.no_loopback(),
            Some(deep) => Some(self.loopback(pd, deep, &|offset, length| {
                pd.register(deep.address() + offset, length, Access::ReadWrite)
            })?),
        };
        self.conclude(Seen { facts, control, refused, loopback }, mr, start)
    }

    fn loopback_over_dmabuf(&mut self, pd: &Pd<'_>) -> io::Result<Option<Loopback>> {
        let Some(deep) = self.ready.deep else { return Ok(self.no_loopback()) };
        self.step(Step::Export)?;
        let fd = match deep.export() {
            Ok(fd) => fd,
            Err(error) => {
                return Ok(Some(loopback::bare(Outcome::Unknown, Some(error.into()))));
            }
        };
        let register = |offset, length| {
            pd.register_dmabuf(Some(fd.as_fd()), offset, length, deep.address() + offset, Access::ReadWrite)
        };
        self.loopback(pd, deep, &register).map(Some)
    }

    /// Not wanted, or the GPU has no memory to spare for it.
    fn no_loopback(&self) -> Option<Loopback> {
        self.ready.plan.deep.map(|_| loopback::bare(Outcome::Skipped, None))
    }

    fn loopback<'p>(
        &mut self,
        pd: &'p Pd<'p>,
        deep: &Memory<'_>,
        register: loopback::Register<'p, '_>,
    ) -> io::Result<Loopback> {
        loopback::run(pd, self.target.way, &self.target.name, deep, register, self.r)
    }

    /// EFA without RDMA write refuses remote writes; reads are then all it can do.
    fn register<'p>(&self, register: impl Fn(Access) -> Result<Mr<'p>, Errno>) -> Result<Mr<'p>, Errno> {
        match register(Access::ReadWrite) {
            Err(Errno(libc::EINVAL | libc::EOPNOTSUPP)) if self.target.efa => register(Access::Read),
            other => other,
        }
    }

    /// Checks what an MR says of itself: keys that differ from those of the witness, a second live MR
    /// over a host page, and the length, and with peermem the address, as passed (libibverbs copies
    /// both: a sanity check, no proof).
    fn verify(
        &mut self,
        mr: &Mr<'_>,
        witness: Option<&Mr<'_>>,
        address: Option<u64>,
    ) -> io::Result<Result<MrFacts, MrFacts>> {
        self.step(Step::Verify)?;
        let facts = mr.facts();
        let distinct = witness
            .map(Mr::facts)
            .is_none_or(|other| facts.lkey != other.lkey && (facts.rkey != other.rkey || facts.rkey == 0));
        let as_passed = facts.length == self.memory.size() as u64 && address.is_none_or(|a| a == facts.addr);
        Ok(if distinct && as_passed { Ok(facts) } else { Err(facts) })
    }

    /// Deregisters, before the memory is freed, and draws the conclusion.
    fn conclude(&mut self, seen: Seen<'_>, mr: Mr<'_>, start: Instant) -> io::Result<MethodResult> {
        self.step(Step::Dereg)?;
        let control_code = seen.control.as_ref().err().map(|e| (*e).into());
        drop(seen.control);
        let deregistered = mr.deregister();
        let failed = seen.loopback.as_ref().filter(|l| l.outcome == Outcome::Failed);
        let (outcome, step, code) = match (&seen.facts, deregistered, failed) {
            (_, Err(errno), _) => (Outcome::Unknown, Some(Step::Dereg), Some(errno.into())),
            (Err(_), ..) => (Outcome::Unknown, Some(Step::Verify), None),
            _ if !seen.refused => (Outcome::Unknown, Some(Step::Control), control_code),
            (.., Some(loopback)) => {
                let step = if loopback.write == Outcome::Failed { Step::Write } else { Step::Read };
                (Outcome::Failed, Some(step), loopback.code.clone())
            }
            _ => (Outcome::Verified, None, None),
        };
        let mut verdict = result(outcome, step, code, start.elapsed());
        let (Ok(facts) | Err(facts)) = seen.facts;
        verdict.mr = Some(ReportedMr {
            addr: format!("{:#x}", facts.addr),
            length: facts.length,
            lkey: format!("{:#x}", facts.lkey),
            rkey: format!("{:#x}", facts.rkey),
        });
        verdict.loopback = seen.loopback;
        Ok(verdict)
    }
}

/// What was seen of an MR before it is deregistered.
struct Seen<'p> {
    /// What it says of itself: right, or wrong.
    facts: Result<MrFacts, MrFacts>,
    /// What the negative control answered, and whether that is the refusal it must be.
    control: Result<Mr<'p>, Errno>,
    refused: bool,
    loopback: Option<Loopback>,
}

fn result(outcome: Outcome, step: Option<Step>, code: Option<Code>, elapsed: Duration) -> MethodResult {
    MethodResult {
        outcome,
        step: step.map(|s| s.to_string()),
        code,
        duration_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
        mr: None,
        loopback: None,
    }
}
