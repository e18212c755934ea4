//! SCRAM-SHA-256 (RFC 5802, RFC 7677). Both sides prove that they know the password without showing
//! it.
//!
//! ```text
//! client   n,,n=user,r=CLIENT                              client-first
//! server   r=CLIENTSERVER,s=salt,i=4096                    server-first
//! client   c=biws,r=CLIENTSERVER,p=proof                   client-final
//! server   v=signature                                     server-final
//! ```
//! Each proof covers all earlier messages, including the nonces of both sides.
use crate::{decode, encode, prepared, same};
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

type Sha256Output = [u8; 32];

/// Minimum iteration count of the password hash (RFC 7677 §4). With fewer iterations, an eavesdropper could guess
/// passwords cheaply.
pub const MIN_ITERATIONS: u32 = 4096;
/// Maximum iteration count of the password hash. Without this limit, a server could keep a client computing forever.
pub const MAX_ITERATIONS: u32 = 600_000;

/// This crate implements the server's side only for SCRAM-SHA-256.
const SERVER_HASH: ScramHash = ScramHash::Sha256;

/// SCRAM keys, which a server stores instead of a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    /// Salt that is hashed together with the password, so that users with the same password have different keys.
    pub salt: Vec<u8>,
    /// Iteration count of PBKDF2, the function that derived the keys from the password. A client of this crate accepts
    /// only numbers from [`MIN_ITERATIONS`] to [`MAX_ITERATIONS`].
    pub iterations: u32,
    /// StoredKey of RFC 5802 §3, with which the server checks the client's proof.
    pub stored: Sha256Output,
    /// ServerKey of RFC 5802 §3, with which the server computes its proof to the client.
    pub server: Sha256Output,
}

impl std::fmt::Debug for Keys {
    /// Hides the keys, because debug output goes to logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys({} iterations, …)", self.iterations)
    }
}

impl Keys {
    /// Derives the keys of a password, or returns `None` if the password contains forbidden characters, the salt is
    /// empty, or the number of iterations is out of range.
    pub fn derive(password: &str, salt: &[u8], iterations: u32) -> Option<Self> {
        let salted = SERVER_HASH.salted(password, salt, iterations)?;
        let stored = SERVER_HASH.digest(&SERVER_HASH.mac(&salted, b"Client Key")).try_into().ok()?;
        let server = SERVER_HASH.mac(&salted, b"Server Key").try_into().ok()?;
        Some(Self { salt: salt.to_vec(), iterations, stored, server })
    }

    /// Returns true if these are the keys of this password. This takes long, because it derives the keys again.
    pub fn belong_to(&self, password: &str) -> bool {
        let keys = Self::derive(password, &self.salt, self.iterations);
        keys.is_some_and(|keys| same(&keys.stored, &self.stored))
    }
}

/// Hash function of a SCRAM mechanism, which also gives the mechanism its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScramHash {
    /// SHA-1, the hash function of SCRAM-SHA-1 (RFC 5802).
    Sha1,
    /// SHA-256, the hash function of SCRAM-SHA-256 (RFC 7677).
    Sha256,
    /// SHA-512, the hash function of SCRAM-SHA-512, which works like SCRAM-SHA-256 otherwise.
    Sha512,
}

impl ScramHash {
    /// Returns the name of the SASL mechanism, for example `SCRAM-SHA-256`.
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

    /// Computes SaltedPassword (RFC 5802 §3), or returns `None` if the password contains forbidden characters, the salt
    /// is empty, or the number of iterations is out of range.
    fn salted(self, password: &str, salt: &[u8], iterations: u32) -> Option<Vec<u8>> {
        if salt.is_empty() || !(MIN_ITERATIONS..=MAX_ITERATIONS).contains(&iterations) {
            return None;
        }
        let password = prepared(password)?;
        let password = password.as_bytes();
        let mut salted = self.digest(b"");
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

fn xor(one: &[u8], other: &[u8]) -> Vec<u8> {
    one.iter().zip(other).map(|(one, other)| one ^ other).collect()
}

/// Escapes commas and equals signs in a name, as the attribute `n=` requires (RFC 5802 §5.1).
fn escaped(name: &str) -> String {
    name.replace('=', "=3D").replace(',', "=2C")
}

fn unescaped(name: &str) -> Option<String> {
    let mut parts = name.split('=');
    let mut text = parts.next()?.to_owned();
    for part in parts {
        let octet = part.get(..2)?;
        let rest = part.get(2..)?;
        text.push(match octet {
            "2C" => ',',
            "3D" => '=',
            _ => return None,
        });
        text.push_str(rest);
    }
    Some(text)
}

/// Returns the value of an attribute such as `i=4096`, or `None` if the attribute has another name than `name`.
fn value(part: Option<&str>, name: char) -> Option<&str> {
    part?.strip_prefix(name)?.strip_prefix('=')
}

fn is_nonce(nonce: &str) -> bool {
    !nonce.is_empty() && nonce.bytes().all(|octet| octet.is_ascii_graphic() && octet != b',')
}

/// A SCRAM client that has made its first message (client-first). It can answer the server's challenge.
#[derive(Clone, Debug)]
pub struct ClientFirst {
    hash: ScramHash,
    bare: String,
    nonce_bytes: usize,
}

/// A SCRAM client that has computed its proof (client-final). It can check the server's proof.
#[derive(Clone, Debug)]
pub struct ClientFinal {
    signature: Vec<u8>,
}

impl ClientFirst {
    /// Creates the client's first message, or returns `None` if the name or the nonce is empty or contains forbidden
    /// characters.
    pub fn new(hash: ScramHash, name: &str, nonce: &str) -> Option<Self> {
        let name = prepared(name).filter(|name| !name.is_empty() && is_nonce(nonce))?;
        Some(Self { hash, bare: format!("n={},r={nonce}", escaped(&name)), nonce_bytes: nonce.len() })
    }

    /// Returns the client's first message. It asks neither for channel binding nor to act as another user.
    pub fn message(&self) -> String {
        format!("n,,{}", self.bare)
    }

    /// Answers the server's challenge (server-first) with the message that contains the client's proof (client-final).
    /// Returns `None` if server-first is invalid, or if its number of iterations is out of range.
    pub fn prove(&self, password: &str, server_first: &[u8]) -> Option<(String, ClientFinal)> {
        let server_first = std::str::from_utf8(server_first).ok()?;
        let mut parts = server_first.split(',');
        let nonce = value(parts.next(), 'r')?;
        let ours = &self.bare[self.bare.len() - self.nonce_bytes..];
        // The server must append a part of its own to the client's nonce (RFC 5802 §5.1).
        let is_theirs_too = nonce.strip_prefix(ours).is_some_and(is_nonce);
        let salt = decode(value(parts.next(), 's')?.as_bytes())?;
        let iterations = value(parts.next(), 'i')?.parse().ok().filter(|_| is_theirs_too)?;
        let hash = self.hash;
        let salted = hash.salted(password, &salt, iterations)?;
        let client_key = hash.mac(&salted, b"Client Key");
        let without_proof = format!("c={},r={nonce}", encode(b"n,,"));
        let all = format!("{},{server_first},{without_proof}", self.bare);
        let proof = xor(&client_key, &hash.mac(&hash.digest(&client_key), all.as_bytes()));
        let signature = hash.mac(&hash.mac(&salted, b"Server Key"), all.as_bytes());
        Some((format!("{without_proof},p={}", encode(&proof)), ClientFinal { signature }))
    }
}

impl ClientFinal {
    /// Returns true if server-final proves that the server knows the keys of the password.
    pub fn is_proved_by(&self, server_final: &[u8]) -> bool {
        let signature = server_final.strip_prefix(b"v=").and_then(decode);
        signature.is_some_and(|signature| same(&signature, &self.signature))
    }
}

/// Returns true if client-first is valid, except that the client asks to act as another user (`a=`, RFC 5802 §5.1).
pub(crate) fn acts_as_other(client_first: &[u8]) -> bool {
    let Some(text) = std::str::from_utf8(client_first).ok() else { return false };
    let mut parts = text.splitn(3, ',');
    let (Some(binding), Some(authorization), Some(bare)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let names_somebody = value(Some(authorization), 'a').and_then(unescaped).is_some();
    let is_legible = |text: &str| ClientFirstMessage::parse(text.as_bytes(), "").is_some();
    names_somebody && !is_legible(text) && is_legible(&format!("{binding},,{bare}"))
}

#[derive(Clone, Debug)]
pub(crate) struct ClientFirstMessage {
    pub(crate) name: String,
    /// Start of the client's first message, for example `n,,`. The client must repeat it in client-final.
    header: String,
    bare: String,
    nonce: String,
}

#[derive(Clone, Debug)]
pub(crate) struct ServerChallenge {
    client_first: ClientFirstMessage,
    server_first: String,
    keys: Keys,
}

impl ClientFirstMessage {
    /// Parses a SCRAM client's first message (client-first). Returns `None` if the message is invalid, or if it
    /// requests channel binding or asks to act as another user, because the server supports neither.
    pub(crate) fn parse(client_first: &[u8], server_nonce: &str) -> Option<Self> {
        let text = std::str::from_utf8(client_first).ok()?;
        let (binding, rest) = text.split_once(',').filter(|(binding, _)| matches!(*binding, "n" | "y"))?;
        let (authorization, bare) = rest.split_once(',')?;
        let mut parts = bare.split(',');
        let name = unescaped(value(parts.next(), 'n')?).filter(|name| !name.is_empty())?;
        let nonce = value(parts.next(), 'r').filter(|nonce| is_nonce(nonce))?;
        let acts_as_self =
            authorization.is_empty() || value(Some(authorization), 'a').and_then(unescaped).as_ref() == Some(&name);
        acts_as_self.then(|| Self {
            header: format!("{binding},{authorization},"),
            bare: bare.to_owned(),
            nonce: format!("{nonce}{server_nonce}"),
            name: prepared(&name).map_or_else(|| name.clone(), std::borrow::Cow::into_owned),
        })
    }

    pub(crate) fn challenge(self, keys: Keys) -> (String, ServerChallenge) {
        let server_first = format!("r={},s={},i={}", self.nonce, encode(&keys.salt), keys.iterations);
        (server_first.clone(), ServerChallenge { client_first: self, server_first, keys })
    }
}

impl ServerChallenge {
    /// Checks the proof in client-final. If the proof is right, the result holds server-final.
    pub(crate) fn verify(&self, client_final: &[u8]) -> ProofResult {
        self.parse(client_final).map_or(ProofResult::Malformed, |(without_proof, proof)| {
            let all = format!("{},{},{without_proof}", self.client_first.bare, self.server_first);
            let client_key = xor(&proof, &SERVER_HASH.mac(&self.keys.stored, all.as_bytes()));
            if !same(&SERVER_HASH.digest(&client_key), &self.keys.stored) {
                return ProofResult::Wrong;
            }
            ProofResult::Right(format!("v={}", encode(&SERVER_HASH.mac(&self.keys.server, all.as_bytes()))))
        })
    }

    /// Splits client-final into the part that the proof covers, and the proof. Returns `None` if client-final is
    /// malformed or belongs to another exchange.
    fn parse<'a>(&self, client_final: &'a [u8]) -> Option<(&'a str, Sha256Output)> {
        let text = std::str::from_utf8(client_final).ok()?;
        let (without_proof, proof) = text.rsplit_once(",p=")?;
        let mut parts = without_proof.split(',');
        let binding = decode(value(parts.next(), 'c')?.as_bytes())?;
        let nonce = value(parts.next(), 'r')?;
        if binding != self.client_first.header.as_bytes() || nonce != self.client_first.nonce {
            return None;
        }
        Some((without_proof, decode(proof.as_bytes())?.try_into().ok()?))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProofResult {
    /// The client's proof is right. The server must answer with this message, server-final, as its own proof.
    Right(String),
    Wrong,
    /// The message is not a valid client-final, so there is no proof to check.
    Malformed,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example exchange of RFC 7677 §3.
    const CLIENT_FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    const SERVER_FIRST: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const CLIENT_FINAL: &str =
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

    fn keys() -> Keys {
        Keys::derive("pencil", &decode(b"W22ZaJ0SNY7soEsUEjb6gQ==").unwrap(), 4096).unwrap()
    }

    fn challenged() -> ServerChallenge {
        let hello = ClientFirstMessage::parse(CLIENT_FIRST.as_bytes(), "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0").unwrap();
        let (server_first, challenged) = hello.challenge(keys());
        assert_eq!(server_first, SERVER_FIRST);
        challenged
    }

    #[test]
    fn the_client_says_what_rfc_7677_says() {
        let first = ClientFirst::new(ScramHash::Sha256, "user", "rOprNGfwEbeRWgbNEkqO").unwrap();
        assert_eq!(first.message(), CLIENT_FIRST);
        let (message, last) = first.prove("pencil", SERVER_FIRST.as_bytes()).unwrap();
        assert_eq!(message, CLIENT_FINAL);
        assert!(last.is_proved_by(SERVER_FINAL.as_bytes()));
        for lie in ["", "v=", "v=AAAA", "e=other-error", &SERVER_FINAL.replace('6', "7")] {
            assert!(!last.is_proved_by(lie.as_bytes()), "{lie}");
        }
    }

    #[test]
    fn the_client_says_what_rfc_5802_says() {
        let first = ClientFirst::new(ScramHash::Sha1, "user", "fyko+d2lbbFgONRv9qkxdawL").unwrap();
        let server_first = "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096";
        let (message, last) = first.prove("pencil", server_first.as_bytes()).unwrap();
        assert!(message.ends_with(",p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="), "{message}");
        assert!(last.is_proved_by(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="));
    }

    #[test]
    fn the_server_says_what_rfc_7677_says() {
        let challenged = challenged();
        assert_eq!(challenged.verify(CLIENT_FINAL.as_bytes()), ProofResult::Right(SERVER_FINAL.to_owned()));
        assert_eq!(challenged.verify(CLIENT_FINAL.replace("dHzb", "dHzc").as_bytes()), ProofResult::Wrong);
        for malformed in [
            "",
            "c=biws",
            &CLIENT_FINAL.replace("biws", "eSws"),
            &CLIENT_FINAL.replace("k0,", "k1,"),
            &CLIENT_FINAL.replace("VQ=", "VQ"),
            &CLIENT_FINAL.replace("p=dHzb", "p="),
        ] {
            assert_eq!(challenged.verify(malformed.as_bytes()), ProofResult::Malformed, "{malformed}");
        }
    }

    #[test]
    fn a_client_answers_no_challenge_that_lies() {
        let rows = [
            SERVER_FIRST.replace("r=rOpr", "r=xOpr"),
            SERVER_FIRST.replace("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", ""),
            SERVER_FIRST.replace("i=4096", "i=4095"),
            SERVER_FIRST.replace("i=4096", "i=4294967295"),
            SERVER_FIRST.replace("i=4096", "i=600001"),
            SERVER_FIRST.replace("i=4096", "i=-1"),
            SERVER_FIRST.replace("s=W22ZaJ0SNY7soEsUEjb6gQ==", "s="),
            SERVER_FIRST.replace("s=W22Z", "s=W2 2Z"),
            format!("m=ext,{SERVER_FIRST}"),
            String::new(),
        ];
        for challenge in rows {
            let first = ClientFirst::new(ScramHash::Sha256, "user", "rOprNGfwEbeRWgbNEkqO").unwrap();
            assert!(first.prove("pencil", challenge.as_bytes()).is_none(), "{challenge}");
        }
    }

    #[test]
    fn a_server_takes_no_first_word_that_wants_what_is_not_offered() {
        for first in [
            "",
            "n,,",
            "p=tls-unique,,n=user,r=x",
            "n,a=admin,n=user,r=x",
            "n,,m=ext,n=user,r=x",
            "n,,n=,r=x",
            "n,,n=us=er,r=x",
            "n,,n=user,r=",
            "n,,n=user,r=a\u{1}",
            "n,,r=x,n=user",
        ] {
            assert!(ClientFirstMessage::parse(first.as_bytes(), "s").is_none(), "{first}");
        }
        assert_eq!(ClientFirstMessage::parse(b"y,a=user,n=user,r=x", "s").unwrap().name, "user");
        assert_eq!(ClientFirstMessage::parse(b"n,,n=a=2Cb=3Dc,r=x", "s").unwrap().name, "a,b=c");
        assert!(ClientFirstMessage::parse(b"n,,n=\xff,r=x", "s").is_none());
    }

    #[test]
    fn a_name_is_escaped_and_read_back() {
        let first = ClientFirst::new(ScramHash::Sha256, "a,b=c", "x").unwrap();
        assert_eq!(first.message(), "n,,n=a=2Cb=3Dc,r=x");
        assert_eq!(ClientFirstMessage::parse(first.message().as_bytes(), "s").unwrap().name, "a,b=c");
        assert!(
            ClientFirst::new(ScramHash::Sha256, "a\u{7}", "x").is_none()
                && ClientFirst::new(ScramHash::Sha256, "", "x").is_none()
        );
        assert!(ClientFirst::new(ScramHash::Sha256, "a", "x,y").is_none());
    }

    #[test]
    fn keys_want_salt_and_iterations() {
        assert!(Keys::derive("pencil", b"", 4096).is_none() && Keys::derive("pencil", b"salt", 1).is_none());
        assert!(keys().belong_to("pencil") && !keys().belong_to("pencil2"));
        // SASLprep (RFC 4013) replaces U+00AA by "a" and removes a soft hyphen, so these passwords
        // have the same keys.
        assert_eq!(Keys::derive("\u{aa}", b"salt", 4096), Keys::derive("a", b"salt", 4096));
        assert_eq!(Keys::derive("I\u{ad}X", b"salt", 4096), Keys::derive("IX", b"salt", 4096));
    }
}
