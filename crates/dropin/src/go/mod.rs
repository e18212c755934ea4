//! Common parts of programs written in Go: command lines, numbers, durations, lines of a log.
pub(crate) mod duration;
pub(crate) mod flags;
pub(crate) mod numbers;
pub(crate) mod output;
pub(crate) mod reason;
