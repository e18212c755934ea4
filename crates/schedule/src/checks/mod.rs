//! Checks of the parsers with arbitrary input, for example that parsing a printed value gives the same value. The
//! property tests and the fuzz targets call these functions, which panic if a check fails.
pub mod spread;
pub mod stages;
