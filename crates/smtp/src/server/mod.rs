//! The server's side of a session: commands in, events out, answers back in.
//!
//! `State` documents the state machine. A step consumes the state and returns the next, so an ended session cannot
//! continue. Facts that outlive a state are in `ServerCore`.
//!
//! An event that [asks](Event::asks) waits for [`Server::grant`] or [`Server::answer`]. Until then no further event
//! comes, so that replies are sent in the order of their commands (RFC 2920 §3.2). The session answers all other
//! commands by itself.
mod auth;
mod command;
mod core;
mod data;
mod event;
mod question;
mod state;
mod step;
mod turned_away;

use self::core::ServerCore;
use self::state::{CommandState, LoginQuestion, OpenQuestion, State};
use crate::line::LineReader;
use crate::reply::Reply;
use crate::reply_reason::ReplyReason;
use crate::sasl::{Nonce, Secret};
use std::sync::Arc;
use std::time::Duration;

pub use self::event::Event;
pub use crate::settings::{Offer, Protocol, Requires, ServerSettings};

/// The server's side of a session.
#[derive(Debug)]
pub struct Server {
    lines: LineReader,
    state: State,
    core: ServerCore,
}

impl Server {
    /// Creates a session: it asks for the greeting, so the first call is [`Server::grant`] or [`Server::answer`].
    pub fn new(settings: Arc<ServerSettings>, now: Duration) -> Self {
        let state = State::Answer(OpenQuestion::Greeting);
        Self { lines: LineReader::default(), state, core: ServerCore::new(settings, now) }
    }

    /// Takes one event off the front of `input`. Replies of the session itself go to `out`. `None` needs more bytes, or
    /// an answer, or [TLS](Server::wants_tls), or is the end: see [`Server::is_closed`].
    pub fn next_event<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
        now: Duration,
        out: &mut Vec<u8>,
    ) -> Option<Event<'s>> {
        // Most calls that have nothing to do end here, before the state is moved.
        if self.state.is_waiting(input) {
            self.lines.release();
            return None;
        }
        let (state, event) = self.take_state().step(&mut self.lines, input, now, &mut self.core, out);
        self.state.put(state);
        if event.is_none() {
            // A question about a login borrows the client's claims from the state.
            return self.state.login_event();
        }
        event
    }

    /// Takes the state out for a step. If there is no state, the session is closed.
    fn take_state(&mut self) -> State {
        std::mem::replace(&mut self.state, State::Closed)
    }

    /// Answers the open question with this reply. A 421 ends the session. After any other refusal to greet the session waits
    /// for QUIT and answers 503 to everything else (RFC 5321 §3.1), within its limits. There is no answer without a decision:
    /// what the application does not implement it refuses, for example with [`ReplyReason::NotImplemented`].
    pub fn answer(&mut self, reply: &Reply, now: Duration, out: &mut Vec<u8>) {
        if self.awaits_answer() && reply.code() == 421 {
            self.hang_up(Some(reply), out);
        } else {
            self.decide(Some(reply), now, out);
        }
    }

    /// Says yes to the open question, with the usual reply; also to [`Event::Auth`] with a shown secret and to
    /// [`Event::Xclient`]. Where a [secret](Server::awaits_secret) or a [nonce](Event::Nonce) is awaited there is nothing to
    /// say yes to, and the login is refused.
    pub fn grant(&mut self, now: Duration, out: &mut Vec<u8>) {
        self.decide(None, now, out);
    }

    /// Handles the application's decision: a reply other than 421, or yes with the usual reply.
    fn decide(&mut self, reply: Option<&Reply>, now: Duration, out: &mut Vec<u8>) {
        let next = match self.take_state() {
            State::Answer(question) => {
                self.core.application_answered(now);
                question.answered(reply, now, &mut self.core, out)
            }
            unasked => unasked,
        };
        self.state.put(next);
    }

    /// Answers [`Event::Nonce`].
    pub fn answer_nonce(&mut self, nonce: &Nonce, now: Duration, out: &mut Vec<u8>) {
        self.state = match self.take_state() {
            State::Answer(OpenQuestion::Nonce(request)) => {
                self.core.last_received = now;
                request.begin(nonce, &mut self.core, out)
            }
            unasked => unasked,
        };
    }

    /// Answers an [`Event::Auth`] that asks for the secret; `None` if the name is unknown.
    pub fn answer_secret(&mut self, secret: Option<&Secret>, now: Duration, out: &mut Vec<u8>) {
        self.state = match self.take_state() {
            State::Answer(OpenQuestion::Login(LoginQuestion::Lookup(lookup))) => {
                self.core.last_received = now;
                auth::provide_secret(*lookup, secret, &mut self.core, out)
            }
            unasked => unasked,
        };
    }

    /// Reports whether it waits for [`Server::answer_secret`].
    pub fn awaits_secret(&self) -> bool {
        matches!(self.state, State::Answer(OpenQuestion::Login(LoginQuestion::Lookup(_))))
    }

    /// Reports whether STARTTLS was granted: send `out`, then begin TLS, then call [`Server::tls_started`]. Bytes in
    /// the clear behind STARTTLS are dropped ([`Server::injected_bytes`]).
    pub fn wants_tls(&self) -> bool {
        matches!(self.state, State::ExpectTls)
    }

    /// Notes that TLS has begun: the session begins anew, without a greeting (RFC 3207 §4.2). If TLS began before the
    /// greeting this is called before the greeting is answered.
    pub fn tls_started(&mut self, now: Duration) {
        self.state = match self.take_state() {
            State::ExpectTls => {
                self.core.tls_started(now);
                self.lines = LineReader::default();
                State::Command(CommandState::ExpectHello)
            }
            State::Answer(OpenQuestion::Greeting) => {
                self.core.tls_started(now);
                State::Answer(OpenQuestion::Greeting)
            }
            unwanted => unwanted,
        };
    }

    /// Bytes in the clear behind STARTTLS that were dropped: no honest client sends any (CVE-2011-0411).
    pub fn injected_bytes(&self) -> u64 {
        self.core.injected
    }

    /// Reports whether the session is over TLS.
    pub fn is_over_tls(&self) -> bool {
        self.core.is_over_tls
    }

    /// Reports whether AUTH succeeded.
    pub fn is_authenticated(&self) -> bool {
        self.core.is_authenticated
    }

    /// Time at which [`Server::tick`] has work to do: none while an answer is awaited, for then the peer is not to
    /// blame for the silence.
    pub fn deadline(&self) -> Option<Duration> {
        if self.is_closed() || self.awaits_answer() {
            return None;
        }
        Some(self.core.deadline(self.state.message_pace()))
    }

    /// Ends the session with 421 if it has been silent, or without a message, for too long, or its message is too slow.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<u8>) {
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            let is_silent = now >= self.core.last_received + self.core.settings.limits.idle_timeout;
            let is_in_message = self.state.message_pace().is_some();
            let verdict =
                if is_silent || is_in_message { ReplyReason::Timeout } else { ReplyReason::TooLongWithoutMessage };
            self.close(verdict, out);
        }
    }

    /// Ends the session with the verdict's reply. An open question stays without an answer.
    pub fn close(&mut self, verdict: ReplyReason, out: &mut Vec<u8>) {
        self.hang_up(Some(verdict.reply()), out);
    }

    /// Ends the session without a reply, or with one that is not 421. An open question stays without an answer.
    pub fn hang_up(&mut self, final_reply: Option<&Reply>, out: &mut Vec<u8>) {
        if !self.is_closed() {
            out.extend_from_slice(final_reply.map_or(&[], Reply::wire));
            self.state = State::Closed;
        }
    }

    /// Reports whether the session is over: nothing more is read; send `out`, then close the connection.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// The reason why the session gave the client up, if it did: another protocol, too many errors, commands without
    /// mail. An endless message is reported by [`Event::Discarded`].
    pub fn gave_up(&self) -> Option<ReplyReason> {
        self.core.gave_up
    }

    /// Reports whether the client ended the session, with QUIT.
    pub fn has_quit(&self) -> bool {
        self.core.has_quit
    }

    /// Reports whether the session waits for [`Server::grant`] or [`Server::answer`].
    pub fn awaits_answer(&self) -> bool {
        matches!(self.state, State::Answer(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::sasl::MAX_EXCHANGE_LINE_BYTES;
    use proptest::prelude::*;

    const NOW: Duration = Duration::ZERO;

    /// A session without limits on errors and time.
    fn patient() -> Server {
        let limits = Limits {
            errors: u32::MAX,
            unknown_before_hello: u32::MAX,
            idle_commands: u32::MAX,
            junk_commands: u32::MAX,
            message_bytes: u64::MAX,
            ..Limits::default()
        };
        let mut offer = Offer::new(&limits);
        offer.extensions.auth = crate::sasl::Mechanisms::ALL;
        let mut server = Server::new(Arc::new(ServerSettings::with_offer("test", limits, offer)), NOW);
        server.grant(NOW, &mut Vec::new());
        server
    }

    /// Returns the most memory that the session used while it received that many blocks.
    fn heap_bytes(server: &mut Server, block: &[u8], blocks: usize) -> usize {
        let mut most = 0;
        let mut out = Vec::new();
        for _ in 0..blocks {
            let mut input = block;
            while let Some(event) = server.next_event(&mut input, NOW, &mut out) {
                if event.asks() {
                    server.grant(NOW, &mut out);
                }
            }
            out.clear();
            most = most.max(server.lines.heap_bytes());
        }
        most
    }

    #[test]
    fn nothing_a_peer_says_makes_a_session_grow() {
        let endless: [&[u8]; 11] = [
            b"x",
            b"NOOP x",
            b"\r",
            b"\n",
            b"\0",
            b"NOOP\r\n",
            b"RCPT TO:<c@d>\r\n",
            b"VRFY <",
            b"xxxxx\r\nxxx",
            b"AUTH PLAIN x",
            b"BDAT 1000000\r\n",
        ];
        let before: [&[u8]; 5] = [
            b"",
            b"EHLO a\r\nMAIL FROM:<a@b>\r\n",
            b"EHLO a\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n",
            b"EHLO a\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nBDAT 99999999\r\n",
            b"EHLO a\r\nAUTH LOGIN\r\n",
        ];
        for (before, endless) in before.iter().flat_map(|before| endless.map(|endless| (before, endless))) {
            let mut server = patient();
            heap_bytes(&mut server, before, 1);
            let most = heap_bytes(&mut server, endless, 5_000);
            assert!(most <= 2 * MAX_EXCHANGE_LINE_BYTES, "{most} bytes for {:?}", String::from_utf8_lossy(endless));
        }
        assert!(size_of::<Server>() <= 256, "{} bytes a session", size_of::<Server>());
        assert!(size_of::<State>() <= 40, "{} bytes move at each step", size_of::<State>());
    }

    proptest! {
        #[test]
        fn a_block_of_anything_holds_one_line_at_most(block in proptest::collection::vec(any::<u8>(), 1..2000)) {
            prop_assert!(heap_bytes(&mut patient(), &block, 3) <= 2 * MAX_EXCHANGE_LINE_BYTES);
        }
    }
}
