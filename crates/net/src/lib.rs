//! SMTP over sockets: an embeddable server, a client, and the clock.
//!
//! The protocol is `smtp`'s; here is only what moves bytes. One single-threaded tokio runtime a core, sessions
//! pinned to it; one read buffer a core, so that an idle session holds none.
//!
//! | file | what it does |
//! |---|---|
//! | `alarm` | one timer a session, re-armed only when it fires |
//! | `client` | a client for programs that send a message now and then |
//! | `clock` | CLOCK_MONOTONIC, the time of everything measured |
//! | `conversation` | drives a client session for a caller that has many of them |
//! | `handler` | what a program that embeds the server answers |
//! | `listener` | listening sockets |
//! | `open_files` | raises this process's own `ulimit -n` |
//! | `outbox` | what a turn has to write, message uncopied |
//! | `server` | workers, accepting, stopping |
//! | `session` | drives a server session for its handler |
//! | `socket` | one read, one write, one system call each |
//! | `worker` | a thread with its runtime and its buffers |
mod alarm;
mod client;
pub mod clock;
mod conversation;
mod handler;
pub mod listener;
pub mod open_files;
mod outbox;
mod server;
mod session;
mod socket;
pub mod worker;

pub use alarm::Alarm;
pub use client::{Client, Delivery, Error};
pub use conversation::{Caller, Conversation, Ended, Next};
pub use handler::{Answer, Handler, Parting, Peer};
pub use outbox::Outbox;
pub use server::{Running, Server, Service};
pub use worker::Desk;
