//! AUTH in a server session (RFC 4954): the exchange, its lines on the wire, and the questions to the
//! application.
//!
//! ```text
//! AUTH ─▶ Answer(Nonce), where the mechanism needs one
//!  │           │
//!  └───────────┴──▶ AuthResponse ◀── 334 ──┐
//!                    │ a line of the client's
//!                    ▼                     │
//!                   AuthQuestion ─▶ Answer(Login) ─▶ AuthEnd, with 235 or a refusal
//! ```
use super::core::ServerCore;
use super::event::Event;
use super::state::{
    AuthEnd, AuthRequest, AuthResponse, CommandState, LoginQuestion, OpenQuestion, PendingProof, State, Transition,
};
use crate::login::{Auth, Proof};
use crate::reply::Reply;
use crate::reply_reason::ReplyReason;
use crate::sasl::server::{ExchangeStep, SecretLookup, ServerExchange, ShownSecret};
use crate::sasl::{self, Mechanism, Nonce, Secret};
use std::time::Duration;

/// JSON text of the 334 challenge that tells an XOAUTH2 client that its login is refused.
const XOAUTH2_REFUSAL: &[u8] = br#"{"status":"401","schemes":"bearer"}"#;

impl AuthRequest {
    /// Decodes the initial response. `=` stands for an empty response (RFC 4954 §4).
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

    /// Starts the exchange of challenges and responses. Mechanisms that need no nonce ignore `nonce`.
    pub(super) fn begin(self, nonce: &Nonce, core: &mut ServerCore, out: &mut Vec<u8>) -> State {
        let exchange = ServerExchange::new(self.mechanism, nonce, &core.settings.name);
        advance(exchange.begin(self.initial.as_deref()), core, out)
    }

    /// Refuses the login because the application answered [`Event::Nonce`] without a nonce. If the application refused,
    /// the client gets this refusal. Otherwise the client gets 454, because the login cannot go on without a nonce, and
    /// this is not the client's fault.
    pub(super) fn answered(self, answer: Option<&Reply>, core: &mut ServerCore, out: &mut Vec<u8>) -> State {
        match answer {
            Some(reply) if !reply.is_positive() => refused(reply, out),
            Some(_) | None => failed(ReplyReason::AuthUnavailable, core, out),
        }
    }
}

/// Starts the exchange, or first asks the application for a nonce if the mechanism needs one.
pub(super) fn begin<'a>(request: AuthRequest, core: &mut ServerCore, out: &mut Vec<u8>) -> Transition<'a> {
    if request.mechanism.needs_server_nonce() {
        return (State::Answer(OpenQuestion::Nonce(Box::new(request))), Some(Event::Nonce));
    }
    (request.begin(&[0; 18], core, out), Some(Event::Answered))
}

impl AuthResponse {
    pub(super) fn step<'a>(
        self,
        line: Result<&[u8], ReplyReason>,
        now: Duration,
        core: &mut ServerCore,
        out: &mut Vec<u8>,
    ) -> Transition<'a> {
        core.last_received = now;
        let next = match (self, decode(line)) {
            (Self::Acknowledgement(reply), _) => refused(&reply, out),
            (Self::Exchange(_) | Self::Proof(_), Err(reason)) => failed(reason, core, out),
            (Self::Exchange(exchange), Ok(response)) => advance(exchange.receive(&response), core, out),
            (Self::Proof(exchange), Ok(response)) => {
                State::AuthQuestion(LoginQuestion::Proof(Box::new(PendingProof { exchange, response })))
            }
        };
        (next, Some(Event::Answered))
    }
}

/// Decodes the client's line from base64. A line that is just `*` cancels the exchange (RFC 4954
/// §4).
fn decode(line: Result<&[u8], ReplyReason>) -> Result<Vec<u8>, ReplyReason> {
    match line? {
        b"*" => Err(ReplyReason::AuthCancelled),
        text => sasl::decode(text).ok_or(ReplyReason::BadResponse),
    }
}

impl PendingProof {
    fn check(self, core: &mut ServerCore, out: &mut Vec<u8>) -> State {
        advance(self.exchange.receive(&self.response), core, out)
    }
}

impl LoginQuestion {
    pub(super) fn event(&self) -> Event<'_> {
        match self {
            Self::Check(shown) => {
                let proof = Proof::Shown(shown.secret());
                Event::Auth(Auth { mechanism: shown.mechanism(), name: shown.name(), proof })
            }
            Self::Lookup(lookup) => {
                Event::Auth(Auth { mechanism: lookup.mechanism(), name: lookup.name(), proof: Proof::Digest })
            }
            Self::Proof(pending) => {
                let exchange = &pending.exchange;
                Event::Proof(Auth { mechanism: exchange.mechanism(), name: exchange.name(), proof: Proof::Digest })
            }
        }
    }

    /// Accepts, continues or refuses the login after the application's answer. `None` means yes, with the usual reply.
    /// If the session has asked for the user's secret, even a yes refuses the login, because the secret is missing.
    pub(super) fn answered(self, answer: Option<&Reply>, core: &mut ServerCore, out: &mut Vec<u8>) -> State {
        match (self, answer) {
            (Self::Check(shown), Some(reply)) if !reply.is_positive() => check_refused(&shown, reply, out),
            (Self::Check(_), answer) => granted(answer.unwrap_or(ReplyReason::Authenticated.reply()), core, out),
            (Self::Lookup(_), None) => refused(ReplyReason::AuthUnavailable.reply(), out),
            (Self::Proof(proof), None) => proof.check(core, out),
            (Self::Lookup(_) | Self::Proof(_), Some(reply)) if !reply.is_positive() => refused(reply, out),
            (Self::Lookup(_) | Self::Proof(_), Some(_)) => failed(ReplyReason::AuthUnavailable, core, out),
        }
    }
}

/// Continues the exchange with the secret from the application. `None` means that the user name is
/// unknown.
pub(super) fn provide_secret(
    lookup: SecretLookup,
    secret: Option<&Secret>,
    core: &mut ServerCore,
    out: &mut Vec<u8>,
) -> State {
    advance(lookup.provide(secret), core, out)
}

fn advance(step: ExchangeStep, core: &mut ServerCore, out: &mut Vec<u8>) -> State {
    match step {
        ExchangeStep::Challenge(text, awaited) => {
            challenge(&text, out);
            State::AuthResponse(AuthResponse::Exchange(Box::new(awaited)))
        }
        ExchangeStep::ProofChallenge(text, awaited) => {
            challenge(&text, out);
            State::AuthResponse(AuthResponse::Proof(Box::new(awaited)))
        }
        ExchangeStep::Check(shown) => State::AuthQuestion(LoginQuestion::Check(Box::new(shown))),
        ExchangeStep::Lookup(lookup) => State::AuthQuestion(LoginQuestion::Lookup(Box::new(lookup))),
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

/// Refuses a login whose secret the application has rejected. In XOAUTH2, the session first sends an error, and sends
/// the refusal only after the client has acknowledged the error with an empty response.
fn check_refused(secret: &ShownSecret, reply: &Reply, out: &mut Vec<u8>) -> State {
    if secret.mechanism() != Mechanism::Xoauth2 {
        return refused(reply, out);
    }
    challenge(XOAUTH2_REFUSAL, out);
    State::AuthResponse(AuthResponse::Acknowledgement(Box::new(reply.clone())))
}

/// Refuses the login with the application's reply. Only a 5xx reply counts as a failed login.
fn refused(reply: &Reply, out: &mut Vec<u8>) -> State {
    out.extend_from_slice(reply.wire());
    State::AuthEnd(AuthEnd::RefusedByApplication { has_failed: (500..600).contains(&reply.code()) })
}

/// Refuses the login with one of the session's own replies, or ends the session after too many errors.
fn failed(reason: ReplyReason, core: &mut ServerCore, out: &mut Vec<u8>) -> State {
    if !core.bears(reason) {
        return core.give_up_state(ReplyReason::TooManyCommands, out);
    }
    core.say(reason, out);
    State::AuthEnd(AuthEnd::Refused(reason))
}

impl AuthEnd {
    /// Reports the result of AUTH to the application. Ends the session if the client has made too many errors or has
    /// failed to log in too often. Counts only a refusal by the application as an error, because the session has
    /// already counted its own refusals.
    pub(super) fn step<'a>(self, core: &mut ServerCore, out: &mut Vec<u8>) -> Transition<'a> {
        let is_borne = match self {
            Self::Granted => return (State::Command(CommandState::ExpectMail), Some(Event::Authenticated)),
            Self::Refused(reason) => {
                core.failed_logins += u32::from(reason == ReplyReason::NotAuthenticated);
                true
            }
            // Do not count temporary replies such as 454 as failed logins, because they say nothing
            // about the secret.
            Self::RefusedByApplication { has_failed } => {
                core.failed_logins += u32::from(has_failed);
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
