//! Stand-in libraries under the real binary: a machine of files whose GPUs and HCAs answer.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::LazyLock,
};

use assert_cmd::Command;

use super::{Home, Ran, Running, Tree, topology::Built, uuid};

/// Where the stand-ins were built.
static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
    let status = process::Command::new(env!("CARGO"))
        .args(["build", "--locked", "--quiet", "-p", "standin-cuda", "-p", "standin-nvml", "-p", "standin-verbs"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .unwrap();
    assert!(status.success(), "the stand-ins can't be built");
    // Beside the profile of a bench, which is another one.
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("debug")
});

/// Where the node has NVML.
pub(crate) const NVML: &str = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1";

/// A node with stand-ins for its libraries.
pub(crate) struct Node {
    pub(crate) home: Home,
    pub(crate) tree: Tree,
    /// The machine in place of the tree.
    built: Option<Built>,
    gpus: Vec<String>,
    hcas: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Node {
    /// GPUs and HCAs on one switch; both methods work.
    pub(crate) fn new(gpus: usize, hcas: usize) -> Self {
        let tree = Tree::new();
        tree.driver("535.247.01");
        tree.module("nvidia_peermem");
        let mut node =
            Self { home: Home::new(), tree, built: None, gpus: Vec::new(), hcas: Vec::new(), environment: Vec::new() };
        for n in 0..gpus {
            let pci = format!("0000:{:02x}:00.0", 0x20 + n);
            node.tree.gpu(&pci);
            node.add_gpu(&pci);
        }
        for n in 0..hcas {
            let name = format!("mlx5_{n}");
            node.tree.hca(&name, &format!("0000:{:02x}:00.0", 0x40 + n), "4: ACTIVE");
            node.add_hca(&name);
        }
        node.furnish();
        node
    }

    /// A machine that was built, with what is in it.
    pub(crate) fn around(built: Built, gpus: &[String], hcas: Vec<String>) -> Self {
        let mut node = Self::new(0, 0);
        for gpu in gpus {
            node.add_gpu(gpu);
        }
        node.hcas = hcas;
        node.built = Some(built);
        node
    }

    /// The libraries, and that both methods work.
    fn furnish(&mut self) {
        self.library("usr/lib/x86_64-linux-gnu/libcuda.so.1", "libstandin_cuda.so");
        self.library(NVML, "libstandin_nvml.so");
        let verbs = self.home.path("verbs");
        fs::create_dir_all(&verbs).unwrap();
        fs::copy(BUILT.join("libstandin_verbs.so"), verbs.join("libibverbs.so.1")).unwrap();
        self.set("LD_LIBRARY_PATH", verbs.to_str().unwrap());
        self.set("STANDIN_LEDGER", self.home.path("ledger").to_str().unwrap().to_owned().as_str());
        self.set("STANDIN_CUDA_MEMORY", "device");
        self.set("STANDIN_CUDA_DMABUF", "device");
        self.set("STANDIN_NVML_MIG", "0");
        self.set("STANDIN_NVML_CC", "0");
        self.set("STANDIN_VERBS_PEERMEM", "1");
    }

    /// Makes a GPU of the tree known to libcuda.
    pub(crate) fn add_gpu(&mut self, pci: &str) {
        self.gpus.push(format!("{pci}={}", uuid(self.gpus.len())));
    }

    /// Makes an HCA of the tree known to libibverbs.
    pub(crate) fn add_hca(&mut self, name: &str) {
        self.hcas.push(name.to_owned());
    }

    /// Puts a stand-in where the node has the library.
    pub(crate) fn library(&self, place: &str, file: &str) -> PathBuf {
        let place = self.home.path("host").join(place);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(BUILT.join(file), &place).unwrap();
        place
    }

    /// Sets a variable for everything that runs here.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Orders faults of the stand-ins.
    pub(crate) fn order(&mut self, faults: &str) {
        self.set("STANDIN_FAULTS", faults);
    }

    /// A command of the binary on this node.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.home.agent(arguments);
        command.args(self.built.as_ref().map_or_else(|| self.tree.flags(), Built::flags));
        command.env("STANDIN_CUDA_GPUS", self.gpus.join(",")).env("STANDIN_VERBS_HCAS", self.hcas.join(","));
        command.envs(self.environment.iter().cloned());
        command
    }

    /// The same, to be started and left alone.
    pub(crate) fn free(&self, arguments: &[&str]) -> process::Command {
        let command = self.command(arguments);
        let mut free = process::Command::new(command.get_program());
        free.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => free.env(name, value),
                None => free.env_remove(name),
            };
        }
        free
    }

    /// The agent, until it is dropped.
    pub(crate) fn run(&self) -> Running {
        let mut command = self.free(&["run", "--node-name", "n1"]);
        Running(command.stdout(process::Stdio::null()).stderr(process::Stdio::null()).spawn().unwrap())
    }

    /// `check -o json`, with more arguments.
    pub(crate) fn check(&self, more: &[&str]) -> Ran {
        let mut arguments = vec!["check", "-o", "json"];
        arguments.extend(more);
        Ran::of(self.command(&arguments))
    }

    /// What the stand-ins acquired and released, in order, without the process.
    pub(crate) fn ledger(&self) -> Vec<String> {
        let text = fs::read_to_string(self.home.path("ledger")).unwrap_or_default();
        text.lines().filter_map(|line| Some(line.split_once(' ')?.1.to_owned())).collect()
    }

    /// Everything that was acquired is released, in the reverse order; a list of devices may go
    /// earlier, because an open device outlives it. Of one child.
    pub(crate) fn nothing_held(&self) -> Result<(), String> {
        let mut held: Vec<String> = Vec::new();
        for line in self.ledger() {
            let (sign, thing) = line.split_at(1);
            match sign {
                "+" => held.push(thing.to_owned()),
                "p" => {} // what is pinned at that moment
                _ if thing == "list" => held.retain(|h| h != "list"),
                _ if held.last().is_some_and(|last| last == thing) => drop(held.pop()),
                _ => return Err(format!("{line} while held: {}", held.join(", "))),
            }
        }
        if held.is_empty() { Ok(()) } else { Err(format!("never released: {}", held.join(", "))) }
    }
}
