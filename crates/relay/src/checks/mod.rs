//! Functions that check the relay's parsers and DSNs. Property tests and fuzz targets call them with arbitrary input,
//! and they panic if a guarantee is broken.
pub mod aliases;
pub mod bounce;
pub mod config;
pub mod envelope;
pub mod hops;
