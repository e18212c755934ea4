//! SASL (RFC 4422): the mechanisms with which clients log in to mail servers and message brokers, as state machines
//! without I/O. The server sends challenges, and the client answers each with a response.
//!
//! `client` and `server` are the two sides of the mechanisms of SMTP's AUTH (RFC 4954). AMQP has a dialogue of its own,
//! so the crate for AMQP uses the messages of `plain` and `scram` directly, with SHA-1 and SHA-512 as well as SHA-256.
//!
//! | mechanism | first word | what crosses the wire | RFC |
//! |---|---|---|---|
//! | SCRAM-SHA-256 | client | proofs of both sides' knowledge, salted and iterated | 5802, 7677 |
//! | CRAM-MD5 | server | a digest of the secret with a challenge | 2195 |
//! | XOAUTH2 | client | a token | Google's |
//! | PLAIN | client | the secret | 4616 |
//! | LOGIN | server | the secret | none; draft-murchison-sasl-login |
//!
//! The crate has no source of randomness: callers pass nonces as arguments.
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
pub mod client;
mod cram_md5;
mod decoy;
pub mod plain;
pub mod scram;
mod secret;
pub mod server;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use std::str::FromStr;

pub use decoy::DecoySecrets;
pub use secret::Secret;

/// Size of a nonce in bytes. Its base64 form has 24 characters, without padding.
pub const NONCE_BYTES: usize = 18;

/// Random bytes that must never be used twice.
pub type Nonce = [u8; NONCE_BYTES];

/// Maximum length in bytes of a line in an AUTH exchange, including `<CRLF>` (RFC 4954 §4).
pub const MAX_EXCHANGE_LINE_BYTES: usize = 12288;

/// Mechanism of AUTH (RFC 4954 §4), with which a client proves its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// Challenge and response in which both sides prove that they know the password (RFC 5802, RFC
    /// 7677).
    ScramSha256,
    /// Digest of a challenge, made with the password (RFC 2195).
    CramMd5,
    /// OAuth 2.0 bearer token, in the form that Google and Microsoft use.
    Xoauth2,
    /// Name and password in a single message (RFC 4616).
    Plain,
    /// Name and password in separate messages, for which there is no RFC.
    Login,
}

impl Mechanism {
    /// All mechanisms, from the strongest to the weakest.
    pub const ALL: [Self; 5] = [Self::ScramSha256, Self::CramMd5, Self::Xoauth2, Self::Plain, Self::Login];

    /// Returns the registered name in capitals, for example `SCRAM-SHA-256`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::CramMd5 => "CRAM-MD5",
            Self::Xoauth2 => "XOAUTH2",
            Self::Plain => "PLAIN",
            Self::Login => "LOGIN",
        }
    }

    const NAMES: &str = "plain, login, cram-md5, scram-sha-256, xoauth2";

    /// Parses the name of a mechanism, in which letter case does not matter.
    pub fn parse(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|mechanism| name.eq_ignore_ascii_case(mechanism.name().as_bytes()))
    }

    /// Returns true if the server needs a nonce for this mechanism, so that it never repeats a challenge.
    pub fn needs_server_nonce(self) -> bool {
        matches!(self, Self::ScramSha256 | Self::CramMd5)
    }
}

impl FromStr for Mechanism {
    type Err = UnknownMechanism;

    fn from_str(name: &str) -> Result<Self, UnknownMechanism> {
        Self::parse(name.as_bytes()).ok_or_else(|| UnknownMechanism(name.to_owned()))
    }
}

/// Error for a text that is not the name of a mechanism in this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not one of {names}", names = Mechanism::NAMES)]
pub struct UnknownMechanism(String);

/// Set of AUTH mechanisms, for example the mechanisms that a server offers in its reply to EHLO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mechanisms(u8);

impl Mechanisms {
    /// The empty set, with which a server offers no AUTH.
    pub const NONE: Self = Self(0);
    /// The set of all mechanisms that this crate knows.
    pub const ALL: Self = Self(0b1_1111);
    /// The mechanisms that take a name and a password: all but XOAUTH2, which takes a token.
    pub const PASSWORD: Self = Self(0b1_1011);

    /// Returns the set with this mechanism added.
    #[must_use]
    pub const fn with(self, mechanism: Mechanism) -> Self {
        Self(self.0 | 1 << mechanism as u8)
    }

    /// Returns the set without this mechanism, for example to try the next strongest one.
    #[must_use]
    pub const fn without(self, mechanism: Mechanism) -> Self {
        Self(self.0 & !(1 << mechanism as u8))
    }

    /// Returns the mechanisms in both sets, for example all that the client allows and the server offers.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns true if the set contains this mechanism, for example if the server has offered it.
    pub const fn has(self, mechanism: Mechanism) -> bool {
        self.0 & (1 << mechanism as u8) != 0
    }

    /// Returns true if the set contains no mechanism, so that AUTH is impossible.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the strongest mechanism of the set, or `None` if the set is empty.
    pub fn strongest(self) -> Option<Mechanism> {
        Mechanism::ALL.into_iter().find(|mechanism| self.has(*mechanism))
    }

    /// Parses names that are separated by spaces, as after AUTH in a reply to EHLO. Unknown names,
    /// such as `GSSAPI`, are skipped.
    pub fn parse(names: &[u8]) -> Self {
        let names = names.split(|octet| *octet == b' ').filter_map(Mechanism::parse);
        names.fold(Self::NONE, Self::with)
    }

    /// Returns the line of a reply to EHLO that offers the mechanisms, such as `AUTH PLAIN LOGIN` (RFC 4954 §3).
    pub fn render(self) -> String {
        let all = Mechanism::ALL.into_iter().filter(|mechanism| self.has(*mechanism));
        all.fold("AUTH".to_owned(), |line, mechanism| line + " " + mechanism.name())
    }
}

/// Name and secret with which a client logs in.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Name of the user that logs in, in the form that the server expects.
    pub name: String,
    /// Password of the user, or a token for XOAUTH2.
    pub secret: String,
    /// Mechanisms that the client may use. It uses the strongest of them that the server offers.
    pub mechanisms: Mechanisms,
}

impl Credentials {
    /// Creates credentials from a name and a password, for all mechanisms that take a password.
    pub fn new(name: &str, password: &str) -> Self {
        Self { name: name.to_owned(), secret: password.to_owned(), mechanisms: Mechanisms::PASSWORD }
    }

    /// Replaces the allowed mechanisms, for example to allow only XOAUTH2 for a token.
    #[must_use]
    pub fn by(self, mechanisms: Mechanisms) -> Self {
        Self { mechanisms, ..self }
    }
}

impl fmt::Debug for Credentials {
    /// Hides the secret, because debug output goes to logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({:?}, …, {:?})", self.name, self.mechanisms)
    }
}

/// Compares two secrets in a time that does not reveal the position of the first difference.
pub fn same(one: &[u8], other: &[u8]) -> bool {
    subtle::ConstantTimeEq::ct_eq(one, other).into()
}

/// Encodes bytes in base64, as AUTH sends them (RFC 4954 §4).
pub fn encode(octets: &[u8]) -> String {
    STANDARD.encode(octets)
}

/// Decodes base64 strictly: padding is required, and spaces and left-over bits are errors.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// Prepares a name or password for comparison, as SCRAM requires (SASLprep, RFC 4013). Returns
/// `None` if it contains forbidden characters, such as a tab.
pub fn prepared(text: &str) -> Option<std::borrow::Cow<'_, str>> {
    stringprep::saslprep(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mechanisms_are_rendered_and_read_back_in_order_of_strength() {
        for bits in 0..32 {
            let line = Mechanisms(bits).render();
            assert_eq!(Mechanisms::parse(line.strip_prefix("AUTH").unwrap().as_bytes()), Mechanisms(bits));
        }
        assert_eq!(Mechanisms::ALL.render(), "AUTH SCRAM-SHA-256 CRAM-MD5 XOAUTH2 PLAIN LOGIN");
        assert_eq!(Mechanisms::parse(b"login GSSAPI plain").strongest(), Some(Mechanism::Plain));
        assert_eq!(Mechanisms::NONE.strongest(), None);
        assert!(!Mechanisms::PASSWORD.has(Mechanism::Xoauth2) && Mechanisms::PASSWORD.has(Mechanism::Login));
        assert_eq!(Mechanisms::ALL.without(Mechanism::Xoauth2), Mechanisms::PASSWORD);
    }

    #[test]
    fn credentials_are_not_printed() {
        assert!(!format!("{:?}", Credentials::new("user", "pencil")).contains("pencil"));
    }

    #[test]
    fn base64_is_read_strictly() {
        assert_eq!(decode(b"AGEAYg==").as_deref(), Some(b"\0a\0b".as_slice()));
        for text in [b"AGEAYg".as_slice(), b"AGEAYg=", b"AGEA Yg==", b"AGEAYh==", b"====", b"*", b"AGE\xff"] {
            assert_eq!(decode(text), None, "{}", String::from_utf8_lossy(text));
        }
    }
}
