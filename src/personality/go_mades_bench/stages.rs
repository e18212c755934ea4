//! The stages that each mode reports, their names, and the assumed size of each event.
use crate::mades::{Mode, Stage};

/// Assumed size of an event or of a toolbox' reply, in bytes.
const EVENT_BYTES: u64 = 100;

/// A stage as the report names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reported {
    pub(super) name: &'static str,
    pub(super) stage: Stage,
    weighs: Weighs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weighs {
    Payload,
    Event,
}

impl Reported {
    pub(super) fn event_bytes(self, payload_bytes: u64) -> u64 {
        match self.weighs {
            Weighs::Payload => payload_bytes,
            Weighs::Event => EVENT_BYTES,
        }
    }
}

const SENT: Reported = reported("Sent to outbox", Stage::Settled, Weighs::Payload);
const REPLIED: Reported = reported("Sent to broker", Stage::Replied, Weighs::Payload);
const INBOX: Reported = reported("Received in inbox", Stage::Inbox, Weighs::Payload);

const fn reported(name: &'static str, stage: Stage, weighs: Weighs) -> Reported {
    Reported { name, stage, weighs }
}

/// The mode of that name.
pub(super) fn mode(name: &str) -> Option<Mode> {
    [Mode::Endpoint, Mode::Toolbox, Mode::Amqp, Mode::Tracing].into_iter().find(|mode| mode.name() == name)
}

/// The stages that a mode reports; the last one ends the run.
pub(super) fn of(mode: Mode) -> Vec<Reported> {
    let event = |name, stage| reported(name, stage, Weighs::Event);
    match mode {
        Mode::Endpoint => {
            let delivered = event("Delivery event", Stage::Delivered);
            vec![SENT, REPLIED, INBOX, delivered, event("Received event", Stage::Received)]
        }
        Mode::Toolbox => vec![SENT, INBOX, event("Received reply", Stage::Replied)],
        Mode::Amqp => vec![SENT, INBOX],
        Mode::Tracing => vec![SENT, REPLIED, event("Received event", Stage::Traced)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_reports_stages_that_it_has() {
        for name in ["endpoint", "toolbox", "amqp", "tracing"] {
            let mode = mode(name).unwrap();
            let stages = of(mode);
            assert!(stages.iter().all(|reported| mode.path().contains(&reported.stage)), "{name}");
            assert_eq!(stages[0], SENT);
            assert_eq!(stages.last().unwrap().stage, mode.last(), "{name} ends with it");
        }
        assert_eq!((mode("Endpoint"), mode("")), (None, None));
        assert_eq!((REPLIED.event_bytes(7), of(Mode::Toolbox)[2].event_bytes(7)), (7, 100));
    }
}
