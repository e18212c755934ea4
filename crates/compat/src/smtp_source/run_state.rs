use super::message::{MessageBody, SmtpSourceMessage};
use super::options::{Dialect, Options, SendDelay};
use super::recipient::RecipientGenerator;
use crate::host_port::{EndpointAddress, OptionalPart, PublicTargets};
use crate::source::dialect::SharedState;
use crate::stderr::{FatalError, StderrWriter};
use crate::{hostname, trace_header};
use mailrun_net::clock;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct SmtpSourceRun {
    pub(super) options: Options,
    pub(super) target: EndpointAddress,
    pub(super) hostname: String,
    pub(super) sender: String,
    pub(super) recipient: RecipientGenerator,
    pub(super) message: SmtpSourceMessage,
    pub(super) stderr: StderrWriter,
    pub(super) shared: SharedState,
    remaining: Cell<i32>,
    sent: Cell<u32>,
    /// Generator for random delays. Its seed is the process id, as in Postfix's smtp-source.
    rng: RefCell<StdRng>,
}

impl SmtpSourceRun {
    /// Reads files, looks up names and renders messages in the same order as Postfix's smtp-source. If several of these
    /// steps would fail, both programs therefore report the same error.
    pub(super) fn new(options: Options, stderr: StderrWriter, allowed: PublicTargets) -> Result<Self, FatalError> {
        let content = MessageBody::new(&options)?;
        let target = EndpointAddress::parse(&options.target, OptionalPart::Port, options.family).map_err(FatalError)?;
        if let EndpointAddress::Inet(address) = &target {
            let typed = options.target.strip_prefix("inet:").unwrap_or(&options.target);
            allowed.check(address.ip(), typed).map_err(FatalError)?;
        }
        let hostname = options.hostname.clone().map_or_else(|| own_hostname(&stderr), Ok)?;
        let default_address = format!("foo@{hostname}");
        let sender = options.sender.clone().unwrap_or_else(|| default_address.clone());
        let address = options.recipient.as_ref().unwrap_or(&default_address);
        if options.own_options.traces {
            check_recipients(&options, address)?;
        }
        let recipient = RecipientGenerator::new(&options, address);
        let message = SmtpSourceMessage::new(&options, &sender, &hostname, content)?;
        Ok(Self {
            target,
            hostname,
            sender,
            recipient,
            message,
            stderr,
            shared: SharedState::new(options.timeout, None),
            remaining: Cell::new(0),
            sent: Cell::new(0),
            rng: RefCell::new(StdRng::seed_from_u64(std::process::id().into())),
            options,
        })
    }

    #[cfg(test)]
    pub(super) fn for_tests(words: &[String]) -> Self {
        let options = Options::parse(words).unwrap();
        let run = Self::new(options, StderrWriter::new("smtp-source"), PublicTargets::Refused).unwrap();
        run.assign_first_messages();
        run
    }

    /// Gives each session its first message, and returns the number of sessions that got one. As in Postfix's
    /// smtp-source, the number of remaining messages is reduced by the number of all sessions, even those that got no
    /// message. The Message-Ids contain the reduced number.
    pub(super) fn assign_first_messages(&self) -> u32 {
        let Options { sessions, messages, .. } = self.options;
        self.remaining.set((i64::from(messages) - i64::from(sessions)).max(i32::MIN.into()) as i32);
        sessions.min(messages)
    }

    /// Returns the number of messages that no session has taken up yet. As in Postfix's smtp-source, each session
    /// subtracts one, so the number is negative if there are more sessions than messages.
    pub(super) fn remaining(&self) -> i32 {
        self.remaining.get()
    }

    pub(super) fn take_one(&self) -> bool {
        let remaining = self.remaining.get();
        self.remaining.set(remaining.saturating_sub(1));
        remaining > 0
    }

    pub(super) fn pause(&self) -> Duration {
        let seconds = match self.options.delay {
            _ if self.remaining.get() < 1 => 0,
            SendDelay::None => 0,
            SendDelay::Fixed(seconds) => seconds,
            SendDelay::Random(max) => self.rng.borrow_mut().random_range(0..=max),
        };
        Duration::from_secs(seconds.into())
    }

    pub(super) fn count_sent(&self, count: u32) {
        for _ in 0..count {
            if !self.options.shows_count {
                return;
            }
            let sent = self.sent.get().wrapping_add(1);
            self.sent.set(sent);
            print(format_args!("{sent}\r"));
        }
    }

    pub(super) fn start_time(&self) -> Option<Duration> {
        self.options.own_options.needs_times().then(clock::now)
    }

    pub(super) fn print_end(&self) {
        if self.options.shows_count {
            print(format_args!("\n"));
        }
        if self.options.own_options.reports {
            self.stderr.print(self.shared.timing.report(self.options.messages));
        }
    }
}

/// Checks that the receiver can tell traced recipients apart by a number at the end of each local part.
fn check_recipients(options: &Options, address: &str) -> Result<(), FatalError> {
    if options.dialect == Dialect::Before39 && options.recipients > 1 {
        return Err(FatalError(
            "--trace requires the recipient number at the end of the local part: use --dialect 3.9".to_owned(),
        ));
    }
    trace_header::check_recipients(address, options.recipients.into()).map_err(FatalError)
}

fn own_hostname(stderr: &StderrWriter) -> Result<String, FatalError> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    hostname::check_name(&name).map_err(|warning| {
        stderr.warn(&warning);
        FatalError("unable to use my own hostname".to_owned())
    })?;
    Ok(name)
}

fn print(text: std::fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    // Ignore the error, because the load must go on even if standard output is closed.
    let _ = out.write_fmt(text).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> SmtpSourceRun {
        SmtpSourceRun::for_tests(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn sessions_share_one_count() {
        let three = run("-s 2 -m 3 127.0.0.1:9");
        assert_eq!((three.remaining(), three.take_one(), three.take_one(), three.remaining()), (1, true, false, -1));
        assert_eq!(run("-s 5 -m 3 127.0.0.1:9").remaining(), -2);
        assert_eq!(run("-s 5 -m 3 127.0.0.1:9").assign_first_messages(), 3);
    }

    #[test]
    fn nothing_is_waited_for_after_the_last_message() {
        assert_eq!(run("-w 9 -m 2 127.0.0.1:9").pause(), Duration::from_secs(9));
        assert_eq!(run("-w 9 127.0.0.1:9").pause(), Duration::ZERO);
        assert!(run("-R 3 -m 2 127.0.0.1:9").pause() <= Duration::from_secs(3));
    }

    #[test]
    fn recipients_that_a_trace_cannot_tell_apart_are_refused() {
        let refused = |line: &str| {
            let options = Options::parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).unwrap();
            check_recipients(&options, options.recipient.as_deref().unwrap_or("foo@h")).is_err()
        };
        for line in ["--trace -r 2 h", "--trace --dialect 3.8 -N h", "--trace -N -t a9@b h", "--trace -r 1024 h"] {
            assert!(!refused(line), "{line}");
        }
        for line in ["--trace --dialect 3.8 -r 2 h", "--trace -r 2 -t a9@b h", "--trace -r 1025 h"] {
            assert!(refused(line), "{line}");
        }
    }
}
