//! What people read in a terminal. Pure: a report or an inventory in, text out.

mod explain;
mod forest;
mod matrix;
mod nccl;
mod steps;
mod style;
mod topology;
mod tree;

pub use explain::{explain, reasons_table};
pub use matrix::report;
pub use nccl::nccl;
pub use steps::steps;
pub use style::Style;
pub use topology::topology;
