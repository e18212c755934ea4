//! `mailrun bench mades` runs two processes: a simulated ECP endpoint pair, and the MADES bench, which measures it.
//! Afterwards, it compares the counts of the simulated endpoint with what the MADES bench observed.
//!
//! ```text
//! mailrun mades-endpoint --embedded ── ready ─→ mailrun mades ── exited ─→ stop the endpoint
//!        └ endpoint.json: what it did    └ run.json: what was seen ─→ truth ─→ run.json, report.md
//!                                        └ died: its progress ─→ unrecorded ─┘
//! ```
//!
//! If the endpoint is already running, only the MADES bench is started, and its observations cannot be checked.
mod options;
mod truth;

use super::directory::RunDirectory;
use super::gather::{self, fill_costs};
use super::launch::{ReadySignal, RelayLaunch};
use super::parties::{PartyCommand, PartyProcess};
use super::programs::own_program;
use super::progress::{LatestProgress, ProgressDisplay};
use super::supervisor::Supervisor;
use anyhow::{Context, Result};
use mailrun_measurement::reason::Reason;
use mailrun_measurement::record::{
    Cause, Death, Ending, LedgerRow, Mades, Party, Record, Role, Surroundings, Verdict, Workload,
};
use mailrun_measurement::threshold::{RunProtocol, evaluate_all};
use mailrun_measurement::{Stage, judge};
use mailrun_process::host_sampler::{self, HostSampler};
use mailrun_process::interrupt::{Interrupted, StopRequest};
use mailrun_process::live::LiveProgress;
use mailrun_process::party_options::PartyOptions;
use mailrun_process::{host, outputs};
use mailrun_text::numbers::count;
pub use options::{MadesBenchOptions, MadesTarget};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use truth::StandInTotals;

/// Time limit for the simulated endpoint to report that it is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct MadesBenchOutcome {
    pub record: Record,
    pub directory: PathBuf,
    /// First error in writing the run's files.
    pub unwritten: Option<anyhow::Error>,
}

/// Runs the bench until it is done, or until SIGINT or SIGTERM. A load that a signal cuts short still gets a report.
///
/// # Errors
///
/// Returns an error if a process does not start, or if the directory cannot be created. Also returns an error if the
/// user interrupts the run before the load, or if a third signal asks to end without a report.
pub fn run(options: &MadesBenchOptions) -> Result<MadesBenchOutcome> {
    let program = own_program()?;
    let mut directory = RunDirectory::create(options.out.as_deref(), &options.name, jiff::Timestamp::now())?;
    let result = run_parties(&program, options, &directory);
    let (record, complaint) = result.inspect_err(|_| directory.discard())?;
    let unwritten = directory.save(&record).err().or(complaint);
    Ok(MadesBenchOutcome { record, directory: directory.path().to_owned(), unwritten })
}

fn run_parties(
    program: &Path,
    options: &MadesBenchOptions,
    directory: &RunDirectory,
) -> Result<(Record, Option<anyhow::Error>)> {
    let sampler = HostSampler::start();
    let totals = directory.path().join("endpoint.json");
    let server = options.target.to_string();
    let progress = LatestProgress::of(RunProtocol::Mades, &server, &options.workload, &options.thresholds);
    let display = ProgressDisplay::new(options.live, options.title.clone(), &options.name);
    let mut supervisor = Supervisor::showing(progress, display)?;
    let (url, target_options) = start_target(program, options, directory, &totals, &mut supervisor)?;
    let arguments = target_options.and(options.bench_options.clone());
    let arguments = arguments.with("live", "json").with("out", directory.path().display()).with("label", &options.name);
    let started_at = jiff::Timestamp::now();
    let complaint =
        supervisor.follow_source(PartyCommand::named("mades", "mades", arguments, program, directory, Role::Source))?;
    // Check for a dead endpoint now, because the bench itself stops the endpoint below. Only an earlier death of the
    // endpoint can have ended the load.
    let has_ended_load = supervisor.death_of(Role::Relay).is_some() && supervisor.asked() == StopRequest::Nothing;
    supervisor.stop_sampling_relay();
    let complaint = complaint.or(supervisor.stop_relay(PartyProcess::terminate)?);
    let surroundings = sampler.finish();
    let own_s = sampler.own_s();
    let progress = supervisor.source_progress();
    let written_record = read_written(&directory.path().join("run.json"), Record::from_json);
    let mut record = match (supervisor.take_unwritten(Role::Source), written_record) {
        (Some(record), _) | (None, Ok(record)) => record,
        (None, Err(error)) => match supervisor.death_of(Role::Source) {
            Some(death) => record(options, &url, started_at, &progress, death.clone()),
            None if supervisor.asked() != StopRequest::Nothing && progress.created == 0 => {
                return Err(Interrupted::BEFORE_LOAD.into());
            }
            None => return Err(complaint.unwrap_or(error)),
        },
    };
    record.command.clone_from(&options.command);
    record.host = host::facts(Some(directory.path()));
    // Take the CPU usage during the load from the MADES bench, because the sampler of this process also covers the
    // start and the stop of the endpoint.
    let of_load = record.surroundings.take().unwrap_or_default();
    record.surroundings = Some(Surroundings {
        load_processor_s: of_load.load_processor_s,
        used_share: of_load.used_share,
        processes: of_load.processes,
        foreign: of_load.foreign,
        ..surroundings
    });
    let death = supervisor.death_of(Role::Relay).cloned();
    let has_stand_in = options.target == MadesTarget::StandIn;
    if has_stand_in {
        record.parties.push(Party { died: death.clone(), ..endpoint_party(options) });
    }
    supervisor.finish().iter().for_each(|party| fill_costs(&mut record, party));
    if has_stand_in {
        let used_s: f64 = record.parties.iter().filter_map(|party| Some(party.user_s? + party.sys_s?)).sum();
        if let Some(surroundings) = &mut record.surroundings {
            host_sampler::set_other_busy_share(surroundings, used_s + own_s);
        }
        hold_against_truth(&mut record, death.as_ref(), &totals, options)?;
        if has_ended_load {
            record.ending = Some(Ending::ServerEnded);
        }
    }
    Ok((record, complaint))
}

/// Starts a simulated endpoint, unless an endpoint is already running. Returns the URL of the broker, and the options
/// that connect the MADES bench to this broker.
fn start_target(
    program: &Path,
    options: &MadesBenchOptions,
    directory: &RunDirectory,
    totals: &Path,
    supervisor: &mut Supervisor,
) -> Result<(String, PartyOptions)> {
    if let MadesTarget::Running { url, options } = &options.target {
        return Ok((url.clone(), options.clone()));
    }
    let plan = directory.path().join("plan.toml");
    directory.write("plan.toml", &options.plan)?;
    // Remove the summary of an older run, which must not be taken for the summary of this run.
    let _ = fs::remove_file(totals);
    let arguments = options.endpoint_options.clone().flag("embedded", true).with("listen", "127.0.0.1:0");
    let arguments = arguments.with("live", "json").with("plan", plan.display()).with("summary", totals.display());
    let command = PartyCommand::named("endpoint", "mades-endpoint", arguments, program, directory, Role::Relay);
    let launch = RelayLaunch { command, ready_signal: ReadySignal::Reported, ready_within: READY_TIMEOUT };
    let url = format!("amqp://{}", supervisor.start_relay(launch)?);
    // Send no preflight message. The bench's own stand-in needs no check, and a fault that the user ordered for the
    // load could hit the preflight message instead.
    Ok((url.clone(), PartyOptions::default().flag("no-preflight", true).with("broker", url)))
}

/// Compares the record with the counts of the simulated endpoint. If the simulated endpoint died, it left no counts, so
/// its death goes into the verdict instead.
fn hold_against_truth(
    record: &mut Record,
    death: Option<&Death>,
    totals: &Path,
    options: &MadesBenchOptions,
) -> Result<()> {
    match death {
        None => {
            let summary = read_written(totals, |json| serde_json::from_slice::<EndpointSummary>(json))?;
            truth::compare(record, &summary.totals, &options.faults);
        }
        Some(death) => record_death(record, death),
    }
    Ok(())
}

/// Puts the endpoint's death into the verdict, because the record cannot be checked without the endpoint's counts.
fn record_death(record: &mut Record, death: &Death) {
    let pass = judge::pass_text(record);
    let verdict = &mut record.verdict;
    // Remove the reasons that report a lost connection or a request to stop, because the endpoint's death caused both.
    let is_other = |reason: &Reason| !matches!(reason.cause, Cause::ServerGone | Cause::Interrupted);
    let others = judge::take_reasons(verdict).filter(is_other);
    let closed = verdict.closed;
    // Keep the other reasons, such as a death of the MADES bench, and list them before the endpoint's death.
    let reasons = others.chain([judge::death_reason("endpoint", death)]).collect();
    *verdict = Verdict { closed, ..judge::decide(reasons, &pass) };
}

/// Summary file of the simulated endpoint. Only the totals are read, to compare them with the record.
#[derive(Debug, serde::Deserialize)]
struct EndpointSummary {
    totals: StandInTotals,
}

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

/// Makes the record of a run whose MADES bench died before it wrote a record. `progress` is the bench's last report,
/// and `url` is the URL of the broker.
pub(crate) fn record(
    options: &MadesBenchOptions,
    url: &str,
    started_at: jiff::Timestamp,
    progress: &LiveProgress,
    death: Death,
) -> Record {
    let url = url.to_owned();
    let workload = Workload { target: url.clone(), ..options.workload.clone() };
    let mut record = outputs::new_record(None, &options.name, started_at, workload, None);
    record.ledger =
        LedgerRow { accepted: Some(progress.accepted), delivered: Some(progress.delivered), ..LedgerRow::default() };
    let arrival = if options.mades.mode == "tracing" { Stage::TracingEvent } else { Stage::Inbox };
    let counts = [
        (Stage::Created, progress.created),
        (Stage::Sent, progress.sent),
        (Stage::Settled, progress.accepted),
        (arrival, progress.delivered),
    ];
    gather::fill_from_progress(&mut record, "mades", &counts, progress.elapsed_s);
    record.parties[0].died = Some(death.clone());
    record.mades = Some(Mades { outbox_url: url.clone(), inbox_url: url, ..options.mades.clone() });
    record.thresholds = evaluate_all(&record, &options.thresholds, None);
    let figures = format!(
        "The bench last reported at {:.1} s: {} created, {} settled, {} delivered.",
        progress.elapsed_s,
        count(progress.created),
        count(progress.accepted),
        count(progress.delivered)
    );
    let reasons = vec![judge::death_reason("bench", &death), Reason::new(Cause::Remark, figures)];
    record.verdict = Verdict { closed: false, valid: false, ..judge::decide(reasons, "") };
    record
}
