//! Code for all kinds of processes in a run, such as sources and sinks: their output files, and the fields of their run
//! records that do not depend on their role.
use crate::cpus;
use crate::event_output::EventOutput;
use crate::host;
use crate::live::LiveMode;
use crate::output_file::{self, OutputFile, cannot_write};
use crate::process_usage;
use anyhow::{Context, Result};
use mailrun_measurement::record::{BusyPollRow, ClockRow, Party, Record, Role, Workload};
use mailrun_measurement::{ClockId, IntervalLog, Latencies, Ledger, RunId, Series};
use mailrun_net::BusyPoll;
use mailrun_smtp::server::Protocol;
use std::fs;
use std::io::{self, BufWriter};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

#[derive(Clone, Debug, Default)]
pub struct Outputs {
    /// File for the run record, in JSON.
    pub json: Option<PathBuf>,
    /// File for the ledger, the set of all pairs of message and recipient that this process has seen. A pair takes one
    /// bit.
    pub ledger: Option<PathBuf>,
    /// File for the HdrHistogram interval log, which contains the latencies of each second.
    pub hlog: Option<PathBuf>,
    pub live: LiveMode,
    /// Address on which live metrics are served over HTTP.
    pub http: Option<SocketAddr>,
}

impl Outputs {
    /// Checks that the files can be written, so that a run does not lose its results at the end.
    pub fn check_writable(&self) -> Result<()> {
        [&self.json, &self.ledger, &self.hlog].into_iter().flatten().try_for_each(|path| output_file::check(path))
    }

    /// Writes the record and the ledger to their files, if files were requested. If writing fails, sends the record as
    /// an event, so that a bench still gets it, and returns the error. For a sink, `units` contains three ledgers:
    /// arrived, bounced and rewritten mail (see [`Ledger::write_arrivals`]). For any other process, it contains one
    /// ledger.
    pub fn write_or_report(&self, record: &Record, units: &[&Ledger], events: &EventOutput) -> Option<anyhow::Error> {
        let error = self.write(record, units).err()?;
        events.unwritten(record);
        Some(error)
    }

    /// Returns the directory of the first output file that was requested, or `None` if none was requested.
    pub fn directory(&self) -> Option<&Path> {
        let parent = [&self.json, &self.ledger, &self.hlog].into_iter().flatten().next()?.parent()?;
        Some(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
    }

    fn write(&self, record: &Record, units: &[&Ledger]) -> Result<()> {
        if let Some(path) = &self.json {
            write_record(path, record)?;
        }
        if let Some(path) = &self.ledger {
            write_ledger(path, units)?;
        }
        Ok(())
    }
}

/// Result of a source's or sink's run, whether or not its files could be written.
#[derive(Debug)]
pub struct FinishedRun {
    /// The record of the run, which is complete even if it could not be written.
    pub record: Record,
    /// The first error in writing a file. Such an error does not end the run.
    pub write_error: Option<anyhow::Error>,
}

pub fn write_record(path: &Path, record: &Record) -> Result<()> {
    let text = record.to_json().context("a record is always JSON")?;
    output_file::write(path, text + "\n")
}

/// Writes all ledgers of a process to one file. A sink has three (see [`Ledger::write_arrivals`]), and any other
/// process has one.
pub fn write_ledger(path: &Path, units: &[&Ledger]) -> Result<()> {
    let written = OutputFile::create(path).and_then(|file| {
        let mut file = BufWriter::new(file);
        match units {
            [arrived, bounced, rewritten] => Ledger::write_arrivals([arrived, bounced, rewritten], &mut file)?,
            units => units.iter().try_for_each(|units| units.write_to(&mut file))?,
        }
        file.into_inner()?.finish()
    });
    written.map_err(|error| cannot_write(path, &error))
}

/// Holds the series of the run record, which has a row for each second. If an interval log was requested, also writes
/// the latencies of each second to it.
pub struct IntervalRecorder {
    pub series: Series,
    tag: &'static str,
    log: Option<IntervalLog<BufWriter<OutputFile>>>,
    path: PathBuf,
    /// The first error in writing the log. After this error, nothing more is written to the log.
    failure: Option<anyhow::Error>,
    interval: Latencies,
    interval_began: Duration,
    began: Duration,
}

impl IntervalRecorder {
    /// Starts recording at `now`, the start of the run. `tag` is the name of the event with which each latency ends,
    /// such as `accepted`. Each line of the interval log contains this name.
    pub fn begin(now: Duration, tag: &'static str, hlog: Option<&Path>) -> Result<Self> {
        let log = hlog.map(|path| {
            let file = OutputFile::create(path).map_err(|error| cannot_write(path, &error))?;
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

    /// Excludes the warm-up, which lasts until `then`, from the series.
    #[must_use]
    pub fn excluding_before(self, then: Duration) -> Self {
        Self { series: self.series.omit_before(then), ..self }
    }

    /// Adds `latencies`, which were measured since the last call, to the interval log. The log gets one line per
    /// second. If the log cannot be written, the run continues without it.
    pub fn log(&mut self, now: Duration, latencies: &Latencies) {
        if self.log.is_some() {
            self.interval.merge(latencies);
            if now >= self.interval_began + Duration::from_secs(1) {
                self.write_interval(now);
            }
        }
    }

    /// Writes the last interval, which may be short, and closes the interval log. If any write to the log has failed,
    /// the log is incomplete, and this function returns the first error.
    pub fn finish(&mut self, now: Duration) -> Option<anyhow::Error> {
        self.write_interval(now);
        if let Some(log) = self.log.take() {
            let result = log.finish().and_then(|file| file.into_inner()?.finish());
            self.check_written(result);
        }
        self.failure.take()
    }

    fn write_interval(&mut self, now: Duration) {
        let Some(log) = &mut self.log else { return };
        let from = self.interval_began - self.began;
        let length = now.saturating_sub(self.interval_began);
        let result = log.write(self.tag, from, length, &self.interval);
        self.check_written(result);
        self.interval.clear();
        self.interval_began = now;
    }

    fn check_written(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.failure.get_or_insert_with(|| cannot_write(&self.path, &error));
            self.log = None;
        }
    }
}

/// Returns the command line for display, with U+FFFD in place of bytes that are not valid UTF-8.
pub fn command_line() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

pub const SESSION_PANICKED: &str = "a session crashed because of a bug in mailrun; standard error has the details";

/// Describes this process for the run record, with the resources that it has used so far.
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
        reception: None,
    };
    process_usage::own().fill(&mut party);
    party
}

/// Returns the time that this process has spent in busy polling so far, or `None` if busy polling is off.
pub fn busy_poll_row(mode: BusyPoll) -> Option<BusyPollRow> {
    let looked_s = mailrun_net::worker::busy_polled().as_secs_f64();
    (mode != BusyPoll::Off).then(|| BusyPollRow { mode: mode.to_string(), looked_s })
}

pub fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Smtp => "smtp",
        Protocol::Lmtp => "lmtp",
    }
}

/// Creates a record of this process with all fields that do not depend on its role. `directory` is where the process
/// keeps its mail or its results, if anywhere. The record describes the disk under this directory.
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

/// Sets the time from which all times in a run record count.
pub fn set_zero(record: &mut Record, zero: Duration) {
    record.origin_ns = u64::try_from(zero.as_nanos()).unwrap_or_default();
    let offset = record.clock.as_ref().map_or(0, |clock| clock.unix_offset_ns);
    let unix = jiff::Timestamp::from_nanosecond(i128::from(record.origin_ns) + i128::from(offset));
    record.zero_at = unix.map(|unix| unix.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()).unwrap_or_default();
}

pub(crate) fn clock_row() -> ClockRow {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let offset = unix.saturating_sub(mailrun_net::clock::now());
    ClockRow {
        boot: format!("{:08x}", monotonic_clock().0),
        unix_offset_ns: u64::try_from(offset.as_nanos()).unwrap_or_default(),
        sinks: Vec::new(),
    }
}

/// Returns the current time on the clock that run records use for `origin_ns`.
pub fn record_time() -> Duration {
    mailrun_net::clock::now()
}

/// Returns the ID of this host's monotonic clock. Messages contain this ID beside their time stamps, because times of
/// different clocks must not be compared. The ID changes at each boot, because the clock then starts again.
pub fn monotonic_clock() -> ClockId {
    ClockId::monotonic(&boot_id())
}

/// Returns the ID of this host's wall clock. Messages contain this ID beside their time stamps. The ID changes at each
/// boot, like the ID of the monotonic clock.
pub fn wall_clock() -> ClockId {
    ClockId::realtime(&boot_id())
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Creates a random run ID. It has 128 bits, so that no two runs get the same ID.
pub fn new_run_id() -> Result<RunId> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| anyhow::anyhow!("cannot get random numbers: {error}"))?;
    Ok(RunId(id))
}
