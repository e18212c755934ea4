//! Reads the messages that a sink has saved. Counts the messages and their recipients, finds
//! duplicates, and checks that the text is the one that was sent. All sources send the same four
//! lines of text.
//!
//! A message is identified by its Message-Id and its subject (`MessageMarking`), a delivery by its
//! message and its recipient. Deliveries are stored as 64-bit hashes. With a million deliveries,
//! one check in 40 million has two deliveries with the same hash and reports a duplicate wrongly.
//! Real duplicates are never overlooked.
use serde::Deserialize;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, ErrorKind, Read};

/// Maximum number of bytes of a line that are kept. The rest of a longer line is read as another
/// line.
const MAX_LINE_BYTES: u64 = 64 * 1024;
/// Lines of text in every message.
const TEXT: [&str; 4] = ["La de da de da 1.", "La de da de da 2.", "La de da de da 3.", "La de da de da 4."];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Deliveries {
    pub(super) messages: u64,
    pub(super) recipients: u64,
    /// Messages whose text differs from what was sent.
    pub(super) changed: u64,
    seen: HashSet<u64>,
}

impl Deliveries {
    /// Returns the number of deliveries that are copies of an earlier delivery.
    pub(super) fn duplicates(&self) -> u64 {
        self.recipients - self.seen.len() as u64
    }

    fn add(&mut self, message: &DumpedMessage) {
        self.messages += 1;
        self.changed += u64::from(message.is_changed || message.lines != TEXT.len());
        self.recipients += message.recipients.len() as u64;
        for recipient in &message.recipients {
            let mut hasher = DefaultHasher::new();
            (&message.name, recipient).hash(&mut hasher);
            self.seen.insert(hasher.finish());
        }
    }
}

/// The parts of a message that are checked.
#[derive(Debug, Default)]
struct DumpedMessage {
    /// The message's Message-Id and subject, which identify it.
    name: Vec<u8>,
    recipients: Vec<Vec<u8>>,
    /// Number of text lines read so far.
    lines: usize,
    is_changed: bool,
}

impl DumpedMessage {
    /// Reads a line of the header. Keeps the line if it identifies the message.
    fn read_header(&mut self, line: &[u8]) {
        if after(line, b"Message-Id:").or_else(|| after(line, b"Subject:")).is_some() {
            self.name.extend_from_slice(line);
            self.name.push(b'\n');
        }
    }

    /// Reads a line of the text and compares it with what was sent.
    fn read_text(&mut self, line: &[u8]) {
        self.is_changed |= TEXT.get(self.lines).is_none_or(|expected| expected.as_bytes() != line);
        self.lines += 1;
    }
}

/// Returns the text after a field's name. The case of the name is ignored.
fn after<'l>(line: &'l [u8], name: &[u8]) -> Option<&'l [u8]> {
    let (start, rest) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then_some(rest)
}

/// Reads a file that `smtp-sink -S SEPARATOR -D` wrote. Each message is preceded by the separator
/// and a line for each field of the envelope, and followed by an empty line.
pub(super) fn of_smtp_sink(mut dump: impl BufRead, separator: &str) -> io::Result<Deliveries> {
    let mut deliveries = Deliveries::default();
    let mut message = None::<DumpedMessage>;
    let mut place = DumpSection::Header;
    let mut line = Vec::new();
    while read_line(&mut dump, &mut line)? {
        if line == separator.as_bytes() {
            message.replace(DumpedMessage::default()).iter().for_each(|before| deliveries.add(before));
            place = DumpSection::Header;
            continue;
        }
        let Some(current) = message.as_mut() else { continue };
        match place {
            DumpSection::Header if line.is_empty() => place = DumpSection::Text,
            DumpSection::Header => match after(&line, b"X-Rcpt-Args:") {
                Some(recipient) => current.recipients.push(recipient.to_vec()),
                None => current.read_header(&line),
            },
            DumpSection::Text if line.is_empty() && current.lines == TEXT.len() => place = DumpSection::End,
            DumpSection::Text | DumpSection::End => current.read_text(&line),
        }
    }
    message.iter().for_each(|last| deliveries.add(last));
    Ok(deliveries)
}

/// Part of a message in smtp-sink's file.
#[derive(Clone, Copy, Debug)]
enum DumpSection {
    Header,
    Text,
    /// After the empty line that smtp-sink adds.
    End,
}

/// The line before each message in the file of `mailrun sink --dump-file`.
#[derive(Debug, Deserialize)]
struct DumpedEnvelope {
    bytes: u64,
    recipients: Vec<String>,
}

/// Reads a file that `mailrun sink --dump-file` wrote. A last message that is not yet complete is
/// left out.
pub(super) fn of_mailrun(mut dump: impl BufRead) -> io::Result<Deliveries> {
    let mut deliveries = Deliveries::default();
    let mut line = Vec::new();
    while read_line(&mut dump, &mut line)? {
        let envelope: DumpedEnvelope = match serde_json::from_slice(&line) {
            Ok(envelope) => envelope,
            Err(_) if dump.fill_buf()?.is_empty() => break,
            Err(error) => return Err(io::Error::new(ErrorKind::InvalidData, error)),
        };
        let recipients = envelope.recipients.into_iter().map(String::into_bytes).collect();
        let mut message = DumpedMessage { recipients, ..DumpedMessage::default() };
        let mut text = Read::by_ref(&mut dump).take(envelope.bytes);
        while read_line(&mut text, &mut line)? && !line.is_empty() {
            message.read_header(&line);
        }
        while read_line(&mut text, &mut line)? {
            message.read_text(&line);
        }
        // The sink writes this line end last. Without it the message is incomplete.
        if text.limit() > 0 || !read_line(&mut dump, &mut line)? {
            break;
        }
        deliveries.add(&message);
    }
    Ok(deliveries)
}

/// Reads a line without its line end. A line that is too long is read in pieces. Returns false at
/// the end of the input.
fn read_line(text: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let octets = text.take(MAX_LINE_BYTES).read_until(b'\n', line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
        line.pop_if(|last| *last == b'\r');
    }
    Ok(octets > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn smtp_sink_message(id: u32, recipients: &[&str]) -> String {
        let recipients: String = recipients.iter().map(|one| format!("X-Rcpt-Args: <{one}>\n")).collect();
        format!(
            "MARK\nX-Client-Addr: 127.0.0.1\nX-Mail-Args: <a@b>\n{recipients}Received: from x\n\tby y\nFrom: <a@b>\n\
             Message-Id: <{id}@x>\n\n{}\n\n",
            TEXT.join("\n")
        )
    }

    fn mailrun_message(id: u32, recipients: &[&str]) -> String {
        let text = format!("From: <a@b>\r\nMESSAGE-ID: <{id}@x>\r\n\r\n{}\r\n", TEXT.join("\r\n"));
        let envelope = serde_json::json!({ "bytes": text.len(), "client": "x", "recipients": recipients });
        format!("{envelope}\n{text}\n")
    }

    /// Returns the counts of messages, recipients and duplicates. Asserts that no text was changed.
    fn counts(deliveries: io::Result<Deliveries>) -> [u64; 3] {
        let deliveries = deliveries.unwrap();
        assert_eq!(deliveries.changed, 0, "{deliveries:?}");
        [deliveries.messages, deliveries.recipients, deliveries.duplicates()]
    }

    type WriteDump = fn(u32, &[&str]) -> String;
    type ReadDump = fn(&[u8]) -> io::Result<Deliveries>;
    const KINDS: [(WriteDump, ReadDump); 2] =
        [(smtp_sink_message, |text| of_smtp_sink(text, "MARK")), (mailrun_message, |text| of_mailrun(text))];

    #[test]
    fn messages_and_recipients_are_counted_and_doubles_found() {
        for (written, read) in KINDS {
            let first = written(1, &["c@d", "e@f"]);
            let table: [(String, [u64; 3]); 5] = [
                (String::new(), [0, 0, 0]),
                (first.clone(), [1, 2, 0]),
                (first.clone() + &written(2, &["c@d", "e@f"]), [2, 4, 0]),
                (first.clone() + &written(2, &["c@d"]) + &first, [3, 5, 2]),
                (written(1, &["c@d", "c@d"]), [1, 2, 1]),
            ];
            for (text, expected) in table {
                assert_eq!(counts(read(text.as_bytes())), expected, "{text}");
            }
        }
    }

    #[test]
    fn what_is_still_being_written_is_not_there_yet() {
        let whole = mailrun_message(1, &["c@d"]);
        let next = mailrun_message(2, &["c@d"]);
        for cut in 0..next.len() {
            let text = whole.clone() + &next[..cut];
            assert_eq!(counts(of_mailrun(text.as_bytes())), [1, 1, 0], "{cut}");
        }
    }

    #[test]
    fn a_text_that_is_not_what_was_sent_is_changed() {
        let edits: [(&str, &str); 5] =
            [("de da 3.", "de dA 3."), (" 4.", " 4.."), (" 1.", " 1.\n"), (" 2.", "\nX-Rcpt-Args: <a@b>"), (" 4.", "")];
        for (written, read) in KINDS {
            for (from, to) in edits {
                // Adjust the length in the envelope, so that only the text is wrong.
                let good = written(1, &["c@d"]);
                let mut changed = written(2, &["c@d"]).replace(from, to);
                if let Some((head, text)) = changed.clone().split_once('\n').filter(|(head, _)| head.starts_with('{')) {
                    let mut head: serde_json::Value = serde_json::from_str(head).unwrap();
                    head["bytes"] = (text.len() - 1).into();
                    changed = format!("{head}\n{text}");
                }
                let deliveries = read((good.clone() + &changed + &good).as_bytes()).unwrap();
                assert_eq!((deliveries.messages, deliveries.recipients, deliveries.changed), (3, 3, 1), "{changed}");
            }
        }
    }

    #[test]
    fn what_is_no_dump_is_an_error() {
        assert!(of_mailrun(b"nonsense\nmore\n".as_slice()).is_err());
        assert_eq!(counts(of_smtp_sink(b"nonsense\n\n".as_slice(), "MARK")), [0, 0, 0]);
    }

    #[test]
    fn a_subject_tells_messages_of_one_id_apart() {
        let text = |number: u32| smtp_sink_message(1, &["c@d"]).replace("From:", &format!("Subject: {number}\nFrom:"));
        assert_eq!(counts(of_smtp_sink((text(1) + &text(2)).as_bytes(), "MARK")), [2, 2, 0]);
        assert_eq!(counts(of_smtp_sink((text(1) + &text(1)).as_bytes(), "MARK")), [2, 2, 1]);
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..2000), id in any::<u32>()) {
            for (written, read) in KINDS {
                let text = [written(id, &["c@d"]).as_bytes(), &bytes].concat();
                if let Ok(deliveries) = read(&text) {
                    prop_assert!(deliveries.duplicates() <= deliveries.recipients && deliveries.messages >= 1);
                    prop_assert!(deliveries.changed <= deliveries.messages);
                }
                let _ = read(&bytes);
            }
        }

        #[test]
        fn what_is_written_is_counted(recipients in proptest::collection::vec(1_usize..5, 0..20)) {
            let names = ["a@b", "c@d", "e@f", "g@h"];
            for (written, read) in KINDS {
                let text: String = recipients.iter().zip(1..).map(|(count, id)| written(id, &names[..*count])).collect();
                let total = recipients.iter().sum::<usize>() as u64;
                prop_assert_eq!(counts(read(text.as_bytes())), [recipients.len() as u64, total, 0]);
            }
        }
    }
}
