//! The binary under test, away from this machine's own agent, and machines made of files.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod look;
pub(crate) mod topology;

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process,
    time::Duration,
};

pub(crate) mod standins;

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

/// First lines of every configuration file.
pub(crate) const HEAD: &str = "apiVersion: gdr-agent/v1\nkind: Configuration\n";
/// First lines of every profile.
pub(crate) const PROFILE: &str = "apiVersion: gdr-agent/v1\nkind: Profile\nbase: hgx-h100\n";
/// The boot id of a machine made of files.
pub(crate) const BOOT_ID: &str = "5f0e3c1a-9d52-4a3e-8d8b-0c6a4e0b7f11";

/// What `/proc/driver/nvidia/version` says of the open module.
pub(crate) const DRIVER_VERSION: &str =
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build\n";

/// The binary under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_gdr-agent");

/// A folder of one test's own, with a configuration that keeps everything inside.
pub(crate) struct Home {
    dir: TempDir,
}

impl Home {
    /// An empty one.
    pub(crate) fn new() -> Self {
        let home = Self { dir: tempfile::tempdir().unwrap() };
        home.configure("");
        home
    }

    /// A path in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes the configuration: store and driver are always inside.
    pub(crate) fn configure(&self, more: &str) {
        let (store, host) = (self.path("store"), self.path("host"));
        fs::create_dir_all(&host).unwrap();
        let inside =
            format!("store: {{ dir: '{}' }}\ndriver: {{ mode: host, root: '{}' }}\n", store.display(), host.display());
        self.file("config.yaml", &format!("{HEAD}{inside}{more}"));
    }

    /// Writes a file and answers its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// `gdr-agent ARGUMENTS`, with the configuration and the run folder of this home.
    pub(crate) fn agent(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("GDR_AGENT_")) {
            command.env_remove(name);
        }
        command.env_remove("NO_COLOR");
        command.args(arguments).arg("--config").arg(self.path("config.yaml"));
        command.arg("--run-dir").arg(self.path("run"));
        command
    }

    /// Runs it and answers its exit status, output and complaints.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.agent(arguments))
    }

    /// `check -o json` on a machine made of files; `Ran::json` is the report.
    pub(crate) fn check(&self, tree: &Tree) -> Ran {
        let mut command = self.agent(&["check", "-o", "json"]);
        command.args(tree.flags());
        Ran::of(command)
    }

    /// `check` on a profile with these faults, in YAML's flow form.
    pub(crate) fn check_with_faults(&self, faults: &str, arguments: &[&str]) -> Ran {
        let profile = self.file("profile.yaml", &format!("{PROFILE}faults: [{faults}]\n"));
        let mut all = vec!["check", "--simulate", profile.to_str().unwrap()];
        all.extend(arguments);
        self.run(&all)
    }
}

/// What came of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn of(mut command: Command) -> Self {
        let output = command.output().unwrap();
        Self {
            status: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Its output, after its exit status is as it should be.
    pub(crate) fn exits(self, status: i32) -> Self {
        assert_eq!(self.status, Some(status), "{}\n{}", self.out, self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }

    /// Its output as a report.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}\n{}", self.out, self.err))
    }
}

/// A port that was free a moment ago; an agent tries again where somebody else was faster.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Status and body of an HTTP answer.
pub(crate) fn get(mut stream: TcpStream, path: &str) -> (u16, String) {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP: {answer}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A process that does not outlive its test.
pub(crate) struct Running(pub(crate) process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file whose reader waits, as in a driver, and what comes of its answering at last.
pub(crate) fn block(file: PathBuf) -> impl FnOnce() {
    let text = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    assert!(process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    move || {
        let writer = fs::OpenOptions::new().write(true).open(&file).unwrap();
        fs::remove_file(&file).unwrap();
        fs::write(&file, text).unwrap();
        drop(writer);
    }
}

/// The finding of a reason; a report without it is a failure.
pub(crate) fn finding<'a>(report: &'a Value, reason: &str) -> &'a Value {
    find(report, reason).unwrap_or_else(|| panic!("no {reason} among {:#}", report["findings"]))
}

/// The finding of a reason, if there is one.
pub(crate) fn find<'a>(report: &'a Value, reason: &str) -> Option<&'a Value> {
    report["findings"].as_array().unwrap().iter().find(|f| f["reason"] == reason)
}

/// All evidence of a finding.
pub(crate) fn evidence(finding: &Value) -> String {
    let lines = finding["evidence"].as_array().unwrap().iter().map(|e| e.as_str().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

/// A machine made of files, as sysfs, procfs and `/dev` would show it: one host bridge, one switch.
pub(crate) struct Tree {
    dir: TempDir,
}

/// PCI functions get their places on the switch in the order of their coming.
const SWITCH: &str = "devices/pci0000:10/0000:10:01.0/0000:11:00.0";

impl Tree {
    /// A machine without GPU and HCA, where `ib_uverbs` is loaded.
    pub(crate) fn new() -> Self {
        let tree = Self { dir: tempfile::tempdir().unwrap() };
        tree.put("proc/sys/kernel/random/boot_id", format!("{BOOT_ID}\n"));
        for dir in ["bus/pci/devices", "class/infiniband", "class/infiniband_verbs", "module"] {
            fs::create_dir_all(tree.sys(dir)).unwrap();
        }
        fs::create_dir_all(tree.dir.path().join("dev/infiniband")).unwrap();
        tree
    }

    /// A GPU with its driver and an HCA with an ACTIVE port.
    pub(crate) fn gpu_and_hca() -> Self {
        let tree = Self::new();
        tree.driver("535.247.01");
        tree.gpu("0000:13:00.0");
        tree.hca("mlx5_0", "0000:14:00.0", "4: ACTIVE");
        tree
    }

    /// What leads the agent to it.
    pub(crate) fn flags(&self) -> Vec<String> {
        [("--sysfs-root", "sys"), ("--procfs-root", "proc"), ("--dev-root", "dev")]
            .into_iter()
            .flat_map(|(flag, dir)| [flag.to_owned(), self.dir.path().join(dir).display().to_string()])
            .collect()
    }

    /// A path below its sysfs.
    pub(crate) fn sys(&self, path: &str) -> PathBuf {
        self.dir.path().join("sys").join(path)
    }

    /// Takes an HCA out of this network namespace, and what comes of putting it back.
    pub(crate) fn take(&self, hca: &str) -> impl FnOnce() + use<> {
        let link = self.sys("class/infiniband").join(hca);
        let target = fs::read_link(&link).unwrap();
        fs::remove_file(&link).unwrap();
        move || symlink(target, link).unwrap()
    }

    /// Writes a file, with its folders.
    pub(crate) fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let file = self.dir.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }

    /// Loads a module.
    pub(crate) fn module(&self, name: &str) {
        fs::create_dir_all(self.sys("module").join(name)).unwrap();
    }

    /// Loads the NVIDIA driver, the closed one.
    pub(crate) fn driver(&self, version: &str) {
        self.module("nvidia");
        let text = format!(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Wed Feb 12 21:00:55 UTC 2025\n\
             GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
        );
        self.put("proc/driver/nvidia/version", text);
    }

    /// Adds a PCI function and answers its folder.
    pub(crate) fn function(&self, pci: &str, ids: (&str, &str), class: &str, driver: &str) -> PathBuf {
        let port = fs::read_dir(self.sys("bus/pci/devices")).unwrap().count();
        let dir = self.sys(SWITCH).join(format!("0000:12:{port:02x}.0")).join(pci);
        fs::create_dir_all(&dir).unwrap();
        let words = [("vendor", ids.0), ("device", ids.1), ("class", class), ("numa_node", "0")];
        for (name, text) in words {
            fs::write(dir.join(name), format!("{text}\n")).unwrap();
        }
        fs::write(dir.join("config"), [0x00_u8; 64]).unwrap();
        let driver_dir = self.sys("bus/pci/drivers").join(driver);
        fs::create_dir_all(&driver_dir).unwrap();
        symlink(&driver_dir, dir.join("driver")).unwrap();
        symlink(&dir, self.sys("bus/pci/devices").join(pci)).unwrap();
        dir
    }

    /// Adds an H100.
    pub(crate) fn gpu(&self, pci: &str) -> PathBuf {
        let n = fs::read_dir(self.dir.path().join("proc/driver/nvidia/gpus")).map_or(0, Iterator::count);
        let text = format!(
            "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 42\nGPU UUID: \t {}\nDevice Minor: \t {n}\n",
            uuid(n)
        );
        self.put(&format!("proc/driver/nvidia/gpus/{pci}/information"), text);
        self.function(pci, ("0x10de", "0x2330"), "0x030200", "nvidia")
    }

    /// Adds a `ConnectX-7` with one port, its verbs device, and a file where its node should be.
    pub(crate) fn hca(&self, name: &str, pci: &str, state: &str) {
        let function = self.function(pci, ("0x15b3", "0x1021"), "0x020700", "mlx5_core");
        let device = function.join("infiniband").join(name);
        for (file, text) in [
            ("node_type", "1: CA"),
            ("fw_ver", "28.43.2566"),
            ("ports/1/state", state),
            ("ports/1/rate", "400 Gb/sec (4X NDR)"),
            ("ports/1/link_layer", "InfiniBand"),
            ("ports/1/gids/0", "fe80:0000:0000:0000:a088:c203:0042:7b10"),
        ] {
            let file = device.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{text}\n")).unwrap();
        }
        symlink(&function, device.join("device")).unwrap();
        symlink(&device, self.sys("class/infiniband").join(name)).unwrap();
        let verbs = self.sys("class/infiniband_verbs");
        if verbs.is_dir() {
            let number = fs::read_dir(&verbs).unwrap().count();
            let node = function.join(format!("infiniband_verbs/uverbs{number}"));
            fs::create_dir_all(&node).unwrap();
            symlink(&node, verbs.join(format!("uverbs{number}"))).unwrap();
            fs::write(node.join("ibdev"), format!("{name}\n")).unwrap();
            fs::write(node.join("dev"), format!("231:{}\n", 192 + number)).unwrap();
            self.put(&format!("dev/infiniband/uverbs{number}"), "");
        }
    }

    /// Unloads `ib_uverbs`.
    pub(crate) fn unload_uverbs(&self) {
        fs::remove_dir_all(self.sys("class/infiniband_verbs")).unwrap();
        fs::remove_dir_all(self.dir.path().join("dev/infiniband")).unwrap();
    }
}

/// The UUID of the n-th GPU.
pub(crate) fn uuid(n: usize) -> String {
    format!("GPU-51000000-0000-4000-8000-{n:012x}")
}

/// A profile's or tree's path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
