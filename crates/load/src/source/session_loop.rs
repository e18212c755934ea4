//! A session: takes up messages, connects for them, and sends them, until there are no more.
use super::SourceContext;
use super::load_session::LoadSession;
use super::worker_state::SourceWorkerState;
use journey::record::Resource;
use net::{ClientSession, ResourceExhausted, Socket, Timer, WorkerBuffers, clock};
use party::reason::reason;
use smtp::client::Client;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Pause before the next try after a connection could not be established; doubled up to the longest.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(10);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Runs one of the parallel sessions.
pub(super) async fn run(setting: Arc<SourceContext>, recorder: Rc<SourceWorkerState>, desk: WorkerBuffers) {
    let mut sender = LoadSession::new(Arc::clone(&setting), Rc::clone(&recorder));
    let mut alarm = Timer::default();
    let mut breath = MIN_RETRY_DELAY;
    loop {
        if !sender.has_message() && !poll_fn(|cx| sender.poll_claim(cx)).await {
            return;
        }
        let began = clock::now();
        match connect(&setting, &mut alarm, began).await {
            Ok(socket) => {
                breath = MIN_RETRY_DELAY;
                setting.plan.record_connected();
                sender.connection_established(began, clock::now());
                let client = client(&setting, &recorder);
                let patience = setting.options.timeout;
                let talk = ClientSession::new(socket, client, &mut sender, &mut alarm, patience, desk.clone());
                let ended = talk.with_security(setting.transport.security.clone()).run().await;
                sender.connection_ended(&ended);
            }
            Err(error) => {
                count_connect_failure(&setting, &recorder, &error, breath);
                sender.connection_failed(&reason(&error));
                net::sleep(breath).await;
                breath = (breath * 2).min(MAX_RETRY_DELAY);
            }
        }
    }
}

async fn connect(setting: &SourceContext, alarm: &mut Timer, began: Duration) -> io::Result<Socket> {
    let patience = setting.options.connect_timeout;
    let connecting = async {
        let approach = &setting.transport;
        let socket = Socket::connect_to(approach.next_source_address(), &setting.server).await?;
        if let Some(header) = approach.proxy_header(socket.local_address(), setting.server.address()) {
            socket.write_all(&header).await?;
        }
        Ok(socket)
    };
    match alarm.timeout_at(began + patience, Box::pin(connecting)).await {
        Some(outcome) => outcome,
        None => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {patience:?}"))),
    }
}

/// Handles a connection that could not be established. A lack of resources on this side is counted as such, and another
/// session may have them. A run without any connection ends at once for any other reason, and for a lack only if it
/// lasts.
fn count_connect_failure(setting: &SourceContext, recorder: &SourceWorkerState, error: &io::Error, breath: Duration) {
    let plan = &setting.plan;
    let text = reason(error);
    let (resource, hint) = match ResourceExhausted::from_error(error, setting.transport.is_bound()) {
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
    plan.record_shortage(&format!("{text}. {hint}"));
    if breath >= MAX_RETRY_DELAY {
        plan.record_unreachable(&format!("{text}. {hint}"));
    }
}

/// The protocol state of a new connection.
fn client(setting: &SourceContext, recorder: &SourceWorkerState) -> Client {
    let options = &setting.transport.options;
    let nonce = options.credentials.is_some().then(net::nonce);
    Client::with_options(Arc::clone(recorder.hello_name()), Arc::clone(options), nonce, clock::now())
}
