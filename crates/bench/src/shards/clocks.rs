//! Differences between the clocks of the parts' hosts and those of the sinks' hosts.
use super::parts::{Parts, named};
use mailrun_journey::clocks::ClockError;
use mailrun_journey::reason::Reason;
use mailrun_journey::record::Cause;
use mailrun_report::printable::printable;

pub(super) struct SinkHostClock {
    /// Address or directory of the sink.
    pub(super) sink: String,
    /// Boot of its host; empty in the record of an older sink, which no part can have compared its clock with.
    pub(super) boot: String,
}

impl Parts {
    /// The largest error of times from any part to any sink.
    pub(super) fn clock_error(&self, sinks: &[SinkHostClock]) -> ClockError {
        sinks.iter().map(|sink| self.error_to(sink)).fold(ClockError::None, ClockError::or_larger)
    }

    /// Names the sinks with whose clock a part has not compared its own.
    pub(super) fn unknown_clocks(&self, sinks: &[SinkHostClock]) -> Option<Reason> {
        let unknown = sinks.iter().filter(|sink| self.error_to(sink) == ClockError::Unknown);
        let names: Vec<String> = unknown.map(|sink| printable(&sink.sink).to_string()).collect();
        let text = format!("Not every part has compared its clock with that of {}.", named(names.clone().into_iter()));
        (!names.is_empty()).then(|| Reason::new(Cause::Remark, text))
    }

    /// The largest error of times from any part to that sink.
    fn error_to(&self, sink: &SinkHostClock) -> ClockError {
        let errors = self.summaries.iter().map(|part| ClockError::between(part, &sink.boot));
        errors.fold(ClockError::None, ClockError::or_larger)
    }
}
