use crate::delivery::client::{ConnectionResult, MAX_BATCH, QUIT_TIMEOUT, SmtpDelivery};
use crate::delivery::resolver::{MailServer, Unroutable};
use crate::delivery::result::fail_all;
use crate::message::envelope::DeliveryRefusal;
use crate::qmgr::DisconnectReason;
use crate::routing::{Lmtp, Smtp, SmtpTarget};
use crate::worker::{RelayWorker, SlotGuard};
use mailrun_net::{Endpoint, Timer, clock};
use mailrun_smtp::client::{self, BurstSize, Chunking, PipelineMode, Protocol, StartTls};
use mailrun_smtp::reply::EnhancedStatusCode;
use std::rc::Rc;
use std::time::Duration;

/// Time limit for the DNS lookup in the first attempt to reach a destination. It is short, because other destinations
/// may wait for the connection that the attempt occupies. It leaves time for a second query if the first packet was
/// lost. In later attempts, the lookup may take as long as the resolver permits.
const FIRST_LOOKUP_TIMEOUT: Duration = Duration::from_secs(6);
/// Time after which the first attempt to reach a destination tries no further servers. Later attempts try all servers
/// of the destination.
const FIRST_TRIAL_TIMEOUT: Duration = Duration::from_secs(20);

/// Tries the servers of the next hop in order, and delivers to the first with which a session is established.
pub(crate) async fn deliver(worker: &Rc<RelayWorker>, slot: SlotGuard, smtp: &Smtp) {
    let start = clock::now();
    let is_first = slot.is_first_trial();
    let scope = worker.config().delivery_scope;
    let lookup = worker.resources.resolver.resolve(&smtp.target, worker.next_seed(), scope);
    let outcome = if is_first {
        let outcome = Timer::default().timeout_at(start + FIRST_LOOKUP_TIMEOUT, Box::pin(lookup)).await;
        let reason = || format!("no answer within {} s", FIRST_LOOKUP_TIMEOUT.as_secs());
        outcome.unwrap_or_else(|| Err(Unroutable::lookup_failed(&smtp.target.to_string(), &reason())))
    } else {
        lookup.await
    };
    let servers = match outcome {
        Ok(servers) => servers,
        Err(error) => return handle_unroutable(worker, slot, &error),
    };
    let mut delivery = SmtpDelivery::new(worker, slot, "".into());
    let mut result = None;
    for server in &servers {
        match try_server(&mut delivery, smtp, server).await {
            // This server is the relay itself. The result `Loop` makes the mail bounce. If an earlier server was
            // unreachable, keep its result instead, which only defers the mail. Skip all later mail exchangers, because
            // they would send the mail back to this relay (RFC 5321 §5.1).
            looped @ ConnectionResult::Loop(_) => {
                result.get_or_insert(looped);
                if matches!(smtp.target, SmtpTarget::Domain { .. }) {
                    break;
                }
            }
            other => result = Some(other),
        }
        let is_late = is_first && clock::now() > start + FIRST_TRIAL_TIMEOUT;
        if is_late
            || matches!(result, Some(ConnectionResult::Finished | ConnectionResult::Refused(_)))
            || delivery.is_reached()
        {
            break;
        }
    }
    let none = || ConnectionResult::Unreachable(DeliveryRefusal::new(0, None, "no server", ""));
    delivery.finish(result.unwrap_or_else(none));
}

/// Ends a delivery because no server was found for its next hop. If the error is permanent, the messages that wait for
/// this next hop fail. If the error is temporary, the relay tries them again later.
fn handle_unroutable(worker: &Rc<RelayWorker>, slot: SlotGuard, error: &Unroutable) {
    let (code, enhanced) = error.codes();
    let refusal = DeliveryRefusal::new(code, EnhancedStatusCode::parse(enhanced.as_bytes()), &error.to_string(), "");
    if error.is_transient() {
        return worker.connection_closed(slot, DisconnectReason::Unreachable(refusal));
    }
    fail_all(worker, slot, &refusal);
}

async fn try_server(delivery: &mut SmtpDelivery, smtp: &Smtp, server: &MailServer) -> ConnectionResult {
    delivery.set_host(&server.name);
    let destination = delivery.destination();
    let resources = &delivery.worker().resources;
    let destinations = &resources.destinations;
    let security = destinations.borrow_mut().security(destination, &server.name, &resources.ca_files);
    let security = match security {
        Ok(security) => security,
        Err(reason) => return ConnectionResult::Unreachable(DeliveryRefusal::new(0, None, &reason, "")),
    };
    let may_stream = destinations.borrow().may_stream(destination, clock::now());
    let options = client::Options {
        pipelining: if may_stream { PipelineMode::Group } else { PipelineMode::Transaction },
        tls: smtp.security.start_tls(),
        credentials: smtp.credentials.clone(),
        chunking: Chunking::IfOffered,
        burst: BurstSize::of(MAX_BATCH),
        quit_timeout: Some(QUIT_TIMEOUT),
        refuses_own_name: delivery.worker().resources.has_own_name,
        ..Default::default()
    };
    let endpoint = Endpoint::Tcp(server.address);
    let result = delivery.try_endpoint(&endpoint, security, options.clone()).await;
    if !matches!(result, ConnectionResult::WithoutTls) {
        return result;
    }
    // Try again without TLS. With opportunistic TLS, an unencrypted delivery is better than no delivery (RFC 7435 §3).
    delivery.try_endpoint(&endpoint, None, client::Options { tls: StartTls::Never, ..options }).await
}

/// Delivers by LMTP to the socket or address of a mailbox server (RFC 2033), like Postfix's
/// lmtp(8).
pub(crate) async fn deliver_lmtp(worker: &Rc<RelayWorker>, slot: SlotGuard, lmtp: &Lmtp) {
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
