//! gdr-agent
fn main() {}
