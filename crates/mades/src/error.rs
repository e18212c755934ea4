//! Errors between us and a broker: one variant for each that calls for a different reaction.
use mailrun_amqp::{ConnectionError, LoginError, PeerError, Scope, SessionRefused, Violation};
use mailrun_trust::Remedies;
use std::io;
use std::time::Duration;

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
    /// The broker lets nobody in without a login, and we have none.
    #[error("{address}: the broker requires a login: use --user")]
    LoginRequired {
        /// Address of the broker.
        address: String,
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
    #[error("{queue} contains a message larger than {limit} bytes, the limit of this client; remove it from the queue")]
    Oversized {
        /// The queue.
        queue: String,
        /// Limit of bytes.
        limit: u64,
    },
    /// The broker has ended the link for another reason.
    #[error("{queue}: the broker ended the {scope}: {why}")]
    Detached {
        /// The queue.
        queue: String,
        /// Says whether it has ended the link, or the session of the link.
        scope: Scope,
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
    #[error("the peer violates AMQP 1.0: {why}; this ends {ended}")]
    PeerMisbehaved {
        /// The link, the session or the connection that has ended for it.
        ended: String,
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
            | Self::LoginRequired { .. }
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
pub(crate) fn describe(error: &PeerError) -> String {
    one_line(&error.to_string())
}

/// Makes a peer's text fit for a terminal: one line, no control characters, of bounded length.
pub(crate) fn one_line(text: &str) -> String {
    const SHOWN_CHARACTERS: usize = 300;
    text.chars().take(SHOWN_CHARACTERS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The error for a link to `queue` that the broker has ended, by itself or with its session.
pub(crate) fn of_detach(queue: &str, scope: Scope, error: &PeerError) -> Error {
    let queue = queue.to_owned();
    let why = describe(error);
    match error.condition.as_str() {
        "amqp:not-found" => Error::MissingQueue { queue, why },
        "amqp:resource-locked" => Error::QueueHeld { queue, why },
        "amqp:link:stolen" => Error::LinkStolen { queue, why },
        "amqp:unauthorized-access" => Error::NotPermitted { queue, why },
        // Artemis reports amqp:internal-error or amqp:not-allowed, and the rest in its text.
        _ if why.contains("exclusive") => Error::QueueHeld { queue, why },
        _ if why.contains("does not exist") => Error::MissingQueue { queue, why },
        _ => Error::Detached { queue, scope, why },
    }
}

/// The error for a link that the broker does not attach. It answers without a node and gives the reason in its detach
/// (AMQP 1.0 part 2 §2.6.3), or gives none, as here.
pub(crate) fn of_refusal(queue: &str) -> Error {
    Error::MissingQueue { queue: queue.to_owned(), why: "the broker rejected the link without a reason".to_owned() }
}

/// The error for a link to `queue` that we have ended, by itself or with its session.
pub(crate) fn of_violation(queue: &str, message_limit: u64, scope: Scope, violation: &Violation) -> Error {
    match violation.condition {
        Violation::MESSAGE_SIZE => Error::Oversized { queue: queue.to_owned(), limit: message_limit },
        // The limit is ours: the broker has not broken a rule.
        Violation::RESOURCE_LIMIT => Error::Misuse(format!("{queue}: {}", violation.description)),
        _ => Error::PeerMisbehaved { ended: format!("the {scope} of {queue}"), why: violation.to_string() },
    }
}

/// The error for a link for which no session can be begun.
pub(crate) fn of_session(refused: SessionRefused) -> Error {
    match refused {
        SessionRefused::NotOpen => Error::Lost { why: "it is closing".to_owned() },
        SessionRefused::PeerLimit(limit) => {
            Error::Misuse(format!("the broker allows no more than {limit} queues on one connection"))
        }
        SessionRefused::OwnLimit(limit) => {
            Error::Misuse(format!("this client supports no more than {limit} queues on one connection"))
        }
    }
}

fn misbehaved(why: &impl ToString) -> Error {
    Error::PeerMisbehaved { ended: "the connection".to_owned(), why: one_line(&why.to_string()) }
}

fn broke_protocol(error: &ConnectionError) -> Error {
    misbehaved(&format!("{}: {error}", error.condition()))
}

/// Reason why a connection is over, as the side that reads and writes it sees it.
#[derive(Debug)]
pub(crate) enum ConnectionFailure {
    /// The peer breaks the protocol, or does not let us in.
    Protocol(ConnectionError),
    /// The peer has closed it.
    ClosedByPeer(Option<PeerError>),
    /// The stream has ended or failed.
    Io(io::Error),
    /// Nothing was heard for too long.
    Silent,
}

/// The error for the end of a connection that was open.
pub(crate) fn of_connection(failure: &ConnectionFailure) -> Error {
    match failure {
        ConnectionFailure::Protocol(error) => broke_protocol(error),
        ConnectionFailure::ClosedByPeer(Some(error)) => Error::Closed { why: describe(error) },
        ConnectionFailure::ClosedByPeer(None) => Error::Closed { why: "no reason was given".to_owned() },
        ConnectionFailure::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Error::Lost { why: "the peer closed the connection".to_owned() }
        }
        ConnectionFailure::Io(error) => Error::Lost { why: error.to_string() },
        ConnectionFailure::Silent => Error::Lost { why: "the peer was silent for too long".to_owned() },
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
pub(crate) fn of_open(attempt: &OpenAttempt<'_>, failure: &ConnectionFailure) -> Error {
    let address = attempt.address.to_owned();
    if let Some(other_protocol) = of_first_bytes(&address, attempt.first_bytes) {
        return other_protocol;
    }
    match failure {
        ConnectionFailure::Protocol(ConnectionError::Login(error)) => of_login(attempt, error),
        ConnectionFailure::Protocol(ConnectionError::Header(found)) => Error::NotAmqp { address, found: shown(found) },
        ConnectionFailure::Protocol(error) => broke_protocol(error),
        ConnectionFailure::ClosedByPeer(Some(error)) if error.condition == "amqp:unauthorized-access" => {
            attempt.rejected()
        }
        ConnectionFailure::Io(error) => of_handshake_io(&address, error),
        ConnectionFailure::ClosedByPeer(_) | ConnectionFailure::Silent => of_connection(failure),
    }
}

impl OpenAttempt<'_> {
    /// The error for a broker that does not accept our login.
    fn rejected(&self) -> Error {
        let address = self.address.to_owned();
        match self.mechanism {
            "ANONYMOUS" => Error::LoginRequired { address },
            _ => Error::WrongCredentials { address, who: self.user.to_owned() },
        }
    }
}

fn of_login(attempt: &OpenAttempt<'_>, error: &LoginError) -> Error {
    let address = attempt.address.to_owned();
    match error {
        LoginError::NotOffered if attempt.mechanism == "ANONYMOUS" => attempt.rejected(),
        LoginError::NotOffered | LoginError::NoSasl => Error::NoSuchMechanism { address, mechanism: attempt.mechanism },
        // RabbitMQ accepts SASL ANONYMOUS from every client, and asks those without rights for SASL again after it
        // (part 2 §2.2): that is a rejection too.
        LoginError::Rejected | LoginError::Unproven => attempt.rejected(),
        LoginError::Unavailable => Error::Closed { why: error.to_string() },
        LoginError::Forbidden => Error::Misuse(error.to_string()),
        LoginError::Malformed(error) => misbehaved(&format!("SASL: {error}")),
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
        _ => misbehaved(&format!("TLS: {why}")),
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

    #[test]
    fn a_brokers_condition_becomes_the_variant_that_one_acts_upon() {
        let end = |condition: &str, text: &str| {
            let error = PeerError { condition: condition.to_owned(), description: text.to_owned(), redirect: None };
            of_detach("q", Scope::Link, &error)
        };
        assert!(matches!(end("amqp:not-found", "x"), Error::MissingQueue { .. }));
        assert!(matches!(end("amqp:resource-locked", "x"), Error::QueueHeld { .. }));
        assert!(matches!(end("amqp:not-allowed", "is exclusive"), Error::QueueHeld { .. }));
        assert!(matches!(end("amqp:link:stolen", "x"), Error::LinkStolen { .. }));
        assert!(matches!(end("amqp:unauthorized-access", "x"), Error::NotPermitted { .. }));
        let other = end("amqp:internal-error", "a\nb\u{1b}[0m");
        assert_eq!(other.to_string(), "q: the broker ended the link: amqp:internal-error: a b [0m");
        assert_eq!(other.retry(), Retry::Later);
        assert!(matches!(of_refusal("q"), Error::MissingQueue { .. }));
    }

    #[test]
    fn a_peer_that_asks_for_sasl_again_has_not_let_us_in() {
        let attempt =
            OpenAttempt { address: "a", user: "an anonymous client", mechanism: "ANONYMOUS", first_bytes: b"AMQP" };
        let text = |error| of_open(&attempt, &ConnectionFailure::Protocol(error)).to_string();
        for error in [LoginError::Rejected, LoginError::NotOffered] {
            assert_eq!(text(error.into()), "a: the broker requires a login: use --user");
        }
        assert_eq!(text(LoginError::NoSasl.into()), "a does not offer SASL ANONYMOUS: choose another mechanism");
        assert!(text(ConnectionError::Header(*b"AMQP\x02\x01\0\0")).contains("does not speak AMQP 1.0"));
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
