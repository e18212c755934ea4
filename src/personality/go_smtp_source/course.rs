//! The course of a run: what all sessions share, and the counts that make them one run.
use super::message::Message;
use super::options::Options;
use super::pace::Pace;
use super::target::Target;
use super::voice::{Fatal, log};
use crate::personality::ending::Ending;
use crate::personality::smtp_source::address::Public;
use crate::personality::smtp_source::connection::Gate;
use net::{ClientTls, Outbox, SessionResumption, Trust, clock};
use std::cell::{Cell, RefCell};

/// Octets that one read may bring: replies are short.
const READ_BYTES: usize = 16 * 1024;

/// Everything that sessions share.
#[derive(Debug)]
pub(super) struct Course {
    pub(super) options: Options,
    pub(super) target: Target,
    pub(super) message: Message,
    pub(super) tls: Option<ClientTls>,
    pub(super) gate: Gate,
    pub(super) pace: Pace,
    /// Where reads go, for one turn.
    pub(super) input: RefCell<Vec<u8>>,
    /// What a turn writes.
    pub(super) outbox: RefCell<Outbox>,
    /// Messages that a session has taken up.
    taken: Cell<i64>,
    /// Connections with which messages were given up.
    failed: Cell<u64>,
    closed: Cell<u64>,
    ending: Ending<Fatal>,
}

impl Course {
    /// Reads and looks up all that a run needs, in the original's order.
    ///
    /// # Errors
    /// In the original's words.
    pub(super) fn new(options: Options, allowed: Public) -> Result<Self, Fatal> {
        if options.target.is_empty() {
            return Err(Fatal("host is missing".to_owned()));
        }
        let message = Message::new(&options).map_err(Fatal)?;
        let target = Target::parse(&options.target, allowed).map_err(Fatal)?;
        let target = if options.resolves_once { target.resolve().map_err(Fatal)? } else { target };
        Ok(Self {
            target,
            message,
            tls: if options.uses_tls { Some(tls()?) } else { None },
            gate: Gate::default(),
            pace: Pace::new(options.rate, options.recipients_each()),
            input: RefCell::new(vec![0; READ_BYTES]),
            outbox: RefCell::default(),
            taken: Cell::new(0),
            failed: Cell::new(0),
            closed: Cell::new(0),
            ending: Ending::of(options.sessions_at_work()),
            options,
        })
    }

    #[cfg(test)]
    pub(super) fn for_tests(words: &[&str]) -> Self {
        let words: Vec<String> = words.iter().chain(&["127.0.0.1:9"]).map(|word| (*word).to_owned()).collect();
        Self::new(Options::parse(&words).unwrap(), Public::Refused).unwrap()
    }

    /// Takes up a message, if there is one left: its number, from 1.
    pub(super) fn take_up(&self) -> Option<i64> {
        let number = self.taken.get() + 1;
        if number > self.options.messages {
            return None;
        }
        self.taken.set(number);
        self.verbose(|| self.announcement(number));
        Some(number)
    }

    /// What `-v` says of a message that is taken up.
    fn announcement(&self, number: i64) -> String {
        let Options { messages, recipients, recipient, .. } = &self.options;
        let named: Vec<String> = (0..self.options.recipients_each())
            .map(|place| match self.recipient_number(number, place) {
                Some(number) => format!("{number}_{recipient}"),
                None => recipient.clone(),
            })
            .collect();
        let named = named.join(" ");
        format!("ntx:{messages} i:{} txidx:{number} nrcpt:{recipients} recipients:[{named}]", number - 1)
    }

    /// The number that stands before a message's recipient at that place, from 0.
    pub(super) fn recipient_number(&self, message: i64, place: i64) -> Option<i64> {
        let each = self.options.recipients;
        (each > 1).then(|| (message - 1).wrapping_mul(each).wrapping_add(place + 1))
    }

    /// Waits until a message may go.
    pub(super) async fn keep_pace(&self) {
        if self.pace.is_limited() {
            net::sleep_until(self.pace.next(clock::now())).await;
        }
    }

    /// A message is given up.
    pub(super) fn give_up(&self, why: &str) {
        log(why);
        self.failed.set(self.failed.get() + 1);
    }

    /// How many sessions have been closed, this one with them.
    pub(super) fn count_closed(&self) -> u64 {
        self.closed.set(self.closed.get() + 1);
        self.closed.get()
    }

    /// Says what `-v` tells.
    pub(super) fn verbose(&self, text: impl FnOnce() -> String) {
        if self.options.is_verbose {
            log(&text());
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

    /// How it all went.
    ///
    /// # Errors
    /// Messages were given up; the original does not tell.
    pub(super) fn conclude(&self) -> Result<(), Fatal> {
        match self.failed.get() {
            0 => Ok(()),
            failed => Err(Fatal(format!("{failed} of {} messages were not sent", self.options.messages))),
        }
    }
}

/// TLS as the original does it: nobody is verified and no server named, no session resumed.
fn tls() -> Result<ClientTls, Fatal> {
    // An address as the name keeps SNI out of the handshake (RFC 6066 §3).
    let setup = ClientTls::new("127.0.0.1", &Trust::Anybody, None, SessionResumption::Off);
    setup.map_err(|error| Fatal(format!("unable to issue STARTTLS: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_numbered_from_one() {
        let course = Course::for_tests(&["-m", "2"]);
        assert_eq!([course.take_up(), course.take_up(), course.take_up()], [Some(1), Some(2), None]);
        assert_eq!(Course::for_tests(&["-m", "0"]).take_up(), None);
    }

    #[test]
    fn recipients_are_numbered_through_the_run() {
        let course = Course::for_tests(&["-r", "3", "-m", "4", "-t", "b"]);
        assert_eq!(course.recipient_number(1, 0), Some(1));
        assert_eq!(course.recipient_number(4, 2), Some(12));
        assert_eq!(course.announcement(2), "ntx:4 i:1 txidx:2 nrcpt:3 recipients:[4_b 5_b 6_b]");
        let plain = Course::for_tests(&["-r", "0"]);
        assert_eq!(plain.recipient_number(4, 0), None);
        assert_eq!(plain.announcement(1), "ntx:1 i:0 txidx:1 nrcpt:0 recipients:[to@example.com]");
    }

    #[test]
    fn messages_that_were_given_up_are_told() {
        let course = Course::for_tests(&["-m", "3"]);
        assert_eq!(course.conclude(), Ok(()));
        course.give_up("no");
        assert_eq!(course.conclude(), Err(Fatal("1 of 3 messages were not sent".to_owned())));
    }
}
