//! TLS servers: which certificates a client accepts, and why a handshake failed, in plain words.
//!
//! | file | what it does |
//! |---|---|
//! | `fault` | why a handshake with a server failed, and what to do about it |
//! | `verifier` | verification by trusted certificates, and none at all |
mod fault;
mod verifier;

pub use fault::{HandshakeFault, Remedies};
pub use verifier::{any_server, servers_of};
