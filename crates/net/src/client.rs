//! A client for programs that send a message now and then: connect, send, quit. It blocks, so it suits any program; a
//! program with many connections at a time drives [`crate::ClientSession`]s.
use eventloop::clock;
use smtp::client::{Client as Session, Outcome, PipelineMode, Verb, Violation, Want};
use smtp::data;
use smtp::envelope::Envelope;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Reasons why a conversation could not continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection could not be made, or it broke.
    #[error("network: {0}")]
    Network(#[from] io::Error),
    /// No reply came in time.
    #[error("no reply within {0:?}")]
    Timeout(Duration),
    /// The peer does not speak SMTP.
    #[error("{0}")]
    Protocol(#[from] Violation),
    /// The peer ended the session. Holds its last reply.
    #[error("the peer closed the session: {0}")]
    Closed(String),
}

/// Result of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendOutcome {
    /// The peer took responsibility for the recipients it accepted.
    pub accepted: bool,
    /// The reply that decided it.
    pub code: u16,
    /// Text of that reply.
    pub text: String,
    /// Recipients refused, with code and text.
    pub refused: Vec<(u32, u16, String)>,
}

/// Content of the replies to a transaction.
#[derive(Debug, Default)]
struct TransactionReplies {
    outcome: Option<(Outcome, u16, String)>,
    /// A rejected MAIL decides, although the replies to the commands that were pipelined with it come after it.
    mail_refused: Option<(u16, String)>,
    refused: Vec<(u32, u16, String)>,
    last: String,
}

impl TransactionReplies {
    fn record(&mut self, to: Verb, code: u16, text: String, ends: Option<Outcome>) {
        self.last = format!("{code} {text}");
        if let Some(outcome) = ends {
            self.outcome = Some((outcome, code, text));
        } else if code >= 400 {
            match to {
                Verb::Mail => self.mail_refused = Some((code, text)),
                Verb::Recipient(number) => self.refused.push((number, code, text)),
                _ => {}
            }
        }
    }

    /// Returns the result of the message, unless the peer closed before it was known.
    fn into_outcome(self) -> Result<SendOutcome, Error> {
        let (outcome, code, text) = self.outcome.ok_or(Error::Closed(self.last))?;
        let accepted = outcome == Outcome::Accepted;
        let (code, text) = self.mail_refused.filter(|_| !accepted).unwrap_or((code, text));
        Ok(SendOutcome { accepted, code, text, refused: self.refused })
    }
}

/// A connection to a server, after its greeting.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    session: Session,
    timeout: Duration,
}

impl Client {
    /// Connects and greets as `name`. Each reply may take up to `patience`.
    ///
    /// # Errors
    /// [`Error`]; a server that refuses to greet is [`Error::Closed`].
    pub fn connect(address: SocketAddr, name: &str, timeout: Duration) -> Result<Self, Error> {
        let stream = TcpStream::connect_timeout(&address, timeout).map_err(|error| timeout_error(error, timeout))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        let session = Session::new(name.into(), PipelineMode::Group, clock::now());
        let mut client = Self { stream, session, timeout };
        client.read_until(|want| want == Want::Transaction, &mut |_, _, _, _| {})?;
        Ok(client)
    }

    /// Sends a message whose lines end in `<CRLF>`; it is dot-stuffed on the way.
    ///
    /// # Errors
    /// [`Error`]. A refusal is no error but a [`SendOutcome`].
    pub fn send(&mut self, envelope: &Arc<Envelope>, message: &[u8]) -> Result<SendOutcome, Error> {
        let mut replies = TransactionReplies::default();
        let mut out = Vec::new();
        self.session.begin(Arc::clone(envelope), clock::now(), &mut out);
        self.send_bytes(&out)?;
        self.read_until(|want| want != Want::Replies, &mut |to, code, text, ends| {
            replies.record(to, code, text, ends)
        })?;
        if self.session.wants() == Want::Message {
            out.clear();
            data::stuff(message, &mut out);
            out.extend_from_slice(data::END_OF_DATA);
            self.send_bytes(&out)?;
            self.session.message_sent(clock::now());
            self.read_until(|want| want != Want::Replies, &mut |to, code, text, ends| {
                replies.record(to, code, text, ends)
            })?;
        }
        replies.into_outcome()
    }

    /// Sends QUIT and waits for the reply.
    ///
    /// # Errors
    /// [`Error`]; every message that was answered before is delivered nevertheless.
    pub fn quit(mut self) -> Result<(), Error> {
        let mut out = Vec::new();
        self.session.quit(clock::now(), &mut out);
        self.send_bytes(&out)?;
        match self.read_until(|want| want == Want::Close, &mut |_, _, _, _| {}) {
            Ok(()) | Err(Error::Closed(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.stream.write_all(bytes).map_err(|error| timeout_error(error, self.timeout))
    }

    /// Reads replies, and writes the commands that they cause, until the session wants that.
    fn read_until(
        &mut self,
        wanted: impl Fn(Want) -> bool,
        note: &mut impl FnMut(Verb, u16, String, Option<Outcome>),
    ) -> Result<(), Error> {
        let mut buffer = [0; 4096];
        let mut last = String::new();
        while !wanted(self.session.wants()) {
            if self.session.wants() == Want::Close {
                return Err(Error::Closed(last));
            }
            let count = match self.stream.read(&mut buffer) {
                Ok(0) => return Err(self.close_error(io::ErrorKind::UnexpectedEof.into(), last)),
                Ok(count) => count,
                Err(error) => return Err(self.close_error(error, last)),
            };
            let mut input = &buffer[..count];
            let mut out = Vec::new();
            while let Some(event) = self.session.next_event(&mut input, clock::now(), &mut out)? {
                if event.to != Verb::Quit {
                    last = format!("{} {}", event.reply.code(), event.reply.text());
                }
                note(event.to, event.reply.code(), event.reply.text(), event.ends);
            }
            if let Err(error) = self.stream.write_all(&out) {
                return Err(self.close_error(error, last));
            }
        }
        Ok(())
    }

    /// The error for a peer that refused service and did not wait for QUIT: its last reply has the reason.
    fn close_error(&self, error: io::Error, last: String) -> Error {
        match self.session.waits_for() {
            Some(Verb::Quit) if !last.is_empty() => Error::Closed(last),
            _ => timeout_error(error, self.timeout),
        }
    }
}

/// Translates a socket's time-out into [`Error::Timeout`].
fn timeout_error(error: io::Error, timeout: Duration) -> Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Timeout(timeout),
        _ => Error::Network(error),
    }
}
