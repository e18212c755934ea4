//! Checks of the relay's parsers and DSNs with arbitrary input. Property tests and fuzz targets
//! call these functions, which panic if a guarantee is broken.
pub mod aliases;
pub mod bounce;
pub mod config;
pub mod envelope;
pub mod hops;
