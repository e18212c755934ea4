//! SMTP over sockets: an embeddable server, a client, and the clock.
//!
//! The protocol is in `smtp`; this crate only moves bytes. One event loop per core, with sessions pinned to it; one
//! read buffer per core, so that an idle session holds none.
//!
//! | file | what it does |
//! |---|---|
//! | `bell` | wakes tasks for other reasons than their own events |
//! | `client_limits` | limits per client address |
//! | `client` | a client for programs that send a message now and then |
//! | `clock` | CLOCK_MONOTONIC, the time of everything measured |
//! | `conversation` | drives a client session for a caller that has many of them |
//! | `endpoint` | a TCP address, or a socket in the file system |
//! | `handler` | the trait that an embedding program implements |
//! | `listener` | listening sockets |
//! | `nonce` | bytes that nobody can guess |
//! | `open_files` | raises this process's own `ulimit -n` |
//! | `outbox` | output of a turn, message uncopied |
//! | `proxied` | the PROXY header before a session |
//! | `reactor` | the event loop: one epoll, and the tasks that wait on it |
//! | `recent` | tables of bounded size: keys that were used lately, in shards |
//! | `server` | workers, accepting, stopping |
//! | `session` | drives a server session for its handler |
//! | `shortage` | resources that ran out when a connection could not be made or accepted |
//! | `socket` | one read, one write, one system call each |
//! | `stream` | a connection, plain or under TLS |
//! | `timers` | all timers of a worker on one timerfd |
//! | `tls` | TLS as a state machine over a connection |
//! | `tls_setup` | certificates, keys, trusted roots |
//! | `worker` | a thread with its event loop and its buffers |
mod batch;
mod client;
mod client_limits;
mod client_session;
pub mod clock;
mod endpoint;
mod handler;
pub mod listener;
mod nonce;
pub mod open_files;
mod outbox;
mod proxy_header;
mod reactor;
pub mod recent;
mod resource_exhausted;
mod server;
mod server_session;
mod socket;
mod stream;
mod timers;
mod tls;
mod tls_files;
mod tls_setup;
mod wake_queue;
pub mod worker;

pub use client::{Client, Error, SendOutcome};
pub use client_limits::{Admission, ClientKey, ClientLimit, ClientLimits, ClientRefusal, Clients};
pub use client_session::{ClientSecurity, ClientSession, MessageSource, NextAction, SessionEnd};
pub use endpoint::Endpoint;
pub use handler::{Answer, CloseReason, Handler, LoginOutcome, Peer, ReadLimit};
pub use nonce::nonce;
pub use outbox::Outbox;
pub use resource_exhausted::ResourceExhausted;
pub use server::{Proxied, RunningServer, Server, Service};
pub use socket::{Acceptor, Socket};
pub use stream::Stream;
pub use timers::{Timer, sleep, sleep_until};
pub use tls::Handshake;
pub use tls_files::{FileStamp, TlsFiles, TlsFilesError, TlsWatch};
pub use tls_setup::{
    Certificate, ClientTls, ServerSecurity, ServerTls, SessionResumption, TlsSetupError, TlsVersions, Trust,
};
pub use worker::{FdTable, WorkerBuffers};
