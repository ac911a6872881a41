//! Tell the API server: labels, condition, annotation and events on the agent's own Node; and take them away.

mod api;
mod body;
mod cleanup;
mod events;
mod nfd;
mod publisher;
mod view;

pub use cleanup::{CleanupError, Target, cleanup};
pub use nfd::write_features;
pub use publisher::{Publisher, publish};

/// Type of the condition.
pub const CONDITION: &str = "GPUDirectRDMAReady";
