//! A client session with a server that accepts and rejects at random, and whose replies may be
//! dropped or changed on the way. The session must not report a message as delivered that the
//! server did not accept. It must not report a message as rejected unless one of the message's own
//! commands got a permanent reply (5yz). Fuzz targets include this file by path.
use mailrun_smtp::checks::SplitMix64;
use mailrun_smtp::client::{BurstSize, ChunkPosition, Chunking, Client, Options, Outcome, PipelineMode, Verb, Want};
use mailrun_smtp::envelope::Envelope;
use mailrun_smtp::reply::{is_permanent, is_session_fault};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

const NOW: Duration = Duration::ZERO;
const MESSAGES: u32 = 12;
/// Codes of forged replies, which replace replies of the server on their way to the client. None of them accepts a
/// message, sender or recipient, because no client could detect a forged 250.
const FORGED: [u16; 8] = [354, 421, 450, 500, 503, 530, 550, 554];
/// Maximum number of dropped or forged replies in a session with BDAT and enhanced status codes. In such a session, the
/// client regards a message's result as certain when it gets the reply to the next MAIL. Four faults together could
/// imitate this reply.
const MAX_BURST_FAULTS: u32 = 3;

struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn next(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }
}

/// A server whose replies may be dropped or changed on their way to the client.
struct AdversarialServer<'a> {
    choices: Choices<'a>,
    has_chunking: bool,
    is_labelled: bool,
    faults: u32,
    input: Vec<u8>,
    /// Replies on their way to the client.
    wire: Vec<u8>,
    is_closed: bool,
    has_mail: bool,
    is_in_data: bool,
    message: u32,
    recipients: u32,
    taken: BTreeSet<u32>,
    /// Numbers of the messages that got a permanent reply, real or forged, to one of their commands.
    rejected: BTreeSet<u32>,
}

impl AdversarialServer<'_> {
    /// Answers all complete commands that have arrived. An incomplete command waits for the next call.
    fn receive(&mut self, bytes: &mut Vec<u8>) {
        self.input.append(bytes);
        while let Some(end) = self.input.windows(2).position(|pair| pair == b"\r\n") {
            if self.is_closed {
                return;
            }
            let line: Vec<u8> = self.input.drain(..end + 2).collect();
            let line = String::from_utf8(line).expect("the client sends ASCII");
            match line.get(..4).unwrap_or_default() {
                _ if self.is_in_data && line != ".\r\n" => {}
                _ if self.is_in_data => {
                    self.is_in_data = false;
                    self.end_message();
                }
                "EHLO" => {
                    let chunking = if self.has_chunking { "250-CHUNKING\r\n" } else { "" };
                    self.wire.extend_from_slice(format!("250-x\r\n{chunking}250 PIPELINING\r\n").as_bytes());
                }
                "MAIL" => {
                    let number = line.trim_start_matches("MAIL FROM:<s").split('@').next();
                    self.message = number.and_then(|number| number.parse().ok()).expect("the sender has a number");
                    self.has_mail = self.answer("250 2.1.0 Ok", !self.has_mail);
                    self.recipients = 0;
                }
                "RCPT" => self.recipients += u32::from(self.answer("250 2.1.5 Ok", self.has_mail)),
                // Some servers accept DATA although there are no recipients.
                "DATA" => {
                    let is_willing = self.recipients > 0 || self.choices.next() % 4 == 1;
                    self.is_in_data = self.answer("354 Go on", is_willing);
                }
                "BDAT" => {
                    self.input.drain(..1);
                    self.end_message();
                }
                "RSET" => {
                    (self.has_mail, self.recipients) = (false, 0);
                    self.answer("250 2.0.0 Ok", true);
                }
                "QUIT" => {
                    self.answer("221 2.0.0 Bye", true);
                    self.is_closed = true;
                }
                // This is an unknown command, or a line of a message that the server did not ask for.
                _ => _ = self.answer("", false),
            }
        }
    }

    fn end_message(&mut self) {
        let is_taken = self.answer("250 2.0.0 Ok", self.recipients > 0);
        if is_taken {
            self.taken.insert(self.message);
        }
        (self.has_mail, self.recipients) = (false, 0);
    }

    /// Sends the usual reply or a random refusal, or 503 if the command is not possible. The reply may be changed or
    /// dropped on the way. Returns true if the server accepted the command.
    fn answer(&mut self, usual: &str, is_possible: bool) -> bool {
        let refusal = match self.choices.next() {
            _ if !is_possible => Some(503),
            0..208 => None,
            208..224 => Some(550),
            224..240 => Some(451),
            240..248 => Some(502),
            248.. => Some(421),
        };
        self.is_closed |= refusal == Some(421);
        let mut reply = match refusal {
            Some(code) => format!("{code} no"),
            None if self.is_labelled => usual.to_owned(),
            None => format!("{} ok", &usual[..3]),
        };
        let may_fail = !self.is_labelled || !self.has_chunking || self.faults < MAX_BURST_FAULTS;
        match self.choices.next() {
            192..224 if may_fail => {
                self.faults += 1;
                return refusal.is_none();
            }
            forged @ 224.. if may_fail => {
                self.faults += 1;
                reply = format!("{} forged", FORGED[usize::from(forged) % FORGED.len()]);
            }
            _ => {}
        }
        if is_permanent(reply[..3].parse().expect("a reply begins with its code")) {
            self.rejected.insert(self.message);
        }
        self.wire.extend_from_slice(format!("{reply}\r\n").as_bytes());
        refusal.is_none()
    }
}

#[derive(Debug, Default)]
struct OpenMessage {
    number: u32,
    outcome: Option<Outcome>,
    is_rejected: bool,
}

/// Test code that drives the client session. It sends 12 messages, and begins each of them as early as the session
/// permits.
struct EagerCaller {
    client: Client,
    begun: u32,
    /// Messages whose result is not certain yet, the oldest first.
    open: VecDeque<OpenMessage>,
    delivered: BTreeSet<u32>,
    rejected: BTreeSet<u32>,
}

impl EagerCaller {
    /// Handles the replies in a block. Returns false if they end the session.
    fn receive(&mut self, block: &[u8], out: &mut Vec<u8>) -> bool {
        let mut input = block;
        loop {
            let event = match self.client.next_event(&mut input, NOW, out) {
                Ok(Some(event)) => event,
                Ok(None) => return self.client.wants() != Want::Close,
                Err(_) => return false,
            };
            if let Some(message) = self.open.iter_mut().find(|message| message.outcome.is_none()) {
                let is_own = !matches!(event.to, Verb::Greeting | Verb::Hello | Verb::Reset | Verb::Quit);
                message.is_rejected |= (is_own || event.ends.is_some()) && is_permanent(event.reply.code());
                message.outcome = event.ends;
            }
            assert!(event.ends != Some(Outcome::Accepted) || !is_session_fault(event.reply.code()));
            for message in self.open.drain(..event.settled as usize) {
                if message.outcome == Some(Outcome::Accepted) {
                    self.delivered.insert(message.number);
                } else if message.is_rejected {
                    self.rejected.insert(message.number);
                }
            }
        }
    }

    /// Sends the commands and messages that the session wants, until the session needs a reply.
    fn act(&mut self, out: &mut Vec<u8>) {
        while self.step(out) && self.client.bursts() && self.client.wants() == Want::Chunk {}
    }

    fn step(&mut self, out: &mut Vec<u8>) -> bool {
        let mut early = false;
        match self.client.wants() {
            Want::Message => {
                out.extend_from_slice(b"x\r\n.\r\n");
                self.client.message_sent(NOW);
                early = self.client.may_begin_early();
            }
            Want::Chunk => {
                self.client.chunk(1, ChunkPosition::Last, NOW, out);
                out.push(b'x');
                early = self.client.may_begin_early();
            }
            _ => {}
        }
        match self.client.wants() {
            Want::Transaction if self.begun == MESSAGES => self.client.quit(NOW, out),
            want if (early || want == Want::Transaction) && self.begun < MESSAGES => {
                let sender = format!("s{}@b.example", self.begun);
                let envelope = Envelope::new(&sender, "", ["r@c.example", "q@c.example"]).expect("good addresses");
                self.client.begin(Arc::new(envelope), NOW, out);
                self.open.push_back(OpenMessage { number: self.begun, ..OpenMessage::default() });
                self.begun += 1;
                return true;
            }
            _ => {}
        }
        false
    }
}

/// Plays a session and checks its results. The first byte selects how messages are sent. The further bytes decide which
/// commands the server refuses, and which replies are dropped or changed.
pub(crate) fn check(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let mode = choices.next();
    let options = Options {
        pipelining: [PipelineMode::Off, PipelineMode::Transaction, PipelineMode::Group][usize::from(mode % 3)],
        chunking: Chunking::IfOffered,
        burst: BurstSize::of(u32::from(mode / 3 % 5)),
        ..Options::default()
    };
    let mut server = AdversarialServer {
        choices,
        has_chunking: mode & 64 != 0,
        is_labelled: mode & 128 != 0,
        faults: 0,
        input: Vec::new(),
        wire: b"220 x\r\n".to_vec(),
        is_closed: false,
        has_mail: false,
        is_in_data: false,
        message: 0,
        recipients: 0,
        taken: BTreeSet::new(),
        rejected: BTreeSet::new(),
    };
    let mut caller = EagerCaller {
        client: Client::with_options("me".into(), Arc::new(options), None, NOW),
        begun: 0,
        open: VecDeque::new(),
        delivered: BTreeSet::new(),
        rejected: BTreeSet::new(),
    };
    let mut cuts = SplitMix64(u64::from(mode) + bytes.len() as u64);
    let mut out = Vec::new();
    while !server.wire.is_empty() {
        let limit = if cuts.once_in(2) { server.wire.len() } else { 9 };
        let block: Vec<u8> = server.wire.drain(..limit.min(server.wire.len())).collect();
        if !caller.receive(&block, &mut out) {
            break;
        }
        caller.act(&mut out);
        server.receive(&mut out);
    }
    let numbers: Vec<_> = caller.delivered.difference(&server.taken).collect();
    assert!(numbers.is_empty(), "{numbers:?} are called delivered; the server took {:?}", server.taken);
    let numbers: Vec<_> = caller.rejected.difference(&server.rejected).collect();
    assert!(numbers.is_empty(), "{numbers:?} are rejected; the server rejected {:?}", server.rejected);
    if server.faults == 0 && !server.is_closed {
        assert!(caller.open.is_empty() || caller.client.wants() == Want::Close, "{:?} have no result", caller.open);
    }
}
