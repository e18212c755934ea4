//! A server that stands in for a real one: honest, but for the faults that a test gives it.
use rustix::net::sockopt::set_socket_linger;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// A point of the dialogue at which the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Greeting,
    Hello,
    Mail,
    Recipient,
    Data,
    /// In the middle of the message.
    Body,
    /// The final dot.
    Message,
    Quit,
    /// RSET, NOOP and the like.
    Other,
}

/// What it does there in place of the usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Says this, and goes on.
    Say(&'static str),
    /// Closes the connection.
    Close,
    /// Closes it with RST.
    Reset,
    /// Says nothing any more, and reads on.
    Silence,
    /// Says this again and again until nobody listens.
    Flood(&'static [u8]),
}

/// Where the dialogue is, for a fault to choose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) at: At,
    /// Connections before this one.
    pub(crate) connection: u64,
    /// How often this connection was at this point before.
    pub(crate) before: u64,
}

/// How replies are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    Whole,
    ByteByByte,
}

/// The server. Its threads end with the connections, and the last with the test.
pub(crate) struct StandIn {
    pub(crate) address: SocketAddr,
    taken: Arc<AtomicU64>,
}

impl StandIn {
    pub(crate) fn start(fault: impl Fn(Moment) -> Option<Act> + Send + Sync + 'static) -> Self {
        Self::with(Delivery::Whole, fault)
    }

    pub(crate) fn with(delivery: Delivery, fault: impl Fn(Moment) -> Option<Act> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (fault, taken) = (Arc::new(fault), Arc::new(AtomicU64::new(0)));
        let counter = Arc::clone(&taken);
        thread::spawn(move || {
            for (stream, connection) in listener.incoming().zip(0..) {
                let Ok(stream) = stream else { continue };
                let (fault, taken) = (Arc::clone(&fault), Arc::clone(&counter));
                let choose = move |at, before| fault(Moment { at, connection, before });
                // A client that goes away early is the test's own doing.
                thread::spawn(move || Talk::new(stream, delivery).and_then(|talk| talk.serve(choose, &taken)));
            }
        });
        Self { address, taken }
    }

    /// HOST:PORT.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Messages it has said its usual 250 to.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::SeqCst)
    }
}

/// One connection.
struct Talk {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    delivery: Delivery,
    /// How often each point was reached.
    reached: Vec<At>,
}

/// Whether the connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    GoOn,
    /// As usual, what was to happen has happened.
    AsUsual,
    End,
}

impl Talk {
    fn new(stream: TcpStream, delivery: Delivery) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let reader = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, reader, delivery, reached: Vec::new() })
    }

    fn serve(mut self, choose: impl Fn(At, u64) -> Option<Act>, taken: &AtomicU64) -> io::Result<()> {
        let mut then = self.answer(At::Greeting, "220 stand-in ESMTP", &choose)?;
        while then != Then::End {
            let Some(line) = self.line()? else { return Ok(()) };
            let (at, usual) = usual(&line);
            then = self.answer(at, usual, &choose)?;
            if at == At::Data && then == Then::AsUsual {
                then = self.message(&choose)?;
                taken.fetch_add(u64::from(then == Then::AsUsual), Ordering::SeqCst);
            }
            if at == At::Quit {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads a message and answers it.
    fn message(&mut self, choose: &impl Fn(At, u64) -> Option<Act>) -> io::Result<Then> {
        for number in 0.. {
            let Some(line) = self.line()? else { return Ok(Then::End) };
            if line == ".\r\n" {
                break;
            }
            if number == 0 && self.answer(At::Body, "", choose)? == Then::End {
                return Ok(Then::End);
            }
        }
        self.answer(At::Message, "250 2.0.0 Ok", choose)
    }

    fn line(&mut self) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line)?;
        Ok((!line.is_empty()).then(|| String::from_utf8_lossy(&line).into_owned()))
    }

    fn answer(&mut self, at: At, usual: &str, choose: &impl Fn(At, u64) -> Option<Act>) -> io::Result<Then> {
        let before = self.reached.iter().filter(|reached| **reached == at).count() as u64;
        self.reached.push(at);
        match choose(at, before) {
            None if usual.is_empty() => {}
            None => self.say(usual)?,
            Some(Act::Say(reply)) => {
                self.say(reply)?;
                // 354 where the usual would have been said too: the message follows.
                return Ok(if at == At::Data && reply.starts_with('3') { Then::AsUsual } else { Then::GoOn });
            }
            Some(Act::Close) => return Ok(Then::End),
            Some(Act::Reset) => {
                set_socket_linger(&self.stream, Some(Duration::ZERO))?;
                return Ok(Then::End);
            }
            Some(Act::Silence) => {
                io::copy(&mut self.reader.by_ref(), &mut io::sink())?;
                return Ok(Then::End);
            }
            Some(Act::Flood(block)) => loop {
                self.stream.write_all(&block.repeat(100))?;
            },
        }
        Ok(Then::AsUsual)
    }

    fn say(&mut self, reply: &str) -> io::Result<()> {
        let bytes = [reply, "\r\n"].concat();
        match self.delivery {
            Delivery::Whole => self.stream.write_all(bytes.as_bytes()),
            Delivery::ByteByByte => bytes.as_bytes().chunks(1).try_for_each(|byte| self.stream.write_all(byte)),
        }
    }
}

fn usual(line: &str) -> (At, &'static str) {
    match line.get(..4).unwrap_or_default() {
        "EHLO" => (At::Hello, "250-stand-in\r\n250-PIPELINING\r\n250 8BITMIME"),
        "HELO" => (At::Hello, "250 stand-in"),
        "MAIL" => (At::Mail, "250 2.1.0 Ok"),
        "RCPT" => (At::Recipient, "250 2.1.5 Ok"),
        "DATA" => (At::Data, "354 Go on"),
        "QUIT" => (At::Quit, "221 2.0.0 Bye"),
        _ => (At::Other, "250 2.0.0 Ok"),
    }
}
