//! `check`, `explain`, `status` and `probe`, on made-up machines and on machines made of files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};
use support::{BOOT_ID, HEAD, Home, PROFILE, Ran, Tree, evidence, find, finding, text};

fn pairs(report: &Value) -> &Vec<Value> {
    report["pairs"].as_array().unwrap()
}

/// Nothing for a terminal alone, and nothing wider than one.
fn fits_a_pipe(out: &str) {
    assert!(!out.contains('\x1b'), "escape codes in a pipe: {out:?}");
    for line in out.lines() {
        let width = line.chars().count();
        assert!(width <= 80 || !line.trim().contains(' '), "{width} columns: {line}");
    }
}

#[test]
fn a_healthy_machine_is_ready() {
    let home = Home::new();
    let report = home.run(&["check", "--simulate", "hgx-h100", "-o", "json"]).exits(0).json();
    assert_eq!(report["apiVersion"], "gdr-agent/v1");
    assert_eq!(report["kind"], "Report");
    assert_eq!(report["simulated"], true);
    assert_eq!(report["verdict"]["state"], "ready");
    assert_eq!(report["verdict"]["reason"], "AllRailsVerified");
    assert_eq!(report["findings"], json!([]));
    assert_eq!(pairs(&report).len(), 64);
    assert!(pairs(&report).iter().all(|p| p["good"] == true), "{:#}", report["pairs"]);
    assert_eq!(pairs(&report).iter().filter(|p| p["counted"] == true).count(), 16, "two near HCAs for each GPU");
    assert!(report["gpus"].as_array().unwrap().iter().all(|g| g["served"] == true));
}

#[test]
fn the_matrix_fits_a_terminal_and_a_pipe() {
    let home = Home::new();
    let ran = home.run(&["check", "--simulate", "hgx-h100"]).exits(0);
    fits_a_pipe(&ran.out);
    assert!(ran.out.starts_with("GPUDirect RDMA: ready (simulated)"), "{}", ran.out);
    assert_eq!(ran.out.lines().filter(|l| l.trim_start().starts_with("0000:")).count(), 8);
    assert_eq!(ran.out.matches('*').count(), 16 + 1, "the counted pairs, and the legend: {}", ran.out);
    assert_eq!(ran.err, "", "nothing to complain of");
    // Findings are as narrow as the matrix.
    fits_a_pipe(&home.check_with_faults("{ hca: mlx5_4, port: DOWN }, { peermem: false }", &[]).exits(2).out);
}

#[test]
fn a_node_without_gpus_is_none_of_its_business() {
    let home = Home::new();
    let report = home.run(&["check", "--simulate", "cpu-only", "-o", "json"]).exits(3).json();
    assert_eq!(report["verdict"]["state"], "not-applicable");
    assert_eq!(report["verdict"]["reason"], "NoGpu");
    assert_eq!((pairs(&report).len(), &report["findings"]), (0, &json!([])));
    assert!(home.run(&["check", "--simulate", "cpu-only"]).exits(3).out.contains("no NVIDIA GPU"));
}

#[test]
fn a_port_that_went_down_degrades_the_node() {
    let home = Home::new();
    let report = home.check_with_faults("{ hca: mlx5_4, port: DOWN }", &["-o", "json"]).exits(2).json();
    assert_eq!(report["verdict"]["state"], "degraded");
    assert_eq!(report["verdict"]["reason"], "PortDown");
    let port_down = finding(&report, "PortDown");
    assert_eq!(port_down["hcas"], json!(["mlx5_4"]));
    assert_eq!(port_down["severity"], "error");
    assert_eq!(port_down["who"], "hardware");
    assert!(evidence(port_down).contains("port 1 is DOWN"), "{port_down:#}");
    let message = report["verdict"]["message"].as_str().unwrap();
    assert!(message.starts_with("7 of 8 rails, 8 of 8 GPUs served; PortDown"), "{message}");
    assert!(message.contains("cable"), "no remedy in: {message}");
    let out = home.check_with_faults("{ hca: mlx5_4, port: DOWN }", &[]).exits(2).out;
    assert!(out.contains("PortDown") && out.contains("mlx5_4 (0000:98:00.0)") && out.contains("remedy: "), "{out}");
}

/// One missing method is advice, both missing is a node that can't.
#[test]
fn a_method_may_be_missing_but_not_both() {
    let home = Home::new();
    for (faults, status, severity, reasons) in [
        ("{ peermem: false }", 0, "info", vec!["PeermemNotLoaded"]),
        ("{ openModule: false }", 0, "info", vec!["DmabufClosedModule"]),
        ("{ peermem: false }, { openModule: false }", 1, "error", vec!["PeermemNotLoaded", "DmabufClosedModule"]),
    ] {
        let report = home.check_with_faults(faults, &["-o", "json"]).exits(status).json();
        for reason in &reasons {
            let found = finding(&report, reason);
            assert_eq!(found["severity"], severity, "{faults}: {found:#}");
            assert!(!found["remedy"].as_str().unwrap().is_empty());
        }
        assert_eq!(report["findings"].as_array().unwrap().len(), reasons.len(), "{faults}: {:#}", report["findings"]);
        if status == 1 {
            assert_eq!(report["verdict"]["state"], "not-ready");
            assert_eq!(report["verdict"]["reason"], "PeermemNotLoaded");
        }
    }
}

#[test]
fn one_bad_pair_is_found_among_64() {
    let home = Home::new();
    let fault = "{ gpu: \"0000:1b:00.0\", hca: mlx5_0, outcome: failed, step: ibv_reg_mr, code: ENOMEM (12) }";
    let report = home.check_with_faults(fault, &["-o", "json"]).exits(2).json();
    let bad: Vec<_> = pairs(&report).iter().filter(|p| p["good"] == false).collect();
    assert_eq!(bad.len(), 1, "{bad:#?}");
    assert_eq!((&bad[0]["gpu"], &bad[0]["hca"]), (&json!("0000:1b:00.0"), &json!("mlx5_0")));
    assert_eq!(bad[0]["peermem"]["code"], "ENOMEM (12)");
    assert_eq!(finding(&report, "PeermemRefused")["gpus"], json!(["0000:1b:00.0"]));
    // A pair that does not count says nothing of the node.
    let fault = fault.replace("mlx5_0", "mlx5_7");
    home.check_with_faults(&fault, &["-o", "json"]).exits(0);
}

#[test]
fn a_lost_gpu_is_named() {
    let home = Home::new();
    let report = home.check_with_faults("{ gpu: \"0000:d1:00.0\", lost: true }", &["-o", "json"]).exits(2).json();
    assert_eq!(report["verdict"]["reason"], "GpuLost");
    assert_eq!(finding(&report, "GpuLost")["gpus"], json!(["0000:d1:00.0"]));
}

#[test]
fn filters_narrow_the_check() {
    let home = Home::new();
    let check = |arguments: &[&str]| {
        let mut all = vec!["check", "--simulate", "hgx-h100", "-o", "json"];
        all.extend(arguments);
        home.run(&all).exits(0).json()
    };
    let report = check(&["--gpu", "0000:1B:00.0", "--gpu", "GPU-51000000-0000-4000-8000-000000000001"]);
    let gpus: BTreeSet<_> = pairs(&report).iter().map(|p| p["gpu"].as_str().unwrap()).collect();
    assert_eq!(gpus, BTreeSet::from(["0000:1b:00.0", "0000:1c:00.0"]));
    assert_eq!(pairs(&report).len(), 16);
    let report = check(&["--gpu", "0000:1b:00.0", "--hca", "mlx5_1", "--hca", "0000:18:00.0"]);
    let hcas: BTreeSet<_> = pairs(&report).iter().map(|p| p["hca"].as_str().unwrap()).collect();
    assert_eq!(hcas, BTreeSet::from(["mlx5_0", "mlx5_1"]));
    for (method, other) in [("dmaBuf", "peermem"), ("peermem", "dmaBuf")] {
        let argument = if method == "dmaBuf" { "dma-buf" } else { method };
        let report = check(&["--method", argument]);
        assert!(pairs(&report).iter().all(|p| p[method]["outcome"] == "verified" && p[other]["outcome"] == "skipped"));
    }
    let report = check(&["--size", "64KiB"]);
    assert!(pairs(&report).iter().all(|p| p["peermem"]["mr"]["length"] == 64 << 10));
    // What is asked for on the command line is over the environment, and that over the file.
    home.configure("check: { methods: [dma-buf], size: 64KiB, parallelism: 1 }");
    let mut command = home.agent(&["check", "--simulate", "hgx-h100", "-o", "json", "--size", "256KiB"]);
    command.env("GDR_AGENT_CHECK_SIZE", "128KiB").env("GDR_AGENT_CHECK_METHODS", "peermem");
    let report = support::Ran::of(command).exits(0).json();
    let sizes =
        |p: &&serde_json::Value| p["peermem"]["mr"]["length"] == 256 << 10 && p["dmaBuf"]["outcome"] == "skipped";
    assert_eq!(pairs(&report).iter().filter(sizes).count(), 64);
    // Narrowed to the method that is missing, the answer is another.
    home.check_with_faults("{ peermem: false }", &["--method", "peermem"]).exits(1);
    // Where the one that was asked for is not offered, the adapters are not to blame.
    let ran = home.check_with_faults("{ openModule: false }", &["--method", "dma-buf", "-o", "json"]).exits(3);
    assert_eq!(ran.json()["verdict"]["reason"], "DmabufClosedModule");
    assert!(ran.json()["hcas"].as_array().unwrap().iter().all(|h| h["role"] == "eligible"));
}

#[test]
fn what_matches_nothing_is_bad_usage() {
    let home = Home::new();
    for (arguments, says) in [
        (["--gpu", "0000:77:00.0"], "0000:1b:00.0"),
        (["--gpu", "first"], "0000:1b:00.0"),
        (["--hca", "mlx5_8"], "mlx5_0"),
        (["--hca", "0000:77:00.0"], "mlx5_0"),
        (["--size", "1000"], "64KiB"),
        (["--size", "much"], "much"),
        (["--method", "gdrcopy"], "dma-buf"),
    ] {
        let all = [&["check", "--simulate", "hgx-h100"][..], &arguments].concat();
        let ran = home.run(&all).exits(64);
        assert!(ran.err.contains(says) && ran.err.contains(arguments[1]), "{arguments:?}: {}", ran.err);
        assert_eq!(ran.out, "");
    }
    home.run(&["chekc"]).exits(64);
    home.run(&[]).exits(64);
}

#[test]
fn a_bad_profile_is_refused_by_file_and_key() {
    let home = Home::new();
    for (profile, key) in [
        (format!("{PROFILE}faults: [ {{ hca: mlx5_9, port: DOWN }} ]\n"), "faults[0].hca"),
        (format!("{PROFILE}faults: [ {{ peermem: false }}, {{ gpu: \"0000:00:00.0\" }} ]\n"), "faults[1].gpu"),
        (format!("{PROFILE}faults: [ {{ prot: DOWN }} ]\n"), "faults[0].prot"),
        (format!("{PROFILE}faults: [ {{ outcome: broken }} ]\n"), "faults[0].outcome"),
        (format!("{PROFILE}bogus: 1\n"), "bogus"),
        (PROFILE.replace("hgx-h100", "hgx-h900"), "base"),
        (PROFILE.replace("kind: Profile", "kind: Configuration"), "kind"),
        ("faults: [".to_owned(), "YAML"),
    ] {
        let file = home.file("profile.yaml", &profile);
        let ran = home.run(&["check", "--simulate", text(&file)]).exits(64);
        assert!(ran.err.contains(text(&file)) && ran.err.contains(key), "{profile}: {}", ran.err);
    }
    let ran = home.run(&["check", "--simulate", "hgx-h900"]).exits(64);
    assert!(ran.err.contains("hgx-h900") && ran.err.contains("hgx-h100"), "{}", ran.err);
}

#[test]
fn a_bad_configuration_is_refused_by_file_and_key() {
    let home = Home::new();
    for (yaml, key) in [
        ("check: { intervall: 1m }", "check.intervall"),
        ("check: { size: 4KiB }", "check.size"),
        ("publish: { mode: labels }", "publish.mode"),
        ("bogus: 1", "bogus"),
    ] {
        let file = home.file("bad.yaml", &format!("{HEAD}{yaml}\n"));
        for command in ["check", "run"] {
            let mut agent = assert_cmd::Command::new(support::BINARY);
            agent.args([command, "--simulate", "hgx-h100", "--config", text(&file), "--run-dir"]);
            agent.arg(home.path("run"));
            let ran = Ran::of(agent).exits(64);
            assert!(ran.err.contains(text(&file)) && ran.err.contains(key), "{yaml}: {}", ran.err);
        }
    }
    let mut agent = home.agent(&["check", "--simulate", "hgx-h100"]);
    agent.env("GDR_AGENT_CHECK_PARALLELISM", "0");
    let ran = Ran::of(agent).exits(64);
    assert!(ran.err.contains("GDR_AGENT_CHECK_PARALLELISM") && ran.err.contains("check.parallelism"), "{}", ran.err);
}

/// The steps that a person would try by hand, in their order.
#[test]
fn verbose_prints_every_step() {
    let home = Home::new();
    let arguments = ["check", "--simulate", "hgx-h100", "-v", "--gpu", "0000:1b:00.0", "--hca", "mlx5_0"];
    let ran = home.run(&arguments).exits(0);
    for method in ["dma-buf", "peermem"] {
        let title = format!("GPU 0000:1b:00.0 with mlx5_0 by {method}:");
        let (_, mut rest) = ran.out.split_once(&title).unwrap_or_else(|| panic!("no `{title}` in {}", ran.out));
        for step in [
            "allocated at 0x",
            "opened",
            "MR registered: lkey=0x",
            "rkey=0x",
            "addr=0x",
            "length=2097152",
            "verified",
            "cleaned up",
        ] {
            rest = rest.split_once(step).unwrap_or_else(|| panic!("no `{step}` in its place in {}", ran.out)).1;
        }
    }
    fits_a_pipe(&ran.out);
    // A refusal shows its step and its code.
    let out = home.check_with_faults("{ peermem: false }", &["-v", "--hca", "mlx5_0"]).exits(0).out;
    assert!(out.contains("failed at ibv_reg_mr: EFAULT (14)"), "{out}");
}

#[test]
fn every_reason_that_is_listed_is_explained() {
    let home = Home::new();
    let list = home.run(&["explain"]).exits(0).out;
    let reasons: Vec<_> = list.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert!(reasons.len() > 30, "{list}");
    for reason in reasons {
        let ran = home.run(&["explain", reason]).exits(0);
        for part in [reason, "meaning:", "detected by:", "remedy:", "to act:"] {
            assert!(ran.out.contains(part), "{reason}: no `{part}` in {}", ran.out);
        }
        fits_a_pipe(&ran.out);
    }
    let ran = home.run(&["explain", "Gremlins"]).exits(64);
    assert!(ran.err.contains("Gremlins") && ran.err.contains("gdr-agent explain"), "{}", ran.err);
}

#[test]
fn without_an_agent_status_and_recheck_say_what_to_do() {
    let home = Home::new();
    for command in ["status", "recheck"] {
        let ran = home.run(&[command]).exits(3);
        assert!(ran.err.contains(text(&home.path("run"))) && ran.err.contains("gdr-agent run"), "{}", ran.err);
        assert_eq!(ran.out, "");
    }
    // An agent that has ended leaves its last report.
    let report = home.check_with_faults("{ hca: mlx5_4, port: DOWN }", &["-o", "json"]).exits(2).out;
    fs::create_dir_all(home.path("run")).unwrap();
    fs::write(home.path("run/report.json"), &report).unwrap();
    let ran = home.run(&["status", "-o", "json"]).exits(2);
    assert_eq!(ran.json(), serde_json::from_str::<Value>(&report).unwrap());
    assert!(ran.err.contains("no agent runs here"), "{}", ran.err);
    // Half a report is none.
    fs::write(home.path("run/report.json"), &report[..report.len() / 2]).unwrap();
    home.run(&["status"]).exits(3);
}

#[test]
fn the_probe_refuses_what_is_no_plan() {
    let home = Home::new();
    for garbage in ["", "garbage\n", "{}", "[1, 2]", "{\"gpu\": 1}", "\u{0}\u{fffd}"] {
        let mut probe = home.agent(&["probe"]);
        probe.write_stdin(garbage);
        let ran = Ran::of(probe).exits(64);
        assert!(ran.err.contains("plan"), "{garbage}: {}", ran.err);
        assert_eq!(ran.out, "");
    }
}

#[test]
fn a_machine_made_of_files_is_seen_as_it_is() {
    let home = Home::new();
    let report = home.check(&Tree::gpu_and_hca()).json();
    assert_eq!(report["bootId"], BOOT_ID);
    assert_eq!((&report["simulated"], &report["topology"]), (&json!(false), &json!("physical")));
    let gpu = &report["gpus"][0];
    assert_eq!(gpu["pci"], "0000:13:00.0");
    assert_eq!(gpu["uuid"], "GPU-51000000-0000-4000-8000-000000000000");
    assert_eq!((&gpu["model"], &gpu["driver"]), (&json!("NVIDIA H100 80GB HBM3"), &json!("535.247.01")));
    assert_eq!((&gpu["numa"], &gpu["nearest"]), (&json!(0), &json!(["mlx5_0"])));
    let hca = &report["hcas"][0];
    assert_eq!((&hca["name"], &hca["pci"]), (&json!("mlx5_0"), &json!("0000:14:00.0")));
    assert_eq!((&hca["driver"], &hca["vendor"]), (&json!("mlx5_core"), &json!("0x15b3")));
    assert_eq!(
        (&hca["role"], &hca["rail"], &hca["transport"]),
        (&json!("eligible"), &json!(true), &json!("infiniband"))
    );
    let port = json!({ "number": 1, "state": "ACTIVE", "rateGbps": 400.0, "subnetPrefix": "fe80:0000:0000:0000" });
    assert_eq!(hca["ports"], json!([port]));
    assert_eq!(pairs(&report)[0]["distance"], "PIX");
}

#[test]
fn without_libcuda_the_driver_is_absent_and_the_places_are_listed() {
    let home = Home::new();
    let report = home.check(&Tree::gpu_and_hca()).exits(3).json();
    assert_eq!(report["verdict"]["state"], "unknown");
    assert_eq!(report["verdict"]["reason"], "DriverAbsent");
    let absent = finding(&report, "DriverAbsent");
    let seen = evidence(absent);
    for place in ["host/run/nvidia/driver/usr/lib/x86_64-linux-gnu", "host/usr/lib64", "host/run/opengl-driver/lib"] {
        assert!(seen.contains(text(&home.path(place).join("libcuda.so.1"))), "{place}: {seen}");
    }
    // It is not known whether the hardware works, so nothing is said against it.
    assert_eq!(pairs(&report)[0]["good"], Value::Null);
    assert_eq!(pairs(&report)[0]["dmaBuf"]["outcome"], "unknown");
    assert_eq!(pairs(&report)[0]["dmaBuf"]["step"], "dlopen libcuda");
}

#[test]
fn without_the_kernel_module_the_driver_is_absent() {
    let home = Home::new();
    let tree = Tree::new();
    tree.gpu("0000:13:00.0");
    tree.hca("mlx5_0", "0000:14:00.0", "4: ACTIVE");
    let report = home.check(&tree).exits(3).json();
    assert!(evidence(finding(&report, "DriverAbsent")).contains("/proc/driver/nvidia/version"));
}

#[test]
fn an_adapter_without_rdma_device_is_a_finding() {
    let home = Home::new();
    let tree = Tree::new();
    tree.driver("535.247.01");
    tree.gpu("0000:13:00.0");
    tree.function("0000:14:00.0", ("0x15b3", "0x1021"), "0x020000", "mlx5_core");
    let report = home.check(&tree).json();
    let missing = finding(&report, "NoRdmaDevices");
    assert!(evidence(missing).contains("0000:14:00.0"), "{missing:#}");
    assert!(missing["remedy"].as_str().unwrap().contains("mlx5_ib"), "{missing:#}");
    // An ordinary network card is none.
    let tree = Tree::new();
    tree.driver("535.247.01");
    tree.gpu("0000:13:00.0");
    tree.function("0000:14:00.0", ("0x8086", "0x1572"), "0x020000", "i40e");
    let report = home.check(&tree).exits(3).json();
    assert!(find(&report, "NoRdmaDevices").is_none(), "{:#}", report["findings"]);
    assert_eq!(report["verdict"]["state"], "not-applicable");
    assert_eq!(report["verdict"]["reason"], "NoRdmaHardware");
}

#[test]
fn a_gpu_that_reads_as_ones_is_lost() {
    let home = Home::new();
    let tree = Tree::gpu_and_hca();
    let config = tree.sys("bus/pci/devices/0000:13:00.0/config");
    fs::write(config, [0xff_u8; 64]).unwrap();
    let report = home.check(&tree).exits(1).json();
    assert_eq!(report["verdict"]["reason"], "GpuLost");
    assert_eq!(finding(&report, "GpuLost")["who"], "hardware");
    assert_eq!(report["gpus"][0]["role"], "lost");
    assert!(find(&report, "DriverAbsent").is_none(), "no child is started for it: {:#}", report["findings"]);
}

#[test]
fn unloaded_ib_uverbs_is_a_finding() {
    let home = Home::new();
    let tree = Tree::gpu_and_hca();
    tree.unload_uverbs();
    let report = home.check(&tree).json();
    let uverbs = finding(&report, "UverbsNotLoaded");
    assert_eq!(uverbs["who"], "node");
    assert!(uverbs["remedy"].as_str().unwrap().contains("modprobe ib_uverbs"), "{uverbs:#}");
    assert!(find(&home.check(&Tree::gpu_and_hca()).json(), "UverbsNotLoaded").is_none());
}

#[test]
fn ports_that_were_never_active_make_an_idle_adapter() {
    let home = Home::new();
    let tree = Tree::new();
    tree.driver("535.247.01");
    tree.gpu("0000:13:00.0");
    tree.hca("mlx5_0", "0000:14:00.0", "1: DOWN");
    let report = home.check(&tree).exits(1).json();
    assert_eq!(report["hcas"][0]["role"], "idle");
    assert_eq!(report["hcas"][0]["rail"], false);
    assert_eq!(finding(&report, "PortNeverActive")["severity"], "info");
    assert!(find(&report, "PortDown").is_none(), "{:#}", report["findings"]);
    // Beside one of its kind that is up, a port that never was is no fault of the node's.
    let tree = Tree::gpu_and_hca();
    tree.hca("mlx5_1", "0000:15:00.0", "1: DOWN");
    let report = home.check(&tree).exits(3).json();
    assert_eq!(report["hcas"][1]["role"], "idle");
    assert!(find(&report, "PortNeverActive").is_none(), "{:#}", report["findings"]);
}

/// A page goes where the matrix goes, with the same exit status; in a pipe nothing says how far it is.
#[test]
fn the_page_is_all_that_a_pipe_gets() {
    let home = Home::new();
    let ran = home.check_with_faults("{ hca: mlx5_4, port: DOWN }", &["-o", "html"]).exits(2);
    assert!(ran.out.starts_with("<!DOCTYPE html>") && ran.out.ends_with("</html>\n"), "{}", ran.out);
    for part in ["PortDown", "Simulated.", "to act: hardware", "host bridge pci0000:15"] {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
    assert_eq!(ran.err, "");
    // What an agent left behind, without the machine at hand.
    let report = home.check_with_faults("{ hca: mlx5_4, port: DOWN }", &["-o", "json"]).exits(2).out;
    fs::create_dir_all(home.path("run")).unwrap();
    home.file("run/report.json", &report.replace("port 1 is DOWN", "<script>"));
    let page = home.run(&["status", "-o", "html"]).exits(2).out;
    assert!(page.contains("&lt;script&gt;") && !page.contains("<script>"), "{page}");
    assert!(page.contains("PortDown") && !page.contains("host bridge"), "{page}");
}
