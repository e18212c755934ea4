//! Properties that each parser must have for any input. Property tests and fuzz targets call these
//! functions, which panic if a property is violated.
pub mod rules;
