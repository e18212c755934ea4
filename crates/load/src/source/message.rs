//! Templates of the messages that a source sends. A template is rendered, dot-stuffed and checksummed once. For each
//! message, only the sequence number, the time and the Message-ID are overwritten in a copy of the header.
use super::corpus::CorpusMessage;
use super::options::TraceHeaders as Tracing;
use anyhow::{Context, Result, bail};
use mailrun_measurement::trace::{RecipientNumbering, ZeroPhase};
use mailrun_measurement::{ClockId, RunId, Trace, trace};
use mailrun_net::{Outbox, clock};
use mailrun_process::outputs;
use mailrun_smtp::data;
use std::sync::Arc;
use std::time::Duration;

/// Length of a line of filler text in bytes, including `<CRLF>`.
const LINE_BYTES: usize = 80;
/// A body of at most this size in bytes is copied into the send buffer, behind its header. A longer body is written to
/// the socket from its own memory, without a copy.
const COPY_LIMIT: usize = 16 * 1024;
const ID_DIGITS: usize = 16;
const AUTO_SUBMITTED: &[u8] = b"Auto-Submitted: auto-generated\r\n";
const MESSAGE_ID_PREFIX: &[u8] = b"Message-ID: <";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TraceClock {
    /// CLOCK_MONOTONIC, whose times are exact but can only be compared within one host.
    Monotonic,
    /// Unix time, which can be compared between hosts as far as the clocks of the hosts agree.
    Wall,
}

/// The parts of a trace that are the same for all messages of a run, for example the run id.
#[derive(Clone, Copy, Debug)]
pub(super) struct TraceStamp {
    run: RunId,
    trace_headers: Tracing,
    clock: ClockId,
    numbering: RecipientNumbering,
    clock_offset: Duration,
    zero: ZeroPhase,
    auto_submitted: bool,
}

impl TraceStamp {
    pub(super) fn new(run: RunId, traced: Tracing, clock: TraceClock, numbering: RecipientNumbering) -> Self {
        let (clock, clock_offset) = match clock {
            TraceClock::Monotonic => (outputs::monotonic_clock(), Duration::ZERO),
            TraceClock::Wall => (outputs::wall_clock(), clock::wall().saturating_sub(clock::now())),
        };
        let zero = ZeroPhase::default();
        Self { run, trace_headers: traced, clock, numbering, clock_offset, zero, auto_submitted: false }
    }

    /// Returns the first time from `now` on at which a run may begin: a multiple of 1/128 s on the clock of the traces.
    /// Traces state the start of the run's seconds with this precision.
    pub(super) fn next_zero(&self, now: Duration) -> Duration {
        ZeroPhase::next_step(now + self.clock_offset).saturating_sub(self.clock_offset)
    }

    /// Returns the last time up to `then` at which a run may begin: a multiple of 1/128 s, as in `next_zero`.
    pub(super) fn last_zero(&self, then: Duration) -> Duration {
        self.next_zero((then + Duration::from_nanos(1)).saturating_sub(ZeroPhase::STEP))
    }

    /// Returns the number of bytes that the trace and Auto-Submitted add to a message.
    pub(super) fn bytes(&self) -> usize {
        let trace = if self.trace_headers == Tracing::On { Trace::HEADER_BYTES } else { 0 };
        trace + self.automatic().len()
    }

    /// Returns the header field `Auto-Submitted`, which asks programs that answer mail, such as
    /// vacation responders, not to answer. Returns nothing if messages should not have the field.
    fn automatic(&self) -> &'static [u8] {
        if self.auto_submitted { AUTO_SUBMITTED } else { b"" }
    }

    /// Sets whether messages carry `Auto-Submitted: auto-generated` (RFC 3834 §5).
    pub(super) fn auto_submitted(self, auto_submitted: bool) -> Self {
        Self { auto_submitted, ..self }
    }
}

/// Beginning of a message: trace and header fields. For each message, only the parts that differ between messages are
/// overwritten.
#[derive(Debug)]
struct MessageHead {
    octets: Vec<u8>,
    stamp: TraceStamp,
    id_at: Option<usize>,
}

impl MessageHead {
    /// Builds the head from `headers`, which must already be dot-stuffed. `checksum` must be the checksum of the body,
    /// unless the caller overwrites it in each message.
    fn new(stamp: TraceStamp, checksum: u32, headers: &[u8], identity: MessageIdMode) -> Self {
        let mut octets = Vec::new();
        if stamp.trace_headers == Tracing::On {
            octets.resize(Trace::HEADER_BYTES, 0);
            let TraceStamp { run, clock, numbering, zero, .. } = stamp;
            Trace { run, sequence: 0, zero, numbering, created: Duration::ZERO, clock, checksum }.write(&mut octets);
        }
        octets.extend_from_slice(stamp.automatic());
        let id_at = memchr::memmem::find(headers, MESSAGE_ID_PREFIX)
            .filter(|_| identity == MessageIdMode::Patched)
            .map(|at| at + MESSAGE_ID_PREFIX.len() + octets.len());
        octets.extend_from_slice(headers);
        Self { octets, stamp, id_at }
    }

    /// Sets the time at which the run begins. Traces contain this time's fraction of a second, so that source and sink
    /// divide the run into the same seconds.
    fn set_zero(&mut self, zero: Duration) {
        self.stamp.zero = ZeroPhase::of(zero + self.stamp.clock_offset);
    }

    /// Appends the head of message `sequence` to `bytes`, and returns the appended bytes. `since` is the time from
    /// which the latency of the message counts.
    fn render<'b>(&self, sequence: u64, since: Duration, bytes: &'b mut Vec<u8>) -> &'b mut [u8] {
        let start = bytes.len();
        bytes.extend_from_slice(&self.octets);
        let head = &mut bytes[start..];
        if self.stamp.trace_headers == Tracing::On {
            let TraceStamp { zero, clock_offset, .. } = self.stamp;
            Trace::patch(&mut head[..Trace::HEADER_BYTES], zero, sequence, since + clock_offset);
        }
        if let Some(at) = self.id_at {
            write_hex(&mut head[at..at + ID_DIGITS], sequence);
        }
        head
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageIdMode {
    /// The sequence number replaces the digits of the first Message-ID, so that no two messages have the same
    /// Message-ID.
    Patched,
    Unchanged,
}

#[derive(Debug)]
pub(super) struct MessageTemplate {
    head: MessageHead,
    /// The dot-stuffed body, followed by the end of data.
    body: Arc<[u8]>,
    /// Size of the message as the receiver sees it, in bytes, without dot-stuffing and end of data.
    pub(super) bytes: u64,
    /// True if the message contains bytes above 127.
    pub(super) is_eight_bit: bool,
}

impl MessageTemplate {
    /// Builds the template from a body and a header block, which must include its empty line.
    pub(super) fn new(stamp: TraceStamp, headers: &[u8], body: &[u8], identity: MessageIdMode) -> Self {
        let mut stuffed = Vec::with_capacity(headers.len());
        let mut rest = Vec::with_capacity(body.len() + 3);
        data::stuff(headers, &mut stuffed);
        data::stuff(body, &mut rest);
        rest.extend_from_slice(data::END_OF_DATA);
        Self {
            head: MessageHead::new(stamp, trace::checksum(body), &stuffed, identity),
            body: rest.into(),
            bytes: (stamp.bytes() + headers.len() + body.len()) as u64,
            is_eight_bit: !(headers.is_ascii() && body.is_ascii()),
        }
    }

    /// Builds the template from a message of a corpus, which is already dot-stuffed. Its own Message-ID is kept.
    pub(super) fn from_corpus(stamp: TraceStamp, message: CorpusMessage) -> Self {
        Self {
            head: MessageHead::new(stamp, message.checksum, &message.headers, MessageIdMode::Unchanged),
            body: message.body,
            bytes: message.bytes + stamp.bytes() as u64,
            is_eight_bit: message.is_eight_bit,
        }
    }

    pub(super) fn set_zero(&mut self, zero: Duration) {
        self.head.set_zero(zero);
    }

    /// Renders message `sequence` into `outbox`, followed by the end of data. `since` is the time from which the
    /// latency of the message counts.
    pub(super) fn render(&self, sequence: u64, since: Duration, outbox: &mut Outbox) {
        let bytes = outbox.bytes();
        self.head.render(sequence, since, bytes);
        if self.body.len() <= COPY_LIMIT {
            bytes.extend_from_slice(&self.body);
        } else {
            outbox.append_shared(&self.body);
        }
    }
}

/// Messages of many sizes, whose bodies are prefixes of one long body. Each body consists of whole lines, because
/// checksums are stored only for prefixes of whole lines. A header field of variable length supplies the remaining
/// bytes of a message's size.
#[derive(Debug)]
pub(super) struct SizedTemplate {
    head: MessageHead,
    body: Arc<[u8]>,
    /// Checksum of the first n lines of the body, for each n.
    checksums: Vec<u32>,
}

/// Header field that brings a message to its exact size, because the body has only whole lines. The source shortens the
/// field to the number of missing bytes, but not below 11 bytes: `X-Fill: X` and a line end.
const FILLER: &[u8; 91] =
    b"X-Fill: XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX";
const MIN_FILLER_BYTES: usize = 11;

impl SizedTemplate {
    /// Builds the body for messages of up to `max_bytes` bytes. `fields` is the header block without its empty line.
    pub(super) fn new(stamp: TraceStamp, fields: &[u8], max_bytes: usize) -> Self {
        let lines = max_bytes.saturating_sub(stamp.bytes() + fields.len() + 2) / LINE_BYTES;
        let body = filler_text(lines * LINE_BYTES);
        let mut checksum = trace::Checksum::default();
        let sums = body.chunks_exact(LINE_BYTES).map(|line| {
            checksum.update(line);
            checksum.value()
        });
        let checksums = std::iter::once(trace::Checksum::default().value()).chain(sums).collect();
        Self { head: MessageHead::new(stamp, 0, fields, MessageIdMode::Patched), body: body.into(), checksums }
    }

    pub(super) fn set_zero(&mut self, zero: Duration) {
        self.head.set_zero(zero);
    }

    pub(super) fn min_bytes(stamp: TraceStamp, fields: &[u8]) -> usize {
        stamp.bytes() + fields.len() + 2 + LINE_BYTES
    }

    pub(super) fn render(&self, size: u64, sequence: u64, since: Duration, outbox: &mut Outbox) {
        let (lines, filler) = self.split(size);
        let bytes = outbox.bytes();
        let head = self.head.render(sequence, since, bytes);
        if self.head.stamp.trace_headers == Tracing::On {
            Trace::patch_checksum(&mut head[..Trace::HEADER_BYTES], self.checksums[lines]);
        }
        if filler > 0 {
            bytes.extend_from_slice(&FILLER[..filler - 2]);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        let length = lines * LINE_BYTES;
        if length <= COPY_LIMIT {
            bytes.extend_from_slice(&self.body[..length]);
        } else {
            outbox.append_beginning(&self.body, length);
        }
        outbox.bytes().extend_from_slice(data::END_OF_DATA);
    }

    /// Returns how many body lines, and how many bytes of the filler field, give a message of `size` bytes.
    fn split(&self, size: u64) -> (usize, usize) {
        let room = usize::try_from(size).unwrap_or(usize::MAX).saturating_sub(self.head.octets.len() + 2);
        match (room / LINE_BYTES, room % LINE_BYTES) {
            (lines, filler) if filler == 0 || filler >= MIN_FILLER_BYTES || lines == 0 => (lines, filler),
            (lines, filler) => (lines - 1, filler + LINE_BYTES),
        }
    }
}

fn write_hex(digits: &mut [u8], mut number: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}

/// Makes a Message-ID whose digits are zeros. For each message, its number later replaces the zeros.
pub(super) fn message_id_placeholder(run: RunId) -> String {
    format!("<{}.{}@mailrun>", "0".repeat(ID_DIGITS), &run.to_string()[..8])
}

pub(crate) fn date(now: jiff::Timestamp) -> Result<String> {
    let date = now.to_zoned(jiff::tz::TimeZone::system());
    jiff::fmt::rfc2822::to_string(&date).context("the year is not of four digits")
}

/// Returns the value of the header field From. For the null sender, this is the mail system of this
/// host, because a header field with <> would be malformed (RFC 5322 §3.6.2).
pub(crate) fn from_field(from: &str, host: &str) -> String {
    if from.is_empty() { format!("Mail Delivery System <MAILER-DAEMON@{host}>") } else { format!("<{from}>") }
}

/// Returns the header fields of a generated message, without the empty line. `from` must be a value
/// for From, as [`from_field`] returns it.
pub(super) fn header_fields(from: &str, to: &str, subject: Option<&str>, date: &str, id: &str) -> String {
    let subject = subject.map_or_else(String::new, |subject| format!("Subject: {subject}\r\n"));
    format!("From: {from}\r\nTo: <{to}>\r\nDate: {date}\r\nMessage-ID: {id}\r\n{subject}")
}

/// Generates a message of `size` bytes, with the header `fields` that [`header_fields`] has made.
///
/// # Errors
///
/// Fails if `size` is too small for the header, or leaves only one byte for the body, because a line end takes two.
pub(super) fn generate(stamp: TraceStamp, fields: &str, size: u64) -> Result<MessageTemplate> {
    let headers = format!("{fields}\r\n");
    let overhead = stamp.bytes() + headers.len();
    let size = usize::try_from(size).context("--message-size exceeds the memory of this machine")?;
    match size.checked_sub(overhead) {
        None | Some(1) => {
            bail!("--message-size {size} is too small: header, trace and one line need {} bytes", overhead + 2)
        }
        Some(room) => Ok(MessageTemplate::new(stamp, headers.as_bytes(), &filler_text(room), MessageIdMode::Patched)),
    }
}

/// Makes lines of text with `bytes` bytes in total, including line ends. `bytes` must not be 1,
/// because a line end takes two bytes.
fn filler_text(bytes: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(bytes);
    while body.len() < bytes {
        let left = bytes - body.len();
        // If one byte would be left for another line, add it to this line, because a line end alone takes two bytes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filling_has_the_size_asked_for_and_whole_lines() {
        for bytes in (2..500).chain([0, 10_000, 65_537]) {
            let body = filler_text(bytes);
            assert_eq!(body.len(), bytes);
            assert!(body.is_empty() || body.ends_with(b"\r\n"));
            assert!(body.split(|&octet| octet == b'\n').all(|line| line.len() <= 999));
        }
    }

    fn stamp() -> TraceStamp {
        TraceStamp::new(RunId([7; 16]), Tracing::On, TraceClock::Monotonic, RecipientNumbering::SINGLE)
    }

    fn received(outbox: &mut Outbox) -> Vec<u8> {
        let wire = outbox.to_vec();
        let mut reader = data::DataReader::new(1_000);
        let mut input = wire.as_slice();
        let mut content = Vec::new();
        while let Some(piece) = reader.next(&mut input) {
            match piece {
                data::DataPiece::Content(bytes) => content.extend_from_slice(bytes),
                data::DataPiece::End => break,
            }
        }
        assert!(input.is_empty() && reader.fault().is_none());
        content
    }

    #[test]
    fn a_message_cut_to_size_has_that_size_and_its_checksum() {
        let fields = header_fields(
            "<a@b>",
            "c@d",
            None,
            "Sat, 21 Nov 2026 09:30:00 +0000",
            &message_id_placeholder(RunId([7; 16])),
        );
        let least = SizedTemplate::min_bytes(stamp(), fields.as_bytes());
        let cut = SizedTemplate::new(stamp(), fields.as_bytes(), 70_000);
        let mut reader = mailrun_measurement::TraceReader::default();
        for size in (least..least + 400).chain([16_000, 17_000, 65_536, 70_000]) {
            let mut outbox = Outbox::default();
            cut.render(size as u64, 9, Duration::from_secs(1), &mut outbox);
            let content = received(&mut outbox);
            assert_eq!(content.len(), size);
            reader.receive(&content);
            match reader.finish() {
                mailrun_measurement::TraceResult::Intact(trace) => {
                    assert_eq!((trace.sequence, trace.created.as_secs()), (9, 1))
                }
                other => panic!("{size}: {other:?}"),
            }
            let text = String::from_utf8(content).unwrap();
            assert!(text.contains("Message-ID: <0000000000000009.07070707@mailrun>"), "{text}");
        }
    }

    #[test]
    fn a_header_line_of_a_dot_is_stuffed_too() {
        let template = MessageTemplate::new(stamp(), b".\r\n.x: y\r\n\r\n", b".\r\n", MessageIdMode::Unchanged);
        let mut outbox = Outbox::default();
        template.render(0, Duration::ZERO, &mut outbox);
        let content = received(&mut outbox);
        assert!(content.ends_with(b"\r\n.\r\n.x: y\r\n\r\n.\r\n"), "{}", content.escape_ascii());
        assert_eq!(content.len() as u64, template.bytes);
    }

    #[test]
    fn digits_fill_their_place() {
        let mut digits = *b"................";
        write_hex(&mut digits, 0x12_3abc);
        assert_eq!(&digits, b"0000000000123abc");
    }
}
