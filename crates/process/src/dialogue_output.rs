//! Writes the dialogues of a server's sessions to a file or to standard output. Each line begins
//! with the time (UTC) and the number of its session.
use crate::log_writer::LogWriter;
use crate::output_file::LogFile;
use anyhow::{Context, Result};
use jiff::Timestamp;
use mailrun_net::{DialogueFilter, DialogueLog, DialogueWriter};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Maximum total size, in bytes, of the lines that wait to be written to the file. Further lines are dropped.
const BUFFER_LIMIT: usize = 4 << 20;
const SECONDS_OF_DAY: i64 = 86_400;

#[derive(Clone, Debug)]
pub struct DialogueOptions {
    /// Path of the file for the dialogues, or `-` for standard output.
    pub file: PathBuf,
    /// Filters for the sessions to show. Without a filter, all sessions are shown.
    pub filters: Vec<DialogueFilter>,
}

/// Writes dialogues on a separate thread, so that a slow reader of the file does not stall the sessions.
pub struct DialogueOutput {
    log: Arc<DialogueLog>,
    writer: LogWriter,
}

impl DialogueOutput {
    /// Opens the file, and starts the thread that writes to it.
    ///
    /// # Errors
    /// Fails if the file for the dialogues cannot be written, or if the thread cannot be started.
    pub fn open(options: DialogueOptions) -> Result<Self> {
        let file = LogFile::new(&options.file)?;
        let writer = LogWriter::start(file, BUFFER_LIMIT).context("cannot start a thread")?;
        let lines = DatedLines { writer: writer.clone(), day: AtomicI64::new(-1) };
        Ok(Self { log: Arc::new(DialogueLog::new(options.filters, lines)), writer })
    }

    pub fn log(&self) -> Arc<DialogueLog> {
        Arc::clone(&self.log)
    }

    /// Waits until the lines are written, but at most two seconds.
    pub fn flush(&self) {
        self.writer.flush();
    }
}

struct DatedLines {
    writer: LogWriter,
    /// Day on which the last dialogue line was written, counted from 1970-01-01. At the first line of a day, the date
    /// is written on a line of its own, because the other lines have only the time of day.
    day: AtomicI64,
}

impl DialogueWriter for DatedLines {
    fn write(&self, at: Duration, session: u64, line: &str) {
        let at = i64::try_from(at.as_millis()).ok().and_then(|at| Timestamp::from_millisecond(at).ok());
        let at = at.unwrap_or(Timestamp::UNIX_EPOCH);
        let day = at.as_second() / SECONDS_OF_DAY;
        let is_new_day = self.day.swap(day, Ordering::Relaxed) != day;
        let date = if is_new_day { format!("{}\n", at.strftime("=== %F, times in UTC")) } else { String::new() };
        if is_new_day {
            self.writer.write_line(date.as_bytes());
        }
        self.writer.write_line(format!("{} #{session} {line}\n", at.strftime("%T.%3f")).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_time_and_its_session_and_a_day_is_named_once() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("dialogue.log");
        let output = DialogueOutput::open(DialogueOptions { file: file.clone(), filters: Vec::new() }).unwrap();
        let lines = DatedLines { writer: output.writer.clone(), day: AtomicI64::new(-1) };
        lines.write(Duration::from_millis(1_000), 1, "=== client 127.0.0.1:5");
        lines.write(Duration::from_millis(1_002), 1, "<-  220 \u{1b}mx");
        lines.write(Duration::from_secs(86_400), 12, " -> QUIT");
        output.flush();
        let expected = "=== 1970-01-01, times in UTC\n00:00:01.000 #1 === client 127.0.0.1:5\n\
            00:00:01.002 #1 <-  220 \\u{1b}mx\n=== 1970-01-02, times in UTC\n00:00:00.000 #12  -> QUIT\n";
        assert_eq!(std::fs::read_to_string(file).unwrap(), expected);
    }
}
