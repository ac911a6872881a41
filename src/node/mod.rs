//! Tell the API server: labels, condition, annotation and events on the agent's own Node; take them away; and
//! read what a whole fleet shows.

mod annotation;
mod api;
mod body;
mod cleanup;
mod events;
mod fleet;
mod list;
mod nfd;
mod outliers;
mod publisher;
mod start;
mod view;

pub use cleanup::{Cleaned, CleanupError, Target, cleanup};
pub use fleet::{Fleet, FleetError, Member, fleet};
pub use nfd::write_features;
pub use outliers::{Outlier, outliers};
pub use publisher::{Publisher, publish};

/// Type of the condition.
pub const CONDITION: &str = "GPUDirectRDMAReady";
