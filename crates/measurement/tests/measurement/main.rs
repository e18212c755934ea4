//! Tests of the crate `measurement` from outside: properties, the account's arithmetic, the record's schema, the log's
//! format.
#![allow(clippy::unwrap_used, reason = "a test may")]
mod account;
mod interval_log;
mod merge;
mod properties;
mod reception;
mod sample;
mod schema;
mod situations;
mod time;
mod verdicts;
