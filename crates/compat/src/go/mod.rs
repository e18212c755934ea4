//! Parts that programs written in Go have in common: command lines, numbers, durations and log
//! lines.
pub(crate) mod duration;
pub(crate) mod flags;
pub(crate) mod numbers;
pub(crate) mod output;
pub(crate) mod reason;
