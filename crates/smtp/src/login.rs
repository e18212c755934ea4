//! AUTH in a server session (RFC 4954): an exchange, its lines on the wire, and the questions to the application.
use crate::reply::Reply;
use crate::reply_reason::ReplyReason;
use crate::sasl::server::{ExchangeStep, ServerExchange};
use crate::sasl::{self, Mechanism, Nonce, Secret};
use std::fmt;

/// A question to the application about a client that logs in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Auth<'a> {
    /// The client's mechanism.
    pub mechanism: Mechanism,
    /// Name that the client claims.
    pub name: &'a str,
    /// The client's proof.
    pub proof: Proof<'a>,
}

/// Proofs of a client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Proof<'a> {
    /// The secret itself, password or token: a positive answer, 235 by default, accepts the login.
    Shown(&'a [u8]),
    /// A digest, which the session checks: the application has to give it the secret, with
    /// [`Server::answer_secret`](crate::Server::answer_secret).
    Digest,
}

impl Auth<'_> {
    /// Reports whether the session wants the secret, rather than a verdict.
    pub fn is_lookup(&self) -> bool {
        self.proof == Proof::Digest
    }
}

impl fmt::Debug for Auth<'_> {
    /// Leaves the secret out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Auth({}, {:?})", self.mechanism.name(), self.name)
    }
}

/// States of an exchange, by what it waits for.
#[derive(Debug)]
pub(crate) enum AuthState {
    /// A nonce, at the beginning; holds the response that came with AUTH.
    Nonce(Mechanism, Option<Vec<u8>>),
    /// The next response.
    Response(ServerExchange),
    /// The application's verdict.
    Check(ServerExchange),
    /// The secret from the application.
    Lookup(ServerExchange),
    /// The application's permission to check this proof.
    Proof(ServerExchange, Vec<u8>),
    /// XOAUTH2 was refused, and the client has been sent the reason: its empty response, then this reply.
    Acknowledgement(Reply),
    /// Nothing: it is over. A verdict is still to be sent.
    Over(Result<(), Option<ReplyReason>>),
}

/// Reason that XOAUTH2 sends to a client that it refuses.
const XOAUTH2_REFUSAL: &[u8] = br#"{"status":"401","schemes":"bearer"}"#;

impl AuthState {
    /// Begins an exchange, with the response that came with AUTH: `=` is an empty one.
    pub(crate) fn new(mechanism: Mechanism, initial: Option<&[u8]>) -> Result<Self, ()> {
        let initial = match initial {
            None => None,
            Some(b"=") => Some(Vec::new()),
            Some(text) => Some(sasl::decode(text).filter(|decoded| !decoded.is_empty()).ok_or(())?),
        };
        Ok(Self::Nonce(mechanism, initial))
    }

    /// Reports whether it has a question or a result, before another line is read.
    pub(crate) fn has_event(&self) -> bool {
        matches!(self, Self::Check(_) | Self::Lookup(_) | Self::Proof(..) | Self::Over(_))
    }

    /// Reports whether there is a proof that the application has not permitted to check yet.
    pub(crate) fn holds_proof(&self) -> bool {
        matches!(self, Self::Proof(..))
    }

    /// The result, if it is over.
    pub(crate) fn outcome(&self) -> Option<Result<(), Option<ReplyReason>>> {
        if let Self::Over(outcome) = self { Some(*outcome) } else { None }
    }

    /// The question to the application, if there is one.
    pub(crate) fn question(&self) -> Option<Auth<'_>> {
        let (exchange, proof) = match self {
            Self::Check(exchange) => (exchange, Proof::Shown(exchange.shown())),
            Self::Lookup(exchange) | Self::Proof(exchange, _) => (exchange, Proof::Digest),
            _ => return None,
        };
        Some(Auth { mechanism: exchange.mechanism(), name: exchange.name(), proof })
    }

    pub(crate) fn begin(&mut self, nonce: &Nonce, host: &str, out: &mut Vec<u8>) {
        let Self::Nonce(mechanism, initial) = self else { return };
        let mut exchange = ServerExchange::new(*mechanism, nonce, host);
        let turn = exchange.begin(initial.as_deref());
        self.apply_step(exchange, turn, out);
    }

    /// Takes a line of the client.
    pub(crate) fn response(&mut self, line: Result<&[u8], ReplyReason>, out: &mut Vec<u8>) {
        let decoded = match line {
            Err(verdict) => Err(verdict),
            Ok(b"*") => Err(ReplyReason::AuthCancelled),
            Ok(text) => sasl::decode(text).ok_or(ReplyReason::BadResponse),
        };
        match (std::mem::replace(self, Self::Over(Err(Some(ReplyReason::BadResponse)))), decoded) {
            (Self::Acknowledgement(reply), _) => self.refused(&reply, out),
            (_, Err(verdict)) => *self = Self::Over(Err(Some(verdict))),
            (Self::Response(exchange), Ok(response)) if exchange.awaits_proof() => {
                *self = Self::Proof(exchange, response);
            }
            (Self::Response(mut exchange), Ok(response)) => {
                let turn = exchange.receive(&response);
                self.apply_step(exchange, turn, out);
            }
            _ => {}
        }
    }

    /// Takes the secret from the application, or `None` if the name is unknown.
    pub(crate) fn provide_secret(&mut self, secret: Option<&Secret>, out: &mut Vec<u8>) {
        if let Self::Lookup(exchange) = std::mem::replace(self, Self::Over(Err(Some(ReplyReason::AuthUnavailable)))) {
            let mut exchange = exchange;
            let turn = exchange.provide_secret(secret);
            self.apply_step(exchange, turn, out);
        }
    }

    /// Checks the proof, because the application permits it.
    pub(crate) fn check_proof(&mut self, out: &mut Vec<u8>) {
        match std::mem::replace(self, Self::Over(Err(Some(ReplyReason::AuthUnavailable)))) {
            Self::Proof(mut exchange, response) => {
                let turn = exchange.receive(&response);
                self.apply_step(exchange, turn, out);
            }
            other => *self = other,
        }
    }

    /// Takes the application's verdict.
    pub(crate) fn apply_verdict(&mut self, answer: Option<&Reply>, out: &mut Vec<u8>) {
        let Self::Check(exchange) = self else { return };
        match answer {
            Some(reply) if !reply.is_positive() => {
                if exchange.mechanism() == Mechanism::Xoauth2 && reply.code() != 421 {
                    challenge(XOAUTH2_REFUSAL, out);
                    *self = Self::Acknowledgement(reply.clone());
                } else {
                    self.refused(reply, out);
                }
            }
            yes => self.granted(yes, out),
        }
    }

    /// Takes the application's refusal.
    pub(crate) fn refused(&mut self, reply: &Reply, out: &mut Vec<u8>) {
        out.extend_from_slice(reply.wire());
        *self = Self::Over(Err(None));
    }

    /// Ends the exchange because there is no nonce, or no meaningful answer.
    pub(crate) fn unavailable(&mut self) {
        *self = Self::Over(Err(Some(ReplyReason::AuthUnavailable)));
    }

    fn granted(&mut self, reply: Option<&Reply>, out: &mut Vec<u8>) {
        out.extend_from_slice(reply.unwrap_or(ReplyReason::Authenticated.reply()).wire());
        *self = Self::Over(Ok(()));
    }

    fn apply_step(&mut self, exchange: ServerExchange, turn: ExchangeStep, out: &mut Vec<u8>) {
        *self = match turn {
            ExchangeStep::Challenge(text) => {
                challenge(&text, out);
                Self::Response(exchange)
            }
            ExchangeStep::Check => Self::Check(exchange),
            ExchangeStep::Lookup => Self::Lookup(exchange),
            ExchangeStep::Accepted => return self.granted(None, out),
            ExchangeStep::Refused => Self::Over(Err(Some(ReplyReason::NotAuthenticated))),
            ExchangeStep::Malformed => Self::Over(Err(Some(ReplyReason::BadResponse))),
        };
    }
}

fn challenge(text: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"334 ");
    out.extend_from_slice(sasl::encode(text).as_bytes());
    out.extend_from_slice(b"\r\n");
}
