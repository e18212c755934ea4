//! Tests the client from outside, against the acceptor of fe2o3-amqp, against scripted peers, and
//! against malicious peers.
#![allow(clippy::unwrap_used, reason = "a test may")]
mod artemis;
mod closing;
mod hostile;
mod links;
mod peer;
mod script;
mod security;
