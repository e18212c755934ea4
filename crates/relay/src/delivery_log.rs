//! Writes the delivery log, which has one line for each recipient of each delivery attempt. A separate thread does
//! this.
//!
//! ```text
//! worker ─ record ─▶ its batch (bounded) ─ every 100 ms, or when full ─▶ thread: lines ─▶ LogWriter
//! ```
//! A relay worker only stores a reference to the message's envelope and the result of the attempt. The log's thread
//! formats the lines. If the log level excludes `info`, the worker stores nothing. Deliveries never wait for a slow
//! log: if too many batches wait for the thread, new batches are dropped, and the number of lost lines is logged.
use super::fault_log::LOG_TARGET;
use crate::message::Message;
use crate::message::envelope::{DeliveryRefusal, MessageEnvelope};
use crate::qmgr::{DeliveryRequest, DeliveryResult, MessageId, RecipientNumbers, RecipientStatus};
use jiff::Timestamp;
use mailrun_process::log_writer::LogWriter;
use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tracing::level_filters::LevelFilter;

const BATCH_ENTRIES: usize = 1024;
const MAX_PENDING_BATCHES: usize = 16;
/// Time after which a busy worker passes a partly filled batch to the log's thread. An idle worker does so at its next
/// tick.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// The delivery log's thread passes lines to the `LogWriter` in pieces of about this many bytes. A piece may be longer,
/// because the lines of one attempt are not split.
const WRITE_BYTES: usize = 32 << 10;
/// Maximum time that a stopping relay waits until the last batches are written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

struct LoggedDelivery {
    id: MessageId,
    destination: Arc<str>,
    envelope: Arc<MessageEnvelope>,
    recipients: RecipientNumbers,
    /// Unix time at which the message was received.
    received: Duration,
    ended: Duration,
    /// Number of delivery attempts so far, including this one.
    attempts: u32,
    result: DeliveryResult,
    reply: Option<DeliveryRefusal>,
}

pub(super) struct DeliveryLog {
    batch: RefCell<Vec<LoggedDelivery>>,
    since: Cell<Duration>,
    accept_reply: RefCell<Option<DeliveryRefusal>>,
    writer: DeliveryLogWriter,
}

impl DeliveryLog {
    pub(super) fn new(writer: DeliveryLogWriter) -> Self {
        Self { batch: RefCell::default(), since: Cell::default(), accept_reply: RefCell::default(), writer }
    }

    pub(super) fn is_enabled() -> bool {
        LevelFilter::current() >= LevelFilter::INFO
    }

    /// Stores the reply with which the next hop accepted a message. The next call of `record` must be about that
    /// message, and logs the reply.
    pub(super) fn keep_reply(&self, reply: DeliveryRefusal) {
        *self.accept_reply.borrow_mut() = Some(reply);
    }

    pub(super) fn record(
        &self,
        destination: Arc<str>,
        request: &DeliveryRequest<Message>,
        result: &DeliveryResult,
        unix: Duration,
    ) {
        let reply = self.accept_reply.take();
        if *result == DeliveryResult::Unsent {
            return;
        }
        let mut batch = self.batch.borrow_mut();
        if batch.is_empty() {
            self.since.set(unix);
        }
        batch.push(LoggedDelivery {
            id: request.id,
            destination,
            envelope: Arc::clone(&request.message.envelope),
            recipients: request.recipients.clone(),
            received: request.message.received,
            ended: unix,
            attempts: request.attempts.saturating_add(1),
            result: result.clone(),
            reply,
        });
        let is_due = batch.len() >= BATCH_ENTRIES || unix.saturating_sub(self.since.get()) >= FLUSH_INTERVAL;
        drop(batch);
        if is_due {
            self.flush();
        }
    }

    pub(super) fn flush(&self) {
        let batch = self.batch.take();
        if !batch.is_empty() {
            self.writer.submit(batch);
        }
    }
}

/// Sends batches to the thread that writes the delivery log. Clones send to the same thread.
#[derive(Clone)]
pub(super) struct DeliveryLogWriter {
    sender: SyncSender<LogWriterCommand>,
    dropped: Arc<DroppedLines>,
}

#[derive(Default)]
struct DroppedLines {
    total: AtomicU64,
    /// Number of lines that were dropped since the log last reported dropped lines.
    unreported: AtomicU64,
}

enum LogWriterCommand {
    Batch(Vec<LoggedDelivery>),
    Flush(SyncSender<()>),
}

impl DeliveryLogWriter {
    pub(super) fn start(log: LogWriter) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(MAX_PENDING_BATCHES);
        let dropped = Arc::<DroppedLines>::default();
        let writer = Self { sender, dropped: Arc::clone(&dropped) };
        std::thread::Builder::new()
            .name("delivery-log".to_owned())
            .spawn(move || write_batches(&receiver, &log, &dropped))?;
        Ok(writer)
    }

    fn submit(&self, batch: Vec<LoggedDelivery>) {
        let lines = batch.iter().map(|entry| entry.recipients.len() as u64).sum();
        if self.sender.try_send(LogWriterCommand::Batch(batch)).is_err() {
            self.dropped.total.fetch_add(lines, Ordering::Relaxed);
            self.dropped.unreported.fetch_add(lines, Ordering::Relaxed);
        }
    }

    pub(super) fn dropped_lines(&self) -> u64 {
        self.dropped.total.load(Ordering::Relaxed)
    }

    /// Waits until the thread has written all batches, but at most for `FLUSH_TIMEOUT`.
    pub(super) fn flush(&self) {
        let (done, is_done) = sync_channel(1);
        let latest = Instant::now() + FLUSH_TIMEOUT;
        while self.sender.try_send(LogWriterCommand::Flush(done.clone())).is_err() && Instant::now() < latest {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Ignore a time-out, because the relay must be able to stop even if nobody reads its log.
        let _ = is_done.recv_timeout(latest.saturating_duration_since(Instant::now()));
    }
}

fn write_batches(receiver: &Receiver<LogWriterCommand>, log: &LogWriter, dropped: &DroppedLines) {
    let mut text = String::new();
    while let Ok(command) = receiver.recv() {
        match command {
            LogWriterCommand::Batch(batch) => {
                for entry in &batch {
                    entry.write(&mut text);
                    if text.len() >= WRITE_BYTES {
                        log.write_blocking(text.as_bytes());
                        text.clear();
                    }
                }
                log.write_blocking(text.as_bytes());
                text.clear();
            }
            LogWriterCommand::Flush(done) => drop(done.send(())),
        }
        let unreported = dropped.unreported.swap(0, Ordering::Relaxed);
        if unreported > 0 {
            tracing::warn!(target: LOG_TARGET, lines = unreported, "deliveries were not logged because the log is too slow");
        }
    }
}

impl LoggedDelivery {
    /// Appends one line for each recipient to `text`, in the format of the rest of the log.
    fn write(&self, text: &mut String) {
        for (position, number) in self.recipients.iter().enumerate() {
            let (status, refusal) = self.status(position);
            // Round down to microseconds, which the other log lines have as well.
            let timestamp = i128::try_from(self.ended.as_micros()).unwrap_or(0) * 1_000;
            let timestamp = Timestamp::from_nanosecond(timestamp).unwrap_or(Timestamp::UNIX_EPOCH);
            let recipient = self.envelope.recipients.get(usize::from(number));
            let recipient = recipient.map_or(&b""[..], |recipient| &recipient.address);
            let _ = write!(
                text,
                "{timestamp:.6}  INFO mailrun::relay: delivery id={} from=<{}> to=<{}> hop={} status={status}",
                self.id,
                PrintableAddress(&self.envelope.sender),
                PrintableAddress(recipient),
                self.destination.escape_debug(),
            );
            if let Some(refusal @ DeliveryRefusal { enhanced, text: words, by, .. }) = refusal {
                if let Some(code) = refusal.reply_code() {
                    let _ = write!(text, " code={code}");
                }
                if let Some(enhanced) = enhanced {
                    let _ = write!(text, " enhanced={enhanced}");
                }
                let _ = write!(text, " text={words:?}");
                if !by.is_empty() {
                    let _ = write!(text, " by={}", by.escape_debug());
                }
            }
            let delay_s = self.ended.saturating_sub(self.received).as_secs_f64();
            let _ = writeln!(text, " delay_s={delay_s:.3} attempts={}", self.attempts);
        }
    }

    fn status(&self, position: usize) -> (&'static str, Option<&DeliveryRefusal>) {
        let status = match &self.result {
            DeliveryResult::Delivered => return ("delivered", self.reply.as_ref()),
            DeliveryResult::All(status) => Some(status),
            DeliveryResult::Each(statuses) | DeliveryResult::SessionFault(statuses) => statuses.get(position),
            DeliveryResult::Unknown | DeliveryResult::Unsent | DeliveryResult::Panicked(_) => None,
        };
        match status {
            Some(RecipientStatus::Delivered | RecipientStatus::Confirmed(_)) => ("delivered", self.reply.as_ref()),
            Some(RecipientStatus::Failed(refusal)) => ("failed", Some(refusal)),
            Some(RecipientStatus::Deferred(refusal)) => ("deferred", Some(refusal)),
            None => ("unanswered", None),
        }
    }
}

/// Formats an address for a log line. Addresses may contain any bytes, so control characters are
/// escaped.
struct PrintableAddress<'a>(&'a [u8]);

impl std::fmt::Display for PrintableAddress<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(self.0).escape_debug())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::envelope::EnvelopeRecipient;
    use mailrun_smtp::reply::EnhancedStatusCode;
    use std::io::Write;
    use std::sync::mpsc::{Sender, channel};

    fn entry(result: DeliveryResult, recipients: &[&str]) -> LoggedDelivery {
        let person =
            |name: &&str| EnvelopeRecipient { address: name.as_bytes().to_vec(), original: None, notify: None };
        let envelope = MessageEnvelope::local(b"a@b", recipients.iter().map(person).collect());
        let numbers: Vec<u16> = (0..recipients.len() as u16).collect();
        LoggedDelivery {
            id: MessageId(31),
            destination: "smtp:127.0.0.1:25".into(),
            envelope: Arc::new(envelope),
            recipients: RecipientNumbers::new(&numbers),
            received: Duration::from_secs(1_000_000_000),
            ended: Duration::from_millis(1_000_000_001_500),
            attempts: 2,
            result,
            reply: None,
        }
    }

    fn lines(entry: &LoggedDelivery) -> Vec<String> {
        let mut text = String::new();
        entry.write(&mut text);
        assert!(text.ends_with('\n'));
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn each_recipient_has_a_line_with_its_own_answer() {
        let refusal =
            DeliveryRefusal::new(450, Some(EnhancedStatusCode(4, 2, 0)), "4.2.0 say \"please\"", "mx.example");
        let result = DeliveryResult::Each(vec![RecipientStatus::Delivered, RecipientStatus::Deferred(refusal)]);
        let expected = [
            "2001-09-09T01:46:41.500000Z  INFO mailrun::relay: delivery id=000000000000001f from=<a@b> to=<c@d> \
             hop=smtp:127.0.0.1:25 status=delivered delay_s=1.500 attempts=2",
            "2001-09-09T01:46:41.500000Z  INFO mailrun::relay: delivery id=000000000000001f from=<a@b> to=<e@f> \
             hop=smtp:127.0.0.1:25 status=deferred code=450 enhanced=4.2.0 text=\"4.2.0 say \\\"please\\\"\" \
             by=mx.example delay_s=1.500 attempts=2",
        ];
        assert_eq!(lines(&entry(result, &["c@d", "e@f"])), expected);
    }

    #[test]
    fn a_reason_of_the_relay_itself_has_no_code_of_a_reply() {
        let own = DeliveryRefusal::new(550, None, "gone.example does not exist", "");
        let line = lines(&entry(DeliveryResult::All(RecipientStatus::Failed(own)), &["c@d"])).remove(0);
        assert!(line.contains(" status=failed text=\"gone.example") && !line.contains("code="), "{line}");
    }

    #[test]
    fn nothing_that_mail_says_makes_a_line_of_its_own() {
        let refusal = DeliveryRefusal::new(550, None, "no\r\nfoo\u{2066}", "x\ny\u{200f}");
        let all =
            lines(&entry(DeliveryResult::All(RecipientStatus::Failed(refusal)), &["c\n@d", "\u{1b}[1m\u{202e}@e"]));
        assert_eq!(all.len(), 2);
        assert!(all.iter().all(|line| !line.chars().any(mailrun_text::printable::is_hidden)), "{all:?}");
        assert!(lines(&entry(DeliveryResult::Unknown, &["c@d"]))[0].contains("status=unanswered delay"));
    }

    struct BlockedWriter(Receiver<()>, Sender<Vec<u8>>);

    impl Write for BlockedWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            let _ = self.1.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn batches_beyond_the_limit_are_counted_and_all_others_written() {
        let (open, opened) = channel();
        let (print, printed) = channel();
        // Give the log no buffer, so that it accepts no more lines once its first write blocks.
        let log = LogWriter::start(BlockedWriter(opened, print), 0).unwrap();
        let writer = DeliveryLogWriter::start(log.clone()).unwrap();
        let batches = MAX_PENDING_BATCHES as u64 * 3;
        for _ in 0..batches {
            writer.submit(vec![entry(DeliveryResult::Delivered, &["c@d", "e@f"])]);
        }
        let lost = writer.dropped_lines();
        // The channel holds `MAX_PENDING_BATCHES` batches. Three more batches may be in the delivery log's thread, in
        // the `LogWriter`'s buffer and in its blocked write. All other batches must be dropped.
        assert!(
            lost >= 2 * (batches - MAX_PENDING_BATCHES as u64 - 3),
            "{lost}: nothing waits for a log that stands still"
        );
        drop(open);
        writer.flush();
        log.flush();
        let text: Vec<u8> = printed.try_iter().flatten().collect();
        assert_eq!(text.iter().filter(|byte| **byte == b'\n').count() as u64 + lost, 2 * batches);
    }
}
