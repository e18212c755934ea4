//! Secrets of a server's users.
use super::{same, scram};
use sha2::{Digest, Sha256};
use std::fmt;

/// A user's secret on the server, to check a proof with.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The password.
    Password(String),
    /// The keys that SCRAM-SHA-256 needs in place of the password.
    Keys(scram::Keys),
    /// No secret: any proof is accepted. SCRAM-SHA-256 cannot work with it, because the server also has to
    /// prove that it knows the secret.
    Any,
}

impl Secret {
    /// Reports whether `shown` is this secret, for mechanisms that show it. This takes the same time whether the secret
    /// is right, wrong, or of another length.
    pub fn is(&self, shown: &[u8]) -> bool {
        match self {
            Self::Password(password) => same(&Sha256::digest(password), &Sha256::digest(shown)),
            Self::Keys(keys) => std::str::from_utf8(shown).is_ok_and(|shown| keys.belong_to(shown)),
            Self::Any => true,
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Password(_) => "Password(…)",
            Self::Keys(_) => "Keys(…)",
            Self::Any => "Any",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_compared_and_not_printed() {
        assert!(Secret::Password("pencil".into()).is(b"pencil") && !Secret::Password("pencil".into()).is(b"pencils"));
        assert!(Secret::Any.is(b""));
        let keys = Secret::Keys(scram::Keys::derive("pencil", b"salt", 4096).unwrap());
        assert!(keys.is(b"pencil") && !keys.is(b"pen") && !keys.is(b"\xff"));
        let printed = format!("{:?} {keys:?}", Secret::Password("pencil".into()));
        assert!(!printed.contains("pencil"), "{printed}");
    }
}
