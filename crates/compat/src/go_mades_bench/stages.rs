//! The message stages that go-mades-bench reports in each mode, with the message sizes from which it computes mb/s.
use mailrun_mades_bench::{MadesMode, MessageStage};

/// Size in bytes that go-mades-bench assumes for an event and for a toolbox's reply. It does not measure these sizes.
const EVENT_BYTES: u64 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReportedStage {
    pub(super) name: &'static str,
    pub(super) stage: MessageStage,
    size_basis: SizeBasis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SizeBasis {
    Payload,
    Event,
}

impl ReportedStage {
    pub(super) fn event_bytes(self, payload_bytes: u64) -> u64 {
        match self.size_basis {
            SizeBasis::Payload => payload_bytes,
            SizeBasis::Event => EVENT_BYTES,
        }
    }
}

const SENT: ReportedStage = reported("Sent to outbox", MessageStage::Settled, SizeBasis::Payload);
const REPLIED: ReportedStage = reported("Sent to broker", MessageStage::Replied, SizeBasis::Payload);
const INBOX: ReportedStage = reported("Received in inbox", MessageStage::Inbox, SizeBasis::Payload);

const fn reported(name: &'static str, stage: MessageStage, weighs: SizeBasis) -> ReportedStage {
    ReportedStage { name, stage, size_basis: weighs }
}

pub(super) fn mode(name: &str) -> Option<MadesMode> {
    [MadesMode::Endpoint, MadesMode::Toolbox, MadesMode::Amqp, MadesMode::Tracing]
        .into_iter()
        .find(|mode| mode.name() == name)
}

pub(super) fn of(mode: MadesMode) -> Vec<ReportedStage> {
    let event = |name, stage| reported(name, stage, SizeBasis::Event);
    match mode {
        MadesMode::Endpoint => {
            let delivered = event("Delivery event", MessageStage::Delivered);
            vec![SENT, REPLIED, INBOX, delivered, event("Received event", MessageStage::Received)]
        }
        MadesMode::Toolbox => vec![SENT, INBOX, event("Received reply", MessageStage::Replied)],
        MadesMode::Amqp => vec![SENT, INBOX],
        MadesMode::Tracing => vec![SENT, REPLIED, event("Received event", MessageStage::Traced)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_mades_bench::{AcknowledgementMode, MessagePath};

    #[test]
    fn every_mode_reports_stages_that_it_has() {
        for name in ["endpoint", "toolbox", "amqp", "tracing"] {
            let mode = mode(name).unwrap();
            let path = MessagePath { mode, acknowledgement: AcknowledgementMode::Off };
            let stages = of(mode);
            assert!(stages.iter().all(|reported| path.stages().contains(&reported.stage)), "{name}");
            assert_eq!(stages[0], SENT);
            assert_eq!(stages.last().unwrap().stage, path.last(), "{name} ends with it");
        }
        assert_eq!((mode("Endpoint"), mode("")), (None, None));
        assert_eq!((REPLIED.event_bytes(7), of(MadesMode::Toolbox)[2].event_bytes(7)), (7, 100));
    }
}
