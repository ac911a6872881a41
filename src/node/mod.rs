//! Tell the API server: labels, condition, annotation on the agent's own Node; and take them away.

mod body;
mod cleanup;
mod publisher;

pub use cleanup::{CleanupError, Target, cleanup};
pub use publisher::publish;

/// Type of the condition.
pub const CONDITION: &str = "GPUDirectRDMAReady";
