//! How long a whole check takes, beside a program that does what an example of GPUDirect RDMA does (one pair for each
//! process: allocate, open, register, deregister), on the same stand-ins with the delays of a real machine.
//!
//! `make bench`. Times are of this machine; what counts is the ratio, and how far the check is from the sum of the
//! library calls on its critical path.
#![allow(unsafe_code, reason = "the example's program calls C")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench fails by panicking")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::{
    env,
    ffi::c_void,
    path::PathBuf,
    process::{Command, Stdio},
    ptr,
    time::{Duration, Instant},
};

use support::standins::Node;

/// Milliseconds of each call, as real machines have them.
const DELAYS: &[(&str, f64)] = &[
    ("nvmlInit_v2", 20.0),
    ("cuInit", 150.0),
    ("cuDevicePrimaryCtxRetain", 200.0),
    ("cuMemAlloc_v2", 1.0),
    ("ibv_open_device", 2.0),
    ("ibv_reg_mr", 1.5),
    ("ibv_reg_dmabuf_mr", 1.5),
    ("ibv_dereg_mr", 0.5),
    ("cuDevicePrimaryCtxRelease_v2", 50.0),
];

fn delay(call: &str) -> f64 {
    DELAYS.iter().find(|(name, _)| *name == call).map_or(0.0, |(_, ms)| *ms)
}

fn main() {
    if env::args().nth(1).as_deref() == Some("example") {
        return example();
    }
    println!(
        "{:>9} {:>12} {:>12} {:>7} {:>14} {:>9}",
        "machine", "example", "check", "ratio", "critical path", "above it"
    );
    for (gpus, hcas, parallelism) in [(1, 1, 4), (8, 8, 4), (8, 8, 1), (8, 16, 4), (16, 36, 4)] {
        let node = node(gpus, hcas, parallelism);
        // So many of them take as long as they take; of the largest machine some stand for all.
        let pairs = gpus * hcas;
        let run = pairs.min(128);
        let example = run_example(&node, run).mul_f64(f64::from(pairs) / f64::from(run));
        let mut times: Vec<_> = (0..3).map(|_| run_check(&node)).collect();
        times.sort();
        let check = times[1];
        let path = critical_path(gpus, hcas, parallelism);
        println!(
            "{:>9} {:>10.2} s {:>10.3} s {:>6.1}x {:>12.3} s {:>8.1}%   parallelism {parallelism}",
            format!("{gpus} x {hcas}"),
            example.as_secs_f64(),
            check.as_secs_f64(),
            example.as_secs_f64() / check.as_secs_f64(),
            path.as_secs_f64(),
            (check.as_secs_f64() / path.as_secs_f64() - 1.0) * 100.0
        );
    }
    let before = Duration::from_secs_f64((delay("nvmlInit_v2") + delay("cuInit")) / 1000.0);
    let held = run_check(&node(1, 8, 1)).saturating_sub(before);
    println!("A GPU's context is held for {:.2} s at most with 8 HCAs.", held.as_secs_f64());
}

fn node(gpus: u32, hcas: u32, parallelism: u32) -> Node {
    let mut node = Node::new(gpus as usize, hcas as usize);
    node.home.configure(&format!("check: {{ parallelism: {parallelism} }}\n"));
    let delays: Vec<_> = DELAYS.iter().map(|(call, ms)| format!("{call}=delay:{ms}")).collect();
    node.order(&delays.join(";"));
    node
}

/// What the library calls of the longest chain of rows take.
fn critical_path(gpus: u32, hcas: u32, parallelism: u32) -> Duration {
    let (reg, dmabuf, dereg) = (delay("ibv_reg_mr"), delay("ibv_reg_dmabuf_mr"), delay("ibv_dereg_mr"));
    // A host page; by each method the region and the control.
    let hca = delay("ibv_open_device") + reg + 2.0 * dmabuf + dereg + 2.0 * reg + dereg + dereg;
    let gpu = ["nvmlInit_v2", "cuInit", "cuDevicePrimaryCtxRetain", "cuMemAlloc_v2", "cuDevicePrimaryCtxRelease_v2"]
        .iter()
        .map(|call| delay(call))
        .sum::<f64>();
    let milliseconds = f64::from(gpus.div_ceil(parallelism)) * (gpu + f64::from(hcas) * hca);
    Duration::from_secs_f64(milliseconds / 1000.0)
}

fn run_check(node: &Node) -> Duration {
    let start = Instant::now();
    assert!(node.free(&["check", "-o", "json"]).stdout(Stdio::null()).status().unwrap().success());
    start.elapsed()
}

fn run_example(node: &Node, pairs: u32) -> Duration {
    let like = node.free(&["check"]);
    let start = Instant::now();
    for _ in 0..pairs {
        let mut command = Command::new(env::current_exe().unwrap());
        command.arg("example").arg(node.home.path("host/usr/lib/x86_64-linux-gnu/libcuda.so.1"));
        command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
        assert!(command.status().unwrap().success());
    }
    start.elapsed()
}

/// The example's program: what `cudaMalloc` does, then one region on the first device.
fn example() {
    let cuda = PathBuf::from(env::args().nth(2).unwrap());
    // SAFETY: the stand-ins' functions have the signatures of cuda.h and verbs.h, and get what these ask for.
    unsafe {
        let cuda = libloading::Library::new(cuda).unwrap();
        let verbs = libloading::Library::new("libibverbs.so.1").unwrap();
        macro_rules! call {
            ($library:ident, $name:literal, fn($($type:ty),*) -> $answer:ty $(, $argument:expr)*) => {{
                let function: libloading::Symbol<'_, unsafe extern "C" fn($($type),*) -> $answer> =
                    $library.get($name.as_bytes()).unwrap();
                function($($argument),*)
            }};
        }
        let (mut device, mut context, mut pointer) = (0_i32, 0_usize, 0_u64);
        assert_eq!(call!(cuda, "cuInit", fn(u32) -> u32, 0), 0);
        assert_eq!(call!(cuda, "cuDeviceGet", fn(*mut i32, i32) -> u32, &raw mut device, 0), 0);
        assert_eq!(call!(cuda, "cuDevicePrimaryCtxRetain", fn(*mut usize, i32) -> u32, &raw mut context, device), 0);
        assert_eq!(call!(cuda, "cuCtxSetCurrent", fn(usize) -> u32, context), 0);
        assert_eq!(call!(cuda, "cuMemAlloc_v2", fn(*mut u64, usize) -> u32, &raw mut pointer, 1 << 16), 0);
        let list = call!(verbs, "ibv_get_device_list", fn(*mut i32) -> *mut *mut c_void, ptr::null_mut());
        let opened = call!(verbs, "ibv_open_device", fn(*mut c_void) -> *mut c_void, *list);
        let pd = call!(verbs, "ibv_alloc_pd", fn(*mut c_void) -> *mut c_void, opened);
        let mr = call!(verbs, "ibv_reg_mr", fn(*mut c_void, u64, usize, i32) -> *mut c_void, pd, pointer, 1 << 16, 7);
        assert!(!mr.is_null());
        assert_eq!(call!(verbs, "ibv_dereg_mr", fn(*mut c_void) -> i32, mr), 0);
        assert_eq!(call!(verbs, "ibv_dealloc_pd", fn(*mut c_void) -> i32, pd), 0);
        assert_eq!(call!(verbs, "ibv_close_device", fn(*mut c_void) -> i32, opened), 0);
        assert_eq!(call!(cuda, "cuMemFree_v2", fn(u64) -> u32, pointer), 0);
        assert_eq!(call!(cuda, "cuDevicePrimaryCtxRelease_v2", fn(i32) -> u32, device), 0);
    }
}
