//! The embeddable server, whose workers accept and serve connections.
use crate::client_limits::{ClientLimits, Clients};
use crate::dialogue_log::DialogueLog;
use crate::handler::{CloseReason, Peer, Service};
use crate::message_handler::{BufferBudget, DEFAULT_MESSAGE_BYTES, MessageHandler, MessageService};
use crate::proxy_header::Proxied;
use crate::server_session::{AdmitClient, ClientAdmission, ServerSession};
use crate::session_slot::{ClientClass, SessionSlot, SessionSlots, WorkerSessions};
use crate::tls_setup::ServerSecurity;
use crate::worker::{self, WorkerBuffers};
use mailrun_eventloop::{Acceptor, BusyPoll, Endpoint, FdTable, Socket, WorkerOptions, clock, listener, sleep};
use mailrun_smtp::limits::Limits;
use mailrun_smtp::reply_reason::ReplyReason;
use mailrun_smtp::sasl::Mechanisms;
use mailrun_smtp::server::{Offer, ServerSettings};
use rustix::fd::OwnedFd;
use rustix::net::{SendFlags, send};
use std::io;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;

const TICK_INTERVAL: Duration = Duration::from_millis(250);
/// Time that clients have to send QUIT after the stop was requested. Sessions that are still open then get 421.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(300);
/// Time after the request to stop in which handlers can still decide about messages that have arrived completely.
/// Without this time, a client could get 421 although the handler stores its message, and would send the message again.
const DECISION_TIMEOUT: Duration = Duration::from_secs(10);
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Pause after a failed accept. Without it, a worker without a free file descriptor would try again in a busy loop.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);

type OfferChange = Box<dyn FnOnce(&mut Offer)>;

/// Settings of a server before it is started.
///
/// ```no_run
/// use mailrun_net::{Answer, Handler, Server};
/// use std::time::Duration;
///
/// struct FullHandler;
///
/// impl Handler for FullHandler {
///     fn message(&mut self, _bytes: u64, _now: Duration) -> Answer {
///         Answer::reply(452, "4.3.1 Nothing can be stored here")
///     }
/// }
///
/// let server = Server::new(|| |_peer| FullHandler).start("127.0.0.1:2525".parse().unwrap()).unwrap();
/// println!("listening on {}", server.address());
/// server.wait();
/// ```
pub struct Server<S, M> {
    make: M,
    name: String,
    limits: Limits,
    workers: usize,
    sessions: usize,
    clients: Arc<Clients>,
    security: ServerSecurity,
    proxied: Proxied,
    worker_options: WorkerOptions,
    dialogue: Option<Arc<DialogueLog>>,
    offer_change: Option<OfferChange>,
    service: PhantomData<fn() -> S>,
}

impl Server<(), ()> {
    /// Creates a server that gives whole messages to `handler`. Each session gets a clone of the handler. A message may
    /// have at most 32 MiB ([`Server::limits`]). All messages that are being received at the same time may take at most
    /// 512 MiB together ([`BufferBudget`]). DSN is not offered, because the handler does not see requests for
    /// notifications.
    pub fn for_messages<H: MessageHandler + Clone + Send>(
        handler: H,
    ) -> Server<MessageService<H>, impl Fn() -> MessageService<H> + Clone + Send + 'static> {
        let service = MessageService::new(handler, BufferBudget::default());
        Server::new(move || service.clone())
            .limits(Limits { message_bytes: DEFAULT_MESSAGE_BYTES, ..Limits::default() })
            .offer(|offer| offer.extensions.dsn = false)
    }
}

impl<S: Service, M: Fn() -> S + Clone + Send + 'static> Server<S, M> {
    /// Creates a server with default settings, which the methods below change. Each worker calls `make` once on its own
    /// thread, to get its service.
    pub fn new(make: M) -> Self {
        Self {
            make,
            name: "mailrun".to_owned(),
            limits: Limits::default(),
            workers: worker::default_count(),
            sessions: 100_000,
            clients: Arc::new(Clients::new(ClientLimits::default())),
            security: ServerSecurity::None,
            proxied: Proxied::No,
            worker_options: WorkerOptions::default(),
            dialogue: None,
            offer_change: None,
            service: PhantomData,
        }
    }

    /// Sets the host name with which the server introduces itself to its clients, for example in the greeting.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Sets the limits that apply to each session, such as the maximum size of a message.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the number of threads that serve sessions, at least one. The default is half the number of processors,
    /// because the peer often runs on the same host.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Sets the maximum number of sessions at a time, over all workers (100,000 by default). Further clients get 421.
    /// The last quarter of the sessions is reserved for clients that are [exempt](Service::is_exempt).
    #[must_use]
    pub fn sessions(mut self, sessions: usize) -> Self {
        self.sessions = sessions;
        self
    }

    /// Sets the limits for each client address. They do not apply to [exempt](Service::is_exempt) clients.
    #[must_use]
    pub fn client_limits(self, limits: ClientLimits) -> Self {
        self.clients(Arc::new(Clients::new(limits)))
    }

    /// Sets limits that several servers share, so that a client does not have a full allowance at each server.
    #[must_use]
    pub fn clients(mut self, clients: Arc<Clients>) -> Self {
        self.clients = clients;
        self
    }

    /// Sets when sessions begin TLS. By default, they never do. With [`ServerSecurity::Offered`], the reply to EHLO
    /// lists STARTTLS.
    #[must_use]
    pub fn security(mut self, security: ServerSecurity) -> Self {
        self.security = security;
        self
    }

    /// Sets whether all connections come through a proxy. If so, the server expects a PROXY header at the beginning of
    /// each connection.
    #[must_use]
    pub fn proxied(mut self, proxied: Proxied) -> Self {
        self.proxied = proxied;
        self
    }

    /// Sets whether the workers share the process's table of file descriptors. [`FdTable::Private`] is faster, and
    /// suits programs that only run a server. With [`FdTable::Private`], the listening socket stays open until the
    /// process ends. Handlers must then not use descriptors that another thread opens after the server was started,
    /// because the workers do not see them.
    #[must_use]
    pub fn fd_table(mut self, files: FdTable) -> Self {
        self.worker_options.fd_table = files;
        self
    }

    /// Sets how long workers look for events before they sleep. A longer time reduces delays if there are few sessions,
    /// but occupies a processor.
    #[must_use]
    pub fn busy_poll(mut self, busy_poll: BusyPoll) -> Self {
        self.worker_options.busy_poll = busy_poll;
        self
    }

    /// Sets the log that shows the dialogues of the server's sessions, or `None` for no log, which is the default.
    #[must_use]
    pub fn dialogue(mut self, log: Option<Arc<DialogueLog>>) -> Self {
        self.dialogue = log;
        self
    }

    /// Changes what the server offers and requires, such as AUTH, XCLIENT or LMTP. If this is called several times, the
    /// changes are applied in the order of the calls.
    #[must_use]
    pub fn offer(mut self, change: impl FnOnce(&mut Offer) + 'static) -> Self {
        self.offer_change = Some(match self.offer_change.take() {
            None => Box::new(change),
            Some(earlier) => Box::new(|offer| {
                earlier(offer);
                change(offer);
            }),
        });
        self
    }

    /// Offers AUTH with these mechanisms over TLS. The server also needs [`Server::security`], and
    /// a handler that checks names and secrets.
    #[must_use]
    pub fn auth(self, mechanisms: Mechanisms) -> Self {
        self.offer(move |offer| {
            offer.extensions.auth = mechanisms;
            offer.requires.tls_for_auth = true;
        })
    }

    /// Listens at a TCP address, and starts the workers. All of them accept clients when this returns.
    ///
    /// # Errors
    /// Fails if the server cannot listen at the address, or if a worker cannot be started.
    pub fn start(self, address: SocketAddr) -> io::Result<RunningServer> {
        self.start_at(&address.into())
    }

    /// Listens at a TCP address or a unix-domain socket, and serves.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Server::start`].
    pub fn start_at(self, endpoint: &Endpoint) -> io::Result<RunningServer> {
        let (listener, endpoint) = listener::listen_at(endpoint)?;
        self.serve_on(listener, endpoint, SocketOwner::Server)
    }

    /// Serves on a socket that is already listening, for example from systemd's socket activation. If the endpoint is a
    /// path, the server leaves it in place when it ends, because another program has created the socket.
    ///
    /// # Errors
    /// Fails if the socket's options cannot be set, or if a worker cannot be started.
    pub fn start_on(self, listener: OwnedFd, endpoint: Endpoint) -> io::Result<RunningServer> {
        listener::adopt(&listener, &endpoint)?;
        self.serve_on(listener, endpoint, SocketOwner::Other)
    }

    fn serve_on(mut self, listener: OwnedFd, endpoint: Endpoint, owner: SocketOwner) -> io::Result<RunningServer> {
        let options = self.worker_options;
        let settings = Arc::new(self.settings());
        let (stop, stopped) = watch::channel(false);
        let slots = Arc::new(SessionSlots::new(self.sessions));
        let mut running = RunningServer { endpoint, owner, stop, workers: Vec::new() };
        let begins = (0..self.workers)
            .map(|number| {
                let settings = settings.clone();
                let slots = slots.clone();
                let security = self.security.clone();
                let proxied = self.proxied;
                let listener = listener.try_clone()?;
                let (clients, dialogue) = (Arc::clone(&self.clients), self.dialogue.clone());
                let context = ServerContext { settings, security, proxied, slots, clients, dialogue };
                let make = self.make.clone();
                let stopped = stopped.clone();
                let (begun, begins) = channel();
                let serve = move |worker_buffers| serve(listener, context, make, stopped, begun, worker_buffers);
                running.workers.push(worker::spawn(&format!("serve-{number}"), options, serve)?);
                Ok(begins)
            })
            .collect::<io::Result<Vec<_>>>()?;
        match begins.iter().position(|begins| begins.recv().is_err()) {
            Some(number) => Err(startup_error(running.workers.swap_remove(number))),
            None => Ok(running),
        }
    }

    fn settings(&mut self) -> ServerSettings {
        let mut offer = Offer::new(&self.limits);
        offer.extensions.starttls = matches!(self.security, ServerSecurity::Offered(_));
        if let Some(change) = self.offer_change.take() {
            change(&mut offer);
        }
        ServerSettings::with_offer(&self.name, self.limits.clone(), offer)
    }
}

/// Returns the reason why a worker ended before it was listening, usually a lack of file descriptors.
fn startup_error(worker: WorkerHandle) -> io::Error {
    match worker.join() {
        Ok(Err(error) | Ok(Err(error))) => error,
        _ => io::Error::other("a worker ended before it listened"),
    }
}

/// Join handle of a worker's thread. The outer result is an error if the event loop failed, and the inner result if the
/// worker could not listen.
type WorkerHandle = JoinHandle<io::Result<io::Result<()>>>;

/// Tells who created the listening socket. If it is a unix-domain socket, its creator must remove the path when the
/// server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketOwner {
    Server,
    Other,
}

/// A running server, which stops when this value is dropped.
#[derive(Debug)]
pub struct RunningServer {
    endpoint: Endpoint,
    owner: SocketOwner,
    stop: watch::Sender<bool>,
    workers: Vec<WorkerHandle>,
}

impl RunningServer {
    /// Returns the endpoint at which the server listens, with the port that the kernel chose for port 0.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the address at which the server listens. For a unix-domain socket, this is `0.0.0.0:0`.
    pub fn address(&self) -> SocketAddr {
        self.endpoint.address()
    }

    /// Tells the workers to stop, and does not wait for them. A program with several servers should call this for all
    /// of them before it calls [`RunningServer::stop`] for the first. Otherwise the other servers would still accept
    /// clients while the first one stops.
    pub fn begin_stop(&self) {
        self.stop.send_replace(true);
    }

    /// Stops the server and waits for its workers. They accept no more connections, and give the sessions 300 ms to end
    /// by themselves. If a handler is still deciding about a message ([`Answer::Later`](crate::Answer::Later)), its
    /// worker waits for the answer until 10 s after the stop. All remaining sessions get 421.
    pub fn stop(self) {
        self.begin_stop();
        self.wait();
    }

    /// Waits until all workers have ended. Unless the server was told to stop, they end only after a failure.
    pub fn wait(mut self) {
        for worker in std::mem::take(&mut self.workers) {
            // Ignore a panic, because the worker has already reported it on standard error.
            let _ = worker.join();
        }
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        if let (Endpoint::Unix(path), SocketOwner::Server) = (&self.endpoint, self.owner) {
            // Ignore an error, because the socket may already be gone.
            let _ = std::fs::remove_file(path);
        }
        self.begin_stop();
    }
}

struct ServerContext {
    settings: Arc<ServerSettings>,
    security: ServerSecurity,
    proxied: Proxied,
    slots: Arc<SessionSlots>,
    clients: Arc<Clients>,
    dialogue: Option<Arc<DialogueLog>>,
}

async fn serve<S: Service>(
    listener: OwnedFd,
    context: ServerContext,
    make: impl Fn() -> S,
    mut stopped: watch::Receiver<bool>,
    begun: Sender<()>,
    worker_buffers: WorkerBuffers,
) -> io::Result<()> {
    let service = Rc::new(make());
    let acceptor = Acceptor::new(listener)?;
    // Ignore an error. It means that the starting thread no longer waits, because another worker has failed.
    let _ = begun.send(());
    let sessions = Rc::new(WorkerSessions::default());
    tokio::select! {
        () = accept(&acceptor, &context, &service, &worker_buffers, &sessions) => {}
        () = tick_forever(&service) => {}
        _ = stopped.wait_for(|stop| *stop) => {}
    }
    drop(acceptor);
    let stopped_at = clock::now();
    wait_while(|| sessions.are_open(), stopped_at + DRAIN_TIMEOUT).await;
    sessions.close();
    wait_while(|| sessions.are_deciding(), stopped_at + DECISION_TIMEOUT).await;
    // Sessions that are still open send 421 when this worker ends and drops them.
    service.drain().await;
    service.tick(clock::now());
    Ok(())
}

async fn wait_while(condition: impl Fn() -> bool, latest: Duration) {
    while condition() && clock::now() < latest {
        sleep(DRAIN_POLL_INTERVAL).await;
    }
}

async fn tick_forever<S: Service>(service: &Rc<S>) {
    loop {
        sleep(TICK_INTERVAL).await;
        service.tick(clock::now());
    }
}

async fn accept<S: Service>(
    acceptor: &Acceptor,
    place: &ServerContext,
    service: &Rc<S>,
    desk: &WorkerBuffers,
    sessions: &Rc<WorkerSessions>,
) {
    let admit_named: AdmitClient = {
        let (clients, service) = (Arc::clone(&place.clients), Rc::clone(service));
        Rc::new(move |address| admit(&clients, classify(&*service, address), address))
    };
    loop {
        let (descriptor, address) = match acceptor.accept().await {
            Ok(client) => client,
            Err(error) => {
                service.accept_failed(&error);
                sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let client = classify(&**service, address.ip());
        let (client, admission) = match place.proxied {
            Proxied::No => (client, admit(&place.clients, client, address.ip())),
            // Do not count the proxy's address. The session counts the client when the PROXY header has named it.
            Proxied::Yes => (ClientClass::Exempt, Ok(None)),
        };
        let outcome = match admission {
            Err(limit) => Err(limit.reply()),
            Ok(admission) => SessionSlot::acquire(&place.slots, sessions, client)
                .map(|slot| (admission, slot))
                .ok_or(ReplyReason::TooManySessions.reply()),
        };
        let dialogue = place.dialogue.as_ref().and_then(|log| log.session(address));
        let (admission, slot) = match outcome {
            Ok(admitted) => admitted,
            Err(reply) => {
                if let Some(mut dialogue) = dialogue {
                    dialogue.server(reply.wire());
                    dialogue.closed(CloseReason::HungUp);
                }
                // Ignore an error. Even without the reply, the client notices that the connection is closed.
                let _ = send(&descriptor, reply.wire(), SendFlags::NOSIGNAL);
                continue;
            }
        };
        let handler = service.session(Peer { address });
        let settings = place.settings.clone();
        let worker_buffers = desk.clone();
        let security = place.security.clone();
        let proxied = place.proxied;
        let admit_named = Rc::clone(&admit_named);
        worker::spawn_local(async move {
            // If epoll cannot watch the connection, close it immediately.
            if let Ok(socket) = Socket::from_accepted(descriptor) {
                let session =
                    ServerSession::new(socket.into(), handler, settings, security, worker_buffers, admit_named, slot);
                session.admitted(admission).shown(dialogue).run(proxied).await;
            }
        });
    }
}

/// Returns whether a client is exempt from the limits. Clients of a unix-domain socket, which have no address, are
/// always exempt, because the permissions of the socket have admitted them.
fn classify<S: Service>(service: &S, address: IpAddr) -> ClientClass {
    let is_exempt = address.is_unspecified() || service.is_exempt(address);
    if is_exempt { ClientClass::Exempt } else { ClientClass::Limited }
}

fn admit(clients: &Arc<Clients>, client: ClientClass, address: IpAddr) -> ClientAdmission {
    match client {
        ClientClass::Exempt => Ok(None),
        ClientClass::Limited => clients.admit(address, clock::now()).map(Some),
    }
}
