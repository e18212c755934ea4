//! MADES over AMQP 1.0: the Business Application API of ECP and EDX, the client side of its queues, and an endpoint to
//! run against.
//!
//! | module | what it does |
//! |---|---|
//! | `api` | messages of the queues, both directions: pure |
//! | `coalescing` | a stream whose writes are gathered |
//! | `connection` | a connection to a broker |
//! | `embedded` | an AMQP 1.0 listener with queues in memory |
//! | `endpoint` | drives the stand-in over a broker or the embedded queues |
//! | `error` | errors, and the remedy for each |
//! | `guard` | stops frames at which fe2o3-amqp would panic or wait for ever |
//! | `inlet` | a queue that messages come from |
//! | `outlet` | a queue that messages go to |
//! | `sasl_external` | SASL EXTERNAL over TLS of our own |
//! | `security` | TLS and authentication |
//! | `standin` | the steps of an endpoint pair for each message, and their times: pure |
//! | `url` | address of a broker, and the login; shows no password |
pub mod api;
pub mod bench;
pub mod coalescing;
mod connection;
pub mod embedded;
pub mod endpoint;
mod error;
mod frame_validator;
mod receiver;
mod sasl_external;
mod security;
mod sender;
pub mod simulator;
mod url;

pub use crate::url::{BrokerUrl, Password, UrlError};
pub use bytes::Bytes;
pub use coalescing::{Coalescing, StreamStats};
pub use connection::{Broker, Connection};
pub use error::{Error, Retry};
pub use fe2o3_amqp::Sendable;
pub use receiver::{Delivery, DeliveryHandle, IncomingDelivery, ReceiverLink, ReceiverOptions};
pub use security::{BrokerSecurity, SaslMechanism, TlsSetup, Verification};
pub use sender::{Disposition, DispositionFuture, SenderLink, SenderOptions};
pub use uuid::Uuid;
