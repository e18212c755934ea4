//! The `tracing` target of the relay's log.

/// Target of all lines of the log: modules may move, what administrators read stays.
pub(crate) const LOG_TARGET: &str = "mailrun::relay";
