//! The promises that each parser keeps for any input. The property tests and the fuzz targets call these functions,
//! which panic if a promise is broken.
pub mod locust_master;
