//! The login at the listener (SASL, AMQP 1.0 §5.3). A listener either accepts only PLAIN with one user name and
//! password, or it accepts every client: any login by PLAIN or ANONYMOUS, and also clients that skip SASL.
use crate::codec::{DecodeError, Reader};
use crate::frame::{self, Layer};
use mailrun_sasl::plain::PlainMessage;
use mailrun_sasl::same;
use std::fmt;

/// The user name and password that a server accepts from its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainCredentials {
    /// Name of the user, exactly as the client must send it.
    pub user: String,
    /// Password that a client must give with this user name.
    pub password: Password,
}

/// The logins that a listener accepts from its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerAuth {
    /// PLAIN with any name and password, ANONYMOUS, or no SASL at all. This is for a listener that
    /// only this host can reach.
    Any,
    /// Only PLAIN, with this user name and password.
    Plain(PlainCredentials),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthOutcome {
    Accepted,
    Refused,
    TimedOut,
}

impl ListenerAuth {
    /// Returns true if the client may skip SASL and begin with the AMQP header at once.
    pub(crate) fn is_optional(&self) -> bool {
        *self == Self::Any
    }

    /// Writes the frame sasl-mechanisms, which offers the accepted mechanisms to the client.
    pub(crate) fn write_offer(&self, out: &mut Vec<u8>) {
        let names: &[&str] = match self {
            Self::Any => &["PLAIN", "ANONYMOUS"],
            Self::Plain(_) => &["PLAIN"],
        };
        frame::write(out, Layer::Sasl, 0, |out| out.described_list(0x40, |fields| fields.symbols(names)));
    }

    /// Checks the login in a client's sasl-init. An error means that the frame is malformed, and not that the login is
    /// wrong.
    pub(crate) fn check_init(&self, body: &[u8]) -> Result<AuthOutcome, DecodeError> {
        let init = Reader::new(body).value()?;
        let expected = DecodeError::Expected("a sasl-init");
        let mut fields = init.as_list().filter(|_| init.descriptor() == Some(0x41)).ok_or(expected)?;
        let mechanism = fields.field()?.and_then(|name| name.as_text()).ok_or(expected)?;
        let response = fields.field()?.and_then(|response| response.as_binary()).unwrap_or_default();
        Ok(match (self, mechanism) {
            (Self::Any, "PLAIN" | "ANONYMOUS") => AuthOutcome::Accepted,
            (Self::Plain(login), "PLAIN") if login.matches(response) => AuthOutcome::Accepted,
            _ => AuthOutcome::Refused,
        })
    }
}

impl PlainCredentials {
    /// Returns true if a response of PLAIN has this user and password. Always compares both, so that the duration does
    /// not reveal which of them is wrong.
    fn matches(&self, response: &[u8]) -> bool {
        PlainMessage::parse(response).is_some_and(|shown| {
            same(shown.name, self.user.as_bytes()) & same(shown.password, self.password.reveal().as_bytes())
        })
    }
}

impl AuthOutcome {
    /// Writes the frame sasl-outcome, which tells the client whether its login was accepted.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        let code = match self {
            Self::Accepted => 0,
            Self::Refused => 1,
            Self::TimedOut => 4, // sys-temp
        };
        frame::write(out, Layer::Sasl, 0, |out| out.described_list(0x44, |fields| fields.ubyte(code)));
    }
}

/// A password that debug output does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// Wraps a password, so that it does not get into logs through `Debug`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the password in the clear, for the code that sends or compares it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Writer;

    fn outcome_of(mechanisms: &ListenerAuth, mechanism: &str, response: &[u8]) -> AuthOutcome {
        let mut octets = Vec::new();
        Writer::new(&mut octets).described_list(0x41, |fields| {
            fields.symbol(mechanism);
            fields.binary(response);
        });
        mechanisms.check_init(&octets).unwrap()
    }

    #[test]
    fn nobody_gets_in_without_the_password() {
        let plain =
            ListenerAuth::Plain(PlainCredentials { user: "endpoint".to_owned(), password: Password::new("secret") });
        for (mechanism, response, verdict) in [
            ("PLAIN", &b"\0endpoint\0secret"[..], AuthOutcome::Accepted),
            ("PLAIN", b"other\0endpoint\0secret", AuthOutcome::Accepted),
            ("PLAIN", b"\0endpoint\0secre", AuthOutcome::Refused),
            ("PLAIN", b"\0endpoint\0secretsecret", AuthOutcome::Refused),
            ("PLAIN", b"\0endpoint\0secret\0", AuthOutcome::Refused),
            ("PLAIN", b"\0endpoint\0", AuthOutcome::Refused),
            ("PLAIN", b"\0\0secret", AuthOutcome::Refused),
            ("PLAIN", b"", AuthOutcome::Refused),
            ("ANONYMOUS", b"", AuthOutcome::Refused),
            ("EXTERNAL", b"\0endpoint\0secret", AuthOutcome::Refused),
        ] {
            assert_eq!(outcome_of(&plain, mechanism, response), verdict, "{mechanism} {response:?}");
        }
        assert_eq!(outcome_of(&ListenerAuth::Any, "ANONYMOUS", b""), AuthOutcome::Accepted);
        assert_eq!(outcome_of(&ListenerAuth::Any, "SCRAM-SHA-1", b""), AuthOutcome::Refused);
    }

    #[test]
    fn a_password_is_not_printed() {
        let credentials = PlainCredentials { user: "endpoint".to_owned(), password: Password::new("secret") };
        assert!(!format!("{:?}", ListenerAuth::Plain(credentials)).contains("secret"));
    }

    #[test]
    fn what_is_no_init_is_refused() {
        for octets in [&b""[..], &[0x40], &[0, 0x53, 0x43, 0x45], &[0, 0x53, 0x41, 0x45]] {
            assert!(ListenerAuth::Any.check_init(octets).is_err(), "{octets:x?}");
        }
    }
}
