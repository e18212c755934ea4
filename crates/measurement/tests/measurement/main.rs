//! Tests of the public interface of the crate `measurement`, such as the account of a run's messages, the verdict, the
//! record's schema and the format of interval logs.
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
