//! Logs, metrics, health.

pub mod http;
pub mod log;
pub mod metrics;
