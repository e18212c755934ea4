//! Clients for programs that send a message now and then. A client connects, logs in, sends and quits. [`Client`]
//! blocks its thread, so any program can use it without an event loop. [`AsyncClient`] does not block: it runs in a
//! task of a worker, for example in a handler's answer that takes time. A program with many connections at a time
//! should use [`crate::ClientSession`].
use super::server_session::nonce;
use crate::client_io::{AsyncIo, BlockingIo, ClientIo, run_blocking};
use crate::client_session::{ClientSecurity, is_acceptance};
use crate::tls_setup::ClientTls;
use mailrun_eventloop::{Endpoint, clock};
use mailrun_smtp::client::{
    Client as Session, GaveUp, Options, Outcome, PipelineMode, StartTls, Verb, Violation, Want,
};
use mailrun_smtp::data;
use mailrun_smtp::envelope::Envelope;
use mailrun_smtp::sasl::{Credentials, Mechanism, Mechanisms};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

/// Time that a client waits for each reply by default. RFC 5321 §4.5.3.2 recommends 5 minutes for most replies.
const DEFAULT_REPLY_TIMEOUT: Duration = Duration::from_secs(300);
/// Mechanisms that do not reveal the password. Without TLS, the client uses only these.
const HIDING_MECHANISMS: Mechanisms = Mechanisms::NONE.with(Mechanism::ScramSha256).with(Mechanism::CramMd5);

/// Reason why a session failed. The client cannot be used after any of these errors.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection could not be made, or it broke.
    #[error("network: {0}")]
    Network(#[from] io::Error),
    /// The server did not reply within this time, which [`ClientBuilder::timeout`] sets.
    #[error("no reply within {0:?}")]
    Timeout(Duration),
    /// TLS could not be started, because of this error. If the user can repair the fault, the error contains a
    /// [`mailrun_tls_verify::HandshakeFault`].
    #[error("TLS: {0}")]
    Tls(io::Error),
    /// The server violated the SMTP protocol, so its replies cannot be trusted.
    #[error("{0}")]
    Protocol(#[from] Violation),
    /// The server did not offer STARTTLS or a usable mechanism of AUTH, or rejected the command, so no message was
    /// sent. Without TLS, only SCRAM-SHA-256 and CRAM-MD5 are usable, because they do not reveal the password. Contains
    /// the server's last reply.
    #[error("{0}: {1}")]
    GaveUp(GaveUp, String),
    /// The server ended the session. Contains its last reply, which may say why.
    #[error("the peer closed the session: {0}")]
    Closed(String),
}

/// Result of sending a message, as the server reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendOutcome {
    /// Set if the server took responsibility for the recipients that it accepted.
    pub accepted: bool,
    /// Code of the reply that decided the result, for example the reply to the final dot, or to a refused MAIL.
    pub code: u16,
    /// Text of the same reply, which may tell a person why the server refused the message.
    pub text: String,
    /// Refused recipients: position in the envelope, reply code and reply text of each.
    pub refused: Vec<(u32, u16, String)>,
}

/// Settings with which a client connects. The same settings can be used for several clients.
///
/// ```no_run
/// use mailrun_net::smtp::Envelope;
/// use mailrun_net::smtp::sasl::Credentials;
/// use mailrun_net::{Client, ClientTls};
/// use std::sync::Arc;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut client = Client::builder("me.example.com")
///     .starttls(ClientTls::verified("mail.example.com")?)
///     .login(Credentials::new("me", "secret"))
///     .connect("mail.example.com:587")?;
/// let envelope = Arc::new(Envelope::new("me@example.com", "", ["you@example.org"])?);
/// let outcome = client.send(&envelope, b"Subject: hello\r\n\r\nworld\r\n")?;
/// assert!(outcome.accepted, "{} {}", outcome.code, outcome.text);
/// client.quit()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    name: String,
    reply_timeout: Duration,
    security: Option<ClientSecurity>,
    credentials: Option<Credentials>,
}

impl ClientBuilder {
    /// Sets the longest wait for each reply, which is 5 minutes by default.
    #[must_use]
    pub fn timeout(self, reply_timeout: Duration) -> Self {
        Self { reply_timeout, ..self }
    }

    /// Requires STARTTLS (RFC 3207), which is usual at ports 25 and 587. Without TLS, the client
    /// sends neither credentials nor mail.
    #[must_use]
    pub fn starttls(self, tls: ClientTls) -> Self {
        Self { security: Some(ClientSecurity::OnDemand(tls)), ..self }
    }

    /// Makes the client begin TLS before the greeting (RFC 8314), as is usual at port 465.
    #[must_use]
    pub fn implicit_tls(self, tls: ClientTls) -> Self {
        Self { security: Some(ClientSecurity::Implicit(tls)), ..self }
    }

    /// Makes the client log in with these credentials, and send mail only if the login succeeds. Without TLS, only
    /// mechanisms that do not reveal the password are used.
    #[must_use]
    pub fn login(self, credentials: Credentials) -> Self {
        Self { credentials: Some(credentials), ..self }
    }

    /// Connects to the first of the addresses that accepts the connection, and sets up the session.
    /// Blocks until the session is ready.
    ///
    /// # Errors
    /// Returns an [`Error`] if no address accepts the connection, or if the greeting, EHLO, TLS or the login fails. If
    /// the server's greeting is a refusal such as 554, the error is [`Error::Closed`].
    pub fn connect(&self, address: impl ToSocketAddrs) -> Result<Client, Error> {
        let io = BlockingIo::connect(address, self.reply_timeout).map_err(|error| self.timeout_error(error))?;
        Ok(Client(run_blocking(Dialogue::begin(io, self))?))
    }

    /// Connects and sets up the session without blocking. Must be called in a task of a worker, because it needs the
    /// event loop.
    ///
    /// # Errors
    /// Fails as [`ClientBuilder::connect`] does, for example if the login fails.
    pub async fn connect_async(&self, server: &Endpoint) -> Result<AsyncClient, Error> {
        let io = AsyncIo::connect(server, self.reply_timeout).await.map_err(|error| self.timeout_error(error))?;
        Ok(AsyncClient(Dialogue::begin(io, self).await?))
    }

    fn session(&self) -> Session {
        let credentials = self.credentials.clone().map(|credentials| match self.security {
            Some(_) => credentials,
            None => {
                let hiding = credentials.mechanisms.and(HIDING_MECHANISMS);
                credentials.by(hiding)
            }
        });
        let tls = match self.security {
            Some(ClientSecurity::OnDemand(_)) => StartTls::Required,
            Some(ClientSecurity::Implicit(_)) | None => StartTls::Never,
        };
        let nonce = credentials.is_some().then(nonce);
        let options = Options { pipelining: PipelineMode::Group, tls, credentials, ..Options::default() };
        Session::with_options(self.name.as_str().into(), Arc::new(options), nonce, clock::now())
    }

    fn timeout_error(&self, error: io::Error) -> Error {
        timeout_error(error, self.reply_timeout)
    }
}

/// A client with an established session. Its methods block until the server has replied.
#[derive(Debug)]
pub struct Client(Dialogue<BlockingIo>);

impl Client {
    /// Returns a builder with default settings, for a client that calls itself `name` in EHLO.
    pub fn builder(name: &str) -> ClientBuilder {
        ClientBuilder { name: name.to_owned(), reply_timeout: DEFAULT_REPLY_TIMEOUT, security: None, credentials: None }
    }

    /// Connects without TLS, and calls itself `name` in EHLO. Each reply may take up to `reply_timeout`.
    ///
    /// # Errors
    /// Fails as [`ClientBuilder::connect`] does, for example if the server refuses the connection.
    pub fn connect(address: SocketAddr, name: &str, reply_timeout: Duration) -> Result<Self, Error> {
        Self::builder(name).timeout(reply_timeout).connect(address)
    }

    /// Sends a message whose lines end in `<CRLF>`, and adds dot-stuffing.
    ///
    /// # Errors
    /// Returns an [`Error`] if the session broke. A refusal by the server is not an error, but a
    /// [`SendOutcome`].
    pub fn send(&mut self, envelope: &Arc<Envelope>, message: &[u8]) -> Result<SendOutcome, Error> {
        run_blocking(self.0.send(envelope, message))
    }

    /// Sends QUIT and waits for the reply.
    ///
    /// # Errors
    /// Returns an [`Error`] if the reply does not arrive. This does not affect messages that the
    /// server has already accepted.
    pub fn quit(mut self) -> Result<(), Error> {
        run_blocking(self.0.quit())
    }

    /// Returns true if the connection uses TLS, either from the beginning or since STARTTLS.
    pub fn is_encrypted(&self) -> bool {
        self.0.io.is_encrypted()
    }
}

/// A non-blocking client with an established session, made by [`ClientBuilder::connect_async`]. Only the task that made
/// the client may use it, because events of the connection wake no other task.
#[derive(Debug)]
pub struct AsyncClient(Dialogue<AsyncIo>);

impl AsyncClient {
    /// Sends a message whose lines end in `<CRLF>`, and adds dot-stuffing.
    ///
    /// # Errors
    /// Returns the same errors as [`Client::send`].
    pub async fn send(&mut self, envelope: &Arc<Envelope>, message: &[u8]) -> Result<SendOutcome, Error> {
        self.0.send(envelope, message).await
    }

    /// Sends QUIT and waits for the reply.
    ///
    /// # Errors
    /// Returns the same errors as [`Client::quit`].
    pub async fn quit(mut self) -> Result<(), Error> {
        self.0.quit().await
    }

    /// Returns true if the connection uses TLS, either from the beginning or since STARTTLS.
    pub fn is_encrypted(&self) -> bool {
        self.0.io.is_encrypted()
    }
}

#[derive(Debug, Default)]
struct TransactionReplies {
    outcome: Option<(Outcome, u16, String)>,
    /// Reply that rejected MAIL. It is the result of the message, because the later replies to the pipelined RCPT and
    /// DATA only follow from it.
    mail_refused: Option<(u16, String)>,
    refused: Vec<(u32, u16, String)>,
    last: String,
}

impl TransactionReplies {
    fn record(&mut self, to: Verb, code: u16, text: String, ends: Option<Outcome>) {
        self.last = format!("{code} {text}");
        if let Some(outcome) = ends {
            self.outcome = Some((outcome, code, text));
        } else if code >= 400 {
            match to {
                Verb::Mail => self.mail_refused = Some((code, text)),
                Verb::Recipient(number) => self.refused.push((number, code, text)),
                _ => {}
            }
        }
    }

    /// Returns the result of the message, or an error if the server closed the session before the result was known.
    fn into_outcome(self) -> Result<SendOutcome, Error> {
        let (outcome, code, text) = self.outcome.ok_or(Error::Closed(self.last))?;
        let accepted = outcome == Outcome::Accepted;
        let (code, text) = self.mail_refused.filter(|_| !accepted).unwrap_or((code, text));
        Ok(SendOutcome { accepted, code, text, refused: self.refused })
    }
}

#[derive(Debug)]
struct Dialogue<I> {
    io: I,
    session: Session,
    reply_timeout: Duration,
    security: Option<ClientSecurity>,
}

impl<I: ClientIo> Dialogue<I> {
    /// Sets up the session: greeting, EHLO, TLS and AUTH.
    async fn begin(io: I, settings: &ClientBuilder) -> Result<Self, Error> {
        let mut dialogue = Self {
            io,
            session: settings.session(),
            reply_timeout: settings.reply_timeout,
            security: settings.security.clone(),
        };
        if let Some(ClientSecurity::Implicit(tls)) = dialogue.security.clone() {
            dialogue.start_tls(&tls).await?;
        }
        dialogue.read_until(|want| want == Want::Transaction, &mut |_, _, _, _| {}).await?;
        Ok(dialogue)
    }

    async fn send(&mut self, envelope: &Arc<Envelope>, message: &[u8]) -> Result<SendOutcome, Error> {
        let mut replies = TransactionReplies::default();
        let mut out = Vec::new();
        self.session.begin(Arc::clone(envelope), clock::now(), &mut out);
        self.write(&out).await?;
        self.read_replies(&mut replies).await?;
        if self.session.wants() == Want::Message {
            out.clear();
            data::stuff(message, &mut out);
            out.extend_from_slice(data::END_OF_DATA);
            self.write(&out).await?;
            self.session.message_sent(clock::now());
            self.read_replies(&mut replies).await?;
        }
        replies.into_outcome()
    }

    async fn quit(&mut self) -> Result<(), Error> {
        let mut out = Vec::new();
        self.session.quit(clock::now(), &mut out);
        self.write(&out).await?;
        match self.read_until(|want| want == Want::Close, &mut |_, _, _, _| {}).await {
            Ok(()) | Err(Error::Closed(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.io.write_all(bytes).await.map_err(|error| timeout_error(error, self.reply_timeout))
    }

    async fn start_tls(&mut self, tls: &ClientTls) -> Result<(), Error> {
        self.io.start_tls(tls).await.map_err(|error| match timeout_error(error, self.reply_timeout) {
            Error::Network(error) => Error::Tls(error),
            timeout => timeout,
        })?;
        let mut out = Vec::new();
        self.session.tls_started(clock::now(), &mut out);
        self.write(&out).await
    }

    async fn read_replies(&mut self, replies: &mut TransactionReplies) -> Result<(), Error> {
        self.read_until(|want| want != Want::Replies, &mut |to, code, text, ends| replies.record(to, code, text, ends))
            .await
    }

    /// Continues the session until `wanted` returns true for the session's next step. Reads replies, passes each of
    /// them to `note`, and sends the commands that follow. Begins TLS when that is the next step.
    async fn read_until(
        &mut self,
        wanted: impl Fn(Want) -> bool,
        note: &mut impl FnMut(Verb, u16, String, Option<Outcome>),
    ) -> Result<(), Error> {
        let mut buffer = [0; 4096];
        let mut last = String::new();
        while !wanted(self.session.wants()) {
            match (self.session.wants(), self.security.clone()) {
                (Want::Close, _) => return Err(self.end_error(last)),
                (Want::Tls, Some(ClientSecurity::OnDemand(tls))) => {
                    self.start_tls(&tls).await?;
                    continue;
                }
                _ => {}
            }
            let count = match self.io.read(&mut buffer).await {
                Ok(0) => return Err(self.close_error(io::ErrorKind::UnexpectedEof.into(), last)),
                Ok(count) => count,
                Err(error) => return Err(self.close_error(error, last)),
            };
            let mut input = &buffer[..count];
            let mut out = Vec::new();
            loop {
                let is_last = self.session.awaits_last_reply_to_message();
                let Some(event) = self.session.next_event(&mut input, clock::now(), &mut out)? else { break };
                if is_last && is_acceptance(&event) && self.io.is_reset() {
                    return Err(Violation::Reset(event.reply.code()).into());
                }
                // Keep the reply before QUIT as the last reply, because the reply to QUIT does not say why the session
                // ended.
                if event.to != Verb::Quit {
                    last = format!("{} {}", event.reply.code(), event.reply.text());
                }
                note(event.to, event.reply.code(), event.reply.text(), event.ends);
            }
            if let Err(error) = self.io.write_all(&out).await {
                return Err(self.close_error(error, last));
            }
        }
        Ok(())
    }

    /// Returns the error for a session that is over, with the server's last reply. If the client gave up, the error
    /// also has the client's reason.
    fn end_error(&self, last: String) -> Error {
        match self.session.gave_up() {
            Some(reason) => Error::GaveUp(reason, last),
            None => Error::Closed(last),
        }
    }

    /// Returns the error for a broken connection. If the client had already sent QUIT because the server refused
    /// service, returns an error with the server's refusal instead, because the refusal ended the session.
    fn close_error(&self, error: io::Error, last: String) -> Error {
        match self.session.waits_for() {
            Some(Verb::Quit) if !last.is_empty() => self.end_error(last),
            _ => timeout_error(error, self.reply_timeout),
        }
    }
}

/// Converts a time-out of the connection to [`Error::Timeout`]. A blocking socket reports its
/// time-outs as `WouldBlock`.
fn timeout_error(error: io::Error, timeout: Duration) -> Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Timeout(timeout),
        _ => Error::Network(error),
    }
}
