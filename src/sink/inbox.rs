//! What a session of the sink does with mail: read its trace, count it, answer 250.
use super::faults::{Faults, Treatment};
use journey::trace::recipient_number;
use journey::{ClockId, Found, Mark, Phase, RunTally, SinkTally, Trace, TraceReader};
use net::{Answer, Handler, Parting, Peer, Service, clock};
use smtp::command::Mail;
use smtp::verdict::Verdict;
use smtp::{Path, Reply};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A tally on its way to the collector, and the way back for it.
pub(super) type Parcel = (Box<SinkTally>, SyncSender<Box<SinkTally>>);

/// What all workers share.
#[derive(Debug)]
pub(super) struct Shared {
    faults: Faults,
    /// When the first client connected.
    first_connection: OnceLock<Duration>,
    /// Messages to end after.
    most: Option<u64>,
    answered: AtomicU64,
    monotonic: ClockId,
}

impl Shared {
    pub(super) fn new(faults: Faults, most: Option<u64>) -> Self {
        Self {
            faults,
            first_connection: OnceLock::new(),
            most,
            answered: AtomicU64::new(0),
            monotonic: crate::party::monotonic_clock(),
        }
    }

    /// Whether it has had as many messages as it was to take.
    pub(super) fn is_full(&self) -> bool {
        self.most.is_some_and(|most| self.answered.load(Ordering::Relaxed) >= most)
    }
}

/// A worker's tally, handed to the collector at every tick.
pub(super) struct Till(Rc<Books>);

struct Books {
    shared: Arc<Shared>,
    tally: RefCell<Box<SinkTally>>,
    full: Sender<Parcel>,
    emptied: (SyncSender<Box<SinkTally>>, Receiver<Box<SinkTally>>),
    /// Messages begun by this worker: what chance is asked about before the trace is known.
    begun: std::cell::Cell<u64>,
}

impl Till {
    pub(super) fn new(shared: Arc<Shared>, full: Sender<Parcel>) -> Self {
        let books =
            Books { shared, tally: RefCell::default(), full, emptied: sync_channel(1), begun: std::cell::Cell::new(0) };
        Self(Rc::new(books))
    }
}

impl Service for Till {
    type Handler = Inbox;

    fn session(&self, _peer: Peer) -> Inbox {
        self.0.tally.borrow_mut().connections += 1;
        self.0.shared.first_connection.get_or_init(clock::now);
        Inbox { books: Rc::clone(&self.0), reader: TraceReader::default(), numbers: Vec::new(), corrupt: false }
    }

    fn tick(&self, _now: Duration) {
        let empty = self.0.emptied.1.try_recv().unwrap_or_default();
        let full = std::mem::replace(&mut *self.0.tally.borrow_mut(), empty);
        // Without a collector there is nobody to tell.
        let _ = self.0.full.send((full, self.0.emptied.0.clone()));
    }
}

/// One session's mail.
pub(super) struct Inbox {
    books: Rc<Books>,
    reader: TraceReader,
    /// The recipients' numbers.
    numbers: Vec<u32>,
    /// The message being read is to be changed.
    corrupt: bool,
}

/// A message that is whole.
struct Arrival {
    found: Found,
    numbers: Vec<u32>,
    bytes: u64,
}

impl Handler for Inbox {
    fn mail(&mut self, _mail: &Mail<'_>) -> Answer {
        self.numbers.clear();
        if self.books.shared.is_full() { Answer::Reply(Verdict::ShuttingDown.reply().clone()) } else { Answer::Yes }
    }

    fn recipient(&mut self, recipient: &Path<'_>) -> Answer {
        self.numbers.push(recipient_number(recipient.as_bytes()));
        Answer::Yes
    }

    fn data(&mut self) -> Answer {
        let begun = self.books.begun.get();
        self.books.begun.set(begun + 1);
        self.corrupt = self.books.shared.faults.corrupts(begun);
        Answer::Yes
    }

    fn block(&mut self, block: &[u8]) {
        if std::mem::take(&mut self.corrupt) {
            self.reader.receive(&changed(block));
        } else {
            self.reader.receive(block);
        }
    }

    fn message(&mut self, bytes: u64, now: Duration) -> Answer {
        let found = self.reader.finish();
        let since = now.saturating_sub(*self.books.shared.first_connection.get().unwrap_or(&now));
        let hold = self.books.shared.faults.hold(since);
        if hold.is_zero() {
            self.books.arrive(&found, &self.numbers, bytes, now);
            return Answer::Yes;
        }
        let arrival = Arrival { found, numbers: std::mem::take(&mut self.numbers), bytes };
        let books = Rc::clone(&self.books);
        Answer::later(async move { arrive_after(hold, &books, &arrival).await })
    }

    fn reset(&mut self, why: Option<Verdict>) {
        self.numbers.clear();
        self.reader = TraceReader::default();
        if let Some(verdict) = why {
            let reply = verdict.reply();
            let text = String::from_utf8_lossy(&reply.wire()[4..]).into_owned();
            self.books.tally.borrow_mut().errors.add(Phase::Reply, reply.code(), &text);
        }
    }

    fn disconnect(&mut self, parting: Parting) {
        if parting == Parting::Timeout {
            let reply = Verdict::Timeout.reply();
            self.books.tally.borrow_mut().errors.add(Phase::Reply, reply.code(), "a client was silent for too long");
        }
    }
}

/// Holds the answer back; only a message whose 250 is about to be written counts as delivered.
async fn arrive_after(hold: Duration, books: &Books, arrival: &Arrival) -> Option<Reply> {
    net::sleep(hold).await;
    books.arrive(&arrival.found, &arrival.numbers, arrival.bytes, clock::now());
    None
}

/// The block with the last octet before its line end changed: in a message of one block, one of the body.
fn changed(block: &[u8]) -> Vec<u8> {
    let mut changed = block.to_vec();
    let at = changed.iter().rposition(|octet| !octet.is_ascii_control()).unwrap_or(0);
    if let Some(octet) = changed.get_mut(at) {
        *octet ^= 1;
    }
    changed
}

impl Books {
    /// Counts a message, as often as it was told to.
    fn arrive(&self, found: &Found, numbers: &[u32], bytes: u64, now: Duration) {
        let answered = self.shared.answered.fetch_add(1, Ordering::Relaxed);
        let number = match found {
            Found::Intact(trace) | Found::Corrupt(Some(trace)) => trace.sequence,
            Found::Absent | Found::Corrupt(None) => answered,
        };
        let times = match self.shared.faults.treatment(number) {
            Treatment::Drop => 0,
            Treatment::Keep => 1,
            Treatment::Duplicate => 2,
        };
        for _ in 0..times {
            self.count(found, numbers, bytes, now);
        }
    }

    fn count(&self, found: &Found, numbers: &[u32], bytes: u64, now: Duration) {
        let tally = &mut **self.tally.borrow_mut();
        tally.messages += 1;
        tally.recipients += numbers.len() as u64;
        tally.bytes += bytes;
        tally.first_arrival.get_or_insert(now);
        tally.last_arrival = Some(now);
        match found {
            Found::Absent | Found::Corrupt(None) => tally.untraced += 1,
            Found::Intact(trace) => self.count_traced(tally.runs.open(trace.run), trace, numbers, bytes, now),
            Found::Corrupt(Some(trace)) => {
                let run = tally.runs.open(trace.run);
                run.corrupt += 1;
                self.count_traced(run, trace, numbers, bytes, now);
            }
        }
    }

    fn count_traced(&self, run: &mut RunTally, trace: &Trace, numbers: &[u32], bytes: u64, now: Duration) {
        run.messages += 1;
        run.recipients += numbers.len() as u64;
        run.bytes += bytes;
        run.last_delivered = Some(now);
        for number in numbers {
            match run.units.mark(trace.sequence, *number) {
                Mark::First => {}
                Mark::Again => run.duplicates += 1,
                Mark::Full => run.overflow += 1,
            }
        }
        match self.created(trace, now) {
            Some(created) => {
                run.delivered.record(now - created);
                run.first_created = Some(run.first_created.map_or(created, |first| first.min(created)));
                run.realtime |= trace.clock.is_realtime();
            }
            None => run.untimed += 1,
        }
    }

    /// When the message was created, on this host's monotonic clock; `None` where the trace's clock cannot be
    /// compared with it, or lies in the future.
    fn created(&self, trace: &Trace, now: Duration) -> Option<Duration> {
        if trace.clock == self.shared.monotonic {
            return Some(trace.created).filter(|created| *created <= now);
        }
        if !trace.clock.is_realtime() {
            return None;
        }
        let age = clock::wall().checked_sub(trace.created)?;
        now.checked_sub(age)
    }
}
