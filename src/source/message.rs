//! The message: rendered, dot-stuffed and checksummed once; sequence number, time and Message-ID patched in place.
use super::{SourceOptions, Trace as Tracing};
use crate::party;
use anyhow::{Context, Result, bail};
use journey::{RunId, Trace, trace};
use net::{Outbox, clock};
use smtp::data;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Octets of a line of filling, `<CRLF>` included.
const LINE_BYTES: usize = 80;
/// A body up to this size is copied behind its header; a longer one is written from where it lies.
const COPIED_BYTES: usize = 16 * 1024;
/// Digits of the sequence number in a Message-ID.
const ID_DIGITS: usize = 16;

/// Which clock a trace's time is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    /// CLOCK_MONOTONIC: exact, on one host.
    Monotonic,
    /// Unix time, comparable between hosts as far as their clocks agree.
    Wall,
}

/// A message to be sent many times.
#[derive(Debug)]
pub(super) struct Template {
    /// The header block with its empty line.
    head: Vec<u8>,
    /// The body, dot-stuffed, and the end of data.
    rest: Arc<[u8]>,
    /// Octets of the message as the receiver sees it: unstuffed, without the end of data.
    pub(super) bytes: u64,
    /// Whether it holds octets above 127.
    pub(super) is_eight_bit: bool,
    traced: Tracing,
    /// Where in `head` the Message-ID's digits are.
    id_at: Option<usize>,
    /// What to add to the monotonic clock to get the trace's time.
    clock_offset: Duration,
}

impl Template {
    pub(super) fn new(options: &SourceOptions, run: RunId, now: jiff::Timestamp, clock: Clock) -> Result<Self> {
        let (headers, body) = match &options.file {
            Some(path) => read_message(path)?,
            None => generate(options, run, now)?,
        };
        let mut head = vec![0; if options.trace == Tracing::On { Trace::HEADER_BYTES } else { 0 }];
        let id_at = memchr::memmem::find(&headers, b"Message-ID: <")
            .filter(|_| options.file.is_none())
            .map(|at| at + "Message-ID: <".len() + head.len());
        let (clock, clock_offset) = match clock {
            Clock::Monotonic => (party::monotonic_clock(), Duration::ZERO),
            Clock::Wall => (party::wall_clock(), clock::wall().saturating_sub(clock::now())),
        };
        if options.trace == Tracing::On {
            let checksum = trace::checksum(&body);
            Trace { run, sequence: 0, created: Duration::ZERO, clock, checksum }.write(&mut head);
        }
        head.extend_from_slice(&headers);
        let mut rest = Vec::with_capacity(body.len() + 3);
        data::stuff(&body, &mut rest);
        rest.extend_from_slice(data::END);
        Ok(Self {
            bytes: (head.len() + body.len()) as u64,
            is_eight_bit: !(head.is_ascii() && body.is_ascii()),
            head,
            rest: rest.into(),
            traced: options.trace,
            id_at,
            clock_offset,
        })
    }

    /// The message with that number and time, and the end of data.
    pub(super) fn render(&self, sequence: u64, since: Duration, outbox: &mut Outbox) {
        let bytes = outbox.bytes();
        let start = bytes.len();
        bytes.extend_from_slice(&self.head);
        let head = &mut bytes[start..];
        if self.traced == Tracing::On {
            Trace::patch(&mut head[..Trace::HEADER_BYTES], sequence, since + self.clock_offset);
        }
        if let Some(at) = self.id_at {
            write_hex(&mut head[at..at + ID_DIGITS], sequence);
        }
        if self.rest.len() <= COPIED_BYTES {
            bytes.extend_from_slice(&self.rest);
        } else {
            outbox.append_shared(&self.rest);
        }
    }
}

fn write_hex(digits: &mut [u8], mut number: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}

/// Header block and body of a generated message of the size asked for.
fn generate(options: &SourceOptions, run: RunId, now: jiff::Timestamp) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut headers = format!("From: <{}>\r\nTo: <{}>\r\n", options.from, options.recipient);
    let date = now.to_zoned(jiff::tz::TimeZone::system());
    let date = jiff::fmt::rfc2822::to_string(&date).context("the year is not of four digits")?;
    write!(headers, "Date: {date}\r\nMessage-ID: <{}.{}@mailrun>\r\n", "0".repeat(ID_DIGITS), &run.to_string()[..8])?;
    if let Some(subject) = &options.subject {
        if subject.contains(['\r', '\n', '\0']) {
            bail!("--subject holds a line end");
        }
        write!(headers, "Subject: {subject}\r\n")?;
    }
    headers.push_str("\r\n");
    let traced = if options.trace == Tracing::On { Trace::HEADER_BYTES } else { 0 };
    let overhead = traced + headers.len();
    let size = usize::try_from(options.size).context("--size is beyond this machine's memory")?;
    match size.checked_sub(overhead) {
        None | Some(1) => bail!("--size {size} is too small: header, trace and a line need {} octets", overhead + 2),
        Some(room) => Ok((headers.into_bytes(), filling(room))),
    }
}

/// Lines of text, `bytes` octets with their ends; any number but 1.
fn filling(bytes: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(bytes);
    while body.len() < bytes {
        let left = bytes - body.len();
        // A last line of one octet could not hold its own end.
        let line = if left == LINE_BYTES + 1 { left } else { left.min(LINE_BYTES) };
        let content = line - 2;
        if content > 0 {
            body.push(b'0' + (body.len() / LINE_BYTES % 10) as u8);
            body.resize(body.len() + content - 1, b'X');
        }
        body.extend_from_slice(b"\r\n");
    }
    body
}

/// Header block and body of a message file. Line ends become `<CRLF>`.
fn read_message(path: &Path) -> Result<(Vec<u8>, Vec<u8>)> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    if text.contains(&0) {
        bail!("{} holds NUL, which no message may (RFC 5322 §4)", path.display());
    }
    let mut headers = data::with_crlf(&text);
    let body_at = match memchr::memmem::find(&headers, b"\r\n\r\n") {
        _ if headers.starts_with(b"\r\n") => 2,
        Some(at) => at + 4,
        None => headers.len(),
    };
    let body = headers.split_off(body_at);
    if let Some(line) = long_line(&headers).or_else(|| long_line(&body)) {
        bail!("{} has a line of {line} octets; a line may have 998 (RFC 5322 §2.1.1)", path.display());
    }
    Ok((headers, body))
}

fn long_line(text: &[u8]) -> Option<usize> {
    text.split(|&octet| octet == b'\n').map(|line| line.len().saturating_sub(1)).find(|length| *length > 998)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filling_has_the_size_asked_for_and_whole_lines() {
        for bytes in (2..500).chain([0, 10_000, 65_537]) {
            let body = filling(bytes);
            assert_eq!(body.len(), bytes);
            assert!(body.is_empty() || body.ends_with(b"\r\n"));
            assert_eq!(data::with_crlf(&body), body, "{bytes}");
            assert!(long_line(&body).is_none());
        }
    }

    #[test]
    fn digits_fill_their_place() {
        let mut digits = *b"................";
        write_hex(&mut digits, 0x12_3abc);
        assert_eq!(&digits, b"0000000000123abc");
    }

    #[test]
    fn a_file_is_made_fit_for_the_wire_or_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("message.eml");
        std::fs::write(&path, "Subject: a\n\n.b\rc").unwrap();
        let (headers, body) = read_message(&path).unwrap();
        assert_eq!(
            (headers.as_slice(), body.as_slice()),
            (b"Subject: a\r\n\r\n".as_slice(), b".b\r\nc\r\n".as_slice())
        );
        std::fs::write(&path, "a\0b").unwrap();
        assert!(read_message(&path).is_err());
        std::fs::write(&path, "x".repeat(999)).unwrap();
        assert!(read_message(&path).is_err());
        assert!(read_message(Path::new("/nowhere")).is_err());
    }
}
