//! A session: takes up messages, connects for them, and sends them, until there are no more.
use super::Setting;
use super::sender::Sender;
use super::worker::Recorder;
use crate::reason::reason;
use journey::record::Resource;
use net::{Alarm, Conversation, Desk, Shortage, Socket, clock};
use smtp::client::Client;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Pause before the next try after a connection could not be established; doubled up to the longest.
const FIRST_BREATH: Duration = Duration::from_millis(10);
const LONGEST_BREATH: Duration = Duration::from_secs(1);

/// Runs one of the parallel sessions.
pub(super) async fn run(setting: Arc<Setting>, recorder: Rc<Recorder>, desk: Desk) {
    let mut sender = Sender::new(Arc::clone(&setting), Rc::clone(&recorder));
    let mut alarm = Alarm::default();
    let mut breath = FIRST_BREATH;
    loop {
        if !sender.has_job() && !poll_fn(|cx| sender.poll_take_up(cx)).await {
            return;
        }
        let began = clock::now();
        match connect(&setting, &mut alarm, began).await {
            Ok(socket) => {
                breath = FIRST_BREATH;
                setting.plan.reach();
                sender.connected(began, clock::now());
                let client = client(&setting, &recorder);
                let patience = setting.options.timeout;
                let talk = Conversation::new(socket, client, &mut sender, &mut alarm, patience, desk.clone());
                let ended = talk.secured(setting.approach.security.clone()).run().await;
                sender.ended(&ended);
            }
            Err(error) => {
                missed(&setting, &recorder, &error, breath);
                sender.not_connected(&reason(&error));
                net::sleep(breath).await;
                breath = (breath * 2).min(LONGEST_BREATH);
            }
        }
    }
}

async fn connect(setting: &Setting, alarm: &mut Alarm, began: Duration) -> io::Result<Socket> {
    let patience = setting.options.connect_timeout;
    let connecting = async {
        let approach = &setting.approach;
        let socket = Socket::connect_to(approach.next_address(), &setting.server).await?;
        if let Some(header) = approach.proxy_header(socket.local_address(), setting.server.address()) {
            socket.write_all(&header).await?;
        }
        Ok(socket)
    };
    match alarm.limit(began + patience, Box::pin(connecting)).await {
        Some(outcome) => outcome,
        None => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {patience:?}"))),
    }
}

/// Handles a connection that could not be established. A lack of resources on this side is counted as such, and another
/// session may have them. A run without any connection ends at once for any other reason, and for a lack only if it
/// lasts.
fn missed(setting: &Setting, recorder: &Recorder, error: &io::Error, breath: Duration) {
    let plan = &setting.plan;
    let text = reason(error);
    let (resource, hint) = match Shortage::of(error, setting.approach.is_bound()) {
        None if error.kind() == io::ErrorKind::AddrNotAvailable => {
            return plan.miss(&format!("{text}. Check that this host has all addresses of --bind."));
        }
        None => return plan.miss(&format!("{text}. Check that a server listens there.")),
        Some(Shortage::Descriptors) => (Resource::Descriptors, "Raise `ulimit -n`."),
        Some(Shortage::HostDescriptors) => (Resource::HostDescriptors, "Raise the sysctl fs.file-max."),
        Some(Shortage::Ports) => {
            (Resource::Ports, "Either no local port is free, or this host has no route to this address.")
        }
    };
    recorder.tally(|tally| tally.shortages.add(resource));
    plan.lack(&format!("{text}. {hint}"));
    if breath >= LONGEST_BREATH {
        plan.miss(&format!("{text}. {hint}"));
    }
}

/// The protocol state of a new connection.
fn client(setting: &Setting, recorder: &Recorder) -> Client {
    let options = &setting.approach.options;
    let nonce = options.credentials.is_some().then(net::nonce);
    Client::with_options(Arc::clone(recorder.name()), Arc::clone(options), nonce, clock::now())
}
