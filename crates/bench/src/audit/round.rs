//! In a round of an audit, the source sends mail, and a fault strikes the server at a random moment. The server starts
//! again and empties its queue, and then every message is accounted for.
//!
//! ```text
//! start ─→ load_and_strike ─→ empty_queue ─→ account ─→ RoundEnd::Account
//!   └────────────┴─ Early::End: the server never came back, the fault did not strike, …
//! ```
use super::fault::{AuditCase, AuditFault, Moments};
use super::losses::{LogState, RoundLosses};
use super::options::AuditOptions;
use super::outage::Outages;
use super::reach;
use crate::directory::RunDirectory;
use crate::gather::{self, BenchFault, PartyResults, SinkResults};
use crate::launch::{self, RelayLaunch};
use crate::parties::{BECAME_DAEMON, PartyCommand, PartyProcess};
use crate::plan::{BenchOptions, BenchTarget};
use crate::recipe::{Places, ServerCommand, leftovers, next_hop};
use crate::relay::Relay;
use crate::remote_sink::RemoteSink;
use crate::supervisor::Supervisor;
use anyhow::{Context, Result, anyhow};
use mailrun_crashfs::{Disk, Fault, Plan, Profile};
use mailrun_measurement::account::{RelayInputs, ServerQueue};
use mailrun_measurement::judge;
use mailrun_measurement::ledger::Ledger;
use mailrun_measurement::record::{Arrival, AuditLoss, Death, LedgerRow, MissingFate, Record, Role, Workload};
use mailrun_measurement::trace::RunId;
use mailrun_process::interrupt::StopRequest;
use mailrun_process::outputs;
use mailrun_process::party_options::PartyOptions;
use mailrun_text::numbers::{count, seconds};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The source spreads many messages evenly over this time, so that the fault strikes while mail is sent.
const LOAD: Duration = Duration::from_secs(2);
const SESSIONS: u32 = 20;
/// Fault rule that makes the sink slow. The server delivers its mail to the sink, so some mail is in the server's queue
/// whenever the audit's fault strikes.
const SLOW_SINK: &str = "data: delay 50ms..350ms";
/// Fault rule that delays mail at the sink in a round with a single message. The delay is longer than in `SLOW_SINK`,
/// because the message must still be in the server's queue when the source has ended and the audit's fault strikes.
const HOLDING_SINK: &str = "data: delay 1s";
pub(super) const DISK_BYTES: u64 = 1 << 30;
/// Memory that the log of calls to the file system may take, in bytes. The limit is generous, because 400 messages of
/// 10 kB are 4 MB, and most servers write each message twice.
const CALLS_BYTES: usize = 256 << 20;
/// Time for which the fault `DiskFull` keeps the disk full. The fault begins in the first half of the load, so the
/// server still gets mail when the disk has space again.
const FULL: Duration = Duration::from_millis(500);
/// Time within which the server must run into a planned write or sync error. If the server uses the disk too rarely for
/// that, the round is void.
const ERROR_LIMIT: Duration = Duration::from_secs(2);
/// The operation that fails is chosen at random from 20 operations: the first 20 reads of a starting server, or the
/// next 20 writes or the next 20 syncs of a running server.
const MAX_OPERATION: u64 = 20;
/// Maximum pause between a fault and the next start of the server.
const MAX_PAUSE: Duration = Duration::from_millis(100);
/// Maximum time that the server gets to end by itself after a failed write or sync, before it is killed.
const MAX_AFTER_ERROR: Duration = Duration::from_millis(300);
const MAX_RECOVERY_STRIKES: u64 = 3;
/// Interval at which the server is asked whether its queue is empty.
pub(super) const QUEUE_POLL: Duration = Duration::from_millis(250);
/// The round ends when the queue has been empty, and no mail has arrived, for this long. By then, the mail that left
/// the queue last has reached the sink.
pub(super) const SETTLE: Duration = Duration::from_millis(500);
pub(super) const TRIAL_MESSAGES: u64 = 3;
/// Fault rule of the sink for the test of the recipe's queue command. The sink defers every recipient once, so that the
/// server has to queue the mail.
const TRIAL_SINK: &str = "rcpt: greylist 1s";
pub(super) const NOTHING_ACCEPTED: &str = "no message was answered 250 before the fault";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundLoad {
    /// The source sends many messages in parallel sessions.
    Full,
    /// The source sends one message. No later message makes the server call fsync, so a file name that the server does
    /// not sync itself stays unsynced.
    Quiet,
    /// The source sends a few messages, and no fault follows. This load tests the recipe's queue command.
    Trial,
    /// For `mailrun audit explain --restart`: nothing is sent, and the server delivers the mail that it already has.
    None,
}

pub(super) struct Round<'a> {
    pub(super) options: &'a AuditOptions,
    pub(super) program: &'a Path,
    pub(super) directory: &'a RunDirectory,
    pub(super) case: AuditCase,
    /// Number of the round, counted from 1, or 0 in the trial of the queue command.
    pub(super) number: u64,
    pub(super) load: RoundLoad,
    /// Set if the server can reliably say that its queue is empty. If it says so, mail that is still missing counts as
    /// lost.
    pub(super) trusts_queue: bool,
}

pub(super) struct RoundResult {
    pub(super) case: AuditCase,
    pub(super) end: RoundEnd,
    pub(super) events: Vec<BenchFault>,
}

pub(super) enum RoundEnd {
    Account(Box<RoundAccount>),
    /// The server did not accept mail again after the fault, or it ended by itself, either before the fault or after
    /// its restart. The string gives the reason.
    NeverBack(String),
    /// The round failed or lost mail, but this may not be the fault of the server. The server used the listed file
    /// operations, which the in-memory disk does not support.
    NotSupported(Vec<String>),
    /// The round says nothing about the server, for example because the fault could not lose any mail, or because a
    /// process of the server survived the fault. The string gives the reason.
    Void(String),
}

pub(super) struct RoundAccount {
    /// Record of the source, whose ledger counts what became of the round's messages, for example how many were lost.
    pub(super) source: Record,
    pub(super) sink: Option<Record>,
    /// Time from the end of the server until it accepted connections again.
    pub(super) back: Duration,
    /// Number of messages that arrived only after the server had been restarted once more, without a fault.
    pub(super) after_restart: u64,
    pub(super) is_quiet: bool,
    /// Set if the fault struck again while the server recovered.
    pub(super) is_in_recovery: bool,
    pub(super) losses: Vec<AuditLoss>,
}

/// State of the server's queue at the end of a round. Mail that did not arrive is lost if the queue
/// is empty. Otherwise it may still be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    Empty,
    Unknown,
}

/// Reason to skip the rest of a round: the round has a result already (`End`), or it cannot go on (`Failed`).
enum Early {
    End(RoundEnd),
    Failed(anyhow::Error),
}

impl Early {
    /// Ends a round in which the server has ended by itself. The result's reason begins with `when`, which says when
    /// the server ended: `it came back` (and ended after that), or `it ended before the fault`.
    fn of_death(death: &Death, when: &str) -> Self {
        // If the server's command ended and left a daemon behind, the recipe is wrong. So fail the audit instead of
        // blaming the server.
        if let Some(daemon) = death.how.strip_prefix("it ").filter(|how| how.starts_with(BECAME_DAEMON)) {
            return Self::Failed(anyhow!("the server {daemon}"));
        }
        Self::End(RoundEnd::NeverBack(format!("{when}. {}", judge::death_text("server", death))))
    }
}

impl From<anyhow::Error> for Early {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// A server that is ready to be started, and the sink to which it will deliver.
pub(super) struct Prepared {
    run: RunId,
    pub(super) places: Places,
    server: ServerCommand,
    supervisor: Supervisor,
}

/// A running server, and everything that is needed to start it again.
pub(super) struct Ground<'d> {
    pub(super) run: RunId,
    pub(super) places: Places,
    pub(super) target: String,
    server: ServerCommand,
    disk: Option<&'d Disk>,
    /// Time that the server needed for its first start. If the fault strikes again during a restart, it does so after a
    /// random time of at most 1.5 times this value.
    start: Duration,
}

#[derive(Default)]
struct Strike {
    events: Vec<BenchFault>,
    outages: Outages,
    back: Duration,
    is_in_recovery: bool,
    /// Set while the server may still exit by itself, once, without failing the round. A server that has survived a
    /// full disk or a read error may notice the error only later, and then exit.
    may_end: bool,
}

impl RoundResult {
    fn ledger(&self) -> Option<&LedgerRow> {
        match &self.end {
            RoundEnd::Account(account) => Some(&account.source.ledger),
            RoundEnd::NeverBack(_) | RoundEnd::NotSupported(_) | RoundEnd::Void(_) => None,
        }
    }

    /// Reports whether every message that was answered 250 has arrived unchanged or has bounced.
    pub(super) fn is_good(&self) -> bool {
        let nothing = |number: Option<u64>| number.unwrap_or_default() == 0;
        self.ledger().is_some_and(|row| nothing(row.lost) && nothing(row.not_delivered) && nothing(row.corrupt))
    }

    pub(super) fn is_void(&self) -> bool {
        matches!(self.end, RoundEnd::NotSupported(_) | RoundEnd::Void(_))
    }

    /// Sums up the round in one line, such as `1,000 answered 250, 3 lost, 12 duplicates, back after 0.61 s`.
    pub(super) fn line(&self) -> String {
        let (account, row) = match &self.end {
            RoundEnd::NeverBack(reason) => return format!("the server never came back: {reason}"),
            RoundEnd::NotSupported(operations) => {
                return format!("not supported by {}: {}", self.case.name(), operations.join(", "));
            }
            RoundEnd::Void(reason) => return format!("does not count: {reason}"),
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
    /// Runs the round, and writes its losses to its directory. A round that failed or lost mail ends as `NotSupported`
    /// if the server used an operation that the in-memory disk does not have.
    ///
    /// # Errors
    /// Fails if the server does not start before the fault although its mail is in an ordinary directory, if the source
    /// or the sink cannot run, or if the user interrupts the round.
    pub(super) fn run(&self) -> Result<RoundResult> {
        let disk = self.case.fault.needs_disk().then(|| self.mount()).transpose()?;
        let mut events = Vec::new();
        let end = match self.run_on(disk.as_ref(), &mut events) {
            Ok(end) | Err(Early::End(end)) => Ok(end),
            Err(Early::Failed(error)) => Err(error),
        };
        let result = end.map(|end| RoundResult { case: self.case, end, events });
        if let Ok(RoundResult { end: RoundEnd::Account(account), .. }) = &result {
            self.keep_losses(account, disk.as_ref())?;
        }
        let unsupported = disk.map(|disk| disk.take_unsupported()).unwrap_or_default();
        let says_nothing = |result: &RoundResult| result.is_good() || matches!(result.end, RoundEnd::Void(_));
        if unsupported.is_empty() || result.as_ref().is_ok_and(says_nothing) {
            return result;
        }
        let end = RoundEnd::NotSupported(unsupported.into_iter().map(str::to_owned).collect());
        let events = result.map(|result| result.events).unwrap_or_default();
        Ok(RoundResult { case: self.case, end, events })
    }

    /// Runs the round. The server keeps its mail on the in-memory disk `disk`, or in an ordinary directory if `disk` is
    /// `None`. No process is left when this method returns, so the caller may unmount the disk.
    fn run_on(&self, disk: Option<&Disk>, events: &mut Vec<BenchFault>) -> Result<RoundEnd, Early> {
        let (ground, mut supervisor) = self.start(disk).map_err(|error| match disk {
            // Blame the in-memory disk for the failed start. The same server did start in an ordinary directory, when
            // the audit tested the recipe's queue command.
            Some(_) => Early::End(RoundEnd::NotSupported(vec![format!("the server does not start there ({error:#})")])),
            None => Early::Failed(error),
        })?;
        let mut moments = Moments::new(self.options.seed, self.case.fault, self.number);
        let mut strike = Strike::default();
        let struck = self.load_and_strike(&ground, &mut supervisor, &mut moments, &mut strike);
        events.append(&mut strike.events);
        let source = struck?;
        let (queue, after_restart) = self.empty_queue(&ground, &mut supervisor, &source, &mut strike)?;
        self.account(supervisor, source, &strike, (queue, after_restart))
    }

    /// Writes the known facts about the missing messages to the round's directory, so that `mailrun audit explain` can
    /// explain the losses.
    fn keep_losses(&self, account: &RoundAccount, disk: Option<&Disk>) -> Result<()> {
        if account.losses.is_empty() {
            return Ok(());
        }
        let place = self.directory.path();
        let log = disk.and_then(|disk| disk.with_files(|files, _| files.take_calls()));
        let losses = RoundLosses {
            fault: self.case.name(),
            run_id: account.source.run_id.clone(),
            origin_ns: account.source.origin_ns,
            sent: account.source.ledger.created.unwrap_or_default(),
            losses: account.losses.clone(),
            log: LogState::write(log, DISK_BYTES, place)?,
            recipe: Some(self.options.recipe.stored()),
            ..RoundLosses::default()
        };
        losses.write(place)
    }

    pub(super) fn start<'d>(&self, disk: Option<&'d Disk>) -> Result<(Ground<'d>, Supervisor)> {
        let prepared = self.prepare(outputs::new_run_id()?)?;
        // Make the prepared files durable, because on a real server they would have existed long before the power cut.
        if let Some(disk) = disk {
            disk.with_files(|files, _| {
                files.sync_all();
                files.set_profile(self.case.file_system.unwrap_or(Profile::Ext4));
            });
            // The recipe's preparation may have used operations that this disk does not support, such as setting ACLs
            // for `cp -a`. Clear the disk's list of them, so that they do not excuse the server if it loses mail.
            disk.take_unsupported();
        }
        self.start_prepared(prepared, disk)
    }

    pub(super) fn prepare(&self, run: RunId) -> Result<Prepared> {
        let bench = self.bench();
        let mut supervisor = Supervisor::new(&bench)?;
        let sink = supervisor.start_sink(PartyCommand::sink(self.program, &bench, run, self.directory))?;
        let places = Places::in_directory(self.directory.spool(), launch::free_port()?, next_hop(&sink)?, self.program);
        let server = self.options.recipe.prepare(&places)?;
        Ok(Prepared { run, places, server, supervisor })
    }

    pub(super) fn start_prepared<'d>(
        &self,
        prepared: Prepared,
        disk: Option<&'d Disk>,
    ) -> Result<(Ground<'d>, Supervisor)> {
        let Prepared { run, places, server, mut supervisor } = prepared;
        let began = Instant::now();
        let started = supervisor.start_relay(self.launch(&server, &places, 1));
        let target = started.map_err(|error| self.options.recipe.start_error(&error, &places.directory))?;
        let start = began.elapsed();
        Ok((Ground { run, places, target, server, disk, start }, supervisor))
    }

    /// Sends the load, and lets the fault strike at a random moment. Returns the results of the source.
    fn load_and_strike(
        &self,
        ground: &Ground<'_>,
        supervisor: &mut Supervisor,
        moments: &mut Moments,
        strike: &mut Strike,
    ) -> Result<PartyResults, Early> {
        // A full disk or a disk error affects only later writes. So cause it in the first half of the load, when many
        // writes still follow.
        let last = if self.case.fault.strikes_at_rest() { LOAD } else { LOAD / 2 };
        let planned = moments.within(LOAD / 20, last);
        let source = PartyCommand::source(self.program, &self.bench(), ground.run, self.directory, &ground.target);
        let mut outcome: Option<Result<(), Early>> = None;
        let followed = supervisor.follow_disturbed_source(source, |supervisor, elapsed| {
            let is_time = self.load == RoundLoad::Full && elapsed >= planned;
            let is_at_stake = supervisor.source_progress().accepted > 0;
            let struck = if outcome.is_some() {
                self.bring_back_once(ground, supervisor, strike).map(|_| ())
            } else if is_time && is_at_stake && supervisor.death_of(Role::Relay).is_none() {
                self.strike(ground, supervisor, moments, strike)
            } else {
                return Ok(());
            };
            let has_failed = struck.is_err();
            outcome = Some(struck);
            if has_failed { Err(anyhow!("the round is over")) } else { Ok(()) }
        });
        let has_struck = outcome.transpose()?.is_some();
        if !has_struck {
            Self::expect_alive_before_fault(supervisor)?;
        }
        followed?.map_or(Ok(()), Err)?;
        let source = gather::read_party(self.directory, Role::Source)?;
        // The source may have ended before the fault, for example after a single message. In that case, cause the fault
        // now, while the last mail may still be in the server's queue.
        if !has_struck && supervisor.asked() == StopRequest::Nothing {
            self.expect_mail_at_stake(supervisor, gather::accepted_messages(&source.record))?;
            self.strike(ground, supervisor, moments, strike)?;
        }
        Ok(source)
    }

    /// Ends the round if the server ended by itself before the fault. The round then counts as if the server had not
    /// come back after the fault.
    fn expect_alive_before_fault(supervisor: &mut Supervisor) -> Result<(), Early> {
        let is_alive = supervisor.ensure_relay_alive().is_ok();
        let death = supervisor.death_of(Role::Relay).filter(|_| !is_alive);
        death.map_or(Ok(()), |death| Err(Early::of_death(death, "it ended before the fault")))
    }

    /// Ends the round as void if the fault cannot lose any mail, because no message was accepted or the only message
    /// has already arrived.
    fn expect_mail_at_stake(&self, supervisor: &Supervisor, accepted: u64) -> Result<(), Early> {
        let reason = if accepted == 0 {
            NOTHING_ACCEPTED
        } else if self.load == RoundLoad::Quiet && supervisor.settled() >= accepted {
            "the only message arrived before the fault"
        } else {
            return Ok(());
        };
        Err(Early::End(RoundEnd::Void(reason.to_owned())))
    }

    /// Causes the fault, and starts the server again if the fault ended it.
    fn strike(
        &self,
        ground: &Ground<'_>,
        supervisor: &mut Supervisor,
        moments: &mut Moments,
        strike: &mut Strike,
    ) -> Result<(), Early> {
        if self.cause_fault(ground, supervisor, moments, strike)? {
            sleep(moments.within(Duration::ZERO, MAX_PAUSE));
            // In two of every four rounds, cause the fault again while the server recovers. One of these two rounds has
            // a full load, and the other has a single message.
            if self.case.fault.strikes_recovery() && matches!(self.number % 4, 3 | 0) {
                self.strike_recovery(ground, supervisor, moments, strike)?;
            }
            strike.outages.ends();
            self.bring_back(ground, supervisor, moments, strike)?;
        }
        strike.back = strike.outages.since_last(outputs::record_time());
        strike.events.push(BenchFault::ends("the server is back"));
        Ok(())
    }

    /// Causes the round's fault. Returns true if the server has ended, so that the caller must start it again.
    fn cause_fault(
        &self,
        ground: &Ground<'_>,
        supervisor: &mut Supervisor,
        moments: &mut Moments,
        strike: &mut Strike,
    ) -> Result<bool, Early> {
        let failing = match self.case.fault {
            AuditFault::DiskFull => {
                self.fill_disk(ground.disk, strike)?;
                let has_ended = supervisor.relay_has_ended()?;
                strike.may_end = !has_ended;
                return Ok(has_ended);
            }
            AuditFault::WriteError => Some(Fault::AnyWrite(Errno::IO)),
            AuditFault::SyncError => Some(Fault::AnySync(Errno::IO)),
            AuditFault::Kill | AuditFault::Stop | AuditFault::PowerCut | AuditFault::ReadError => None,
        };
        if let (Some(fault), Some(disk)) = (failing, ground.disk) {
            self.fail_operation(disk, fault, moments, strike)?;
            // Give the server time to end by itself. Some servers do so after a disk error, because they cannot know
            // what else the disk has lost.
            sleep(moments.within(Duration::ZERO, MAX_AFTER_ERROR));
        }
        self.end_server(ground, supervisor, strike)?;
        Ok(true)
    }

    /// Starts the server one to three times, and causes the fault again during each start.
    fn strike_recovery(
        &self,
        ground: &Ground<'_>,
        supervisor: &mut Supervisor,
        moments: &mut Moments,
        strike: &mut Strike,
    ) -> Result<(), Early> {
        strike.is_in_recovery = true;
        for _ in 0..moments.number(MAX_RECOVERY_STRIKES) {
            strike.outages.ends();
            supervisor.spawn_relay(self.launch(&ground.server, &ground.places, 2).command)?;
            sleep(moments.within(Duration::ZERO, ground.start * 3 / 2));
            self.end_server(ground, supervisor, strike)?;
        }
        Ok(())
    }

    /// Starts the server after the fault. If the fault is a read error, the read fails during this start. A server that
    /// then does not start is started once more, without the error.
    fn bring_back(
        &self,
        ground: &Ground<'_>,
        supervisor: &mut Supervisor,
        moments: &mut Moments,
        strike: &mut Strike,
    ) -> Result<(), Early> {
        let is_back = match (self.case.fault, ground.disk) {
            (AuditFault::ReadError, Some(disk)) => self.start_with_read_error(ground, supervisor, disk, moments)?,
            _ => false,
        };
        strike.may_end = is_back;
        if is_back { Ok(()) } else { self.start_again(ground, supervisor, 3) }
    }

    /// If the server has ended by itself, and `may_end` allows that, starts it again and returns true. A server may
    /// notice an error of its disk late, for example when it next retries the mail in its queue.
    fn bring_back_once(
        &self,
        ground: &Ground<'_>,
        supervisor: &mut Supervisor,
        strike: &mut Strike,
    ) -> Result<bool, Early> {
        if !strike.may_end || supervisor.take_relay_death().is_none() {
            return Ok(false);
        }
        strike.may_end = false;
        strike.outages.begins();
        strike.outages.ends();
        self.start_again(ground, supervisor, 3)?;
        strike.back = strike.back.max(strike.outages.since_last(outputs::record_time()));
        Ok(true)
    }

    fn fill_disk(&self, disk: Option<&Disk>, strike: &mut Strike) -> Result<(), Early> {
        let disk = disk.context("there is no disk that could be full")?;
        let before = disk.operations();
        strike.begin(self.case.fault);
        disk.with_files(|files, _| files.set_capacity(0));
        sleep(FULL);
        disk.with_files(|files, _| files.set_capacity(DISK_BYTES));
        strike.outages.begins();
        strike.outages.ends();
        // The round is void if the server did not try to change or sync anything. It is valid even if no write failed,
        // because a server that has reserved space can write to a full disk.
        if disk.operations() == before {
            return Err(Early::End(RoundEnd::Void("the server wrote nothing while the disk was full".to_owned())));
        }
        Ok(())
    }

    /// Makes one of the server's next writes or syncs fail, as `fault` says, and waits until that has happened. If the
    /// server uses the disk too rarely for that, the round is void.
    fn fail_operation(
        &self,
        disk: &Disk,
        fault: Fault,
        moments: &mut Moments,
        strike: &mut Strike,
    ) -> Result<(), Early> {
        strike.begin(self.case.fault);
        disk.plan(Plan { cut_at: None, fault: Some((fault, moments.number(MAX_OPERATION))) });
        let limit = Instant::now() + ERROR_LIMIT;
        while disk.hit().is_none() && Instant::now() < limit {
            sleep(Duration::from_millis(1));
        }
        let is_hit = disk.hit().is_some();
        disk.plan(Plan::default());
        if !is_hit {
            let text = format!("the server did not use the disk so often that its {} came", self.case.name());
            return Err(Early::End(RoundEnd::Void(text)));
        }
        Ok(())
    }

    /// Kills or stops all processes of the server, depending on the fault, and checks that none is left.
    fn end_server(&self, ground: &Ground<'_>, supervisor: &mut Supervisor, strike: &mut Strike) -> Result<(), Early> {
        let cut = ground.disk.filter(|_| self.case.fault.cuts_power());
        if self.case.fault == AuditFault::Stop {
            strike.begin(self.case.fault);
            supervisor.stop_relay(PartyProcess::terminate)?;
            strike.outages.begins();
        } else {
            // List the server's processes before `cut_now` makes their disk operations hang. Reading the `/proc` entry
            // of a process that hangs in a disk operation might hang as well.
            let processes = leftovers::processes_in(&ground.places.directory);
            cut.iter().for_each(|disk| disk.cut_now());
            // In a real power cut, no process survives to act on the result of a disk operation. So kill the processes
            // before their disk operations return.
            leftovers::send_kill(&processes);
            // Record the beginning of the fault only now, because the server could answer clients until it was killed.
            strike.begin(self.case.fault);
            strike.outages.begins();
            cut.iter().for_each(|disk| disk.release());
            supervisor.kill_relay()?;
        }
        let survivor = reach::survivor(&ground.places);
        cut.iter().for_each(|disk| disk.restore_power());
        survivor.map_or(Ok(()), |survivor| Err(Early::End(RoundEnd::Void(survivor))))
    }

    /// Starts the server on a disk on which one read fails with an error. Returns true if the server starts
    /// nevertheless, and false if it refuses, for example because it cannot read its mail.
    fn start_with_read_error(
        &self,
        ground: &Ground<'_>,
        supervisor: &mut Supervisor,
        disk: &Disk,
        moments: &mut Moments,
    ) -> Result<bool, Early> {
        // Draw a random limit `most`, and then draw the failing read from the first `most` reads. So early reads fail
        // more often than late reads. Otherwise, the error would seldom strike servers that read little at their start.
        let most = moments.number(MAX_OPERATION);
        disk.plan(Plan { cut_at: None, fault: Some((Fault::Read(Errno::IO), moments.number(most))) });
        let started = supervisor.start_relay(self.launch(&ground.server, &ground.places, 2));
        let is_hit = disk.hit().is_some();
        disk.plan(Plan::default());
        if !is_hit {
            return Err(Early::End(RoundEnd::Void("the server read too little at its start for an error".to_owned())));
        }
        if started.is_err() {
            supervisor.kill_relay()?;
        }
        Ok(started.is_ok())
    }

    fn start_again(&self, ground: &Ground<'_>, supervisor: &mut Supervisor, start: u32) -> Result<(), Early> {
        // If the server did not exit cleanly, print how it ended, but continue the round. A server that takes too long
        // to stop may be killed or end itself by another signal. The audit judges only whether the server comes back.
        if let Some(death) = supervisor.take_relay_death() {
            let (case, how) = (self.case.name(), death.how);
            mailrun_process::tell!("mailrun: round {}, {case}: asked to stop, the server ended by: {how}", self.number);
        }
        let Err(error) = supervisor.start_relay(self.launch(&ground.server, &ground.places, start)) else {
            return Ok(());
        };
        let reason = self.options.recipe.start_error(&error, &ground.places.directory);
        Err(Early::End(RoundEnd::NeverBack(format!("{reason:#}"))))
    }

    /// Waits until the queue is empty, restarts the server, and waits again. If a server could not read some mail, it
    /// may not retry that mail before its next start. Returns the state of the queue, and the number of messages that
    /// arrived only after the restart.
    fn empty_queue(
        &self,
        ground: &Ground<'_>,
        supervisor: &mut Supervisor,
        source: &PartyResults,
        strike: &mut Strike,
    ) -> Result<(QueueState, u64), Early> {
        self.drain(ground, supervisor, Some(source), strike)?;
        let before = supervisor.settled();
        supervisor.stop_relay(PartyProcess::terminate)?;
        strike.may_end = false;
        strike.outages.begins();
        self.start_again(ground, supervisor, 4)?;
        let queue = self.drain(ground, supervisor, Some(source), strike)?;
        Ok((queue, supervisor.settled() - before))
    }

    /// Waits until the server has delivered all of its mail, or until no more mail arrives. Returns the reason if the
    /// server ends before that.
    pub(super) fn deliver_queue(&self, ground: &Ground<'_>, supervisor: &mut Supervisor) -> Result<Option<String>> {
        match self.drain(ground, supervisor, None, &mut Strike::default()) {
            Ok(_) => Ok(None),
            Err(Early::End(RoundEnd::NeverBack(reason) | RoundEnd::Void(reason))) => Ok(Some(reason)),
            Err(Early::End(_)) => Ok(Some("it ended".to_owned())),
            Err(Early::Failed(error)) => Err(error),
        }
    }

    /// Waits until the server's queue is empty, or until no mail has arrived for `lost_after`. If the server cannot be
    /// asked about its queue, the wait also ends when all mail that was accepted from `source` has arrived.
    fn drain(
        &self,
        ground: &Ground<'_>,
        supervisor: &mut Supervisor,
        source: Option<&PartyResults>,
        strike: &mut Strike,
    ) -> Result<QueueState, Early> {
        let limit = self.options.lost_after;
        let accepted = source.and_then(|source| source.units.as_ref());
        let address = supervisor.http_of(Role::Sink).filter(|_| !self.trusts_queue);
        // If the sink does not answer, go on without it. The wait then lasts until its time limit.
        let sink = address.and_then(|address| RemoteSink::connect(address).ok());
        let mut wait = QueueWait::new(supervisor.delivered());
        while !wait.is_over(limit) {
            supervisor.process_events();
            if let Some(accepted) = accepted.map(Ledger::count).filter(|accepted| wait.settled < *accepted) {
                let rest = limit.saturating_sub(wait.quiet_since.elapsed());
                supervisor.show_wait(wait.settled, accepted, rest);
            }
            if self.expect_running(ground, supervisor, strike)? {
                // The server was started again. No mail could arrive in the meantime, so begin the wait again.
                wait = QueueWait::new(supervisor.delivered());
            }
            wait.note_arrivals(supervisor.delivered(), supervisor.settled());
            let settled = wait.settled;
            // Ask the sink which mail it has. The number `settled` is not enough, because it may include mail whose 250
            // never reached the source.
            let has_all = || match (&sink, accepted) {
                (Some(sink), Some(accepted)) if settled >= accepted.count() => sink.has_all(ground.run, accepted),
                _ => Ok(false),
            };
            wait.ask(|| match self.trusts_queue {
                true => self.options.recipe.is_queue_empty(&ground.places) == Some(true),
                false => has_all().unwrap_or(false),
            });
            if wait.is_empty() {
                return Ok(if self.trusts_queue { QueueState::Empty } else { QueueState::Unknown });
            }
        }
        Ok(QueueState::Unknown)
    }

    /// Ends the round if the server has died since it came back, or if the user interrupts the audit. If the server has
    /// died but `strike.may_end` allows that, starts it again and returns true instead.
    fn expect_running(
        &self,
        ground: &Ground<'_>,
        supervisor: &mut Supervisor,
        strike: &mut Strike,
    ) -> Result<bool, Early> {
        let alive = supervisor.ensure_relay_alive();
        if self.bring_back_once(ground, supervisor, strike)? {
            return Ok(true);
        }
        if let Some(death) = supervisor.death_of(Role::Relay) {
            return Err(Early::of_death(death, "it came back"));
        }
        alive?;
        if supervisor.asked() != StopRequest::Nothing {
            return Err(Early::Failed(anyhow!("interrupted while the queue was drained")));
        }
        Ok(false)
    }

    /// Stops the server and the sink, and determines what became of every message.
    fn account(
        &self,
        mut supervisor: Supervisor,
        mut source: PartyResults,
        strike: &Strike,
        (queue, after_restart): (QueueState, u64),
    ) -> Result<RoundEnd, Early> {
        // Ignore how the server exits, because the round has already stopped waiting for mail from the server.
        supervisor.stop_relay(PartyProcess::terminate)?;
        supervisor.stop_sink()?.map_or(Ok(()), Err)?;
        let mut sink = SinkResults::from(gather::read_party(self.directory, Role::Sink)?);
        let empty_ledger = Ledger::default();
        let queue = match queue {
            QueueState::Empty => ServerQueue::Known(RelayInputs { queued: &empty_ledger, given_up: 0 }),
            QueueState::Unknown => ServerQueue::Unknown,
        };
        source.record.ledger = gather::close_account(&mut source.record, source.units.as_ref(), Some(&mut sink), queue);
        let origin = Duration::from_nanos(source.record.origin_ns);
        let missing = gather::not_seen(&mut gather::known_replies(self.directory.path()), &source, Some(&sink));
        let loss = |message: mailrun_measurement::record::MissingMessage| {
            let (answered_s, fault_s) = strike.outages.times(origin, message.answered_s);
            let fault = self.case.name();
            let (message, reply) = (message.message, message.reply);
            AuditLoss { round: self.number, fault, message, answered_s, fault_s, reply }
        };
        // Leave out bounced messages. They are not lost, because the server has notified their sender.
        let losses = missing.into_iter().filter(|message| message.fate == MissingFate::NotSeen).map(loss).collect();
        Ok(RoundEnd::Account(Box::new(RoundAccount {
            source: source.record,
            sink: sink.record,
            back: strike.back,
            after_restart,
            is_quiet: self.load == RoundLoad::Quiet,
            is_in_recovery: strike.is_in_recovery,
            losses,
        })))
    }

    /// Mounts the in-memory disk on the directory in which the server keeps its mail.
    fn mount(&self) -> Result<Disk> {
        let state = self.directory.spool().join("state");
        let seed = self.options.seed.wrapping_add(self.number);
        let mount = || {
            fs::create_dir_all(&state)?;
            let mut disk = Disk::mount_at(&state, DISK_BYTES, seed)?;
            disk.heed_sync_calls()?;
            if self.case.fault.cuts_power() {
                disk.record_calls(CALLS_BYTES);
            }
            Ok::<_, io::Error>(disk)
        };
        mount().with_context(|| format!("cannot mount a file system on {}", state.display()))
    }

    fn launch(&self, server: &ServerCommand, places: &Places, start: u32) -> RelayLaunch {
        let mut launch = launch::launch_server(&self.options.recipe, server.clone(), places, self.directory);
        let file = |kind: &str| self.directory.path().join(format!("server-{start}.{kind}"));
        (launch.command.stdout, launch.command.stderr) = (file("stdout"), file("stderr"));
        launch
    }

    pub(super) fn bench(&self) -> BenchOptions {
        let options = self.options;
        let (messages, sessions, sink) = match self.load {
            RoundLoad::Full => (options.messages, SESSIONS, Some(SLOW_SINK)),
            RoundLoad::Quiet => (1, 1, Some(HOLDING_SINK)),
            RoundLoad::Trial => (TRIAL_MESSAGES, 1, Some(TRIAL_SINK)),
            RoundLoad::None => (0, 1, None),
        };
        // Use the rate of a full load even for a few messages, so that the source sends them almost at once.
        let rate = options.messages.max(messages) as f64 / LOAD.as_secs_f64();
        let title = match self.load {
            RoundLoad::Trial => "the queue command".to_owned(),
            _ => format!("round {}, {}", self.number, self.case.name()),
        };
        BenchOptions {
            name: "audit".to_owned(),
            target: BenchTarget::Relay(Relay::Recipe(Box::new(options.recipe.clone()))),
            workload: Workload {
                messages: Some(messages),
                sessions,
                arrival: Arrival::Constant,
                rate_per_s: Some(rate),
                seed: options.seed,
                ..Workload::default()
            },
            source_options: PartyOptions::default()
                .with("message-size", "400..20k")
                .flag("reuse", true)
                .with("timeout", "10s")
                .with("to", "to{0..9}@example.com"),
            sink_options: PartyOptions::default().with_some("fault", sink),
            lost_after: Some(options.lost_after),
            live: options.live,
            title: Some(title),
            ..BenchOptions::default()
        }
    }
}

/// If only copies of earlier messages arrive for this long, the round stops waiting. Otherwise an audit would never end
/// if the server delivers a damaged message again and again, as Courier does after some power cuts.
const COPIES_LIMIT: Duration = Duration::from_secs(60);

struct QueueWait {
    /// Number of messages that have arrived, counting every copy of a message.
    arrived: u64,
    quiet_since: Instant,
    /// Number of messages that have arrived or bounced, counting each message only once.
    settled: u64,
    /// Time of the last arrival that was not a copy.
    only_copies_since: Instant,
    asked_at: Instant,
    empty_since: Option<Instant>,
}

impl QueueWait {
    fn new(arrived: u64) -> Self {
        let now = Instant::now();
        Self { arrived, quiet_since: now, settled: 0, only_copies_since: now, asked_at: now, empty_since: None }
    }

    fn note_arrivals(&mut self, arrived: u64, settled: u64) {
        if arrived != self.arrived {
            (self.arrived, self.quiet_since) = (arrived, Instant::now());
        }
        if settled != self.settled {
            (self.settled, self.only_copies_since) = (settled, Instant::now());
        }
    }

    /// Reports whether to stop waiting, because no mail arrived for `limit`, or only duplicates for [`COPIES_LIMIT`].
    fn is_over(&self, limit: Duration) -> bool {
        self.quiet_since.elapsed() >= limit || self.only_copies_since.elapsed() >= COPIES_LIMIT.max(limit)
    }

    /// Calls `is_empty` to find out whether the server's queue is empty, unless the last call was less than
    /// `QUEUE_POLL` ago.
    fn ask(&mut self, is_empty: impl FnOnce() -> bool) {
        if self.asked_at.elapsed() >= QUEUE_POLL {
            let is_empty = is_empty();
            self.empty_since = self.empty_since.filter(|_| is_empty).or_else(|| is_empty.then(Instant::now));
            self.asked_at = Instant::now();
        }
    }

    /// Reports whether the queue has been empty, and no mail has arrived, for at least `SETTLE`. By then, the mail that
    /// left the queue last has reached the sink.
    fn is_empty(&self) -> bool {
        self.empty_since.is_some_and(|since| since.elapsed() >= SETTLE) && self.quiet_since.elapsed() >= SETTLE
    }
}

impl Strike {
    /// Records when the fault began. If the fault strikes again during the recovery, keeps the first time.
    fn begin(&mut self, fault: AuditFault) {
        if self.events.is_empty() {
            self.events.push(BenchFault::begins(fault.event()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_without_arrivals_and_after_a_minute_of_copies() {
        let ago = |seconds: u64| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        // `quiet` is the number of seconds since the last arrival. `only_copies` is the number of seconds since the
        // last arrival that was not a copy.
        for (quiet, only_copies, is_over) in [(0, 0, false), (0, 50, false), (0, 70, true), (11, 11, true)] {
            let wait = QueueWait { quiet_since: ago(quiet), only_copies_since: ago(only_copies), ..QueueWait::new(9) };
            assert_eq!(wait.is_over(Duration::from_secs(10)), is_over, "{quiet} {only_copies}");
        }
        let mut wait = QueueWait { only_copies_since: ago(70), ..QueueWait::new(9) };
        wait.note_arrivals(10, 0);
        assert!(wait.is_over(Duration::from_secs(10)), "the arrival was a copy");
        wait.note_arrivals(11, 1);
        assert!(!wait.is_over(Duration::from_secs(10)));
    }
}
