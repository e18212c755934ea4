//! A round: load, a fault at a random moment, the server back, its queue empty, the account.
use super::AuditOptions;
use super::fault::{AuditFault, Moments};
use crate::contestant::Contestant;
use crate::directory::RunDirectory;
use crate::gather::{self, BenchFault, SinkResults};
use crate::launch::{self, RelayLaunch};
use crate::parties::{PartyCommand, PartyProcess};
use crate::plan::{BenchOptions, BenchTarget};
use crate::recipe::{Places, ServerCommand, leftovers, next_hop};
use crate::supervisor::Supervisor;
use anyhow::{Context, Result, anyhow};
use mailrun_forgetful::{Disk, Fault, Plan};
use mailrun_journey::account::{RelayInputs, ServerQueue};
use mailrun_journey::judge;
use mailrun_journey::ledger::Ledger;
use mailrun_journey::record::{Arrival, AuditLoss, LedgerRow, Record, Role, Workload};
use mailrun_party::interrupt::StopRequest;
use mailrun_party::outputs;
use mailrun_party::party_options::PartyOptions;
use mailrun_report::numbers::{count, seconds};
use rustix::io::Errno;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Length of a round's load.
const LOAD: Duration = Duration::from_secs(2);
/// Parallel sessions.
const SESSIONS: u32 = 20;
/// The next hop takes its time, so that there is mail in the server whenever the fault comes.
const SLOW_SINK: &str = "data: delay 50ms..350ms";
/// Room of the disk that forgets.
const DISK_BYTES: u64 = 1 << 30;
/// Time for which the disk is full.
const FULL: Duration = Duration::from_millis(500);
/// Latest read of a start that fails.
const MAX_READ: u64 = 20;
/// Longest time between a fault and the next start.
const MAX_PAUSE: Duration = Duration::from_millis(100);
/// One kill in so many is followed by another during the start.
const START_KILLS: u64 = 4;
/// Pause between two questions whether the queue is empty.
const QUEUE_POLL: Duration = Duration::from_millis(250);
/// Limit of the time in which mail arrives that was under way when the queue was empty.
const SETTLE: Duration = Duration::from_millis(500);

/// A round on its way.
pub(super) struct Round<'a> {
    pub(super) options: &'a AuditOptions,
    pub(super) program: &'a Path,
    pub(super) directory: &'a RunDirectory,
    pub(super) fault: AuditFault,
    /// From 1.
    pub(super) number: u64,
}

/// What a round found.
pub(super) struct RoundResult {
    pub(super) fault: AuditFault,
    pub(super) end: RoundEnd,
    /// Events of the round.
    pub(super) events: Vec<BenchFault>,
}

/// How a round ended.
pub(super) enum RoundEnd {
    /// With an account.
    Account(Box<RoundAccount>),
    /// The server did not take mail again, or ended by itself after it did, for that reason.
    NeverBack(String),
    /// It went wrong, and these operations of the server do not exist on the disk that forgets.
    NotSupported(Vec<&'static str>),
}

/// The account of a round.
pub(super) struct RoundAccount {
    /// With the ledger of the round.
    pub(super) source: Record,
    pub(super) sink: Option<Record>,
    /// Time from the fault to the next greeting.
    pub(super) back: Duration,
    pub(super) losses: Vec<AuditLoss>,
}

/// Whether mail that did not arrive can still be in the server's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    Empty,
    Unknown,
}

/// The fault of a round, as far as it came.
#[derive(Default)]
struct Disturbance {
    at: Option<Duration>,
    back: Option<Duration>,
    /// Reason why the server did not take mail again.
    never_back: Option<String>,
}

impl RoundResult {
    fn ledger(&self) -> Option<&LedgerRow> {
        match &self.end {
            RoundEnd::Account(account) => Some(&account.source.ledger),
            RoundEnd::NeverBack(_) | RoundEnd::NotSupported(_) => None,
        }
    }

    /// Whether every message that was answered 250 arrived, unchanged.
    pub(super) fn is_good(&self) -> bool {
        let nothing = |number: Option<u64>| number.unwrap_or_default() == 0;
        self.ledger().is_some_and(|row| nothing(row.lost) && nothing(row.not_delivered) && nothing(row.corrupt))
    }

    /// `1,000 answered 250, 3 lost, 12 duplicates, back after 0.61 s`
    pub(super) fn line(&self) -> String {
        let (account, row) = match &self.end {
            RoundEnd::NeverBack(reason) => return format!("the server never came back: {reason}"),
            RoundEnd::NotSupported(operations) => {
                return format!("not supported by {}: {}", self.fault.name(), operations.join(", "));
            }
            RoundEnd::Account(account) => (account, &account.source.ledger),
        };
        let missing = match row.lost {
            Some(lost) => format!("{} lost", count(lost)),
            None => format!("{} not delivered", count(row.not_delivered.unwrap_or_default())),
        };
        format!(
            "{} answered 250, {missing}, {} duplicates, back after {}",
            count(row.accepted.unwrap_or_default()),
            count(row.duplicates.unwrap_or_default()),
            seconds(account.back.as_secs_f64())
        )
    }
}

impl Round<'_> {
    /// Runs it.
    ///
    /// # Errors
    /// If the server does not even start, or source or sink cannot run.
    pub(super) fn run(&self) -> Result<RoundResult> {
        let disk = self.fault.needs_disk().then(|| self.mount()).transpose()?;
        let result = self.run_on(disk.as_ref());
        let unsupported = disk.map(|disk| disk.unsupported()).unwrap_or_default();
        if unsupported.is_empty() || result.as_ref().is_ok_and(RoundResult::is_good) {
            return result;
        }
        let events = result.map(|result| result.events).unwrap_or_default();
        Ok(RoundResult { fault: self.fault, end: RoundEnd::NotSupported(unsupported), events })
    }

    /// Runs it, with the mail on that disk. All processes have ended afterwards.
    fn run_on(&self, disk: Option<&Disk>) -> Result<RoundResult> {
        let run = outputs::new_run_id()?;
        let bench = self.bench();
        let mut supervisor = Supervisor::new(&bench)?;
        let sink = supervisor.start_sink(PartyCommand::sink(self.program, &bench, run, self.directory))?;
        let places = Places::in_directory(self.directory.spool(), launch::free_port()?, next_hop(&sink)?, self.program);
        let server = self.options.recipe.prepare(&places)?;
        // What is prepared has long been there.
        if let Some(disk) = disk {
            disk.with_files(|files, _| {
                files.sync_all();
                files.keep_journal();
            });
        }
        let began = Instant::now();
        let started = supervisor.start_relay(self.launch(&server, &places, 1));
        let target = started.map_err(|error| self.options.recipe.start_error(&error, &places.directory))?;
        let start = began.elapsed();
        let mut moments = Moments::new(self.options.seed, self.fault, self.number);
        let planned = moments.within(LOAD / 20, LOAD);
        let mut disturbance = Disturbance::default();
        let mut events = Vec::new();
        let source = PartyCommand::source(self.program, &bench, run, self.directory, &target);
        let followed = supervisor.follow_disturbed_source(source, |supervisor, elapsed| {
            if disturbance.at.is_some() || elapsed < planned {
                return Ok(());
            }
            disturbance.at = Some(elapsed);
            events.push(BenchFault::begins(self.fault.event()));
            let outcome = self.disturb(supervisor, disk, (&server, &places, start), &mut moments, &mut disturbance);
            events.push(BenchFault::ends("the server is back"));
            outcome
        });
        if let Some(reason) = disturbance.never_back {
            events.truncate(1);
            return Ok(RoundResult { fault: self.fault, end: RoundEnd::NeverBack(reason), events });
        }
        if let Some(complaint) = followed? {
            return Err(complaint);
        }
        let mut source = gather::read_party(self.directory, Role::Source)?;
        let drained = self.drain(&mut supervisor, &places, gather::accepted_messages(&source.record));
        if let (Some(death), true) = (supervisor.death_of(Role::Relay), disturbance.back.is_some()) {
            let reason = format!("it came back. {}", judge::death_text("server", death));
            return Ok(RoundResult { fault: self.fault, end: RoundEnd::NeverBack(reason), events });
        }
        let queue = drained?;
        // What the server complains of at its end concerns no message: all of them were accounted for.
        supervisor.stop_relay(PartyProcess::terminate)?;
        supervisor.stop_sink()?.map_or(Ok(()), Err)?;
        let sink = SinkResults::from(gather::read_party(self.directory, Role::Sink)?);
        let nothing = Ledger::default();
        let queue = match queue {
            QueueState::Empty => ServerQueue::Known(RelayInputs { queued: &nothing, given_up: 0 }),
            QueueState::Unknown => ServerQueue::Unknown,
        };
        source.record.ledger = gather::close_account(&source, Some(&sink), queue);
        let fault_s = events.first().map_or(0.0, |fault: &BenchFault| fault.event(source.record.origin_ns).at_s);
        let missing = gather::not_seen(self.directory.path(), &source, Some(&sink));
        let loss = |message: mailrun_journey::record::MissingMessage| AuditLoss {
            round: self.number,
            fault: self.fault.name().to_owned(),
            message: message.message,
            answered_s: message.answered_s,
            fault_s,
            reply: message.reply,
        };
        let losses = missing.into_iter().map(loss).collect();
        let back = disturbance.back.unwrap_or_default();
        let account = RoundAccount { source: source.record, sink: sink.record, back, losses };
        Ok(RoundResult { fault: self.fault, end: RoundEnd::Account(Box::new(account)), events })
    }

    /// Makes the fault, and brings the server back.
    fn disturb(
        &self,
        supervisor: &mut Supervisor,
        disk: Option<&Disk>,
        (server, places, start): (&ServerCommand, &Places, Duration),
        moments: &mut Moments,
        disturbance: &mut Disturbance,
    ) -> Result<()> {
        let began = Instant::now();
        self.begin(supervisor, disk, places)?;
        sleep(moments.within(Duration::ZERO, MAX_PAUSE));
        let is_abrupt = matches!(self.fault, AuditFault::Kill | AuditFault::PowerCut);
        if is_abrupt && moments.once_in(START_KILLS) {
            supervisor.spawn_relay(self.launch(server, places, 2).command)?;
            sleep(moments.within(Duration::ZERO, start));
            self.begin(supervisor, disk, places)?;
        }
        if self.fault == AuditFault::DiskFull && !supervisor.relay_has_ended()? {
            disturbance.back = Some(began.elapsed());
            return Ok(());
        }
        if let (AuditFault::ReadError, Some(disk)) = (self.fault, disk) {
            let read = moments.number(MAX_READ);
            disk.plan(Plan { cut_at: None, fault: Some((Fault::Read(Errno::IO), read)) });
            // A server may refuse to start when it cannot read its mail.
            let started = supervisor.start_relay(self.launch(server, places, 2));
            disk.plan(Plan::default());
            if started.is_ok() {
                disturbance.back = Some(began.elapsed());
                return Ok(());
            }
            supervisor.kill_relay()?;
        }
        if let Err(error) = supervisor.start_relay(self.launch(server, places, 3)) {
            let why = self.options.recipe.start_error(&error, &places.directory);
            disturbance.never_back = Some(format!("{why:#}"));
            return Err(error);
        }
        disturbance.back = Some(began.elapsed());
        Ok(())
    }

    /// Mounts the disk that forgets where the server keeps its mail.
    fn mount(&self) -> Result<Disk> {
        let state = self.directory.spool().join("state");
        let mounted = fs::create_dir_all(&state)
            .and_then(|()| Disk::mount_at(&state, DISK_BYTES, self.options.seed.wrapping_add(self.number)));
        mounted.with_context(|| format!("cannot mount a file system on {}", state.display()))
    }

    /// Begins the fault.
    fn begin(&self, supervisor: &mut Supervisor, disk: Option<&Disk>, places: &Places) -> Result<()> {
        match (self.fault, disk) {
            (AuditFault::Stop, _) => drop(supervisor.stop_relay(PartyProcess::terminate)?),
            (AuditFault::PowerCut, Some(disk)) => {
                // Listed before: a look at the entry in /proc of a process that waits for the disk may wait, too.
                let processes = leftovers::processes_in(&places.directory);
                disk.cut_now();
                // Killed before their operations are answered: nobody may hear of the end of the power.
                leftovers::send_kill(&processes);
                disk.release();
                supervisor.kill_relay()?;
                disk.restore_power();
            }
            (AuditFault::DiskFull, Some(disk)) => {
                disk.with_files(|files, _| files.set_capacity(0));
                sleep(FULL);
                disk.with_files(|files, _| files.set_capacity(DISK_BYTES));
            }
            _ => supervisor.kill_relay()?,
        }
        Ok(())
    }

    /// Waits until the server's queue is empty, or no more mail comes.
    fn drain(&self, supervisor: &mut Supervisor, places: &Places, accepted: u64) -> Result<QueueState> {
        let limit = self.options.lost_after;
        let mut arrived = supervisor.delivered();
        let mut quiet_since = Instant::now();
        let mut asked_at = Instant::now();
        let mut empty_since = None;
        while quiet_since.elapsed() < limit {
            supervisor.process_events();
            if arrived < accepted {
                supervisor.show_wait(arrived, accepted, limit.saturating_sub(quiet_since.elapsed()));
            }
            supervisor.ensure_relay_alive()?;
            if supervisor.asked() != StopRequest::Nothing {
                return Err(anyhow!("interrupted while the queue was drained"));
            }
            if supervisor.delivered() != arrived {
                (arrived, quiet_since) = (supervisor.delivered(), Instant::now());
            }
            if asked_at.elapsed() >= QUEUE_POLL {
                let is_empty = self.options.recipe.is_queue_empty(places) == Some(true);
                empty_since = empty_since.filter(|_| is_empty).or_else(|| is_empty.then(Instant::now));
                asked_at = Instant::now();
            }
            if empty_since.is_some_and(|since| since.elapsed() >= SETTLE) && quiet_since.elapsed() >= SETTLE {
                return Ok(QueueState::Empty);
            }
            let is_complete = !self.options.recipe.knows_its_queue() && arrived >= accepted;
            if is_complete && quiet_since.elapsed() >= 2 * SETTLE {
                break;
            }
        }
        Ok(QueueState::Unknown)
    }

    fn launch(&self, server: &ServerCommand, places: &Places, start: u32) -> RelayLaunch {
        let mut launch = launch::launch_server(&self.options.recipe, server.clone(), places, self.directory);
        let file = |kind: &str| self.directory.path().join(format!("server-{start}.{kind}"));
        (launch.command.stdout, launch.command.stderr) = (file("stdout"), file("stderr"));
        launch
    }

    /// Messages per second.
    fn rate(&self) -> f64 {
        self.options.messages as f64 / LOAD.as_secs_f64()
    }

    fn bench(&self) -> BenchOptions {
        let options = self.options;
        BenchOptions {
            name: "audit".to_owned(),
            target: BenchTarget::Relay(Contestant::Recipe(Box::new(options.recipe.clone()))),
            workload: Workload {
                messages: Some(options.messages),
                sessions: SESSIONS,
                arrival: Arrival::Constant,
                rate_per_s: Some(self.rate()),
                seed: options.seed,
                ..Workload::default()
            },
            source_options: PartyOptions::default()
                .with("message-size", "400..20k")
                .flag("reuse", true)
                .with("timeout", "10s")
                .with("to", "to{0..9}@example.com"),
            sink_options: PartyOptions::default().with("fault", SLOW_SINK),
            lost_after: Some(options.lost_after),
            live: options.live,
            title: Some(format!("round {} of {}, {}", self.number, options.rounds, self.fault.name())),
            ..BenchOptions::default()
        }
    }
}
