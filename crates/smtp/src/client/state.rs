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
    /// The caller, or the replies of transactions.
    Transaction(SendState),
    /// The reply to QUIT, behind the replies to these commands.
    ExpectQuit(Vec<Verb>),
    /// Nothing any more; holds the command whose reply did not come.
    Closed(Option<Verb>),
}

/// The step that a reply causes.
pub(super) struct ReplyStep {
    pub(super) next: ClientState,
    /// The command that it belongs to.
    pub(super) to: Verb,
    /// The transaction it belongs to is over.
    pub(super) ends: Option<Outcome>,
}

impl ReplyStep {
    /// A step outside transactions.
    fn new(to: Verb, next: ClientState) -> Self {
        Self { next, to, ends: None }
    }
}

impl ClientState {
    /// Takes a reply; the commands that follow from it go to `out`.
    pub(super) fn step(
        self,
        reply: &ReceivedReply<'_>,
        core: &mut ClientCore,
        out: &mut Vec<u8>,
    ) -> Result<ReplyStep, Violation> {
        let is_done = reply.code() / 100 == 2;
        Ok(match self {
            Self::Transaction(state) => return state.step(reply, core, out),
            Self::ExpectGreeting(setup) => ReplyStep::new(Verb::Greeting, setup::greeted(setup, reply, core, out)),
            Self::ExpectHello(form, setup) => {
                ReplyStep::new(Verb::Hello, setup::hello_answered(form, setup, reply, core, out))
            }
            Self::ExpectStartTls(setup) if is_done => ReplyStep::new(Verb::StartTls, Self::ExpectTls(setup)),
            Self::ExpectStartTls(setup) => ReplyStep::new(Verb::StartTls, setup.without_tls(core, out)),
            Self::ExpectXclient(setup) if is_done => ReplyStep::new(Verb::Xclient, setup.next_xclient(core, out)),
            Self::ExpectXclient(_) => ReplyStep::new(Verb::Xclient, setup::xclient_refused(core, out)),
            Self::ExpectAuth(exchange) => ReplyStep::new(Verb::Auth, setup::auth_answered(exchange, reply, core, out)),
            Self::ExpectCancelled(why) => ReplyStep::new(Verb::Auth, setup::cancelled(why, core, out)),
            Self::ExpectQuit(earlier) if earlier.is_empty() => ReplyStep::new(Verb::Quit, Self::Closed(None)),
            Self::ExpectQuit(mut earlier) => ReplyStep::new(earlier.remove(0), Self::ExpectQuit(earlier)),
            Self::ExpectTls(_) | Self::Closed(_) => return Err(Violation::Unasked(reply.code())),
        })
    }

    /// Sends QUIT, unless the session is over.
    pub(super) fn quit(self, core: &ClientCore, out: &mut Vec<u8>) -> Self {
        let earlier = match self {
            Self::Closed(_) => return self,
            Self::Transaction(_) => core.due.iter().map(|due| due.verb()).collect(),
            Self::ExpectQuit(earlier) => earlier.into_iter().chain([Verb::Quit]).collect(),
            _ => self.awaited(core).into_iter().collect(),
        };
        out.extend_from_slice(b"QUIT\r\n");
        Self::ExpectQuit(earlier)
    }

    /// The command whose reply comes next.
    pub(super) fn awaited(&self, core: &ClientCore) -> Option<Verb> {
        match self {
            Self::ExpectGreeting(_) => Some(Verb::Greeting),
            Self::ExpectHello(..) => Some(Verb::Hello),
            Self::ExpectStartTls(_) => Some(Verb::StartTls),
            Self::ExpectTls(_) => None,
            Self::ExpectXclient(_) => Some(Verb::Xclient),
            Self::ExpectAuth(_) | Self::ExpectCancelled(_) => Some(Verb::Auth),
            Self::Transaction(_) => core.awaited(),
            Self::ExpectQuit(earlier) => Some(earlier.first().copied().unwrap_or(Verb::Quit)),
            Self::Closed(awaited) => *awaited,
        }
    }
}
