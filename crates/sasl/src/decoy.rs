//! Invented secrets for unknown users, so that failed logins do not reveal which users exist.
use crate::scram::{Keys, MIN_ITERATIONS};
use crate::{Nonce, encode};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Makes the salts of all users, and invented passwords for names without a user. A name always gets the same salt and
/// password. Without the key, nobody can tell invented values from real ones, so attempts to log in do not show which
/// users exist.
#[derive(Clone)]
pub struct DecoySecrets {
    key: Nonce,
}

impl std::fmt::Debug for DecoySecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DecoySecrets(…)")
    }
}

impl DecoySecrets {
    /// Creates a generator with this key, which must be secret. The key must not change while the server stores SCRAM
    /// keys whose salts come from this generator. A new key changes the salts of unknown names, but real users keep
    /// their stored salts, so an attacker could tell which users exist.
    pub fn new(key: Nonce) -> Self {
        Self { key }
    }

    /// Returns the salt of a user's keys, whether or not the user exists.
    pub fn salt(&self, name: &str) -> Nonce {
        let mac = self.mac("salt", name);
        std::array::from_fn(|at| mac[at])
    }

    /// Returns an invented password for this name, which nobody can compute without the key.
    pub fn password(&self, name: &str) -> String {
        encode(&self.mac("password", name)[..18])
    }

    /// Returns SCRAM keys for a name without a user. Deriving them takes as long as deriving real keys, so the time
    /// does not show whether the user exists.
    pub fn keys(&self, name: &str) -> Keys {
        let keys = Keys::derive(&self.password(name), &self.salt(name), MIN_ITERATIONS);
        keys.expect("base64 may be a password, and there are enough iterations")
    }

    fn mac(&self, kind: &str, name: &str) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes a key of any length");
        mac.update(kind.as_bytes());
        mac.update(b"\0");
        mac.update(name.as_bytes());
        mac.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_up_stays_the_same_and_differs_by_name_and_key() {
        let [ours, theirs] = [b"eighteen octets ok", b"eighteen octets no"].map(|key| DecoySecrets::new(*key));
        assert_eq!(ours.salt("eve"), ours.salt("eve"));
        assert_eq!(ours.keys("eve"), ours.keys("eve"));
        assert_eq!(ours.password("eve").len(), 24);
        assert!(ours.salt("eve") != ours.salt("ann") && ours.salt("eve") != theirs.salt("eve"));
        assert!(ours.password("eve") != ours.password("ann") && ours.keys("eve") != ours.keys("ann"));
        let keys = ours.keys("eve");
        assert!(keys.belong_to(&ours.password("eve")) && keys.iterations == MIN_ITERATIONS);
        assert!(!format!("{ours:?}").contains("eighteen"));
    }
}
