//! Receipts are futures that tell a caller when its message or its notes are durable. Any runtime can await them.
use crate::message::Stored;
use crate::stats::SpoolCounters;
use crate::{Error, Id};
use mailrun_lock::lock;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

/// Resolves when the message is as durable as the spool's options promise, or when storing the
/// message has failed. Dropping the receipt does not cancel anything, and the message may be stored
/// nevertheless.
#[derive(Debug)]
#[must_use = "only the receipt tells whether the message was stored"]
pub struct Receipt(ReceiptState);

#[derive(Debug)]
enum ReceiptState {
    Batch { ticket: Arc<BatchStatus>, place: u32, id: Id },
    Resolved(Option<Result<Stored, Error>>),
}

impl Receipt {
    pub(crate) fn of_batch(ticket: Arc<BatchStatus>, place: u32, id: Id) -> Self {
        Self(ReceiptState::Batch { ticket, place, id })
    }

    pub(crate) fn resolved(outcome: Result<Id, Error>) -> Self {
        Self(ReceiptState::Resolved(Some(outcome.map(|id| Stored { id }))))
    }

    /// Blocks the thread until the receipt resolves. In asynchronous code, await the receipt
    /// instead.
    pub fn wait(self) -> Result<Stored, Error> {
        block_on(self)
    }
}

fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(outcome) = Pin::new(&mut future).poll(&mut context) {
            return outcome;
        }
        std::thread::park();
    }
}

/// Resolves when the notes added before [`Spool::sync_notes`](crate::Spool::sync_notes) was called are as durable as
/// the spool's options promise for a message.
#[derive(Debug)]
#[must_use = "only the receipt tells whether the notes are durable"]
pub struct NotesReceipt {
    receipt: Receipt,
    unwritten: Option<UnwrittenNotes>,
}

#[derive(Debug)]
struct UnwrittenNotes {
    counters: Arc<SpoolCounters>,
    before: u64,
}

impl NotesReceipt {
    /// Creates a receipt that resolves when the batch is written. The inner receipt gets a placeholder id, because only
    /// messages have ids.
    pub(crate) fn of_batch(ticket: Arc<BatchStatus>, place: u32) -> Self {
        Self { receipt: Receipt::of_batch(ticket, place, Id(0)), unwritten: None }
    }

    pub(crate) fn resolved(outcome: Result<(), Error>) -> Self {
        Self { receipt: Receipt::resolved(outcome.map(|()| Id(0))), unwritten: None }
    }

    /// Makes the receipt fail if the number of unwritten notes has risen above `before`, because a note is then lost.
    pub(crate) fn fail_if_unwritten(mut self, counters: &Arc<SpoolCounters>, before: u64) -> Self {
        self.unwritten = Some(UnwrittenNotes { counters: Arc::clone(counters), before });
        self
    }

    /// Blocks the thread until the receipt resolves.
    pub fn wait(self) -> Result<(), Error> {
        block_on(self)
    }
}

impl Future for NotesReceipt {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receipt).poll(context).map(|outcome| {
            outcome?;
            let has_room = self.unwritten.as_ref().is_none_or(|count| count.counters.unwritten.value() == count.before);
            if has_room { Ok(()) } else { Err(Error::Full) }
        })
    }
}

impl Future for Receipt {
    type Output = Result<Stored, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            ReceiptState::Resolved(outcome) => Poll::Ready(outcome.take().expect("a receipt resolves once")),
            ReceiptState::Batch { ticket, place, id } => {
                let outcome = ticket.outcome(*place, context.waker());
                let id = *id;
                outcome.map(|outcome| {
                    self.0 = ReceiptState::Resolved(None);
                    outcome.map(|()| Stored { id })
                })
            }
        }
    }
}

struct ThreadWaker(std::thread::Thread);

impl std::task::Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// State that all receipts of a batch share, so that a batch needs only one allocation.
#[derive(Debug, Default)]
pub(crate) struct BatchStatus(Mutex<BatchWaiters>);

#[derive(Debug, Default)]
struct BatchWaiters {
    outcome: Option<BatchOutcome>,
    wakers: Vec<Option<Waker>>,
}

const INITIAL_WAKERS: usize = 32;

#[derive(Debug)]
pub(crate) enum BatchOutcome {
    /// All messages of the batch are stored, except the messages in this list. Each entry is a message's position in
    /// the batch, and its error. The list is sorted by position, so that a receipt can find its entry by binary search.
    StoredExcept(Vec<(u32, Error)>),
    Failed(Error),
}

impl BatchStatus {
    fn lock(&self) -> MutexGuard<'_, BatchWaiters> {
        lock(&self.0)
    }

    fn outcome(&self, place: u32, waker: &Waker) -> Poll<Result<(), Error>> {
        let mut waiting = self.lock();
        match &waiting.outcome {
            None => {}
            Some(BatchOutcome::Failed(error)) => return Poll::Ready(Err(error.clone())),
            Some(BatchOutcome::StoredExcept(failed)) => {
                let failure = failed.binary_search_by_key(&place, |(place, _)| *place);
                return Poll::Ready(failure.map_or(Ok(()), |at| Err(failed[at].1.clone())));
            }
        }
        let place = place as usize;
        if waiting.wakers.len() <= place {
            if waiting.wakers.is_empty() {
                waiting.wakers.reserve(INITIAL_WAKERS.max(place + 1));
            }
            waiting.wakers.resize(place + 1, None);
        }
        match &mut waiting.wakers[place] {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        Poll::Pending
    }

    /// Reports the outcome of the batch to all of its receipts, and wakes their tasks. Only the first call counts.
    pub(crate) fn resolve(&self, outcome: BatchOutcome) {
        let wakers = {
            let mut waiting = self.lock();
            waiting.outcome.get_or_insert(outcome);
            std::mem::take(&mut waiting.wakers)
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct CountingWaker(AtomicUsize);

    impl std::task::Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn every_receipt_of_a_batch_is_woken_once_and_hears_its_own() {
        let ticket = Arc::new(BatchStatus::default());
        let count = Arc::new(CountingWaker(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        let mut receipts: Vec<_> =
            (0..5).map(|at| Receipt::of_batch(Arc::clone(&ticket), at, Id(100 + u64::from(at)))).collect();
        for receipt in receipts.iter_mut().rev().skip(1) {
            assert!(Pin::new(&mut *receipt).poll(&mut context).is_pending());
            assert!(Pin::new(&mut *receipt).poll(&mut context).is_pending());
        }
        ticket.resolve(BatchOutcome::StoredExcept(vec![(1, Error::Full), (3, Error::Closed)]));
        assert_eq!(count.0.load(Ordering::Relaxed), 4, "the last one had not yet asked");
        let results: Vec<_> = receipts.into_iter().map(Receipt::wait).collect();
        assert!(matches!(results[1], Err(Error::Full)) && matches!(results[3], Err(Error::Closed)));
        let stored: Vec<u64> = results.into_iter().flatten().map(|stored| stored.id().0).collect();
        assert_eq!(stored, [100, 102, 104]);
    }

    #[test]
    fn a_receipt_can_be_awaited_by_a_thread() {
        let ticket = Arc::new(BatchStatus::default());
        let receipt = Receipt::of_batch(Arc::clone(&ticket), 0, Id(1));
        let waiter = std::thread::spawn(move || receipt.wait());
        ticket.resolve(BatchOutcome::Failed(Error::Closed));
        assert!(matches!(waiter.join().unwrap(), Err(Error::Closed)));
    }
}
