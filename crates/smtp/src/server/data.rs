//! Reading messages by DATA and by BDAT (RFC 3030), and skipping refused chunks.
use super::core::ServerCore;
use super::event::Event;
use super::state::{
    ChunkRefusal, ChunkedMessage, CommandState, DataMessage, MessagePace, OpenQuestion, SkippedChunk, State,
    TransactionState, Transition,
};
use super::turned_away;
use crate::chunk::{ChunkPiece, ChunkReader};
use crate::command::Chunk;
use crate::data::{DataPiece, DataReader, LineFault};
use crate::limits::Limits;
use crate::reply_reason::ReplyReason;
use std::time::Duration;

impl DataMessage {
    fn new(transaction: TransactionState, now: Duration, limits: &Limits) -> Self {
        let reader = DataReader::new(limits.text_line_bytes);
        Self { reader, pace: MessagePace::begin(now, limits), recipients: transaction.accepted }
    }

    /// Begins to read a message.
    pub(super) fn begin(transaction: TransactionState, now: Duration, core: &mut ServerCore) -> State {
        let message = Self::new(transaction, now, &core.settings.limits);
        State::Message(core.spare_data.fill(message))
    }

    /// Reads a piece of the message. Bytes beyond the size limit are read and dropped, because the sender reads a reply
    /// only at the end. At many times the limit the session ends, because the message may never end.
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

    /// Begins to read a message and its first chunk.
    pub(super) fn begin(transaction: TransactionState, chunk: Chunk, now: Duration, core: &mut ServerCore) -> State {
        let message = Self::new(transaction, now, &core.settings.limits);
        core.spare_chunks.fill(message).continued(chunk)
    }

    /// Bytes of the message so far.
    pub(super) fn bytes(&self) -> u64 {
        self.reader.bytes()
    }

    /// Begins to read a chunk.
    pub(super) fn continued(mut self: Box<Self>, chunk: Chunk) -> State {
        self.reader.begin(chunk);
        State::Chunk(self)
    }

    /// Reads a piece of the chunk.
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
                // Like a recipient, a chunk that is not empty is progress.
                core.idle_commands -= u32::from(bytes > 0);
                let next = State::Command(CommandState::ExpectChunk(self));
                core.answered(next, ReplyReason::ChunkAccepted, out)
            }
        }
    }
}

impl SkippedChunk {
    /// Returns the state in which a chunk is skipped.
    pub(super) fn state(chunk: Chunk, pace: MessagePace, refusal: ChunkRefusal) -> State {
        State::Skip(Box::new(Self { left: chunk.bytes, pace, refusal }))
    }

    /// Skips the bytes that have arrived. Refuses the chunk after its last byte.
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
            ChunkRefusal::Command(state, reason) if state.is_in_good_faith() => {
                core.answered(State::Command(state), reason, out)
            }
            ChunkRefusal::Command(state, reason) => state.refuse(reason, core, out),
            ChunkRefusal::TurnedAway => turned_away::refuse(core, out),
            ChunkRefusal::Message(reason, times) => core.discard(reason, times, out),
            ChunkRefusal::Said(reply, times) => {
                (0..times).for_each(|_| out.extend_from_slice(reply.wire()));
                (State::Command(CommandState::ExpectMail), Some(Event::Answered))
            }
        }
    }
}

/// What happens when the last byte of a message has been read, or when the message is given up.
impl ServerCore {
    /// The largest number of bytes of a message that are read.
    pub(super) fn most_bytes(&self) -> u64 {
        let limits = &self.settings.limits;
        limits.message_bytes.saturating_mul(limits.oversize_factor.max(1))
    }

    /// Handles the end of a message.
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

    /// Refuses a message after its last byte has been read.
    fn discard<'a>(&mut self, reason: ReplyReason, times: u32, out: &mut Vec<u8>) -> Transition<'a> {
        self.has_brought_mail();
        (0..times).for_each(|_| self.say(reason, out));
        (State::Command(CommandState::ExpectMail), Some(Event::Discarded(reason)))
    }

    /// Ends the session because of a message that is far too large.
    pub(super) fn overwhelmed<'a>(&self, reason: ReplyReason, out: &mut Vec<u8>) -> Transition<'a> {
        self.say(reason, out);
        (State::Closed, Some(Event::Discarded(reason)))
    }

    /// A message has got its last reply.
    pub(super) fn settled(&mut self) -> State {
        self.has_brought_mail();
        self.errors = 0;
        State::Command(CommandState::ExpectMail)
    }

    /// A message was received, whether accepted or not, so counting of commands without mail starts again.
    fn has_brought_mail(&mut self) {
        self.idle_commands = 0;
        self.junk_commands = 0;
        self.has_open_mail = false;
        self.last_message = self.last_received;
    }
}
