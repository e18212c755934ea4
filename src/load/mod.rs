//! The load that any party offers, whatever protocol it speaks: when the next message is due, and what is left to chance.
//!
//! Pure: all of it is a function of what was typed, of the seed and of the message's number.
pub(crate) mod chance;
pub(crate) mod pacing;
pub(crate) mod spread;
pub(crate) mod stages;
