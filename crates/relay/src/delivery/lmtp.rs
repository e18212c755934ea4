//! Delivers by LMTP to the socket or address of a mailbox server (RFC 2033), like Postfix's
//! lmtp(8).
use crate::delivery::client::{QUIT_TIMEOUT, SmtpDelivery};
use crate::routing::Lmtp;
use crate::worker::{RelayWorker, SlotGuard};
use mailrun_net::clock;
use mailrun_smtp::client::{self, PipelineMode, Protocol};
use std::rc::Rc;

pub(crate) async fn deliver(worker: &Rc<RelayWorker>, slot: SlotGuard, lmtp: &Lmtp) {
    let mut delivery = SmtpDelivery::new(worker, slot, lmtp.endpoint.to_string().into());
    let may_stream = worker.resources.destinations.borrow().may_stream(delivery.destination(), clock::now());
    let options = client::Options {
        protocol: Protocol::Lmtp,
        pipelining: if may_stream { PipelineMode::Group } else { PipelineMode::Transaction },
        quit_timeout: Some(QUIT_TIMEOUT),
        ..Default::default()
    };
    let result = delivery.try_endpoint(&lmtp.endpoint, None, options).await;
    delivery.finish(result);
}
