//! What a Node's labels and annotations say to the agent. Pure.

use k8s_openapi::api::core::v1::Node;

use crate::report::NodeView;

/// Labels of NVIDIA's operators, with the values that mean a change under way. `upgrade-required` waits for
/// its turn, and `upgrade-done` and `upgrade-failed` are over.
const UNDER_WAY: &[(&str, &[&str])] = &[
    ("nvidia.com/gpu-driver-upgrade-state", UPGRADE),
    ("nvidia.com/ofed-driver-upgrade-state", UPGRADE),
    ("nvidia.com/mig.config.state", &["pending", "rebooting"]),
    ("nvidia.com/gpu.deploy.driver", &["paused-for-driver-upgrade"]),
];
const UPGRADE: &[&str] = &[
    "cordon-required",
    "wait-for-jobs-required",
    "pod-deletion-required",
    "node-maintenance-required",
    "drain-required",
    "pod-restart-required",
    "validation-required",
    "uncordon-required",
];

/// What is to be heeded of a Node.
pub(super) fn view(node: &Node, prefix: &str) -> NodeView {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let change_under_way = UNDER_WAY.iter().find_map(|(key, values)| {
        let value = labels.get(*key).filter(|value| values.contains(&value.as_str()))?;
        Some(format!("{key}={value}"))
    });
    let pause = node.metadata.annotations.as_ref().and_then(|all| all.get(&format!("{prefix}/paused-until")));
    let paused_until = pause.and_then(|text| match text.trim().parse() {
        Ok(until) => Some(until),
        Err(error) => {
            tracing::warn!(%error, text, "{prefix}/paused-until is no time like 2030-01-31T18:00:00Z, and pauses nothing");
            None
        }
    });
    NodeView { labels, paused_until, change_under_way }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> NodeView {
        let map = |pairs: &[(&str, &str)]| Some(pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
        let mut node = Node::default();
        node.metadata.labels = map(labels);
        node.metadata.annotations = map(annotations);
        view(&node, "gpudirect-rdma")
    }

    #[test]
    fn an_operators_change_is_seen_while_it_lasts() {
        let of = |key: &str, value: &str| seen(&[(key, value)], &[]).change_under_way;
        for (key, value, under_way) in [
            ("nvidia.com/gpu-driver-upgrade-state", "upgrade-required", false),
            ("nvidia.com/gpu-driver-upgrade-state", "pod-restart-required", true),
            ("nvidia.com/gpu-driver-upgrade-state", "validation-required", true),
            ("nvidia.com/gpu-driver-upgrade-state", "upgrade-done", false),
            ("nvidia.com/gpu-driver-upgrade-state", "upgrade-failed", false),
            ("nvidia.com/ofed-driver-upgrade-state", "drain-required", true),
            ("nvidia.com/mig.config.state", "pending", true),
            ("nvidia.com/mig.config.state", "success", false),
            ("nvidia.com/gpu.deploy.driver", "paused-for-driver-upgrade", true),
            ("nvidia.com/gpu.deploy.driver", "true", false),
            ("example.com/gpu-driver-upgrade-state", "drain-required", false),
        ] {
            assert_eq!(of(key, value).is_some(), under_way, "{key}={value}");
        }
    }

    #[test]
    fn a_pause_is_a_time() {
        let until = |text: &str| seen(&[], &[("gpudirect-rdma/paused-until", text)]).paused_until;
        assert_eq!(until("2030-01-31T18:00:00Z"), "2030-01-31T18:00:00Z".parse().ok());
        assert_eq!(until(" 2030-01-31T19:00:00+01:00\n"), "2030-01-31T18:00:00Z".parse().ok());
        assert_eq!(until("tomorrow"), None);
        assert_eq!(seen(&[("a", "b")], &[("other/paused-until", "2030-01-31T18:00:00Z")]).paused_until, None);
    }
}
