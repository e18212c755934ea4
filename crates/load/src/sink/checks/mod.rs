//! Functions that feed arbitrary input to the parser of rules, and panic if it misbehaves. Property
//! tests and fuzz targets call them.
pub mod rules;
