//! Looks into the outbox after a run, because a message that no endpoint has fetched is still there and not lost.
use super::run_state::MadesRunState;
use super::stages::MadesMode;
use mailrun_mades::api::Submission;
use mailrun_mades::{Connection, Error, IncomingDelivery, ReceiverOptions};
use std::time::Duration;
use tokio::time::timeout;

/// The outbox counts as empty if no message comes for this time.
const EMPTY_QUEUE_TIMEOUT: Duration = Duration::from_millis(500);
const SEARCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of messages of earlier runs and other applications that the search in the outbox reads. Such messages
/// may stand in the queue before the missing messages.
const MAX_OTHERS: u64 = 10_000;

/// Records which messages of this run are still in the outbox, and leaves all messages there. If the outbox cannot be
/// read, for example because the user may only write to it, the messages count as lost.
pub(super) async fn find_waiting(run_state: &MadesRunState) {
    let missing = run_state.tracker.borrow().final_ledger().ledger.lost.unwrap_or_default();
    // In mode `amqp`, the bench sends to the queue from which it reads, so no message can wait for an endpoint.
    if missing > 0 && run_state.options.mode != MadesMode::Amqp {
        let _ = timeout(SEARCH_TIMEOUT, search(run_state, missing)).await;
    }
}

async fn search(run_state: &MadesRunState, missing: u64) -> Result<(), Error> {
    let options = &run_state.options;
    let mut connection = Connection::open(&options.outbox).await?;
    let credit = u32::try_from(missing + MAX_OTHERS).unwrap_or(u32::MAX);
    let mut outbox = connection.attach_receiver(&ReceiverOptions::new(&options.queues.outbox, credit)).await?;
    let mut seen = Vec::new();
    // Release no message before the end, because the broker would deliver it again at once.
    while let Ok(arrival) = timeout(EMPTY_QUEUE_TIMEOUT, outbox.next()).await {
        match arrival? {
            IncomingDelivery::Delivery(delivery) => {
                if let Some(sequence) = run_state.own_sequence(Submission::read(&delivery.message).identity()) {
                    run_state.tracker.borrow_mut().waits(sequence);
                }
                seen.push(delivery.handle);
            }
            IncomingDelivery::Undecodable { handle, .. } => seen.push(handle),
        }
        if seen.len() as u64 >= u64::from(credit) {
            break;
        }
    }
    outbox.release(seen)?;
    outbox.close().await?;
    connection.close().await
}
