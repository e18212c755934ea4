//! The life of a spool: relays start on it one after another, accept and deliver mail, and end. A last relay delivers
//! the rest.
//!
//! These promises must hold. Every message that got a 250 arrives as it was sent. After a failed write or sync, no
//! message gets a 250 any more, `/health` reports it, and the relay ends. A message arrives twice only if it was
//! delivered shortly before a relay ended, or after the last moment at which everything was synced.
use crate::account::Account;
use crate::load::{self, Answers};
use crate::next_hop::{Delivery, StubNextHop, Unit};
use crate::relay::{Beginning, Home, LIMIT, Relay, Remainder};
use mailrun_crashfs::{Disk, Fault, Plan};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Clients that send at the same time.
const CLIENTS: usize = 3;

/// Time after which the spool has recorded a delivery: usually about a second, but more on a slow machine.
const NOTES_LIMIT: Duration = Duration::from_secs(3);

/// The power is cut at an operation of the disk up to this number, which is reached in about half a second.
const LAST_OPERATION: f64 = 600.0;

#[derive(Clone, Copy, Debug)]
enum Ending {
    /// The power is cut at this operation, or at the latest after this time.
    Cut { at: u64, after: Duration },
    /// The relay is killed. Everything that it wrote stays in the page cache.
    Kill { after: Duration },
    /// The relay is asked to stop.
    Stop { after: Duration },
    /// The disk fails at this operation. Afterwards the power may be cut too.
    Fault { fault: Fault, turn: u64, is_cut: bool },
}

/// Faults to choose from. A fault that is listed twice is chosen twice as often.
const FAULTS: [Fault; 16] = [
    Fault::Write(Errno::IO),
    Fault::Write(Errno::NOSPC),
    Fault::Write(Errno::DQUOT),
    Fault::Write(Errno::ROFS),
    Fault::Write(Errno::FBIG),
    Fault::ShortWrite,
    Fault::ShortWrite,
    Fault::Sync(Errno::IO),
    Fault::Sync(Errno::NOSPC),
    Fault::Sync(Errno::DQUOT),
    Fault::DirectorySync(Errno::IO),
    Fault::Making(Errno::NOSPC),
    Fault::Making(Errno::DQUOT),
    Fault::Making(Errno::IO),
    Fault::Read(Errno::IO),
    Fault::Read(Errno::IO),
];

impl Ending {
    fn choose(chance: &mut StdRng) -> Self {
        let after = Duration::from_millis(chance.random_range(0..300));
        match chance.random_range(0..100) {
            0..10 => Self::Kill { after },
            10..14 => Self::Stop { after },
            14..30 => {
                let fault = *FAULTS.choose(chance).expect("there are faults");
                let is_cut = chance.random();
                Self::Fault { fault, turn: turn(fault, chance), is_cut }
            }
            // Cut the power only after a time that is long enough for deliveries to be recorded and synced.
            30..32 => Self::Cut { at: u64::MAX, after: NOTES_LIMIT + Duration::from_secs(1) },
            _ => {
                // Many power cuts should hit the relay's start, which consists of few operations. So choose the number
                // of the operation on a logarithmic scale: half of the cuts then hit one of the first 24 operations.
                let at = LAST_OPERATION.powf(chance.random()) as u64;
                Self::Cut { at, after: Duration::from_secs(1) }
            }
        }
    }

    fn plan(self) -> Plan {
        match self {
            Self::Cut { at, .. } => Plan { cut_at: Some(at), fault: None },
            Self::Fault { fault, turn, .. } => Plan { cut_at: None, fault: Some((fault, turn)) },
            Self::Kill { .. } | Self::Stop { .. } => Plan::default(),
        }
    }
}

/// Chooses the operation that fails. Returns its number among the operations that this fault can hit.
fn turn(fault: Fault, chance: &mut StdRng) -> u64 {
    match fault {
        Fault::Write(_)
        | Fault::ShortWrite
        | Fault::Sync(_)
        | Fault::AnyWrite(_)
        | Fault::AnySync(_)
        | Fault::Read(_) => chance.random_range(1..40),
        Fault::Making(_) => chance.random_range(1..8),
        Fault::DirectorySync(_) => chance.random_range(1..4),
    }
}

/// Returns true if the relay must answer no further message with 250 after this fault.
fn is_final(fault: Fault) -> bool {
    matches!(fault, Fault::Write(_) | Fault::Sync(_) | Fault::AnyWrite(_) | Fault::AnySync(_))
}

struct Life {
    disk: Disk,
    home: Home,
    next_hop: StubNextHop,
    answers: Answers,
    /// For each relay, by its number: the time up to which the spool's records survived the relay's end. It is earlier
    /// than the end if the power was cut or the disk failed.
    known_until: Vec<Instant>,
    account: Account,
    lost: Vec<Unit>,
    /// A log of events, to explain a broken promise.
    story: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Course {
    pub(crate) seed: u64,
    pub(crate) relays: u64,
    /// Value of the configuration's key `spool.durability`.
    pub(crate) durability: &'static str,
    /// Set if each relay ends by a power cut, and never by a kill, a stop or another fault.
    pub(crate) has_only_cuts: bool,
}

/// Runs one life of a spool. An error describes the broken promise and the events before it.
pub(crate) fn live(course: &Course) -> Result<Account, String> {
    let mut chance = StdRng::seed_from_u64(course.seed);
    let mut life = Life::new(course, &mut chance);
    for relay in 0..course.relays {
        let ending = match Ending::choose(&mut chance) {
            other if course.has_only_cuts && !matches!(other, Ending::Cut { .. }) => {
                Ending::Cut { at: u64::MAX, after: Duration::from_millis(200) }
            }
            ending => ending,
        };
        let is_held = chance.random_ratio(2, 5);
        life.next_hop.hold(is_held);
        life.story.push(format!("{relay}: {ending:?}{}", if is_held { ", the next hop is held" } else { "" }));
        life.one_relay(ending).map_err(|why| life.tell(course, &why))?;
    }
    life.drain(Plan::default()).and_then(|()| life.check_duplicates()).map_err(|why| life.tell(course, &why))?;
    Ok(life.account)
}

/// Checks that all messages are delivered although a restarted relay's first read of the spool, after it has begun to
/// listen, fails.
pub(crate) fn live_with_one_failed_read(seed: u64) -> Result<Account, String> {
    let read = Plan { cut_at: None, fault: Some((Fault::Read(Errno::IO), 1)) };
    live_through(seed, &[Ending::Stop { after: Duration::from_millis(500) }], read)
}

/// Checks that a power cut loses nothing after an earlier relay failed to sync a directory. `turn` is the number of the
/// directory sync that fails, counted from 1.
pub(crate) fn live_after_a_failed_directory_sync(seed: u64, turn: u64) -> Result<Account, String> {
    let failed = Ending::Fault { fault: Fault::DirectorySync(Errno::IO), turn, is_cut: false };
    let cut = Ending::Cut { at: u64::MAX, after: Duration::from_millis(300) };
    live_through(seed, &[failed, cut], Plan::default())
}

/// Runs relays that end in these ways while the next hop accepts nothing, and then a last relay on a disk with this
/// plan of faults.
fn live_through(seed: u64, endings: &[Ending], last: Plan) -> Result<Account, String> {
    let course = Course { seed, relays: endings.len() as u64, durability: "sync", has_only_cuts: false };
    let mut life = Life::new(&course, &mut StdRng::seed_from_u64(seed));
    life.next_hop.hold(true);
    let mut lived = endings.iter().try_for_each(|ending| life.one_relay(*ending)).and_then(|()| life.drain(last));
    if last.fault.is_some() && life.disk.hit().is_none() {
        lived = lived.and(Err("the fault did not come about".to_owned()));
    }
    lived.map_err(|why| life.tell(&course, &why))?;
    Ok(life.account)
}

impl Life {
    fn new(course: &Course, chance: &mut StdRng) -> Self {
        let size = ["2M", "8M", "16M"].choose(chance).expect("there are sizes");
        // Give one disk in five only 12 MiB, which may be less than the spool wants to use.
        let capacity = if chance.random_ratio(1, 5) { 12 << 20 } else { 256 << 20 };
        let disk = Disk::mount(capacity, chance.random()).expect("a file system can be mounted");
        let next_hop = StubNextHop::start();
        let text = format!(
            "spool.durability = {:?}\nspool.max_size = {size:?}\nspool.max_memory = \"256K\"\nlimits.max_message_size = \"690K\"\n\
             limits.max_incoming_size = \"8M\"\ndelivery.per_destination = 6\nretry.first = \"200ms\"\n\
             retry.longest = \"500ms\"\n[[route]]\nto = \"*\"\nsmtp = \"{}\"\n",
            course.durability, next_hop.address
        );
        let home = Home::new(&disk, &text);
        Self {
            disk,
            home,
            next_hop,
            answers: Answers::default(),
            known_until: Vec::new(),
            account: Account::default(),
            lost: Vec::new(),
            story: vec![format!("a spool of {size} on a disk of {capacity} bytes")],
        }
    }

    fn note(&mut self, what: &str) {
        if let Some(last) = self.story.last_mut() {
            last.push_str(", ");
            last.push_str(what);
        }
    }

    fn one_relay(&mut self, ending: Ending) -> Result<(), String> {
        self.disk.plan(ending.plan());
        let began = Instant::now();
        let answered = self.answers.messages();
        let mut relay = self.home.start();
        match relay.begin(&self.disk)? {
            Beginning::Listening(smtp) => {
                let ready = began.elapsed().as_millis();
                self.at_work(&mut relay, smtp, ending)?;
                let answered = self.answers.messages() - answered;
                self.note(&format!("ready after {ready} ms, {answered} answered, {} ms", began.elapsed().as_millis()));
            }
            Beginning::Cut => self.account.cuts_at_start += 1,
            Beginning::Ended(_) if self.disk.hit().is_some() => self.note("it did not begin on a disk that fails"),
            Beginning::Ended(code) => return Err(format!("it does not begin: exit status {code:?}")),
        }
        self.end(&mut relay, ending)
    }

    /// Sends mail until the relay's planned end is due, and then ends the relay.
    fn at_work(&mut self, relay: &mut Relay, smtp: SocketAddr, ending: Ending) -> Result<(), String> {
        let is_over = AtomicBool::new(false);
        let disk = &self.disk;
        let answers = &self.answers;
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| load::send(smtp, answers, &is_over));
            }
            let worked = match ending {
                Ending::Cut { after, .. } => {
                    disk.wait_for_cut(after);
                    disk.cut_now();
                    Ok(())
                }
                Ending::Kill { after } | Ending::Stop { after } => {
                    thread::sleep(after);
                    Ok(())
                }
                Ending::Fault { fault, .. } => await_fault(disk, relay, answers, fault),
            };
            is_over.store(true, Ordering::Relaxed);
            // End the relay, so that clients which wait for a reply end as well.
            match ending {
                Ending::Stop { .. } => worked.and(stop(relay)),
                _ => worked.and(relay.kill(disk)),
            }
        })
    }

    fn end(&mut self, relay: &mut Relay, ending: Ending) -> Result<(), String> {
        let at = Instant::now();
        let hit = self.disk.hit();
        relay.kill(&self.disk)?;
        let clean_at = self.disk.clean_at();
        let is_cut = matches!(ending, Ending::Cut { .. } | Ending::Fault { is_cut: true, .. });
        let known_until = if is_cut { clean_at } else { at };
        self.known_until.push(hit.map_or(known_until, |hit| known_until.min(hit.at)));
        match ending {
            Ending::Kill { .. } => self.account.kills += 1,
            Ending::Stop { .. } => self.account.stops += 1,
            Ending::Cut { .. } | Ending::Fault { .. } => {}
        }
        if let Some(hit) = hit {
            self.account.count_fault(hit.fault);
        }
        if is_cut {
            self.disk.cut_now();
            self.disk.restore_power();
            self.account.cuts += 1;
        }
        Ok(())
    }

    /// Starts a last relay, which must deliver everything that got a 250. `plan` has the disk's faults from the moment
    /// when the relay listens.
    fn drain(&mut self, plan: Plan) -> Result<(), String> {
        self.story.push("the last one".to_owned());
        let (mut relay, _) = self.home.start_listening(&self.disk)?;
        self.disk.plan(plan);
        self.next_hop.hold(false);
        let units = self.answers.units();
        let Remainder { missing, held } = relay.await_delivery(|| self.next_hop.missing(units.iter()))?;
        self.account.messages += self.answers.messages();
        self.account.refused += self.answers.refused();
        self.account.answered += units.len() as u64;
        self.account.lost += missing.len() as u64;
        self.account.delivered += (units.len() - missing.len()) as u64;
        stop(&mut relay)?;
        match self.next_hop.wrong().first() {
            Some(wrong) => Err(wrong.clone()),
            None if missing.is_empty() => Ok(()),
            None => {
                self.lost = missing;
                let fate = if held == 0 { "lost".to_owned() } else { format!("lost or held ({held} entries)") };
                Err(format!("{} of {} are {fate}: {:?}", self.lost.len(), units.len(), first(&self.lost)))
            }
        }
    }

    /// Counts duplicates. Each duplicate must have one of the reasons at the top of this file.
    fn check_duplicates(&mut self) -> Result<(), String> {
        for (unit, mut deliveries) in self.next_hop.came() {
            self.account.duplicates += deliveries.len() as u64 - 1;
            deliveries.sort();
            for pair in deliveries.windows(2) {
                if !self.may_come_twice(pair[0], pair[1]) {
                    let known = &self.known_until;
                    return Err(format!("{unit:?} came twice without need: {pair:?}, known until {known:?}"));
                }
            }
        }
        Ok(())
    }

    fn may_come_twice(&self, first: Delivery, second: Delivery) -> bool {
        let ends = &self.known_until[first.relay..second.relay];
        ends.iter().any(|known_until| first.at + NOTES_LIMIT > *known_until)
    }

    /// Describes a life that broke a promise.
    fn tell(&self, course: &Course, why: &str) -> String {
        let story = self.story.join("\n  ");
        let logs = self.home.logs();
        let mut told = format!("{why}\n{course:?}\n  {story}\n");
        for (number, _) in first(&self.lost) {
            let id = self.answers.id(*number).unwrap_or_default();
            told.push_str(&format!("message {number} is {id}:\n"));
            for (relay, line) in
                logs.iter().enumerate().flat_map(|(relay, log)| log.lines().map(move |line| (relay, line)))
            {
                if line.contains(&id) {
                    told.push_str(&format!("  r{relay}: {line}\n"));
                }
            }
        }
        let last = logs.last().map_or("", String::as_str);
        let others: Vec<&str> = last.lines().filter(|line| !line.contains("delivery id=")).take(30).collect();
        told + "the last relay:\n  " + &others.join("\n  ")
    }
}

fn first(missing: &[Unit]) -> &[Unit] {
    &missing[..missing.len().min(10)]
}

fn stop(relay: &mut Relay) -> Result<(), String> {
    relay.terminate();
    match relay.wait(LIMIT) {
        Some(Some(0)) => Ok(()),
        Some(code) => Err(format!("it was asked to stop and ended with {code:?}")),
        None => Err("it was asked to stop and does not".to_owned()),
    }
}

/// Waits for the fault, and checks the relay's reaction.
fn await_fault(disk: &Disk, relay: &mut Relay, answers: &Answers, fault: Fault) -> Result<(), String> {
    let limit = Instant::now() + Duration::from_secs(1);
    let hit = loop {
        match disk.hit() {
            Some(hit) => break hit,
            // Give up after a second, because there may not be enough operations to reach the fault.
            None if Instant::now() > limit => return Ok(()),
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    if !is_final(fault) {
        thread::sleep(Duration::from_millis(150));
        return Ok(());
    }
    let ended = loop {
        match relay.wait(Duration::ZERO) {
            Some(code) => break Some(code),
            None if relay.status("/health") == Some(503) => break None,
            None if hit.at.elapsed() > LIMIT => return Err(format!("{fault}: /health does not fail")),
            None => thread::sleep(Duration::from_millis(2)),
        }
    };
    let code = ended.or_else(|| relay.wait(LIMIT)).ok_or(format!("{fault}: it does not end"))?;
    if code != Some(2) {
        return Err(format!("{fault}: it ended with {code:?}"));
    }
    match answers.begun_after(hit.at) {
        Some(number) => Err(format!("{fault}: message {number} was sent afterwards and answered 250")),
        None => Ok(()),
    }
}
