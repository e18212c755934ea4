//! Changes the state of a client session when a reply arrives, or when the caller ends the session.
use super::core::ClientCore;
use super::event::{Event, Verb, Violation};
use super::setup;
use super::state::{ClientState, SendState, SetUpState};
use crate::reply::ReceivedReply;

impl ClientState {
    /// Handles a reply, and appends the client's next commands to `out`.
    pub(super) fn receive<'r>(
        &mut self,
        reply: ReceivedReply<'r>,
        core: &mut ClientCore,
        out: &mut Vec<u8>,
    ) -> Result<Event<'r>, Violation> {
        let event = |to, ends, settled| Ok(Event { to, reply, ends, settled });
        // Replace only the inner state, because the outer state is large to move and most replies do not change it.
        match self {
            Self::Transaction(sending) => {
                let state = std::mem::replace(sending, SendState::Idle);
                let Some(due) = core.due.pop_front() else {
                    *self = Self::Closed(None);
                    let (to, ends) = state.interrupted(&reply)?;
                    return event(to, ends, u32::from(ends.is_some()));
                };
                if core.is_misplaced(due, &reply) {
                    *self = Self::Closed(Some(due.verb()));
                    return Err(Violation::Misplaced(reply.code()));
                }
                let step = state.step(due, &reply, core, out);
                // Skip the destructor of the old value, which would have to check the variant at each reply. The old
                // value is always `Idle`, so `forget` leaks nothing.
                std::mem::forget(std::mem::replace(sending, step.next));
                if core.is_out_of_step && (step.ends.is_some() || step.to == Verb::Reset) {
                    *self = self.end_out_of_step(core, out);
                }
                event(step.to, step.ends, step.settled)
            }
            Self::SetUp(state) => {
                let state = std::mem::replace(state, SetUpState::ExpectGreeting(None));
                let to = state.awaited();
                *self = state.step(&reply, core, out);
                event(to.ok_or(Violation::Unasked(reply.code()))?, None, 0)
            }
            Self::ExpectQuit => match core.before_quit.pop_front() {
                Some(earlier) => event(earlier, None, 0),
                None => {
                    *self = Self::Closed(None);
                    event(Verb::Quit, None, 0)
                }
            },
            Self::Closed(_) => Err(Violation::Unasked(reply.code())),
        }
    }

    /// Ends a session in which the peer has lost track of the commands. Sends QUIT only if no other reply is due and no
    /// message is being written, so that the peer cannot take QUIT for a line of a message.
    fn end_out_of_step(&self, core: &ClientCore, out: &mut Vec<u8>) -> Self {
        if matches!(self, Self::Transaction(SendState::Idle)) && core.due.is_empty() {
            return setup::quit(out);
        }
        Self::Closed(self.awaited(core))
    }

    /// Sends QUIT, unless the session is over. After QUIT, the session first waits for the replies to earlier commands,
    /// and then for the reply to QUIT.
    pub(super) fn quit(self, core: &mut ClientCore, out: &mut Vec<u8>) -> Self {
        match self {
            Self::Closed(_) => return self,
            Self::SetUp(state) => core.before_quit.extend(state.awaited()),
            Self::Transaction(_) => core.before_quit.extend(core.due.iter().map(|due| due.verb())),
            Self::ExpectQuit => core.before_quit.push_back(Verb::Quit),
        }
        out.extend_from_slice(b"QUIT\r\n");
        Self::ExpectQuit
    }

    /// Returns the command whose reply comes next, or `None` if no reply is due. After the end of the session, returns
    /// the command whose reply did not arrive, if there is one.
    #[inline]
    pub(super) fn awaited(&self, core: &ClientCore) -> Option<Verb> {
        match self {
            Self::SetUp(state) => state.awaited(),
            Self::Transaction(_) => core.awaited(),
            Self::ExpectQuit => Some(core.before_quit.front().copied().unwrap_or(Verb::Quit)),
            Self::Closed(awaited) => *awaited,
        }
    }
}

impl SetUpState {
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
            Self::ExpectAuth(exchange) => setup::auth_answered(*exchange, reply, core, out),
            Self::ExpectCancelled(error) => setup::cancelled(error, core, out),
        }
    }

    /// Returns the command whose reply is awaited, or `None` while the session waits for the caller to begin TLS.
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
