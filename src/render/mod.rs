//! What people read in a terminal. Pure: a report in, text out.

mod explain;
mod matrix;
mod steps;
mod style;

pub use explain::{explain, reasons_table};
pub use matrix::report;
pub use steps::steps;
pub use style::Style;
