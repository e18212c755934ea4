//! The stages of a message on its way through the Business Application API, and the stages that
//! each mode has.
//!
//! ```text
//! endpoint   created → sent → settled → replied → inbox → DELIVERED → RECEIVED
//! toolbox    created → sent → settled → inbox → replied
//! amqp       created → sent → settled → inbox
//! tracing    created → sent → settled → replied → TRACING
//! ```
//! With acknowledgement documents, every mode except `tracing` has one more stage at its end:
//! acknowledged. A correct endpoint reports the stages in this order, but the bench does not rely
//! on that, because events may overtake the reply.
use mailrun_measurement::Stage;
use mailrun_process::interrupt::StopRequest;
use std::fmt::Debug;
use std::time::Duration;

/// A stage on the way of a message. Arrays with one entry for each stage are indexed by `stage as usize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MessageStage {
    Created,
    Sent,
    /// The broker confirmed the transfer (AMQP 1.0 §3.4.2).
    Settled,
    /// The endpoint answered with a message id or an error.
    Replied,
    /// The bench received the message from the receiver's inbox.
    Inbox,
    /// The event DELIVERED came: the message is at the receiver's endpoint.
    Delivered,
    /// The event RECEIVED came: the message is at the receiver's application.
    Received,
    /// The event TRACING or DELIVERED came for a tracing message, which only tests the route to the endpoint.
    Traced,
    /// The bench received an acknowledgement document that accepts the message.
    Acknowledged,
}

impl MessageStage {
    pub(crate) const ALL: [Self; 9] = [
        Self::Created,
        Self::Sent,
        Self::Settled,
        Self::Replied,
        Self::Inbox,
        Self::Delivered,
        Self::Received,
        Self::Traced,
        Self::Acknowledged,
    ];

    /// Converts this stage to the stage type of records, which all protocols share.
    pub fn stage(self) -> Stage {
        match self {
            Self::Created => Stage::Created,
            Self::Sent => Stage::Sent,
            Self::Settled => Stage::Settled,
            Self::Replied => Stage::Replied,
            Self::Inbox => Stage::Inbox,
            Self::Delivered => Stage::DeliveredEvent,
            Self::Received => Stage::ReceivedEvent,
            Self::Traced => Stage::TracingEvent,
            Self::Acknowledged => Stage::Acknowledged,
        }
    }

    /// Returns the name in reports and records. Stages of events are spelled as in the API, for example `DELIVERED`.
    pub fn name(self) -> &'static str {
        self.stage().name()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum MadesMode {
    /// An ECP endpoint: stages reply, inbox, events DELIVERED and RECEIVED
    Endpoint,
    /// An EDX toolbox: stage inbox, then a reply with the final status
    Toolbox,
    /// The broker only: sends to the inbox queue and receives from it
    Amqp,
    /// Connectivity tests of an ECP endpoint: stages reply and event TRACING
    Tracing,
}

impl MadesMode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Endpoint => "endpoint",
            Self::Toolbox => "toolbox",
            Self::Amqp => "amqp",
            Self::Tracing => "tracing",
        }
    }

    pub fn arrival(self) -> MessageStage {
        if self == Self::Tracing { MessageStage::Traced } else { MessageStage::Inbox }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcknowledgementMode {
    On,
    Off,
}

/// The route of the messages of a run: the mode, and whether acknowledgements come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagePath {
    pub mode: MadesMode,
    /// Has no effect in the mode `tracing`, which has no inbox in which an acknowledgement could arrive.
    pub acknowledgement: AcknowledgementMode,
}

#[cfg(test)]
impl From<MadesMode> for MessagePath {
    fn from(mode: MadesMode) -> Self {
        Self { mode, acknowledgement: AcknowledgementMode::Off }
    }
}

impl MessagePath {
    pub fn stages(self) -> &'static [MessageStage] {
        use MessageStage::{Acknowledged, Created, Delivered, Inbox, Received, Replied, Sent, Settled, Traced};
        let all: &[MessageStage] = match self.mode {
            MadesMode::Endpoint => &[Created, Sent, Settled, Replied, Inbox, Delivered, Received, Acknowledged],
            MadesMode::Toolbox => &[Created, Sent, Settled, Inbox, Replied, Acknowledged],
            MadesMode::Amqp => &[Created, Sent, Settled, Inbox, Acknowledged],
            MadesMode::Tracing => return &[Created, Sent, Settled, Replied, Traced],
        };
        match self.acknowledgement {
            AcknowledgementMode::On => all,
            AcknowledgementMode::Off => &all[..all.len() - 1],
        }
    }

    /// Converts a stage of the record to a stage of this path. Records also use names that all protocols share: for
    /// example, `Accepted` stands for the stage `Settled` of a MADES run. The function
    /// [`mailrun_measurement::record::stage_named`] gives these names the same meaning.
    pub fn find(self, of: Stage) -> Option<MessageStage> {
        let own = self.stages().iter().copied().find(|stage| stage.stage() == of);
        own.or_else(|| match of {
            Stage::Accepted => Some(MessageStage::Settled),
            Stage::Delivered => Some(self.mode.arrival()),
            Stage::Notified => Some(self.last()).filter(|last| *last != self.mode.arrival()),
            _ => None,
        })
    }

    pub fn last(self) -> MessageStage {
        self.stages()[self.stages().len() - 1]
    }

    /// Returns the flags of all stages of this path. A message is complete when it has all of these flags.
    pub(super) fn complete_flags(self) -> MessageFlags {
        self.stages().iter().fold(MessageFlags::default(), |flags, stage| flags.with(*stage))
    }
}

/// Facts about a message, with one bit for each fact. The bench keeps them for the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct MessageFlags(u16);

impl MessageFlags {
    /// The broker rejected, released or modified the transfer (AMQP 1.0 §3.4).
    pub(super) const RETURNED: Self = Self(1);
    pub(super) const REFUSED: Self = Self(1 << 6);
    /// The endpoint gave the message up, and reported FAILED in an event or as the final status.
    pub(super) const FAILED: Self = Self(1 << 7);
    /// An acknowledgement document rejects the message.
    pub(super) const DECLINED: Self = Self(1 << 9);
    /// The message was still in the outbox after the end of the run.
    pub(super) const WAITING: Self = Self(1 << 10);
    /// The connection was lost or the time-out passed before the broker confirmed the bench's acknowledgement document.
    /// It is therefore unknown whether the broker has the document.
    pub(super) const DOCUMENT_IN_DOUBT: Self = Self(1 << 11);
    /// The endpoint refused the acknowledgement document. Because of this flag, a refusal is counted only once, even if
    /// the broker delivers the report about it several times.
    pub(super) const DOCUMENT_REFUSED: Self = Self(1 << 12);
    pub(super) const DOCUMENT_FAILED: Self = Self(1 << 13);

    pub(super) fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    pub(super) fn bits(self) -> u16 {
        self.0
    }

    /// Returns the bit that stands for a stage. Created and sent have no bit, because they are steps of the bench
    /// itself, which it never repeats. DELIVERED and TRACING have the same bit, because no mode has both.
    fn bit(stage: MessageStage) -> u16 {
        match stage {
            MessageStage::Created | MessageStage::Sent => 0,
            MessageStage::Settled => 1 << 1,
            MessageStage::Replied => 1 << 2,
            MessageStage::Inbox => 1 << 3,
            MessageStage::Delivered | MessageStage::Traced => 1 << 4,
            MessageStage::Received => 1 << 5,
            MessageStage::Acknowledged => 1 << 8,
        }
    }

    pub(super) fn with(self, stage: MessageStage) -> Self {
        Self(self.0 | Self::bit(stage))
    }

    pub(super) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn has(self, stage: MessageStage) -> bool {
        self.0 & Self::bit(stage) == Self::bit(stage)
    }

    fn is_refused(self) -> bool {
        self.contains(Self::RETURNED) || self.contains(Self::REFUSED)
    }

    pub(super) fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MadesFate {
    /// The message arrived, whatever the replies and events say.
    Delivered,
    Rejected,
    /// The broker did not confirm the message before the message's time-out.
    Failed,
    /// The endpoint reported that it has given the message up.
    Expired,
    /// No endpoint has fetched the message: it is still in the outbox.
    Waiting,
    /// The broker accepted the message, but the message never arrived.
    Lost,
    /// The run ended before the fate of the message was known.
    InFlight,
}

impl MadesFate {
    pub(super) const COUNT: usize = 7;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitState {
    Waiting,
    Ended,
}

pub(super) fn fate(mode: MadesMode, flags: MessageFlags, wait: WaitState) -> MadesFate {
    match () {
        () if flags.has(mode.arrival()) => MadesFate::Delivered,
        () if flags.is_refused() => MadesFate::Rejected,
        () if flags.contains(MessageFlags::FAILED) => MadesFate::Expired,
        () if wait == WaitState::Waiting => MadesFate::InFlight,
        () if flags.contains(MessageFlags::WAITING) => MadesFate::Waiting,
        () if flags.has(MessageStage::Settled) => MadesFate::Lost,
        () => MadesFate::Failed,
    }
}

/// Returns true if no more answers to a message are expected. Either the message has reached all stages, or the broker
/// or the endpoint has reported why it will not reach the remaining stages.
pub(super) fn is_finished(path: MessagePath, flags: MessageFlags) -> bool {
    let is_answered = !path.stages().contains(&MessageStage::Replied) || flags.has(MessageStage::Replied);
    let is_given_up = flags.contains(MessageFlags::REFUSED) || (flags.contains(MessageFlags::FAILED) && is_answered);
    // If an acknowledgement document has rejected the message, do not wait for another acknowledgement document.
    let is_declined = flags.contains(MessageFlags::DECLINED);
    let reached = if is_declined { flags.with(MessageStage::Acknowledged) } else { flags };
    flags.contains(MessageFlags::RETURNED)
        || reached.contains(path.complete_flags())
        || (flags.has(MessageStage::Settled) && is_given_up)
}

/// Returns true if the message should have reached this stage but has not, and no known fact, such as a refusal,
/// explains why.
pub(super) fn is_missing(mode: MadesMode, flags: MessageFlags, wait: WaitState, stage: MessageStage) -> bool {
    // Expect further stages only if the broker confirmed the message or if the message arrived. Otherwise, the message
    // may never have reached the broker.
    let is_owed = flags.has(MessageStage::Settled) || flags.has(mode.arrival());
    if flags.has(stage) || flags.is_refused() || wait == WaitState::Waiting || !is_owed {
        return false;
    }
    match stage {
        MessageStage::Created | MessageStage::Sent | MessageStage::Settled => false,
        // Expect a reply even after FAILED, because an endpoint replies to a message before it can report FAILED.
        MessageStage::Replied => true,
        MessageStage::Inbox | MessageStage::Delivered | MessageStage::Received | MessageStage::Traced => {
            !flags.contains(MessageFlags::FAILED)
        }
        MessageStage::Acknowledged => {
            let excuses = [MessageFlags::FAILED, MessageFlags::DECLINED, MessageFlags::DOCUMENT_IN_DOUBT];
            !excuses.into_iter().any(|excuse| flags.contains(excuse))
        }
    }
}

/// An observer of a run. It is called on the thread of the run, so a slow observer slows the run down.
pub trait RunObserver: Debug {
    /// Called when a message in flight reaches a stage for the first time. `latency` is the time since the message was
    /// due (open loop) or created.
    fn stage_reached(&self, stage: MessageStage, latency: Duration, now: Duration);

    /// Called fifty times per second. The observer returns whether the run must stop.
    fn poll(&self, view: &RunView) -> StopRequest;
}

#[derive(Clone, Copy, Debug)]
pub struct RunView {
    /// Current time, on the same clock as `began`.
    pub now: Duration,
    pub began: Duration,
    pub last_arrival: Duration,
    pub asked: StopRequest,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [MadesMode; 4] = [MadesMode::Endpoint, MadesMode::Toolbox, MadesMode::Amqp, MadesMode::Tracing];

    fn flags(stages: &[MessageStage]) -> MessageFlags {
        stages.iter().fold(MessageFlags::default(), |flags, stage| flags.with(*stage))
    }

    fn stages(mode: MadesMode) -> &'static [MessageStage] {
        MessagePath::from(mode).stages()
    }

    fn is_finished(path: impl Into<MessagePath>, flags: MessageFlags) -> bool {
        super::is_finished(path.into(), flags)
    }

    #[test]
    fn a_message_that_got_through_is_finished_and_misses_nothing() {
        for mode in MODES {
            let whole = flags(stages(mode));
            assert!(is_finished(mode, whole), "{mode:?}");
            assert_eq!(fate(mode, whole, WaitState::Ended), MadesFate::Delivered);
            assert!(
                MessageStage::ALL
                    .iter()
                    .all(|stage| !stages(mode).contains(stage) || !is_missing(mode, whole, WaitState::Ended, *stage))
            );
            for left_out in &stages(mode)[2..] {
                let rest: Vec<MessageStage> = stages(mode).iter().copied().filter(|stage| stage != left_out).collect();
                assert!(!is_finished(mode, flags(&rest)), "{mode:?} without {left_out:?}");
            }
        }
    }

    #[test]
    fn an_acknowledgement_is_the_last_stage_of_every_mode_with_an_inbox() {
        for mode in MODES {
            let path = MessagePath { mode, acknowledgement: AcknowledgementMode::On };
            let has_inbox = mode != MadesMode::Tracing;
            assert_eq!(path.last() == MessageStage::Acknowledged, has_inbox, "{mode:?}");
            assert_eq!(path.stages().len(), stages(mode).len() + usize::from(has_inbox));
            // Without acknowledgement documents, a message is finished once it has passed all other stages.
            assert!(is_finished(mode, flags(stages(mode))));
            assert_eq!(is_finished(path, flags(stages(mode))), !has_inbox, "{mode:?}");
            assert!(is_finished(path, flags(path.stages())));
        }
        let arrived = flags(stages(MadesMode::Amqp));
        assert_eq!(fate(MadesMode::Amqp, arrived, WaitState::Ended), MadesFate::Delivered);
        let is_missing = |flags, wait| is_missing(MadesMode::Amqp, flags, wait, MessageStage::Acknowledged);
        assert!(is_missing(arrived, WaitState::Ended) && !is_missing(arrived, WaitState::Waiting));
        assert!(!is_missing(arrived.union(MessageFlags::FAILED), WaitState::Ended));
        let declined = arrived.union(MessageFlags::DECLINED);
        assert!(!is_missing(declined, WaitState::Ended), "a rejection is an answer");
        let path = MessagePath { mode: MadesMode::Amqp, acknowledgement: AcknowledgementMode::On };
        assert!(is_finished(path, declined) && !is_finished(path, MessageFlags::DECLINED));
    }

    #[test]
    fn a_table_of_fates() {
        use MessageStage::{Delivered, Inbox, Replied, Settled};
        let settled = flags(&[Settled]);
        for (known, over, open) in [
            (MessageFlags::default(), MadesFate::Failed, MadesFate::InFlight),
            (settled, MadesFate::Lost, MadesFate::InFlight),
            (flags(&[Settled, Replied, Delivered]), MadesFate::Lost, MadesFate::InFlight),
            (flags(&[Inbox]), MadesFate::Delivered, MadesFate::Delivered),
            (settled.union(MessageFlags::FAILED), MadesFate::Expired, MadesFate::Expired),
            (flags(&[Settled, Inbox]).union(MessageFlags::FAILED), MadesFate::Delivered, MadesFate::Delivered),
            (MessageFlags::RETURNED, MadesFate::Rejected, MadesFate::Rejected),
            (flags(&[Settled, Replied]).union(MessageFlags::REFUSED), MadesFate::Rejected, MadesFate::Rejected),
        ] {
            assert_eq!(fate(MadesMode::Endpoint, known, WaitState::Ended), over, "{known:?}");
            assert_eq!(fate(MadesMode::Endpoint, known, WaitState::Waiting), open, "{known:?}");
        }
    }

    #[test]
    fn what_is_missing_is_what_nobody_explained() {
        use MessageStage::{Delivered, Inbox, Received, Replied, Settled};
        let missing = |known: MessageFlags| {
            let is_missing = |stage: &MessageStage| is_missing(MadesMode::Endpoint, known, WaitState::Ended, *stage);
            stages(MadesMode::Endpoint).iter().copied().filter(is_missing).collect::<Vec<_>>()
        };
        assert_eq!(missing(flags(&[Settled])), [Replied, Inbox, Delivered, Received]);
        assert_eq!(missing(flags(&[Settled, Inbox, Received])), [Replied, Delivered]);
        assert_eq!(missing(flags(&[Settled]).union(MessageFlags::FAILED)), [Replied]);
        assert_eq!(missing(flags(&[Settled, Replied]).union(MessageFlags::REFUSED)), []);
        assert_eq!(missing(MessageFlags::default()), [], "the broker never had it");
        assert_eq!(missing(flags(&[Inbox])), [Replied, Delivered, Received], "it had it after all");
        assert!(!is_missing(MadesMode::Endpoint, flags(&[Settled]), WaitState::Waiting, Replied));
    }

    #[test]
    fn a_refusal_ends_a_message_once_its_transfer_is_settled() {
        let refused = flags(&[MessageStage::Replied]).union(MessageFlags::REFUSED);
        assert!(!is_finished(MadesMode::Endpoint, refused));
        assert!(is_finished(MadesMode::Endpoint, refused.with(MessageStage::Settled)));
        assert!(is_finished(MadesMode::Endpoint, MessageFlags::RETURNED));
        let failed = flags(&[MessageStage::Settled]).union(MessageFlags::FAILED);
        assert!(!is_finished(MadesMode::Endpoint, failed), "the reply is still to come");
        assert!(is_finished(MadesMode::Endpoint, failed.with(MessageStage::Replied)));
        assert!(is_finished(MadesMode::Amqp, failed));
    }
}
