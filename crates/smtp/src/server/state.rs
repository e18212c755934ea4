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

/// The next state, and the event of the step. Without an event, the step needs more bytes.
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
    /// Waits for the application's answer.
    Answer(OpenQuestion),
    /// Waits for a command.
    Command(CommandState),
    /// Waits for QUIT after refusing to greet.
    ExpectQuit,
    /// Reads the message after DATA.
    Message(Box<DataMessage>),
    /// Reads the bytes of a chunk.
    Chunk(Box<ChunkedMessage>),
    /// Reads the bytes of a refused chunk.
    Skip(Box<SkippedChunk>),
    /// Waits for nothing: the session asks for the next recipient's result.
    Delivery(DeliveryState),
    /// Waits for a line of the client in an exchange of AUTH.
    AuthResponse(AuthResponse),
    /// Waits for nothing: the session asks the application about the login.
    AuthQuestion(LoginQuestion),
    /// Waits for nothing: the session reports the result of the exchange.
    AuthEnd(AuthEnd),
    /// Waits for TLS.
    ExpectTls,
    /// The session is over.
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
    /// A chunk of the message, but not the last, has been read.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addresses {
    Ascii,
    Utf8,
}

#[derive(Debug)]
pub(super) struct DataMessage {
    pub(super) reader: DataReader,
    pub(super) pace: MessagePace,
    pub(super) recipients: u32,
}

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
    /// When the message will have been too slow. Each byte moves this on by its share of a second, but never beyond the
    /// idle timeout from now, so a fast start does not make up for a slow end.
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

/// The rest of a refused chunk. It must be read nevertheless (RFC 3030 §2).
#[derive(Debug)]
pub(super) struct SkippedChunk {
    pub(super) left: u64,
    pub(super) pace: MessagePace,
    pub(super) refusal: ChunkRefusal,
}

/// Why a chunk is refused, and the reply after its bytes.
#[derive(Debug)]
pub(super) enum ChunkRefusal {
    /// The command was out of order in this state.
    Command(CommandState, ReplyReason),
    /// The client was refused at the greeting.
    TurnedAway,
    /// The message was refused, with this number of replies.
    Message(ReplyReason, u32),
    /// The application refused with this reply, which is sent this number of times.
    Said(Reply, u32),
}

/// The open question. It holds the state to which a refusal returns.
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

#[derive(Clone, Copy, Debug)]
pub(super) struct DeliveryState {
    pub(super) next: u32,
    pub(super) recipients: u32,
}

/// AUTH before its exchange: the mechanism and the initial response.
#[derive(Debug)]
pub(super) struct AuthRequest {
    pub(super) mechanism: Mechanism,
    pub(super) initial: Option<Vec<u8>>,
}

/// The line that is expected from the client.
#[derive(Debug)]
pub(super) enum AuthResponse {
    /// The next response.
    Exchange(Box<AwaitedResponse>),
    /// The proof. It is checked only after the application has permitted that.
    Proof(Box<AwaitedProof>),
    /// XOAUTH2: the empty response of a client that was sent the reason of its refusal. The reply comes after it.
    Acknowledgement(Box<Reply>),
}

/// A question to the application about a client that logs in.
#[derive(Debug)]
pub(super) enum LoginQuestion {
    /// Asks whether name and secret belong together.
    Check(Box<ShownSecret>),
    /// Asks for the secret.
    Lookup(Box<SecretLookup>),
    /// Asks whether this proof may be checked.
    Proof(Box<PendingProof>),
}

/// A proof whose check the application has not permitted yet.
#[derive(Debug)]
pub(super) struct PendingProof {
    pub(super) exchange: Box<AwaitedProof>,
    pub(super) response: Vec<u8>,
}

/// Result of an exchange whose last reply has been sent.
#[derive(Debug)]
pub(super) enum AuthEnd {
    /// The client is logged in.
    Granted,
    /// The session refused, for this reason.
    Refused(ReplyReason),
    /// The application refused.
    RefusedByApplication {
        /// Set if the reply is final: the secret was wrong.
        has_failed: bool,
    },
}
