//! Promises of each parser about any input. The property tests and the fuzz targets call these
//! functions, which panic if a promise is broken.
pub mod ledger_read;
pub mod record_union;
pub mod threshold;
pub mod trace;
pub mod trace_reader;
