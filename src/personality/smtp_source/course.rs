//! The course of a run: what all sessions share, and the counts that make them one run.
use super::address::{self, Public, Target};
use super::complaints::{Fatal, Remark, Voice};
use super::connection::Gate;
use super::hostname;
use super::message::{Content, Message};
use super::options::{Delay, Options};
use super::recipient::Recipient;
use crate::personality::ending::Ending;
use journey::Latencies;
use net::{Outbox, clock};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::time::Duration;

/// Octets that one read may bring: replies are short.
const READ_BYTES: usize = 16 * 1024;

/// Everything that sessions share.
#[derive(Debug)]
pub(super) struct Course {
    pub(super) options: Options,
    pub(super) target: Target,
    pub(super) hostname: String,
    pub(super) sender: String,
    pub(super) recipient: Recipient,
    pub(super) message: Message,
    pub(super) gate: Gate,
    pub(super) voice: Voice,
    /// Where reads go, for one turn.
    pub(super) input: RefCell<Vec<u8>>,
    /// What a turn writes.
    pub(super) outbox: RefCell<Outbox>,
    /// A recipient's address, for as long as it is written.
    pub(super) address: RefCell<Vec<u8>>,
    remaining: Cell<i32>,
    sent: Cell<u32>,
    /// For random delays, seeded by the process as in the original.
    chance: RefCell<StdRng>,
    timing: Timing,
    ending: Ending<Fatal>,
}

/// What `--report` tells.
#[derive(Debug, Default)]
struct Timing {
    began: Duration,
    accepted: Cell<u64>,
    latencies: RefCell<Latencies>,
}

impl Course {
    /// Reads, looks up and renders all that a run needs, in the original's order.
    pub(super) fn new(options: Options, voice: Voice, allowed: Public) -> Result<Self, Fatal> {
        let content = Content::new(&options)?;
        let target = address::resolve(&options.target, options.family, allowed)?;
        let hostname = options.hostname.clone().map_or_else(|| own_hostname(&voice), Ok)?;
        let default_address = format!("foo@{hostname}");
        let sender = options.sender.clone().unwrap_or_else(|| default_address.clone());
        let recipient = Recipient::new(&options, options.recipient.as_ref().unwrap_or(&default_address));
        let message = Message::new(&options, &sender, &hostname, content);
        Ok(Self {
            target,
            hostname,
            sender,
            recipient,
            message,
            gate: Gate::default(),
            voice,
            input: RefCell::new(vec![0; READ_BYTES]),
            outbox: RefCell::default(),
            address: RefCell::default(),
            remaining: Cell::new(0),
            sent: Cell::new(0),
            chance: RefCell::new(StdRng::seed_from_u64(std::process::id().into())),
            timing: Timing { began: clock::now(), ..Timing::default() },
            ending: Ending::of(0),
            options,
        })
    }

    #[cfg(test)]
    pub(super) fn for_tests(words: &[String]) -> Self {
        let options = Options::parse(words).unwrap();
        let course = Self::new(options, Voice::new("smtp-source"), Public::Refused).unwrap();
        course.begin();
        course
    }

    /// Gives each session its first message; how many sessions there is work for. The count falls for those without,
    /// as it does in the original, whose Message-Ids tell it.
    pub(super) fn begin(&self) -> u32 {
        let Options { sessions, messages, .. } = self.options;
        self.remaining.set((i64::from(messages) - i64::from(sessions)).max(i32::MIN.into()) as i32);
        let working = sessions.min(messages);
        self.ending.expect(working.into());
        working
    }

    /// Messages that no session has taken up.
    pub(super) fn remaining(&self) -> i32 {
        self.remaining.get()
    }

    /// Takes up a message, if there is one left.
    pub(super) fn take_up(&self) -> bool {
        let remaining = self.remaining.get();
        self.remaining.set(remaining.saturating_sub(1));
        remaining > 0
    }

    /// How long a session waits before its next message.
    pub(super) fn pause(&self) -> Duration {
        let seconds = match self.options.delay {
            _ if self.remaining.get() < 1 => 0,
            Delay::None => 0,
            Delay::Fixed(seconds) => seconds,
            Delay::Random(most) => self.chance.borrow_mut().random_range(0..=most),
        };
        Duration::from_secs(seconds.into())
    }

    /// A message has left: the running count.
    pub(super) fn count_sent(&self) {
        if self.options.counts {
            let sent = self.sent.get().wrapping_add(1);
            self.sent.set(sent);
            print(format_args!("{sent}\r"));
        }
    }

    /// The time, where somebody wants to know it.
    pub(super) fn stopwatch(&self) -> Option<Duration> {
        self.options.reports.then(clock::now)
    }

    /// A message was accepted that had been taken up at that time.
    pub(super) fn accepted(&self, began: Option<Duration>) {
        self.timing.accepted.set(self.timing.accepted.get() + 1);
        if let Some(began) = began {
            self.timing.latencies.borrow_mut().record(clock::now().saturating_sub(began));
        }
    }

    /// A session has nothing more to do, or ends the run.
    pub(super) fn leave(&self, outcome: Result<(), Fatal>) {
        self.ending.leave(outcome);
    }

    /// Waits until all sessions have left, or one has ended the run.
    pub(super) async fn ended(&self) -> Result<(), Fatal> {
        self.ending.reached().await
    }

    /// What is said when all went well.
    pub(super) fn conclude(&self) {
        if self.options.counts {
            print(format_args!("\n"));
        }
        if self.options.reports {
            self.voice.remark(&Remark::Info(self.report(clock::now())));
        }
    }

    fn report(&self, now: Duration) -> String {
        let seconds = now.saturating_sub(self.timing.began).as_secs_f64().max(1e-9);
        let accepted = self.timing.accepted.get();
        let latencies = self.timing.latencies.borrow();
        let [p50, p99] = [0.5, 0.99].map(|quantile| latencies.quantile_ms(quantile));
        format!(
            "{} messages, {accepted} accepted, {seconds:.3} s, {:.0} msg/s, latency p50 {p50:.3} ms, p99 {p99:.3} ms",
            self.options.messages,
            accepted as f64 / seconds,
        )
    }
}

fn own_hostname(voice: &Voice) -> Result<String, Fatal> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    hostname::check_name(&name).map_err(|warning| {
        voice.remark(&Remark::Warning(warning));
        Fatal("unable to use my own hostname".to_owned())
    })?;
    Ok(name)
}

fn print(text: std::fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    // Nobody reads it: nobody misses it.
    let _ = out.write_fmt(text).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(line: &str) -> Course {
        Course::for_tests(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn sessions_share_one_count() {
        let three = course("-s 2 -m 3 127.0.0.1:9");
        assert_eq!((three.remaining(), three.take_up(), three.take_up(), three.remaining()), (1, true, false, -1));
        assert_eq!(course("-s 5 -m 3 127.0.0.1:9").remaining(), -2);
        assert_eq!(course("-s 5 -m 3 127.0.0.1:9").begin(), 3);
    }

    #[test]
    fn nothing_is_waited_for_after_the_last_message() {
        assert_eq!(course("-w 9 -m 2 127.0.0.1:9").pause(), Duration::from_secs(9));
        assert_eq!(course("-w 9 127.0.0.1:9").pause(), Duration::ZERO);
        assert!(course("-R 3 -m 2 127.0.0.1:9").pause() <= Duration::from_secs(3));
    }

    #[test]
    fn a_report_in_one_line() {
        let course = course("--report -m 4 127.0.0.1:9");
        for _ in 0..3 {
            course.accepted(course.stopwatch());
        }
        let said = course.report(course.timing.began + Duration::from_secs(2));
        assert!(said.starts_with("4 messages, 3 accepted, 2.000 s, 2 msg/s, latency p50 0.00"), "{said}");
    }
}
