//! Reads the messages between a business application and its endpoint in both directions, and builds the messages that
//! a business application sends. This module uses no sockets.
//!
//! ```text
//! business application ── outgoing ──▶ outbox        endpoint A
//!                      ◀─── reply ──── outbox.reply       │ network
//!                      ◀─── event ──── send.event         ▼
//! business application ◀─── inbox ──── inbox         endpoint B
//! ```
//!
//! A reader borrows from the message and never fails. It reports each deviation as an [`Oddity`] and reads the rest as
//! far as possible. Property names are case-sensitive and spelled as ECP spells them.
pub mod event;
pub mod identity;
pub mod inbox;
pub mod message;
pub mod outgoing;
pub mod queues;
mod reading;
pub mod reply;
pub mod status_document;
#[cfg(test)]
mod testing;

pub use event::{EventState, SendEvent};
pub use identity::RunMessageId;
pub use inbox::InboxMessage;
pub use message::{AmqpMessage, AmqpMessageId, DecodedMessage, MessageHeader};
pub use outgoing::{OutgoingProperties, OutgoingTemplate, Submission};
pub use queues::EndpointQueueNames;
pub use reading::{BodyContent, content, id_text};
pub use reply::{ErrorReply, Reply, ReplyOutcome};
pub use status_document::{MessageStatus, StatusDocument};

use bytes::Bytes;
use std::fmt;

/// Payload of a message, in one `data` section. Its bytes are shared, so that a payload can be sent
/// many times without a copy.
pub type Payload = Bytes;

pub fn payload(octets: impl Into<Vec<u8>>) -> Payload {
    Bytes::from(octets.into())
}

/// Names of application properties (reference: ECP Business Application AMQP API).
pub mod names {
    /// Code of the receiving endpoint, which ECP calls its component code. A message without it is invalid.
    pub const RECEIVER_CODE: &str = "receiverCode";
    pub const SENDER_CODE: &str = "senderCode";
    /// Message type, which ECP requires in each message.
    pub const MESSAGE_TYPE: &str = "messageType";
    /// Message type for EDX, which requires it in each message.
    pub const BUSINESS_TYPE: &str = "businessType";
    /// Id that the business application gave the message.
    pub const BA_MESSAGE_ID: &str = "baMessageID";
    /// Id of the conversation to which the message belongs, as the business application set it.
    pub const BA_CORRELATION_ID: &str = "baCorrelationID";
    /// Id that the endpoint gave the message.
    pub const MESSAGE_ID: &str = "messageID";
    pub const SENDER_APPLICATION: &str = "senderApplication";
    /// File extension that the payload would have if it were stored as a file.
    pub const FILE_EXTENSION: &str = "fileExtension";
    /// Marks a tracing message, which only tests the route. The SOAP interface calls it ConnectivityTest.
    pub const IS_TRACING_MESSAGE: &str = "isTracingMessage";
    /// Time at which the sender's endpoint accepted the message.
    pub const SEND_TIMESTAMP: &str = "sendTimestamp";
    pub const ERROR_ID: &str = "errorID";
    pub const ERROR_CODE: &str = "errorCode";
    pub const ERROR_MESSAGE: &str = "errorMessage";
    pub const ERROR_DETAILS: &str = "errorDetails";
}

/// A deviation of a received message from the reference. A run names and counts deviations, but does not fail because
/// of them. Each variant has few possible values, so that a run can count deviations by kind in bounded memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Oddity {
    /// The message lacks this property, which the reference requires.
    Missing(&'static str),
    WrongType {
        property: &'static str,
        found: &'static str,
    },
    WrongSection {
        expected: &'static str,
        found: &'static str,
    },
    /// This part of the message, for example its body, is not valid UTF-8.
    NotText(&'static str),
    UnknownState,
    BadStatusDocument,
}

impl fmt::Display for Oddity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(property) => write!(f, "{property} is missing"),
            Self::WrongType { property, found } => write!(f, "{property} is of type {found}"),
            Self::WrongSection { expected, found } => write!(f, "the body is {found} and not {expected}"),
            Self::NotText(what) => write!(f, "{what} is not UTF-8"),
            Self::UnknownState => f.write_str("the event's state is unknown"),
            Self::BadStatusDocument => f.write_str("the status document cannot be read"),
        }
    }
}
