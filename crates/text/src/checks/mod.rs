//! Checks of the promises that each parser makes for any input. Property tests and fuzz targets
//! call these functions, which panic if a promise is broken.
pub mod quantities;
