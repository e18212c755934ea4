//! Checks of the parser of rules with arbitrary input. Property tests and fuzz targets call these
//! functions, which panic if the parser misbehaves.
pub mod rules;
