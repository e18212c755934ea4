//! Reads messages that come by DATA or BDAT (RFC 3030), and skips refused chunks.
use super::core::ServerCore;
use super::event::Event;
use super::state::{
    ChunkRefusal, ChunkedMessage, CommandState, DataMessage, MessagePace, OpenQuestion, SkippedChunk, State,
    TransactionState, Transition,
};
use crate::chunk::{ChunkPiece, ChunkReader};
use crate::command::{Chunk, Command};
use crate::data::{DataPiece, DataReader, LineFault};
use crate::limits::Limits;
use crate::reply_reason::ReplyReason;
use std::time::Duration;

impl DataMessage {
    fn new(transaction: TransactionState, now: Duration, limits: &Limits) -> Self {
        let reader = DataReader::new(limits.text_line_bytes);
        Self { reader, pace: MessagePace::begin(now, limits), recipients: transaction.accepted }
    }

    pub(super) fn begin(transaction: TransactionState, now: Duration, core: &mut ServerCore) -> State {
        let message = Self::new(transaction, now, &core.settings.limits);
        State::Message(core.spare_data.fill(message))
    }

    /// Takes the next block of the message, or its end, from the front of `input`. Reads and drops bytes beyond the
    /// size limit, because the sender reads the refusal only at the end of its message. Ends the session beyond
    /// `Limits::oversize_factor` times the limit, because the message may never end.
    pub(super) fn step<'a>(
        mut self: Box<Self>,
        input: &mut &'a [u8],
        now: Duration,
        core: &mut ServerCore,
        out: &mut Vec<u8>,
    ) -> Transition<'a> {
        let Some(piece) = self.reader.next(input) else { return (State::Message(self), None) };
        core.last_received = now;
        if let DataPiece::Content(content) = &piece {
            self.pace.received(content.len(), now, &core.settings.limits);
        }
        let bytes = self.reader.bytes();
        let limit = core.settings.limits.message_bytes;
        match piece {
            DataPiece::Content(_) if bytes > core.most_bytes() => core.overwhelmed(ReplyReason::MessageEndless, out),
            DataPiece::Content(_) if bytes > limit => (State::Message(self), Some(Event::Answered)),
            DataPiece::Content(content) => (State::Message(self), Some(Event::Block(content))),
            DataPiece::End if bytes > limit => {
                core.discard(ReplyReason::MessageTooBig, core.replies_to_message(self.recipients), out)
            }
            DataPiece::End => {
                let next = core.received(bytes, self.reader.fault(), self.recipients, out);
                core.spare_data.keep(self);
                next
            }
        }
    }
}

impl ChunkedMessage {
    fn new(transaction: TransactionState, now: Duration, limits: &Limits) -> Self {
        let reader = ChunkReader::new(transaction.content_kind, limits.text_line_bytes);
        Self { reader, pace: MessagePace::begin(now, limits), recipients: transaction.accepted }
    }

    pub(super) fn begin(transaction: TransactionState, chunk: Chunk, now: Duration, core: &mut ServerCore) -> State {
        let message = Self::new(transaction, now, &core.settings.limits);
        core.spare_chunks.fill(message).continued(chunk)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.reader.bytes()
    }

    pub(super) fn continued(mut self: Box<Self>, chunk: Chunk) -> State {
        self.reader.begin(chunk);
        State::Chunk(self)
    }

    pub(super) fn step<'a>(
        mut self: Box<Self>,
        input: &mut &'a [u8],
        now: Duration,
        core: &mut ServerCore,
        out: &mut Vec<u8>,
    ) -> Transition<'a> {
        let Some(piece) = self.reader.next(input) else { return (State::Chunk(self), None) };
        core.last_received = now;
        match piece {
            ChunkPiece::Content(content) => {
                self.pace.received(content.len(), now, &core.settings.limits);
                (State::Chunk(self), Some(Event::Block(content)))
            }
            ChunkPiece::End(Chunk { last: true, .. }) => {
                let next = core.received(self.reader.bytes(), self.reader.fault(), self.recipients, out);
                core.spare_chunks.keep(self);
                next
            }
            ChunkPiece::End(Chunk { last: false, bytes }) => {
                // A chunk that is not empty is progress, so its BDAT does not count towards
                // `Limits::idle_commands`.
                core.idle_commands -= u32::from(bytes > 0);
                let next = State::Command(CommandState::ExpectChunk(self));
                core.answered(next, ReplyReason::ChunkAccepted, out)
            }
        }
    }
}

impl SkippedChunk {
    pub(super) fn state(chunk: Chunk, pace: MessagePace, refusal: ChunkRefusal) -> State {
        State::Skip(Box::new(Self { left: chunk.bytes, pace, refusal }))
    }

    /// Removes the bytes of the refused chunk from `input`, as far as they have arrived. The refusal is sent after the
    /// last byte, because the client reads no reply before it has sent the whole chunk.
    pub(super) fn step<'a>(
        mut self: Box<Self>,
        input: &mut &[u8],
        now: Duration,
        core: &mut ServerCore,
        out: &mut Vec<u8>,
    ) -> Transition<'a> {
        let length = usize::try_from(self.left).map_or(input.len(), |left| left.min(input.len()));
        *input = &input[length..];
        self.left -= length as u64;
        if length > 0 {
            core.last_received = now;
            self.pace.received(length, now, &core.settings.limits);
        }
        if self.left > 0 {
            return (State::Skip(self), None);
        }
        match self.refusal {
            ChunkRefusal::Command(state, reason) => state.refuse(reason, core, out),
            ChunkRefusal::TurnedAway => refuse_turned_away(core, out),
            ChunkRefusal::Message(reason, times) => core.discard(reason, times, out),
            ChunkRefusal::Said(reply, times) => {
                (0..times).for_each(|_| out.extend_from_slice(reply.wire()));
                (State::Command(CommandState::ExpectMail), Some(Event::Answered))
            }
        }
    }
}

impl ServerCore {
    /// Number of message bytes above which an oversized message ends the session.
    pub(super) fn most_bytes(&self) -> u64 {
        let limits = &self.settings.limits;
        limits.message_bytes.saturating_mul(limits.oversize_factor.max(1))
    }

    fn received<'a>(
        &mut self,
        bytes: u64,
        fault: Option<LineFault>,
        recipients: u32,
        out: &mut Vec<u8>,
    ) -> Transition<'a> {
        let times = self.replies_to_message(recipients);
        match fault {
            Some(LineFault::BareLineEnding) => self.discard(ReplyReason::BareLineEnding, times, out),
            Some(LineFault::LineTooLong) => self.discard(ReplyReason::LineTooLong, times, out),
            None => (State::Answer(OpenQuestion::Message { recipients }), Some(Event::Message { bytes })),
        }
    }

    /// Refuses a message that has been read to its end, and sends the reply `times` times, because LMTP needs one for
    /// each recipient. The session continues with the next MAIL.
    fn discard<'a>(&mut self, reason: ReplyReason, times: u32, out: &mut Vec<u8>) -> Transition<'a> {
        self.has_brought_mail();
        (0..times).for_each(|_| self.say(reason, out));
        (State::Command(CommandState::ExpectMail), Some(Event::Discarded(reason)))
    }

    /// Refuses a message that is far too large. Ends the session, because the rest of the message
    /// is not read.
    pub(super) fn overwhelmed<'a>(&self, reason: ReplyReason, out: &mut Vec<u8>) -> Transition<'a> {
        self.say(reason, out);
        (State::Closed, Some(Event::Discarded(reason)))
    }

    /// Records that a message has got its last reply. Restarts the count of errors, so that the
    /// limit on errors applies to each message of a long session.
    pub(super) fn settled(&mut self) -> State {
        self.has_brought_mail();
        self.errors = 0;
        State::Command(CommandState::ExpectMail)
    }

    /// Records that a message was received, whether it was accepted or refused. Resets the counts that limit how many
    /// commands a client may send without a message.
    fn has_brought_mail(&mut self) {
        self.idle_commands = 0;
        self.junk_commands = 0;
        self.has_open_mail = false;
        self.last_message = self.last_received;
    }
}

/// Handles a command of a client that was refused at the greeting. Everything but QUIT gets 503 (RFC 5321 §3.1), until
/// the client exceeds a limit on commands or errors.
pub(super) fn step_turned_away<'a>(
    command: &Result<Command<'a>, ReplyReason>,
    now: Duration,
    core: &mut ServerCore,
    out: &mut Vec<u8>,
) -> Transition<'a> {
    if core.is_too_much(command, now) {
        return core.give_up(ReplyReason::TooManyCommands, out);
    }
    match command {
        Ok(Command::Quit) => (State::Answer(OpenQuestion::QuitTurnedAway), Some(Event::Quit)),
        Ok(Command::Chunk(chunk)) if core.offers().chunking => skip_turned_away(*chunk, now, core, out),
        Err(reason @ (ReplyReason::BadChunk | ReplyReason::OtherProtocol)) => {
            core.refuse(State::ExpectQuit, *reason, out)
        }
        Ok(_) | Err(_) => refuse_turned_away(core, out),
    }
}

pub(super) fn refuse_turned_away<'a>(core: &mut ServerCore, out: &mut Vec<u8>) -> Transition<'a> {
    core.refuse(State::ExpectQuit, ReplyReason::NoService, out)
}

fn skip_turned_away<'a>(chunk: Chunk, now: Duration, core: &mut ServerCore, out: &mut Vec<u8>) -> Transition<'a> {
    if chunk.bytes > core.most_bytes() {
        return core.overwhelmed(ReplyReason::MessageTooBig, out);
    }
    let pace = MessagePace::begin(now, &core.settings.limits);
    (SkippedChunk::state(chunk, pace, ChunkRefusal::TurnedAway), Some(Event::Answered))
}
