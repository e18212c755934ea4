//! The course of a run: sink up, source runs, the last messages arrive, sink stops.
//!
//! ```text
//! start_sink ─ listening ─→ follow_source ─ exited ─→ drain_sink ─ all there, or 2 s of quiet ─→ SIGTERM ─→ finish
//! ```
//!
//! Everything happens in `turn`, twenty times a second: hear the parties, show how far they are. A first SIGINT or
//! SIGTERM ends the source, then the sink, and the run is reported; a second ends it all.
use super::directory::name;
use super::parties::{Order, Process, Watched};
use super::plan::BenchOptions;
use super::progress::{Display, Goal, View};
use crate::interrupt::{Asked, Interrupt};
use crate::live::Event;
use anyhow::{Context, Result, bail, ensure};
use journey::record::Role;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// The longest a turn waits for something to be said.
const TURN: Duration = Duration::from_millis(50);
/// How long the sink has to say that it listens.
const LISTEN_WITHIN: Duration = Duration::from_secs(10);
/// How long a party has to write its files and exit, once asked to.
const STOP_WITHIN: Duration = Duration::from_secs(15);
/// When nothing has arrived for so long, nothing will: the bench's own sink is one hop away.
const QUIET: Duration = Duration::from_secs(2);

/// A run on its way.
#[derive(Debug)]
pub(super) struct Course {
    events: Receiver<(Role, Event)>,
    mouth: Sender<(Role, Event)>,
    interrupt: Interrupt,
    view: View,
    display: Display,
    listening: Option<Vec<String>>,
    source: Option<Process>,
    sink: Option<Process>,
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
            listening: None,
            source: None,
            sink: None,
        })
    }

    /// Starts the sink and waits until it takes mail; gives its address.
    pub(super) fn start_sink(&mut self, order: Order) -> Result<String> {
        let sink = self.sink.insert(Process::start(order, self.mouth.clone())?);
        let limit = Instant::now() + LISTEN_WITHIN;
        loop {
            let ended = sink.poll()?;
            // Heard after the poll: what an ended party said has then arrived.
            while let Ok((_, event)) = self.events.recv_timeout(TURN) {
                if let Event::Listening { smtp, .. } = event {
                    self.listening = Some(smtp);
                    break;
                }
            }
            if let Some(addresses) = &self.listening {
                return addresses.first().cloned().context("the sink says that it listens, and not where");
            }
            if let Some(status) = ended {
                sink.judge(status)?;
                bail!("the sink ended before it listened: {}", sink.last_words("it said nothing"));
            }
            ensure!(Instant::now() < limit, "the sink did not listen within {} s", LISTEN_WITHIN.as_secs());
            ensure!(self.interrupt.asked() == Asked::Nothing, "stopped before the first message");
        }
    }

    /// Starts the source and follows it to its end.
    pub(super) fn follow_source(&mut self, order: Order) -> Result<()> {
        self.source = Some(Process::start(order, self.mouth.clone())?);
        let mut stopping = None;
        loop {
            self.turn();
            self.display.show(&self.view);
            self.expect_sink()?;
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

    /// Gives the sink time to take what is under way to it (`accepted` messages in all), then stops it.
    pub(super) fn drain_sink(&mut self, accepted: u64) -> Result<()> {
        let mut arrived = self.view.delivered();
        let mut quiet_since = Instant::now();
        while self.asked() == Asked::Nothing && arrived < accepted && quiet_since.elapsed() < QUIET {
            self.turn();
            self.show_wait(arrived, accepted);
            self.expect_sink()?;
            if self.view.delivered() != arrived {
                arrived = self.view.delivered();
                quiet_since = Instant::now();
            }
        }
        self.stop_sink()
    }

    fn stop_sink(&mut self) -> Result<()> {
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
        [&self.source, &self.sink].into_iter().flatten().map(Process::watched).collect()
    }

    fn expect_sink(&mut self) -> Result<()> {
        let Some(sink) = &mut self.sink else {
            return Ok(());
        };
        match sink.poll()? {
            None => Ok(()),
            Some(status) => {
                sink.judge(status)?;
                bail!("the sink ended in the middle of the run: {}", sink.last_words("it said nothing"))
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
