//! The link between a Locust master and the worker. On its own thread, it carries messages between
//! the socket and the worker's state.
use super::connection::MasterConnection;
use super::stats::{self, ReportTimes};
use crate::source::{LoadControl, NUMBERS_LOG2};
use anyhow::Result;
use mailrun_lock::lock;
use mailrun_locust::{
    ClassCounts, LoadStatus, LocustWorker, MasterClockExchange, MasterCommand, Percent, StatsReport, WorkerAction,
    WorkerExit, WorkerLimits, WorkerMessage,
};
use mailrun_measurement::trace::MESSAGE_NUMBERS;
use mailrun_net::clock;
use mailrun_process::interrupt::{Interrupt, StopRequest};
use mailrun_process::process_usage;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Minimum period over which the CPU usage for the master's statistics is averaged.
const USAGE_INTERVAL: Duration = Duration::from_secs(1);
const IDLE_WAIT: Duration = Duration::from_millis(20);
/// Time for which the worker still reads from the master after its own last message. If a socket is closed while it has
/// unread bytes, the kernel resets the connection, so the last message could be lost.
const LINGER: Duration = Duration::from_millis(150);
/// Largest worker index that fits into the upper 12 bits of a message number. It replaces any larger index from the
/// master, because a larger index would overwrite the bits for the stage of the load.
const MAX_INDEX: u64 = (MESSAGE_NUMBERS >> NUMBERS_LOG2) - 1;
/// Differences from the master's clock of less than this many seconds are not corrected, because they may be the travel
/// time of a message.
const LEAST_SKEW_S: f64 = 1.0;
/// Clock differences of ten years or more are ignored, because one of the clocks was probably never set.
const MOST_SKEW_S: f64 = 315_360_000.0;

pub(super) struct MasterLink {
    master: String,
    worker: LocustWorker,
    connection: Option<MasterConnection>,
    /// Prefix of the identities under which this process registers with the master. Each connection
    /// appends its own number.
    process: String,
    connections: u64,
    identity: String,
    orders: Sender<LoadOrder>,
    load: Option<LoadOrder>,
    interrupt: Interrupt,
    usage: UsageMeter,
    next_message: u64,
    index: Option<u64>,
    reports: u64,
    reported_at_s: f64,
    /// Number of accepted messages that were left out of the statistics since the last report, because the master was
    /// started with `--reset-stats`. The next report tells the master this number.
    left_out: u64,
    clock: MasterClockExchange,
    /// Seconds by which the master's clock is ahead of ours, according to the time in the master's
    /// last `spawn` message. This value is used only until `clock` has measured the difference.
    offset_s: i64,
    has_said_absent: bool,
}

/// Measures which share of the host's processors this process uses, and how much memory.
struct UsageMeter {
    measured_at: Duration,
    used_s: f64,
    latest: (Percent, u64),
}

impl UsageMeter {
    fn new(now: Duration) -> Self {
        let used = process_usage::own();
        let memory = used.rss_bytes.unwrap_or_default();
        Self { measured_at: now, used_s: used.user_s + used.sys_s, latest: (Percent::default(), memory) }
    }

    fn latest(&mut self, now: Duration) -> (Percent, u64) {
        let elapsed = now.saturating_sub(self.measured_at);
        if elapsed >= USAGE_INTERVAL {
            let used = process_usage::own();
            let used_s = used.user_s + used.sys_s;
            let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
            let share = (used_s - self.used_s) / elapsed.as_secs_f64() / processors;
            self.latest = (Percent::new(share * 100.0), used.rss_bytes.unwrap_or_default());
            self.used_s = used_s;
            self.measured_at = now;
        }
        self.latest
    }
}

impl MasterLink {
    /// Fails if the system provides no random bytes for the worker's unique identity.
    pub(super) fn new(
        master: String,
        limits: WorkerLimits,
        orders: Sender<LoadOrder>,
        interrupt: Interrupt,
    ) -> Result<Self> {
        let now = clock::now();
        Ok(Self {
            master,
            worker: LocustWorker::new(limits, now),
            connection: None,
            process: process_identity()?,
            connections: 0,
            identity: String::new(),
            orders,
            load: None,
            interrupt,
            usage: UsageMeter::new(now),
            next_message: 0,
            index: None,
            reports: 0,
            reported_at_s: unix_s(),
            left_out: 0,
            clock: MasterClockExchange::default(),
            offset_s: 0,
            has_said_absent: false,
        })
    }

    /// Runs until the worker has to end. This method then drops the link, which contains the sender of orders, so that
    /// the main thread stops waiting for further orders.
    pub(super) fn run(mut self) -> WorkerExit {
        loop {
            self.receive();
            if self.interrupt.requested() != StopRequest::Nothing {
                self.worker.terminate(clock::now());
            }
            // Carry out the master's orders before `tick` reports the status, so that the status includes a new load.
            if let Some(exit) = self.act().or_else(|| self.tick()) {
                self.flush();
                self.linger();
                return exit;
            }
            self.ask_clock();
            self.flush();
            if self.interrupt.requested() >= StopRequest::StopNow {
                return WorkerExit::Terminated;
            }
        }
    }

    fn tick(&mut self) -> Option<WorkerExit> {
        let now = clock::now();
        let usage = self.usage.latest(now);
        let status = self.load_status();
        self.worker.tick(now, &status, usage);
        self.act()
    }

    fn receive(&mut self) {
        let Some(connection) = &mut self.connection else { return std::thread::sleep(IDLE_WAIT) };
        match connection.receive() {
            Ok(messages) => messages.iter().filter_map(|bytes| MasterCommand::decode(bytes)).for_each(|command| {
                self.note(&command);
                self.worker.receive(command, clock::now());
            }),
            Err(error) => self.lose(&error),
        }
    }

    fn note(&mut self, command: &MasterCommand) {
        match command {
            MasterCommand::Ack(index) if self.index.is_none() => {
                let index = (*index).min(MAX_INDEX);
                self.index = Some(index);
                // The master gives each registered worker a different index. Use the index as the upper bits of all
                // message numbers, so that no two workers use the same number.
                self.next_message = index << NUMBERS_LOG2;
                mailrun_process::tell!("worker {index} of the Locust master at {}", self.master);
            }
            MasterCommand::Spawn(target) => {
                let skew = target.timestamp - unix_s();
                let is_skewed = (LEAST_SKEW_S..MOST_SKEW_S).contains(&skew.abs());
                self.offset_s = if is_skewed { skew.round() as i64 } else { 0 };
            }
            MasterCommand::Clock { sent_s, master_s } => self.clock.answer(*sent_s, *master_s, clock::now()),
            _ => {}
        }
    }

    /// Asks the master for its time whenever the estimate of the clock difference needs another answer. Only a master
    /// that runs mailrun's locustfile can answer.
    fn ask_clock(&mut self) {
        if self.connection.is_none() || !self.worker.can_ask_clock() {
            return;
        }
        if let Some(sent_s) = self.clock.question(clock::now(), unix_s()) {
            self.send(&WorkerMessage::Clock(sent_s));
        }
    }

    fn lose(&mut self, error: &anyhow::Error) {
        self.connection = None;
        self.worker.disconnected(clock::now());
        if !std::mem::replace(&mut self.has_said_absent, true) {
            mailrun_process::tell!("no connection to the Locust master at {}: {error:#}; trying again", self.master);
        }
    }

    fn load_status(&self) -> LoadStatus {
        LoadStatus {
            is_running: self.load.as_ref().is_some_and(|load| !load.has_ended()),
            failure: self.load.as_ref().and_then(LoadOrder::take_failure),
        }
    }

    fn act(&mut self) -> Option<WorkerExit> {
        while let Some(action) = self.worker.next_action() {
            match action {
                WorkerAction::Send(message) => self.send(&message),
                WorkerAction::SendStats(classes) => {
                    let report = self.report(classes);
                    self.send(&WorkerMessage::Stats(Box::new(report)));
                }
                WorkerAction::SendFinalStats(classes) => {
                    let report = StatsReport { is_final: true, ..self.report(classes) };
                    self.send(&WorkerMessage::Stats(Box::new(report)));
                }
                WorkerAction::Run { users, host, run_id } => self.run_load(users, host, run_id),
                WorkerAction::ResetStats => {
                    self.left_out = 0;
                    drop(self.load.as_ref().map(|load| load.control().take_counts()));
                }
                WorkerAction::LeaveOutStats => {
                    let counts = self.load.as_ref().map(|load| load.control().take_counts());
                    self.left_out += counts.map_or(0, |counts| counts.accepted);
                }
                WorkerAction::Drain(limit) => {
                    self.load.iter().for_each(|load| load.control().drain(limit));
                }
                WorkerAction::Connect => self.connect(),
                WorkerAction::Exit(exit) => return Some(exit),
            }
        }
        None
    }

    fn connect(&mut self) {
        self.connection = None;
        self.index = None;
        // Discard the measured clock offset, because another master may now listen at this address.
        self.clock = MasterClockExchange::default();
        self.connections += 1;
        self.identity = format!("{}-{}", self.process, self.connections);
        match MasterConnection::open(&self.master, &self.identity) {
            Ok(connection) => {
                self.connection = Some(connection);
                self.has_said_absent = false;
                self.worker.connected(clock::now());
            }
            Err(error) => self.lose(&error),
        }
    }

    fn send(&mut self, message: &WorkerMessage) {
        if let Some(connection) = &mut self.connection {
            connection.send(&message.encode(&self.identity));
        }
    }

    fn flush(&mut self) {
        if let Some(Err(error)) = self.connection.as_mut().map(MasterConnection::flush) {
            self.lose(&error);
        }
    }

    fn report(&mut self, classes: ClassCounts) -> StatsReport {
        // Without a connection, this report would be lost, so leave the counts for a later report.
        let load = self.load.as_ref().filter(|_| self.connection.is_some());
        let counts = load.map(|load| load.control().take_counts()).unwrap_or_default();
        let clock = self.clock.estimate(clock::now());
        let exact_offset_s = self.offset_s();
        let now_s = unix_s() + exact_offset_s;
        let times = ReportTimes { start_s: self.reported_at_s, now_s, offset_s: exact_offset_s.round() as i64 };
        self.reported_at_s = now_s;
        self.reports += 1;
        let mut report = StatsReport { classes, number: self.reports, clock, ..stats::report(&counts, times) };
        report.counts.push(("left_out", std::mem::take(&mut self.left_out)));
        report
    }

    /// Returns the number of seconds to add to this host's clock to get the master's clock. If the
    /// difference has not been measured yet, the number comes from the master's last `spawn` message.
    fn offset_s(&self) -> f64 {
        self.clock.estimate(clock::now()).map_or(self.offset_s as f64, |estimate| estimate.offset_s)
    }

    fn run_load(&mut self, users: u32, host: Option<String>, run_id: Option<String>) {
        if let Some(load) = self.load.as_ref().filter(|load| !load.has_ended()) {
            return load.control().set_users(users);
        }
        if users == 0 {
            return;
        }
        if let Some(ended) = &self.load {
            let next = ended.control().next_message();
            // If the worker had the same index during the previous load, continue after the message numbers of that
            // load, so that no number is used twice.
            if next >> NUMBERS_LOG2 == self.next_message >> NUMBERS_LOG2 {
                self.next_message = self.next_message.max(next);
            }
        }
        let control = LoadControl::new(users, self.next_message, self.interrupt);
        let order = LoadOrder::new(control, host, run_id);
        self.reported_at_s = unix_s() + self.offset_s();
        self.load = Some(order.clone());
        // Sending cannot fail, because the main thread receives orders until this thread ends.
        let _ = self.orders.send(order);
    }

    /// Reads input for up to `LINGER`, so that closing the socket does not drop our last messages.
    fn linger(&mut self) {
        let until = clock::now() + LINGER;
        while clock::now() < until {
            match self.connection.as_mut().map(MasterConnection::receive) {
                Some(Ok(_)) => {}
                _ => return,
            }
        }
    }
}

/// Returns the prefix of the identities under which this process registers with the master: the host name, an
/// underscore and a random ID. A master takes the part before the underscore as the host, and distributes the users of
/// a test over the hosts.
fn process_identity() -> Result<String> {
    let host = rustix::system::uname().nodename().to_string_lossy().replace('_', "-");
    let host: String = host.chars().filter(char::is_ascii).take(64).collect();
    Ok(format!("{host}_{}", mailrun_process::outputs::new_run_id()?))
}

fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Command from the link to the main thread to run the load of one test. The link sends a clone to the main thread,
/// which runs the load and then calls [`Self::finish`], so that the link learns of the end.
#[derive(Clone, Debug)]
pub(super) struct LoadOrder {
    /// Server that the master has named, or `None` for the worker's own server.
    pub(super) host: Option<String>,
    pub(super) run_id: Option<String>,
    control: Arc<LoadControl>,
    ended: Arc<OnceLock<()>>,
    failure: Arc<Mutex<Option<String>>>,
}

impl LoadOrder {
    pub(super) fn new(control: LoadControl, host: Option<String>, run_id: Option<String>) -> Self {
        Self { host, run_id, control: Arc::new(control), ended: Arc::default(), failure: Arc::default() }
    }

    pub(super) fn control(&self) -> Arc<LoadControl> {
        Arc::clone(&self.control)
    }

    /// Records that the load has ended. `failure` is the reason if the load ended by itself instead
    /// of being stopped.
    pub(super) fn finish(&self, failure: Option<String>) {
        *lock(&self.failure) = failure;
        let _ = self.ended.set(());
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    /// Returns the reason if the load ended by itself. Only the first call returns the reason, so
    /// that it is reported only once.
    pub(super) fn take_failure(&self) -> Option<String> {
        lock(&self.failure).take()
    }
}
