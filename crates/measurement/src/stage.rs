//! Defines the stages on a message's way from the schedule to the receiver, and the phases of an SMTP dialogue.
//!
//! ```text
//! scheduled → created → sent → accepted ─(stored)→ (announced →) delivered → notified
//!                          └→ deferred / rejected / expired
//! ```
use serde::{Deserialize, Serialize};

/// A point on a message's way, such as acceptance by the server. For each stage, a report shows how many messages
/// reached it and how long they took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The message was due by the schedule of the load (open loop only).
    Scheduled,
    /// A session began to send the message.
    Created,
    /// The last byte of the message was handed to the kernel.
    Sent,
    /// The peer took responsibility for the message with a 250 to the final dot (RFC 5321 §6.1).
    Accepted,
    /// A relay stored the message on disk.
    Stored,
    /// The server of a mailbox announced the message.
    Announced,
    /// The message reached the sink.
    Delivered,
    /// A notification about the message reached the sender.
    Notified,
    /// A relay could not deliver the message and deferred it.
    Deferred,
    /// The peer rejected the message, or the source gave up on it.
    Rejected,
    /// A relay gave up on the message.
    Expired,
    /// Over MADES: the broker confirmed the transfer (AMQP 1.0 §3.4.2).
    Settled,
    /// Over MADES: the endpoint answered with a message id or an error.
    Replied,
    /// Over MADES: the bench, as the receiving application, took the message from the inbox queue.
    Inbox,
    /// Over MADES: the event DELIVERED came, so the message is at the receiver's endpoint.
    #[serde(rename = "DELIVERED")]
    DeliveredEvent,
    /// Over MADES: the event RECEIVED came, so the message is at the receiver's application.
    #[serde(rename = "RECEIVED")]
    ReceivedEvent,
    /// Over MADES: the event of a tracing message came, so the message has reached the receiver's endpoint.
    #[serde(rename = "TRACING")]
    TracingEvent,
    /// Over MADES: an acknowledgement document that accepts the message arrived from the sender's inbox.
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

/// A phase of the SMTP dialogue. The source measures how long each phase lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Lasts from the call of `connect()` until the connection is established.
    Connect,
    /// Lasts from the established connection to the greeting (220).
    Banner,
    /// Lasts from sending EHLO or HELO to the reply.
    Ehlo,
    /// Lasts from the start of the TLS handshake to its end.
    Tls,
    /// Lasts from sending AUTH to the final reply, including the exchange of challenges and responses in between.
    Auth,
    /// Lasts from sending MAIL to the reply.
    Mail,
    /// Lasts from sending RCPT to the reply.
    Rcpt,
    /// Lasts from sending DATA to the 354.
    Data,
    /// Lasts from the 354 until the last byte of the message is handed to the kernel.
    Body,
    /// Lasts from when the last byte of the message is handed to the kernel until the server replies to the final dot.
    Reply,
    /// Lasts from sending QUIT to the reply.
    Quit,
}

impl Phase {
    /// All phases, in the order in which they occur in a dialogue.
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
