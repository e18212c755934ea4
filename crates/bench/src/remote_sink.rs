//! A mailrun sink that the bench did not start, and to which the server under test passes the mail on.
//!
//! The bench queries this sink over HTTP. Before the load, the bench checks that the sink answers. After the load, it
//! asks how many of the run's messages have arrived, until none is missing or no new ones arrive.
use super::gather::SinkResults;
use super::plan::BenchOptions;
use super::supervisor::{CLOSED_MAILBOX_TIMEOUT, Supervisor};
use anyhow::{Context, Result, anyhow, bail, ensure};
use mailrun_measurement::clocks::{ClockError, clock_reason};
use mailrun_measurement::ledger::Ledger;
use mailrun_measurement::record::{Record, Role, SinkClockRow};
use mailrun_measurement::trace::RunId;
use mailrun_measurement::{account, bounces, judge};
use mailrun_process::clock_exchange::{self, ClockMeasurement, before_and_after};
use mailrun_process::http_client::{HttpClient, StatusCode, is_refused};
use mailrun_process::live::{LiveEvent, LiveProgress};
use mailrun_process::start_wait::StartWait;
use serde::Deserialize;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Interval at which the bench asks the sink for its counts while it waits for deliveries after the load.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which the bench asks the sink for its counts while the load is sent.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// If no message arrives for this long, the bench stops waiting. A working relay makes shorter pauses between
/// deliveries. But before it retries a deferred message, it waits longer, so the bench reports a deferred message as
/// missing.
pub(super) const QUIET_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for an answer of the sink. The largest answer, a list of messages, has 64 MB and takes 6.4 s at 10 MB/s.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of an answer that the bench reads: twice the size of the largest list of messages.
const MAX_RESPONSE_BYTES: usize = 128 << 20;

#[derive(Clone, Copy, Debug, Deserialize)]
struct SinkStatus {
    messages: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct RemoteRunStatus {
    pub(super) delivered: u64,
    #[serde(default)]
    bounced: u64,
    #[serde(default)]
    closed_mailboxes: u64,
}

impl RemoteRunStatus {
    /// Returns how many messages have been delivered or have bounced. A message counts once for each of its recipients.
    pub(super) fn settled(self) -> u64 {
        self.delivered.saturating_add(self.bounced)
    }
}

/// Keeps a watch on a remote sink going. Dropping this value ends the reports that `RemoteSink::watch` sends.
#[derive(Debug)]
pub(super) struct SinkWatch {
    _stop: Sender<()>,
}

#[derive(Clone, Debug)]
pub(super) struct RemoteSink {
    client: HttpClient,
    quiet_timeout: Duration,
    /// A second sink, which gets the notifications of mail that could not be delivered.
    bounces: Option<Box<Self>>,
}

/// Number of messages of a run that have been delivered or have bounced, counted once for each recipient. It comes from
/// a remote sink, which is asked at most once every `POLL_INTERVAL`.
pub(super) struct PolledCount<'s> {
    sink: Option<(&'s RemoteSink, RunId)>,
    count: u64,
    asked_at: Option<Instant>,
}

impl<'s> PolledCount<'s> {
    /// Creates a counter that asks the sink for its count. Without a sink, the count is always 0.
    pub(super) fn new(sink: Option<(&'s RemoteSink, RunId)>) -> Self {
        Self { sink, count: 0, asked_at: None }
    }

    pub(super) fn settled(&mut self) -> u64 {
        if let Some((sink, run)) = self.sink
            && self.asked_at.is_none_or(|at| at.elapsed() >= POLL_INTERVAL)
        {
            self.asked_at = Some(Instant::now());
            // If the sink does not answer, keep the previous count. The failure is reported when the sink's results are
            // fetched.
            self.count = sink.run_status(run).map_or(self.count, |status| status.settled());
        }
        self.count
    }
}

impl RemoteSink {
    /// Checks that a mailrun sink answers at `address`, before any load is sent.
    pub(super) fn connect(address: &str) -> Result<Self> {
        let client = HttpClient::new(address, RESPONSE_TIMEOUT, MAX_RESPONSE_BYTES)
            .map_err(|_| anyhow!("--sink {address} is not the HTTP address of a mailrun sink; use http://HOST:PORT"))?;
        let sink = Self { client, quiet_timeout: QUIET_TIMEOUT, bounces: None };
        // Retry a refused connection for a while, because the sink may have been started at the same time as the bench.
        let wait = StartWait::begin();
        let mut status = sink.get("/status", |_| Ok(()));
        while status.as_ref().is_err_and(is_refused) && wait.pause() {
            status = sink.get("/status", |_| Ok(()));
        }
        let status = status.and_then(|answer| answer.context("it has no /status"));
        match status {
            Ok(()) => Ok(sink),
            Err(error) => {
                let cause = error.root_cause();
                let authority = sink.client.authority();
                bail!("no mailrun sink answers at {address} ({cause}); start it with: mailrun sink --http {authority}")
            }
        }
    }

    /// Compares the clock of the sink's host with this host's clock. Returns `None` if that is not possible.
    pub(super) fn clock(&self) -> Option<ClockMeasurement> {
        // Ignore connection errors, because the next request to the sink reports them.
        clock_exchange::measure(&self.client).ok().flatten()
    }

    pub(super) fn authority(&self) -> &str {
        self.client.authority()
    }

    /// Tells the sink that a run begins, so that the sink can report its activity during the run even if no message of
    /// the run arrives.
    pub(super) fn announce(&self, run: RunId) {
        // Ignore errors, because a sink that is gone is reported when its results are fetched.
        let _ = self.client.put(&format!("/ledger/{run}"));
        self.bounces.iter().for_each(|second| second.announce(run));
    }

    /// Removes the fault rules of the sink, so that it accepts mail from now on.
    ///
    /// # Errors
    /// Returns an error if the sink does not answer, or if it refuses the request.
    pub(super) fn clear_rules(&self) -> Result<()> {
        let status = self.client.put("/rules")?.status;
        if status.is_success() { Ok(()) } else { bail!("the sink keeps its rules: {status}") }
    }

    pub(super) fn quiet_timeout(&self) -> Duration {
        self.quiet_timeout
    }

    /// Sets the time without arrivals after which the bench stops waiting. `None` keeps the default.
    pub(super) fn lost_after(self, pause: Option<Duration>) -> Self {
        Self { quiet_timeout: pause.unwrap_or(self.quiet_timeout), ..self }
    }

    /// Adds a second sink, which receives notifications of undelivered mail. Other mail that arrives there does not
    /// count.
    pub(super) fn with_bounces_at(self, sink: Option<Self>) -> Self {
        Self { bounces: sink.map(Box::new), ..self }
    }

    /// Reports every second how many messages of the run have arrived. Dropping the returned value ends the reports.
    pub(super) fn watch(&self, run: RunId, events: Sender<(Role, LiveEvent)>) -> SinkWatch {
        let (stop, stopped) = channel::<()>();
        let sink = self.clone();
        let began = Instant::now();
        std::thread::spawn(move || {
            while stopped.recv_timeout(WATCH_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                // Ignore errors, because a sink that is gone is reported when its results are fetched.
                let Ok(status) = sink.run_status(run) else { continue };
                let elapsed_s = began.elapsed().as_secs_f64();
                let progress = LiveProgress { elapsed_s, delivered: status.delivered, ..LiveProgress::default() };
                if events.send((Role::Sink, LiveEvent::Progress(progress))).is_err() {
                    break;
                }
            }
        });
        SinkWatch { _stop: stop }
    }

    /// Waits until all accepted messages have arrived, until no new messages arrive, or until the user asks to stop
    /// waiting. Then fetches the sink's record and ledger of the run.
    pub(super) fn await_arrivals(
        &self,
        run: RunId,
        accepted: &Ledger,
        supervisor: &mut Supervisor,
    ) -> Result<SinkResults> {
        let last_request = supervisor.request_before_wait();
        let mut arrived = 0;
        let mut quiet_since = Instant::now();
        loop {
            let status = self.run_status(run)?;
            if status.settled() > arrived {
                arrived = status.settled();
                quiet_since = Instant::now();
                if arrived >= accepted.count() && self.has_all(run, accepted)? {
                    break;
                }
            }
            let limit = match status.closed_mailboxes {
                0 => self.quiet_timeout,
                _ => self.quiet_timeout.max(CLOSED_MAILBOX_TIMEOUT),
            };
            let is_over = arrived == 0 && accepted.count() == 0 || quiet_since.elapsed() >= limit;
            if is_over || supervisor.asked() > last_request {
                break;
            }
            self.pause(supervisor, arrived, accepted.count(), limit.saturating_sub(quiet_since.elapsed()));
        }
        let record = self.record(run)?;
        let [units, bounced, _] = self.units(run)?;
        Ok(SinkResults { record, units: Some(units), bounced })
    }

    /// Returns true if every accepted message has been delivered or has bounced. Comparing counts is not enough: the
    /// sink may also have messages whose 250 never reached the source, while accepted messages are still missing.
    pub(super) fn has_all(&self, run: RunId, accepted: &Ledger) -> Result<bool> {
        Ok(account::unsettled(accepted, &self.units(run)?) == 0)
    }

    fn pause(&self, supervisor: &mut Supervisor, arrived: u64, accepted: u64, left: Duration) {
        let until = Instant::now() + POLL_INTERVAL;
        while Instant::now() < until {
            supervisor.process_events();
        }
        supervisor.show_wait(arrived, accepted, left);
    }

    /// Returns the number of messages that the sink has received from all runs. The sink updates
    /// this number four times a second.
    pub(super) fn messages(&self) -> Result<u64> {
        let read = |body: &[u8]| serde_json::from_slice(body).context("the sink's status cannot be read");
        let status: Option<SinkStatus> = self.get("/status", read)?;
        Ok(status.context("the sink has no /status")?.messages)
    }

    /// Returns how many messages of the run have arrived or bounced. The numbers are 0 if the sink does not know the
    /// run.
    pub(super) fn run_status(&self, run: RunId) -> Result<RemoteRunStatus> {
        let read = |body: &[u8]| serde_json::from_slice(body).context("its answer is not that of a mailrun sink");
        let mut status: RemoteRunStatus = self.get(&format!("/ledger/{run}"), read)?.unwrap_or_default();
        if let Some(second) = &self.bounces {
            status.bounced = status.bounced.saturating_add(second.run_status(run)?.bounced);
        }
        Ok(status)
    }

    /// Returns three ledgers, in which a message has an entry for each recipient: messages that arrived, messages that
    /// bounced, and messages that arrived only under addresses to which they had not been sent.
    pub(super) fn units(&self, run: RunId) -> Result<[Ledger; 3]> {
        let read = |body: &[u8]| Ledger::read_arrivals(body).context("its ledger cannot be read");
        let mut ledgers = self.get(&format!("/ledger/{run}/units"), read)?.unwrap_or_default();
        if let Some(second) = &self.bounces {
            ledgers[1].merge(&second.units(run)?[1]);
        }
        Ok(ledgers)
    }

    pub(super) fn record(&self, run: RunId) -> Result<Option<Record>> {
        let read = |body: &[u8]| Record::from_json(body).context("its record is not that of a mailrun sink");
        let record: Option<Record> = self.get(&format!("/record/{run}"), read)?;
        let record = record.map(without_earlier_usage);
        let second = self.bounces.as_ref().map(|sink| sink.record(run)).transpose()?.flatten();
        Ok(match (record, second) {
            (Some(mut record), Some(second)) => {
                bounces::add(&mut record, second);
                Some(record)
            }
            (record, second) => record.or(second),
        })
    }

    /// Adds the notifications of undelivered mail at this sink to `results`, which another sink collected. If this sink
    /// does not answer, returns an error and does not change `results`.
    pub(super) fn add_bounces(&self, run: RunId, results: &mut SinkResults) -> Result<()> {
        let (units, record) = (self.units(run)?, self.record(run)?);
        results.bounced.merge(&units[1]);
        if let (Some(record), Some(second)) = (&mut results.record, record) {
            bounces::add(record, second);
        }
        Ok(())
    }

    /// Sends a GET request and reads the answer. Returns `None` if the sink answers 404.
    fn get<T>(&self, path: &str, read: impl FnOnce(&[u8]) -> Result<T>) -> Result<Option<T>> {
        let server = self.client.authority();
        let answer = self.client.get(path).with_context(|| format!("the sink at {server} does not answer"))?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        ensure!(answer.status == StatusCode::OK, "the sink at {server} answers {path} with {}", answer.status.as_u16());
        read(&answer.body).map(Some)
    }
}

/// Removes figures from the sink's record that may belong to earlier runs. A sink that was already running counts CPU
/// time and written bytes from its own start. Its peak memory is kept, because it is an upper bound for this run.
fn without_earlier_usage(mut record: Record) -> Record {
    for party in &mut record.parties {
        party.user_s = None;
        party.sys_s = None;
        party.write_bytes = None;
    }
    // The sink was already running before this run, so its exhausted resources and the figures of its host may date
    // from an earlier run.
    record.exhausted.clear();
    record.surroundings = None;
    record
}

/// Sinks, each with the measurement of its clock before the load, or `None` if the clock could not be measured.
pub(super) struct SinkClocks(Vec<(RemoteSink, Option<ClockMeasurement>)>);

impl SinkClocks {
    /// Compares each sink's clock with the clock of this host. Returns an error if a sink does not answer.
    pub(super) fn measure(options: &BenchOptions, remote_sink: Option<&RemoteSink>) -> Result<Self> {
        let named = options.clock_sinks.iter().map(|address| RemoteSink::connect(address));
        let sinks: Vec<RemoteSink> = remote_sink.cloned().map(Ok).into_iter().chain(named).collect::<Result<_>>()?;
        let measured = |sink: RemoteSink| {
            let clock = sink.clock();
            (sink, clock)
        };
        Ok(Self(sinks.into_iter().map(measured).collect()))
    }

    /// Measures the clocks again after the load, and records the clocks of other hosts. Adds a reason to the verdict if
    /// the clocks are too inexact to trust the latencies of delivery.
    pub(super) fn finish(self, record: &mut Record, remote_sink: Option<&RemoteSink>) {
        let Some(own) = &mut record.clock else { return };
        let after = self.0.into_iter().map(|(sink, before)| before_and_after(before, sink.clock()));
        let rows: Vec<Option<SinkClockRow>> = after.collect();
        own.sinks = rows.iter().flatten().filter(|sink| sink.boot != own.boot).cloned().collect();
        // Without a remote sink, this run has no delivery latencies between two hosts, so there is nothing to judge
        // here. If several hosts share the load, `mailrun merge` judges their delivery latencies.
        if remote_sink.is_none() {
            return;
        }
        let error = match rows.first().cloned().flatten() {
            Some(sink) => ClockError::between(record, &sink.boot),
            None => ClockError::Unknown,
        };
        let pass = judge::pass_text(record);
        if let Some(reason) = clock_reason(record, error) {
            judge::add_reason(&mut record.verdict, reason, &pass);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{self, serve};
    use std::net::{SocketAddr, TcpListener};

    fn sink_with(units: u64) -> SocketAddr {
        serve(move |path| match path {
            "/status" => (200, b"{}".to_vec()),
            path if path.ends_with("/units") => (200, tests::ledger_bytes(units)),
            path if path.starts_with("/ledger/") => (200, format!("{{\"delivered\":{units}}}").into_bytes()),
            _ => (404, Vec::new()),
        })
    }

    /// Starts a test server that answers like a sink that got notifications about 100 messages. It counts only two of
    /// them as bounced, because the others also arrived at another sink.
    fn sink_with_bounces() -> SocketAddr {
        serve(|path| match path {
            "/status" => (200, b"{}".to_vec()),
            path if path.ends_with("/units") => {
                let (arrived, bounced) = (tests::ledger(0), tests::ledger(100));
                let mut bytes = Vec::new();
                Ledger::write_arrivals([&arrived, &bounced, &arrived], &mut bytes).expect("a Vec takes everything");
                (200, bytes)
            }
            path if path.starts_with("/ledger/") => (200, b"{\"delivered\":0,\"bounced\":2}".to_vec()),
            path if path.starts_with("/record/") => {
                let mut record = Record::empty();
                record.bounces = vec![mailrun_measurement::record::BounceRow { count: 2, ..Default::default() }];
                (200, record.to_json().expect("a record is always JSON").into_bytes())
            }
            _ => (404, Vec::new()),
        })
    }

    #[test]
    fn notifications_at_a_second_sink_belong_to_the_results_of_the_benchs_own() {
        let second = RemoteSink::connect(&sink_with_bounces().to_string()).expect("it is there");
        let mut results =
            SinkResults { record: Some(Record::empty()), units: Some(tests::ledger(98)), bounced: tests::ledger(3) };
        second.add_bounces(RunId([7; 16]), &mut results).expect("asked");
        assert_eq!((results.units.expect("kept").count(), results.bounced.count()), (98, 100));
        assert_eq!(results.record.expect("kept").bounces[0].count, 2);
    }

    #[test]
    fn notifications_at_a_second_sink_settle_what_does_not_arrive() {
        let run = RunId([7; 16]);
        let second = RemoteSink::connect(&sink_with_bounces().to_string()).expect("it is there");
        let sink = RemoteSink::connect(&sink_with(98).to_string()).expect("it is there").with_bounces_at(Some(second));
        let mut supervisor = Supervisor::new(&tests::options()).expect("a supervisor");
        let began = Instant::now();
        let results = sink.await_arrivals(run, &tests::ledger(100), &mut supervisor).expect("asked");
        assert_eq!((results.units.expect("fetched").count(), results.bounced.count()), (98, 100));
        assert_eq!(results.record.expect("that of the second").bounces[0].count, 2);
        assert!(began.elapsed() < QUIET_TIMEOUT);
    }

    #[test]
    fn nobody_there_is_said_before_any_load() {
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
        let error = RemoteSink::connect(&format!("http://{port}")).expect_err("nobody listens there now");
        let text = format!("{error:#}");
        assert!(text.starts_with("no mailrun sink answers at http://127.0.0.1:"), "{text}");
        assert!(text.contains(&format!("mailrun sink --http {port}")), "{text}");
    }

    #[test]
    fn something_else_that_speaks_http_is_not_taken_for_a_sink() {
        let address = serve(|_| (404, Vec::new()));
        assert!(RemoteSink::connect(&address.to_string()).is_err());
    }

    #[test]
    fn all_there_is_no_wait() {
        let sink = RemoteSink::connect(&sink_with(100).to_string()).expect("it is there");
        let mut supervisor = Supervisor::new(&tests::options()).expect("a supervisor");
        let began = Instant::now();
        let results = sink.await_arrivals(RunId([7; 16]), &tests::ledger(100), &mut supervisor).expect("asked");
        assert_eq!(results.units.expect("fetched").count(), 100);
        assert!(began.elapsed() < QUIET_TIMEOUT);
    }

    #[test]
    fn a_watched_sink_reports_its_deliveries_until_nobody_watches() {
        let sink = RemoteSink::connect(&sink_with(100).to_string()).expect("it is there");
        let (events, received) = channel();
        let watch = sink.watch(RunId([7; 16]), events);
        match received.recv_timeout(Duration::from_secs(30)).expect("a report") {
            (Role::Sink, LiveEvent::Progress(progress)) => assert_eq!(progress.delivered, 100),
            other => panic!("not the sink's progress: {other:?}"),
        }
        drop(watch);
        let end = received.iter().count();
        assert!(end < 30, "{end} reports after the end");
    }

    #[test]
    fn what_does_not_come_is_given_up_after_the_quiet() {
        let mut sink = RemoteSink::connect(&sink_with(99).to_string()).expect("it is there");
        sink.quiet_timeout = Duration::from_millis(400);
        let mut supervisor = Supervisor::new(&tests::options()).expect("a supervisor");
        let results = sink.await_arrivals(RunId([7; 16]), &tests::ledger(100), &mut supervisor).expect("asked");
        assert_eq!(results.units.expect("fetched").count(), 99);
    }

    #[test]
    fn what_comes_after_a_shorter_pause_is_late_and_not_lost() {
        let count = std::sync::atomic::AtomicU64::new(0);
        let address = serve(move |path| {
            let first = count.fetch_add(u64::from(path.starts_with("/ledger/")), std::sync::atomic::Ordering::Relaxed);
            let units = if first < 4 { 99 } else { 100 };
            match path {
                "/status" => (200, b"{}".to_vec()),
                path if path.ends_with("/units") => (200, tests::ledger_bytes(units)),
                path if path.starts_with("/ledger/") => (200, format!("{{\"delivered\":{units}}}").into_bytes()),
                _ => (404, Vec::new()),
            }
        });
        let sink = RemoteSink::connect(&address.to_string()).expect("it is there");
        let sink = sink.lost_after(Some(Duration::from_secs(600)));
        let mut supervisor = Supervisor::new(&tests::options()).expect("a supervisor");
        let results = sink.await_arrivals(RunId([7; 16]), &tests::ledger(100), &mut supervisor).expect("asked");
        assert_eq!(results.units.expect("fetched").count(), 100);
    }
}
