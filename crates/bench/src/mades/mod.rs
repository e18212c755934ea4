//! `mailrun bench mades` runs two processes: a stand-in for an ECP endpoint pair, and the MADES
//! bench, which measures it. Afterwards, it compares what the stand-in says it did with what the
//! MADES bench saw.
//!
//! ```text
//! mailrun mades-endpoint --embedded ── ready ─→ mailrun mades ── exited ─→ stop the endpoint
//!        └ endpoint.json: what it did    └ run.json: what was seen ─→ truth ─→ run.json, report.md
//!                                        └ died: its progress ─→ unrecorded ─┘
//! ```
//!
//! If the endpoint is already running, only the MADES bench is started, and there is nothing to
//! compare with.
mod options;
mod truth;
mod unrecorded;

use super::directory::RunDirectory;
use super::gather::fill_costs;
use super::parties::{PartyCommand, PartyProcess};
use super::programs::own_program;
use super::progress::ProgressDisplay;
use anyhow::{Context, Result, ensure};
use mailrun_dashboard::RunSnapshot;
use mailrun_dashboard::live_figures::{LiveValues, mades_figures};
use mailrun_journey::judge;
use mailrun_journey::reason::Reason;
use mailrun_journey::record::{Cause, Death, Ending, Party, Record, Role, Surroundings, Verdict};
use mailrun_journey::threshold::Threshold;
use mailrun_party::host;
use mailrun_party::host_sampler::{self, HostSampler};
use mailrun_party::interrupt::{Interrupt, Interrupted, StopRequest};
use mailrun_party::live::{LiveEvent, LiveProgress, LiveTimes};
use mailrun_party::live_line::{LiveLine, RateWindow};
use mailrun_party::party_options::PartyOptions;
use mailrun_report::load_in_short;
pub use options::{MadesBenchOptions, MadesTarget};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use truth::StandInTotals;

/// Time for which the supervisor reads events before it looks after the processes again.
const EVENT_TIMEOUT: Duration = Duration::from_millis(50);
/// Time in which the stand-in must report that it is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which a process must write its files and exit after it was asked to.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct MadesBenchOutcome {
    pub record: Record,
    pub directory: PathBuf,
    /// Error of the first file that could not be written.
    pub unwritten: Option<anyhow::Error>,
}

/// Runs the bench until it is done, or until SIGINT or SIGTERM. In both cases there is a report.
///
/// # Errors
///
/// If a process does not start, if the directory cannot be created, or if the user wants no report.
pub fn run(options: &MadesBenchOptions) -> Result<MadesBenchOutcome> {
    let program = own_program()?;
    let mut directory = RunDirectory::create(options.out.as_deref(), &options.name, jiff::Timestamp::now())?;
    let result = run_parties(&program, options, &directory);
    let (record, complaint) = result.inspect_err(|_| directory.discard())?;
    let unwritten = directory.save(&record).err().or(complaint);
    Ok(MadesBenchOutcome { record, directory: directory.path().to_owned(), unwritten })
}

/// Returns the record, and an error if the MADES bench could not write its files.
fn run_parties(
    program: &Path,
    options: &MadesBenchOptions,
    directory: &RunDirectory,
) -> Result<(Record, Option<anyhow::Error>)> {
    let sampler = HostSampler::start();
    let totals = directory.path().join("endpoint.json");
    let mut supervisor = MadesBenchSupervisor::new(options)?;
    let (url, target_options) = start_target(program, options, directory, &totals, &mut supervisor)?;
    let arguments = target_options.and(options.bench_options.clone());
    let arguments = arguments.with("live", "json").with("out", directory.path().display()).with("label", &options.name);
    let started_at = jiff::Timestamp::now();
    let FinishedBench { mades, exit_error: complaint, death } =
        supervisor.run_bench(PartyCommand::named("mades", "mades", arguments, program, directory, Role::Source))?;
    let has_ended_load = supervisor.death.is_some() && supervisor.interrupt.requested() == StopRequest::Nothing;
    supervisor.stop_endpoint()?;
    let surroundings = sampler.finish();
    let own_s = sampler.own_s();
    let written_record = read_written(&directory.path().join("run.json"), Record::from_json);
    let (mut record, complaint) = match (supervisor.unwritten.take(), written_record, death) {
        (Some(record), _, _) | (None, Ok(record), _) => (record, complaint),
        (None, Err(_), Some(death)) => {
            (unrecorded::record(options, &url, started_at, &supervisor.progress, death), complaint)
        }
        (None, Err(error), None) => return Err(complaint.unwrap_or(error)),
    };
    record.command.clone_from(&options.command);
    record.host = host::facts(Some(directory.path()));
    fill_costs(&mut record, &mades.observation());
    // The MADES bench has watched the host while it offered load.
    let of_load = record.surroundings.take().unwrap_or_default();
    record.surroundings = Some(Surroundings {
        load_processor_s: of_load.load_processor_s,
        used_share: of_load.used_share,
        processes: of_load.processes,
        foreign: of_load.foreign,
        ..surroundings
    });
    if let Some(endpoint) = &supervisor.endpoint {
        record.parties.push(Party { died: supervisor.death.clone(), ..endpoint_party(options) });
        fill_costs(&mut record, &endpoint.observation());
        let used_s: f64 = record.parties.iter().filter_map(|party| Some(party.user_s? + party.sys_s?)).sum();
        if let Some(surroundings) = &mut record.surroundings {
            host_sampler::set_other_busy_share(surroundings, used_s + own_s);
        }
        hold_against_truth(&mut record, &supervisor, &totals, options)?;
        if has_ended_load {
            record.ending = Some(Ending::ServerEnded);
        }
    }
    Ok((record, complaint))
}

/// Starts the stand-in, unless an endpoint is already running. Returns the URL of the broker, and
/// the options with which the MADES bench finds it.
fn start_target(
    program: &Path,
    options: &MadesBenchOptions,
    directory: &RunDirectory,
    totals: &Path,
    supervisor: &mut MadesBenchSupervisor,
) -> Result<(String, PartyOptions)> {
    if let MadesTarget::Running { url, options } = &options.target {
        return Ok((url.clone(), options.clone()));
    }
    let plan = directory.path().join("plan.toml");
    directory.write("plan.toml", &options.plan)?;
    // Remove the summary of an older run, which must not be taken for that of this run.
    let _ = fs::remove_file(totals);
    let arguments = options.endpoint_options.clone().flag("embedded", true).with("listen", "127.0.0.1:0");
    let arguments = arguments.with("live", "json").with("plan", plan.display()).with("summary", totals.display());
    let endpoint = PartyCommand::named("endpoint", "mades-endpoint", arguments, program, directory, Role::Relay);
    let url = supervisor.start_endpoint(endpoint)?;
    // Send no preflight message. The stand-in is known to read its outbox, and the message could be
    // hit by a fault that the user ordered.
    Ok((url.clone(), PartyOptions::default().flag("no-preflight", true).with("broker", url)))
}

/// Compares the record with what the stand-in says it did. If the stand-in died, there is nothing
/// to compare with, and the verdict gets its death instead.
fn hold_against_truth(
    record: &mut Record,
    supervisor: &MadesBenchSupervisor,
    totals: &Path,
    options: &MadesBenchOptions,
) -> Result<()> {
    match &supervisor.death {
        None => {
            let summary = read_written(totals, |json| serde_json::from_slice::<EndpointSummary>(json))?;
            truth::compare(record, &summary.totals, &options.faults);
        }
        Some(death) => record_death(record, death),
    }
    Ok(())
}

/// Puts the endpoint's death into the verdict, because nobody can check any more what the endpoint
/// did before.
fn record_death(record: &mut Record, death: &Death) {
    let pass = judge::pass_text(record);
    let verdict = &mut record.verdict;
    let texts = std::mem::take(&mut verdict.reasons).into_iter().zip(std::mem::take(&mut verdict.causes));
    // Drop what the MADES bench says about lost connections and about being asked to stop: the
    // death of the endpoint caused both.
    let others = texts.filter(|(_, cause)| !matches!(cause, Cause::ServerGone | Cause::Interrupted));
    let others = others.map(|(text, cause)| Reason { cause, text });
    let closed = verdict.closed;
    // If the MADES bench died, too, its death comes first: nobody watches the endpoint after that.
    let reasons = others.chain([judge::death_reason("endpoint", death)]).collect();
    *verdict = Verdict { closed, ..judge::decide(reasons, &pass) };
}

/// The part of the endpoint's summary file that is compared with the record.
#[derive(Debug, serde::Deserialize)]
struct EndpointSummary {
    totals: StandInTotals,
}

/// Reads a file that a process of the run should have written.
fn read_written<T>(path: &Path, parse: impl FnOnce(&[u8]) -> serde_json::Result<T>) -> Result<T> {
    let unreadable = || format!("cannot read {}, which the process should have written", path.display());
    let json = fs::read(path).with_context(unreadable)?;
    parse(&json).with_context(unreadable)
}

fn endpoint_party(options: &MadesBenchOptions) -> Party {
    Party {
        durability: "memory".to_owned(),
        faults: options.faults.clone(),
        workers: Some(1),
        ..Party::new(Role::Relay, "mades-endpoint")
    }
}

#[derive(Debug)]
struct MadesBenchSupervisor {
    events: Receiver<(Role, LiveEvent)>,
    events_tx: std::sync::mpsc::Sender<(Role, LiveEvent)>,
    interrupt: Interrupt,
    display: ProgressDisplay,
    rate: RateWindow,
    /// The stand-in. `None` if the user's endpoint is measured.
    endpoint: Option<PartyProcess>,
    address: Option<String>,
    progress: LiveProgress,
    last_error: String,
    /// Set if the endpoint exited without having been asked to.
    death: Option<Death>,
    /// Record that the MADES bench could not write to its file, and sent as an event instead.
    unwritten: Option<Record>,
    /// Describes the endpoint and the load in a few words, for the progress display.
    subject: String,
    thresholds: Vec<Threshold>,
}

/// The MADES bench after it has exited.
struct FinishedBench {
    mades: PartyProcess,
    /// Reason why the MADES bench could not run, or could not write its files.
    exit_error: Option<anyhow::Error>,
    /// Set if the MADES bench crashed or was killed.
    death: Option<Death>,
}

impl MadesBenchSupervisor {
    fn new(options: &MadesBenchOptions) -> Result<Self> {
        let (events_tx, events) = channel();
        let interrupt = Interrupt::watch()?;
        Ok(Self {
            events,
            events_tx,
            interrupt,
            display: ProgressDisplay::new(options.live, options.title.clone(), &options.name),
            rate: RateWindow::default(),
            endpoint: None,
            address: None,
            progress: LiveProgress::default(),
            last_error: String::new(),
            death: None,
            unwritten: None,
            subject: format!("{} · {}", options.target, load_in_short(&options.workload)),
            thresholds: options.thresholds.clone(),
        })
    }

    /// Starts the stand-in and waits until it reads its outbox. Returns the URL of its broker.
    fn start_endpoint(&mut self, command: PartyCommand) -> Result<String> {
        let mut endpoint = PartyProcess::start(command, self.events_tx.clone(), &self.interrupt)?;
        let address = self.await_ready(&mut endpoint)?;
        self.endpoint = Some(endpoint);
        Ok(format!("amqp://{address}"))
    }

    fn await_ready(&mut self, endpoint: &mut PartyProcess) -> Result<String> {
        let limit = Instant::now() + READY_TIMEOUT;
        loop {
            let ended = endpoint.poll()?;
            // Read the events after the poll: if the process has exited, its last events have
            // arrived by then.
            self.process_events();
            if let Some(address) = self.address.take() {
                return Ok(address);
            }
            if let Some(status) = ended {
                return Err(endpoint.start_error(status, &self.interrupt));
            }
            ensure!(Instant::now() < limit, "the endpoint was not ready within {} s", READY_TIMEOUT.as_secs());
            ensure!(self.interrupt.requested() == StopRequest::Nothing, Interrupted::BEFORE_LOAD);
        }
    }

    /// Starts the MADES bench and follows it until it exits. The user's first signal makes it stop,
    /// and a second one makes it stop without waiting for messages.
    fn run_bench(&mut self, order: PartyCommand) -> Result<FinishedBench> {
        let mut mades = PartyProcess::start(order, self.events_tx.clone(), &self.interrupt)?;
        let began = Instant::now();
        let mut last_request = (StopRequest::Nothing, began);
        loop {
            self.process_events();
            self.update_dashboard(&mades);
            self.check_endpoint(began)?;
            if let Some(status) = mades.poll()? {
                self.process_events();
                self.display.clear();
                let complaint = mades.check_exit(status).err();
                // With status 2, the MADES bench reported an error itself. With any other failing
                // status, or without one, it crashed or was killed.
                let has_died = complaint.is_some() && status.code() != Some(2);
                if !has_died {
                    return Ok(FinishedBench { mades, exit_error: complaint, death: None });
                }
                let is_before_load = self.progress.created == 0 && self.interrupt.has_ended(status);
                ensure!(!is_before_load, Interrupted::BEFORE_LOAD);
                let death = Some(mades.death(status, began.elapsed().as_secs_f64()));
                return Ok(FinishedBench { mades, exit_error: None, death });
            }
            let wanted = if self.death.is_some() { StopRequest::Stop } else { StopRequest::Nothing };
            let request = self.interrupt.requested().max(wanted);
            ensure!(request < StopRequest::Quit, Interrupted::WITHOUT_REPORT);
            if request > last_request.0 {
                mades.terminate();
                last_request = (request, Instant::now());
            }
            let is_in_time = last_request.0 == StopRequest::Nothing || last_request.1.elapsed() < STOP_TIMEOUT;
            ensure!(is_in_time, "the bench did not stop within {} s", STOP_TIMEOUT.as_secs());
        }
    }

    fn update_dashboard(&mut self, mades: &PartyProcess) {
        let endpoint = self.endpoint.as_ref();
        let progress = &self.progress;
        let last_error = &self.last_error;
        // The times in the progress are those of arrivals. Remove them from the source's figures.
        let untimed = LiveProgress { run: LiveTimes::default(), ..*progress };
        self.display.update(|| RunSnapshot {
            parties: std::iter::once(mades).chain(endpoint).filter_map(PartyProcess::load).collect(),
            last_error: last_error.clone(),
            subject: self.subject.clone(),
            thresholds: LiveValues { source: &untimed, sink: Some(progress) }.states(&self.thresholds),
            ..mades_figures(progress)
        });
    }

    fn check_endpoint(&mut self, began: Instant) -> Result<()> {
        let Some(endpoint) = &mut self.endpoint else { return Ok(()) };
        if self.death.is_none()
            && let Some(status) = endpoint.poll()?
        {
            self.death = Some(endpoint.death(status, began.elapsed().as_secs_f64()));
        }
        Ok(())
    }

    /// Stops the endpoint, which then writes down what it did. If it fails to, or does not stop in
    /// time, this is recorded as its death, because the record of the run still has to be kept.
    ///
    /// # Errors
    /// Returns an error if the user's third signal asks to end without a report.
    fn stop_endpoint(&mut self) -> Result<()> {
        let Some(mut endpoint) = self.endpoint.take_if(|_| self.death.is_none()) else { return Ok(()) };
        endpoint.sample();
        endpoint.stop_sampling();
        endpoint.terminate();
        let limit = Instant::now() + STOP_TIMEOUT;
        let at_s = self.progress.elapsed_s;
        self.death = loop {
            if let Some(status) = endpoint.poll()? {
                break endpoint.check_exit(status).is_err().then(|| endpoint.death(status, at_s));
            }
            self.process_events();
            ensure!(self.interrupt.requested() < StopRequest::Quit, Interrupted::WITHOUT_REPORT);
            if Instant::now() >= limit {
                let said = endpoint.last_stderr_line("");
                endpoint.kill()?;
                let how = format!("killed: it did not stop within {} s", STOP_TIMEOUT.as_secs());
                break Some(Death { at_s, how, said, out_of_memory: false });
            }
        };
        self.endpoint = Some(endpoint);
        Ok(())
    }

    /// Handles events until the time is up or the endpoint is ready.
    fn process_events(&mut self) {
        let limit = Instant::now() + EVENT_TIMEOUT;
        loop {
            match self.events.recv_timeout(limit.saturating_duration_since(Instant::now())) {
                Ok((Role::Relay, LiveEvent::Ready { amqp })) => {
                    self.address = amqp.into_iter().next();
                    return;
                }
                Ok((Role::Source, LiveEvent::Progress(progress))) => {
                    self.progress = progress;
                    self.rate.add(progress.elapsed_s, progress.delivered);
                    self.display.show(|| LiveLine::of_mades(&progress, self.rate.per_s()));
                }
                Ok((_, LiveEvent::Error { text })) => self.last_error = text,
                Ok((Role::Source, LiveEvent::Unwritten { record })) => {
                    self.unwritten = Record::from_json(record.as_bytes()).ok();
                }
                Ok(_) => {}
                // The channel cannot be closed, because `events_tx` belongs to this supervisor.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}
