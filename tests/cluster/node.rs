//! What the agent left on a node, and what can be done to one.

use serde_json::Value;

use crate::cluster::{Cluster, HERE, eventually, same};

/// The label and the condition's status together, for a watch.
pub(crate) const STATE: &str =
    r#"{.metadata.labels.gpudirect-rdma} {.status.conditions[?(@.type=="GPUDirectRDMAReady")].status}"#;

pub(crate) struct Node<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) name: &'static str,
}

impl Node<'_> {
    pub(crate) fn object(&self) -> Value {
        self.cluster.get(&["node", self.name])
    }

    pub(crate) fn condition(&self) -> Option<Value> {
        let node = self.object();
        let conditions = node["status"]["conditions"].as_array()?;
        conditions.iter().find(|condition| condition["type"] == "GPUDirectRDMAReady").cloned()
    }

    /// Waits for the label and the allocatable devices.
    pub(crate) fn becomes(&self, state: &str, devices: u32) {
        eventually(&format!("{} is {state} with {devices} devices", self.name), || {
            let node = self.object();
            let allocatable = node["status"]["allocatable"][crate::RESOURCE].as_str().map(str::to_owned);
            same(
                &(node["metadata"]["labels"]["gpudirect-rdma"].as_str(), allocatable),
                &(Some(state), Some(devices.to_string())),
            )
        });
    }

    /// Waits for the allocatable devices alone.
    pub(crate) fn offers(&self, devices: u32) {
        eventually(&format!("{} offers {devices} devices", self.name), || {
            let node = self.object();
            same(&node["status"]["allocatable"][crate::RESOURCE].as_str(), &Some(devices.to_string().as_str()))
        });
    }

    /// All keys and conditions that only the agent writes.
    pub(crate) fn ours(&self) -> Vec<String> {
        let node = self.object();
        let keys = ["labels", "annotations"].into_iter().flat_map(|kind| {
            let map = node["metadata"][kind].as_object().cloned().unwrap_or_default();
            let ours = |key: &&String| *key == "gpudirect-rdma" || key.starts_with("gpudirect-rdma/");
            map.keys().filter(ours).cloned().collect::<Vec<_>>()
        });
        keys.chain(self.condition().map(|condition| condition.to_string())).collect()
    }

    /// The name of the agent's pod here.
    pub(crate) fn agent(&self) -> String {
        eventually("there is one agent on the node", || {
            let on_node = format!("spec.nodeName={}", self.name);
            let pods = self.cluster.kubectl(&[
                "-n",
                "gdr-system",
                "get",
                "pods",
                "-l",
                "app.kubernetes.io/name=gdr-agent",
                "--field-selector",
                &on_node,
                "-o",
                "jsonpath={.items[*].metadata.name}",
            ]);
            same(&pods.split(' ').count(), &1).map_err(|_| pods.clone()).and(Ok(pods))
        })
    }

    pub(crate) fn agent_is_another_than(&self, old: &str) {
        let new = eventually("there is a new agent", || {
            let new = self.agent();
            if new != old && !new.is_empty() { Ok(new) } else { Err(new) }
        });
        let pod = format!("pod/{new}");
        self.cluster.kubectl(&["-n", "gdr-system", "wait", "--for=condition=Ready", "--timeout=90s", &pod]);
    }

    /// Of the processes that are called so, a line for each.
    pub(crate) fn pids(&self, name: &str) -> String {
        let pids = format!(
            "for p in /proc/[0-9]*; do if [ \"$(cat $p/comm 2>/dev/null)\" = {name} ]; then echo ${{p#/proc/}}; fi; done"
        );
        self.cluster.run("on-node", &[self.name, "sh", "-c", &pids]).trim().to_owned()
    }

    /// As the kernel has mounted it.
    pub(crate) fn agent_cannot_write_its_root(&self) {
        let mounts = format!("/proc/{}/mountinfo", self.pids("gdr-agent").lines().next().unwrap_or_default());
        let mounts = self.cluster.run("on-node", &[self.name, "cat", &mounts]);
        let root = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|mount| mount[4] == "/");
        let options = root.expect("a root")[5];
        assert!(options.split(',').any(|option| option == "ro"), "the root file system is {options}");
    }

    /// Kills the kubelet, and returns when another runs and says that the node is Ready.
    pub(crate) fn kill_kubelet(&self) {
        let find = || self.pids("kubelet");
        let old = find();
        assert!(!old.is_empty(), "no kubelet on {}", self.name);
        self.cluster.run("on-node", &[self.name, "kill", "-9", &old]);
        eventually("another kubelet runs", || {
            let new = find();
            if !new.is_empty() && new != old { Ok(()) } else { Err(new) }
        });
        let last = self.name.trim_start_matches('n');
        let address = &format!("--server=https://10.99.0.1{last}:10250");
        eventually("the kubelet answers", || {
            let get = ["get", "--raw", "/healthz", "--insecure-skip-tls-verify", address];
            self.cluster.try_run("kubectl", &get)
        });
    }

    /// Power off, and on.
    pub(crate) fn power_cycle(&self) {
        let boot = || self.object()["status"]["nodeInfo"]["bootID"].clone();
        let (before, state) = (boot(), self.cluster.state().to_string_lossy());
        let script = format!("{HERE}/power-cycle");
        let n = self.name.trim_start_matches('n');
        self.cluster.run("enter", &["nsenter", "-t", "1", "-C", &script, &state, n]);
        eventually("the node has booted", || {
            let now = boot();
            if now == before { Err(now.to_string()) } else { Ok(()) }
        });
    }
}
