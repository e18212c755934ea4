//! AUTH in a server session (RFC 4954): an exchange, its lines on the wire, and the questions to the application.
//!
//! ```text
//! AUTH ─▶ Answer(Nonce), where the mechanism needs one
//!  │           │
//!  └───────────┴──▶ AuthResponse ◀── 334 ──┐
//!                    │ a line of the client's
//!                    ▼                     │
//!                   AuthQuestion ─▶ Answer(Login) ─▶ AuthEnd, with 235 or a refusal
//! ```
use super::command::CommandState;
use super::question::OpenQuestion;
use super::state::{State, Transition};
use super::{Event, ServerCore};
use crate::login::{Auth, Proof};
use crate::reply::Reply;
use crate::reply_reason::ReplyReason;
use crate::sasl::server::{ExchangeStep, ServerExchange};
use crate::sasl::{self, Mechanism, Nonce, Secret};
use std::time::Duration;

/// Reason that XOAUTH2 sends to a client that it refuses.
const XOAUTH2_REFUSAL: &[u8] = br#"{"status":"401","schemes":"bearer"}"#;

/// AUTH before its exchange: the mechanism, and the response that came with the command.
#[derive(Debug)]
pub(super) struct AuthRequest {
    mechanism: Mechanism,
    initial: Option<Vec<u8>>,
}

impl AuthRequest {
    /// Reads the response: `=` is an empty one.
    pub(super) fn new(mechanism: Mechanism, initial: Option<&[u8]>) -> Result<Self, ReplyReason> {
        let initial = match initial {
            None => None,
            Some(b"=") => Some(Vec::new()),
            Some(text) => {
                let decoded = sasl::decode(text).filter(|decoded| !decoded.is_empty());
                Some(decoded.ok_or(ReplyReason::BadResponse)?)
            }
        };
        Ok(Self { mechanism, initial })
    }

    /// Begins the exchange. Mechanisms without a nonce ignore it.
    pub(super) fn begin(self, nonce: &Nonce, core: &mut ServerCore, out: &mut Vec<u8>) -> State {
        let mut exchange = Box::new(ServerExchange::new(self.mechanism, nonce, &core.settings.name));
        let step = exchange.begin(self.initial.as_deref());
        advance(exchange, step, core, out)
    }

    /// Takes an answer that is no nonce: a refusal, or nothing that helps.
    pub(super) fn answered(self, answer: Option<&Reply>, core: &mut ServerCore, out: &mut Vec<u8>) -> State {
        match answer {
            Some(reply) if !reply.is_positive() => refused(reply, out),
            Some(_) | None => failed(ReplyReason::AuthUnavailable, core, out),
        }
    }
}

/// Begins an exchange, or asks for the nonce that it needs.
pub(super) fn begin<'a>(request: AuthRequest, core: &mut ServerCore, out: &mut Vec<u8>) -> Transition<'a> {
    if request.mechanism.needs_server_nonce() {
        return (State::Answer(OpenQuestion::Nonce(Box::new(request))), Some(Event::Nonce));
    }
    (request.begin(&[0; 18], core, out), Some(Event::Answered))
}

/// A line of the client's that is awaited.
#[derive(Debug)]
pub(super) enum AuthResponse {
    /// The next response.
    Exchange(Box<ServerExchange>),
    /// The empty response of a client of XOAUTH2 that was sent the reason of its refusal; then this reply.
    Acknowledgement(Box<Reply>),
}

impl AuthResponse {
    /// Takes the line, or its fault.
    pub(super) fn step<'a>(
        self,
        line: Result<&[u8], ReplyReason>,
        now: Duration,
        core: &mut ServerCore,
        out: &mut Vec<u8>,
    ) -> Transition<'a> {
        core.last_received = now;
        let next = match self {
            Self::Acknowledgement(reply) => refused(&reply, out),
            Self::Exchange(exchange) => receive(exchange, line, core, out),
        };
        (next, Some(Event::Answered))
    }
}

fn receive(
    mut exchange: Box<ServerExchange>,
    line: Result<&[u8], ReplyReason>,
    core: &mut ServerCore,
    out: &mut Vec<u8>,
) -> State {
    let decoded = match line {
        Err(reason) => Err(reason),
        Ok(b"*") => Err(ReplyReason::AuthCancelled),
        Ok(text) => sasl::decode(text).ok_or(ReplyReason::BadResponse),
    };
    match decoded {
        Err(reason) => failed(reason, core, out),
        Ok(response) if exchange.awaits_proof() => {
            State::AuthQuestion(LoginQuestion::Proof(Box::new(PendingProof { exchange, response })))
        }
        Ok(response) => {
            let step = exchange.receive(&response);
            advance(exchange, step, core, out)
        }
    }
}

/// A question to the application about a client that logs in.
#[derive(Debug)]
pub(super) enum LoginQuestion {
    /// Do name and secret belong together?
    Check(Box<ServerExchange>),
    /// The secret is asked for.
    Lookup(Box<ServerExchange>),
    /// May this proof be checked?
    Proof(Box<PendingProof>),
}

/// A proof that the application has not permitted to check yet.
#[derive(Debug)]
pub(super) struct PendingProof {
    exchange: Box<ServerExchange>,
    response: Vec<u8>,
}

impl PendingProof {
    fn check(self, core: &mut ServerCore, out: &mut Vec<u8>) -> State {
        let Self { mut exchange, response } = self;
        let step = exchange.receive(&response);
        advance(exchange, step, core, out)
    }
}

impl LoginQuestion {
    pub(super) fn event(&self) -> Event<'_> {
        match self {
            Self::Check(exchange) => Event::Auth(auth(exchange, Proof::Shown(exchange.shown()))),
            Self::Lookup(exchange) => Event::Auth(auth(exchange, Proof::Digest)),
            Self::Proof(proof) => Event::Proof(auth(&proof.exchange, Proof::Digest)),
        }
    }

    /// Takes a verdict. Without one nobody is let in.
    pub(super) fn answered(self, answer: Option<&Reply>, core: &mut ServerCore, out: &mut Vec<u8>) -> State {
        match (self, answer) {
            (Self::Check(_), Some(reply)) if reply.is_positive() => granted(reply, core, out),
            (Self::Check(exchange), answer) => {
                check_refused(&exchange, answer.unwrap_or(ReplyReason::NotAuthenticated.reply()), out)
            }
            (Self::Lookup(_), None) => refused(ReplyReason::AuthUnavailable.reply(), out),
            (Self::Proof(proof), None) => proof.check(core, out),
            (Self::Lookup(_) | Self::Proof(_), Some(reply)) if !reply.is_positive() => refused(reply, out),
            (Self::Lookup(_) | Self::Proof(_), Some(_)) => failed(ReplyReason::AuthUnavailable, core, out),
        }
    }
}

fn auth<'a>(exchange: &'a ServerExchange, proof: Proof<'a>) -> Auth<'a> {
    Auth { mechanism: exchange.mechanism(), name: exchange.name(), proof }
}

/// Takes the secret from the application, or `None` if the name is unknown.
pub(super) fn provide_secret(
    mut exchange: Box<ServerExchange>,
    secret: Option<&Secret>,
    core: &mut ServerCore,
    out: &mut Vec<u8>,
) -> State {
    let step = exchange.provide_secret(secret);
    advance(exchange, step, core, out)
}

fn advance(exchange: Box<ServerExchange>, step: ExchangeStep, core: &mut ServerCore, out: &mut Vec<u8>) -> State {
    match step {
        ExchangeStep::Challenge(text) => {
            challenge(&text, out);
            State::AuthResponse(AuthResponse::Exchange(exchange))
        }
        ExchangeStep::Check => State::AuthQuestion(LoginQuestion::Check(exchange)),
        ExchangeStep::Lookup => State::AuthQuestion(LoginQuestion::Lookup(exchange)),
        ExchangeStep::Accepted => granted(ReplyReason::Authenticated.reply(), core, out),
        ExchangeStep::Refused => failed(ReplyReason::NotAuthenticated, core, out),
        ExchangeStep::Malformed => failed(ReplyReason::BadResponse, core, out),
    }
}

fn challenge(text: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"334 ");
    out.extend_from_slice(sasl::encode(text).as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn granted(reply: &Reply, core: &mut ServerCore, out: &mut Vec<u8>) -> State {
    out.extend_from_slice(reply.wire());
    core.is_authenticated = true;
    State::AuthEnd(AuthEnd::Granted)
}

/// Refuses name and secret that were shown.
fn check_refused(exchange: &ServerExchange, reply: &Reply, out: &mut Vec<u8>) -> State {
    if exchange.mechanism() != Mechanism::Xoauth2 {
        return refused(reply, out);
    }
    challenge(XOAUTH2_REFUSAL, out);
    State::AuthResponse(AuthResponse::Acknowledgement(Box::new(reply.clone())))
}

/// Refuses with the application's reply.
fn refused(reply: &Reply, out: &mut Vec<u8>) -> State {
    out.extend_from_slice(reply.wire());
    State::AuthEnd(AuthEnd::RefusedByApplication)
}

/// Refuses with a reply of the session's own.
fn failed(reason: ReplyReason, core: &mut ServerCore, out: &mut Vec<u8>) -> State {
    if !core.bears(reason) {
        return core.give_up_state(ReplyReason::TooManyCommands, out);
    }
    core.say(reason, out);
    State::AuthEnd(AuthEnd::Refused(reason))
}

/// Results of an exchange whose last reply has been sent.
#[derive(Debug)]
pub(super) enum AuthEnd {
    /// The client is logged in.
    Granted,
    /// The session refused, for this reason.
    Refused(ReplyReason),
    /// The application refused.
    RefusedByApplication,
}

impl AuthEnd {
    /// Reports the result. A client that fails too often is given up; a refusal by the application is an error like a
    /// refusal by the session itself, which was counted when it was sent.
    pub(super) fn step<'a>(self, core: &mut ServerCore, out: &mut Vec<u8>) -> Transition<'a> {
        let is_borne = match self {
            Self::Granted => return (State::Command(CommandState::ExpectMail), Some(Event::Authenticated)),
            Self::Refused(reason) => {
                core.failed_logins += u32::from(reason == ReplyReason::NotAuthenticated);
                true
            }
            Self::RefusedByApplication => {
                core.failed_logins += 1;
                core.bears(ReplyReason::NotAuthenticated)
            }
        };
        let next = if !is_borne {
            core.give_up_state(ReplyReason::TooManyCommands, out)
        } else if core.failed_logins >= core.settings.limits.login_failures {
            core.give_up_state(ReplyReason::TooManyLogins, out)
        } else {
            State::Command(CommandState::ExpectMail)
        };
        (next, Some(Event::NotAuthenticated))
    }
}
