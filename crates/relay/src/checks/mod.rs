//! What each parser promises about any input. The property tests and the fuzz targets call these functions, which panic if
//! a promise is broken.
pub mod aliases;
pub mod bounce;
pub mod config;
pub mod envelope;
pub mod hops;
