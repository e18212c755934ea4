//! What a client session tells its caller: replies of the server, the next action, and why the session failed.
use crate::reply::{ReceivedReply, ReplyError};
use crate::sasl::client::ExchangeError;

/// The command, message or new connection that a reply answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// The new connection. The server replies to it with its greeting, although the client has sent no command.
    Greeting,
    /// EHLO, the HELO after a refused EHLO, or LHLO.
    Hello,
    /// STARTTLS, after whose positive reply TLS begins (RFC 3207 §4).
    StartTls,
    /// XCLIENT, a command of Postfix with which a proxy names its client.
    Xclient,
    /// AUTH, or a response to one of its challenges.
    Auth,
    /// MAIL, which begins a transaction (RFC 5321 §4.1.1.2).
    Mail,
    /// RCPT of the recipient with this position in the envelope, counted from 0.
    Recipient(u32),
    /// DATA, whose usual reply is 354 (RFC 5321 §4.1.1.4).
    Data,
    /// BDAT with a chunk that is not the last one of its message.
    Chunk,
    /// The final dot or the last BDAT of a message.
    Message,
    /// In LMTP, the final dot or the last BDAT of a message, to which the server replies once for each accepted
    /// recipient. The number is the position of the reply's recipient in the envelope. SMTP uses [`Verb::Message`]
    /// instead.
    Delivery(u32),
    /// RSET, which ends a transaction (RFC 5321 §4.1.1.5).
    Reset,
    /// QUIT, which ends the session (RFC 5321 §4.1.1.10).
    Quit,
}

/// A reply from the server, and the command that it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// Command, message or new connection that the server's reply answers.
    pub to: Verb,
    /// The server's reply, with all its lines.
    pub reply: ReceivedReply<'a>,
    /// Result of the command's transaction, or `None` if this reply does not end a transaction.
    pub ends: Option<Outcome>,
    /// Number of transactions whose results this reply makes certain. Until then, a result may be wrong, because the
    /// peer may have left out a reply. The session would then have taken the reply to a later command for the result.
    /// If the session ends while the result of a message is uncertain, the caller should send the message again.
    pub settled: u32,
}

/// Result of a transaction, which may be based on the wrong reply until it is [certain](Event::settled).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The peer took responsibility for at least one recipient. In SMTP, these are all recipients that it accepted. In
    /// LMTP, these are only the recipients with a positive reply to [`Verb::Delivery`].
    Accepted,
    /// The peer did not take responsibility for the message.
    Refused,
}

/// The next action that the session needs from its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Read more replies from the connection.
    Replies,
    /// Write everything in `out`, begin TLS, and then call
    /// [`Client::tls_started`](super::Client::tls_started).
    Tls,
    /// [Begin](super::Client::begin) a transaction, or [quit](super::Client::quit).
    Transaction,
    /// Write the message and its end of data, then call
    /// [`Client::message_sent`](super::Client::message_sent).
    Message,
    /// Announce the next [chunk](super::Client::chunk) of the message, and write the chunk's bytes
    /// unchanged.
    Chunk,
    /// Close the connection, because the session is over.
    Close,
}

/// Tells whether a chunk is the last one of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkPosition {
    /// More chunks of the message follow.
    Middle,
    /// This chunk is the last one of the message.
    Last,
}

/// Reason why a session sent QUIT before its first transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GaveUp {
    /// TLS is required, but the server does not offer STARTTLS.
    #[error("the server does not offer STARTTLS")]
    NoTls,
    /// TLS is required, but the server refused STARTTLS.
    #[error("the server rejected STARTTLS")]
    TlsRefused,
    /// The server offers none of the AUTH mechanisms that are allowed.
    #[error("the server offers no usable AUTH mechanism")]
    NoMechanism,
    /// The server rejected AUTH, for example because the password is wrong.
    #[error("the server rejected AUTH")]
    NotAuthenticated,
    /// The client could not complete the AUTH exchange, for example because the server sent a wrong proof.
    #[error("AUTH: {0}")]
    Exchange(ExchangeError),
    /// The server does not offer XCLIENT, or supports none of the attributes that the client wants to send.
    #[error("the server does not offer XCLIENT")]
    NoXclient,
    /// The server offered XCLIENT, but refused the command.
    #[error("the server rejected XCLIENT")]
    XclientRefused,
    /// The envelopes ask for delivery status notifications, but the server does not offer DSN.
    #[error("the server does not offer DSN")]
    NoDsn,
    /// The server introduces itself with the client's own name
    /// ([`Options::refuses_own_name`](super::Options)).
    #[error("the server calls itself by this host's own name, so mail might go in circles")]
    OwnName,
}

/// Violation of the protocol by the peer. It ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The peer sent a line that is not a reply.
    #[error(transparent)]
    Malformed(#[from] ReplyError),
    /// The peer sent a reply that no command asked for.
    #[error("the peer sent an unexpected reply {0}")]
    Unasked(u16),
    /// The peer sent a reply that cannot answer the oldest unanswered command, such as 250 to DATA. The peer has either
    /// left out an earlier reply or sent an extra one.
    #[error("the peer's reply {0} does not belong to the command that awaits one: a reply is missing, or was added")]
    Misplaced(u16),
    /// The peer accepted a message before it had received all of it.
    #[error("the peer's reply {0} to the message came before the whole message had been sent")]
    Early(u16),
    /// The peer accepted a message and then reset the connection, as an operating system does if a
    /// program closes a socket with unread bytes.
    #[error(
        "the peer's reply {0} to the message came with a reset of the connection: the message may not have been read to its end"
    )]
    Reset(u16),
    /// Unencrypted bytes followed the 220 to STARTTLS. A third party may have injected them
    /// (CVE-2011-0411).
    #[error("{0} bytes of plain text followed the reply to STARTTLS")]
    Injected(usize),
}
