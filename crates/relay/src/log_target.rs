/// Target of all log lines of the relay. It is fixed, so that log filters still match when a module
/// moves.
pub(crate) const LOG_TARGET: &str = "mailrun::relay";
