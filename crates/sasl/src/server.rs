//! The server's side of an AUTH exchange. It answers each response of the client with a challenge or a result.
//! Depending on the mechanism, the application must look up the user's secret or check the secret that the client has
//! sent, because only the application knows the users.
//!
//! ```text
//! PLAIN, XOAUTH2          ─▶ Check ─▶ the application's verdict
//! LOGIN   name, password  ─▶ Check ─▶ the application's verdict
//! CRAM-MD5      challenge ─▶ Lookup ─▶ Accepted | Refused
//! SCRAM-SHA-256           ─▶ Lookup ─▶ challenge ─▶ challenge (the server's proof) ─▶ Accepted | Refused
//! ```
use crate::plain::PlainMessage;
use crate::scram::{self, ProofResult};
use crate::{Mechanism, Nonce, Secret, cram_md5, encode, same};
use std::fmt;

/// What the server must do next. The next step needs the object in this value, so the caller cannot skip a step.
#[derive(Clone, Debug)]
pub enum ExchangeStep {
    /// The server must send this challenge, and pass the client's response to [`AwaitedResponse::receive`].
    Challenge(Vec<u8>, AwaitedResponse),
    /// The server must send this challenge, and pass the client's response to [`AwaitedProof::receive`]. That function
    /// checks the proof in the response against the user's secret.
    ProofChallenge(Vec<u8>, AwaitedProof),
    /// The application must check the name and the secret that the client has sent. This ends the exchange.
    Check(ShownSecret),
    /// The application must look up the secret of the user that [`SecretLookup::name`] returns, and pass the secret to
    /// [`SecretLookup::provide`].
    Lookup(SecretLookup),
    /// The client has proved its identity, so the login succeeds.
    Accepted,
    /// The client's proof is wrong, so the login must be refused.
    Refused,
    /// The client's response does not have the form that this mechanism demands, so the exchange has failed.
    Malformed,
}

/// Server's side of an AUTH exchange that has not begun.
#[derive(Clone, Debug)]
pub struct ServerExchange {
    mechanism: Mechanism,
    nonce: String,
    host: String,
}

impl ServerExchange {
    /// Prepares an AUTH exchange with this mechanism, which [`Self::begin`] then starts. Only mechanisms that [need a
    /// nonce](Mechanism::needs_server_nonce) use `nonce`, and only CRAM-MD5 uses `host`, the server's name.
    pub fn new(mechanism: Mechanism, nonce: &Nonce, host: &str) -> Self {
        Self { mechanism, nonce: encode(nonce), host: host.to_owned() }
    }

    /// Begins the exchange with the response that came with AUTH, if there was one.
    pub fn begin(self, initial: Option<&[u8]>) -> ExchangeStep {
        let first = match self.mechanism {
            Mechanism::Plain => AwaitedResponse(State::Plain),
            Mechanism::Xoauth2 => AwaitedResponse(State::Xoauth2),
            Mechanism::Login => AwaitedResponse(State::LoginName),
            Mechanism::ScramSha256 => AwaitedResponse(State::ClientFirst { nonce: self.nonce }),
            Mechanism::CramMd5 => return begin_cram_md5(&self.nonce, &self.host, initial),
        };
        match initial {
            Some(response) => first.receive(response),
            None => {
                let challenge: &[u8] = if self.mechanism == Mechanism::Login { b"Username:" } else { b"" };
                ExchangeStep::Challenge(challenge.to_vec(), first)
            }
        }
    }
}

/// Begins CRAM-MD5, in which the server speaks first. A response that came with AUTH is therefore an error (RFC 4954
/// §4).
fn begin_cram_md5(nonce: &str, host: &str, initial: Option<&[u8]>) -> ExchangeStep {
    if initial.is_some() {
        return ExchangeStep::Malformed;
    }
    let challenge = cram_md5::challenge(nonce, host);
    ExchangeStep::Challenge(challenge.clone().into_bytes(), AwaitedResponse(State::Digest { challenge }))
}

/// An AUTH exchange in which the server has sent a challenge and waits for the client's response.
#[derive(Clone, Debug)]
pub struct AwaitedResponse(State);

/// States of an exchange, named after the response that the server expects next.
#[derive(Clone, Debug)]
enum State {
    Plain,
    Xoauth2,
    LoginName,
    LoginPassword {
        name: String,
    },
    /// CRAM-MD5: the client must send the digest of this challenge.
    Digest {
        challenge: String,
    },
    /// SCRAM-SHA-256: the client must send its first message, because AUTH came without it.
    ClientFirst {
        nonce: String,
    },
    /// SCRAM-SHA-256: the client must acknowledge the server's proof with an empty response.
    Acknowledgement,
}

impl AwaitedResponse {
    /// Handles a response of the client, which is already decoded from base64.
    pub fn receive(self, response: &[u8]) -> ExchangeStep {
        let step = match self.0 {
            State::Plain => plain(response),
            State::Xoauth2 => xoauth2(response),
            State::LoginName => login_name(response),
            State::LoginPassword { name } => {
                Some(ExchangeStep::Check(ShownSecret { mechanism: Mechanism::Login, name, secret: response.to_vec() }))
            }
            State::Digest { challenge } => digest(challenge, response),
            State::ClientFirst { .. } if scram::acts_as_other(response) => Some(ExchangeStep::Refused),
            State::ClientFirst { nonce } => client_first(nonce, response),
            State::Acknowledgement => response.is_empty().then_some(ExchangeStep::Accepted),
        };
        step.unwrap_or(ExchangeStep::Malformed)
    }
}

/// Parses the message of a client that logs in with PLAIN. A client that asks to act as another user is refused, as
/// after a wrong password.
fn plain(response: &[u8]) -> Option<ExchangeStep> {
    let PlainMessage { acts_as, name: own_name, password } = PlainMessage::parse(response)?;
    let name = named(own_name)?;
    if !acts_as.is_empty() && acts_as != own_name {
        return Some(ExchangeStep::Refused);
    }
    Some(ExchangeStep::Check(ShownSecret { mechanism: Mechanism::Plain, name, secret: password.to_vec() }))
}

/// Parses `user=NAME^Aauth=Bearer TOKEN^A^A`, where `^A` is the byte 1.
fn xoauth2(response: &[u8]) -> Option<ExchangeStep> {
    let text = response.strip_suffix(b"\x01\x01")?;
    let mut parts = text.split(|octet| *octet == 1);
    let name = named(parts.next()?.strip_prefix(b"user=")?);
    let bearer = parts.next()?.strip_prefix(b"auth=Bearer ")?;
    if parts.next().is_some() {
        return None;
    }
    Some(ExchangeStep::Check(ShownSecret { mechanism: Mechanism::Xoauth2, name: name?, secret: bearer.to_vec() }))
}

fn login_name(response: &[u8]) -> Option<ExchangeStep> {
    let name = named(response)?;
    Some(ExchangeStep::Challenge(b"Password:".to_vec(), AwaitedResponse(State::LoginPassword { name })))
}

fn digest(challenge: String, response: &[u8]) -> Option<ExchangeStep> {
    let (name, digest) = cram_md5::parse(response)?;
    let proof = LookupProof::CramMd5 { challenge, digest: digest.to_ascii_lowercase() };
    Some(ExchangeStep::Lookup(SecretLookup { name: name.to_owned(), proof }))
}

fn client_first(nonce: String, response: &[u8]) -> Option<ExchangeStep> {
    let message = scram::ClientFirstMessage::parse(response, &nonce)?;
    let name = message.name.clone();
    Some(ExchangeStep::Lookup(SecretLookup { name, proof: LookupProof::ScramSha256 { message, nonce } }))
}

/// Name and secret that the client has sent. Only the application can decide whether they are right.
#[derive(Clone)]
pub struct ShownSecret {
    mechanism: Mechanism,
    name: String,
    secret: Vec<u8>,
}

impl fmt::Debug for ShownSecret {
    /// Hides the secret, because debug output goes to logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShownSecret({}, {:?}, …)", self.mechanism.name(), self.name)
    }
}

impl ShownSecret {
    /// Returns the mechanism with which the client tries to log in.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// Returns the user name that the client claims. It is not verified yet.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the password or token that the client has sent.
    pub fn secret(&self) -> &[u8] {
        &self.secret
    }
}

/// An exchange that waits until the application passes the user's secret to [`SecretLookup::provide`].
#[derive(Clone)]
pub struct SecretLookup {
    name: String,
    proof: LookupProof,
}

#[derive(Clone)]
enum LookupProof {
    /// CRAM-MD5: the client has sent the digest of the challenge. The server needs the secret to check the digest.
    CramMd5 { challenge: String, digest: Vec<u8> },
    /// SCRAM-SHA-256: the client has sent its first message. The server's challenge must contain the salt of the
    /// secret.
    ScramSha256 { message: scram::ClientFirstMessage, nonce: String },
}

impl fmt::Debug for SecretLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretLookup({}, {:?})", self.mechanism().name(), self.name)
    }
}

impl SecretLookup {
    /// Returns the mechanism with which the client tries to log in.
    pub fn mechanism(&self) -> Mechanism {
        match self.proof {
            LookupProof::CramMd5 { .. } => Mechanism::CramMd5,
            LookupProof::ScramSha256 { .. } => Mechanism::ScramSha256,
        }
    }

    /// Returns the claimed user name, whose secret the application must look up.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Continues the exchange with the user's secret. With `None`, for an unknown user name, the login is refused.
    pub fn provide(self, secret: Option<&Secret>) -> ExchangeStep {
        match (self.proof, secret) {
            (LookupProof::CramMd5 { .. } | LookupProof::ScramSha256 { .. }, None) => ExchangeStep::Refused,
            (LookupProof::CramMd5 { .. }, Some(Secret::Any)) => ExchangeStep::Accepted,
            // A CRAM-MD5 digest can be checked only with the password itself. The server has only the user's SCRAM
            // keys, so refuse the login.
            (LookupProof::CramMd5 { .. }, Some(Secret::Keys(_))) => ExchangeStep::Refused,
            (LookupProof::CramMd5 { challenge, digest }, Some(Secret::Password(password))) => {
                let right = cram_md5::digest(password, challenge.as_bytes());
                if same(right.as_bytes(), &digest) { ExchangeStep::Accepted } else { ExchangeStep::Refused }
            }
            (LookupProof::ScramSha256 { message, nonce }, Some(secret)) => match keys(secret, &nonce) {
                Some(keys) => {
                    let (text, challenge) = message.challenge(keys);
                    let proof = AwaitedProof { name: self.name, challenge: Box::new(challenge) };
                    ExchangeStep::ProofChallenge(text.into_bytes(), proof)
                }
                None => ExchangeStep::Refused,
            },
        }
    }
}

/// Returns the SCRAM keys of a secret. If the secret is a password, derives keys that are used only in this exchange.
/// Their salt can be the exchange's nonce, because no later login needs the same salt.
fn keys(secret: &Secret, nonce: &str) -> Option<scram::Keys> {
    match secret {
        Secret::Password(password) => scram::Keys::derive(password, nonce.as_bytes(), scram::MIN_ITERATIONS),
        Secret::Keys(keys) => Some(keys.clone()),
        Secret::Any => None,
    }
}

/// A SCRAM-SHA-256 exchange that waits for the client's proof. The user's secret has already been looked up.
#[derive(Clone)]
pub struct AwaitedProof {
    name: String,
    challenge: Box<scram::ServerChallenge>,
}

impl fmt::Debug for AwaitedProof {
    /// Hides the keys, because debug output goes to logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AwaitedProof({:?}, …)", self.name)
    }
}

impl AwaitedProof {
    /// Returns SCRAM-SHA-256. In all other mechanisms, the client sends nothing after the look-up of the secret.
    pub fn mechanism(&self) -> Mechanism {
        Mechanism::ScramSha256
    }

    /// Returns the user name that the client claims. It is not verified until the proof is checked.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Checks the client's proof, which is already decoded from base64.
    pub fn receive(self, response: &[u8]) -> ExchangeStep {
        match self.challenge.verify(response) {
            ProofResult::Right(proof) => {
                ExchangeStep::Challenge(proof.into_bytes(), AwaitedResponse(State::Acknowledgement))
            }
            ProofResult::Wrong => ExchangeStep::Refused,
            ProofResult::Malformed => ExchangeStep::Malformed,
        }
    }
}

fn named(name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    (!name.is_empty() && !name.contains('\0')).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{self, ExchangeError};
    use crate::{Credentials, Mechanisms};
    use proptest::prelude::*;

    const NONCE: Nonce = *b"eighteen octets ok";

    fn exchange(mechanism: Mechanism) -> ServerExchange {
        ServerExchange::new(mechanism, &NONCE, "test")
    }

    /// Runs client and server against each other until one of them ends. Returns whether the server accepts the client,
    /// and whether the client accepts the server.
    fn joined(mechanism: Mechanism, credentials: &Credentials, secret: Option<&Secret>, early: bool) -> (bool, bool) {
        let mut client = client::ClientExchange::new(mechanism, credentials, Some(&[9; 18])).unwrap();
        let initial = client.initial().map(<[u8]>::to_vec).filter(|_| early);
        if initial.is_some() {
            client = client.initial_sent();
        }
        let mut step = exchange(mechanism).begin(initial.as_deref());
        loop {
            step = match step {
                ExchangeStep::Challenge(challenge, awaited) => {
                    let Ok((response, next)) = client.respond(&challenge) else { return (false, false) };
                    client = next;
                    awaited.receive(&response)
                }
                ExchangeStep::ProofChallenge(challenge, awaited) => {
                    assert_eq!((awaited.name(), awaited.mechanism()), (&*credentials.name, mechanism));
                    let Ok((response, next)) = client.respond(&challenge) else { return (false, false) };
                    client = next;
                    awaited.receive(&response)
                }
                ExchangeStep::Check(shown) => {
                    assert_eq!((shown.name(), shown.mechanism()), (&*credentials.name, mechanism));
                    let is_right = secret.is_some_and(|secret| secret.is(shown.secret()));
                    return (is_right, is_right && client.accept().is_ok());
                }
                ExchangeStep::Lookup(lookup) => {
                    assert_eq!((lookup.name(), lookup.mechanism()), (&*credentials.name, mechanism));
                    lookup.provide(secret)
                }
                ExchangeStep::Accepted => return (true, client.accept().is_ok()),
                ExchangeStep::Refused | ExchangeStep::Malformed => return (false, false),
            }
        }
    }

    #[test]
    fn the_right_secret_is_believed_by_every_mechanism_and_no_other() {
        let credentials = Credentials::new("j.doe, the =", "pen\u{e9}il").by(Mechanisms::ALL);
        let right = Secret::Password("pen\u{e9}il".into());
        let wrong = Secret::Password("pencil".into());
        let keys = Secret::Keys(scram::Keys::derive("pen\u{e9}il", b"salt", 5000).unwrap());
        for mechanism in Mechanism::ALL {
            for early in [false, true] {
                assert_eq!(joined(mechanism, &credentials, Some(&right), early), (true, true), "{mechanism:?}");
                assert_eq!(joined(mechanism, &credentials, Some(&wrong), early), (false, false), "{mechanism:?}");
                assert_eq!(joined(mechanism, &credentials, None, early), (false, false), "{mechanism:?}");
                let any = mechanism != Mechanism::ScramSha256;
                assert_eq!(joined(mechanism, &credentials, Some(&Secret::Any), early), (any, any), "{mechanism:?}");
                let by_keys = mechanism != Mechanism::CramMd5;
                assert_eq!(joined(mechanism, &credentials, Some(&keys), early), (by_keys, by_keys), "{mechanism:?}");
            }
        }
    }

    #[test]
    fn responses_of_no_mechanism_are_told() {
        let rows: &[(Mechanism, &[u8])] = &[
            (Mechanism::Plain, b""),
            (Mechanism::Plain, b"user\0pencil"),
            (Mechanism::Plain, b"\0user\0pencil\0"),
            (Mechanism::Plain, b"\0\0pencil"),
            (Mechanism::Plain, b"admin\0\xff\0pencil"),
            (Mechanism::Plain, b"\0\xff\0pencil"),
            (Mechanism::Login, b""),
            (Mechanism::Login, b"a\0b"),
            (Mechanism::Xoauth2, b"user=a\x01auth=Bearer b\x01"),
            (Mechanism::Xoauth2, b"user=a\x01auth=Basic b\x01\x01"),
            (Mechanism::Xoauth2, b"user=\x01auth=Bearer b\x01\x01"),
            (Mechanism::Xoauth2, b"user=a\x01auth=Bearer b\x01host=x\x01\x01"),
            (Mechanism::CramMd5, b"user b913a602c7eda7a495b4e6e7334d3890"),
            (Mechanism::ScramSha256, b"n,,n=user"),
        ];
        for (mechanism, response) in rows {
            let step = exchange(*mechanism).begin(Some(response));
            assert!(matches!(step, ExchangeStep::Malformed), "{mechanism:?} {response:?}: {step:?}");
        }
        let step = exchange(Mechanism::Plain).begin(Some(b"user\0user\0pencil"));
        assert!(matches!(step, ExchangeStep::Check(_)), "{step:?}");
    }

    #[test]
    fn to_act_as_somebody_else_is_refused_and_not_called_illegible() {
        let rows: &[(Mechanism, &[u8])] = &[
            (Mechanism::Plain, b"admin\0user\0pencil"),
            (Mechanism::Plain, b"User\0user\0pencil"),
            (Mechanism::ScramSha256, b"n,a=admin,n=user,r=x"),
            (Mechanism::ScramSha256, b"y,a=admin,n=user,r=x"),
        ];
        for (mechanism, response) in rows {
            let step = exchange(*mechanism).begin(Some(response));
            assert!(matches!(step, ExchangeStep::Refused), "{mechanism:?} {response:?}: {step:?}");
        }
    }

    #[test]
    fn a_server_without_the_secret_does_not_get_past_a_client() {
        let credentials = Credentials::new("user", "pencil");
        let client = client::ClientExchange::new(Mechanism::ScramSha256, &credentials, Some(&[9; 18])).unwrap();
        let (first, client) = client.respond(b"").unwrap();
        let ExchangeStep::Lookup(lookup) = exchange(Mechanism::ScramSha256).begin(Some(&first)) else {
            panic!("the secret is asked for")
        };
        let step = lookup.provide(Some(&Secret::Password("guess".into())));
        let ExchangeStep::ProofChallenge(challenge, awaited) = step else { panic!("{step:?}") };
        let (last, client) = client.respond(&challenge).unwrap();
        let step = awaited.receive(&last);
        assert!(matches!(step, ExchangeStep::Refused), "{step:?}");
        assert_eq!(client.accept(), Err(ExchangeError::ServerUnverified), "a yes all the same is not believed");
    }

    #[test]
    fn debug_output_has_no_secret() {
        let step = exchange(Mechanism::Plain).begin(Some(b"\0user\0pencil"));
        assert_eq!(format!("{step:?}"), "Check(ShownSecret(PLAIN, \"user\", …))");
        let ExchangeStep::Lookup(lookup) = exchange(Mechanism::ScramSha256).begin(Some(b"n,,n=user,r=x")) else {
            panic!("the secret is asked for")
        };
        let step = lookup.provide(Some(&Secret::Password("pencil".into())));
        assert!(format!("{step:?}").ends_with("AwaitedProof(\"user\", …))"), "{step:?}");
    }

    proptest! {
        #[test]
        fn nothing_that_is_said_gets_in_without_the_secret(
            words in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 1..6), mechanism: u8,
        ) {
            crate::checks::check(&[vec![mechanism], words.join(&b'\n')].concat());
        }
    }
}
