//! The loop that joins everything.

pub mod check;
mod lock;
mod publish;
mod run;
mod sight;
mod socket;

pub use lock::RunError;
pub use publish::{AGENT_SOCKET, Published, REPORT_FILE};
pub(crate) use run::jittered;
pub use run::run;
pub use socket::ask;
