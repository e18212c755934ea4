//! The trace: a header line of fixed width. The receiving program recognizes a message of mailrun by this line, learns
//! when the message was created, and checks its body.
//!
//! ```text
//! X-Mailrun: v1 <run-id hex32> <sequence hex16> <created-ns hex16> <clock hex8> <crc32c hex8>CRLF
//! 0             14             47               64                 81           90           98
//! ```
//!
//! The first byte of the sequence field says how the recipients are numbered ([`RecipientNumbering`]). The next seven
//! bits are the fraction of a second at which the run began ([`ZeroPhase`]). The sequence number in the other 49 bits
//! consists of the warm-up flag, six bits for the stage of the load, and 42 bits for the number of the message.
//!
//! The trace line has a fixed width, so that the source only overwrites a few fields for each message. The checksum
//! (CRC-32C) covers the bytes after the first empty line without dot-stuffing, so relays may add their own header
//! fields before or after the line. If a relay states that it has encoded 8-bit parts for a server without 8BITMIME,
//! the checksum must match the original parts (`mailrun_mime::Restorer`).
use crc_fast::{CrcAlgorithm, Digest};
use mailrun_mime::{Encoding, MARKER, Restorer};
use memchr::memmem::Finder;
use memchr::{memchr, memrchr};
use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

/// Maximum number of recipients of a message if each recipient has its number at the end of its address. The numbers
/// count from 0, so the greatest is 1,023. An address that ends in a greater number was not numbered by mailrun, so its
/// recipient gets the number 0, as if the address ended in no number.
pub const MAX_RECIPIENTS: u32 = 1024;

/// Lowest sequence number of a warm-up message. Sinks check messages with this or a higher number for loss, but leave
/// them out of rates and latencies.
pub const WARM_UP_SEQUENCE: u64 = 1 << 48;

/// Exclusive upper limit of message numbers. Higher bits of a sequence number hold the load stage and the warm-up flag.
pub const MESSAGE_NUMBERS: u64 = 1 << MESSAGE_NUMBER_BITS;
const MESSAGE_NUMBER_BITS: u32 = 42;
/// Maximum number of a load's stages that are evaluated separately. It is limited by the six bits for the stage in a
/// sequence number. Messages of later stages, and messages of a load without stages, belong to stage 0.
pub const MAX_LOAD_STAGES: usize = 63;

/// Packs a message's number, load stage and warm-up flag into its sequence number. Load stages count from 1, and 0
/// means that the message belongs to no stage.
pub fn sequence_of(number: u64, load_stage: u8, is_warm_up: bool) -> u64 {
    let mark = if is_warm_up { WARM_UP_SEQUENCE } else { 0 };
    number | u64::from(load_stage) << MESSAGE_NUMBER_BITS | mark
}

pub fn message_number(sequence: u64) -> u64 {
    sequence % MESSAGE_NUMBERS
}

/// Extracts the load stage from a sequence number that [`sequence_of`] has made. 0 means that the message belongs to no
/// stage.
pub fn load_stage_of(sequence: u64) -> u8 {
    (sequence >> MESSAGE_NUMBER_BITS) as u8 & MAX_LOAD_STAGES as u8
}

/// Finds the end of a message's header: the LF of the last header line and the empty line after it.
static EMPTY_LINE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\n\r\n"));
const EMPTY_LINE_BYTES: usize = 3;

const ENCODING: &[u8] = b"Content-Transfer-Encoding:";

pub const NAME: &[u8] = b"X-Mailrun:";
const VERSION: &[u8] = b" v1 ";
const RUN_OFFSET: usize = NAME.len() + VERSION.len();
const SEQUENCE_OFFSET: usize = RUN_OFFSET + 32 + 1;
const CREATED_OFFSET: usize = SEQUENCE_OFFSET + 16 + 1;
const CLOCK_OFFSET: usize = CREATED_OFFSET + 16 + 1;
const CHECKSUM_OFFSET: usize = CLOCK_OFFSET + 8 + 1;
const LINE_BYTES: usize = CHECKSUM_OFFSET + 8;

/// The lowest 49 bits of the sequence field hold the sequence number, whose highest bit is the warm-up flag.
const SEQUENCE_BITS: u32 = 49;
const SEQUENCE_MASK: u64 = (1 << SEQUENCE_BITS) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    pub run: RunId,
    /// Message number, load stage and warm-up flag, packed by [`sequence_of`] into a number below 2^49.
    pub sequence: u64,
    /// Offset of the seconds of the run from the full seconds of `clock`.
    pub zero: ZeroPhase,
    /// Tells the sink's ledger how to derive a recipient's number from the address.
    pub numbering: RecipientNumbering,
    /// Time on `clock` at which a session began the message (closed loop) or for which it was scheduled (open loop).
    pub created: Duration,
    pub clock: ClockId,
    pub checksum: u32,
}

impl Trace {
    /// Length of the header line in bytes, including CRLF.
    pub const HEADER_BYTES: usize = LINE_BYTES + 2;

    /// Writes the whole line with its CRLF into `header`. Panics unless `header` has exactly [`Self::HEADER_BYTES`]
    /// bytes.
    pub fn write(&self, header: &mut [u8]) {
        assert_eq!(header.len(), Self::HEADER_BYTES, "a trace header is {} bytes", Self::HEADER_BYTES);
        header.fill(b' ');
        header[..NAME.len()].copy_from_slice(NAME);
        header[NAME.len()..RUN_OFFSET].copy_from_slice(VERSION);
        write_hex(&mut header[RUN_OFFSET..], &self.run.0);
        write_hex(&mut header[SEQUENCE_OFFSET..], &[self.numbering.0]);
        write_hex(&mut header[CLOCK_OFFSET..], &self.clock.0.to_be_bytes());
        write_hex(&mut header[CHECKSUM_OFFSET..], &self.checksum.to_be_bytes());
        header[LINE_BYTES..].copy_from_slice(b"\r\n");
        Self::patch(header, self.zero, self.sequence, self.created);
    }

    /// Overwrites the sequence number and the time in a line that [`Self::write`] has made. If all messages of a run
    /// have the same size, only these fields differ, so patching them is all the work that a message needs.
    pub fn patch(header: &mut [u8], zero: ZeroPhase, sequence: u64, created: Duration) {
        let marked = u64::from(zero.0) << SEQUENCE_BITS | sequence & SEQUENCE_MASK;
        write_hex(&mut header[SEQUENCE_OFFSET + 2..], &marked.to_be_bytes()[1..]);
        write_hex(&mut header[CREATED_OFFSET..], &nanoseconds(created).to_be_bytes());
    }

    /// Overwrites the checksum in a line that [`Self::write`] has made. The source calls this if the messages of a run
    /// differ in size, because each body is then a prefix of one text, and each length has its own checksum.
    pub fn patch_checksum(header: &mut [u8], checksum: u32) {
        write_hex(&mut header[CHECKSUM_OFFSET..], &checksum.to_be_bytes());
    }

    pub fn name(&self) -> MessageName {
        MessageName { run: self.run, sequence: self.sequence, numbering: self.numbering }
    }

    pub fn is_warm_up(&self) -> bool {
        self.sequence >= WARM_UP_SEQUENCE
    }

    /// Parses a header line with or without its CRLF. The name and the digits may be in upper or lower case. Returns
    /// `None` if anything else differs from a line that [`Self::write`] makes.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let line: &[u8; LINE_BYTES] = strip_line_end(line).try_into().ok()?;
        let spaced = [SEQUENCE_OFFSET, CREATED_OFFSET, CLOCK_OFFSET, CHECKSUM_OFFSET]
            .iter()
            .all(|&field| line[field - 1] == b' ');
        if !is_named(line) || &line[NAME.len()..RUN_OFFSET] != VERSION || !spaced {
            return None;
        }
        let sequence = read_hex16(line[SEQUENCE_OFFSET..].first_chunk()?)?;
        Some(Self {
            run: RunId::read(line[RUN_OFFSET..].first_chunk()?)?,
            sequence: sequence & SEQUENCE_MASK,
            zero: ZeroPhase((sequence >> SEQUENCE_BITS) as u8 & ZeroPhase::MASK),
            numbering: RecipientNumbering((sequence >> 56) as u8),
            created: Duration::from_nanos(read_hex16(line[CREATED_OFFSET..].first_chunk()?)?),
            clock: ClockId(read_hex8(line[CLOCK_OFFSET..].first_chunk()?)?),
            checksum: read_hex8(line[CHECKSUM_OFFSET..].first_chunk()?)?,
        })
    }
}

/// The part of a trace that identifies a message. If the source sends this part as ENVID (RFC 3461 §4.4), a bounce
/// identifies the message even if it does not return the message's header:
///
/// ```text
/// mailrun.<run-id hex32>.<numbering hex2><sequence hex14>
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageName {
    pub run: RunId,
    pub sequence: u64,
    pub numbering: RecipientNumbering,
}

impl MessageName {
    const PREFIX: &[u8] = b"mailrun.";
    const BYTES: usize = Self::PREFIX.len() + 32 + 1 + 16;

    /// Returns the value for ENVID, which needs no xtext escapes, because it consists of letters, digits and dots.
    pub fn envelope_id(&self) -> [u8; Self::BYTES] {
        let mut text = [b'.'; Self::BYTES];
        let (prefix, fields) = text.split_at_mut(Self::PREFIX.len());
        prefix.copy_from_slice(Self::PREFIX);
        write_hex(fields, &self.run.0);
        let marked = u64::from(self.numbering.0) << 56 | self.sequence & SEQUENCE_MASK;
        write_hex(&mut fields[33..], &marked.to_be_bytes());
        text
    }

    /// Parses an ENVID. Returns `None` if the text does not have the form that [`Self::envelope_id`] writes.
    pub fn from_envelope_id(text: &[u8]) -> Option<Self> {
        let text: &[u8; Self::BYTES] = text.try_into().ok()?;
        let fields = text.strip_prefix(Self::PREFIX).filter(|fields| fields[32] == b'.')?;
        let marked = read_hex16(fields[33..].first_chunk()?)?;
        Some(Self {
            run: RunId::read(fields.first_chunk()?)?,
            sequence: marked & SEQUENCE_MASK,
            numbering: RecipientNumbering((marked >> 56) as u8),
        })
    }
}

/// Offset of the seconds of a run from the full seconds of the trace's clock, in units of 1/128 s. For example, 32
/// means that each second of the run begins 0.25 s after a full second of the clock.
///
/// Every source starts its load at a multiple of 1/128 s, so the offset is exact. It tells a sink, even one that was
/// started separately, when the source's seconds begin, so that both report figures for the same seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZeroPhase(u8);

impl ZeroPhase {
    const STEPS: u32 = 128;
    const MASK: u8 = 127;
    pub const STEP: Duration = Duration::from_nanos(1_000_000_000 / Self::STEPS as u64);

    /// Returns the offset of this time within its second, rounded down to a multiple of 1/128 s.
    pub fn of(time: Duration) -> Self {
        Self((time.subsec_nanos() / Self::STEP.subsec_nanos()) as u8)
    }

    /// Converts the offset to a `Duration`, which is less than a second.
    pub fn time(self) -> Duration {
        Self::STEP * u32::from(self.0)
    }

    /// Rounds the start of a load up to a multiple of 1/128 s, because the trace has no room for a finer offset.
    pub fn next_step(time: Duration) -> Duration {
        let step = Self::STEP.subsec_nanos();
        let excess = time.subsec_nanos() % step;
        if excess == 0 { time } else { time + Duration::from_nanos((step - excess).into()) }
    }
}

/// Identity of a run: 128 random bits, written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub [u8; 16]);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a run id is 32 hexadecimal digits")]
pub struct ParseRunIdError;

impl RunId {
    fn read(digits: &[u8; 32]) -> Option<Self> {
        let high = read_hex16(digits.first_chunk()?)?;
        let low = read_hex16(digits.last_chunk()?)?;
        Some(Self(((u128::from(high) << 64) | u128::from(low)).to_be_bytes()))
    }
}

impl FromStr for RunId {
    type Err = ParseRunIdError;

    fn from_str(text: &str) -> Result<Self, ParseRunIdError> {
        text.as_bytes().try_into().ok().and_then(Self::read).ok_or(ParseRunIdError)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunId({self})")
    }
}

/// Identity of a clock: the host's boot, and whether the clock is CLOCK_MONOTONIC or Unix time.
///
/// Two monotonic times can be subtracted only if they come from the same boot of the same host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClockId(pub u32);

impl ClockId {
    const REALTIME: u32 = 1 << 31;

    /// Returns the identity of this host's CLOCK_MONOTONIC, which starts anew with each boot. `boot_id` is the text of
    /// `/proc/sys/kernel/random/boot_id`.
    pub fn monotonic(boot_id: &str) -> Self {
        Self(checksum(boot_id.trim().as_bytes()) & !Self::REALTIME)
    }

    /// Returns the identity of this host's Unix time. It also identifies the boot, so that [`Self::same_host`] can
    /// compare it with the identity of a monotonic clock.
    pub fn realtime(boot_id: &str) -> Self {
        Self(Self::monotonic(boot_id).0 | Self::REALTIME)
    }

    pub fn is_realtime(self) -> bool {
        self.0 & Self::REALTIME != 0
    }

    /// Returns true if both clocks belong to the same boot of the same host, even if only one of them is Unix time.
    pub fn same_host(self, other: Self) -> bool {
        self.0 & !Self::REALTIME == other.0 & !Self::REALTIME
    }
}

pub fn checksum(body: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(body)
}

/// CRC-32C of a body that arrives in blocks. It takes only 4 bytes, so that every session can have its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum(u32);

impl Default for Checksum {
    fn default() -> Self {
        Self(u32::MAX)
    }
}

impl Checksum {
    pub fn update(&mut self, block: &[u8]) {
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(self.0));
        digest.update(block);
        self.0 = digest.get_state() as u32;
    }

    pub fn value(self) -> u32 {
        !self.0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceResult {
    /// There is no `X-Mailrun` header: mailrun did not send the message, or a server removed the header.
    Absent,
    Intact(Trace),
    /// A relay converted the message to 7-bit (RFC 6152 §3), and the trace's checksum matches the original body.
    Converted(Trace),
    /// The trace's checksum does not match the body or, if this contains `None`, the message has an `X-Mailrun` header
    /// that cannot be parsed.
    Corrupt(Option<Trace>),
}

/// Finds and verifies the trace of a message that arrives in blocks of any size.
///
/// The reader keeps at most one unfinished header line, whatever the size of the message. It truncates this line one
/// byte beyond the length of a trace, because a longer line cannot be a trace.
///
/// ```text
/// header ──empty line──► body ──finish──► header (of the next message)
/// ```
#[derive(Clone, Debug, Default)]
pub struct TraceReader {
    part: MessagePart,
    line: UnfinishedLine,
    seen: TraceHeader,
    checksum: Checksum,
    /// Decoder of the body, or `None` if no header line says that the body is encoded.
    original: Option<Box<RestoredBody>>,
    /// True after the first line of the header, so that a trace in a later line does not set `is_from_source`.
    has_line: bool,
    /// True if the trace is the first line of the header. A relay that converts a body also adds a line above the
    /// trace, so no relay has converted this message.
    is_from_source: bool,
    /// True if the caller wants to know From and Subject of messages without a trace.
    describes: bool,
    /// From and Subject of the message that is being received.
    sample: Option<Box<HeaderSample>>,
    /// From and Subject of the message that has just ended, if it had no trace.
    ended_sample: Option<Box<HeaderSample>>,
}

/// From and Subject of a message without a trace, which help the user to recognize the message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderSample {
    pub from: Option<String>,
    pub subject: Option<String>,
}

impl HeaderSample {
    const MAX_CHARS: usize = 80;

    fn field(line: &[u8]) -> Option<(bool, String)> {
        let text = |name: &[u8]| {
            let (start, value) = line.split_at_checked(name.len())?;
            let value = start.eq_ignore_ascii_case(name).then_some(value)?;
            Some(mailrun_text::printable::clipped(&String::from_utf8_lossy(value), Self::MAX_CHARS))
        };
        text(b"From:").map(|from| (true, from)).or_else(|| Some((false, text(b"Subject:")?)))
    }
}

/// Decodes, block by block, a body that a relay may have encoded, and computes the checksum of the original body.
#[derive(Clone, Debug, Default)]
struct RestoredBody {
    restorer: Restorer,
    checksum: Checksum,
}

impl RestoredBody {
    /// Returns a decoder if this header line is `X-MIME-Autoconverted`, with which a relay states that it converted the
    /// body, or a Content-Transfer-Encoding that encodes the body. The latter does not tell whether a relay or the
    /// sender encoded the body.
    fn begin(line: &[u8]) -> Option<Box<Self>> {
        if line.get(..MARKER.len()).is_some_and(|name| name.eq_ignore_ascii_case(MARKER)) {
            return Some(Box::default());
        }
        // If the line fills the buffer, its end may be missing, so ignore the line.
        let is_whole = line.len() < UnfinishedLine::LIMIT;
        let value = line.get(..ENCODING.len()).filter(|name| is_whole && name.eq_ignore_ascii_case(ENCODING));
        let value = value.map(|_| line[ENCODING.len()..].trim_ascii())?;
        let encoding = [Encoding::QuotedPrintable, Encoding::Base64]
            .into_iter()
            .find(|encoding| value.eq_ignore_ascii_case(encoding.word().as_bytes()))?;
        Some(Box::new(Self { restorer: Restorer::of_one_part(encoding), checksum: Checksum::default() }))
    }

    fn receive(&mut self, block: &[u8]) {
        let checksum = &mut self.checksum;
        self.restorer.receive(block, |text| checksum.update(text));
    }

    fn finish(mut self) -> Option<u32> {
        let checksum = &mut self.checksum;
        self.restorer.finish(|text| checksum.update(text));
        self.restorer.is_valid().then_some(self.checksum.value())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum MessagePart {
    #[default]
    Header,
    Body,
}

#[derive(Clone, Copy, Debug, Default)]
enum TraceHeader {
    #[default]
    Absent,
    Unreadable,
    Trace(Trace),
}

impl TraceReader {
    /// Sets whether [`Self::take_sample`] returns From and Subject of messages without a trace. Off by default.
    pub fn describe(&mut self, describes: bool) {
        self.describes = describes;
        (self.sample, self.ended_sample) = (None, None);
    }

    /// Returns From and Subject of the message that has just ended. Returns `None` if the message has a trace, if it
    /// has neither From nor Subject, or if the caller has not called [`Self::describe`] with `true`.
    pub fn take_sample(&mut self) -> Option<HeaderSample> {
        self.ended_sample.take().map(|sample| *sample)
    }

    /// Processes the next block of the message, from which the caller has removed dot-stuffing and the final dot.
    pub fn receive(&mut self, block: &[u8]) {
        if let Some(original) = &mut self.original {
            original.receive(block);
        }
        let body = match self.part {
            MessagePart::Header => self.read_header(block),
            MessagePart::Body => block,
        };
        if !body.is_empty() {
            self.checksum.update(body);
        }
    }

    /// Ends the message, and returns its trace and whether the body matches the trace's checksum. The reader is then
    /// ready for the next message.
    pub fn finish(&mut self) -> TraceResult {
        if self.part == MessagePart::Header && !self.line.kept().is_empty() {
            let line = std::mem::take(&mut self.line);
            self.read_line(line.kept());
        }
        let checksum = std::mem::take(&mut self.checksum).value();
        self.part = MessagePart::Header;
        let original = self.original.take();
        (self.has_line, self.is_from_source) = (false, false);
        self.ended_sample = self.sample.take().filter(|_| matches!(self.seen, TraceHeader::Absent));
        match std::mem::take(&mut self.seen) {
            TraceHeader::Absent => TraceResult::Absent,
            TraceHeader::Unreadable => TraceResult::Corrupt(None),
            TraceHeader::Trace(trace) if trace.checksum == checksum => TraceResult::Intact(trace),
            TraceHeader::Trace(trace) if original.and_then(|original| original.finish()) == Some(trace.checksum) => {
                TraceResult::Converted(trace)
            }
            TraceHeader::Trace(trace) => TraceResult::Corrupt(Some(trace)),
        }
    }

    fn read_header<'b>(&mut self, block: &'b [u8]) -> &'b [u8] {
        let mut rest = block;
        if !self.has_line && self.line.kept().is_empty() && is_named(block) {
            // The trace is in the first line. A relay that converted the body would have added lines above the trace,
            // so the body was not converted. The other lines of the header are not needed, so skip them to save time.
            if let Some(end) = EMPTY_LINE.find(block) {
                self.read_line(&block[..memchr(b'\n', block).map_or(end, |at| at + 1)]);
                self.part = MessagePart::Body;
                return &block[end + EMPTY_LINE_BYTES..];
            }
        }
        while let Some(end) = memchr(b'\n', rest) {
            let (line, after) = rest.split_at(end + 1);
            rest = after;
            let was_original = self.original.is_some();
            if self.end_line(line) {
                self.part = MessagePart::Body;
                return rest;
            }
            // `receive` passes a block only to a decoder that existed before the block. If `line` has just created the
            // decoder `original`, pass the rest of the block to the decoder here.
            if let Some(original) = self.original.as_mut().filter(|_| !was_original) {
                original.receive(rest);
            }
        }
        self.line.keep(rest);
        &[]
    }

    /// Completes the line whose beginning came in earlier blocks, and reads it. Returns true at the end of the header.
    fn end_line(&mut self, end: &[u8]) -> bool {
        if self.line.kept().is_empty() {
            return self.read_line(end);
        }
        self.line.keep(end);
        let line = std::mem::take(&mut self.line);
        self.read_line(line.kept())
    }

    /// Looks for the trace and the body's encoding in a header line. If there are several traces, only the first one
    /// counts. Returns true if the line is the empty line that ends the header.
    fn read_line(&mut self, line: &[u8]) -> bool {
        if matches!(self.seen, TraceHeader::Absent) && is_named(line) {
            self.seen = Trace::parse(line).map_or(TraceHeader::Unreadable, TraceHeader::Trace);
            self.is_from_source = !self.has_line;
        } else if self.original.is_none() && !self.is_from_source && matches!(line, [b'x' | b'X' | b'c' | b'C', ..]) {
            self.original = RestoredBody::begin(line);
        }
        if self.describes && matches!(self.seen, TraceHeader::Absent) {
            self.describe_line(line);
        }
        self.has_line = true;
        line == b"\r\n"
    }

    /// Stores the value of a From or Subject line, so that the user can recognize a message without a trace. Called
    /// only for lines before any trace. In a message of a run, only a relay can have put a line before the trace,
    /// because the source writes the trace first.
    fn describe_line(&mut self, line: &[u8]) {
        if let Some((is_from, value)) = HeaderSample::field(line) {
            let sample = self.sample.get_or_insert_default();
            let field = if is_from { &mut sample.from } else { &mut sample.subject };
            field.get_or_insert(value);
        }
    }
}

/// Beginning of a header line whose end is in a later block. The buffer is one byte longer than a trace, so a line that
/// fills it is too long to be a trace.
#[derive(Clone, Copy, Debug)]
struct UnfinishedLine {
    octets: [u8; Self::LIMIT],
    length: u8,
}

impl UnfinishedLine {
    const LIMIT: usize = Trace::HEADER_BYTES + 1;

    fn keep(&mut self, more: &[u8]) {
        let start = usize::from(self.length);
        let count = more.len().min(Self::LIMIT - start);
        self.octets[start..start + count].copy_from_slice(&more[..count]);
        self.length += count as u8;
    }

    fn kept(&self) -> &[u8] {
        &self.octets[..usize::from(self.length)]
    }
}

impl Default for UnfinishedLine {
    fn default() -> Self {
        Self { octets: [0; Self::LIMIT], length: 0 }
    }
}

/// Number in a recipient's address, and hash of the address. A sink computes both at RCPT, because it does not know yet
/// which of the two identifies the recipient. The trace, which arrives later, says so ([`RecipientNumbering`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecipientId {
    /// Decimal number at the end of the local part, or 0 if there is none below [`MAX_RECIPIENTS`].
    tag: u16,
    hash: u32,
}

impl RecipientId {
    /// Length of the longest address that SMTP allows (RFC 5321 §4.5.3.1). The rest of a longer address is ignored.
    const MAX_ADDRESS: usize = 320;

    /// Expects an address without angle brackets. Ignores upper and lower case, because servers may change them.
    pub fn new(address: &[u8]) -> Self {
        let mut lower = [0; Self::MAX_ADDRESS];
        let length = address.len().min(Self::MAX_ADDRESS);
        let lower = &mut lower[..length];
        lower.copy_from_slice(&address[..length]);
        lower.make_ascii_lowercase();
        // A recipient's number consists of the upper bits of the hash. The CRCs of similar addresses may have the same
        // upper bits, so multiply, which mixes lower bits into the upper bits.
        Self { tag: tag(address) as u16, hash: checksum(lower).wrapping_mul(0x9e37_79b9) }
    }

    pub fn hash(self) -> u32 {
        self.hash
    }
}

/// Tells how a sink derives each recipient's number from the address. Counting the RCPT commands would not work,
/// because a relay may split a transaction. The lower seven bits select the rule:
///
/// - 0 ([`Self::TAG`]): the recipient's number is the decimal number at the end of the local part. The number is 0 if
///   there are no digits, more than four digits, or a number that is not below [`MAX_RECIPIENTS`].
/// - 1 + n: the recipient's number consists of the upper n bits of a hash of the address. The hash is the CRC-32C of
///   the address in lower case, times 0x9e3779b9 (mod 2^32). The source chooses n so that the recipients of a message
///   have different numbers. If a message has a single recipient, whose address varies, n is 0.
///
/// The eighth, highest bit is set if the source asks for NOTIFY=NEVER (RFC 3461 §4.1). If the bit is clear and a
/// recipient arrives with NOTIFY=NEVER, the sink knows that a server has added this recipient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecipientNumbering(u8);

impl RecipientNumbering {
    /// The recipient's number is the decimal number at the end of the local part, for example 7 in `user7@example.com`.
    pub const TAG: Self = Self(0);
    /// Gives the number 0 to the single recipient of a message, whatever its address.
    pub const SINGLE: Self = Self(1);
    const ASKS_NEVER: u8 = 0x80;

    /// The recipient's number consists of this many upper bits of the hash of the address, at most 32.
    pub fn address_bits(bits: u32) -> Self {
        Self(1 + bits.min(32) as u8)
    }

    /// Sets the bit that tells the sink that the source itself asks for NOTIFY=NEVER.
    pub fn asking_never(self) -> Self {
        Self(self.0 | Self::ASKS_NEVER)
    }

    pub fn asks_never(self) -> bool {
        self.0 & Self::ASKS_NEVER != 0
    }

    #[inline]
    pub fn number(self, recipient: RecipientId) -> u32 {
        match self.0 & !Self::ASKS_NEVER {
            0 => u32::from(recipient.tag),
            1 => 0,
            more => recipient.hash >> (33 - more.min(33)),
        }
    }
}

fn tag(address: &[u8]) -> u32 {
    let local = &address[..memrchr(b'@', address).unwrap_or(address.len())];
    let digits = local.iter().rev().take_while(|octet| octet.is_ascii_digit()).count();
    if digits > 4 {
        return 0;
    }
    let number = local[local.len() - digits..].iter().fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    if number < MAX_RECIPIENTS { number } else { 0 }
}

fn is_named(line: &[u8]) -> bool {
    line.starts_with(NAME) || line.len() >= NAME.len() && line[..NAME.len()].eq_ignore_ascii_case(NAME)
}

fn strip_line_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Converts a time to nanoseconds. Any time of a clock fits, because 64 bits hold 584 years.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

const DIGITS: [[u8; 2]; 256] = {
    let hex = *b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut value = 0;
    while value < 256 {
        pairs[value] = [hex[value >> 4], hex[value & 15]];
        value += 1;
    }
    pairs
};

fn write_hex(field: &mut [u8], value: &[u8]) {
    for (digits, octet) in field.chunks_exact_mut(2).zip(value) {
        digits.copy_from_slice(&DIGITS[usize::from(*octet)]);
    }
}

fn read_hex16(digits: &[u8; 16]) -> Option<u64> {
    let high = read_hex8(digits.first_chunk()?)?;
    let low = read_hex8(digits.last_chunk()?)?;
    Some(u64::from(high) << 32 | u64::from(low))
}

/// Parses eight hexadecimal digits at once in a 64-bit word, because parsing the eighty digits of a trace one by one
/// would take longer. Not inlined, because ten copies of the code in the instruction cache would cost more time than
/// the calls.
#[inline(never)]
fn read_hex8(digits: &[u8; 8]) -> Option<u32> {
    const ONES: u64 = u64::MAX / 255;
    let octets = u64::from_le_bytes(*digits);
    let is_letter = (octets >> 6) & ONES;
    let values = (octets & (0x0f * ONES)) + 9 * is_letter;
    let at_least_ten = ((values + 6 * ONES) >> 4) & ONES;
    // Convert the values back to digits, and compare them with the input. They differ if an octet of the input is not
    // a hexadecimal digit.
    let written = values.wrapping_add(0x30 * ONES + 0x27 * at_least_ten);
    if values & (0xf0 * ONES) != 0 || written != octets | (is_letter << 5) {
        return None;
    }
    let pairs = ((values << 4) | (values >> 8)) & 0x00ff_00ff_00ff_00ff;
    let quads = (pairs | (pairs >> 8)) & 0x0000_ffff_0000_ffff;
    Some(((quads | (quads >> 16)) as u32).swap_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_number_tells_message_stage_and_warm_up() {
        for (number, stage, is_warm_up) in [
            (0, 0, false),
            (7, 1, false),
            (MESSAGE_NUMBERS - 1, 63, true),
            (MESSAGE_NUMBERS - 1, 0, true),
            (5, 33, true),
        ] {
            let sequence = sequence_of(number, stage, is_warm_up);
            assert!(sequence <= SEQUENCE_MASK);
            let read = (message_number(sequence), load_stage_of(sequence), sequence >= WARM_UP_SEQUENCE);
            assert_eq!(read, (number, stage, is_warm_up));
        }
    }

    #[test]
    fn an_envelope_id_names_a_message() {
        let numbering = RecipientNumbering::address_bits(20);
        for sequence in [0, 1, 0xabc, WARM_UP_SEQUENCE | 7, SEQUENCE_MASK] {
            let name = MessageName { run: RunId([0xa7; 16]), sequence, numbering };
            let text = name.envelope_id();
            assert_eq!(MessageName::from_envelope_id(&text), Some(name));
            assert!(text.iter().all(|octet| octet.is_ascii_alphanumeric() || *octet == b'.'));
            for wrong in
                [&text[1..], &[&text[..], b"0"].concat(), &text.map(|octet| if octet == b'.' { b'0' } else { octet })]
            {
                assert_eq!(MessageName::from_envelope_id(wrong), None);
            }
        }
        assert_eq!(MessageName::from_envelope_id(b"QQ314159"), None);
    }

    #[test]
    fn every_octet_is_a_digit_or_refused_in_every_place() {
        for place in 0..8 {
            for octet in 0..=255u8 {
                let mut digits = *b"0a1B2c3D";
                digits[place] = octet;
                let expected = std::str::from_utf8(&digits)
                    .ok()
                    .filter(|text| text.bytes().all(|digit| digit.is_ascii_hexdigit()))
                    .and_then(|text| u32::from_str_radix(text, 16).ok());
                assert_eq!(read_hex8(&digits), expected, "{octet:#x} at {place}");
            }
        }
    }

    const LINE: &[u8] = b"X-Mailrun: v1 000102030405060708090a0b0c0d0e0f 00000000000000ff 00000000000f4240 7fffffff \
        e3069283\r\n";

    fn trace() -> Trace {
        Trace {
            run: RunId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
            sequence: 255,
            zero: ZeroPhase(0),
            numbering: RecipientNumbering::TAG,
            created: Duration::from_millis(1),
            clock: ClockId(0x7fff_ffff),
            checksum: 0xe306_9283,
        }
    }

    fn replaced(from: &str, to: &str) -> Vec<u8> {
        String::from_utf8_lossy(LINE).replacen(from, to, 1).into_bytes()
    }

    #[test]
    fn the_line_is_the_documented_hundred_octets() {
        let mut header = [0; Trace::HEADER_BYTES];
        trace().write(&mut header);
        assert_eq!(header, LINE);
        assert_eq!(Trace::HEADER_BYTES, 100);
    }

    #[test]
    fn a_patch_changes_sequence_and_time_alone() {
        let mut header = [0; Trace::HEADER_BYTES];
        trace().write(&mut header);
        let patched = Trace { numbering: RecipientNumbering::address_bits(7), ..trace() };
        patched.write(&mut header);
        let zero = ZeroPhase(5);
        Trace::patch(&mut header, zero, u64::MAX, Duration::from_nanos(9));
        let patched = Trace { zero, sequence: SEQUENCE_MASK, created: Duration::from_nanos(9), ..patched };
        assert_eq!(Trace::parse(&header), Some(patched));
    }

    #[test]
    fn a_run_begins_at_a_step_that_its_traces_name() {
        for ns in [0, 1, 7_812_499, 7_812_500, 7_812_501, 992_187_500, 992_187_501, 999_999_999] {
            let time = Duration::from_secs(7) + Duration::from_nanos(ns);
            let step = ZeroPhase::next_step(time);
            assert!(step >= time && step - time < ZeroPhase::STEP, "{step:?}");
            assert_eq!(ZeroPhase::of(step).time().subsec_nanos(), step.subsec_nanos());
        }
        assert_eq!(ZeroPhase::next_step(Duration::from_millis(6_999)), Duration::from_secs(7));
    }

    #[test]
    fn a_checksum_can_be_patched_alone() {
        let mut header = [0; Trace::HEADER_BYTES];
        trace().write(&mut header);
        Trace::patch_checksum(&mut header, 7);
        assert_eq!(Trace::parse(&header), Some(Trace { checksum: 7, ..trace() }));
    }

    #[test]
    fn messages_of_the_warm_up_are_known_by_their_number() {
        assert!(!Trace { sequence: WARM_UP_SEQUENCE - 1, ..trace() }.is_warm_up());
        assert!(Trace { sequence: WARM_UP_SEQUENCE, ..trace() }.is_warm_up());
    }

    #[test]
    fn lines_that_are_traces() {
        for line in
            [LINE, &LINE[..98], &LINE[..99], &replaced("X-Mailrun", "x-MAILRUN"), &replaced("e3069283", "E3069283")]
        {
            assert_eq!(Trace::parse(line), Some(trace()), "{}", line.escape_ascii());
        }
    }

    #[test]
    fn lines_that_are_not_traces() {
        for (from, to) in [
            ("v1", "v2"),
            ("Mailrun:", "Mailrun "),
            (": v1", ":v1 "),
            ("X-M", "Y-M"),
            ("00ff ", "00fg "),
            ("00ff ", "00+f "),
            ("00ff ", "00ff-"),
            ("00ff ", "00ff  "),
            ("00ff ", "0ff "),
            ("9283", "928"),
            ("9283", "92830"),
            ("\r\n", " \r\n"),
        ] {
            let line = replaced(from, to);
            assert_eq!(Trace::parse(&line), None, "{}", line.escape_ascii());
        }
        assert_eq!(Trace::parse(b""), None);
    }

    #[test]
    fn a_run_id_is_its_32_digits() {
        let text = "000102030405060708090a0b0c0d0e0f";
        assert_eq!(text.parse(), Ok(trace().run));
        assert_eq!(trace().run.to_string(), text);
        for input in ["", "0001", &text[1..], "000102030405060708090a0b0c0d0e0g", "0x0102030405060708090a0b0c0d0e0f"] {
            assert_eq!(input.parse::<RunId>(), Err(ParseRunIdError), "{input}");
        }
    }

    #[test]
    fn clocks_of_one_boot_are_of_one_host() {
        let monotonic = ClockId::monotonic("a-boot\n");
        let realtime = ClockId::realtime("a-boot");
        assert!(realtime.is_realtime() && !monotonic.is_realtime());
        assert!(monotonic.same_host(realtime));
        assert!(!monotonic.same_host(ClockId::monotonic("another boot")));
    }

    #[test]
    fn the_checksum_is_crc_32c() {
        assert_eq!(checksum(b"123456789"), 0xe306_9283, "RFC 3720 calls it CRC32C; this is its check value");
        assert_eq!(checksum(b""), Checksum::default().value());
    }

    #[test]
    fn tagged_recipients_are_told_apart_by_the_digits_that_end_the_local_part() {
        for (address, number) in [
            ("user@example.com", 0),
            ("user7@example.com", 7),
            ("user0042@example.com", 42),
            ("7@example.com", 7),
            ("user1023@example.com", 1023),
            ("user1024@example.com", 0),
            ("user00007@example.com", 0),
            ("user99999999999999999999@example.com", 0),
            ("5user@example.com", 0),
            ("user5+tag@example.com", 0),
            ("\"a@b3\"@example.com", 0),
            ("a@b12@host99.example", 12),
            ("postmaster", 0),
            ("user3", 3),
            ("@", 0),
            ("", 0),
        ] {
            let id = RecipientId::new(address.as_bytes());
            assert_eq!(RecipientNumbering::TAG.number(id), number, "{address}");
            assert_eq!(RecipientNumbering::SINGLE.number(id), 0, "{address}");
        }
    }

    #[test]
    fn recipients_are_told_apart_by_bits_of_their_addresses() {
        let number =
            |bits, address: &str| RecipientNumbering::address_bits(bits).number(RecipientId::new(address.as_bytes()));
        assert_eq!(number(32, "Ann@A.Example"), number(32, "ann@a.example"), "servers change the case");
        assert_eq!(number(32, "ann@a.example"), checksum(b"ann@a.example").wrapping_mul(0x9e37_79b9));
        assert_eq!(number(8, "ann@a.example"), number(32, "ann@a.example") >> 24);
        assert_eq!(number(0, "ann@a.example"), 0);
        assert_eq!(number(99, "ann@a.example"), number(32, "ann@a.example"));
        // A number of 6 bits has 64 possible values. 1,000 similar addresses must use all of them.
        let numbers: std::collections::BTreeSet<u32> = (0..1000).map(|n| number(6, &format!("user{n}@b"))).collect();
        assert_eq!(numbers.len(), 64);
        let long = "x".repeat(1000);
        assert_eq!(number(32, &long), number(32, &long[..320]));
    }

    /// Returns what `TraceReader` finds in a message. Asserts that this does not depend on the blocks in which the
    /// message arrives.
    fn found(message: &[u8]) -> TraceResult {
        let mut reader = TraceReader::default();
        reader.receive(message);
        let whole = reader.finish();
        message.iter().for_each(|octet| reader.receive(&[*octet]));
        assert_eq!(reader.finish(), whole, "octet by octet: {}", message.escape_ascii());
        for split in 0..=message.len() {
            reader.receive(&message[..split]);
            reader.receive(&message[split..]);
            assert_eq!(reader.finish(), whole, "split at {split}: {}", message.escape_ascii());
        }
        whole
    }

    fn message(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    #[test]
    fn the_trace_is_found_wherever_relays_left_it() {
        let long = [b"Received: ".as_slice(), &[b'x'; 300], b"\r\n"].concat();
        for parts in [
            [LINE, b"\r\n", b"123456789"].as_slice(),
            &[LINE, b"Subject: x\r\n\r\n", b"123456789"],
            &[b"Received: by a\r\n\tfor b\r\n", LINE, b"Subject: x\r\n\r\n", b"123456789"],
            &[&long, &long, LINE, &long, b"\r\n", b"123456789"],
            &[&LINE.to_ascii_lowercase(), b"\r\n", b"123456789"],
        ] {
            assert_eq!(found(&message(parts)), TraceResult::Intact(trace()), "{parts:?}");
        }
    }

    #[test]
    fn a_body_that_does_not_fit_is_corrupt() {
        for body in ["", "123456788", "1234567890", "\r\n123456789"] {
            assert_eq!(
                found(&message(&[LINE, b"\r\n", body.as_bytes()])),
                TraceResult::Corrupt(Some(trace())),
                "{body}"
            );
        }
        assert_eq!(found(LINE), TraceResult::Corrupt(Some(trace())), "cut off in the header");
        assert_eq!(found(&LINE[..98]), TraceResult::Corrupt(Some(trace())), "cut off in the line end");
    }

    #[test]
    fn a_trace_that_cannot_be_read_is_corrupt() {
        let overlong = [&LINE[..98], b"0\r\n"].concat();
        for line in [&replaced("v1", "v9"), &overlong, b"X-Mailrun: hello\r\n".as_slice(), b"x-mailrun:\r\n"] {
            assert_eq!(found(&message(&[line, b"\r\n", b"123456789"])), TraceResult::Corrupt(None));
            assert_eq!(
                found(&message(&[line, LINE, b"\r\n", b"123456789"])),
                TraceResult::Corrupt(None),
                "the first wins"
            );
        }
    }

    fn relayed(head: &str, body: &[u8]) -> (Trace, Vec<u8>) {
        let trace = Trace { checksum: checksum(body), ..trace() };
        let mut line = [0; Trace::HEADER_BYTES];
        trace.write(&mut line);
        let sent = message(&[b"Received: by a\r\n", &line, head.as_bytes(), b"\r\n", body]);
        assert_eq!(found(&sent), TraceResult::Intact(trace));
        (trace, mailrun_mime::to_seven_bit(&sent, "relay.example").unwrap().expect("it is converted"))
    }

    #[test]
    fn a_converted_body_is_checked_as_it_was() {
        let part = "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n";
        let many = format!("--x\r\n{part}\r\nviele Gr\u{fc}\u{df}e\r\n--x\r\n\r\n\u{43f}\u{440}\u{438}\r\n--x--\r\n");
        for (head, body) in [
            (part, "viele Gr\u{fc}\u{df}e\r\n"),
            (part, "\u{43f}\u{440}\u{438}\u{432}\u{435}\u{442}\r\n"),
            ("Subject: x\r\n", "viele Gr\u{fc}\u{df}e\r\n"),
            ("Content-Type: multipart/mixed; boundary=x\r\n", &many),
        ] {
            let (trace, mut converted) = relayed(head, body.as_bytes());
            assert_eq!(found(&converted), TraceResult::Converted(trace), "{}", converted.escape_ascii());
            let again = message(&[b"Received: by another\r\n", &converted]);
            assert_eq!(found(&again), TraceResult::Converted(trace), "through another relay");
            let at = memchr::memmem::rfind(&converted, b"=C3").map_or(converted.len() - 8, |at| at + 2);
            converted[at] = if converted[at] == b'4' { b'5' } else { b'4' };
            assert_eq!(found(&converted), TraceResult::Corrupt(Some(trace)), "{}", converted.escape_ascii());
        }
    }

    #[test]
    fn another_relay_converts_as_it_likes() {
        let body = "viele Gr\u{fc}\u{df}e\r\n".as_bytes();
        let trace = Trace { checksum: checksum(body), ..trace() };
        let mut line = [0; Trace::HEADER_BYTES];
        trace.write(&mut line);
        let head = b"content-transfer-encoding: Quoted-Printable\r\n".as_slice();
        let relayed = message(&[b"Received: by a\r\n", &line, head, b"\r\nviele Gr=c3=bc=C3=9Fe=\r\n\r\n"]);
        assert_eq!(found(&relayed), TraceResult::Converted(trace));
        let own = b"viele Gr=C3=BC=C3=9Fe\r\n";
        let trace = Trace { checksum: checksum(own), ..trace };
        trace.write(&mut line);
        let sent = message(&[b"Received: by a\r\n", &line, head, b"\r\n", own]);
        assert_eq!(found(&sent), TraceResult::Intact(trace), "what its source encoded");
    }

    #[test]
    fn other_mail_has_no_trace() {
        let quoted = message(&[b"Subject: x\r\n\r\n", LINE, b"\r\n123456789"]);
        for mail in
            [b"".as_slice(), b"\r\n", b"Subject: x\r\n\r\nbody\r\n", b"no line end", b" X-Mailrun: v1\r\n", &quoted]
        {
            assert_eq!(found(mail), TraceResult::Absent, "{}", mail.escape_ascii());
        }
    }

    #[test]
    fn a_sample_is_of_the_message_that_has_just_ended() {
        let mut reader = TraceReader::default();
        reader.describe(true);
        let subject = |text: &str| Some(HeaderSample { from: None, subject: Some(text.to_owned()) });
        let sampled = message(&[b"Subject: one\r\n\r\n"]);
        let traced = message(&[b"Subject: two\r\n", LINE, b"\r\n123456789"]);
        // After the first two messages, the test does not take the sample. The third message has no sample, so the
        // reader must not return the sample of an earlier message.
        let messages =
            [(&sampled, None), (&traced, None), (&message(&[b"\r\n"]), Some(None)), (&sampled, Some(subject("one")))];
        for (octets, expected) in messages {
            reader.receive(octets);
            reader.finish();
            if let Some(expected) = expected {
                assert_eq!(reader.take_sample(), expected);
            }
        }
    }

    #[test]
    fn an_endless_header_line_takes_no_memory() {
        let mut reader = TraceReader::default();
        (0..100).for_each(|_| reader.receive(&[b'x'; 10_000]));
        assert!(size_of::<TraceReader>() < 256);
        reader.receive(b"\r\n");
        reader.receive(LINE);
        reader.receive(b"\r\n123456789");
        assert_eq!(reader.finish(), TraceResult::Intact(trace()));
    }
}
