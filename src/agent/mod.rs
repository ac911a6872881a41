//! The loop that joins everything.

pub mod check;
mod publish;
mod run;
mod socket;

pub use publish::{AGENT_SOCKET, Published, REPORT_FILE};
pub(crate) use run::jittered;
pub use run::{RunError, run};
pub use socket::ask;
