//! MADES over AMQP 1.0: the Business Application API of ECP and EDX, the client side of its queues, and an endpoint to
//! run against.
//!
//! | module | what it does |
//! |---|---|
//! | `api` | what goes through the queues, both directions: pure |
//! | `coalescing` | a stream whose writes are gathered |
//! | `connection` | a connection to a broker |
//! | `embedded` | an AMQP 1.0 listener with queues in memory |
//! | `endpoint` | drives the stand-in over a broker or the embedded queues |
//! | `error` | what can go wrong, and what to do about it |
//! | `guard` | what passes through the stream: what must not reach fe2o3-amqp, or would make it wait on for ever |
//! | `inlet` | a queue that messages come from |
//! | `outlet` | a queue that messages go to |
//! | `sasl_external` | SASL EXTERNAL over TLS of our own |
//! | `security` | TLS, and how we prove who we are |
//! | `standin` | what an endpoint pair does with a message, and when: pure |
//! | `url` | where a broker is and who asks; shows no password |
pub mod api;
pub mod coalescing;
mod connection;
pub mod embedded;
pub mod endpoint;
mod error;
mod guard;
mod inlet;
mod outlet;
mod sasl_external;
mod security;
pub mod standin;
mod url;

pub use crate::url::{BrokerUrl, Secret, UrlError};
pub use bytes::Bytes;
pub use coalescing::{Coalescing, Gauge};
pub use connection::{Broker, Connection};
pub use error::{Error, Retry};
pub use fe2o3_amqp::Sendable;
pub use inlet::{Arrival, Delivery, Inlet, InletPlan, Ticket};
pub use outlet::{Disposition, Outlet, OutletPlan, Settling};
pub use security::{Mechanism, Security, TlsSetup, Verification};
pub use uuid::Uuid;
