//! An AMQP 1.0 listener with queues in memory. It has just as much of a broker as a business
//! application needs.
//!
//! ```text
//! queues        the queues, by address
//! session       connects one AMQP connection with the queues
//! certificate   the listener's own certificate, from PEM files
//! listener      sockets, TLS, time limits
//! fuzz_session  a session without sockets, for fuzz targets
//! ```
//!
//! Frames, types and the state of a connection are in the crate `amqp`.
mod certificate;
mod fuzz_session;
mod listener;
mod queues;
mod session;

pub use certificate::tls_from_pem;
#[doc(hidden)]
pub use fuzz_session::FuzzSession;
pub use listener::{ListenOptions, ListenerCounts, serve};
pub use mailrun_amqp::{
    DecodeError, DeliveryOutcome, Elements, EncodedMessage, ListenerAuth, PlainCredentials, Reader, Scalar, Value,
    Writer,
};
pub use queues::{EnqueuedMessage, MemoryQueues, QueueCounts, QueueIndex, QueueLimits};
