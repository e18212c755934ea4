//! An AMQP 1.0 listener with queues in memory. It implements only the parts of a broker that a
//! business application needs.
//!
//! ```text
//! queues        the queues, by address
//! session       connects one AMQP connection with the queues
//! listener      sockets, TLS, time limits
//! fuzz_session  a session without sockets, for fuzz targets
//! ```
//!
//! Frames, types and the state of a connection are in the crate `amqp`.
#[cfg(any(test, feature = "checks"))]
mod fuzz_session;
mod listener;
mod queues;
mod session;

#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub use fuzz_session::FuzzSession;
pub use listener::{ListenOptions, ListenerCounts, serve, tls_from_pem};
pub use mailrun_amqp::{
    DecodeError, DeliveryOutcome, Elements, EncodedMessage, ListenerAuth, PlainCredentials, Reader, Scalar, Value,
    Writer,
};
pub use queues::{EnqueuedMessage, MemoryQueues, QueueCounts, QueueIndex, QueueLimits};
