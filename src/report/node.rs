//! What the Node itself says to the agent.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// What a Node's labels and annotations say, as the last answer of the API server showed them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeView {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Until when there are no checks.
    pub paused_until: Option<Timestamp>,
    /// The label that says that a driver, OFED or MIG change is under way.
    pub change_under_way: Option<String>,
}
