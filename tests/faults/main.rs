//! Every step × every fault: the real binary over stand-in libraries, each of whose calls fails in
//! each way that it can. `docs/faults.md` is the table.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod away;
mod diagnosis;
mod neighbours;
mod pods;
mod readiness;
mod silence;
mod soak;
mod supervision;
#[path = "../support/mod.rs"]
mod support;
mod table;
mod usage;

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use serde_json::{Value, json};
use support::{find, standins::Node};
use table::{Ends, Row, TABLE};

/// One fault of one call.
#[derive(Clone, Copy)]
struct Cell {
    row: &'static Row,
    fault: &'static str,
}

impl Cell {
    fn name(self) -> String {
        format!("{}={}", self.row.call, self.fault)
    }

    fn is_release(self) -> bool {
        let call = self.row.call;
        ["Free", "Release", "Shutdown", "dereg", "dealloc", "close"].iter().any(|word| call.contains(word))
    }

    /// Whether the child itself can put everything back.
    fn unwinds(self) -> bool {
        let ended = ["hang", "crash", "exit"].iter().any(|kind| self.fault.starts_with(kind));
        !ended && !self.is_release()
    }

    /// Whether a method's end is this fault's own: an attribute that the driver does not know has no
    /// code, a PD that can't be deallocated is busy, whatever kept it, and what the fault beside it does
    /// is not this one's.
    fn shows_its_code(self, ends: Ends) -> bool {
        let attribute = self.row.call.starts_with("cuDeviceGetAttribute@");
        let of_another = ends.step() == Some("ibv_dealloc_pd") && self.row.call != "ibv_dealloc_pd";
        let of_the_given = !self.row.given.is_empty() && ends.step() != Some("ibv_reg_dmabuf_mr");
        ends != Ends::Verified && !attribute && !of_another && !of_the_given
    }

    /// The code that a failing step must show.
    fn code(self) -> Option<String> {
        let (kind, value) = self.fault.split_once(':').unwrap_or((self.fault, ""));
        match (kind, value) {
            ("code", number) => Some(format!("({number})")),
            ("crash", "SEGV") => Some("SIGSEGV (11)".into()),
            ("crash", "BUS") => Some("SIGBUS (7)".into()),
            ("crash", "ABRT") => Some("SIGABRT (6)".into()),
            ("exit", status) => Some(format!("exit status ({status})")),
            _ => None,
        }
    }
}

fn cells() -> Vec<Cell> {
    TABLE.iter().flat_map(|row| row.faults.iter().map(move |fault| Cell { row, fault })).collect()
}

/// Runs one cell; what is not as the table says.
fn run(cell: Cell) -> Result<(), String> {
    let mut node = Node::new(1, 1);
    let timeout = if cell.fault == "hang" { "2s" } else { "60s" };
    node.home.configure(&format!("check: {{ timeout: {timeout}, deepSize: 128KiB }}\n"));
    node.order(&format!("{};{}", cell.row.given, cell.name()));
    let ran = node.check(if cell.row.loopback { &["--loopback"] } else { &[] });
    let report: Value = serde_json::from_str(&ran.out).map_err(|e| format!("{e}: {}", ran.err))?;
    let pair = &report["pairs"][0];
    let mut wrong = Vec::new();
    for (method, ends) in [("dmaBuf", cell.row.dma_buf), ("peermem", cell.row.peermem)] {
        let result = &pair[method];
        let code = result["code"].as_str().unwrap_or_default();
        let right = result["outcome"] == ends.outcome()
            && result["step"] == ends.step().map_or(Value::Null, |step| json!(step))
            && (!cell.shows_its_code(ends) || cell.code().is_none_or(|wanted| code.ends_with(&wanted)));
        if !right {
            wrong.push(format!("{method} is not {ends:?} but {result}"));
        }
    }
    let findings = report["findings"].as_array().cloned().unwrap_or_default();
    let reasons: Vec<&str> = findings.iter().filter_map(|f| f["reason"].as_str()).collect();
    match cell.row.finding {
        "-" if reasons.is_empty() => {}
        reason if find(&report, reason).is_some() => {}
        reason => wrong.push(format!("no {reason} but {reasons:?}")),
    }
    // A pair that works by one method, or of which nothing is known, is not a bad one.
    let good = &pair["good"];
    let any_verified = [cell.row.dma_buf, cell.row.peermem].contains(&Ends::Verified);
    if any_verified != (*good == true) {
        wrong.push(format!("good is {good}"));
    }
    if cell.unwinds()
        && let Err(left) = node.nothing_held()
    {
        wrong.push(left);
    }
    if let Some(left) = leftovers(&node) {
        wrong.push(left);
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("{}: {}", cell.name(), wrong.join("; "))) }
}

/// Folders and processes of a check that is over.
fn leftovers(node: &Node) -> Option<String> {
    let run = node.home.path("run");
    let folders: Vec<_> = fs::read_dir(&run).into_iter().flatten().flatten().map(|e| e.file_name()).collect();
    if let Some(folder) = folders.iter().find(|name| name.to_string_lossy().starts_with("probe-")) {
        return Some(format!("{} is left", folder.display()));
    }
    let mark = run.display().to_string();
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let is_child = command.split(|b| *b == 0).nth(1) == Some(b"probe");
        if is_child && String::from_utf8_lossy(&environment).contains(&mark) {
            return Some(format!("process {} is left", process.file_name().display()));
        }
    }
    None
}

#[test]
fn every_fault_ends_as_the_table_says() {
    let all = cells();
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while let Some(cell) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = run(*cell) {
                        wrong.lock().unwrap().push(error);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {} cells:\n{}", wrong.len(), all.len(), wrong.join("\n"));
    println!("{} cells", all.len());
}

/// The table as documentation.
fn document() -> String {
    let mut text = format!(
        "# Faults\n\nWhat comes of each fault of each library call: {} cells, each of them a test (`tests/faults`). This page is\n\
         generated from the table there by `make docs`.\n\nA number is a `CUresult` of a `cu…` call, an `nvmlReturn_t` of an `nvml…` call and an errno of an `ibv_…` \
         call, or the completion's status of a transfer; 9999 stands\nfor one that a newer driver may invent, \
         `null` for a null pointer with errno 0. `@2` is the second call of its kind in one check.\n\n\
         | Call | Fault | dma-buf | peermem | Finding |\n|---|---|---|---|---|\n",
        cells().len()
    );
    for row in TABLE {
        let faults: Vec<_> = row.faults.iter().map(|f| f.trim_start_matches("code:").replace("wrong:", "")).collect();
        let shown = |ends: Ends| match ends.step() {
            Some(step) => format!("{} at `{step}`", ends.outcome()),
            None => ends.outcome().to_owned(),
        };
        let _ = writeln!(
            text,
            "| `{}`{} | {} | {} | {} | {} |",
            row.call,
            match (row.loopback, row.given) {
                (true, _) => ", with loopback".to_owned(),
                (false, "") => String::new(),
                (false, given) => format!(", with `{given}`"),
            },
            faults.join(", "),
            shown(row.dma_buf),
            shown(row.peermem),
            row.finding
        );
    }
    text
}

#[test]
fn the_documentation_is_this_table() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/faults.md");
    if std::env::var_os("GDR_AGENT_WRITE_DOCS").is_some() {
        fs::write(&file, document()).unwrap();
    }
    assert!(
        fs::read_to_string(file).unwrap_or_default() == document(),
        "docs/faults.md is not this table: run `make docs`"
    );
}
