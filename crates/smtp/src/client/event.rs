//! Events, requests and failures of a client session.
use crate::reply::{ReceivedReply, ReplyError};
use crate::sasl::client::ExchangeError;

/// A command, for replies to refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// The connection.
    Greeting,
    /// EHLO, or HELO after it; LHLO.
    Hello,
    /// STARTTLS.
    StartTls,
    /// XCLIENT.
    Xclient,
    /// AUTH, or a response to one of its challenges.
    Auth,
    /// MAIL.
    Mail,
    /// RCPT of that number.
    Recipient(u32),
    /// DATA.
    Data,
    /// BDAT, except the last.
    Chunk,
    /// The final dot, or the last BDAT.
    Message,
    /// LMTP: the final dot, or the last BDAT, for the recipient with this number.
    Delivery(u32),
    /// RSET.
    Reset,
    /// QUIT.
    Quit,
}

/// A reply and its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The command that the reply belongs to.
    pub to: Verb,
    /// The reply.
    pub reply: ReceivedReply<'a>,
    /// Set if the reply ends the transaction of its command.
    pub ends: Option<Outcome>,
    /// Number of transactions, from the oldest on, whose results have become certain. As long as replies to later
    /// commands are due, a missing reply may have made the session take another command's reply for the result. If the
    /// session ends before, the result is unknown: the caller should send the message again.
    pub settled: u32,
}

/// Results of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The peer took responsibility for the recipients that it accepted; in LMTP for at least one of them, namely those
    /// whose [`Verb::Delivery`] had a positive reply.
    Accepted,
    /// The peer did not take responsibility.
    Refused,
}

/// What the session wants its caller to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Read replies.
    Replies,
    /// Begin TLS once everything is written, then call [`Client::tls_started`](super::Client::tls_started).
    Tls,
    /// [Begin](super::Client::begin) a transaction, or [quit](super::Client::quit).
    Transaction,
    /// Write the message and its end of data, then call [`Client::message_sent`](super::Client::message_sent).
    Message,
    /// Announce the next [chunk](super::Client::chunk) of the message, and write its bytes unchanged.
    Chunk,
    /// Close the connection.
    Close,
}

/// Position of a chunk in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkPosition {
    /// More chunks follow.
    Middle,
    /// The chunk ends the message.
    Last,
}

/// Why a session sent QUIT before it sent anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GaveUp {
    /// TLS is required and not offered.
    #[error("the server does not offer STARTTLS")]
    NoTls,
    /// TLS is required and was refused.
    #[error("the server rejected STARTTLS")]
    TlsRefused,
    /// No mechanism of AUTH is both allowed and offered.
    #[error("the server offers no usable AUTH mechanism")]
    NoMechanism,
    /// The peer rejected the credentials.
    #[error("the server rejected AUTH")]
    NotAuthenticated,
    /// The exchange could not continue.
    #[error("AUTH: {0}")]
    Exchange(ExchangeError),
    /// XCLIENT is not offered, or supports none of the attributes to be sent.
    #[error("the server does not offer XCLIENT")]
    NoXclient,
    /// XCLIENT was refused.
    #[error("the server rejected XCLIENT")]
    XclientRefused,
    /// The envelopes ask for notifications, but DSN is not offered.
    #[error("the server does not offer DSN")]
    NoDsn,
    /// The server calls itself by the name of this client ([`Options::refuses_own_name`](super::Options)).
    #[error("the server calls itself by this host's own name, so mail might go in circles")]
    OwnName,
}

/// Violations by a peer that end the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A line that is not a reply.
    #[error(transparent)]
    Malformed(#[from] ReplyError),
    /// A reply that no command asked for.
    #[error("the peer sent an unexpected reply {0}")]
    Unasked(u16),
    /// A reply that its command cannot have. Either earlier replies are missing, or there are too many.
    #[error("the peer's reply {0} does not belong to the command that awaits one: a reply is missing, or was added")]
    Misplaced(u16),
    /// Unencrypted bytes after the 220 to STARTTLS. A third party has injected them (CVE-2011-0411).
    #[error("{0} bytes of plain text followed the reply to STARTTLS")]
    Injected(usize),
}
