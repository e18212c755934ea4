//! The worker's side of Locust's protocol, as a state machine. The caller passes in messages and the time, and carries
//! out the actions.
//!
//! ```text
//! link: Absent ─ connected ─→ Registering ─ ack ─→ Registered ─ silence, a fault ─→ Absent, with a fresh identity
//! load: Idle ─ spawn ─→ Active ─ stop ─→ Draining ─ last report ─→ Ending ─ the load has ended ─→ Idle
//!                                         quit, SIGTERM ─→ Draining ─ last report, quit ─→ gone
//! ```
//! Two rules keep a test alive when a worker leaves or is late.
//!
//! First, the worker sends `quit` only if the master has recently heard from its identity. A worker that has registered
//! again sends `client_stopped` instead. The reason is a fault of masters up to Locust 2.46.3. Such a master lists an
//! identity as *missing* after 3 s without a heartbeat. At each `quit`, it subtracts the missing identities from the
//! remaining workers, and stops the whole test if no worker seems to be left.
//!
//! Second, a worker registers again when the master is silent, because a restarted master ignores workers that it does
//! not know. Each test has its own run id, so the worker notices when the new master starts another test, and first
//! ends the load of the old test.
use crate::command::{MasterCommand, SpawnTarget};
use crate::message::{ClassCounts, Percent, UserState, WorkerMessage};
use std::collections::VecDeque;
use std::time::Duration;

const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between reports of the counts to the master. Locust's own workers use the same interval.
const REPORT_INTERVAL: Duration = Duration::from_secs(3);
const REGISTER_INTERVAL: Duration = Duration::from_secs(5);
const RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// If a master that has answered heartbeats is silent for longer than this, the worker connects and registers again.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);
/// Time without contact after which the worker assumes that the master may soon list it as missing. The master does so
/// after 3 s without a heartbeat.
const CONTACT_LIMIT: Duration = Duration::from_millis(2_500);
/// Time for which the load continues without a master. Locust's own workers wait equally long.
const ORPHAN_LIMIT: Duration = Duration::from_secs(60);
/// A master that still runs the test sends a `spawn` within this time after a new registration. If no `spawn` comes,
/// the master was restarted, so the worker ends the load.
const RESUME_LIMIT: Duration = Duration::from_secs(10);
/// Time that messages in progress have to finish after the master's `quit`. It must be short, because a master listens
/// for only 0.5 s after it has sent `quit`.
pub const DRAIN_AT_QUIT: Duration = Duration::from_millis(300);
/// Time after a new registration for which the master may still list an older identity of this worker as missing. The
/// master removes such an identity after 60 s.
const MISSED_LIMIT: Duration = Duration::from_secs(75);
/// If a worker leaves while it has no contact with the master, it has this much time to register again. The master then
/// still gets its last report.
const FAREWELL_LIMIT: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
pub struct WorkerLimits {
    pub max_sessions: u32,
    /// Servers that a master may choose as the target of this worker's load, in the form that `server_name` returns.
    pub targets: Vec<String>,
    /// Converts a user's text for a server to a canonical name, or returns `None` if the text names no server. A server
    /// must have different names for access with TLS and without TLS.
    pub server_name: fn(&str) -> Option<String>,
    /// Time that messages in progress have to finish when a test stops.
    pub drain: Duration,
    /// Time without a master after which the worker exits.
    pub master_timeout: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadStatus {
    pub is_running: bool,
    /// Reason why the load ended although nobody stopped it. Only the first reason in each test is sent to the master.
    pub failure: Option<String>,
}

/// Work for the caller, who must do it in the order in which `next_action` returns it.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerAction {
    Send(WorkerMessage),
    /// Send a report with the counts since the last report and with these numbers of users for each class.
    SendStats(ClassCounts),
    SendFinalStats(ClassCounts),
    /// Run the load with this number of users. Start the load if it does not run yet. A load that already runs always
    /// belongs to the same test and is not draining, so only the number of users changes.
    Run {
        /// In a closed loop, each user is a session. In an open loop, each user adds the configured rate to the load.
        users: u32,
        /// Server to use instead of the one on the worker's command line.
        host: Option<String>,
        run_id: Option<String>,
    },
    /// Forget all unreported counts, because they belong to another test.
    ResetStats,
    /// Drop the counts so far, because the master was started with `--reset-stats`. The next report tells how many
    /// accepted messages were left out.
    LeaveOutStats,
    /// Stop the load: start no more messages, and give the messages in progress at most this much time to finish. A
    /// second `Drain` for the same load shortens this time.
    Drain(Duration),
    /// Close the connection and open one with a new identity.
    Connect,
    /// Write the remaining bytes to the master, and exit.
    Exit(WorkerExit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerExit {
    Quit,
    Terminated,
    NoMaster,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Link {
    /// There is no connection. `retry_at` is the time of the next attempt, or `None` during an attempt.
    Absent {
        retry_at: Option<Duration>,
    },
    Registering {
        next: Duration,
    },
    Registered {
        since: Duration,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum LoadState {
    Idle,
    Active {
        next_report: Duration,
    },
    /// The load starts no more messages, but the counts of its remaining messages will still be reported.
    Draining {
        until: Duration,
    },
    /// The time for draining is over, but some messages of the load may still be in progress. The next test has to wait
    /// for the end of this load, because a draining load cannot start messages again.
    Ending,
}

#[derive(Debug)]
pub struct LocustWorker {
    limits: WorkerLimits,
    link: Link,
    load: LoadState,
    classes: ClassCounts,
    last_timestamp: f64,
    heartbeat_at: Duration,
    /// Time of the master's last message on this connection. `None` until the master has answered a heartbeat.
    reply_at: Option<Duration>,
    /// Time at which the worker last repeated its registration, or `None` if it has registered only once.
    registered_again_at: Option<Duration>,
    has_been_registered: bool,
    alone_since: Option<Duration>,
    /// A `spawn` that arrived while the load drained or ended. It is applied when the load has ended.
    next_target: Option<SpawnTarget>,
    run_id: Option<String>,
    /// Set when a message on this connection has shown that the master runs our locustfile.
    has_locustfile: bool,
    /// Set if the master has started another test while the load drains or ends, so that the remaining counts of the
    /// load must not be reported.
    is_superseded: bool,
    resets_stats: bool,
    /// Set when the worker has reported a failure to the master, so that it reports only one per test.
    has_complained: bool,
    /// Set when the worker registers again during a test. Until a `spawn` shows that the test still runs, the worker
    /// reports itself as ready and sends no counts.
    resumes: bool,
    leaving: Option<(WorkerExit, Duration)>,
    /// Processor share and memory in bytes at the last tick, which the heartbeats report.
    usage: (Percent, u64),
    actions: VecDeque<WorkerAction>,
}

impl LocustWorker {
    /// Creates a worker without a connection. The first action that it asks for is [`WorkerAction::Connect`].
    pub fn new(limits: WorkerLimits, now: Duration) -> Self {
        Self {
            limits,
            link: Link::Absent { retry_at: None },
            load: LoadState::Idle,
            classes: ClassCounts::default(),
            last_timestamp: f64::NEG_INFINITY,
            heartbeat_at: now,
            reply_at: None,
            registered_again_at: None,
            has_been_registered: false,
            alone_since: Some(now),
            next_target: None,
            run_id: None,
            has_locustfile: false,
            is_superseded: false,
            resets_stats: false,
            has_complained: false,
            resumes: false,
            leaving: None,
            usage: (Percent::default(), 0),
            actions: VecDeque::from([WorkerAction::Connect]),
        }
    }

    pub fn next_action(&mut self) -> Option<WorkerAction> {
        self.actions.pop_front()
    }

    pub fn is_registered(&self) -> bool {
        matches!(self.link, Link::Registered { .. })
    }

    /// Returns true if the master runs our locustfile, and therefore answers questions about its clock.
    pub fn can_ask_clock(&self) -> bool {
        self.is_registered() && self.has_locustfile && self.leaving.is_none()
    }

    /// Must be called when a connection has been made. The connection must have an identity that was never used before,
    /// so that no master takes this worker for an older one.
    pub fn connected(&mut self, now: Duration) {
        self.link = Link::Registering { next: now + REGISTER_INTERVAL };
        self.reply_at = None;
        self.has_locustfile = false;
        self.send(WorkerMessage::ClientReady);
    }

    /// Must be called when a connection has ended or could not be made. The worker then tries again after a second.
    pub fn disconnected(&mut self, now: Duration) {
        self.alone_since.get_or_insert(now);
        self.link = Link::Absent { retry_at: Some(now + RECONNECT_DELAY) };
    }

    /// Makes the worker leave the test: it starts no more messages, waits for the messages in progress, sends a last
    /// report, tells the master with `quit` or `client_stopped` that it leaves, and exits.
    pub fn terminate(&mut self, now: Duration) {
        self.leave(WorkerExit::Terminated, self.limits.drain, now);
    }

    pub fn receive(&mut self, command: MasterCommand, now: Duration) {
        self.reply_at = self.reply_at.map(|_| now);
        match command {
            MasterCommand::Ack(_) => self.registered(now),
            MasterCommand::Heartbeat => self.reply_at = Some(now),
            MasterCommand::Spawn(target) => self.spawn(target, now),
            MasterCommand::RampComplete => self.ramp_complete(),
            MasterCommand::Stop => self.stop(now),
            MasterCommand::Quit => self.leave(WorkerExit::Quit, DRAIN_AT_QUIT, now),
            MasterCommand::Reconnect => self.reconnect(now),
            MasterCommand::Clock { .. } | MasterCommand::Unknown => {}
        }
    }

    /// Performs all work that is due, such as heartbeats and reports. The caller must call this at least ten times per
    /// second, because the shortest time limit is 0.3 s. Before it reads `status`, the caller must carry out all
    /// earlier actions, because a load that it has not started yet would otherwise look like a load that has ended.
    pub fn tick(&mut self, now: Duration, status: &LoadStatus, usage: (Percent, u64)) {
        self.usage = usage;
        self.tick_link(now);
        self.tick_load(now, status);
        self.tick_leaving(now);
    }

    fn send(&mut self, message: WorkerMessage) {
        self.actions.push_back(WorkerAction::Send(message));
    }

    fn registered(&mut self, now: Duration) {
        if self.is_registered() {
            return;
        }
        self.link = Link::Registered { since: now };
        if std::mem::replace(&mut self.has_been_registered, true) {
            self.registered_again_at = Some(now);
        }
        self.alone_since = None;
        self.resumes = self.load != LoadState::Idle;
        self.last_timestamp = f64::NEG_INFINITY;
        self.heartbeat(now);
    }

    fn heartbeat(&mut self, now: Duration) {
        let state = match self.load {
            LoadState::Idle => UserState::Ready,
            // The worker has ended its part of the test and registered for the next test. Report the worker as ready,
            // because the master begins the next test once enough workers are ready.
            LoadState::Ending if self.next_target.is_none() => UserState::Ready,
            // The worker has registered again. Report the worker as ready although its load may still run, because a
            // new master starts its test only once enough workers are ready. If the test still runs, the master sends
            // the number of users (`spawn`) again, and the load goes on.
            _ if self.resumes => UserState::Ready,
            _ => UserState::Running,
        };
        let (processor, memory_bytes) = self.usage;
        self.heartbeat_at = now;
        self.send(WorkerMessage::Heartbeat(state, processor, memory_bytes));
    }

    /// Returns true if the worker is registered, and its last contact with the master is so recent that the master
    /// cannot have listed it as missing yet.
    fn is_in_contact(&self, now: Duration) -> bool {
        let is_recent = |at: Duration| now.saturating_sub(at) <= CONTACT_LIMIT;
        self.is_registered() && is_recent(self.heartbeat_at) && self.reply_at.is_none_or(is_recent)
    }

    fn reconnect(&mut self, now: Duration) {
        self.alone_since.get_or_insert(now);
        self.link = Link::Absent { retry_at: None };
        self.actions.push_back(WorkerAction::Connect);
    }

    fn tick_link(&mut self, now: Duration) {
        match self.link {
            Link::Absent { retry_at: Some(at) } if now >= at => self.reconnect(now),
            Link::Registering { next } if now >= next => {
                self.link = Link::Registering { next: now + REGISTER_INTERVAL };
                self.send(WorkerMessage::ClientReady);
            }
            Link::Registered { since } => {
                // A gap of more than `CONTACT_LIMIT` between heartbeats means that this process was stopped, so the
                // master may have listed the worker as missing.
                let has_slept = now.saturating_sub(self.heartbeat_at) > CONTACT_LIMIT;
                let is_silent = self.reply_at.is_some_and(|at| now.saturating_sub(at) > SILENCE_LIMIT);
                if has_slept || is_silent {
                    return self.reconnect(now);
                }
                if now >= self.heartbeat_at + HEARTBEAT_INTERVAL {
                    self.heartbeat(now);
                }
                if self.resumes && now > since + RESUME_LIMIT {
                    self.resumes = false;
                    self.drain(self.limits.drain, now);
                }
            }
            Link::Absent { .. } | Link::Registering { .. } => {}
        }
        let time_alone = self.alone_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        if time_alone > ORPHAN_LIMIT {
            self.drain(self.limits.drain, now);
        }
        if time_alone > self.limits.master_timeout {
            self.leave(WorkerExit::NoMaster, self.limits.drain, now);
        }
    }

    fn tick_load(&mut self, now: Duration, status: &LoadStatus) {
        if let Some(failure) = &status.failure {
            self.complain(failure.clone());
        }
        match self.load {
            // Do not send counts until a `spawn` confirms that the master runs this test, because the counts might
            // otherwise be added to another test.
            LoadState::Active { next_report } if now >= next_report && self.is_registered() && !self.resumes => {
                self.load = LoadState::Active { next_report: now + REPORT_INTERVAL };
                self.report();
            }
            LoadState::Draining { until } if !status.is_running || now >= until => self.drained(),
            _ => {}
        }
        if self.load == LoadState::Ending && !status.is_running {
            self.ended(now);
        }
    }

    fn report(&mut self) {
        self.actions.push_back(WorkerAction::SendStats(self.classes.clone()));
    }

    fn final_report(&mut self) {
        if self.is_superseded {
            self.actions.push_back(WorkerAction::ResetStats);
        }
        self.actions.push_back(WorkerAction::SendFinalStats(self.classes.clone()));
    }

    /// Applies the numbers of users in a `spawn`. Ignores a `spawn` that is not newer than the last one.
    fn spawn(&mut self, target: SpawnTarget, now: Duration) {
        // The master sends `spawn` only to registered workers, so the worker need not wait for an `ack`.
        self.registered(now);
        if self.leaving.is_some() || target.timestamp <= self.last_timestamp {
            return;
        }
        self.last_timestamp = target.timestamp;
        self.has_locustfile = target.run_id.is_some();
        self.resumes = false;
        let is_of_another_test = target.run_id.is_some() && target.run_id != self.run_id;
        // This `spawn` begins a new test, but the load of the old test has not ended yet. Drop the old load's remaining
        // counts. Otherwise they would count for the new test.
        if self.load == LoadState::Ending || (is_of_another_test && self.load != LoadState::Idle) {
            self.is_superseded = true;
            self.drain(self.limits.drain, now);
        }
        match self.load {
            LoadState::Idle | LoadState::Active { .. } => self.apply(&target, now),
            LoadState::Draining { .. } | LoadState::Ending => self.next_target = Some(target),
        }
    }

    fn ramp_complete(&mut self) {
        if self.resets_stats && matches!(self.load, LoadState::Active { .. }) {
            self.actions.push_back(WorkerAction::LeaveOutStats);
        }
    }

    fn apply(&mut self, target: &SpawnTarget, now: Duration) {
        self.send(WorkerMessage::Spawning);
        let is_refused = target.host.as_ref().is_some_and(|host| !self.is_allowed(host));
        let limit = if is_refused { 0 } else { self.limits.max_sessions };
        self.classes = ClassCounts::within(&target.classes, limit);
        if is_refused {
            let host: String = target.host.iter().flat_map(|host| host.chars()).filter(|c| !c.is_control()).collect();
            self.complain(format!(
                "{host} is no server that this worker may load; start it with --allow-target {host}"
            ));
        } else if target.users() > u64::from(limit) {
            let users = target.users();
            self.complain(format!("{users} users for this worker are more than its limit of {limit} (--max-sessions)"));
        }
        self.resets_stats = target.reset_stats;
        if self.load == LoadState::Idle {
            self.run_id = target.run_id.clone();
            self.is_superseded = false;
            self.actions.push_back(WorkerAction::ResetStats);
            self.load = LoadState::Active { next_report: now + REPORT_INTERVAL };
        }
        self.actions.push_back(WorkerAction::Run {
            users: self.classes.users(),
            host: target.host.clone().filter(|_| !is_refused),
            run_id: target.run_id.clone(),
        });
        self.send(WorkerMessage::SpawningComplete(self.classes.clone()));
    }

    fn is_allowed(&self, host: &str) -> bool {
        (self.limits.server_name)(host).is_some_and(|name| self.limits.targets.contains(&name))
    }

    fn complain(&mut self, text: String) {
        if !std::mem::replace(&mut self.has_complained, true) {
            self.send(WorkerMessage::Exception(text));
        }
    }

    fn stop(&mut self, now: Duration) {
        self.next_target = None;
        match self.load {
            LoadState::Active { .. } => self.drain(self.limits.drain, now),
            // Answer even though there is nothing to drain: a master that stops a test waits for `client_stopped` from
            // all workers.
            LoadState::Idle | LoadState::Ending => self.stopped(),
            LoadState::Draining { .. } => {}
        }
    }

    /// Stops the load: no message starts any more, and messages in progress have at most `limit` to finish. If the load
    /// is already draining, `limit` can only shorten the time.
    fn drain(&mut self, limit: Duration, now: Duration) {
        let until = now + limit;
        let is_earlier = match self.load {
            LoadState::Active { .. } => true,
            LoadState::Draining { until: known } => until < known,
            LoadState::Idle | LoadState::Ending => false,
        };
        if is_earlier {
            self.load = LoadState::Draining { until };
            self.actions.push_back(WorkerAction::Drain(limit));
        }
    }

    /// Ends the draining, because the load has ended or the time for messages in progress is over. Sends the last
    /// report now, unless the worker is leaving, is not registered, or has been told to run another test.
    fn drained(&mut self) {
        self.load = LoadState::Ending;
        self.classes = self.classes.emptied();
        // If the load is stopped because another test begins, the master of the old test is gone and need not be told.
        let is_awaited = !(self.is_superseded && self.next_target.is_some());
        if self.leaving.is_none() && self.is_registered() && is_awaited {
            self.stopped();
        }
    }

    /// After the end of the load, starts the next test if its `spawn` has already arrived.
    fn ended(&mut self, now: Duration) {
        self.load = LoadState::Idle;
        self.has_complained = false;
        if let Some(target) = self.next_target.take() {
            self.apply(&target, now);
        }
    }

    /// Sends the last counts, and registers for the next test.
    fn stopped(&mut self) {
        self.final_report();
        self.send(WorkerMessage::ClientStopped);
        self.send(WorkerMessage::ClientReady);
    }

    /// Drains the load, after which `tick_leaving` sends the last report and exits. If the worker is already leaving,
    /// the first reason to exit stays, and the earlier of the two deadlines applies. For example, a master may send
    /// `quit` during a long drain, and then listens for only 0.5 s.
    fn leave(&mut self, exit: WorkerExit, drain: Duration, now: Duration) {
        let until = now + drain + FAREWELL_LIMIT;
        let (exit, until) = self.leaving.map_or((exit, until), |(first, earlier)| (first, earlier.min(until)));
        self.leaving = Some((exit, until));
        self.next_target = None;
        self.drain(drain, now);
    }

    /// Once the load of a leaving worker has drained, sends the last report and exits. If the master may no longer know
    /// this worker's identity, the worker registers again first, because the master ignores unknown workers.
    fn tick_leaving(&mut self, now: Duration) {
        let Some((exit, until)) = self.leaving else { return };
        if matches!(self.load, LoadState::Active { .. } | LoadState::Draining { .. }) {
            return;
        }
        if self.is_in_contact(now) {
            self.final_report();
            // Do not send `quit` soon after a new registration. The master may still list the old identity as missing,
            // and could then stop the whole test.
            let is_missed = self.registered_again_at.is_some_and(|at| now.saturating_sub(at) < MISSED_LIMIT);
            self.send(if is_missed { WorkerMessage::ClientStopped } else { WorkerMessage::Quit });
            self.actions.push_back(WorkerAction::Exit(exit));
        } else if exit == WorkerExit::NoMaster || now >= until {
            self.actions.push_back(WorkerAction::Exit(exit));
        } else if self.is_registered() {
            self.reconnect(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUSY: LoadStatus = LoadStatus { is_running: true, failure: None };
    const IDLE: LoadStatus = LoadStatus { is_running: false, failure: None };

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    fn limits() -> WorkerLimits {
        WorkerLimits {
            max_sessions: 100,
            targets: vec!["mail.example".to_owned()],
            server_name: |text| Some(text.to_ascii_lowercase()),
            drain: ms(5_000),
            master_timeout: ms(300_000),
        }
    }

    fn target(timestamp: f64, users: u64) -> SpawnTarget {
        SpawnTarget { timestamp, classes: vec![("A".to_owned(), users)], ..SpawnTarget::default() }
    }

    fn actions(worker: &mut LocustWorker) -> Vec<WorkerAction> {
        std::iter::from_fn(|| worker.next_action()).collect()
    }

    fn messages(worker: &mut LocustWorker) -> Vec<&'static str> {
        actions(worker).iter().map(name).collect()
    }

    fn name(action: &WorkerAction) -> &'static str {
        match action {
            WorkerAction::Send(message) => match message {
                WorkerMessage::ClientReady => "client_ready",
                WorkerMessage::Heartbeat(..) => "heartbeat",
                WorkerMessage::Spawning => "spawning",
                WorkerMessage::SpawningComplete(_) => "spawning_complete",
                WorkerMessage::Stats(_) => "stats",
                WorkerMessage::ClientStopped => "client_stopped",
                WorkerMessage::Quit => "quit",
                WorkerMessage::Exception(_) => "exception",
                WorkerMessage::Clock(_) => "clock",
            },
            WorkerAction::SendStats(_) | WorkerAction::SendFinalStats(_) => "stats",
            WorkerAction::Run { .. } => "RUN",
            WorkerAction::ResetStats => "RESET",
            WorkerAction::LeaveOutStats => "LEAVE OUT",
            WorkerAction::Drain(_) => "DRAIN",
            WorkerAction::Connect => "CONNECT",
            WorkerAction::Exit(_) => "EXIT",
        }
    }

    fn registered() -> LocustWorker {
        let mut worker = LocustWorker::new(limits(), ms(0));
        worker.connected(ms(0));
        worker.receive(MasterCommand::Ack(0), ms(1));
        assert_eq!(messages(&mut worker), ["CONNECT", "client_ready", "heartbeat"]);
        worker
    }

    fn running() -> LocustWorker {
        let mut worker = registered();
        worker.receive(MasterCommand::Spawn(target(10.0, 4)), ms(10));
        assert_eq!(messages(&mut worker), ["spawning", "RESET", "RUN", "spawning_complete"]);
        worker
    }

    /// Calls `tick` for every 100 ms between `from` and `to` (in milliseconds), and answers each heartbeat as a master
    /// does. Returns the messages and actions of the worker.
    fn pass(worker: &mut LocustWorker, from: u64, to: u64, status: &LoadStatus) -> Vec<&'static str> {
        let mut seen = Vec::new();
        for time in (from..to).step_by(100) {
            worker.tick(ms(time), status, (Percent::default(), 0));
            for message in messages(worker) {
                if message == "heartbeat" {
                    worker.receive(MasterCommand::Heartbeat, ms(time));
                }
                seen.push(message);
            }
        }
        seen
    }

    #[test]
    fn a_test_is_run_and_drained_and_the_next_one_begins() {
        let mut worker = running();
        let seen = pass(&mut worker, 100, 6_500, &BUSY);
        assert_eq!(seen.iter().filter(|name| **name == "stats").count(), 2, "{seen:?}");
        assert_eq!(seen.iter().filter(|name| **name == "heartbeat").count(), 6, "{seen:?}");
        worker.receive(MasterCommand::Stop, ms(6_500));
        assert_eq!(messages(&mut worker), ["DRAIN"]);
        assert_eq!(pass(&mut worker, 6_600, 6_900, &BUSY), [""; 0], "it drains");
        assert_eq!(pass(&mut worker, 6_900, 7_000, &IDLE), ["stats", "client_stopped", "client_ready"]);
        worker.receive(MasterCommand::Spawn(target(20.0, 1)), ms(7_100));
        assert_eq!(messages(&mut worker), ["spawning", "RESET", "RUN", "spawning_complete"]);
    }

    #[test]
    fn targets_are_absolute_and_old_ones_are_dropped() {
        let mut worker = running();
        let sessions = |actions: &[WorkerAction]| {
            actions.iter().find_map(|action| match action {
                WorkerAction::Run { users, .. } => Some(*users),
                _ => None,
            })
        };
        for (timestamp, users, expected) in [(11.0, 9, Some(9)), (11.0, 3, None), (9.0, 1, None), (12.0, 0, Some(0))] {
            worker.receive(MasterCommand::Spawn(target(timestamp, users)), ms(20));
            assert_eq!(sessions(&actions(&mut worker)), expected, "{users} at {timestamp}");
        }
    }

    #[test]
    fn a_huge_target_is_capped_and_another_server_refused() {
        let mut worker = running();
        worker.receive(MasterCommand::Spawn(target(11.0, u64::MAX)), ms(20));
        let output = actions(&mut worker);
        assert!(output.iter().any(|action| matches!(action, WorkerAction::Run { users: 100, .. })), "{output:?}");
        assert!(output.iter().any(|action| name(action) == "exception"));
        let other = SpawnTarget { host: Some("victim.example".to_owned()), ..target(12.0, 5) };
        worker.receive(MasterCommand::Spawn(other), ms(30));
        let output = actions(&mut worker);
        assert!(output.contains(&WorkerAction::Run { users: 0, host: None, run_id: None }), "{output:?}");
        let own = SpawnTarget { host: Some("Mail.example".to_owned()), ..target(13.0, 5) };
        worker.receive(MasterCommand::Spawn(own), ms(40));
        assert!(actions(&mut worker).iter().any(|action| matches!(action, WorkerAction::Run { users: 5, .. })));
    }

    #[test]
    fn quit_is_followed_by_the_last_counts_within_the_masters_patience() {
        let mut worker = running();
        worker.receive(MasterCommand::Quit, ms(500));
        assert_eq!(messages(&mut worker), ["DRAIN"]);
        worker.tick(ms(500) + DRAIN_AT_QUIT, &BUSY, (Percent::default(), 0));
        assert_eq!(messages(&mut worker), ["stats", "quit", "EXIT"]);
    }

    #[test]
    fn quit_shortens_a_drain_that_has_begun() {
        for (cause, exit) in [("stop", WorkerExit::Quit), ("SIGTERM", WorkerExit::Terminated)] {
            let mut worker = running();
            match exit {
                WorkerExit::Terminated => worker.terminate(ms(400)),
                _ => worker.receive(MasterCommand::Stop, ms(400)),
            }
            worker.receive(MasterCommand::Quit, ms(500));
            let drains = [ms(5_000), DRAIN_AT_QUIT].map(WorkerAction::Drain);
            assert_eq!(actions(&mut worker), drains, "{cause}");
            // The caller reports the same signal again and again, which must not prolong the drain.
            if exit == WorkerExit::Terminated {
                worker.terminate(ms(600));
            }
            worker.tick(ms(500) + DRAIN_AT_QUIT, &BUSY, (Percent::default(), 0));
            let output = actions(&mut worker);
            assert_eq!(output.iter().map(name).collect::<Vec<_>>(), ["stats", "quit", "EXIT"], "{cause}");
            assert_eq!(output.last(), Some(&WorkerAction::Exit(exit)), "{cause}");
        }
    }

    #[test]
    fn a_terminated_worker_drains_first() {
        let mut worker = running();
        worker.terminate(ms(100));
        assert_eq!(messages(&mut worker), ["DRAIN"]);
        assert!(!pass(&mut worker, 200, 2_000, &BUSY).contains(&"quit"));
        assert_eq!(pass(&mut worker, 2_000, 2_100, &IDLE).last(), Some(&"EXIT"));
    }

    #[test]
    fn an_identity_that_may_be_missing_never_quits() {
        let mut worker = running();
        // The process was stopped for four seconds, so the master believes that this worker is missing.
        worker.terminate(ms(4_000));
        worker.tick(ms(4_100), &IDLE, (Percent::default(), 0));
        let names = messages(&mut worker);
        assert_eq!(names, ["DRAIN", "CONNECT"]);
        worker.connected(ms(4_200));
        worker.receive(MasterCommand::Ack(1), ms(4_300));
        worker.tick(ms(4_400), &IDLE, (Percent::default(), 0));
        assert_eq!(messages(&mut worker), ["client_ready", "heartbeat", "stats", "client_stopped", "EXIT"]);
    }

    #[test]
    fn without_a_master_load_goes_on_for_a_minute_and_the_worker_for_its_limit() {
        let mut worker = running();
        worker.disconnected(ms(1_000));
        let mut drained_at = None;
        for time in (1_000..400_000).step_by(100) {
            let is_draining = drained_at.is_some();
            worker.tick(ms(time), if is_draining { &IDLE } else { &BUSY }, (Percent::default(), 0));
            for action in actions(&mut worker) {
                match action {
                    WorkerAction::Connect => worker.disconnected(ms(time)),
                    WorkerAction::Drain(_) => drained_at = Some(time),
                    WorkerAction::Exit(exit) => {
                        assert_eq!((exit, drained_at), (WorkerExit::NoMaster, Some(61_100)));
                        assert_eq!(time, 301_100);
                        return;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        panic!("it does not end");
    }

    #[test]
    fn a_restarted_master_is_met_with_a_fresh_identity_and_old_load_ends() {
        let mut worker = running();
        assert!(pass(&mut worker, 100, 2_000, &BUSY).contains(&"heartbeat"));
        worker.disconnected(ms(2_000));
        assert_eq!(pass(&mut worker, 2_100, 3_100, &BUSY), ["CONNECT"]);
        worker.connected(ms(3_100));
        worker.receive(MasterCommand::Ack(0), ms(3_200));
        assert_eq!(messages(&mut worker), ["client_ready", "heartbeat"]);
        let seen = pass(&mut worker, 3_300, 14_000, &BUSY);
        assert!(seen.contains(&"DRAIN"), "no spawn has come: {seen:?}");
    }

    #[test]
    fn the_test_of_a_new_master_ends_the_load_of_the_old_one_first() {
        let of_test = |time: f64, run_id: &str| SpawnTarget { run_id: Some(run_id.to_owned()), ..target(time, 4) };
        let mut worker = registered();
        worker.receive(MasterCommand::Spawn(of_test(10.0, "old")), ms(10));
        worker.disconnected(ms(1_000));
        worker.connected(ms(2_000));
        worker.receive(MasterCommand::Ack(0), ms(2_010));
        let output = actions(&mut worker);
        let is_ready = |action: &WorkerAction| {
            matches!(action, WorkerAction::Send(WorkerMessage::Heartbeat(UserState::Ready, ..)))
        };
        assert!(output.iter().any(is_ready), "a new master waits for workers that are ready: {output:?}");
        worker.receive(MasterCommand::Spawn(of_test(20.0, "new")), ms(2_100));
        assert_eq!(messages(&mut worker), ["DRAIN"]);
        // The old load still runs when the 5 s for its drain are over, so the worker must not start the new test yet.
        let seen = pass(&mut worker, 2_200, 7_300, &BUSY);
        assert!(seen.iter().all(|name| *name == "heartbeat"), "{seen:?}");
        let seen = pass(&mut worker, 7_300, 7_400, &IDLE);
        assert_eq!(seen, ["spawning", "RESET", "RUN", "spawning_complete"]);
        worker.receive(MasterCommand::Spawn(of_test(21.0, "new")), ms(7_400));
        assert_eq!(messages(&mut worker), ["spawning", "RUN", "spawning_complete"], "the same test goes on");
        worker.receive(MasterCommand::Stop, ms(7_500));
        assert_eq!(messages(&mut worker), ["DRAIN"]);
        assert_eq!(pass(&mut worker, 7_600, 7_700, &IDLE), ["stats", "client_stopped", "client_ready"]);
    }

    #[test]
    fn the_counts_of_an_old_test_are_reported_to_no_new_master() {
        let of_test = |time: f64, run_id: &str| SpawnTarget { run_id: Some(run_id.to_owned()), ..target(time, 4) };
        let stopped = &["RESET", "stats", "client_stopped", "client_ready"][..];
        // The worker has registered again, so the master may list the old identity as missing. A `quit` could then stop
        // the whole test, so the worker must send `client_stopped`.
        let left = &["RESET", "stats", "client_stopped", "EXIT"][..];
        for (status, command, expected) in [
            (&IDLE, MasterCommand::Stop, stopped),
            (&BUSY, MasterCommand::Stop, stopped),
            (&IDLE, MasterCommand::Quit, left),
            (&BUSY, MasterCommand::Quit, left),
        ] {
            // The old load is active or, if `is_stopped` is set, drains because the old master has stopped the test.
            for is_stopped in [false, true] {
                let situation = format!("{command:?} {status:?} {is_stopped}");
                let mut worker = registered();
                worker.receive(MasterCommand::Spawn(of_test(10.0, "old")), ms(10));
                if is_stopped {
                    worker.receive(MasterCommand::Stop, ms(20));
                }
                worker.disconnected(ms(1_000));
                worker.connected(ms(2_000));
                worker.receive(MasterCommand::Ack(0), ms(2_010));
                worker.receive(MasterCommand::Spawn(of_test(20.0, "new")), ms(2_100));
                worker.receive(command.clone(), ms(2_200));
                actions(&mut worker);
                let mut seen = pass(&mut worker, 2_300, 8_000, status);
                let end = seen.iter().position(|name| *name == expected[3]).map(|at| at + 1);
                seen.truncate(end.unwrap_or(seen.len()));
                seen.retain(|name| *name != "heartbeat");
                assert_eq!(seen, expected, "{situation}");
            }
        }
    }

    #[test]
    fn the_next_test_waits_for_a_load_that_outlasts_its_drain() {
        let begun = &["spawning", "RESET", "RUN", "spawning_complete"][..];
        let answered = ["RESET", "stats", "client_stopped", "client_ready"];
        for (is_stopped, expected) in [(false, begun), (true, &begun[..0])] {
            let mut worker = running();
            worker.receive(MasterCommand::Stop, ms(100));
            assert_eq!(messages(&mut worker), ["DRAIN"]);
            let mut seen = pass(&mut worker, 200, 5_200, &BUSY);
            seen.retain(|name| *name != "heartbeat");
            assert_eq!(seen, ["stats", "client_stopped", "client_ready"], "within the time of the drain");
            worker.receive(MasterCommand::Spawn(target(20.0, 1)), ms(5_200));
            assert_eq!(pass(&mut worker, 5_300, 5_500, &BUSY), [""; 0], "the old load still runs");
            if is_stopped {
                worker.receive(MasterCommand::Stop, ms(5_500));
                assert_eq!(messages(&mut worker), answered, "the new test has no counts");
            }
            assert_eq!(pass(&mut worker, 5_600, 5_700, &IDLE), expected);
        }
    }

    #[test]
    fn counts_of_the_ramp_are_left_out_where_the_master_says_so() {
        let mut worker = registered();
        worker.receive(MasterCommand::RampComplete, ms(5));
        worker.receive(MasterCommand::Spawn(SpawnTarget { reset_stats: true, ..target(10.0, 4) }), ms(10));
        assert!(!messages(&mut worker).contains(&"LEAVE OUT"));
        worker.receive(MasterCommand::RampComplete, ms(20));
        assert_eq!(messages(&mut worker), ["LEAVE OUT"]);
        worker.receive(MasterCommand::Spawn(target(11.0, 4)), ms(30));
        worker.receive(MasterCommand::RampComplete, ms(40));
        assert!(!messages(&mut worker).contains(&"LEAVE OUT"));
    }

    #[test]
    fn a_silent_master_is_left() {
        let mut worker = running();
        worker.receive(MasterCommand::Heartbeat, ms(100));
        let mut seen = Vec::new();
        for time in (100..11_000).step_by(100) {
            worker.tick(ms(time), &BUSY, (Percent::default(), 0));
            seen.extend(messages(&mut worker));
        }
        assert!(seen.contains(&"CONNECT"), "{seen:?}");
    }

    fn commands() -> impl Strategy<Value = MasterCommand> {
        prop_oneof![
            any::<u64>().prop_map(MasterCommand::Ack),
            (any::<f64>(), any::<u64>()).prop_map(|(time, users)| MasterCommand::Spawn(target(time, users))),
            Just(MasterCommand::RampComplete),
            Just(MasterCommand::Stop),
            Just(MasterCommand::Quit),
            Just(MasterCommand::Reconnect),
            Just(MasterCommand::Heartbeat),
            (any::<f64>(), any::<f64>()).prop_map(|(sent_s, master_s)| MasterCommand::Clock { sent_s, master_s }),
            Just(MasterCommand::Unknown),
        ]
    }

    proptest! {
        #[test]
        fn no_order_of_events_makes_an_unsafe_message_a_late_quit_or_two_loads(
            steps in proptest::collection::vec((0_u8..5, commands(), 0_u64..5_000, any::<bool>()), 1..60)
        ) {
            let mut worker = LocustWorker::new(limits(), ms(0));
            let mut now = ms(0);
            let mut last_contact = ms(0);
            let mut is_load_ending = false;
            for (event, command, after, is_running) in steps {
                now += ms(after);
                let status = LoadStatus { is_running, failure: None };
                match event {
                    0 => worker.connected(now),
                    1 => worker.disconnected(now),
                    2 => worker.receive(command, now),
                    3 => worker.terminate(now),
                    _ => worker.tick(now, &status, (Percent::new(50.0), 1)),
                }
                let has_load_ended = event == 4 && !is_running;
                is_load_ending &= !has_load_ended;
                for action in actions(&mut worker) {
                    is_load_ending |= matches!(action, WorkerAction::Drain(_)) && !has_load_ended;
                    let starts_load = matches!(action, WorkerAction::Run { .. });
                    prop_assert!(!is_load_ending || !starts_load);
                    let WorkerAction::Send(message) = action else { continue };
                    prop_assert!(crate::message::tests::is_safe(&message.encode("h_1")));
                    match message {
                        WorkerMessage::Heartbeat(..) => last_contact = now,
                        WorkerMessage::Quit => prop_assert!(now - last_contact <= CONTACT_LIMIT),
                        _ => {}
                    }
                }
            }
        }
    }
}
