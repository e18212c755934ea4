//! Errors between us and a broker: one variant for each that calls for a different reaction.
use fe2o3_amqp::connection::{ConnectionStopReason, OpenError};
use fe2o3_amqp::link::{
    DetachError, IllegalLinkStateError, LinkStateError, ReceiverAttachError, RecvError, SendError, SenderAttachError,
    SessionStopReason,
};
use fe2o3_amqp::transport;
use fe2o3_amqp_types::definitions::{self, ErrorCondition};
use std::io;
use std::time::Duration;
use trust::Remedies;

/// The options against a certificate that is not accepted.
pub(crate) const REMEDIES: Remedies =
    Remedies { trust: "--cacert FILE", name: "--tls-name NAME", insecure: "--insecure" };

/// An error on the way to a broker. Each text says what to do about it; none shows a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The caller asked for something impossible.
    #[error("{0}")]
    Misuse(String),
    /// The host has no address.
    #[error("{host} has no address ({why}); check the name")]
    NoAddress {
        /// The host.
        host: String,
        /// The resolver's message.
        why: String,
    },
    /// Nothing listens there.
    #[error("nothing listens at {address}; check that the broker is running and that this is its AMQP port")]
    Refused {
        /// Address of the broker.
        address: String,
    },
    /// It cannot be reached.
    #[error("cannot reach {address}: {why}")]
    Unreachable {
        /// Address of the broker.
        address: String,
        /// The system's message.
        why: String,
    },
    /// Something took longer than it may.
    #[error("{address}: {what} took longer than {} s; check that an AMQP 1.0 broker is running there", .after.as_secs_f64())]
    TimedOut {
        /// Address of the broker.
        address: String,
        /// The step that was waited for.
        what: &'static str,
        /// Duration of the wait.
        after: Duration,
    },
    /// The user or the password is wrong.
    #[error("{address} rejected the login of {who}; check user and password")]
    WrongCredentials {
        /// Address of the broker.
        address: String,
        /// The user.
        who: String,
    },
    /// The broker does not offer the mechanism by which we want to authenticate.
    #[error("{address} does not offer SASL {mechanism}: choose another mechanism")]
    NoSuchMechanism {
        /// Address of the broker.
        address: String,
        /// The mechanism.
        mechanism: &'static str,
    },
    /// We speak TLS and the peer does not.
    #[error("{address} does not use TLS; use amqp://, or the TLS port of the broker ({why})")]
    PlainPeer {
        /// Address of the broker.
        address: String,
        /// Description of what was seen.
        why: String,
    },
    /// The peer speaks TLS and we do not.
    #[error("{address} requires TLS; use amqps://")]
    TlsPeer {
        /// Address of the broker.
        address: String,
    },
    /// The certificate is not one to be trusted.
    #[error("{address}: {why}")]
    Untrusted {
        /// Address of the broker.
        address: String,
        /// Reason, and what to do about it.
        why: String,
    },
    /// The peer wants a certificate of ours, or does not accept the one that it got.
    #[error("{address} rejected the TLS handshake of this client: {why}")]
    NotTrusted {
        /// Address of the broker.
        address: String,
        /// The peer's message.
        why: String,
    },
    /// The peer speaks something else.
    #[error("{address} does not speak AMQP 1.0: it answers {found}")]
    NotAmqp {
        /// Address of the broker.
        address: String,
        /// Its first bytes.
        found: String,
    },
    /// There is no such queue.
    #[error("the queue {queue} does not exist; create it, or check --prefix ({why})")]
    MissingQueue {
        /// The queue.
        queue: String,
        /// The broker's message.
        why: String,
    },
    /// Another consumer holds the queue exclusively.
    #[error("queue {queue} is held exclusively by another consumer: stop that one, or use another queue ({why})")]
    QueueHeld {
        /// The queue.
        queue: String,
        /// The broker's message.
        why: String,
    },
    /// Another link has taken the place of ours.
    #[error("another client has taken over the link to {queue}; check that this run was not started twice ({why})")]
    LinkStolen {
        /// The queue.
        queue: String,
        /// The broker's message.
        why: String,
    },
    /// We may not.
    #[error("{queue}: permission denied; grant this user access ({why})")]
    NotPermitted {
        /// The queue.
        queue: String,
        /// The broker's message.
        why: String,
    },
    /// The message is larger than the queue takes.
    #[error("{queue} accepts messages of at most {limit} bytes; this one has {size}")]
    TooLarge {
        /// The queue.
        queue: String,
        /// Bytes of the message.
        size: u64,
        /// Limit of bytes.
        limit: u64,
    },
    /// A message came that is larger than the limit that we announced.
    #[error("{queue} contains a message larger than {limit} bytes; remove it from the queue")]
    Oversized {
        /// The queue.
        queue: String,
        /// Limit of bytes.
        limit: u64,
    },
    /// The broker has ended the link for another reason.
    #[error("{queue}: the broker ended the link: {why}")]
    Detached {
        /// The queue.
        queue: String,
        /// The broker's message.
        why: String,
    },
    /// The broker has closed the connection with a close.
    #[error("the broker closed the connection: {why}")]
    Closed {
        /// The broker's message.
        why: String,
    },
    /// The connection was lost.
    #[error("connection lost: {why}")]
    Lost {
        /// Description of what was seen.
        why: String,
    },
    /// The peer broke the protocol.
    #[error("the peer violates AMQP 1.0: {why}")]
    PeerMisbehaved {
        /// Description of the violation.
        why: String,
    },
}

/// Says whether and where another attempt makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Another attempt would give the same result.
    Never,
    /// A new connection may do.
    OtherConnection,
    /// On the same connection, later.
    Later,
}

impl Error {
    /// Reports whether and where another attempt makes sense, without a person's help.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Misuse(_)
            | Self::NoAddress { .. }
            | Self::WrongCredentials { .. }
            | Self::NoSuchMechanism { .. }
            | Self::PlainPeer { .. }
            | Self::TlsPeer { .. }
            | Self::Untrusted { .. }
            | Self::NotTrusted { .. }
            | Self::NotAmqp { .. }
            | Self::MissingQueue { .. }
            | Self::LinkStolen { .. }
            | Self::NotPermitted { .. }
            | Self::TooLarge { .. }
            | Self::Oversized { .. } => Retry::Never,
            Self::QueueHeld { .. } | Self::Detached { .. } => Retry::Later,
            Self::Refused { .. }
            | Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::Closed { .. }
            | Self::Lost { .. }
            | Self::PeerMisbehaved { .. } => Retry::OtherConnection,
        }
    }
}

/// A broker's description of an error, in one line.
pub(crate) fn describe(error: &definitions::Error) -> String {
    let condition = condition(error);
    match &error.description {
        Some(description) => format!("{condition}: {}", one_line(description)),
        None => condition,
    }
}

pub(crate) fn condition(error: &definitions::Error) -> String {
    use definitions::{AmqpError, ConnectionError, LinkError, SessionError};
    let symbol: serde_amqp::primitives::Symbol = match &error.condition {
        ErrorCondition::AmqpError(condition) => <&AmqpError as Into<_>>::into(condition),
        ErrorCondition::ConnectionError(condition) => <&ConnectionError as Into<_>>::into(condition),
        ErrorCondition::SessionError(condition) => <&SessionError as Into<_>>::into(condition),
        ErrorCondition::LinkError(condition) => <&LinkError as Into<_>>::into(condition),
        ErrorCondition::Custom(symbol) => symbol.clone(),
    };
    one_line(&symbol.0)
}

/// Makes a peer's text fit for a terminal: one line, no control characters, of bounded length.
pub(crate) fn one_line(text: &str) -> String {
    const SHOWN_CHARACTERS: usize = 300;
    text.chars().take(SHOWN_CHARACTERS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The error for a link to `queue` that was ended.
pub(crate) fn of_link(queue: &str, error: &definitions::Error) -> Error {
    let queue = queue.to_owned();
    let why = describe(error);
    match condition(error).as_str() {
        "amqp:not-found" => Error::MissingQueue { queue, why },
        "amqp:resource-locked" => Error::QueueHeld { queue, why },
        "amqp:link:stolen" => Error::LinkStolen { queue, why },
        "amqp:unauthorized-access" => Error::NotPermitted { queue, why },
        // Artemis reports amqp:internal-error or amqp:not-allowed, and the rest in its text.
        _ if why.contains("exclusive") => Error::QueueHeld { queue, why },
        _ if why.contains("does not exist") => Error::MissingQueue { queue, why },
        _ => Error::Detached { queue, why },
    }
}

fn of_connection_stop(reason: &ConnectionStopReason) -> Error {
    match reason {
        ConnectionStopReason::RemoteClosedWithError(error) => Error::Closed { why: describe(error) },
        ConnectionStopReason::RemoteClosed => Error::Closed { why: "no reason was given".to_owned() },
        ConnectionStopReason::ClosedWithError(error) => Error::PeerMisbehaved { why: describe(error) },
        ConnectionStopReason::Closed => Error::Lost { why: "it ended".to_owned() },
    }
}

fn of_session_stop(reason: &SessionStopReason) -> Error {
    match reason {
        SessionStopReason::ConnectionStopped(reason) => of_connection_stop(reason),
        SessionStopReason::RemoteEndedWithError(error) => Error::Closed { why: describe(error) },
        SessionStopReason::EndedWithError(error) => Error::PeerMisbehaved { why: describe(error) },
        SessionStopReason::RemoteEnded => Error::Closed { why: "it ended the session".to_owned() },
        SessionStopReason::Ended => Error::Lost { why: "the session has ended".to_owned() },
    }
}

fn ended_without_reason(queue: &str) -> Error {
    Error::Detached { queue: queue.to_owned(), why: "no reason was given".to_owned() }
}

fn misbehaved(why: &impl ToString) -> Error {
    Error::PeerMisbehaved { why: one_line(&why.to_string()) }
}

pub(crate) fn of_link_state(queue: &str, error: &LinkStateError) -> Error {
    match error {
        LinkStateError::SessionStopped(reason) => of_session_stop(reason),
        LinkStateError::RemoteDetachedWithError(error) | LinkStateError::RemoteClosedWithError(error) => {
            of_link(queue, error)
        }
        LinkStateError::RemoteDetached | LinkStateError::RemoteClosed => ended_without_reason(queue),
        // What was under way when we ended the link: the peer did nothing wrong.
        LinkStateError::IllegalState => Error::Lost { why: "the link has ended".to_owned() },
        other => misbehaved(other),
    }
}

pub(crate) fn of_disposition(error: &IllegalLinkStateError) -> Error {
    match error {
        IllegalLinkStateError::SessionStopped(reason) => of_session_stop(reason),
        IllegalLinkStateError::IllegalState => Error::Lost { why: "the link has ended".to_owned() },
    }
}

pub(crate) fn of_send(queue: &str, error: &SendError) -> Error {
    match error {
        SendError::LinkStateError(error) => of_link_state(queue, error),
        SendError::Detached(error) => of_detach(queue, error),
        SendError::MessageSizeExceeded(exceeded) => {
            Error::TooLarge { queue: queue.to_owned(), size: exceeded.size, limit: exceeded.max_size }
        }
        SendError::MessageEncodeError => Error::Misuse("the message cannot be encoded".to_owned()),
        SendError::NonTerminalDeliveryState | SendError::IllegalDeliveryState => misbehaved(error),
    }
}

pub(crate) fn of_detach(queue: &str, error: &DetachError) -> Error {
    match error {
        DetachError::SessionStopped(reason) => of_session_stop(reason),
        DetachError::RemoteDetachedWithError(error) | DetachError::RemoteClosedWithError(error) => {
            of_link(queue, error)
        }
        _ => ended_without_reason(queue),
    }
}

/// Result of detaching a link: it is detached when both sides have said so.
pub(crate) fn of_close(queue: &str, said: Result<(), DetachError>) -> Result<(), Error> {
    match said {
        // RabbitMQ 3 answers the end of a link by its suspension (AMQP 1.0 part 2 §2.6.6 asks for an end), and after
        // that again. fe2o3-amqp finds that state illegal; the link no longer exists for either side.
        Ok(()) | Err(DetachError::IllegalState) => Ok(()),
        Err(error) => Err(of_detach(queue, &error)),
    }
}

/// The error of a receiver; a message that cannot be decoded is an arrival, not an error, and is not handled here.
pub(crate) fn of_receive(queue: &str, error: &RecvError) -> Error {
    match error {
        RecvError::LinkStateError(error) => of_link_state(queue, error),
        RecvError::MessageSizeExceeded(exceeded) => {
            Error::Oversized { queue: queue.to_owned(), limit: exceeded.max_size }
        }
        other => misbehaved(other),
    }
}

pub(crate) fn of_sender_attach(queue: &str, error: &SenderAttachError) -> Error {
    match error {
        SenderAttachError::SessionStopped(reason) => of_session_stop(reason),
        SenderAttachError::RemoteClosedWithError(error) => of_link(queue, error),
        // A broker that refuses the link answers with no target and gives the reason in its detach (AMQP 1.0 part 2
        // §2.6.3); this one gave none.
        SenderAttachError::IncomingTargetIsNone => no_such_queue(queue),
        other => misbehaved(other),
    }
}

pub(crate) fn of_receiver_attach(queue: &str, error: &ReceiverAttachError) -> Error {
    match error {
        ReceiverAttachError::SessionStopped(reason) => of_session_stop(reason),
        ReceiverAttachError::RemoteClosedWithError(error) => of_link(queue, error),
        ReceiverAttachError::IncomingSourceIsNone => no_such_queue(queue),
        other => misbehaved(other),
    }
}

fn no_such_queue(queue: &str) -> Error {
    Error::MissingQueue { queue: queue.to_owned(), why: "the broker rejected the link without a reason".to_owned() }
}

/// The error for a lost connection, from that of its engine.
pub(crate) fn of_connection(error: &fe2o3_amqp::connection::Error) -> Error {
    use fe2o3_amqp::connection::Error as Engine;
    match error {
        Engine::RemoteClosedWithError(error) => Error::Closed { why: describe(error) },
        Engine::RemoteClosed => Error::Closed { why: "no reason was given".to_owned() },
        Engine::TransportError(error) => of_transport(error),
        Engine::IllegalState => Error::Lost { why: "the peer closed the connection".to_owned() },
        other => misbehaved(other),
    }
}

fn of_transport(error: &transport::Error) -> Error {
    match error {
        transport::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => misbehaved(error),
        transport::Error::Io(error) => Error::Lost { why: error.to_string() },
        transport::Error::IdleTimeoutElapsed => Error::Lost { why: "the peer was silent for too long".to_owned() },
        transport::Error::DecodeError(what) => misbehaved(&format!("a frame that cannot be decoded: {what}")),
        other => misbehaved(other),
    }
}

/// Facts about an attempt to connect that the text of an error needs: user, address and the peer's first bytes.
pub(crate) struct OpenAttempt<'a> {
    pub(crate) address: &'a str,
    pub(crate) user: &'a str,
    pub(crate) mechanism: &'static str,
    pub(crate) first_bytes: &'a [u8],
}

/// The error for a connection that could not be opened.
pub(crate) fn of_open(attempt: &OpenAttempt<'_>, error: &OpenError) -> Error {
    let address = attempt.address.to_owned();
    if let Some(other_protocol) = of_first_bytes(&address, attempt.first_bytes) {
        return other_protocol;
    }
    match error {
        OpenError::SaslError { .. } | OpenError::ScramError(_) => {
            Error::WrongCredentials { address, who: attempt.user.to_owned() }
        }
        OpenError::NotImplemented(Some(text)) if text.contains("is not supported") => {
            Error::NoSuchMechanism { address, mechanism: attempt.mechanism }
        }
        // RabbitMQ accepts SASL ANONYMOUS from every client, and asks those without rights for SASL again after it
        // (part 2 §2.2).
        OpenError::NotImplemented(Some(text)) if text.contains(", found ProtocolHeader { id: Sasl") => {
            Error::WrongCredentials { address, who: attempt.user.to_owned() }
        }
        OpenError::RemoteClosedWithError(error) => match condition(error).as_str() {
            "amqp:unauthorized-access" => Error::WrongCredentials { address, who: attempt.user.to_owned() },
            _ => Error::Closed { why: describe(error) },
        },
        OpenError::RemoteClosed => Error::Closed { why: "no reason was given".to_owned() },
        OpenError::TransportError(error) => of_transport(error),
        OpenError::Io(error) => of_handshake_io(&address, error),
        OpenError::ProtocolHeaderMismatch(found) => Error::NotAmqp { address, found: shown(found) },
        other => misbehaved(&format!("{other} during the AMQP handshake")),
    }
}

/// The error for a stream that ended before the connection was open.
pub(crate) fn of_handshake_io(address: &str, error: &io::Error) -> Error {
    if let Some(complaint) = of_tls(address, error) {
        return complaint;
    }
    match error.kind() {
        io::ErrorKind::InvalidData => misbehaved(error),
        _ => Error::Lost { why: format!("{address} closed the connection during the AMQP handshake ({error})") },
    }
}

/// The error of rustls, if the error comes from rustls.
pub(crate) fn of_tls(address: &str, error: &io::Error) -> Option<Error> {
    let complaint = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let address = address.to_owned();
    let why = complaint.to_string();
    Some(match complaint {
        rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => {
            let why = format!("{why}: {} or {}", REMEDIES.trust, REMEDIES.insecure);
            Error::Untrusted { address, why }
        }
        rustls::Error::AlertReceived(_) => Error::NotTrusted { address, why },
        rustls::Error::InvalidMessage(_) => Error::PlainPeer { address, why },
        _ => Error::PeerMisbehaved { why: format!("TLS: {why}") },
    })
}

/// The error for a peer whose first bytes are not AMQP's, if they are known.
pub(crate) fn of_first_bytes(address: &str, greeting: &[u8]) -> Option<Error> {
    let address = address.to_owned();
    match greeting {
        [] => None,
        // A TLS alert, or a handshake record: the answer of a server to a client that does not speak TLS.
        [0x15 | 0x16, 0x03, ..] => Some(Error::TlsPeer { address }),
        greeting if greeting.starts_with(&b"AMQP"[..greeting.len().min(4)]) => None,
        greeting => Some(Error::NotAmqp { address, found: shown(greeting) }),
    }
}

fn shown(octets: &[u8]) -> String {
    format!("\"{}\"", octets.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use definitions::{AmqpError, LinkError};

    #[test]
    fn a_brokers_condition_becomes_the_variant_that_one_acts_upon() {
        let error = |condition: ErrorCondition, text: &str| definitions::Error::new(condition, text.to_owned(), None);
        let queue = "q";
        assert!(matches!(of_link(queue, &error(AmqpError::NotFound.into(), "x")), Error::MissingQueue { .. }));
        assert!(matches!(of_link(queue, &error(AmqpError::ResourceLocked.into(), "x")), Error::QueueHeld { .. }));
        assert!(matches!(
            of_link(queue, &error(AmqpError::NotAllowed.into(), "is exclusive")),
            Error::QueueHeld { .. }
        ));
        assert!(matches!(of_link(queue, &error(LinkError::Stolen.into(), "x")), Error::LinkStolen { .. }));
        assert!(matches!(
            of_link(queue, &error(AmqpError::UnauthorizedAccess.into(), "x")),
            Error::NotPermitted { .. }
        ));
        let other = of_link(queue, &error(AmqpError::InternalError.into(), "a\nb\u{1b}[0m"));
        assert_eq!(other.to_string(), "q: the broker ended the link: amqp:internal-error: a b [0m");
        assert_eq!(other.retry(), Retry::Later);
    }

    #[test]
    fn a_peer_that_asks_for_sasl_again_has_not_let_us_in() {
        use fe2o3_amqp::transport::protocol_header::ProtocolHeader;
        let attempt =
            OpenAttempt { address: "a", user: "an anonymous client", mechanism: "ANONYMOUS", first_bytes: b"AMQP" };
        let text = |found: ProtocolHeader| {
            let text = format!("Expecting {:?}, found {found:?}", ProtocolHeader::amqp());
            of_open(&attempt, &OpenError::NotImplemented(Some(text))).to_string()
        };
        let expected = "a rejected the login of an anonymous client; check user and password";
        assert_eq!(text(ProtocolHeader::sasl()), expected);
        assert!(!text(ProtocolHeader::tls()).contains("let"), "{}", text(ProtocolHeader::tls()));
    }

    #[test]
    fn first_octets_tell_what_a_peer_speaks() {
        assert!(of_first_bytes("a", b"").is_none());
        assert!(of_first_bytes("a", b"AM").is_none());
        assert!(of_first_bytes("a", b"AMQP\x03").is_none());
        assert_eq!(of_first_bytes("a", &[0x15, 3, 3, 0, 2]), Some(Error::TlsPeer { address: "a".to_owned() }));
        let text = of_first_bytes("a", b"HTTP/1.1").unwrap().to_string();
        assert_eq!(text, "a does not speak AMQP 1.0: it answers \"HTTP/1.1\"");
    }
}
