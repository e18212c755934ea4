//! Facts of a client session that outlive its states, and the queue of awaited replies.
use super::event::{GaveUp, Verb};
use super::options::{BurstSize, Chunking, PipelineMode};
use super::state::DueReply;
use crate::extensions::Extensions;
use crate::sasl::Mechanism;
use crate::settings::Protocol;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Options, facts and clock of a session, and the replies that its transactions still await.
#[derive(Debug)]
pub(super) struct ClientCore {
    pub(super) name: Arc<str>,
    pub(super) protocol: Protocol,
    pub(super) pipelining: PipelineMode,
    pub(super) chunking: Chunking,
    pub(super) burst: BurstSize,
    pub(super) quit_timeout: Option<Duration>,
    pub(super) greeting_timeout: Option<Duration>,
    pub(super) extensions: Extensions,
    pub(super) is_over_tls: bool,
    /// Transactions end before the message is sent.
    pub(super) is_probe: bool,
    pub(super) mechanism: Option<Mechanism>,
    pub(super) gave_up: Option<GaveUp>,
    pub(super) last_received: Duration,
    /// Replies that the transactions await, in order.
    pub(super) due: VecDeque<DueReply>,
    /// Commands before QUIT whose replies have not come.
    pub(super) before_quit: VecDeque<Verb>,
    /// Transactions that have begun and are not over.
    pub(super) under_way: u32,
    /// Transactions that are over, and whose results are not [certain](super::Event::settled).
    pub(super) unsettled: u32,
    /// Every positive reply to MAIL and RCPT so far had an enhanced status code with subject 1 (addressing).
    pub(super) are_addresses_labelled: bool,
    /// All replies since the last certain result have enhanced status codes, which show the kind of command they belong
    /// to.
    pub(super) is_labelled: bool,
    /// Recipients accepted so far in the transaction whose replies are arriving.
    pub(super) accepted: u32,
    /// LMTP: numbers of the accepted recipients whose result is still unknown.
    pub(super) accepted_recipients: VecDeque<u32>,
    /// LMTP: the message was accepted for at least one recipient.
    pub(super) is_delivered: bool,
    /// MAIL was accepted, so if the transaction fails, RSET must come before the next one.
    pub(super) mail_stands: bool,
    /// A reply showed that the peer has lost track. The session ends with the current transaction.
    pub(super) is_out_of_step: bool,
    /// The peer has accepted EHLO or LHLO.
    pub(super) is_greeted: bool,
    /// The message being sent in chunks can no longer be accepted, because MAIL, every RCPT or a chunk was refused.
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

    /// Reports whether MAIL and RCPT go out together.
    pub(super) fn groups(&self) -> bool {
        self.pipelining != PipelineMode::Off && self.extensions.pipelining
    }

    /// Reports whether a message's commands may follow a message whose result has not come.
    fn streams(&self) -> bool {
        self.pipelining == PipelineMode::Group && self.extensions.pipelining
    }

    /// Reports whether messages go by BDAT.
    pub(super) fn chunks(&self) -> bool {
        self.chunking == Chunking::IfOffered && self.extensions.chunking
    }

    /// Reports whether several messages may be under way.
    pub(super) fn bursts(&self) -> bool {
        self.burst.messages > 0 && self.streams() && self.chunks()
    }

    /// Reports whether to send the next chunk before replies come. If several messages are under way, an earlier one
    /// may have been the one that was refused.
    pub(super) fn wants_chunk(&self) -> bool {
        self.due.is_empty() || self.groups() && (!self.is_doomed || self.under_way > 1)
    }

    /// Reports whether an idle session may begin a transaction before all replies have come.
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
