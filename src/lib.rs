//! `gdr-agent` answers one question on every GPU node of a Kubernetes cluster, and keeps the answer
//! true: can a network adapter read and write GPU memory here, right now?
//!
//! The map of this house; data flows one way, from top to bottom:
//!
//! | module | does |
//! |---|---|
//! | [`cli`] | one file for each command |
//! | [`config`] | the configuration file, typed and checked |
//! | [`report`] | the data types that travel; no logic |
//! | [`hardware`] | what is here: GPUs, HCAs, topology, from sysfs and procfs |
//! | [`ffi`] | the only unsafe code: CUDA, NVML, verbs, a few system calls |
//! | [`probe`] | does it work: a child for each GPU, and its supervision |
//! | [`usage`] | who uses a GPU, and whether a check may touch it |
//! | [`simulate`] | machines that are made up, behind the same trait ([`probe::Machine`]) |
//! | [`verdict`] | what it means: roles, pairs, state, damping (pure) |
//! | [`diagnosis`] | why not: the catalogue of reasons and what raises them (pure) |
//! | [`store`] | what is remembered on the host |
//! | [`node`] | tell the API server: labels, condition, annotation |
//! | [`kubelet`] | tell the kubelet: devices, allocation, registration |
//! | [`agent`] | the loop that joins them |
//! | [`render`] | what people read (pure) |
//! | [`telemetry`] | logs, metrics, health |
//!
//! The joint is one `tokio::sync::watch` of an `Arc` of the current state
//! ([`agent::Published`]); nobody downstream calls upstream, but for one bounded channel of check
//! requests into the agent (`recheck`).

pub mod agent;
pub mod cli;
pub mod config;
pub mod diagnosis;
pub mod ffi;
pub mod hardware;
pub mod kubelet;
pub mod node;
pub mod probe;
pub mod render;
pub mod report;
pub mod simulate;
pub mod store;
pub mod telemetry;
pub mod usage;
pub mod verdict;
