//! Defines what each worker thread counts. At regular intervals (ticks), a collector merges the counts of all workers,
//! and each worker starts again from zero.
//!
//! Each worker counts in memory of its own, so no message needs a lock or a channel. Almost every number is a sum, so
//! merging means adding. The exceptions are first and last times, and ledgers. A ledger contains units, each a message
//! for one recipient, and only merging shows that two workers saw the same unit.
use crate::bounces::Bounces;
use crate::delayed_acks::{DelayedAcks, TimesApart};
use crate::domains::{DomainArrivals, DomainTally, DomainUnit};
use crate::errors::{ErrorEvent, Errors};
use crate::handshakes::Handshakes;
use crate::latencies::Latencies;
use crate::ledger::{Ledger, MarkResult};
use crate::missing::MissingTransactions;
use crate::record::{ExhaustedRow, Ordered, Resource};
use crate::rewrites::{Rewrite, RewriteResult, Rewrites, RewrittenUnit};
use crate::seconds::{DueSeconds, EventTimes, Seconds};
use crate::slowest::{SlowDelivery, SlowTransaction, Slowest};
use crate::stage::Phase;
use crate::throughput::{Throughput, ns};
use crate::trace::{HeaderSample, MessageName, RunId};
use mailrun_mime::Notice;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of runs whose counts a sink keeps. Anybody can send messages of a new run, so the number must be
/// limited.
pub const MAX_RUNS: usize = 8;

/// Durations of each phase with two significant digits, indexed by `Phase as usize`.
#[derive(Clone, Debug)]
pub struct PhaseTimes(pub [Latencies; Phase::ALL.len()]);

impl Default for PhaseTimes {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Latencies::coarse()))
    }
}

/// Kinds of times that a source measures. Most of them count from when the message was due, which is its scheduled time
/// in an open loop and its creation in a closed loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyKind {
    Phase(Phase),
    Sent,
    Accepted,
    /// Open loop only: time from when a session began the message until it was sent.
    SentService,
    /// Open loop only: time from when a session began the message until it was accepted.
    AcceptedService,
    /// Time from when the message was due until it was rejected or failed.
    Ended,
    /// Open loop only: time from when the message was due until a session began it.
    Slip,
    /// Open loop only: delay that the source itself caused, that is, how late a session began a message although the
    /// session was free when the message became due.
    Lag,
}

/// A measured duration that has not been added to its histogram yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingTime {
    what: LatencyKind,
    /// Index in `SourceTally::seconds` of the second in which the message was accepted, because the latency of an
    /// accepted message counts in this second as well. `u32::MAX` for all kinds of durations except `Accepted`.
    second: u32,
    took_ns: u64,
}

/// Number of durations that are collected before they are added to their histograms. Touching a dozen histograms for
/// each message would push the data of a server on this host out of the processor's caches.
const MAX_PENDING_TIMES: usize = 512;

/// Counts of messages that were created during the warm-up. A [`SourceTally`] includes these messages in its own
/// counts, but not in its times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmUpCounts {
    pub created: u64,
    pub sent: u64,
    pub accepted: u64,
    pub rejected: u64,
    pub failed: u64,
    pub bytes_sent: u64,
    pub bytes_accepted: u64,
}

impl WarmUpCounts {
    fn merge(&mut self, other: &Self) {
        self.created += other.created;
        self.sent += other.sent;
        self.accepted += other.accepted;
        self.rejected += other.rejected;
        self.failed += other.failed;
        self.bytes_sent += other.bytes_sent;
        self.bytes_accepted += other.bytes_accepted;
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExhaustedCounts {
    descriptors: u64,
    host_descriptors: u64,
    ports: u64,
}

impl ExhaustedCounts {
    pub fn add(&mut self, resource: Resource) {
        *match resource {
            Resource::Descriptors => &mut self.descriptors,
            Resource::HostDescriptors => &mut self.host_descriptors,
            Resource::Ports => &mut self.ports,
        } += 1;
    }

    pub fn merge(&mut self, other: &Self) {
        self.descriptors += other.descriptors;
        self.host_descriptors += other.host_descriptors;
        self.ports += other.ports;
    }

    /// Makes a row for each resource that ran out. `extent` returns the available amount of a resource, and the amount
    /// that would have been enough.
    pub fn rows(&self, party: &str, extent: impl Fn(Resource) -> (Option<u64>, Option<u64>)) -> Vec<ExhaustedRow> {
        let counts = [
            (Resource::Descriptors, self.descriptors),
            (Resource::HostDescriptors, self.host_descriptors),
            (Resource::Ports, self.ports),
        ];
        let row = |(resource, count)| {
            let (limit, needed) = extent(resource);
            ExhaustedRow { party: party.to_owned(), resource, count, limit, needed }
        };
        counts.into_iter().filter(|(_, count)| *count > 0).map(row).collect()
    }
}

#[derive(Clone, Debug, Default)]
pub struct SourceTally {
    pub connections: u64,
    pub created: u64,
    pub sent: u64,
    pub accepted: u64,
    pub rejected: u64,
    pub failed: u64,
    pub recipients_created: u64,
    pub recipients_accepted: u64,
    pub recipients_rejected: u64,
    pub recipients_failed: u64,
    /// Recipients of messages whose connection broke after the last byte was sent and before the reply, so the server
    /// may have accepted them. These messages are included in `failed`.
    pub recipients_in_doubt: u64,
    /// Counts of each stage of the load, in the order of the stages. Some fields are filled only for the whole load and
    /// stay empty here, for example the ledger and the phases.
    pub load_stages: Vec<Self>,
    pub bytes_sent: u64,
    pub bytes_accepted: u64,
    /// Counts of the messages that were created during the warm-up. The other counts include these messages.
    pub warm_up: WarmUpCounts,
    pub sent_latency: Latencies,
    pub accepted_latency: Latencies,
    pub sent_service: Latencies,
    pub accepted_service: Latencies,
    pub ended_latency: Latencies,
    pub phases: PhaseTimes,
    /// For each phase, the number of durations that look like delayed ACKs. Durations that overlap count once, because
    /// a pause of the whole server delays the replies in many sessions at the same time.
    pub pauses: [TimesApart; Phase::ALL.len()],
    pub slip: Latencies,
    pub lag: Latencies,
    /// How late the worker woke up from timers that it set for this measurement. The worker notices replies equally
    /// late, because timers and replies wait in the same epoll.
    pub wake_ups: Latencies,
    pub handshakes: Handshakes,
    pub exhausted: ExhaustedCounts,
    pub(crate) pending_times: Vec<PendingTime>,
    pub errors: Errors,
    pub slowest: Slowest<SlowTransaction>,
    pub missing: MissingTransactions,
    /// Counts of recipients by domain and by outcome. Empty if all recipients have the same domain.
    pub domains: DomainTally,
    /// Number of messages that were due in each second since the last tick, without the warm-up. `merge` leaves out
    /// this field and `seconds`, because the collector adds both to the run's [`Series`](crate::Series) instead.
    pub due_seconds: DueSeconds,
    /// Events since the last tick, such as replies and errors, each in the second in which it happened. Messages of the
    /// warm-up are left out.
    pub seconds: Seconds,
    /// Time at which the first message since the last tick was created (closed loop) or due (open loop), including the
    /// warm-up.
    pub first_due: Option<Duration>,
    /// Message-recipient pairs that the server accepted with a 250.
    pub accepted_units: Ledger,
    /// Number of accepted message-recipient pairs that did not fit into the ledger. The verdict reports them, because
    /// their arrival cannot be checked.
    pub overflow: u64,
    /// Time at which the first message after the warm-up was created (closed loop) or due (open loop).
    pub first_created: Option<Duration>,
    /// Times at which messages were created. Messages of the warm-up are left out, as in `sent_times` and
    /// `accepted_times`.
    pub created_times: Throughput,
    pub sent_times: Throughput,
    pub accepted_times: Throughput,
    /// Time at which the first message was accepted, including the warm-up.
    pub first_reply: Option<Duration>,
    /// Time at which the last message was accepted, including the warm-up.
    pub last_reply: Option<Duration>,
    /// Time at which the last attempt to send a message ended, whatever its result.
    pub last_ended: Option<Duration>,
}

impl SourceTally {
    /// Stores a measured duration until [`SourceTally::flush_times`] adds it to the histogram of its kind, so that not
    /// every message touches a dozen histograms.
    pub fn time(&mut self, what: LatencyKind, took: Duration) {
        self.push_time(PendingTime { what, second: u32::MAX, took_ns: ns(took) });
    }

    /// Counts the duration of a phase that ended with a reply, both for latencies and for the detection of delayed
    /// ACKs.
    pub fn reply_time(&mut self, phase: Phase, began: Duration, ended: Duration) {
        self.pauses[phase as usize].record(began, ended);
        self.time(LatencyKind::Phase(phase), ended.saturating_sub(began));
    }

    /// Stores the latency of an accepted message for [`Self::flush_times`], and counts the message in the second that
    /// contains `at`. `zero` is the start of the run, or of any of its seconds. The caller must increase `accepted`
    /// itself.
    pub fn accept(&mut self, took: Duration, at: Duration, zero: Duration) {
        let second = self.seconds.index(at, zero);
        self.push_time(PendingTime { what: LatencyKind::Accepted, second: second as u32, took_ns: ns(took) });
        if let Some(second) = self.seconds.get_mut(second) {
            second.accepted += 1;
        }
    }

    pub fn count_error(&mut self, error: ErrorEvent<'_>, zero: Duration, sample: impl FnOnce() -> Option<String>) {
        self.seconds.at(error.at, zero).errors += 1;
        self.errors.add(error, sample);
    }

    /// Returns the counts of a stage of the load, and creates them for a new stage. Stages are numbered from 1. Returns
    /// `None` for the number 0, which messages outside any stage have.
    #[inline]
    pub fn of_load_stage(&mut self, number: u8) -> Option<&mut Self> {
        if number == 0 { None } else { self.named_load_stage(usize::from(number)) }
    }

    #[cold]
    fn named_load_stage(&mut self, number: usize) -> Option<&mut Self> {
        let coarse = || Self {
            sent_latency: Latencies::coarse(),
            accepted_latency: Latencies::coarse(),
            slip: Latencies::coarse(),
            ..Self::default()
        };
        self.load_stages.resize_with(self.load_stages.len().max(number), coarse);
        self.load_stages.get_mut(number - 1)
    }

    fn push_time(&mut self, time: PendingTime) {
        self.pending_times.push(time);
        if self.pending_times.len() >= MAX_PENDING_TIMES {
            self.flush_times();
        }
    }

    /// Adds pending durations to their histograms, and the latency of each accepted message to the second of its
    /// acceptance.
    pub fn flush_times(&mut self) {
        let mut gathered = std::mem::take(&mut self.pending_times);
        for PendingTime { what, second, took_ns } in gathered.drain(..) {
            self.latencies(what).record_ns(took_ns);
            if let Some(second) = self.seconds.get_mut(second as usize) {
                second.latencies.record_ns(took_ns);
            }
        }
        self.pending_times = gathered;
    }

    fn latencies(&mut self, what: LatencyKind) -> &mut Latencies {
        match what {
            LatencyKind::Phase(phase) => &mut self.phases.0[phase as usize],
            LatencyKind::Sent => &mut self.sent_latency,
            LatencyKind::Accepted => &mut self.accepted_latency,
            LatencyKind::SentService => &mut self.sent_service,
            LatencyKind::AcceptedService => &mut self.accepted_service,
            LatencyKind::Ended => &mut self.ended_latency,
            LatencyKind::Slip => &mut self.slip,
            LatencyKind::Lag => &mut self.lag,
        }
    }

    /// Adds the counts of `other`, for example the counts of a worker since its last tick. Durations that are still
    /// pending in `other` are added to the histograms of `self`.
    pub fn merge(&mut self, other: &Self) {
        for PendingTime { what, took_ns, .. } in &other.pending_times {
            self.latencies(*what).record_ns(*took_ns);
        }
        self.connections += other.connections;
        self.created += other.created;
        self.sent += other.sent;
        self.accepted += other.accepted;
        self.rejected += other.rejected;
        self.recipients_created += other.recipients_created;
        self.recipients_accepted += other.recipients_accepted;
        self.recipients_rejected += other.recipients_rejected;
        self.failed += other.failed;
        self.recipients_failed += other.recipients_failed;
        self.recipients_in_doubt += other.recipients_in_doubt;
        for (place, theirs) in other.load_stages.iter().enumerate() {
            self.named_load_stage(place + 1).into_iter().for_each(|ours| ours.merge(theirs));
        }
        self.bytes_sent += other.bytes_sent;
        self.bytes_accepted += other.bytes_accepted;
        self.warm_up.merge(&other.warm_up);
        self.sent_latency.merge(&other.sent_latency);
        self.accepted_latency.merge(&other.accepted_latency);
        self.sent_service.merge(&other.sent_service);
        self.accepted_service.merge(&other.accepted_service);
        self.ended_latency.merge(&other.ended_latency);
        self.slowest.merge(&other.slowest);
        self.missing.merge(&other.missing);
        self.domains.merge(&other.domains);
        for (ours, theirs) in self.phases.0.iter_mut().zip(&other.phases.0) {
            ours.merge(theirs);
        }
        for (ours, theirs) in self.pauses.iter_mut().zip(&other.pauses) {
            ours.merge(theirs);
        }
        self.slip.merge(&other.slip);
        self.lag.merge(&other.lag);
        self.wake_ups.merge(&other.wake_ups);
        self.errors.merge(&other.errors);
        self.handshakes.merge(&other.handshakes);
        self.exhausted.merge(&other.exhausted);
        self.overflow += other.overflow + self.accepted_units.merge(&other.accepted_units).full;
        self.first_created = earlier(self.first_created, other.first_created);
        self.created_times.merge(&other.created_times);
        self.sent_times.merge(&other.sent_times);
        self.accepted_times.merge(&other.accepted_times);
        self.first_reply = earlier(self.first_reply, other.first_reply);
        self.last_reply = self.last_reply.max(other.last_reply);
        self.last_ended = self.last_ended.max(other.last_ended);
    }

    pub fn open_messages(&self) -> u64 {
        self.created.saturating_sub(self.accepted + self.rejected + self.failed)
    }

    pub fn clear(&mut self) {
        let mut kept = std::mem::take(self);
        kept.phases.0.iter_mut().for_each(Latencies::clear);
        for latencies in [
            &mut kept.sent_latency,
            &mut kept.accepted_latency,
            &mut kept.sent_service,
            &mut kept.accepted_service,
            &mut kept.ended_latency,
            &mut kept.slip,
            &mut kept.lag,
            &mut kept.wake_ups,
        ] {
            latencies.clear();
        }
        for times in [&mut kept.created_times, &mut kept.sent_times, &mut kept.accepted_times] {
            times.clear();
        }
        kept.accepted_units.clear();
        kept.pending_times.clear();
        kept.slowest.clear();
        kept.missing.clear();
        kept.domains.clear();
        kept.due_seconds.clear();
        kept.seconds.clear();
        kept.load_stages.iter_mut().for_each(Self::clear);
        self.load_stages = kept.load_stages;
        self.pending_times = kept.pending_times;
        self.sent_latency = kept.sent_latency;
        self.accepted_latency = kept.accepted_latency;
        self.sent_service = kept.sent_service;
        self.accepted_service = kept.accepted_service;
        self.created_times = kept.created_times;
        self.sent_times = kept.sent_times;
        self.accepted_times = kept.accepted_times;
        self.ended_latency = kept.ended_latency;
        self.slip = kept.slip;
        self.lag = kept.lag;
        self.wake_ups = kept.wake_ups;
        self.phases = kept.phases;
        self.slowest = kept.slowest;
        self.missing = kept.missing;
        self.domains = kept.domains;
        self.due_seconds = kept.due_seconds;
        self.seconds = kept.seconds;
        self.accepted_units = kept.accepted_units;
    }
}

#[derive(Clone, Debug, Default)]
pub struct SinkTally {
    /// Faults that the sink caused on purpose, because its rules asked for them.
    pub ordered: Ordered,
    pub connections: u64,
    pub messages: u64,
    pub recipients: u64,
    pub bytes: u64,
    /// Messages without a readable trace header. They may be mail of a run whose header a server removed.
    pub untraced: u64,
    /// `From` and `Subject` of the first message without a trace header, if it had these headers.
    pub untraced_sample: Option<HeaderSample>,
    /// Connections that have ended, indexed by the phase of the client's last command.
    pub ended: [u64; Phase::ALL.len()],
    pub first_arrival: Option<Duration>,
    pub last_arrival: Option<Duration>,
    pub handshakes: Handshakes,
    pub exhausted: ExhaustedCounts,
    /// Durations from the 354 to the end of each message without a trace header, for the detection of delayed ACKs.
    pub bodies: DelayedAcks,
    pub runs: RunTallies,
    /// Names of the domains that the worker has seen, indexed by the numbers that it gives to them. Empty in merged
    /// counts, because each worker numbers the domains in its own order.
    pub domain_names: Vec<Arc<str>>,
    /// Pairs of an original and a rewritten address that the worker has seen, indexed by the numbers that it gives to
    /// them. Empty in merged counts, because each worker numbers the pairs in its own order.
    pub rewrites: Vec<Arc<Rewrite>>,
    pub errors: Errors,
    pub error_times: EventTimes,
    /// Number of messages without a trace header that arrived in each second since the last tick. `merge` leaves this
    /// field out, because the collector adds these numbers to a time series ([`Series`](crate::Series)), not to totals.
    pub seconds: Seconds,
}

impl SinkTally {
    /// Returns an empty tally that never drops the counts of `own_run` when a new run needs room (see [`MAX_RUNS`]).
    pub fn keeping(own_run: Option<RunId>) -> Self {
        Self { runs: RunTallies { own_run, ..RunTallies::default() }, ..Self::default() }
    }

    /// Returns this worker's counts of a run, without the counts of other workers. Merges this worker's counts into an
    /// empty tally, because only `merge` counts rewritten addresses and recipients outside the worker's first domain.
    pub fn of_run(&self, run: RunId) -> Option<RunTally> {
        let mut alone = RunTally::default();
        alone.merge(self.runs.find(run)?, self.names());
        Some(alone)
    }

    fn names(&self) -> WorkerNames<'_> {
        WorkerNames { domains: &self.domain_names, rewrites: &self.rewrites }
    }

    pub fn count_error(&mut self, error: ErrorEvent<'_>, sample: impl FnOnce() -> Option<String>) {
        self.error_times.add(error.at);
        self.errors.add(error, sample);
    }

    /// Counts a message in total and, if the trace header names its run, under that run.
    pub fn count_message(&mut self, run: Option<RunId>) {
        if let Some(run) = run.map(|run| self.runs.open(run)) {
            if run.messages == 0 && run.bounces.notices == 0 {
                run.messages_before = self.messages;
            }
            run.messages += 1;
        }
        self.messages += 1;
    }

    /// Counts a notification about a message, in total and under the run of that message.
    pub fn count_notice(&mut self, message: &MessageName, notice: &Notice) {
        let run = self.runs.open(message.run);
        if run.messages == 0 && run.bounces.notices == 0 {
            run.messages_before = self.messages;
        }
        run.bounces.add(message, notice);
        self.messages += 1;
    }

    pub fn merge(&mut self, other: &Self) {
        self.runs.merge(other, self.messages);
        for (_, run) in &mut self.runs.rows {
            run.handshakes.merge(&other.handshakes);
            run.errors.merge(&other.errors);
        }
        self.ordered.merge(&other.ordered);
        self.connections += other.connections;
        self.messages += other.messages;
        self.recipients += other.recipients;
        self.bytes += other.bytes;
        self.untraced += other.untraced;
        self.untraced_sample = self.untraced_sample.take().or_else(|| other.untraced_sample.clone());
        self.ended.iter_mut().zip(other.ended).for_each(|(ours, theirs)| *ours += theirs);
        self.first_arrival = earlier(self.first_arrival, other.first_arrival);
        self.last_arrival = self.last_arrival.max(other.last_arrival);
        self.handshakes.merge(&other.handshakes);
        self.exhausted.merge(&other.exhausted);
        self.bodies.merge(&other.bodies);
        self.errors.merge(&other.errors);
        self.error_times.merge(&other.error_times);
    }

    pub fn clear(&mut self) {
        let mut kept = std::mem::take(self);
        kept.runs.clear();
        kept.seconds.clear();
        self.runs = kept.runs;
        self.seconds = kept.seconds;
    }
}

impl Ordered {
    fn merge(&mut self, other: &Self) {
        self.replies += other.replies;
        self.cuts += other.cuts;
        self.unanswered += other.unanswered;
        self.lost += other.lost;
        self.duplicates += other.duplicates;
        self.corrupt += other.corrupt;
    }
}

/// The runs that a sink has seen, at most [`MAX_RUNS`]. A further run replaces the run that has been inactive for the
/// longest time.
#[derive(Clone, Debug, Default)]
pub struct RunTallies {
    rows: Vec<(RunId, RunTally)>,
    /// The run for which the sink was started. Newer runs never replace this run. `None` if the sink serves any run.
    own_run: Option<RunId>,
    /// Number of messages of runs that were replaced by newer runs. All other counts of the replaced runs are lost.
    pub evicted_messages: u64,
    pub evicted: u64,
}

impl RunTallies {
    /// Returns the counts of a run, and begins to count the run if it is new. If the table is full, a new run replaces
    /// the run that has been inactive for the longest time.
    pub fn open(&mut self, run: RunId) -> &mut RunTally {
        let row = match self.rows.iter().position(|(known, _)| *known == run) {
            Some(row) => row,
            None => self.add(run),
        };
        &mut self.rows[row].1
    }

    /// Begins to count a run that has been announced, before its first message arrives. `messages_before` is the number
    /// of messages of all runs that the sink has received until this call. From now on, each error at the sink counts
    /// for this run as well, because errors do not tell to which run they belong.
    pub fn announce(&mut self, run: RunId, now: Duration, messages_before: u64) {
        if self.find(run).is_none() {
            let tally = self.open(run);
            (tally.announced, tally.messages_before) = (Some(now), messages_before);
        }
    }

    /// Returns the counts of a run, or `None` if it was not announced and nothing of it has arrived.
    pub fn find(&self, run: RunId) -> Option<&RunTally> {
        self.iter().find(|(known, _)| *known == run).map(|(_, tally)| tally)
    }

    /// Returns all runs in the order in which they were announced or their first message arrived.
    pub fn iter(&self) -> impl Iterator<Item = (RunId, &RunTally)> {
        self.rows.iter().map(|(run, tally)| (*run, tally))
    }

    /// Adds another worker's counts of all runs. `messages_before` is the number of all messages that were merged
    /// before. For each run that is new, this number is added to [`RunTally::messages_before`].
    fn merge(&mut self, other: &SinkTally, messages_before: u64) {
        let worker = other.names();
        let other = &other.runs;
        self.evicted += other.evicted;
        self.evicted_messages += other.evicted_messages;
        for (run, tally) in other.iter().filter(|(_, tally)| tally.is_active()) {
            let is_new = self.find(run).is_none();
            let known = self.open(run);
            if is_new {
                known.messages_before = messages_before + tally.messages_before;
            }
            known.merge(tally, worker);
        }
    }

    pub fn clear(&mut self) {
        self.rows.retain(|(_, tally)| tally.is_active());
        self.rows.iter_mut().for_each(|(_, tally)| tally.clear());
        self.evicted = 0;
        self.evicted_messages = 0;
    }

    fn add(&mut self, run: RunId) -> usize {
        if self.rows.len() >= MAX_RUNS {
            self.evict();
        }
        self.rows.push((run, RunTally::default()));
        self.rows.len() - 1
    }

    fn evict(&mut self) {
        let others = self.rows.iter().enumerate().filter(|(_, (run, _))| Some(*run) != self.own_run);
        if let Some((row, _)) = others.min_by_key(|(_, (_, tally))| tally.last_delivered.max(tally.announced)) {
            self.evicted += 1;
            self.evicted_messages += self.rows.remove(row).1.messages;
        }
    }
}

/// Names of a worker's domains and its pairs of addresses, indexed by the numbers that the worker gives to them.
#[derive(Clone, Copy, Default)]
struct WorkerNames<'a> {
    domains: &'a [Arc<str>],
    rewrites: &'a [Arc<Rewrite>],
}

#[derive(Clone, Debug, Default)]
pub struct RunTally {
    /// Messages of the run that arrived, unchanged or not.
    pub messages: u64,
    pub recipients: u64,
    pub bytes: u64,
    /// Number of messages in `messages` that were created during the warm-up. Their latencies are not counted.
    pub warm_up_messages: u64,
    pub warm_up_bytes: u64,
    /// Time at which `mailrun bench` announced the run. Workers leave it empty, because they do not learn of
    /// announcements.
    pub announced: Option<Duration>,
    /// Number of all messages, including other mail, that the sink had received before it learned of the run. A
    /// worker's own tally counts only the messages that the worker received since its last tick.
    pub messages_before: u64,
    /// Errors of all mail since the sink learned of the run, by its announcement or by the first tick with a message of
    /// the run. Workers leave this field empty, because they count errors only in [`SinkTally::errors`].
    pub errors: Errors,
    /// TLS handshakes of all mail since the sink learned of the run. Workers leave this field empty, because they count
    /// handshakes only in [`SinkTally::handshakes`].
    pub handshakes: Handshakes,
    pub duplicates: u64,
    pub corrupt: u64,
    /// Messages that a relay converted to 7-bit and whose checksum matches the original.
    pub converted: u64,
    /// Messages whose latency is unknown, because their creation time cannot be converted to this host's clock. For
    /// example, it is a time of another host's CLOCK_MONOTONIC.
    pub untimed: u64,
    /// Messages without a latency, because their creation time is later than their arrival: the clocks of the source's
    /// and the sink's host differ.
    pub negative: u64,
    pub overflow: u64,
    pub units: Ledger,
    /// Counts of each stage of the load. Fields that are filled only for the whole run stay empty, such as `units`.
    pub load_stages: Vec<Self>,
    /// Bounces and delays that notifications reported for this run. The notifications do not count in `messages`.
    pub bounces: Bounces,
    /// Latencies from creation (closed loop) or schedule (open loop) to delivery.
    pub delivered: Latencies,
    /// Latencies until the server of a mailbox announced a message. Empty unless the sink watches mailboxes.
    pub told: Latencies,
    pub told_messages: u64,
    pub told_times: Throughput,
    pub slowest: Slowest<SlowDelivery>,
    /// Message-recipient pairs that arrived since the last tick, for recipients outside the worker's first domain.
    /// `merge` counts each pair as delivered or as a duplicate, because another worker may have seen the same pair.
    pub domain_units: Vec<DomainUnit>,
    /// Arrivals by recipient domain. Set only in merged counts, because each worker numbers the domains differently.
    pub domains: DomainArrivals,
    /// Arrivals since the last tick at addresses that the source had not named. `merge` counts each of them as a
    /// rewrite, a copy or a duplicate, because this depends on the arrivals at other workers.
    pub rewritten_units: Vec<RewrittenUnit>,
    /// Arrivals at addresses that the source had not named. Set only in merged counts, because a worker sees only part
    /// of the arrivals.
    pub rewrites: Rewrites,
    /// Durations from the 354 to the end of each message of this run, for the detection of delayed ACKs.
    pub bodies: DelayedAcks,
    /// Time on the sink's clock at which the earliest message was created. `None` until a message with a usable time
    /// arrives.
    pub first_created: Option<Duration>,
    /// Arrivals in each second since the last tick, without the warm-up. `merge` leaves this field out, because the
    /// collector adds it to the run's [`Series`](crate::Series) instead.
    pub seconds: Seconds,
    pub last_delivered: Option<Duration>,
    pub delivered_times: Throughput,
    /// True if any latency is a difference between the Unix clocks of two hosts, and so may contain their clock error.
    pub realtime: bool,
}

impl RunTally {
    /// Returns the counts of a stage of the load, and creates them for a new stage. Stages are numbered from 1. Returns
    /// `None` for the number 0, which messages outside any stage have.
    #[inline]
    pub fn of_load_stage(&mut self, number: u8) -> Option<&mut Self> {
        if number == 0 { None } else { self.named_load_stage(usize::from(number)) }
    }

    #[cold]
    fn named_load_stage(&mut self, number: usize) -> Option<&mut Self> {
        let coarse = || Self { delivered: Latencies::coarse(), ..Self::default() };
        self.load_stages.resize_with(self.load_stages.len().max(number), coarse);
        self.load_stages.get_mut(number - 1)
    }

    /// True if mail of the run or a notification about it arrived since the last tick. `messages` alone is not enough:
    /// over LMTP, a message counts with its first recipient. Its other recipients may count after a tick, when
    /// `messages` is 0 again.
    fn is_active(&self) -> bool {
        self.messages > 0 || self.recipients > 0 || self.bounces.notices > 0
    }

    /// Adds the counts of a worker. A message-recipient pair in the ledgers of both `self` and `other` is a duplicate,
    /// unless the earlier arrival was at a rewritten address. A worker lists recipients in its first domain in `units`,
    /// and all other recipients in `domain_units`.
    fn merge(&mut self, other: &Self, names: WorkerNames<'_>) {
        // A message may arrive first at a rewritten address, and later at the recipient's own address. Then the later
        // arrival is the delivery. Count the earlier arrival as a copy, so that neither counts as a duplicate.
        let copied = self.rewrites.units.remove(&other.units);
        let merged = self.units.merge(&other.units);
        let again = merged.again - copied;
        if let Some(first) = names.domains.first() {
            let arrived = self.domains.open(first);
            arrived.delivered += other.units.count() - merged.again - merged.full;
            arrived.duplicates += other.duplicates + again;
        }
        for unit in &other.domain_units {
            self.merge_domain_unit(*unit, names.domains);
        }
        for unit in &other.rewritten_units {
            self.merge_rewritten_unit(unit, names);
        }
        for (place, theirs) in other.load_stages.iter().enumerate() {
            self.named_load_stage(place + 1).into_iter().for_each(|ours| ours.merge(theirs, WorkerNames::default()));
        }
        self.bounces.merge(&other.bounces);
        self.slowest.merge(&other.slowest);
        self.messages += other.messages;
        self.recipients += other.recipients;
        self.bytes += other.bytes;
        self.warm_up_messages += other.warm_up_messages;
        self.warm_up_bytes += other.warm_up_bytes;
        self.duplicates += other.duplicates + again;
        self.corrupt += other.corrupt;
        self.converted += other.converted;
        self.untimed += other.untimed;
        self.negative += other.negative;
        self.overflow += other.overflow + merged.full;
        self.delivered.merge(&other.delivered);
        self.told.merge(&other.told);
        self.told_messages += other.told_messages;
        self.told_times.merge(&other.told_times);
        self.bodies.merge(&other.bodies);
        self.first_created = earlier(self.first_created, other.first_created);
        self.last_delivered = self.last_delivered.max(other.last_delivered);
        self.delivered_times.merge(&other.delivered_times);
        self.realtime |= other.realtime;
    }

    fn merge_domain_unit(&mut self, unit: DomainUnit, domains: &[Arc<str>]) {
        let nameless = Arc::default();
        let name = domains.get(usize::from(unit.domain)).unwrap_or(&nameless);
        match self.units.mark(unit.sequence, unit.recipient) {
            MarkResult::First => self.domains.open(name).delivered += 1,
            MarkResult::Again if self.rewrites.units.unmark(unit.sequence, unit.recipient) => {}
            MarkResult::Again => {
                self.domains.open(name).duplicates += 1;
                self.duplicates += 1;
            }
            MarkResult::Full => self.overflow += 1,
        }
    }

    fn merge_rewritten_unit(&mut self, unit: &RewrittenUnit, names: WorkerNames<'_>) {
        let nameless = Arc::default();
        let domain = names.domains.get(usize::from(unit.domain)).unwrap_or(&nameless);
        let unnamed = Arc::default();
        let pair = names.rewrites.get(usize::from(unit.pair)).unwrap_or(&unnamed);
        match self.rewrites.add(unit, pair, &mut self.units) {
            RewriteResult::Rewritten => self.domains.open(domain).delivered += 1,
            RewriteResult::Copied => {}
            RewriteResult::Duplicate => {
                self.domains.open(domain).duplicates += 1;
                self.duplicates += 1;
            }
            RewriteResult::Full => self.overflow += 1,
        }
    }

    pub fn clear(&mut self) {
        let mut kept = std::mem::take(self);
        kept.units.clear();
        kept.delivered.clear();
        kept.delivered_times.clear();
        kept.told.clear();
        kept.told_times.clear();
        kept.slowest.clear();
        kept.domain_units.clear();
        kept.rewritten_units.clear();
        kept.seconds.clear();
        kept.load_stages.iter_mut().for_each(Self::clear);
        self.load_stages = kept.load_stages;
        self.seconds = kept.seconds;
        self.units = kept.units;
        self.rewritten_units = kept.rewritten_units;
        self.delivered = kept.delivered;
        self.delivered_times = kept.delivered_times;
        self.told = kept.told;
        self.told_times = kept.told_times;
        self.slowest = kept.slowest;
        self.domain_units = kept.domain_units;
    }
}

fn earlier(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::ErrorEvent;

    fn at(second: u64) -> Option<Duration> {
        Some(Duration::from_secs(second))
    }

    fn arrive(sink: &mut SinkTally, run: RunId, sequence: u64, second: u64) {
        sink.count_message(Some(run));
        let tally = sink.runs.open(run);
        tally.duplicates += u64::from(tally.units.mark(sequence, 0) == crate::MarkResult::Again);
        tally.delivered.record(Duration::from_millis(1));
        tally.last_delivered = at(second);
    }

    #[test]
    fn a_unit_that_two_workers_saw_is_a_duplicate() {
        let run = RunId([1; 16]);
        let mut one = SinkTally::default();
        let mut other = SinkTally::default();
        let mut all = SinkTally::default();
        arrive(&mut one, run, 1, 1);
        arrive(&mut one, run, 1, 1);
        arrive(&mut one, run, 2, 1);
        arrive(&mut other, run, 2, 2);
        all.merge(&one);
        all.merge(&other);
        let tally = all.runs.find(run).unwrap();
        assert_eq!((tally.messages, tally.duplicates, tally.units.count()), (4, 2, 2));
        assert_eq!((tally.delivered.count(), tally.last_delivered), (4, at(2)));
    }

    #[test]
    fn arrivals_under_other_addresses_are_rewritten_copied_or_duplicates() {
        #[derive(Clone, Copy)]
        enum At {
            /// An arrival at the recipient's own address. Contains the recipient's number and its domain's number.
            Own(u32, u16),
            /// An arrival at another address than the recipient's, with the recipient's number and the address's hash.
            Other(u32, u32),
            /// An arrival for a recipient that the server added. Contains a hash of the address.
            Added(u32),
        }
        use At::{Added, Other, Own};
        let run = RunId([1; 16]);
        let pair =
            |original: Option<&str>| Rewrite { original: original.map(str::to_owned), address: "x@y".to_owned() };
        // Each inner list contains the arrivals of one tick, all of them seen by the same worker.
        for (what, ticks, [delivered, rewritten, copied, duplicates]) in [
            ("as named", &[&[Own(1, 0), Own(2, 1)][..]][..], [2, 0, 0, 0]),
            ("rewritten", &[&[Other(1, 50)], &[Other(2, 60)]], [2, 2, 0, 0]),
            ("two to the same address", &[&[Other(1, 50), Other(2, 50)]], [2, 2, 0, 0]),
            ("one alias of two", &[&[Other(1, 50), Other(1, 60)]], [1, 1, 1, 0]),
            ("two in several ticks", &[&[Other(1, 50)], &[Other(1, 60)], &[Other(1, 70)]], [1, 1, 2, 0]),
            ("itself and another", &[&[Own(1, 0), Other(1, 50)]], [1, 0, 1, 0]),
            ("another and then itself", &[&[Other(1, 50)], &[Own(1, 0)]], [1, 0, 1, 0]),
            ("the same in a domain of its own", &[&[Other(1, 50)], &[Own(1, 1)]], [1, 0, 1, 0]),
            ("itself twice", &[&[Other(1, 50)], &[Own(1, 1)], &[Own(1, 1)], &[Own(1, 0)]], [1, 0, 1, 2]),
            ("retried after a rewrite", &[&[Other(1, 50), Other(1, 50)], &[Other(1, 50)]], [1, 1, 0, 2]),
            ("always_bcc", &[&[Own(1, 0), Added(50)]], [1, 0, 1, 0]),
            ("always_bcc, retried", &[&[Added(50)], &[Own(1, 0), Added(50)]], [1, 0, 1, 1]),
            ("a copy without the message", &[&[Added(50)]], [0, 0, 1, 0]),
        ] {
            let mut all = SinkTally::default();
            for arrivals in ticks {
                let mut worker = SinkTally {
                    domain_names: ["a", "b"].map(Arc::from).to_vec(),
                    rewrites: [pair(Some("to@a")), pair(None)].map(Arc::new).to_vec(),
                    ..SinkTally::default()
                };
                worker.count_message(Some(run));
                let tally = worker.runs.open(run);
                let other =
                    RewrittenUnit { sequence: 7, recipient: 0, domain: 0, pair: 0, address: 0, is_added: false };
                for arrival in *arrivals {
                    match *arrival {
                        Own(recipient, 0) => {
                            tally.duplicates += u64::from(tally.units.mark(7, recipient) == MarkResult::Again);
                        }
                        Own(recipient, domain) => {
                            tally.domain_units.push(DomainUnit { sequence: 7, recipient, domain })
                        }
                        Other(recipient, address) => {
                            tally.rewritten_units.push(RewrittenUnit { recipient, address, ..other });
                        }
                        Added(address) => tally.rewritten_units.push(RewrittenUnit {
                            recipient: address,
                            address,
                            pair: 1,
                            is_added: true,
                            ..other
                        }),
                    }
                }
                all.merge(&worker);
                worker.clear();
                assert!(worker.runs.find(run).is_some_and(|tally| tally.rewritten_units.is_empty()));
            }
            let tally = all.runs.find(run).unwrap();
            let found = [tally.units.count(), tally.rewrites.units.count(), tally.rewrites.copied(), tally.duplicates];
            assert_eq!(found, [delivered, rewritten, copied, duplicates], "{what}");
            let rows = tally.domains.rows();
            let by_domain: u64 = rows.iter().filter_map(|row| row.delivered).sum();
            let twice: u64 = rows.iter().filter_map(|row| row.duplicates).sum();
            assert_eq!([by_domain, twice], [delivered, duplicates], "{what}: the domains have all of them");
            let listed: u64 = tally.rewrites.rows().iter().map(|row| row.count).sum();
            assert_eq!(listed, rewritten + copied, "{what}: each pair is listed");
        }
    }

    #[test]
    fn an_announced_run_is_known_before_its_mail_and_outlives_older_runs() {
        let run = |number| RunId([number; 16]);
        let mut sink = SinkTally::default();
        (1..=MAX_RUNS as u8).for_each(|number| arrive(&mut sink, run(number), 0, u64::from(number)));
        sink.runs.announce(run(100), Duration::from_secs(50), sink.messages);
        sink.runs.announce(run(100), Duration::from_secs(60), 0);
        arrive(&mut sink, run(101), 0, 51);
        let announced = sink.runs.find(run(100)).unwrap();
        assert_eq!((announced.messages, announced.messages_before), (0, MAX_RUNS as u64));
        assert!(sink.runs.find(run(2)).is_none(), "the oldest runs make room");
    }

    #[test]
    fn counts_of_two_workers_add_up() {
        let worker = |n| RunTally {
            messages: n,
            recipients: 2 * n,
            bytes: 3 * n,
            warm_up_messages: 4 * n,
            warm_up_bytes: 5 * n,
            duplicates: 6 * n,
            corrupt: 7 * n,
            converted: 8 * n,
            untimed: 9 * n,
            negative: 10 * n,
            overflow: 11 * n,
            ..RunTally::default()
        };
        let mut sum = worker(2);
        sum.merge(&worker(5), WorkerNames::default());
        assert_eq!(
            [sum.messages, sum.recipients, sum.bytes, sum.warm_up_messages, sum.warm_up_bytes],
            [7, 14, 21, 28, 35]
        );
        let rest = [sum.duplicates, sum.corrupt, sum.converted, sum.untimed, sum.negative, sum.overflow];
        assert_eq!(rest, [42, 49, 56, 63, 70, 77]);
    }

    #[test]
    fn a_message_is_open_until_it_was_accepted_rejected_or_failed() {
        let tally = SourceTally { created: 10, accepted: 4, rejected: 2, failed: 1, ..SourceTally::default() };
        assert_eq!(tally.open_messages(), 3);
    }

    #[test]
    fn a_cleared_tally_adds_nothing() {
        let run = RunId([1; 16]);
        let mut worker = SinkTally::default();
        let mut all = SinkTally::default();
        arrive(&mut worker, run, 1, 1);
        for _ in 0..3 {
            all.merge(&worker);
            worker.clear();
        }
        let tally = all.runs.find(run).unwrap();
        assert_eq!((all.messages, tally.messages, tally.duplicates), (1, 1, 0));
        assert_eq!(worker.runs.iter().count(), 0, "a run that went quiet is dropped");
    }

    #[test]
    fn a_run_counts_from_its_own_first_message() {
        let runs = [RunId([1; 16]), RunId([2; 16])];
        let mut worker = SinkTally::default();
        let mut all = SinkTally::default();
        for (run, sequence) in [(runs[0], 1), (runs[1], 1), (runs[0], 2), (runs[1], 2)] {
            arrive(&mut worker, run, sequence, 1);
            worker.handshakes.failed += 1;
            worker.errors.add(
                ErrorEvent { phase: Phase::Rcpt, code: 450, text: "later", at: Duration::from_secs(sequence) },
                || None,
            );
            all.merge(&worker);
            worker.clear();
        }
        let before = runs.map(|run| all.runs.find(run).unwrap().messages_before);
        assert_eq!((all.messages, before), (4, [0, 1]));
        let third = RunId([3; 16]);
        for (run, sequence) in [(runs[1], 3), (third, 1)] {
            arrive(&mut worker, run, sequence, 1);
        }
        all.merge(&worker);
        assert_eq!(all.runs.find(third).unwrap().messages_before, 5, "in the same tick, too");
        let since = runs.map(|run| all.runs.find(run).unwrap());
        assert_eq!(since.map(|tally| tally.errors.total()), [4, 3]);
        assert_eq!(since.map(|tally| tally.handshakes.failed), [4, 3]);
    }

    #[test]
    fn recipients_that_follow_their_message_in_a_later_tick_are_added() {
        let run = RunId([1; 16]);
        let mut worker = SinkTally::default();
        let mut all = SinkTally::default();
        arrive(&mut worker, run, 1, 1);
        all.merge(&worker);
        worker.clear();
        let tally = worker.runs.open(run);
        tally.recipients += 1;
        tally.units.mark(1, 1);
        all.merge(&worker);
        worker.clear();
        let tally = all.runs.find(run).unwrap();
        assert_eq!((tally.messages, tally.recipients, tally.units.count()), (1, 1, 2));
        assert_eq!(worker.runs.find(run).map(|tally| tally.recipients), Some(0), "its memory is kept");
    }

    #[test]
    fn the_quietest_run_makes_room_for_a_new_one() {
        let run = |number: u8| RunId([number; 16]);
        let mut sink = SinkTally::default();
        (0..MAX_RUNS as u8).for_each(|number| arrive(&mut sink, run(number), 0, u64::from(number)));
        arrive(&mut sink, run(0), 1, 99);
        arrive(&mut sink, run(200), 0, 100);
        assert!(sink.runs.find(run(0)).is_some() && sink.runs.find(run(200)).is_some());
        assert!(sink.runs.find(run(1)).is_none());
        assert_eq!((sink.runs.evicted, sink.runs.evicted_messages), (1, 1));
        assert_eq!(sink.runs.iter().count(), MAX_RUNS);
    }

    #[test]
    fn the_sinks_own_run_is_never_replaced() {
        let run = |number: u8| RunId([number; 16]);
        let mut worker = SinkTally::keeping(Some(run(1)));
        let mut all = SinkTally::keeping(Some(run(1)));
        arrive(&mut worker, run(1), 0, 1);
        for second in 2..50 {
            (0..MAX_RUNS as u8).for_each(|_| arrive(&mut worker, run(second), 0, second.into()));
            // Run 1 is the sink's own run, so other runs must not displace it, even after `clear`.
            if second % 20 == 0 {
                all.merge(&worker);
                worker.clear();
            }
        }
        all.merge(&worker);
        assert_eq!(all.runs.find(run(1)).map(|tally| tally.messages), Some(1));
        assert_eq!(
            all.messages,
            all.runs.iter().map(|(_, tally)| tally.messages).sum::<u64>() + all.runs.evicted_messages
        );
    }

    #[test]
    fn a_source_adds_up_over_ticks() {
        let mut worker = SourceTally::default();
        let mut all = SourceTally::default();
        for second in 1..=3 {
            worker.created += 2;
            worker.accepted_units.mark(second, 0);
            worker.time(LatencyKind::Phase(Phase::Reply), Duration::from_millis(second));
            worker.first_created = at(second);
            worker.accepted_times.record(Duration::from_secs(second), Duration::ZERO);
            let refusal = ErrorEvent { phase: Phase::Rcpt, code: 550, text: "no", at: Duration::from_secs(second) };
            worker.errors.add(refusal, || None);
            all.merge(&worker);
            worker.clear();
        }
        assert_eq!((all.created, all.accepted_units.count(), all.overflow), (6, 3, 0));
        assert_eq!((all.first_created, all.accepted_times.last()), (at(1), at(3)));
        assert_eq!(all.phases.0[Phase::Reply as usize].count(), 3);
        assert_eq!(all.errors.total(), 3);
    }

    #[test]
    fn what_ran_out_is_counted_over_ticks_and_has_a_row_each() {
        let mut worker = SourceTally::default();
        let mut all = SourceTally::default();
        for _ in 0..2 {
            worker.exhausted.add(Resource::Ports);
            worker.exhausted.add(Resource::Descriptors);
            worker.exhausted.add(Resource::Ports);
            all.merge(&worker);
            worker.clear();
        }
        all.merge(&worker);
        let extent = |resource| (Some(40), (resource == Resource::Descriptors).then_some(164));
        let rows: Vec<_> = all.exhausted.rows("source", extent);
        let rows: Vec<_> = rows.iter().map(|row| (row.resource, row.count, row.limit, row.needed)).collect();
        assert_eq!(rows, [(Resource::Descriptors, 2, Some(40), Some(164)), (Resource::Ports, 4, Some(40), None)]);
        assert!(SinkTally::default().exhausted.rows("sink", extent).is_empty());
    }

    #[test]
    fn the_index_of_a_phase_is_its_place_in_the_dialogue() {
        for (index, phase) in Phase::ALL.into_iter().enumerate() {
            assert_eq!(phase as usize, index);
        }
    }

    #[test]
    fn units_of_each_domain_are_known_whichever_worker_saw_them_again() {
        let run = RunId([1; 16]);
        let names = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect::<Vec<Arc<str>>>();
        let unit = |sequence| DomainUnit { sequence, recipient: 0, domain: 1 };
        let mut one = SinkTally { domain_names: names(&["a", "b"]), ..SinkTally::default() };
        let mut other = SinkTally { domain_names: names(&["b", "a"]), ..SinkTally::default() };
        // The domain with index 1 is b in `one`, but a in `other`. After `merge`, messages 1 and 2 must belong to a,
        // and messages 3 and 4 to b.
        arrive(&mut one, run, 1, 1);
        arrive(&mut one, run, 1, 1);
        one.runs.open(run).domain_units.extend([unit(3), unit(3), unit(4)]);
        arrive(&mut other, run, 4, 2);
        other.runs.open(run).domain_units.extend([unit(1), unit(2)]);
        let mut all = SinkTally::default();
        all.merge(&one);
        one.clear();
        all.merge(&one);
        all.merge(&other);
        let tally = all.runs.find(run).unwrap();
        let rows: Vec<_> =
            tally.domains.rows().into_iter().map(|row| (row.domain, row.delivered, row.duplicates)).collect();
        assert_eq!(rows, [("a".to_owned(), Some(2), Some(2)), ("b".to_owned(), Some(2), Some(2))]);
        assert_eq!((tally.units.count(), tally.duplicates), (4, 4));
    }
}
