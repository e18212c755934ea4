//! Secrets of a server's users: passwords, or the keys that a server may store instead.
use crate::{same, scram};
use sha2::{Digest, Sha256};
use std::fmt;

/// Secret of a user, against which a server checks the proof of a client.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The password in plain text. The server needs it to check a login with CRAM-MD5.
    Password(String),
    /// Keys of SCRAM-SHA-256, which the server stores instead of the password.
    Keys(scram::Keys),
    /// The server has no secret and accepts any password or digest. SCRAM-SHA-256 still fails, because the server must
    /// also prove that it knows the secret.
    Any,
}

impl Secret {
    /// Returns true if `shown` is this secret. For a password, the comparison takes the same time
    /// whether `shown` is right, wrong, or of another length.
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
