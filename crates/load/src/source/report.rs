//! Makes the source's run record from the workers' counts. The record also lists the slowest messages and the messages
//! that the server did not accept.
use super::context::SourceContext;
use super::options::SourceOptions;
use super::shard_start::ShardStart;
use mailrun_measurement::account::{self, AccountInputs, ServerQueue, Topology};
use mailrun_measurement::judge::{VerdictInputs, judge};
use mailrun_measurement::missing::MissingTransaction;
use mailrun_measurement::overdue::complete_stages;
use mailrun_measurement::record::{
    LoadStageRow, MissingMessage, Record, Role, ShardRow, SlowMessage, Surroundings, WarmUp,
};
use mailrun_measurement::slowest::SlowTransaction;
use mailrun_measurement::threshold::{Threshold, evaluate_all};
use mailrun_measurement::trace::MAX_LOAD_STAGES;
use mailrun_measurement::{RunId, Series, SourceTally, Stage};
use mailrun_process::host_sampler;
use mailrun_process::outputs;
use mailrun_process::usage_sampler::UsageSampler;
use mailrun_schedule::run_events::RunCourse;
use std::time::Duration;

/// Number of file descriptors that the source needs for everything except its sessions, which need one each.
pub(super) const RESERVED_DESCRIPTORS: u64 = 64;

pub(super) struct SourceResults<'a> {
    pub(super) tally: &'a SourceTally,
    pub(super) series: &'a Series,
    /// Time at which the last session had ended or was abandoned.
    pub(super) now: Duration,
    pub(super) offered_time: Option<Duration>,
    /// Number of messages that were due, or `None` in a closed loop.
    pub(super) due: Option<u64>,
    /// Number of messages that were due in each stage of the load. Empty if all due messages were created, because the
    /// record then uses the numbers of created messages instead.
    pub(super) due_by_stage: Vec<u64>,
    /// True if sessions were abandoned before their end, so that some messages may be unfinished.
    pub(super) is_abandoned: bool,
    pub(super) course: RunCourse<'a>,
    pub(super) usage: &'a UsageSampler,
}

pub(super) fn record(
    context: &SourceContext,
    run: RunId,
    started_at: jiff::Timestamp,
    known: &SourceResults<'_>,
    surroundings: Surroundings,
) -> Record {
    let SourceResults { tally, series, .. } = known;
    let options = &context.options;
    let workload = options.workload(&context.summary);
    let directory = options.outputs.directory();
    let mut record = outputs::new_record(Some(run), &options.name, started_at, workload, directory);
    outputs::set_zero(&mut record, series.zero());
    record.series = series.rows(known.now);
    let since = if options.offered_rate.is_some() { Stage::Scheduled } else { Stage::Created };
    record.stages = tally.stages("source", since, series.zero());
    record.observed_until_s = Some(known.now.saturating_sub(series.zero()).as_secs_f64());
    record.due = known.due;
    record.offered_s = known.offered_time.map(|offered| offered.as_secs_f64());
    record.stalls = known.course.stalls.to_vec();
    record.ending = Some(known.course.ending);
    record.duration_s = record.stages.iter().map(|row| row.duration_s).fold(0.0, f64::max);
    record.phases = tally.phase_rows();
    record.tls = tally.handshakes.rows("source");
    record.server.clone_from(&context.introduction);
    record.lag_ms = tally.lag.summary();
    record.warm_up = options.warm_up.map(|length| WarmUp {
        length_s: length.as_secs_f64(),
        created: tally.warm_up.created,
        accepted: tally.warm_up.accepted,
    });
    record.errors = tally.errors.rows(record.origin_ns);
    record.events = known.course.events(options.warm_up, options.offered_rate.as_ref());
    record.usage = known.usage.party("source", record.origin_ns).into_iter().collect();
    record.slowest = slowest(context, tally, Duration::from_nanos(record.origin_ns));
    record.missing = missing(context, tally, Duration::from_nanos(record.origin_ns));
    record.domains = context.domains.as_ref().map(|domains| tally.domains.rows(domains.names())).unwrap_or_default();
    let needed = u64::from(options.sessions) + RESERVED_DESCRIPTORS;
    record.exhausted = tally.exhausted.rows("source", |resource| host_sampler::resource_limit(resource, needed));
    record.pauses = tally.delayed_acks("source");
    record.surroundings = Some(surroundings);
    let mut own = outputs::own_party(Role::Source, "source", options.workers, Vec::new());
    own.busy_poll = outputs::busy_poll_row(options.busy_poll);
    own.wake_up_ms = tally.wake_ups.summary();
    record.parties = vec![own];
    record.ledger = account::reconcile(AccountInputs {
        recipients_created: tally.recipients_created,
        accepted: &tally.accepted_units,
        rejected: tally.recipients_rejected,
        failed: tally.recipients_failed,
        in_doubt: tally.recipients_in_doubt,
        has_reply_for_each: false,
        open: open_units(&record, tally, known.is_abandoned),
        overflow: tally.overflow,
        arrivals: None,
        queue: ServerQueue::Unknown,
    });
    record.load_stages = load_stages(&record, known, since);
    complete_stages(&mut record);
    record.shard = shard_row(options, context.shard_start, tally.lag.encoded(), &record);
    if record.shard.is_none() {
        let thresholds = options.thresholds.iter().chain(&options.abort_on);
        record.thresholds = evaluate_all(&record, thresholds, known.course.missed_threshold);
    }
    record.verdict = judge(&record, &VerdictInputs { topology: Topology::Server, ordered: None, quiet_timeout: None });
    record
}

/// Lists the slowest accepted messages. Workers do not store the recipients of these messages, so
/// this function derives the recipients again from the message numbers.
fn slowest(context: &SourceContext, tally: &SourceTally, origin: Duration) -> Vec<SlowMessage> {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let row = |(latency, slow): (Duration, SlowTransaction)| SlowMessage {
        message: slow.message,
        created_s: slow.since.saturating_sub(origin).as_secs_f64(),
        accepted_ms: Some(ms(latency)),
        delivered_ms: None,
        waited_ms: ms(slow.began.saturating_sub(slow.since)),
        phases: slow.phases.rows(),
        recipients: context.named_recipients(slow.message, slow.recipients),
        recipient_count: slow.recipients,
        bytes: slow.bytes,
        reply: slow.reply.map(|reply| reply.text()),
    };
    tally.slowest.sorted().into_iter().map(row).collect()
}

fn missing(context: &SourceContext, tally: &SourceTally, origin: Duration) -> Vec<MissingMessage> {
    let row = |one: &MissingTransaction| MissingMessage {
        message: one.message,
        created_s: Some(one.since.saturating_sub(origin).as_secs_f64()),
        fate: one.fate,
        answered_s: None,
        reply: one.reply.clone(),
        recipients: context.named_recipients(one.message, one.recipients),
        recipient_count: one.recipients,
    };
    tally.missing.iter().map(row).collect()
}

/// Returns the number of recipients without a result when the source stopped. If all sessions ended normally, every
/// recipient must have a result. In this case, returns 0 even if results are missing. The counts in the record then do
/// not add up, and the verdict reports this.
fn open_units(record: &Record, tally: &SourceTally, is_abandoned: bool) -> u64 {
    let in_vain = tally.recipients_rejected + tally.recipients_failed + tally.recipients_in_doubt;
    let ended = tally.recipients_accepted + in_vain;
    let has_defects = record.parties.iter().any(|party| party.failed_sessions.is_some_and(|failed| failed > 0));
    if is_abandoned || has_defects { tally.recipients_created.saturating_sub(ended) } else { 0 }
}

fn load_stages(record: &Record, known: &SourceResults<'_>, since: Stage) -> Vec<LoadStageRow> {
    let origin = Duration::from_nanos(record.origin_ns);
    let mut end_s = known.course.began.saturating_sub(origin).as_secs_f64();
    let mut rows = Vec::new();
    for (place, offered) in record.workload.stages.iter().enumerate().take(MAX_LOAD_STAGES) {
        let begin_s = end_s;
        end_s += offered.length_s;
        let number = place as u8 + 1;
        let tally = known.tally.load_stages.get(place);
        let open = tally.map_or(0, |tally| open_units(record, tally, known.is_abandoned));
        let row = known.tally.load_stage_row(number, since, origin, open);
        let created = row.stages.first().map(|created| created.count);
        let due = known.due_by_stage.get(place).copied().max(created);
        rows.push(LoadStageRow { name: offered.name_at(place), begin_s, end_s, due, ..row });
    }
    rows
}

/// Describes the share of the load that this source sent, for the run record. Returns `None` if no
/// other source took part.
fn shard_row(
    options: &SourceOptions,
    start: Option<ShardStart>,
    lag: Option<String>,
    record: &Record,
) -> Option<ShardRow> {
    let shard = options.shard.as_ref()?;
    let start = start?;
    Some(ShardRow {
        index: shard.part.index(),
        count: shard.part.count(),
        plan: shard.plan.to_string(),
        start_at: shard.start_at.to_string(),
        began_s: start.began.saturating_sub(Duration::from_nanos(record.origin_ns)).as_secs_f64(),
        late_s: start.late.as_secs_f64(),
        first_message: shard.part.numbers(shard.messages).start,
        messages: options.messages,
        workload: shard.whole_workload(&record.workload),
        thresholds: options.thresholds.iter().map(Threshold::expression).map(str::to_owned).collect(),
        lag_histogram: lag,
    })
}
