//! States of a client session, with a diagram. The code that changes the state is in `setup`, `step` and `transaction`.
use super::event::Verb;
use super::options::Options;
use crate::envelope::Envelope;
use crate::sasl::Nonce;
use crate::sasl::client::{ClientExchange, ExchangeError};
use std::collections::VecDeque;
use std::sync::Arc;

/// States of the session, named by what the session waits for. Each state owns the data that is valid only in it, so
/// code for another state cannot use this data by mistake. Large data is boxed, because each step moves the state. A
/// session without options has no [`SessionSetup`], because it sends neither STARTTLS, XCLIENT nor AUTH.
///
/// ```text
/// ExpectGreeting ─▶ ExpectHello ─▶ ExpectStartTls ─220─▶ ExpectTls: the caller begins TLS ─▶ ExpectHello    what of it
///                     │    ▲                                                                               is wanted
///                     │    └──220── ExpectXclient ◀── XCLIENT                                              and offered
///                     ├────▶ ExpectAuth ─334─▶ response … ─235─┐
///                     ▼        └─▶ ExpectCancelled: `*`        ▼
///               Transaction ◀──────────────────────────────────┘      (SendState has its states)
///
/// a required extension is not offered, or refused ─▶ ExpectQuit, and gave_up has the reason
/// any state ── QUIT ─▶ ExpectQuit ─▶ Closed ◀─ 421, a violation ── any state
/// ```
#[derive(Debug)]
pub(super) enum ClientState {
    SetUp(SetUpState),
    Transaction(SendState),
    /// Waits for the replies to [earlier commands](super::core::ClientCore::before_quit), and then for the reply to
    /// QUIT.
    ExpectQuit,
    /// The session is over. Contains the command whose reply did not arrive, if there is one.
    Closed(Option<Verb>),
}

/// States of a client session before its first transaction, from the greeting to AUTH. In these states, the client
/// waits for each reply before it sends the next command.
#[derive(Debug)]
#[expect(clippy::enum_variant_names, reason = "a state is named by what it waits for")]
pub(super) enum SetUpState {
    ExpectGreeting(Option<Box<SessionSetup>>),
    ExpectHello(HelloForm, Option<Box<SessionSetup>>),
    ExpectStartTls(Box<SessionSetup>),
    /// Waits for the caller to begin TLS. A reply that arrives before that violates the protocol.
    ExpectTls(Box<SessionSetup>),
    ExpectXclient(Box<SessionSetup>),
    /// Waits for the reply to AUTH, or to a response to one of its challenges.
    ExpectAuth(Box<ClientExchange>),
    /// Waits for the reply to `*`, with which the client has cancelled AUTH because of this error.
    ExpectCancelled(ExchangeError),
}

/// Data that the session needs only until its first transaction, and then frees.
#[derive(Debug)]
pub(super) struct SessionSetup {
    pub(super) options: Arc<Options>,
    pub(super) nonce: Option<Nonce>,
    pub(super) has_asked_for_tls: bool,
    /// XCLIENT lines that remain to be sent. `None` until XCLIENT begins.
    pub(super) xclient_lines: Option<VecDeque<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelloForm {
    /// EHLO or LHLO, whose reply lists the extensions.
    Extended,
    /// HELO, which is sent after the server has refused EHLO. The session then has no extensions.
    Plain,
}

/// States of a client session that is ready to send mail, named by the part of a transaction that the client sends. A
/// client that pipelines may begin several transactions before it gets the replies to the first. The state therefore
/// does not show which replies are awaited: the queue [`due`](super::core::ClientCore::due) lists them.
///
/// ```text
///  Idle ◀────────────────────────────────────── 2yz, 5yz to the message, in LMTP one for each recipient
///   │ begin                                                                              ▲
///   ├──▶ Group: MAIL, RCPT, DATA together ──┬─354─▶ Message: the caller writes it ─ message_sent
///   ├──▶ LockStep: one command at a time ───┤                                            │
///   │       │                               ├─354, and nobody was accepted─▶ EmptyMessage: `.`
///   ├───────┴─▶ Chunks: the caller writes each chunk ─ BDAT … LAST ──────────────────────┘
///   └◀─ RSET ── refused, from each of them
/// ```
#[derive(Debug)]
pub(super) enum SendState {
    Idle,
    LockStep(Arc<Envelope>),
    Group,
    Message,
    Chunks,
    /// Waits for the reply to an empty message, which the client sends if the peer answers 354 although it refused MAIL
    /// or every recipient.
    EmptyMessage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DueReply {
    Mail,
    Recipient(u32),
    Data,
    Chunk,
    Message,
    Reset,
}

impl DueReply {
    pub(super) fn verb(self) -> Verb {
        match self {
            Self::Mail => Verb::Mail,
            Self::Recipient(number) => Verb::Recipient(number),
            Self::Data => Verb::Data,
            Self::Chunk => Verb::Chunk,
            Self::Message => Verb::Message,
            Self::Reset => Verb::Reset,
        }
    }
}
