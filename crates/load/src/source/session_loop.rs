//! A session's loop: it claims a message, connects for it, and sends messages until there are no
//! more.
use super::context::SourceContext;
use super::load_session::LoadSession;
use super::worker_state::SourceWorkerState;
use mailrun_measurement::record::Resource;
use mailrun_net::{ClientSession, ResourceExhausted, Timer, WorkerBuffers, clock};
use mailrun_process::reason::reason;
use mailrun_smtp::client::Client;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Pause of a session after a failed attempt to connect. It doubles with each further failure, up
/// to [`MAX_RETRY_DELAY`].
const MIN_RETRY_DELAY: Duration = Duration::from_millis(10);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

pub(super) async fn run(context: Arc<SourceContext>, recorder: Rc<SourceWorkerState>, buffers: WorkerBuffers) {
    let mut sender = LoadSession::new(Arc::clone(&context), Rc::clone(&recorder));
    let mut timer = Timer::default();
    let mut retry_delay = MIN_RETRY_DELAY;
    loop {
        if !sender.has_message() && !poll_fn(|cx| sender.poll_claim(cx)).await {
            return;
        }
        let began = clock::now();
        let connect_timeout = context.options.connect_timeout;
        match context.transport.connect(&context.server, connect_timeout, &mut timer).await {
            Ok(socket) => {
                retry_delay = MIN_RETRY_DELAY;
                context.plan.record_connected();
                sender.connection_established(began, clock::now());
                let client = client(&context, &recorder);
                let timeout = context.options.timeout;
                let session = ClientSession::new(socket, client, &mut sender, &mut timer, timeout, buffers.clone());
                let session = session.with_write_limit(context.options.transport.write_size);
                let ended = session.with_security(context.transport.security.clone()).run().await;
                sender.connection_ended(&ended);
            }
            Err(error) => {
                count_connect_failure(&context, &recorder, &error, retry_delay);
                sender.connection_failed(&reason(&error));
                mailrun_net::sleep(retry_delay).await;
                retry_delay = (retry_delay * 2).min(MAX_RETRY_DELAY);
            }
        }
    }
}

/// Counts a failed attempt to connect. If no attempt has ever succeeded, the failure ends the run.
/// However, if this host lacks a resource, such as free ports, the run ends only after several
/// failed attempts, because other sessions may have got the resource.
fn count_connect_failure(
    context: &SourceContext,
    recorder: &SourceWorkerState,
    error: &io::Error,
    retry_delay: Duration,
) {
    let plan = &context.plan;
    let text = reason(error);
    let (resource, hint) = match ResourceExhausted::from_error(error, context.transport.is_bound()) {
        None if error.kind() == io::ErrorKind::AddrNotAvailable => {
            return plan.record_unreachable(&format!("{text}. Check that this host has all addresses of --bind."));
        }
        None => return plan.record_unreachable(&format!("{text}. Check that a server listens there.")),
        Some(ResourceExhausted::Descriptors) => (Resource::Descriptors, "Raise `ulimit -n`."),
        Some(ResourceExhausted::HostDescriptors) => (Resource::HostDescriptors, "Raise the sysctl fs.file-max."),
        Some(ResourceExhausted::Ports) => {
            (Resource::Ports, "Either no local port is free, or this host has no route to this address.")
        }
    };
    recorder.update_tally(|tally| tally.exhausted.add(resource));
    plan.record_resource_failure(&format!("{text}. {hint}"));
    if retry_delay >= MAX_RETRY_DELAY {
        plan.record_unreachable(&format!("{text}. {hint}"));
    }
}

fn client(context: &SourceContext, recorder: &SourceWorkerState) -> Client {
    let options = &context.transport.options;
    let nonce = options.credentials.is_some().then(mailrun_net::nonce);
    Client::with_options(Arc::clone(recorder.hello_name()), Arc::clone(options), nonce, clock::now())
}
