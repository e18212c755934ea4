//! The scale: takes one message from a source and counts its octets, so that all contestants can be made to send
//! messages of the same size.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::contestants::{Load, Program, source_command};
use super::party::Party;
use super::shapes::{Dialogue, Shape};

const PATIENCE: Duration = Duration::from_secs(10);

/// Approximate size of smtp-source's header, from which `size_argument` makes its first guess. `size_argument` then
/// counts the octets of a message that was sent with this guess, and corrects the guess.
const SMTP_SOURCE_HEADER_OCTETS: u64 = 130;

/// Returns the size argument that makes `program` send messages of `octets` octets. Messages of smtp-source and
/// go-smtp-source may differ from this size by up to 2 octets.
pub(crate) fn size_argument(program: Program, octets: u64) -> anyhow::Result<u64> {
    let counts_body = matches!(program, Program::Postfix | Program::GoSmtpSource);
    let guess = if counts_body { octets - SMTP_SOURCE_HEADER_OCTETS } else { octets };
    let weight = weigh(program, guess)?;
    if !counts_body {
        ensure!(weight == octets, "asked for messages of {octets} octets, it sent {weight}: the comparison is unfair");
        return Ok(guess);
    }
    let argument = (guess + octets).saturating_sub(weight);
    let weight = weigh(program, argument)?;
    // Allow a difference of two octets. The header contains the process ID, which may be a digit longer or shorter in a
    // new process. In addition, a longer body may need another line end, which takes two octets.
    ensure!(weight.abs_diff(octets) <= 2, "{program:?} cannot be made to send {octets} octets: it sent {weight}");
    Ok(argument)
}

/// Lets the program send one message, and counts its octets. The header and the last CRLF count,
/// the line with the dot does not.
fn weigh(program: Program, size_argument: u64) -> anyhow::Result<u64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let shape = Shape {
        name: "",
        title: "",
        dialogue: Dialogue::ConnectionEach,
        sessions: 1,
        message_octets: size_argument,
        targets: &[],
    };
    let load = Load { shape: &shape, messages: 1, size_argument };
    let record = tempfile::NamedTempFile::new()?;
    let source = Party::start(source_command(program, load, listener.local_addr()?, record.path())?)?;
    let limit = Instant::now() + PATIENCE;
    let mut weight = None;
    while weight.is_none() {
        match next_connection(&listener, limit)? {
            Some(connection) => weight = serve(connection)?,
            None => bail!("no message came to the scale: {}", source.complaint()),
        }
    }
    ensure!(source.ends_within(PATIENCE)?, "the source did not end after its message");
    source.reap()?;
    weight.ok_or_else(|| anyhow::anyhow!("no message came to the scale"))
}

fn next_connection(listener: &TcpListener, limit: Instant) -> anyhow::Result<Option<TcpStream>> {
    let left = limit.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: i64::try_from(left.as_secs())?, tv_nsec: left.subsec_nanos().into() };
    if poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout))? == 0 {
        return Ok(None);
    }
    let (stream, _) = listener.accept()?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(Some(stream))
}

/// Serves one connection to its end and returns the octets of its message. Returns `None` if no message came, because a
/// source may first connect only to test whether the server listens.
fn serve(stream: TcpStream) -> anyhow::Result<Option<u64>> {
    let mut replies = stream.try_clone()?;
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    let mut weight = None;
    replies.write_all(b"220 scale ESMTP\r\n")?;
    loop {
        line.clear();
        if lines.read_until(b'\n', &mut line)? == 0 {
            return Ok(weight);
        }
        match line.first().map(u8::to_ascii_uppercase) {
            Some(b'E' | b'H') => replies.write_all(b"250-scale\r\n250-PIPELINING\r\n250 8BITMIME\r\n")?,
            Some(b'D') => {
                replies.write_all(b"354 Go ahead\r\n")?;
                weight = Some(message_octets(&mut lines)?);
                replies.write_all(b"250 2.0.0 Ok\r\n")?;
            }
            Some(b'Q') => {
                replies.write_all(b"221 Bye\r\n")?;
                return Ok(weight);
            }
            _ => replies.write_all(b"250 2.0.0 Ok\r\n")?,
        }
    }
}

fn message_octets(lines: &mut impl BufRead) -> anyhow::Result<u64> {
    let mut line = Vec::new();
    let mut octets = 0;
    loop {
        line.clear();
        ensure!(lines.read_until(b'\n', &mut line)? > 0, "the message was cut off after {octets} octets");
        if line == b".\r\n" {
            return Ok(octets);
        }
        octets += line.len() as u64;
    }
}
