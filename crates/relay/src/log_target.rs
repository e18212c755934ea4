/// Fixed, so that the log does not change when modules move.
pub(crate) const LOG_TARGET: &str = "mailrun::relay";
