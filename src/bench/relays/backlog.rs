//! A backlog: the next hop is down while a relay takes mail, then the relay is stopped and started again, then the next
//! hop is back.
//!
//! ```text
//! nobody listens where the relay sends to                                     the sink listens there
//! relay ── source: all accepted ── SIGTERM ── relay again ── ready, all queued ── queue retry all ── all delivered
//!          memory, disk             how long        how long                          how long, each once?
//! ```
use super::contestant::{Contestant, Durability};
use super::goals::{self, Found, Goal};
use super::grounds::{Grounds, Occasion, Shape};
use super::memory::MemoryCurve;
use super::operation::{self, Status};
use super::port;
use super::room::{self, Store};
use super::starting::{Ready, Starting};
use crate::bench::course::{Arrived, Course};
use crate::bench::directory::RunDirectory;
use crate::bench::gather;
use crate::bench::parties::{Order, Process};
use crate::bench::plan::BenchOptions;
use crate::bench::tables::{Sheet, Wrong};
use crate::interrupt::Asked;
use crate::party;
use crate::report::numbers::{count, counted, memory, octets, rate, seconds};
use crate::report::table::{Align, Table};
use crate::surroundings::Sight;
use anyhow::{Context, Result, ensure};
use journey::account::Between;
use journey::record::{Ending, Record, Role, Workload};
use journey::trace::RunId;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The target for memory, and up to how many queued it holds.
const MEMORY_BYTES: u64 = 256 << 20;
const MEMORY_UP_TO: u64 = 100_000;
/// The target for opening, likewise.
const READY_S: f64 = 10.0;
const READY_UP_TO: u64 = 1_000_000;
/// Limit of the time until the relay is ready again: longer than the target, to say by how much it is missed.
const READY_WITHIN: Duration = Duration::from_secs(300);
/// Limit of the time that an order to the queue may take.
const ORDER_WITHIN: Duration = Duration::from_secs(60);

/// Options of the scenario.
#[derive(Clone, Debug)]
pub(crate) struct BacklogOptions {
    pub(crate) occasion: Occasion,
    pub(crate) durability: Durability,
    pub(crate) shape: Shape,
    pub(crate) messages: u64,
}

/// Results, as far as the scenario came.
#[derive(Clone, Debug, Default)]
struct Finds {
    accepted: Option<Accepted>,
    reopened: Option<Reopened>,
    drained: Option<Drained>,
}

#[derive(Clone, Copy, Debug)]
struct Accepted {
    messages: u64,
    took_s: f64,
    peak_bytes: u64,
    rss_bytes: u64,
    disk_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Reopened {
    stop_s: f64,
    listen_s: f64,
    ready_s: f64,
    queued: u64,
    peak_bytes: u64,
    rss_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Drained {
    took_s: f64,
    peak_bytes: u64,
    rss_bytes: u64,
    disk_bytes: u64,
    arrived: Arrived,
}

/// Runs it to its end, or until SIGINT or SIGTERM; either way there is a table, of what was found until then.
///
/// # Errors
/// If it could not run: too little room on the disk, a party that did not start.
pub(crate) fn run(options: &BacklogOptions) -> Result<Sheet> {
    let grounds = Grounds::prepare(&options.occasion)?;
    let needed_bytes = needed_bytes(options.messages, &options.shape);
    room::ensure_free(grounds.directory().path(), needed_bytes)?;
    grounds.say(&format!(
        "mailrun: the relay's spool needs up to {} of disk in {} ({} free), and is removed at the end",
        memory(needed_bytes),
        grounds.directory().path().display(),
        memory(room::free(grounds.directory().path())?)
    ));
    let load = Workload { messages: Some(options.messages), ..Workload::default() };
    let bench = grounds.bench("", &Contestant::Mailrun(options.durability), &options.shape, load);
    let outcome = Backlog::prepare(&grounds, &bench, needed_bytes).and_then(Backlog::hold);
    let (finds, record, memory) = outcome.inspect_err(|_| grounds.directory().discard())?;
    let sheet = sheet(&finds, &record, &memory, options);
    grounds.directory().write("memory.tsv", &memory.lines())?;
    let sheet = grounds.keep(sheet)?;
    let mut directory = grounds.into_directory();
    directory.keep(&record)?;
    // A message that is lost may still be there.
    if record.ledger.lost.unwrap_or_default() == 0 {
        directory.remove_spool()?;
    }
    Ok(sheet)
}

/// An upper bound of what the spool takes. A record is the message, its envelope and 100 bytes (spool-format.md); a
/// batch begins a block, and has as many messages as sessions that wait; some segments are free or just begun.
fn needed_bytes(messages: u64, shape: &Shape) -> u64 {
    const BLOCK: u64 = 4096;
    const SEGMENT: u64 = 64 << 20;
    let each = shape.message_bytes + 512 + BLOCK / u64::from(shape.sessions.clamp(1, 8));
    messages * each * 51 / 50 + 6 * SEGMENT
}

/// A backlog on its way.
struct Backlog<'g> {
    grounds: &'g Grounds,
    bench: &'g BenchOptions,
    directory: &'g RunDirectory,
    course: Course,
    /// Address that the relay forwards mail to.
    sink: SocketAddr,
    finds: Finds,
}

impl<'g> Backlog<'g> {
    fn prepare(grounds: &'g Grounds, bench: &'g BenchOptions, needed_bytes: u64) -> Result<Self> {
        let directory = grounds.directory();
        // This port has no listener until the sink starts.
        let sink = port::free()?;
        directory.write("relay.toml", &config(sink, bench, needed_bytes))?;
        let course = Course::new(bench)?;
        Ok(Self { grounds, bench, directory, course, sink, finds: Finds::default() })
    }

    /// Runs from the first message to the last, or until the user wants no more.
    fn hold(mut self) -> Result<(Finds, Record, MemoryCurve)> {
        let (run, started_at, sight) = (party::fresh_run_id()?, jiff::Timestamp::now(), Sight::now());
        let source = self.fill(run)?;
        let outcome = self.bring_back(run, gather::accepted_messages(&source.record));
        if self.goes_on() {
            outcome?;
        }
        let complaints = [self.course.stop_relay(Process::terminate)?, self.course.stop_sink()?];
        self.course.expect_all_alive()?;
        complaints.into_iter().flatten().try_for_each(Err)?;
        let arrivals = self.finds.drained.map(|_| gather::party(self.directory, Role::Sink)).transpose()?;
        let ending = (!self.goes_on()).then_some(Ending::Interrupted);
        let arrived = self.finds.drained.map_or(Arrived::NotAll, |drained| drained.arrived);
        let relay = self.bench.relay().and_then(|relay| gather::relay(relay, self.directory, arrived));
        let watched = self.course.finish();
        let memory = watched.iter().find(|seen| seen.role == Role::Relay).map(|seen| seen.memory.clone());
        let (around, between, disk_bytes, store) = (sight.until_now(), Between::Server, None, Store::default());
        let finds = gather::Finds {
            run,
            source,
            relay,
            disk_bytes,
            store,
            arrivals: arrivals.map(Into::into),
            between,
            sink: gather::Whose::Own,
            ending,
            deaths: Vec::new(),
            watched,
            around,
        };
        Ok((self.finds, gather::record(self.bench, started_at, finds), memory.unwrap_or_default()))
    }

    /// Fills the relay while its next hop is not listening.
    fn fill(&mut self, run: RunId) -> Result<gather::PartyFinds> {
        let mut starting = self.starting();
        // Its output from before the restart is kept beside that of after it.
        let file = |name: &str| self.directory.path().join(name);
        (starting.order.stdout, starting.order.stderr) = (file("relay-before.stdout"), file("relay-before.stderr"));
        let relay = self.course.start_relay(starting)?;
        let order = Order::source(self.grounds.program(), self.bench, run, self.directory, &relay);
        let complaint = self.course.follow_source(order)?;
        self.course.expect_all_alive()?;
        complaint.map_or(Ok(()), Err)?;
        let source = gather::party(self.directory, Role::Source)?;
        self.accepted(&source.record);
        Ok(source)
    }

    /// Starts the relay anew, and then its next hop.
    fn bring_back(&mut self, run: RunId, accepted: u64) -> Result<()> {
        ensure!(self.goes_on(), "interrupted before the restart of the relay");
        self.reopen()?;
        let sink = self.sink.to_string();
        self.course.start_sink(Order::sink_at(self.grounds.program(), self.bench, run, self.directory, &sink))?;
        self.drain(accepted)
    }

    fn goes_on(&self) -> bool {
        self.course.asked() == Asked::Nothing
    }

    fn starting(&self) -> Starting {
        let file = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
        let config = file(self.directory.path().join("relay.toml"));
        let record = file(self.directory.party(Role::Relay).record);
        let words = ["relay", "--config", &config, "--json", &record, "--live", "json"].map(str::to_owned);
        Starting { order: Order::relay(self.grounds.program(), words.to_vec(), self.directory), ready: Ready::Says }
    }

    fn accepted(&mut self, source: &Record) {
        let stage = source.stages.iter().find(|row| row.name == journey::Stage::Accepted);
        let usage = self.course.look_at_relay();
        let accepted = Accepted {
            messages: gather::accepted_messages(source),
            took_s: stage.map_or(0.0, |row| row.duration_s),
            peak_bytes: usage.max_rss_bytes.unwrap_or_default(),
            rss_bytes: usage.rss_bytes.unwrap_or_default(),
            disk_bytes: room::taken(&self.directory.spool()),
        };
        self.finds.accepted = Some(accepted);
        self.course.say(&format!(
            "{} accepted in {}; the relay uses {} of memory, {} of disk",
            counted(accepted.messages, "message"),
            seconds(accepted.took_s),
            memory(accepted.rss_bytes),
            memory(accepted.disk_bytes)
        ));
    }

    /// Stops the relay and starts it again on what it has kept.
    fn reopen(&mut self) -> Result<()> {
        let stopping = Instant::now();
        let complaint = self.course.stop_relay(Process::terminate)?;
        self.course.expect_all_alive()?;
        complaint.map_or(Ok(()), Err)?;
        let (stop_s, starting) = (stopping.elapsed().as_secs_f64(), Instant::now());
        self.course.start_relay(self.starting())?;
        let listen_s = starting.elapsed().as_secs_f64();
        let status = self.status()?;
        self.course.await_relay("the relay reads its spool", READY_WITHIN, || status.is_ready())?;
        let (ready_s, usage) = (starting.elapsed().as_secs_f64(), self.course.look_at_relay());
        let reopened = Reopened {
            stop_s,
            listen_s,
            ready_s,
            queued: status.queued().context("the relay does not report how many messages are queued")?,
            peak_bytes: usage.max_rss_bytes.unwrap_or_default(),
            rss_bytes: usage.rss_bytes.unwrap_or_default(),
        };
        self.finds.reopened = Some(reopened);
        let queued = counted(reopened.queued, "message");
        self.course.say(&format!("started again: ready after {}, {queued} queued", seconds(ready_s)));
        Ok(())
    }

    fn status(&self) -> Result<Status> {
        Ok(Status::at(self.course.relay_http().context("the relay did not report its HTTP address")?))
    }

    /// Orders a retry of the whole queue, now that the next hop is back, and waits until it is delivered.
    fn drain(&mut self, accepted: u64) -> Result<()> {
        let began = Instant::now();
        let mut order = operation::retry_all(self.grounds.program(), &self.directory.spool())?;
        let mut outcome = Ok(());
        self.course.await_relay("the queue is retried", ORDER_WITHIN, || {
            operation::is_done(&mut order).unwrap_or_else(|error| {
                outcome = Err(error);
                true
            })
        })?;
        outcome?;
        let arrived = self.course.await_arrivals(accepted)?;
        let took_s = began.elapsed().as_secs_f64();
        // What it does after the last delivery is to give up segments.
        self.course.rest_relay()?;
        self.course.expect_all_alive()?;
        let usage = self.course.look_at_relay();
        let drained = Drained {
            took_s,
            peak_bytes: usage.max_rss_bytes.unwrap_or_default(),
            rss_bytes: usage.rss_bytes.unwrap_or_default(),
            disk_bytes: room::taken(&self.directory.spool()),
            arrived,
        };
        self.finds.drained = Some(drained);
        Ok(())
    }
}

/// The relay's configuration. Its spool's size is beyond what is to come, so that nothing is answered 452.
fn config(sink: SocketAddr, bench: &BenchOptions, needed_bytes: u64) -> String {
    let durability = bench.relay().map_or("sync", Contestant::durability);
    let size = needed_bytes.max(10 << 30) / 4 * 5;
    format!(
        "listen = [\"127.0.0.1:0\"]\nhttp = \"127.0.0.1:0\"\nlog = \"warn\"\n\n[spool]\ndirectory = \"relay.spool\"\n\
         durability = \"{durability}\"\nmax_size = \"{size}\"\n\n[[route]]\nto = \"*\"\nsmtp = \"{sink}\"\n"
    )
}

fn sheet(finds: &Finds, record: &Record, curve: &MemoryCurve, options: &BacklogOptions) -> Sheet {
    let title = format!(
        "{}: {} {}, accepted by mailrun relay (durability {}) while its next hop is down",
        options.occasion.name,
        count(options.messages),
        options.shape.words(),
        options.durability.word()
    );
    let goals: Vec<Goal> = [opening(finds), account(finds, record)].into_iter().chain(resident(finds)).collect();
    let mut remarks = vec![format!("RSS over time: {}  (all samples: memory.tsv)", curve.bars())];
    remarks.extend(finds.accepted.map(each).into_iter().flatten());
    remarks.extend(record.verdict.reasons.iter().cloned());
    goals::sheet(&title, vec![phases(finds)], &goals, Wrong::default(), remarks)
}

/// Cost of one waiting message.
fn each(accepted: Accepted) -> Option<String> {
    let per = |bytes: u64| bytes.checked_div(accepted.messages).map(octets);
    Some(format!(
        "A queued message takes {} of memory and {} of disk, including what an empty relay uses.",
        per(accepted.rss_bytes)?,
        per(accepted.disk_bytes)?
    ))
}

fn phases(finds: &Finds) -> Table {
    let right = |title| (title, Align::Right);
    let columns = [("phase", Align::Left), right("messages"), right("took"), right("msg/s")];
    let [phase, messages, took, per_s] = columns;
    let mut table =
        Table::new([phase, messages, took, per_s, right("RSS then"), right("RSS peak"), right("disk then")]);
    let mut row = |phase: &str, messages: u64, took_s: f64, places: [Option<u64>; 3]| {
        let places = places.map(|bytes| bytes.map_or_else(|| "–".to_owned(), memory));
        let cells = [phase.to_owned(), count(messages), seconds(took_s), rate(messages as f64 / took_s)];
        table.row(cells.into_iter().chain(places).collect());
    };
    if let Some(Accepted { messages, took_s, peak_bytes, rss_bytes, disk_bytes }) = finds.accepted {
        row("accepted, next hop down", messages, took_s, [Some(rss_bytes), Some(peak_bytes), Some(disk_bytes)]);
    }
    if let Some(Reopened { stop_s, listen_s, ready_s, queued, peak_bytes, rss_bytes }) = finds.reopened {
        row("stopped by SIGTERM", queued, stop_s, [None; 3]);
        row("started again: listens", queued, listen_s, [None; 3]);
        row("started again: ready", queued, ready_s, [Some(rss_bytes), Some(peak_bytes), None]);
    }
    if let (Some(Drained { took_s, peak_bytes, rss_bytes, disk_bytes, .. }), Some(accepted)) =
        (finds.drained, finds.accepted)
    {
        row(
            "delivered, next hop back",
            accepted.messages,
            took_s,
            [Some(rss_bytes), Some(peak_bytes), Some(disk_bytes)],
        );
    }
    table
}

/// Judges whether the relay was ready in time, with all that it had.
fn opening(finds: &Finds) -> Goal {
    let wanted = format!("all queued, < {} up to {}", seconds(READY_S), count(READY_UP_TO));
    let Some((accepted, reopened)) = finds.accepted.zip(finds.reopened) else {
        return Goal::new("ready after a restart", wanted, Found::Unknown("stopped before".to_owned()));
    };
    let found = format!(
        "{} of {} queued after {}",
        count(reopened.queued),
        count(accepted.messages),
        seconds(reopened.ready_s)
    );
    let is_quick = reopened.ready_s < READY_S || accepted.messages > READY_UP_TO;
    Goal::that("ready after a restart", reopened.queued == accepted.messages && is_quick, found, wanted)
}

/// Memory at its most, in both processes; nothing of more messages than the target is for.
fn resident(finds: &Finds) -> Option<Goal> {
    let accepted = finds.accepted.filter(|accepted| accepted.messages <= MEMORY_UP_TO)?;
    let later = finds.reopened.map(|reopened| reopened.peak_bytes).max(finds.drained.map(|drained| drained.peak_bytes));
    let peak_bytes = later.unwrap_or_default().max(accepted.peak_bytes);
    let wanted = format!("< {} up to {}", memory(MEMORY_BYTES), count(MEMORY_UP_TO));
    let found = format!("{} with {} queued", memory(peak_bytes), count(accepted.messages));
    Some(Goal::that("RSS of the relay, at its peak", peak_bytes < MEMORY_BYTES, found, wanted))
}

fn account(finds: &Finds, record: &Record) -> Goal {
    let (what, wanted) = ("every message accounted for", "all delivered, lost 0");
    if finds.drained.is_none() {
        return Goal::new(what, wanted, Found::Unknown("stopped before".to_owned()));
    }
    let ledger = &record.ledger;
    let number = |field: Option<u64>| field.unwrap_or_default();
    let found = format!(
        "{} of {} delivered, lost {}, {}",
        count(number(ledger.delivered)),
        count(number(ledger.accepted)),
        count(number(ledger.lost)),
        counted(number(ledger.duplicates), "duplicate")
    );
    // A duplicate is counted and allowed (RFC 1047); a changed message is neither.
    let is_good = ledger.delivered == ledger.accepted && number(ledger.lost) + number(ledger.corrupt) == 0;
    Goal::account(what, is_good && number(ledger.accepted) > 0, found, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;
    use journey::record::Pipelining;

    fn options(messages: u64) -> BacklogOptions {
        BacklogOptions {
            occasion: Occasion {
                name: "relay-backlog".to_owned(),
                out: None,
                command: Vec::new(),
                thresholds: Vec::new(),
                live: crate::party::Live::Off,
            },
            durability: Durability::Sync,
            shape: Shape { sessions: 100, message_bytes: 65_536, reuse: None, pipelining: Pipelining::Off },
            messages,
        }
    }

    fn finds(messages: u64, ready_s: f64, peak_bytes: u64) -> Finds {
        let (rss_bytes, disk_bytes) = (peak_bytes / 2, messages * 70_000);
        Finds {
            accepted: Some(Accepted { messages, took_s: 10.0, peak_bytes, rss_bytes, disk_bytes }),
            reopened: Some(Reopened { stop_s: 0.1, listen_s: 0.5, ready_s, queued: messages, peak_bytes, rss_bytes }),
            drained: Some(Drained { took_s: 5.0, peak_bytes, rss_bytes, disk_bytes: 0, arrived: Arrived::All }),
        }
    }

    fn judged(finds: &Finds, record: &Record, messages: u64) -> Sheet {
        sheet(finds, record, &MemoryCurve::default(), &options(messages))
    }

    #[test]
    fn what_is_small_quick_and_whole_passes() {
        let good = judged(&finds(100_000, 2.0, 200 << 20), &sample::relayed(), 100_000);
        assert!(good.is_good() && good.text.matches("PASS").count() == 3, "{}", good.text);
        assert!(good.text.contains("200 MiB with 100,000 queued"), "{}", good.text);
        let fat = judged(&finds(100_000, 2.0, 256 << 20), &sample::relayed(), 100_000);
        assert!(!fat.is_good() && fat.text.matches("FAIL").count() == 1, "{}", fat.text);
        let slow = judged(&finds(1_000_000, 10.0, 400 << 20), &sample::relayed(), 1_000_000);
        assert!(!slow.is_good() && slow.text.matches("FAIL").count() == 1, "{}", slow.text);
        assert!(!slow.text.contains("at its peak"), "of a million no memory is promised: {}", slow.text);
    }

    #[test]
    fn a_queue_that_lacks_something_and_a_loss_are_missed() {
        let mut lacks = finds(1_000, 1.0, 1 << 20);
        lacks.reopened = lacks.reopened.map(|reopened| Reopened { queued: 999, ..reopened });
        let lacks = judged(&lacks, &sample::relayed(), 1_000);
        assert!(!lacks.is_good() && lacks.text.contains("999 of 1,000 queued"), "{}", lacks.text);
        let lossy = judged(&finds(1_000, 1.0, 1 << 20), &sample::lossy(), 1_000);
        assert!(!lossy.is_good() && lossy.text.contains("lost 200"), "{}", lossy.text);
        let mut doubled = sample::relayed();
        (doubled.ledger.duplicates, doubled.verdict.closed) = (Some(3), false);
        let doubled = judged(&finds(1_000, 1.0, 1 << 20), &doubled, 1_000);
        assert!(doubled.is_good() && doubled.text.contains("3 duplicates"), "{}", doubled.text);
    }

    #[test]
    fn what_was_stopped_before_is_not_judged() {
        let cut = Finds { reopened: None, drained: None, ..finds(500, 1.0, 1 << 20) };
        let cut = judged(&cut, &sample::unwatched(), 1_000);
        assert!(!cut.is_good() && cut.text.matches("INCONCLUSIVE").count() == 2, "{}", cut.text);
    }

    #[test]
    fn the_disk_that_is_needed_is_more_than_the_messages() {
        let needed = needed_bytes(100_000, &options(100_000).shape);
        assert!((6_600_000_000..7_300_000_000).contains(&needed), "{needed}");
        let bench = options(1).occasion.bench(
            "d".into(),
            &Contestant::Mailrun(Durability::Write),
            &options(1).shape,
            Workload::default(),
        );
        let config = config(SocketAddr::from(([127, 0, 0, 1], 9)), &bench, 100 << 30);
        assert!(config.contains("durability = \"write\"") && config.contains("smtp = \"127.0.0.1:9\""), "{config}");
        assert!(config.contains(&format!("max_size = \"{}\"", 125_u64 << 30)), "{config}");
    }
}
