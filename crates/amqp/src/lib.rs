//! AMQP 1.0 as a state machine for clients and servers. The caller passes the bytes that it reads,
//! and gets events and bytes to write. The crate uses no runtime, no socket and no clock.
//!
//! | module | what it does |
//! |---|---|
//! | `adversary` | tests with peers that send valid frames in any order |
//! | `buffers` | messages in pieces, and the output that is to be written |
//! | `checks` | checks of any input from a peer, for tests and fuzz targets |
//! | `codec` | the types of AMQP, read in place and written |
//! | `connection` | a connection in either role, with the client's part and the scope of errors |
//! | `frame` | frames and performatives |
//! | `fuzz_support` | connections that answer each event at once, for fuzz targets |
//! | `peer_error` | errors that a peer reports, including redirects |
//! | `peer_product` | the product and the version of a peer |
//! | `sasl`, `sasl_client` | the login, for servers and clients |
#[cfg(test)]
mod adversary;
mod buffers;
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
mod codec;
mod connection;
mod frame;
#[cfg(any(test, feature = "checks"))]
mod fuzz_support;
mod peer_error;
mod peer_product;
mod sasl;
mod sasl_client;

pub use buffers::{EncodedMessage, OutputBuffer};
pub use codec::{DecodeError, Elements, Reader, Scalar, Value, Writer};
pub use connection::{
    AmqpConnection, ConnectionError, ConnectionEvent, ConnectionOptions, EndError, IDLE_TIMEOUT_MS, LinkId,
    LinkRequest, Scope, SessionId, SessionRefused, Violation,
};
pub use frame::{DeliveryOutcome, LinkRole};
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub use fuzz_support::{FuzzConnection, FuzzOutcome};
pub use mailrun_sasl::scram::ScramHash;
pub use peer_error::{PeerError, RedirectTarget};
pub use peer_product::PeerProduct;
pub use sasl::Password;
pub use sasl::{ListenerAuth, PlainCredentials};
pub use sasl_client::{ClientLogin, LoginError};
