//! The catalogue for people: one reason, or all of them.

use std::fmt::Write;

use super::matrix::wrap;
use crate::{diagnosis::Entry, diagnosis::catalogue::CATALOGUE};

/// One reason: cause, how it is detected, who must act, remedy.
#[must_use]
pub fn explain(entry: &Entry) -> String {
    let mut out = format!("{}\n", entry.reason);
    for (name, text) in [("meaning", entry.summary), ("detected by", entry.detected), ("remedy", entry.remedy)] {
        let _ = writeln!(out, "  {name}:");
        for line in wrap(text, 74) {
            let _ = writeln!(out, "    {line}");
        }
    }
    let _ = writeln!(out, "  to act: {}", entry.who);
    out
}

/// `docs/reasons.md`.
#[must_use]
pub fn reasons_table() -> String {
    let mut out = "# Reasons\n\nWhat the agent can say of a node. `gdr-agent explain REASON` prints one; this page is generated from the\n\
         same table (`make docs`).\n"
        .to_owned();
    for entry in CATALOGUE {
        let passes = if entry.transient { "can pass by itself" } else { "lasts until somebody acts" };
        let _ = write!(
            out,
            "\n## {}\n\n{}\n\n- **Detected by**: {}\n- **To act**: {}\n- **Remedy**: {}\n- **Lasting**: {passes}\n",
            entry.reason, entry.summary, entry.detected, entry.who, entry.remedy
        );
    }
    out
}
