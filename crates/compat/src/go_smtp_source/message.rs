//! A message of go-smtp-source: generated headers with a body that all messages share, or the content of a file.
use super::options::Options;
use super::subject::subject;
use crate::go::reason;
use crate::source::dialect::MessageTask;
use crate::source::message::{Message, encode, read_file};
use crate::timing;
use mailrun_net::Outbox;
use mailrun_smtp::data;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

pub(super) const HOSTNAME: &str = "localhost";
/// Length in bytes of the lines of a generated body, without their line ends.
const LINE_BYTES: usize = 80;

#[derive(Debug)]
pub(super) struct GoSourceMessage {
    message: Message,
    head: Option<GoHeaderTemplate>,
}

#[derive(Debug)]
struct GoHeaderTemplate {
    before_subject: Vec<u8>,
    subject: String,
    /// Part of each Message-Id that identifies this run: the process id and the start time. The process id alone is not
    /// enough, because in a container it is often 1.
    run: String,
}

impl GoSourceMessage {
    /// Reads the message file if the options name one. Otherwise generates a body and a template for the headers.
    ///
    /// # Errors
    ///
    /// Fails with go-smtp-source's error text if the file cannot be read. Also fails if `--trace` is given and the
    /// trace header cannot be added.
    pub(super) fn new(options: &Options) -> Result<Self, String> {
        let (head, text, follows_head) = match &options.file {
            Some(path) => (None, read(path)?, false),
            None => (Some(GoHeaderTemplate::new(options)), text(options.body_bytes), true),
        };
        let mut body = encode(&text, ends_in_return);
        body.extend_from_slice(match text.last() {
            None if follows_head => data::END_OF_DATA,
            Some(b'\n') => data::END_OF_DATA,
            _ if ends_in_return(&text) => b"\n.\r\n",
            _ => b"\r\n.\r\n",
        });
        let sample = options.own_options.traces.then(|| {
            let mut sample = Vec::new();
            head.iter().for_each(|head| head.render(1, &mut sample));
            sample
        });
        Ok(Self { message: Message::new(body, sample.as_deref())?, head })
    }

    pub(super) fn render(&self, task: MessageTask, out: &mut Outbox) {
        self.message.render(task.began, out, |out| self.head.iter().for_each(|head| head.render(task.number, out)));
    }
}

/// Returns true if `text` ends in a CR that forms a CRLF with the line feed after `text`. Of several CRs in a row, Go's
/// DotWriter lets only the first, the third and so on begin a CRLF, so the number of CRs at the end must be odd.
fn ends_in_return(text: &[u8]) -> bool {
    text.iter().rev().take_while(|&&byte| byte == b'\r').count() % 2 == 1
}

impl GoHeaderTemplate {
    fn new(options: &Options) -> Self {
        // This is the format of Go's `time.RFC1123`: a date of RFC 1123 with the name of the time zone.
        let date = timing::local_time("%a, %d %b %Y %H:%M:%S %Z");
        let before = format!("From: <{}>\nTo: <{}>\nDate: {date}\n", options.sender, options.recipient);
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            before_subject: before.into_bytes(),
            subject: options.subject.clone(),
            run: format!("{:04x}.{:x}", std::process::id(), began.as_nanos()),
        }
    }

    fn render(&self, number: i64, out: &mut Vec<u8>) {
        let mut text = self.before_subject.clone();
        text.extend_from_slice(b"Subject: ");
        text.extend_from_slice(&subject(&self.subject, number));
        write!(text, "\nMessage-Id: <{}.{number:04x}@{HOSTNAME}>\n\n", self.run).expect("a vector takes all");
        out.extend_from_slice(&encode(&text, ends_in_return));
    }
}

/// Makes a body in the same way as go-smtp-source: one byte less than `size`, plus a line end after every 80 bytes. A
/// size of 0 selects a default text of four lines.
fn text(size: i64) -> Vec<u8> {
    if size == 0 {
        return (1..5).flat_map(|number| format!("La de da de da {number}.\n").into_bytes()).collect();
    }
    let count = usize::try_from(size - 1).unwrap_or(0);
    let mut text = Vec::with_capacity(count + count / LINE_BYTES);
    let line = [[b'X'; LINE_BYTES].as_slice(), b"\n"].concat();
    (0..count / LINE_BYTES).for_each(|_| text.extend_from_slice(&line));
    text.extend_from_slice(&line[..count % LINE_BYTES]);
    text
}

fn read(path: &str) -> Result<Vec<u8>, String> {
    read_file(path).map_err(|(call, error)| {
        let before = if call == "open" { format!("failed to open '{path}': ") } else { String::new() };
        format!("{before}{call} {path}: {}", reason(&error))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(options: &Options, number: i64) -> String {
        let mut out = Outbox::default();
        GoSourceMessage::new(options).unwrap().render(MessageTask { number, began: None }, &mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn headers_in_their_order() {
        let text = rendered(&Options { subject: "no %d".to_owned(), ..Options::default() }, 3);
        let lines: Vec<&str> = text.split("\r\n").collect();
        assert_eq!(lines[..2], ["From: <from@example.com>", "To: <to@example.com>"]);
        assert!(lines[2].starts_with("Date: ") && lines[2].len() >= "Date: Mon, 02 Jan 2006 15:04:05 U".len());
        assert_eq!(lines[3], "Subject: no 3");
        assert!(lines[4].starts_with(&format!("Message-Id: <{:04x}.", std::process::id())), "{}", lines[4]);
        assert!(lines[4].ends_with(".0003@localhost>"), "{}", lines[4]);
        assert_eq!(lines[5..7], ["", "La de da de da 1."]);
        assert_eq!(lines[9..], ["La de da de da 4.", ".", ""]);
    }

    #[test]
    fn every_message_and_every_run_has_its_own_id() {
        let id = |options: &Options, number| rendered(options, number).lines().nth(4).map(str::to_owned).unwrap();
        let options = Options::default();
        let head = GoSourceMessage::new(&Options::default()).unwrap();
        let of = |number| {
            let mut out = Outbox::default();
            head.render(MessageTask { number, began: None }, &mut out);
            out.to_vec()
        };
        assert_ne!(of(1), of(2));
        assert_ne!(id(&options, 1), id(&options, 1), "two runs of one process");
    }

    #[test]
    fn bodies_are_one_octet_short() {
        let x = |count: usize| "X".repeat(count);
        let rows = [
            (-3, String::new()),
            (1, String::new()),
            (2, x(1)),
            (80, x(79)),
            (81, x(80) + "\n"),
            (82, x(80) + "\nX"),
            (200, format!("{0}\n{0}\n{1}", x(80), x(39))),
        ];
        for (size, expected) in rows {
            assert_eq!(String::from_utf8(text(size)).unwrap(), expected, "{size}");
        }
    }

    #[test]
    fn dots_in_headers_are_doubled_too() {
        let text = rendered(&Options { subject: "a\n.b".to_owned(), ..Options::default() }, 1);
        assert!(text.contains("Subject: a\r\n..b\r\nMessage-Id"), "{text}");
    }

    #[test]
    fn a_file_gets_its_line_ends_and_the_end_of_data() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        let options = Options { file: Some(path.to_str().unwrap().to_owned()), ..Options::default() };
        let rows = [
            ("", "\r\n.\r\n"),
            ("a", "a\r\n.\r\n"),
            ("a\n", "a\r\n.\r\n"),
            ("a\r\nb\r\n", "a\r\nb\r\n.\r\n"),
            (".\n..a\n", "..\r\n...a\r\n.\r\n"),
            ("a\r", "a\r\n.\r\n"),
            ("a\r.b\n", "a\r.b\r\n.\r\n"),
            ("a\r\r\n", "a\r\r\r\n.\r\n"),
            ("\n\n", "\r\n\r\n.\r\n"),
        ];
        for (text, expected) in rows {
            std::fs::write(&path, text).unwrap();
            assert_eq!(rendered(&options, 1), expected, "{text:?}");
        }
    }

    #[test]
    fn a_file_is_encoded_once() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        std::fs::write(&path, "Subject: x\n\n.\nlast").unwrap();
        let options = Options { file: Some(path.to_str().unwrap().to_owned()), ..Options::default() };
        assert_eq!(rendered(&options, 1), "Subject: x\r\n\r\n..\r\nlast\r\n.\r\n");
        let missing = Options { file: Some("/none".to_owned()), ..Options::default() };
        let error = "failed to open '/none': open /none: no such file or directory";
        assert_eq!(GoSourceMessage::new(&missing).unwrap_err(), error);
        let directory = Options { file: Some("/".to_owned()), ..Options::default() };
        assert_eq!(GoSourceMessage::new(&directory).unwrap_err(), "read /: is a directory");
    }
}
