//! SMTP sessions of clients and servers as state machines, without sockets. The caller passes the
//! bytes that it reads, and gets events and bytes to write.
//!
//! ```
//! use mailrun_smtp::reply_reason::ReplyReason;
//! use mailrun_smtp::server::{Event, Server, ServerSettings};
//! use std::{sync::Arc, time::Duration};
//!
//! let now = Duration::ZERO;
//! let mut server = Server::new(Arc::new(ServerSettings::new("mx.example", mailrun_smtp::Limits::default())), now);
//! let mut out = Vec::new();
//! server.grant(now, &mut out); // the greeting
//! let mut input = b"EHLO a\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\nhello\r\n.\r\nQUIT\r\n".as_slice();
//! let mut message = Vec::new();
//! while let Some(event) = server.next_event(&mut input, now, &mut out) {
//!     match event {
//!         Event::Block(block) => message.extend_from_slice(block),
//!         Event::Hello(..) | Event::Mail(_) | Event::Recipient(_) | Event::Data => server.grant(now, &mut out),
//!         Event::Message { .. } | Event::Quit => server.grant(now, &mut out),
//!         event if event.asks() => server.answer(ReplyReason::NotImplemented.reply(), now, &mut out),
//!         _ => {}
//!     }
//! }
//! assert_eq!(message, b"hello\r\n");
//! assert!(out.starts_with(b"220 mx.example ") && out.ends_with(b"221 2.0.0 Bye\r\n") && server.has_quit());
//! ```
//!
//! This crate uses no runtime, no socket and no clock. On the common path, it also allocates no memory. A driver owns
//! the socket and does this:
//!
//! ```text
//!         ┌────────── bytes read ──────────┐
//!         ▼                                │
//!   next_event(&mut input, &mut out)    socket
//!         │  Some(event): decide, answer   ▲
//!         │  None: needs more bytes, or ───┘ bytes in `out`
//!         ▼         an answer
//!     deadline(), tick(now): the time-outs
//! ```
//!
//! Message bodies are not copied, because events borrow from the bytes that were read. This is why the call that takes
//! the bytes also returns the next event. The caller passes the current time as `now`, a `Duration` since any fixed
//! moment.
//!
//! | file | subject |
//! |---|---|
//! | `address` | paths and mailboxes, with their syntax and lengths (RFC 5321 §4.1.2, §4.5.3.1) |
//! | `address_pattern` | patterns of addresses: `user@domain`, `@domain`, `user@` |
//! | `checks` | checks of what each parser promises for any input, for tests and fuzz targets |
//! | `chunk` | messages in chunks (RFC 3030) |
//! | `client` | the side that sends mail |
//! | `command` | parses command lines (RFC 5321 §4.1.1) |
//! | `data` | dot-stuffing, end of data, line endings (RFC 5321 §4.5.2) |
//! | `dialogue` | the dialogue of a session as text, without login data |
//! | `domain` | domains in the form in which they are compared |
//! | `dsn` | requests for delivery status notifications (RFC 3461) |
//! | `envelope` | the lines of MAIL, RCPT and DATA, written once for many messages |
//! | `extensions` | the extensions in the reply to EHLO (RFC 5321 §4.1.1.1) |
//! | `foreign` | recognises the first lines of other protocols |
//! | `limits` | limits of a server (RFC 5321 §4.5.3) |
//! | `line` | gathers lines that come in several blocks, up to a limit |
//! | `login` | the questions to a server's application about a client that logs in (RFC 4954) |
//! | `proxy` | the header that a proxy sends before the session |
//! | `reply` | writes and parses replies (RFC 5321 §4.2, RFC 2034) |
//! | `reply_reason` | every reply that the server sends by itself, with its text |
//! | `server` | the side that receives mail |
//! | `settings` | settings that all sessions of a server share |
//! | `xclient` | XCLIENT, with which a proxy names its client (Postfix) |
//! | `xtext` | the encoding of text in a parameter's value (RFC 3461 §4) |
pub mod address;
pub mod address_pattern;
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
pub mod chunk;
pub mod client;
pub mod command;
pub mod data;
pub mod dialogue;
pub mod domain;
pub mod dsn;
pub mod envelope;
pub mod extensions;
mod foreign;
pub mod limits;
mod line;
pub mod login;
pub mod proxy;
pub mod reply;
pub mod reply_reason;
pub mod server;
mod settings;
pub mod xclient;
pub mod xtext;

pub use address::Path;
pub use address_pattern::AddressPattern;
pub use client::Client;
pub use domain::Domain;
pub use envelope::Envelope;
pub use extensions::Extensions;
pub use limits::Limits;
/// The mechanisms of AUTH (RFC 4954), for both sides.
pub use mailrun_sasl as sasl;
pub use reply::{ReceivedReply, Reply};
pub use server::Server;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
