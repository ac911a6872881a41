//! Container Device Interface: a spec file for each resource, and the names that the GPU's vendor has.
//!
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>: a kind is
//! `vendor/class`, which a resource's name is too; a spec without devices is refused, so there is none
//! then.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::{Value, json};

use super::allocate::node_paths;
use crate::store::write_atomically;

/// The first version that knows another path on the node than in the container.
const VERSION: &str = "0.5.0";
/// What all of our files are called by.
const PREFIX: &str = "gdr-agent-";

/// The nodes of each HCA, by its name in the spec.
pub(super) type Nodes = BTreeMap<String, BTreeSet<String>>;

/// A resource's spec; none without devices.
fn spec(resource: &str, hcas: &Nodes, simulated: bool) -> Option<Value> {
    let edit = |node: &String| {
        let [host, path] = node_paths(node, simulated);
        json!({ "path": path, "hostPath": host, "permissions": "rw" })
    };
    let device = |(name, nodes): (&String, &BTreeSet<String>)| json!({ "name": name, "containerEdits": { "deviceNodes": nodes.iter().map(edit).collect::<Vec<_>>() } });
    let devices: Vec<_> = hcas.iter().map(device).collect();
    (!devices.is_empty()).then(|| json!({ "cdiVersion": VERSION, "kind": resource, "devices": devices }))
}

fn file(dir: &Path, resource: &str) -> PathBuf {
    dir.join(format!("{PREFIX}{}.json", resource.replace('/', "_")))
}

/// Makes a resource's file say what is here now; touches nothing where it does already.
pub(super) fn update(dir: &Path, resource: &str, hcas: &Nodes, simulated: bool) -> io::Result<()> {
    let file = file(dir, resource);
    let Some(spec) = spec(resource, hcas, simulated) else { return remove(&file) };
    let text = serde_json::to_vec_pretty(&spec)?;
    if fs::read(&file).is_ok_and(|old| old == text) { Ok(()) } else { write_atomically(&file, &text) }
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes the files of resources that there are no more; nobody else's.
pub(super) fn sweep(dir: &Path, resources: &[&str]) {
    let ours: Vec<_> = resources.iter().map(|resource| file(dir, resource)).collect();
    let all = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_ours = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX)) && path.extension().is_some()
    };
    for path in all.filter(is_ours).filter(|path| !ours.contains(path)) {
        if let Err(error) = remove(&path) {
            tracing::warn!(%error, file = %path.display(), "can't remove an old CDI spec");
        }
    }
}

/// The GPUs that NVIDIA's CDI specs have a name for, by UUID. `root` is the node's, as the agent sees it.
pub(super) fn nvidia_gpus(root: &Path) -> BTreeSet<String> {
    #[derive(Deserialize)]
    struct Spec {
        kind: String,
        #[serde(default)]
        devices: Vec<Named>,
    }
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let dirs = ["etc/cdi", "var/run/cdi", "run/cdi"].map(|dir| root.join(dir));
    let files = dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten().map(|entry| entry.path());
    // YAML has JSON in it.
    let specs = files.filter_map(|file| serde_saphyr::from_str::<Spec>(&fs::read_to_string(file).ok()?).ok());
    let gpus = specs.filter(|spec| spec.kind == "nvidia.com/gpu").flat_map(|spec| spec.devices);
    gpus.map(|device| device.name).filter(|name| name.starts_with("GPU-")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hcas(nodes: &[(&str, &[&str])]) -> Nodes {
        let set = |nodes: &[&str]| nodes.iter().map(|n| (*n).to_owned()).collect();
        nodes.iter().map(|(id, nodes)| ((*id).to_owned(), set(nodes))).collect()
    }

    #[test]
    fn a_spec_names_each_hca_and_its_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let one = hcas(&[("0000:18:00.0", &["uverbs3", "rdma_cm"])]);
        update(dir.path(), "gpudirect-rdma/hca", &one, false).unwrap();
        let file = dir.path().join("gdr-agent-gpudirect-rdma_hca.json");
        let spec: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(spec["kind"], "gpudirect-rdma/hca");
        assert_eq!(spec["devices"][0]["name"], "0000:18:00.0");
        let nodes = spec["devices"][0]["containerEdits"]["deviceNodes"].as_array().unwrap();
        assert_eq!(nodes.len(), 2);
        assert_eq!(
            nodes[1],
            json!({ "path": "/dev/infiniband/uverbs3", "hostPath": "/dev/infiniband/uverbs3", "permissions": "rw" })
        );
        // A driver that was loaded again numbers anew; without devices there is no file.
        let before = fs::metadata(&file).unwrap().modified().unwrap();
        update(dir.path(), "gpudirect-rdma/hca", &one, false).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), before);
        update(dir.path(), "gpudirect-rdma/hca", &hcas(&[("0000:18:00.0", &["uverbs0"])]), true).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains("uverbs0") && text.contains("/dev/null") && !text.contains("uverbs3"), "{text}");
        update(dir.path(), "gpudirect-rdma/hca", &Nodes::new(), false).unwrap();
        assert!(!file.exists());
        update(dir.path(), "gpudirect-rdma/hca", &Nodes::new(), false).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(update(&dir.path().join("file"), "a/b", &hcas(&[("x", &["uverbs0"])]), false).is_err());
    }

    #[test]
    fn sweeps_its_own_old_files_and_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        for name in
            ["gdr-agent-a_old.json", "gdr-agent-a_b.json", "nvidia.yaml", "k8s.device-plugin.nvidia.com-gpu.json"]
        {
            fs::write(dir.path().join(name), "{}").unwrap();
        }
        sweep(dir.path(), &["a/b"]);
        let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["gdr-agent-a_b.json", "k8s.device-plugin.nvidia.com-gpu.json", "nvidia.yaml"]);
        sweep(&dir.path().join("none"), &[]);
    }

    #[test]
    fn finds_the_names_of_gpus() {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in [
            (
                "etc/cdi/nvidia.yaml",
                "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n- name: GPU-aa\n- name: all\n",
            ),
            ("run/cdi/other.json", r#"{"kind": "example.com/gpu", "devices": [{"name": "GPU-bb"}]}"#),
            ("run/cdi/more.json", r#"{"kind": "nvidia.com/gpu", "devices": [{"name": "GPU-cc"}]}"#),
            ("run/cdi/broken.json", "{"),
        ] {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert_eq!(nvidia_gpus(root.path()), ["GPU-aa".to_owned(), "GPU-cc".to_owned()].into());
    }
}
