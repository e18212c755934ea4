//! Differences between the clocks of the hosts that sent the load and the clocks of the sinks'
//! hosts.
use super::parts::{Parts, named};
use mailrun_measurement::clocks::ClockError;
use mailrun_measurement::reason::Reason;
use mailrun_measurement::record::Cause;
use mailrun_text::printable::printable;

pub(super) struct SinkHostClock {
    pub(super) sink: String,
    /// Boot ID of the sink's host. It is empty in the record of an older sink. No part can have
    /// compared its clock with the clock of such a sink.
    pub(super) boot: String,
}

impl Parts {
    /// Returns the largest clock error between any part and any sink.
    pub(super) fn clock_error(&self, sinks: &[SinkHostClock]) -> ClockError {
        sinks.iter().map(|sink| self.error_to(sink)).fold(ClockError::None, ClockError::or_larger)
    }

    /// Names the sinks whose clock was not compared with the clock of every part. Returns `None` if
    /// there are none.
    pub(super) fn unknown_clocks(&self, sinks: &[SinkHostClock]) -> Option<Reason> {
        let unknown = sinks.iter().filter(|sink| self.error_to(sink) == ClockError::Unknown);
        let names: Vec<String> = unknown.map(|sink| printable(&sink.sink).to_string()).collect();
        let text = format!("Not every part has compared its clock with that of {}.", named(names.clone().into_iter()));
        (!names.is_empty()).then(|| Reason::new(Cause::Remark, text))
    }

    /// Returns the largest clock error between any part and one sink.
    fn error_to(&self, sink: &SinkHostClock) -> ClockError {
        let errors = self.summaries.iter().map(|part| ClockError::between(part, &sink.boot));
        errors.fold(ClockError::None, ClockError::or_larger)
    }
}
