//! Options of a client session: what it requests, and how many commands it sends before their replies.
use crate::sasl::Credentials;
use crate::settings::Protocol;
use crate::xclient::XclientRequest;
use std::time::Duration;

/// Number of commands that are sent before their replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PipelineMode {
    /// One command at a time.
    #[default]
    Off,
    /// MAIL, RCPT and DATA together, if the peer offers PIPELINING (RFC 2920); or MAIL, RCPT and every BDAT. The next
    /// message waits for the result of the one before it.
    Transaction,
    /// As `Transaction`, and the next message's commands may follow a message before its result is known.
    Group,
}

/// Use of STARTTLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartTls {
    /// Not used. The session has no TLS, or TLS from the first byte on.
    #[default]
    Never,
    /// Used if it is offered and granted.
    IfOffered,
    /// Required: without it nothing is sent.
    Required,
}

/// Ways to send a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Chunking {
    /// By DATA.
    #[default]
    Never,
    /// By BDAT if it is offered (RFC 3030).
    IfOffered,
}

/// Use of requests for notifications in envelopes (RFC 3461).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notifications {
    /// Envelopes have none.
    #[default]
    Unasked,
    /// Envelopes have some. Nothing is sent to a server that does not offer DSN.
    Asked,
}

/// Size of a burst: how many messages may be under way at a time, if messages go by BDAT and commands in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstSize {
    /// Number of messages under way; 0 means two: the current one and the one that [may begin
    /// early](super::Client::may_begin_early). Beyond two, each message is behind a RSET, so that none depends on the
    /// result of another (RFC 3030 §2). If the connection breaks, the result of that many is unknown.
    pub messages: u32,
    /// If this much output is waiting, it is written at once instead of being held back for another message, so that
    /// the peer can begin.
    pub bytes: usize,
}

impl BurstSize {
    /// No bursts.
    pub const NONE: Self = Self::of(0);

    /// A burst of that many messages. Output is written as soon as it has 16 KiB, which a server usually reads at once.
    pub const fn of(messages: u32) -> Self {
        Self { messages, bytes: 16 * 1024 }
    }
}

impl Default for BurstSize {
    fn default() -> Self {
        Self::NONE
    }
}

/// Options of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Protocol to speak.
    pub protocol: Protocol,
    /// Number of commands that are sent before their replies.
    pub pipelining: PipelineMode,
    /// Use of STARTTLS.
    pub tls: StartTls,
    /// Credentials to log in with.
    pub credentials: Option<Credentials>,
    /// Way to send a message.
    pub chunking: Chunking,
    /// Client to introduce with XCLIENT.
    pub xclient: Option<XclientRequest>,
    /// Use of the parameters of DSN in envelopes.
    pub notifications: Notifications,
    /// Size of a burst of messages.
    pub burst: BurstSize,
    /// Longest wait for the answer to QUIT, if it is shorter than for other replies. Nothing depends on this reply.
    pub quit_timeout: Option<Duration>,
    /// Give up if the server calls itself by the client's name, in its greeting or its reply to EHLO.
    pub refuses_own_name: bool,
    /// Longest wait for the greeting, if it is shorter than for other replies.
    pub greeting_timeout: Option<Duration>,
}
