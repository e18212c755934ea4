//! The client's side of an AUTH exchange, which answers each challenge with a response.
use crate::scram::ScramHash;
use crate::{Credentials, Mechanism, Nonce, cram_md5, encode, plain, prepared, scram};
use std::fmt;

/// Reason why a client must cancel an AUTH exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// The mechanism cannot carry the name or the secret: one of them is too long or contains forbidden characters,
    /// such as a tab with SCRAM (RFC 4013 §2.3). This error is also returned if SCRAM-SHA-256 gets no nonce.
    #[error("the user or the password has characters that this mechanism forbids, or is too long for it")]
    Credentials,
    /// The client cannot answer the challenge, because the challenge is malformed or came at the wrong time.
    #[error("the server's challenge does not belong to this mechanism")]
    Challenge,
    /// The server did not prove that it knows the secret, so it may be an impostor.
    #[error("the server does not know the secret")]
    ServerUnverified,
}

/// States of an AUTH exchange. Most states are named after the challenge that the client expects next.
#[derive(Clone)]
enum State {
    /// The client has not sent its first message. The server may request this message with an empty challenge. Holds
    /// the message and, only for SCRAM, the data with which the client answers the next challenge.
    First(Vec<u8>, Option<scram::ClientFirst>),
    /// LOGIN: the server asks for the name, and then for the password.
    Name,
    Password,
    /// CRAM-MD5: the server must send its challenge, the only one of this exchange.
    Challenge,
    ServerFirst(scram::ClientFirst),
    ServerFinal(scram::ClientFinal),
    /// The client has sent everything, and only the server's final reply is missing.
    Verdict,
    /// XOAUTH2: the server sends its final reply, or a challenge with the reason why it refuses the token. The client
    /// must answer such a challenge with an empty response.
    VerdictOrReason,
}

/// Client's side of one AUTH exchange, which answers the server's challenges.
#[derive(Clone)]
pub struct ClientExchange {
    mechanism: Mechanism,
    credentials: Credentials,
    state: State,
}

impl fmt::Debug for ClientExchange {
    /// Hides the state, which may hold a message with the password, because debug output goes to
    /// logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientExchange({}, {:?}, …)", self.mechanism.name(), self.credentials)
    }
}

impl ClientExchange {
    /// Creates an exchange with this mechanism. Only SCRAM-SHA-256 needs a nonce.
    ///
    /// # Errors
    /// Returns [`ExchangeError::Credentials`] if the mechanism cannot carry the credentials or lacks its nonce.
    pub fn new(mechanism: Mechanism, credentials: &Credentials, nonce: Option<&Nonce>) -> Result<Self, ExchangeError> {
        let state =
            begin(mechanism, credentials, nonce.map(|nonce| encode(nonce))).ok_or(ExchangeError::Credentials)?;
        Ok(Self { mechanism, credentials: credentials.clone(), state })
    }

    /// Returns the mechanism of this exchange, for example for a log.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// Returns the first message if the client speaks first and has not sent it yet. A caller that sends it with AUTH
    /// must then call [`Self::initial_sent`].
    pub fn initial(&self) -> Option<&[u8]> {
        match &self.state {
            State::First(response, _) => Some(response),
            _ => None,
        }
    }

    /// Tells the exchange that the AUTH command contained the first message, so no challenge will request the message.
    #[must_use]
    pub fn initial_sent(self) -> Self {
        match self.state {
            State::First(_, scram) => Self { state: after_first(self.mechanism, scram), ..self },
            State::Name
            | State::Password
            | State::Challenge
            | State::ServerFirst(_)
            | State::ServerFinal(_)
            | State::Verdict
            | State::VerdictOrReason => self,
        }
    }

    /// Answers a challenge of the server. Returns the response, and the exchange in its next state.
    ///
    /// # Errors
    /// Returns an [`ExchangeError`] if there is no valid response. The caller must then cancel the
    /// exchange.
    pub fn respond(self, challenge: &[u8]) -> Result<(Vec<u8>, Self), ExchangeError> {
        let Credentials { name, secret, .. } = &self.credentials;
        let (response, state) = match self.state {
            State::First(response, scram) if challenge.is_empty() => (response, after_first(self.mechanism, scram)),
            State::Name => (name.clone().into_bytes(), State::Password),
            State::Password => (secret.clone().into_bytes(), State::Verdict),
            State::Challenge => (cram_md5::response(name, secret, challenge).into_bytes(), State::Verdict),
            State::ServerFirst(first) => {
                let (proof, last) = first.prove(secret, challenge).ok_or(ExchangeError::Challenge)?;
                (proof.into_bytes(), State::ServerFinal(last))
            }
            State::ServerFinal(last) if last.is_proved_by(challenge) => (Vec::new(), State::Verdict),
            State::ServerFinal(_) => return Err(ExchangeError::ServerUnverified),
            State::VerdictOrReason => (Vec::new(), State::Verdict),
            State::First(..) | State::Verdict => return Err(ExchangeError::Challenge),
        };
        Ok((response, Self { state, ..self }))
    }

    /// Checks the server after a positive reply to AUTH, because an impostor could send such a reply as well.
    ///
    /// # Errors
    /// Returns [`ExchangeError::ServerUnverified`] if the server has not proved that it knows the
    /// secret, which SCRAM requires.
    pub fn accept(&self) -> Result<(), ExchangeError> {
        match self.state {
            State::First(_, Some(_)) | State::ServerFirst(_) | State::ServerFinal(_) => {
                Err(ExchangeError::ServerUnverified)
            }
            State::First(_, None)
            | State::Name
            | State::Password
            | State::Challenge
            | State::Verdict
            | State::VerdictOrReason => Ok(()),
        }
    }
}

fn begin(mechanism: Mechanism, credentials: &Credentials, nonce: Option<String>) -> Option<State> {
    let Credentials { name, secret, .. } = credentials;
    let has = |octet: char| name.contains(octet) || secret.contains(octet);
    match mechanism {
        Mechanism::Plain => Some(State::First(plain::message(name, secret)?, None)),
        Mechanism::Login => Some(State::Name),
        Mechanism::CramMd5 => Some(State::Challenge),
        Mechanism::Xoauth2 if has('\u{1}') => None,
        Mechanism::Xoauth2 => {
            Some(State::First(format!("user={name}\u{1}auth=Bearer {secret}\u{1}\u{1}").into_bytes(), None))
        }
        Mechanism::ScramSha256 => {
            // Check already now whether SCRAM permits the password. Before the first message, the caller can still try
            // another mechanism. After the server's challenge, this would be too late.
            prepared(secret)?;
            let first = scram::ClientFirst::new(ScramHash::Sha256, name, &nonce?)?;
            Some(State::First(first.message().into_bytes(), Some(first)))
        }
    }
}

/// Returns the state of a mechanism's exchange after the client has sent its first message. With SCRAM, the client then
/// waits for a challenge. With XOAUTH2, a challenge comes only if the server refuses the token. With PLAIN, the client
/// waits only for the final reply.
fn after_first(mechanism: Mechanism, scram: Option<scram::ClientFirst>) -> State {
    match scram {
        Some(scram) => State::ServerFirst(scram),
        None if mechanism == Mechanism::Xoauth2 => State::VerdictOrReason,
        None => State::Verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: Nonce = [7; 18];

    fn exchange(mechanism: Mechanism, name: &str, secret: &str) -> ClientExchange {
        ClientExchange::new(mechanism, &Credentials::new(name, secret), Some(&NONCE)).unwrap()
    }

    #[test]
    fn the_first_word_goes_with_auth_or_answers_an_empty_challenge() {
        for mechanism in [Mechanism::Plain, Mechanism::Xoauth2, Mechanism::ScramSha256] {
            let begun = exchange(mechanism, "user", "pencil");
            let first = begun.initial().unwrap().to_vec();
            let with = begun.clone().initial_sent();
            let (response, without) = begun.respond(b"").unwrap();
            assert_eq!(response, first);
            assert_eq!((with.initial(), without.initial()), (None, None));
            assert_eq!(with.accept(), without.accept());
            assert_eq!(exchange(mechanism, "user", "pencil").respond(b"x").err(), Some(ExchangeError::Challenge));
        }
        assert_eq!(exchange(Mechanism::Plain, "tim", "tan").initial(), Some(b"\0tim\0tan".as_slice()));
        let xoauth2 =
            exchange(Mechanism::Xoauth2, "someuser@example.com", "ya29.vF9dft4qmTc2Nvb3RlckBhdHRhdmlzdGEuY29tCg");
        let encoded = encode(xoauth2.initial().unwrap());
        assert_eq!(
            encoded,
            "dXNlcj1zb21ldXNlckBleGFtcGxlLmNvbQFhdXRoPUJlYXJlciB5YTI5LnZGOWRmdDRxbVRjMk52YjNSbGNrQmhkSFJoZG1semRHRXVZMjl0Q2cBAQ=="
        );
    }

    #[test]
    fn xoauth2_hears_once_what_was_wrong() {
        let xoauth2 = exchange(Mechanism::Xoauth2, "user", "token").initial_sent();
        let (response, xoauth2) = xoauth2.respond(br#"{"status":"401"}"#).unwrap();
        assert!(response.is_empty());
        assert_eq!(xoauth2.respond(br#"{"status":"401"}"#).err(), Some(ExchangeError::Challenge));
    }

    #[test]
    fn login_says_name_and_password_and_no_more() {
        let login = exchange(Mechanism::Login, "user", "pencil");
        assert_eq!(login.initial(), None);
        let (name, login) = login.respond(b"Username:").unwrap();
        let (password, login) = login.respond(b"Password:").unwrap();
        assert_eq!((name, password), (b"user".to_vec(), b"pencil".to_vec()));
        assert_eq!(login.respond(b"Password:").err(), Some(ExchangeError::Challenge));
    }

    #[test]
    fn cram_md5_answers_one_challenge() {
        let cram = exchange(Mechanism::CramMd5, "tim", "tanstaaftanstaaf");
        let (response, cram) = cram.respond(b"<1896.697170952@postoffice.reston.mci.net>").unwrap();
        assert_eq!(response, b"tim b913a602c7eda7a495b4e6e7334d3890");
        assert_eq!(cram.accept(), Ok(()));
        assert_eq!(cram.respond(b"<again@b>").err(), Some(ExchangeError::Challenge));
    }

    #[test]
    fn a_server_that_proves_nothing_is_not_believed() {
        let scram = exchange(Mechanism::ScramSha256, "user", "pencil");
        assert_eq!(scram.accept(), Err(ExchangeError::ServerUnverified));
        let scram = scram.initial_sent();
        assert_eq!(scram.accept(), Err(ExchangeError::ServerUnverified));
        let challenge = format!("r={}server,s=c2FsdA==,i=4096", encode(&NONCE));
        let (_, scram) = scram.respond(challenge.as_bytes()).unwrap();
        assert_eq!(scram.accept(), Err(ExchangeError::ServerUnverified));
        assert_eq!(scram.respond(b"v=AAAA").err(), Some(ExchangeError::ServerUnverified));
    }

    #[test]
    fn debug_output_hides_the_password() {
        for mechanism in [Mechanism::Plain, Mechanism::Login, Mechanism::CramMd5, Mechanism::Xoauth2] {
            let exchange = exchange(mechanism, "user", "pencil");
            let bytes = format!("{:?}", exchange.initial().unwrap_or(b"user"));
            let said = format!("{exchange:?}");
            assert!(!said.contains("pencil") && !said.contains(&bytes), "{said}");
        }
        let keys = scram::Keys::derive("pencil", b"salt", scram::MIN_ITERATIONS).unwrap();
        assert!(!format!("{keys:?}").contains(&format!("{:?}", keys.stored)));
    }

    #[test]
    fn what_a_mechanism_cannot_carry_is_refused() {
        let new = |mechanism, name, secret, nonce| {
            ClientExchange::new(mechanism, &Credentials::new(name, secret), nonce).err()
        };
        assert_eq!(new(Mechanism::Plain, "a\0b", "c", None), Some(ExchangeError::Credentials));
        assert_eq!(new(Mechanism::Xoauth2, "a", "b\u{1}", None), Some(ExchangeError::Credentials));
        assert_eq!(new(Mechanism::ScramSha256, "a", "b", None), Some(ExchangeError::Credentials));
        assert_eq!(new(Mechanism::ScramSha256, "", "b", Some(&NONCE)), Some(ExchangeError::Credentials));
        assert_eq!(new(Mechanism::Login, "a\0b", "", None), None);
    }
}
