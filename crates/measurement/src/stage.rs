//! The stages on a message's way, the phases of an SMTP dialogue, and the possible fates of a message.
//!
//! ```text
//! scheduled → created → sent → accepted ─(stored)→ (announced →) delivered → notified
//!                          └→ deferred / rejected / expired
//! ```
use serde::{Deserialize, Serialize};

/// A point on a message's way. Each is a fact with a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The time at which the pacer scheduled it (open loop only).
    Scheduled,
    /// A session began it.
    Created,
    /// The message's last byte was handed to the kernel.
    Sent,
    /// The peer took responsibility: 250 to the final dot (RFC 5321 §6.1).
    Accepted,
    /// A relay stored it on disk.
    Stored,
    /// The server of a mailbox told of the message.
    Announced,
    /// The message reached the sink.
    Delivered,
    /// A notification reached the sender.
    Notified,
    /// A relay deferred it.
    Deferred,
    /// The peer rejected it, or the source gave up on it.
    Rejected,
    /// A relay gave up on it.
    Expired,
    /// Over MADES: the broker confirmed the transfer (AMQP 1.0 §3.4.2).
    Settled,
    /// Over MADES: the endpoint answered with a message id or an error.
    Replied,
    /// Over MADES: it arrived from the receiver's inbox.
    Inbox,
    /// Over MADES: the event DELIVERED came, so it is at the receiver's endpoint.
    #[serde(rename = "DELIVERED")]
    DeliveredEvent,
    /// Over MADES: the event RECEIVED came, so it is at the receiver's application.
    #[serde(rename = "RECEIVED")]
    ReceivedEvent,
    /// Over MADES: the event of a tracing message came, so it has reached the receiver's endpoint.
    #[serde(rename = "TRACING")]
    TracingEvent,
    /// Over MADES: an acknowledgement document that accepts it arrived from the sender's inbox.
    Acknowledged,
}

impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Created => "created",
            Self::Sent => "sent",
            Self::Accepted => "accepted",
            Self::Stored => "stored",
            Self::Announced => "announced",
            Self::Delivered => "delivered",
            Self::Notified => "notified",
            Self::Deferred => "deferred",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Settled => "settled",
            Self::Replied => "replied",
            Self::Inbox => "inbox",
            Self::DeliveredEvent => "DELIVERED",
            Self::ReceivedEvent => "RECEIVED",
            Self::TracingEvent => "TRACING",
            Self::Acknowledged => "acknowledged",
        }
    }
}

/// A phase of the dialogue, as the source times it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// From `connect()` until established.
    Connect,
    /// From established to the 220.
    Banner,
    /// From EHLO or HELO sent to its reply.
    Ehlo,
    /// TLS handshake.
    Tls,
    /// AUTH dialogue.
    Auth,
    /// From MAIL sent to its reply.
    Mail,
    /// From RCPT sent to its reply.
    Rcpt,
    /// From DATA sent to the 354.
    Data,
    /// From the 354 until the last byte of the message was handed over.
    Body,
    /// From the last byte handed over to the reply to the final dot.
    Reply,
    /// From QUIT sent to its reply.
    Quit,
}

impl Phase {
    /// All phases, in the order of a dialogue.
    pub const ALL: [Self; 11] = [
        Self::Connect,
        Self::Banner,
        Self::Ehlo,
        Self::Tls,
        Self::Auth,
        Self::Mail,
        Self::Rcpt,
        Self::Data,
        Self::Body,
        Self::Reply,
        Self::Quit,
    ];

    /// Name in reports and run records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Banner => "banner",
            Self::Ehlo => "ehlo",
            Self::Tls => "tls",
            Self::Auth => "auth",
            Self::Mail => "mail",
            Self::Rcpt => "rcpt",
            Self::Data => "data",
            Self::Body => "body",
            Self::Reply => "reply",
            Self::Quit => "quit",
        }
    }
}
