//! States of a server session. The files beside this one have their steps: `step`, and what it calls.
use super::event::Event;
use crate::chunk::{ChunkReader, ContentKind};
use crate::command::{Chunk, Hello};
use crate::data::DataReader;
use crate::limits::Limits;
use crate::reply::Reply;
use crate::reply_reason::ReplyReason;
use crate::sasl::Mechanism;
use crate::sasl::server::{AwaitedProof, AwaitedResponse, SecretLookup, ShownSecret};
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

/// States in which the session waits for a command.
#[derive(Debug)]
#[expect(clippy::enum_variant_names, reason = "a state is named by what it waits for")]
pub(super) enum CommandState {
    /// A greeting comes first.
    ExpectHello,
    /// No transaction is open.
    ExpectMail,
    /// MAIL was granted.
    ExpectRecipient(TransactionState),
    /// A chunk of the message has been read, and it was not the last.
    ExpectChunk(Box<ChunkedMessage>),
}

/// A transaction before its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TransactionState {
    /// Recipients that were accepted.
    pub(super) accepted: u32,
    /// Recipients that were refused.
    pub(super) refused: u32,
    pub(super) addresses: Addresses,
    pub(super) content_kind: ContentKind,
}

/// Form of the addresses of a transaction, by its MAIL (RFC 6531 §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addresses {
    Ascii,
    Utf8,
}

/// A message that comes by DATA.
#[derive(Debug)]
pub(super) struct DataMessage {
    pub(super) reader: DataReader,
    pub(super) pace: MessagePace,
    pub(super) recipients: u32,
}

/// A message that comes by BDAT.
#[derive(Debug)]
pub(super) struct ChunkedMessage {
    pub(super) reader: ChunkReader,
    pub(super) pace: MessagePace,
    pub(super) recipients: u32,
}

/// Time limits of a message under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessagePace {
    since: Duration,
    /// Time at which it will have been too slow. Each byte puts this off by its share of a second, but never beyond the
    /// idle timeout from now: so no fast beginning makes up for a slow end.
    slow_at: Duration,
}

impl MessagePace {
    pub(super) fn begin(now: Duration, limits: &Limits) -> Self {
        Self { since: now, slow_at: now.saturating_add(limits.idle_timeout) }
    }

    pub(super) fn received(&mut self, bytes: usize, now: Duration, limits: &Limits) {
        let earned = (bytes as u64).saturating_mul(1_000_000_000).checked_div(limits.min_data_rate);
        self.slow_at = match earned {
            Some(nanos) => self.slow_at.saturating_add(Duration::from_nanos(nanos)),
            None => Duration::MAX,
        }
        .min(now.saturating_add(limits.idle_timeout));
    }

    pub(super) fn deadline(&self, limits: &Limits) -> Duration {
        self.slow_at.min(self.since.saturating_add(limits.message_timeout))
    }
}

/// Remaining bytes of a chunk that is refused: they are read nevertheless (RFC 3030 §2).
#[derive(Debug)]
pub(super) struct SkippedChunk {
    pub(super) left: u64,
    pub(super) pace: MessagePace,
    pub(super) refusal: ChunkRefusal,
}

/// Refusal of a chunk: its cause, and the reply after its bytes.
#[derive(Debug)]
pub(super) enum ChunkRefusal {
    /// The command was out of order, in this state.
    Command(CommandState, ReplyReason),
    /// The client was turned away at the greeting.
    TurnedAway,
    /// The message was refused, with that number of replies.
    Message(ReplyReason, u32),
    /// The application refused with this reply, sent that number of times.
    Said(Reply, u32),
}

/// The question that is open. It holds the state in which a refusal leaves the session.
#[derive(Debug)]
pub(super) enum OpenQuestion {
    Greeting,
    Hello(Hello, CommandState),
    Mail(TransactionState),
    Recipient(TransactionState),
    Data(TransactionState),
    FirstChunk(TransactionState, Chunk),
    Message { recipients: u32 },
    Delivery(DeliveryState),
    Verify(CommandState),
    Reset(CommandState),
    Noop(CommandState),
    Quit(CommandState),
    QuitTurnedAway,
    StartTls,
    Nonce(Box<AuthRequest>),
    Login(LoginQuestion),
    Xclient { is_logged_in: bool, before: CommandState },
}

/// The recipients of a message in LMTP whose results are still to be asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeliveryState {
    pub(super) next: u32,
    pub(super) recipients: u32,
}

/// AUTH before its exchange: the mechanism, and the response that came with the command.
#[derive(Debug)]
pub(super) struct AuthRequest {
    pub(super) mechanism: Mechanism,
    pub(super) initial: Option<Vec<u8>>,
}

/// A line of the client's that is awaited.
#[derive(Debug)]
pub(super) enum AuthResponse {
    /// The next response.
    Exchange(Box<AwaitedResponse>),
    /// The proof, which is not checked before the application permits it.
    Proof(Box<AwaitedProof>),
    /// The empty response of a client of XOAUTH2 that was sent the reason of its refusal; then this reply.
    Acknowledgement(Box<Reply>),
}

/// A question to the application about a client that logs in.
#[derive(Debug)]
pub(super) enum LoginQuestion {
    /// Do name and secret belong together?
    Check(Box<ShownSecret>),
    /// The secret is asked for.
    Lookup(Box<SecretLookup>),
    /// May this proof be checked?
    Proof(Box<PendingProof>),
}

/// A proof that the application has not permitted to check yet.
#[derive(Debug)]
pub(super) struct PendingProof {
    pub(super) exchange: Box<AwaitedProof>,
    pub(super) response: Vec<u8>,
}

/// Results of an exchange whose last reply has been sent.
#[derive(Debug)]
pub(super) enum AuthEnd {
    /// The client is logged in.
    Granted,
    /// The session refused, for this reason.
    Refused(ReplyReason),
    /// The application refused.
    RefusedByApplication {
        /// Set if the reply is final, so that the secret was wrong.
        has_failed: bool,
    },
}
