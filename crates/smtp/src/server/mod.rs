//! The server's side of a session. It reads commands, reports them as events, and takes the
//! application's answers.
//!
//! The documentation of `State` shows the state machine as a diagram. Each transition consumes the old state and
//! returns the next, so that an ended session cannot continue. Data that survives a change of state is in `ServerCore`.
//!
//! After an event that [asks](Event::asks), the session waits for [`Server::grant`] or [`Server::answer`]. Until then
//! it returns no further event, so that replies are sent in the order of their commands (RFC 2920 §3.2). Some commands
//! need no decision of the application, for example HELP. The session answers them by itself.
mod auth;
mod command;
mod core;
mod data;
mod event;
mod question;
mod state;
mod step;

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

/// The server's side of an SMTP or LMTP session. The caller owns the connection: it passes in
/// received bytes, answers events, and writes the bytes of `out`.
#[derive(Debug)]
pub struct Server {
    lines: LineReader,
    state: State,
    core: ServerCore,
}

impl Server {
    /// Creates a session, which first asks the application whether to greet the client. The first call must therefore
    /// be [`Server::grant`] or [`Server::answer`].
    pub fn new(settings: Arc<ServerSettings>, now: Duration) -> Self {
        let state = State::Answer(OpenQuestion::Greeting);
        Self { lines: LineReader::default(), state, core: ServerCore::new(settings, now) }
    }

    /// Takes one event off the front of `input`, and appends the session's own replies to `out`.
    /// Returns `None` if the session needs more bytes, an answer or [TLS](Server::wants_tls), or if
    /// it is [over](Server::is_closed).
    pub fn next_event<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
        now: Duration,
        out: &mut Vec<u8>,
    ) -> Option<Event<'s>> {
        // If nothing can be done yet, return now. Moving the state out and back would only cost time.
        if self.state.is_waiting(input) {
            self.lines.release();
            return None;
        }
        let (state, event) = self.take_state().step(&mut self.lines, input, now, &mut self.core, out);
        self.state.put(state);
        if event.is_none() {
            // An event about a login borrows the client's name and secret from the state, so it can be made only after
            // the new state is stored.
            return self.state.login_event();
        }
        event
    }

    fn take_state(&mut self) -> State {
        std::mem::replace(&mut self.state, State::Closed)
    }

    /// Answers the question of the last event with this reply. The application must answer every question. It must
    /// refuse commands that it does not implement, for example with [`ReplyReason::NotImplemented`].
    ///
    /// A 421 ends the session. After any other refusal to greet, the session waits for QUIT and answers 503 to
    /// everything else (RFC 5321 §3.1), until the client exceeds a limit.
    pub fn answer(&mut self, reply: &Reply, now: Duration, out: &mut Vec<u8>) {
        if self.awaits_answer() && reply.code() == 421 {
            self.hang_up(Some(reply), out);
        } else {
            self.decide(Some(reply), now, out);
        }
    }

    /// Answers the question of the last event with yes. The client gets the usual reply, such as 250 after MAIL, or a
    /// new greeting after XCLIENT ([`Event::Xclient`]). After an [`Event::Auth`] with a password or token, the yes
    /// accepts the login. If the session waits for a [secret](Server::awaits_secret) or a [nonce](Event::Nonce), the
    /// yes refuses the login, because the session still lacks the secret or nonce.
    pub fn grant(&mut self, now: Duration, out: &mut Vec<u8>) {
        self.decide(None, now, out);
    }

    /// Handles the application's answer. `None` means yes, with the usual reply, such as 250 to MAIL. A 421 to an
    /// open question does not come here, because `answer` then ends the session.
    fn decide(&mut self, reply: Option<&Reply>, now: Duration, out: &mut Vec<u8>) {
        let next = match self.take_state() {
            State::Answer(question) => {
                self.core.application_answered(now);
                question.answered(reply, now, &mut self.core, out)
            }
            // Ignore the answer if no question is open, for example because the session has been closed meanwhile.
            unasked => unasked,
        };
        self.state.put(next);
    }

    /// Gives the session the nonce that [`Event::Nonce`] asked for. Does nothing if no nonce is
    /// awaited.
    pub fn answer_nonce(&mut self, nonce: &Nonce, now: Duration, out: &mut Vec<u8>) {
        self.state = match self.take_state() {
            State::Answer(OpenQuestion::Nonce(request)) => {
                self.core.application_answered(now);
                request.begin(nonce, &mut self.core, out)
            }
            unasked => unasked,
        };
    }

    /// Answers an [`Event::Auth`] that asks for the secret. `None` means that the user name is
    /// unknown. Does nothing if no secret is awaited.
    pub fn answer_secret(&mut self, secret: Option<&Secret>, now: Duration, out: &mut Vec<u8>) {
        self.state = match self.take_state() {
            State::Answer(OpenQuestion::Login(LoginQuestion::Lookup(lookup))) => {
                self.core.application_answered(now);
                auth::provide_secret(*lookup, secret, &mut self.core, out)
            }
            unasked => unasked,
        };
    }

    /// Returns true if the session waits for the user's secret. The application must pass the secret to
    /// [`Server::answer_secret`].
    pub fn awaits_secret(&self) -> bool {
        matches!(self.state, State::Answer(OpenQuestion::Login(LoginQuestion::Lookup(_))))
    }

    /// Returns true if STARTTLS was granted. The caller must send `out`, begin TLS, and then call
    /// [`Server::tls_started`]. Bytes that the client sent in the clear after STARTTLS are dropped
    /// and [counted](Server::injected_bytes).
    pub fn wants_tls(&self) -> bool {
        matches!(self.state, State::ExpectTls)
    }

    /// Records that TLS has begun. The session starts again, without a greeting (RFC 3207 §4.2). If TLS begins before
    /// the greeting, the caller must call this before it answers the question whether to greet the client.
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

    /// Returns the number of bytes that came unencrypted after STARTTLS and were dropped. An honest
    /// client sends none, so an attacker may have injected them (CVE-2011-0411).
    pub fn injected_bytes(&self) -> u64 {
        self.core.injected
    }

    /// Returns true if the session runs over TLS, since its beginning or since STARTTLS.
    pub fn is_over_tls(&self) -> bool {
        self.core.is_over_tls
    }

    /// Returns true if the client has logged in. A login before STARTTLS no longer counts, because
    /// TLS resets the session.
    pub fn is_authenticated(&self) -> bool {
        self.core.is_authenticated
    }

    /// Returns the time at which the caller must call [`Server::tick`], or `None` after the end of the session. Also
    /// returns `None` while the session waits for the application's answer, because the client is not to blame for that
    /// silence.
    pub fn deadline(&self) -> Option<Duration> {
        if self.is_closed() || self.awaits_answer() {
            return None;
        }
        Some(self.core.deadline(self.state.message_pace()))
    }

    /// Ends the session with 421 if the client has been silent for too long, has sent no message
    /// for too long, or sends its message too slowly. If the time [`Server::deadline`] has not come
    /// yet, this does nothing.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<u8>) {
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            let is_silent = now >= self.core.last_received + self.core.settings.limits.idle_timeout;
            let is_in_message = self.state.message_pace().is_some();
            let verdict =
                if is_silent || is_in_message { ReplyReason::Timeout } else { ReplyReason::TooLongWithoutMessage };
            self.close(verdict, out);
        }
    }

    /// Ends the session with the fixed reply for this reason, for example [`ReplyReason::ShuttingDown`], even while the
    /// session waits for the application's answer.
    pub fn close(&mut self, verdict: ReplyReason, out: &mut Vec<u8>) {
        self.hang_up(Some(verdict.reply()), out);
    }

    /// Ends the session with this reply, or without a reply, even while the session waits for the application's answer.
    pub fn hang_up(&mut self, final_reply: Option<&Reply>, out: &mut Vec<u8>) {
        if !self.is_closed() {
            out.extend_from_slice(final_reply.map_or(&[], Reply::wire));
            self.state = State::Closed;
        }
    }

    /// Returns true if the session is over and reads no more bytes. The caller must send `out` and
    /// then close the connection.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Returns the fault of the client that ended the session, for example too many errors, too many commands without a
    /// message, or another protocol. A message that is far too large is reported by [`Event::Discarded`] instead.
    pub fn gave_up(&self) -> Option<ReplyReason> {
        self.core.gave_up
    }

    /// Returns true if the client ended the session with QUIT.
    pub fn has_quit(&self) -> bool {
        self.core.has_quit
    }

    /// Returns true from the beginning of a message until its end has been read. The caller may then read larger blocks
    /// from the connection than it reads for commands.
    pub fn is_in_message(&self) -> bool {
        self.state.message_pace().is_some()
    }

    /// Returns true if the session waits for the application's answer to a question, such as [`Server::grant`] or
    /// [`Server::answer`].
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

    /// Creates a session that tolerates any number of errors and commands, and any message size.
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

    /// Sends `block` to the session `blocks` times, and returns the maximum heap memory of the session's line reader,
    /// in bytes.
    fn heap_bytes(server: &mut Server, block: &[u8], blocks: usize) -> usize {
        let mut max_bytes = 0;
        let mut out = Vec::new();
        for _ in 0..blocks {
            let mut input = block;
            while let Some(event) = server.next_event(&mut input, NOW, &mut out) {
                if event.asks() {
                    server.grant(NOW, &mut out);
                }
            }
            out.clear();
            max_bytes = max_bytes.max(server.lines.heap_bytes());
        }
        max_bytes
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
            let size = heap_bytes(&mut server, endless, 5_000);
            assert!(size <= 2 * MAX_EXCHANGE_LINE_BYTES, "{size} bytes for {:?}", String::from_utf8_lossy(endless));
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
