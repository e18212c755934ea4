//! Checks of parsers that must hold for any input. Property tests and fuzz targets call these functions, which panic if
//! a check fails.
pub mod scenario;
