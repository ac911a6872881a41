//! The loop that joins everything.

pub mod check;
mod lock;
mod pace;
mod publish;
mod run;
mod sight;
mod socket;
mod uevents;

pub use lock::RunError;
pub(crate) use pace::jittered;
pub use publish::{AGENT_SOCKET, FirstCheck, Published, REPORT_FILE};
pub use run::run;
pub use socket::{ACCEPT, HISTORY, RECHECK, STATUS, ask};
