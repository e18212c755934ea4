//! The message: headers and body, rendered once; the variable parts are filled in as it is sent.
use super::errors::FatalError;
use super::options::Options;
use super::recipient::RecipientGenerator;
use crate::date;
use crate::trace_header::TraceHeaderWriter;
use mailrun_net::Outbox;
use mailrun_party::reason::reason;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

/// The body if neither length nor file is given.
const DEFAULT_BODY: &str = "La de da de da 1.\r\nLa de da de da 2.\r\nLa de da de da 3.\r\nLa de da de da 4.\r\n";
/// Bytes per line of a body of a given length, line end included.
const LINE_BYTES: usize = 80;
/// A body up to this size is copied after its header; a longer one is written without a copy.
const COPY_LIMIT: usize = 16 * 1024;

/// The parts that all messages of a run share.
#[derive(Debug)]
pub(super) struct Message {
    trace_header: Option<TraceHeaderWriter>,
    head: Option<HeaderTemplate>,
    /// The body with the end of data.
    body: Arc<[u8]>,
}

/// The headers around the variable parts: recipient's number, descriptor, messages left.
#[derive(Debug)]
struct HeaderTemplate {
    /// `From: <a@b>`, `To: <`
    before_recipient: Vec<u8>,
    /// `>`, `Date: …`, `Message-Id: <1234.`
    before_id: Vec<u8>,
    /// `@host>`, `Subject: …`, the empty line.
    after_id: Vec<u8>,
}

impl Message {
    /// Renders the message.
    ///
    /// # Errors
    /// If it cannot be traced.
    pub(super) fn new(
        options: &Options,
        sender: &str,
        hostname: &str,
        content: MessageBody,
    ) -> Result<Self, FatalError> {
        let head =
            (!options.is_old_mode && options.file.is_none()).then(|| HeaderTemplate::new(options, sender, hostname));
        let mut body = content.0;
        let trace_header = if options.own_options.traces {
            if options.is_old_mode && options.file.is_none() {
                // The data of `-o` is all body: the trace is its header, and an empty line ends that (RFC 5322 §2.1).
                body.splice(..0, *b"\r\n");
            }
            let sample = head.as_ref().map(HeaderTemplate::sample).unwrap_or_default();
            Some(TraceHeaderWriter::new(&sample, &body).map_err(FatalError)?)
        } else {
            None
        };
        body.extend_from_slice(b".\r\n");
        Ok(Self { trace_header, head, body: body.into() })
    }

    /// Writes the message to the outbox: for which descriptor, with how many messages left in the run, to the recipient
    /// with that number.
    pub(super) fn render(&self, at: RenderContext, recipient: &RecipientGenerator, outbox: &mut Outbox) {
        if let Some(trace_header) = &self.trace_header {
            trace_header.write(at.began, outbox.bytes());
        }
        if let Some(head) = &self.head {
            head.render(at, recipient, outbox.bytes());
        }
        if self.body.len() <= COPY_LIMIT {
            outbox.bytes().extend_from_slice(&self.body);
        } else {
            outbox.append_shared(&self.body);
        }
    }
}

/// The parts of a message that depend on where it is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct RenderContext {
    pub(super) descriptor: i32,
    /// Below zero once there are more sessions than messages; printed as the original prints an unsigned int.
    pub(super) remaining: i32,
    pub(super) number: Option<u32>,
    /// Time at which the message was taken up, if it is measured.
    pub(super) began: Option<Duration>,
}

impl HeaderTemplate {
    fn new(options: &Options, sender: &str, hostname: &str) -> Self {
        let process = std::process::id();
        let date = date::now("%a, %e %b %Y %H:%M:%S %z (%Z)");
        let before_id = format!(">\r\nDate: {date}\r\nMessage-Id: <{process:04x}.");
        let subject = options.subject.as_ref().map(|subject| format!("Subject: {subject}\r\n")).unwrap_or_default();
        Self {
            before_recipient: format!("From: <{sender}>\r\nTo: <").into_bytes(),
            before_id: before_id.into_bytes(),
            after_id: format!("@{hostname}>\r\n{subject}\r\n").into_bytes(),
        }
    }

    /// The text that all messages share.
    fn sample(&self) -> Vec<u8> {
        [self.before_recipient.as_slice(), &self.before_id, &self.after_id].concat()
    }

    fn render(&self, at: RenderContext, recipient: &RecipientGenerator, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.before_recipient);
        recipient.write_header(at.number, out);
        out.extend_from_slice(&self.before_id);
        write!(out, "{:04x}.{:04x}", at.descriptor, at.remaining).expect("a vector takes all");
        out.extend_from_slice(&self.after_id);
    }
}

/// The text between headers and end of data, in wire format.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MessageBody(Vec<u8>);

impl MessageBody {
    /// The content that the options ask for.
    pub(super) fn new(options: &Options) -> Result<Self, FatalError> {
        let content = match (&options.file, options.length) {
            (Some(path), _) => encode_lines(&read(path)?),
            (None, Some(length)) => filler(length as usize),
            (None, None) => Vec::new(),
        };
        if content.is_empty() {
            return Ok(Self(DEFAULT_BODY.into()));
        }
        // One line end more than the file has, as in the original.
        Ok(Self([content.as_slice(), b"\r\n"].concat()))
    }
}

fn read(path: &str) -> Result<Vec<u8>, FatalError> {
    let mut file = File::open(path).map_err(|error| FatalError(format!("open {path}: {}", reason(&error))))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(|error| FatalError(format!("read {path}: {}", reason(&error))))?;
    Ok(text)
}

/// Lines that end in `<LF>`, dot-stuffed, each followed by `<CRLF>` (RFC 5321 §4.5.2). A `<CR>` in the text stays,
/// as in the original.
fn encode_lines(text: &[u8]) -> Vec<u8> {
    let mut content = Vec::with_capacity(text.len() + text.len() / 32);
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        if line.starts_with(b".") {
            content.push(b'.');
        }
        content.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
        content.extend_from_slice(b"\r\n");
    }
    content
}

/// Makes `length` bytes: lines of 80 that begin with their number's last digit; the incomplete last line has none.
fn filler(length: usize) -> Vec<u8> {
    let mut content = vec![b'X'; length];
    let whole = length.saturating_sub(1) / LINE_BYTES;
    for (line, digit) in content.chunks_mut(LINE_BYTES).take(whole).zip(b"1234567890".iter().cycle()) {
        line[0] = *digit;
        line[LINE_BYTES - 2..].copy_from_slice(b"\r\n");
    }
    content
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn bodies_of_a_length() {
        let x = |count: usize| "X".repeat(count);
        let rows = [
            (1, x(1)),
            (80, x(80)),
            (81, format!("1{}\r\nX", x(77))),
            (160, format!("1{}\r\n{}", x(77), x(80))),
            (200, format!("1{0}\r\n2{0}\r\n{1}", x(77), x(40))),
        ];
        for (length, expected) in rows {
            assert_eq!(text(&filler(length)), expected, "{length}");
        }
        let long = filler(1000);
        assert_eq!(long.len(), 1000);
        assert_eq!(long.chunks(80).map(|line| line[0]).collect::<Vec<_>>(), b"123456789012X");
    }

    #[test]
    fn files_are_stuffed_and_given_line_ends() {
        let rows: [(&[u8], &[u8]); 6] = [
            (b"a\nb\n", b"a\r\nb\r\n"),
            (b"a", b"a\r\n"),
            (b".\n..x\na.\n", b"..\r\n...x\r\na.\r\n"),
            (b"a\r\nb\r\n", b"a\r\r\nb\r\r\n"),
            (b"\n", b"\r\n"),
            (b"", b""),
        ];
        for (file, expected) in rows {
            assert_eq!(encode_lines(file), expected, "{file:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let content = |file: &str| MessageBody::new(&Options { file: Some(file.to_owned()), ..Options::default() });
        assert_eq!(content("/none"), Err(FatalError("open /none: No such file or directory".to_owned())));
        assert_eq!(content("/"), Err(FatalError("read /: Is a directory".to_owned())));
        assert_eq!(content("/dev/null"), Ok(MessageBody(DEFAULT_BODY.into())), "an empty file is as none");
    }

    #[test]
    fn headers_in_their_order() {
        let options = Options { subject: Some("hi".to_owned()), ..Options::default() };
        let head = HeaderTemplate::new(&options, "a@b", "host");
        let mut out = Vec::new();
        let place = RenderContext { descriptor: 7, remaining: -2, number: None, began: None };
        head.render(place, &RecipientGenerator::new(&options, "c@d"), &mut out);
        let lines: Vec<&str> = text(&out).split("\r\n").collect();
        assert_eq!(lines[..2], ["From: <a@b>", "To: <c@d>"]);
        assert!(lines[2].starts_with("Date: ") && lines[2].ends_with(')'), "{}", lines[2]);
        assert_eq!(lines[3], format!("Message-Id: <{:04x}.0007.fffffffe@host>", std::process::id()));
        assert_eq!(lines[4..], ["Subject: hi", "", ""]);
    }

    proptest! {
        /// A body of any length has that length, no line above 80 bytes, and no dot that ends the data.
        #[test]
        fn any_length_is_met(length in 1usize..5000) {
            let body = filler(length);
            prop_assert_eq!(body.len(), length);
            prop_assert!(body.split(|&byte| byte == b'\n').all(|line| line.len() <= 80));
        }

        /// A receiver that unstuffs the data gets the file with other line ends.
        #[test]
        fn files_come_out_as_they_went_in(lines in prop::collection::vec("[.a]{0,4}", 1..9)) {
            let wire = encode_lines((lines.join("\n") + "\n").as_bytes());
            let wire = text(&wire).strip_suffix("\r\n").unwrap();
            let unstuffed: Vec<&str> = wire.split("\r\n").map(|line| line.strip_prefix('.').unwrap_or(line)).collect();
            prop_assert!(wire.split("\r\n").all(|line| line != "."));
            prop_assert_eq!(unstuffed, lines);
        }
    }
}
