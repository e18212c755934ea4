//! Common parts of a source and a sink as parties of a run: their output files, their progress reports, and the part of
//! their record that does not depend on their role.
use crate::cpus;
use crate::host;
use crate::live::{LiveEvent, LiveMode, LiveProgress};
use crate::live_line::{LiveDisplay, LiveLine, NonTerminalOutput, RateWindow};
use crate::live_metrics::LiveMetrics;
use crate::process_usage;
use crate::reason::reason;
use anyhow::{Context, Result};
use mailrun_dashboard::RunSnapshot;
use mailrun_journey::record::{BusyPollRow, ClockRow, Party, Record, Role, Workload};
use mailrun_journey::{ClockId, IntervalLog, Latencies, Ledger, RunId, Series};
use mailrun_net::BusyPoll;
use mailrun_smtp::server::Protocol;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, SystemTime};

/// Files that a party writes its results to.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    /// The run record.
    pub json: Option<PathBuf>,
    /// The ledger's bits.
    pub ledger: Option<PathBuf>,
    /// The HdrHistogram interval log.
    pub hlog: Option<PathBuf>,
    /// Progress reports.
    pub live: LiveMode,
    /// Address of live metrics over HTTP.
    pub http: Option<SocketAddr>,
}

impl Outputs {
    /// Checks that record and ledger can be written, before there is anything to write.
    pub fn check_writable(&self) -> Result<()> {
        for path in [&self.json, &self.ledger].into_iter().flatten() {
            OpenOptions::new().create(true).append(true).open(path).map_err(|error| cannot_write(path, &error))?;
        }
        Ok(())
    }

    /// Writes record and ledger to their files, if any. A record that cannot be written is sent as an event; returns
    /// the reason.
    pub fn write_or_report(&self, record: &Record, units: &Ledger, telling: &ProgressOutput) -> Option<anyhow::Error> {
        let unwritten = self.write(record, units).err()?;
        telling.unwritten(record);
        Some(unwritten)
    }

    /// The directory of its files, if it has any.
    pub fn directory(&self) -> Option<&Path> {
        let parent = [&self.json, &self.ledger, &self.hlog].into_iter().flatten().next()?.parent()?;
        Some(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
    }

    fn write(&self, record: &Record, units: &Ledger) -> Result<()> {
        if let Some(path) = &self.json {
            write_record(path, record)?;
        }
        if let Some(path) = &self.ledger {
            write_ledger(path, units).map_err(|error| cannot_write(path, &error))?;
        }
        Ok(())
    }
}

/// A finished run.
#[derive(Debug)]
pub struct FinishedRun {
    /// The run record.
    pub record: Record,
    /// The first file that could not be written, with the reason.
    pub write_error: Option<anyhow::Error>,
}

/// Writes a run record to a file.
///
/// # Errors
/// If it cannot be written.
pub fn write_record(path: &Path, record: &Record) -> Result<()> {
    let text = record.to_json().context("a record is always JSON")?;
    fs::write(path, text + "\n").map_err(|error| cannot_write(path, &error))
}

/// `cannot write DIR/run.json: No space left on device`
pub fn cannot_write(path: &Path, error: &io::Error) -> anyhow::Error {
    anyhow::anyhow!("cannot write {}: {}", path.display(), reason(error))
}

fn write_ledger(path: &Path, units: &Ledger) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    units.write_to(&mut file)?;
    file.flush()
}

/// The line or the JSON events for a party's progress.
pub struct ProgressOutput {
    live: LiveMode,
    display: LiveDisplay,
    rate: RateWindow,
    metrics: Option<LiveMetrics>,
    /// Text of the latest error.
    last_error: String,
    /// Lines for the thread that writes them, each with a channel for the confirmation.
    lines: Option<SyncSender<(String, SyncSender<()>)>>,
}

/// Events that may wait for a reader of standard output; more are dropped.
const MAX_PENDING_EVENTS: usize = 64;
/// Time for writing the events that are left at the end.
const LAST_EVENT_TIMEOUT: Duration = Duration::from_secs(2);

impl ProgressOutput {
    /// Creates it; `elsewhere` applies if standard error is no terminal.
    pub fn new(live: LiveMode, elsewhere: NonTerminalOutput) -> Self {
        Self {
            live,
            display: LiveDisplay::on_stderr(live, elsewhere),
            rate: RateWindow::default(),
            metrics: None,
            last_error: String::new(),
            lines: None,
        }
    }

    /// Lets a thread write the events, so that a reader who stops reading does not hold up the caller.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn on_thread(self) -> io::Result<Self> {
        let (sender, lines) = sync_channel::<(String, SyncSender<()>)>(MAX_PENDING_EVENTS);
        let write_all = move || {
            for (line, written) in lines {
                write_event(&line);
                let _ = written.try_send(());
            }
        };
        std::thread::Builder::new().name("progress".to_owned()).spawn(write_all)?;
        Ok(Self { lines: Some(sender), ..self })
    }

    /// The same with live metrics on that address.
    ///
    /// # Errors
    /// If it cannot listen there.
    pub fn with_metrics(self, address: Option<SocketAddr>) -> Result<Self> {
        let metrics = address.map(LiveMetrics::serve).transpose()?;
        Ok(Self { metrics, ..self })
    }

    /// Writes an event to standard output.
    pub fn event(&self, event: &LiveEvent) {
        if self.live != LiveMode::Json {
            return;
        }
        let Some(lines) = &self.lines else { return write_event(&event.to_line()) };
        let (written, confirmation) = sync_channel(1);
        let _ = lines.try_send((event.to_line(), written));
        if matches!(event, LiveEvent::Done) {
            // The process ends after this event.
            let _ = confirmation.recv_timeout(LAST_EVENT_TIMEOUT);
        }
    }

    /// Sends the record that could not be written to its file.
    pub fn unwritten(&self, record: &Record) {
        if let Ok(record) = record.to_json() {
            self.event(&LiveEvent::Unwritten { record });
        }
    }

    /// Reports the latest error, if it is another one than before.
    pub fn latest_error(&mut self, text: Option<String>) {
        let Some(text) = text.filter(|text| *text != self.last_error) else { return };
        self.event(&LiveEvent::Error { text: text.clone() });
        self.last_error = text;
    }

    /// Takes the run's figures, for a dashboard; they get the latest error.
    pub fn figures(&mut self, figures: impl FnOnce() -> RunSnapshot) {
        let last_error = &self.last_error;
        self.display.update(|| RunSnapshot { last_error: last_error.clone(), ..figures() });
    }

    /// Reports the party's progress. `done` is the count that the rate is computed from.
    pub fn progress(&mut self, progress: &LiveProgress, done: u64, line: impl FnOnce(&LiveProgress, f64) -> LiveLine) {
        self.event(&LiveEvent::Progress(*progress));
        if let Some(metrics) = &self.metrics {
            metrics.set(progress);
        }
        self.rate.add(progress.elapsed_s, done);
        self.display.show(|| line(progress, self.rate.per_s()));
    }
}

fn write_event(line: &str) {
    let mut out = io::stdout().lock();
    // A reader that has closed the pipe is no reason to stop measuring.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Latencies by second: the record's series and, if asked for, the interval log.
pub struct IntervalRecorder {
    /// Counts of each second.
    pub series: Series,
    tag: &'static str,
    log: Option<IntervalLog<BufWriter<File>>>,
    path: PathBuf,
    /// Reason why the log could not be written to its end.
    failure: Option<anyhow::Error>,
    /// Latencies since the last line of the log.
    interval: Latencies,
    interval_began: Duration,
    began: Duration,
}

impl IntervalRecorder {
    /// Begins at the zero of the run; `tag` names the stage in the log.
    pub fn begin(now: Duration, tag: &'static str, hlog: Option<&Path>) -> Result<Self> {
        let log = hlog.map(|path| {
            let file = File::create(path).map_err(|error| cannot_write(path, &error))?;
            IntervalLog::begin(BufWriter::new(file), SystemTime::now()).context("cannot write the interval log")
        });
        Ok(Self {
            series: Series::new(now),
            tag,
            log: log.transpose()?,
            path: hlog.map(Path::to_owned).unwrap_or_default(),
            failure: None,
            interval: Latencies::default(),
            interval_began: now,
            began: now,
        })
    }

    /// The same without the seconds before that time, in which the run warms up.
    #[must_use]
    pub fn excluding_before(self, then: Duration) -> Self {
        Self { series: self.series.omit_before(then), ..self }
    }

    /// Adds latencies since the last call to the log. It writes a line per second. A log that cannot be written is no
    /// reason to stop measuring.
    pub fn log(&mut self, now: Duration, latencies: &Latencies) {
        if self.log.is_some() {
            self.interval.merge(latencies);
            if now >= self.interval_began + Duration::from_secs(1) {
                self.write_interval(now);
            }
        }
    }

    /// Writes the rest of the log; returns the reason if the log is not whole.
    pub fn finish(&mut self, now: Duration) -> Option<anyhow::Error> {
        self.write_interval(now);
        if let Some(log) = self.log.take() {
            let finished = log.finish().map(drop);
            self.check_written(finished);
        }
        self.failure.take()
    }

    fn write_interval(&mut self, now: Duration) {
        let Some(log) = &mut self.log else { return };
        let from = self.interval_began - self.began;
        let length = now.saturating_sub(self.interval_began);
        let written = log.write(self.tag, from, length, &self.interval);
        self.check_written(written);
        self.interval.clear();
        self.interval_began = now;
    }

    fn check_written(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            self.failure.get_or_insert_with(|| cannot_write(&self.path, &error));
            self.log = None;
        }
    }
}

/// The command line for display: in a word that is not UTF-8 a mark replaces the invalid bytes.
pub fn command_line() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Error text for a session that panicked.
pub const SESSION_PANICKED: &str = "a session crashed because of a bug in mailrun; standard error has the details";

/// This process as a party of the run.
pub fn own_party(role: Role, name: &str, workers: usize, faults: Vec<String>) -> Party {
    let mut party = Party {
        role,
        name: name.to_owned(),
        command: command_line(),
        user_s: None,
        sys_s: None,
        max_rss_bytes: None,
        write_bytes: None,
        durability: "none".to_owned(),
        faults,
        workers: u32::try_from(workers).ok(),
        failed_sessions: Some(mailrun_net::worker::failed_sessions()),
        ordered: None,
        died: None,
        busy_poll: None,
        cpus: cpus::placement(),
        wake_up_ms: None,
    };
    process_usage::own().fill(&mut party);
    party
}

/// Busy polling of this process so far; `None` if it is off.
pub fn busy_poll_row(mode: BusyPoll) -> Option<BusyPollRow> {
    let looked_s = mailrun_net::worker::busy_polled().as_secs_f64();
    (mode != BusyPoll::Off).then(|| BusyPollRow { mode: mode.to_string(), looked_s })
}

/// The protocol, in the terms of the run record.
pub fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Smtp => "smtp",
        Protocol::Lmtp => "lmtp",
    }
}

/// A record of this process, with all fields that do not depend on its role. `directory` is where it keeps its mail or its
/// results, if anywhere.
pub fn new_record(
    run: Option<RunId>,
    name: &str,
    started_at: jiff::Timestamp,
    workload: Workload,
    directory: Option<&Path>,
) -> Record {
    Record {
        run_id: run.map(|run| run.to_string()).unwrap_or_default(),
        name: name.to_owned(),
        started_at: started_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        command: command_line(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: option_env!("MAILRUN_COMMIT").map(str::to_owned),
        host: host::facts(directory),
        clock: Some(clock_row()),
        workload,
        ..Record::empty()
    }
}

/// Sets the time from which all times of a record count.
pub fn set_zero(record: &mut Record, zero: Duration) {
    record.origin_ns = u64::try_from(zero.as_nanos()).unwrap_or_default();
    let offset = record.clock.as_ref().map_or(0, |clock| clock.unix_offset_ns);
    let unix = jiff::Timestamp::from_nanosecond(i128::from(record.origin_ns) + i128::from(offset));
    record.zero_at = unix.map(|unix| unix.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()).unwrap_or_default();
}

/// The clock of this process's times.
pub(crate) fn clock_row() -> ClockRow {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let offset = unix.saturating_sub(mailrun_net::clock::now());
    ClockRow {
        boot: format!("{:08x}", monotonic_clock().0),
        unix_offset_ns: u64::try_from(offset.as_nanos()).unwrap_or_default(),
        sinks: Vec::new(),
    }
}

/// Time on the clock that run records count from (`origin_ns`).
pub fn record_time() -> Duration {
    mailrun_net::clock::now()
}

/// The clock since boot, as traces name it.
pub fn monotonic_clock() -> ClockId {
    ClockId::monotonic(&boot_id())
}

/// This host's wall clock, as traces name it.
pub fn wall_clock() -> ClockId {
    ClockId::realtime(&boot_id())
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// A run id that no other run has.
pub fn new_run_id() -> Result<RunId> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| anyhow::anyhow!("cannot get random numbers: {error}"))?;
    Ok(RunId(id))
}
