//! Errors of a connection, and the part of the connection that each error ends: a link, a session,
//! or the whole connection.
use crate::codec::DecodeError;
use crate::peer_error::PeerError;
use crate::sasl_client::LoginError;
use std::fmt;
use thiserror::Error;

/// A rule that the peer broke, and the condition that the specification defines for it (AMQP 1.0
/// §2.8.15 to §2.8.18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{condition}: {description}")]
pub struct Violation {
    /// Error condition of AMQP, such as `amqp:link:transfer-limit-exceeded`.
    pub condition: &'static str,
    /// Human-readable description of the broken rule, which the peer gets together with the condition.
    pub description: &'static str,
}

impl Violation {
    /// Error condition of AMQP for a message that is longer than its link allows.
    pub const MESSAGE_SIZE: &str = "amqp:link:message-size-exceeded";
    /// Error condition of AMQP for a peer that exceeds one of our own limits, such as the time for a handshake.
    pub const RESOURCE_LIMIT: &str = "amqp:resource-limit-exceeded";

    pub(super) fn new(condition: &'static str, description: &'static str) -> Self {
        Self { condition, description }
    }

    pub(super) fn not_allowed(description: &'static str) -> Self {
        Self::new("amqp:not-allowed", description)
    }

    pub(super) fn invalid_field(description: &'static str) -> Self {
        Self::new("amqp:invalid-field", description)
    }

    pub(super) fn illegal_state(description: &'static str) -> Self {
        Self::new("amqp:illegal-state", description)
    }

    pub(super) fn framing(description: &'static str) -> Self {
        Self::new("amqp:connection:framing-error", description)
    }

    pub(super) fn unattached_handle() -> Self {
        Self::new("amqp:session:unattached-handle", "a frame of a link that is not attached")
    }

    /// Returns the condition and the description, which a detach, an end or a close sends to the peer.
    pub(super) fn parts(&self) -> (&str, &str) {
        (self.condition, self.description)
    }
}

/// Reason why the connection cannot continue. If the connection is already open, our close tells the peer the reason.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConnectionError {
    /// The peer's first bytes are not a header of AMQP 1.0. They are kept, so that the caller can recognise another
    /// protocol.
    #[error("not AMQP 1.0: the connection begins with {0:02x?}")]
    Header([u8; 8]),
    /// The peer skips SASL, although this listener requires a login.
    #[error("the peer does not authenticate itself")]
    Unauthenticated,
    /// We refused the peer's login, because of a wrong user or password or because of its SASL mechanism.
    #[error("user or password is wrong")]
    Refused,
    /// The peer did not accept our login, for the reason in the error.
    #[error("{0}")]
    Login(#[from] LoginError),
    /// The peer sends bytes that are not a frame.
    #[error("{0}")]
    Framing(DecodeError),
    /// The peer sends a frame that cannot be decoded.
    #[error("{0}")]
    Malformed(#[from] DecodeError),
    /// The peer breaks a rule of the protocol.
    #[error("{}", .0.description)]
    Violation(#[from] Violation),
}

impl ConnectionError {
    /// Returns the error condition that AMQP defines for this error, such as `amqp:decode-error`.
    pub fn condition(&self) -> &'static str {
        match self {
            Self::Header(_) | Self::Framing(_) => "amqp:connection:framing-error",
            Self::Unauthenticated | Self::Refused | Self::Login(_) => "amqp:unauthorized-access",
            Self::Malformed(_) => "amqp:decode-error",
            Self::Violation(violation) => violation.condition,
        }
    }
}

/// Tells whether a link ended alone or together with its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Only the link itself ends, and the other links of its session continue.
    Link,
    /// The session ends, together with all of its links.
    Session,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Link => "link",
            Self::Session => "session",
        })
    }
}

/// Reason why a link or a session has ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EndError {
    /// The peer ended the link or the session, for this reason.
    #[error("{0}")]
    Peer(PeerError),
    /// We ended the link or the session because the peer broke a rule.
    #[error("{0}")]
    Violation(Violation),
}

/// An error in a frame. The variant tells whether the error ends a link, a session or the whole connection.
#[derive(Debug)]
pub(super) enum FrameError {
    Link(LinkId, Violation),
    /// Ends a session. The number is the session's channel on our side.
    Session(u16, Violation),
    Connection(ConnectionError),
}

impl<E: Into<ConnectionError>> From<E> for FrameError {
    fn from(error: E) -> Self {
        Self::Connection(error.into())
    }
}

/// Identifies a link: the session's number, and the link's number in the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkId {
    pub(super) channel: u16,
    pub(super) handle: u32,
}
