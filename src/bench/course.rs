//! The course of a run: sink up, relay up, source runs, the last messages arrive, relay and sink stop.
//!
//! ```text
//! start_sink ─ listening ─→ follow_source ─ exited ─→ await_arrivals ─ all there, or quiet ─→ stop_sink ─→ finish
//!        └ start_relay ─ listening ─┘                                    └ rest_relay, stop_relay ─┘
//! ```
//!
//! Everything happens in `turn`, twenty times a second: hear the parties, show how far they are. A first SIGINT or
//! SIGTERM ends the source, then the others, and the run is reported; a second ends it all.
use super::directory::name;
use super::parties::{Order, Process, Watched};
use super::plan::BenchOptions;
use super::progress::{Display, Goal, View};
use super::relays::{Ready, Starting};
use crate::interrupt::{Asked, Interrupt};
use crate::live::Event;
use crate::usage::Usage;
use anyhow::{Context, Result, bail, ensure};
use journey::record::Role;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// The longest a turn waits for something to be said.
const TURN: Duration = Duration::from_millis(50);
/// How long the sink has to say that it listens.
const LISTEN_WITHIN: Duration = Duration::from_secs(30);
/// The same for a relay, which may be a Java machine.
const RELAY_LISTENS_WITHIN: Duration = Duration::from_secs(60);
/// How long a party has to write its files and exit, once asked to.
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// When nothing has arrived for so long, nothing will: the bench's own sink is one hop away.
const QUIET: Duration = Duration::from_secs(2);
/// The same behind a relay, which may pause, but has nothing to wait for: its next hop takes whatever it is given.
const RELAY_QUIET: Duration = Duration::from_secs(10);
/// Between two looks at whether the relay rests.
const REST_LOOK: Duration = Duration::from_millis(300);
/// It rests when it uses less of a processor than that.
const REST_SHARE: f64 = 0.02;
/// Some never do.
const REST_WITHIN: Duration = Duration::from_secs(5);

/// Whether what was accepted is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    All,
    /// Nothing came any more, or the user wanted no more of it.
    NotAll,
}

/// A run on its way.
#[derive(Debug)]
pub(super) struct Course {
    events: Receiver<(Role, Event)>,
    mouth: Sender<(Role, Event)>,
    interrupt: Interrupt,
    view: View,
    display: Display,
    listening: Vec<Listening>,
    /// Whether a relay is between source and sink, the bench's own or not.
    relay_stands: bool,
    source: Option<Process>,
    relay: Option<Process>,
    /// What was seen of the relay before it was started again.
    former_relay: Option<Watched>,
    sink: Option<Process>,
}

/// Where a party says that it listens.
#[derive(Debug)]
struct Listening {
    role: Role,
    smtp: Vec<String>,
    http: Option<String>,
}

impl Course {
    /// Before the start.
    pub(super) fn new(options: &BenchOptions) -> Result<Self> {
        let (mouth, events) = channel();
        Ok(Self {
            events,
            mouth,
            interrupt: Interrupt::watch()?,
            view: View::new(Goal::of(options)),
            display: Display::on_stderr(),
            listening: Vec::new(),
            relay_stands: options.relay().is_some(),
            source: None,
            relay: None,
            former_relay: None,
            sink: None,
        })
    }

    /// Starts the sink and waits until it takes mail; gives its address.
    pub(super) fn start_sink(&mut self, order: Order) -> Result<String> {
        self.sink = Some(Process::start(order, self.mouth.clone())?);
        self.await_listening(Role::Sink, &Ready::Says)
    }

    /// Starts the relay and waits until it takes mail; gives its address. One that ran before has ended.
    pub(super) fn start_relay(&mut self, starting: Starting) -> Result<String> {
        self.listening.retain(|listening| listening.role != Role::Relay);
        if let Some(former) = self.relay.take().map(|relay| relay.watched()) {
            self.former_relay = Some(former.after(self.former_relay.take()));
        }
        self.relay = Some(Process::start(starting.order, self.mouth.clone())?);
        self.await_listening(Role::Relay, &starting.ready)
    }

    /// Where the relay answers HTTP, if it does.
    pub(super) fn relay_http(&self) -> Option<&str> {
        self.listening.iter().find(|listening| listening.role == Role::Relay)?.http.as_deref()
    }

    /// What the relay has used, that of its present start.
    pub(super) fn look_at_relay(&mut self) -> Usage {
        self.party(Role::Relay).look()
    }

    /// Waits until `is_there`, and shows `line` meanwhile.
    ///
    /// # Errors
    /// If the relay ends, the user wants no more, or it takes longer than `limit`.
    pub(super) fn await_relay(
        &mut self,
        line: &str,
        limit: Duration,
        mut is_there: impl FnMut() -> bool,
    ) -> Result<()> {
        let began = Instant::now();
        while !is_there() {
            self.turn();
            self.display.show_line(0, || line.to_owned());
            self.expect(Role::Relay)?;
            ensure!(self.interrupt.asked() == Asked::Nothing, "stopped while it was waited for");
            ensure!(began.elapsed() < limit, "it took longer than {} s: {line}", limit.as_secs());
        }
        Ok(())
    }

    /// Says something above what is shown.
    pub(super) fn say(&self, line: &str) {
        self.display.say(line);
    }

    fn await_listening(&mut self, role: Role, ready: &Ready) -> Result<String> {
        let patience = if role == Role::Relay { RELAY_LISTENS_WITHIN } else { LISTEN_WITHIN };
        let limit = Instant::now() + patience;
        loop {
            let ended = self.party(role).poll()?;
            // Heard after the poll: what an ended party said has then arrived.
            self.turn();
            if let Some(listening) = self.listening.iter().find(|listening| listening.role == role) {
                let first = listening.smtp.first().cloned();
                return first.with_context(|| format!("the {} says that it listens, and not where", name(role)));
            }
            if let Some(status) = ended {
                let party = self.party(role);
                party.judge(status)?;
                bail!("the {} ended before it listened: {}", name(role), party.last_words("it said nothing"));
            }
            if let Some(address) = ready.answers() {
                return Ok(address);
            }
            ensure!(Instant::now() < limit, "the {} did not listen within {} s", name(role), patience.as_secs());
            ensure!(self.interrupt.asked() == Asked::Nothing, "stopped before the first message");
        }
    }

    fn party(&mut self, role: Role) -> &mut Process {
        let party = match role {
            Role::Source => &mut self.source,
            Role::Relay => &mut self.relay,
            Role::Sink => &mut self.sink,
        };
        party.as_mut().expect("it was started before it is asked for")
    }

    /// Starts the source and follows it to its end.
    pub(super) fn follow_source(&mut self, order: Order) -> Result<()> {
        self.source = Some(Process::start(order, self.mouth.clone())?);
        let mut stopping = None;
        loop {
            self.turn();
            self.display.show(&self.view);
            self.expect(Role::Relay)?;
            self.expect(Role::Sink)?;
            let source = self.source.as_mut().expect("it was started above");
            if let Some(status) = source.poll()? {
                return source.judge(status);
            }
            if self.interrupt.asked() != Asked::Nothing && stopping.is_none() {
                source.terminate();
                stopping = Some(Instant::now());
            }
            self.keep_patience(Role::Source, stopping)?;
        }
    }

    /// Gives the sink time to take what is under way to it (`accepted` messages in all).
    ///
    /// A relay is given it though the user asked for an end: the run is shorter then, and its account may still close.
    pub(super) fn await_arrivals(&mut self, accepted: u64) -> Result<Arrived> {
        let (quiet, patience) = match self.relay_stands {
            true => (RELAY_QUIET, Asked::Stop),
            false => (QUIET, Asked::Nothing),
        };
        let mut arrived = self.view.delivered();
        let mut quiet_since = Instant::now();
        while self.asked() <= patience && arrived < accepted && quiet_since.elapsed() < quiet {
            self.turn();
            self.show_wait(arrived, accepted);
            self.expect(Role::Relay)?;
            self.expect(Role::Sink)?;
            if self.view.delivered() != arrived {
                arrived = self.view.delivered();
                quiet_since = Instant::now();
            }
        }
        Ok(if arrived < accepted { Arrived::NotAll } else { Arrived::All })
    }

    /// Waits until the relay has done what is to do after the last delivery, and takes its figures.
    pub(super) fn rest_relay(&mut self) -> Result<()> {
        if self.relay.is_none() {
            return Ok(());
        }
        let limit = Instant::now() + REST_WITHIN;
        let used_s = |usage: Usage| usage.user_s + usage.sys_s;
        let mut before_s = used_s(self.party(Role::Relay).look());
        while Instant::now() < limit {
            let looked_at = Instant::now();
            while looked_at.elapsed() < REST_LOOK {
                self.turn();
            }
            self.expect(Role::Relay)?;
            let now_s = used_s(self.party(Role::Relay).look());
            if now_s - before_s <= REST_SHARE * looked_at.elapsed().as_secs_f64() {
                break;
            }
            before_s = now_s;
        }
        self.party(Role::Relay).settle();
        Ok(())
    }

    /// Stops the relay, by a signal to itself or to what it runs.
    pub(super) fn stop_relay(&mut self, stop: impl Fn(&Process)) -> Result<()> {
        let Some(relay) = &self.relay else { return Ok(()) };
        stop(relay);
        let stopping = Some(Instant::now());
        loop {
            if let Some(status) = self.party(Role::Relay).poll()? {
                return self.party(Role::Relay).judge_stopped(status);
            }
            self.keep_patience(Role::Relay, stopping)?;
            self.turn();
        }
    }

    /// Stops the sink.
    pub(super) fn stop_sink(&mut self) -> Result<()> {
        if let Some(sink) = &self.sink {
            sink.terminate();
        }
        let stopping = Some(Instant::now());
        while let Some(sink) = &mut self.sink {
            if let Some(status) = sink.poll()? {
                return sink.judge(status);
            }
            self.keep_patience(Role::Sink, stopping)?;
            self.turn();
        }
        Ok(())
    }

    /// Hears what is said, or waits a twentieth of a second for it.
    pub(super) fn turn(&mut self) {
        let mut heard = self.events.recv_timeout(TURN).ok();
        while let Some((role, event)) = heard {
            match (role, event) {
                (Role::Source, Event::Progress(progress)) => self.view.hear_source(progress),
                (Role::Sink, Event::Progress(progress)) => self.view.hear_sink(progress),
                (role, Event::Listening { smtp, http }) => self.listening.push(Listening { role, smtp, http }),
                _ => {}
            }
            heard = self.events.try_recv().ok();
        }
    }

    /// Shows that all is sent and `arrived` of `accepted` are there.
    pub(super) fn show_wait(&mut self, arrived: u64, accepted: u64) {
        self.display.show_wait(arrived, accepted);
    }

    /// What the user has asked for.
    pub(super) fn asked(&self) -> Asked {
        self.interrupt.asked()
    }

    /// Ends the show; gives what was seen of each party.
    pub(super) fn finish(self) -> Vec<Watched> {
        self.display.clear();
        let watched = |party: &Option<Process>| party.as_ref().map(Process::watched);
        let relay = watched(&self.relay).map(|relay| relay.after(self.former_relay.clone()));
        [watched(&self.source), relay, watched(&self.sink)].into_iter().flatten().collect()
    }

    /// Makes sure that it lives, if it is the bench's own.
    fn expect(&mut self, role: Role) -> Result<()> {
        let party = match role {
            Role::Source => &mut self.source,
            Role::Relay => &mut self.relay,
            Role::Sink => &mut self.sink,
        };
        let Some(party) = party else { return Ok(()) };
        match party.poll()? {
            None => Ok(()),
            Some(status) => {
                party.judge(status)?;
                bail!("the {} ended in the middle of the run: {}", name(role), party.last_words("it said nothing"))
            }
        }
    }

    fn keep_patience(&self, role: Role, stopping: Option<Instant>) -> Result<()> {
        ensure!(self.interrupt.asked() < Asked::StopNow, "stopped before its report was written");
        let patience = stopping.is_none_or(|since| since.elapsed() < STOP_WITHIN);
        ensure!(patience, "the {} did not stop within {} s of being asked", name(role), STOP_WITHIN.as_secs());
        Ok(())
    }
}

impl Drop for Course {
    fn drop(&mut self) {
        self.display.clear();
    }
}
