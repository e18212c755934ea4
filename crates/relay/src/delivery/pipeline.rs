use crate::counters::RelayCounters;
use crate::delivery::required_extensions::{self, DeliveryForm};
use crate::delivery::result::{accepted_status, combine_statuses};
use crate::message::Message;
use crate::message::envelope::{Confirmation, DeliveryRefusal};
use crate::qmgr::{DeliveryResult, RecipientStatus};
use crate::worker::DeliveryGuard;
use mailrun_smtp::Extensions;
use mailrun_smtp::client::Verb;
use mailrun_smtp::reply::is_session_fault;

pub(crate) struct PipelinedMessage {
    pub(crate) request: DeliveryGuard,
    pub(crate) converted: Option<Message>,
    pub(crate) left_out: Vec<u16>,
    /// The refusal of each recipient, or `None` if the server has not refused this recipient so far. The list has the
    /// order of the request's recipients, but omits the recipients in `left_out`, to whom the message is not sent.
    pub(crate) refused: Vec<Option<DeliveryRefusal>>,
    pub(crate) progress: SendProgress,
    /// Number of recipients for whom a reply to the message has arrived. Only LMTP has a reply for each recipient.
    pub(crate) answered: usize,
    /// The reply with which the server accepted the message, for the log.
    pub(crate) accept_reply: Option<DeliveryRefusal>,
    /// Set if the next hop offers the extension DSN. It then notifies the sender of success itself.
    pub(crate) peer_sends_dsn: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendProgress {
    NotSent,
    /// At least part of the message is still in the output buffer, and not yet written to the server.
    Buffered,
    Sent,
}

impl PipelinedMessage {
    pub(crate) fn new(request: DeliveryGuard, form: DeliveryForm, extensions: &Extensions) -> Self {
        let DeliveryForm { converted, left_out } = form;
        let refused = vec![None; request.recipients.len() - left_out.len()];
        Self {
            request,
            converted,
            left_out,
            refused,
            progress: SendProgress::NotSent,
            answered: 0,
            accept_reply: None,
            peer_sends_dsn: extensions.dsn,
        }
    }

    pub(crate) fn refuse_all(&mut self, refusal: &DeliveryRefusal) {
        self.refuse_from(0, refusal);
    }

    /// Refuses all recipients from this position on, except those that are already refused.
    pub(crate) fn refuse_from(&mut self, place: usize, refusal: &DeliveryRefusal) {
        for place in self.refused.iter_mut().skip(place).filter(|place| place.is_none()) {
            *place = Some(refusal.clone());
        }
    }

    /// Returns the message that is sent: the converted message, or the original if nothing was
    /// converted.
    pub(crate) fn message(&self) -> &Message {
        self.converted.as_ref().unwrap_or(&self.request.message)
    }

    pub(crate) fn recipient_statuses(&mut self) -> Vec<RecipientStatus> {
        let recipients = &self.request.message.envelope.recipients;
        let peer_sends_dsn = self.peer_sends_dsn;
        let left_out = &self.left_out;
        let mut refused = self.refused.drain(..);
        let status = |number: u16| {
            if left_out.contains(&number) {
                return RecipientStatus::Failed(required_extensions::smtputf8_missing());
            }
            match refused.next().flatten() {
                None if peer_sends_dsn => RecipientStatus::Delivered,
                None => accepted_status(&recipients[usize::from(number)], Confirmation::Relayed),
                Some(refusal) if refusal.is_permanent() => RecipientStatus::Failed(refusal),
                Some(refusal) => RecipientStatus::Deferred(refusal),
            }
        };
        self.request.recipients.iter().map(status).collect()
    }

    pub(crate) fn apply_refusal(&mut self, to: Verb, refusal: &DeliveryRefusal) {
        match to {
            Verb::Recipient(place) | Verb::Delivery(place) => {
                let is_end = refusal.code == 421 && matches!(to, Verb::Delivery(_));
                if let Some(slot) = self.refused.get_mut(place as usize) {
                    slot.get_or_insert_with(|| refusal.clone());
                }
                if is_end {
                    self.refuse_from(place as usize, refusal);
                }
            }
            Verb::Mail | Verb::Data | Verb::Chunk | Verb::Message => self.refuse_all(refusal),
            _ => {}
        }
    }

    /// If the server has refused the whole session and not only this message, for example with a 421, returns a result
    /// that defers all recipients. The caller uses this result even if a reply may be missing and all other replies
    /// must be ignored.
    pub(crate) fn session_fault(&self) -> Option<DeliveryResult> {
        let fault = self.refused.iter().flatten().find(|refusal| is_session_fault(refusal.code))?;
        let status = RecipientStatus::Deferred(fault.clone());
        Some(DeliveryResult::SessionFault(vec![status; self.request.recipients.len()]))
    }

    /// Returns the result of a message if its session ended while replies to the message might still be missing.
    /// `is_refused` means that the server ended the session with 421, so it has accepted only what it had answered
    /// before. `is_ambiguous` means that a reply may be missing, so all replies are ignored.
    pub(crate) fn unfinished_result(
        &mut self,
        is_refused: bool,
        is_ambiguous: bool,
        counters: &RelayCounters,
    ) -> DeliveryResult {
        let answered = if is_ambiguous { 0 } else { self.answered };
        match (answered, self.progress == SendProgress::Sent && !is_refused) {
            (0, false) => DeliveryResult::Unsent,
            (0, true) => DeliveryResult::Unknown,
            // Keep the answers that arrived, so that a retry sends the message only to the other recipients.
            (answered, _) => {
                let refusal = DeliveryRefusal::new(0, None, "the session ended without an answer", "");
                self.refuse_from(answered, &refusal);
                combine_statuses(counters, self.recipient_statuses())
            }
        }
    }
}
