//! Findings of one kind are one finding, with all its devices and evidence.

use std::collections::BTreeMap;

use super::{Facts, entry};
use crate::{
    hardware::PciAddress,
    probe::{Row, Step},
    report::{Finding, Method, Reason, Severity},
};

/// Findings of one kind are gathered into one, with all their devices.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) by_reason: BTreeMap<Reason, Raised>,
}

#[derive(Default)]
pub(super) struct Raised {
    pub(super) severity: Option<Severity>,
    pub(super) every_gpu: bool,
    pub(super) gpus: Vec<PciAddress>,
    pub(super) hcas: Vec<String>,
    pub(super) methods: Vec<Method>,
    pub(super) evidence: Vec<String>,
}

impl Gathered {
    /// Raises a reason; of several severities the worst holds.
    pub(super) fn raise(
        &mut self,
        reason: Reason,
        severity: Severity,
        gpu: Option<PciAddress>,
        hca: Option<&str>,
        evidence: impl Into<String>,
    ) -> &mut Raised {
        let raised = self.by_reason.entry(reason).or_default();
        raised.severity = Some(raised.severity.map_or(severity, |s| s.min(severity)));
        push_new(&mut raised.gpus, gpu);
        push_new(&mut raised.hcas, hca.map(str::to_owned));
        push_new(&mut raised.evidence, Some(evidence.into()).filter(|e| !e.is_empty()));
        raised
    }

    /// All that was raised, as findings.
    pub(super) fn into_findings(mut self, facts: &Facts<'_>) -> Vec<Finding> {
        for of_all in self.by_reason.values_mut().filter(|raised| is_the_nodes(raised, facts)) {
            of_all.gpus.clear();
            of_all.every_gpu = true;
        }
        self.by_reason.into_iter().map(|(reason, raised)| finding(reason, raised, facts)).collect()
    }
}

pub(super) fn push_new<T: PartialEq>(list: &mut Vec<T>, item: Option<T>) {
    if let Some(item) = item.filter(|i| !list.contains(i)) {
        list.push(item);
    }
}

/// What every child says of `cuInit` is no GPU's own.
fn is_the_nodes(raised: &Raised, facts: &Facts<'_>) -> bool {
    let at_init = |row: &Row| row.stops.iter().any(|stop| stop.step == Step::Init);
    facts.rows.len() > 1
        && raised.gpus.len() == facts.rows.len()
        && facts.rows.values().all(at_init)
        && raised.hcas.is_empty()
}

fn finding(reason: Reason, raised: Raised, facts: &Facts<'_>) -> Finding {
    let row = entry(reason);
    let severity = raised.severity.unwrap_or(Severity::Info);
    let devices = devices(&raised, facts);
    let message = if devices.is_empty() { row.summary.to_owned() } else { format!("{devices}: {}", row.summary) };
    Finding {
        reason,
        severity,
        who: row.who,
        gpus: raised.gpus,
        hcas: raised.hcas,
        // One that concerns both methods names none.
        method: <[Method; 1]>::try_from(raised.methods).ok().map(|[only]| only),
        message,
        evidence: raised.evidence,
        remedy: row.remedy.to_owned(),
    }
}

/// `mlx5_4 (0000:98:00.0)`; many are counted.
fn devices(raised: &Raised, facts: &Facts<'_>) -> String {
    let hcas = raised.hcas.iter().map(|name| {
        let pci = facts.hcas.iter().find(|h| h.name == *name).and_then(|h| h.pci);
        pci.map_or_else(|| name.clone(), |pci| format!("{name} ({pci})"))
    });
    let several = |all: Vec<String>, what: &str| match all.len() {
        0..=3 => all.join(", "),
        n => format!("{n} {what}"),
    };
    let hcas = several(hcas.collect(), "HCAs");
    if raised.every_gpu {
        return "every GPU".to_owned();
    }
    let gpus = several(raised.gpus.iter().map(|g| format!("GPU {g}")).collect(), "GPUs");
    [hcas, gpus].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(", ")
}
