//! Configurations that can't work: each is refused with its file, the path of the key, and what would be right,
//! exit status 64.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use support::{HEAD, Home};

/// The file after its first two lines, the key that is named, and what is said of it.
const BAD: &[(&str, &str, &str)] = &[
    // Keys that do not exist, with the nearest that does.
    ("bogus: 1", "bogus", "unknown field"),
    ("chek: { interval: 1m }", "chek", "did you mean `check`?"),
    ("check: { intervall: 1m }", "check.intervall", "did you mean `interval`?"),
    ("check: { deepsize: 1MiB }", "check.deepsize", "did you mean `deepSize`?"),
    ("check: { busy_gpus: skip }", "check.busy_gpus", "did you mean `busyGpus`?"),
    ("policy: { damping: { falls: 1 } }", "policy.damping.falls", "did you mean `fall`?"),
    ("policy: { port_grace: 1m }", "policy.port_grace", "did you mean `portGrace`?"),
    ("publish: { dryrun: true }", "publish.dryrun", "did you mean `dryRun`?"),
    ("publish: { shortlabel: true }", "publish.shortlabel", "did you mean `shortLabel`?"),
    ("resources: [ { replica: 2 } ]", "resources[0].replica", "did you mean `replicas`?"),
    (
        "resources: [ { select: [ { linklayer: roce } ] } ]",
        "resources[0].select[0].linklayer",
        "did you mean `linkLayer`?",
    ),
    ("kubelet: { device-plugins: /x }", "kubelet.device-plugins", "did you mean `devicePlugins`?"),
    ("http: { port: 9477 }", "http.port", "unknown field"),
    ("log: { levle: info }", "log.levle", "did you mean `level`?"),
    // Values of another type.
    ("check: fast", "check", "expected keys with their values"),
    ("check: { interval: 15 }", "check.interval", "15m"),
    ("check: { interval: soon }", "check.interval", "15m"),
    ("check: { size: big }", "check.size", "MiB"),
    ("check: { parallelism: many }", "check.parallelism", "expected a whole number"),
    ("check: { parallelism: -1 }", "check.parallelism", "expected a whole number"),
    ("check: { methods: dma-buf }", "check.methods", "expected a sequence"),
    ("check: { methods: [gdrcopy] }", "check.methods[0]", "peermem"),
    ("check: { methods: [dmabuf] }", "check.methods[0]", "did you mean `dma-buf`?"),
    ("check: { loopback: often }", "check.loopback", "always"),
    ("check: { busyGpus: ignore }", "check.busyGpus", "skip"),
    ("policy: { pairs: near }", "policy.pairs", "nearest"),
    ("policy: { expect: { gpus: 8 } }", "policy.expect", "expected a sequence"),
    ("publish: { mode: labels }", "publish.mode", "nfd"),
    ("publish: { events: maybe }", "publish.events", "expected a boolean"),
    ("resources: [ { kind: nic } ]", "resources[0].kind", "hca"),
    ("resources: [ { select: [ { function: sf } ] } ]", "resources[0].select[0].function", "pf"),
    ("resources: [ { select: [ { pci: \"1b:00\" } ] } ]", "resources[0].select[0].pci", "0000:1b:00.0"),
    ("log: { format: yaml }", "log.format", "json"),
    // Out of range.
    ("check: { interval: 0s }", "check.interval", "at least 1s"),
    ("check: { methods: [] }", "check.methods", "dma-buf"),
    ("check: { methods: [peermem, peermem] }", "check.methods", "`peermem` twice"),
    ("check: { size: 4KiB }", "check.size", "64KiB"),
    ("check: { size: 100000 }", "check.size", "2MiB"),
    ("check: { size: 96KiB }", "check.size", "multiple of 64KiB"),
    ("check: { deepSize: 1TiB }", "check.deepSize", "like 64KiB, 2MiB or 1GiB"),
    ("check: { deepSize: 65GiB }", "check.deepSize", "to 64GiB"),
    ("check: { timeout: 2h }", "check.timeout", "1s to 1h"),
    ("check: { parallelism: 0 }", "check.parallelism", "1 to 64"),
    ("policy: { damping: { fall: 0 } }", "policy.damping.fall", "1 to 100"),
    ("policy: { damping: { hold: 2days } }", "policy.damping.hold", "at most 1day"),
    ("policy: { settle: 3d }", "policy.settle", "at most"),
    ("policy: { portGrace: 2h }", "policy.portGrace", "at most 1h"),
    ("publish: { heartbeat: 1s }", "publish.heartbeat", "at least 10s"),
    ("resources: [ { replicas: 0 } ]", "resources[0].replicas", "is 0; must be 1 to 1024"),
    ("resources: [ { select: [ { minRateGbps: -1 } ] } ]", "resources[0].select[0].minRateGbps", "like 200"),
    ("policy: { expect: [ { gpus: 5000 } ] }", "policy.expect[0].gpus", "1024"),
    // Names and places.
    (
        "publish: { prefix: a-name-that-is-far-longer-than.the-name-of-a-label-without-a-prefix-may-be }",
        "publish.prefix",
        "63 characters",
    ),
    ("publish: { prefix: node.kubernetes.io }", "publish.prefix", "kubernetes.io"),
    ("publish: { prefix: Bad_Prefix }", "publish.prefix", "lower-case"),
    ("resources: [ { name: hca } ]", "resources[0].name", "domain/name"),
    ("resources: [ { name: kubernetes.io/hca } ]", "resources[0].name", "kubernetes.io"),
    ("hardware: { topologyFile: topo.xml }", "hardware.topologyFile", "absolute path"),
    ("store: { dir: state }", "store.dir", "absolute path"),
    ("cdi: { dir: ../cdi }", "cdi.dir", "absolute path"),
    ("driver: { root: /host/../etc }", "driver.root", "without `..`"),
    ("http: { listen: everywhere }", "http.listen", "9477"),
    ("resources: [ { select: [ { vendor: mellanox } ] } ]", "resources[0].select[0].vendor", "0x15b3"),
    // What can never match, or never twice.
    ("resources: [ { select: [] } ]", "resources[0].select", "takes nothing"),
    ("resources: [ { select: [ {} ] } ]", "resources[0].select[0]", "empty"),
    ("resources: [ { select: [ { name: \"\" } ] } ]", "resources[0].select[0].name", "matches nothing"),
    ("resources: [ { select: [ { linkLayer: ethernet } ] } ]", "resources[0].select[0].linkLayer", "infiniband, roce"),
    ("resources: [ { name: a/b }, { name: a/b } ]", "resources[1].name", "twice"),
    ("resources: [ { name: a/b }, { name: a/c } ]", "resources[1].select", "`a/b`"),
    (
        "resources: [ { name: a/b, ncclEnv: true }, { name: a/c, ncclEnv: true, select: [ { name: x } ] } ]",
        "resources[1].ncclEnv",
        "`a/b` too",
    ),
    ("check: { select: { gpus: [ { linkLayer: roce } ] } }", "check.select.gpus[0].linkLayer", "of HCAs alone"),
    (
        "check: { select: { gpus: [ { function: vf } ] } }",
        "check.select.gpus[0].function",
        "is `vf`, and of HCAs alone",
    ),
    ("check: { select: { gpus: [ {} ] } }", "check.select.gpus[0]", "empty"),
    ("policy: { expect: [ { product: x } ] }", "policy.expect[0]", "asks for nothing"),
    ("policy: { expect: [ { gpuModel: \" \", gpus: 1 } ] }", "policy.expect[0].gpuModel", "glob"),
];

/// What the key has, where that is a word or a number.
fn value(yaml: &str, key: &str) -> Option<String> {
    let tree: serde_json::Value = serde_saphyr::from_str(yaml).unwrap();
    match tree.pointer(&format!("/{}", key.replace(['[', '.'], "/").replace(']', "")))? {
        serde_json::Value::String(text) => Some(text.trim().to_owned()),
        serde_json::Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[test]
fn a_bad_file_is_refused_with_its_key_and_what_would_be_right() {
    assert!(BAD.len() >= 50);
    let home = Home::new();
    let mut wrong = Vec::new();
    for (yaml, key, hint) in BAD {
        let file = home.file("bad.yaml", &format!("{HEAD}{yaml}\n"));
        let mut command = assert_cmd::Command::new(support::BINARY);
        let ran = support::Ran::of({
            command.args(["check", "--simulate", "hgx-h100", "--config"]).arg(&file);
            command
        });
        let with_value = value(yaml, key).is_none_or(|value| ran.err.contains(&value));
        let named = ran.err.contains("bad.yaml") && ran.err.contains(&format!(" {key}:")) && ran.err.contains(hint);
        let named = named && (with_value || ran.err.contains("unknown field"));
        if ran.status != Some(64) || !ran.out.is_empty() || !named {
            wrong.push(format!("{yaml}\n  {:?} {}  not: {key}: … {hint}, with the value", ran.status, ran.err));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), BAD.len(), wrong.join("\n"));
}

#[test]
fn a_file_that_is_none_is_refused_too() {
    let home = Home::new();
    for (text, hint) in [
        ("", "apiVersion"),
        ("kind: Configuration\n", "apiVersion"),
        ("apiVersion: gdr-agent/v2\nkind: Configuration\n", "gdr-agent/v1"),
        ("apiVersion: gdr-agent/v1\nkind: Profile\n", "Configuration"),
        ("a: [", "YAML"),
        ("apiVersion: gdr-agent/v1\nkind: Configuration\ncheck: {}\ncheck: {}\n", "check"),
    ] {
        let file = home.file("bad.yaml", text);
        let mut command = assert_cmd::Command::new(support::BINARY);
        command.args(["check", "--simulate", "hgx-h100", "--config"]).arg(&file);
        let ran = support::Ran::of(command).exits(64);
        assert!(ran.err.contains("bad.yaml") && ran.err.contains(hint), "{text:?}: {}", ran.err);
    }
    let ran = home.run(&["check", "--simulate", "hgx-h100", "--config", "/nowhere/config.yaml"]);
    assert_eq!(ran.status, Some(64), "{}", ran.err);
}

#[test]
fn the_environment_is_named_when_it_is_at_fault() {
    let home = Home::new();
    let mut command = home.agent(&["check", "--simulate", "hgx-h100"]);
    command.env("GDR_AGENT_CHECK_PARALLELISM", "0");
    let ran = support::Ran::of(command).exits(64);
    assert!(ran.err.contains("GDR_AGENT_CHECK_PARALLELISM") && ran.err.contains("check.parallelism"), "{}", ran.err);
}

/// A variable takes nobody's mistake away, and makes none worse.
#[test]
fn the_environment_hides_nothing_that_is_wrong_in_the_file() {
    let home = Home::new();
    for (text, hint) in
        [("- a\n".to_owned(), "expected keys with their values"), (format!("{HEAD}check: fast\n"), " check:")]
    {
        home.file("config.yaml", &text);
        let mut command = home.agent(&["check", "--simulate", "hgx-h100"]);
        command.env("GDR_AGENT_CHECK_INTERVAL", "1m");
        let ran = support::Ran::of(command).exits(64);
        assert!(ran.err.contains("config.yaml") && ran.err.contains(hint), "{text:?}: {}", ran.err);
    }
}
