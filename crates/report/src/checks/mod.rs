//! What each parser promises about any input. The property tests and the fuzz targets call these functions, which panic if
//! a promise is broken.
pub mod page;
pub mod record;
