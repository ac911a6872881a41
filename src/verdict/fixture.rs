//! A machine for tests: what `hgx-h100` has, every pair verified, to be changed at will.

use jiff::Timestamp;

use super::{Assessment, Input, assess, damping, take_in};
use crate::{
    config::Config,
    diagnosis::entry,
    hardware::{BareFunction, Inventory, Surroundings},
    probe::{
        GpuAnswer, HcaAnswer, Limits, Machine, Row, Rows, Step,
        protocol::{End, Stopped},
    },
    report::{Code, Finding, Method, MethodResult, NodeView, Outcome, Reason, Severity, State, Verdict},
    simulate::SimulatedMachine,
    store::Memory,
};

pub(crate) struct Scene {
    pub(crate) inventory: Inventory,
    pub(crate) surroundings: Surroundings,
    pub(crate) rows: Rows,
    pub(crate) memory: Memory,
    pub(crate) config: Config,
    pub(crate) node: Option<NodeView>,
    pub(crate) checked: bool,
    pub(crate) now: Timestamp,
}

impl Scene {
    /// Eight GPUs and eight HCAs, two and two on a switch; the ports were ACTIVE before.
    pub(crate) fn new() -> Self {
        let machine = SimulatedMachine::new("hgx-h100", "boot".to_owned()).unwrap();
        let inventory = machine.inventory();
        let mut memory = Memory::default();
        memory.seen_active.extend(machine.known_active());
        let surroundings = Surroundings::default();
        let mut scene = Self {
            inventory,
            surroundings,
            rows: Rows::new(),
            memory,
            config: Config::default(),
            node: None,
            checked: true,
            now: Timestamp::UNIX_EPOCH,
        };
        scene.verify_all();
        scene
    }

    /// A finished check that found nothing wrong.
    pub(crate) fn verify_all(&mut self) {
        let hcas: Vec<_> = self.inventory.hcas.iter().map(|h| h.name.clone()).collect();
        let row = Row {
            gpu: GpuAnswer {
                gdr: Some(true),
                dma_buf: Some(true),
                allocated: Some((0x7f00_0000_0000, 2 << 20)),
                ..GpuAnswer::default()
            },
            limits: Some(Limits { ipc_lock: true, ..Limits::default() }),
            hcas: hcas.into_iter().map(|name| (name, HcaAnswer::default())).collect(),
            ..Row::default()
        };
        self.rows = self.inventory.gpus.iter().map(|g| (g.pci, row.clone())).collect();
        self.set_all(Method::DmaBuf, &result(Outcome::Verified, None, None));
        self.set_all(Method::Peermem, &result(Outcome::Verified, None, None));
    }

    pub(crate) fn row(&mut self, gpu: usize) -> &mut Row {
        self.rows.get_mut(&self.inventory.gpus[gpu].pci).unwrap()
    }

    /// The result of one pair by one method.
    pub(crate) fn set(&mut self, gpu: usize, hca: usize, method: Method, result: &MethodResult) {
        let name = self.inventory.hcas[hca].name.clone();
        self.row(gpu).hcas.get_mut(&name).unwrap().methods.insert(method, result.clone());
    }

    /// The result of one pair by both.
    pub(crate) fn set_both(&mut self, gpu: usize, hca: usize, result: &MethodResult) {
        for method in Method::ALL {
            self.set(gpu, hca, method, result);
        }
    }

    /// The result of all pairs by one method.
    pub(crate) fn set_all(&mut self, method: Method, result: &MethodResult) {
        for gpu in 0..self.inventory.gpus.len() {
            (0..self.inventory.hcas.len()).for_each(|hca| self.set(gpu, hca, method, result));
        }
    }

    /// A GPU with which nothing can be registered.
    pub(crate) fn break_gpu(&mut self, gpu: usize) {
        (0..self.inventory.hcas.len()).for_each(|hca| self.set_both(gpu, hca, &refused(Step::RegMr, 12)));
    }

    /// A row that ended at a step before its HCAs, as its parent completes it.
    pub(crate) fn stop(&mut self, gpu: usize, step: Step, end: End, outcome: Outcome) {
        let code = end.code();
        (0..self.inventory.hcas.len())
            .for_each(|hca| self.set_both(gpu, hca, &result(outcome, Some(step), code.clone())));
        self.row(gpu).stops = vec![Stopped { step, hca: None, end, detail: String::new() }];
    }

    /// A GPU that somebody else has.
    pub(crate) fn busy(&mut self, gpu: usize) {
        let code = Code::cuda(46, Some("CUDA_ERROR_DEVICE_UNAVAILABLE".into()));
        self.stop(gpu, Step::Context, End::Refused(Some(code)), Outcome::Skipped);
    }

    /// A GPU whose child fell silent.
    pub(crate) fn silent(&mut self, gpu: usize) {
        self.stop(gpu, Step::Alloc, End::TimedOut, Outcome::Unknown);
    }

    pub(crate) fn port(&mut self, hca: usize, state: &str) {
        state.clone_into(&mut self.inventory.hcas[hca].ports[0].state);
    }

    /// Leaves the first GPUs and HCAs.
    pub(crate) fn truncate(&mut self, gpus: usize, hcas: usize) {
        self.inventory.gpus.truncate(gpus);
        self.inventory.hcas.truncate(hcas);
        self.verify_all();
    }

    /// As many devices as asked for, copies of those there are, each with a name of its own.
    pub(crate) fn grow(&mut self, gpus: usize, hcas: usize) {
        let (gpu, hca) = (self.inventory.gpus[0].clone(), self.inventory.hcas[0].clone());
        for n in u8::try_from(self.inventory.gpus.len()).unwrap()..u8::try_from(gpus).unwrap() {
            let pci = crate::hardware::PciAddress::new(1, n, 0, 0);
            self.inventory.gpus.push(crate::hardware::GpuFacts { pci, ..gpu.clone() });
        }
        for n in u8::try_from(self.inventory.hcas.len()).unwrap()..u8::try_from(hcas).unwrap() {
            let (name, pci) = (format!("mlx5_{n}"), Some(crate::hardware::PciAddress::new(2, n, 0, 0)));
            self.memory.seen_active.insert(name.clone());
            self.inventory.hcas.push(crate::hardware::HcaFacts { name, pci, ..hca.clone() });
        }
        self.verify_all();
    }

    /// The report of a check of it.
    pub(crate) fn report(&self) -> crate::report::Report {
        let stamp = super::Stamp { node: "n1", simulated: true, started_at: Timestamp::UNIX_EPOCH, duration_ms: 0 };
        self.assess().into_report(&self.inventory, &stamp)
    }

    pub(crate) fn assess(&self) -> Assessment {
        self.assess_with(&self.memory)
    }

    fn assess_with(&self, memory: &Memory) -> Assessment {
        assess(&Input {
            inventory: &self.inventory,
            surroundings: &self.surroundings,
            rows: &self.rows,
            memory,
            config: &self.config,
            node: self.node.as_ref(),
            checked: self.checked,
            now: self.now,
        })
    }

    /// Assesses and remembers, as the agent does at the end of a check.
    pub(crate) fn finish_check(&mut self) -> Assessment {
        self.publish(true).0
    }

    /// With what is published then, after a look or a check.
    pub(crate) fn publish(&mut self, full_check: bool) -> (Assessment, Verdict) {
        let mut memory = std::mem::take(&mut self.memory);
        let (assessment, full_check) =
            take_in(&mut memory, &self.inventory, full_check, self.now, |memory| self.assess_with(memory));
        let (verdict, findings) = (&assessment.verdict, &assessment.findings);
        let seen = damping::Seen { verdict, findings, full_check, now: self.now };
        let published = damping::step(&mut memory.damping, &self.config.policy, &seen);
        self.memory = memory;
        (assessment, published)
    }

    /// The state that is published after a check in that second.
    pub(crate) fn check_at(&mut self, second: i64) -> State {
        self.now = Timestamp::from_second(second).unwrap();
        self.publish(true).1.state
    }

    /// The state that is published after a look in that second.
    pub(crate) fn look_at(&mut self, second: i64) -> State {
        self.now = Timestamp::from_second(second).unwrap();
        self.publish(false).1.state
    }
}

pub(crate) fn result(outcome: Outcome, step: Option<Step>, code: Option<Code>) -> MethodResult {
    MethodResult { outcome, step: step.map(|s| s.to_string()), code, duration_us: 1, mr: None, loopback: None }
}

/// An error of no device, whose reason says who must act.
pub(crate) fn finding(reason: Reason) -> Finding {
    Finding {
        reason,
        severity: Severity::Error,
        who: entry(reason).who,
        gpus: Vec::new(),
        hcas: Vec::new(),
        method: None,
        message: String::new(),
        evidence: Vec::new(),
        remedy: String::new(),
    }
}

/// A registration that answered an errno.
pub(crate) fn refused(step: Step, errno: i32) -> MethodResult {
    result(Outcome::Failed, Some(step), Some(Code::errno(errno)))
}

/// A path that is not there.
pub(crate) fn unsupported(step: Step, errno: Option<i32>) -> MethodResult {
    result(Outcome::Unsupported, Some(step), errno.map(Code::errno))
}

/// A step of the agent's own sandbox.
pub(crate) fn unknown(step: Step, errno: Option<i32>) -> MethodResult {
    result(Outcome::Unknown, Some(step), errno.map(Code::errno))
}

/// An adapter's function without an RDMA device.
pub(crate) fn bare(pci: &str) -> BareFunction {
    BareFunction {
        pci: pci.parse().unwrap(),
        driver: Some("mlx5_core".into()),
        ids: Some((0x15b3, 0x1021)),
        numa: Some(0),
        vf_of: None,
        path: crate::hardware::PciPath::default(),
    }
}
