//! Delivers into Maildirs on this host, with one copy per recipient, like Postfix's virtual(8).
use crate::delivery::maildir::{self, MaildirMessage};
use crate::delivery::result::{accepted_status, combine_statuses};
use crate::fault_log::LOG_TARGET;
use crate::message::Message;
use crate::message::envelope::{Confirmation, DeliveryRefusal};
use crate::qmgr::{DeliveryRequest, DeliveryResult, RecipientStatus};
use crate::worker_share::{DeliveryResources, DeliverySink};
use mailrun_net::clock;
use mailrun_smtp::reply::EnhancedStatusCode;
use std::path::Path;
use std::sync::Arc;

pub(crate) async fn deliver(
    resources: &DeliveryResources,
    sink: &DeliverySink,
    root: &Arc<Path>,
    request: &DeliveryRequest<Message>,
) -> DeliveryResult {
    let mut statuses = Vec::new();
    for number in request.recipients.iter() {
        let recipient = request.message.envelope.recipients[usize::from(number)].clone();
        let names = Arc::clone(&resources.maildir_names);
        let root = Arc::clone(root);
        let message = request.message.clone();
        let address = recipient.address.clone();
        let delivered = resources.maildir_pool.run(move || {
            let copy = MaildirMessage { sender: &message.envelope.sender, recipient: &address, body: &message.body };
            maildir::deliver(&root, &names, clock::wall(), &copy)
        });
        statuses.push(match delivered.await {
            Some(Ok(_)) => accepted_status(&recipient, Confirmation::Delivered),
            Some(Err(failure)) => {
                if failure.needs_operator() {
                    tracing::error!(target: LOG_TARGET, %failure, "a mailbox cannot be written");
                }
                let (code, enhanced) = failure.code();
                RecipientStatus::Deferred(DeliveryRefusal::new(code, Some(enhanced), &failure.to_string(), ""))
            }
            // The delivery has panicked. Try again, because a duplicate in the mailbox is better than a loss.
            None => RecipientStatus::Deferred(DeliveryRefusal::new(
                451,
                Some(EnhancedStatusCode(4, 3, 0)),
                "delivery failed because of a bug in mailrun",
                "",
            )),
        });
    }
    combine_statuses(&sink.counters, statuses)
}

/// Discards a message and counts it as delivered, like Postfix's discard(8).
pub(crate) fn discard(sink: &DeliverySink, request: &DeliveryRequest<Message>) -> DeliveryResult {
    sink.counters.delivered.add(request.recipients.len() as u64);
    DeliveryResult::Delivered
}
