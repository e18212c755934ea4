//! States of a server session, with a diagram. The sibling modules contain the transitions between the states.
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

/// Result of a step: the session's next state, and the event for the application. The event is `None` if the session
/// needs more bytes. It is also `None` if the session asks about a login, because `Server::next_event` then gets the
/// event from `login_event`.
pub(super) type Transition<'a> = (State, Option<Event<'a>>);

/// States of the session, named by what the session waits for. Each state owns the data that is valid only in it, so
/// code for another state cannot use this data by mistake. Large data is boxed, because each step moves the state.
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
    Answer(OpenQuestion),
    Command(CommandState),
    /// Waits for QUIT after the application refused to greet.
    ExpectQuit,
    Message(Box<DataMessage>),
    Chunk(Box<ChunkedMessage>),
    Skip(Box<SkippedChunk>),
    /// Asks the application for the result of the next LMTP recipient, without waiting for the client.
    Delivery(DeliveryState),
    AuthResponse(AuthResponse),
    /// Asks the application about the login, without waiting for the client.
    AuthQuestion(LoginQuestion),
    /// Reports the result of AUTH to the application, without waiting for the client.
    AuthEnd(AuthEnd),
    ExpectTls,
    Closed,
}

#[derive(Debug)]
#[expect(clippy::enum_variant_names, reason = "a state is named by what it waits for")]
pub(super) enum CommandState {
    /// The client must greet with EHLO, HELO or LHLO first.
    ExpectHello,
    ExpectMail,
    ExpectRecipient(TransactionState),
    /// Waits for the next BDAT, because the last chunk of the message has not arrived yet.
    ExpectChunk(Box<ChunkedMessage>),
}

/// A mail transaction between MAIL and the beginning of its message (DATA or the first BDAT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TransactionState {
    /// Number of accepted recipients. DATA needs at least one.
    pub(super) accepted: u32,
    /// Number of refused recipients. If no recipient was accepted, this number decides in SMTP whether DATA gets 503,
    /// because there was no RCPT, or 554, because every RCPT was refused.
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

/// Enforces the minimum data rate and the time limit of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessagePace {
    since: Duration,
    /// Time at which the message counts as too slow. Each byte moves this time forward by 1/`min_data_rate` seconds.
    /// The time is never later than `idle_timeout` after the byte's arrival, so a fast start does not make up for a
    /// slow end.
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

/// A refused chunk, whose remaining bytes must be read before the reply is sent (RFC 3030 §2).
#[derive(Debug)]
pub(super) struct SkippedChunk {
    pub(super) left: u64,
    pub(super) pace: MessagePace,
    pub(super) refusal: ChunkRefusal,
}

/// Tells who refused a chunk, and why. It selects the reply that follows the chunk's bytes.
#[derive(Debug)]
pub(super) enum ChunkRefusal {
    /// The session refused BDAT for this reason, and returns to this state after it has skipped the chunk's bytes.
    Command(CommandState, ReplyReason),
    /// The application refused the client at the greeting, so its chunks are refused as well.
    TurnedAway,
    /// The session refused the message for this reason, and sends this number of replies (one per LMTP recipient).
    Message(ReplyReason, u32),
    /// The application refused the chunk with this reply. The session sends it this number of times (once per LMTP
    /// recipient).
    Said(Reply, u32),
}

/// A question that the application has not answered yet. It holds the state to which the session
/// returns after a refusal.
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

#[derive(Debug)]
pub(super) struct AuthRequest {
    pub(super) mechanism: Mechanism,
    pub(super) initial: Option<Vec<u8>>,
}

/// The line that the session expects from the client during AUTH.
#[derive(Debug)]
pub(super) enum AuthResponse {
    Exchange(Box<AwaitedResponse>),
    /// The client's proof, which the session checks only after the application has permitted the check.
    Proof(Box<AwaitedProof>),
    /// In XOAUTH2, the empty response with which a client acknowledges that its login is refused. The session then
    /// sends the application's refusal.
    Acknowledgement(Box<Reply>),
}

#[derive(Debug)]
pub(super) enum LoginQuestion {
    /// Asks the application whether the name and the secret that the client sent belong together.
    Check(Box<ShownSecret>),
    /// Asks the application for the user's secret, because the mechanism does not send it.
    Lookup(Box<SecretLookup>),
    /// Asks the application whether the session may check the client's proof.
    Proof(Box<PendingProof>),
}

#[derive(Debug)]
pub(super) struct PendingProof {
    pub(super) exchange: Box<AwaitedProof>,
    pub(super) response: Vec<u8>,
}

/// Result of an AUTH exchange whose last reply has been sent to the client.
#[derive(Debug)]
pub(super) enum AuthEnd {
    Granted,
    Refused(ReplyReason),
    RefusedByApplication {
        /// Set if the reply is 5xx, which means that the secret was wrong.
        has_failed: bool,
    },
}
