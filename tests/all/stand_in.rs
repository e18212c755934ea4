//! A server that behaves honestly except for the faults that a test orders.
use rustix::net::sockopt::set_socket_linger;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Point of the dialogue at which the server sends a reply or commits a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Greeting,
    Hello,
    Mail,
    Recipient,
    Data,
    Body,
    Message,
    Reset,
    Quit,
    /// A command that is not allowed at this point of the dialogue.
    Other,
}

/// Fault that the server commits instead of sending its usual reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Sends this reply, or nothing if the text is empty, and goes on. A reply in the middle of a message is the reply
    /// to the whole message.
    Say(&'static str),
    Close,
    Reset,
    /// Stops replying, but goes on reading.
    Silence,
    /// Repeats these bytes until the client is gone.
    Flood(&'static [u8]),
}

/// State of the dialogue before a reply, from which a test decides whether the server commits a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) at: At,
    pub(crate) connection: u64,
    /// Number of times that this connection has been at this point before.
    pub(crate) before: u64,
    /// Set if the client has already sent more commands, without waiting for this reply.
    pub(crate) is_ahead: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    Whole,
    ByteByByte,
}

/// A server with a thread for each connection. A thread ends with its connection, at the latest when the test
/// ends.
pub(crate) struct StandIn {
    pub(crate) address: SocketAddr,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    taken: AtomicU64,
    strays: AtomicU64,
    quits: AtomicU64,
}

impl StandIn {
    pub(crate) fn start(fault: impl Fn(Moment) -> Option<Act> + Send + Sync + 'static) -> Self {
        Self::with(Delivery::Whole, fault)
    }

    pub(crate) fn with(delivery: Delivery, fault: impl Fn(Moment) -> Option<Act> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let fault = Arc::new(fault);
        let counts = Arc::new(Counts::default());
        let shared = Arc::clone(&counts);
        thread::spawn(move || {
            for (stream, connection) in listener.incoming().zip(0..) {
                let Ok(stream) = stream else { continue };
                let fault = Arc::clone(&fault);
                let counts = Arc::clone(&shared);
                let choose = move |at, before, is_ahead| fault(Moment { at, connection, before, is_ahead });
                // Ignore the result, because a client that disconnects early is part of some tests.
                thread::spawn(move || Talk::new(stream, delivery, choose).and_then(|talk| talk.serve(&counts)));
            }
        });
        Self { address, counts }
    }

    /// HOST:PORT.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Number of messages that got the usual 250.
    pub(crate) fn taken(&self) -> u64 {
        self.counts.taken.load(Ordering::SeqCst)
    }

    pub(crate) fn quits(&self) -> u64 {
        self.counts.quits.load(Ordering::SeqCst)
    }

    /// Number of commands that were not allowed at their point of the dialogue (`At::Other`).
    pub(crate) fn strays(&self) -> u64 {
        self.counts.strays.load(Ordering::SeqCst)
    }
}

struct Talk<F> {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    delivery: Delivery,
    fault: F,
    /// Every point that was reached, in order.
    reached: Vec<At>,
    has_sender: bool,
    recipients: u32,
}

/// Stands for the first digit of a reply if no reply was sent.
const NOTHING: u8 = b' ';

impl<F: Fn(At, u64, bool) -> Option<Act>> Talk<F> {
    fn new(stream: TcpStream, delivery: Delivery, fault: F) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let reader = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, reader, delivery, fault, reached: Vec::new(), has_sender: false, recipients: 0 })
    }

    fn serve(mut self, counts: &Counts) -> io::Result<()> {
        let mut class = self.answer(At::Greeting, "220 stand-in ESMTP")?;
        while class.is_some() {
            let line = self.line()?;
            let Some((at, usual)) = self.usual(&line) else { break };
            counts.quits.fetch_add(u64::from(at == At::Quit), Ordering::SeqCst);
            class = self.answer(at, usual)?;
            match (at, class) {
                (At::Mail, Some(b'2')) => self.has_sender = true,
                (At::Recipient, Some(b'2')) => self.recipients += 1,
                (At::Data, Some(b'3')) => {
                    class = self.message()?;
                    counts.taken.fetch_add(u64::from(class == Some(b'2')), Ordering::SeqCst);
                }
                (At::Reset, _) => (self.has_sender, self.recipients) = (false, 0),
                (At::Other, _) => drop(counts.strays.fetch_add(1, Ordering::SeqCst)),
                (At::Quit, _) => break,
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the point of the dialogue to which a line leads, and an honest server's reply to the line. Returns
    /// `None` at the end of the connection.
    fn usual(&self, line: &str) -> Option<(At, &'static str)> {
        Some(match (line.get(..4)?, self.has_sender, self.recipients > 0) {
            ("EHLO" | "LHLO", ..) => (At::Hello, "250-stand-in\r\n250-PIPELINING\r\n250 8BITMIME"),
            ("HELO", ..) => (At::Hello, "250 stand-in"),
            ("MAIL", ..) => (At::Mail, "250 2.1.0 Ok"),
            ("RCPT", true, _) => (At::Recipient, "250 2.1.5 Ok"),
            ("DATA", _, true) => (At::Data, "354 Go on"),
            ("DATA", true, false) => (At::Data, "554 5.5.1 No valid recipients"),
            ("RSET", ..) => (At::Reset, "250 2.0.0 Ok"),
            ("QUIT", ..) => (At::Quit, "221 2.0.0 Bye"),
            _ => (At::Other, "503 5.5.1 Bad sequence of commands"),
        })
    }

    fn message(&mut self) -> io::Result<Option<u8>> {
        let mut class = Some(NOTHING);
        for number in 0.. {
            match self.line()?.as_str() {
                ".\r\n" => break,
                "" => return Ok(None),
                _ if number == 0 => class = self.answer(At::Body, "")?,
                _ => {}
            }
            if class.is_none() {
                return Ok(None);
            }
        }
        let usual = if self.recipients > 0 { "250 2.0.0 Ok" } else { "554 5.5.1 No valid recipients" };
        (self.has_sender, self.recipients) = (false, 0);
        if class == Some(NOTHING) { self.answer(At::Message, usual) } else { Ok(class) }
    }

    /// Reads the next line. It is empty at the end of the connection.
    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line)?;
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    /// Acts as the test orders, or sends the usual reply. Returns the first digit of the reply, or `None` when the
    /// connection is over.
    fn answer(&mut self, at: At, usual: &'static str) -> io::Result<Option<u8>> {
        let before = self.reached.iter().filter(|reached| **reached == at).count() as u64;
        self.reached.push(at);
        match (self.fault)(at, before, !self.reader.buffer().is_empty()).unwrap_or(Act::Say(usual)) {
            Act::Say("") => return Ok(Some(NOTHING)),
            Act::Say(reply) => {
                self.say(reply)?;
                return Ok(reply.bytes().next());
            }
            Act::Close => {}
            Act::Reset => set_socket_linger(&self.stream, Some(Duration::ZERO))?,
            Act::Silence => drop(io::copy(&mut self.reader, &mut io::sink())?),
            Act::Flood(block) => loop {
                self.stream.write_all(&block.repeat(100))?;
            },
        }
        Ok(None)
    }

    fn say(&mut self, reply: &str) -> io::Result<()> {
        let bytes = [reply, "\r\n"].concat();
        match self.delivery {
            Delivery::Whole => self.stream.write_all(bytes.as_bytes()),
            Delivery::ByteByByte => bytes.as_bytes().chunks(1).try_for_each(|byte| self.stream.write_all(byte)),
        }
    }
}
