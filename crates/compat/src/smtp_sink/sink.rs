//! The state that all sessions share, such as the settings, the counters, a read buffer and a write buffer.
use super::counters::SmtpSinkCounters;
use super::dump::{DiskError, DumpContext};
use super::options::Settings;
use super::rng::GlibcRng;
use super::syslog::Syslog;
use super::traced::TraceStats;
use crate::stderr::StderrWriter;
use jiff::tz::TimeZone;
use mailrun_net::PageAlignedBuffer;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

const READ_BYTES: usize = 64 * 1024;
/// Maximum capacity of a write buffer that is kept for reuse. A larger buffer is freed.
const KEPT_BUFFER_LIMIT: usize = 256 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SinkExit {
    /// The limit of QUIT commands (`-n`) or messages (`-M`) was reached, or a signal arrived. Signals are handled only
    /// with `--trace` or `--report`.
    Done,
    Failed(String),
}

#[derive(Debug)]
pub(super) struct SmtpSink {
    pub(super) settings: Rc<Settings>,
    pub(super) stderr: StderrWriter,
    pub(super) syslog: Syslog,
    pub(super) rng: GlibcRng,
    pub(super) dump_context: Option<Rc<DumpContext>>,
    pub(super) counters: RefCell<SmtpSinkCounters>,
    /// Counts of the messages with and without a trace header, or `None` without `--trace`.
    pub(super) trace_stats: Option<RefCell<TraceStats>>,
    read_buffer: RefCell<PageAlignedBuffer>,
    write_buffer: RefCell<Vec<u8>>,
    sessions: Cell<usize>,
    /// Number of clients that wait for the reply to a complete message, because `-W` delays this reply.
    pending_replies: Cell<usize>,
    exit: RefCell<Option<SinkExit>>,
    accept_waker: RefCell<Option<Waker>>,
}

impl SmtpSink {
    pub(super) fn new(settings: Settings, zone: TimeZone) -> Self {
        let settings = Rc::new(settings);
        // As in Postfix's smtp-sink, only a sink that dumps messages seeds its generator with the time. Any other sink
        // uses seed 1, so it draws the same numbers in every run.
        let seed = if settings.dump_template.is_some() { mailrun_net::clock::wall().as_secs() as u32 } else { 1 };
        let dump_context =
            settings.dump_template.is_some().then(|| Rc::new(DumpContext::new(Rc::clone(&settings), zone.clone())));
        Self {
            stderr: StderrWriter::new(&settings.program),
            syslog: Syslog::new(&settings.program, zone),
            rng: GlibcRng::new(seed),
            dump_context,
            counters: RefCell::new(SmtpSinkCounters::new(&settings)),
            trace_stats: settings.own_options.traces.then(RefCell::default),
            read_buffer: RefCell::new(PageAlignedBuffer::new(READ_BYTES)),
            write_buffer: RefCell::default(),
            sessions: Cell::default(),
            pending_replies: Cell::default(),
            exit: RefCell::default(),
            accept_waker: RefCell::default(),
            settings,
        }
    }

    pub(super) fn with_read_buffer<T>(&self, turn: impl FnOnce(&mut [u8]) -> T) -> T {
        turn(self.read_buffer.borrow_mut().bytes())
    }

    /// Returns the write buffer that the sessions share. If a session has to wait while it writes, it keeps the buffer,
    /// and the next session allocates another one.
    pub(super) fn take_write_buffer(&self) -> Vec<u8> {
        self.write_buffer.take()
    }

    /// Puts the write buffer back with its unsent bytes. The session takes the buffer again to send them.
    pub(super) fn keep_unsent(&self, out: Vec<u8>) {
        *self.write_buffer.borrow_mut() = out;
    }

    /// Clears a buffer that has been written, and keeps it for the next session. A buffer that has grown too large is
    /// freed.
    pub(super) fn recycle_write_buffer(&self, mut out: Vec<u8>) {
        if out.capacity() <= KEPT_BUFFER_LIMIT {
            out.clear();
            *self.write_buffer.borrow_mut() = out;
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.sessions.get() >= self.settings.max_sessions
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sessions.get() == 0
    }

    pub(super) fn session_started(&self) {
        self.sessions.set(self.sessions.get() + 1);
    }

    pub(super) fn session_ended(&self) {
        self.sessions.set(self.sessions.get() - 1);
        if self.counters.borrow().reached_quit_limit() {
            self.stop(SinkExit::Done);
        } else {
            self.wake_acceptor();
        }
    }

    /// Counts a client as waiting for the reply to its message, until the returned guard is dropped.
    pub(super) fn track_pending_reply(self: &Rc<Self>) -> PendingReplyGuard {
        self.pending_replies.set(self.pending_replies.get() + 1);
        PendingReplyGuard(Rc::clone(self))
    }

    pub(super) fn has_pending_replies(&self) -> bool {
        self.pending_replies.get() > 0
    }

    pub(super) fn reached_message_limit(&self) -> bool {
        self.counters.borrow().reached_message_limit()
    }

    pub(super) fn stop(&self, end: SinkExit) {
        self.exit.borrow_mut().get_or_insert(end);
        self.wake_acceptor();
    }

    pub(super) fn fail(&self, error: &DiskError) {
        self.stop(SinkExit::Failed(error.to_string()));
    }

    pub(super) fn has_ended(&self) -> bool {
        self.exit.borrow().is_some()
    }

    pub(super) fn print_reports(&self) {
        let stats = self.trace_stats.as_ref().map(RefCell::borrow);
        if self.settings.own_options.reports {
            let times = stats.as_ref().and_then(|stats| stats.latencies());
            self.stderr.print(self.counters.borrow().report(times));
        }
        if let Some(stats) = stats {
            self.stderr.print(stats.summary());
        }
    }

    pub(super) fn exit(&self) -> Option<SinkExit> {
        self.exit.borrow().clone()
    }

    /// Stores the waker of the task that accepts connections. It is woken when a session or the whole run ends, or when
    /// the limit of `-M` is reached.
    pub(super) fn set_accept_waker(&self, context: &Context<'_>) {
        self.accept_waker.borrow_mut().get_or_insert_with(|| context.waker().clone());
    }

    pub(super) fn wake_acceptor(&self) {
        if let Some(waker) = &*self.accept_waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

#[derive(Debug)]
pub(super) struct PendingReplyGuard(Rc<SmtpSink>);

impl Drop for PendingReplyGuard {
    fn drop(&mut self) {
        self.0.pending_replies.set(self.0.pending_replies.get() - 1);
    }
}
