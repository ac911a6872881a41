//! `check -v`: the seed's steps for each pair, as a person would try them by hand.

use std::fmt::Write;

use crate::{
    probe::Rows,
    report::{Method, Outcome, Report},
};

/// For each pair and method: allocated at, opened, registered, verified, cleaned up.
#[must_use]
pub fn steps(report: &Report, rows: &Rows) -> String {
    let mut out = String::new();
    for pair in &report.pairs {
        let Some(row) = rows.get(&pair.gpu) else { continue };
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
