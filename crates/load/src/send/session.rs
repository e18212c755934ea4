use super::options::{QuitAfter, SendOptions};
use super::report::{SendEnd, SendStage, failure};
use crate::source::{DialoguePrinter, DsnParameters};
use anyhow::{Result, anyhow};
use mailrun_measurement::RunId;
use mailrun_measurement::trace::{MessageName, RecipientNumbering};
use mailrun_net::{Handshake, MessageSource, NextAction, Outbox, SessionEnd};
use mailrun_smtp::client::{Client, Event, Verb};
use mailrun_smtp::data;
use mailrun_smtp::{Envelope, Extensions};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A single message has no trace, so `{trace}` in `--dsn-envid` is replaced by zeros.
const NO_TRACE: MessageName = MessageName { run: RunId([0; 16]), sequence: 0, numbering: RecipientNumbering::SINGLE };

pub(super) struct SingleMessage {
    printer: Option<DialoguePrinter>,
    from: String,
    to: Vec<String>,
    is_verbatim: bool,
    message: Arc<[u8]>,
    dsn_parameters: DsnParameters,
    /// Set if the session ends before MAIL, so that no message is sent.
    stops_before_mail: bool,
    /// Step after which the session ends (`--quit-after`), or `None` if it sends the whole message.
    stops_after: Option<QuitAfter>,
    timeout: Duration,
    has_begun: bool,
    is_over_tls: bool,
    accepted_recipients: usize,
    /// Number of recipients for whom the server has accepted the message itself, and not only the RCPT command.
    delivered: usize,
    /// Last positive reply to the message, for the report.
    acceptance: String,
    answered_at: Option<Duration>,
    /// First rejection in the session. The rejection of a recipient is forgotten when another recipient is accepted.
    rejection: Option<(SendStage, String)>,
}

impl SingleMessage {
    /// Checks the envelope before a connection is made, so that a malformed address is reported at once.
    ///
    /// # Errors
    ///
    /// Fails if the envelope cannot be sent, for example because an address is malformed.
    pub(super) fn new(options: &SendOptions) -> Result<Self> {
        let own = Self {
            printer: options.shows_dialogue.then(DialoguePrinter::new),
            from: options.from.clone(),
            to: options.to.clone(),
            is_verbatim: options.is_verbatim,
            message: options.message.as_slice().into(),
            dsn_parameters: options.dsn_parameters.clone(),
            stops_before_mail: options.quit_after.is_some_and(|point| point == QuitAfter::Auth),
            stops_after: options.quit_after,
            timeout: options.timeout,
            has_begun: false,
            is_over_tls: false,
            accepted_recipients: 0,
            delivered: 0,
            acceptance: String::new(),
            answered_at: None,
            rejection: None,
        };
        if !own.to.is_empty() {
            own.envelope(&Extensions::default())?;
        }
        Ok(own)
    }

    pub(super) fn event(&mut self, text: &str) {
        if let Some(printer) = &mut self.printer {
            printer.event(text);
        }
    }

    /// Prints a line even if the user has not asked to see the SMTP dialogue.
    pub(super) fn show(&mut self, text: &str) {
        self.printer.get_or_insert_with(DialoguePrinter::new).event(text);
    }

    pub(super) fn is_over_tls(&self) -> bool {
        self.is_over_tls
    }

    /// Returns the time at which the server accepted the message, or `None` if it did not.
    pub(super) fn answered_at(&self) -> Option<Duration> {
        self.answered_at
    }

    /// Returns whether the server accepted the message or, if not, at which step and why the session ended. An accepted
    /// message counts as accepted, whatever happened later in the session.
    pub(super) fn end(&mut self, ended: &SessionEnd, is_pipe: bool) -> SendEnd {
        let recipients = self.to.len();
        if self.delivered > 0 {
            return SendEnd::Accepted { accepted: self.delivered, recipients, reply: self.acceptance.clone() };
        }
        if let Some((stage, reply)) = self.rejection.take() {
            return SendEnd::Rejected(stage, reply);
        }
        // A missing or late reply to QUIT is no failure, because the session has done everything else by then.
        let has_quit = matches!(
            ended,
            SessionEnd::Closed | SessionEnd::Lost(Some(Verb::Quit), _) | SessionEnd::Timeout(Some(Verb::Quit))
        );
        match self.stops_after {
            Some(point) if has_quit => SendEnd::Stopped(point),
            _ => {
                let failed = failure(ended, self.is_over_tls, is_pipe, self.timeout);
                if let SendEnd::Failed(_, text) = &failed {
                    self.event(text);
                }
                failed
            }
        }
    }

    fn envelope(&self, extensions: &Extensions) -> Result<Envelope> {
        if self.is_verbatim {
            let to = self.to.iter().map(String::as_str);
            let envelope = Envelope::verbatim(&self.from, to);
            return envelope.map_err(|_| anyhow!("--raw: an address must be one line, and there must be a recipient"));
        }
        let is_utf8 = !self.from.is_ascii() || self.to.iter().any(|to| !to.is_ascii());
        let mut dsn = Vec::new();
        if extensions.dsn {
            self.dsn_parameters.write_mail(0, 0, &NO_TRACE, 0, &mut dsn);
        }
        let parameters = [
            (extensions.size.is_some(), format!("SIZE={}", self.message.len())),
            (extensions.eight_bit_mime && !self.message.is_ascii(), "BODY=8BITMIME".to_owned()),
            (extensions.smtp_utf8 && is_utf8, "SMTPUTF8".to_owned()),
            (!dsn.is_empty(), String::from_utf8_lossy(&dsn).into_owned()),
        ];
        let parameters = parameters.into_iter().filter(|(is_wanted, _)| *is_wanted);
        let parameters: Vec<String> = parameters.map(|(_, text)| text).collect();
        let recipients = self.to.iter().map(|to| {
            let mut text = to.clone().into_bytes();
            if extensions.dsn {
                self.dsn_parameters.write_recipient(0, &mut text);
            }
            text
        });
        // Keep the length of each address, to separate the address from the RCPT parameters that follow it.
        let recipients: Vec<(Vec<u8>, usize)> = recipients.zip(self.to.iter().map(String::len)).collect();
        let recipients = recipients.iter().map(|(text, length)| text.split_at(*length));
        // An envelope cannot be empty, so create it with placeholders, which `rewrite_with` replaces.
        let mut envelope = Envelope::verbatim("<>", ["<>"]).map_err(|error| anyhow!(error))?;
        let written = envelope.rewrite_with(self.from.as_bytes(), parameters.join(" ").as_bytes(), recipients);
        written.map_err(|_| match self.to.iter().find(|to| to.contains(',')) {
            Some(to) => anyhow!("<{to}> is not an address; write --to once for each recipient"),
            None => anyhow!("<{}> or one of the recipients is not an address; --raw sends it nevertheless", self.from),
        })?;
        Ok(envelope)
    }

    fn reject(&mut self, stage: SendStage, reply: String) {
        // Keep only the first rejection, because later ones follow from it: for example, a server that has rejected
        // RCPT also rejects a pipelined DATA.
        self.rejection.get_or_insert((stage, reply));
    }
}

impl MessageSource for SingleMessage {
    fn poll_next(&mut self, _: &mut Context<'_>, client: &Client, _: bool, _: Duration) -> Poll<NextAction> {
        if self.stops_before_mail || self.has_begun {
            return Poll::Ready(NextAction::Quit);
        }
        self.has_begun = true;
        Poll::Ready(match self.envelope(client.extensions()) {
            Ok(envelope) => NextAction::Transaction(Arc::new(envelope)),
            // An error means that there are no recipients. This is allowed if `--quit-after` ends the session before
            // RCPT.
            Err(_) => NextAction::Quit,
        })
    }

    fn render(&mut self, outbox: &mut Outbox) {
        data::stuff(&self.message, outbox.bytes());
        outbox.bytes().extend_from_slice(data::END_OF_DATA);
    }

    fn message_bytes(&self) -> u64 {
        self.message.len() as u64
    }

    fn render_chunk(&mut self, outbox: &mut Outbox) {
        outbox.bytes().extend_from_slice(&self.message);
    }

    fn written(&mut self, _: Duration) {}

    fn sending(&mut self, outbox: &Outbox) {
        if let Some(printer) = &mut self.printer {
            printer.sent(&outbox.to_vec());
        }
    }

    fn tls_established(&mut self, handshake: &Handshake) {
        self.is_over_tls = true;
        if let Some(printer) = &mut self.printer {
            printer.tls_established(handshake);
        }
    }

    fn replied(&mut self, event: &Event<'_>, now: Duration) {
        if let Some(printer) = &mut self.printer {
            printer.received(&event.reply);
        }
        let reply = format!("{} {}", event.reply.code(), event.reply.text());
        let is_positive = event.reply.is_positive();
        if is_positive && matches!(event.to, Verb::Message | Verb::Delivery(_)) {
            self.answered_at = Some(now);
        }
        match event.to {
            // A success clears an earlier rejection, because the session tries HELO after a rejected EHLO, and another
            // mechanism after a rejected login.
            Verb::Hello | Verb::Auth if is_positive => self.rejection = None,
            Verb::Recipient(_) if is_positive => {
                self.accepted_recipients += 1;
                self.rejection.take_if(|(stage, _)| *stage == SendStage::Recipients);
            }
            Verb::Recipient(_) if self.accepted_recipients > 0 => {}
            Verb::Message if is_positive => (self.delivered, self.acceptance) = (self.accepted_recipients, reply),
            Verb::Delivery(_) if is_positive => {
                self.delivered += 1;
                self.acceptance = reply;
            }
            Verb::Reset | Verb::Quit => {}
            verb if !is_positive => self.reject(SendStage::of(verb, self.is_over_tls), reply),
            _ => {}
        }
    }
}
