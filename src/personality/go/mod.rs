//! What programs written in Go have in common: command lines, numbers, durations, lines of a log.
// In work, with go_mades_bench (issue 5): not built yet.
#[cfg(any())]
pub(super) mod duration;
pub(super) mod flags;
#[allow(dead_code, reason = "go-mades-bench has unsigned numbers (issue 5)")]
pub(super) mod numbers;
pub(super) mod voice;
