//! One round of an audit. The source sends mail, a fault strikes the server at a random moment, the
//! server starts again and empties its queue, and every message is accounted for.
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
use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Duration of the load in each round.
const LOAD: Duration = Duration::from_secs(2);
/// Number of sessions in which the source sends in parallel.
const SESSIONS: u32 = 20;
/// Fault rule of the sink. It makes the server's next hop slow, so that some mail is in the
/// server's queue whenever the fault strikes.
const SLOW_SINK: &str = "data: delay 50ms..350ms";
/// Capacity of the in-memory disk on which the server keeps its mail.
const DISK_BYTES: u64 = 1 << 30;
/// Time for which the disk stays full.
const FULL: Duration = Duration::from_millis(500);
/// A read error hits one of the first 20 reads of a start.
const MAX_READ: u64 = 20;
/// Maximum pause between a fault and the next start of the server.
const MAX_PAUSE: Duration = Duration::from_millis(100);
/// One in this many kills and power cuts is repeated while the server restarts.
const START_KILLS: u64 = 4;
/// Interval at which the server is asked whether its queue is empty.
const QUEUE_POLL: Duration = Duration::from_millis(250);
/// Mail that left the queue last may still be on its way to the sink. The round therefore ends only
/// after the queue was empty, and no mail arrived, for this long.
const SETTLE: Duration = Duration::from_millis(500);

pub(super) struct Round<'a> {
    pub(super) options: &'a AuditOptions,
    pub(super) program: &'a Path,
    pub(super) directory: &'a RunDirectory,
    pub(super) fault: AuditFault,
    /// Number of the round, counted from 1.
    pub(super) number: u64,
}

pub(super) struct RoundResult {
    pub(super) fault: AuditFault,
    pub(super) end: RoundEnd,
    pub(super) events: Vec<BenchFault>,
}

pub(super) enum RoundEnd {
    Account(Box<RoundAccount>),
    /// The server did not accept mail again after the fault, or it ended by itself before the fault
    /// or after it was back. The text says why.
    NeverBack(String),
    /// The round failed or lost mail, and the server had used these operations, which the in-memory
    /// disk does not support. The server may not be to blame.
    NotSupported(Vec<&'static str>),
}

pub(super) struct RoundAccount {
    /// Record of the source. Its ledger holds the account of the whole round.
    pub(super) source: Record,
    pub(super) sink: Option<Record>,
    /// Time from the fault until the server accepted connections again.
    pub(super) back: Duration,
    /// Number of arrivals after the server was started once more, without a fault.
    pub(super) after_restart: u64,
    pub(super) losses: Vec<AuditLoss>,
}

/// State of the server's queue at the end of a round. Mail that did not arrive is lost if the queue
/// is empty. Otherwise it may still be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    Empty,
    Unknown,
}

/// State of a round's fault.
#[derive(Default)]
struct Disturbance {
    has_begun: bool,
    /// Time from the fault until the server was back. `None` until then.
    back: Option<Duration>,
    /// Reason why the server did not accept mail again.
    never_back: Option<String>,
}

impl RoundResult {
    fn ledger(&self) -> Option<&LedgerRow> {
        match &self.end {
            RoundEnd::Account(account) => Some(&account.source.ledger),
            RoundEnd::NeverBack(_) | RoundEnd::NotSupported(_) => None,
        }
    }

    /// Reports whether every message that was answered 250 arrived unchanged.
    pub(super) fn is_good(&self) -> bool {
        let nothing = |number: Option<u64>| number.unwrap_or_default() == 0;
        self.ledger().is_some_and(|row| nothing(row.lost) && nothing(row.not_delivered) && nothing(row.corrupt))
    }

    /// Returns the round's line of progress, such as `1,000 answered 250, 3 lost, 12 duplicates,
    /// back after 0.61 s`.
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
        let late = match account.after_restart {
            0 => String::new(),
            late => format!(", {} only after another start", count(late)),
        };
        format!(
            "{} answered 250, {missing}, {} duplicates, back after {}{late}",
            count(row.accepted.unwrap_or_default()),
            count(row.duplicates.unwrap_or_default()),
            seconds(account.back.as_secs_f64())
        )
    }
}

impl Round<'_> {
    /// Runs the round.
    ///
    /// # Errors
    /// If the server does not start even before the fault, or if the source or the sink cannot run.
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

    /// Runs the round with the server's mail on `disk`, if there is one. No process is left when
    /// this method returns, so the caller may unmount the disk.
    fn run_on(&self, disk: Option<&Disk>) -> Result<RoundResult> {
        let run = outputs::new_run_id()?;
        let bench = self.bench();
        let mut supervisor = Supervisor::new(&bench)?;
        let sink = supervisor.start_sink(PartyCommand::sink(self.program, &bench, run, self.directory))?;
        let places = Places::in_directory(self.directory.spool(), launch::free_port()?, next_hop(&sink)?, self.program);
        let server = self.options.recipe.prepare(&places)?;
        // Make the prepared files durable: on a real server, they would have existed long before
        // the power cut.
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
        let mut strike = |supervisor: &mut Supervisor| {
            if disturbance.has_begun || supervisor.death_of(Role::Relay).is_some() {
                return Ok(());
            }
            disturbance.has_begun = true;
            events.push(BenchFault::begins(self.fault.event()));
            let outcome = self.disturb(supervisor, disk, (&server, &places, start), &mut moments, &mut disturbance);
            events.push(BenchFault::ends("the server is back"));
            outcome
        };
        let mut result = supervisor.follow_disturbed_source(source, |supervisor, elapsed| match elapsed < planned {
            true => Ok(()),
            false => strike(supervisor),
        });
        let is_well = matches!(result, Ok(None)) && supervisor.ensure_relay_alive().is_ok();
        // A source with few messages ends before the planned moment. In that case, let the fault
        // strike now, while the last mail may still be in the server's queue.
        if is_well && supervisor.asked() == StopRequest::Nothing {
            result = strike(&mut supervisor).map(|()| None);
        }
        if let Some(reason) = disturbance.never_back {
            events.truncate(1);
            return Ok(RoundResult { fault: self.fault, end: RoundEnd::NeverBack(reason), events });
        }
        if let (Some(death), false) = (supervisor.death_of(Role::Relay), disturbance.has_begun) {
            let reason = format!("it ended before the fault. {}", judge::death_text("server", death));
            return Ok(RoundResult { fault: self.fault, end: RoundEnd::NeverBack(reason), events });
        }
        if let Some(complaint) = result? {
            return Err(complaint);
        }
        let mut source = gather::read_party(self.directory, Role::Source)?;
        let accepted = gather::accepted_messages(&source.record);
        let emptied = self.empty_queue(&mut supervisor, (&server, &places), accepted, &mut disturbance);
        if let (Some(death), true) = (supervisor.death_of(Role::Relay), disturbance.back.is_some()) {
            disturbance.never_back = Some(format!("it came back. {}", judge::death_text("server", death)));
        }
        if let Some(reason) = disturbance.never_back {
            return Ok(RoundResult { fault: self.fault, end: RoundEnd::NeverBack(reason), events });
        }
        let (queue, after_restart) = emptied?;
        // Ignore complaints of the server about its shutdown, because all mail has been accounted
        // for by now.
        supervisor.stop_relay(PartyProcess::terminate)?;
        supervisor.stop_sink()?.map_or(Ok(()), Err)?;
        let sink = SinkResults::from(gather::read_party(self.directory, Role::Sink)?);
        let empty_ledger = Ledger::default();
        let queue = match queue {
            QueueState::Empty => ServerQueue::Known(RelayInputs { queued: &empty_ledger, given_up: 0 }),
            QueueState::Unknown => ServerQueue::Unknown,
        };
        source.record.ledger = gather::close_account(&source.record.ledger, source.units.as_ref(), Some(&sink), queue);
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
        let account = RoundAccount { source: source.record, sink: sink.record, back, after_restart, losses };
        Ok(RoundResult { fault: self.fault, end: RoundEnd::Account(Box::new(account)), events })
    }

    /// Causes the fault, and starts the server again if the fault ended it.
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
            // A server may refuse to start if it cannot read its mail. In that case, start it again
            // below, without the read error.
            let started = supervisor.start_relay(self.launch(server, places, 2));
            disk.plan(Plan::default());
            if started.is_ok() {
                disturbance.back = Some(began.elapsed());
                return Ok(());
            }
            supervisor.kill_relay()?;
        }
        self.start_again(supervisor, (server, places), 3, disturbance)?;
        disturbance.back = Some(began.elapsed());
        Ok(())
    }

    fn start_again(
        &self,
        supervisor: &mut Supervisor,
        (server, places): (&ServerCommand, &Places),
        start: u32,
        disturbance: &mut Disturbance,
    ) -> Result<()> {
        let started = supervisor.start_relay(self.launch(server, places, start));
        if let Err(error) = &started {
            let reason = self.options.recipe.start_error(error, &places.directory);
            disturbance.never_back = Some(format!("{reason:#}"));
        }
        started.map(drop)
    }

    /// Waits for the server's queue, also after a further start: a server may leave mail that it
    /// could not read until its next start. Returns the state of the queue, and how many messages
    /// arrived after that start.
    fn empty_queue(
        &self,
        supervisor: &mut Supervisor,
        (server, places): (&ServerCommand, &Places),
        accepted: u64,
        disturbance: &mut Disturbance,
    ) -> Result<(QueueState, u64)> {
        self.drain(supervisor, places, accepted)?;
        let before = supervisor.delivered();
        supervisor.stop_relay(PartyProcess::terminate)?;
        self.start_again(supervisor, (server, places), 4, disturbance)?;
        let queue = self.drain(supervisor, places, accepted)?;
        Ok((queue, supervisor.delivered() - before))
    }

    /// Mounts the in-memory disk on the directory in which the server keeps its mail.
    fn mount(&self) -> Result<Disk> {
        let state = self.directory.spool().join("state");
        let seed = self.options.seed.wrapping_add(self.number);
        let mount = || {
            fs::create_dir_all(&state)?;
            let mut disk = Disk::mount_at(&state, DISK_BYTES, seed)?;
            disk.heed_sync_calls()?;
            Ok::<_, io::Error>(disk)
        };
        mount().with_context(|| format!("cannot mount a file system on {}", state.display()))
    }

    /// Causes the fault, but does not start the server again.
    fn begin(&self, supervisor: &mut Supervisor, disk: Option<&Disk>, places: &Places) -> Result<()> {
        match (self.fault, disk) {
            (AuditFault::Stop, _) => drop(supervisor.stop_relay(PartyProcess::terminate)?),
            (AuditFault::PowerCut, Some(disk)) => {
                // List the processes before the cut: reading the `/proc` entry of a process that
                // waits for the disk might block, too.
                let processes = leftovers::processes_in(&places.directory);
                disk.cut_now();
                // Kill the processes before their disk operations return. After a real power cut,
                // no process lives on to act on the result of an operation.
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

    /// Waits until the server's queue is empty, or until no mail has arrived for `lost_after`. If
    /// the server cannot be asked about its queue, the wait also ends when all accepted mail has
    /// arrived.
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

    /// Messages that the source sends per second.
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
