//! SMTP over sockets: an embeddable server and clients. **Linux only.**
//!
//! ```
//! use mailrun_net::smtp::Envelope;
//! use mailrun_net::{Answer, Client, ReceivedMessage, Server};
//! use std::{sync::Arc, time::Duration};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let print = |message: ReceivedMessage| {
//!     println!("{} sends {} bytes to {:?}", message.sender, message.content.len(), message.recipients);
//!     Answer::Yes
//! };
//! let server = Server::for_messages(print).start("127.0.0.1:0".parse()?)?;
//!
//! let mut client = Client::connect(server.address(), "client.example", Duration::from_secs(10))?;
//! let envelope = Arc::new(Envelope::new("me@example.com", "", ["you@example.com"])?);
//! assert!(client.send(&envelope, b"Subject: hello\r\n\r\nworld\r\n")?.accepted);
//! client.quit()?;
//! server.stop();
//! # Ok(())
//! # }
//! ```
//!
//! - [`Server::for_messages`] with a closure or a [`MessageHandler`] receives whole messages within
//!   a memory limit.
//! - [`Server::new`] takes a [`Handler`] for each session, which answers each command and receives a message in pieces.
//! - [`Client::builder`] offers STARTTLS, implicit TLS and AUTH. [`AsyncClient`] does the same without blocking, so a
//!   handler can send mail with it.
//!
//! The protocol is in `smtp`, and the event loop in `eventloop`. This crate joins the two and adds
//! TLS. Each worker thread has an event loop, and sessions stay on their worker. The sessions of a
//! worker share one read buffer, so an idle session holds no buffer.
//!
//! | file | what it does |
//! |---|---|
//! | `client` | clients for programs that send a message now and then |
//! | `client_io` | connections of the clients, blocking and non-blocking |
//! | `client_limits` | limits for each client address |
//! | `client_session` | drives one client session, for a caller with many sessions |
//! | `dialogue_log` | shows what clients and the server say to each other |
//! | `handler` | the trait that an embedding program implements |
//! | `message_handler` | handlers that get whole messages, with a limit of memory |
//! | `outbox` | the output of a turn, in which messages are not copied |
//! | `proxy_header` | reads the PROXY header before a session |
//! | `recent` | tables of limited size for keys that were used lately |
//! | `server` | starts and stops workers, and accepts connections |
//! | `server_session` | drives a server session for its handler |
//! | `session_slot` | counts sessions against the server's limit, and at a stop |
//! | `stream` | a connection, plain or under TLS |
//! | `tls` | TLS as a state machine over a connection |
//! | `tls_files` | certificates and keys in files, read again when they change |
//! | `tls_setup` | certificates, keys and trusted roots |
//! | `worker` | a thread with its event loop and its buffers |
mod client;
mod client_io;
mod client_limits;
mod client_session;
mod dialogue_log;
mod handler;
mod message_handler;
mod outbox;
mod proxy_header;
pub mod recent;
mod server;
mod server_session;
mod session_slot;
mod stream;
mod tls;
mod tls_files;
mod tls_setup;
pub mod worker;

pub use server_session::nonce;

pub use client::{AsyncClient, Client, ClientBuilder, Error, SendOutcome};
pub use client_limits::{Admission, ClientKey, ClientLimit, ClientLimits, ClientRefusal, Clients};
pub use client_session::{ClientSecurity, ClientSession, MessageSource, NextAction, SessionEnd};
pub use dialogue_log::{DialogueFilter, DialogueFilterError, DialogueLog, DialogueWriter};
pub use handler::{Answer, CloseReason, Handler, LoginOutcome, Peer, ReadLimit, Service};
pub use mailrun_eventloop::{
    Acceptor, BusyPoll, Endpoint, FdTable, PageAlignedBuffer, ResourceExhausted, Socket, Timer, WorkerOptions, clock,
    listener, open_files, sleep, sleep_until,
};
pub use mailrun_smtp as smtp;
pub use mailrun_tls_verify::{CertificateRecorder, ShownCertificates};
pub use message_handler::{BufferBudget, BufferingHandler, MessageHandler, MessageService, ReceivedMessage};
pub use outbox::Outbox;
pub use proxy_header::Proxied;
pub use server::{RunningServer, Server};
pub use stream::Stream;
pub use tls::Handshake;
pub use tls_files::{FileStamp, TlsFiles, TlsFilesError, TlsWatch, check_regular, read_roots};
pub use tls_setup::{
    Certificate, ClientTls, ServerSecurity, ServerTls, SessionResumption, TlsSetupError, TlsVersions, Trust,
    certificates_from, load_system_roots,
};
pub use worker::WorkerBuffers;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/embedding.md")]
mod embedding_page {}
