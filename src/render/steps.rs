//! `check -v`: the steps of each pair, as a person would try them by hand.

use std::fmt::Write;

use crate::{
    probe::Rows,
    report::{Method, Outcome, Report},
    usage::Usage,
};

/// Who uses a GPU, and what NVML did not tell: that was learned by trying.
fn in_words(usage: &Usage) -> String {
    let processes = usage.processes.as_ref().map(|list| format!("{} other processes", list.len()));
    let memory = usage.memory.map(|memory| format!("{} MiB in use", memory.used >> 20));
    let untold = usage.untold.iter().map(|what| format!("not told: {what}"));
    processes.into_iter().chain(memory).chain(untold).collect::<Vec<_>>().join(", ")
}

/// For each pair and method: allocated at, opened, registered, verified, cleaned up.
#[must_use]
pub fn steps(report: &Report, rows: &Rows) -> String {
    let mut out = String::new();
    let mut told = None;
    for pair in &report.pairs {
        let Some(row) = rows.get(&pair.gpu) else { continue };
        if let Some(usage) = row.usage.as_ref().filter(|_| told.replace(pair.gpu) != Some(pair.gpu)) {
            let _ = writeln!(out, "GPU {}, by NVML: {}", pair.gpu, in_words(usage));
        }
        for method in Method::ALL {
            let result = pair.by(method);
            if result.outcome == Outcome::Skipped {
                continue;
            }
            let _ = writeln!(out, "GPU {} with {} by {method}:", pair.gpu, pair.hca);
            if let Some((address, size)) = row.gpu.allocated {
                let _ = writeln!(out, "  GPU memory allocated at {address:#x}, {size} bytes");
            }
            if let Some(mr) = &result.mr {
                let _ = writeln!(out, "  RDMA device {} opened, protection domain allocated", pair.hca);
                let _ = writeln!(
                    out,
                    "  MR registered: lkey={} rkey={} addr={} length={}",
                    mr.lkey, mr.rkey, mr.addr, mr.length
                );
            }
            if let Some(loopback) = &result.loopback {
                let _ = writeln!(
                    out,
                    "  transferred {} bytes: RDMA WRITE to the GPU {}, RDMA READ from it {}",
                    loopback.bytes, loopback.write, loopback.read
                );
            }
            match (result.outcome, result.step.as_deref()) {
                (Outcome::Verified, _) => {
                    out.push_str("  verified: device memory, keys of its own, length as asked, control refused\n");
                    out.push_str("  cleaned up: MR deregistered, memory freed, device closed\n");
                }
                (outcome, step) => {
                    let code = result.code.as_ref().map(|c| format!(": {c}")).unwrap_or_default();
                    let _ = writeln!(out, "  {outcome} at {}{code}", step.unwrap_or("start"));
                }
            }
        }
    }
    out
}
