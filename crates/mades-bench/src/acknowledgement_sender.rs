//! Sends one acknowledgement document for each message that arrived, in the order of arrival.
use super::acknowledgement::{Acknowledgements, count_one};
use super::options::AcknowledgementOptions;
use super::run_state::MadesRunState;
use super::sender::{SettledTransfer, TOO_LARGE, Transfers, await_settlement};
use super::stages::MessageFlags;
use super::troubles::TroubleKind;
use mailrun_mades::api::{OutgoingProperties, OutgoingTemplate, Payload};
use mailrun_mades::{Disposition, Error, SenderLink};
use mailrun_net::clock;
use std::rc::Rc;

pub(super) async fn acknowledge(run_state: Rc<MadesRunState>, mut sender: SenderLink) -> Result<(), Error> {
    let Some(acknowledgements) = &run_state.acknowledgements else { return Ok(()) };
    let AcknowledgementOptions::Sent { message_type, .. } = &acknowledgements.options else { return Ok(()) };
    let mut transfers = Transfers::new(Rc::clone(&run_state), record_settlement);
    let mut templates = TemplateCache::default();
    loop {
        let next = async {
            tokio::select! {
                () = run_state.ended() => None,
                sequence = acknowledgements.next_due() => Some(sequence),
            }
        };
        let Some(sequence) = transfers.run_alongside(next).await else { break };
        let number = run_state.options.first_number + sequence;
        let template = templates.template(&run_state, acknowledgements, message_type);
        let created_at_ms = clock::wall().as_millis() as i64;
        let message =
            template.fill_with(number, created_at_ms, acknowledgements.payload(number, sequence, &run_state.payloads));
        let hand_over = async {
            tokio::select! {
                settling = sender.send(message) => settling.map(Some),
                () = run_state.ended() => Ok(None),
            }
        };
        let handed_over = transfers.run_alongside(hand_over).await;
        if let Err(error @ Error::TooLarge { .. }) = handed_over {
            // The document is too large, but the link still works, so give up only this document.
            acknowledgements.handed_over();
            acknowledgements.settled(sequence);
            record_returned(&run_state, acknowledgements, TOO_LARGE, &error.to_string());
            continue;
        }
        let Some(settling) = handed_over? else { break };
        acknowledgements.handed_over();
        transfers.unsettled.push(await_settlement(sequence, settling, run_state.options.timeout));
    }
    // Ignore an error of the link here, because the tracker has already recorded it.
    let _ = sender.close().await;
    Ok(())
}

/// Keeps the message template for acknowledgement documents, together with the component code of the receiver for which
/// the template was made. When the receiver changes, a new template replaces the old one.
#[derive(Default)]
struct TemplateCache(Option<(String, OutgoingTemplate)>);

impl TemplateCache {
    fn template(
        &mut self,
        run_state: &MadesRunState,
        acknowledgements: &Acknowledgements,
        message_type: &str,
    ) -> &mut OutgoingTemplate {
        let receiver = acknowledgements.receiver();
        let kept = self.0.take().filter(|(code, _)| *code == receiver);
        let make = || {
            let options = &run_state.options;
            let outgoing = OutgoingProperties {
                is_durable: options.is_durable,
                priority: options.priority,
                sender_application: options.sender_application.clone(),
                about_run: Some(run_state.uuid()),
                ..OutgoingProperties::new(&receiver, message_type)
            };
            outgoing.template(acknowledgements.run(), Payload::new())
        };
        let entry = kept.unwrap_or_else(|| (receiver.clone(), make()));
        &mut self.0.insert(entry).1
    }
}

fn record_settlement(run_state: &MadesRunState, (sequence, settled): SettledTransfer) {
    let Some(acknowledgements) = &run_state.acknowledgements else { return };
    acknowledgements.settled(sequence);
    let (code, text) = match settled {
        Ok(Ok(Disposition::Accepted)) => return count_one(&acknowledgements.counts.accepted),
        Ok(Ok(Disposition::Rejected { condition, description })) => (condition, description),
        Ok(Ok(Disposition::Released)) => ("released".to_owned(), "the broker rejects it for now".to_owned()),
        Ok(Ok(Disposition::Modified { .. })) => ("modified".to_owned(), "the broker rejects it".to_owned()),
        // It is unknown whether the broker accepted the document, so mark the document as in doubt.
        Err(_) | Ok(Err(_)) => {
            run_state.tracker.borrow_mut().add_document_fact(sequence, MessageFlags::DOCUMENT_IN_DOUBT);
            return;
        }
    };
    record_returned(run_state, acknowledgements, &code, &text);
}

fn record_returned(run_state: &MadesRunState, acknowledgements: &Acknowledgements, code: &str, text: &str) {
    count_one(&acknowledgements.counts.returned);
    run_state.record_trouble(TroubleKind::Acknowledgement, code, &format!("returned by the broker: {text}"));
}
