//! Metrics with the prefix `gdr_agent_`; none for each pair.

use std::collections::BTreeMap;

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};

use crate::{
    agent::{Published, check::Checked},
    report::{Outcome, State},
};

/// Label sets, each a list of names.
macro_rules! labels {
    ($($name:ident { $($field:ident),+ })+) => { $(
        #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
        struct $name { $($field: String),+ }
    )+ };
}
labels! {
    ByState { state }
    ByReason { reason, who }
    ByHca { hca }
    ByResult { result }
    ByTransition { from, to }
    ByResource { resource }
    ByDevice { resource, health }
    ByAllocation { resource, result }
}

/// Everything that `/metrics` shows.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    state: Family<ByState, Gauge>,
    reason: Family<ByReason, Gauge>,
    gpus: Gauge,
    rails: Gauge,
    rails_good: Gauge,
    gpus_served: Gauge,
    port_usable: Family<ByHca, Gauge>,
    checks: Family<ByResult, Counter>,
    duration: Histogram,
    last_check: Gauge,
    last_verified: Gauge,
    transitions: Family<ByTransition, Counter>,
    stuck: Gauge,
    publish: Family<ByResult, Counter>,
    stream: Family<ByResource, Gauge>,
    devices: Family<ByDevice, Gauge>,
    allocations: Family<ByAllocation, Counter>,
}

const STATES: [State; 5] = [State::Ready, State::Degraded, State::NotReady, State::Unknown, State::NotApplicable];

impl Metrics {
    /// All of them, registered.
    #[must_use]
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("gdr_agent"),
            state: Family::default(),
            reason: Family::default(),
            gpus: Gauge::default(),
            rails: Gauge::default(),
            rails_good: Gauge::default(),
            gpus_served: Gauge::default(),
            port_usable: Family::default(),
            checks: Family::default(),
            duration: Histogram::new([0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]),
            last_check: Gauge::default(),
            last_verified: Gauge::default(),
            transitions: Family::default(),
            stuck: Gauge::default(),
            publish: Family::default(),
            stream: Family::default(),
            devices: Family::default(),
            allocations: Family::default(),
        };
        let m = &mut metrics;
        let r = &mut m.registry;
        r.register("build", "Version of the agent", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        r.register("state", "The node's state: 1 for the one that holds", m.state.clone());
        r.register("reason", "1 for each finding", m.reason.clone());
        r.register("gpus", "GPUs, eligible or lost", m.gpus.clone());
        r.register("rails", "HCAs that are nearest to a GPU", m.rails.clone());
        r.register("rails_good", "Rails that are good with a GPU", m.rails_good.clone());
        r.register("gpus_served", "GPUs with a rail that works", m.gpus_served.clone());
        r.register("hca_port_usable", "1 when a port of the HCA is usable", m.port_usable.clone());
        r.register("checks", "Finished checks", m.checks.clone());
        r.register("check_duration_seconds", "Time of a whole check", m.duration.clone());
        r.register("last_check_timestamp_seconds", "When the last check finished", m.last_check.clone());
        r.register("last_verified_timestamp_seconds", "When a pair was last verified", m.last_verified.clone());
        r.register("transitions", "Changes of the node's state", m.transitions.clone());
        r.register("probe_stuck", "Children that the kernel does not let go", m.stuck.clone());
        r.register("publish", "Writes to the API server", m.publish.clone());
        r.register("kubelet_stream_open", "1 while the kubelet listens", m.stream.clone());
        r.register("devices", "Devices by health", m.devices.clone());
        r.register("allocations", "Allocations", m.allocations.clone());
        metrics
    }

    /// OpenMetrics text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut out, &self.registry);
        out
    }

    pub(crate) fn check(&self, checked: &Checked) {
        let verified = checked
            .rows
            .values()
            .flat_map(|r| r.hcas.values())
            .flat_map(|h| h.methods.values())
            .any(|m| m.outcome == Outcome::Verified);
        // What was skipped is finished all the same.
        let stopped = checked.rows.values().flat_map(|r| &r.stops).any(|stop| stop.spared().is_none());
        self.checks.get_or_create(&ByResult { result: if stopped { "incomplete" } else { "complete" }.into() }).inc();
        self.duration.observe(checked.took.as_secs_f64());
        let now = jiff::Timestamp::now().as_second();
        self.last_check.set(now);
        if verified {
            self.last_verified.set(now);
        }
    }

    pub(crate) fn transition(&self, from: State, to: State) {
        self.transitions.get_or_create(&ByTransition { from: from.to_string(), to: to.to_string() }).inc();
    }

    /// `devices`: of each resource, how many are healthy and how many are not.
    pub(crate) fn report(&self, published: &Published, devices: &BTreeMap<String, [usize; 2]>, stuck: usize) {
        let report = &published.report;
        for state in STATES {
            self.state
                .get_or_create(&ByState { state: state.to_string() })
                .set(i64::from(report.verdict.state == state));
        }
        self.reason.clear();
        for finding in &report.findings {
            self.reason
                .get_or_create(&ByReason { reason: finding.reason.to_string(), who: finding.who.to_string() })
                .set(1);
        }
        self.gpus.set(count(report.gpus.iter().filter(|g| g.role.counts())));
        self.gpus_served.set(count(report.gpus.iter().filter(|g| g.served == Some(true))));
        let rails = || report.hcas.iter().filter(|h| h.rail);
        self.rails.set(count(rails()));
        self.rails_good
            .set(count(rails().filter(|h| report.pairs.iter().any(|p| p.hca == h.name && p.good == Some(true)))));
        self.port_usable.clear();
        for device in &published.devices {
            self.port_usable.get_or_create(&ByHca { hca: device.hca.name.clone() }).set(i64::from(device.hca.usable()));
        }
        for (resource, counts) in devices {
            for (health, count) in ["healthy", "unhealthy"].into_iter().zip(counts) {
                let labels = ByDevice { resource: resource.clone(), health: health.into() };
                self.devices.get_or_create(&labels).set(i64::try_from(*count).unwrap_or(i64::MAX));
            }
        }
        self.stuck.set(i64::try_from(stuck).unwrap_or(i64::MAX));
    }

    pub(crate) fn published(&self, ok: bool) {
        self.publish.get_or_create(&ByResult { result: if ok { "ok" } else { "error" }.into() }).inc();
    }

    pub(crate) fn stream(&self, resource: &str, open: bool) {
        self.stream.get_or_create(&ByResource { resource: resource.into() }).set(i64::from(open));
    }

    pub(crate) fn allocation(&self, resource: &str, ok: bool) {
        let result = if ok { "ok" } else { "refused" };
        self.allocations.get_or_create(&ByAllocation { resource: resource.into(), result: result.into() }).inc();
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> i64 {
    i64::try_from(items.count()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        kubelet::Device,
        probe::{
            Row, Step,
            protocol::{End, Stopped},
        },
        report::Code,
        usage::Spared,
        verdict::fixture::Scene,
    };

    /// What the page says, no more and no less; nothing is per pair, which would be thousands of series for a node.
    #[test]
    fn the_page_of_metrics_is_what_is_shown() {
        let mut scene = Scene::new();
        scene.port(4, "DOWN");
        let hca = scene.inventory.hcas[0].clone();
        let device = Device { id: hca.key(), hca, rail: true, healthy: true, also_in: None };
        let metrics = Metrics::new();
        metrics.check(&Checked { rows: scene.rows.clone(), ..Checked::default() });
        metrics.transition(State::Unknown, State::Ready);
        let published = Published { devices: vec![device], ..Published::of(scene.report()) };
        metrics.report(&published, &[("gpudirect-rdma/hca".to_owned(), [7, 1])].into(), 2);
        metrics.published(true);
        metrics.stream("gpudirect-rdma/hca", true);
        metrics.allocation("gpudirect-rdma/hca", false);
        let text = metrics.text();

        let page = include_str!("../../docs/metrics.md");
        let words = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        let rows = page.lines().filter(|line| line.starts_with("| `")).map(|line| line.split('|').collect::<Vec<_>>());
        let documented: BTreeSet<(String, Vec<String>)> = rows
            .flat_map(|row| words(row[1]).into_iter().map(move |name| (name, words(row[2]))).collect::<Vec<_>>())
            .collect();
        let series = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (name, labels) = line.split_once(' ').unwrap().0.split_once('{').unwrap_or((line, ""));
            let name = name.split(' ').next().unwrap();
            let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let labels = labels.split(',').filter_map(|label| label.split_once('=')).map(|(key, _)| key.to_owned());
            (of_histogram.unwrap_or(name).to_owned(), labels.filter(|key| key != "le").collect())
        });
        assert_eq!(series.collect::<BTreeSet<_>>(), documented);
        for line in [
            r#"gdr_agent_state{state="degraded"} 1"#,
            r#"gdr_agent_state{state="ready"} 0"#,
            r#"gdr_agent_reason{reason="PortDown",who="hardware"} 1"#,
            "gdr_agent_gpus_served 8",
            "gdr_agent_rails 8",
            r#"gdr_agent_hca_port_usable{hca="mlx5_0"} 1"#,
            r#"gdr_agent_transitions_total{from="unknown",to="ready"} 1"#,
            "gdr_agent_probe_stuck 2",
            r#"gdr_agent_devices{resource="gpudirect-rdma/hca",health="healthy"} 7"#,
            r#"gdr_agent_devices{resource="gpudirect-rdma/hca",health="unhealthy"} 1"#,
            r#"gdr_agent_publish_total{result="ok"} 1"#,
            r#"gdr_agent_kubelet_stream_open{resource="gpudirect-rdma/hca"} 1"#,
            r#"gdr_agent_allocations_total{resource="gpudirect-rdma/hca",result="refused"} 1"#,
        ] {
            assert!(text.contains(line), "no `{line}` in {text}");
        }
    }

    /// One that only left GPUs alone is finished; one that fell silent is not.
    #[test]
    fn a_check_that_skipped_everything_is_complete() {
        let cuda = |number| End::Refused(Some(Code::cuda(number, None)));
        for (end, result) in [
            (End::Spared(Spared::Busy), "complete"),
            (End::Spared(Spared::Mig), "complete"),
            (cuda(46), "complete"),
            (cuda(999), "incomplete"),
            (End::TimedOut, "incomplete"),
        ] {
            let stop = Stopped { step: Step::Context, hca: None, end, detail: String::new() };
            let row = Row { stops: vec![stop], ..Row::default() };
            let metrics = Metrics::new();
            let gpu = "0000:1b:00.0".parse().unwrap();
            metrics.check(&Checked { rows: [(gpu, row)].into(), ..Checked::default() });
            let line = format!("gdr_agent_checks_total{{result=\"{result}\"}} 1");
            assert!(metrics.text().contains(&line), "{}", metrics.text());
        }
    }
}
