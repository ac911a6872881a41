//! Each reason with what raises it, and what is like it and must not.

use std::collections::BTreeSet;

use super::{catalogue::CATALOGUE, entry};
use crate::{
    probe::{
        Limits, Step,
        protocol::{End, Stopped},
    },
    report::{Code, Finding, Method, Outcome, Reason, Severity, Who},
    verdict::fixture::{Scene, bare, refused, result, unknown, unsupported},
};

fn found(scene: &Scene, reason: Reason) -> Option<Finding> {
    scene.assess().findings.into_iter().find(|f| f.reason == reason)
}

fn raised(scene: &Scene, reason: Reason) -> Finding {
    found(scene, reason).unwrap_or_else(|| panic!("no {reason} among {:?}", reasons(scene)))
}

fn reasons(scene: &Scene) -> Vec<Reason> {
    scene.assess().findings.iter().map(|f| f.reason).collect()
}

/// In quotes or as a variant.
#[test]
fn every_reason_has_a_test_that_names_it() {
    fn sources(dir: &std::path::Path, into: &mut String) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.to_string_lossy().into_owned();
            if path.is_dir() {
                sources(&path, into);
            } else if name.contains("/tests/") || name.ends_with("tests.rs") {
                into.push_str(&std::fs::read_to_string(path).unwrap_or_default());
            }
        }
    }
    let mut text = String::new();
    for dir in ["src", "tests"] {
        sources(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(dir), &mut text);
    }
    let named =
        |reason: &Reason| [format!("\"{reason}\""), format!("Reason::{reason}")].iter().any(|n| text.contains(n));
    let missing: Vec<_> = Reason::ALL.iter().filter(|reason| !named(reason)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Two GPUs and two HCAs on one switch.
fn small() -> Scene {
    let mut scene = Scene::new();
    scene.truncate(2, 2);
    scene
}

#[test]
fn every_reason_has_one_row_that_says_everything() {
    let rows: BTreeSet<Reason> = CATALOGUE.iter().map(|e| e.reason).collect();
    assert_eq!(rows, Reason::ALL.iter().copied().collect(), "each reason has its row");
    assert_eq!(rows.len(), CATALOGUE.len(), "and only one");
    for row in CATALOGUE {
        assert_eq!(entry(row.reason).summary, row.summary);
        for text in [row.summary, row.detected, row.remedy] {
            assert!(text.len() > 10 && text.ends_with('.'), "{}: {text}", row.reason);
        }
        assert!(row.remedy.len() <= 400, "{}: it must fit into a condition", row.reason);
        assert_eq!(row.reason.to_string().parse(), Ok(row.reason));
    }
}

/// Memory nodes of a coherent GPU that a cpuset leaves out look like memory that is short.
#[test]
fn a_cpuset_that_hides_gpu_memory_is_no_busy_gpu() {
    let out_of_memory = || End::Refused(Some(Code::cuda(2, Some("CUDA_ERROR_OUT_OF_MEMORY".into()))));
    let mut scene = small();
    scene.stop(0, Step::Context, out_of_memory(), Outcome::Skipped);
    scene.surroundings.nodes_with_memory = Some("0-1,3-9".into());
    let allow = |scene: &mut Scene, nodes: &str| {
        scene.row(0).limits = Some(Limits { ipc_lock: true, nodes_allowed: Some(nodes.into()), ..Limits::default() });
    };
    allow(&mut scene, "0-1");
    let finding = raised(&scene, Reason::CpusetHidesGpuMemory);
    assert_eq!((finding.severity, finding.who), (Severity::Warning, Who::Agent));
    assert!(finding.evidence.iter().any(|e| e.contains("0-1,3-9")), "{:?}", finding.evidence);
    assert_eq!(found(&scene, Reason::GpuBusy), None);
    // With all of them it is memory that is short.
    allow(&mut scene, "0-1,3-9");
    assert_eq!(found(&scene, Reason::CpusetHidesGpuMemory), None);
    raised(&scene, Reason::GpuBusy);
}

#[test]
fn large_mappings_on_64_kib_pages() {
    let mut scene = small();
    scene.surroundings.page_size = 64 << 10;
    scene.inventory.nvidia.as_mut().unwrap().version = "595.71.05".into();
    assert_eq!(raised(&scene, Reason::LargeMappingFault).severity, Severity::Info);
    assert_eq!(scene.assess().verdict.state, crate::report::State::Ready);
    scene.inventory.nvidia.as_mut().unwrap().version = "580.142".into();
    assert_eq!(found(&scene, Reason::LargeMappingFault), None);
    scene.inventory.nvidia.as_mut().unwrap().version = "595.71.05".into();
    scene.surroundings.page_size = 4096;
    assert_eq!(found(&scene, Reason::LargeMappingFault), None);
}

#[test]
fn the_p2p_race_is_of_some_drivers() {
    for (version, has_it) in [
        ("510.108.03", false),
        ("515.43.04", true),
        ("525.60.13", true),
        ("525.105.17", false),
        ("525.147.05", false),
        ("530.30.02", true),
        ("535.14", false),
        ("535.261.03", false),
        ("590.44.01", false),
    ] {
        let mut scene = small();
        scene.surroundings.loaded.insert("nvidia_peermem");
        scene.inventory.nvidia.as_mut().unwrap().version = version.into();
        assert_eq!(found(&scene, Reason::OldDriverP2pRace).is_some(), has_it, "{version}");
    }
}

#[test]
fn peermem_that_is_not_loaded() {
    let mut scene = small();
    scene.set_all(Method::Peermem, &refused(Step::RegMr, 14));
    scene.inventory.peermem = false;
    let finding = raised(&scene, Reason::PeermemNotLoaded);
    assert_eq!((finding.severity, finding.who), (Severity::Info, Who::Node), "dma-buf works");
    assert_eq!((finding.gpus.len(), finding.hcas.len(), finding.method), (2, 2, Some(Method::Peermem)));
    assert_eq!(finding.evidence, ["ibv_reg_mr EFAULT (14)"]);
    scene.set_all(Method::DmaBuf, &unsupported(Step::Export, None));
    assert_eq!(raised(&scene, Reason::PeermemNotLoaded).severity, Severity::Error, "nothing works");
    // With the module, the same errno is another matter.
    scene.inventory.peermem = true;
    assert_eq!(found(&scene, Reason::PeermemNotLoaded), None);
    assert_eq!(raised(&scene, Reason::PeermemRefused).who, Who::Driver);
    // And another errno is not explained by a module that is missing.
    scene.inventory.peermem = false;
    scene.set_all(Method::Peermem, &refused(Step::RegMr, 12));
    assert_eq!(found(&scene, Reason::PeermemNotLoaded), None);
}

#[test]
fn a_provider_or_kernel_without_dma_buf() {
    for errno in [95, 93] {
        let mut scene = small();
        scene.set_all(Method::DmaBuf, &unsupported(Step::RegDmabuf, Some(errno)));
        let finding = raised(&scene, Reason::DmabufVerbUnsupported);
        assert_eq!((finding.severity, finding.who), (Severity::Info, Who::Node));
        assert!(finding.evidence[0].starts_with("ibv_reg_dmabuf_mr EOPNOTSUPP (95)") || errno == 93);
        assert_eq!(reasons(&scene), [Reason::DmabufVerbUnsupported]);
        scene.set_all(Method::Peermem, &refused(Step::RegMr, 12));
        assert_eq!(raised(&scene, Reason::DmabufVerbUnsupported).severity, Severity::Error);
    }
}

#[test]
fn a_driver_that_exports_no_dma_buf() {
    let code = Code::cuda(801, Some("CUDA_ERROR_NOT_SUPPORTED".into()));
    for code in [None, Some(code)] {
        let mut scene = small();
        scene.set_all(Method::DmaBuf, &result(Outcome::Unsupported, Some(Step::Export), code));
        let finding = raised(&scene, Reason::DmabufClosedModule);
        assert_eq!((finding.severity, finding.who), (Severity::Info, Who::Driver));
        assert_eq!(reasons(&scene), [Reason::DmabufClosedModule]);
    }
    let mut scene = small();
    scene.set_all(Method::DmaBuf, &refused(Step::RegDmabuf, 22));
    assert_eq!(reasons(&scene), [Reason::DmabufRefused], "a refusal is no missing path");
}

#[test]
fn adapters_without_rdma_device() {
    let mut scene = small();
    scene.truncate(2, 0);
    scene.inventory.bare_functions = vec![bare("0000:18:00.0")];
    let finding = raised(&scene, Reason::NoRdmaDevices);
    assert_eq!((finding.severity, finding.who), (Severity::Error, Who::Node));
    assert!(finding.evidence[0].contains("0000:18:00.0"));
    assert_eq!(reasons(&scene), [Reason::NoRdmaDevices], "it explains that nothing serves the GPUs");
    // A bond's second function has none, and the first has.
    let mut scene = small();
    scene.inventory.bare_functions = vec![bare("0000:18:00.1")];
    assert_eq!(reasons(&scene), []);
}

#[test]
fn what_the_sandbox_keeps_shut_is_not_broken() {
    for (step, errno, reason) in [
        (Step::Node, Some(2), Reason::UverbsNodeMissing),
        (Step::OpenNode, Some(1), Reason::UverbsPermission),
        (Step::List, None, Reason::ProviderMissing),
    ] {
        let mut scene = small();
        (0..2).for_each(|gpu| (0..2).for_each(|hca| scene.set_both(gpu, hca, &unknown(step, errno))));
        let finding = raised(&scene, reason);
        assert_eq!((finding.severity, finding.who), (Severity::Warning, Who::Agent));
        assert_eq!(reasons(&scene), [reason]);
        assert_eq!(scene.assess().verdict.state, crate::report::State::Unknown, "{reason} accuses nobody");
        // One that is shut beside one that is open is neither counted nor a rail.
        let mut scene = small();
        (0..2).for_each(|gpu| scene.set_both(gpu, 0, &unknown(step, errno)));
        let assessment = scene.assess();
        assert!(!assessment.hcas[0].rail && assessment.hcas[1].rail);
        assert_eq!(raised(&scene, reason).hcas, ["mlx5_0"]);
        assert_eq!(assessment.verdict.state, crate::report::State::Ready);
    }
}

#[test]
fn the_limit_on_locked_memory() {
    let tight = Limits { memlock: Some(64 << 10), ..Limits::default() };
    for errno in [12, 1] {
        let mut scene = small();
        scene.set_all(Method::DmaBuf, &unsupported(Step::Export, None));
        scene.set_all(Method::Peermem, &refused(Step::RegMr, errno));
        (0..2).for_each(|gpu| scene.row(gpu).limits = Some(tight.clone()));
        let finding = raised(&scene, Reason::MemlockLimit);
        assert_eq!((finding.severity, finding.who), (Severity::Warning, Who::Agent));
        assert!(finding.evidence.contains(&"RLIMIT_MEMLOCK 65536 bytes, CAP_IPC_LOCK no".to_owned()), "{finding:?}");
        for (limits, why) in [
            (Limits { ipc_lock: true, ..tight.clone() }, "the capability lifts it"),
            (Limits { memlock: Some(8 << 20), ..tight.clone() }, "it is large enough"),
            (Limits { memlock: None, ..tight.clone() }, "there is none"),
        ] {
            (0..2).for_each(|gpu| scene.row(gpu).limits = Some(limits.clone()));
            assert_eq!(found(&scene, Reason::MemlockLimit), None, "{why}");
            assert!(found(&scene, Reason::PeermemRefused).is_some(), "{why}");
        }
    }
}

#[test]
fn a_port_that_went_down() {
    let mut scene = small();
    scene.port(0, "DOWN");
    let finding = raised(&scene, Reason::PortDown);
    assert_eq!((finding.severity, finding.who), (Severity::Error, Who::Hardware));
    assert_eq!(finding.message, "mlx5_0 (0000:18:00.0): A port that was ACTIVE is not.");
    assert_eq!(finding.evidence, ["port 1 is DOWN"]);
    scene.port(1, "INIT");
    let finding = raised(&scene, Reason::PortDown);
    assert_eq!((finding.hcas.len(), finding.evidence.len()), (2, 2), "one finding with all its HCAs");
    assert_eq!(reasons(&scene), [Reason::PortDown], "it explains that nothing serves the GPUs");
}

#[test]
fn ports_that_never_were_active() {
    let mut scene = small();
    scene.memory.seen_active.clear();
    (0..2).for_each(|hca| scene.port(hca, "DOWN"));
    assert_eq!(reasons(&scene), [Reason::PortNeverActive]);
    assert_eq!(raised(&scene, Reason::PortNeverActive).severity, Severity::Info);
}

#[test]
fn a_driver_that_is_not_there() {
    let mut scene = small();
    scene.inventory.nvidia = None;
    assert_eq!(raised(&scene, Reason::DriverAbsent).evidence, ["/proc/driver/nvidia/version is missing"]);
    // No library: the places are listed.
    let mut scene = small();
    scene.stop(0, Step::LoadCuda, End::Refused(None), Outcome::Unknown);
    scene.row(0).libcuda = vec!["/host/usr/lib64/libcuda.so.1".into(), "/host/lib64/libcuda.so.1".into()];
    let finding = raised(&scene, Reason::DriverAbsent);
    assert_eq!((finding.severity, finding.who), (Severity::Error, Who::Driver));
    assert_eq!(finding.gpus, [scene.inventory.gpus[0].pci]);
    assert!(finding.evidence.iter().any(|e| e.ends_with("/host/usr/lib64/libcuda.so.1, /host/lib64/libcuda.so.1")));
    assert_eq!(reasons(&scene), [Reason::DriverAbsent], "its pairs raise nothing of their own");
}

#[test]
fn how_a_row_ended() {
    let cuda = |number| End::Refused(Some(Code::cuda(number, None)));
    for (step, end, reason, severity) in [
        (Step::Init, cuda(100), Reason::GpuNotVisible, Severity::Warning),
        (Step::Device, End::Refused(None), Reason::GpuNotVisible, Severity::Warning),
        (Step::Init, cuda(802), Reason::FabricManagerDown, Severity::Error),
        (Step::Init, cuda(803), Reason::DriverLibraryMismatch, Severity::Error),
        (Step::Alloc, cuda(214), Reason::GpuEccUncorrectable, Severity::Error),
        (Step::Context, cuda(46), Reason::GpuBusy, Severity::Info),
        (Step::Alloc, cuda(2), Reason::GpuBusy, Severity::Info),
        (Step::Alloc, cuda(999), Reason::CudaFailed, Severity::Warning),
        (Step::DeviceMemory, End::Refused(None), Reason::NotDeviceMemory, Severity::Warning),
        (Step::LoadVerbs, End::Refused(None), Reason::ProviderMissing, Severity::Warning),
        (Step::Init, End::TimedOut, Reason::ProbeTimeout, Severity::Warning),
        (Step::Init, End::Died(Code::signal(11)), Reason::ProbeCrashed, Severity::Warning),
    ] {
        let mut scene = small();
        scene.stop(0, step, end, Outcome::Unknown);
        assert_eq!(reasons(&scene), [reason], "{step}");
        let finding = raised(&scene, reason);
        assert_eq!((finding.severity, &finding.gpus[..]), (severity, &[scene.inventory.gpus[0].pci][..]), "{reason}");
        assert!(finding.evidence[0].starts_with(&step.to_string()), "{reason}: {:?}", finding.evidence);
    }
    // Without the kernel module, no GPU is the driver's absence and nothing else.
    let mut scene = small();
    scene.inventory.nvidia = None;
    scene.stop(0, Step::Init, cuda(100), Outcome::Unknown);
    assert_eq!(reasons(&scene), [Reason::DriverAbsent]);
}

/// A step of one HCA at which the child fell silent names it; the others have outcomes of their own.
#[test]
fn a_step_that_hung_names_its_hca() {
    let mut scene = small();
    scene.set_both(0, 1, &unknown(Step::RegMr, None));
    let stopped = Stopped { step: Step::RegMr, hca: Some("mlx5_1".into()), end: End::TimedOut, detail: String::new() };
    scene.row(0).stops = vec![stopped];
    let finding = raised(&scene, Reason::ProbeTimeout);
    assert_eq!((finding.hcas, finding.evidence), (vec!["mlx5_1".to_owned()], vec!["ibv_reg_mr".to_owned()]));
    assert_eq!(scene.assess().pairs[0].good, Some(true));
}

#[test]
fn ib_uverbs_that_is_not_loaded() {
    let mut scene = small();
    scene.inventory.uverbs = false;
    assert_eq!(raised(&scene, Reason::UverbsNotLoaded).severity, Severity::Error);
}

#[test]
fn doubtful_registrations_are_no_success() {
    for (step, reason) in [(Step::Control, Reason::ControlAccepted), (Step::Verify, Reason::MrMismatch)] {
        let mut scene = small();
        (0..2).for_each(|gpu| (0..2).for_each(|hca| scene.set_both(gpu, hca, &unknown(step, None))));
        assert_eq!(raised(&scene, reason).severity, Severity::Warning);
        assert_eq!(scene.assess().verdict.state, crate::report::State::Unknown);
    }
}

#[test]
fn the_worst_comes_first_and_then_the_more_specific() {
    let mut scene = Scene::new();
    scene.port(4, "DOWN");
    scene.set_all(Method::Peermem, &refused(Step::RegMr, 14));
    scene.inventory.peermem = false;
    scene.silent(0);
    scene.inventory.gpus[7].lost = true;
    let pci = scene.inventory.gpus[7].pci;
    scene.rows.remove(&pci);
    let expected = [Reason::GpuLost, Reason::PortDown, Reason::ProbeTimeout, Reason::PeermemNotLoaded];
    assert_eq!(reasons(&scene), expected);
}

#[test]
fn a_healthy_machine_has_no_findings() {
    assert_eq!(reasons(&Scene::new()), []);
}
