use crate::counters::RelayCounters;
use crate::delivery::slots::SlotWaiter;
use crate::message::envelope::{Confirmation, DeliveryRefusal, EnvelopeRecipient};
use crate::qmgr::{DeliveryResult, DisconnectReason, RecipientStatus};
use crate::worker::{NextMessage, RelayWorker, SlotGuard};
use mailrun_net::clock;
use mailrun_smtp::dsn::Notify;
use std::rc::Rc;

/// Returns the status of an accepted recipient: `Confirmed` if the sender asked for a DSN about
/// success (RFC 3461 §5.2.2), otherwise `Delivered`.
pub(crate) fn accepted_status(recipient: &EnvelopeRecipient, how: Confirmation) -> RecipientStatus {
    let is_asked = recipient.notify.is_some_and(|notify| notify.wants(Notify::SUCCESS));
    if is_asked { RecipientStatus::Confirmed(how) } else { RecipientStatus::Delivered }
}

/// Combines the recipients' statuses into the result of a request, and counts the delivered and the failed recipients.
/// If all recipients are delivered and none of them needs a DSN, the result is `Delivered`, which needs no list of
/// statuses. If the server has refused the session, for example with a 421, the result is `SessionFault`, so that the
/// queue soon tries again in another session.
pub(crate) fn combine_statuses(counters: &RelayCounters, statuses: Vec<RecipientStatus>) -> DeliveryResult {
    for status in &statuses {
        match status {
            RecipientStatus::Delivered | RecipientStatus::Confirmed(_) => counters.delivered.add(1),
            RecipientStatus::Failed(_) => counters.failed.add(1),
            // Do not count deferred recipients here, because the worker counts them when the queue has deferred them.
            RecipientStatus::Deferred(_) => {}
        }
    }
    if statuses.iter().all(|status| *status == RecipientStatus::Delivered) {
        DeliveryResult::Delivered
    } else if statuses.iter().any(is_session_fault) {
        DeliveryResult::SessionFault(statuses)
    } else {
        DeliveryResult::Each(statuses)
    }
}

fn is_session_fault(status: &RecipientStatus) -> bool {
    matches!(status, RecipientStatus::Deferred(refusal) if mailrun_smtp::reply::is_session_fault(refusal.code))
}

/// Fails all messages that wait for this connection's destination, and then tells the queue that the connection is
/// closed.
pub(crate) fn fail_all(worker: &Rc<RelayWorker>, mut slot: SlotGuard, refusal: &DeliveryRefusal) {
    let mut waiter = SlotWaiter::default();
    while let NextMessage::Deliver(request) =
        worker.next_message(&mut slot, &mut waiter, std::task::Waker::noop(), clock::now())
    {
        worker.sink.counters.failed.add(request.recipients.len() as u64);
        worker.finish_delivery(request, DeliveryResult::All(RecipientStatus::Failed(refusal.clone())));
    }
    waiter.cancel();
    worker.connection_closed(slot, DisconnectReason::Finished);
}
