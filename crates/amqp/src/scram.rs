//! The client's side of SCRAM (RFC 5802, RFC 7677). Both sides prove that they know the password
//! without showing it.
//!
//! ```text
//! client   n,,n=user,r=CLIENT                              client-first
//! server   r=CLIENTSERVER,s=salt,i=4096                    server-first
//! client   c=biws,r=CLIENTSERVER,p=proof                   client-final
//! server   v=signature                                     server-final
//! ```
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};
use std::borrow::Cow;
use subtle::ConstantTimeEq;

/// Minimum number of iterations (RFC 7677 §4). Fewer would make guessing cheap for an eavesdropper.
const MIN_ITERATIONS: u32 = 4096;
/// Maximum number of iterations. Without it, a server could keep the client computing forever.
const MAX_ITERATIONS: u32 = 600_000;

/// Hash function of a SCRAM mechanism, which also gives the mechanism its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScramHash {
    /// SCRAM-SHA-1 (RFC 5802).
    Sha1,
    /// SCRAM-SHA-256 (RFC 7677).
    Sha256,
    /// SCRAM-SHA-512, which works like SCRAM-SHA-256 with another hash function.
    Sha512,
}

impl ScramHash {
    /// Returns the name of the SASL mechanism.
    pub fn mechanism(self) -> &'static str {
        match self {
            Self::Sha1 => "SCRAM-SHA-1",
            Self::Sha256 => "SCRAM-SHA-256",
            Self::Sha512 => "SCRAM-SHA-512",
        }
    }

    fn mac(self, key: &[u8], text: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha1 => mac_of::<Hmac<Sha1>>(key, text),
            Self::Sha256 => mac_of::<Hmac<Sha256>>(key, text),
            Self::Sha512 => mac_of::<Hmac<Sha512>>(key, text),
        }
    }

    fn digest(self, octets: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha1 => Sha1::digest(octets).to_vec(),
            Self::Sha256 => Sha256::digest(octets).to_vec(),
            Self::Sha512 => Sha512::digest(octets).to_vec(),
        }
    }

    /// Computes SaltedPassword (RFC 5802 §3). Returns `None` if the password contains forbidden
    /// characters, the salt is empty, or the number of iterations is out of range.
    fn salted(self, password: &str, salt: &[u8], iterations: u32) -> Option<Vec<u8>> {
        if salt.is_empty() || !(MIN_ITERATIONS..=MAX_ITERATIONS).contains(&iterations) {
            return None;
        }
        let password = prepared(password)?;
        let password = password.as_bytes();
        let mut salted = vec![0; self.digest(b"").len()];
        match self {
            Self::Sha1 => pbkdf2::pbkdf2_hmac::<Sha1>(password, salt, iterations, &mut salted),
            Self::Sha256 => pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, iterations, &mut salted),
            Self::Sha512 => pbkdf2::pbkdf2_hmac::<Sha512>(password, salt, iterations, &mut salted),
        }
        Some(salted)
    }
}

fn mac_of<M: Mac + KeyInit>(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(text);
    mac.finalize().into_bytes().to_vec()
}

/// Prepares a name or a password with SASLprep (RFC 4013). Returns `None` if it contains forbidden
/// characters, such as a tab.
pub(crate) fn prepared(text: &str) -> Option<Cow<'_, str>> {
    stringprep::saslprep(text).ok().filter(|text| !text.contains('\0'))
}

/// Returns the attribute's value if `part` is the attribute `name`.
fn value(part: Option<&str>, name: char) -> Option<&str> {
    part?.strip_prefix(name)?.strip_prefix('=')
}

fn is_nonce(nonce: &str) -> bool {
    !nonce.is_empty() && nonce.bytes().all(|octet| octet.is_ascii_graphic() && octet != b',')
}

/// State of the exchange after the client's first message.
#[derive(Clone, Debug)]
pub(crate) struct ScramFirst {
    hash: ScramHash,
    bare: String,
    nonce_bytes: usize,
}

/// State of the exchange after the client's proof.
#[derive(Clone, Debug)]
pub(crate) struct ScramProof {
    signature: Vec<u8>,
}

impl ScramFirst {
    /// Creates the client's first message. Returns `None` if the name or the nonce is empty or
    /// contains forbidden characters.
    pub(crate) fn new(hash: ScramHash, name: &str, nonce: &str) -> Option<Self> {
        let name = prepared(name).filter(|name| !name.is_empty() && is_nonce(nonce))?;
        let escaped = name.replace('=', "=3D").replace(',', "=2C");
        Some(Self { hash, bare: format!("n={escaped},r={nonce}"), nonce_bytes: nonce.len() })
    }

    /// Returns client-first. It requests neither channel binding nor another identity.
    pub(crate) fn message(&self) -> String {
        format!("n,,{}", self.bare)
    }

    /// Answers server-first with the client's proof. Returns `None` if server-first is not
    /// acceptable.
    pub(crate) fn prove(&self, password: &str, server_first: &[u8]) -> Option<(String, ScramProof)> {
        let server_first = std::str::from_utf8(server_first).ok()?;
        let mut parts = server_first.split(',');
        let nonce = value(parts.next(), 'r')?;
        let ours = &self.bare[self.bare.len() - self.nonce_bytes..];
        let is_theirs_too = nonce.strip_prefix(ours).is_some_and(is_nonce);
        let salt = STANDARD.decode(value(parts.next(), 's')?).ok()?;
        let iterations = value(parts.next(), 'i')?.parse().ok().filter(|_| is_theirs_too)?;
        let salted = self.hash.salted(password, &salt, iterations)?;
        let client_key = self.hash.mac(&salted, b"Client Key");
        let without_proof = format!("c={},r={nonce}", STANDARD.encode(b"n,,"));
        let all = format!("{},{server_first},{without_proof}", self.bare);
        let client_signature = self.hash.mac(&self.hash.digest(&client_key), all.as_bytes());
        let proof: Vec<u8> = client_key.iter().zip(&client_signature).map(|(key, signed)| key ^ signed).collect();
        let signature = self.hash.mac(&self.hash.mac(&salted, b"Server Key"), all.as_bytes());
        Some((format!("{without_proof},p={}", STANDARD.encode(proof)), ScramProof { signature }))
    }
}

impl ScramProof {
    /// Returns true if server-final proves that the server knows the keys of the password.
    pub(crate) fn is_answered_by(&self, server_final: &[u8]) -> bool {
        let signature = server_final.strip_prefix(b"v=").and_then(|text| STANDARD.decode(text).ok());
        signature.is_some_and(|signature| bool::from(signature.ct_eq(&self.signature)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This is the example of RFC 7677 §3.
    const SERVER_FIRST: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";

    #[test]
    fn the_client_says_what_the_rfcs_say() {
        let first = ScramFirst::new(ScramHash::Sha256, "user", "rOprNGfwEbeRWgbNEkqO").unwrap();
        assert_eq!(first.message(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let (message, proof) = first.prove("pencil", SERVER_FIRST.as_bytes()).unwrap();
        assert!(message.ends_with(",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="), "{message}");
        assert!(proof.is_answered_by(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="));
        for lie in ["", "v=", "v=AAAA", "e=other-error", "v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="] {
            assert!(!proof.is_answered_by(lie.as_bytes()), "{lie}");
        }
        // This is the example of RFC 5802 §5.
        let first = ScramFirst::new(ScramHash::Sha1, "user", "fyko+d2lbbFgONRv9qkxdawL").unwrap();
        let server_first = "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096";
        let (message, proof) = first.prove("pencil", server_first.as_bytes()).unwrap();
        assert!(message.ends_with(",p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="), "{message}");
        assert!(proof.is_answered_by(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="));
    }

    #[test]
    fn a_challenge_that_lies_is_not_answered() {
        let rows = [
            SERVER_FIRST.replace("r=rOpr", "r=xOpr"),
            SERVER_FIRST.replace("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", ""),
            SERVER_FIRST.replace("i=4096", "i=4095"),
            SERVER_FIRST.replace("i=4096", "i=4294967295"),
            SERVER_FIRST.replace("i=4096", "i=-1"),
            SERVER_FIRST.replace("s=W22ZaJ0SNY7soEsUEjb6gQ==", "s="),
            SERVER_FIRST.replace("s=W22Z", "s=W2 2Z"),
            format!("m=ext,{SERVER_FIRST}"),
            String::new(),
        ];
        let first = ScramFirst::new(ScramHash::Sha256, "user", "rOprNGfwEbeRWgbNEkqO").unwrap();
        for challenge in rows {
            assert!(first.prove("pencil", challenge.as_bytes()).is_none(), "{challenge}");
        }
        assert!(ScramFirst::new(ScramHash::Sha1, "", "x").is_none());
        assert!(ScramFirst::new(ScramHash::Sha1, "a", "x,y").is_none());
        assert_eq!(ScramFirst::new(ScramHash::Sha1, "a,b=c", "x").unwrap().message(), "n,,n=a=2Cb=3Dc,r=x");
    }
}
