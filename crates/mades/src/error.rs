//! Errors of a connection to a broker. Errors that need different reactions have different variants.
use mailrun_amqp::{ConnectionError, LoginError, PeerError, Scope, SessionRefused, Violation};
use mailrun_tls_verify::Remedies;
use std::io;
use std::time::Duration;

/// Command-line options that error texts recommend when a certificate is rejected.
pub(crate) const REMEDIES: Remedies =
    Remedies { trust: "--cacert FILE", name: "--tls-name NAME", insecure: "--insecure" };

/// Each error text says what the user can do, and none contains a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The caller asked for something impossible, for example SASL EXTERNAL without TLS.
    #[error("{0}")]
    Misuse(String),
    #[error("{host} has no address ({why}); check the name")]
    NoAddress { host: String, why: String },
    #[error("nothing listens at {address}; check that the broker is running and that this is its AMQP port")]
    Refused { address: String },
    #[error("cannot reach {address}: {why}")]
    Unreachable { address: String, why: String },
    #[error("{address}: {what} took longer than {} s; check that an AMQP 1.0 broker is running there", .after.as_secs_f64())]
    TimedOut { address: String, what: &'static str, after: Duration },
    #[error("{address} rejected the login of {who}; check user and password")]
    WrongCredentials { address: String, who: String },
    #[error("{address}: the broker requires a login: use --user")]
    LoginRequired { address: String },
    #[error("{address} does not offer SASL {mechanism}: choose another mechanism")]
    NoSuchMechanism { address: String, mechanism: &'static str },
    #[error("{address} does not use TLS; use amqp://, or the TLS port of the broker ({why})")]
    PlainPeer { address: String, why: String },
    #[error("{address} requires TLS; use amqps://")]
    TlsPeer { address: String },
    #[error("{address}: {why}")]
    Untrusted { address: String, why: String },
    /// The peer demands a certificate from the client, or rejects the certificate that the client sent.
    #[error("{address} rejected the TLS handshake of this client: {why}")]
    NotTrusted { address: String, why: String },
    #[error("{address} does not speak AMQP 1.0: it answers {found}")]
    NotAmqp { address: String, found: String },
    #[error("the queue {queue} does not exist; create it, or check --prefix ({why})")]
    MissingQueue { queue: String, why: String },
    /// The client cannot empty a queue, because new messages arrive as fast as it removes them.
    #[error(
        "{queue} is not empty after {} s, in which {removed} messages were removed: others send to it; stop them, or use \
         another queue", .after.as_secs_f64()
    )]
    NeverEmpty { queue: String, removed: u64, after: Duration },
    #[error("queue {queue} is held exclusively by another consumer: stop that one, or use another queue ({why})")]
    QueueHeld { queue: String, why: String },
    /// Another client attached a link with the same name, so the broker detached this client's link.
    #[error("another client has taken over the link to {queue}; check that this run was not started twice ({why})")]
    LinkStolen { queue: String, why: String },
    #[error("{queue}: permission denied; grant this user access ({why})")]
    NotPermitted { queue: String, why: String },
    #[error("{queue} accepts messages of at most {limit} bytes; this one has {size}")]
    TooLarge { queue: String, size: u64, limit: u64 },
    #[error("{queue} contains a message larger than {limit} bytes, the limit of this client; remove it from the queue")]
    Oversized { queue: String, limit: u64 },
    /// The broker ended the link or its session for a reason that no other variant covers.
    #[error("{queue}: the broker ended the {scope}: {why}")]
    Detached { queue: String, scope: Scope, why: String },
    #[error("the broker closed the connection: {why}")]
    Closed { why: String },
    #[error("connection lost: {why}")]
    Lost { why: String },
    #[error("the peer violates AMQP 1.0: {why}; this ends {ended}")]
    PeerMisbehaved {
        /// The link, the session or the connection that was ended because of the violation.
        ended: String,
        why: String,
    },
}

impl Error {
    /// Returns true if the same error would end a new connection as well, so that reconnecting is pointless. For
    /// example, a broker delivers an oversized message again until somebody removes it from the queue.
    pub fn is_permanent(&self) -> bool {
        matches!(self, Self::Oversized { .. } | Self::Misuse(_))
    }
}

pub(crate) fn describe(error: &PeerError) -> String {
    one_line(&error.to_string())
}

/// Makes a text of a peer safe for a terminal: replaces line breaks and other control characters by spaces, and cuts
/// the text to 300 characters.
pub(crate) fn one_line(text: &str) -> String {
    const SHOWN_CHARACTERS: usize = 300;
    text.chars().take(SHOWN_CHARACTERS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns the error for a link to `queue` that the broker ended. `scope` says whether the broker ended only this link
/// or the link's whole session.
pub(crate) fn of_detach(queue: &str, scope: Scope, error: &PeerError) -> Error {
    let queue = queue.to_owned();
    let why = describe(error);
    match error.condition.as_str() {
        "amqp:not-found" => Error::MissingQueue { queue, why },
        "amqp:resource-locked" => Error::QueueHeld { queue, why },
        "amqp:link:stolen" => Error::LinkStolen { queue, why },
        "amqp:unauthorized-access" => Error::NotPermitted { queue, why },
        // Artemis uses amqp:internal-error or amqp:not-allowed both if another consumer holds the queue and if the
        // queue does not exist. Only the text tells which of the two it is.
        _ if why.contains("exclusive") => Error::QueueHeld { queue, why },
        _ if why.contains("does not exist") => Error::MissingQueue { queue, why },
        _ => Error::Detached { queue, scope, why },
    }
}

/// Returns the error for a link that the broker refuses without a reason. In this case, the broker answers the attach
/// without a node, and then sends a detach without an error (AMQP 1.0 part 2 §2.6.3).
pub(crate) fn of_refusal(queue: &str) -> Error {
    Error::MissingQueue { queue: queue.to_owned(), why: "the broker rejected the link without a reason".to_owned() }
}

/// Returns the error for a link to `queue` that the client ended because the broker violated a rule or a limit. `scope`
/// says whether the client ended only this link or the link's whole session.
pub(crate) fn of_violation(queue: &str, message_limit: u64, scope: Scope, violation: &Violation) -> Error {
    match violation.condition {
        Violation::MESSAGE_SIZE => Error::Oversized { queue: queue.to_owned(), limit: message_limit },
        // The broker is not at fault, because the limit on the bytes of incomplete messages is this client's own.
        Violation::RESOURCE_LIMIT => Error::Misuse(format!("{queue}: {}", violation.description)),
        _ => Error::PeerMisbehaved { ended: format!("the {scope} of {queue}"), why: violation.to_string() },
    }
}

/// Returns the error for a link whose session cannot begin, for example because the broker limits the number of
/// sessions.
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

fn misbehaved(violation: &impl ToString) -> Error {
    Error::PeerMisbehaved { ended: "the connection".to_owned(), why: one_line(&violation.to_string()) }
}

fn broke_protocol(error: &ConnectionError) -> Error {
    misbehaved(&format!("{}: {error}", error.condition()))
}

#[derive(Debug)]
pub(crate) enum ConnectionFailure {
    /// The peer violates the protocol, or refuses the login.
    Protocol(ConnectionError),
    ClosedByPeer(Option<PeerError>),
    Io(io::Error),
    Silent,
}

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

/// The facts about an attempt to connect that an error text needs: the address, the user, the
/// mechanism, and the first bytes of the peer.
pub(crate) struct OpenAttempt<'a> {
    pub(crate) address: &'a str,
    pub(crate) user: &'a str,
    pub(crate) mechanism: &'static str,
    pub(crate) first_bytes: &'a [u8],
}

pub(crate) fn of_open(attempt: &OpenAttempt<'_>, failure: &ConnectionFailure) -> Error {
    let address = attempt.address.to_owned();
    if let Some(other_protocol) = of_first_bytes(&address, attempt.first_bytes) {
        return other_protocol;
    }
    match failure {
        ConnectionFailure::Protocol(ConnectionError::Login(error)) => of_login(attempt, error),
        ConnectionFailure::Protocol(ConnectionError::Header(bytes)) => Error::NotAmqp { address, found: shown(bytes) },
        ConnectionFailure::Protocol(error) => broke_protocol(error),
        ConnectionFailure::ClosedByPeer(Some(error)) if error.condition == "amqp:unauthorized-access" => {
            attempt.rejected()
        }
        ConnectionFailure::Io(error) => of_handshake_io(&address, error),
        ConnectionFailure::ClosedByPeer(_) | ConnectionFailure::Silent => of_connection(failure),
    }
}

impl OpenAttempt<'_> {
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
        // RabbitMQ accepts SASL ANONYMOUS from every client. If the client has no rights, RabbitMQ then asks for SASL
        // again (AMQP 1.0 part 2 §2.2). This counts as a rejected login, too.
        LoginError::Rejected | LoginError::Unproven => attempt.rejected(),
        LoginError::Unavailable => Error::Closed { why: error.to_string() },
        LoginError::Forbidden => Error::Misuse(error.to_string()),
        LoginError::Malformed(error) => misbehaved(&format!("SASL: {error}")),
    }
}

pub(crate) fn of_handshake_io(address: &str, error: &io::Error) -> Error {
    if let Some(complaint) = of_tls(address, error) {
        return complaint;
    }
    match error.kind() {
        io::ErrorKind::InvalidData => misbehaved(error),
        _ => Error::Lost { why: format!("{address} closed the connection during the AMQP handshake ({error})") },
    }
}

/// Returns the error for a failure of rustls, or `None` if the error does not come from rustls.
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

/// Returns the error for a peer whose first bytes show that it does not speak AMQP. Returns `None` if the bytes that
/// have arrived could begin an AMQP header.
pub(crate) fn of_first_bytes(address: &str, greeting: &[u8]) -> Option<Error> {
    let address = address.to_owned();
    match greeting {
        [] => None,
        // A TLS server answers plain text with a TLS alert or a TLS handshake record. These bytes begin such records.
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
