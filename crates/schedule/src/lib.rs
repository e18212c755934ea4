//! The load that a client offers, in any protocol: the times at which messages are due, and the
//! random choices about each message.
//!
//! This crate does no I/O: everything is a function of the options, the seed and the number of the
//! message.
#![allow(missing_docs)] // only crates that other programs embed document every public item
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
pub mod distribution;
pub mod offered_rate;
pub mod pacing;
pub mod run_events;
pub mod shard;
