//! An AMQP 1.0 listener with queues in memory: a broker just large enough for a Business Application.
//!
//! ```text
//! octets        AMQP's types, read where they lie, and written
//! frame         frames and performatives
//! sasl          who may come in
//! rope          messages in pieces, and what is to be written
//! conversation  a connection as state: bytes in, events and bytes out
//! queues        the queues, by address
//! desk          a connection at the queues: who gets which message, and how many may come
//! certificate   the listener's own, from PEM files
//! listener      sockets, TLS, time limits
//! rehearsal     the same without them, for fuzz targets
//! ```
mod certificate;
mod conversation;
mod desk;
mod frame;
mod listener;
mod octets;
mod queues;
mod rehearsal;
mod rope;
mod sasl;

pub use certificate::tls_from_pem;
pub use frame::DeliveryOutcome;
pub use listener::{ListenOptions, ListenerCounts, serve};
pub(crate) use octets::Elements;
pub use octets::{DecodeError, Reader, Value, Writer};
pub use queues::{EnqueuedMessage, MemoryQueues, QueueCounts, QueueIndex, QueueLimits};
#[doc(hidden)]
pub use rehearsal::{FuzzConnection, FuzzOutcome, FuzzSession};
pub use rope::EncodedMessage;
pub use sasl::{ListenerAuth, PlainCredentials};
