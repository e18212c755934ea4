//! An AMQP 1.0 listener with queues in memory: a broker just large enough for a Business Application.
//!
//! ```text
//! codec              AMQP's types, read where they lie, and written
//! frame              frames and performatives
//! sasl               who may log in
//! buffers            messages in pieces, and what is to be written
//! server_connection  a connection as state: bytes in, events and bytes out
//! queues             the queues, by address
//! session            a connection at the queues: who gets which message, and how many may come
//! certificate        the listener's own, from PEM files
//! listener           sockets, TLS, time limits
//! fuzz_support       the same without sockets, for fuzz targets
//! ```
mod buffers;
mod certificate;
mod codec;
mod frame;
mod fuzz_support;
mod listener;
mod queues;
mod sasl;
mod server_connection;
mod session;

pub use buffers::EncodedMessage;
pub use certificate::tls_from_pem;
pub(crate) use codec::Elements;
pub use codec::{DecodeError, Reader, Value, Writer};
pub use frame::DeliveryOutcome;
#[doc(hidden)]
pub use fuzz_support::{FuzzConnection, FuzzOutcome, FuzzSession};
pub use listener::{ListenOptions, ListenerCounts, serve};
pub use queues::{EnqueuedMessage, MemoryQueues, QueueCounts, QueueIndex, QueueLimits};
pub use sasl::{ListenerAuth, PlainCredentials};
