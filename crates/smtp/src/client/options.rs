//! Options of a client session, for example which extensions the client uses, and how many commands
//! it sends before it waits for replies.
use crate::sasl::Credentials;
use crate::settings::Protocol;
use crate::xclient::XclientRequest;
use std::time::Duration;

/// How far the client sends commands ahead of the replies to earlier commands (pipelining).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PipelineMode {
    /// The client sends one command at a time and waits for its reply.
    #[default]
    Off,
    /// The client sends MAIL, RCPT and DATA together, or MAIL, RCPT and every BDAT, if the server
    /// offers PIPELINING (RFC 2920). The next message waits for the result of the message before
    /// it.
    Transaction,
    /// Like `Transaction`, but the client may also send the commands of the next message before it
    /// knows the result of the current one.
    Group,
}

/// Says whether the client uses STARTTLS (RFC 3207).
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

/// Command with which the client sends a message.
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
    /// Some envelopes ask for notifications. The client sends no mail to a server that does not offer DSN.
    Asked,
}

/// Limits for sending messages before the results of earlier messages are known. They apply only with BDAT and
/// [`PipelineMode::Group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstSize {
    /// Maximum number of messages under way. 0 means two messages: the current message, and the
    /// next one, which [may begin early](super::Client::may_begin_early). With a higher number, a
    /// RSET comes before each further message, so that no message depends on the result of another
    /// (RFC 3030 §2). If the connection breaks, the results of this many messages are unknown.
    pub messages: u32,
    /// Bytes of output that may be held back for another message. When this many are waiting, they
    /// are written at once, so that the peer can begin.
    pub bytes: usize,
}

impl BurstSize {
    /// No bursts: only the next message may begin before the current message has its result.
    pub const NONE: Self = Self::of(0);

    /// Allows `messages` messages under way at a time. Output is written once it reaches 16 KiB,
    /// which a server usually reads at once.
    pub const fn of(messages: u32) -> Self {
        Self { messages, bytes: 16 * 1024 }
    }
}

impl Default for BurstSize {
    fn default() -> Self {
        Self::NONE
    }
}

/// Point of a session after which the client ends it, although it could go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopPoint {
    /// The client stops after the greeting.
    Greeting,
    /// The client stops after the first accepted EHLO.
    Hello,
    /// The client stops after STARTTLS and the TLS handshake.
    Tls,
    /// The client stops after an accepted MAIL.
    Mail,
    /// The client stops after the replies to all RCPT, if at least one RCPT was accepted.
    Recipients,
    /// The client stops after the 354 to DATA. It closes the connection without QUIT, because the
    /// server would read QUIT as part of the message.
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
    /// Credentials to log in with. Without them, the client does not use AUTH.
    pub credentials: Option<Credentials>,
    /// Says whether the client sends messages with BDAT if the server offers CHUNKING.
    pub chunking: Chunking,
    /// Attributes of the real client, which the session sends with XCLIENT. `None` sends no
    /// XCLIENT.
    pub xclient: Option<XclientRequest>,
    /// Says whether envelopes ask for notifications, which requires a server that offers DSN.
    pub notifications: Notifications,
    /// Limits on how many messages may be under way, and on how much output may wait for the next
    /// message.
    pub burst: BurstSize,
    /// Longest wait for the reply to QUIT, if shorter than for other replies. A short wait does no harm, because
    /// nothing depends on this reply.
    pub quit_timeout: Option<Duration>,
    /// Set if the session must give up when the server's greeting or reply to EHLO shows the client's own name, because
    /// mail could then go in circles.
    pub refuses_own_name: bool,
    /// Longest wait for the greeting, if shorter than for other replies.
    pub greeting_timeout: Option<Duration>,
    /// Longest wait for the reply to a message, if longer than for other replies. RFC 5321
    /// §4.5.3.2.6 recommends ten minutes, because a client that gives up too early sends the message
    /// again.
    pub message_timeout: Option<Duration>,
    /// Point after which the client ends the session. To stop exactly there, the client does not pipeline, and sends
    /// the message with DATA.
    pub stop_after: Option<StopPoint>,
}
