//! Checks of the promises that each parser makes for any input. Property tests and fuzz targets
//! call these functions, which panic if a promise is broken.
pub mod aliases;
pub mod bounce;
pub mod config;
pub mod envelope;
pub mod hops;
