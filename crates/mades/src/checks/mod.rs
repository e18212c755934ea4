//! Checks that must hold for any input of a parser, for example that a value stays the same when it is written and read
//! again. Property tests and fuzz targets call these functions, which panic if a check fails.
pub mod mades_message;
pub mod mades_status;
pub mod mades_url;
