//! A stand-in for a pair of ECP endpoints, for tests without an ECP installation.
//!
//! | module | what it does |
//! |---|---|
//! | `model` | the steps of an endpoint pair for each message, without sockets |
//! | `endpoint` | drives the model over a broker or the embedded queues |
//! | `embedded` | an AMQP 1.0 listener with queues in memory |
#![allow(missing_docs)] // only crates that other programs embed document every public item

#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
pub mod embedded;
pub mod endpoint;
pub mod model;
