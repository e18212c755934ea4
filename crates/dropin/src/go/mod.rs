//! Common parts of programs written in Go: command lines, numbers, durations, lines of a log.
pub(super) mod duration;
pub(super) mod flags;
pub(super) mod numbers;
pub(super) mod output;
pub(super) mod reason;
