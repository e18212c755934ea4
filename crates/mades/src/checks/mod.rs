//! Checks of the promises that each parser makes for any input. Property tests and fuzz targets
//! call these functions, which panic if a promise is broken.
pub mod mades_message;
pub mod mades_status;
pub mod mades_url;
