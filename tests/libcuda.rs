//! NVIDIA's own libcuda and NVML 535, with no GPU behind them: the real library's names, symbols and answers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use support::{Home, Ran, Tree, evidence, find, finding, text};

/// The folder of the library, in whose `usr/lib/x86_64-linux-gnu` it lies as on a node.
fn fetched() -> PathBuf {
    let deps = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/libcuda/deps");
    let output = Command::new(deps).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().into()
}

const PLACE: &str = "usr/lib/x86_64-linux-gnu";

/// `535.261.03`.
fn version(root: &Path) -> String {
    let file = fs::read_link(root.join(PLACE).join("libcuda.so.1")).unwrap();
    file.to_str().unwrap().strip_prefix("libcuda.so.").unwrap().to_owned()
}

/// A machine of files with this driver, one GPU and one HCA, and a home whose node has the library.
fn node(root: &Path, kernel: Option<&str>) -> (Home, Tree) {
    let home = Home::new();
    symlink(root.join("usr"), home.path("host/usr")).unwrap();
    let tree = Tree::new();
    if let Some(version) = kernel {
        tree.driver(version);
    }
    tree.gpu("0000:13:00.0");
    tree.hca("mlx5_0", "0000:14:00.0", "4: ACTIVE");
    (home, tree)
}

/// It is not known whether the pair works; which step said so, and how.
fn stopped_at_init(report: &Value) {
    let pair = &report["pairs"][0];
    assert_eq!(pair["good"], Value::Null, "{pair:#}");
    for method in ["dmaBuf", "peermem"] {
        assert_eq!(pair[method]["outcome"], "unknown", "{pair:#}");
        assert_eq!(pair[method]["step"], "cuInit", "{pair:#}");
        assert_eq!(pair[method]["code"], "CUDA_ERROR_NO_DEVICE (100)", "{pair:#}");
    }
    assert_eq!(report["verdict"]["state"], "unknown");
}

#[test]
#[ignore = "needs NVIDIA's libcuda: make test fetches it"]
fn without_a_gpu_the_real_library_says_so() {
    let root = fetched();
    let (home, tree) = node(&root, Some(&version(&root)));
    let report = home.check(&tree).exits(3).json();
    stopped_at_init(&report);
    let unseen = finding(&report, "GpuNotVisible");
    assert!(evidence(unseen).contains("cuInit: CUDA_ERROR_NO_DEVICE (100)"), "{unseen:#}");
    assert_eq!(report["verdict"]["reason"], "GpuNotVisible");
    assert!(find(&report, "DriverAbsent").is_none(), "{:#}", report["findings"]);
}

/// The real NVML answers by its own numbers, and is no hindrance.
#[test]
#[ignore = "needs NVIDIA's libcuda: make test fetches it"]
fn without_a_gpu_the_real_nvml_says_so_too() {
    let root = fetched();
    let (home, tree) = node(&root, Some(&version(&root)));
    let report = home.check(&tree).exits(3).json();
    stopped_at_init(&report);
    let unseen = evidence(finding(&report, "GpuNotVisible"));
    assert!(unseen.contains("NVML: nvmlInit: NVML_ERROR_DRIVER_NOT_LOADED (9)"), "{unseen}");
}

/// Each function that is asked for is the library's own, by this name.
#[test]
#[ignore = "needs NVIDIA's libcuda: make test fetches it"]
fn the_real_nvml_has_each_function() {
    let library = fetched().join(PLACE).join("libnvidia-ml.so.1");
    let output = Command::new("readelf").args(["-W", "--dyn-syms"]).arg(library).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let has = |name: &str| text.split_whitespace().any(|word| word.split('@').next() == Some(name));
    let table = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ffi/nvml.rs")).unwrap();
    let names: Vec<_> = table.lines().filter_map(|line| line.split_once(" = \"nvml")?.1.split_once("\": fn")).collect();
    assert!(names.len() > 10, "the table is not where it was");
    for (name, _) in names {
        assert!(has(&format!("nvml{name}")), "nvml{name}");
    }
}

#[test]
#[ignore = "needs NVIDIA's libcuda: make test fetches it"]
fn without_the_kernel_module_it_is_the_driver_that_is_absent() {
    let root = fetched();
    let (home, tree) = node(&root, None);
    let report = home.check(&tree).exits(3).json();
    stopped_at_init(&report);
    assert_eq!(report["verdict"]["reason"], "DriverAbsent");
    assert!(find(&report, "GpuNotVisible").is_none(), "{:#}", report["findings"]);
}

/// A library that is not the kernel module's is passed over, and the finding says where it looked.
#[test]
#[ignore = "needs NVIDIA's libcuda: make test fetches it"]
fn a_library_of_another_version_is_passed_over() {
    let root = fetched();
    let (home, tree) = node(&root, Some("550.54.14"));
    let report = home.check(&tree).exits(3).json();
    assert_eq!(report["pairs"][0]["dmaBuf"]["step"], "dlopen libcuda");
    let place = home.path("host").join(PLACE).join("libcuda.so.1");
    assert!(evidence(finding(&report, "DriverAbsent")).contains(text(&place)));
}

/// Where drivers, driver containers and the clouds put the library, beneath the node's root.
const PLACES: &[&str] = &[
    "run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "run/nvidia/driver/usr/lib64",
    "home/kubernetes/bin/nvidia/lib64",
    "opt/nvidia/lib64",
    "usr/local/nvidia/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "lib64",
    "usr/local/glibc/usr/lib",
    "run/opengl-driver/lib",
];

/// What lies beside the library on a node and would end any process of the image that took it.
const POISON: &[&str] =
    &["libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libgcc_s.so.1", "libibverbs.so.1"];

/// The library itself, not a link to it, is at each place in turn; nothing else of the place is taken.
#[test]
#[ignore = "needs NVIDIA's libcuda: make test fetches it"]
fn found_at_each_place_with_a_poisoned_libc_beside_it() {
    let root = fetched();
    let version = version(&root);
    let home = Home::new();
    let tree = Tree::new();
    tree.driver(&version);
    tree.gpu("0000:13:00.0");
    tree.hca("mlx5_0", "0000:14:00.0", "4: ACTIVE");
    let file = format!("libcuda.so.{version}");
    let folder = home.path("library");
    fs::create_dir(&folder).unwrap();
    fs::copy(root.join(PLACE).join(&file), folder.join(&file)).unwrap();
    symlink(&file, folder.join("libcuda.so.1")).unwrap();
    for name in POISON {
        fs::write(folder.join(name), "poison").unwrap();
    }
    for place in PLACES {
        let place = home.path("host").join(place);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::rename(&folder, &place).unwrap();
        for mode in ["host", "auto"] {
            let mut command = home.agent(&["check", "-o", "json"]);
            command.args(tree.flags()).env("GDR_AGENT_DRIVER_MODE", mode);
            stopped_at_init(&Ran::of(command).exits(3).json());
        }
        fs::rename(&place, &folder).unwrap();
    }
    // The poison works: with the place itself on the loader's path the child does not even start.
    let mut command = home.agent(&["check", "-o", "json"]);
    command.args(tree.flags()).env("GDR_AGENT_DRIVER_MODE", "runtime").env("LD_LIBRARY_PATH", &folder);
    assert!(!command.output().unwrap().status.success());
}

/// What a runtime class or CDI injects comes by the loader's path.
#[test]
#[ignore = "needs NVIDIA's libcuda: make test fetches it"]
fn an_injected_library_is_found_by_the_loader() {
    let root = fetched();
    let (home, tree) = node(&root, Some(&version(&root)));
    let mut command = home.agent(&["check", "-o", "json"]);
    command.args(tree.flags()).env("GDR_AGENT_DRIVER_MODE", "runtime");
    command.env("LD_LIBRARY_PATH", root.join(PLACE));
    let report = Ran::of(command).exits(3).json();
    stopped_at_init(&report);
    finding(&report, "GpuNotVisible");
}
