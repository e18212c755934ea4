//! Discards messages and counts them as delivered, like Postfix's discard(8).
use crate::delivery::handles::DeliverySink;
use crate::message::Message;
use crate::qmgr::{DeliveryRequest, DeliveryResult};

pub(crate) fn discard(sink: &DeliverySink, request: &DeliveryRequest<Message>) -> DeliveryResult {
    sink.counters.delivered.add(request.recipients.len() as u64);
    DeliveryResult::Delivered
}
