//! What the binary is made of, and the pages that are made from it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const BINARY: &str = env!("CARGO_BIN_EXE_gdr-agent");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The binary starts anywhere and can say what is missing: the driver's and the RDMA libraries come
/// at run time.
#[test]
fn it_needs_neither_libcuda_nor_libibverbs() {
    let output = Command::new("readelf").args(["-dW", BINARY]).output().expect("readelf, of binutils, is there");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let needed: Vec<_> = text
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .map(|line| line.split_once('[').unwrap().1.trim_end_matches(']'))
        .collect();
    assert!(needed.contains(&"libc.so.6"), "{text}");
    // What every Linux with glibc has. Anything else must be in the image too.
    let allowed = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1"];
    for library in needed {
        assert!(allowed.contains(&library) || library.starts_with("ld-linux"), "NEEDED: {library}");
    }
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// Whether a line of code, without its comment, has the word.
fn says(line: &str, word: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    // Without what stands between quotation marks.
    let code: String = code.split('"').step_by(2).collect();
    code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|w| w == word)
}

#[test]
fn only_ffi_is_unsafe() {
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    let mut inside = 0;
    for file in files {
        let ffi = file.starts_with(root().join("src/ffi"));
        for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            // `allow(unsafe_code)` is the way around the lint.
            if says(line, "unsafe") || says(line, "unsafe_code") {
                assert!(ffi, "{}:{}: {line}", file.display(), number + 1);
                inside += 1;
            }
        }
    }
    assert!(inside > 10, "the search finds what is there");
}

#[test]
fn the_page_of_reasons_is_up_to_date() {
    let output = Command::new(BINARY).args(["explain", "--markdown"]).output().unwrap();
    assert!(output.status.success());
    let made = String::from_utf8(output.stdout).unwrap();
    let kept = fs::read_to_string(root().join("docs/reasons.md")).unwrap();
    assert!(made == kept, "docs/reasons.md is old: run `gdr-agent explain --markdown > docs/reasons.md`");
}

/// `kubectl gdr` runs `kubectl-gdr`, which is a link to the same file.
#[test]
fn as_kubectls_plugin_it_is_about_the_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = dir.path().join("kubectl-gdr");
    std::os::unix::fs::symlink(BINARY, &plugin).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&plugin);
        let output = command.args(arguments).env("KUBECONFIG", dir.path().join("none")).output().unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (output.status.code().unwrap(), text)
    };
    for asks_the_server in [&[][..], &["-o", "wide"], &["-l", "check"], &["--state", "ready"], &["nodes"]] {
        let (status, text) = run(asks_the_server);
        assert!(
            status == 3 && text.contains("it asks as kubectl does, with KUBECONFIG"),
            "{asks_the_server:?}: {status} {text}"
        );
    }
    let (status, text) = run(&["--nodes"]);
    assert!(status == 64 && text.contains("Usage: kubectl gdr nodes"), "{text}");
    let (status, text) = run(&["explain", "PortDown"]);
    assert!(status == 0 && text.contains("PortDown"), "{text}");
    let (status, text) = run(&["--help"]);
    assert!(status == 0 && text.contains("Usage: kubectl gdr") && text.contains("explain"), "{text}");
}
