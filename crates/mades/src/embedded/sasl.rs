//! SASL of the listener: PLAIN with one user and password, ANONYMOUS, or either (AMQP 1.0 §5.3).
use super::frame::{self, Layer};
use super::octets::{Malformed, Reader};
use crate::url::Secret;

/// A user and its password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The user's name.
    pub user: String,
    /// The password.
    pub password: Secret,
}

/// Mechanisms by which a peer may authenticate itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mechanisms {
    /// Any name and password, ANONYMOUS, or no SASL at all.
    #[default]
    Anybody,
    /// PLAIN with this user and password.
    Plain(Login),
}

/// Verdict on a peer's authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Welcome,
    Refused,
}

impl Mechanisms {
    /// Reports whether SASL may be left out.
    pub(super) fn are_optional(&self) -> bool {
        *self == Self::Anybody
    }

    /// Writes the frame that offers them.
    pub(super) fn write_offer(&self, out: &mut Vec<u8>) {
        let names: &[&str] = match self {
            Self::Anybody => &["PLAIN", "ANONYMOUS"],
            Self::Plain(_) => &["PLAIN"],
        };
        frame::write(out, Layer::Sasl, 0, |out| out.described_list(0x40, |fields| fields.symbols(names)));
    }

    /// Judges a sasl-init.
    pub(super) fn judge(&self, body: &[u8]) -> Result<Verdict, Malformed> {
        let init = Reader::new(body).value()?;
        let expected = Malformed::Expected("a sasl-init");
        let mut fields = init.as_list().filter(|_| init.descriptor() == Some(0x41)).ok_or(expected)?;
        let mechanism = fields.field()?.and_then(|name| name.as_text()).ok_or(expected)?;
        let response = fields.field()?.and_then(|response| response.as_binary()).unwrap_or_default();
        Ok(match (self, mechanism) {
            (Self::Anybody, "PLAIN" | "ANONYMOUS") => Verdict::Welcome,
            (Self::Plain(login), "PLAIN") if login.is_in(response) => Verdict::Welcome,
            _ => Verdict::Refused,
        })
    }
}

impl Login {
    /// Reports whether a response of PLAIN names this login: `[authzid] NUL authcid NUL password` (RFC 4616 §2). It
    /// compares all bytes, wherever the first difference is, so that its duration reveals nothing.
    fn is_in(&self, response: &[u8]) -> bool {
        let mut parts = response.split(|octet| *octet == 0).skip(1);
        let (user, password) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let same_user = same(user, self.user.as_bytes());
        let same_password = same(password, self.password.reveal().as_bytes());
        same_user & same_password & parts.next().is_none()
    }
}

fn same(given: &[u8], right: &[u8]) -> bool {
    let differences = given.iter().zip(right.iter().cycle()).fold(0, |differences, (a, b)| differences | (a ^ b));
    differences == 0 && given.len() == right.len()
}

impl Verdict {
    /// Writes the frame with this outcome.
    pub(super) fn write(self, out: &mut Vec<u8>) {
        let code = match self {
            Self::Welcome => 0,
            Self::Refused => 1,
        };
        frame::write(out, Layer::Sasl, 0, |out| out.described_list(0x44, |fields| fields.ubyte(code)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::octets::Writer;
    use super::*;

    fn judged(mechanisms: &Mechanisms, mechanism: &str, response: &[u8]) -> Verdict {
        let mut octets = Vec::new();
        Writer::new(&mut octets).described_list(0x41, |fields| {
            fields.symbol(mechanism);
            fields.binary(response);
        });
        mechanisms.judge(&octets).unwrap()
    }

    #[test]
    fn nobody_gets_in_without_the_password() {
        let plain = Mechanisms::Plain(Login { user: "endpoint".to_owned(), password: Secret::new("secret") });
        for (mechanism, response, verdict) in [
            ("PLAIN", &b"\0endpoint\0secret"[..], Verdict::Welcome),
            ("PLAIN", b"other\0endpoint\0secret", Verdict::Welcome),
            ("PLAIN", b"\0endpoint\0secre", Verdict::Refused),
            ("PLAIN", b"\0endpoint\0secretsecret", Verdict::Refused),
            ("PLAIN", b"\0endpoint\0secret\0", Verdict::Refused),
            ("PLAIN", b"\0endpoint\0", Verdict::Refused),
            ("PLAIN", b"\0\0secret", Verdict::Refused),
            ("PLAIN", b"", Verdict::Refused),
            ("ANONYMOUS", b"", Verdict::Refused),
            ("EXTERNAL", b"\0endpoint\0secret", Verdict::Refused),
        ] {
            assert_eq!(judged(&plain, mechanism, response), verdict, "{mechanism} {response:?}");
        }
        assert_eq!(judged(&Mechanisms::Anybody, "ANONYMOUS", b""), Verdict::Welcome);
        assert_eq!(judged(&Mechanisms::Anybody, "SCRAM-SHA-1", b""), Verdict::Refused);
    }

    #[test]
    fn a_password_is_not_printed() {
        let login = Login { user: "endpoint".to_owned(), password: Secret::new("secret") };
        assert!(!format!("{:?}", Mechanisms::Plain(login)).contains("secret"));
    }

    #[test]
    fn what_is_no_init_is_refused() {
        for octets in [&b""[..], &[0x40], &[0, 0x53, 0x43, 0x45], &[0, 0x53, 0x41, 0x45]] {
            assert!(Mechanisms::Anybody.judge(octets).is_err(), "{octets:x?}");
        }
    }
}
