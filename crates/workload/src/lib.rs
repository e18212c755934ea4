//! The load that any party offers, for every protocol: when the next message is due, and the random choices.
//!
//! Pure: all of it is a function of the options, the seed and the message's number.
#[doc(hidden)]
pub mod checks;
pub mod distribution;
pub mod offered_rate;
pub mod pacing;
pub mod random;
pub mod run_events;
pub mod shard;
