//! `mailrun bench mades`: the stand-in for an ECP endpoint pair and the bench of MADES as processes of their own; what the
//! one says it did is held against what the other saw.
//!
//! ```text
//! mailrun mades-endpoint --embedded ── ready ─→ mailrun mades ── exited ─→ stop the endpoint
//!        └ endpoint.json: what it did                └ run.json: what was seen ─→ truth ─→ run.json, report.md
//! ```
mod truth;

use super::directory::RunDirectory;
use super::gather::fill_costs;
use super::parties::{Order, Process};
use super::progress::Display;
use crate::interrupt::{Asked, Interrupt};
use crate::live::{Event, Progress};
use crate::party::Live;
use crate::report::numbers::{count, latency};
use crate::surroundings::{self, Sight};
use crate::{host, usage};
use anyhow::{Context, Result, bail, ensure};
use journey::judge::{self, Reason};
use journey::record::{Cause, Ending, Party, Record, Role, Verdict};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use truth::Totals;

/// The longest a turn waits for something to be said.
const TURN: Duration = Duration::from_millis(50);
/// How long the endpoint has to say that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// How long a party has to write its files and exit, once asked to.
const STOP_WITHIN: Duration = Duration::from_secs(20);

/// What is to be run.
#[derive(Clone, Debug)]
pub(crate) struct RehearsalOptions {
    /// What the user calls the run.
    pub(crate) name: String,
    /// The run directory; `None` for a new one under `mailrun-results/`.
    pub(crate) out: Option<PathBuf>,
    /// What the stand-in is to do, as it reads it (TOML).
    pub(crate) plan: String,
    /// What of it goes wrong on purpose, for the report.
    pub(crate) faults: Vec<String>,
    /// More options for the endpoint, word by word.
    pub(crate) endpoint_options: Vec<String>,
    /// Options for `mailrun mades`, word by word: all but where it goes and where it writes.
    pub(crate) bench_options: Vec<String>,
    /// What is said while it runs.
    #[allow(dead_code, reason = "the progress line is to read it")]
    pub(crate) live: Live,
    /// The command line that was typed.
    pub(crate) command: Vec<String>,
}

/// Runs it to its end, or until SIGINT or SIGTERM; either way there is a report. The record, and where it is.
///
/// # Errors
///
/// If it could not run: a party did not start or died, the directory cannot be written.
pub(crate) fn run(options: &RehearsalOptions) -> Result<(Record, PathBuf)> {
    let program = std::env::current_exe().context("cannot find mailrun's own program file")?;
    let mut directory = RunDirectory::create(options.out.as_deref(), &options.name, jiff::Timestamp::now())?;
    let result = conduct(&program, options, &directory).and_then(|record| {
        directory.keep(&record)?;
        Ok((record, directory.path().to_owned()))
    });
    result.inspect_err(|_| directory.discard())
}

fn conduct(program: &Path, options: &RehearsalOptions, directory: &RunDirectory) -> Result<Record> {
    let sight = Sight::now();
    let (plan, totals) = (directory.path().join("plan.toml"), directory.path().join("endpoint.json"));
    directory.write("plan.toml", &options.plan)?;
    // An older run's must not be taken for this one's.
    let _ = fs::remove_file(&totals);
    let mut words =
        ["mades-endpoint", "--embedded", "--listen", "127.0.0.1:0", "--live", "json"].map(str::to_owned).to_vec();
    words.extend(["--plan".to_owned(), path(&plan), "--totals".to_owned(), path(&totals)]);
    words.extend(options.endpoint_options.iter().cloned());
    let mut course = Course::begin(Order::named("endpoint", program, words, directory, Role::Relay))?;
    let address = course.await_ready()?;
    let mut words = ["mades", "--live", "json", "--outbox-url"].map(str::to_owned).to_vec();
    words.extend([format!("amqp://{address}"), "--out".to_owned(), path(directory.path())]);
    words.extend(["--name".to_owned(), options.name.clone()]);
    words.extend(options.bench_options.iter().cloned());
    let (mades, death) = course.follow(Order::named("mades", program, words, directory, Role::Source))?;
    if death.is_none() {
        course.stop_endpoint()?;
    }
    let around = sight.until_now();
    let mut record: Record = read(&directory.path().join("run.json"))?;
    record.command.clone_from(&options.command);
    record.host = host::facts();
    record.parties.push(endpoint_party(options));
    fill_costs(&mut record, &mades.watched());
    fill_costs(&mut record, &course.endpoint.watched());
    let used_s: f64 = record.parties.iter().filter_map(|party| Some(party.user_s? + party.sys_s?)).sum();
    let own = usage::own();
    record.surroundings = Some(around);
    if let Some(around) = &mut record.surroundings {
        surroundings::leave_to_others(around, used_s + own.user_s + own.sys_s);
    }
    match death {
        Some(death) => note_death(&mut record, &death),
        None => truth::hold_against(&mut record, &read::<Told>(&totals)?.totals, &options.faults),
    }
    Ok(record)
}

/// The end of the endpoint in the middle of a run.
#[derive(Clone, Debug)]
struct Death {
    /// Since the load began.
    after: Duration,
    /// How it ended, and what it said last.
    how: String,
}

/// Puts the endpoint's end into the verdict: what it did before nobody can tell any more.
fn note_death(record: &mut Record, death: &Death) {
    let pass = judge::pass(record);
    let text = format!("The endpoint ended at {:.1} s of the run: {}.", death.after.as_secs_f64(), death.how);
    let verdict = &mut record.verdict;
    let texts = std::mem::take(&mut verdict.reasons).into_iter().zip(std::mem::take(&mut verdict.causes));
    // The bench saw connections that were lost, and was told to stop: that is why.
    let others = texts.filter(|(_, cause)| !matches!(cause, Cause::ServerGone | Cause::Interrupted));
    let others = others.map(|(text, cause)| Reason { cause, text });
    let closed = verdict.closed;
    let reasons = others.chain([Reason::new(Cause::ServerGone, text)]).collect();
    *verdict = Verdict { closed, ..judge::weigh(reasons, &pass) };
    record.ending = Some(Ending::ServerEnded);
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// What the endpoint writes down at its end.
#[derive(Debug, serde::Deserialize)]
struct Told {
    totals: Totals,
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let unreadable = || format!("cannot read {}, which a party should have left", path.display());
    let text = fs::read_to_string(path).with_context(unreadable)?;
    serde_json::from_str(&text).with_context(unreadable)
}

fn endpoint_party(options: &RehearsalOptions) -> Party {
    Party {
        role: Role::Relay,
        name: "mades-endpoint".to_owned(),
        command: Vec::new(),
        user_s: None,
        sys_s: None,
        max_rss_bytes: None,
        write_bytes: None,
        durability: "memory".to_owned(),
        faults: options.faults.clone(),
        workers: Some(1),
        failed_sessions: None,
        ordered: None,
    }
}

/// A run on its way.
#[derive(Debug)]
struct Course {
    events: Receiver<(Role, Event)>,
    mouth: std::sync::mpsc::Sender<(Role, Event)>,
    interrupt: Interrupt,
    display: Display,
    endpoint: Process,
    address: Option<String>,
}

impl Course {
    fn begin(endpoint: Order) -> Result<Self> {
        let (mouth, events) = channel();
        let interrupt = Interrupt::watch()?;
        let endpoint = Process::start(endpoint, mouth.clone())?;
        Ok(Self { events, mouth, interrupt, display: Display::on_stderr(), endpoint, address: None })
    }

    /// Waits until the endpoint attends to its outbox; where it listens.
    fn await_ready(&mut self) -> Result<String> {
        let limit = Instant::now() + READY_WITHIN;
        loop {
            let ended = self.endpoint.poll()?;
            // Heard after the poll: what an ended party said has then arrived.
            self.turn();
            if let Some(address) = self.address.take() {
                return Ok(address);
            }
            if let Some(status) = ended {
                self.endpoint.judge(status)?;
                bail!("the endpoint ended before it was ready: {}", self.endpoint.last_words("it said nothing"));
            }
            ensure!(Instant::now() < limit, "the endpoint was not ready within {} s", READY_WITHIN.as_secs());
            ensure!(self.interrupt.asked() == Asked::Nothing, "stopped before the first message");
        }
    }

    /// Starts the bench and follows it to its end; an endpoint that ends before it ends it too.
    fn follow(&mut self, order: Order) -> Result<(Process, Option<Death>)> {
        let mut mades = Process::start(order, self.mouth.clone())?;
        let began = Instant::now();
        let (mut stopping, mut death, mut told) = (None, None, Asked::Nothing);
        loop {
            self.turn();
            if death.is_none()
                && let Some(status) = self.endpoint.poll()?
            {
                let how = format!("{status}; it said last: {}", self.endpoint.last_words("nothing"));
                death = Some(Death { after: began.elapsed(), how });
            }
            if let Some(status) = mades.poll()? {
                self.display.clear();
                mades.judge(status)?;
                return Ok((mades, death));
            }
            let asked = self.interrupt.asked().max(if death.is_some() { Asked::Stop } else { Asked::Nothing });
            if asked > told {
                // The bench ends at the first, and does not wait for answers at the second.
                mades.terminate();
                told = asked;
                stopping.get_or_insert_with(Instant::now);
            }
            let patience = stopping.is_none_or(|since: Instant| since.elapsed() < STOP_WITHIN);
            ensure!(patience, "the bench did not stop within {} s", STOP_WITHIN.as_secs());
        }
    }

    /// Has the endpoint write down what it did.
    fn stop_endpoint(&mut self) -> Result<()> {
        self.endpoint.look();
        self.endpoint.settle();
        self.endpoint.terminate();
        let limit = Instant::now() + STOP_WITHIN;
        loop {
            if let Some(status) = self.endpoint.poll()? {
                return self.endpoint.judge(status);
            }
            self.turn();
            ensure!(Instant::now() < limit, "the endpoint did not stop within {} s", STOP_WITHIN.as_secs());
        }
    }

    /// Hears what is said.
    fn turn(&mut self) {
        let limit = Instant::now() + TURN;
        loop {
            match self.events.recv_timeout(limit.saturating_duration_since(Instant::now())) {
                Ok((Role::Relay, Event::Ready { amqp })) => {
                    self.address = amqp.into_iter().next();
                    return;
                }
                Ok((Role::Source, Event::Progress(progress))) => self.display.show_line(0, || line(&progress)),
                Ok(_) => {}
                // `mouth` is ours: it cannot be closed.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

fn line(progress: &Progress) -> String {
    format!(
        "{:.0} s · {} created · {} delivered · {} in transit · p50 {} · p99 {} · {} errors",
        progress.elapsed_s,
        count(progress.created),
        count(progress.delivered),
        count(progress.sessions),
        latency(progress.p50_ms),
        latency(progress.p99_ms),
        count(progress.errors)
    )
}
