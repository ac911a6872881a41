//! Before a container starts: the registration once more, for the HCAs that it is about to use.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;

use super::devices::Offer;
use crate::{
    agent::Published,
    config::{BusyGpus, Config},
    hardware::{GpuFacts, HcaFacts, Inventory, Surroundings},
    probe::{Machine, Rows, Task},
    report::{Finding, Severity},
    store::Memory,
    verdict::{self, Input},
};

/// The kubelet waits for 30 s; the container's start is refused before that.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);
/// A child gets less, so that its end is waited for too.
const CHILD: Duration = Duration::from_secs(15);

/// What is needed to check them.
pub(super) struct Before<'a> {
    pub(super) machine: &'a dyn Machine,
    pub(super) inventory: &'a Inventory,
    pub(super) config: &'a Config,
    pub(super) state: &'a Published,
}

impl Before<'_> {
    /// Registers with each HCA; the refusal is what was found.
    pub(super) async fn check(&self, offers: &[&Offer<'_>]) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for offer in offers {
            if seen.insert(&offer.id) {
                self.check_one(offer).await?;
            }
        }
        Ok(())
    }

    /// The pair's GPU, or each GPU that the HCA is near to, until one of them has something to say.
    async fn check_one(&self, offer: &Offer<'_>) -> Result<(), String> {
        let name = &offer.device.hca.name;
        let hca = self.inventory.hcas.iter().find(|hca| hca.is_same_as(&offer.device.hca));
        let hca = hca.ok_or_else(|| format!("{} ({name}) is gone from this node", offer.device.id))?;
        let near = self.state.report.gpus.iter().filter(|gpu| match offer.gpu {
            Some(own) => own.pci == gpu.pci,
            None => gpu.nearest.contains(name),
        });
        for gpu in near.filter_map(|gpu| self.inventory.gpus.iter().find(|here| here.pci == gpu.pci)) {
            match self.pair(gpu, hca).await {
                Some(Ok(())) => return Ok(()),
                Some(Err(finding)) => return Err(finding),
                None => {}
            }
        }
        tracing::info!(hca = %name, "no GPU near this HCA can be tried now; the container starts unchecked");
        Ok(())
    }

    /// Good, bad with its finding, or open.
    async fn pair(&self, gpu: &GpuFacts, hca: &HcaFacts) -> Option<Result<(), String>> {
        let task = Task {
            gpu: gpu.clone(),
            hcas: vec![hca.clone()],
            methods: self.config.check.methods.clone(),
            size: usize::try_from(self.config.check.size.0).unwrap_or(usize::MAX),
            deep: None,
            busy: BusyGpus::Check,
            limit: CHILD.min(self.config.check.timeout.0),
            driver: self.inventory.nvidia.as_ref().map(|n| n.version.clone()),
        };
        let rows = Rows::from([(gpu.pci, self.machine.probe(task).await)]);
        // What the pair was before excuses nothing now.
        let mut memory = Memory::default();
        memory.saw_active([hca.key()]);
        let assessment = verdict::assess(&Input {
            inventory: self.inventory,
            surroundings: &Surroundings::default(),
            rows: &rows,
            memory: &memory,
            config: self.config,
            node: None,
            checked: true,
            now: Timestamp::now(),
        });
        let pair = assessment.pairs.iter().find(|pair| pair.gpu == gpu.pci && pair.hca == hca.name)?;
        Some(if pair.good? { Ok(()) } else { Err(refusal(hca, &assessment.findings)) })
    }
}

/// The worst finding of this HCA, in one line.
fn refusal(hca: &HcaFacts, findings: &[Finding]) -> String {
    let of_it = |finding: &&Finding| {
        finding.severity != Severity::Info && (finding.hcas.is_empty() || finding.hcas.contains(&hca.name))
    };
    let name = &hca.name;
    findings.iter().find(of_it).map_or_else(
        || format!("GPU memory can't be registered with {name}; run `gdr-agent check --hca {name}` on this node"),
        |finding| format!("{name}: {}: {} {}", finding.reason, finding.message, finding.remedy),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kubelet::Device, simulate::SimulatedMachine, verdict::fixture::Scene};

    /// What comes of a container that is about to use the first HCA.
    async fn before(faults: &str, config: &Config) -> Result<(), String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("profile.yaml");
        let text = "apiVersion: gdr-agent/v1\nkind: Profile\nbase: hgx-h100\n";
        std::fs::write(&file, format!("{text}faults: [ {faults} ]\n")).unwrap();
        let machine = SimulatedMachine::new(file.to_str().unwrap(), "boot".into()).unwrap();
        let inventory = machine.inventory();
        let hca = inventory.hcas[0].clone();
        let device = Device { id: hca.key(), hca, rail: true, healthy: true, also_in: None };
        let state = Published::of(Scene::new().report());
        let before = Before { machine: &machine, inventory: &inventory, config, state: &state };
        before.check(&[&Offer { id: device.id.clone(), device: &device, gpu: None, healthy: true }]).await
    }

    #[tokio::test]
    async fn a_good_registration_lets_the_container_start() {
        assert_eq!(before("", &Config::default()).await, Ok(()));
        // One method is enough, and another HCA's trouble is none.
        assert_eq!(before("{ peermem: false }", &Config::default()).await, Ok(()));
        assert_eq!(before("{ hca: mlx5_1, outcome: failed, code: ENOMEM (12) }", &Config::default()).await, Ok(()));
    }

    #[tokio::test]
    async fn a_refused_one_refuses_the_start_with_the_finding() {
        let why = before("{ hca: mlx5_0, outcome: failed, code: ENOMEM (12) }", &Config::default()).await.unwrap_err();
        assert!(why.starts_with("mlx5_0: PeermemRefused: ") || why.starts_with("mlx5_0: DmabufRefused: "), "{why}");
        let why = before("{ peermem: false }, { openModule: false }", &Config::default()).await.unwrap_err();
        assert!(why.contains("PeermemNotLoaded") && why.contains("modprobe nvidia-peermem"), "{why}");
    }

    #[tokio::test]
    async fn what_cannot_be_tried_speaks_against_nobody() {
        let all = "{ outcome: skipped, code: CUDA_ERROR_OUT_OF_MEMORY (2) }";
        assert_eq!(before(all, &Config::default()).await, Ok(()));
        // The next GPU near it has the last word.
        let first = "{ gpu: \"0000:1b:00.0\", hca: mlx5_0, outcome: unknown }";
        assert_eq!(before(first, &Config::default()).await, Ok(()));
    }
}
