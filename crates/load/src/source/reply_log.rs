//! The server's replies to the last messages of a worker, in memory of limited size. With a reply such as
//! `250 2.0.0 Ok: queued as 4jZXTq1Xyz`, users can find the message in the server's log.
use mailrun_measurement::reply_text::ReplyText;
use mailrun_measurement::trace::message_number;
use mailrun_process::output_file::OutputFile;
use mailrun_smtp::ReceivedReply;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

/// Maximum number of replies that a worker keeps, which take 1 MB. When there are more, the oldest
/// are overwritten.
const MAX_REPLIES: usize = 8192;

#[derive(Debug, Default)]
pub(super) struct ReplyLog {
    entries: Vec<LoggedReply>,
    /// Index of the reply that is overwritten next, once the log is full.
    next: usize,
}

#[derive(Clone, Copy, Debug)]
struct LoggedReply {
    sequence: u64,
    at: Duration,
    text: ReplyText,
}

impl ReplyLog {
    pub(super) fn record(&mut self, sequence: u64, at: Duration, reply: &ReceivedReply<'_>) {
        let entry = LoggedReply { sequence, at, text: ReplyText::new(reply.wire()) };
        if self.entries.len() < MAX_REPLIES {
            self.entries.push(entry);
        } else {
            self.entries[self.next] = entry;
            self.next = (self.next + 1) % MAX_REPLIES;
        }
    }

    pub(super) fn find(&self, sequence: u64) -> Option<ReplyText> {
        let (newer, older) = self.entries.split_at(self.next);
        // A message may have several replies, such as one for each rejected recipient. Reports show only the last one.
        let mut newest_first = newer.iter().rev().chain(older.iter().rev());
        newest_first.find(|logged| logged.sequence == sequence).map(|logged| logged.text)
    }
}

/// Writes the replies that the workers have kept. Each line has the sequence number of the message's trace, the time in
/// nanoseconds, the recipients and the reply. If messages do not arrive, the bench looks up the replies to them in this
/// file.
pub(super) fn write(logs: &[ReplyLog], recipients_of: impl Fn(u64) -> Vec<String>, path: &Path) -> io::Result<()> {
    let mut file = BufWriter::new(OutputFile::create(path)?);
    for LoggedReply { sequence, at, text } in logs.iter().flat_map(|log| &log.entries) {
        let number = message_number(*sequence);
        let recipients = recipients_of(number);
        writeln!(file, "{sequence}\t{}\t{}\t{}", at.as_nanos(), recipients.join(" "), text.text())?;
    }
    file.into_inner()?.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_measurement::reply_text::MAX_REPLY_BYTES;
    use mailrun_smtp::reply::ReplyReader;

    fn record(log: &mut ReplyLog, sequence: u64, wire: &str) {
        let mut reader = ReplyReader::default();
        let mut input = wire.as_bytes();
        let reply = reader.next(&mut input).expect("well-formed").expect("complete");
        log.record(sequence, Duration::ZERO, &reply);
    }

    fn text(log: &ReplyLog, sequence: u64) -> Option<String> {
        log.find(sequence).map(|reply| reply.text())
    }

    #[test]
    fn the_last_reply_to_a_message_is_found() {
        let mut log = ReplyLog::default();
        record(&mut log, 7, "250 2.0.0 Ok: queued as 4jZXTq1Xyz\r\n");
        record(&mut log, 8, "250-a\r\n250 b\x07\r\n");
        record(&mut log, 9, &format!("554 5.3.0 {}\r\n", "x".repeat(300)));
        assert_eq!(text(&log, 7).as_deref(), Some("250 2.0.0 Ok: queued as 4jZXTq1Xyz"));
        assert_eq!(text(&log, 8).as_deref(), Some("250 a b?"));
        assert_eq!(text(&log, 9).map(|text| text.len()), Some(MAX_REPLY_BYTES));
        record(&mut log, 7, "451 4.3.0 later\r\n");
        assert_eq!(text(&log, 7).as_deref(), Some("451 4.3.0 later"));
        assert_eq!(text(&log, 6), None);
        for sequence in 10..10 + 2 * MAX_REPLIES as u64 {
            record(&mut log, sequence, &format!("250 {sequence}\r\n"));
        }
        let last = 9 + 2 * MAX_REPLIES as u64;
        assert_eq!((log.entries.len(), text(&log, last)), (MAX_REPLIES, Some(format!("250 {last}"))));
        assert_eq!((text(&log, 7), text(&log, last - MAX_REPLIES as u64)), (None, None), "older ones are gone");
    }
}
