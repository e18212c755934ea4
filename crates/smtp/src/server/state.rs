//! States of a server session, and the step from one to the next.
use super::ServerCore;
use super::auth::{AuthEnd, AuthResponse, LoginQuestion};
use super::command::CommandState;
use super::data::{ChunkedMessage, DataMessage, SkippedChunk};
use super::question::{DeliveryState, OpenQuestion};
use super::{Event, turned_away};
use crate::foreign;
use crate::line::{LineReader, ReadLine};
use crate::reply_reason::ReplyReason;
use crate::sasl::MAX_EXCHANGE_LINE_BYTES;
use std::time::Duration;

/// The next state, and the event of the step; no event needs more bytes.
pub(super) type Transition<'a> = (State, Option<Event<'a>>);

/// States of the session, by what it waits for. Each holds what it needs, so that no other state can have it; what is
/// large is in a box, for a step moves the state.
///
/// ```text
/// Answer(Greeting) ── refused ──▶ ExpectQuit: 503 to all else (RFC 5321 §3.1)
///    │
///    ▼                        Command
/// ┌────────────────────────────────────────────────────────────────────┐
/// │ ExpectHello ──EHLO──▶ ExpectMail ──MAIL──▶ ExpectRecipient ─┐RCPT  │    each command that the application decides
/// │    ▲                   ▲ ▲  ▲ ▲                 │  │  │ ▲   │      │    goes by Answer(question); a refusal leads
/// │    │                   │ │  │ └───── RSET ──────┤  │  │ └───┘      │    back to the state that the question holds
/// │    │                   │ │  │                   │  │  │            │
/// │    │                   │ │  └──── RSET ── ExpectChunk │            │
/// └────┼───────────────────┼─┼────────────────────┬──▲───┼─────────────┘
///      │                   │ │        DATA        │  │   │ BDAT
///      │                   │ │   ┌────────────────┼──┼───┘
///      │                   │ │   │        BDAT ───┘  │
///      │                   │ │   ▼                │  │
///      │                   │ │ Message          Chunk
///      │                   │ │   │ <CRLF>.<CRLF>  │ the end of BDAT … LAST
///      │                   │ │   ▼                ▼
///      │                   │ └── Answer(Message) ─▶ Delivery ⇄ Answer(Delivery), for each recipient in LMTP
///      │                   │
///      │                   ├── AUTH ─▶ Answer(Nonce) ─▶ AuthResponse ⇄ AuthQuestion ─▶ AuthEnd ─▶ ExpectMail
///      ├─── tls_started ───┴── STARTTLS ─▶ ExpectTls
///      └─── XCLIENT, from there and from ExpectHello
///
/// any of Command, ExpectQuit ── a BDAT that is refused ──▶ Skip: its bytes ──▶ that state, or ExpectMail
/// any state ── QUIT, 421, too many errors, another protocol, time-out ──▶ Closed
/// ```
#[derive(Debug)]
pub(super) enum State {
    /// The application's answer.
    Answer(OpenQuestion),
    /// A command.
    Command(CommandState),
    /// QUIT, after a refusal to greet.
    ExpectQuit,
    /// The message after DATA.
    Message(Box<DataMessage>),
    /// The bytes of a chunk.
    Chunk(Box<ChunkedMessage>),
    /// The bytes of a chunk that is refused.
    Skip(Box<SkippedChunk>),
    /// Nothing: the next recipient's result is asked for.
    Delivery(DeliveryState),
    /// A line of the client's in an exchange of AUTH.
    AuthResponse(AuthResponse),
    /// Nothing: the application is asked about the client that logs in.
    AuthQuestion(LoginQuestion),
    /// Nothing: the result of the exchange is reported.
    AuthEnd(AuthEnd),
    /// TLS.
    ExpectTls,
    /// Nothing any more.
    Closed,
}

impl State {
    /// Takes the next step that needs no answer.
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
            Self::Command(state) => match core.next_command(lines, input) {
                None => (Self::Command(state), None),
                Some(command) if core.is_too_much(&command, now) => core.give_up(ReplyReason::TooManyCommands, out),
                Some(command) => state.step(command, now, core, out),
            },
            Self::ExpectQuit => match core.next_command(lines, input) {
                None => (Self::ExpectQuit, None),
                Some(command) if core.is_too_much(&command, now) => core.give_up(ReplyReason::TooManyCommands, out),
                Some(command) => turned_away::step(command, now, core, out),
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

    /// The question about the client that logs in, if it is open.
    pub(super) fn login_event(&self) -> Option<Event<'_>> {
        match self {
            Self::Answer(OpenQuestion::Login(question)) => Some(question.event()),
            _ => None,
        }
    }

    /// Time at which the message that is being read began.
    pub(super) fn message_since(&self) -> Option<Duration> {
        match self {
            Self::Message(message) => Some(message.since),
            Self::Chunk(message) | Self::Command(CommandState::ExpectChunk(message)) => Some(message.since),
            Self::Skip(skip) => Some(skip.since),
            _ => None,
        }
    }
}

/// Reports whether the client speaks another protocol. Its first byte is enough: a ClientHello may lack a line's end.
fn is_other_protocol(lines: &LineReader, input: &[u8]) -> bool {
    lines.is_at_start() && input.first().is_some_and(|&first| foreign::begins_otherwise(first))
}

/// Reads the next line of an exchange of AUTH; `None` needs more bytes.
fn read_response<'s, 'i: 's>(lines: &'s mut LineReader, input: &mut &'i [u8]) -> Option<Result<&'s [u8], ReplyReason>> {
    match lines.next(input, MAX_EXCHANGE_LINE_BYTES) {
        ReadLine::Partial => None,
        ReadLine::Whole(line) => Some(Ok(line)),
        ReadLine::BareLf(_) => Some(Err(ReplyReason::BareLineFeed)),
        ReadLine::TooLong => Some(Err(ReplyReason::ResponseTooLong)),
    }
}
