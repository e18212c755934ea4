//! The login of the client (SASL, AMQP 1.0 §5.3) by ANONYMOUS, PLAIN, EXTERNAL or SCRAM.
//!
//! ```text
//! ExpectMechanisms ── sasl-init ──▶ ExpectOutcome ─────────────────────────────┐
//!                  └─ client-first ▶ ExpectServerFirst ─ proof ▶ ExpectServerFinal ─▶ authenticated
//! ```
use super::sasl::Password;
use crate::codec::{DecodeError, Elements, Reader, Value};
use crate::frame::{self, Layer};
use mailrun_sasl::scram::{ClientFinal, ClientFirst, ScramHash};
use mailrun_sasl::{plain, prepared};
use thiserror::Error;

/// The login with which a client proves its identity to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientLogin {
    /// The client logs in without an identity, which the server must allow (RFC 4505).
    Anonymous,
    /// The client sends the user name and the password in the clear (RFC 4616).
    Plain {
        /// Name of the user that logs in, as the server knows it.
        user: String,
        /// Password that is sent in the clear, so TLS should protect it.
        password: Password,
    },
    /// The client's TLS certificate proves its identity (RFC 4422 appendix A).
    External,
    /// The client proves that it knows the password (RFC 5802).
    Scram {
        /// Hash function, which also determines the mechanism: for example SCRAM-SHA-256.
        hash: ScramHash,
        /// Name of the user that logs in, as the server knows it.
        user: String,
        /// Password that the client proves it knows, without sending it.
        password: Password,
        /// Random text of printable ASCII without a comma. Each login needs a new nonce (RFC 5802 §5.1).
        nonce: String,
    },
}

impl ClientLogin {
    /// Returns the name of the SASL mechanism, for example `SCRAM-SHA-256`.
    pub fn mechanism(&self) -> &'static str {
        match self {
            Self::Anonymous => "ANONYMOUS",
            Self::Plain { .. } => "PLAIN",
            Self::External => "EXTERNAL",
            Self::Scram { hash, .. } => hash.mechanism(),
        }
    }
}

/// Reason why the server did not authenticate this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LoginError {
    /// The peer offers other SASL mechanisms, but not the one that this login needs.
    #[error("the peer does not offer the mechanism")]
    NotOffered,
    /// The peer does not use SASL, so no login is possible.
    #[error("the peer does not use SASL")]
    NoSasl,
    /// The peer rejects the login, for example because of a wrong password.
    #[error("the peer rejected the login")]
    Rejected,
    /// The peer cannot check the login at the moment (outcome sys-temp), so a later attempt may succeed.
    #[error("the peer cannot check the login now")]
    Unavailable,
    /// The peer does not prove that it knows the password, or its SCRAM challenge is unacceptable.
    #[error("the peer does not prove that it knows the password")]
    Unproven,
    /// The user name, the password or the nonce contains characters that the mechanism forbids.
    #[error("user or password has forbidden characters")]
    Forbidden,
    /// The peer sent a frame that is not a valid SASL frame.
    #[error("{0}")]
    Malformed(#[from] DecodeError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginStep {
    Continue,
    Authenticated,
}

#[allow(clippy::enum_variant_names, reason = "a state is named by what it waits for")]
#[derive(Clone, Debug)]
enum LoginState {
    ExpectMechanisms,
    ExpectOutcome,
    ExpectServerFirst(ClientFirst),
    ExpectServerFinal(ClientFinal),
}

#[derive(Clone, Debug)]
pub(crate) struct SaslClient {
    login: ClientLogin,
    hostname: String,
    state: LoginState,
}

impl SaslClient {
    pub(crate) fn new(login: ClientLogin, hostname: &str) -> Self {
        Self { login, hostname: hostname.to_owned(), state: LoginState::ExpectMechanisms }
    }

    pub(crate) fn read(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<LoginStep, LoginError> {
        let value = Reader::new(body).value()?;
        let mut fields = value.as_list().ok_or(DecodeError::Expected("a SASL frame"))?;
        match (value.descriptor(), &self.state) {
            (Some(0x40), LoginState::ExpectMechanisms) => self.read_mechanisms(&mut fields, out),
            (Some(0x42), _) => self.read_challenge(&mut fields, out),
            (Some(0x44), _) => self.read_outcome(&mut fields),
            _ => Err(DecodeError::Expected("another SASL frame").into()),
        }
    }

    fn read_mechanisms(&mut self, fields: &mut Elements<'_>, out: &mut Vec<u8>) -> Result<LoginStep, LoginError> {
        let expected = DecodeError::Expected("the names of mechanisms");
        let offered = fields.field()?.map_or(Ok(Vec::new()), |value| value.as_symbols().ok_or(expected))?;
        if !offered.contains(&self.login.mechanism()) {
            return Err(LoginError::NotOffered);
        }
        let mut state = LoginState::ExpectOutcome;
        let response = match &self.login {
            // Send an empty response. Without any response, the server would send a challenge first. For EXTERNAL, the
            // empty response stands for the identity in the client's certificate.
            ClientLogin::Anonymous | ClientLogin::External => Vec::new(),
            ClientLogin::Plain { user, password } => {
                plain::message(user, password.reveal()).ok_or(LoginError::Forbidden)?
            }
            ClientLogin::Scram { hash, user, password, nonce } => {
                let first = ClientFirst::new(*hash, user, nonce).filter(|_| prepared(password.reveal()).is_some());
                let first = first.ok_or(LoginError::Forbidden)?;
                let message = first.message().into_bytes();
                state = LoginState::ExpectServerFirst(first);
                message
            }
        };
        let mechanism = self.login.mechanism();
        let hostname = &self.hostname;
        frame::write(out, Layer::Sasl, 0, |out| {
            out.described_list(0x41, |fields| {
                fields.symbol(mechanism);
                fields.binary(&response);
                fields.string(hostname);
            });
        });
        self.state = state;
        Ok(LoginStep::Continue)
    }

    fn read_challenge(&mut self, fields: &mut Elements<'_>, out: &mut Vec<u8>) -> Result<LoginStep, LoginError> {
        let challenge = fields.field()?.and_then(|value| value.as_binary()).unwrap_or_default();
        let response = match (&self.state, &self.login) {
            (LoginState::ExpectServerFirst(first), ClientLogin::Scram { password, .. }) => {
                let (message, proof) = first.prove(password.reveal(), challenge).ok_or(LoginError::Unproven)?;
                self.state = LoginState::ExpectServerFinal(proof);
                message
            }
            // Some servers send server-final in a challenge instead of in the outcome. They expect an empty response
            // before they send the outcome.
            (LoginState::ExpectServerFinal(proof), _) if proof.is_proved_by(challenge) => {
                self.state = LoginState::ExpectOutcome;
                String::new()
            }
            (LoginState::ExpectServerFinal(_), _) => return Err(LoginError::Unproven),
            _ => return Err(DecodeError::Expected("no challenge").into()),
        };
        frame::write(out, Layer::Sasl, 0, |out| {
            out.described_list(0x43, |fields| fields.binary(response.as_bytes()));
        });
        Ok(LoginStep::Continue)
    }

    fn read_outcome(&mut self, fields: &mut Elements<'_>) -> Result<LoginStep, LoginError> {
        let code = fields.number()?.ok_or(DecodeError::Expected("the code of an outcome"))?;
        let server_final = fields.field()?.and_then(|value: Value<'_>| value.as_binary()).unwrap_or_default();
        match (code, &self.state) {
            (_, LoginState::ExpectMechanisms) => {
                Err(DecodeError::Expected("the mechanisms, and not an outcome").into())
            }
            (4, _) => Err(LoginError::Unavailable),
            (1.., _) => Err(LoginError::Rejected),
            (0, LoginState::ExpectOutcome) => Ok(LoginStep::Authenticated),
            (0, LoginState::ExpectServerFinal(proof)) if proof.is_proved_by(server_final) => {
                Ok(LoginStep::Authenticated)
            }
            (0, LoginState::ExpectServerFinal(_) | LoginState::ExpectServerFirst(_)) => Err(LoginError::Unproven),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Writer;

    fn list(descriptor: u8, fields: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut octets = Vec::new();
        Writer::new(&mut octets).described_list(descriptor, fields);
        octets
    }

    fn outcome(code: u8, server_final: &[u8]) -> Vec<u8> {
        list(0x44, |fields| {
            fields.ubyte(code);
            fields.binary(server_final);
        })
    }

    fn plain() -> SaslClient {
        let login = ClientLogin::Plain { user: "u".to_owned(), password: Password::new("p") };
        SaslClient::new(login, "host")
    }

    fn scram() -> SaslClient {
        let login = ClientLogin::Scram {
            hash: ScramHash::Sha256,
            user: "user".to_owned(),
            password: Password::new("pencil"),
            nonce: "rOprNGfwEbeRWgbNEkqO".to_owned(),
        };
        SaslClient::new(login, "host")
    }

    #[test]
    fn a_password_that_scram_forbids_is_named_before_it_is_used() {
        let ClientLogin::Scram { hash, user, nonce, .. } = scram().login else { panic!("SCRAM") };
        let login = ClientLogin::Scram { hash, user, nonce, password: Password::new("pen\tcil") };
        let mut out = Vec::new();
        let read = SaslClient::new(login, "host").read(&offer(&["SCRAM-SHA-256"]), &mut out);
        assert_eq!((read, out), (Err(LoginError::Forbidden), Vec::new()));
    }

    fn offer(names: &[&str]) -> Vec<u8> {
        list(0x40, |fields| fields.symbols(names))
    }

    fn challenge(text: &str) -> Vec<u8> {
        list(0x42, |fields| fields.binary(text.as_bytes()))
    }

    const SERVER_FIRST: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

    #[test]
    fn the_mechanism_is_one_that_is_offered() {
        let mut out = Vec::new();
        for names in [&[][..], &["ANONYMOUS"], &["PLAINER"]] {
            assert_eq!(plain().read(&offer(names), &mut out), Err(LoginError::NotOffered), "{names:?}");
        }
        assert!(out.is_empty(), "nothing is said to a peer that does not offer it");
        let single = list(0x40, |fields| fields.symbol("PLAIN"));
        for octets in [offer(&["EXTERNAL", "PLAIN"]), single] {
            let mut client = plain();
            assert_eq!(client.read(&octets, &mut out), Ok(LoginStep::Continue));
            let init = Reader::new(&out[8..]).value().unwrap();
            let mut fields = init.as_list().unwrap();
            assert_eq!(fields.field().unwrap().and_then(|value| value.as_text()), Some("PLAIN"));
            assert_eq!(fields.field().unwrap().and_then(|value| value.as_binary()), Some(&b"\0u\0p"[..]));
            assert_eq!(fields.field().unwrap().and_then(|value| value.as_string()), Some("host"));
            assert_eq!(client.read(&outcome(0, b""), &mut out), Ok(LoginStep::Authenticated));
            out.clear();
        }
    }

    #[test]
    fn an_outcome_that_is_not_ok_lets_nobody_in() {
        for (code, error) in [(1, LoginError::Rejected), (2, LoginError::Rejected), (4, LoginError::Unavailable)] {
            let mut client = plain();
            client.read(&offer(&["PLAIN"]), &mut Vec::new()).unwrap();
            assert_eq!(client.read(&outcome(code, b""), &mut Vec::new()), Err(error));
        }
        let out_of_turn = plain().read(&outcome(0, b""), &mut Vec::new());
        assert!(matches!(out_of_turn, Err(LoginError::Malformed(_))), "{out_of_turn:?}");
        let mut client = plain();
        client.read(&offer(&["PLAIN"]), &mut Vec::new()).unwrap();
        assert!(client.read(&challenge("more"), &mut Vec::new()).is_err(), "PLAIN has no challenge");
    }

    #[test]
    fn a_server_proves_that_it_knows_the_password() {
        let begun = || {
            let mut client = scram();
            client.read(&offer(&["SCRAM-SHA-256"]), &mut Vec::new()).unwrap();
            client
        };
        let mut out = Vec::new();
        assert_eq!(begun().read(&outcome(0, b""), &mut out), Err(LoginError::Unproven), "without any proof");
        assert_eq!(begun().read(&challenge("r=x,s=AAAA,i=4096"), &mut out), Err(LoginError::Unproven));
        let mut proved = begun();
        proved.read(&challenge(SERVER_FIRST), &mut out).unwrap();
        assert_eq!(proved.clone().read(&outcome(0, b""), &mut out), Err(LoginError::Unproven));
        assert_eq!(proved.clone().read(&challenge("v=AAAA"), &mut out), Err(LoginError::Unproven));
        let at_once = proved.clone().read(&outcome(0, SERVER_FINAL.as_bytes()), &mut out);
        assert_eq!(at_once, Ok(LoginStep::Authenticated));
        assert_eq!(proved.read(&challenge(SERVER_FINAL), &mut out), Ok(LoginStep::Continue));
        assert_eq!(proved.read(&outcome(0, b""), &mut out), Ok(LoginStep::Authenticated));
    }

    #[test]
    fn what_a_mechanism_cannot_carry_is_refused_before_it_is_sent() {
        let login = ClientLogin::Plain { user: "u\0".to_owned(), password: Password::new("p") };
        let mut out = Vec::new();
        let step = SaslClient::new(login, "host").read(&offer(&["PLAIN"]), &mut out);
        assert_eq!((step, out.is_empty()), (Err(LoginError::Forbidden), true));
    }
}
