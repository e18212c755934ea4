//! Reads the traces of messages in mailboxes of all kinds, and counts the messages.
use super::super::worker_state::{SinkRecipient, SinkWorkerState};
use super::options::{Finding, MailboxOptions, WatchedMailbox};
use mailrun_lock::lock;
use mailrun_mailbox::Announced;
use mailrun_measurement::errors::ErrorEvent;
use mailrun_measurement::record::Watched;
use mailrun_measurement::trace::message_number;
use mailrun_measurement::{Phase, Trace, TraceReader, TraceResult};
use mailrun_net::clock;
use memchr::memmem;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

pub(super) const TRACE_FIELD: &str = "X-Mailrun";

#[derive(Debug, Default)]
pub(crate) struct WatchCounts {
    count: u64,
    whole: bool,
    /// Number of mailboxes whose server reports new messages by itself (IDLE). Each mailbox counts only once, however
    /// often it is opened.
    idle: AtomicU64,
    poll_ns: AtomicU64,
    broken: AtomicU64,
    deleted: AtomicU64,
    /// Number of mailboxes that are not open at present, for example because a connection broke.
    closed: AtomicU64,
    renumbered: AtomicU64,
}

impl WatchCounts {
    pub(super) fn new(count: u64, whole: bool) -> Self {
        Self { count, whole, closed: AtomicU64::new(count), ..Self::default() }
    }

    pub(crate) fn row(&self) -> Watched {
        let poll_ns = self.poll_ns.load(Ordering::Relaxed);
        Watched {
            count: self.count,
            idle: self.idle.load(Ordering::Relaxed),
            poll_ms: (poll_ns > 0).then_some(poll_ns as f64 / 1e6),
            whole: self.whole,
            broken: self.broken.load(Ordering::Relaxed),
            deleted: self.deleted.load(Ordering::Relaxed),
            closed: self.closed(),
            renumbered: self.renumbered.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn checks_bodies(&self) -> bool {
        self.whole
    }

    fn polls(&self, interval: Duration) {
        self.poll_ns.fetch_max(u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// State that the tasks of all mailboxes share. It needs no locks, because these tasks run on the same thread.
pub(super) struct WatchShared {
    pub(super) state: Rc<SinkWorkerState>,
    pub(super) counts: Arc<WatchCounts>,
    /// Buffer into which all tasks read. One buffer is enough, because a task borrows it only during a read, and never
    /// while it waits for input.
    pub(super) room: RefCell<Vec<u8>>,
    /// Number of messages that should be deleted but are not deleted yet.
    pub(super) undeleted: Cell<u64>,
    /// Number of connections that are being set up, to limit how many are set up at once.
    pub(super) starting: Cell<usize>,
    pub(super) opened: Sender<Result<(), String>>,
    pub(super) options: MailboxOptions,
}

pub(super) struct Watcher {
    pub(super) shared: Rc<WatchShared>,
    /// URL of the mailbox, for error messages.
    name: String,
    recipient: SinkRecipient,
    /// True once the mailbox has been open. Before that, an error ends the sink instead of being counted.
    pub(super) has_opened: Cell<bool>,
    is_open: Cell<bool>,
    /// True once `WatchCounts::idle` includes this mailbox, so that it is counted only once.
    is_idle: Cell<bool>,
}

impl Watcher {
    pub(super) fn new(shared: &Rc<WatchShared>, mailbox: &WatchedMailbox) -> Self {
        Self {
            recipient: shared.state.recipient_of(mailbox.address.as_bytes()),
            shared: Rc::clone(shared),
            name: mailbox.url.to_string(),
            has_opened: Cell::new(false),
            is_open: Cell::new(false),
            is_idle: Cell::new(false),
        }
    }

    /// Records that the mailbox is open. The watcher finds all mail that arrives from now on. `poll` is the interval at
    /// which the watcher looks for mail, or `None` if the server reports new mail by itself.
    pub(super) fn opened(&self, poll: Option<Duration>) {
        if !self.is_open.replace(true) {
            self.shared.counts.closed.fetch_sub(1, Ordering::Relaxed);
        }
        match poll {
            Some(interval) => self.shared.counts.polls(interval),
            None if !self.is_idle.replace(true) => {
                self.shared.counts.idle.fetch_add(1, Ordering::Relaxed);
            }
            None => {}
        }
        if !self.has_opened.replace(true) {
            // Ignore the error: the receiver is gone only if another mailbox could not be opened, and then the sink
            // does not start.
            let _ = self.shared.opened.send(Ok(()));
        }
    }

    /// Counts an error that ended a session. If the mailbox was never open, the error ends the sink instead.
    pub(super) fn failed(&self, phase: Phase, text: &str) {
        if !self.has_opened.get() {
            let _ = self.shared.opened.send(Err(format!("cannot watch {}: {text}", self.name)));
            return;
        }
        if self.is_open.replace(false) {
            self.shared.counts.closed.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.counts.broken.fetch_add(1, Ordering::Relaxed);
        self.complain(phase, text);
    }

    /// Records that the server has given new numbers to the messages of the mailbox. Messages that came while no
    /// session was open can therefore not be distinguished from older messages.
    pub(super) fn renumbered(&self) {
        self.shared.counts.renumbered.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an error of this mailbox. Does not end the session.
    pub(super) fn complain(&self, phase: Phase, text: &str) {
        let text = format!("mailbox: {text}");
        let error = ErrorEvent { phase, code: 0, text: &text, at: clock::now() };
        self.shared.state.tally.borrow_mut().count_error(error, || Some(self.name.clone()));
    }

    pub(super) fn deleted(&self, count: u64) {
        self.shared.counts.deleted.fetch_add(count, Ordering::Relaxed);
        self.shared.undeleted.set(self.shared.undeleted.get().saturating_sub(count));
    }

    /// Counts a message as arrived, unless a probe has found it before. `id` is the identity of the message in its
    /// mailbox, which must stay the same when the mailbox is opened again. Returns true if the caller should delete the
    /// message from the mailbox.
    pub(super) fn count(&self, id: &[u8], result: &TraceResult, announced: Announced, bytes: u64) -> bool {
        let state = &self.shared.state;
        if let TraceResult::Intact(trace) | TraceResult::Converted(trace) | TraceResult::Corrupt(Some(trace)) = result
            && let Some(mail) = &self.shared.options.probe_mail
            && state.context.is_own_run(trace.run)
        {
            let deletes = self.shared.options.deletes == Some(trace.run);
            let finding = lock(mail).find(&self.name, id, message_number(trace.sequence), deletes);
            if finding != Finding::New {
                let deletes = deletes && finding == Finding::Recorded;
                self.shared.undeleted.set(self.shared.undeleted.get() + u64::from(deletes));
                return deletes;
            }
        }
        state.count_arrival(result, std::slice::from_ref(&self.recipient), bytes, clock::now(), 1);
        let (TraceResult::Intact(trace) | TraceResult::Converted(trace) | TraceResult::Corrupt(Some(trace))) = result
        else {
            return false;
        };
        if let Announced::At(at) = announced {
            state.count_announced(trace, at);
        }
        let deletes = self.shared.options.deletes == Some(trace.run) && self.shared.options.probe_mail.is_none();
        self.shared.undeleted.set(self.shared.undeleted.get() + u64::from(deletes));
        deletes
    }
}

/// Reads the trace of a message, and compares the body with the checksum in the trace. If `is_whole` is false,
/// `content` does not contain the whole body, so the message counts as intact without this check.
pub(super) fn read_trace(content: &[u8], is_whole: bool) -> TraceResult {
    if is_whole {
        let mut reader = TraceReader::default();
        reader.receive(content);
        return reader.finish();
    }
    let header = memmem::find(content, b"\n\r\n").map_or(content, |end| &content[..=end]);
    let mut lines = header.split_inclusive(|octet| *octet == b'\n');
    let is_trace = |line: &&[u8]| {
        line.get(..TRACE_FIELD.len()).is_some_and(|name| name.eq_ignore_ascii_case(TRACE_FIELD.as_bytes()))
            && line.get(TRACE_FIELD.len()) == Some(&b':')
    };
    match lines.find(is_trace) {
        None => TraceResult::Absent,
        Some(line) => Trace::parse(line).map_or(TraceResult::Corrupt(None), TraceResult::Intact),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_measurement::RunId;

    #[test]
    fn a_trace_is_read_from_its_header_field_or_from_the_message() {
        let mut line = vec![0; Trace::HEADER_BYTES];
        let body = b"hello\r\n";
        let trace = Trace {
            run: RunId([1; 16]),
            sequence: 5,
            zero: mailrun_measurement::trace::ZeroPhase::of(Duration::ZERO),
            numbering: mailrun_measurement::trace::RecipientNumbering::SINGLE,
            created: Duration::from_secs(1),
            clock: mailrun_measurement::ClockId(7),
            checksum: mailrun_measurement::trace::checksum(body),
        };
        trace.write(&mut line);
        let message = [b"Received: by x\r\n".as_slice(), &line, b"\r\n", body].concat();
        let changed = [message.as_slice(), b"advertisement\r\n"].concat();
        let in_body = [b"Subject: x\r\n\r\n".as_slice(), &line].concat();
        for (content, is_whole, expected) in [
            (line.as_slice(), false, TraceResult::Intact(trace)),
            (&message, false, TraceResult::Intact(trace)),
            (&changed, false, TraceResult::Intact(trace)),
            (&in_body, false, TraceResult::Absent),
            (b"\r\n", false, TraceResult::Absent),
            (b"X-Mailrun: v9\r\n\r\n", false, TraceResult::Corrupt(None)),
            (&message, true, TraceResult::Intact(trace)),
            (&changed, true, TraceResult::Corrupt(Some(trace))),
            (&in_body, true, TraceResult::Absent),
        ] {
            assert_eq!(read_trace(content, is_whole), expected, "{}", String::from_utf8_lossy(content));
        }
    }
}
