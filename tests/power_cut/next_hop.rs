//! The relay's next hop. It accepts messages and records each arrival, or refuses all mail for a while.
use crate::message;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// The number of a message, and the number of one of its recipients.
pub(crate) type Unit = (u64, u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Delivery {
    /// Number of the relay that delivered the message. This relay may have ended before the next hop read the message.
    pub(crate) relay: usize,
    pub(crate) at: Instant,
}

/// Returns the host name of a relay. The next hop sees it in EHLO, and so knows which relay is connected.
pub(crate) fn name(relay: usize) -> String {
    format!("r{relay}.example")
}

fn number(line: &str) -> Option<usize> {
    line.split_once(" r")?.1.split_once('.')?.0.parse().ok()
}

#[derive(Default)]
struct Shared {
    is_held: AtomicBool,
    is_closed: AtomicBool,
    asked: AtomicU64,
    came: Mutex<HashMap<Unit, Vec<Delivery>>>,
    wrong: Mutex<Vec<String>>,
}

pub(crate) struct StubNextHop {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

/// Number of recipients of which the next hop defers one, so that the relay has to retry.
const PUT_OFF_ONE_IN: u64 = 12;

impl StubNextHop {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let served = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if served.is_closed.load(Ordering::Relaxed) {
                    break;
                }
                let served = Arc::clone(&served);
                // Ignore errors, because a killed relay disconnects in the middle of a transaction.
                thread::spawn(move || _ = serve(&stream, &served));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn hold(&self, is_held: bool) {
        self.shared.is_held.store(is_held, Ordering::Relaxed);
    }

    pub(crate) fn came(&self) -> HashMap<Unit, Vec<Delivery>> {
        self.shared.came.lock().unwrap().clone()
    }

    pub(crate) fn missing<'a>(&self, units: impl Iterator<Item = &'a Unit>) -> Vec<Unit> {
        let came = self.shared.came.lock().unwrap();
        units.filter(|unit| !came.contains_key(unit)).copied().collect()
    }

    /// Messages that arrived changed.
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.shared.wrong.lock().unwrap().clone()
    }
}

impl Drop for StubNextHop {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Relaxed);
        // Connect, so that the accepting thread wakes and sees that it must end.
        _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: &TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    if shared.is_held.load(Ordering::Relaxed) {
        return writer.write_all(b"421 4.3.2 held\r\n");
    }
    writer.write_all(b"220 next.example\r\n")?;
    let mut relay = 0;
    let mut recipients = Vec::new();
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let verb = line.split([' ', '\r']).next().unwrap_or_default().to_ascii_uppercase();
        match verb.as_str() {
            "EHLO" => {
                relay = number(&line).ok_or(std::io::ErrorKind::InvalidData)?;
                writer.write_all(b"250-next.example\r\n250-PIPELINING\r\n250-8BITMIME\r\n250 SIZE\r\n")?;
            }
            "MAIL" if shared.is_held.load(Ordering::Relaxed) => return writer.write_all(b"421 4.3.2 held\r\n"),
            "RCPT" => writer.write_all(recipient(&line, &mut recipients, shared).as_bytes())?,
            "DATA" if recipients.is_empty() => writer.write_all(b"554 5.5.1 no recipients\r\n")?,
            "DATA" => {
                writer.write_all(b"354 go on\r\n")?;
                shared.keep(&read_message(&mut reader)?, &std::mem::take(&mut recipients), relay);
                writer.write_all(b"250 2.0.0 taken\r\n")?;
            }
            "QUIT" => return writer.write_all(b"221 2.0.0 bye\r\n"),
            _ => {
                recipients.clear();
                writer.write_all(b"250 2.0.0 ok\r\n")?;
            }
        }
    }
}

/// The reply to RCPT for a recipient `<rN@d.example>`.
fn recipient(line: &str, recipients: &mut Vec<u8>, shared: &Shared) -> &'static str {
    if shared.asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(PUT_OFF_ONE_IN) {
        return "450 4.2.1 later\r\n";
    }
    match line.split_once("<r").and_then(|(_, rest)| rest.split_once('@')).and_then(|(digits, _)| digits.parse().ok()) {
        Some(number) => {
            recipients.push(number);
            "250 2.1.5 ok\r\n"
        }
        None => "550 5.1.1 nobody of that name\r\n",
    }
}

fn read_message(reader: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let mut message = Vec::new();
    loop {
        let from = message.len();
        if reader.read_until(b'\n', &mut message)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if &message[from..] == b".\r\n" {
            message.truncate(from);
            return Ok(message);
        }
    }
}

impl Shared {
    fn keep(&self, received: &[u8], recipients: &[u8], relay: usize) {
        match message::recognise(received) {
            Ok(number) => {
                let mut came = self.came.lock().unwrap();
                for recipient in recipients {
                    came.entry((number, *recipient)).or_default().push(Delivery { relay, at: Instant::now() });
                }
            }
            Err(why) => self.wrong.lock().unwrap().push(why),
        }
    }
}
