//! Checks of this crate's parsers with arbitrary input. Property tests and fuzz targets call these
//! functions, which panic if a parser breaks one of its guarantees.
pub mod chrony_tracking;
pub mod users;
