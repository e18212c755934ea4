//! PLAIN (RFC 4616): the client sends its name and password in the clear.

/// Parts of the client's message, in the order in which they are sent (RFC 4616 §2).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PlainMessage<'a> {
    /// Authorization identity: the user to act as, or empty for the user that logs in.
    pub acts_as: &'a [u8],
    /// Authentication identity: the user that logs in with the password.
    pub name: &'a [u8],
    /// The user's password in the clear.
    pub password: &'a [u8],
}

/// Returns the message with which a client logs in as `name`, without asking to act as another user. Returns `None` if
/// the name or the password contains NUL, which separates the two in the message.
pub fn message(name: &str, password: &str) -> Option<Vec<u8>> {
    let has_nul = name.contains('\0') || password.contains('\0');
    (!has_nul).then(|| format!("\0{name}\0{password}").into_bytes())
}

impl<'a> PlainMessage<'a> {
    /// Splits a client's message at NUL bytes, or returns `None` if it does not have three parts.
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        let mut parts = message.split(|octet| *octet == 0);
        let (acts_as, name, password) = (parts.next()?, parts.next()?, parts.next()?);
        parts.next().is_none().then_some(Self { acts_as, name, password })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_three_parts() {
        let text = message("user", "pencil").unwrap();
        let read = PlainMessage::parse(&text).unwrap();
        assert!((read.acts_as, read.name, read.password) == (&b""[..], &b"user"[..], &b"pencil"[..]));
        assert!(message("us\0er", "pencil").is_none() && message("user", "pen\0cil").is_none());
        for text in [&b""[..], b"user", b"\0user", b"\0user\0pencil\0"] {
            assert!(PlainMessage::parse(text).is_none(), "{text:?}");
        }
    }
}
