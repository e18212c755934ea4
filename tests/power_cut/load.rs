//! Clients that send one message after another, with short pauses, and record each 250.
use crate::message;
use crate::next_hop::Unit;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    began: Instant,
    /// Queue id that the relay gave the message in its 250.
    id: String,
}

#[derive(Default)]
pub(crate) struct Answers {
    next: AtomicU64,
    kept: Mutex<HashMap<u64, Answer>>,
    refused: AtomicU64,
}

impl Answers {
    pub(crate) fn messages(&self) -> u64 {
        self.kept.lock().unwrap().len() as u64
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn units(&self) -> Vec<Unit> {
        let kept = self.kept.lock().unwrap();
        kept.keys().flat_map(|number| (0..message::recipients(*number)).map(|one| (*number, one))).collect()
    }

    /// The queue id that the relay gave a message in its 250, or `None` if the message got no 250.
    pub(crate) fn id(&self, number: u64) -> Option<String> {
        self.kept.lock().unwrap().get(&number).map(|answer| answer.id.clone())
    }

    /// Number of any message that was begun after `time` and got a 250. `None` if there is no such message.
    pub(crate) fn begun_after(&self, time: Instant) -> Option<u64> {
        self.kept.lock().unwrap().iter().find(|(_, answer)| answer.began > time).map(|(number, _)| *number)
    }
}

/// Pause between messages of a client, so that the spool does not fill up at once.
const PAUSE: Duration = Duration::from_millis(3);

/// Sends messages until `is_over` is set, or until the connection ends because the relay was killed.
pub(crate) fn send(relay: SocketAddr, answers: &Answers, is_over: &AtomicBool) {
    let Ok(stream) = TcpStream::connect(relay) else { return };
    _ = converse(&stream, answers, is_over);
}

fn converse(stream: &TcpStream, answers: &Answers, is_over: &AtomicBool) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    reply(&mut reader)?;
    writer.write_all(b"EHLO client.example\r\n")?;
    reply(&mut reader)?;
    while !is_over.load(Ordering::Relaxed) {
        let number = answers.next.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        match transact(&mut reader, &mut writer, number)? {
            Some(id) => _ = answers.kept.lock().unwrap().insert(number, Answer { began, id }),
            None => _ = answers.refused.fetch_add(1, Ordering::Relaxed),
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Sends a message. Returns the queue id if it got a 250.
fn transact(reader: &mut impl BufRead, writer: &mut impl Write, number: u64) -> std::io::Result<Option<String>> {
    let recipients = message::recipients(number);
    let mut envelope = "MAIL FROM:<s@a.example>\r\n".to_owned();
    (0..recipients).for_each(|one| envelope.push_str(&format!("RCPT TO:<r{one}@d.example>\r\n")));
    writer.write_all(envelope.as_bytes())?;
    let mut is_welcome = true;
    for _ in 0..=recipients {
        is_welcome &= reply(reader)?.starts_with('2');
    }
    if is_welcome {
        writer.write_all(b"DATA\r\n")?;
        is_welcome = reply(reader)?.starts_with('3');
    }
    if !is_welcome {
        writer.write_all(b"RSET\r\n")?;
        reply(reader)?;
        return Ok(None);
    }
    writer.write_all([message::text(number).as_str(), ".\r\n"].concat().as_bytes())?;
    let answer = reply(reader)?;
    Ok(answer.starts_with("250").then(|| answer.split_whitespace().next_back().unwrap_or_default().to_owned()))
}

fn reply(reader: &mut impl BufRead) -> std::io::Result<String> {
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.as_bytes().get(3) {
            Some(b'-') => {}
            Some(_) => return Ok(line),
            None => return Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
