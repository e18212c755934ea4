//! Makes the sink's record. It describes one run or, if no message has a trace that names a run, all mail.
use super::DumpTarget;
use super::active_rules::{self, ActiveRules, RuleChange, RuleCount};
use super::arrivals::{ArrivalList, ArrivalLog};
use super::mailboxes::WatchCounts;
use super::options::{RESERVED_DESCRIPTORS, SinkOptions};
use mailrun_measurement::buckets::Buckets;
use mailrun_measurement::record::{
    EndedRow, EventRow, LedgerRow, Ordered, Reception, Record, Role, RuleRow, SlowMessage, StageRow, Workload,
};
use mailrun_measurement::seconds::second_of;
use mailrun_measurement::slowest::SlowDelivery;
use mailrun_measurement::tally::MAX_RUNS;
use mailrun_measurement::trace::HeaderSample;
use mailrun_measurement::{MIN_ARRIVALS, Phase, RunId, RunTally, Series, SinkTally, Stage, judge, validity};
use mailrun_net::clock;
use mailrun_process::host_sampler::{self, HostSampler};
use mailrun_process::outputs;
use mailrun_process::party_options::value_name;
use mailrun_process::usage_sampler::UsageSampler;
use mailrun_text::words::counted;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct SinkReport {
    pub(super) options: SinkOptions,
    /// Address on which the sink listens, or the mailboxes that it watches, for the record.
    pub(super) place: String,
    pub(super) watched: Option<Arc<WatchCounts>>,
    pub(super) active_rules: Arc<ActiveRules>,
    pub(super) began: Duration,
    pub(super) total: SinkTally,
    started_at: jiff::Timestamp,
    /// Counts of each second, for each run. The key `None` is for mail without a trace, whose run is unknown.
    series: Vec<(Option<RunId>, Series)>,
    host_sampler: HostSampler,
    usage_sampler: UsageSampler,
    /// Time at which the first client connected. The times in `stall` rules count from it.
    first_connection: Option<Duration>,
    /// For each run that was announced over HTTP, the sink's counts at the time of the announcement.
    starts: Vec<(RunId, RunStart)>,
    untraced_sample: Option<HeaderSample>,
    /// How long the messages of all runs took until they were delivered, for Prometheus.
    pub(super) delivered: Buckets,
    /// How long the messages of all runs took until the server of a mailbox announced them, for Prometheus.
    pub(super) announced: Buckets,
    /// Arrived messages of each run for which an HTTP client has requested `/arrivals/RUN`.
    arrivals: Vec<(RunId, ArrivalLog)>,
    /// Prefix for the names of arrival lists. Each process uses another prefix, so that clients notice a restart.
    process: String,
}

/// Counts of the sink when a run began. The run's record subtracts them, because they belong to earlier runs.
#[derive(Debug, Default)]
struct RunStart {
    at: Duration,
    connections: u64,
    untraced: u64,
    ended: [u64; Phase::ALL.len()],
    ordered: Ordered,
    rules: Vec<RuleCount>,
    /// From and Subject of the first message without a trace since the beginning of the run.
    untraced_sample: Option<HeaderSample>,
}

impl SinkReport {
    pub(super) fn new(
        options: SinkOptions,
        place: String,
        watched: Option<Arc<WatchCounts>>,
        control: Arc<ActiveRules>,
        now: Duration,
    ) -> Self {
        Self {
            total: SinkTally::keeping(options.run),
            options,
            place,
            watched,
            active_rules: control,
            began: now,
            started_at: jiff::Timestamp::now(),
            series: Vec::new(),
            host_sampler: HostSampler::start(),
            usage_sampler: UsageSampler::of_own_process(now),
            first_connection: None,
            starts: Vec::new(),
            untraced_sample: None,
            delivered: Buckets::default(),
            announced: Buckets::default(),
            arrivals: Vec::new(),
            process: format!("{}.{}", jiff::Timestamp::now().as_nanosecond(), std::process::id()),
        }
    }

    /// Records that a run begins now. Stores the sink's counts so far, so that the run's record can subtract them. Does
    /// nothing if the run is already known.
    pub(super) fn announce(&mut self, run: RunId) {
        let total = &mut self.total;
        if total.runs.find(run).is_some() {
            return;
        }
        let at = clock::now();
        total.runs.announce(run, at, total.messages);
        let start = RunStart {
            at,
            connections: total.connections,
            untraced: total.untraced,
            ended: total.ended,
            ordered: total.ordered,
            rules: self.active_rules.rule_counts(),
            untraced_sample: None,
        };
        // The sink discards the counts of old runs. Remove the starts of these runs as well, so that the list cannot
        // grow forever.
        self.starts.retain(|(known, _)| total.runs.find(*known).is_some());
        self.starts.push((run, start));
    }

    /// Returns the messages of a run that have arrived, without the first `after` messages, which the client already
    /// has. From the first request for a run on, the sink lists the messages of this run one by one.
    pub(super) fn arrivals(&mut self, run: RunId, after: u64) -> ArrivalList {
        self.announce(run);
        if !self.arrivals.iter().any(|(known, _)| *known == run) {
            let name = format!("{}.{}", self.process, clock::now().as_nanos());
            self.arrivals.push((run, ArrivalLog::begin(name, self.total.runs.find(run))));
        }
        let log = self.arrivals.iter().find(|(known, _)| *known == run).map(|(_, log)| log);
        log.unwrap_or(&ArrivalLog::default()).after(after)
    }

    pub(super) fn merge(&mut self, tally: &SinkTally) {
        for (run, log) in &mut self.arrivals {
            log.add(tally, *run);
        }
        for (_, run) in tally.runs.iter() {
            self.delivered.record_all(&run.delivered);
            self.announced.record_all(&run.told);
        }
        self.total.merge(tally);
        self.arrivals.retain(|(run, _)| self.total.runs.find(*run).is_some());
        if let Some(sample) = &tally.untraced_sample {
            let of_runs = self.starts.iter_mut().map(|(_, start)| &mut start.untraced_sample);
            for first in of_runs.chain([&mut self.untraced_sample]).filter(|first| first.is_none()) {
                *first = Some(sample.clone());
            }
        }
        let runs = tally.runs.iter().map(|(run, tally)| (Some(run), &tally.seconds));
        for (run, seconds) in runs.chain([(None, &tally.seconds)]) {
            seconds.iter().for_each(|second| self.series_of(run, second.begin).add(second));
        }
        self.series.retain(|(run, _)| run.is_none_or(|run| self.total.runs.find(run).is_some()));
    }

    /// Returns the series of a run, which has an entry for each second. A new series begins with the second in which
    /// the run began. `begin` must be the time at which some second of the run begins, because the run's seconds do not
    /// begin at whole seconds of the clock.
    fn series_of(&mut self, run: Option<RunId>, begin: Duration) -> &mut Series {
        let index = self.series.iter().position(|(known, _)| *known == run).unwrap_or_else(|| {
            self.series.push((run, Series::new(second_of(self.run_start(run, begin), begin))));
            self.series.len() - 1
        });
        &mut self.series[index].1
    }

    /// Returns the time from which the times in a record count. For a run, this is the time of its announcement.
    /// Without an announcement, it is one second before `first`, the start of the first second for which a worker has
    /// sent counts. The start of the sink might be more than a week earlier, and `mailrun merge` would then refuse the
    /// record.
    fn run_start(&self, run: Option<RunId>, first: Duration) -> Duration {
        if run.is_none() {
            return self.began;
        }
        let announced = self.starts.iter().find(|(known, _)| Some(*known) == run).map(|(_, start)| start.at);
        // Begin the run one second early, because a slower worker may still report counts from the second before
        // `first`.
        announced.unwrap_or_else(|| first.saturating_sub(Duration::from_secs(1)).max(self.began))
    }

    pub(super) fn tick(&mut self, now: Duration, first_connection: Option<Duration>) {
        self.usage_sampler.sample_own(now);
        self.first_connection = first_connection;
    }

    /// Returns the run to report if the user names no run. This is the run for which the sink was started or, if there
    /// is none, the run with the most messages.
    pub(super) fn chosen_run(&self) -> Option<RunId> {
        let arrived = self.total.runs.iter().filter(|(_, tally)| tally.messages > 0);
        let largest = || arrived.max_by_key(|(_, tally)| tally.messages).map(|(run, _)| run);
        self.options.run.or_else(largest)
    }

    /// Returns the number of messages that do not belong to the run and arrived since the run began.
    pub(super) fn foreign_count(&self, tally: &RunTally) -> u64 {
        self.total.messages - tally.messages_before - tally.messages - tally.bounces.notices
    }

    /// Makes the record of a run or, if `run` is `None`, of all mail, including mail of runs.
    pub(super) fn record(&mut self, run: Option<RunId>) -> Record {
        let known = self.series.iter().find(|(known, _)| *known == run).map(|(_, series)| series.clone());
        let mut series = known.unwrap_or_else(|| Series::new(self.run_start(run, self.began)));
        let zero = series.zero();
        let error_times = self.total.error_times.iter().filter(|(at, _)| *at >= zero);
        error_times.for_each(|(at, errors)| series.add_errors(at, errors));
        let workload = Workload {
            protocol: self.protocol(),
            tls: value_name(self.options.capabilities.tls),
            target: self.place.clone(),
            seed: self.options.seed,
            ..Workload::default()
        };
        let dump = self.options.dump.as_ref().map(DumpTarget::path);
        let directory = dump.or_else(|| self.options.outputs.directory());
        let mut record = outputs::new_record(run, &self.options.name, self.started_at, workload, directory);
        outputs::set_zero(&mut record, series.zero());
        let now = clock::now();
        record.observed_until_s = Some(now.saturating_sub(series.zero()).as_secs_f64());
        record.series = series.rows(now);
        record.errors = self.total.errors.rows(record.origin_ns);
        record.usage = self.usage_sampler.party("sink", record.origin_ns).into_iter().collect();
        let whole = RunStart { untraced_sample: self.untraced_sample.clone(), ..RunStart::default() };
        let start = self.starts.iter().find(|(known, _)| Some(*known) == run).map_or(&whole, |(_, start)| start);
        record.events = self.events(series.zero(), start);
        record.tls = self.total.handshakes.rows("sink");
        let rules = active_rules::since(self.active_rules.rule_counts(), &start.rules);
        let mut own =
            outputs::own_party(Role::Sink, "sink", self.options.workers, active_rules::describe_counts(&rules));
        own.ordered = Some(self.total.ordered.since(&start.ordered));
        own.reception = Some(self.reception(start, rules));
        own.busy_poll = outputs::busy_poll_row(self.options.busy_poll);
        record.parties = vec![own];
        let nothing = RunTally::default();
        match run {
            Some(run) => {
                let tally = self.total.runs.find(run).unwrap_or(&nothing);
                let told = tally.told_stage("sink", Stage::Created, series.zero());
                record.stages = told.into_iter().collect();
                record.stages.push(tally.stage("sink", Stage::Created, series.zero()));
                record.pauses.extend(tally.bodies.row("sink", Phase::Body));
                record.load_stages = tally.load_stage_rows("sink", series.zero());
                record.ledger = self.ledger(tally);
                record.slowest = slowest(tally, series.zero());
                record.domains = tally.domains.rows();
                record.bounces = tally.bounces.rows();
                record.rewrites = tally.rewrites.rows();
            }
            None => {
                record.stages = vec![self.untraced_stage()];
                record.pauses.extend(self.total.bodies.row("sink", Phase::Body));
            }
        }
        let needed = self.options.sessions as u64 + RESERVED_DESCRIPTORS;
        record.exhausted = self.total.exhausted.rows("sink", |resource| host_sampler::resource_limit(resource, needed));
        record.surroundings = Some(self.host_sampler.finish());
        record.duration_s = record.stages.iter().map(|row| row.duration_s).fold(0.0, f64::max);
        record.verdict.reasons = self.reasons(run);
        record.verdict.why.clone_from(&record.verdict.reasons[0]);
        record.verdict.reasons.extend(record.parties.iter().filter_map(judge::defect_text));
        let limits = validity::limits(&record).into_iter().map(|reason| reason.text);
        record.verdict.reasons.extend(limits.chain(validity::warnings(&record)));
        record
    }

    /// Makes the record of one run at a sink that also serves other clients. Errors and TLS handshakes before the run
    /// are left out. The run begins when it is announced or, without an announcement, with its first message.
    pub(super) fn record_since_first(&mut self, run: RunId) -> Record {
        let mut record = self.record(Some(run));
        if let Some(tally) = self.total.runs.find(run) {
            record.errors = tally.errors.rows(record.origin_ns);
            record.tls = tally.handshakes.rows("sink");
        }
        record
    }

    pub(super) fn closed_mailboxes(&self) -> u64 {
        self.watched.as_ref().map_or(0, |watched| watched.closed())
    }

    fn reception(&self, start: &RunStart, rules: Vec<RuleCount>) -> Reception {
        let total = &self.total;
        let ended = |(phase, (now, before)): (Phase, (u64, u64))| EndedRow { phase, count: now - before };
        let ended = Phase::ALL.into_iter().zip(total.ended.into_iter().zip(start.ended)).map(ended);
        let rules = rules.into_iter().filter(|rule| rule.count > 0);
        let sample = start.untraced_sample.clone().unwrap_or_default();
        Reception {
            connections: total.connections - start.connections,
            ended: ended.filter(|row| row.count > 0).collect(),
            untraced: total.untraced - start.untraced,
            untraced_from: sample.from,
            untraced_subject: sample.subject,
            rules: rules.map(|RuleCount { rule, count, .. }| RuleRow { rule, count }).collect(),
            mailboxes: self.watched.as_ref().map(|watched| watched.row()),
        }
    }

    /// Lists when a rule was added or removed, and when a `stall` rule began or stopped acting, since the run began.
    fn events(&self, origin: Duration, start: &RunStart) -> Vec<EventRow> {
        let changes = self.active_rules.changes(self.first_connection, clock::now());
        let changes = changes.into_iter().filter(|change| change.at >= start.at);
        let row = |change: RuleChange| EventRow {
            at_s: change.at.saturating_sub(origin).as_secs_f64(),
            kind: change.kind,
            text: change.rule,
        };
        changes.map(row).collect()
    }

    fn protocol(&self) -> String {
        match &self.options.mailboxes {
            Some(mailboxes) => mailboxes.protocol().to_owned(),
            None => outputs::protocol_name(self.options.capabilities.protocol).to_owned(),
        }
    }

    fn ledger(&self, tally: &RunTally) -> LedgerRow {
        LedgerRow {
            delivered: Some(tally.units.count()),
            bounced: Some(tally.bounces.units.count_without(&tally.units)),
            delay_notices: Some(tally.bounces.delayed),
            repeated_notices: Some(tally.bounces.repeated),
            duplicates: Some(tally.duplicates),
            rewritten: Some(tally.rewrites.units.count()),
            copied: Some(tally.rewrites.copied()),
            // A sink that watches mailboxes without reading message bodies cannot tell whether messages are intact.
            corrupt: self.watched.as_ref().is_none_or(|watched| watched.checks_bodies()).then_some(tally.corrupt),
            converted: Some(tally.converted),
            foreign: Some(self.foreign_count(tally)),
            untimed: Some(tally.untimed),
            negative: Some(tally.negative),
            overflow: Some(tally.overflow.saturating_add(tally.bounces.overflow)),
            ..LedgerRow::default()
        }
    }

    /// Makes the only stage of a record that covers all mail and not a single run. This stage has no latencies, because
    /// only a trace tells when a message was created. The rate covers the time from the first to the last arrival.
    fn untraced_stage(&self) -> StageRow {
        let total = &self.total;
        let elapsed = total.first_arrival.zip(total.last_arrival).map_or(Duration::ZERO, |(first, last)| last - first);
        let is_rated = total.messages >= MIN_ARRIVALS && !elapsed.is_zero();
        StageRow {
            count: total.messages,
            bytes: total.bytes,
            rate_per_s: is_rated.then(|| (total.messages - 1) as f64 / elapsed.as_secs_f64()),
            duration_s: elapsed.as_secs_f64(),
            ..StageRow::new(Stage::Delivered, "sink")
        }
    }

    fn reasons(&self, run: Option<RunId>) -> Vec<String> {
        let total = &self.total;
        let mut notes = vec![format!(
            "In all {} for {}, {}, over {}.",
            counted(total.messages, "message"),
            counted(total.recipients, "recipient"),
            counted(total.bytes, "byte"),
            counted(total.connections, "connection")
        )];
        if run.is_none() && total.messages > 0 {
            notes.push("No message had a trace: latency, loss and duplicates are unknown.".to_owned());
        }
        if run.and_then(|run| total.runs.find(run)).is_some_and(|tally| tally.realtime) {
            notes.push(
                "Some latencies were measured with the wall clocks of two hosts: they are only as exact as the clocks agree."
                    .to_owned(),
            );
        }
        if total.runs.evicted_messages > 0 {
            notes.push(format!(
                "The counts of {} of earlier runs are lost, because a sink keeps only {MAX_RUNS} runs.",
                counted(total.runs.evicted_messages, "message")
            ));
        }
        notes
    }
}

/// Lists the messages that took longest to arrive. Fields that only the source knows, such as the phases of its
/// dialogue, stay empty.
fn slowest(tally: &RunTally, origin: Duration) -> Vec<SlowMessage> {
    let row = |(latency, slow): (Duration, SlowDelivery)| SlowMessage {
        message: slow.message,
        created_s: slow.created.saturating_sub(origin).as_secs_f64(),
        delivered_ms: Some(latency.as_secs_f64() * 1e3),
        recipient_count: slow.recipients,
        bytes: slow.bytes,
        ..SlowMessage::default()
    };
    tally.slowest.sorted().into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::capabilities::CapabilityOptions;
    use crate::sink::rulebook::Rulebook;
    use mailrun_net::BusyPoll;
    use mailrun_process::outputs::Outputs;
    use mailrun_smtp::Limits;

    const RUN: RunId = RunId([1; 16]);

    fn options() -> SinkOptions {
        SinkOptions {
            name: String::new(),
            listen: String::new(),
            mailboxes: None,
            http: None,
            messages: None,
            workers: 1,
            busy_poll: BusyPoll::Off,
            sessions: 1,
            limits: Limits::default(),
            hello: String::new(),
            rules: Rulebook::default(),
            seed: 1,
            dump: None,
            dialogue: None,
            run: None,
            capabilities: CapabilityOptions::default(),
            outputs: Outputs::default(),
        }
    }

    #[test]
    fn times_of_a_run_count_from_its_beginning_however_long_the_sink_has_run() {
        let ms = Duration::from_millis;
        let began = ms(1_000_300);
        // The run begins ten days after the sink, and 0.7 s after a whole second.
        let begin = began + ms(10 * 86_400_000 + 400);
        let rules = Arc::new(ActiveRules::new(Rulebook::default(), 1));
        let zero = |run: Option<RunId>, announced: Option<Duration>| {
            let mut report = SinkReport::new(options(), String::new(), None, Arc::clone(&rules), began);
            let start = announced.map(|at| (RUN, RunStart { at, ..RunStart::default() }));
            report.starts.extend(start);
            report.series_of(run, begin).zero()
        };
        assert_eq!(zero(Some(RUN), None), begin - ms(1_000));
        assert_eq!(zero(Some(RUN), Some(begin - ms(2_500))), begin - ms(3_000));
        assert_eq!(zero(None, None), began - ms(600), "mail without a trace may belong to no run");
    }
}
