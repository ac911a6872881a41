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
    protocol::{GpuAnswer, Line, Plan, Step, Target},
};
use crate::{
    ffi::{
        cuda::Memory,
        sys::Reservation,
        verbs::{Access, Device, Errno, Mr, MrFacts, Pd, Verbs},
    },
    report::{Code, Method, MethodResult, Mr as ReportedMr, Outcome},
};

/// Runs all methods of one HCA and says what came of each.
pub(super) fn check_hca(
    plan: &Plan,
    target: &Target,
    verbs: &Verbs,
    memory: &Memory<'_>,
    gpu: &GpuAnswer,
    r: &mut Reporter<'_>,
) -> io::Result<()> {
    let mut hca = HcaCheck { target, memory, gpu, r, verdicts: Vec::new() };
    let opened = hca.open(verbs)?;
    match opened {
        Err((step, code)) => {
            for method in methods(plan) {
                let result = result(Outcome::Unknown, Some(step), code.clone(), Duration::ZERO);
                hca.verdicts.push((method, result));
            }
        }
        Ok(device) => hca.with_device(plan, device)?,
    }
    let HcaCheck { verdicts, r, .. } = hca;
    for (method, result) in verdicts {
        r.say(&Line::Method(target.name.clone(), method, result))?;
    }
    Ok(())
}

/// A step that said no, with its code.
type Refusal = (Step, Option<Code>);

struct HcaCheck<'a, 'w> {
    target: &'a Target,
    memory: &'a Memory<'a>,
    gpu: &'a GpuAnswer,
    r: &'a mut Reporter<'w>,
    verdicts: Vec<(Method, MethodResult)>,
}

impl HcaCheck<'_, '_> {
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
        self.step(Step::Open)?;
        Ok(match verbs.open(&self.target.name) {
            Ok(Some(device)) => Ok(device),
            Ok(None) => Err((Step::List, None)),
            Err(errno) => Err((Step::Open, Some(errno.into()))),
        })
    }

    fn with_device(&mut self, plan: &Plan, device: Device<'_>) -> io::Result<()> {
        self.step(Step::Pd)?;
        match device.alloc_pd() {
            Err(errno) => {
                for method in methods(plan) {
                    self.verdicts
                        .push((method, result(Outcome::Unknown, Some(Step::Pd), Some(errno.into()), Duration::ZERO)));
                }
            }
            Ok(pd) => {
                for method in methods(plan) {
                    let verdict = match method {
                        Method::DmaBuf => self.dma_buf(&pd)?,
                        Method::Peermem => self.peermem(&pd)?,
                    };
                    self.verdicts.push((method, verdict));
                }
                self.step(Step::Close)?;
                self.cleaned_up(pd.dealloc());
            }
        }
        let closed = device.close();
        self.cleaned_up(closed);
        Ok(())
    }

    /// A clean-up that fails leaves something behind, so nothing of this HCA counts as verified.
    fn cleaned_up(&mut self, result_of_close: Result<(), Errno>) {
        if let Err(errno) = result_of_close {
            for (_, verdict) in self.verdicts.iter_mut().filter(|(_, v)| v.outcome == Outcome::Verified) {
                *verdict = result(
                    Outcome::Unknown,
                    Some(Step::Close),
                    Some(errno.into()),
                    Duration::from_micros(verdict.duration_us),
                );
            }
        }
    }

    /// Asks with descriptor -1 whether there is such a path, exports, registers, verifies, and
    /// tries a range past the buffer's end, which must be refused.
    fn dma_buf(&mut self, pd: &Pd<'_>) -> io::Result<MethodResult> {
        let start = Instant::now();
        self.step(Step::RegDmabuf)?;
        if let Err(errno @ Errno(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT)) =
            pd.register_dmabuf(None, 0, 0, Access::Read)
        {
            return Ok(result(Outcome::Unsupported, Some(Step::RegDmabuf), Some(errno.into()), start.elapsed()));
        }
        self.step(Step::Export)?;
        if self.gpu.dma_buf != Some(true) {
            return Ok(result(Outcome::Unsupported, Some(Step::Export), None, start.elapsed()));
        }
        let fd = match self.memory.export() {
            Ok(fd) => fd,
            Err(error) => {
                let outcome = if error.number == 801 { Outcome::Unsupported } else { Outcome::Failed };
                return Ok(result(outcome, Some(Step::Export), Some(error.into()), start.elapsed()));
            }
        };
        self.step(Step::RegDmabuf)?;
        let address = self.memory.address();
        let size = self.memory.size();
        let mr = self.register(|access| pd.register_dmabuf(Some(fd.as_fd()), size, address, access));
        let mr = match mr {
            Ok(mr) => mr,
            Err(errno) => {
                return Ok(result(Outcome::Failed, Some(Step::RegDmabuf), Some(errno.into()), start.elapsed()));
            }
        };
        // libibverbs sets `addr` to the offset, which is 0 here.
        let facts = self.verify(pd, &mr, None)?;
        self.step(Step::Control)?;
        let control = pd.register_dmabuf(Some(fd.as_fd()), size + (1 << 20), address, Access::Read);
        let refused = matches!(control, Err(Errno(libc::EINVAL)));
        self.conclude(facts, control, refused, mr, start)
    }

    /// Registers the device pointer, verifies, and tries a reservation that nobody may touch, which
    /// must be refused.
    fn peermem(&mut self, pd: &Pd<'_>) -> io::Result<MethodResult> {
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
                // EPERM is can_do_mlock() in the kernel's umem.c: a limit of this process.
                let outcome = if errno.0 == libc::EPERM { Outcome::Unknown } else { Outcome::Failed };
                return Ok(result(outcome, Some(Step::RegMr), Some(errno.into()), start.elapsed()));
            }
        };
        let facts = self.verify(pd, &mr, Some(address))?;
        self.step(Step::Control)?;
        let reservation = Reservation::new(size)?;
        let control = pd.register(reservation.address(), size, Access::Read);
        let refused = matches!(control, Err(Errno(libc::EFAULT)));
        self.conclude(facts, control, refused, mr, start)
    }

    /// EFA without RDMA write refuses remote writes; reads are then all it can do.
    fn register<'p>(&self, register: impl Fn(Access) -> Result<Mr<'p>, Errno>) -> Result<Mr<'p>, Errno> {
        match register(Access::ReadWrite) {
            Err(Errno(libc::EINVAL | libc::EOPNOTSUPP)) if self.target.efa => register(Access::Read),
            other => other,
        }
    }

    /// Checks what an MR says of itself: keys that differ from those of a second live MR over a
    /// host page, and the length, and with peermem the address, as passed (libibverbs copies both:
    /// a sanity check, no proof).
    fn verify(&mut self, pd: &Pd<'_>, mr: &Mr<'_>, address: Option<u64>) -> io::Result<Result<MrFacts, MrFacts>> {
        self.step(Step::Verify)?;
        let facts = mr.facts();
        let page = vec![0_u8; 4096];
        // Charged to the locked-memory limit; where that forbids it there is no second key.
        let second = pd.register(page.as_ptr().expose_provenance() as u64, page.len(), Access::ReadWrite).ok();
        let distinct = second.as_ref().is_none_or(|s| {
            let other = s.facts();
            facts.lkey != other.lkey && (facts.rkey != other.rkey || facts.rkey == 0)
        });
        let as_passed = facts.length == self.memory.size() as u64 && address.is_none_or(|a| a == facts.addr);
        Ok(if distinct && as_passed { Ok(facts) } else { Err(facts) })
    }

    /// Deregisters, before the memory is freed, and draws the conclusion.
    fn conclude(
        &mut self,
        facts: Result<MrFacts, MrFacts>,
        control: Result<Mr<'_>, Errno>,
        refused: bool,
        mr: Mr<'_>,
        start: Instant,
    ) -> io::Result<MethodResult> {
        self.step(Step::Dereg)?;
        let control_code = control.as_ref().err().map(|e| (*e).into());
        drop(control);
        let deregistered = mr.deregister();
        let elapsed = start.elapsed();
        let mut verdict = match (facts, deregistered) {
            (_, Err(errno)) => result(Outcome::Unknown, Some(Step::Dereg), Some(errno.into()), elapsed),
            (Err(_), Ok(())) => result(Outcome::Unknown, Some(Step::Verify), None, elapsed),
            (Ok(_), Ok(())) if !refused => result(Outcome::Unknown, Some(Step::Control), control_code, elapsed),
            (Ok(_), Ok(())) => result(Outcome::Verified, None, None, elapsed),
        };
        let (Ok(facts) | Err(facts)) = facts;
        verdict.mr = Some(ReportedMr {
            addr: format!("{:#x}", facts.addr),
            length: facts.length,
            lkey: format!("{:#x}", facts.lkey),
            rkey: format!("{:#x}", facts.rkey),
        });
        Ok(verdict)
    }
}

fn result(outcome: Outcome, step: Option<Step>, code: Option<Code>, elapsed: Duration) -> MethodResult {
    MethodResult {
        outcome,
        step: step.map(|s| s.to_string()),
        code,
        duration_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
        mr: None,
    }
}
