//! The server's side of an exchange: a response in, a challenge out, and questions to the application that has the
//! users.
//!
//! ```text
//! PLAIN, XOAUTH2          ─▶ Check ─▶ the application's verdict
//! LOGIN   name, password  ─▶ Check ─▶ the application's verdict
//! CRAM-MD5      challenge ─▶ Lookup ─▶ Accepted | Refused
//! SCRAM-SHA-256           ─▶ Lookup ─▶ challenge ─▶ challenge (the server's proof) ─▶ Accepted | Refused
//! ```
use super::scram::{self, ProofResult};
use super::{Mechanism, Nonce, Secret, cram_md5, encode, same};
use std::fmt;

/// Next step of an exchange.
#[derive(Clone, PartialEq, Eq)]
pub enum ExchangeStep {
    /// A challenge to be sent; a response follows.
    Challenge(Vec<u8>),
    /// The application must decide whether [`ClientExchange::name`] and [`ClientExchange::shown`] belong together.
    Check,
    /// The application must give the secret of [`ClientExchange::name`] to [`ClientExchange::know`].
    Lookup,
    /// The login is proved.
    Accepted,
    /// The proof is wrong.
    Refused,
    /// The response does not belong to this mechanism.
    Malformed,
}

impl fmt::Debug for ExchangeStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Challenge(text) => write!(f, "Challenge({:?})", String::from_utf8_lossy(text)),
            Self::Check => f.write_str("Check"),
            Self::Lookup => f.write_str("Lookup"),
            Self::Accepted => f.write_str("Accepted"),
            Self::Refused => f.write_str("Refused"),
            Self::Malformed => f.write_str("Malformed"),
        }
    }
}

/// States of an exchange, by what it waits for.
#[derive(Clone, Debug)]
enum State {
    /// The first message.
    First,
    /// LOGIN's password.
    Password,
    /// The digest of this challenge.
    Digest(String),
    /// The secret, to compare the digest of the challenge with.
    CramLookup {
        challenge: String,
        digest: Vec<u8>,
    },
    ScramLookup(scram::ClientFirstMessage),
    ClientFinal(scram::ServerChallenge),
    /// The empty response to the server's proof.
    Acknowledgement,
    /// The application's verdict, or nothing any more.
    Over,
}

/// One exchange.
#[derive(Clone)]
pub struct ServerExchange {
    mechanism: Mechanism,
    state: State,
    name: String,
    shown: Vec<u8>,
    nonce: String,
    host: String,
}

impl fmt::Debug for ServerExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exchange({}, {:?})", self.mechanism.name(), self.name)
    }
}

impl ServerExchange {
    /// Creates an exchange by that mechanism; those that [need one](Mechanism::needs_server_nonce) use the nonce, and
    /// CRAM-MD5 the server's name.
    pub fn new(mechanism: Mechanism, nonce: &Nonce, host: &str) -> Self {
        let nonce = encode(nonce);
        let host = host.to_owned();
        Self { mechanism, state: State::First, name: String::new(), shown: Vec::new(), nonce, host }
    }

    /// The mechanism.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// The name that the client claims; empty until it has sent one.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The password or token that it shows.
    pub fn shown(&self) -> &[u8] {
        &self.shown
    }

    /// Begins, with the response that came with AUTH, if there was one.
    pub fn begin(&mut self, initial: Option<&[u8]>) -> ExchangeStep {
        match (self.mechanism, initial) {
            // RFC 4954 §4: if the server sends the first message, AUTH has no response.
            (Mechanism::CramMd5, Some(_)) => self.end(ExchangeStep::Malformed),
            (Mechanism::CramMd5, None) => {
                let challenge = cram_md5::challenge(&self.nonce, &self.host);
                self.state = State::Digest(challenge.clone());
                ExchangeStep::Challenge(challenge.into_bytes())
            }
            (Mechanism::Login, None) => ExchangeStep::Challenge(b"Username:".to_vec()),
            (_, None) => ExchangeStep::Challenge(Vec::new()),
            (_, Some(response)) => self.receive(response),
        }
    }

    /// Reports whether the next response is a proof that is compared with the secret given to [`ClientExchange::know`].
    pub fn awaits_proof(&self) -> bool {
        matches!(self.state, State::ClientFinal(_))
    }

    /// Takes a response.
    pub fn receive(&mut self, response: &[u8]) -> ExchangeStep {
        match std::mem::replace(&mut self.state, State::Over) {
            State::First => self.first(response).unwrap_or(ExchangeStep::Malformed),
            State::Password => {
                self.shown = response.to_vec();
                ExchangeStep::Check
            }
            State::Digest(challenge) => self.digest(challenge, response).unwrap_or(ExchangeStep::Malformed),
            State::ClientFinal(challenged) => match challenged.verify(response) {
                ProofResult::Right(proof) => {
                    self.state = State::Acknowledgement;
                    ExchangeStep::Challenge(proof.into_bytes())
                }
                ProofResult::Wrong => ExchangeStep::Refused,
                ProofResult::Malformed => ExchangeStep::Malformed,
            },
            State::Acknowledgement if response.is_empty() => ExchangeStep::Accepted,
            _ => ExchangeStep::Malformed,
        }
    }

    /// Takes the secret of [`ClientExchange::name`]; `None` if the name is unknown.
    pub fn provide_secret(&mut self, secret: Option<&Secret>) -> ExchangeStep {
        match (std::mem::replace(&mut self.state, State::Over), secret) {
            (State::CramLookup { .. }, Some(Secret::Any)) => ExchangeStep::Accepted,
            (State::CramLookup { challenge, digest }, Some(Secret::Password(password))) => {
                let right = cram_md5::digest(password, challenge.as_bytes());
                if same(right.as_bytes(), &digest) { ExchangeStep::Accepted } else { ExchangeStep::Refused }
            }
            (State::ScramLookup(hello), Some(secret)) => match self.keys(secret) {
                Some(keys) => {
                    let (challenge, challenged) = hello.challenge(keys);
                    self.state = State::ClientFinal(challenged);
                    ExchangeStep::Challenge(challenge.into_bytes())
                }
                None => ExchangeStep::Refused,
            },
            _ => ExchangeStep::Refused,
        }
    }

    fn end(&mut self, turn: ExchangeStep) -> ExchangeStep {
        self.state = State::Over;
        turn
    }

    /// Makes the keys of a secret. A password is salted with the nonce: it is not stored, so its salt need not be.
    fn keys(&self, secret: &Secret) -> Option<scram::Keys> {
        match secret {
            Secret::Password(password) => scram::Keys::derive(password, self.nonce.as_bytes(), scram::MIN_ITERATIONS),
            Secret::Keys(keys) => Some(keys.clone()),
            Secret::Any => None,
        }
    }

    fn first(&mut self, response: &[u8]) -> Option<ExchangeStep> {
        match self.mechanism {
            Mechanism::Plain => self.plain(response),
            Mechanism::Xoauth2 => self.xoauth2(response),
            Mechanism::Login => {
                self.name = named(response)?;
                self.state = State::Password;
                Some(ExchangeStep::Challenge(b"Password:".to_vec()))
            }
            Mechanism::ScramSha256 if scram::acts_as_other(response) => Some(ExchangeStep::Refused),
            Mechanism::ScramSha256 => {
                let hello = scram::ClientFirstMessage::parse(response, &self.nonce)?;
                self.name.clone_from(&hello.name);
                self.state = State::ScramLookup(hello);
                Some(ExchangeStep::Lookup)
            }
            Mechanism::CramMd5 => None,
        }
    }

    /// Reads a response of PLAIN (RFC 4616 §2): the user to act as, the user's own name, the password. Acting as
    /// another user is refused like a wrong password.
    fn plain(&mut self, response: &[u8]) -> Option<ExchangeStep> {
        let mut parts = response.split(|octet| *octet == 0);
        let acts_as = parts.next()?;
        let name = parts.next()?;
        let password = parts.next()?;
        if parts.next().is_some() {
            return None;
        }
        self.name = named(name)?;
        if !acts_as.is_empty() && acts_as != name {
            return Some(ExchangeStep::Refused);
        }
        self.shown = password.to_vec();
        Some(ExchangeStep::Check)
    }

    /// Reads `user=NAME^Aauth=Bearer TOKEN^A^A`.
    fn xoauth2(&mut self, response: &[u8]) -> Option<ExchangeStep> {
        let text = response.strip_suffix(b"\x01\x01")?;
        let mut parts = text.split(|octet| *octet == 1);
        let user = parts.next()?.strip_prefix(b"user=")?;
        let bearer = parts.next()?.strip_prefix(b"auth=Bearer ")?;
        if parts.next().is_some() {
            return None;
        }
        self.name = named(user)?;
        self.shown = bearer.to_vec();
        Some(ExchangeStep::Check)
    }

    fn digest(&mut self, challenge: String, response: &[u8]) -> Option<ExchangeStep> {
        let (name, digest) = cram_md5::parse(response)?;
        self.name = name.to_owned();
        self.state = State::CramLookup { challenge, digest: digest.to_ascii_lowercase() };
        Some(ExchangeStep::Lookup)
    }
}

/// Reads a name: text that is not empty.
fn named(name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    (!name.is_empty() && !name.contains('\0')).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::client::{self, ExchangeError};
    use super::super::{Credentials, Mechanisms};
    use super::*;
    use proptest::prelude::*;

    const NONCE: Nonce = *b"eighteen octets ok";

    fn exchange(mechanism: Mechanism) -> ServerExchange {
        ServerExchange::new(mechanism, &NONCE, "test")
    }

    /// Joins both sides until one of them ends. Returns whether the server and the client each consider the login
    /// proved.
    fn joined(mechanism: Mechanism, credentials: &Credentials, secret: Option<&Secret>, early: bool) -> (bool, bool) {
        let mut client = client::ClientExchange::new(mechanism, credentials, Some(&[9; 18])).unwrap();
        let mut server = exchange(mechanism);
        let initial = client.initial().map(<[u8]>::to_vec).filter(|_| early);
        if initial.is_some() {
            client.initial_sent();
        }
        let mut turn = server.begin(initial.as_deref());
        loop {
            turn = match turn {
                ExchangeStep::Challenge(challenge) => match client.respond(&challenge) {
                    Ok(response) => server.receive(&response),
                    Err(_) => return (false, false),
                },
                ExchangeStep::Check => {
                    assert_eq!(server.name(), credentials.name);
                    let is_right = secret.is_some_and(|secret| secret.is(server.shown()));
                    return (is_right, is_right && client.accept().is_ok());
                }
                ExchangeStep::Lookup => {
                    assert_eq!(server.name(), credentials.name);
                    server.provide_secret(secret)
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
            let mut server = exchange(*mechanism);
            assert_eq!(server.begin(Some(response)), ExchangeStep::Malformed, "{mechanism:?} {response:?}");
            assert_eq!(server.receive(response), ExchangeStep::Malformed, "it is over");
            assert_eq!(server.provide_secret(Some(&Secret::Any)), ExchangeStep::Refused, "it is over");
        }
        assert_eq!(exchange(Mechanism::Plain).begin(Some(b"user\0user\0pencil")), ExchangeStep::Check);
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
            let mut server = exchange(*mechanism);
            assert_eq!(server.begin(Some(response)), ExchangeStep::Refused, "{mechanism:?} {response:?}");
            assert_eq!(server.provide_secret(Some(&Secret::Any)), ExchangeStep::Refused, "it is over");
        }
    }

    #[test]
    fn a_server_without_the_secret_does_not_get_past_a_client() {
        let credentials = Credentials::new("user", "pencil");
        let mut client = client::ClientExchange::new(Mechanism::ScramSha256, &credentials, Some(&[9; 18])).unwrap();
        let mut server = exchange(Mechanism::ScramSha256);
        let first = client.respond(b"").unwrap();
        assert_eq!(server.begin(Some(&first)), ExchangeStep::Lookup);
        let ExchangeStep::Challenge(challenge) = server.provide_secret(Some(&Secret::Password("guess".into()))) else {
            panic!("SCRAM")
        };
        let last = client.respond(&challenge).unwrap();
        assert_eq!(server.receive(&last), ExchangeStep::Refused);
        assert_eq!(client.accept(), Err(ExchangeError::ServerUnverified), "a yes all the same is not believed");
    }

    #[test]
    fn every_step_of_scram_has_its_place() {
        let mut server = exchange(Mechanism::ScramSha256);
        assert_eq!(server.begin(None), ExchangeStep::Challenge(Vec::new()));
        assert_eq!(server.receive(b"n,,n=user,r=x"), ExchangeStep::Lookup);
        assert_eq!(server.receive(b"n,,n=user,r=x"), ExchangeStep::Malformed, "the secret is waited for");
    }

    proptest! {
        #[test]
        fn nothing_that_is_said_gets_in_without_the_secret(
            words in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 1..6), which in 0usize..5,
        ) {
            let mut server = exchange(Mechanism::ALL[which]);
            let mut turn = server.begin(None);
            for word in words {
                turn = match turn {
                    ExchangeStep::Challenge(_) => server.receive(&word),
                    ExchangeStep::Lookup => server.provide_secret(Some(&Secret::Password("long and secret".into()))),
                    other => other,
                };
            }
            prop_assert_ne!(turn, ExchangeStep::Accepted);
        }
    }
}
