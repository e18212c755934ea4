//! Renders the messages of smtp-source. Most of the headers and the body are rendered only once, and each message adds
//! the parts that vary.
use super::options::Options;
use super::recipient::RecipientGenerator;
use crate::source::dialect::RenderContext;
use crate::source::message::{Message, encode, read_file};
use crate::stderr::FatalError;
use crate::timing;
use mailrun_net::Outbox;
use mailrun_process::reason::reason;
use mailrun_smtp::data;
use std::io::Write;

const DEFAULT_BODY: &str = "La de da de da 1.\r\nLa de da de da 2.\r\nLa de da de da 3.\r\nLa de da de da 4.\r\n";
/// Length in bytes of the lines, including CRLF, in a body whose length the user has set (`-l`).
const LINE_BYTES: usize = 80;

#[derive(Debug)]
pub(super) struct SmtpSourceMessage {
    message: Message,
    head: Option<HeaderTemplate>,
}

/// The headers, without the parts that vary: the recipient's number, the descriptor of the connection, and the number
/// of remaining messages.
#[derive(Debug)]
struct HeaderTemplate {
    /// First part of the header: the `From:` line, and `To: <` before the recipient's address.
    before_recipient: Vec<u8>,
    /// Header after the recipient's address, up to the part of the Message-Id that differs between messages.
    before_id: Vec<u8>,
    /// Rest of the header: `@host>` at the end of the Message-Id, the `Subject:` line, if any, and the empty line.
    after_id: Vec<u8>,
}

impl SmtpSourceMessage {
    pub(super) fn new(
        options: &Options,
        sender: &str,
        hostname: &str,
        content: MessageBody,
    ) -> Result<Self, FatalError> {
        let head =
            (!options.is_old_mode && options.file.is_none()).then(|| HeaderTemplate::new(options, sender, hostname));
        let mut body = content.0;
        let traces = options.own_options.traces;
        if traces && options.is_old_mode && options.file.is_none() {
            // With `-o`, the trace header is the only header of the message, so add the empty line that must precede
            // the body (RFC 5322 §2.1).
            body.splice(..0, *b"\r\n");
        }
        body.extend_from_slice(data::END_OF_DATA);
        let sample = traces.then(|| head.as_ref().map(HeaderTemplate::sample).unwrap_or_default());
        let message = Message::new(body, sample.as_deref()).map_err(FatalError)?;
        Ok(Self { message, head })
    }

    /// Writes a message, with the number of remaining messages in its Message-Id. If there are more sessions than
    /// messages, this number is negative, but printed as an unsigned int, as in Postfix's smtp-source.
    pub(super) fn render(
        &self,
        place: RenderContext,
        remaining: i32,
        recipient: &RecipientGenerator,
        out: &mut Outbox,
    ) {
        let RenderContext { task, descriptor, recipient_number } = place;
        self.message.render(task.began, out, |out| {
            if let Some(head) = &self.head {
                head.render(descriptor, remaining, |out| recipient.write_header(recipient_number, out), out);
            }
        });
    }
}

impl HeaderTemplate {
    fn new(options: &Options, sender: &str, hostname: &str) -> Self {
        let process = std::process::id();
        let date = timing::local_time("%a, %e %b %Y %H:%M:%S %z (%Z)");
        let before_id = format!(">\r\nDate: {date}\r\nMessage-Id: <{process:04x}.");
        let subject = options.subject.as_ref().map(|subject| format!("Subject: {subject}\r\n")).unwrap_or_default();
        Self {
            before_recipient: format!("From: <{sender}>\r\nTo: <").into_bytes(),
            before_id: before_id.into_bytes(),
            after_id: format!("@{hostname}>\r\n{subject}\r\n").into_bytes(),
        }
    }

    /// Returns the headers without the parts that vary between messages, as a sample for `Message::new`.
    fn sample(&self) -> Vec<u8> {
        [self.before_recipient.as_slice(), &self.before_id, &self.after_id].concat()
    }

    fn render(&self, descriptor: i32, remaining: i32, write_recipient: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
        out.extend_from_slice(&self.before_recipient);
        write_recipient(out);
        out.extend_from_slice(&self.before_id);
        write!(out, "{descriptor:04x}.{remaining:04x}").expect("a vector takes all");
        out.extend_from_slice(&self.after_id);
    }
}

/// The text between the headers and the end of data, in wire format.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MessageBody(Vec<u8>);

impl MessageBody {
    pub(super) fn new(options: &Options) -> Result<Self, FatalError> {
        let content = match (&options.file, options.length) {
            (Some(path), _) => encode_lines(
                &read_file(path).map_err(|(call, error)| FatalError(format!("{call} {path}: {}", reason(&error))))?,
            ),
            (None, Some(length)) => filler(length as usize),
            (None, None) => Vec::new(),
        };
        if content.is_empty() {
            return Ok(Self(DEFAULT_BODY.into()));
        }
        // Add a line end even to a file that already ends with one, as Postfix's smtp-source does.
        Ok(Self([content.as_slice(), b"\r\n"].concat()))
    }
}

/// Encodes lines for the wire, and adds a line end to the last line if it has none.
fn encode_lines(text: &[u8]) -> Vec<u8> {
    let mut lines = encode(text, |_| false);
    if !text.is_empty() && !text.ends_with(b"\n") {
        lines.extend_from_slice(b"\r\n");
    }
    lines
}

/// Makes a body of `length` bytes in lines of 80 bytes, including CRLF. Each line begins with the last digit of its
/// number, except the last line, which may be shorter and does not have its CRLF yet.
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
        head.render(7, -2, |out| RecipientGenerator::new(&options, "c@d").write_header(None, out), &mut out);
        let lines: Vec<&str> = text(&out).split("\r\n").collect();
        assert_eq!(lines[..2], ["From: <a@b>", "To: <c@d>"]);
        assert!(lines[2].starts_with("Date: ") && lines[2].ends_with(')'), "{}", lines[2]);
        assert_eq!(lines[3], format!("Message-Id: <{:04x}.0007.fffffffe@host>", std::process::id()));
        assert_eq!(lines[4..], ["Subject: hi", "", ""]);
    }

    proptest! {
        /// A body has the requested length, no line above 80 bytes, and no dot that would end the
        /// data.
        #[test]
        fn any_length_is_met(length in 1usize..5000) {
            let body = filler(length);
            prop_assert_eq!(body.len(), length);
            prop_assert!(body.split(|&byte| byte == b'\n').all(|line| line.len() <= 80));
        }
    }
}
