//! Checks that hold for any input of a parser. Property tests and fuzz targets call these
//! functions, which panic if a parser breaks one of its promises.
pub mod ledger_read;
pub mod record_union;
pub mod threshold;
pub mod trace;
pub mod trace_reader;
