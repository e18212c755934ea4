//! The stages of a message through the Business Application API, and which of them a mode has.
//!
//! ```text
//! endpoint   created → sent → settled → replied → inbox → DELIVERED → RECEIVED
//! toolbox    created → sent → settled → inbox → replied
//! amqp       created → sent → settled → inbox
//! tracing    created → sent → settled → replied → TRACING
//! ```
//! The order is the one in which an honest endpoint reports them. Nothing relies on it: events may overtake the reply.

/// A stage of the journey. Its number is the bit that it has in a [`Facts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Stage {
    /// The bench created the message.
    Created,
    /// The transfer was handed over.
    Sent,
    /// The broker confirmed the transfer (AMQP 1.0 §3.4.2).
    Settled,
    /// The endpoint answered, with a message id or with an error.
    Replied,
    /// The message came out of the receiver's inbox.
    Inbox,
    /// The event DELIVERED: the receiver's endpoint has it.
    Delivered,
    /// The event RECEIVED: the receiver's application has it.
    Received,
    /// The event of a tracing message, which has been at the receiver's endpoint.
    Traced,
}

impl Stage {
    pub(crate) const ALL: [Self; 8] = [
        Self::Created,
        Self::Sent,
        Self::Settled,
        Self::Replied,
        Self::Inbox,
        Self::Delivered,
        Self::Received,
        Self::Traced,
    ];

    /// The name in reports and run records; events use the API's names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Sent => "sent",
            Self::Settled => "settled",
            Self::Replied => "replied",
            Self::Inbox => "inbox",
            Self::Delivered => "DELIVERED",
            Self::Received => "RECEIVED",
            Self::Traced => "TRACING",
        }
    }
}

/// The systems that the run's messages go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// An ECP endpoint: reply, inbox and events.
    Endpoint,
    /// An EDX toolbox: inbox, and a reply that is the final status.
    Toolbox,
    /// The broker alone: to a queue and back.
    Amqp,
    /// An ECP endpoint's connectivity test: reply and one event.
    Tracing,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Endpoint => "endpoint",
            Self::Toolbox => "toolbox",
            Self::Amqp => "amqp",
            Self::Tracing => "tracing",
        }
    }

    /// The stages of a message, in order.
    pub(crate) fn path(self) -> &'static [Stage] {
        use Stage::{Created, Delivered, Inbox, Received, Replied, Sent, Settled, Traced};
        match self {
            Self::Endpoint => &[Created, Sent, Settled, Replied, Inbox, Delivered, Received],
            Self::Toolbox => &[Created, Sent, Settled, Inbox, Replied],
            Self::Amqp => &[Created, Sent, Settled, Inbox],
            Self::Tracing => &[Created, Sent, Settled, Replied, Traced],
        }
    }

    /// The stage at which a message has arrived at its destination.
    pub(crate) fn arrival(self) -> Stage {
        if self == Self::Tracing { Stage::Traced } else { Stage::Inbox }
    }

    /// The last stage of a message that got through.
    pub(crate) fn last(self) -> Stage {
        self.path()[self.path().len() - 1]
    }

    /// The facts about a message at its end, if all goes well.
    pub(super) fn whole(self) -> Facts {
        self.path().iter().fold(Facts::default(), |facts, stage| facts.with(*stage))
    }
}

/// Facts about a message, a bit each, kept for as long as the run lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Facts(u8);

impl Facts {
    /// The broker returned its transfer: rejected, released or modified (AMQP 1.0 §3.4).
    pub(super) const RETURNED: Self = Self(1);
    /// The endpoint refused it with an error reply.
    pub(super) const REFUSED: Self = Self(1 << 6);
    /// The endpoint gave up on it: the event FAILED, or a final status of that name.
    pub(super) const FAILED: Self = Self(1 << 7);

    pub(super) fn of(bits: u8) -> Self {
        Self(bits)
    }

    pub(super) fn bits(self) -> u8 {
        self.0
    }

    /// The bit of a stage. Those that the bench reaches by itself have none, because they come once. DELIVERED and
    /// TRACING share one: no mode has both.
    fn bit(stage: Stage) -> u8 {
        match stage {
            Stage::Created | Stage::Sent => 0,
            Stage::Settled => 1 << 1,
            Stage::Replied => 1 << 2,
            Stage::Inbox => 1 << 3,
            Stage::Delivered | Stage::Traced => 1 << 4,
            Stage::Received => 1 << 5,
        }
    }

    pub(super) fn with(self, stage: Stage) -> Self {
        Self(self.0 | Self::bit(stage))
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn has(self, stage: Stage) -> bool {
        self.0 & Self::bit(stage) == Self::bit(stage)
    }

    fn is_refused(self) -> bool {
        self.holds(Self::RETURNED) || self.holds(Self::REFUSED)
    }

    pub(super) fn holds(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The fate of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It arrived, whatever the replies and events say.
    Delivered,
    /// The broker returned it, or the endpoint refused it.
    Rejected,
    /// The broker never confirmed it, and the bench gave up on it.
    Failed,
    /// The endpoint gave up on it and said so.
    Expired,
    /// The broker took it, and it never arrived.
    Lost,
    /// The run ended first.
    InFlight,
}

impl Fate {
    /// Number of fates.
    pub(super) const COUNT: usize = 6;
}

/// State of the wait for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    Open,
    Over,
}

/// The fate of a message with these facts.
pub(super) fn fate(mode: Mode, facts: Facts, watch: Watch) -> Fate {
    match () {
        () if facts.has(mode.arrival()) => Fate::Delivered,
        () if facts.is_refused() => Fate::Rejected,
        () if facts.holds(Facts::FAILED) => Fate::Expired,
        () if watch == Watch::Open => Fate::InFlight,
        () if facts.has(Stage::Settled) => Fate::Lost,
        () => Fate::Failed,
    }
}

/// Reports whether nothing more is expected of a message: all stages are reached, or the broker or the endpoint has
/// said why not.
pub(super) fn is_finished(mode: Mode, facts: Facts) -> bool {
    let is_answered = !mode.path().contains(&Stage::Replied) || facts.has(Stage::Replied);
    let is_given_up = facts.holds(Facts::REFUSED) || (facts.holds(Facts::FAILED) && is_answered);
    facts.holds(Facts::RETURNED) || facts.holds(mode.whole()) || (facts.has(Stage::Settled) && is_given_up)
}

/// Reports whether a stage that a message has not reached is missing: it was expected, and nothing explained why it did
/// not come.
pub(super) fn is_missing(mode: Mode, facts: Facts, watch: Watch, stage: Stage) -> bool {
    // A message that the broker did not confirm and that did not arrive owes no later stage.
    let is_owed = facts.has(Stage::Settled) || facts.has(mode.arrival());
    if facts.has(stage) || facts.is_refused() || watch == Watch::Open || !is_owed {
        return false;
    }
    match stage {
        Stage::Created | Stage::Sent | Stage::Settled => false,
        // An endpoint that sends FAILED has the message, so it owes the reply.
        Stage::Replied => true,
        Stage::Inbox | Stage::Delivered | Stage::Received | Stage::Traced => !facts.holds(Facts::FAILED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [Mode; 4] = [Mode::Endpoint, Mode::Toolbox, Mode::Amqp, Mode::Tracing];

    fn facts(stages: &[Stage]) -> Facts {
        stages.iter().fold(Facts::default(), |facts, stage| facts.with(*stage))
    }

    #[test]
    fn a_message_that_got_through_is_finished_and_misses_nothing() {
        for mode in MODES {
            let whole = facts(mode.path());
            assert!(is_finished(mode, whole), "{mode:?}");
            assert_eq!(fate(mode, whole, Watch::Over), Fate::Delivered);
            assert!(
                Stage::ALL
                    .iter()
                    .all(|stage| !mode.path().contains(stage) || !is_missing(mode, whole, Watch::Over, *stage))
            );
            for left_out in &mode.path()[2..] {
                let rest: Vec<Stage> = mode.path().iter().copied().filter(|stage| stage != left_out).collect();
                assert!(!is_finished(mode, facts(&rest)), "{mode:?} without {left_out:?}");
            }
        }
    }

    #[test]
    fn a_table_of_fates() {
        use Stage::{Delivered, Inbox, Replied, Settled};
        let taken = facts(&[Settled]);
        for (known, over, open) in [
            (Facts::default(), Fate::Failed, Fate::InFlight),
            (taken, Fate::Lost, Fate::InFlight),
            (facts(&[Settled, Replied, Delivered]), Fate::Lost, Fate::InFlight),
            (facts(&[Inbox]), Fate::Delivered, Fate::Delivered),
            (taken.and(Facts::FAILED), Fate::Expired, Fate::Expired),
            (facts(&[Settled, Inbox]).and(Facts::FAILED), Fate::Delivered, Fate::Delivered),
            (Facts::RETURNED, Fate::Rejected, Fate::Rejected),
            (facts(&[Settled, Replied]).and(Facts::REFUSED), Fate::Rejected, Fate::Rejected),
        ] {
            assert_eq!(fate(Mode::Endpoint, known, Watch::Over), over, "{known:?}");
            assert_eq!(fate(Mode::Endpoint, known, Watch::Open), open, "{known:?}");
        }
    }

    #[test]
    fn what_is_missing_is_what_nobody_explained() {
        use Stage::{Delivered, Inbox, Received, Replied, Settled};
        let missing = |known: Facts| {
            let is_missing = |stage: &Stage| is_missing(Mode::Endpoint, known, Watch::Over, *stage);
            Mode::Endpoint.path().iter().copied().filter(is_missing).collect::<Vec<_>>()
        };
        assert_eq!(missing(facts(&[Settled])), [Replied, Inbox, Delivered, Received]);
        assert_eq!(missing(facts(&[Settled, Inbox, Received])), [Replied, Delivered]);
        assert_eq!(missing(facts(&[Settled]).and(Facts::FAILED)), [Replied]);
        assert_eq!(missing(facts(&[Settled, Replied]).and(Facts::REFUSED)), []);
        assert_eq!(missing(Facts::default()), [], "the broker never had it");
        assert_eq!(missing(facts(&[Inbox])), [Replied, Delivered, Received], "it had it after all");
        assert!(!is_missing(Mode::Endpoint, facts(&[Settled]), Watch::Open, Replied));
    }

    #[test]
    fn a_refusal_ends_a_message_once_its_transfer_is_settled() {
        let refused = facts(&[Stage::Replied]).and(Facts::REFUSED);
        assert!(!is_finished(Mode::Endpoint, refused));
        assert!(is_finished(Mode::Endpoint, refused.with(Stage::Settled)));
        assert!(is_finished(Mode::Endpoint, Facts::RETURNED));
        let failed = facts(&[Stage::Settled]).and(Facts::FAILED);
        assert!(!is_finished(Mode::Endpoint, failed), "the reply is still to come");
        assert!(is_finished(Mode::Endpoint, failed.with(Stage::Replied)));
        assert!(is_finished(Mode::Amqp, failed));
    }
}
