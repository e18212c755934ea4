//! Reads a message from the wire: removes dot-stuffing, finds the end of data (RFC 5321 §4.5.2),
//! and checks the lines. Searches whole blocks with vector code for speed.
//!
//! ```text
//!                 any other byte               "\r\n."
//!  ┌── LineStart ───────────────▶ Text ──────────────────────┐
//!  │      │ "."                    ▲  │ block ends in "\r\n" │
//!  │      ▼     any other byte     │  └──────▶ LineStart     │
//!  │     Dot ──────────────────────┤                         │
//!  │      │ "\r"                   │ any other byte          │
//!  │      ▼                        │                         │
//!  │    DotCr ─────────────────────┘         back to Dot ◀───┘
//!  │      │ "\n"
//!  └────▶ end of data
//! ```
//! The first dot of a line is never content, so the reader drops it at once. Only `<CRLF>.<CRLF>`
//! ends the message.
use memchr::memmem::Finder;
use std::sync::LazyLock;

/// Finds lines that begin with a dot, which are stuffed lines or the end of data. Built only once, because each new
/// `Finder` has to choose the vector code for the processor again.
static DOT_LINE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\r\n."));

/// Line that a client sends after a message to end it. The last line of the message itself must end in `<CRLF>`.
pub const END_OF_DATA: &[u8] = b".\r\n";

/// Fault in a message's line ends or line lengths. The server reads such a message to its end and then refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFault {
    /// The message contains CR without LF, LF without CR, or NUL.
    BareLineEnding,
    /// A line of the message is longer than its limit
    /// ([`Limits::text_line_bytes`](crate::Limits::text_line_bytes)).
    LineTooLong,
}

/// What [`DataReader::next`] takes from its input: bytes of the message, or the end of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPiece<'a> {
    /// A block of the message's bytes, without dot-stuffing.
    Content(&'a [u8]),
    /// The end of data (`<CRLF>.<CRLF>`) has been read.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataState {
    LineStart,
    Dot,
    DotCr,
    Text,
}

/// Reads a single message, from the reply to DATA to the end of data.
#[derive(Clone, Debug)]
pub struct DataReader {
    state: DataState,
    lines: LineChecker,
}

impl DataReader {
    /// Creates a reader at the start of a message. Lines may have at most `line_limit` bytes, including CRLF.
    pub fn new(line_limit: usize) -> Self {
        Self { state: DataState::LineStart, lines: LineChecker::new(line_limit) }
    }

    /// Returns the number of content bytes read so far, without dot-stuffing.
    pub fn bytes(&self) -> u64 {
        self.lines.bytes
    }

    /// Returns the most serious fault of the message so far. A bare line ending counts as more serious than a long
    /// line, whichever comes first. The reply therefore does not depend on how the message was cut into blocks.
    pub fn fault(&self) -> Option<LineFault> {
        self.lines.fault
    }

    /// Takes message bytes, or the end of data, from the front of `input`. Returns `None` if more bytes are needed.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<DataPiece<'a>> {
        loop {
            let first = *input.first()?;
            match (self.state, first) {
                (DataState::LineStart, b'.') => self.advance(input, DataState::Dot),
                (DataState::Dot, b'\r') => self.advance(input, DataState::DotCr),
                (DataState::DotCr, b'\n') => {
                    self.advance(input, DataState::LineStart);
                    return Some(DataPiece::End);
                }
                (DataState::DotCr, _) => {
                    self.state = DataState::Text;
                    return Some(self.content(b"\r"));
                }
                (DataState::LineStart | DataState::Dot, _) => self.state = DataState::Text,
                (DataState::Text, b'\n') if self.lines.previous == b'\r' => {
                    self.advance(input, DataState::LineStart);
                    return Some(self.content(b"\n"));
                }
                (DataState::Text, _) => return Some(self.take_text(input)),
            }
        }
    }

    fn advance(&mut self, input: &mut &[u8], at: DataState) {
        *input = &input[1..];
        self.state = at;
    }

    /// Takes the text before the next line that begins with a dot, or the rest of the block if it has no such line.
    fn take_text<'a>(&mut self, input: &mut &'a [u8]) -> DataPiece<'a> {
        let length = DOT_LINE.find(input).map_or(input.len(), |at| at + 2);
        let (content, rest) = input.split_at(length);
        *input = rest;
        if content.ends_with(b"\r\n") {
            self.state = DataState::LineStart;
        }
        self.content(content)
    }

    fn content<'a>(&mut self, content: &'a [u8]) -> DataPiece<'a> {
        self.lines.check(content);
        DataPiece::Content(content)
    }
}

/// Checks the line endings and line lengths of a message, which comes by DATA or BDAT.
#[derive(Clone, Debug)]
pub(crate) struct LineChecker {
    /// Last byte of the content so far. The checker needs it because a CR and its LF may be in different blocks.
    pub(crate) previous: u8,
    line_bytes: usize,
    line_limit: usize,
    pub(crate) bytes: u64,
    pub(crate) fault: Option<LineFault>,
}

impl LineChecker {
    pub(crate) fn new(line_limit: usize) -> Self {
        Self { previous: b'\n', line_bytes: 0, line_limit, bytes: 0, fault: None }
    }

    pub(crate) fn check(&mut self, content: &[u8]) {
        self.bytes += content.len() as u64;
        if has_bare_line_ending(self.previous, content) {
            self.fault = Some(LineFault::BareLineEnding);
        }
        if !self.lines_fit(content) {
            self.fault.get_or_insert(LineFault::LineTooLong);
        }
        self.previous = content.last().copied().unwrap_or(self.previous);
    }

    /// Returns true if no line exceeds the limit. Searches the next `line_limit` bytes backwards for a line end and
    /// continues after it, so that one search covers many short lines.
    fn lines_fit(&mut self, content: &[u8]) -> bool {
        let mut rest = content;
        loop {
            let room = self.line_limit.saturating_sub(self.line_bytes);
            let window = &rest[..room.min(rest.len())];
            match memchr::memrchr(b'\n', window) {
                Some(at) => {
                    rest = &rest[at + 1..];
                    self.line_bytes = 0;
                }
                None if window.len() == rest.len() => {
                    self.line_bytes += rest.len();
                    return true;
                }
                None => {
                    // Reset the byte count after a line that is too long, so that later lines are still checked.
                    self.line_bytes = 0;
                    return false;
                }
            }
        }
    }
}

/// Returns true if `block`, which follows the byte `previous`, contains CR without LF, LF without
/// CR, or NUL. The compiler turns this into vector code that reads each byte once, without a
/// branch.
fn has_bare_line_ending(previous: u8, block: &[u8]) -> bool {
    let Some(&first) = block.first() else { return false };
    let flawed = |before: u8, octet: u8| u8::from((octet == b'\n') != (before == b'\r')) | u8::from(octet == 0);
    let pairs = block.iter().zip(&block[1..]);
    pairs.fold(flawed(previous, first), |seen, (&before, &octet)| seen | flawed(before, octet)) != 0
}

/// Dot-stuffs a message (RFC 5321 §4.5.2), and appends it to `out` without the end of data. The
/// lines must end in CRLF.
pub fn stuff(message: &[u8], out: &mut Vec<u8>) {
    if message.first() == Some(&b'.') {
        out.push(b'.');
    }
    let mut rest = message;
    while let Some(at) = DOT_LINE.find(rest) {
        out.extend_from_slice(&rest[..at + 2]);
        out.push(b'.');
        rest = &rest[at + 2..];
        // The next search does not find this dot again, because the CRLF before the dot is no longer in `rest`.
    }
    out.extend_from_slice(rest);
}

/// Removes the dot-stuffing of a message. The message must not include the end of data.
pub fn unstuffed(stuffed: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(stuffed.len());
    let mut rest = stuffed.strip_prefix(b".").unwrap_or(stuffed);
    while let Some(at) = DOT_LINE.find(rest) {
        out.extend_from_slice(&rest[..at + 2]);
        rest = &rest[at + 3..];
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::data::{Message, check, read};
    use proptest::prelude::*;

    const BARE: Option<LineFault> = Some(LineFault::BareLineEnding);

    #[test]
    fn a_table_of_messages_reads_the_same_however_it_is_cut() {
        let rows: &[(&[u8], &[u8], Option<LineFault>)] = &[
            (b".\r\n", b"", None),
            (b"a\r\n.\r\n", b"a\r\n", None),
            (b"..\r\n.\r\n", b".\r\n", None),
            (b"...x\r\n..\r\n.\r\n", b"..x\r\n.\r\n", None),
            (b".x\r\n.\r\n", b"x\r\n", None),
            (b"\r\n\r\n.\r\n", b"\r\n\r\n", None),
            (b"a.\r\n.b.\r\n.\r\n", b"a.\r\nb.\r\n", None),
            (b"12345678\r\n.\r\n", b"12345678\r\n", None),
            (b"123456789\r\n.\r\n", b"123456789\r\n", Some(LineFault::LineTooLong)),
            // The rows below imitate the end of data with a bare CR, a bare LF or NUL. Only the last `.` may end the
            // data, because otherwise a second message could be smuggled in (RFC 5321 §4.1.1.4, CVE-2023-51764).
            (b"a\n.\n\r\n.\r\n", b"a\n.\n\r\n", BARE),
            (b"a\r.\rb\r\n.\r\n", b"a\r.\rb\r\n", BARE),
            (b"a\r.\nb\r\n.\r\n", b"a\r.\nb\r\n", BARE),
            (b"a\n.\rb\r\n.\r\n", b"a\n.\rb\r\n", BARE),
            (b"a\n.\r\nb\r\n.\r\n", b"a\n.\r\nb\r\n", BARE),
            (b"a\r\n.\nb\r\n.\r\n", b"a\r\n\nb\r\n", BARE),
            (b"a\r.\r\nb\r\n.\r\n", b"a\r.\r\nb\r\n", BARE),
            (b"a\r\n.\rb\r\n.\r\n", b"a\r\n\rb\r\n", BARE),
            (b"a\r\n.\r\r\n.\r\n", b"a\r\n\r\r\n", BARE),
            (b"a\r\r\n.\r\r\n.\r\n", b"a\r\r\n\r\r\n", BARE),
            (b"a\r\n.\r.\r\n.\r\n", b"a\r\n\r.\r\n", BARE),
            (b"a\r\n\0.\r\nb\r\n.\r\n", b"a\r\n\0.\r\nb\r\n", BARE),
            (b"a\r\n.\0\r\nb\r\n.\r\n", b"a\r\n\0\r\nb\r\n", BARE),
            // This message has a line that is too long and then a bare LF. The reader must report the bare LF, which is
            // the worse fault.
            (b"123456789\r\na\nb\r\n.\r\n", b"123456789\r\na\nb\r\n", BARE),
        ];
        for (wire, content, flaw) in rows {
            let expected = Message { content: content.to_vec(), flaw: *flaw, length: Some(wire.len()) };
            assert_eq!(read(&[wire], 10), expected, "{:?}", String::from_utf8_lossy(wire));
            let trailing = [wire, b"MAIL".as_slice()].concat();
            (0..=trailing.len()).for_each(|at| check(&[&trailing[..at], &[at as u8]].concat()));
        }
    }

    #[test]
    fn the_line_limit_is_exact_at_every_place_of_a_long_message() {
        for long_at in 0..40 {
            let line = |length: usize| [vec![b'x'; length - 2], b"\r\n".to_vec()].concat();
            let with = |length: usize| (0..40).map(|n| line(if n == long_at { length } else { 7 })).collect::<Vec<_>>();
            let end = |lines: Vec<Vec<u8>>| [lines.concat(), END_OF_DATA.to_vec()].concat();
            assert_eq!(read(&[&end(with(100))], 100).flaw, None);
            assert_eq!(read(&[&end(with(101))], 100).flaw, Some(LineFault::LineTooLong));
        }
    }

    /// Generates messages, mostly of CR, LF and dots, so that many almost contain an end of data.
    fn alphabet() -> impl Strategy<Value = Vec<u8>> {
        let octets: Vec<&[u8]> = vec![b"\r", b"\n", b".", b"a", b"\0", b"\xff", b"\r\n", b"\r\n.", b".\r", b".\r\n"];
        proptest::collection::vec(proptest::sample::select(octets), 0..30).prop_map(|octets| octets.concat())
    }

    proptest! {
        #[test]
        fn any_octets_are_read_by_the_book(wire in alphabet(), choice: u8) {
            check(&[wire, vec![choice]].concat());
        }
    }
}
