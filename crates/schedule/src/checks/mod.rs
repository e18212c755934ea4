//! Checks of the parsers with arbitrary input, called by the property tests and the fuzz targets. For example, parsing
//! what was printed must give the same value. A violated property panics.
pub mod spread;
pub mod stages;
