//! What raises each reason. One function for each subject: the node, ports, GPUs that nothing serves.

use super::{
    Facts, advice,
    gather::Gathered,
    refine::{Subject, refine},
    results::{method_result, stopped},
};
use crate::{
    config::Resource,
    hardware::{Away, HcaFacts},
    report::{Finding, GpuRole, HcaRole, Method, Reason, Severity, Transport},
    usage::also_in,
    verdict::matches_hca,
};

pub(super) fn all(facts: &Facts<'_>) -> Vec<Finding> {
    let mut gathered = Gathered::default();
    for what in &facts.outlook.lacking {
        gathered.raise(Reason::HardwareMissing, Severity::Error, None, None, what);
    }
    if !facts.gpus.is_empty() {
        node(facts, &mut gathered);
        for (gpu, row) in facts.rows {
            for stop in &row.stops {
                stopped(*gpu, row, stop, facts, &mut gathered);
            }
            if row.usage.as_ref().is_some_and(|usage| usage.persistence == Some(false)) {
                gathered.raise(Reason::PersistenceOff, Severity::Info, Some(*gpu), None, "");
            }
        }
        for pair in facts.pairs {
            for method in Method::ALL {
                method_result(pair, method, facts, &mut gathered);
            }
        }
        for bad in facts.carried {
            let seen = format!("seen at {:.0}, and not tried since", bad.at);
            gathered.raise(bad.reason, Severity::Error, Some(bad.gpu), Some(&bad.hca), seen);
        }
        ports(facts, &mut gathered);
        offered_twice(facts, &mut gathered);
        unserved(facts, &mut gathered);
        not_configured(facts, &mut gathered);
        for (reason, seen) in advice::all(facts) {
            gathered.raise(reason, Severity::Info, None, None, seen);
        }
    }
    gathered.into_findings(facts)
}

/// Modules and devices of the node as a whole.
fn node(facts: &Facts<'_>, out: &mut Gathered) {
    let inventory = facts.inventory;
    if inventory.nvidia.is_none() && facts.gpus.iter().any(|g| g.role == GpuRole::Eligible) {
        raise_of_node(Reason::DriverAbsent, "/proc/driver/nvidia/version is missing", None, facts, out);
    }
    elsewhere(facts, out);
    if inventory.hcas.is_empty() && !inventory.bare_functions.is_empty() && !inventory.has_strangers_elsewhere() {
        let functions: Vec<_> = inventory.bare_functions.iter().map(|f| f.pci.to_string()).collect();
        let driver = facts.surroundings.loaded.contains("mlx5_core").then_some("mlx5_core");
        raise_of_node(
            Reason::NoRdmaDevices,
            &format!("no RDMA device on {}", functions.join(", ")),
            driver,
            facts,
            out,
        );
    }
    if !inventory.hcas.is_empty() && !inventory.uverbs {
        out.raise(Reason::UverbsNotLoaded, Severity::Error, None, None, "/sys/class/infiniband_verbs is missing");
    }
    for gpu in facts.gpus {
        match gpu.role {
            GpuRole::Lost => out.raise(
                Reason::GpuLost,
                Severity::Error,
                Some(gpu.pci),
                None,
                "configuration space reads ff ff ff ff",
            ),
            GpuRole::Incapable => out.raise(
                Reason::GpuGdrUnsupported,
                Severity::Info,
                Some(gpu.pci),
                None,
                "attributes 116 and 124 are 0",
            ),
            _ => continue,
        };
    }
}

/// HCAs in pods or virtual machines. Where every one is, that is why nothing can be said.
fn elsewhere(facts: &Facts<'_>, out: &mut Gathered) {
    let here = |h: &crate::report::Hca| !matches!(h.role, HcaRole::Away | HcaRole::Excluded);
    let away: Vec<_> = facts.hcas.iter().filter(|h| h.role == HcaRole::Away).collect();
    if !facts.hcas.iter().any(here) && (!away.is_empty() || facts.inventory.has_strangers_elsewhere()) {
        let seen = "RDMA-capable PCI functions without an RDMA device here";
        out.raise(Reason::HcasInPods, Severity::Info, None, None, seen);
    }
    for hca in away {
        let seen = match facts.inventory.hca(&hca.name).map(|known| (known.away, known.driver.as_deref())) {
            Some((Some(Away::Netdev), _)) => "its network interface is in another network namespace",
            Some((_, Some("vfio-pci"))) => "it is bound to vfio-pci",
            _ => "its RDMA device is in another network namespace",
        };
        out.raise(Reason::HcasInPods, Severity::Info, None, Some(&hca.name), format!("{}: {seen}", hca.name));
    }
}

/// Raises a reason of the node as a whole, or the more specific one behind it.
fn raise_of_node(reason: Reason, seen: &str, driver: Option<&str>, facts: &Facts<'_>, out: &mut Gathered) {
    let subject = Subject { method: None, hca: None, driver, errno: None, bar1: None };
    let (reason, more) = refine(reason, &subject, facts.surroundings).unwrap_or((reason, String::new()));
    out.raise(reason, Severity::Error, None, None, seen);
    out.raise(reason, Severity::Error, None, None, more);
}

/// Drops within an hour that no maintenance explains.
const FLAPPING: u64 = 3;

/// A rail without a usable port, or one that comes and goes; and where no port was ever ACTIVE, that alone.
fn ports(facts: &Facts<'_>, out: &mut Gathered) {
    for (hca, known) in facts.inventory.hcas.iter().zip(facts.hcas) {
        if known.rail && known.role == HcaRole::Eligible && !hca.usable() {
            let states: Vec<_> = hca.ports.iter().map(|p| format!("port {} is {}", p.number, p.state)).collect();
            out.raise(Reason::PortDown, Severity::Error, None, Some(&hca.name), states.join(", "));
        }
    }
    for rail in facts.hcas.iter().filter(|h| h.rail) {
        if let Some(drops) = facts.surroundings.link_drops.get(&rail.name).filter(|drops| **drops >= FLAPPING) {
            let seen = format!("{}: link_downed rose by {drops} within an hour", rail.name);
            out.raise(Reason::LinkFlapping, Severity::Info, None, Some(&rail.name), seen);
        }
    }
    let mut adapters = facts.hcas.iter().filter(|h| h.role != HcaRole::Excluded).peekable();
    if adapters.peek().is_some() && adapters.all(|h| h.role == HcaRole::Idle) {
        out.raise(Reason::PortNeverActive, Severity::Info, None, None, "");
    }
}

/// What this agent and another plugin promise to pods at the same time.
fn offered_twice(facts: &Facts<'_>, out: &mut Gathered) {
    let listed = facts.surroundings.listed.as_deref().unwrap_or_default();
    let offered = |hca: &&HcaFacts| {
        let rail = facts.hcas.iter().find(|known| known.name == hca.name).map(|known| known.rail);
        let takes = |resource: &Resource| resource.select.iter().any(|s| matches_hca(s, hca, rail));
        facts.config.resources.iter().any(|resource| !resource.shared && takes(resource))
    };
    for hca in facts.inventory.hcas.iter().filter(offered) {
        if let Some(other) = also_in(hca, listed, &facts.config.resources) {
            out.raise(Reason::OfferedTwice, Severity::Warning, None, Some(&hca.name), format!("also in {other}"));
        }
    }
}

/// A GPU that nothing serves, where nothing else says why.
fn unserved(facts: &Facts<'_>, out: &mut Gathered) {
    let explained = |gpu: &crate::report::Gpu| {
        gpu.role == GpuRole::Lost
            || out.by_reason.iter().any(|(reason, raised)| {
                *reason == Reason::PortNeverActive
                    || raised.severity == Some(Severity::Error)
                        && (raised.gpus.contains(&gpu.pci)
                            || raised.hcas.iter().any(|h| gpu.nearest.contains(h))
                            || raised.gpus.is_empty() && raised.hcas.is_empty())
            })
    };
    let never_meant = !facts.inventory.has_rdma_hardware() && !facts.outlook.rdma;
    if never_meant || facts.outlook.met == Some(true) {
        return; // as many rails as were meant to be
    }
    let missing: Vec<_> = facts.gpus.iter().filter(|g| g.served == Some(false) && !explained(g)).collect();
    for gpu in missing {
        out.raise(
            Reason::RailMissing,
            Severity::Error,
            Some(gpu.pci),
            None,
            format!("nearest HCAs: {}", gpu.nearest.join(", ")),
        );
    }
}

/// A node on ordinary Ethernet where no method was ever installed is no broken one: one piece of
/// information stands in place of what is missing.
fn not_configured(facts: &Facts<'_>, out: &mut Gathered) {
    const FAST_GBPS: f64 = 100.0;
    const PEERMEM: [Reason; 4] = [
        Reason::PeermemNotLoaded,
        Reason::PeermemModuleMissing,
        Reason::KernelLacksPeerMemory,
        Reason::PeermemSymbolMismatch,
    ];
    const OTHERS: [Reason; 5] = [
        Reason::DmabufClosedModule,
        Reason::DmabufVerbUnsupported,
        Reason::KernelWithoutOdp,
        Reason::KernelWithoutP2pdma,
        Reason::RailMissing,
    ];
    let ordinary = facts.hcas.iter().filter(|h| h.rail).all(|h| {
        h.transport == Transport::Roce && h.ports.iter().filter_map(|p| p.rate_gbps).all(|r| f64::from(r) <= FAST_GBPS)
    });
    let tried = PEERMEM.iter().any(|reason| out.by_reason.contains_key(reason));
    let never_good = !facts.outlook.worked && facts.pairs.iter().all(|p| p.good != Some(true));
    let only_missing = out.by_reason.keys().all(|r| PEERMEM.contains(r) || OTHERS.contains(r));
    if tried && ordinary && never_good && only_missing && facts.outlook.met.is_none() {
        out.by_reason.clear();
        out.raise(Reason::NotConfigured, Severity::Info, None, None, "no nvidia_peermem, and no dma-buf path");
    }
}
