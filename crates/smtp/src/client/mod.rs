//! The client's side of a session. It writes commands and reads the replies.
//!
//! The documentation of `ClientState` shows the state machine as a diagram. Each step consumes the old state and
//! returns the next one, so that an ended session cannot continue. Data that all states share is in `ClientCore`.
//!
//! The session keeps a queue of the replies that its transactions await. For this reason, pipelined and lock-step
//! dialogues use the same state machine, and differ only in the number of commands that [`Client::begin`] writes at
//! once. [`Client::wants`] tells the caller what to do next. The caller itself writes the messages to the connection,
//! so that the session does not have to copy them.
mod core;
mod event;
mod options;
mod setup;
mod state;
mod step;
mod transaction;

use self::core::ClientCore;
use self::state::{ClientState, DueReply, SendState, SessionSetup, SetUpState};
use crate::envelope::Envelope;
use crate::extensions::Extensions;
use crate::reply::ReplyReader;
use crate::sasl::{Mechanism, Nonce};
use std::sync::Arc;
use std::time::Duration;

pub use self::event::{ChunkPosition, Event, GaveUp, Outcome, Verb, Violation, Want};
pub use self::options::{BurstSize, Chunking, Notifications, Options, PipelineMode, StartTls, StopPoint};
pub use crate::settings::Protocol;

/// The client's side of an SMTP or LMTP session. The caller owns the connection: it passes in
/// received bytes and writes the bytes of `out`.
#[derive(Debug)]
pub struct Client {
    reader: ReplyReader,
    state: ClientState,
    core: ClientCore,
}

impl Client {
    /// Creates a session for a new connection, which waits for the server's greeting. `name` is the
    /// client's name in EHLO.
    pub fn new(name: Arc<str>, pipelining: PipelineMode, now: Duration) -> Self {
        let core = ClientCore::new(name, pipelining, now);
        let state = ClientState::SetUp(SetUpState::ExpectGreeting(None));
        Self { reader: ReplyReader::default(), state, core }
    }

    /// Creates a session with options, such as STARTTLS or AUTH. SCRAM-SHA-256 needs `nonce` and is
    /// not used without it.
    pub fn with_options(name: Arc<str>, options: Arc<Options>, nonce: Option<Nonce>, now: Duration) -> Self {
        let mut client = Self::new(name, options.pipelining, now);
        client.core.protocol = options.protocol;
        client.core.chunking = options.chunking;
        client.core.burst = options.burst;
        client.core.quit_timeout = options.quit_timeout;
        client.core.greeting_timeout = options.greeting_timeout;
        client.core.message_timeout = options.message_timeout;
        client.core.stop_after = options.stop_after;
        if options.stop_after.is_some() {
            // Do not pipeline. Otherwise, the client would send commands before the reply after which it must stop.
            client.core.pipelining = PipelineMode::Off;
            client.core.chunking = Chunking::Never;
        }
        let setup = Box::new(SessionSetup::new(options, nonce));
        client.state = ClientState::SetUp(SetUpState::ExpectGreeting(Some(setup)));
        client
    }

    /// Removes one reply from the front of `input`, and appends the client's next commands to `out`. Returns `None` if
    /// the session needs more bytes. After the end of the session, all further replies are skipped.
    ///
    /// # Errors
    /// Returns a [`Violation`] if the server breaks the protocol. The caller must then close the connection.
    pub fn next_event<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
        now: Duration,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event<'s>>, Violation> {
        if input.is_empty() {
            self.reader.release();
            return Ok(None);
        }
        match self.state {
            ClientState::Closed(_) => {
                *input = &[];
                return Ok(None);
            }
            ClientState::SetUp(SetUpState::ExpectTls(_)) => {
                self.state = ClientState::Closed(None);
                return Err(Violation::Injected(std::mem::take(input).len()));
            }
            ClientState::SetUp(_) | ClientState::Transaction(_) | ClientState::ExpectQuit => {}
        }
        let reply = match self.reader.next(input) {
            Ok(Some(reply)) => reply,
            Ok(None) => return Ok(None),
            Err(error) => {
                self.state = ClientState::Closed(self.state.awaited(&self.core));
                return Err(Violation::Malformed(error));
            }
        };
        self.core.last_received = now;
        let written = out.len();
        let event = self.state.receive(reply, &mut self.core, out)?;
        if event.reply.code() == 421 {
            self.state = ClientState::Closed(self.state.awaited(&self.core));
        } else if let Some(point) = self.core.stop_after
            && self.core.is_reached(point, &event)
        {
            // `receive` has already written the next command to `out`, so replace it by QUIT. After DATA, only close
            // the connection, because the server would take QUIT for a line of the message.
            out.truncate(written);
            self.core.due.clear();
            self.core.stop_after = None;
            self.state = if point == StopPoint::Data { ClientState::Closed(None) } else { setup::quit(out) };
        }
        Ok(Some(event))
    }

    fn take_state(&mut self) -> ClientState {
        std::mem::replace(&mut self.state, ClientState::Closed(None))
    }

    /// Turns each transaction into a probe, which sends no message. The session sends MAIL and each RCPT, waits for
    /// each reply, and then sends RSET in place of DATA.
    #[must_use]
    pub fn probing(mut self) -> Self {
        self.core.is_probe = true;
        self.core.pipelining = PipelineMode::Off;
        self
    }

    /// Begins the transaction of the next message by writing MAIL. If both sides pipeline, also writes all RCPT and,
    /// unless the message is sent in chunks, DATA. Does nothing if the session is not ready for a transaction.
    pub fn begin(&mut self, envelope: Arc<Envelope>, now: Duration, out: &mut Vec<u8>) {
        self.core.last_received = now;
        if let ClientState::Transaction(sending @ SendState::Idle) = &mut self.state {
            *sending = self.core.begin(envelope, out);
        }
    }

    /// Tells the session that the message and its end of data are being sent, so that it expects a
    /// reply. Does nothing if no [message is wanted](Want::Message).
    pub fn message_sent(&mut self, now: Duration) {
        if let ClientState::Transaction(sending @ SendState::Message) = &mut self.state {
            self.core.last_received = now;
            *sending = self.core.message_sent();
        }
    }

    /// Announces a chunk of `bytes` bytes of the message. The caller must append the chunk's bytes
    /// to `out` unchanged. If no [chunk is wanted](Want::Chunk), this writes nothing and returns
    /// `false`.
    pub fn chunk(&mut self, bytes: u64, part: ChunkPosition, now: Duration, out: &mut Vec<u8>) -> bool {
        match &mut self.state {
            ClientState::Transaction(sending @ SendState::Chunks) if self.core.wants_chunk() => {
                self.core.last_received = now;
                *sending = self.core.chunk(bytes, part, out);
                true
            }
            _ => false,
        }
    }

    /// Tells the session that part of a message was sent. This restarts the time-out for the reply,
    /// because a peer that still receives the message cannot answer it yet.
    pub fn progressed(&mut self, now: Duration) {
        self.core.last_received = now;
    }

    /// Tells the session that TLS has begun. If the session [requested TLS](Want::Tls), it sends EHLO again, because
    /// everything received in the clear must be discarded (RFC 3207 §4.2). If TLS begins before the greeting, the
    /// caller must call this before it passes the first reply to the session.
    pub fn tls_started(&mut self, now: Duration, out: &mut Vec<u8>) {
        self.core.last_received = now;
        self.core.is_over_tls = true;
        self.state = match self.take_state() {
            ClientState::SetUp(SetUpState::ExpectTls(_)) if self.core.stop_after == Some(StopPoint::Tls) => {
                setup::quit(out)
            }
            ClientState::SetUp(SetUpState::ExpectTls(setup)) => {
                self.core.extensions = Extensions::default();
                setup::hello(Some(setup), &self.core, out)
            }
            other => other,
        };
    }

    /// Sends QUIT, unless the session is over. If replies to earlier commands still arrive, they no longer have an
    /// effect.
    pub fn quit(&mut self, now: Duration, out: &mut Vec<u8>) {
        self.core.last_received = now;
        self.state = self.take_state().quit(&mut self.core, out);
    }

    /// Returns what the caller has to do next, for example to read replies or to write the message.
    pub fn wants(&self) -> Want {
        match &self.state {
            ClientState::Closed(_) => Want::Close,
            ClientState::SetUp(SetUpState::ExpectTls(_)) => Want::Tls,
            ClientState::Transaction(SendState::Message) => Want::Message,
            ClientState::Transaction(SendState::Chunks) if self.core.wants_chunk() => Want::Chunk,
            ClientState::Transaction(SendState::Idle) if self.core.due.is_empty() => Want::Transaction,
            ClientState::SetUp(_) | ClientState::Transaction(_) | ClientState::ExpectQuit => Want::Replies,
        }
    }

    /// Returns true if the next transaction may [begin](Client::begin) in the same write as the message that was just
    /// [sent](Client::message_sent). RFC 2920 §3.1 allows MAIL directly after the end of data, without waiting for the
    /// reply to the message.
    ///
    /// After the last BDAT, MAIL must wait until the peer has accepted a recipient of the message. Without a recipient,
    /// the message fails, and the peer may expect RSET first (RFC 3030 §2). With BDAT, the client sends even the
    /// content of the next message before it knows the result of the current one. If the connection breaks, the results
    /// of at most two messages are unknown, unless the options allow [more](Options::burst).
    pub fn may_begin_early(&self) -> bool {
        matches!(self.state, ClientState::Transaction(SendState::Idle)) && self.core.may_begin_early()
    }

    /// Returns true if several messages may be [in transit](Options::burst) at a time.
    pub fn bursts(&self) -> bool {
        self.core.bursts()
    }

    /// Returns true if the caller may hold back output of `bytes` bytes, in order to write it together with another
    /// message. If not, the caller must write the output at once, so that the peer can already process it.
    pub fn may_hold_back(&self, bytes: usize) -> bool {
        !self.core.bursts() || bytes < self.core.burst.bytes
    }

    /// Returns the extensions in the server's latest reply to EHLO.
    pub fn extensions(&self) -> &Extensions {
        &self.core.extensions
    }

    /// Returns why the session sent QUIT before its first transaction, if it did.
    pub fn gave_up(&self) -> Option<GaveUp> {
        self.core.gave_up
    }

    /// Returns the mechanism with which the session logged in, or is trying to log in.
    pub fn mechanism(&self) -> Option<Mechanism> {
        self.core.mechanism
    }

    /// Returns the command whose reply is awaited, if there is one.
    pub fn waits_for(&self) -> Option<Verb> {
        self.state.awaited(&self.core)
    }

    /// Returns the number of messages whose final reply is awaited.
    pub fn awaited_messages(&self) -> usize {
        self.core.due.iter().filter(|due| **due == DueReply::Message).count()
    }

    /// Returns true if the only awaited reply is the reply to a message. If the peer then resets the connection because
    /// it has not read all bytes, the unread bytes belong to this message. With LMTP, returns false while replies for
    /// several recipients are awaited, because a peer that breaks off between these replies has already read the whole
    /// message.
    pub fn awaits_last_reply_to_message(&self) -> bool {
        self.core.due.len() == 1 && self.awaited_messages() == 1 && self.core.accepted_recipients.len() <= 1
    }

    /// Returns the time at which the session times out, or `None` if no reply is awaited. `timeout` is the longest wait
    /// for each reply. The options may shorten it for the greeting and QUIT, and lengthen it for messages.
    pub fn deadline(&self, timeout: Duration) -> Option<Duration> {
        let wait = match self.waits_for()? {
            _ if matches!(self.state, ClientState::ExpectQuit) => {
                timeout.min(self.core.quit_timeout.unwrap_or(timeout))
            }
            Verb::Greeting => timeout.min(self.core.greeting_timeout.unwrap_or(timeout)),
            Verb::Message | Verb::Delivery(_) => timeout.max(self.core.message_timeout.unwrap_or(timeout)),
            _ => timeout,
        };
        Some(self.core.last_received + wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::ReplyError;
    use crate::sasl::client::ExchangeError;
    use crate::sasl::{self, Credentials};
    use crate::xclient::XclientRequest;

    const NOW: Duration = Duration::ZERO;

    /// Runs a client against a scripted server. Lines that start with `< ` are replies of the server, and the client's
    /// output must match the lines that start with `> ` after them. `> (message)` stands for a message, and `> (tls)`
    /// for the start of TLS. With BDAT, the message consists of the chunk `hello` and an empty last chunk.
    fn dialogue(pipelining: PipelineMode, recipients: &[&str], messages: u32, script: &str) {
        play(Client::new("me".into(), pipelining, NOW), recipients, messages, script);
    }

    fn dialogue_with(options: Options, recipients: &[&str], messages: u32, script: &str) -> Client {
        let client = Client::with_options("me".into(), Arc::new(options), Some([7; 18]), NOW);
        play(client, recipients, messages, script)
    }

    fn play(mut client: Client, recipients: &[&str], messages: u32, script: &str) -> Client {
        let envelope = Arc::new(Envelope::new("a@b", "", recipients.iter().copied()).unwrap());
        let mut caller = ScriptedCaller { left: messages, envelope, is_half_way: false };
        let mut output = String::new();
        let mut expected = String::new();
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(text) = line.strip_prefix(">") {
                expected += &format!("{}\n", text.strip_prefix(' ').unwrap_or(text));
                continue;
            }
            assert_eq!(output, expected, "before {line}");
            let bytes = format!("{}\r\n", line.strip_prefix("< ").expect("a line is < or >"));
            let mut out = Vec::new();
            for byte in bytes.as_bytes().chunks(1) {
                let mut input = byte;
                client.next_event(&mut input, NOW, &mut out).expect("the script is well-formed");
            }
            while caller.act(&mut client, &mut out) {}
            output += &String::from_utf8(out).unwrap().replace("\r\n", "\n");
        }
        assert_eq!(output, expected);
        client
    }

    struct ScriptedCaller {
        left: u32,
        envelope: Arc<Envelope>,
        /// Set when the first chunk of the current message has been sent.
        is_half_way: bool,
    }

    impl ScriptedCaller {
        /// Does what [`Client::wants`] requests. Returns true if the caller must call `act` again.
        fn act(&mut self, client: &mut Client, out: &mut Vec<u8>) -> bool {
            match client.wants() {
                Want::Transaction if self.left > 0 => {
                    self.left -= 1;
                    self.is_half_way = false;
                    client.begin(self.envelope.clone(), NOW, out);
                    return true;
                }
                Want::Transaction => client.quit(NOW, out),
                Want::Message => {
                    out.extend_from_slice(b"(message)\r\n");
                    client.message_sent(NOW);
                }
                Want::Chunk => {
                    let (text, part) =
                        if self.is_half_way { ("", ChunkPosition::Last) } else { ("hello\r\n", ChunkPosition::Middle) };
                    self.is_half_way = !self.is_half_way;
                    assert!(client.chunk(text.len() as u64, part, NOW, out));
                    out.extend_from_slice(text.as_bytes());
                    return true;
                }
                Want::Tls => {
                    out.extend_from_slice(b"(tls)\r\n");
                    client.tls_started(NOW, out);
                }
                Want::Replies | Want::Close => {}
            }
            false
        }
    }

    const READY: &str = "< 220 hi\n> EHLO me\n< 250-x\n< 250 PIPELINING\n";

    #[test]
    fn a_session_ends_at_the_point_that_it_was_told() {
        const HELLO: &str = "< 220 hi\n> EHLO me\n< 250-x\n< 250-STARTTLS\n< 250 PIPELINING\n";
        const MAIL: &str = "> MAIL FROM:<a@b>\n< 250 ok\n";
        const RECIPIENTS: &str = "> RCPT TO:<c@d>\n< 250 ok\n> RCPT TO:<e@f>\n< 550 no\n";
        for (point, parts) in [
            (StopPoint::Greeting, &["< 220 hi\n", "> QUIT\n< 221 bye\n"][..]),
            (StopPoint::Hello, &[HELLO, "> QUIT\n"]),
            (StopPoint::Hello, &["< 220 hi\n> EHLO me\n< 500 what\n> HELO me\n< 250 x\n> QUIT\n"]),
            (StopPoint::Mail, &[HELLO, MAIL, "> QUIT\n< 221 bye\n"]),
            (StopPoint::Recipients, &[HELLO, MAIL, RECIPIENTS, "> QUIT\n"]),
            (StopPoint::Data, &[HELLO, MAIL, RECIPIENTS, "> DATA\n< 354 go\n"]),
        ] {
            let options = Options { stop_after: Some(point), pipelining: PipelineMode::Group, ..Options::default() };
            let client = dialogue_with(options, &["c@d", "e@f"], 1, &parts.concat());
            assert!(point != StopPoint::Data || client.wants() == Want::Close);
        }
        let tls = Options { stop_after: Some(StopPoint::Tls), tls: StartTls::Required, ..Options::default() };
        dialogue_with(tls, &["c@d"], 1, &[HELLO, "> STARTTLS\n< 220 go\n> (tls)\n> QUIT\n"].concat());
    }

    #[test]
    fn a_probe_resets_in_place_of_sending_a_message() {
        let mut client = Client::new("me".into(), PipelineMode::Group, Duration::ZERO).probing();
        let mut output = Vec::new();
        let hear = |client: &mut Client, text: &str, output: &mut Vec<u8>| {
            let mut input = text.as_bytes();
            while client.next_event(&mut input, Duration::ZERO, output).unwrap().is_some() {}
        };
        hear(&mut client, "220 a\r\n250-a\r\n250 PIPELINING\r\n", &mut output);
        let envelope = Arc::new(Envelope::new("a@b.example", "", ["c@d.example"]).unwrap());
        client.begin(envelope, Duration::ZERO, &mut output);
        hear(&mut client, "250 ok\r\n", &mut output);
        hear(&mut client, "250 ok\r\n", &mut output);
        assert!(output.ends_with(b"RCPT TO:<c@d.example>\r\nRSET\r\n"), "{}", output.escape_ascii());
        hear(&mut client, "250 ok\r\n", &mut output);
        assert_eq!(client.wants(), Want::Transaction);
    }

    #[test]
    fn lock_step_sends_one_command_at_a_time() {
        let rest = "> MAIL FROM:<a@b>\n< 250 ok\n> RCPT TO:<c@d>\n< 250 ok\n> DATA\n< 354 go\n> (message)\n< 250 \
                    ok\n> QUIT\n< 221 bye";
        dialogue(PipelineMode::Off, &["c@d"], 1, &[READY, rest].concat());
    }

    #[test]
    fn a_group_goes_out_in_one_piece_and_only_where_offered() {
        let group = "> MAIL FROM:<a@b>\n> RCPT TO:<c@d>\n> DATA\n< 250 ok\n< 250 ok\n< 354 go\n> (message)\n< 250 \
                     ok\n> QUIT\n< 221 bye";
        dialogue(PipelineMode::Group, &["c@d"], 1, &[READY, group].concat());
        let plain =
            "< 220 hi\n> EHLO me\n< 500 what\n> HELO me\n< 250 hi\n> MAIL FROM:<a@b>\n< 250 ok\n> RCPT TO:<c@d>\n";
        dialogue(PipelineMode::Group, &["c@d"], 1, plain);
    }

    #[test]
    fn refusals_reset_only_what_stands() {
        let mail = "> MAIL FROM:<a@b>\n< 550 no\n> QUIT\n< 221 bye";
        dialogue(PipelineMode::Off, &["c@d"], 1, &[READY, mail].concat());
        let all = "> MAIL FROM:<a@b>\n< 250 ok\n> RCPT TO:<c@d>\n< 550 no\n> RCPT TO:<e@f>\n< 450 no\n> RSET\n< 250 \
                   ok\n> QUIT\n< 221 bye";
        dialogue(PipelineMode::Off, &["c@d", "e@f"], 1, &[READY, all].concat());
        let one = "> MAIL FROM:<a@b>\n< 250 ok\n> RCPT TO:<c@d>\n< 550 no\n> RCPT TO:<e@f>\n< 250 ok\n> DATA\n< 451 \
                   no\n> RSET\n< 250 ok\n> QUIT";
        dialogue(PipelineMode::Off, &["c@d", "e@f"], 1, &[READY, one].concat());
        let group = "> MAIL FROM:<a@b>\n> RCPT TO:<c@d>\n> DATA\n< 250 ok\n< 550 no\n< 554 no\n> RSET\n< 250 ok\n> \
                     MAIL FROM:<a@b>\n> RCPT TO:<c@d>\n> DATA\n";
        dialogue(PipelineMode::Group, &["c@d"], 2, &[READY, group].concat());
        let empty = "> MAIL FROM:<a@b>\n> RCPT TO:<c@d>\n> DATA\n< 250 ok\n< 550 no\n< 354 go\n> .\n< 554 no\n> QUIT\n";
        dialogue(PipelineMode::Group, &["c@d"], 1, &[READY, empty].concat());
        let no_mail =
            "> MAIL FROM:<a@b>\n> RCPT TO:<c@d>\n> DATA\n< 550 no\n< 250 ok\n< 354 go\n> .\n< 250 ok\n> QUIT\n";
        dialogue(PipelineMode::Group, &["c@d"], 1, &[READY, no_mail].concat());
    }

    #[test]
    fn a_peer_that_has_lost_track_of_the_session_gets_no_other_message() {
        let mail = "> MAIL FROM:<a@b>\n< 250 ok\n> RCPT TO:<c@d>\n";
        let rows = [
            "< 550 no\n> RSET\n< 503 bad sequence\n> QUIT\n",
            "< 503 bad sequence\n> QUIT\n",
            "< 250 ok\n> DATA\n< 502 what\n> QUIT\n",
            "< 250 ok\n> DATA\n< 354 go\n> (message)\n< 500 what\n> QUIT\n",
        ];
        for row in rows {
            dialogue(PipelineMode::Off, &["c@d"], 2, &[READY, mail, row].concat());
        }
        dialogue(PipelineMode::Off, &["c@d"], 2, &[READY, "> MAIL FROM:<a@b>\n< 530 TLS first\n> QUIT\n"].concat());
        let group = "> MAIL FROM:<a@b>\n> RCPT TO:<c@d>\n> RCPT TO:<e@f>\n> DATA\n";
        let rows = [
            "< 503 bad sequence\n< 503 bad sequence\n< 503 bad sequence\n< 503 bad sequence\n> QUIT\n",
            "< 250 ok\n< 503 bad sequence\n< 250 ok\n< 354 go\n> (message)\n< 250 ok\n> QUIT\n",
            // In the next two rows, the peer refuses MAIL or all recipients, so a 503 to the commands that follow is
            // correct. The client must send its next message.
            "< 550 no\n< 503 what\n< 503 what\n< 503 what\n> MAIL FROM:<a@b>\n> RCPT TO:<c@d>\n> RCPT TO:<e@f>\n> DATA\n",
            "< 250 ok\n< 550 no\n< 550 no\n< 503 what\n> RSET\n< 250 ok\n> MAIL FROM:<a@b>\n> RCPT TO:<c@d>\n> RCPT TO:<e@f>\n> DATA\n",
        ];
        for row in rows {
            dialogue(PipelineMode::Group, &["c@d", "e@f"], 2, &[READY, group, row].concat());
        }
    }

    #[test]
    fn helo_does_not_follow_an_ehlo_that_worked_before() {
        let script = "< 220 hi\n> EHLO me\n< 250-x\n< 250 STARTTLS\n> STARTTLS\n< 220 go\n> (tls)\n> EHLO me\n< 503 \
                      what\n> QUIT\n";
        dialogue_with(with_tls(StartTls::IfOffered), &["c@d"], 1, script);
    }

    #[test]
    fn ehlo_put_off_is_not_answered_with_helo() {
        dialogue(PipelineMode::Off, &["c@d"], 1, "< 220 hi\n> EHLO me\n< 450 not now\n> QUIT\n< 221 bye");
        dialogue(
            PipelineMode::Off,
            &["c@d"],
            1,
            "< 220 hi\n> EHLO me\n< 500 no\n> HELO me\n< 500 no\n> QUIT\n< 221 bye",
        );
    }

    /// Passes the server's `replies` to a client that begins the next message before it knows the result of the current
    /// one. Returns the outcome of each reply, the number of certain results, and the violation, if any.
    fn streamed(replies: &str) -> (Vec<Option<Outcome>>, u32, Option<Violation>) {
        let mut client = Client::new("me".into(), PipelineMode::Group, NOW);
        let envelope = Arc::new(Envelope::new("a@b", "", ["c@d"]).unwrap());
        let (mut ends, mut settled, mut out) = (Vec::new(), 0, Vec::new());
        let mut input = replies.as_bytes();
        loop {
            match client.next_event(&mut input, NOW, &mut out) {
                Ok(Some(event)) => {
                    ends.push(event.ends);
                    settled += event.settled;
                }
                Ok(None) => return (ends, settled, None),
                Err(violation) => return (ends, settled, Some(violation)),
            }
            if client.wants() == Want::Message {
                client.message_sent(NOW);
                assert!(client.may_begin_early());
                client.begin(envelope.clone(), NOW, &mut out);
            } else if client.wants() == Want::Transaction {
                client.begin(envelope.clone(), NOW, &mut out);
            }
        }
    }

    const TO_DOT: &str = "220 hi\r\n250-x\r\n250 PIPELINING\r\n250 2.1.0 ok\r\n250 2.1.5 ok\r\n354 go\r\n";

    #[test]
    fn a_reply_that_its_command_cannot_have_is_a_violation() {
        let ready = "220 hi\r\n250-x\r\n250 PIPELINING\r\n";
        for (before, code) in [
            ([ready, "354 go\r\n"].concat(), 354),
            ([ready, "250 ok\r\n354 go\r\n"].concat(), 354),
            ([ready, "250 ok\r\n250 ok\r\n250 ok\r\n"].concat(), 250),
            ([TO_DOT, "354 go\r\n"].concat(), 354),
            ([TO_DOT, "250 2.1.0 ok\r\n"].concat(), 250),
        ] {
            assert_eq!(streamed(&before).2, Some(Violation::Misplaced(code)), "{before}");
        }
    }

    #[test]
    fn a_result_is_certain_when_no_reply_can_be_missing() {
        for (rest, settled) in [
            // A 250 without an enhanced status code does not show which command it answers. The message's result is
            // then certain only when every command has been answered.
            ("250 ok\r\n250 ok\r\n250 ok\r\n", 0),
            ("250 ok\r\n250 ok\r\n250 ok\r\n354 go\r\n", 1),
            ("250 ok\r\n421 4.3.2 enough\r\n", 0),
            // The enhanced status code 2.0.0 shows that this 250 answers the message.
            ("250 2.0.0 ok\r\n", 1),
        ] {
            let (ends, count, violation) = streamed(&[TO_DOT, rest].concat());
            assert_eq!((count, violation), (settled, None), "{rest}");
            assert_eq!(ends[5], Some(Outcome::Accepted));
        }
    }

    #[test]
    fn a_421_or_a_refused_greeting_ends_it() {
        dialogue(PipelineMode::Off, &["c@d"], 1, "< 554 no\n> QUIT\n< 221 bye\n");
        for bytes in ["421 no\r\n", "220 hi\r\n421 bye\r\n"] {
            let mut client = Client::new("me".into(), PipelineMode::Off, NOW);
            let mut input = bytes.as_bytes();
            while client.next_event(&mut input, NOW, &mut Vec::new()).unwrap().is_some() {}
            assert_eq!(client.wants(), Want::Close);
        }
    }

    #[test]
    fn a_refusal_in_mid_message_is_the_answer_to_it_and_ends_the_session() {
        let mut client = Client::new("me".into(), PipelineMode::Off, NOW);
        let mut input = b"220 hi\r\n250 x\r\n".as_slice();
        let mut out = Vec::new();
        while client.next_event(&mut input, NOW, &mut out).unwrap().is_some() {}
        client.begin(Arc::new(Envelope::new("a@b", "", ["c@d"]).unwrap()), NOW, &mut out);
        let mut input = b"250 ok\r\n250 ok\r\n354 go\r\n552 too big\r\n250 late\r\n".as_slice();
        for _ in 0..3 {
            assert_eq!(client.next_event(&mut input, NOW, &mut out).unwrap().unwrap().ends, None);
        }
        assert_eq!(client.wants(), Want::Message);
        let event = client.next_event(&mut input, NOW, &mut out).unwrap().unwrap();
        assert_eq!((event.to, event.reply.code(), event.ends), (Verb::Message, 552, Some(Outcome::Refused)));
        client.message_sent(NOW);
        assert_eq!(client.wants(), Want::Close);
        assert_eq!(client.next_event(&mut input, NOW, &mut out), Ok(None), "what comes later is passed over");
        assert!(input.is_empty());
    }

    #[test]
    fn nothing_a_peer_says_makes_a_session_grow() {
        let endless: [&[u8]; 4] = [b"2", b"250-and on\r\n", b"250 ", b"250\r"];
        for endless in endless {
            let mut client = Client::new("me".into(), PipelineMode::Off, NOW);
            let mut outcome = Ok(());
            let block = endless.repeat(16);
            for _ in 0..10_000 {
                let mut input = block.as_slice();
                outcome = outcome.and(client.next_event(&mut input, NOW, &mut Vec::new()).map(|_| ()));
                assert!(client.reader.heap_bytes() <= 2 * crate::reply::MAX_REPLY_BYTES);
            }
            assert_eq!(outcome, Err(Violation::Malformed(ReplyError::TooLong)));
            assert_eq!(client.wants(), Want::Close, "nothing is wanted of such a peer");
        }
    }

    #[test]
    fn a_reply_to_nothing_is_a_violation() {
        let mut client = Client::new("me".into(), PipelineMode::Off, NOW);
        let mut input = b"220 hi\r\n250 x\r\n250 again\r\n".as_slice();
        let mut out = Vec::new();
        assert!(client.next_event(&mut input, NOW, &mut out).unwrap().is_some());
        assert!(client.next_event(&mut input, NOW, &mut out).unwrap().is_some());
        assert_eq!(client.next_event(&mut input, NOW, &mut out), Err(Violation::Unasked(250)));
    }

    #[test]
    fn the_answer_to_quit_may_be_worth_less_patience() {
        let second = Duration::from_secs;
        for (quit_patience, expected) in [(None, 300), (Some(second(10)), 10), (Some(second(900)), 300)] {
            let greeting_timeout = quit_patience.map(|time| time * 2);
            let options = Options { quit_timeout: quit_patience, greeting_timeout, ..Options::default() };
            let mut client = Client::with_options("me".into(), Arc::new(options), None, NOW);
            let greeting = if expected == 10 { 20 } else { 300 };
            assert_eq!(client.deadline(second(300)), Some(NOW + second(greeting)), "the greeting");
            client.quit(NOW, &mut Vec::new());
            assert_eq!(client.deadline(second(300)), Some(NOW + second(expected)));
        }
    }

    #[test]
    fn the_reply_to_a_message_may_take_longer() {
        let second = Duration::from_secs;
        let options = Options { message_timeout: Some(second(600)), ..Options::default() };
        let script = "< 220 hi\n> EHLO me\n< 250 x\n> MAIL FROM:<a@b>\n< 250 ok\n> RCPT TO:<c@d>\n< 250 ok\n> DATA\n";
        let client = dialogue_with(options.clone(), &["c@d"], 1, script);
        assert_eq!(client.deadline(second(300)), Some(NOW + second(300)));
        let client = dialogue_with(options, &["c@d"], 1, &[script, "< 354 go\n> (message)\n"].concat());
        assert_eq!(client.deadline(second(300)), Some(NOW + second(600)));
        assert_eq!(client.deadline(second(900)), Some(NOW + second(900)));
    }

    const CHUNKS: Options = Options {
        protocol: Protocol::Smtp,
        pipelining: PipelineMode::Group,
        tls: StartTls::Never,
        credentials: None,
        chunking: Chunking::IfOffered,
        xclient: None,
        notifications: Notifications::Unasked,
        burst: BurstSize::NONE,
        quit_timeout: None,
        refuses_own_name: false,
        greeting_timeout: None,
        message_timeout: None,
        stop_after: None,
    };
    const OFFERED: &str = "< 220 hi\n> EHLO me\n< 250-x\n< 250-PIPELINING\n< 250 CHUNKING\n";
    const ALONE: &str = "< 220 hi\n> EHLO me\n< 250-x\n< 250 CHUNKING\n";
    const IN_ONE: &str = "> MAIL FROM:<a@b>\n> RCPT TO:<c@d>\n> RCPT TO:<e@f>\n> BDAT 7\n> hello\n> BDAT 0 LAST\n";

    #[test]
    fn chunks_go_out_with_their_commands_in_one_piece() {
        let yes = "< 250 ok\n< 250 ok\n< 550 no\n< 250 7\n< 250 ok\n> QUIT\n< 221 bye";
        dialogue_with(CHUNKS, &["c@d", "e@f"], 1, &[OFFERED, IN_ONE, yes].concat());
        let plain = "> MAIL FROM:<a@b>\n> RCPT TO:<c@d>\n> DATA\n";
        dialogue_with(CHUNKS, &["c@d"], 1, &[READY, plain].concat());
    }

    #[test]
    fn without_pipelining_each_chunk_waits_for_its_reply() {
        let rest = "> MAIL FROM:<a@b>\n< 250 ok\n> RCPT TO:<c@d>\n< 250 ok\n> BDAT 7\n> hello\n< 250 ok\n> BDAT 0 \
                    LAST\n< 250 ok\n> QUIT\n";
        dialogue_with(CHUNKS, &["c@d"], 1, &[ALONE, rest].concat());
        let refused = "> MAIL FROM:<a@b>\n< 250 ok\n> RCPT TO:<c@d>\n< 250 ok\n> BDAT 7\n> hello\n< 452 full\n> \
                       RSET\n< 250 ok\n> QUIT\n";
        dialogue_with(CHUNKS, &["c@d"], 1, &[ALONE, refused].concat());
        let nobody = "> MAIL FROM:<a@b>\n< 250 ok\n> RCPT TO:<c@d>\n< 550 no\n> RSET\n< 250 ok\n> QUIT\n";
        dialogue_with(CHUNKS, &["c@d"], 1, &[ALONE, nobody].concat());
    }

    #[test]
    fn a_chunked_message_that_failed_is_reset() {
        let rows = [
            "< 550 no\n< 503 no\n< 503 no\n< 503 no\n< 503 no\n> QUIT\n",
            "< 250 ok\n< 550 no\n< 550 no\n< 554 no\n< 554 no\n> RSET\n< 250 ok\n> QUIT\n",
            "< 250 ok\n< 250 ok\n< 250 ok\n< 452 no\n< 503 no\n> RSET\n< 250 ok\n> QUIT\n",
            "< 250 ok\n< 250 ok\n< 250 ok\n< 250 ok\n< 552 no\n> RSET\n< 250 ok\n> QUIT\n",
            // The peer refuses the first chunk (452) but accepts the last chunk. The message must still count as
            // refused.
            "< 250 ok\n< 250 ok\n< 250 ok\n< 452 no\n< 250 ok\n> RSET\n< 250 ok\n> QUIT\n",
        ];
        for rest in rows {
            dialogue_with(CHUNKS, &["c@d", "e@f"], 1, &[OFFERED, IN_ONE, rest].concat());
        }
    }

    #[test]
    fn a_transaction_that_fails_before_its_last_chunk_ends_there() {
        let options = Arc::new(CHUNKS);
        let mut client = Client::with_options("me".into(), options, None, NOW);
        let mut out = Vec::new();
        let mut hear = |client: &mut Client, bytes: &str| {
            let mut input = bytes.as_bytes();
            let mut ends = Vec::new();
            while let Some(event) = client.next_event(&mut input, NOW, &mut out).unwrap() {
                ends.extend(event.ends);
            }
            ends
        };
        hear(&mut client, "220 hi\r\n250-x\r\n250-PIPELINING\r\n250 CHUNKING\r\n");
        client.begin(Arc::new(Envelope::new("a@b", "", ["c@d"]).unwrap()), NOW, &mut Vec::new());
        assert!(client.chunk(5, ChunkPosition::Middle, NOW, &mut Vec::new()));
        assert_eq!((hear(&mut client, "250 ok\r\n550 no\r\n"), client.wants()), (vec![], Want::Replies));
        assert!(!client.chunk(5, ChunkPosition::Middle, NOW, &mut Vec::new()), "no chunk is wanted any more");
        assert_eq!(hear(&mut client, "554 no\r\n"), [Outcome::Refused]);
        assert_eq!((client.wants(), client.waits_for()), (Want::Replies, Some(Verb::Reset)));
        assert!(hear(&mut client, "250 ok\r\n").is_empty());
        assert_eq!(client.wants(), Want::Transaction);
        assert!(out.ends_with(b"RSET\r\n"));
    }

    fn lmtp() -> Options {
        Options { protocol: Protocol::Lmtp, ..Options::default() }
    }

    #[test]
    fn lmtp_has_a_reply_for_each_recipient_that_was_taken() {
        let to_dot = "< 220 hi\n> LHLO me\n< 250 x\n> MAIL FROM:<a@b>\n< 250 ok\n> RCPT TO:<c@d>\n< 250 ok\n> RCPT \
                      TO:<e@f>\n< 550 no\n> RCPT TO:<g@h>\n< 250 ok\n> DATA\n< 354 go\n> (message)\n";
        let recipients = ["c@d", "e@f", "g@h"];
        dialogue_with(lmtp(), &recipients, 1, &[to_dot, "< 250 ok\n< 452 full\n> QUIT\n"].concat());
        dialogue_with(lmtp(), &recipients, 1, &[to_dot, "< 452 full\n< 452 full\n> QUIT\n"].concat());
        dialogue_with(lmtp(), &["c@d"], 1, "< 220 hi\n> LHLO me\n< 500 what\n> QUIT\n");
    }

    #[test]
    fn lmtp_tells_which_recipient_a_reply_is_for() {
        let mut client = Client::with_options("me".into(), Arc::new(lmtp()), None, NOW);
        let mut input = b"220 hi\r\n250-x\r\n250 PIPELINING\r\n".as_slice();
        let mut out = Vec::new();
        while client.next_event(&mut input, NOW, &mut out).unwrap().is_some() {}
        client.begin(Arc::new(Envelope::new("a@b", "", ["c@d", "e@f", "g@h"]).unwrap()), NOW, &mut out);
        let mut input = b"250 ok\r\n250 ok\r\n550 no\r\n250 ok\r\n354 go\r\n".as_slice();
        while client.wants() != Want::Message {
            client.next_event(&mut input, NOW, &mut out).unwrap().expect("it is all there");
        }
        client.message_sent(NOW);
        assert_eq!(client.waits_for(), Some(Verb::Delivery(0)));
        let mut input = b"250 ok\r\n452 full\r\n".as_slice();
        let event = client.next_event(&mut input, NOW, &mut out).unwrap().unwrap();
        assert_eq!((event.to, event.ends), (Verb::Delivery(0), None));
        let event = client.next_event(&mut input, NOW, &mut out).unwrap().unwrap();
        assert_eq!((event.to, event.reply.code(), event.ends), (Verb::Delivery(2), 452, Some(Outcome::Accepted)));
    }

    fn with_tls(tls: StartTls) -> Options {
        Options { tls, ..Options::default() }
    }

    #[test]
    fn tls_is_begun_where_it_is_wanted_and_offered() {
        let offered = "< 220 hi\n> EHLO me\n< 250-x\n< 250 STARTTLS\n";
        let granted = [offered, "> STARTTLS\n< 220 go\n> (tls)\n> EHLO me\n< 250 x\n> QUIT\n"].concat();
        let refused = [offered, "> STARTTLS\n< 454 no\n> QUIT\n"].concat();
        let missing = "< 220 hi\n> EHLO me\n< 250 x\n> QUIT\n";
        let rows = [
            (StartTls::Required, granted.as_str(), None),
            (StartTls::IfOffered, &granted, None),
            (StartTls::Required, &refused, Some(GaveUp::TlsRefused)),
            (StartTls::IfOffered, &refused, None),
            (StartTls::Required, missing, Some(GaveUp::NoTls)),
            (StartTls::IfOffered, missing, None),
            (StartTls::Never, &[offered, "> QUIT\n"].concat(), None),
            (StartTls::Required, "< 220 hi\n> EHLO me\n< 500 what\n> HELO me\n< 250 x\n> QUIT\n", Some(GaveUp::NoTls)),
        ];
        for (tls, script, gave_up) in rows {
            assert_eq!(dialogue_with(with_tls(tls), &["c@d"], 0, script).gave_up(), gave_up, "{tls:?}: {script}");
        }
    }

    #[test]
    fn what_was_offered_in_the_clear_does_not_count_over_tls() {
        let script = "< 220 hi\n> EHLO me\n< 250-x\n< 250-PIPELINING\n< 250 STARTTLS\n> STARTTLS\n< 220 go\n> \
                      (tls)\n> EHLO me\n< 250 x\n> MAIL FROM:<a@b>\n";
        let options = Options { pipelining: PipelineMode::Group, ..with_tls(StartTls::Required) };
        let client = dialogue_with(options, &["c@d"], 1, script);
        assert!(!client.extensions().pipelining && !client.extensions().starttls);
    }

    #[test]
    fn octets_behind_the_reply_to_starttls_are_a_violation() {
        let injected = b"250 x\r\n";
        for is_cut in [false, true] {
            let mut client = Client::with_options("me".into(), Arc::new(with_tls(StartTls::Required)), None, NOW);
            let whole = [b"220 hi\r\n250-x\r\n250 STARTTLS\r\n220 go\r\n".as_slice(), injected].concat();
            let (head, tail) = whole.split_at(if is_cut { whole.len() - injected.len() } else { whole.len() });
            let mut outcome = Ok(None);
            let mut events = 0;
            for block in [head, tail] {
                let mut input = block;
                loop {
                    outcome =
                        client.next_event(&mut input, NOW, &mut Vec::new()).map(|event| event.map(|event| event.to));
                    match outcome {
                        Ok(Some(_)) => events += 1,
                        _ => break,
                    }
                }
                if outcome.is_err() {
                    break;
                }
            }
            assert_eq!((outcome, events), (Err(Violation::Injected(7)), 3), "cut: {is_cut}");
            assert_eq!(client.wants(), Want::Close);
        }
    }

    #[test]
    fn tls_from_the_first_octet_on_needs_no_starttls() {
        let mut client = Client::with_options("me".into(), Arc::new(with_tls(StartTls::Required)), None, NOW);
        client.tls_started(NOW, &mut Vec::new());
        let client = play(client, &["c@d"], 0, "< 220 hi\n> EHLO me\n< 250-x\n< 250 STARTTLS\n> QUIT\n");
        assert_eq!(client.gave_up(), None);
    }

    fn logging_in(credentials: Credentials) -> Options {
        Options { credentials: Some(credentials), ..Options::default() }
    }

    fn tim() -> Credentials {
        Credentials::new("tim", "tanstaaftanstaaf")
    }

    const AUTH: &str = "< 220 hi\n> EHLO me\n< 250-x\n< 250 AUTH ";

    #[test]
    fn the_strongest_mechanism_is_chosen_and_the_first_response_goes_with_it() {
        let plain = [AUTH, "LOGIN PLAIN\n> AUTH PLAIN AHRpbQB0YW5zdGFhZnRhbnN0YWFm\n< 235 ok\n> QUIT\n"].concat();
        assert_eq!(dialogue_with(logging_in(tim()), &["c@d"], 0, &plain).mechanism(), Some(Mechanism::Plain));
        let cram = [
            AUTH,
            "LOGIN CRAM-MD5\n> AUTH CRAM-MD5\n< 334 \
                           PDE4OTYuNjk3MTcwOTUyQHBvc3RvZmZpY2UucmVzdG9uLm1jaS5uZXQ+\n> \
                           dGltIGI5MTNhNjAyYzdlZGE3YTQ5NWI0ZTZlNzMzNGQzODkw\n< 235 ok\n> QUIT\n",
        ]
        .concat();
        dialogue_with(logging_in(tim()), &["c@d"], 0, &cram);
        let login = [
            AUTH,
            "LOGIN\n> AUTH LOGIN\n< 334 VXNlcm5hbWU6\n> dGlt\n< 334 UGFzc3dvcmQ6\n> \
                            dGFuc3RhYWZ0YW5zdGFhZg==\n< 235 ok\n> MAIL FROM:<a@b>\n",
        ]
        .concat();
        dialogue_with(logging_in(tim()), &["c@d"], 1, &login);
        let first = sasl::encode(format!("n,,n=tim,r={}", sasl::encode(&[7; 18])).as_bytes());
        let scram = [AUTH, "PLAIN SCRAM-SHA-256\n> AUTH SCRAM-SHA-256 ", &first, "\n"].concat();
        let client = dialogue_with(logging_in(tim()), &["c@d"], 0, &scram);
        assert_eq!(client.mechanism(), Some(Mechanism::ScramSha256));
        let without = [AUTH, "PLAIN SCRAM-SHA-256\n> AUTH PLAIN AHRpbQB0YW5zdGFhZnRhbnN0YWFm\n"].concat();
        play(Client::with_options("me".into(), Arc::new(logging_in(tim())), None, NOW), &["c@d"], 0, &without);
    }

    #[test]
    fn a_response_too_long_for_a_command_waits_for_a_challenge() {
        let token = "t".repeat(2000);
        let credentials = Credentials::new("tim", &token).by(sasl::Mechanisms::ALL);
        let response = sasl::encode(format!("user=tim\u{1}auth=Bearer {token}\u{1}\u{1}").as_bytes());
        let script = [AUTH, "XOAUTH2\n> AUTH XOAUTH2\n< 334 \n> ", &response, "\n< 235 ok\n> QUIT\n"].concat();
        dialogue_with(logging_in(credentials), &["c@d"], 0, &script);
        let script = [AUTH, "LOGIN\n> AUTH LOGIN\n< 334 VXNlcm5hbWU6\n> *\n< 501 ok\n> QUIT\n"].concat();
        let client = dialogue_with(logging_in(Credentials::new(&"n".repeat(9215), "x")), &["c@d"], 0, &script);
        assert_eq!(client.gave_up(), Some(GaveUp::Exchange(ExchangeError::Credentials)), "12290 octets with CRLF");
    }

    #[test]
    fn a_login_that_fails_ends_the_session_and_says_why() {
        let rows = [
            ("GSSAPI\n> QUIT\n", GaveUp::NoMechanism),
            ("PLAIN\n> AUTH PLAIN AHRpbQB0YW5zdGFhZnRhbnN0YWFm\n< 535 no\n> QUIT\n", GaveUp::NotAuthenticated),
            ("LOGIN\n> AUTH LOGIN\n< 334 what?\n> *\n< 501 ok\n> QUIT\n", GaveUp::Exchange(ExchangeError::Challenge)),
            ("LOGIN\n> AUTH LOGIN\n< 334 what?\n> *\n< 334 more\n> QUIT\n", GaveUp::Exchange(ExchangeError::Challenge)),
            (
                "PLAIN\n> AUTH PLAIN AHRpbQB0YW5zdGFhZnRhbnN0YWFm\n< 334 \n> *\n< 235 ok\n> QUIT\n",
                GaveUp::Exchange(ExchangeError::Challenge),
            ),
        ];
        for (rest, reason) in rows {
            let client = dialogue_with(logging_in(tim()), &["c@d"], 1, &[AUTH, rest].concat());
            assert_eq!(client.gave_up(), Some(reason), "{rest}");
        }
        let scram = Client::with_options("me".into(), Arc::new(logging_in(tim())), Some([7; 18]), NOW);
        let first = sasl::encode(format!("n,,n=tim,r={}", sasl::encode(&[7; 18])).as_bytes());
        let script = [AUTH, "SCRAM-SHA-256\n> AUTH SCRAM-SHA-256 ", &first, "\n< 235 ok\n> QUIT\n"].concat();
        let scram = play(scram, &["c@d"], 1, &script);
        assert_eq!(scram.gave_up(), Some(GaveUp::Exchange(ExchangeError::ServerUnverified)), "a yes without proof");
    }

    #[test]
    fn a_password_that_scram_forbids_goes_with_another_mechanism_or_is_named() {
        let credentials = Credentials::new("tim", "tan\tstaaf");
        let client =
            || Client::with_options("me".into(), Arc::new(logging_in(credentials.clone())), Some([7; 18]), NOW);
        let plain = sasl::encode(b"\0tim\0tan\tstaaf");
        let both = [AUTH, "SCRAM-SHA-256 PLAIN\n> AUTH PLAIN ", &plain, "\n< 535 no\n> QUIT\n"].concat();
        assert_eq!(play(client(), &["c@d"], 1, &both).gave_up(), Some(GaveUp::NotAuthenticated));
        let scram = play(client(), &["c@d"], 1, &[AUTH, "SCRAM-SHA-256\n> QUIT\n"].concat());
        assert_eq!(scram.gave_up(), Some(GaveUp::Exchange(ExchangeError::Credentials)));
    }

    #[test]
    fn who_asks_for_notifications_sends_nothing_where_there_are_none() {
        let options = Options { notifications: Notifications::Asked, ..with_tls(StartTls::IfOffered) };
        let offered =
            "< 220 hi\n> EHLO me\n< 250-x\n< 250-STARTTLS\n< 250 DSN\n> STARTTLS\n< 220 go\n> (tls)\n> EHLO me\n";
        let client =
            dialogue_with(options.clone(), &["c@d"], 1, &[offered, "< 250-x\n< 250 DSN\n> MAIL FROM:<a@b>\n"].concat());
        assert_eq!(client.gave_up(), None);
        let without = "< 220 hi\n> EHLO me\n< 500 what\n> HELO me\n< 250 x\n> QUIT\n";
        for script in [&[offered, "< 250-x\n< 250 SIZE\n> QUIT\n"].concat(), without] {
            let client = dialogue_with(options.clone(), &["c@d"], 1, script);
            assert_eq!(client.gave_up(), Some(GaveUp::NoDsn), "{script}");
        }
    }

    #[test]
    fn a_server_with_the_clients_name_may_be_refused() {
        let options = Options { refuses_own_name: true, ..Options::default() };
        for script in [
            "< 220 ME ESMTP\n> QUIT\n",
            "< 220 you\n> EHLO me\n< 250-me at your service\n< 250 DSN\n> QUIT\n",
            "< 220 you\n> EHLO me\n< 500 what\n> HELO me\n< 250 me\n> QUIT\n",
        ] {
            let client = dialogue_with(options.clone(), &["c@d"], 1, script);
            assert_eq!(client.gave_up(), Some(GaveUp::OwnName), "{script}");
        }
        let client = dialogue_with(options, &["c@d"], 1, "< 220 me.too\n> EHLO me\n< 250 you me\n> MAIL FROM:<a@b>\n");
        assert_eq!(client.gave_up(), None);
        dialogue_with(Options::default(), &["c@d"], 1, "< 220 me\n> EHLO me\n< 250 me\n> MAIL FROM:<a@b>\n");
    }

    #[test]
    fn who_the_client_is_is_told_before_it_logs_in() {
        use crate::xclient::Attribute;
        let introduction = XclientRequest::default()
            .with_attribute(Attribute::Name, "client.example")
            .and_then(|it| it.with_attribute(Attribute::Address, "192.0.2.1"))
            .unwrap();
        let options = Options { xclient: Some(introduction), ..logging_in(tim()) };
        let script = "< 220 hi\n> EHLO me\n< 250-x\n< 250-AUTH PLAIN\n< 250 XCLIENT ADDR PORT\n> XCLIENT \
                      ADDR=192.0.2.1\n< 220 hi\n> EHLO me\n< 250-x\n< 250 AUTH PLAIN\n> AUTH PLAIN \
                      AHRpbQB0YW5zdGFhZnRhbnN0YWFm\n< 235 ok\n> QUIT\n";
        dialogue_with(options.clone(), &["c@d"], 0, script);
        let refused = "< 220 hi\n> EHLO me\n< 250-x\n< 250 XCLIENT NAME ADDR\n> XCLIENT NAME=client.example \
                       ADDR=192.0.2.1\n< 550 no\n> QUIT\n";
        let client = dialogue_with(options.clone(), &["c@d"], 1, refused);
        assert_eq!(client.gave_up(), Some(GaveUp::XclientRefused));
        let client = dialogue_with(options, &["c@d"], 1, "< 220 hi\n> EHLO me\n< 250 x\n> QUIT\n");
        assert_eq!(client.gave_up(), Some(GaveUp::NoXclient));
    }
}
