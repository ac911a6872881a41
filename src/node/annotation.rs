//! The annotation `PREFIX/report`: compact JSON that the fleet's view reads, and that siblings are compared
//! by. Pure.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::report::{Distance, GpuRole, KernelModule, Method, Outcome, Pair, Reason, Report, State, TopologyKind};

/// Of all that the agent writes in it; every node's watchers carry it.
const LIMIT: usize = 4096;
/// Pairs that are named at most.
const PAIRS: usize = 32;

/// What the annotation says. Fields that are not known are left out; readers take what they know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Annotation {
    /// When the last check began; alone no reason to write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) checked_at: Option<Timestamp>,
    /// Version of the agent.
    pub(super) version: String,
    /// The node's boot.
    pub(super) boot_id: String,
    pub(super) state: Option<State>,
    pub(super) reason: Option<Reason>,
    /// GPUs that count, and those that an HCA serves.
    pub(super) gpus: usize,
    pub(super) served: usize,
    /// Rails, and those of them that are good with a GPU.
    pub(super) rails: usize,
    pub(super) rails_good: usize,
    /// `NVIDIA H100 80GB HBM3 x8`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) models: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) driver: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) module: Option<KernelModule>,
    /// What works on every counted pair that is not open.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) methods: Vec<String>,
    /// `400 Gb/s x8`, of the rails' ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) rates: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) transport: Option<String>,
    /// The worst GPU's nearest; not in a virtual machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) distance: Option<Distance>,
    /// Bad pairs, `GPU/HCA`, and how many more there are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) bad: Vec<String>,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) bad_not_shown: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Annotation {
    pub(super) fn of(report: &Report) -> Self {
        let rails = || report.hcas.iter().filter(|hca| hca.rail);
        let good = |hca: &str| report.pairs.iter().any(|pair| pair.hca == hca && pair.good == Some(true));
        let counted = report.gpus.iter().filter(|gpu| gpu.role.counts());
        let bad = report.pairs.iter().filter(|pair| pair.good == Some(false));
        Self {
            checked_at: Some(report.started_at),
            version: report.version.clone(),
            boot_id: report.boot_id.clone(),
            state: Some(report.verdict.state),
            reason: Some(report.verdict.reason),
            gpus: counted.clone().count(),
            served: report.gpus.iter().filter(|gpu| gpu.served == Some(true)).count(),
            rails: rails().count(),
            rails_good: rails().filter(|hca| good(&hca.name)).count(),
            models: counts(report.gpus.iter().filter_map(|gpu| gpu.model.clone())),
            driver: report.gpus.iter().find_map(|gpu| gpu.driver.clone()),
            module: report.gpus.iter().find_map(|gpu| gpu.module),
            methods: Method::ALL.into_iter().filter(|m| works(report, *m)).map(|m| m.to_string()).collect(),
            rates: counts(rails().filter_map(|hca| {
                let fastest = hca.ports.iter().filter_map(|port| port.rate_gbps).max()?;
                Some(format!("{} Gb/s", f64::from(fastest)))
            })),
            transport: transport(report),
            distance: distance(report),
            bad: bad.map(|pair| format!("{}/{}", pair.gpu, pair.hca)).collect(),
            bad_not_shown: 0,
        }
    }

    /// As it is written; pairs are left out from the end, and counted, until it fits.
    pub(super) fn text(&self) -> String {
        let shown = |n: usize| {
            let bad = self.bad[..n].to_vec();
            let short = Self { bad, bad_not_shown: self.bad.len() - n, ..self.clone() };
            serde_json::to_string(&short).unwrap_or_default()
        };
        let fits = (0..=self.bad.len().min(PAIRS)).rev().map(shown).find(|text| text.len() <= LIMIT);
        fits.unwrap_or_else(|| {
            let least = Self { state: self.state, reason: self.reason, checked_at: self.checked_at, ..Self::default() };
            serde_json::to_string(&least).unwrap_or_default()
        })
    }

    /// Without what alone is no reason to write.
    pub(super) fn timeless(self) -> Self {
        Self { checked_at: None, ..self }
    }
}

/// `a x2, b`, in the order of first sight.
fn counts(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut counted: Vec<(String, usize)> = Vec::new();
    for one in all {
        match counted.iter_mut().find(|(known, _)| *known == one) {
            Some((_, n)) => *n += 1,
            None => counted.push((one, 1)),
        }
    }
    counted.into_iter().map(|(one, n)| if n > 1 { format!("{one} x{n}") } else { one }).collect()
}

/// Whether every counted pair that is not open has a method; an outcome that is carried has none of its own.
pub(super) fn works(report: &Report, method: Method) -> bool {
    let mut closed = report.pairs.iter().filter(|pair| pair.counted && pair.good.is_some()).peekable();
    let verified = |pair: &Pair| pair.by(method).outcome == Outcome::Verified || pair.checked_at.is_some();
    closed.peek().is_some() && closed.all(verified)
}

/// Of the rails; `mixed` where they differ.
pub(super) fn transport(report: &Report) -> Option<String> {
    let mut all: Vec<_> = report.hcas.iter().filter(|hca| hca.rail).map(|hca| hca.transport).collect();
    all.dedup();
    match all.as_slice() {
        [] => None,
        [one] => Some(one.to_string()),
        _ => Some("mixed".to_owned()),
    }
}

/// The worst GPU's nearest HCA; what a virtual machine shows is no distance.
pub(super) fn distance(report: &Report) -> Option<Distance> {
    if report.topology == TopologyKind::Virtual {
        return None;
    }
    let counted = report.gpus.iter().filter(|gpu| gpu.role == GpuRole::Eligible || gpu.role == GpuRole::Lost);
    let nearest = counted.filter_map(|gpu| {
        let own = report.pairs.iter().filter(|pair| pair.gpu == gpu.pci && gpu.nearest.contains(&pair.hca));
        own.map(|pair| pair.distance).min()
    });
    nearest.max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        probe::Step,
        verdict::fixture::{Scene, refused, unsupported},
    };

    #[test]
    fn says_what_siblings_are_compared_by() {
        let annotation = Annotation::of(&Scene::new().report());
        assert_eq!((annotation.gpus, annotation.served, annotation.rails, annotation.rails_good), (8, 8, 8, 8));
        assert_eq!(annotation.methods, ["dma-buf", "peermem"]);
        assert_eq!(annotation.rates, ["400 Gb/s x8"]);
        assert_eq!(annotation.module, Some(KernelModule::Open));
        assert!(annotation.text().contains(r#""module":"open""#), "{}", annotation.text());
        assert_eq!(annotation.models.len(), 1);
        assert!(annotation.models[0].ends_with(" x8"), "{:?}", annotation.models);
        assert_eq!((annotation.transport.as_deref(), annotation.distance), (Some("infiniband"), Some(Distance::Pix)));
        assert!(annotation.text().len() <= 1024, "{}", annotation.text());
        assert_eq!(serde_json::from_str::<Annotation>(&annotation.text()).unwrap(), annotation);
    }

    #[test]
    fn what_does_not_work_is_not_counted_as_good() {
        let mut scene = Scene::new();
        (0..8).for_each(|gpu| scene.set_both(gpu, 3, &refused(Step::RegMr, 12)));
        let annotation = Annotation::of(&scene.report());
        assert_eq!((annotation.rails, annotation.rails_good), (8, 7));
        // Far pairs that fail take no method from those that count.
        let mut scene = Scene::new();
        scene.set(0, 7, Method::Peermem, &refused(Step::RegMr, 12));
        assert_eq!(Annotation::of(&scene.report()).methods, ["dma-buf", "peermem"]);
        let mut scene = Scene::new();
        scene.set_all(Method::Peermem, &unsupported(Step::RegMr, Some(14)));
        assert_eq!(Annotation::of(&scene.report()).methods, ["dma-buf"]);
    }

    #[test]
    fn the_distance_is_that_of_the_gpu_that_is_worst_off() {
        let mut report = Scene::new().report();
        let worst = report.gpus[0].pci;
        report.pairs.iter_mut().filter(|pair| pair.gpu == worst).for_each(|pair| pair.distance = Distance::Node);
        assert_eq!(distance(&report), Some(Distance::Node));
        // What is farther is not what it goes by.
        let far = |pair: &&mut Pair| !report.gpus.iter().any(|g| g.pci == pair.gpu && g.nearest.contains(&pair.hca));
        report.pairs.iter_mut().filter(far).for_each(|pair| pair.distance = Distance::Sys);
        assert_eq!(distance(&report), Some(Distance::Node));
        report.topology = TopologyKind::Virtual;
        assert_eq!(distance(&report), None);
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let mut scene = Scene::new();
        scene.grow(16, 36);
        for gpu in 0..16 {
            scene.break_gpu(gpu);
        }
        let text = Annotation::of(&scene.report()).text();
        assert!(text.len() <= LIMIT, "{}", text.len());
        let read: Annotation = serde_json::from_str(&text).unwrap();
        assert_eq!((read.bad.len(), read.bad_not_shown), (PAIRS, 16 * 36 - PAIRS));
        // A model's name of any length.
        let mut long = Annotation::of(&scene.report());
        long.models = vec!["x".repeat(5000)];
        assert!(long.text().len() <= LIMIT && long.text().contains("\"state\""));
    }

    #[test]
    fn a_newer_agents_annotation_is_read_as_far_as_it_is_known() {
        let read: Annotation = serde_json::from_str(r#"{"gpus": 8, "fabric": {"x": 1}}"#).unwrap();
        assert_eq!(read.gpus, 8);
    }
}
