//! Steps of a client session before its first transaction: greeting, EHLO, TLS, XCLIENT and AUTH.
use super::core::ClientCore;
use super::event::GaveUp;
use super::options::{Notifications, Options, StartTls};
use super::state::{ClientState, HelloForm, SendState, SessionSetup, SetUpState};
use crate::domain::Domain;
use crate::extensions::Extensions;
use crate::limits::MAX_COMMAND_LINE_BYTES;
use crate::reply::ReceivedReply;
use crate::sasl::client::{ClientExchange, ExchangeError};
use crate::sasl::{self, Credentials, Nonce};
use crate::settings::Protocol;
use std::collections::VecDeque;
use std::sync::Arc;

/// Answers the greeting with EHLO or LHLO. If the greeting refuses service, sends QUIT, because the peer waits for it
/// (RFC 5321 §3.1). After 421, sends nothing, because the peer closes the connection itself (§3.8).
pub(super) fn greeted(
    setup: Option<Box<SessionSetup>>,
    reply: &ReceivedReply<'_>,
    core: &mut ClientCore,
    out: &mut Vec<u8>,
) -> ClientState {
    match reply.code() {
        200..300 if is_own_name(setup.as_deref(), reply, core) => give_up(GaveUp::OwnName, core, out),
        200..300 => hello(setup, core, out),
        421 => ClientState::Closed(None),
        _ => quit(out),
    }
}

/// If the options ask for this check, returns true if the greeting or the reply to EHLO begins with the client's own
/// name. The peer is then probably this host, so mail could loop.
fn is_own_name(setup: Option<&SessionSetup>, reply: &ReceivedReply<'_>, core: &ClientCore) -> bool {
    let name =
        |line: &'_ [u8]| line.split(|byte| *byte == b' ').next().map(Domain::new) == Some(Domain::new(&*core.name));
    setup.is_some_and(|setup| setup.options.refuses_own_name) && reply.lines().next().is_some_and(name)
}

pub(super) fn hello(setup: Option<Box<SessionSetup>>, core: &ClientCore, out: &mut Vec<u8>) -> ClientState {
    let verb: &[u8] = match core.protocol {
        Protocol::Lmtp => b"LHLO ",
        Protocol::Smtp => b"EHLO ",
    };
    send_hello(verb, core, out);
    ClientState::SetUp(SetUpState::ExpectHello(HelloForm::Extended, setup))
}

fn send_hello(verb: &[u8], core: &ClientCore, out: &mut Vec<u8>) {
    out.extend_from_slice(verb);
    out.extend_from_slice(core.name.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Handles the reply to EHLO, LHLO or HELO. After a permanent refusal of EHLO, falls back to HELO (RFC 5321 §3.2),
/// unless the peer has accepted an EHLO earlier in this session, before TLS or XCLIENT. LHLO has no fallback.
pub(super) fn hello_answered(
    form: HelloForm,
    setup: Option<Box<SessionSetup>>,
    reply: &ReceivedReply<'_>,
    core: &mut ClientCore,
    out: &mut Vec<u8>,
) -> ClientState {
    match (reply.code() / 100, form) {
        (2, _) if is_own_name(setup.as_deref(), reply, core) => give_up(GaveUp::OwnName, core, out),
        (2, HelloForm::Extended) => {
            core.extensions = Extensions::parse(reply.lines());
            core.is_greeted = true;
            next_step(setup, core, out)
        }
        (2, HelloForm::Plain) => next_step(setup, core, out),
        (5, HelloForm::Extended) if core.protocol == Protocol::Smtp && !core.is_greeted => {
            send_hello(b"HELO ", core, out);
            ClientState::SetUp(SetUpState::ExpectHello(HelloForm::Plain, setup))
        }
        _ => quit(out),
    }
}

pub(super) fn quit(out: &mut Vec<u8>) -> ClientState {
    out.extend_from_slice(b"QUIT\r\n");
    ClientState::ExpectQuit
}

fn give_up(reason: GaveUp, core: &mut ClientCore, out: &mut Vec<u8>) -> ClientState {
    core.gave_up = Some(reason);
    quit(out)
}

/// Continues with TLS, XCLIENT or AUTH after the peer has accepted EHLO. A session without options (`None`) needs none
/// of them, so it is ready for its first transaction.
fn next_step(setup: Option<Box<SessionSetup>>, core: &mut ClientCore, out: &mut Vec<u8>) -> ClientState {
    match setup {
        Some(setup) => setup.secure(core, out),
        None => ClientState::Transaction(SendState::Idle),
    }
}

pub(super) fn xclient_refused(core: &mut ClientCore, out: &mut Vec<u8>) -> ClientState {
    give_up(GaveUp::XclientRefused, core, out)
}

/// Steps between EHLO and the first transaction: TLS, XCLIENT and AUTH, in this order.
impl SessionSetup {
    pub(super) fn new(options: Arc<Options>, nonce: Option<Nonce>) -> Self {
        Self { options, nonce, has_asked_for_tls: false, xclient_lines: None }
    }

    fn secure(mut self: Box<Self>, core: &mut ClientCore, out: &mut Vec<u8>) -> ClientState {
        if self.options.tls == StartTls::Never || core.is_over_tls {
            return self.introduce(core, out);
        }
        if core.extensions.starttls && !self.has_asked_for_tls {
            self.has_asked_for_tls = true;
            out.extend_from_slice(b"STARTTLS\r\n");
            return ClientState::SetUp(SetUpState::ExpectStartTls(self));
        }
        self.without_tls(core, out)
    }

    pub(super) fn without_tls(self: Box<Self>, core: &mut ClientCore, out: &mut Vec<u8>) -> ClientState {
        match (self.options.tls, self.has_asked_for_tls) {
            (StartTls::Required, true) => give_up(GaveUp::TlsRefused, core, out),
            (StartTls::Required, false) => give_up(GaveUp::NoTls, core, out),
            (StartTls::IfOffered | StartTls::Never, _) => self.introduce(core, out),
        }
    }

    /// Sends XCLIENT if the options ask for it and it has not been sent yet. Otherwise continues with AUTH.
    fn introduce(mut self: Box<Self>, core: &mut ClientCore, out: &mut Vec<u8>) -> ClientState {
        let (Some(introduction), None) = (&self.options.xclient, &self.xclient_lines) else {
            return self.log_in(core, out);
        };
        let lines: VecDeque<String> = introduction.lines(core.extensions.xclient).into();
        if lines.is_empty() {
            return give_up(GaveUp::NoXclient, core, out);
        }
        self.xclient_lines = Some(lines);
        self.next_xclient(core, out)
    }

    /// Sends the next XCLIENT line. After the last line, sends EHLO again, because XCLIENT resets the session.
    pub(super) fn next_xclient(mut self: Box<Self>, core: &ClientCore, out: &mut Vec<u8>) -> ClientState {
        match self.xclient_lines.as_mut().and_then(VecDeque::pop_front) {
            Some(line) => {
                out.extend_from_slice(line.as_bytes());
                ClientState::SetUp(SetUpState::ExpectXclient(self))
            }
            None => hello(Some(self), core, out),
        }
    }

    /// Sends AUTH if there are credentials. If the envelopes need DSN and the server does not offer it, ends the
    /// session instead, because no message could be sent.
    fn log_in(&self, core: &mut ClientCore, out: &mut Vec<u8>) -> ClientState {
        if self.options.notifications == Notifications::Asked && !core.extensions.dsn {
            return give_up(GaveUp::NoDsn, core, out);
        }
        match &self.options.credentials {
            Some(credentials) => authenticate(credentials, self.nonce.as_ref(), core, out),
            None => ClientState::Transaction(SendState::Idle),
        }
    }
}

/// Sends AUTH with the strongest mechanism that the credentials allow, the server offers and the client can perform.
/// The command includes the first response unless the line would be too long (RFC 4954 §4).
fn authenticate(
    credentials: &Credentials,
    nonce: Option<&Nonce>,
    core: &mut ClientCore,
    out: &mut Vec<u8>,
) -> ClientState {
    let mut remaining = credentials.mechanisms.and(core.extensions.auth);
    let mut unsuitable = None;
    while let Some(mechanism) = remaining.strongest() {
        remaining = remaining.without(mechanism);
        // If the client cannot perform this mechanism, for example SCRAM without a nonce, try the next one.
        let exchange = match ClientExchange::new(mechanism, credentials, nonce) {
            Ok(exchange) => exchange,
            Err(error) => {
                unsuitable = Some(error);
                continue;
            }
        };
        let mut line = format!("AUTH {}", mechanism.name());
        let initial = exchange.initial().map(|response| format!(" {}\r\n", sasl::encode(response)));
        let exchange = match initial.filter(|initial| line.len() + initial.len() <= MAX_COMMAND_LINE_BYTES) {
            Some(initial) => {
                line += &initial;
                exchange.initial_sent()
            }
            None => {
                line += "\r\n";
                exchange
            }
        };
        core.mechanism = Some(mechanism);
        out.extend_from_slice(line.as_bytes());
        return ClientState::SetUp(SetUpState::ExpectAuth(Box::new(exchange)));
    }
    give_up(unsuitable.map_or(GaveUp::NoMechanism, GaveUp::Exchange), core, out)
}

/// Handles the reply to AUTH, or to a response to one of its challenges. If a challenge is faulty, cancels the exchange
/// by sending `*`.
pub(super) fn auth_answered(
    exchange: ClientExchange,
    reply: &ReceivedReply<'_>,
    core: &mut ClientCore,
    out: &mut Vec<u8>,
) -> ClientState {
    match reply.code() {
        334 => match respond(exchange, reply) {
            Ok((line, exchange)) => {
                out.extend_from_slice(line.as_bytes());
                out.extend_from_slice(b"\r\n");
                ClientState::SetUp(SetUpState::ExpectAuth(Box::new(exchange)))
            }
            Err(error) => {
                out.extend_from_slice(b"*\r\n");
                ClientState::SetUp(SetUpState::ExpectCancelled(error))
            }
        },
        200..300 => match exchange.accept() {
            Ok(()) => ClientState::Transaction(SendState::Idle),
            Err(error) => give_up(GaveUp::Exchange(error), core, out),
        },
        _ => give_up(GaveUp::NotAuthenticated, core, out),
    }
}

/// Ends the session after the reply to `*`, with which the client has cancelled AUTH. The content of this reply does
/// not matter.
pub(super) fn cancelled(error: ExchangeError, core: &mut ClientCore, out: &mut Vec<u8>) -> ClientState {
    give_up(GaveUp::Exchange(error), core, out)
}

fn respond(exchange: ClientExchange, reply: &ReceivedReply<'_>) -> Result<(String, ClientExchange), ExchangeError> {
    let challenge = reply.lines().last().and_then(|text| sasl::decode(text.trim_ascii()));
    let (response, exchange) = exchange.respond(&challenge.ok_or(ExchangeError::Challenge)?)?;
    let line = sasl::encode(&response);
    let fits = line.len() + 2 <= sasl::MAX_EXCHANGE_LINE_BYTES;
    if fits { Ok((line, exchange)) } else { Err(ExchangeError::Credentials) }
}
