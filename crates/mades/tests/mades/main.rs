//! The client from outside: against fe2o3-amqp's acceptor, scripted peers, and malicious peers.
#![allow(clippy::unwrap_used, reason = "a test may")]
mod artemis;
mod closing;
mod hostile;
mod links;
mod peer;
mod script;
mod security;
