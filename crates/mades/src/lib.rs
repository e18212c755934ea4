//! MADES over AMQP 1.0: the Business Application API of ECP and EDX, and the client side of its queues.
//!
//! ```
//! use mailrun_mades::api::{OutgoingProperties, Submission, payload};
//! use mailrun_mades_simulator::embedded::{self, ListenOptions, ListenerAuth, MemoryQueues, QueueLimits};
//! use mailrun_mades::{Broker, Connection, IncomingDelivery, ReceiverOptions, SenderOptions, Uuid};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let port = listener.local_addr()?.port();
//! let queues = MemoryQueues::new(QueueLimits::default());
//! tokio::spawn(embedded::serve(listener, queues, ListenOptions::new(ListenerAuth::Any), Default::default()));
//!
//! let broker = Broker::new(format!("amqp://127.0.0.1:{port}").parse()?, "hello");
//! let mut connection = Connection::open(&broker).await?;
//! let mut sender = connection.attach_sender(&SenderOptions::new("outbox", 8)).await?;
//! let mut receiver = connection.attach_receiver(&ReceiverOptions::new("outbox", 8)).await?;
//! let mut template = OutgoingProperties::new("10V000000000001X", "HELLO").template(Uuid::nil(), payload(b"hi".to_vec()));
//! let disposition = sender.send(template.fill(0, 0)).await?;
//! let IncomingDelivery::Delivery(delivery) = receiver.next().await? else { panic!("it can be decoded") };
//! assert_eq!(Submission::read(&delivery.message).receiver_code.as_deref(), Some("10V000000000001X"));
//! receiver.accept(delivery.handle)?;
//! disposition.await?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | `api` | messages of the queues in both directions, without sockets |
//! | `broker` | a broker, and how to connect to it |
//! | `client_state` | state of a connection, which its driver, its links and its owner share |
//! | `connection` | a connection to a broker |
//! | `driver` | reads and writes the stream of a connection |
//! | `error` | errors, and what the user can do about each |
//! | `link` | common parts of sender and receiver links |
//! | `receiver` | a link that receives messages from a queue |
//! | `sender` | a link that sends messages to a queue |
//! | `security` | TLS and authentication |
//! | `stream` | the TCP and TLS below AMQP |
//! | `url` | address of a broker and the login, without showing the password |
//! | `xml` | encodings and references of XML documents |
#![allow(missing_docs)] // only crates that other programs embed document every public item

pub mod api;
mod broker;
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
mod client_state;
mod connection;
mod driver;
mod error;
mod link;
mod receiver;
mod security;
mod sender;
mod stream;
mod url;
pub mod xml;

pub use crate::url::{BrokerUrl, UrlError, password_from_file};
pub use broker::Broker;
pub use bytes::Bytes;
pub use client_state::Disposition;
pub use connection::Connection;
pub use error::Error;
pub use mailrun_amqp::{Password, PeerProduct};
pub use receiver::{Delivery, DeliveryHandle, EncodedDelivery, IncomingDelivery, ReceiverLink, ReceiverOptions};
pub use security::{BrokerSecurity, SaslMechanism, TlsSetup, Verification};
pub use sender::{DispositionFuture, SenderLink, SenderOptions};
pub use uuid::Uuid;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
