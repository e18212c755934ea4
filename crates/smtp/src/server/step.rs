//! Reads the client's input, and moves a server session from its state to the next.
use super::core::ServerCore;
use super::data;
use super::event::Event;
use super::state::{CommandState, MessagePace, OpenQuestion, State, Transition};
use crate::command::Command;
use crate::foreign;
use crate::line::{LineReader, ReadLine};
use crate::reply_reason::ReplyReason;
use crate::sasl::MAX_EXCHANGE_LINE_BYTES;
use std::time::Duration;

impl State {
    /// Stores the next state without running the destructor of the old state. This saves time at each event, because
    /// the destructor would have to check which state it drops. The old state is always the `Closed` that `take_state`
    /// left, so nothing leaks.
    pub(super) fn put(&mut self, next: Self) {
        std::mem::forget(std::mem::replace(self, next));
    }

    /// Returns true if the session is closed, or if it needs more input or an answer from the application to continue.
    pub(super) fn is_waiting(&self, input: &[u8]) -> bool {
        match self {
            Self::Answer(_) | Self::Closed => true,
            Self::Command(_) | Self::ExpectQuit | Self::Message(_) | Self::AuthResponse(_) | Self::ExpectTls => {
                input.is_empty()
            }
            // In these states, the session can have an event even without input, such as the end of an empty chunk.
            Self::Chunk(_) | Self::Skip(_) | Self::Delivery(_) | Self::AuthQuestion(_) | Self::AuthEnd(_) => false,
        }
    }

    pub(super) fn step<'s, 'i: 's>(
        self,
        lines: &'s mut LineReader,
        input: &mut &'i [u8],
        now: Duration,
        core: &mut ServerCore,
        out: &mut Vec<u8>,
    ) -> Transition<'s> {
        match self {
            Self::Command(_) | Self::ExpectQuit if is_other_protocol(lines, input) => {
                core.give_up(ReplyReason::OtherProtocol, out)
            }
            Self::Command(state) => match read_command(lines, input, core) {
                None => (Self::Command(state), None),
                Some(line) => state.step(&line.and_then(|line| parse(line, core)), now, core, out),
            },
            Self::ExpectQuit => match read_command(lines, input, core) {
                None => (Self::ExpectQuit, None),
                Some(line) => data::step_turned_away(&line.and_then(|line| parse(line, core)), now, core, out),
            },
            Self::Message(message) => message.step(input, now, core, out),
            Self::Chunk(message) => message.step(input, now, core, out),
            Self::Skip(skip) => skip.step(input, now, core, out),
            Self::Delivery(delivery) => delivery.ask(),
            Self::AuthResponse(response) => match read_response(lines, input) {
                None => (Self::AuthResponse(response), None),
                Some(line) => response.step(line, now, core, out),
            },
            Self::AuthQuestion(question) => (Self::Answer(OpenQuestion::Login(question)), None),
            Self::AuthEnd(end) => end.step(core, out),
            Self::ExpectTls => {
                core.injected += std::mem::take(input).len() as u64;
                (Self::ExpectTls, None)
            }
            Self::Answer(question) => (Self::Answer(question), None),
            Self::Closed => (Self::Closed, None),
        }
    }

    pub(super) fn login_event(&self) -> Option<Event<'_>> {
        match self {
            Self::Answer(OpenQuestion::Login(question)) => Some(question.event()),
            _ => None,
        }
    }

    pub(super) fn message_pace(&self) -> Option<&MessagePace> {
        match self {
            Self::Message(message) => Some(&message.pace),
            Self::Chunk(message) | Self::Command(CommandState::ExpectChunk(message)) => Some(&message.pace),
            Self::Skip(skip) => Some(&skip.pace),
            _ => None,
        }
    }
}

/// Returns true if the client speaks another protocol than SMTP or LMTP, such as TLS. Decides by the first byte of the
/// line, because a TLS ClientHello may contain no line end.
fn is_other_protocol(lines: &LineReader, input: &[u8]) -> bool {
    lines.is_at_start() && input.first().is_some_and(|&first| foreign::begins_otherwise(first))
}

/// Reads the next command line. Returns `None` if the line is incomplete. If the server must refuse the line, returns
/// the reason as an error.
fn read_command<'s, 'i: 's>(
    lines: &'s mut LineReader,
    input: &mut &'i [u8],
    core: &ServerCore,
) -> Option<Result<&'s [u8], ReplyReason>> {
    match lines.next(input, core.settings.line_bytes()) {
        ReadLine::Partial => None,
        ReadLine::Whole(line) => Some(Ok(line)),
        ReadLine::BareLf(line) => Some(Err(fault(line, ReplyReason::BareLineFeed))),
        ReadLine::TooLong => Some(Err(ReplyReason::LineTooLong)),
    }
}

fn parse<'l>(line: &'l [u8], core: &ServerCore) -> Result<Command<'l>, ReplyReason> {
    let mut command = match core.settings.requires.valid_parameters {
        true => Command::parse_strictly(line),
        false => Command::parse(line),
    };
    // Replace the reason inside the result, because `map_err` would move the command, which is
    // large.
    if let Err(reason) = &mut command {
        *reason = fault(line, *reason);
    }
    command
}

/// Returns the reason to refuse an invalid line. If the line belongs to another protocol, such as HTTP, returns
/// `OtherProtocol` instead of `reason`, because such a line must end the session.
fn fault(line: &[u8], reason: ReplyReason) -> ReplyReason {
    if foreign::is_foreign(line) { ReplyReason::OtherProtocol } else { reason }
}

fn read_response<'s, 'i: 's>(lines: &'s mut LineReader, input: &mut &'i [u8]) -> Option<Result<&'s [u8], ReplyReason>> {
    match lines.next(input, MAX_EXCHANGE_LINE_BYTES) {
        ReadLine::Partial => None,
        ReadLine::Whole(line) => Some(Ok(line)),
        ReadLine::BareLf(_) => Some(Err(ReplyReason::BareLineFeed)),
        ReadLine::TooLong => Some(Err(ReplyReason::ResponseTooLong)),
    }
}
