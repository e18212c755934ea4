//! States of a client session. The files beside this one have their steps: `step`, and what it calls.
use super::event::Verb;
use super::options::Options;
use crate::envelope::Envelope;
use crate::sasl::Nonce;
use crate::sasl::client::{ClientExchange, ExchangeError};
use std::collections::VecDeque;
use std::sync::Arc;

/// States of the session, by what it waits for. Each holds what it needs, so that no other state can have it; what is
/// large is in a box, for a step moves the state. A session without options has no [`SessionSetup`].
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
    /// Waits for the reply to a command before the first transaction.
    SetUp(SetUpState),
    /// Waits for the caller, or for the replies of transactions.
    Transaction(SendState),
    /// Waits for the reply to QUIT, after the replies to [earlier commands](super::core::ClientCore::before_quit).
    ExpectQuit,
    /// The session is over. Contains the command whose reply did not come.
    Closed(Option<Verb>),
}

/// States before the first transaction. Only one command is under way at a time.
#[derive(Debug)]
#[expect(clippy::enum_variant_names, reason = "a state is named by what it waits for")]
pub(super) enum SetUpState {
    /// The greeting.
    ExpectGreeting(Option<Box<SessionSetup>>),
    /// The reply to EHLO, LHLO or HELO.
    ExpectHello(HelloForm, Option<Box<SessionSetup>>),
    /// The reply to STARTTLS.
    ExpectStartTls(Box<SessionSetup>),
    /// TLS, which the caller begins.
    ExpectTls(Box<SessionSetup>),
    /// The reply to XCLIENT.
    ExpectXclient(Box<SessionSetup>),
    /// The reply to AUTH, or to a response.
    ExpectAuth(Box<ClientExchange>),
    /// The reply to `*`, which cancelled AUTH for this reason.
    ExpectCancelled(ExchangeError),
}

/// Options of the steps, and which steps are done.
#[derive(Debug)]
pub(super) struct SessionSetup {
    pub(super) options: Arc<Options>,
    pub(super) nonce: Option<Nonce>,
    pub(super) has_asked_for_tls: bool,
    /// Lines of XCLIENT that remain to be sent; `None` until they are known.
    pub(super) xclient_lines: Option<VecDeque<String>>,
}

/// Forms of the client's own greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelloForm {
    /// EHLO, or LHLO: extensions are on.
    Extended,
    /// HELO, after EHLO was refused.
    Plain,
}

/// States of the sending side. The receiving side is the queue of replies that are [due](super::core::ClientCore::due): it may lag
/// behind by several transactions.
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
    /// No transaction is being sent.
    Idle,
    /// Waits for the reply to the last command.
    LockStep(Arc<Envelope>),
    /// Waits for the replies to MAIL, RCPT and DATA.
    Group,
    /// The message must be sent; 354 was read.
    Message,
    /// The next chunk of the message must be sent.
    Chunks,
    /// Waits for the reply to a message that was sent empty because it had no recipients.
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
