//! States of a client session, and the step that a reply causes.
use super::core::ClientCore;
use super::setup::{self, HelloForm, SessionSetup};
use super::transaction::SendState;
use super::{Outcome, Verb, Violation};
use crate::reply::ReceivedReply;
use crate::sasl::client::{ClientExchange, ExchangeError};

/// States of the session, by what it waits for. Each holds what it needs, so that no other state can have it; what is
/// large is in a box, for a step moves the state. A session without options has no [`SessionSetup`].
///
/// ```text
/// ExpectGreeting ─▶ ExpectHello ─▶ ExpectStartTls ─220─▶ ExpectTls: the caller begins TLS ─▶ ExpectHello    what of it
///                     │    ▲                                                                               is wanted
///                     │    └──220── ExpectXclient ◀── XCLIENT                                              and offered
///                     ├────▶ ExpectAuth ─334─▶ response … ─235─┐
///                     ▼        └─▶ ExpectCancelled: `*`        ▼
///               Transaction ◀──────────────────────────────────┘      (SendState has its states)
///
/// a required extension is not offered, or refused ─▶ ExpectQuit, and gave_up has the reason
/// any state ── QUIT ─▶ ExpectQuit ─▶ Closed ◀─ 421, a violation ── any state
/// ```
#[derive(Debug)]
pub(super) enum ClientState {
    /// The reply to a command before the first transaction.
    SetUp(SetUpState),
    /// The caller, or the replies of transactions.
    Transaction(SendState),
    /// The reply to QUIT, behind the replies to these commands.
    ExpectQuit(Vec<Verb>),
    /// Nothing any more; holds the command whose reply did not come.
    Closed(Option<Verb>),
}

/// States before the first transaction: one command is under way at a time.
#[derive(Debug)]
#[expect(clippy::enum_variant_names, reason = "a state is named by what it waits for")]
pub(super) enum SetUpState {
    /// The greeting.
    ExpectGreeting(Option<Box<SessionSetup>>),
    /// The reply to EHLO, LHLO or HELO.
    ExpectHello(HelloForm, Option<Box<SessionSetup>>),
    /// The reply to STARTTLS.
    ExpectStartTls(Box<SessionSetup>),
    /// TLS, which the caller begins.
    ExpectTls(Box<SessionSetup>),
    /// The reply to XCLIENT.
    ExpectXclient(Box<SessionSetup>),
    /// The reply to AUTH, or to a response.
    ExpectAuth(Box<ClientExchange>),
    /// The reply to `*`, which cancelled AUTH for this reason.
    ExpectCancelled(ExchangeError),
}

impl ClientState {
    /// Takes a reply; the commands that follow from it go to `out`. Returns the command that it belongs to, and the
    /// result of the transaction, if that is over.
    pub(super) fn receive(
        &mut self,
        reply: &ReceivedReply<'_>,
        core: &mut ClientCore,
        out: &mut Vec<u8>,
    ) -> Result<(Verb, Option<Outcome>), Violation> {
        // Only the inner state moves: the outer one is large, and most replies do not change it.
        match self {
            Self::Transaction(sending) => {
                let state = std::mem::replace(sending, SendState::Idle);
                let Some(due) = core.due.pop_front() else {
                    *self = Self::Closed(None);
                    return state.interrupted(reply);
                };
                let step = state.step(due, reply, core, out);
                *sending = step.next;
                Ok((step.to, step.ends))
            }
            Self::SetUp(state) => {
                let state = std::mem::replace(state, SetUpState::ExpectGreeting(None));
                let to = state.awaited();
                *self = state.step(reply, core, out);
                to.map(|to| (to, None)).ok_or(Violation::Unasked(reply.code()))
            }
            Self::ExpectQuit(earlier) if earlier.is_empty() => {
                *self = Self::Closed(None);
                Ok((Verb::Quit, None))
            }
            Self::ExpectQuit(earlier) => Ok((earlier.remove(0), None)),
            Self::Closed(_) => Err(Violation::Unasked(reply.code())),
        }
    }

    /// Sends QUIT, unless the session is over.
    pub(super) fn quit(self, core: &ClientCore, out: &mut Vec<u8>) -> Self {
        let earlier = match self {
            Self::Closed(_) => return self,
            Self::SetUp(state) => state.awaited().into_iter().collect(),
            Self::Transaction(_) => core.due.iter().map(|due| due.verb()).collect(),
            Self::ExpectQuit(earlier) => earlier.into_iter().chain([Verb::Quit]).collect(),
        };
        out.extend_from_slice(b"QUIT\r\n");
        Self::ExpectQuit(earlier)
    }

    /// The command whose reply comes next.
    pub(super) fn awaited(&self, core: &ClientCore) -> Option<Verb> {
        match self {
            Self::SetUp(state) => state.awaited(),
            Self::Transaction(_) => core.awaited(),
            Self::ExpectQuit(earlier) => Some(earlier.first().copied().unwrap_or(Verb::Quit)),
            Self::Closed(awaited) => *awaited,
        }
    }
}

impl SetUpState {
    /// Takes a reply.
    fn step(self, reply: &ReceivedReply<'_>, core: &mut ClientCore, out: &mut Vec<u8>) -> ClientState {
        let is_done = reply.code() / 100 == 2;
        match self {
            Self::ExpectGreeting(setup) => setup::greeted(setup, reply, core, out),
            Self::ExpectHello(form, setup) => setup::hello_answered(form, setup, reply, core, out),
            Self::ExpectStartTls(setup) if is_done => ClientState::SetUp(Self::ExpectTls(setup)),
            Self::ExpectStartTls(setup) => setup.without_tls(core, out),
            Self::ExpectTls(_) => ClientState::Closed(None),
            Self::ExpectXclient(setup) if is_done => setup.next_xclient(core, out),
            Self::ExpectXclient(_) => setup::xclient_refused(core, out),
            Self::ExpectAuth(exchange) => setup::auth_answered(exchange, reply, core, out),
            Self::ExpectCancelled(why) => setup::cancelled(why, core, out),
        }
    }

    /// The command whose reply is awaited; none before TLS.
    fn awaited(&self) -> Option<Verb> {
        match self {
            Self::ExpectGreeting(_) => Some(Verb::Greeting),
            Self::ExpectHello(..) => Some(Verb::Hello),
            Self::ExpectStartTls(_) => Some(Verb::StartTls),
            Self::ExpectTls(_) => None,
            Self::ExpectXclient(_) => Some(Verb::Xclient),
            Self::ExpectAuth(_) | Self::ExpectCancelled(_) => Some(Verb::Auth),
        }
    }
}
