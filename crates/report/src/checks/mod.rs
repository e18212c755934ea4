//! Checks of the reports with arbitrary input, called by the property tests and the fuzz targets. For example, no text
//! of a record may become markup. A violated property panics.
pub mod page;
pub mod record;
