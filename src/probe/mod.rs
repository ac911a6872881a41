//! Does it work: the steps in the child, the parent's supervision, and the protocol between them.
//!
//! One child process for each GPU covers all HCAs with one CUDA context, so that a hang, a crash or
//! a sticky error costs one row of the matrix, and never the agent.

pub mod child;
mod folder;
mod library;
mod lock;
pub mod loopback;
mod machine;
mod method;
mod nvml;
pub mod outcome;
pub mod protocol;
pub mod sandbox;
pub mod supervisor;

pub use library::{DRIVER_CONTAINER, Found, find_libcuda};
pub(crate) use lock::lock_within;
pub use machine::{Answer, Machine, RealMachine, Rows, Task};
pub use protocol::{GpuAnswer, HcaAnswer, Limits, Plan, Row, Step};
pub use supervisor::Supervisor;
