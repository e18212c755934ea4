//! Writes a process's log lines to standard error. A separate thread does this, so that all other threads go on if
//! nobody reads standard error.
//!
//! ```text
//! any thread ─ write_line ─▶ buffer (bounded; beyond: counted) ─▶ thread ─▶ standard error
//! delivery log ─ write_blocking ─▶ half of the buffer at most, and waits
//! ```
//! A line for which there is no room is dropped and counted. As soon as there is room again, a line of the log reports
//! the number of dropped lines. Control characters and other invisible characters are escaped, so that text from peers
//! cannot control a terminal.
use crate::journal;
use jiff::Timestamp;
use mailrun_lock::{lock, unpoisoned};
use mailrun_text::printable::printable;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tracing_subscriber::fmt::MakeWriter;

/// Size of the buffer in bytes, which is enough for some thousands of lines.
const BUFFER_LIMIT: usize = 1 << 20;
/// Maximum time that `flush` waits. It is limited, because the reader may never read the remaining lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Escape sequence that removes the status line below the log.
const ERASE: &[u8] = b"\r\x1b[K";
/// Pause before another attempt to write to a full pipe. It is needed only if another process has made the pipe
/// non-blocking, because a write to a blocking pipe waits by itself.
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// A handle for the thread that writes the log. Clones share the same thread.
#[derive(Clone)]
pub struct LogWriter(Arc<LogBuffer>);

struct LogBuffer {
    state: Mutex<LogState>,
    filled: Condvar,
    emptied: Condvar,
    limit: usize,
    form: LogForm,
    dropped: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogForm {
    Lines,
    /// Lines have the form that systemd's journal expects: with the level as a prefix, and without the time.
    Journal,
}

#[derive(Default)]
struct LogState {
    pending: Vec<u8>,
    /// Set while the thread writes bytes that it has taken from `pending`, so that `flush` waits for these bytes as
    /// well.
    is_writing: bool,
    /// Number of dropped lines that the log has not reported yet.
    unreported: u64,
    status_line: String,
    is_status_new: bool,
}

impl LogWriter {
    /// Starts a thread that writes to standard error. The thread uses its own copy of the file
    /// descriptor. Otherwise it would hold the lock of `std::io::stderr` while the pipe is full,
    /// and block other threads.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started or the descriptor cannot be copied.
    pub fn to_stderr() -> io::Result<Self> {
        let stderr = io::stderr().as_fd().try_clone_to_owned()?;
        let form = if journal::is_stderr() { LogForm::Journal } else { LogForm::Lines };
        Self::start_in_form(File::from(stderr), BUFFER_LIMIT, form)
    }

    /// Starts the log thread, which writes the buffered lines to `out`. `limit` is the size of the buffer in bytes.
    pub fn start(out: impl Write + Send + 'static, limit: usize) -> io::Result<Self> {
        Self::start_in_form(out, limit, LogForm::Lines)
    }

    fn start_in_form(out: impl Write + Send + 'static, limit: usize, form: LogForm) -> io::Result<Self> {
        let filled = Condvar::new();
        let emptied = Condvar::new();
        let shared = LogBuffer { state: Mutex::default(), filled, emptied, limit, form, dropped: AtomicU64::new(0) };
        let writer = Self(Arc::new(shared));
        let shared = Arc::clone(&writer.0);
        std::thread::Builder::new().name("log".to_owned()).spawn(move || shared.run(out))?;
        Ok(writer)
    }

    /// Writes a line that ends in LF, or drops and counts it if there is no room in the buffer.
    pub fn write_line(&self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        let text = printable(text.strip_suffix('\n').unwrap_or(&text));
        let mut state = self.0.lock();
        if state.pending.len() + text.len() >= self.0.limit {
            state.unreported += 1;
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.pending.extend_from_slice(text.as_bytes());
        state.pending.push(b'\n');
        drop(state);
        self.0.filled.notify_one();
    }

    /// Writes lines unchanged, so the caller must escape hidden characters. First waits until half of the buffer is
    /// free, so that single lines from other threads still find room.
    pub fn write_blocking(&self, lines: &[u8]) {
        let mut state = self.0.lock();
        while state.pending.len() > self.0.limit / 2 {
            state = unpoisoned(self.0.emptied.wait(state));
        }
        state.pending.extend_from_slice(lines);
        drop(state);
        self.0.filled.notify_one();
    }

    /// Returns the number of lines that are missing from the log, because the buffer was full or a write failed.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Shows a status line below the log and redraws it after each line of the log. An empty line
    /// removes it. The terminal must support escape sequences and be wide enough for the line.
    pub(crate) fn show_status(&self, line: String) {
        let mut state = self.0.lock();
        if state.status_line != line {
            state.status_line = line;
            state.is_status_new = true;
            drop(state);
            self.0.filled.notify_one();
        }
    }

    /// Waits until everything is written, but at most `FLUSH_TIMEOUT`.
    pub fn flush(&self) {
        let latest = Instant::now() + FLUSH_TIMEOUT;
        let mut state = self.0.lock();
        while !state.pending.is_empty() || state.is_writing || state.is_status_new {
            let left = latest.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let result = self.0.emptied.wait_timeout(state, left);
            state = unpoisoned(result).0;
        }
    }

    /// Writes panics as lines of the log. The default hook writes to standard error itself, so the
    /// thread that panicked could block there if nobody reads.
    pub fn report_panics(&self) {
        let writer = self.clone();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("without a name").to_owned();
            writer.write_line(format_line("ERROR", &format!("thread {name:?} {panic}")).as_bytes());
        }));
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LogEventWriter<'a>;

    fn make_writer(&'a self) -> LogEventWriter<'a> {
        LogEventWriter(self)
    }
}

/// Writes the events of tracing-subscriber to the log. The subscriber hands over each event as one whole line.
pub struct LogEventWriter<'a>(&'a LogWriter);

impl Write for LogEventWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_line(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogBuffer {
    fn lock(&self) -> MutexGuard<'_, LogState> {
        // Ignore poisoning, because a thread that panicked while it held the lock has left only
        // whole lines.
        lock(&self.state)
    }

    fn run(&self, mut out: impl Write) {
        let mut batch = Vec::new();
        let mut for_journal = Vec::new();
        let mut is_below_shown = false;
        loop {
            let mut state = self.lock();
            state.is_writing = false;
            self.emptied.notify_all();
            while state.pending.is_empty() && state.unreported == 0 && !state.is_status_new {
                state = unpoisoned(self.filled.wait(state));
            }
            if is_below_shown {
                batch.extend_from_slice(ERASE);
                batch.append(&mut state.pending);
            } else {
                std::mem::swap(&mut batch, &mut state.pending);
            }
            let below = state.status_line.clone();
            state.is_status_new = false;
            state.is_writing = true;
            let dropped_count = std::mem::take(&mut state.unreported);
            // Write without the lock, so that other threads can add lines in the meantime.
            drop(state);
            self.emptied.notify_all();
            if dropped_count > 0 {
                // The lines of this batch had filled the buffer, so later lines were dropped. Report this at the end of
                // the batch, where the dropped lines are missing.
                let what = format!("log lines were dropped because nobody read them in time lines={dropped_count}");
                batch.extend_from_slice(format_line("WARN", &what).as_bytes());
            }
            is_below_shown = !below.is_empty();
            batch.extend_from_slice(below.as_bytes());
            match self.form {
                LogForm::Lines => self.write(&batch, &mut out),
                LogForm::Journal => {
                    journal::append_lines(&batch, &mut for_journal);
                    self.write(&for_journal, &mut out);
                    for_journal.clear();
                }
            }
            batch.clear();
        }
    }

    /// Writes all bytes to `out`. If `out` fails, counts the lines that were not written as dropped.
    fn write(&self, mut bytes: &[u8], out: &mut impl Write) {
        while !bytes.is_empty() {
            match out.write(bytes) {
                Ok(written) if written > 0 => bytes = &bytes[written.min(bytes.len())..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(RETRY_DELAY),
                // Only count the lost lines. The reader is gone, so nobody could read a report of the error.
                Ok(_) | Err(_) => {
                    let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
                    self.dropped.fetch_add(lines as u64, Ordering::Relaxed);
                    return;
                }
            }
        }
    }
}

/// Formats a line that the log writer itself adds, for example about a panic, like the other lines of the log.
fn format_line(level: &str, what: &str) -> String {
    format!("{:.6} {level:>5} mailrun::log: {what}\n", Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};

    #[test]
    fn a_pipe_that_nobody_reads_holds_up_nobody_and_hears_how_much_it_missed() {
        let (mut reader, pipe) = io::pipe().unwrap();
        let writer = LogWriter::start(pipe, 64 << 10).unwrap();
        // All lines have the same length. Once the buffer has no room for a line, all further lines are dropped until
        // somebody reads.
        let [line, lost, end] = ["x", "l", "e"].map(|letter| format!("{}\n", letter.repeat(99)));
        (0..10_000).for_each(|_| writer.write_line(line.as_bytes()));
        let dropped = writer.dropped();
        assert!(dropped > 10_000 - 2 * 656 - 656, "{dropped}: a pipe of 64 KiB, a batch and a buffer of as much");
        writer.write_line(lost.as_bytes());
        let began = Instant::now();
        writer.flush();
        assert!(began.elapsed() >= FLUSH_TIMEOUT, "there was nothing to wait for");
        let read = std::thread::spawn(move || {
            let lines = BufReader::new(&mut reader).lines().map(Result::unwrap);
            lines.take_while(|line| !line.starts_with("eee")).collect()
        });
        // The reader stops at the line `end`. The log drops this line while the pipe is full, so write it until the
        // reader has seen it.
        let lines: Vec<String> = loop {
            writer.write_line(end.as_bytes());
            writer.flush();
            if read.is_finished() {
                break read.join().unwrap();
            }
        };
        let reported: u64 = lines.iter().filter_map(|line| line.rsplit_once("lines=")?.1.parse::<u64>().ok()).sum();
        let whole = lines.iter().filter(|one| one.starts_with("xxx")).count() as u64;
        assert!(reported > dropped && whole + reported >= 10_001, "{whole} {reported}");
        assert!(lines.iter().all(|line| !line.starts_with("lll")));
        assert!(lines.iter().any(|line| line.contains(" WARN mailrun::log: log lines were dropped")));
    }

    #[test]
    fn a_line_below_the_log_stays_below_it() {
        let (mut reader, pipe) = io::pipe().unwrap();
        let writer = LogWriter::start(pipe, 1 << 10).unwrap();
        let mut bytes = [0; 256];
        let mut read = || {
            let read = reader.read(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes[..read]).into_owned()
        };
        writer.show_status("5 queued".to_owned());
        assert_eq!(read(), "5 queued");
        writer.write_line(b"one\n");
        assert_eq!(read(), "\r\u{1b}[Kone\n5 queued");
        writer.show_status(String::new());
        assert_eq!(read(), "\r\u{1b}[K");
        writer.show_status(String::new());
        writer.write_line(b"two\n");
        assert_eq!(read(), "two\n");
    }

    #[test]
    fn a_reader_that_has_gone_is_counted() {
        let (reader, pipe) = io::pipe().unwrap();
        drop(reader);
        let writer = LogWriter::start(pipe, 1 << 10).unwrap();
        writer.write_line(b"one\n");
        writer.flush();
        assert_eq!(writer.dropped(), 1);
    }

    #[test]
    fn nothing_that_a_stranger_says_acts_on_a_terminal() {
        let (mut reader, pipe) = io::pipe().unwrap();
        let writer = LogWriter::start(pipe, 1 << 10).unwrap();
        writer.write_line("said \u{1b}[2J\r\nINFO forged \u{202e}\n".as_bytes());
        writer.flush();
        let mut bytes = [0; 256];
        let read = reader.read(&mut bytes).unwrap();
        assert_eq!(&bytes[..read], b"said \\u{1b}[2J\\r\\nINFO forged \\u{202e}\n");
    }
}
