//! Checks that must hold for any input of a parser, for example that a value stays the same when it is written and read
//! again. Property tests and fuzz targets call these functions, which panic if a check fails.
pub mod ledger_read;
pub mod record_union;
pub mod threshold;
pub mod trace;
pub mod trace_reader;
