//! The properties that each parser must have for any input. The property tests and the fuzz targets call these
//! functions, which panic if a property is violated.
pub mod locust_master;
