//! The client side from outside: against fe2o3-amqp's own acceptor, against scripts, and against peers that mean it
//! badly.
#![allow(clippy::unwrap_used, reason = "a test may")]
mod artemis;
mod closing;
mod hostile;
mod links;
mod peer;
mod script;
mod security;
