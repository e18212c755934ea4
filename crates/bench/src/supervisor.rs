//! Supervises a run: sink up, relay up, source runs, the last messages arrive, relay and sink stop.
//!
//! ```text
//! start_sink ─ listening ─→ follow_source ─ exited ─→ await_arrivals ─ all there, or quiet ─→ stop_sink ─→ finish
//!        └ start_relay ─ listening ─┘                                    └ rest_relay, stop_relay ─┘
//! ```
//!
//! Everything happens in `turn`, twenty times a second: hear the parties, show how far they are. A first SIGINT or
//! SIGTERM ends the source, then the others, and the run is reported; with a second nothing is waited for any more, and
//! what is known is reported; a third ends it all. A party that ends by itself ends the source too, and is reported.
use super::directory::name;
use super::launch::{ReadySignal, RelayLaunch};
use super::parties::{self, PartyCommand, PartyObservation, PartyProcess};
use super::plan::BenchOptions;
use super::progress::{LatestProgress, ProgressDisplay, wait_line};
use anyhow::{Context, Result, bail, ensure};
use mailrun_journey::judge;
use mailrun_journey::record::{Death, Record, Role};
use mailrun_party::interrupt::{Interrupt, Interrupted, StopRequest};
use mailrun_party::live::{LiveEvent, LiveProgress};
use mailrun_party::live_line::LiveLine;
use mailrun_party::outputs;
use mailrun_party::process_usage::ProcessUsage;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Limit of the time that a turn waits for a report.
const EVENT_TIMEOUT: Duration = Duration::from_millis(50);
/// Limit of the time until the sink says that it listens.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of the time in which a party writes its files and exits, once asked to.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// The same after a second signal.
const URGENT_STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after which no more messages are expected: the bench's own sink is one hop away.
const QUIET_TIMEOUT: Duration = Duration::from_secs(2);
/// The same behind a relay, which may pause, but has nothing to wait for: its next hop takes whatever it is given.
const RELAY_QUIET_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of the checks whether the relay is idle.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(300);
/// Share of a processor below which the relay counts as idle.
const IDLE_CPU_SHARE: f64 = 0.02;
/// Limit of the wait until it is idle: some relays never are.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Says whether all accepted messages have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completeness {
    All,
    /// No more messages came, or the user did not want to wait.
    NotAll,
}

/// A relay that runs on after a run, for the next one.
#[derive(Debug)]
pub(super) struct StandingRelay {
    process: PartyProcess,
    events: Receiver<(Role, LiveEvent)>,
    events_tx: Sender<(Role, LiveEvent)>,
}

impl StandingRelay {
    /// The end of one that has ended meanwhile: `exit status 2: disk full`.
    pub(super) fn exit(&mut self) -> Result<Option<String>> {
        let ended = self.process.poll()?;
        Ok(ended.map(|status| {
            format!("{}: {}", parties::describe_exit(status), self.process.last_stderr_line("no output"))
        }))
    }
}

/// A run on its way.
#[derive(Debug)]
pub(super) struct Supervisor {
    events: Receiver<(Role, LiveEvent)>,
    events_tx: Sender<(Role, LiveEvent)>,
    interrupt: Interrupt,
    progress: LatestProgress,
    display: ProgressDisplay,
    listening: Vec<ListenAddresses>,
    /// Set if a relay is between source and sink, the bench's own or not.
    has_relay: bool,
    /// Pause in arrivals after which no more are expected.
    quiet_timeout: Duration,
    source: Option<PartyProcess>,
    relay: Option<PartyProcess>,
    /// Observations of the relay before it was started again.
    previous_relay: Option<PartyObservation>,
    sink: Option<PartyProcess>,
    /// Time at which the load began.
    load_started_at: Option<LoadStart>,
    /// Parties that ended without having been asked to.
    deaths: Vec<(Role, Death)>,
    /// Records that parties could not write to their files.
    unwritten: Vec<(Role, Record)>,
}

/// The begin of the load.
#[derive(Clone, Copy, Debug)]
struct LoadStart {
    instant: Instant,
    /// The same on the clock of run records.
    at: Duration,
}

/// A party on its way to its end.
#[derive(Debug, Default)]
struct Stopping {
    /// Time at which it was asked to stop.
    asked_at: Option<Instant>,
    /// Time at which it was asked once more, because the user does not want to wait any longer.
    urged_at: Option<Instant>,
}

/// Source of the word that a party listens.
#[derive(Debug)]
struct ListenAddresses {
    role: Role,
    smtp: Vec<String>,
    http: Option<String>,
}

impl Supervisor {
    /// Makes the run, with no party started.
    pub(super) fn new(options: &BenchOptions) -> Result<Self> {
        let (events_tx, events) = channel();
        Self::with_events(options, events, events_tx)
    }

    /// Makes the run with a relay that has served other runs.
    pub(super) fn with_relay(options: &BenchOptions, relay: StandingRelay) -> Result<Self> {
        let StandingRelay { mut process, events, events_tx } = relay;
        // What is left there was said by parties of the former run.
        while events.try_recv().is_ok() {}
        process.begin_run();
        Ok(Self { relay: Some(process), ..Self::with_events(options, events, events_tx)? })
    }

    fn with_events(
        options: &BenchOptions,
        events: Receiver<(Role, LiveEvent)>,
        events_tx: Sender<(Role, LiveEvent)>,
    ) -> Result<Self> {
        let has_relay = options.relay().is_some();
        let usual_quiet = if has_relay { RELAY_QUIET_TIMEOUT } else { QUIET_TIMEOUT };
        Ok(Self {
            events,
            events_tx,
            interrupt: Interrupt::watch()?,
            progress: LatestProgress::new(options),
            display: ProgressDisplay::new(options.live, options.title.clone(), &options.name),
            listening: Vec::new(),
            has_relay,
            quiet_timeout: options.lost_after.unwrap_or(usual_quiet),
            source: None,
            relay: None,
            previous_relay: None,
            sink: None,
            load_started_at: None,
            deaths: Vec::new(),
            unwritten: Vec::new(),
        })
    }

    /// The place for reports of others than the parties.
    pub(super) fn events(&self) -> Sender<(Role, LiveEvent)> {
        self.events_tx.clone()
    }

    /// Pause in arrivals after which no more are expected.
    pub(super) fn quiet_timeout(&self) -> Duration {
        self.quiet_timeout
    }

    /// Starts the sink and waits until it takes mail; gives its address.
    pub(super) fn start_sink(&mut self, command: PartyCommand) -> Result<String> {
        self.sink = Some(PartyProcess::start(command, self.events_tx.clone())?);
        self.await_listening(Role::Sink, &ReadySignal::Reported, LISTEN_TIMEOUT)
    }

    /// Starts the relay and waits until it takes mail; gives its address. One that ran before has ended.
    pub(super) fn start_relay(&mut self, launch: RelayLaunch) -> Result<String> {
        self.spawn_relay(launch.command)?;
        self.await_listening(Role::Relay, &launch.ready_signal, launch.ready_within)
    }

    /// Starts the relay without waiting for it.
    pub(super) fn spawn_relay(&mut self, command: PartyCommand) -> Result<()> {
        self.listening.retain(|listening| listening.role != Role::Relay);
        if let Some(former) = self.relay.take().map(|relay| relay.observation()) {
            self.previous_relay = Some(former.merge_previous(self.previous_relay.take()));
        }
        self.relay = Some(PartyProcess::start(command, self.events_tx.clone())?);
        Ok(())
    }

    /// Kills all processes of the relay.
    pub(super) fn kill_relay(&mut self) -> Result<()> {
        self.party(Role::Relay).kill()
    }

    /// Reports whether the relay has ended.
    pub(super) fn relay_has_ended(&mut self) -> Result<bool> {
        Ok(self.party(Role::Relay).poll()?.is_some())
    }

    /// Fails if the relay has ended.
    pub(super) fn ensure_relay_alive(&mut self) -> Result<()> {
        self.check_party(Role::Relay)?;
        self.ensure_all_alive()
    }

    /// Messages that the sink has reported.
    pub(super) fn delivered(&self) -> u64 {
        self.progress.delivered()
    }

    /// Address at which the relay answers HTTP, if it does.
    pub(super) fn relay_http(&self) -> Option<&str> {
        self.listening.iter().find(|listening| listening.role == Role::Relay)?.http.as_deref()
    }

    /// Resources used by the relay, by that of its present start.
    pub(super) fn sample_relay(&mut self) -> ProcessUsage {
        self.party(Role::Relay).sample()
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
            self.process_events();
            let left = limit.saturating_sub(began.elapsed());
            self.display.show(|| LiveLine::sentence(None, format!("{line}, at most {} s more", left.as_secs())));
            self.check_party(Role::Relay)?;
            self.ensure_all_alive()?;
            ensure!(self.interrupt.requested() == StopRequest::Nothing, "interrupted while waiting for it");
            ensure!(began.elapsed() < limit, "it took longer than {} s: {line}", limit.as_secs());
        }
        Ok(())
    }

    pub(super) fn print_line(&mut self, line: &str) {
        self.display.print_line(line);
    }

    fn await_listening(&mut self, role: Role, ready: &ReadySignal, timeout: Duration) -> Result<String> {
        let limit = Instant::now() + timeout;
        loop {
            let ended = self.party(role).poll()?;
            // Read after the poll: the last reports of a party that has ended have then arrived.
            self.process_events();
            if let Some(listening) = self.listening.iter().find(|listening| listening.role == role) {
                let first = listening.smtp.first().cloned();
                return first.with_context(|| format!("the {} did not report its address", name(role)));
            }
            if let Some(status) = ended {
                let interrupt = self.interrupt.clone();
                return Err(self.party(role).start_error(status, &interrupt));
            }
            if let Some(address) = ready.greeted_address() {
                return Ok(address);
            }
            if Instant::now() > limit {
                let said = self.party(role).last_stderr_line("no output");
                bail!("the {} did not listen within {} s; its last output: {said}", name(role), timeout.as_secs());
            }
            ensure!(self.interrupt.requested() == StopRequest::Nothing, Interrupted::BEFORE_LOAD);
        }
    }

    fn party(&mut self, role: Role) -> &mut PartyProcess {
        self.slot(role).as_mut().expect("it was started before it is asked for")
    }

    fn slot(&mut self, role: Role) -> &mut Option<PartyProcess> {
        match role {
            Role::Source => &mut self.source,
            Role::Relay => &mut self.relay,
            Role::Sink => &mut self.sink,
        }
    }

    /// Starts the source and follows it to its end. Gives what it complained of where it could not run or could not write
    /// its files.
    pub(super) fn follow_source(&mut self, command: PartyCommand) -> Result<Option<anyhow::Error>> {
        self.follow_disturbed_source(command, |_, _| Ok(()))
    }

    /// The same, with `disturb` called again and again with the time since the load began.
    pub(super) fn follow_disturbed_source(
        &mut self,
        command: PartyCommand,
        mut disturb: impl FnMut(&mut Self, Duration) -> Result<()>,
    ) -> Result<Option<anyhow::Error>> {
        let began = Instant::now();
        self.source = Some(PartyProcess::start(command, self.events_tx.clone())?);
        self.load_started_at = Some(LoadStart { instant: Instant::now(), at: outputs::record_time() });
        let mut stopping = Stopping::default();
        loop {
            self.process_events();
            let view = &self.progress;
            self.display.show(|| view.line());
            self.check_party(Role::Relay)?;
            self.check_party(Role::Sink)?;
            disturb(self, began.elapsed())?;
            if let Some(status) = self.party(Role::Source).poll()? {
                return Ok(self.exit_error(Role::Source, status));
            }
            if self.asked() != StopRequest::Nothing || !self.deaths.is_empty() {
                self.stop(Role::Source, &mut stopping, &PartyProcess::terminate)?;
            }
        }
    }

    /// Gives the sink time to receive what is under way to it (`accepted` messages in all).
    ///
    /// A relay gets this time even if the user asked for an end: the run is shorter then, and its account may still
    /// close. A second request during the wait ends it.
    pub(super) fn await_arrivals(&mut self, accepted: u64) -> Result<Completeness> {
        let quiet = self.quiet_timeout;
        let last_request = match self.has_relay {
            true => self.asked().min(StopRequest::Stop),
            false => StopRequest::Nothing,
        };
        let mut arrived = self.progress.delivered();
        let mut quiet_since = Instant::now();
        while self.asked() <= last_request
            && self.may_still_arrive()
            && arrived < accepted
            && quiet_since.elapsed() < quiet
        {
            self.process_events();
            self.show_wait(arrived, accepted, quiet.saturating_sub(quiet_since.elapsed()));
            self.check_party(Role::Relay)?;
            self.check_party(Role::Sink)?;
            if self.progress.delivered() != arrived {
                arrived = self.progress.delivered();
                quiet_since = Instant::now();
            }
        }
        Ok(if arrived < accepted { Completeness::NotAll } else { Completeness::All })
    }

    /// Reports whether accepted messages can still arrive.
    fn may_still_arrive(&self) -> bool {
        !self.deaths.iter().any(|(role, _)| *role != Role::Source)
    }

    /// Waits until the relay has done what is to do after the last delivery, and takes its figures.
    pub(super) fn await_relay_idle(&mut self) -> Result<()> {
        if self.relay.is_none() {
            return Ok(());
        }
        let limit = Instant::now() + IDLE_TIMEOUT;
        let used_s = |usage: ProcessUsage| usage.user_s + usage.sys_s;
        let mut before_s = used_s(self.party(Role::Relay).sample());
        while Instant::now() < limit && self.may_still_arrive() && self.asked() < StopRequest::StopNow {
            let looked_at = Instant::now();
            while looked_at.elapsed() < IDLE_POLL_INTERVAL {
                self.process_events();
                let left_s = limit.saturating_duration_since(Instant::now()).as_secs() + 1;
                self.display.show(|| {
                    LiveLine::sentence(None, format!("waiting until the relay is idle, at most {left_s} s more"))
                });
            }
            self.check_party(Role::Relay)?;
            let now_s = used_s(self.party(Role::Relay).sample());
            if now_s - before_s <= IDLE_CPU_SHARE * looked_at.elapsed().as_secs_f64() {
                break;
            }
            before_s = now_s;
        }
        self.party(Role::Relay).stop_sampling();
        Ok(())
    }

    /// Stops the relay, by a signal to itself or to what it runs. What it complained of is its death, unless it could only
    /// not write its record.
    pub(super) fn stop_relay(&mut self, stop: impl Fn(&PartyProcess)) -> Result<Option<anyhow::Error>> {
        self.stop_party(Role::Relay, &stop)
    }

    /// Stops the sink; gives what it complained of where it could not write its files.
    pub(super) fn stop_sink(&mut self) -> Result<Option<anyhow::Error>> {
        self.stop_party(Role::Sink, &PartyProcess::terminate)
    }

    fn stop_party(&mut self, role: Role, stop: &dyn Fn(&PartyProcess)) -> Result<Option<anyhow::Error>> {
        let mut stopping = Stopping::default();
        while let Some(party) = self.slot(role) {
            if let Some(status) = party.poll()? {
                let left_behind = party.left_behind();
                let has_stopped = parties::has_stopped(status) && role == Role::Relay;
                return Ok(if has_stopped { left_behind } else { self.exit_error(role, status).or(left_behind) });
            }
            self.stop(role, &mut stopping, stop)?;
            self.process_events();
        }
        Ok(None)
    }

    /// Asks a party to stop, once more if the user has waited enough; kills it if it takes too long.
    ///
    /// # Errors
    /// If the user wants no report.
    fn stop(&mut self, role: Role, stopping: &mut Stopping, stop: &dyn Fn(&PartyProcess)) -> Result<()> {
        ensure!(self.asked() < StopRequest::Quit, Interrupted::WITHOUT_REPORT);
        let is_urgent = self.asked() == StopRequest::StopNow;
        let party = self.party(role);
        if stopping.asked_at.is_none() {
            stop(party);
            stopping.asked_at = Some(Instant::now());
        }
        if is_urgent && stopping.urged_at.is_none() {
            stop(party);
            stopping.urged_at = Some(Instant::now());
        }
        let (since, limit) = match (stopping.asked_at, stopping.urged_at) {
            (_, Some(urged)) => (urged, URGENT_STOP_TIMEOUT),
            (Some(told), None) => (told, STOP_TIMEOUT),
            (None, None) => return Ok(()),
        };
        let left = limit.saturating_sub(since.elapsed());
        if left.is_zero() {
            let said = self.party(role).last_stderr_line("");
            self.party(role).kill()?;
            let how = format!("killed: it did not stop within {} s", limit.as_secs());
            self.record_death(role, Death { at_s: self.load_s(), how, said, out_of_memory: false });
        }
        if role != Role::Source {
            let line = format!("stopping the {}, at most {} s more", name(role), left.as_secs());
            self.display.show(|| LiveLine::sentence(None, line));
        }
        Ok(())
    }

    /// Reads the parties' reports, or waits a twentieth of a second for one.
    pub(super) fn process_events(&mut self) {
        let mut heard = self.events.recv_timeout(EVENT_TIMEOUT).ok();
        while let Some(said) = heard {
            self.handle_event(said);
            heard = self.events.try_recv().ok();
        }
        let parties = [&self.source, &self.relay, &self.sink];
        let progress = &self.progress;
        self.display
            .update(|| progress.figures(parties.into_iter().flatten().filter_map(PartyProcess::load).collect()));
    }

    fn handle_event(&mut self, (role, event): (Role, LiveEvent)) {
        match (role, event) {
            (Role::Source, LiveEvent::Progress(progress)) => self.progress.update_source(progress),
            (Role::Sink, LiveEvent::Progress(progress)) => self.progress.update_sink(progress),
            (_, LiveEvent::Error { text }) => self.progress.update_error(text),
            (role, LiveEvent::Listening { smtp, http }) => self.listening.push(ListenAddresses { role, smtp, http }),
            (role, LiveEvent::Unwritten { record }) => {
                self.unwritten.extend(Record::from_json(record.as_bytes()).map(|record| (role, record)));
            }
            _ => {}
        }
    }

    /// Shows that all is sent and `arrived` of `accepted` are there; what is missing is waited for so much longer.
    pub(super) fn show_wait(&mut self, arrived: u64, accepted: u64, left: Duration) {
        self.display.show(|| wait_line(arrived, accepted, left));
    }

    /// Latest progress that the source reported.
    pub(super) fn source_progress(&self) -> LiveProgress {
        self.progress.source()
    }

    /// The record that a party could not write to its file.
    pub(super) fn take_unwritten(&mut self, role: Role) -> Option<Record> {
        let at = self.unwritten.iter().position(|(whose, _)| *whose == role)?;
        Some(self.unwritten.swap_remove(at).1)
    }

    /// Time at which the load began, on the monotonic clock; zero before that.
    pub(super) fn load_started_at(&self) -> Duration {
        self.load_started_at.map_or(Duration::ZERO, |start| start.at)
    }

    /// Parties that ended without having been asked to.
    pub(super) fn deaths(&self) -> &[(Role, Death)] {
        &self.deaths
    }

    /// The death of a party, if it ended without having been asked to.
    pub(super) fn death_of(&self, role: Role) -> Option<&Death> {
        self.deaths.iter().find_map(|(whose, death)| (*whose == role).then_some(death))
    }

    /// Fails if a party has died, for callers that cannot use half a run.
    ///
    /// # Errors
    /// If a party ended without having been asked to.
    pub(super) fn ensure_all_alive(&self) -> Result<()> {
        match self.deaths.first() {
            Some((role, death)) => bail!("{}", judge::death_text(name(*role), death)),
            None => Ok(()),
        }
    }

    /// Request of the user: go on, stop or stop at once.
    pub(super) fn asked(&self) -> StopRequest {
        self.interrupt.requested()
    }

    /// Ends the show; gives what was seen of each party.
    pub(super) fn finish(self) -> Vec<PartyObservation> {
        self.finish_run().0
    }

    /// The same, with the relay if it was not stopped.
    pub(super) fn finish_run(mut self) -> (Vec<PartyObservation>, Option<StandingRelay>) {
        self.display.clear();
        let observations = self.observations();
        let running = self.relay.take().filter(PartyProcess::is_running);
        let relay = running.map(|process| StandingRelay { process, events: self.events, events_tx: self.events_tx });
        (observations, relay)
    }

    fn observations(&self) -> Vec<PartyObservation> {
        let watched = |party: &Option<PartyProcess>| party.as_ref().map(PartyProcess::observation);
        let relay = watched(&self.relay).map(|relay| relay.merge_previous(self.previous_relay.clone()));
        [watched(&self.source), relay, watched(&self.sink)].into_iter().flatten().collect()
    }

    /// Notes it where a party of the bench's own has ended by itself.
    fn check_party(&mut self, role: Role) -> Result<()> {
        let at_s = self.load_s();
        let Some(party) = self.slot(role) else { return Ok(()) };
        if let Some(status) = party.poll()? {
            let death = party.death(status, at_s);
            self.record_death(role, death);
        }
        Ok(())
    }

    /// Complaint of a party that has ended, where it was asked to end. An end that is none of mailrun's own is noted.
    fn exit_error(&mut self, role: Role, status: ExitStatus) -> Option<anyhow::Error> {
        while let Ok(said) = self.events.try_recv() {
            self.handle_event(said);
        }
        let has_record = self.unwritten.iter().any(|(whose, _)| *whose == role);
        let outcome = self.party(role).check_exit(status);
        let is_complaint = status.code() == Some(2) && (role != Role::Relay || has_record);
        if outcome.is_err() && !is_complaint && !self.interrupt.has_ended(status) {
            let at_s = self.load_s();
            let death = self.party(role).death(status, at_s);
            self.record_death(role, death);
            return None;
        }
        outcome.err()
    }

    /// Notes the first death of a party.
    fn record_death(&mut self, role: Role, death: Death) {
        if !self.deaths.iter().any(|(whose, _)| *whose == role) {
            self.deaths.push((role, death));
        }
    }

    /// Seconds since the load began; 0 before.
    fn load_s(&self) -> f64 {
        self.load_started_at.map_or(0.0, |began| began.instant.elapsed().as_secs_f64())
    }
}
