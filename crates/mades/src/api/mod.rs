//! Messages of the Business Application API, both directions: built and read, no sockets.
//!
//! ```text
//! business application ── outgoing ──▶ outbox        endpoint A
//!                      ◀─── reply ──── outbox.reply       │ network
//!                      ◀─── event ──── send.event         ▼
//! business application ◀─── inbox ──── inbox         endpoint B
//! ```
//!
//! Readers borrow from the message and never fail: what is not as it should be is an [`Oddity`] with a name, and
//! whatever can be understood in spite of it is understood. The names of properties are case-sensitive, as ECP writes
//! them.
pub mod event;
pub mod identity;
pub mod inbox;
mod message;
pub mod oddity;
pub mod outgoing;
pub mod queues;
mod reading;
pub mod reply;
pub mod status_document;
#[cfg(test)]
mod testing;
#[cfg(test)]
pub(crate) use testing::decoded_by_fe2o3;
mod writing;

pub use event::{EventState, SendEvent};
pub use identity::RunMessageId;
pub use inbox::InboxMessage;
pub use message::{AmqpMessage, AmqpMessageId, DecodedMessage, MessageHeader};
pub use oddity::Oddity;
pub use outgoing::{OutgoingProperties, OutgoingTemplate, Submission};
pub use queues::EndpointQueueNames;
pub use reading::{BodyContent, content, id_text};
pub use reply::{ErrorReply, Reply, ReplyOutcome};
pub use status_document::{MessageStatus, StatusDocument};

use bytes::Bytes;

/// Body of a message, in one `data` section: shared, so that it can be sent many times and is not copied.
pub type Payload = Bytes;

/// Makes a payload of these bytes.
pub fn payload(octets: impl Into<Vec<u8>>) -> Payload {
    Bytes::from(octets.into())
}

/// The names of application properties (reference: ECP Business Application AMQP API).
pub mod names {
    /// The component code of the receiver; required.
    pub const RECEIVER_CODE: &str = "receiverCode";
    /// The component code of the sender, in the inbox.
    pub const SENDER_CODE: &str = "senderCode";
    /// The type of the message as ECP calls it; required there.
    pub const MESSAGE_TYPE: &str = "messageType";
    /// The type of the message as EDX calls it; required there.
    pub const BUSINESS_TYPE: &str = "businessType";
    /// The id that the business application gave.
    pub const BA_MESSAGE_ID: &str = "baMessageID";
    /// The conversation that the business application names.
    pub const BA_CORRELATION_ID: &str = "baCorrelationID";
    /// The id that the endpoint gave.
    pub const MESSAGE_ID: &str = "messageID";
    /// The program that sent it.
    pub const SENDER_APPLICATION: &str = "senderApplication";
    /// Extension that the payload would have as a file.
    pub const FILE_EXTENSION: &str = "fileExtension";
    /// Marks a tracing message (SOAP: ConnectivityTest).
    pub const IS_TRACING_MESSAGE: &str = "isTracingMessage";
    /// Time at which the sender's endpoint took the message.
    pub const SEND_TIMESTAMP: &str = "sendTimestamp";
    /// Id of the fault; of an error reply.
    pub const ERROR_ID: &str = "errorID";
    /// Code of the fault; of an error reply.
    pub const ERROR_CODE: &str = "errorCode";
    /// Text of the fault; of an error reply.
    pub const ERROR_MESSAGE: &str = "errorMessage";
    /// Further details of the fault; of an error reply.
    pub const ERROR_DETAILS: &str = "errorDetails";
}
