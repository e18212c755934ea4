use super::message::GoSourceMessage;
use super::options::Options;
use super::rate_limiter::RateLimiter;
use super::target::DialTarget;
use crate::go::log;
use crate::host_port::PublicTargets;
use crate::source::dialect::{MessageTask, SharedState};
use crate::stderr::FatalError;
use crate::trace_header;
use mailrun_measurement::trace::MAX_RECIPIENTS;
use mailrun_net::{ClientTls, SessionResumption, Trust, clock};
use std::borrow::Cow;
use std::cell::Cell;
use std::time::Duration;

/// Maximum time to wait for a connection, for a reply, or until data can be written (RFC 5321 §4.5.3.2). go-smtp-source
/// waits forever.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(super) struct GoSourceRun {
    pub(super) options: Options,
    pub(super) target: DialTarget,
    pub(super) message: GoSourceMessage,
    pub(super) rate_limiter: RateLimiter,
    pub(super) shared: SharedState,
    taken: Cell<i64>,
    /// Number of messages that were not sent, because the connection failed or the server sent an unexpected reply.
    failed: Cell<u64>,
    closed: Cell<i64>,
}

impl GoSourceRun {
    /// Reads files and looks up names in the same order as go-smtp-source. If several of these steps would fail, both
    /// programs therefore report the same error.
    pub(super) fn new(options: Options, allowed: PublicTargets) -> Result<Self, FatalError> {
        if options.target.is_empty() {
            return Err(FatalError("host is missing".to_owned()));
        }
        if options.own_options.traces {
            trace_header::check_recipients(&options.recipient, options.recipients_each().unsigned_abs())
                .map_err(FatalError)?;
        }
        let message = GoSourceMessage::new(&options).map_err(FatalError)?;
        let target = DialTarget::parse(&options.target, allowed).map_err(FatalError)?;
        let target = if options.resolves_once { target.resolve().map_err(FatalError)? } else { target };
        Ok(Self {
            target,
            message,
            rate_limiter: RateLimiter::new(options.rate, options.recipients_each()),
            shared: SharedState::new(REPLY_TIMEOUT, if options.uses_tls { Some(tls_client()?) } else { None }),
            taken: Cell::new(0),
            failed: Cell::new(0),
            closed: Cell::new(0),
            options,
        })
    }

    #[cfg(test)]
    pub(super) fn for_tests(words: &[&str]) -> Self {
        let words: Vec<String> = words.iter().chain(&["127.0.0.1:9"]).map(|word| (*word).to_owned()).collect();
        Self::new(Options::parse(&words).unwrap(), PublicTargets::Refused).unwrap()
    }

    /// Returns the number of the next message, or `None` if no message is left. With `-v`, also logs this number and
    /// the recipients of the message.
    pub(super) fn take_one(&self) -> Option<i64> {
        let number = self.taken.get() + 1;
        if number > self.options.messages {
            return None;
        }
        self.taken.set(number);
        self.verbose(|| self.announcement(number));
        Some(number)
    }

    /// Begins a message and the measurement of its latency. Must be called after the wait for the rate limit, because
    /// this wait is not part of the latency.
    pub(super) fn task(&self, number: i64) -> MessageTask {
        MessageTask { number, began: self.options.own_options.needs_times().then(clock::now) }
    }

    fn announcement(&self, number: i64) -> String {
        let Options { messages, recipients, .. } = &self.options;
        let named: Vec<String> =
            (0..self.options.recipients_each()).map(|place| self.recipient(number, place).concat()).collect();
        let named = named.join(" ");
        format!("ntx:{messages} i:{} txidx:{number} nrcpt:{recipients} recipients:[{named}]", number - 1)
    }

    /// Returns the address of a message's recipient in three parts, to be written one after the other. `place` is the
    /// index of the recipient in the message. If messages have several recipients, each address begins with a number.
    /// With `--trace`, the number is at the end of the local part, because the receiver of traced mail looks for it
    /// there.
    pub(super) fn recipient(&self, message: i64, place: i64) -> [Cow<'_, str>; 3] {
        let Options { recipients: each, recipient, own_options: extras, .. } = &self.options;
        if *each <= 1 {
            return [recipient.as_str().into(), "".into(), "".into()];
        }
        let number = (message - 1).wrapping_mul(*each).wrapping_add(place + 1);
        if extras.traces {
            let (local, domain) = recipient.split_at(recipient.rfind('@').unwrap_or(recipient.len()));
            let number = number.rem_euclid(MAX_RECIPIENTS.into());
            return [local.into(), number.to_string().into(), domain.into()];
        }
        [number.to_string().into(), "_".into(), recipient.as_str().into()]
    }

    pub(super) async fn wait_for_rate(&self) {
        if self.rate_limiter.is_limited() {
            mailrun_net::sleep_until(self.rate_limiter.reserve(clock::now())).await;
        }
    }

    pub(super) fn fail_message(&self, reason: &str) {
        log(reason);
        self.failed.set(self.failed.get() + 1);
    }

    pub(super) fn count_closed(&self) -> i64 {
        self.closed.set(self.closed.get() + 1);
        self.closed.get()
    }

    pub(super) fn verbose(&self, text: impl FnOnce() -> String) {
        if self.options.is_verbose {
            log(&text());
        }
    }

    /// Prints the line of `--report` at the end of the run.
    ///
    /// # Errors
    ///
    /// Fails if some messages were not sent. go-smtp-source does not report such messages.
    pub(super) fn finish(&self) -> Result<(), FatalError> {
        if self.options.own_options.reports {
            log(&self.shared.timing.report(self.options.messages));
        }
        match self.failed.get() {
            0 => Ok(()),
            failed => Err(FatalError(format!("{failed} of {} messages were not sent", self.options.messages))),
        }
    }
}

/// Creates TLS settings without verification, server name or session resumption, as go-smtp-source does.
fn tls_client() -> Result<ClientTls, FatalError> {
    // Pass an IP address instead of a name, because a TLS client sends no SNI for an IP address (RFC 6066 §3).
    let setup = ClientTls::new("127.0.0.1", &Trust::Anybody, None, SessionResumption::Off);
    setup.map_err(|error| FatalError(format!("unable to issue STARTTLS: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_numbered_from_one() {
        let run = GoSourceRun::for_tests(&["-m", "2"]);
        let numbers = [(); 3].map(|()| run.take_one());
        assert_eq!(numbers, [Some(1), Some(2), None]);
        assert_eq!(GoSourceRun::for_tests(&["-m", "0"]).take_one(), None);
    }

    #[test]
    fn recipients_are_numbered_through_the_run() {
        let run = GoSourceRun::for_tests(&["-r", "3", "-m", "4", "-t", "b"]);
        assert_eq!((run.recipient(1, 0).concat(), run.recipient(4, 2).concat()), ("1_b".into(), "12_b".into()));
        assert_eq!(run.announcement(2), "ntx:4 i:1 txidx:2 nrcpt:3 recipients:[4_b 5_b 6_b]");
        let plain = GoSourceRun::for_tests(&["-r", "0"]);
        assert_eq!(plain.recipient(4, 0).concat(), "to@example.com");
        assert_eq!(plain.announcement(1), "ntx:1 i:0 txidx:1 nrcpt:0 recipients:[to@example.com]");
    }

    #[test]
    fn with_a_trace_numbers_stand_where_it_is_read() {
        let run = GoSourceRun::for_tests(&["--trace", "-r", "3", "-m", "400", "-t", "a@b"]);
        let all: Vec<String> = (0..3).map(|place| run.recipient(342, place).concat()).collect();
        assert_eq!(all, ["a0@b", "a1@b", "a2@b"], "from 1024 on they begin again");
        assert_eq!(run.recipient(1, 0).concat(), "a1@b");
    }

    #[test]
    fn messages_that_were_given_up_are_told() {
        let run = GoSourceRun::for_tests(&["-m", "3"]);
        assert_eq!(run.finish(), Ok(()));
        run.fail_message("no");
        assert_eq!(run.finish(), Err(FatalError("1 of 3 messages were not sent".to_owned())));
    }
}
