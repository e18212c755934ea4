//! A naive model of the messages that a spool must hold according to its receipts, and the
//! comparison after a crash.
use mailrun_spool::faulty::FaultyDisk;
use mailrun_spool::{Backlog, Error, Id, NewMessage, Options, Receipt, RecoveredMessage, Spool, Stored};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub(crate) enum SpoolOperation {
    /// Stores `messages` messages, each with a body of `bytes` bytes, at once.
    Store { messages: usize, bytes: usize },
    /// Adds a note to one of the messages that are not done.
    Note(prop::sample::Index),
    /// Marks one of the messages as done.
    Done(prop::sample::Index),
    /// Marks all messages but one as done.
    DoneButOne,
}

pub(crate) fn steps(limit: usize) -> impl Strategy<Value = Vec<SpoolOperation>> {
    let bytes = prop_oneof![3 => 0..500usize, 3 => 3000..9000usize, 1 => 20_000..40_000usize, 1 => 60_000..90_000usize];
    let step = prop_oneof![
        5 => (1..6usize, bytes).prop_map(|(messages, bytes)| SpoolOperation::Store { messages, bytes }),
        2 => any::<prop::sample::Index>().prop_map(SpoolOperation::Note),
        3 => any::<prop::sample::Index>().prop_map(SpoolOperation::Done),
        1 => Just(SpoolOperation::DoneButOne),
    ];
    prop::collection::vec(step, 1..limit)
}

/// Waits until the condition holds. This may take about a second, for example until the spool writes waiting notes.
#[track_caller]
pub(crate) fn wait_until(mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < limit, "it does not come about");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[derive(Clone, Debug, Default)]
struct KnownMessage {
    notes: Vec<Vec<u8>>,
    /// Number of notes that must survive, because a message stored after them has synced them.
    sure_notes: usize,
    is_done: bool,
    is_surely_done: bool,
}

#[derive(Clone, Default)]
pub(crate) struct SpoolModel {
    known: BTreeMap<Id, KnownMessage>,
    /// Highest id of any message that was stored, including messages that are done.
    highest: u64,
    drafts: u64,
}

pub(crate) fn small() -> Options {
    Options { segment_bytes: 64 << 10, max_bytes: 12 * (64 << 10), ..Options::default() }
}

pub(crate) fn open(disk: &FaultyDisk, options: Options) -> Result<(Spool, Backlog), Error> {
    Spool::open(Arc::new(disk.clone()), options)
}

/// Makes a message whose content follows from its number, so that it can be checked later.
pub(crate) fn draft(number: u64, bytes: usize) -> NewMessage {
    let envelope = format!("draft {number} of {bytes}").into_bytes();
    NewMessage { received_ns: number, envelope, body: body(number, bytes) }
}

fn body(number: u64, bytes: usize) -> Arc<[u8]> {
    let line = format!("This is a line of message {number}, which has no other like it.\r\n").into_bytes();
    let mut body = line.repeat(bytes / line.len() + 1);
    body.truncate(bytes);
    body.into()
}

/// Asserts that a message is complete and unchanged, whether or not it got a receipt.
pub(crate) fn assert_genuine(spool: &Spool, left: &RecoveredMessage) {
    let envelope = String::from_utf8(left.envelope.clone()).unwrap();
    let words: Vec<&str> = envelope.split(' ').collect();
    let number: u64 = words[1].parse().unwrap();
    let bytes: usize = words[3].parse().unwrap();
    assert_eq!((left.received_ns, left.body_bytes), (number, bytes as u64));
    assert!(spool.read(left.id).unwrap() == body(number, bytes), "{} has another body", left.id);
}

impl SpoolModel {
    fn choose(&self, index: prop::sample::Index) -> Option<Id> {
        let open: Vec<Id> = self.open().collect();
        (!open.is_empty()).then(|| open[index.index(open.len())])
    }

    fn open(&self) -> impl Iterator<Item = Id> + '_ {
        self.known.iter().filter(|(_, known)| !known.is_done).map(|(id, _)| *id)
    }

    /// Runs the step. Returns whether the spool still accepts messages.
    pub(crate) fn step(&mut self, spool: &Spool, step: &SpoolOperation) -> bool {
        match step {
            SpoolOperation::Store { messages, bytes } => return self.store(spool, *messages, *bytes),
            SpoolOperation::Note(index) => {
                let Some(id) = self.choose(*index) else { return true };
                let known = self.known.get_mut(&id).unwrap();
                let note = format!("note {} of {id}", known.notes.len()).into_bytes();
                spool.note(id, &note);
                known.notes.push(note);
            }
            SpoolOperation::Done(index) => self.choose(*index).into_iter().for_each(|id| self.done(spool, id)),
            SpoolOperation::DoneButOne => {
                let open: Vec<Id> = self.open().skip(1).collect();
                open.into_iter().for_each(|id| self.done(spool, id));
            }
        }
        true
    }

    fn done(&mut self, spool: &Spool, id: Id) {
        spool.done(id);
        self.known.get_mut(&id).unwrap().is_done = true;
    }

    fn store(&mut self, spool: &Spool, messages: usize, bytes: usize) -> bool {
        let before = self.known.clone();
        let drafts = (0..messages).map(|_| {
            self.drafts += 1;
            draft(self.drafts, bytes)
        });
        let receipts: Vec<Receipt> = drafts.map(|draft| spool.store(draft)).collect();
        let outcomes: Vec<Result<Stored, Error>> = receipts.into_iter().map(Receipt::wait).collect();
        for outcome in outcomes {
            match outcome {
                Ok(stored) => self.stored(stored.id(), &before),
                Err(Error::Full) => {}
                Err(Error::Poisoned(_)) => return false,
                Err(error) => panic!("{error}"),
            }
        }
        true
    }

    /// Adds a stored message to the model. The spool synced this message, and with it all notes and marks added earlier
    /// (`before`), so they must survive from now on.
    fn stored(&mut self, id: Id, before: &BTreeMap<Id, KnownMessage>) {
        assert!(id.0 > self.highest, "{id} is not new");
        self.highest = id.0;
        self.known.insert(id, KnownMessage::default());
        for (id, known) in before {
            let now = self.known.get_mut(id).unwrap();
            now.sure_notes = known.notes.len();
            now.is_surely_done = known.is_done;
        }
    }

    /// Asserts that a spool's content agrees with the model, and then makes this content the new model.
    pub(crate) fn compare(&mut self, spool: &Spool, backlog: Backlog, unwritten: u64) {
        let left: BTreeMap<Id, RecoveredMessage> =
            backlog.map(|left| left.unwrap()).map(|left| (left.id, left)).collect();
        for (id, known) in &self.known {
            assert!(known.is_done || left.contains_key(id), "{id} is lost");
            assert!(!known.is_surely_done || unwritten > 0 || !left.contains_key(id), "{id} has come back");
        }
        for (id, left) in &left {
            assert_genuine(spool, left);
            if let Some(known) = self.known.get(id) {
                // Some notes may be missing, because they were not synced or because a full spool did not write them.
                // The notes that are left must be in their old order.
                let mut in_order = known.notes.iter();
                let are_known = left.notes.iter().all(|note| in_order.any(|known| known == note));
                assert!(are_known, "{id}: {:?} of {:?}", left.notes, known.notes);
                let sure = &known.notes[..known.sure_notes];
                assert!(left.notes.starts_with(sure) || unwritten > 0, "{id} has lost notes: {:?}", left.notes);
            }
            self.highest = self.highest.max(id.0);
        }
        let known_of = |left: RecoveredMessage| KnownMessage {
            sure_notes: left.notes.len(),
            notes: left.notes,
            ..KnownMessage::default()
        };
        self.known = left.into_iter().map(|(id, left)| (id, known_of(left))).collect();
    }
}
