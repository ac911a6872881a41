//! What people read, in a terminal or in a browser. Pure: a report or an inventory in, text out.

mod explain;
mod fleet;
mod forest;
mod history;
mod html;
mod matrix;
mod nccl;
mod steps;
mod style;
mod summary;
mod topology;
mod tree;

pub use explain::{explain, reasons_table};
pub use fleet::{fleet, outliers};
pub use history::history;
pub use html::html;
pub use matrix::report;
pub use nccl::nccl;
pub use steps::steps;
pub use style::Style;
pub use topology::topology;
