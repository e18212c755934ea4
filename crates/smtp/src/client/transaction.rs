//! Mail transactions of a client session. The client sends commands one at a time or in groups (PIPELINING), and
//! messages with DATA or BDAT.
use super::core::ClientCore;
use super::event::{ChunkPosition, Outcome, Verb, Violation};
use super::state::{DueReply, SendState};
use crate::data::END_OF_DATA;
use crate::envelope::Envelope;
use crate::reply::{ReceivedReply, is_session_fault};
use crate::settings::Protocol;
use std::io::Write;
use std::sync::Arc;

pub(super) struct ReplyStep {
    pub(super) next: SendState,
    pub(super) to: Verb,
    pub(super) ends: Option<Outcome>,
    pub(super) settled: u32,
}

/// The state after a reply, and the outcome of the transaction. The outcome is `None` if the reply does not end the
/// transaction.
type SendStep = (SendState, Option<Outcome>);

impl SendState {
    pub(super) fn step(
        self,
        due: DueReply,
        reply: &ReceivedReply<'_>,
        core: &mut ClientCore,
        out: &mut Vec<u8>,
    ) -> ReplyStep {
        let recipient = if due == DueReply::Message { core.accepted_recipients.pop_front() } else { None };
        let is_done = reply.code() / 100 == 2;
        // In LMTP, each recipient gets a reply. But a 421 ends the session, so no further replies follow.
        let is_last = due != DueReply::Message || core.accepted_recipients.is_empty() || reply.code() == 421;
        let are_all_answered = core.due.is_empty() && is_last;
        core.is_out_of_step |= match due {
            DueReply::Reset => !is_done && !matches!(self, Self::EmptyMessage),
            due => is_session_fault(reply.code()) && core.is_due_for(due),
        };
        let (state, ends) = match due {
            DueReply::Mail => self.mail_answered(is_done, core, out),
            DueReply::Recipient(number) => self.recipient_answered(number, is_done, core, out),
            DueReply::Data => data_answered(reply.code() == 354, core, out),
            DueReply::Chunk => self.chunk_answered(is_done, core),
            DueReply::Message if recipient.is_some() => self.delivery_answered(is_done, reply.code() == 421, core, out),
            DueReply::Message => self.message_answered(is_done, core, out),
            DueReply::Reset => (self.reset_answered(), None),
        };
        let (next, ends) = match state {
            Self::Chunks if core.is_doomed && core.due.is_empty() => core.refused(out),
            state => (state, ends),
        };
        core.under_way = core.under_way.saturating_sub(u32::from(ends.is_some()));
        core.unsettled += u32::from(ends.is_some());
        let settled = core.settle(due, reply, are_all_answered);
        ReplyStep { next, to: recipient.map_or(due.verb(), Verb::Delivery), ends, settled }
    }

    /// Handles a reply that no command asked for, after which the session always ends. If a refusal arrives while the
    /// client writes a message, the peer has refused that message, for example because it is too big. The client can
    /// then neither finish nor cancel the message. Between transactions, an unrequested 421 announces that the peer
    /// closes the connection (RFC 5321 §3.8). Any other unrequested reply violates the protocol.
    pub(super) fn interrupted(self, reply: &ReceivedReply<'_>) -> Result<(Verb, Option<Outcome>), Violation> {
        match self {
            Self::Message | Self::Chunks if !reply.is_positive() => Ok((Verb::Message, Some(Outcome::Refused))),
            Self::Idle if reply.code() == 421 => Ok((Verb::Quit, None)),
            Self::Idle | Self::LockStep(_) | Self::Group | Self::Message | Self::Chunks | Self::EmptyMessage => {
                Err(Violation::Unasked(reply.code()))
            }
        }
    }

    fn mail_answered(self, is_done: bool, core: &mut ClientCore, out: &mut Vec<u8>) -> SendStep {
        core.accepted = 0;
        core.is_delivered = false;
        core.mail_stands = is_done;
        core.is_doomed = !is_done;
        match self {
            Self::LockStep(envelope) if is_done => ask(envelope, 0, core, out),
            Self::LockStep(_) => core.refused(out),
            Self::Idle | Self::Group | Self::Message | Self::Chunks | Self::EmptyMessage => (self, None),
        }
    }

    fn recipient_answered(self, number: u32, is_done: bool, core: &mut ClientCore, out: &mut Vec<u8>) -> SendStep {
        core.accepted += u32::from(is_done);
        if is_done && core.protocol == Protocol::Lmtp {
            core.accepted_recipients.push_back(number);
        }
        match self {
            Self::LockStep(envelope) => ask(envelope, number as usize + 1, core, out),
            Self::Idle | Self::Group | Self::Message | Self::Chunks | Self::EmptyMessage => {
                let is_last = !matches!(core.due.front(), Some(DueReply::Recipient(_)));
                core.is_doomed |= is_last && core.accepted == 0;
                (self, None)
            }
        }
    }

    fn chunk_answered(self, is_done: bool, core: &mut ClientCore) -> SendStep {
        if !is_done {
            // By refusing a chunk, the peer has ended the transaction, so the rest of the message
            // gets a single reply, even in LMTP.
            core.is_doomed = true;
            core.accepted_recipients.clear();
        }
        (self, None)
    }

    /// Handles the reply to the final dot or to the last BDAT. If the peer has refused MAIL, every RCPT or a chunk,
    /// even a positive reply counts as a refusal.
    fn message_answered(self, is_done: bool, core: &mut ClientCore, out: &mut Vec<u8>) -> SendStep {
        if is_done && !core.is_doomed {
            core.mail_stands = false;
            return (self, Some(Outcome::Accepted));
        }
        self.message_refused(core, out)
    }

    /// In LMTP, handles the reply to the message for one recipient. After the last of these replies, the message counts
    /// as accepted if it was accepted for at least one recipient.
    fn delivery_answered(self, is_done: bool, is_end: bool, core: &mut ClientCore, out: &mut Vec<u8>) -> SendStep {
        core.is_delivered |= is_done && !core.is_doomed;
        if !core.accepted_recipients.is_empty() && !is_end {
            core.due.push_front(DueReply::Message);
            return (self, None);
        }
        core.accepted_recipients.clear();
        if core.is_delivered {
            core.mail_stands = false;
            return (self, Some(Outcome::Accepted));
        }
        self.message_refused(core, out)
    }

    /// Ends the transaction of a refused message. After a refused BDAT, sends RSET (RFC 3030 §2), unless the client has
    /// already begun the next transaction.
    fn message_refused(self, core: &mut ClientCore, out: &mut Vec<u8>) -> SendStep {
        match self {
            Self::Idle if core.due.is_empty() => core.refused(out),
            state => (state, Some(Outcome::Refused)),
        }
    }

    fn reset_answered(self) -> Self {
        match self {
            Self::EmptyMessage => Self::Idle,
            Self::Idle | Self::LockStep(_) | Self::Group | Self::Message | Self::Chunks => self,
        }
    }
}

/// Sends the next command of a client that waits for each reply: RCPT for recipient `number` or, after the last
/// recipient, DATA. If the message is sent with BDAT, the caller writes the chunks instead. If no recipient was
/// accepted, or if the client only probes the recipients, ends the transaction.
fn ask(envelope: Arc<Envelope>, number: usize, core: &mut ClientCore, out: &mut Vec<u8>) -> SendStep {
    if number < envelope.recipients() {
        core.send(envelope.recipient(number), DueReply::Recipient(number as u32), out);
    } else if core.accepted == 0 || core.is_probe {
        return core.refused(out);
    } else if core.chunks() {
        return (SendState::Chunks, None);
    } else {
        core.send(envelope.data(), DueReply::Data, out);
    }
    (SendState::LockStep(envelope), None)
}

/// Handles the reply to DATA. After 354, the caller must write the message. A peer may answer 354 although it refused
/// MAIL or accepted no recipient. The client then sends an empty message (RFC 2920 §3.1). In LMTP, the client awaits no
/// reply to the empty message, because the message has no recipients.
fn data_answered(is_go_ahead: bool, core: &mut ClientCore, out: &mut Vec<u8>) -> SendStep {
    if !is_go_ahead {
        return core.refused(out);
    }
    if core.accepted > 0 && core.mail_stands {
        return (SendState::Message, None);
    }
    match core.protocol {
        Protocol::Lmtp => {
            out.extend_from_slice(END_OF_DATA);
            core.refused(out)
        }
        Protocol::Smtp => {
            core.send(END_OF_DATA, DueReply::Reset, out);
            (SendState::EmptyMessage, Some(Outcome::Refused))
        }
    }
}

impl ClientCore {
    /// Returns the number of transactions whose results become certain with this reply. A result is uncertain as long
    /// as the peer may have left out a reply, because the session would then take a later reply for the missing one. If
    /// every command has been answered, no reply is missing, so all results are certain. Otherwise enhanced status
    /// codes help, because only replies to MAIL and RCPT have subject 1 (addressing):
    ///
    /// - If only MAIL, RCPT and DATA are unanswered after a message, a positive reply with a subject other than 1
    ///   belongs to the message. The reply to MAIL or RCPT would have subject 1, and the reply to DATA would be 354.
    /// - A reply to MAIL makes all earlier results certain if its code or subject fits MAIL, and if all replies since
    ///   the last certain result fit their commands. A 421 fits MAIL, because servers send it after the maximum number
    ///   of messages of a session.
    fn settle(&mut self, to: DueReply, reply: &ReceivedReply<'_>, are_all_answered: bool) -> u32 {
        let is_done = reply.code() / 100 == 2;
        let is_address = matches!(to, DueReply::Mail | DueReply::Recipient(_));
        if is_address && is_done {
            self.are_addresses_labelled &= reply.subject() == Some(1);
        }
        if !are_all_answered {
            let is_own_kind = is_done && reply.subject().is_some_and(|subject| (subject == 1) == is_address);
            let is_end = to == DueReply::Mail && reply.code() == 421;
            self.is_labelled &= is_own_kind || is_end || reply.code() == 354;
            let is_behind = |due: &DueReply| matches!(due, DueReply::Mail | DueReply::Recipient(_) | DueReply::Data);
            let is_certain = match to {
                DueReply::Mail => self.is_labelled,
                DueReply::Message => is_own_kind && self.are_addresses_labelled && self.due.iter().all(is_behind),
                _ => false,
            };
            if !is_certain {
                return 0;
            }
        }
        self.is_labelled = true;
        std::mem::take(&mut self.unsettled)
    }

    /// Returns true if the reply cannot belong to the command, such as 354 to MAIL. In SMTP, a positive reply with
    /// subject 1 (addressing) does not count as a reply to a message while further replies are due, because it may be
    /// the reply to a later MAIL or RCPT. LMTP permits subject 1, because Cyrus sends it when it accepts a message for
    /// a recipient.
    pub(super) fn is_misplaced(&self, to: DueReply, reply: &ReceivedReply<'_>) -> bool {
        match (reply.code(), to) {
            (354, DueReply::Data) => false,
            (300..400, _) | (200..300, DueReply::Data) => true,
            (200..300, DueReply::Message) => {
                !self.due.is_empty() && self.protocol == Protocol::Smtp && reply.subject() == Some(1)
            }
            _ => false,
        }
    }

    /// Returns true if the peer has accepted the earlier commands that must precede this command, such as MAIL before
    /// RCPT. A 503 to the command then shows that the peer has lost track of the commands.
    fn is_due_for(&self, command: DueReply) -> bool {
        match command {
            DueReply::Mail | DueReply::Reset => true,
            DueReply::Recipient(_) => self.mail_stands,
            DueReply::Data => self.mail_stands && self.accepted > 0,
            DueReply::Chunk | DueReply::Message => !self.is_doomed,
        }
    }

    fn send(&mut self, command: &[u8], due: DueReply, out: &mut Vec<u8>) {
        out.extend_from_slice(command);
        self.due.push_back(due);
    }

    pub(super) fn begin(&mut self, envelope: Arc<Envelope>, out: &mut Vec<u8>) -> SendState {
        if self.under_way > 0 && self.bursts() {
            // Send RSET before MAIL, because the peer may still refuse the previous message. After a refusal, the peer
            // may require RSET (RFC 3030 §2).
            self.send(b"RSET\r\n", DueReply::Reset, out);
        }
        self.under_way += 1;
        if !self.groups() {
            self.send(envelope.mail(), DueReply::Mail, out);
            return SendState::LockStep(envelope);
        }
        self.due.push_back(DueReply::Mail);
        self.due.extend((0..envelope.recipients()).map(|number| DueReply::Recipient(number as u32)));
        if self.chunks() {
            out.extend_from_slice(envelope.addresses());
            return SendState::Chunks;
        }
        out.extend_from_slice(envelope.group());
        self.due.push_back(DueReply::Data);
        SendState::Group
    }

    pub(super) fn message_sent(&mut self) -> SendState {
        self.due.push_back(DueReply::Message);
        self.mail_stands = false;
        SendState::Idle
    }

    pub(super) fn chunk(&mut self, bytes: u64, part: ChunkPosition, out: &mut Vec<u8>) -> SendState {
        match part {
            ChunkPosition::Middle => {
                write!(out, "BDAT {bytes}\r\n").expect("a Vec takes any bytes");
                self.due.push_back(DueReply::Chunk);
                SendState::Chunks
            }
            ChunkPosition::Last => {
                write!(out, "BDAT {bytes} LAST\r\n").expect("a Vec takes any bytes");
                self.due.push_back(DueReply::Message);
                SendState::Idle
            }
        }
    }

    /// Ends the transaction of a refused message. Sends RSET if the peer has accepted MAIL, because
    /// the peer would otherwise refuse the next MAIL as nested.
    fn refused(&mut self, out: &mut Vec<u8>) -> SendStep {
        self.accepted_recipients.clear();
        if std::mem::take(&mut self.mail_stands) && !self.is_out_of_step {
            self.send(b"RSET\r\n", DueReply::Reset, out);
        }
        (SendState::Idle, Some(Outcome::Refused))
    }

    pub(super) fn awaited(&self) -> Option<Verb> {
        let due = self.due.front()?;
        let recipient = if *due == DueReply::Message { self.accepted_recipients.front() } else { None };
        Some(recipient.map_or_else(|| due.verb(), |number| Verb::Delivery(*number)))
    }
}
