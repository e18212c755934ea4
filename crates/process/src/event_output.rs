//! Writes the progress events of a process to standard output, from which the bench that started it
//! reads them.
use crate::live::{LiveEvent, LiveMode};
use mailrun_measurement::record::Record;
use std::io::{self, Write};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// Maximum number of events that wait for a reader of standard output. Further events are dropped.
const MAX_PENDING_EVENTS: usize = 64;
/// Time limit for writing the last event. After this time, the process ends even if nobody has read
/// the event.
const LAST_EVENT_TIMEOUT: Duration = Duration::from_secs(2);

/// Writes progress events to standard output with `--live json`, and discards them in other modes.
pub struct EventOutput {
    is_json: bool,
    /// Channel to the thread that writes the lines. Each line comes with a channel on which the
    /// thread confirms that it was written.
    lines: Option<SyncSender<(String, SyncSender<()>)>>,
}

impl EventOutput {
    pub fn new(live: LiveMode) -> Self {
        Self { is_json: live == LiveMode::Json, lines: None }
    }

    /// Moves the writing of events to a thread, so that a reader who stops reading does not block
    /// the caller.
    pub fn on_thread(self) -> io::Result<Self> {
        let (sender, lines) = sync_channel::<(String, SyncSender<()>)>(MAX_PENDING_EVENTS);
        let write_all = move || {
            for (line, written) in lines {
                write_line(&line);
                let _ = written.try_send(());
            }
        };
        std::thread::Builder::new().name("progress".to_owned()).spawn(write_all)?;
        Ok(Self { lines: Some(sender), ..self })
    }

    pub fn event(&self, event: &LiveEvent) {
        if !self.is_json {
            return;
        }
        let Some(lines) = &self.lines else { return write_line(&event.to_line()) };
        let (written, confirmation) = sync_channel(1);
        let _ = lines.try_send((event.to_line(), written));
        if matches!(event, LiveEvent::Done) {
            // Wait until this last event is written, because otherwise the end of the process could lose it.
            let _ = confirmation.recv_timeout(LAST_EVENT_TIMEOUT);
        }
    }

    /// Sends the bench a run's record as an event, because the record's file could not be written.
    pub fn unwritten(&self, record: &Record) {
        if let Ok(record) = record.to_json() {
            self.event(&LiveEvent::Unwritten { record });
        }
    }
}

fn write_line(line: &str) {
    let mut out = io::stdout().lock();
    // Ignore errors, because measuring must go on even if the reader has closed the pipe.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
