//! Delivery agents, which take messages from the queue and give them back with a result, like
//! Postfix's smtp(8), lmtp(8), virtual(8) and discard(8).
//!
//! | file | what it does |
//! |---|---|
//! | `smtp` | delivers by SMTP: finds the servers of a domain, and tries one after the other |
//! | `client` | a connection of the SMTP and LMTP agents, kept from message to message |
//! | `pipeline` | a message in progress on a connection, and the replies to it |
//! | `parameters` | writes the parameters of MAIL and RCPT |
//! | `required_extensions` | the extensions that a message requires, and its form without them |
//! | `mailbox`, `maildir` | delivers into Maildirs |
//! | `result` | turns replies into the result of a delivery request |
//! | `slots` | connections that wait for a message |
//! | `destinations` | numbers of next hops, and TLS with their hosts |
//! | `ca_files` | certificates that routes trust, read again when they change |
//! | `resolver` | finds the servers of a domain and their addresses |
pub(crate) mod ca_files;
pub(crate) mod client;
pub(crate) mod destinations;
pub(crate) mod mailbox;
pub(crate) mod maildir;
pub(crate) mod parameters;
pub(crate) mod pipeline;
pub(crate) mod required_extensions;
pub(crate) mod resolver;
pub(crate) mod result;
pub(crate) mod slots;
pub(crate) mod smtp;

use super::dsn;
use crate::message::Message;
use crate::qmgr::{DeliveryRequest, DeliveryResult, DisconnectReason};
use crate::routing::NextHop;
use crate::worker::{NextMessage, RelayWorker, SlotGuard, WorkerTask, WorkerTasks};
use mailrun_net::{Timer, clock};
use mailrun_process::planned_panic::planned_panic;
use slots::{IDLE_TIMEOUT, SlotWaiter};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

/// Delivers the messages of a destination over one connection, until the queue has no more messages
/// for it.
pub(crate) async fn run(worker: Rc<RelayWorker>, slot: SlotGuard) {
    let next_hop = worker.resources.destinations.borrow().next_hop(slot.destination);
    match next_hop {
        NextHop::Discard => {
            deliver_locally(&worker, slot, async |request| mailbox::discard(&worker.sink, request)).await
        }
        NextHop::Maildir(root) => {
            deliver_locally(&worker, slot, async |request| {
                mailbox::deliver(&worker.resources, &worker.sink, &root, request).await
            })
            .await
        }
        NextHop::Lmtp(lmtp) => smtp::deliver_lmtp(&worker, slot, &lmtp).await,
        NextHop::Smtp(smtp) => smtp::deliver(&worker, slot, &smtp).await,
    }
}

async fn deliver_locally(
    worker: &Rc<RelayWorker>,
    mut slot: SlotGuard,
    deliver: impl AsyncFn(&DeliveryRequest<Message>) -> DeliveryResult,
) {
    let mut waiter = SlotWaiter::default();
    let mut idle = Timer::default();
    loop {
        let mut until = None;
        let request = poll_fn(|cx| {
            let now = clock::now();
            if waiter.must_close() || worker.is_closing() {
                return Poll::Ready(None);
            }
            match worker.next_message(&mut slot, &mut waiter, cx.waker(), now) {
                NextMessage::Deliver(request) => Poll::Ready(Some(request)),
                NextMessage::Quit => Poll::Ready(None),
                NextMessage::Wait => idle.poll_due(Some(*until.get_or_insert(now + IDLE_TIMEOUT)), now).map(|()| None),
            }
        });
        let Some(request) = request.await else { break };
        planned_panic("local delivery");
        let result = deliver(&request).await;
        worker.finish_delivery(request, result);
    }
    waiter.cancel();
    worker.connection_closed(slot, DisconnectReason::Finished);
}

/// Starts a task for each connection that the worker requests, and sends the DSNs that it requests, until the worker
/// ends.
pub(crate) async fn serve(worker: Rc<RelayWorker>, mut tasks: WorkerTasks) {
    while let Some(task) = tasks.recv().await {
        match task {
            WorkerTask::Deliver(slot) => {
                mailrun_net::worker::spawn_local(run(Rc::clone(&worker), slot));
            }
            WorkerTask::SendDsn(id, event, message) => dsn::generate::send(&worker, id, event, message),
        }
    }
}
