//! Options of a client session, for example which extensions the client uses, and how many commands
//! it sends before it waits for replies.
use crate::sasl::Credentials;
use crate::settings::Protocol;
use crate::xclient::XclientRequest;
use std::time::Duration;

/// Says how far the client pipelines. Pipelining means that the client sends a command before it has the replies to
/// earlier commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PipelineMode {
    /// The client sends one command at a time and waits for its reply.
    #[default]
    Off,
    /// The client sends MAIL, RCPT and DATA together, or MAIL, RCPT and every BDAT, if the server offers PIPELINING
    /// (RFC 2920). The client begins the next message only when it knows the result of the current one.
    Transaction,
    /// Like `Transaction`, but the client may also send the commands of the next message before it
    /// knows the result of the current one.
    Group,
}

/// Says whether the client uses STARTTLS (RFC 3207), and whether it may continue without TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartTls {
    /// The client never sends STARTTLS. The session has no TLS, or has TLS from the first byte.
    #[default]
    Never,
    /// The client uses STARTTLS if the server offers it. If the server refuses, the session stays unencrypted.
    IfOffered,
    /// The client requires STARTTLS. Without it, the client sends neither credentials nor mail.
    Required,
}

/// Says whether the client sends messages with DATA or with BDAT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Chunking {
    /// The client always sends messages with DATA.
    #[default]
    Never,
    /// The client sends messages with BDAT if the server offers CHUNKING (RFC 3030), otherwise with
    /// DATA.
    IfOffered,
}

/// Tells whether envelopes contain requests for delivery status notifications (RFC 3461).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notifications {
    /// No envelope asks for notifications.
    #[default]
    Unasked,
    /// Envelopes may ask for notifications, so the client sends no mail to a server that does not offer DSN.
    Asked,
}

/// Limits for sending messages before the results of earlier messages are known. They apply only if the session uses
/// both BDAT and [`PipelineMode::Group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstSize {
    /// Maximum number of messages in transit, which means begun and still without a certain result. If the connection
    /// breaks, the results of all of them are unknown. With 0, at most one further message
    /// [may begin early](super::Client::may_begin_early), before the current message is answered. With 1 or more, the
    /// client sends RSET before each message that begins early, so that no message depends on the result of another
    /// (RFC 3030 §2).
    pub messages: u32,
    /// Number of bytes below which the caller may hold back output, to write it together with the next message. Once
    /// the output reaches this size, the caller must write it at once, so that the peer can begin to process it.
    pub bytes: usize,
}

impl BurstSize {
    /// No bursts: only the next message may begin before the result of the current message is known.
    pub const NONE: Self = Self::of(0);

    /// Allows `messages` messages in transit at a time. The caller must write output once it reaches 16 KiB, because a
    /// server usually reads this much in one read.
    pub const fn of(messages: u32) -> Self {
        Self { messages, bytes: 16 * 1024 }
    }
}

impl Default for BurstSize {
    fn default() -> Self {
        Self::NONE
    }
}

/// Point at which the client ends the session early, for example to test a server without sending mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopPoint {
    /// The client sends QUIT after the greeting, in place of EHLO.
    Greeting,
    /// The client sends QUIT after the first accepted EHLO or HELO.
    Hello,
    /// The client sends QUIT after STARTTLS and the TLS handshake.
    Tls,
    /// The client sends QUIT after the first accepted MAIL.
    Mail,
    /// The client sends QUIT after the replies to all RCPT, if at least one RCPT was accepted.
    Recipients,
    /// The client closes the connection after the 354 to DATA. It sends no QUIT, because the server would read QUIT as
    /// part of the message.
    Data,
}

/// Options of a client session, which stay the same during the session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Protocol that the server speaks: SMTP or LMTP.
    pub protocol: Protocol,
    /// Says how far the client may pipeline if the server offers PIPELINING.
    pub pipelining: PipelineMode,
    /// Says whether the session uses STARTTLS, and whether it may continue without TLS.
    pub tls: StartTls,
    /// User name, secret and permitted mechanisms for AUTH. Without them, the client does not use AUTH.
    pub credentials: Option<Credentials>,
    /// Says whether the client sends messages with BDAT if the server offers CHUNKING.
    pub chunking: Chunking,
    /// Attributes of the original client, such as its address, which the session sends with XCLIENT. `None` sends no
    /// XCLIENT.
    pub xclient: Option<XclientRequest>,
    /// Says whether envelopes ask for notifications, which requires a server that offers DSN.
    pub notifications: Notifications,
    /// Limits on the messages in transit, and on the output that is held back to be written with the next message.
    pub burst: BurstSize,
    /// Longest wait for the reply to QUIT. It has no effect if the wait for other replies is shorter. A short wait does
    /// no harm, because nothing depends on this reply.
    pub quit_timeout: Option<Duration>,
    /// Set if the session must give up when the server's greeting or reply to EHLO begins with the client's own name.
    /// The server is then probably this host, so mail would loop.
    pub refuses_own_name: bool,
    /// Longest wait for the greeting. It has no effect if the wait for other replies is shorter.
    pub greeting_timeout: Option<Duration>,
    /// Longest wait for the reply to a message. It has no effect if the wait for other replies is longer. RFC 5321
    /// §4.5.3.2.6 recommends ten minutes, because a client that gives up too early sends the message again.
    pub message_timeout: Option<Duration>,
    /// Step of the session, such as MAIL, after which the client ends the session early. The client then uses neither
    /// pipelining nor BDAT, because both would send commands beyond this step.
    pub stop_after: Option<StopPoint>,
}
