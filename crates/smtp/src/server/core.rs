//! Data of a server session that survives a change of state: settings, counters and clock.
use super::event::Event;
use super::state::{ChunkedMessage, DataMessage, MessagePace, State, Transition};
use crate::command::{Chunk, Command, Hello};
use crate::extensions::Extensions;
use crate::reply::Reply;
use crate::reply_reason::ReplyReason;
use crate::settings::{Protocol, ServerSettings};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct ServerCore {
    pub(super) settings: Arc<ServerSettings>,
    pub(super) errors: u32,
    /// Number of unknown commands that came while EHLO was due. It is never reset, not even by STARTTLS or XCLIENT,
    /// after which the client must send EHLO again.
    pub(super) unknown: u32,
    pub(super) idle_commands: u32,
    pub(super) failed_logins: u32,
    pub(super) junk_commands: u32,
    /// Set from an accepted MAIL until RSET or the end of the message. While this is set, RSET does not count as a junk
    /// command.
    pub(super) has_open_mail: bool,
    pub(super) gave_up: Option<ReplyReason>,
    pub(super) last_received: Duration,
    /// Time since which the session waits for the next message: the end of the last message, or the start of the
    /// session. Moves forward by the time that the application takes to answer, because the client is not to blame for
    /// this delay.
    pub(super) last_message: Duration,
    pub(super) injected: u64,
    pub(super) has_quit: bool,
    pub(super) is_over_tls: bool,
    pub(super) is_authenticated: bool,
    pub(super) spare_data: Spare<DataMessage>,
    pub(super) spare_chunks: Spare<ChunkedMessage>,
}

impl ServerCore {
    pub(super) fn new(settings: Arc<ServerSettings>, now: Duration) -> Self {
        Self {
            settings,
            errors: 0,
            unknown: 0,
            idle_commands: 0,
            failed_logins: 0,
            junk_commands: 0,
            has_open_mail: false,
            gave_up: None,
            last_received: now,
            last_message: now,
            injected: 0,
            has_quit: false,
            is_over_tls: false,
            is_authenticated: false,
            spare_data: Spare::default(),
            spare_chunks: Spare::default(),
        }
    }

    /// Returns the time at which the session times out unless more input arrives. A session times out if the client is
    /// silent for too long, sends its message too slowly, or sends no message for too long.
    pub(super) fn deadline(&self, message_pace: Option<&MessagePace>) -> Duration {
        let limits = &self.settings.limits;
        let idle = self.last_received + limits.idle_timeout;
        match message_pace {
            Some(pace) => idle.min(pace.deadline(limits)),
            None => idle.min(self.last_message.saturating_add(limits.no_message_timeout)),
        }
    }

    /// Moves the clocks forward by the time that the application took to answer, so that this time
    /// does not count against the client.
    pub(super) fn application_answered(&mut self, now: Duration) {
        self.last_message += now.saturating_sub(self.last_received);
        self.last_received = now;
    }

    /// Forgets the login, because a session must forget everything that it learned before TLS (RFC
    /// 3207 §4.2).
    pub(super) fn tls_started(&mut self, now: Duration) {
        self.is_over_tls = true;
        self.is_authenticated = false;
        self.last_received = now;
    }

    pub(super) fn offers(&self) -> &Extensions {
        self.settings.offers(self.is_over_tls)
    }

    pub(super) fn hello_reply(&self, kind: Hello) -> &Reply {
        match kind {
            Hello::Extended | Hello::Lmtp => self.settings.ehlo(self.is_over_tls),
            Hello::Plain => &self.settings.helo,
        }
    }

    /// Counts a command or an invalid line. Returns true if the client has sent too many since its last message.
    pub(super) fn is_too_much(&mut self, command: &Result<Command<'_>, ReplyReason>, now: Duration) -> bool {
        self.last_received = now;
        self.idle_commands += 1;
        let is_too_idle = self.idle_commands > self.settings.limits.idle_commands;
        is_too_idle || command.as_ref().is_ok_and(|command| self.is_too_much_junk(command))
    }

    /// Counts a command that does not help to send mail, such as NOOP or VRFY. Returns true if the client has sent too
    /// many of them since its last message. RSET in an open transaction does not count, because clients need it after a
    /// failed message.
    fn is_too_much_junk(&mut self, command: &Command<'_>) -> bool {
        let is_junk = match command {
            Command::Noop | Command::Verify(_) | Command::Help | Command::Hello(..) => true,
            Command::Reset => !std::mem::take(&mut self.has_open_mail),
            _ => false,
        };
        self.junk_commands += u32::from(is_junk);
        is_junk && self.junk_commands > self.settings.limits.junk_commands
    }

    pub(super) fn say(&self, reason: ReplyReason, out: &mut Vec<u8>) {
        out.extend_from_slice(reason.reply().wire());
    }

    /// Sends the session's own reply to a command, without asking the application.
    pub(super) fn answered<'a>(&self, next: State, reason: ReplyReason, out: &mut Vec<u8>) -> Transition<'a> {
        self.say(reason, out);
        (next, Some(Event::Answered))
    }

    pub(super) fn refuse<'a>(&mut self, stays: State, reason: ReplyReason, out: &mut Vec<u8>) -> Transition<'a> {
        let reason = match reason {
            // After an invalid BDAT, the length of the chunk is unknown. The session must end, because it cannot skip
            // the chunk. If the server does not offer CHUNKING, no chunk follows, so the session can continue.
            ReplyReason::BadChunk if !self.offers().chunking => ReplyReason::NotImplemented,
            ReplyReason::BadChunk | ReplyReason::OtherProtocol => return self.give_up(reason, out),
            reason => reason,
        };
        if !self.bears(reason) {
            return self.give_up(ReplyReason::TooManyCommands, out);
        }
        self.answered(stays, reason, out)
    }

    /// Counts the refusal of a command as an error of the client. Returns false if the session must end because of too
    /// many errors. RCPT, DATA or BDAT after a refused MAIL or BDAT does not count, because a pipelining client sends
    /// it before it knows of the refusal (RFC 2920 §3.1, RFC 3030 §4.2). A recipient beyond the limit does not count
    /// either, because the sender retries this recipient later (RFC 5321 §4.5.3.1.10), and ending the session would
    /// keep the message from the accepted recipients.
    pub(super) fn bears(&mut self, reason: ReplyReason) -> bool {
        let is_error = !matches!(reason, ReplyReason::TooManyRecipients | ReplyReason::MailFirst);
        self.errors += u32::from(is_error);
        let limits = &self.settings.limits;
        self.errors <= limits.errors && self.unknown <= limits.unknown_before_hello
    }

    /// Sends the reply for this reason, and ends the session because of a fault of the client, such as too many errors.
    pub(super) fn give_up<'a>(&mut self, reason: ReplyReason, out: &mut Vec<u8>) -> Transition<'a> {
        (self.give_up_state(reason, out), Some(Event::Answered))
    }

    /// Ends the session like `give_up`, but reports no event, so that the caller can report an event of its own.
    pub(super) fn give_up_state(&mut self, reason: ReplyReason, out: &mut Vec<u8>) -> State {
        self.gave_up = Some(reason);
        self.say(reason, out);
        State::Closed
    }

    /// Returns how many replies a message gets at its end: one in SMTP, and one for each recipient in LMTP (RFC 2033
    /// §4.2).
    pub(super) fn replies_to_message(&self, recipients: u32) -> u32 {
        match self.settings.protocol {
            Protocol::Smtp => 1,
            Protocol::Lmtp => recipients.max(1),
        }
    }

    /// Returns how many replies a chunk of a refused message gets. In LMTP, the last chunk gets a reply for each
    /// recipient. Any other chunk gets one reply.
    pub(super) fn replies_to_chunk(&self, chunk: Chunk, recipients: u32) -> u32 {
        if chunk.last { self.replies_to_message(recipients) } else { 1 }
    }
}

/// A box that is kept for the next message, so that only the first message costs an allocation.
#[derive(Debug)]
pub(super) struct Spare<T>(Option<Box<T>>);

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Spare<T> {
    pub(super) fn fill(&mut self, value: T) -> Box<T> {
        match self.0.take() {
            Some(mut kept) => {
                *kept = value;
                kept
            }
            None => Box::new(value),
        }
    }

    pub(super) fn keep(&mut self, used: Box<T>) {
        self.0 = Some(used);
    }
}
