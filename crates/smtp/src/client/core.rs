//! Data of a client session that all its states share: options, counters, the awaited replies, and the clock.
use super::event::{Event, GaveUp, Verb};
use super::options::{BurstSize, Chunking, PipelineMode, StopPoint};
use super::state::DueReply;
use crate::extensions::Extensions;
use crate::sasl::Mechanism;
use crate::settings::Protocol;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct ClientCore {
    pub(super) name: Arc<str>,
    pub(super) protocol: Protocol,
    pub(super) pipelining: PipelineMode,
    pub(super) chunking: Chunking,
    pub(super) burst: BurstSize,
    pub(super) quit_timeout: Option<Duration>,
    pub(super) greeting_timeout: Option<Duration>,
    pub(super) message_timeout: Option<Duration>,
    pub(super) stop_after: Option<StopPoint>,
    pub(super) extensions: Extensions,
    pub(super) is_over_tls: bool,
    pub(super) is_probe: bool,
    pub(super) mechanism: Option<Mechanism>,
    pub(super) gave_up: Option<GaveUp>,
    pub(super) last_received: Duration,
    /// Awaited replies to the commands of transactions, in the order in which the commands were sent.
    pub(super) due: VecDeque<DueReply>,
    /// Unanswered commands that were sent before QUIT. Their replies come before the reply to QUIT.
    pub(super) before_quit: VecDeque<Verb>,
    pub(super) under_way: u32,
    /// Number of finished transactions with uncertain results, because a reply may be missing ([`Event::settled`]).
    pub(super) unsettled: u32,
    /// True as long as every positive reply to MAIL and RCPT has an enhanced status code with subject 1 (addressing),
    /// such as 2.1.0. While this is true, a positive reply with another subject, such as 2.0.0, cannot belong to MAIL
    /// or RCPT.
    pub(super) are_addresses_labelled: bool,
    /// Set if each reply since the last [certain](Event::settled) result has shown by its code which kind of command it
    /// answers, for example RCPT by 2.1.5. While this is set, the session cannot have taken the reply to one kind of
    /// command for the reply to another kind.
    pub(super) is_labelled: bool,
    /// Number of recipients accepted so far in the transaction whose commands the peer is now answering.
    pub(super) accepted: u32,
    /// In LMTP, the positions of the accepted recipients whose result is still unknown.
    pub(super) accepted_recipients: VecDeque<u32>,
    /// In LMTP, set once the message was accepted for at least one recipient.
    pub(super) is_delivered: bool,
    /// Set when the peer accepts MAIL. Cleared at the end of a message with DATA, or when a message with BDAT is
    /// accepted. If the transaction fails while this is set, the client must send RSET before the next MAIL.
    pub(super) mail_stands: bool,
    /// Set when a reply, such as an unexpected 503, shows that the peer does not have the state that the client
    /// assumes. The session then ends after the current transaction.
    pub(super) is_out_of_step: bool,
    /// Set when the peer has accepted EHLO or LHLO. If the peer refuses a later EHLO, after TLS or XCLIENT, the client
    /// does not fall back to HELO.
    pub(super) is_greeted: bool,
    /// Set when the peer can no longer accept the message, because it has refused MAIL, every RCPT or a chunk.
    pub(super) is_doomed: bool,
}

impl ClientCore {
    pub(super) fn new(name: Arc<str>, pipelining: PipelineMode, now: Duration) -> Self {
        Self {
            name,
            protocol: Protocol::Smtp,
            pipelining,
            chunking: Chunking::Never,
            burst: BurstSize::NONE,
            quit_timeout: None,
            greeting_timeout: None,
            message_timeout: None,
            stop_after: None,
            extensions: Extensions::default(),
            is_over_tls: false,
            is_probe: false,
            mechanism: None,
            gave_up: None,
            last_received: now,
            due: VecDeque::new(),
            before_quit: VecDeque::new(),
            under_way: 0,
            unsettled: 0,
            are_addresses_labelled: true,
            is_labelled: true,
            accepted: 0,
            accepted_recipients: VecDeque::new(),
            is_delivered: false,
            mail_stands: false,
            is_out_of_step: false,
            is_greeted: false,
            is_doomed: false,
        }
    }

    /// Returns true if the session must end after this event, because the options tell it to stop at this point.
    pub(super) fn is_reached(&self, point: StopPoint, event: &Event<'_>) -> bool {
        let is_done = event.reply.code() / 100 == 2;
        match (point, event.to) {
            (StopPoint::Greeting, Verb::Greeting) | (StopPoint::Hello, Verb::Hello) | (StopPoint::Mail, Verb::Mail) => {
                is_done
            }
            // With a stop point, the client does not pipeline, so it sends DATA only after the reply to the last RCPT.
            // If the next awaited reply is for DATA, this event is therefore the reply to the last RCPT.
            (StopPoint::Recipients, Verb::Recipient(_)) => self.due.front() == Some(&DueReply::Data),
            (StopPoint::Data, Verb::Data) => event.reply.code() == 354,
            _ => false,
        }
    }

    /// Returns true if the options allow pipelining and the server offers it, so that MAIL and RCPT are sent together.
    pub(super) fn groups(&self) -> bool {
        self.pipelining != PipelineMode::Off && self.extensions.pipelining
    }

    /// Returns true if the commands of the next message may be sent before the result of the
    /// current message is known.
    fn streams(&self) -> bool {
        self.pipelining == PipelineMode::Group && self.extensions.pipelining
    }

    /// Returns true if the options allow BDAT and the server offers CHUNKING, so that messages are sent with BDAT.
    pub(super) fn chunks(&self) -> bool {
        self.chunking == Chunking::IfOffered && self.extensions.chunking
    }

    /// Returns true if [`BurstSize`] permits several messages in transit and the session uses BDAT and pipelining.
    pub(super) fn bursts(&self) -> bool {
        self.burst.messages > 0 && self.streams() && self.chunks()
    }

    /// Returns true if the client should now send the next chunk. With pipelining, it does so even while replies are
    /// awaited, unless the message has failed. If several messages are in transit, it sends chunks even after a
    /// refusal, because the refusal may belong to an earlier message.
    pub(super) fn wants_chunk(&self) -> bool {
        self.due.is_empty() || self.groups() && (!self.is_doomed || self.under_way > 1)
    }

    /// Returns true if the session may begin the next transaction before all earlier commands have been answered. The
    /// caller must check that no transaction is being sent.
    pub(super) fn may_begin_early(&self) -> bool {
        let uncertain = self.under_way + self.unsettled;
        if self.bursts() && self.under_way > 0 {
            return uncertain < self.burst.messages;
        }
        let is_between = |due: &DueReply| matches!(due, DueReply::Message | DueReply::Reset);
        let is_message = self.due.front() == Some(&DueReply::Message);
        self.streams() && uncertain < 2 && self.due.iter().all(is_between) && !(is_message && self.is_doomed)
    }
}
