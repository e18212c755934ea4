//! One connection before any load: through greeting, EHLO, TLS, AUTH, MAIL, RCPT, RSET and QUIT. A failure there would
//! meet every message, so it is reported in one line, with advice, and no load is sent.
//!
//! It is counted nowhere. A reply of 4xx to MAIL or RCPT is no reason to stop: greylisting and limits cause such
//! replies.
use super::approach::Approach;
use super::envelopes::{Drafts, Envelopes, Occasion};
use super::mail::Mail;
use super::{SourceOptions, TlsMode};
use crate::interrupt::{Asked, Interrupt, Interrupted};
use crate::reason::reason;
use anyhow::{Result, bail};
use net::{Alarm, Caller, Conversation, Desk, Ended, Endpoint, Next, Outbox, Shortage, Socket, clock};
use smtp::Envelope;
use smtp::client::{Client, Event, GaveUp, Options, Pipelining, Verb};
use smtp::server::Protocol;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use trust::{HandshakeFault, Remedies};

/// Limit for a reply here: a server that takes longer to greet is worth a message.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which a request of the user to stop is looked for.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The options that help if a certificate is not accepted.
const REMEDIES: Remedies = Remedies { trust: "--cacert FILE", name: "--tls-name NAME", insecure: "--insecure" };

/// The trial: options and server.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) options: SourceOptions,
    pub(super) server: Endpoint,
    pub(super) approach: Approach,
    pub(super) mail: Mail,
    pub(super) envelopes: Envelopes,
}

/// A refusal by the server.
#[derive(Clone, Debug)]
struct Refusal {
    verb: Verb,
    code: u16,
    text: String,
}

/// Progress of the connection.
struct Attempt {
    ended: Ended,
    refusals: Vec<Refusal>,
    /// Number of recipients tried.
    recipients: usize,
}

impl Trial {
    /// Runs the trial.
    ///
    /// # Errors
    /// A failure that would meet every message, with advice.
    pub(super) fn check(self: &Arc<Self>, interrupt: &Interrupt) -> Result<()> {
        let trial = Arc::clone(self);
        let interrupt = interrupt.clone();
        let ran = net::worker::run(|desk| async move {
            tokio::select! {
                attempt = trial.attempt(desk) => Some(attempt),
                () = stopped(&interrupt) => None,
            }
        });
        // Without an event loop there is no load either: that is reported where the load is started.
        let Ok(outcome) = ran else { return Ok(()) };
        self.judge(outcome)
    }

    /// Judges the attempt; `None` is an attempt that the user has stopped.
    fn judge(&self, outcome: Option<io::Result<Attempt>>) -> Result<()> {
        let to = &self.options.to;
        match outcome {
            None => Err(Interrupted::BEFORE_LOAD.into()),
            Some(Err(error)) => match self.unreachable(&error) {
                Some(why) => bail!("cannot reach {to}: {why}"),
                None => Ok(()),
            },
            Some(Ok(attempt)) => match self.complaint(&attempt) {
                Some(why) => bail!("cannot send to {to}: {why}"),
                None => Ok(()),
            },
        }
    }

    async fn attempt(&self, desk: Desk) -> io::Result<Attempt> {
        let mut alarm = Alarm::default();
        let socket = self.connect(&mut alarm).await?;
        let told = &self.approach.options;
        let options = Arc::new(Options { pipelining: Pipelining::Off, ..Options::clone(told) });
        let nonce = options.credentials.is_some().then(net::nonce);
        let name = self.options.hello.as_str().into();
        let client = Client::with_options(name, options, nonce, clock::now()).probing();
        let mut prober = Prober { trial: self, drafts: Drafts::default(), envelope: None, refusals: Vec::new() };
        let timeout = self.options.timeout.min(REPLY_TIMEOUT);
        let talk = Conversation::new(socket, client, &mut prober, &mut alarm, timeout, desk);
        let ended = talk.secured(self.approach.security.clone()).run().await;
        let recipients = prober.envelope.as_ref().map_or(0, |envelope| envelope.recipients());
        Ok(Attempt { ended, refusals: prober.refusals, recipients })
    }

    async fn connect(&self, alarm: &mut Alarm) -> io::Result<Socket> {
        let timeout = self.options.connect_timeout;
        let connecting = async {
            let socket = Socket::connect_to(self.approach.next_address(), &self.server).await?;
            if let Some(header) = self.approach.proxy_header(socket.local_address(), self.server.address()) {
                socket.write_all(&header).await?;
            }
            Ok(socket)
        };
        match alarm.limit(clock::now() + timeout, Box::pin(connecting)).await {
            Some(outcome) => outcome,
            None => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {timeout:?}"))),
        }
    }

    /// Reason why there is no connection. A lack of resources or addresses on this side is reported by the run.
    fn unreachable(&self, error: &io::Error) -> Option<String> {
        let is_own = Shortage::of(error, self.approach.is_bound()).is_some();
        let is_own = is_own || error.kind() == io::ErrorKind::AddrNotAvailable;
        (!is_own).then(|| format!("{}. Check that a server listens there.", reason(error)))
    }

    /// The failure that would meet every message.
    fn complaint(&self, attempt: &Attempt) -> Option<String> {
        let refused = |is_meant: fn(Verb) -> bool| attempt.refusals.iter().find(|refusal| is_meant(refusal.verb));
        if let Some(refusal) = refused(|verb| verb == Verb::Greeting) {
            return Some(format!(
                "it rejects this client ({}). Check that this host is allowed to connect.",
                refusal.words()
            ));
        }
        match &attempt.ended {
            Ended::GaveUp(why) => return Some(self.lacking(*why, attempt)),
            Ended::NotEncrypted(error) => return Some(self.not_encrypted(error)),
            Ended::Lost(_, error) if error.kind() == io::ErrorKind::InvalidData => {
                return Some(self.not_encrypted(error));
            }
            _ => {}
        }
        if let Some(refusal) = refused(|verb| verb == Verb::Mail).filter(|refusal| refusal.is_final()) {
            let sender = self.options.from.typed();
            return Some(format!(
                "it rejects the sender <{sender}> ({}). Use --from ADDRESS for another.",
                refusal.words()
            ));
        }
        if let Some(why) = self.no_recipient(attempt) {
            return Some(why);
        }
        // EHLO may be refused, and HELO accepted: then the session went on.
        let greeted = |refusal: &&Refusal| refusal.verb == Verb::Hello && attempt.recipients == 0;
        if let Some(refusal) = attempt.refusals.iter().rev().find(greeted) {
            return Some(self.not_greeted(refusal));
        }
        self.cut_off(attempt)
    }

    fn no_recipient(&self, attempt: &Attempt) -> Option<String> {
        let is_recipient = |refusal: &&Refusal| matches!(refusal.verb, Verb::Recipient(_));
        let refusals: Vec<&Refusal> = attempt.refusals.iter().filter(is_recipient).collect();
        let is_every_one = refusals.len() == attempt.recipients && refusals.iter().all(|refusal| refusal.is_final());
        let first = refusals.first().filter(|_| is_every_one)?;
        let recipients: Vec<_> =
            self.options.recipient_patterns.iter().map(|pattern| format!("<{}>", pattern.typed())).collect();
        let noun = if recipients.len() > 1 { "recipients" } else { "recipient" };
        Some(format!(
            "it rejects the {noun} {} ({}). Use --to ADDRESS for another.",
            recipients.join(" and "),
            first.words()
        ))
    }

    fn not_greeted(&self, refusal: &Refusal) -> String {
        let hint = match self.options.approach.protocol {
            Protocol::Lmtp => "If it speaks SMTP, remove --lmtp.",
            Protocol::Smtp => "If it speaks LMTP, add --lmtp.",
        };
        format!("it rejects EHLO ({}). {hint}", refusal.words())
    }

    fn lacking(&self, why: GaveUp, attempt: &Attempt) -> String {
        let said = attempt.refusals.last().map_or_else(|| why.to_string(), Refusal::words);
        match why {
            GaveUp::NoTls => format!("{why}. Use --tls none, or --tls implicit if the port is for TLS."),
            GaveUp::TlsRefused => format!("it rejects STARTTLS ({said}). Use --tls none."),
            GaveUp::NoMechanism => {
                format!("{why}. Many servers offer AUTH only with TLS: add --tls starttls, or --auth-mechanism NAME.")
            }
            GaveUp::NotAuthenticated => {
                format!(
                    "it rejects the login ({said}). Check the user and the password (--password-file, \
                     MAILRUN_PASSWORD)."
                )
            }
            GaveUp::Exchange(_) => format!("the login failed: {why}. Use --auth-mechanism NAME for another mechanism."),
            GaveUp::NoXclient | GaveUp::XclientRefused => {
                format!("{why} ({said}). Remove --xclient, or configure the server to allow it from this host.")
            }
            GaveUp::NoDsn => format!("{why}. Remove the options --dsn-...."),
        }
    }

    /// Text on a TLS failure: the certificate or the port is wrong.
    fn not_encrypted(&self, error: &io::Error) -> String {
        let fault = error.get_ref().and_then(|inner| inner.downcast_ref::<HandshakeFault>());
        match fault {
            Some(HandshakeFault::NotTls) if self.options.approach.tls == TlsMode::Implicit => {
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

    /// Text on a connection that ended before the server had answered all commands.
    fn cut_off(&self, attempt: &Attempt) -> Option<String> {
        let asked =
            |verb: &Option<Verb>| verb.map_or_else(|| "a reply".to_owned(), |verb| format!("the reply to {verb:?}"));
        match &attempt.ended {
            // It has answered all that matters.
            Ended::Lost(Some(Verb::Quit | Verb::Reset), _) | Ended::Timeout(Some(Verb::Quit | Verb::Reset)) => None,
            Ended::Lost(verb, _) if attempt.refusals.is_empty() => {
                Some(format!("it closed the connection before {}. Check that it is a mail server.", asked(verb)))
            }
            Ended::Timeout(verb) => {
                let timeout = self.options.timeout.min(REPLY_TIMEOUT);
                Some(format!(
                    "{} did not come within {timeout:?}. Check that it is a mail server; a port for TLS needs --tls \
                     implicit.",
                    asked(verb)
                ))
            }
            Ended::Violated(_, violation) => {
                Some(format!("{violation}. Check that it is a mail server; a port for TLS needs --tls implicit."))
            }
            _ => None,
        }
    }
}

impl Refusal {
    fn is_final(&self) -> bool {
        self.code >= 500
    }

    fn words(&self) -> String {
        format!("{} {}", self.code, self.text)
    }
}

/// Completes when the user asks for the end.
async fn stopped(interrupt: &Interrupt) {
    while interrupt.asked() == Asked::Nothing {
        net::sleep(LOOK_INTERVAL).await;
    }
}

/// Tries one envelope, and records refusals.
struct Prober<'a> {
    trial: &'a Trial,
    drafts: Drafts,
    envelope: Option<Arc<Envelope>>,
    refusals: Vec<Refusal>,
}

impl Caller for Prober<'_> {
    fn poll_next(&mut self, _: &mut Context<'_>, client: &Client, _: bool, _: Duration) -> Poll<Next> {
        if self.envelope.is_some() {
            return Poll::Ready(Next::Quit);
        }
        let Trial { options, mail, envelopes, .. } = self.trial;
        let pick = mail.pick(0);
        let recipients = options.recipients(0);
        let occasion = Occasion { number: 0, recipients, pick, extensions: client.extensions() };
        let envelope = envelopes.address(occasion, &mut self.drafts).envelope;
        self.envelope = Some(Arc::clone(&envelope));
        Poll::Ready(Next::Transaction(envelope))
    }

    fn render(&mut self, _: &mut Outbox) {}

    fn written(&mut self, _: Duration) {}

    fn replied(&mut self, event: &Event<'_>, _: Duration) {
        if !event.reply.is_positive() && event.reply.code() >= 400 {
            let code = event.reply.code();
            let text = event.reply.text();
            self.refusals.push(Refusal { verb: event.to, code, text });
        }
    }
}
