//! Joins the records of several parties of one kind into one record, for example the records of all parts of a load.
//!
//! ```text
//! counts      added                          times (stages, phases, lag)   their histograms added, bucket for bucket
//! seconds     added on one axis of time      quantiles of a second         the largest: they cannot be added
//! ```
//! The common axis of time is the monotonic clock of the first record's host. Records from the same boot of this host
//! already use this clock. The times of other records are converted by their Unix time.
use crate::bounces;
use crate::latencies::Latencies;
use crate::merge::{join_errors, join_events, sort_slowest};
use crate::missing::MAX_MISSING;
use crate::record::{
    DomainRow, Ending, EventKind, EventRow, ExhaustedRow, LatencyMs, LedgerRow, LoadStageRow, PartyUsage, PauseRow,
    PhaseRow, Record, SeriesRow, SlowMessage, StageRow, StallRow, Surroundings, TlsRow, UsageRow,
};
use crate::rewrites;
use crate::series;
use crate::slowest::MAX_SLOWEST;
use crate::stage::Phase;
use crate::throughput::Throughput;
use crate::time_axis::seconds_between;
use crate::trace::MAX_LOAD_STAGES;
use std::collections::BTreeMap;
use std::time::Duration;

const NS_PER_S: u64 = 1_000_000_000;
/// Maximum difference in seconds between the beginnings of two records: one week. A greater difference means that a
/// clock is wrong.
const MAX_SHIFT_S: i128 = 7 * 86_400;
/// Last second of a record that is taken into account, a year after the record begins. Later seconds are ignored,
/// because they can come only from a wrong or forged record.
const MAX_SECOND: u64 = 366 * 86_400;
const MAX_EVENTS: usize = 1_000;
/// Maximum number of rows in each list of a record, such as its domains. The merged record has the same maximum.
const MAX_ROWS: usize = 1_000;
/// Minimum length in seconds of a stall that all parties have in common. Shorter stalls are left out.
const MIN_STALL_S: f64 = 1.0;

#[derive(Clone, Debug, Default)]
pub struct RecordUnion {
    first: Option<Record>,
    stages: Vec<UnionStage>,
    phases: BTreeMap<Phase, Latencies>,
    lag: Option<Latencies>,
    offered: Option<TimeSpan>,
    duration: Option<TimeSpan>,
    seconds: BTreeMap<i64, SeriesRow>,
    /// Maximum number of seconds that a row of any record covers. It is more than 1 only in long runs, because their
    /// rows are merged to limit the number of rows.
    row_s: u64,
    usage: BTreeMap<i64, UsageRow>,
    events: Vec<EventRow>,
    /// Load stages by number, each with the sum of the figures that the parties report for it.
    load_stages: BTreeMap<u32, (LoadStageRow, Self)>,
}

#[derive(Clone, Debug)]
struct UnionStage {
    row: StageRow,
    times: Option<Latencies>,
    service: Option<Latencies>,
    arrivals: Throughput,
    span: Option<TimeSpan>,
}

/// Period in seconds on the common axis of time, for example the period in which a source offered its load. A union of
/// records keeps the period from the earliest beginning to the latest end.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TimeSpan {
    begin_s: f64,
    end_s: f64,
}

impl TimeSpan {
    fn of(begin_s: f64, length_s: f64) -> Self {
        Self { begin_s, end_s: begin_s + length_s }
    }

    /// Returns the period that a stage's row describes, with the row's duration as its length. The period ends when the
    /// last message reaches the stage. If no message has reached the stage, the period begins at `begin_s`, when the
    /// party started. Returns `None` if the row has neither arrivals nor a duration.
    fn of_stage(row: &StageRow, arrivals: &Throughput, begin_s: f64) -> Option<Self> {
        let last_s = arrivals.last().map(|last| last.as_secs_f64() - axis_time(0).as_secs_f64());
        // A sink may start days before its first message. So if messages arrived, compute the begin from the last
        // arrival.
        let begin_s = last_s.map_or(begin_s, |last_s| last_s - row.duration_s);
        (last_s.is_some() || row.duration_s > 0.0).then(|| Self::of(begin_s, row.duration_s))
    }

    fn join(self, other: Self) -> Self {
        Self { begin_s: self.begin_s.min(other.begin_s), end_s: self.end_s.max(other.end_s) }
    }

    fn join_all(spans: impl IntoIterator<Item = Option<Self>>) -> Option<Self> {
        spans.into_iter().flatten().reduce(Self::join)
    }

    fn length_s(self) -> f64 {
        (self.end_s - self.begin_s).max(0.0)
    }
}

type StageTimes = (Option<Latencies>, Option<Latencies>, Throughput);

/// Histograms and arrival times of a record, decoded from text. All of them are decoded before any is added, so that a
/// record with an unreadable histogram is rejected as a whole.
struct Histograms {
    stages: Vec<StageTimes>,
    phases: Vec<Latencies>,
    lag: Option<Latencies>,
}

impl Histograms {
    /// Decodes the histograms of a record whose origin is `shift` seconds after the first record's origin.
    fn read(record: &Record, shift: i128) -> Result<Self, String> {
        let read = |text: Option<&String>, of: &str| {
            let unreadable = || format!("the histogram of {of} cannot be read");
            text.map(|text| Latencies::decode(text).ok_or_else(unreadable)).transpose()
        };
        let stage = |row: &StageRow| {
            let times = read(row.histogram.as_ref(), row.name.name())?;
            let origin = axis_time(shift);
            let unreadable = || format!("the arrivals of {} cannot be read", row.name.name());
            let arrivals = row.arrivals.as_ref().map(|text| Throughput::decode(text, origin).ok_or_else(unreadable));
            let service = read(row.service_histogram.as_ref(), row.name.name())?;
            Ok((times, service, arrivals.transpose()?.unwrap_or_default()))
        };
        let phase = |row: &PhaseRow| {
            let missing = || format!("there is no histogram of {}", row.name.name());
            read(row.histogram.as_ref(), row.name.name())?.ok_or_else(missing)
        };
        let lag = record.shard.as_ref().and_then(|shard| shard.lag_histogram.as_ref());
        Ok(Self {
            stages: record.stages.iter().map(stage).collect::<Result<_, String>>()?,
            phases: record.phases.iter().map(phase).collect::<Result<_, String>>()?,
            lag: read(lag, "the delay of messages by the source")?,
        })
    }
}

impl RecordUnion {
    /// Adds the record of one party, for example of a source that offers one part of a load. In the union, the party is
    /// called `name`.
    ///
    /// # Errors
    ///
    /// Fails if a histogram cannot be read, or if the record's clock differs too much from the first record's clock.
    /// In both cases, the union stays unchanged.
    pub fn add(&mut self, mut record: Record, name: &str) -> Result<(), String> {
        let shift = self.shift(&record)?;
        let histograms = Histograms::read(&record, shift)?;
        let shift_s = shift as f64;
        self.load_stages = self.joined_load_stages(&mut record, name, shift_s)?;
        limit_rows(&mut record);
        name_party(&mut record, name);
        move_times(&mut record, shift_s);
        self.add_stages(&record, histograms.stages, shift_s);
        for (row, times) in record.phases.iter().zip(histograms.phases) {
            merge_times(self.phases.entry(row.name).or_insert_with(Latencies::coarse), Some(&times));
        }
        if let Some(times) = histograms.lag {
            add_times(&mut self.lag, Some(times));
        }
        self.add_seconds(&mut record, shift);
        self.add_events(std::mem::take(&mut record.events));
        match &mut self.first {
            None => self.first = Some(record),
            Some(first) => add_rows(first, record),
        }
        Ok(())
    }

    /// Removes the load stages from `record`, and returns the load stages of this union with these stages added. The
    /// caller stores the result in `self` only after success, because an error must leave the union as it was.
    fn joined_load_stages(
        &self,
        record: &mut Record,
        name: &str,
        shift_s: f64,
    ) -> Result<BTreeMap<u32, (LoadStageRow, Self)>, String> {
        let mut joined = self.load_stages.clone();
        for row in std::mem::take(&mut record.load_stages).into_iter().take(MAX_LOAD_STAGES) {
            let part = row.as_run(record);
            let (begin_s, end_s) = (row.begin_s + shift_s, row.end_s + shift_s);
            let moved = LoadStageRow { begin_s, end_s, ..row };
            let (_, sum) = joined.entry(moved.number).or_insert_with(|| (moved, Self::default()));
            sum.add(part, name)?;
        }
        Ok(joined)
    }

    /// Returns by how many seconds the record's origin is later than the first record's origin. Fails if they are more
    /// than a week apart, because then a clock must be wrong.
    fn shift(&self, record: &Record) -> Result<i128, String> {
        let Some(first) = &self.first else { return Ok(0) };
        let shift = seconds_between(first, record);
        match shift.abs() <= MAX_SHIFT_S {
            true => Ok(shift),
            false => Err(format!("its clock differs from the first one's by {} s", shift.abs())),
        }
    }

    fn add_stages(&mut self, record: &Record, times: Vec<StageTimes>, shift_s: f64) {
        let begin_s = record.shard.as_ref().map_or(shift_s, |shard| shard.began_s + shift_s);
        let mut duration = None;
        for (row, (times, service, arrivals)) in record.stages.iter().zip(times) {
            let span = TimeSpan::of_stage(row, &arrivals, begin_s);
            duration = TimeSpan::join_all([duration, span]);
            match self.stages.iter_mut().find(|stage| stage.row.name == row.name) {
                Some(stage) => {
                    add(&mut stage.row.count, row.count);
                    add(&mut stage.row.failed, row.failed);
                    add(&mut stage.row.missing, row.missing);
                    add(&mut stage.row.late, row.late);
                    add(&mut stage.row.duplicates, row.duplicates);
                    add(&mut stage.row.bytes, row.bytes);
                    stage.arrivals.merge(&arrivals);
                    stage.row.since = stage.row.since.or(row.since);
                    stage.span = TimeSpan::join_all([stage.span, span]);
                    add_times(&mut stage.times, times);
                    add_times(&mut stage.service, service);
                }
                None => self.stages.push(UnionStage { row: row.clone(), times, service, arrivals, span }),
            }
        }
        let duration = duration.or((record.duration_s > 0.0).then(|| TimeSpan::of(begin_s, record.duration_s)));
        self.duration = TimeSpan::join_all([self.duration, duration]);
        let offered = record.offered_s.map(|offered_s| TimeSpan::of(begin_s, offered_s));
        self.offered = TimeSpan::join_all([self.offered, offered]);
    }

    fn add_seconds(&mut self, record: &mut Record, shift: i128) {
        let shift = i64::try_from(shift).unwrap_or_default();
        let second = |second: u64| (second <= MAX_SECOND).then(|| second as i64 + shift);
        self.row_s = self.row_s.max(series::width(&record.series));
        for row in std::mem::take(&mut record.series) {
            if let Some(second) = second(row.second) {
                match self.seconds.get_mut(&second) {
                    Some(known) => add_second(known, &row),
                    None => _ = self.seconds.insert(second, row),
                }
            }
        }
        for row in std::mem::take(&mut record.usage).into_iter().flat_map(|party| party.seconds) {
            if let Some(second) = second(row.second) {
                let known = self.usage.entry(second).or_default();
                known.cores += row.cores;
                add(&mut known.rss_bytes, row.rss_bytes);
            }
        }
    }

    /// Adds the events of one record to the events of the union. Planned events, such as the end of the warm-up, are in
    /// every record, so only the first copy is added.
    fn add_events(&mut self, events: Vec<EventRow>) {
        let is_new = |event: &EventRow| {
            let is_of_plan = matches!(event.kind, EventKind::WarmUpEnded | EventKind::RateStage);
            !(is_of_plan && self.events.iter().any(|known| known.kind == event.kind && known.text == event.text))
        };
        let room = MAX_EVENTS.saturating_sub(self.events.len());
        let more = events.into_iter().filter(is_new).take(room).collect();
        self.events = join_events(std::mem::take(&mut self.events), more);
    }

    /// Returns the joined record, or `None` if no record was added. Attributes the processor time of all parties to a
    /// single party, `usage_name`.
    pub fn finish(mut self, usage_name: &str) -> Option<Record> {
        let mut record = self.first.take()?;
        let offered_s = self.offered.map(TimeSpan::length_s);
        record.offered_s = offered_s;
        record.duration_s = self.duration.map_or(0.0, TimeSpan::length_s);
        record.phases = self.phases.into_iter().filter_map(|(name, times)| phase_row(name, &times)).collect();
        record.lag_ms = self.lag.as_ref().and_then(Latencies::summary).or(record.lag_ms.filter(|_| self.lag.is_none()));
        record.events = self.events;
        let sum_of = |(row, sum): (LoadStageRow, Self)| {
            let sum = sum.finish(usage_name)?;
            Some(LoadStageRow { stages: sum.stages, ledger: sum.ledger, due: sum.due, ..row })
        };
        record.load_stages = std::mem::take(&mut self.load_stages).into_values().filter_map(sum_of).collect();
        record.stalls.retain(|stall| stall.to_s - stall.from_s >= MIN_STALL_S);
        // The seconds of the run count from the start of the record that was added first. Another record may begin
        // earlier. A record cannot contain negative seconds, so let the seconds count from the earliest record.
        let earliest = self.seconds.keys().chain(self.usage.keys()).min().copied().unwrap_or_default().min(0);
        let lead = u64::try_from(-earliest).unwrap_or_default().min(record.origin_ns / NS_PER_S);
        record.origin_ns -= lead * NS_PER_S;
        let origin = axis_time(-i128::from(lead));
        record.stages = self.stages.drain(..).map(|stage| stage.finish(origin)).collect();
        if lead > 0 {
            record.zero_at.clear();
        }
        move_times(&mut record, lead as f64);
        let second = |second: i64| u64::try_from(second + lead as i64).unwrap_or_default();
        // In long runs, each row covers several seconds, and the rows of two parties may begin at different seconds. So
        // divide the time into periods as long as the longest row, and join the rows that begin in the same period.
        let row_s = self.row_s.max(1);
        let mut rows: BTreeMap<u64, SeriesRow> = BTreeMap::new();
        for (at, row) in self.seconds {
            let second = second(at) / row_s * row_s;
            match rows.get_mut(&second) {
                Some(known) => add_second(known, &row),
                None => _ = rows.insert(second, SeriesRow { second, ..row }),
            }
        }
        record.series = rows.into_values().collect();
        let rows: Vec<UsageRow> =
            self.usage.into_iter().map(|(at, row)| UsageRow { second: second(at), ..row }).collect();
        record.usage = vec![PartyUsage { party: usage_name.to_owned(), seconds: rows }];
        record.usage.retain(|usage| !usage.seconds.is_empty());
        Some(record)
    }
}

impl UnionStage {
    fn finish(self, origin: Duration) -> StageRow {
        let summary = |times: &Option<Latencies>| times.as_ref().and_then(Latencies::summary);
        let encoded = |times: &Option<Latencies>| times.as_ref().and_then(Latencies::encoded);
        StageRow {
            rate_per_s: self.arrivals.per_s(),
            duration_s: self.span.map_or(0.0, TimeSpan::length_s),
            arrivals: self.arrivals.encoded(origin),
            latency_ms: summary(&self.times),
            histogram: encoded(&self.times),
            service_ms: summary(&self.service),
            service_histogram: encoded(&self.service),
            ..self.row
        }
    }
}

/// Converts a second, counted from the origin of the first record, to a `Duration` for `Throughput`. Adds
/// `MAX_SHIFT_S`, because a second before that origin is negative, but a `Duration` cannot be negative.
fn axis_time(second: i128) -> Duration {
    Duration::from_secs(u64::try_from(MAX_SHIFT_S + second).unwrap_or_default())
}

fn phase_row(name: Phase, times: &Latencies) -> Option<PhaseRow> {
    let latency_ms: LatencyMs = times.summary()?;
    Some(PhaseRow { name, count: times.count(), latency_ms, histogram: times.encoded() })
}

fn add_times(known: &mut Option<Latencies>, more: Option<Latencies>) {
    match (known.as_mut(), more) {
        (Some(known), more) => merge_times(known, more.as_ref()),
        (None, more) => *known = more,
    }
}

fn merge_times(known: &mut Latencies, more: Option<&Latencies>) {
    if let Some(more) = more {
        known.merge(more);
    }
}

fn name_party(record: &mut Record, name: &str) {
    record.parties.iter_mut().for_each(|party| name.clone_into(&mut party.name));
    record.exhausted.iter_mut().for_each(|row| name.clone_into(&mut row.party));
    record.pauses.iter_mut().for_each(|row| name.clone_into(&mut row.party));
}

/// Truncates lists that exceed their limits. Only hostile records have such lists.
fn limit_rows(record: &mut Record) {
    record.errors.truncate(MAX_ROWS);
    record.domains.truncate(MAX_ROWS);
    record.tls.truncate(MAX_ROWS);
    record.exhausted.truncate(MAX_ROWS);
    record.pauses.truncate(MAX_ROWS);
    record.stalls.truncate(MAX_ROWS);
    record.slowest.truncate(MAX_SLOWEST);
    record.missing.truncate(MAX_MISSING);
}

/// Adds `by_s` to all times of a record except the `second` of each row, which `add_seconds` and `finish` change.
fn move_times(record: &mut Record, by_s: f64) {
    let moved = |at_s: &mut f64| *at_s = if at_s.is_finite() { *at_s + by_s } else { 0.0 };
    record.events.iter_mut().for_each(|event| moved(&mut event.at_s));
    record.errors.iter_mut().flat_map(|row| [&mut row.first_s, &mut row.last_s]).flatten().for_each(moved);
    record.observed_until_s.iter_mut().for_each(moved);
    record.slowest.iter_mut().for_each(|message| moved(&mut message.created_s));
    record
        .missing
        .iter_mut()
        .flat_map(|message| [&mut message.created_s, &mut message.answered_s])
        .flatten()
        .for_each(moved);
    record.load_stages.iter_mut().flat_map(|stage| [&mut stage.begin_s, &mut stage.end_s]).for_each(moved);
    record.stalls.iter_mut().flat_map(|stall| [&mut stall.from_s, &mut stall.to_s]).for_each(moved);
}

fn add_second(known: &mut SeriesRow, row: &SeriesRow) {
    // `oldest_ms` is the age of a party's newest message. Keep the lower age, because it belongs to the newer message.
    let oldest_ms = known.oldest_ms.into_iter().chain(row.oldest_ms).min_by(f64::total_cmp);
    series::join(known, row);
    known.oldest_ms = oldest_ms;
}

fn add_rows(sum: &mut Record, more: Record) {
    sum.due = sum.due.zip(more.due).map(|(one, other)| one.saturating_add(other));
    // After the first party has stopped observing, the sum is incomplete. So use the earliest end of observation.
    sum.observed_until_s = sum.observed_until_s.into_iter().chain(more.observed_until_s).reduce(f64::min);
    sum.parties.extend(more.parties);
    let is_same_tls = |one: &TlsRow, other: &TlsRow| (&one.version, &one.cipher) == (&other.version, &other.cipher);
    join_rows(&mut sum.tls, more.tls, is_same_tls, |known, row| {
        add(&mut known.handshakes, row.handshakes);
        add(&mut known.resumed, row.resumed);
    });
    let is_same_resource = |one: &ExhaustedRow, other: &ExhaustedRow| one.resource == other.resource;
    join_rows(&mut sum.exhausted, more.exhausted, is_same_resource, |known, row| add(&mut known.count, row.count));
    let is_same_phase = |one: &PauseRow, other: &PauseRow| one.phase == other.phase;
    join_rows(&mut sum.pauses, more.pauses, is_same_phase, |known, row| {
        add(&mut known.count, row.count);
        add(&mut known.of, row.of);
    });
    if let (Some(sum), Some(more)) = (&mut sum.warm_up, more.warm_up) {
        add(&mut sum.created, more.created);
        add(&mut sum.accepted, more.accepted);
    }
    sum.missing.extend(more.missing);
    sum.missing.truncate(MAX_MISSING);
    sum.slowest = slowest_of(std::mem::take(&mut sum.slowest), more.slowest);
    more.domains.into_iter().for_each(|row| add_domain(&mut sum.domains, row));
    sum.stalls = common_stalls(&sum.stalls, &more.stalls);
    sum.ending = worse_ending(sum.ending, more.ending);
    add_ledger(&mut sum.ledger, &more.ledger);
    sum.bounces = bounces::join(std::mem::take(&mut sum.bounces), more.bounces);
    sum.rewrites = rewrites::join(std::mem::take(&mut sum.rewrites), more.rewrites);
    sum.errors = join_errors(std::mem::take(&mut sum.errors), more.errors);
    sum.errors.truncate(MAX_ROWS);
    sum.surroundings = disturbance(sum.surroundings.take(), more.surroundings);
}

fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// Adds each row of `more` to the row in `rows` that is about the same thing, for example the same cipher. Appends the
/// row if `rows` has no such row yet, up to [`MAX_ROWS`] rows in total.
fn join_rows<T>(rows: &mut Vec<T>, more: Vec<T>, is_same: fn(&T, &T) -> bool, add: fn(&mut T, &T)) {
    for row in more {
        match rows.iter_mut().find(|known| is_same(known, &row)) {
            Some(known) => add(known, &row),
            None => rows.push(row),
        }
    }
    rows.truncate(MAX_ROWS);
}

/// Adds the figures of a domain to the row of the same domain in `rows`. If the table is full, the figures of all
/// further domains go to one shared row without a name.
fn add_domain(rows: &mut Vec<DomainRow>, mut row: DomainRow) {
    if rows.len() >= MAX_ROWS && !rows.iter().any(|known| known.domain == row.domain) {
        row.domain.clear();
    }
    let sum = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
    match rows.iter_mut().find(|known| known.domain == row.domain) {
        Some(known) => {
            add(&mut known.created, row.created);
            add(&mut known.accepted, row.accepted);
            add(&mut known.rejected, row.rejected);
            add(&mut known.failed, row.failed);
            add(&mut known.in_doubt, row.in_doubt);
            known.delivered = sum(known.delivered, row.delivered);
            known.duplicates = sum(known.duplicates, row.duplicates);
        }
        None => rows.push(row),
    }
}

fn slowest_of(mut messages: Vec<SlowMessage>, more: Vec<SlowMessage>) -> Vec<SlowMessage> {
    messages.extend(more);
    sort_slowest(&mut messages);
    messages
}

/// Returns the periods in which stalls of both parties at the same stage overlap. The server was stalled only then: at
/// other times, messages of at least one party still reached the stage.
fn common_stalls(ours: &[StallRow], theirs: &[StallRow]) -> Vec<StallRow> {
    let common = |one: &StallRow, other: &StallRow| {
        let from_s = one.from_s.max(other.from_s);
        // If both stalls last to the end of their party's load, neither party saw a recovery, so use the later end.
        let to_s = match (one.to_the_end, other.to_the_end) {
            (true, true) => one.to_s.max(other.to_s),
            _ => one.to_s.min(other.to_s),
        };
        (one.stage == other.stage && to_s > from_s).then(|| StallRow {
            stage: one.stage,
            from_s,
            to_s,
            to_the_end: one.to_the_end && other.to_the_end,
            rejected: one.rejected.saturating_add(other.rejected),
            failed: one.failed.saturating_add(other.failed),
        })
    };
    ours.iter().flat_map(|one| theirs.iter().filter_map(move |other| common(one, other))).take(MAX_EVENTS).collect()
}

/// Returns how the joined load ended. If one part is incomplete, its ending counts, because the whole load is then
/// incomplete.
fn worse_ending(one: Option<Ending>, other: Option<Ending>) -> Option<Ending> {
    match (one, other) {
        (None | Some(Ending::Complete), Some(other)) => Some(other),
        (one, _) => one,
    }
}

fn add_ledger(sum: &mut LedgerRow, more: &LedgerRow) {
    let add = |sum: &mut Option<u64>, more: Option<u64>| {
        *sum = match (*sum, more) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
    };
    add(&mut sum.created, more.created);
    add(&mut sum.accepted, more.accepted);
    add(&mut sum.delivered, more.delivered);
    add(&mut sum.bounced, more.bounced);
    add(&mut sum.rejected, more.rejected);
    add(&mut sum.failed, more.failed);
    add(&mut sum.in_doubt, more.in_doubt);
    add(&mut sum.expired, more.expired);
    add(&mut sum.queued, more.queued);
    add(&mut sum.lost, more.lost);
    add(&mut sum.not_delivered, more.not_delivered);
    add(&mut sum.in_flight, more.in_flight);
    add(&mut sum.duplicates, more.duplicates);
    add(&mut sum.rewritten, more.rewritten);
    add(&mut sum.copied, more.copied);
    add(&mut sum.corrupt, more.corrupt);
    add(&mut sum.converted, more.converted);
    add(&mut sum.foreign, more.foreign);
    add(&mut sum.delay_notices, more.delay_notices);
    add(&mut sum.repeated_notices, more.repeated_notices);
    add(&mut sum.untimed, more.untimed);
    add(&mut sum.negative, more.negative);
    add(&mut sum.overflow, more.overflow);
}

/// Returns the larger of both busy shares, and the larger of both steal shares, which are shares of processor time that
/// the hypervisor gave to other guests. Leaves out all other figures, such as `disk_written_bytes`, because they
/// concern a single host.
fn disturbance(one: Option<Surroundings>, other: Option<Surroundings>) -> Option<Surroundings> {
    let largest = |one: Option<f64>, other: Option<f64>| one.into_iter().chain(other).reduce(f64::max);
    let one = one.unwrap_or_default();
    let other = other.unwrap_or_default();
    Some(Surroundings {
        busy_share: largest(one.busy_share, other.busy_share),
        steal_share: largest(one.steal_share, other.steal_share),
        ..Surroundings::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{ClockRow, ErrorRow, EventKind, MissingMessage, ShardRow};
    use crate::stage::Stage;
    use crate::tally::{LatencyKind, RunTally, SourceTally};
    use proptest::prelude::*;
    use std::time::Duration;

    fn source(times_us: &[u64], origin_s: u64, boot: &str, unix_s: u64) -> Record {
        let mut tally = SourceTally::default();
        for time in times_us.iter().copied().map(Duration::from_micros) {
            tally.created += 1;
            tally.sent += 1;
            tally.accepted += 1;
            tally.time(LatencyKind::Sent, time / 2);
            tally.time(LatencyKind::Accepted, time);
            tally.time(LatencyKind::AcceptedService, time / 3);
            tally.time(LatencyKind::Phase(Phase::Reply), time / 4);
            tally.time(LatencyKind::Lag, time / 100);
        }
        tally.flush_times();
        tally.first_created = Some(Duration::from_secs(origin_s));
        let origin = Duration::from_secs(origin_s);
        tally.accepted_times.record(origin + Duration::from_secs(2), origin);
        let count = times_us.len() as u64;
        let offered = Duration::from_secs(2);
        Record {
            origin_ns: origin_s * 1_000_000_000,
            offered_s: Some(offered.as_secs_f64()),
            clock: Some(ClockRow { boot: boot.to_owned(), unix_offset_ns: unix_s * 1_000_000_000, sinks: Vec::new() }),
            shard: Some(ShardRow { lag_histogram: tally.lag.encoded(), ..ShardRow::default() }),
            stages: tally.stages("source", Stage::Created, origin),
            phases: tally.phase_rows(),
            series: vec![SeriesRow { second: 1, accepted: count, p99_ms: count as f64, ..SeriesRow::default() }],
            ledger: LedgerRow { created: Some(count), accepted: Some(count), ..LedgerRow::default() },
            ending: Some(Ending::Complete),
            ..Record::empty()
        }
    }

    #[test]
    fn handshakes_are_added_by_version_and_cipher() {
        let row = |version: &str, cipher: &str, handshakes, resumed| TlsRow {
            party: String::new(),
            version: version.to_owned(),
            cipher: cipher.to_owned(),
            handshakes,
            resumed,
        };
        let mut sum = Record::empty();
        for next in [row("1.3", "a", 5, 2), row("1.3", "b", 1, 0), row("1.2", "a", 1, 1), row("1.3", "a", 7, 4)] {
            add_rows(&mut sum, Record { tls: vec![next], ..Record::empty() });
        }
        let counts: Vec<_> = sum.tls.iter().map(|row| (row.handshakes, row.resumed)).collect();
        assert_eq!(counts, [(12, 6), (1, 0), (1, 1)]);
    }

    #[test]
    fn all_times_of_a_record_move_together() {
        let mut record = Record {
            observed_until_s: Some(1.0),
            load_stages: vec![LoadStageRow { begin_s: 1.0, end_s: 1.0, ..LoadStageRow::default() }],
            events: vec![EventRow { at_s: 1.0, kind: EventKind::FaultOn, text: String::new() }],
            errors: vec![ErrorRow { first_s: Some(1.0), last_s: Some(1.0), ..ErrorRow::default() }],
            slowest: vec![SlowMessage { created_s: 1.0, ..SlowMessage::default() }],
            missing: vec![MissingMessage { created_s: Some(1.0), answered_s: Some(1.0), ..MissingMessage::default() }],
            stalls: vec![StallRow { from_s: 1.0, to_s: 1.0, ..StallRow::default() }],
            ..Record::empty()
        };
        move_times(&mut record, 10.5);
        let text = serde_json::to_string(&record).unwrap();
        // Search `record.rs` for all times that are documented as "since `origin_ns`". `move_times` must change each of
        // them.
        let source = include_str!("record.rs");
        let mut fields: Vec<&str> = Vec::new();
        for (_, after) in source.match_indices("since `origin_ns`").map(|(at, _)| source.split_at(at)) {
            let field = after.lines().find_map(|line| line.trim().strip_prefix("pub ")).unwrap();
            fields.extend(field.split_once(": ").map(|(name, _)| name));
        }
        fields.extend(["last_s", "to_s"]);
        // `move_times` must not change three fields: `add_stages` shifts `began_s`, `add_seconds` shifts `second`, and
        // `back_s` is computed later from the joined record.
        for not_moved in ["began_s", "back_s", "second"] {
            let before = fields.len();
            fields.retain(|field| *field != not_moved);
            assert!(fields.len() < before, "{not_moved} is no time since the origin any more");
        }
        for field in fields {
            let (moved, still) = (format!("\"{field}\":11.5"), format!("\"{field}\":1.0"));
            assert!(text.contains(&moved) && !text.contains(&still), "{field} in {text}");
        }
        let mut endless =
            Record { stalls: vec![StallRow { to_s: f64::INFINITY, ..StallRow::default() }], ..Record::empty() };
        move_times(&mut endless, 10.5);
        assert_eq!(endless.stalls[0].to_s, 0.0);
    }

    fn union(records: impl IntoIterator<Item = Record>) -> Record {
        let mut union = RecordUnion::default();
        for (at, record) in records.into_iter().enumerate() {
            union.add(record, &format!("source {at}")).unwrap();
        }
        union.finish("source").unwrap()
    }

    fn histograms(record: &Record) -> Vec<Option<Latencies>> {
        let decode = |text: Option<&String>| text.map(|text| Latencies::decode(text).unwrap());
        let stages = record.stages.iter().flat_map(|row| [row.histogram.as_ref(), row.service_histogram.as_ref()]);
        stages.chain(record.phases.iter().map(|row| row.histogram.as_ref())).map(decode).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn parts_of_a_stream_merge_to_the_histograms_of_the_whole(
            stream in proptest::collection::vec(1_u64..5_000_000_000, 1..300),
            order in proptest::collection::vec(0_usize..3, 300),
        ) {
            let mut parts = [Vec::new(), Vec::new(), Vec::new()];
            stream.iter().zip(order).for_each(|(time, part)| parts[part].push(*time));
            let whole = source(&stream, 5, "a", 0);
            let merged = union(parts.iter().map(|part| source(part, 5, "a", 0)));
            let same = |row: &StageRow| (row.name, row.count, row.latency_ms.map(|ms| (ms.p50, ms.p999, ms.max)));
            prop_assert_eq!(merged.stages.iter().map(same).collect::<Vec<_>>(), whole.stages.iter().map(same).collect::<Vec<_>>());
            let times = |record: &Record| histograms(record);
            prop_assert_eq!(times(&merged), times(&whole), "bucket for bucket");
            let lag = |record: &Record| record.lag_ms.map(|lag| (lag.p50, lag.p99));
            let whole_lag = Latencies::decode(whole.shard.as_ref().unwrap().lag_histogram.as_ref().unwrap()).unwrap();
            prop_assert_eq!(lag(&merged), whole_lag.summary().map(|lag| (lag.p50, lag.p99)));
            prop_assert_eq!(merged.ledger, whole.ledger);
        }
    }

    #[test]
    fn times_of_one_boot_are_joined_exactly_and_those_of_others_by_unix_time() {
        let here = source(&[1_000; 2], 10, "a", 1_000);
        let beside = source(&[1_000; 3], 12, "a", 5_000);
        let elsewhere = source(&[1_000; 4], 500, "b", 507);
        let record = union([here, beside, elsewhere]);
        let rows: Vec<_> = record.series.iter().map(|row| (row.second, row.accepted)).collect();
        assert_eq!((record.origin_ns, rows), (8_000_000_000, vec![(0, 4), (3, 2), (5, 3)]));
        let mut union = RecordUnion::default();
        union.add(source(&[1], 10, "a", 1_000), "one").unwrap();
        let error = union.add(source(&[1], 10, "b", 9_000_000), "other").unwrap_err();
        assert!(error.contains("its clock differs"), "{error}");
    }

    #[test]
    fn sinks_that_were_started_an_hour_apart_have_the_duration_of_the_run() {
        // The run begins at 4,000 s, and each sink receives its first message half a second later.
        let sink = |started_s: u64, length_s: u64| {
            let created = Duration::from_secs(4_000);
            let first = created + Duration::from_millis(500);
            let mut tally = RunTally { first_created: Some(created), ..RunTally::default() };
            for at in [first, first + Duration::from_secs(length_s)].into_iter().filter(|_| length_s > 0) {
                (tally.messages, tally.recipients) = (tally.messages + 1, tally.recipients + 1);
                tally.delivered_times.record(at, created);
            }
            let stage = tally.stage("sink", Stage::Created, Duration::from_secs(started_s));
            let duration_s = stage.duration_s;
            Record { origin_ns: started_s * NS_PER_S, duration_s, stages: vec![stage], ..Record::empty() }
        };
        for (situation, sinks, expected_s) in [
            ("the older sink first", vec![sink(400, 10), sink(4_000, 12)], 12.5),
            ("the younger sink first", vec![sink(4_000, 12), sink(400, 10)], 12.5),
            ("an older sink that received nothing", vec![sink(400, 0), sink(4_000, 12)], 12.5),
            ("one sink", vec![sink(400, 10)], 10.5),
        ] {
            let record = union(sinks);
            let delivered = record.stage(Stage::Delivered).unwrap();
            assert!((delivered.duration_s - expected_s).abs() < 1e-6, "{situation}: {delivered:?}");
            assert!((record.duration_s - expected_s).abs() < 1e-6, "{situation}: {}", record.duration_s);
        }
    }

    #[test]
    fn lists_of_all_records_together_have_the_maximum_of_one() {
        let missing = |_| MissingMessage::default();
        let part = || Record { missing: (0..600).map(missing).collect(), ..source(&[1], 1, "a", 0) };
        assert_eq!(union([part()]).missing.len(), 600);
        assert_eq!(union([part(), part()]).missing.len(), MAX_MISSING);
    }

    #[test]
    fn a_record_with_an_unreadable_histogram_is_not_added() {
        let mut bad = source(&[5], 10, "a", 0);
        bad.stages[2].histogram = Some("AAAA".to_owned());
        let mut union = RecordUnion::default();
        assert_eq!(union.add(bad, "bad"), Err("the histogram of accepted cannot be read".to_owned()));
        assert!(union.finish("source").is_none());
    }

    #[test]
    fn a_stall_of_one_part_is_none_of_the_run() {
        let stall = |from_s, to_s| StallRow { from_s, to_s, failed: 1, ..StallRow::default() };
        let rows = common_stalls(&[stall(1.0, 5.0), stall(8.0, 12.0)], &[stall(4.0, 9.5)]);
        let spans: Vec<_> = rows.iter().map(|row| (row.from_s, row.to_s, row.failed)).collect();
        assert_eq!(spans, [(4.0, 5.0, 2), (8.0, 9.5, 2)]);
        assert!(common_stalls(&[stall(1.0, 5.0)], &[]).is_empty());
    }

    #[test]
    fn a_part_that_was_cut_is_the_end_of_all() {
        let ending = |ending| Record { ending, ..source(&[1], 1, "a", 0) };
        let merged =
            union([ending(Some(Ending::Complete)), ending(Some(Ending::GaveUp)), ending(Some(Ending::Complete))]);
        assert_eq!(merged.ending, Some(Ending::GaveUp));
    }
}
