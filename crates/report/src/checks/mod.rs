//! Checks of the reports with arbitrary input, for example that no text of a record becomes markup. The property tests
//! and the fuzz targets call these functions, which panic if a check fails.
pub mod page;
pub mod record;
