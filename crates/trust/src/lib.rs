//! TLS servers: the certificates that a client accepts, and the reasons why a handshake failed, in plain words.
//!
//! | file | what it does |
//! |---|---|
//! | `fault` | reasons why a handshake with a server failed, with their remedies |
//! | `verifier` | verification by trusted certificates, and none at all |
mod fault;
mod verifier;

pub use fault::{HandshakeFault, Remedies};
pub use verifier::{any_server, servers_of};
