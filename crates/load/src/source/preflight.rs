//! Tries one connection before the load: greeting, EHLO, TLS, AUTH, MAIL, RCPT, RSET and QUIT. A failure of this trial
//! would affect every message, so the source reports it in one line, with advice, and sends no load.
//!
//! The trial sends no message, and its commands and replies do not count in the results of the run. A 4xx reply to MAIL
//! or RCPT does not stop the run, because greylisting and limits cause such replies.
use super::envelopes::{EnvelopeBuffer, EnvelopeInput, Envelopes};
use super::message_set::MessageSet;
use super::options::SourceOptions;
use super::transport::{REMEDIES, Transport};
use anyhow::{Result, bail};
use mailrun_measurement::record::ServerRow;
use mailrun_net::{
    ClientSession, Endpoint, MessageSource, NextAction, Outbox, ResourceExhausted, SessionEnd, Timer, WorkerBuffers,
    clock,
};
use mailrun_process::interrupt::{Interrupt, Interrupted, StopRequest};
use mailrun_process::reason::reason;
use mailrun_process::start_wait::{StartWait, is_not_listening};
use mailrun_process::tls_mode::TlsMode;
use mailrun_smtp::Envelope;
use mailrun_smtp::client::{Client, Event, GaveUp, Options, PipelineMode, Verb};
use mailrun_smtp::server::Protocol;
use mailrun_tls_verify::HandshakeFault;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Time limit for each reply of the server in the trial before the load. If a server takes longer to greet, the user
/// should know that before the load.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of the server's extensions that the run record lists, from the reply to EHLO.
const MAX_EXTENSIONS: usize = 50;
/// Maximum number of characters of a text from the server, such as its greeting, that the run record contains.
const MAX_TEXT_CHARS: usize = 200;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct PreflightCheck {
    pub(super) options: SourceOptions,
    pub(super) server: Endpoint,
    pub(super) transport: Transport,
    pub(super) messages: MessageSet,
    pub(super) envelopes: Envelopes,
}

#[derive(Clone, Debug)]
struct RejectedCommand {
    verb: Verb,
    code: u16,
    text: String,
}

struct PreflightResult {
    ended: SessionEnd,
    rejections: Vec<RejectedCommand>,
    recipients: usize,
    server: ServerRow,
}

impl PreflightCheck {
    /// Runs the trial and returns the server's greeting and extensions. Returns `None` if this host lacks a resource
    /// for the trial: the load then fails for the same reason and reports it.
    ///
    /// # Errors
    ///
    /// Fails if every message of the load would fail. The error text contains advice.
    pub(super) fn check(self: &Arc<Self>, interrupt: &Interrupt, wait: StartWait) -> Result<Option<ServerRow>> {
        loop {
            let trial = Arc::clone(self);
            let interrupt = *interrupt;
            let ran = mailrun_net::worker::run(|buffers| async move {
                tokio::select! {
                    attempt = trial.attempt(buffers) => Some(attempt),
                    () = wait_for_interrupt(&interrupt) => None,
                }
            });
            match ran {
                Ok(Some(Err(error))) if is_not_listening(&error) && wait.pause() => {}
                Ok(outcome) => return self.evaluate(outcome),
                // If the event loop cannot start, skip the trial without an error. The load also needs an event loop,
                // so it will report the failure.
                Err(_) => return Ok(None),
            }
        }
    }

    /// Turns the outcome of the trial into the result of [`Self::check`]. The outcome is `None` if the user has
    /// interrupted the trial.
    fn evaluate(&self, outcome: Option<io::Result<PreflightResult>>) -> Result<Option<ServerRow>> {
        let to = &self.options.to;
        match outcome {
            None => Err(Interrupted::BEFORE_LOAD.into()),
            Some(Err(error)) => match self.connect_failure(&error) {
                Some(reason) => bail!("cannot reach {to}: {reason}"),
                None => Ok(None),
            },
            Some(Ok(attempt)) => match self.failure(&attempt) {
                Some(reason) => bail!("cannot send to {to}: {reason}"),
                None => Ok(Some(attempt.server)),
            },
        }
    }

    async fn attempt(&self, buffers: WorkerBuffers) -> io::Result<PreflightResult> {
        let mut timer = Timer::default();
        let socket = self.transport.connect(&self.server, self.options.connect_timeout, &mut timer).await?;
        let requested = &self.transport.options;
        let options = Arc::new(Options { pipelining: PipelineMode::Off, ..Options::clone(requested) });
        let nonce = options.credentials.is_some().then(mailrun_net::nonce);
        let name = self.options.hello.as_str().into();
        let client = Client::with_options(name, options, nonce, clock::now()).probing();
        let mut prober = Prober {
            check: self,
            envelope_buffer: EnvelopeBuffer::default(),
            envelope: None,
            rejections: Vec::new(),
            server: ServerRow::default(),
        };
        let timeout = self.options.timeout.min(REPLY_TIMEOUT);
        let session = ClientSession::new(socket, client, &mut prober, &mut timer, timeout, buffers);
        let ended = session.with_security(self.transport.security.clone()).run().await;
        let recipients = prober.envelope.as_ref().map_or(0, |envelope| envelope.recipients());
        Ok(PreflightResult { ended, rejections: prober.rejections, recipients, server: prober.server })
    }

    /// Explains why the trial could not connect. Returns `None` if this host lacks a resource or an address of
    /// `--bind`: the load then fails for the same reason and reports it.
    fn connect_failure(&self, error: &io::Error) -> Option<String> {
        let is_own = ResourceExhausted::from_error(error, self.transport.is_bound()).is_some();
        let is_own = is_own || error.kind() == io::ErrorKind::AddrNotAvailable;
        (!is_own).then(|| format!("{}. Check that a server listens there.", reason(error)))
    }

    /// Returns a description of the first failure that would affect every message, if there is one. The description
    /// contains advice.
    fn failure(&self, attempt: &PreflightResult) -> Option<String> {
        let refused = |is_meant: fn(Verb) -> bool| attempt.rejections.iter().find(|refusal| is_meant(refusal.verb));
        if let Some(refusal) = refused(|verb| verb == Verb::Greeting) {
            return Some(format!(
                "it rejects this client ({}). Check that this host is allowed to connect.",
                refusal.describe()
            ));
        }
        match &attempt.ended {
            SessionEnd::GaveUp(cause) => return Some(self.setup_failure(*cause, attempt)),
            SessionEnd::TlsFailed(error) => return Some(self.tls_failure(error)),
            SessionEnd::Lost(_, error) if error.kind() == io::ErrorKind::InvalidData => {
                return Some(self.tls_failure(error));
            }
            _ => {}
        }
        if let Some(refusal) = refused(|verb| verb == Verb::Mail).filter(|refusal| refusal.is_final()) {
            let sender = self.options.from.expression();
            let remedy = refusal.remedy().unwrap_or("Use --from ADDRESS for another.");
            return Some(format!("it rejects the sender <{sender}> ({}). {remedy}", refusal.describe()));
        }
        if let Some(failure) = self.recipient_failure(attempt) {
            return Some(failure);
        }
        // After a rejected EHLO, a session may go on with HELO. If the session reached RCPT, HELO was accepted, so the
        // rejected EHLO does not explain the failure.
        let greeted = |refusal: &&RejectedCommand| refusal.verb == Verb::Hello && attempt.recipients == 0;
        if let Some(refusal) = attempt.rejections.iter().rev().find(greeted) {
            return Some(self.hello_failure(refusal));
        }
        self.disconnect_failure(attempt)
    }

    fn recipient_failure(&self, attempt: &PreflightResult) -> Option<String> {
        let is_recipient = |refusal: &&RejectedCommand| matches!(refusal.verb, Verb::Recipient(_));
        let refusals: Vec<&RejectedCommand> = attempt.rejections.iter().filter(is_recipient).collect();
        let is_every_one = refusals.len() == attempt.recipients && refusals.iter().all(|refusal| refusal.is_final());
        let first = refusals.first().filter(|_| is_every_one)?;
        let recipients: Vec<_> =
            self.options.recipient_patterns.iter().map(|pattern| format!("<{}>", pattern.expression())).collect();
        let noun = if recipients.len() > 1 { "recipients" } else { "recipient" };
        let remedy = first.remedy().unwrap_or("Use --to ADDRESS for another.");
        Some(format!("it rejects the {noun} {} ({}). {remedy}", recipients.join(" and "), first.describe()))
    }

    fn hello_failure(&self, refusal: &RejectedCommand) -> String {
        let hint = match self.options.transport.protocol {
            Protocol::Lmtp => "If it speaks SMTP, remove --lmtp.",
            Protocol::Smtp => "If it speaks LMTP, add --lmtp.",
        };
        format!("it rejects EHLO ({}). {hint}", refusal.describe())
    }

    fn setup_failure(&self, cause: GaveUp, attempt: &PreflightResult) -> String {
        let answer = attempt.rejections.last().map_or_else(|| cause.to_string(), RejectedCommand::describe);
        match cause {
            GaveUp::NoTls => format!("{cause}. Use --tls none, or --tls implicit if the port is for TLS."),
            GaveUp::TlsRefused => format!("it rejects STARTTLS ({answer}). Use --tls none."),
            GaveUp::NoMechanism => {
                format!("{cause}. Many servers offer AUTH only with TLS: add --tls starttls, or --auth-mechanism NAME.")
            }
            GaveUp::NotAuthenticated => {
                format!(
                    "it rejects the login ({answer}). Check the user and the password (--password-file, \
                     MAILRUN_PASSWORD)."
                )
            }
            GaveUp::Exchange(_) => {
                format!("the login failed: {cause}. Use --auth-mechanism NAME for another mechanism.")
            }
            GaveUp::NoXclient | GaveUp::XclientRefused => {
                format!("{cause} ({answer}). Remove --xclient, or configure the server to allow it from this host.")
            }
            GaveUp::OwnName => cause.to_string(),
            GaveUp::NoDsn => format!("{cause}. Remove the options --dsn-...."),
        }
    }

    /// Explains a failed TLS handshake: usually, the certificate is not accepted or `--tls` does not fit the port.
    fn tls_failure(&self, error: &io::Error) -> String {
        let fault = error.get_ref().and_then(|inner| inner.downcast_ref::<HandshakeFault>());
        match fault {
            Some(HandshakeFault::NotTls) if self.options.transport.tls == TlsMode::Implicit => {
                let place = match &self.server {
                    Endpoint::Tcp(address) => format!("port {}", address.port()),
                    Endpoint::Unix(_) => "this socket".to_owned(),
                };
                format!("{place} does not speak TLS: --tls starttls?")
            }
            Some(HandshakeFault::NotTls) => format!("{}: --tls none?", HandshakeFault::NotTls),
            Some(fault) => fault.with_remedy(&REMEDIES),
            None => {
                let text = reason(error);
                let plain = text.trim_start_matches("TLS: ");
                format!("the TLS handshake failed: {plain}. Check that --tls fits this port.")
            }
        }
    }

    /// Explains a connection that ended before the server had answered all commands. Returns `None` if the answers are
    /// complete.
    fn disconnect_failure(&self, attempt: &PreflightResult) -> Option<String> {
        let asked =
            |verb: &Option<Verb>| verb.map_or_else(|| "a reply".to_owned(), |verb| format!("the reply to {verb:?}"));
        match &attempt.ended {
            // A server that ends the session at QUIT or RSET has already answered all commands that matter.
            SessionEnd::Lost(Some(Verb::Quit | Verb::Reset), _)
            | SessionEnd::Timeout(Some(Verb::Quit | Verb::Reset)) => None,
            SessionEnd::Lost(verb, _) if attempt.rejections.is_empty() => {
                Some(format!("it closed the connection before {}. Check that it is a mail server.", asked(verb)))
            }
            SessionEnd::Timeout(verb) => {
                let timeout = self.options.timeout.min(REPLY_TIMEOUT);
                let missing = match verb {
                    Some(Verb::Greeting) => format!("no greeting within {timeout:?}"),
                    Some(verb) => format!("no reply to {verb:?} within {timeout:?}"),
                    None => format!("no reply within {timeout:?}"),
                };
                Some(format!("{missing}. Check that it is a mail server; a port for TLS needs --tls implicit."))
            }
            SessionEnd::Violated(_, violation) => {
                Some(format!("{violation}. Check that it is a mail server; a port for TLS needs --tls implicit."))
            }
            _ => None,
        }
    }
}

impl RejectedCommand {
    fn is_final(&self) -> bool {
        self.code >= 500
    }

    fn describe(&self) -> String {
        format!("{} {}", self.code, self.text)
    }

    /// Returns advice that names the option which may help against this reply, or `None` if no option would.
    fn remedy(&self) -> Option<&'static str> {
        let text = self.text.to_ascii_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
        match self.code {
            530 | 538 | 550 | 554 if says(&["starttls", "encryption required", "requires tls", "tls required"]) => {
                Some("Use --tls starttls.")
            }
            530 => Some("Log in with --user NAME and --password-file FILE."),
            550 | 553 | 554 if says(&["authentication required", "authenticate first", "must authenticate"]) => {
                Some("Log in with --user NAME and --password-file FILE.")
            }
            552 if !says(&["5.2.2", "quota", "mailbox full"]) => Some("Use a smaller --message-size."),
            500..=599 if says(&["5.3.4", "5.2.3", "too large", "too big"]) => Some("Use a smaller --message-size."),
            _ => None,
        }
    }
}

/// Makes a text of the server fit for the record: one printable line, cut if it is too long.
fn one_line(text: &[u8]) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    String::from_utf8_lossy(text).chars().map(shown).take(MAX_TEXT_CHARS).collect()
}

async fn wait_for_interrupt(interrupt: &Interrupt) {
    while interrupt.requested() == StopRequest::Nothing {
        mailrun_net::sleep(POLL_INTERVAL).await;
    }
}

/// Sends the commands of one envelope without a message, and records which of them the server refuses.
struct Prober<'a> {
    check: &'a PreflightCheck,
    envelope_buffer: EnvelopeBuffer,
    envelope: Option<Arc<Envelope>>,
    rejections: Vec<RejectedCommand>,
    server: ServerRow,
}

impl MessageSource for Prober<'_> {
    fn poll_next(&mut self, _: &mut Context<'_>, client: &Client, _: bool, _: Duration) -> Poll<NextAction> {
        if self.envelope.is_some() {
            return Poll::Ready(NextAction::Quit);
        }
        let PreflightCheck { options, messages: mail, envelopes, .. } = self.check;
        let pick = mail.choose(0);
        let recipients = options.recipients(0);
        let input =
            EnvelopeInput { number: 0, sequence: 0, recipients, content: pick, extensions: client.extensions() };
        let envelope = envelopes.envelope_for(input, &mut self.envelope_buffer);
        self.envelope = Some(Arc::clone(&envelope));
        Poll::Ready(NextAction::Transaction(envelope))
    }

    fn render(&mut self, _: &mut Outbox) {}

    fn written(&mut self, _: Duration) {}

    fn replied(&mut self, event: &Event<'_>, _: Duration) {
        match event.to {
            Verb::Greeting => self.server.banner = one_line(event.reply.text().as_bytes()),
            // Skip the first line, because it contains only the server's name.
            Verb::Hello if event.reply.is_positive() => {
                self.server.extensions = event.reply.lines().skip(1).take(MAX_EXTENSIONS).map(one_line).collect();
            }
            _ => {}
        }
        if !event.reply.is_positive() && event.reply.code() >= 400 {
            let code = event.reply.code();
            let text = event.reply.text();
            self.rejections.push(RejectedCommand { verb: event.to, code, text });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_fits_the_reply() {
        const TLS: Option<&str> = Some("Use --tls starttls.");
        const LOGIN: Option<&str> = Some("Log in with --user NAME and --password-file FILE.");
        const SIZE: Option<&str> = Some("Use a smaller --message-size.");
        for (code, text, remedy) in [
            (530, "5.7.0 Must issue a STARTTLS command first", TLS),
            (550, "5.7.1 Encryption required; use STARTTLS", TLS),
            (530, "5.7.0 Authentication required", LOGIN),
            (550, "5.7.1 Authentication required", LOGIN),
            (552, "5.3.4 Message size exceeds fixed limit", SIZE),
            (552, "Message too large", SIZE),
            (554, "5.3.4 Message too big for system", SIZE),
            (552, "5.2.2 Mailbox full", None),
            (550, "5.1.1 User unknown", None),
            (550, "5.1.8 Sender address rejected", None),
            (554, "5.7.1 Relay access denied", None),
        ] {
            let refusal = RejectedCommand { verb: Verb::Mail, code, text: text.to_owned() };
            assert_eq!(refusal.remedy(), remedy, "{code} {text}");
        }
    }
}
