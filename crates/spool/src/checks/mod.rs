//! Checks that this crate copes with any input: no panic, and the same result each time. Property
//! tests and fuzz targets call these functions, which panic if a check fails.
pub mod segment;
