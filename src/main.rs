//! mailrun.
fn main() {}
