//! Supervises the processes of a run. Starts the sink, the relay and the source, waits until the last messages have
//! arrived, and stops the relay and the sink. In a MADES run, the MADES bench has the role of the source, the endpoint
//! has the role of the relay, and there is no sink.
//!
//! ```text
//! start_sink ─ listening ─→ follow_source ─ exited ─→ await_arrivals ─ all there, or quiet ─→ stop_sink ─→ finish
//!        └ start_relay ─ listening ─┘                              └ await_relay_idle, stop_relay ─┘
//! ```
//!
//! All waiting goes through `process_events`, which runs at least twenty times a second. It reads the reports of the
//! processes and updates the display. After a first SIGINT or SIGTERM the supervisor stops the source, then the other
//! processes, and the run is reported. After a second signal it stops waiting and reports the results so far. A third
//! signal ends the run without a report. If a process dies, the supervisor stops the source, and the death is reported.
use super::launch::{ReadySignal, RelayLaunch};
use super::parties::{self, PartyCommand, PartyObservation, PartyProcess};
use super::plan::BenchOptions;
use super::progress::{LatestProgress, ProgressDisplay, wait_line};
use anyhow::{Context, Result, bail, ensure};
use mailrun_measurement::judge;
use mailrun_measurement::record::{Death, Record, Role};
use mailrun_process::interrupt::{Interrupt, Interrupted, StopRequest};
use mailrun_process::live::{LiveEvent, LiveProgress};
use mailrun_process::live_line::LiveLine;
use mailrun_process::outputs;
use mailrun_process::process_usage::ProcessUsage;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Maximum time that `process_events` waits for a report. It is short, so that the display is updated often.
const EVENT_TIMEOUT: Duration = Duration::from_millis(50);
const LISTEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for a process to write its files and exit after it is asked to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for a process to exit after the user's second request to stop.
const URGENT_STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// If no message arrives for this long in a run without a relay, the bench expects no more messages. The time is short,
/// because the source sends directly to the bench's own sink.
const QUIET_TIMEOUT: Duration = Duration::from_secs(2);
/// If no message arrives for this long, the bench expects no more messages from a relay. A working relay may pause, but
/// has no reason to pause for longer, because its next hop accepts everything.
const RELAY_QUIET_TIMEOUT: Duration = Duration::from_secs(10);
/// If no message arrives for this long while the sink cannot read a mailbox, the bench expects no more messages. The
/// time is long, because the sink tries to open the mailbox again only every 5 s, and a server that has just been
/// started may be slow to answer a login.
pub(super) const CLOSED_MAILBOX_TIMEOUT: Duration = Duration::from_secs(30);
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(300);
/// The relay counts as idle if it uses less than this share of a CPU.
const IDLE_CPU_SHARE: f64 = 0.02;
/// Maximum time to wait until the relay is idle. After this time, the bench goes on, because some relays never become
/// idle.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completeness {
    All,
    /// The bench stopped waiting although messages are missing, because no more arrived for a while, because a process
    /// died, or because the user asked to stop.
    NotAll,
}

/// A relay that keeps running after a run, so that the next run can use it.
#[derive(Debug)]
pub(super) struct StandingRelay {
    process: PartyProcess,
    events: Receiver<(Role, LiveEvent)>,
    events_tx: Sender<(Role, LiveEvent)>,
}

impl StandingRelay {
    /// If the relay has ended in the meantime, returns how it ended, for example `exit status 2: disk full`.
    pub(super) fn exit(&mut self) -> Result<Option<String>> {
        let ended = self.process.poll()?;
        Ok(ended.map(|status| {
            format!("{}: {}", parties::describe_exit(status), self.process.last_stderr_line("no output"))
        }))
    }
}

#[derive(Debug)]
pub(super) struct Supervisor {
    events: Receiver<(Role, LiveEvent)>,
    events_tx: Sender<(Role, LiveEvent)>,
    interrupt: Interrupt,
    progress: LatestProgress,
    display: ProgressDisplay,
    listening: Vec<ListenAddresses>,
    /// The processes, in the order in which mail passes through them.
    parties: Vec<PartyProcess>,
    /// Set if there is a relay between the source and the sink. The relay may be the bench's own or
    /// one that was already running, such as a server in front of a remote sink.
    has_relay: bool,
    /// If no message arrives for this long, the bench expects no more messages.
    quiet_timeout: Duration,
    /// CPU time and memory of the relay's earlier processes, if the relay was restarted during the run.
    previous_relay: Option<PartyObservation>,
    load_started_at: Option<LoadStart>,
    /// Processes that died: they ended without being asked to, exited with a failure, or had to be killed.
    deaths: Vec<(Role, Death)>,
    /// Run records that processes printed on standard output, because they could not write them to their files.
    unwritten: Vec<(Role, Record)>,
}

#[derive(Clone, Copy, Debug)]
struct LoadStart {
    instant: Instant,
    /// Start of the load, on the clock that run records use (`outputs::record_time`).
    at: Duration,
}

#[derive(Debug, Default)]
struct Stopping {
    asked_at: Option<Instant>,
    /// Time of the second request to stop, which the process gets when the user sends a second signal.
    urged_at: Option<Instant>,
}

#[derive(Debug)]
struct ListenAddresses {
    role: Role,
    addresses: Vec<String>,
    http: Option<String>,
}

impl Supervisor {
    pub(super) fn new(options: &BenchOptions) -> Result<Self> {
        let display = ProgressDisplay::new(options.live, options.title.clone(), &options.name);
        let has_relay = options.relay().is_some() || options.target.remote_sink().is_some();
        let usual_quiet = if has_relay { RELAY_QUIET_TIMEOUT } else { QUIET_TIMEOUT };
        let quiet_timeout = options.lost_after.unwrap_or(usual_quiet);
        Ok(Self { has_relay, quiet_timeout, ..Self::showing(LatestProgress::new(options), display)? })
    }

    pub(super) fn with_relay(options: &BenchOptions, relay: StandingRelay) -> Result<Self> {
        let StandingRelay { mut process, events, events_tx } = relay;
        // Discard reports that processes of the previous run have left in the channel, because they must not count for
        // this run.
        while events.try_recv().is_ok() {}
        process.begin_run();
        Ok(Self { parties: vec![process], events, events_tx, ..Self::new(options)? })
    }

    /// Creates a supervisor that has no processes yet and shows `progress` on `display`. It has the settings of a run
    /// without a relay.
    pub(super) fn showing(progress: LatestProgress, display: ProgressDisplay) -> Result<Self> {
        let (events_tx, events) = channel();
        Ok(Self {
            events,
            events_tx,
            interrupt: Interrupt::watch()?,
            progress,
            display,
            listening: Vec::new(),
            parties: Vec::new(),
            has_relay: false,
            quiet_timeout: QUIET_TIMEOUT,
            previous_relay: None,
            load_started_at: None,
            deaths: Vec::new(),
            unwritten: Vec::new(),
        })
    }

    /// Returns the sending end of the channel from which the supervisor reads reports. The watcher of a remote sink
    /// uses it to add the reports of that sink.
    pub(super) fn events(&self) -> Sender<(Role, LiveEvent)> {
        self.events_tx.clone()
    }

    pub(super) fn quiet_timeout(&self) -> Duration {
        self.quiet_timeout
    }

    /// Starts the sink, waits until it listens, and returns its address.
    pub(super) fn start_sink(&mut self, command: PartyCommand) -> Result<String> {
        self.start(command)?;
        self.await_listening(Role::Sink, &ReadySignal::Reported, LISTEN_TIMEOUT)
    }

    /// Starts the relay, waits until it listens, and returns its address. A relay that ran before must have ended.
    pub(super) fn start_relay(&mut self, launch: RelayLaunch) -> Result<String> {
        self.spawn_relay(launch.command)?;
        self.await_listening(Role::Relay, &launch.ready_signal, launch.ready_within)
    }

    /// Starts the relay without waiting until it listens. An audit uses this to kill the server again during its start.
    pub(super) fn spawn_relay(&mut self, command: PartyCommand) -> Result<()> {
        self.listening.retain(|listening| listening.role != Role::Relay);
        if let Some(former) = self.observations().into_iter().find(|party| party.role == Role::Relay) {
            self.parties.retain(|party| party.role != Role::Relay);
            self.previous_relay = Some(former);
        }
        self.start(command)
    }

    fn start(&mut self, command: PartyCommand) -> Result<()> {
        self.parties.push(PartyProcess::start(command, self.events_tx.clone(), &self.interrupt)?);
        self.parties.sort_by_key(|party| party.role as u8);
        Ok(())
    }

    pub(super) fn kill_relay(&mut self) -> Result<()> {
        self.party(Role::Relay).kill()
    }

    pub(super) fn relay_has_ended(&mut self) -> Result<bool> {
        Ok(self.party(Role::Relay).poll()?.is_some())
    }

    pub(super) fn ensure_relay_alive(&mut self) -> Result<()> {
        self.check_party(Role::Relay)?;
        self.ensure_all_alive()
    }

    /// Returns the number of messages that the sink has reported, including duplicates and mail from other senders. The
    /// number shows whether mail still arrives. To find out how much of the run's mail has arrived, use `settled`.
    pub(super) fn delivered(&self) -> u64 {
        self.progress.delivered()
    }

    /// Returns the number of (message, recipient) pairs that the sink has reported as delivered or bounced. Unlike
    /// `delivered`, this does not count duplicates.
    pub(super) fn settled(&self) -> u64 {
        self.progress.settled()
    }

    pub(super) fn http_of(&self, role: Role) -> Option<&str> {
        self.listening.iter().find(|listening| listening.role == role)?.http.as_deref()
    }

    /// Samples the CPU time and the memory of the relay. After a restart, the figures include only the relay's current
    /// process.
    pub(super) fn sample_relay(&mut self) -> ProcessUsage {
        self.party(Role::Relay).sample()
    }

    pub(super) fn begin_relay_usage(&mut self) {
        self.party(Role::Relay).begin_run();
    }

    /// Waits until `is_there` returns true, and shows `line` in the meantime.
    ///
    /// # Errors
    /// Returns an error if a process dies, if the user asks to stop, or after `limit`.
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
        let name = self.party(role).name;
        loop {
            let ended = self.party(role).poll()?;
            // Read the reports after checking whether the process has ended, so that its last report is not missed.
            self.process_events();
            if let Some(listening) = self.listening.iter().find(|listening| listening.role == role) {
                let first = listening.addresses.first().cloned();
                return first.with_context(|| format!("the {name} did not report its address"));
            }
            if let Some(status) = ended {
                let interrupt = self.interrupt;
                return Err(self.party(role).start_error(status, &interrupt));
            }
            if let Some(address) = ready.greeted_address() {
                return Ok(address);
            }
            if Instant::now() > limit {
                let output = self.party(role).last_stderr_line("no output");
                bail!("the {name} did not listen within {} s; its last output: {output}", timeout.as_secs());
            }
            ensure!(self.interrupt.requested() == StopRequest::Nothing, Interrupted::BEFORE_LOAD);
        }
    }

    fn party(&mut self, role: Role) -> &mut PartyProcess {
        self.find(role).expect("it was started before it is asked for")
    }

    fn find(&mut self, role: Role) -> Option<&mut PartyProcess> {
        self.parties.iter_mut().find(|party| party.role == role)
    }

    /// Starts the source and waits until it ends. Returns the source's error if it could not run or could not write its
    /// files.
    pub(super) fn follow_source(&mut self, command: PartyCommand) -> Result<Option<anyhow::Error>> {
        self.follow_disturbed_source(command, |_, _| Ok(()))
    }

    /// Does the same as [`Self::follow_source`], and also calls `disturb` repeatedly with the time since the start of
    /// the load. An audit uses this to cause a fault at a random time, for example to kill the server.
    pub(super) fn follow_disturbed_source(
        &mut self,
        command: PartyCommand,
        mut disturb: impl FnMut(&mut Self, Duration) -> Result<()>,
    ) -> Result<Option<anyhow::Error>> {
        let began = Instant::now();
        self.start(command)?;
        self.load_started_at = Some(LoadStart { instant: Instant::now(), at: outputs::record_time() });
        let mut stopping = Stopping::default();
        loop {
            self.process_events();
            let view = &self.progress;
            self.display.show(|| view.line());
            self.check_servers()?;
            disturb(self, began.elapsed())?;
            if let Some(status) = self.party(Role::Source).poll()? {
                return Ok(self.exit_error(Role::Source, status));
            }
            if self.asked() != StopRequest::Nothing || !self.deaths.is_empty() {
                self.stop(Role::Source, &mut stopping, &PartyProcess::terminate)?;
            }
        }
    }

    /// Waits until the sink has received `accepted` messages, or until no more arrive. The count includes duplicates
    /// and mail from other senders, so use this function only for mail without trace headers, which cannot be counted
    /// more exactly.
    ///
    /// If the user has already stopped the load, a relay still gets time to deliver the mail that it has accepted. A
    /// further request to stop ends the wait.
    pub(super) fn await_arrivals(&mut self, accepted: u64) -> Result<Completeness> {
        self.await_count(accepted, LatestProgress::delivered)
    }

    /// Waits until `count` has reached `accepted`, or until no more messages arrive.
    pub(super) fn await_count(
        &mut self,
        accepted: u64,
        count: impl FnMut(&LatestProgress) -> u64,
    ) -> Result<Completeness> {
        self.await_all(accepted, count, || true)
    }

    /// Waits until `count` has reached `accepted` and `are_all_there` returns true, or until no more messages arrive.
    /// The count alone is not enough, because a message can be delivered and counted although the source never received
    /// the 250 for it.
    pub(super) fn await_all(
        &mut self,
        accepted: u64,
        mut count: impl FnMut(&LatestProgress) -> u64,
        mut are_all_there: impl FnMut() -> bool,
    ) -> Result<Completeness> {
        let quiet = self.quiet_timeout;
        let last_request = self.request_before_wait();
        let mut arrived = count(&self.progress);
        let mut is_complete = arrived >= accepted && are_all_there();
        let mut quiet_since = Instant::now();
        while self.asked() <= last_request && self.may_still_arrive() && !is_complete {
            let limit = if self.progress.has_closed_mailboxes() { quiet.max(CLOSED_MAILBOX_TIMEOUT) } else { quiet };
            let Some(left) = limit.checked_sub(quiet_since.elapsed()) else { break };
            self.process_events();
            self.show_wait(arrived, accepted, left);
            self.check_servers()?;
            let now = count(&self.progress);
            if now != arrived {
                arrived = now;
                quiet_since = Instant::now();
                // Call `are_all_there` only after an arrival, because it may fetch the whole ledger of the sink.
                is_complete = arrived >= accepted && are_all_there();
            }
        }
        Ok(if is_complete { Completeness::All } else { Completeness::NotAll })
    }

    /// Returns the strongest request to stop that does not end a wait for arrivals. If the user's first request has
    /// already ended the load, the wait ignores that request, because a relay still needs time to deliver. Without a
    /// relay, any request ends the wait.
    pub(super) fn request_before_wait(&self) -> StopRequest {
        match self.has_relay {
            true => self.asked().min(StopRequest::Stop),
            false => StopRequest::Nothing,
        }
    }

    /// Returns false if the relay or the sink has died, because then no more messages can arrive.
    fn may_still_arrive(&self) -> bool {
        !self.deaths.iter().any(|(role, _)| *role != Role::Source)
    }

    /// Waits until the relay is idle, because it may still have work to do after the last delivery. Then stops
    /// measuring the relay, so that the CPU time of its shutdown is not counted.
    pub(super) fn await_relay_idle(&mut self) -> Result<()> {
        if self.find(Role::Relay).is_none() {
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
                    LiveLine::sentence(None, format!("waiting until the server is idle, at most {left_s} s more"))
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

    /// Measures the relay, if there is one, for the last time. The caller does this when the measured work is done, so
    /// that the CPU time of the shutdown is not counted.
    pub(super) fn stop_sampling_relay(&mut self) {
        if let Some(relay) = self.find(Role::Relay) {
            relay.sample();
            relay.stop_sampling();
        }
    }

    /// Calls `stop` to make the relay end, and waits until it has ended. Returns an error if the relay left other
    /// processes running, or if it could not write its run record. Any other failing exit status is recorded as the
    /// relay's death.
    pub(super) fn stop_relay(&mut self, stop: impl Fn(&PartyProcess)) -> Result<Option<anyhow::Error>> {
        self.stop_party(Role::Relay, &stop)
    }

    /// Stops the sink, and returns its error if it could not write its files.
    pub(super) fn stop_sink(&mut self) -> Result<Option<anyhow::Error>> {
        self.stop_party(Role::Sink, &PartyProcess::terminate)
    }

    fn stop_party(&mut self, role: Role, stop: &dyn Fn(&PartyProcess)) -> Result<Option<anyhow::Error>> {
        let mut stopping = Stopping::default();
        while let Some(party) = self.find(role) {
            if let Some(status) = party.poll()? {
                let left_behind = party.left_behind();
                let was_asked = role == Role::Relay && stopping.asked_at.is_some();
                let has_stopped = was_asked && parties::has_stopped(status);
                return Ok(if has_stopped { left_behind } else { self.exit_error(role, status).or(left_behind) });
            }
            self.stop(role, &mut stopping, stop)?;
            self.process_events();
        }
        Ok(None)
    }

    /// Asks a process to stop, and asks again when the user does not want to wait any longer. Kills
    /// the process if it takes too long. The caller repeats the call until the process has ended.
    ///
    /// # Errors
    /// Returns an error if the user's third signal asks to end without a report.
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
            (_, Some(urged_at)) => (urged_at, URGENT_STOP_TIMEOUT),
            (Some(asked_at), None) => (asked_at, STOP_TIMEOUT),
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
            let line = format!("stopping the {}, at most {} s more", self.party(role).name, left.as_secs());
            self.display.show(|| LiveLine::sentence(None, line));
        }
        Ok(())
    }

    /// Handles all reports that the processes have sent, and updates the display. Waits up to 50 ms for a first report.
    pub(super) fn process_events(&mut self) {
        let mut next_event = self.events.recv_timeout(EVENT_TIMEOUT).ok();
        while let Some(event) = next_event {
            self.handle_event(event);
            next_event = self.events.try_recv().ok();
        }
        let Self { progress, parties, .. } = self;
        self.display.update(|| progress.figures(parties.iter().filter_map(PartyProcess::load).collect()));
    }

    fn handle_event(&mut self, (role, event): (Role, LiveEvent)) {
        match (role, event) {
            (Role::Source, LiveEvent::Progress(progress)) => self.progress.update_source(progress),
            (Role::Sink, LiveEvent::Progress(progress)) => self.progress.update_sink(progress),
            (_, LiveEvent::Error { text }) => self.progress.update_error(text),
            (role, LiveEvent::Listening { smtp: addresses, http }) => {
                self.listening.push(ListenAddresses { role, addresses, http });
            }
            (role, LiveEvent::Ready { amqp: addresses }) => {
                self.listening.push(ListenAddresses { role, addresses, http: None });
            }
            (role, LiveEvent::Unwritten { record }) => {
                self.unwritten.extend(Record::from_json(record.as_bytes()).map(|record| (role, record)));
            }
            _ => {}
        }
    }

    /// Shows how many of the accepted messages have arrived, and for how long (`left`) the bench still waits for the
    /// others.
    pub(super) fn show_wait(&mut self, arrived: u64, accepted: u64, left: Duration) {
        self.display.show(|| wait_line(arrived, accepted, left));
    }

    pub(super) fn source_progress(&self) -> LiveProgress {
        self.progress.source()
    }

    /// Removes and returns the run record that a process has printed because it could not write its file.
    pub(super) fn take_unwritten(&mut self, role: Role) -> Option<Record> {
        let position = self.unwritten.iter().position(|(whose, _)| *whose == role)?;
        Some(self.unwritten.swap_remove(position).1)
    }

    /// Returns the time at which the load began, on the clock that run records use. Zero before the load begins.
    pub(super) fn load_started_at(&self) -> Duration {
        self.load_started_at.map_or(Duration::ZERO, |start| start.at)
    }

    pub(super) fn deaths(&self) -> &[(Role, Death)] {
        &self.deaths
    }

    pub(super) fn death_of(&self, role: Role) -> Option<&Death> {
        self.deaths.iter().find_map(|(whose, death)| (*whose == role).then_some(death))
    }

    /// Removes the relay's death from the deaths of the run, and returns it. An audit calls this before it restarts a
    /// relay that it has killed, so that this death does not count as a failure.
    pub(super) fn take_relay_death(&mut self) -> Option<Death> {
        let at = self.deaths.iter().position(|(whose, _)| *whose == Role::Relay)?;
        Some(self.deaths.remove(at).1)
    }

    /// Returns an error if a process has died. Callers use this if an incomplete run is of no use to them.
    pub(super) fn ensure_all_alive(&self) -> Result<()> {
        match self.deaths.first() {
            Some((role, death)) => bail!("{}", judge::death_text(role.name(), death)),
            None => Ok(()),
        }
    }

    /// Returns how urgently the user has asked to stop so far: from not at all to ending without a report.
    pub(super) fn asked(&self) -> StopRequest {
        self.interrupt.requested()
    }

    /// Ends the display, and returns the resource usage of each process.
    pub(super) fn finish(self) -> Vec<PartyObservation> {
        self.finish_run().0
    }

    /// Does the same as [`Self::finish`], and also returns the relay if it still runs, so that the next run can use it.
    pub(super) fn finish_run(mut self) -> (Vec<PartyObservation>, Option<StandingRelay>) {
        self.display.clear();
        let observations = self.observations();
        let running = self.parties.into_iter().find(|party| party.role == Role::Relay && party.is_running());
        let relay = running.map(|process| StandingRelay { process, events: self.events, events_tx: self.events_tx });
        (observations, relay)
    }

    fn observations(&self) -> Vec<PartyObservation> {
        let observation = |party: &PartyProcess| match party.role {
            Role::Relay => party.observation().merge_previous(self.previous_relay.clone()),
            Role::Source | Role::Sink => party.observation(),
        };
        self.parties.iter().map(observation).collect()
    }

    fn check_servers(&mut self) -> Result<()> {
        self.check_party(Role::Relay)?;
        self.check_party(Role::Sink)
    }

    /// Records the death of a process if the process has ended by itself.
    fn check_party(&mut self, role: Role) -> Result<()> {
        let at_s = self.load_s();
        let Some(party) = self.find(role) else { return Ok(()) };
        if let Some(status) = party.poll()? {
            let death = party.death(status, at_s);
            self.record_death(role, death);
        }
        Ok(())
    }

    /// Checks the exit status of a process that was asked to stop or has finished. Returns an error if the process
    /// could not do its work (exit status 2). Any other failure is recorded as the process's death.
    fn exit_error(&mut self, role: Role, status: ExitStatus) -> Option<anyhow::Error> {
        while let Ok(event) = self.events.try_recv() {
            self.handle_event(event);
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

    fn record_death(&mut self, role: Role, death: Death) {
        if !self.deaths.iter().any(|(whose, _)| *whose == role) {
            self.deaths.push((role, death));
        }
    }

    /// Returns the seconds since the load began, or 0 before the load.
    fn load_s(&self) -> f64 {
        self.load_started_at.map_or(0.0, |began| began.instant.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::options;
    use mailrun_process::live::LiveProgress;

    #[test]
    fn the_wait_ends_when_what_was_accepted_is_there_and_not_when_as_much_else_is() {
        let quiet = Duration::from_millis(150);
        // The server has accepted 10 messages. Each report of the sink has two numbers: the messages that have arrived,
        // and the mailboxes that the sink cannot read. If `has_last` is false, one accepted message never arrives, even
        // if the sink reports 10 messages.
        for (situation, reports, has_last, expected) in [
            ("all", vec![(10, 0)], true, Completeness::All),
            ("one whose 250 was lost instead of one that was accepted", vec![(10, 0)], false, Completeness::NotAll),
            ("that and all others", vec![(10, 0), (11, 0)], true, Completeness::All),
            ("some", vec![(9, 0)], true, Completeness::NotAll),
            ("the last when its mailbox is open again", vec![(9, 1), (10, 0)], true, Completeness::All),
        ] {
            let waited = BenchOptions { lost_after: Some(quiet), ..options() };
            let mut supervisor = Supervisor::new(&waited).unwrap();
            let events = supervisor.events();
            let last = reports.last().map_or(0, |(settled, _)| *settled);
            let reporter = std::thread::spawn(move || {
                for (settled, closed) in reports {
                    let progress = LiveProgress { settled, closed, ..LiveProgress::default() };
                    events.send((Role::Sink, LiveEvent::Progress(progress))).unwrap();
                    // After a report that a mailbox cannot be read, the next report comes only after three times the
                    // quiet time-out. The supervisor must wait for it, because the missing mail may be in that mailbox.
                    std::thread::sleep(if closed > 0 { 3 * quiet } else { quiet / 3 });
                }
            });
            let seen = std::cell::Cell::new(0);
            let count = |progress: &LatestProgress| {
                seen.set(progress.settled());
                progress.settled()
            };
            let got = supervisor.await_all(10, count, || has_last && seen.get() == last).unwrap();
            assert_eq!(got, expected, "{situation}");
            reporter.join().unwrap();
        }
    }
}
