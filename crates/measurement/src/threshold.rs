//! Thresholds: a user's requirements on a run. Each threshold is parsed from one line of text, and evaluated on the
//! record of a run or on the figures of a run in progress.
//!
//! ```text
//! accepted.p99 < 50ms             STAGE or PHASE . p0 … p100 | min | mean | max | stddev     a time; p999 is p99.9
//! delivered.rate > 5000/s         STAGE . rate       messages per second, as in the table of stages
//! accepted.count >= 10k           STAGE or PHASE . count
//! delivered.within(60s) >= 95%    STAGE or PHASE . within(TIME)     share of all due messages; TIME is at most 1 h
//! fresh(30s) per 15min >= 98%     share of time in which the newest arrived message is younger, in the worst window
//! rejected <= 0.1%                rejected, failed, in_doubt, bounced, lost, not_delivered, duplicates, corrupt,
//!                                 rewritten, copied: share of the created recipients, or a number
//! stage peak: accepted.p99 < 1s   of the messages that were due in one stage of the load, given by its name or number;
//!                                 not for freshness, phases, duplicates, corrupt, rewritten and copied
//! ```
//! A message that never reached the stage is infinitely late, also in percentiles and the maximum ([`crate::overdue`]).
use crate::account::is_open_loop;
use crate::foreign_load::BusyHost;
use crate::freshness::{self, FreshnessLimit};
use crate::latencies::{HIGHEST_NS, Latencies};
use crate::overdue;
use crate::record::{
    Cause, Ending, FreshWindow, LatencyMs, LedgerRow, Mades, MadesShape, Record, Role, StageRow, ThresholdRow,
};
use crate::stage::{Phase, Stage};
use crate::throughput::MIN_ARRIVALS;
use mailrun_text::quantities::{count, duration, percent, rate, without_commas};
use mailrun_text::words::{counted, grouped, nearest};
use std::borrow::Cow;
use std::time::Duration;

const MAX_BYTES: usize = 200;
/// Minimum length of a freshness window, which is the time after `per` in `fresh(30s) per 15min`. A record has only one
/// row per second, so a shorter window might contain no row.
const MIN_WINDOW: Duration = Duration::from_secs(1);

/// Stages that a threshold may name in any run, over SMTP or MADES.
const STAGES: [Stage; 4] = [Stage::Created, Stage::Sent, Stage::Accepted, Stage::Delivered];
/// Stage that messages reach only if the sink watches mailboxes.
const MAILBOX_STAGE: Stage = Stage::Announced;
/// Stages that only a run over MADES has, by their names in an expression. Some have several names, because users may
/// also type the names in the report, such as DELIVERED.
const MADES_STAGES: [(&str, Stage); 11] = [
    ("settled", Stage::Settled),
    ("replied", Stage::Replied),
    ("inbox", Stage::Inbox),
    ("delivered-event", Stage::DeliveredEvent),
    ("received-event", Stage::ReceivedEvent),
    ("received", Stage::ReceivedEvent),
    ("tracing", Stage::TracingEvent),
    ("acknowledged", Stage::Acknowledged),
    ("DELIVERED", Stage::DeliveredEvent),
    ("RECEIVED", Stage::ReceivedEvent),
    ("TRACING", Stage::TracingEvent),
];
/// If a user types an unknown figure of a stage or a phase, the error suggests the most similar of these names.
const METRICS: [&str; 12] =
    ["p50", "p90", "p95", "p99", "p999", "min", "mean", "max", "stddev", "rate", "count", "within"];

/// Outcome of a message for one recipient. A threshold may limit how often an outcome occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The server accepted the message for the recipient, and then lost it.
    Lost,
    /// The message was accepted by a server whose queue cannot be read. It is lost, or still in that queue.
    NotDelivered,
    Duplicates,
    /// The message arrived with a changed body.
    Corrupt,
    Rejected,
    /// The connection was refused, was cut or timed out.
    Failed,
    /// The connection broke between the last byte of the message and the reply.
    InDoubt,
    /// A notification reported that the server gave up on the message for the recipient.
    Bounced,
    /// The message was delivered under another address than its recipient's.
    Rewritten,
    /// The message arrived at an address that was not among its recipients.
    Copied,
}

impl Fate {
    /// All outcomes, the most serious first.
    pub const ALL: [Self; 10] = [
        Self::Lost,
        Self::NotDelivered,
        Self::Duplicates,
        Self::Corrupt,
        Self::Rejected,
        Self::Failed,
        Self::InDoubt,
        Self::Bounced,
        Self::Rewritten,
        Self::Copied,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::NotDelivered => "not_delivered",
            Self::Duplicates => "duplicates",
            Self::Corrupt => "corrupt",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
            Self::InDoubt => "in_doubt",
            Self::Bounced => "bounced",
            Self::Rewritten => "rewritten",
            Self::Copied => "copied",
        }
    }

    pub fn cause(self) -> Cause {
        match self {
            Self::Lost => Cause::Lost,
            Self::NotDelivered => Cause::NotDelivered,
            Self::Duplicates => Cause::Duplicates,
            Self::Corrupt => Cause::Corrupt,
            Self::Rejected => Cause::Rejected,
            Self::Failed => Cause::Failed,
            Self::InDoubt => Cause::InDoubt,
            Self::Bounced => Cause::Bounced,
            Self::Rewritten => Cause::Rewritten,
            Self::Copied => Cause::Copied,
        }
    }

    pub fn count(self, ledger: &LedgerRow) -> Option<u64> {
        match self {
            Self::Lost => ledger.lost,
            Self::NotDelivered => ledger.not_delivered,
            Self::Duplicates => ledger.duplicates,
            Self::Corrupt => ledger.corrupt,
            Self::Rejected => ledger.rejected,
            Self::Failed => ledger.failed,
            Self::InDoubt => ledger.in_doubt,
            Self::Bounced => ledger.bounced,
            Self::Rewritten => ledger.rewritten,
            Self::Copied => ledger.copied,
        }
    }

    /// Returns the stage that a message with this outcome did not reach, or `None` if the message arrived.
    pub fn missed_stage(self) -> Option<Stage> {
        match self {
            Self::Rejected | Self::Failed | Self::InDoubt => Some(Stage::Accepted),
            Self::Lost | Self::NotDelivered | Self::Bounced => Some(Stage::Delivered),
            Self::Duplicates | Self::Corrupt | Self::Rewritten | Self::Copied => None,
        }
    }

    /// True if the outcome counts as a fault when no threshold of the user limits it. Rewritten and copied mail is no
    /// fault, because a server may be meant to rewrite and copy mail.
    pub fn is_fault(self) -> bool {
        !matches!(self, Self::Rewritten | Self::Copied)
    }
}

/// The protocol of a run, which decides which stages and phases a threshold may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunProtocol {
    /// Over SMTP, a threshold may name a phase of the dialogue, one of the common stages, or the stage `announced`.
    Smtp,
    /// Over MADES, a threshold may name the common stages, the stages that only MADES has, or the stage `notified`.
    Mades,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricSource {
    Stage(Stage),
    Phase(Phase),
}

impl MetricSource {
    pub fn name(self) -> &'static str {
        match self {
            Self::Stage(stage) => stage.name(),
            Self::Phase(phase) => phase.name(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Metric {
    /// A quantile, given as a share from 0 to 1, for example 0.99 for the 99th percentile.
    Quantile(f64),
    Min,
    Mean,
    Max,
    StdDev,
    Rate,
    Count,
    Within(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Subject {
    Figure(MetricSource, Metric),
    Fate(Fate),
    /// Percentage of the time in which the newest message that had arrived was younger than the limit.
    Fresh(FreshnessLimit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparator {
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
}

impl Comparator {
    fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Self::Less => value < limit,
            Self::LessOrEqual => value <= limit,
            Self::More => value > limit,
            Self::MoreOrEqual => value >= limit,
        }
    }

    fn is_upper(self) -> bool {
        matches!(self, Self::Less | Self::LessOrEqual)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitUnit {
    Milliseconds,
    PerSecond,
    Percent,
    Number,
}

impl LimitUnit {
    fn word(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::PerSecond => "/s",
            Self::Percent => "%",
            Self::Number => "",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    expression: String,
    load_stage: Option<String>,
    subject: Subject,
    comparison: Comparator,
    limit: f64,
    unit: LimitUnit,
}

/// Figures on which thresholds are evaluated: a finished [`Record`], or the [`RunningFigures`] of a run in progress. A
/// method returns `None` if no process of the run can see the figure, for example arrivals without a sink.
pub trait MetricValues {
    fn times(&self, source: MetricSource) -> Option<Latencies>;
    /// Returns a summary of the latencies, which is known even if the latencies themselves were not kept.
    fn summary(&self, source: MetricSource) -> Option<LatencyMs>;
    /// Returns how many messages reached a stage. For a phase, returns how often the phase occurred.
    fn count(&self, source: MetricSource) -> Option<u64>;
    /// Returns how many of the arrivals that [`Self::count`] returns are repeated arrivals of the same message.
    fn again(&self, source: MetricSource) -> u64;
    /// Returns the messages per second that reached the stage. Phases have no rate.
    fn rate_per_s(&self, source: MetricSource) -> Option<f64>;
    /// Returns the number of messages that were due, whether or not a session created them.
    fn due(&self) -> Option<u64>;
    fn created_units(&self) -> Option<u64>;
    /// Returns the messages that were due but did not reach a stage in time. Returns `None` for a phase of the
    /// dialogue, and during a run, because the missing messages may then still arrive.
    fn overdue(&self, source: MetricSource) -> Option<Overdue<'_>>;
    fn fate(&self, fate: Fate) -> Option<u64>;
    /// Returns the freshness of each window of the run, or `None` during the run. `limit` contains the length of a
    /// window.
    fn fresh_windows(&self, limit: FreshnessLimit) -> Option<Vec<FreshWindow>>;
}

pub struct Overdue<'a> {
    record: &'a Record,
    row: &'a StageRow,
}

impl Overdue<'_> {
    fn count(&self) -> u64 {
        overdue::absent(self.record, self.row)
    }

    /// Returns how many messages did not arrive but might have met `limit` if the run had waited longer.
    fn undecided(&self, limit: Duration) -> u64 {
        overdue::undecided(self.record, self.row, limit)
    }

    fn sent_in_vain(&self) -> u64 {
        overdue::sent_in_vain(self.record, self.row)
    }

    fn bound_ms(&self, times: Option<&Latencies>) -> f64 {
        overdue::bound_ms(self.record, self.row, times)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Known(f64),
    /// Percentage of messages that arrived in time. `least` counts only the messages that have arrived, and `most` also
    /// all messages that may still arrive in time.
    Share {
        least: f64,
        most: f64,
    },
    /// The value is greater than `bound`, because `absent` messages did not arrive in time. `is_open` is set if the
    /// limit can still be met, because enough of these messages may still arrive.
    Beyond {
        bound: f64,
        absent: u64,
        is_open: bool,
    },
    /// Too few messages arrived to compute a rate. The value is the number of messages that arrived.
    Few(u64),
    Unknown,
}

impl Value {
    fn known(value: Option<f64>) -> Self {
        value.filter(|value| value.is_finite()).map_or(Self::Unknown, Self::Known)
    }
}

impl Threshold {
    /// Parses an expression such as `accepted.p99 < 50ms`. An error explains the mistake and suggests what was probably
    /// meant.
    pub fn parse(text: &str, protocol: RunProtocol) -> Result<Self, String> {
        let text = text.trim();
        if text.len() > MAX_BYTES {
            return Err(format!("it is longer than {MAX_BYTES} bytes"));
        }
        let (load_stage, condition) = split_load_stage(text)?;
        let at = condition.find(['<', '>']).ok_or_else(|| without_comparison(condition))?;
        let (subject, rest) = condition.split_at(at);
        let (comparison, limit) = split_comparator(rest);
        let subject =
            parse_subject(subject.trim(), protocol).map_err(|error| of_k6(subject.trim()).unwrap_or(error))?;
        if matches!(subject, Subject::Fresh(_)) && comparison.is_upper() {
            return Err("fresh is a minimum; use something like 'fresh(30s) per 15min >= 98%'".to_owned());
        }
        let (limit, unit) = parse_limit(limit.trim(), subject)?;
        if load_stage.is_some() {
            check_by_load_stage(subject, protocol)?;
        }
        Ok(Self { expression: text.to_owned(), load_stage, subject, comparison, limit, unit })
    }

    /// Returns the name of the stage of the load that the threshold concerns, or `None` for the whole run.
    pub fn load_stage(&self) -> Option<&str> {
        self.load_stage.as_deref()
    }

    /// Returns the record on which the threshold is evaluated: `run` or, for a threshold on a stage of the load, a
    /// record of that stage alone. Returns `None` if the run has no figures of the stage.
    fn record_of<'r>(&self, run: &'r Record) -> Option<Cow<'r, Record>> {
        let Some(name) = &self.load_stage else { return Some(Cow::Borrowed(run)) };
        run.load_stages.iter().find(|row| row.name == *name).map(|row| Cow::Owned(row.as_run(run)))
    }

    pub fn evaluate_run(&self, run: &Record) -> ThresholdRow {
        self.record_of(run).map_or_else(|| self.row(), |record| self.evaluate_figures(&*record))
    }

    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// True if the threshold concerns a figure that only the receiving side can see, so that a sink is needed.
    pub fn is_of_delivery(&self) -> bool {
        match self.subject {
            Subject::Figure(MetricSource::Stage(stage), _) => overdue::is_of_far_end(stage),
            Subject::Figure(MetricSource::Phase(_), _) => false,
            Subject::Fate(fate) => !matches!(fate, Fate::Rejected | Fate::Failed | Fate::InDoubt),
            Subject::Fresh(_) => true,
        }
    }

    /// Returns the stage or phase that the threshold concerns, or `None` if it concerns freshness or an outcome such as
    /// lost mail.
    pub fn source(&self) -> Option<MetricSource> {
        match self.subject {
            Subject::Figure(place, _) => Some(place),
            Subject::Fate(_) | Subject::Fresh(_) => None,
        }
    }

    /// Returns the time in which messages must reach a stage, for example 60 s for `delivered.within(60s)`, or `None`
    /// for other metrics.
    pub fn within(&self) -> Option<Duration> {
        match self.subject {
            Subject::Figure(MetricSource::Stage(_), Metric::Within(time)) => Some(time),
            _ => None,
        }
    }

    /// True if the threshold concerns latencies or the durations of a phase, and not a number, a rate, freshness or an
    /// outcome such as lost mail.
    pub fn is_of_time(&self) -> bool {
        matches!(self.subject, Subject::Figure(_, metric) if !matches!(metric, Metric::Rate | Metric::Count))
    }

    /// True if the threshold can be judged only at the end, so that it cannot abort a run. A minimum count may still be
    /// reached during the run, and freshness is computed only after the run.
    pub fn needs_the_end(&self) -> bool {
        let is_minimum = matches!(self.subject, Subject::Figure(_, Metric::Count)) && !self.comparison.is_upper();
        is_minimum || matches!(self.subject, Subject::Fresh(_))
    }

    /// Converts the threshold to the share of messages that may be late or lost, if possible. This works for a
    /// percentile, a maximum or `within` of a stage, and for a percentage of `rejected`, `failed` or `in_doubt`. For
    /// example, `delivered.p99 < 1s` means that at most 1 % of the due messages may take longer or never arrive.
    pub fn loss_goal(&self) -> Option<LossGoal> {
        let limit = Duration::try_from_secs_f64(self.limit / 1e3).ok();
        let (subject, loss_ratio) = match self.subject {
            Subject::Figure(MetricSource::Stage(Stage::Created), _) => return None,
            Subject::Figure(MetricSource::Phase(_), _) => return None,
            Subject::Figure(stage, Metric::Quantile(share)) if self.comparison.is_upper() => {
                (LossSubject::Late(stage, limit?), 1.0 - share)
            }
            Subject::Figure(stage, Metric::Max) if self.comparison.is_upper() => {
                (LossSubject::Late(stage, limit?), 0.0)
            }
            Subject::Figure(stage, Metric::Within(time)) if !self.comparison.is_upper() => {
                (LossSubject::Late(stage, time), 1.0 - self.limit / 100.0)
            }
            Subject::Fate(fate @ (Fate::Rejected | Fate::Failed | Fate::InDoubt))
                if self.comparison.is_upper() && self.unit == LimitUnit::Percent =>
            {
                (LossSubject::Fate(fate), self.limit / 100.0)
            }
            Subject::Figure(..) | Subject::Fate(_) | Subject::Fresh(_) => return None,
        };
        // Round, because 1 - 0.99 is slightly more than 0.01 in floating point.
        let loss_ratio = (loss_ratio * 1e9).round() / 1e9;
        (0.0..1.0).contains(&loss_ratio).then(|| LossGoal { expression: self.expression.clone(), subject, loss_ratio })
    }

    /// Evaluates the threshold on the figures of a whole run. The result for a threshold on a stage of the load has no
    /// value, because the figures of a whole run are not divided by stage.
    pub fn evaluate(&self, figures: &impl MetricValues) -> ThresholdRow {
        if self.load_stage.is_some() { self.row() } else { self.evaluate_figures(figures) }
    }

    fn row(&self) -> ThresholdRow {
        ThresholdRow {
            expression: self.expression.clone(),
            limit: Some(self.limit),
            unit: self.unit.word().to_owned(),
            ..ThresholdRow::default()
        }
    }

    fn evaluate_figures(&self, figures: &impl MetricValues) -> ThresholdRow {
        let windows = self.windows(figures);
        let found = self.value(figures, &windows);
        let holds = |value: f64| self.comparison.holds(value, self.limit);
        let row = ThresholdRow { windows, ..self.row() };
        let margin = |value: f64| if self.comparison.is_upper() { self.limit - value } else { value - self.limit };
        let with_value = |value: f64, passed: bool, missed: bool| ThresholdRow {
            value: Some(value),
            margin: Some(margin(value)),
            passed,
            missed,
            ..row.clone()
        };
        let may_come = || "messages that have not arrived may still come in time: wait longer for them".to_owned();
        match found {
            Value::Known(value) => with_value(value, holds(value), !holds(value)),
            Value::Share { least, most } => {
                let (passed, missed) = (holds(least) && holds(most), !holds(least) && !holds(most));
                let why = if passed || missed { String::new() } else { may_come() };
                ThresholdRow { why, ..with_value(least, passed, missed) }
            }
            Value::Beyond { bound, absent, is_open } => {
                let passed = !self.comparison.is_upper() && (bound >= self.limit || !is_open);
                let missed = self.comparison.is_upper() && !is_open;
                let due = counted(figures.due().unwrap_or_default(), "message");
                let why = match (passed, missed) {
                    (true, _) => String::new(),
                    (false, true) => format!("{} of {due} did not come in time", grouped(absent)),
                    (false, false) => may_come(),
                };
                ThresholdRow { beyond: Some(bound), passed, missed, why, ..row }
            }
            Value::Few(arrived) => {
                // Too few messages arrived for a rate. If enough messages were due, this is the server's fault, and the
                // threshold is missed. Otherwise, the load was too small, and the threshold is neither met nor missed.
                let is_enough_due = figures.due().is_some_and(|due| due >= MIN_ARRIVALS);
                let why = match is_enough_due {
                    true => format!("only {} arrived, which is no rate", counted(arrived, "message")),
                    false => format!("fewer than {MIN_ARRIVALS} messages have no rate: send more"),
                };
                ThresholdRow { missed: is_enough_due, why, ..row }
            }
            Value::Unknown => row,
        }
    }

    fn windows(&self, figures: &impl MetricValues) -> Vec<FreshWindow> {
        match self.subject {
            Subject::Fresh(limit) => figures.fresh_windows(limit).unwrap_or_default(),
            Subject::Figure(..) | Subject::Fate(_) => Vec::new(),
        }
    }

    fn value(&self, figures: &impl MetricValues, windows: &[FreshWindow]) -> Value {
        match self.subject {
            Subject::Fresh(_) => Value::known(freshness::worst(windows)),
            Subject::Fate(fate) => Value::known(figures.fate(fate).and_then(|count| match self.unit {
                LimitUnit::Percent => percent_of(count, figures.created_units()?),
                _ => Some(count as f64),
            })),
            Subject::Figure(place, metric) => metric_value(figures, place, metric, self.limit),
        }
    }
}

/// Share of messages that a threshold allows to be lost or late. A capacity search can use only goals of this form.
#[derive(Clone, Debug, PartialEq)]
pub struct LossGoal {
    expression: String,
    subject: LossSubject,
    loss_ratio: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum LossSubject {
    Late(MetricSource, Duration),
    Fate(Fate),
}

impl LossGoal {
    pub fn expression(&self) -> &str {
        &self.expression
    }

    pub fn loss_ratio(&self) -> f64 {
        self.loss_ratio
    }

    /// Returns the maximum time that a message may take, or `None` if the goal is not about time.
    pub fn limit(&self) -> Option<Duration> {
        match self.subject {
            LossSubject::Late(_, limit) => Some(limit),
            LossSubject::Fate(_) => None,
        }
    }

    pub fn stage(&self) -> Option<MetricSource> {
        match self.subject {
            LossSubject::Late(stage, _) => Some(stage),
            LossSubject::Fate(_) => None,
        }
    }

    /// Returns the share of the `due` messages that were late or never arrived. For a goal on an outcome such as
    /// rejected, returns the share of the created message-recipient pairs that had this outcome. Returns `None` if no
    /// process of the run could see the share.
    pub fn lost_share(&self, figures: &impl MetricValues, due: u64) -> Option<f64> {
        match self.subject {
            LossSubject::Fate(fate) => Some(figures.fate(fate)? as f64 / figures.created_units()?.max(1) as f64),
            LossSubject::Late(place, limit) => {
                let reached = figures.count(place)?;
                let times = figures.times(place).filter(|times| times.count() > 0);
                let in_time = if reached == 0 { 0 } else { times?.count_within(limit) };
                let whole = with_repeated(due, reached, figures.again(place));
                Some(1.0 - in_time as f64 / whole.max(1) as f64)
            }
        }
    }
}

/// Computes a metric such as `p99`. `limit` is the threshold's limit. The function needs it to decide whether messages
/// that may still arrive could change the result.
fn metric_value(figures: &impl MetricValues, place: MetricSource, metric: Metric, limit: f64) -> Value {
    match metric {
        Metric::Count => Value::known(figures.count(place).map(|count| count as f64)),
        Metric::Rate => match (figures.rate_per_s(place), figures.count(place)) {
            (Some(rate), _) => Value::known(Some(rate)),
            (None, Some(arrived)) if arrived < MIN_ARRIVALS => Value::Few(arrived),
            (None, _) => Value::Unknown,
        },
        Metric::Within(time) => share_within(figures, place, time),
        Metric::Quantile(_) | Metric::Min | Metric::Mean | Metric::Max | Metric::StdDev => {
            time_value(figures, place, metric, limit)
        }
    }
}

/// Returns how many arrivals there would be if every due message had arrived. `again` is the number of repeated
/// arrivals, which `arrived` includes. Repeated arrivals count in addition to the due messages, because they do not
/// replace messages that never arrived.
fn with_repeated(due: u64, arrived: u64, again: u64) -> u64 {
    // More messages may arrive than were due, because a server may split a message by its recipients.
    due.max(arrived.saturating_sub(again)).saturating_add(again)
}

fn share_within(figures: &impl MetricValues, place: MetricSource, time: Duration) -> Value {
    let Some(arrived) = figures.count(place) else { return Value::Unknown };
    // If nothing arrived, no message was in time. If messages arrived but no times are known, the share is unknown.
    let times = figures.times(place).filter(|times| times.count() > 0 || arrived == 0);
    let Some(in_time) = times.map(|times| times.count_within(time)).or((arrived == 0).then_some(0)) else {
        return Value::Unknown;
    };
    let whole = match place {
        MetricSource::Phase(_) => arrived,
        MetricSource::Stage(_) => with_repeated(figures.due().unwrap_or_default(), arrived, figures.again(place)),
    };
    let undecided = figures.overdue(place).map_or(0, |overdue| overdue.undecided(time));
    match (percent_of(in_time, whole), percent_of(in_time.saturating_add(undecided).min(whole), whole)) {
        (Some(least), Some(most)) => Value::Share { least, most },
        _ => Value::Unknown,
    }
}

fn time_value(figures: &impl MetricValues, place: MetricSource, metric: Metric, limit_ms: f64) -> Value {
    let times = figures.times(place).filter(|times| times.count() > 0);
    let overdue = figures.overdue(place);
    let absent = overdue.as_ref().map_or(0, Overdue::count);
    let known = times.as_ref().and_then(Latencies::summary).or_else(|| figures.summary(place));
    // If messages arrived but none of them has a usable time, the latency is unknown.
    let is_untimed = known.is_none() && figures.count(place) != Some(0);
    if is_untimed || (known.is_none() && absent == 0) {
        return Value::Unknown;
    }
    let value = match (metric, &known) {
        (Metric::Min, Some(known)) => Some(known.min),
        (Metric::Mean, Some(known)) if absent == 0 => Some(known.mean),
        (Metric::Max, Some(known)) if absent == 0 => Some(known.max),
        (Metric::StdDev, Some(_)) if absent == 0 => times.as_ref().map(Latencies::stddev_ms),
        (Metric::Quantile(share), Some(known)) => match &times {
            Some(times) => Some(overdue::quantile_ms(times, share, absent)),
            None => quantile_of_summary(known, share),
        },
        _ if absent == 0 => None,
        _ => Some(f64::INFINITY),
    };
    let Some(overdue) = overdue.filter(|_| value == Some(f64::INFINITY)) else { return Value::known(value) };
    let limit = Duration::try_from_secs_f64(limit_ms / 1e3).unwrap_or(Duration::MAX);
    // Count the absent messages that miss the limit for certain. Leave out absent messages that might have met it if
    // the run had waited for longer.
    let never = absent - overdue.undecided(limit);
    let count = times.as_ref().map_or(0, Latencies::count);
    let share = match metric {
        Metric::Quantile(share) => share,
        _ => 1.0,
    };
    let allowed = (1.0 - share) * (count + absent) as f64;
    let bound = overdue.bound_ms(times.as_ref());
    // The threshold can still be met if exactly `allowed` messages miss the limit. Rounding may make `allowed` slightly
    // too small, so add 1e-9.
    Value::Beyond { bound, absent, is_open: never as f64 <= allowed + 1e-9 }
}

/// Returns a quantile from a summary, or `None` if the summary does not have it. Records of earlier versions contain
/// only summaries.
fn quantile_of_summary(summary: &LatencyMs, quantile: f64) -> Option<f64> {
    let known =
        [(0.5, summary.p50), (0.9, summary.p90), (0.95, summary.p95), (0.99, summary.p99), (0.999, summary.p999)];
    known.into_iter().find(|(known, _)| (known - quantile).abs() < 1e-9).map(|(_, value)| value)
}

fn percent_of(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 * 100.0 / whole as f64)
}

/// Formats the value of a threshold, for example `61.2 ms` or `> 3,000 ms`. Returns an empty text if there is no value.
pub fn format_row(row: &ThresholdRow) -> String {
    match (row.value, row.beyond) {
        (Some(value), _) => format_value(value, &row.unit),
        (None, Some(bound)) => format!("> {}", format_value(bound, &row.unit)),
        (None, None) => String::new(),
    }
}

/// Formats a value in its unit, for example `61.2 ms`, `5 µs`, `5,000/s`, `0.12 %` or `17`.
pub fn format_value(value: f64, unit: &str) -> String {
    if unit == "ms" && value != 0.0 && value.abs() < 1.0 {
        return format_value(value * 1e3, "µs");
    }
    let number = match value {
        value if value.fract() == 0.0 && (0.0..1e15).contains(&value) => grouped(value as u64),
        value if value.abs() >= 1000.0 => grouped(value.abs().round() as u64),
        value if value.abs() >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    };
    let sign = if value <= -1000.0 { "-" } else { "" };
    match unit {
        "" | "/s" => format!("{sign}{number}{unit}"),
        unit => format!("{sign}{number} {unit}"),
    }
}

/// Returns the outcome, such as lost, that an expression concerns, or `None` if it concerns something else.
pub fn fate_of(expression: &str) -> Option<Fate> {
    fate_named(expression.split(['<', '>']).next()?.trim())
}

fn fate_named(name: &str) -> Option<Fate> {
    Fate::ALL.into_iter().find(|fate| fate.name() == name)
}

/// Parses the expression in a record's row. Tries both protocols, because the row does not name the run's protocol.
fn read_again(row: &ThresholdRow) -> Option<Threshold> {
    let protocols = [RunProtocol::Smtp, RunProtocol::Mades];
    protocols.into_iter().find_map(|protocol| Threshold::parse(&row.expression, protocol).ok())
}

/// Returns the time, in milliseconds, with which the clock error must be compared, because a clock error of similar
/// length could decide the threshold. For freshness, this is the maximum age. For times of a stage at the sink, this is
/// the median latency of the messages that arrived. Returns `None` for other thresholds, such as thresholds on rates,
/// because these do not depend on the clocks of two hosts.
pub(crate) fn clock_scale_ms(record: &Record, row: &ThresholdRow) -> Option<f64> {
    let threshold = read_again(row)?;
    match threshold.subject {
        Subject::Fresh(limit) => Some(limit.age.as_secs_f64() * 1e3),
        Subject::Figure(MetricSource::Stage(stage), _) if overdue::is_of_far_end(stage) && threshold.is_of_time() => {
            arrived_median_ms(&*threshold.record_of(record)?, stage)
        }
        Subject::Figure(..) | Subject::Fate(_) => None,
    }
}

/// Returns the median latency, in milliseconds, of the messages that reached a stage. In contrast, the median in the
/// stage's row counts messages that never arrived as infinitely late.
pub(crate) fn arrived_median_ms(record: &Record, stage: Stage) -> Option<f64> {
    let source = MetricSource::Stage(stage);
    let times = record.times(source).filter(|times| times.count() > 0);
    let median_ms = times.map(|times| times.quantile_ms(0.5)).or_else(|| Some(record.summary(source)?.p50));
    median_ms.filter(|median_ms| median_ms.is_finite())
}

/// True if the source's own delay may have decided a threshold on latency. Delays of up to `negligible_ms` are ignored.
///
/// A measured time is the sum of the server's time and the source's delay. No delay explains a message that never
/// arrived. If a threshold was missed, the function tries several delays `d`. Of the messages that exceeded the limit
/// by more than `d`, it excuses as many as the source delayed by more than `d`. If the rest is more than the threshold
/// allows for at least one `d`, the server caused the miss. If a threshold was met, the function adds the source's
/// delay to the measured times, because a load that comes late may be easier for the server. If the threshold would
/// then be missed, it is undecided.
pub fn is_undecided_by_lag(record: &Record, row: &ThresholdRow, negligible_ms: f64) -> bool {
    let Some(lag) = record.lag_ms else { return false };
    let Some(threshold) = read_again(row) else { return false };
    let Some(record) = threshold.record_of(record) else { return false };
    if let (Subject::Figure(_, Metric::Mean), Some(value)) = (threshold.subject, row.value) {
        return lag.mean > negligible_ms && (value - threshold.limit).abs() < lag.mean;
    }
    let Some(LossGoal { subject: LossSubject::Late(place, limit), loss_ratio: allowed, .. }) = threshold.loss_goal()
    else {
        return false;
    };
    let Some(times) = record.times(place).filter(|times| times.count() > 0) else { return false };
    // A delay of the source does not explain messages that were sent but never arrived. So count them in `whole`, as
    // messages that are slower than any limit.
    let whole = times.count() + record.overdue(place).map_or(0, |overdue| overdue.sent_in_vain());
    let above = |limit_ms: f64| {
        let limit = Duration::try_from_secs_f64(limit_ms / 1e3).unwrap_or_default();
        1.0 - times.count_within(limit) as f64 / whole as f64
    };
    // Each pair is a delay in milliseconds, and the share of messages that the source delayed by more than this delay.
    let delayed = [(lag.p50, 0.5), (lag.p90, 0.1), (lag.p95, 0.05), (lag.p99, 0.01), (lag.p999, 0.001), (lag.max, 0.0)];
    let limit_ms = limit.as_secs_f64() * 1e3;
    let is_within = |share: f64| share <= allowed + 1e-9;
    let own_ms = delayed.into_iter().find(|(_, share)| is_within(*share)).map_or(lag.max, |(ms, _)| ms);
    own_ms > negligible_ms
        && match row.passed {
            true => !is_within(above(limit_ms - own_ms)),
            false => delayed.into_iter().all(|(ms, share)| is_within(above(limit_ms + ms) - share)),
        }
}

/// True if a busy host explains a missed threshold on latency or rate, because the threshold might have been met if no
/// program had waited for a processor. Such waits do not explain messages that never arrived.
pub fn is_explained_by_host(record: &Record, row: &ThresholdRow, host: &BusyHost<'_>) -> bool {
    let Some(threshold) = read_again(row).filter(|_| row.missed) else { return false };
    let Some(record) = threshold.record_of(record) else { return false };
    let Subject::Figure(place, metric) = threshold.subject else { return false };
    let holds = |value: f64| threshold.comparison.holds(value, threshold.limit);
    // Even on an idle host, the server's rate could not have exceeded the offered rate. Nor does an idle host make any
    // message faster than the fastest message of the run.
    let offered_per_s = record.workload.rate_per_s.filter(|_| is_open_loop(&record)).unwrap_or(f64::INFINITY);
    let times = record.times(place).filter(|times| times.count() > 0);
    let fastest_ms = times.as_ref().and_then(Latencies::summary).map_or(0.0, |times| times.min);
    let holds_without = |ms: f64, delay_ms: f64| holds((ms - delay_ms).max(fastest_ms));
    let arrived = times.as_ref().map_or(record.count(place).unwrap_or_default(), Latencies::count);
    let whole = arrived.saturating_add(record.overdue(place).map_or(0, |overdue| overdue.sent_in_vain()));
    // A share smaller than one message could excuse a delay that no message suffered. So raise the share to the share
    // of one message.
    let at_least_one = |share: f64| share.max(1.0 / whole.max(1) as f64);
    match (metric, threshold.comparison.is_upper()) {
        (Metric::Rate, false) => row.value.is_some_and(|per_s| holds(host.rate_without(per_s).min(offered_per_s))),
        (Metric::Mean, true) => row.value.is_some_and(|ms| holds_without(ms, host.mean_delay_ms(ms))),
        (Metric::Quantile(share), true) => {
            row.value.is_some_and(|ms| holds_without(ms, host.delay_ms(at_least_one(1.0 - share), ms)))
        }
        (Metric::Max, true) => row.value.is_some_and(|ms| holds_without(ms, host.delay_ms(at_least_one(0.0), ms))),
        (Metric::Within(time), false) => {
            let Some(times) = times.filter(|_| time.as_secs_f64() * 1e3 >= fastest_ms) else { return false };
            let least = at_least_one(1.0 - threshold.limit / 100.0);
            let measured_ms = times.quantile_ms(1.0 - least);
            let excused = Duration::try_from_secs_f64(host.delay_ms(least, measured_ms) / 1e3).unwrap_or_default();
            let in_time = times.count_within(time.saturating_add(excused));
            holds(in_time as f64 / whole as f64 * 100.0)
        }
        _ => false,
    }
}

/// True if so many messages never arrived that a threshold on latency would be missed even if all other messages had
/// arrived without any delay. No delay of the source or of the host explains such a miss.
pub fn is_decided_by_absence(record: &Record, row: &ThresholdRow) -> bool {
    let threshold = read_again(row).filter(|_| row.missed);
    let Some(record) = threshold.as_ref().and_then(|threshold| threshold.record_of(record)) else { return false };
    let goal = threshold.and_then(|threshold| threshold.loss_goal());
    let Some(LossGoal { subject: LossSubject::Late(place, limit), loss_ratio, .. }) = goal else { return false };
    record.overdue(place).is_some_and(|overdue| {
        let never = overdue.sent_in_vain().saturating_sub(overdue.undecided(limit));
        let due = record.due().unwrap_or_default();
        never > 0 && never as f64 > loss_ratio * due as f64 + 1e-9
    })
}

/// Evaluates the thresholds of a run that has ended. `missed` is the row of the threshold that aborted the run, if any.
/// This threshold keeps the value that it had at that moment.
pub fn evaluate_all<'t>(
    record: &Record,
    thresholds: impl IntoIterator<Item = &'t Threshold>,
    missed: Option<&ThresholdRow>,
) -> Vec<ThresholdRow> {
    let rows = thresholds.into_iter().map(|threshold| threshold.evaluate_run(record));
    rows.map(|row| missed.filter(|missed| missed.expression == row.expression).cloned().unwrap_or(row)).collect()
}

/// Returns the reason why a threshold has no value in a record, for example `the run is shorter than the window`.
pub fn unseen_reason(record: &Record, row: &ThresholdRow) -> &'static str {
    let threshold = read_again(row);
    if threshold.as_ref().is_some_and(|threshold| threshold.record_of(record).is_none()) {
        return "the run has no figures of this stage of its load";
    }
    if threshold.as_ref().is_some_and(Threshold::is_of_delivery) && record.ledger.delivered.is_none() {
        let is_sink_gone = record.ending == Some(Ending::SinkEnded)
            || record.parties.iter().any(|party| party.role == Role::Sink && party.died.is_some());
        return match is_sink_gone {
            true => "the sink went away before the end of the run",
            false => "no sink watched the far end (mailrun bench --sink http://ADDR)",
        };
    }
    match threshold.map(|threshold| threshold.subject) {
        Some(Subject::Fresh(limit)) if freshness::is_shorter_than_window(record, limit) => {
            "the run is shorter than the window"
        }
        Some(Subject::Fate(Fate::Lost)) if record.ledger.not_delivered.is_some_and(|count| count > 0) => {
            "mail was not delivered, and the server's queue is unknown; use not_delivered"
        }
        _ => "the run has no such value",
    }
}

impl MetricValues for Record {
    fn times(&self, source: MetricSource) -> Option<Latencies> {
        let histogram = match source {
            MetricSource::Stage(name) => &self.stage(name)?.histogram,
            MetricSource::Phase(name) => &self.phase(name)?.histogram,
        };
        Latencies::decode(histogram.as_deref()?)
    }

    fn summary(&self, source: MetricSource) -> Option<LatencyMs> {
        match source {
            MetricSource::Stage(name) => self.stage(name)?.latency_ms,
            MetricSource::Phase(name) => Some(self.phase(name)?.latency_ms),
        }
    }

    fn count(&self, source: MetricSource) -> Option<u64> {
        match source {
            MetricSource::Stage(name) => Some(self.stage(name)?.count),
            MetricSource::Phase(name) => Some(self.phase(name).map_or(0, |row| row.count)),
        }
    }

    fn again(&self, source: MetricSource) -> u64 {
        match source {
            MetricSource::Stage(name) => self.stage(name).map_or(0, |row| overdue::arrived_again(self, row)),
            MetricSource::Phase(_) => 0,
        }
    }

    fn rate_per_s(&self, source: MetricSource) -> Option<f64> {
        match source {
            MetricSource::Stage(name) => self.stage(name)?.rate_per_s,
            MetricSource::Phase(_) => None,
        }
    }

    fn due(&self) -> Option<u64> {
        overdue::due(self)
    }

    fn created_units(&self) -> Option<u64> {
        self.ledger.created
    }

    fn overdue(&self, source: MetricSource) -> Option<Overdue<'_>> {
        match source {
            MetricSource::Stage(name) => Some(Overdue { record: self, row: self.stage(name)? }),
            MetricSource::Phase(_) => None,
        }
    }

    fn fate(&self, fate: Fate) -> Option<u64> {
        fate.count(&self.ledger)
    }

    fn fresh_windows(&self, limit: FreshnessLimit) -> Option<Vec<FreshWindow>> {
        freshness::windows(self, limit)
    }
}

impl MadesShape {
    /// Returns a record that describes the messages of this kind (`--shape`) as if the run had sent no others, so that
    /// thresholds can be evaluated on this kind alone. `run` is the record of the whole run.
    pub fn as_run(&self, run: &Record) -> Record {
        Record {
            stages: self.stages.clone(),
            due: self.due,
            mades: run.mades.as_ref().map(|mades| Mades { timeout_s: mades.timeout_s, ..Mades::default() }),
            observed_until_s: run.observed_until_s,
            ledger: LedgerRow { created: self.due, in_flight: run.ledger.in_flight, ..LedgerRow::default() },
            ..Record::empty()
        }
    }
}

/// Figures of a run in progress, as far as the process that evaluates the thresholds knows them.
pub struct RunningFigures<'a> {
    /// Returns the figures of a stage or a phase so far, or `None` if the process does not know them.
    pub stages: &'a dyn Fn(MetricSource) -> Option<RunningStage>,
    /// Number of messages whose outcome is known. Only these messages count as due, so that no message counts as late
    /// while it is under way.
    pub finished: u64,
    pub created_units: u64,
    /// Returns the counts of outcomes so far. Called only if a threshold needs them, because it may be expensive.
    pub ledger: &'a dyn Fn() -> LedgerRow,
}

#[derive(Clone, Debug, Default)]
pub struct RunningStage {
    pub count: u64,
    pub rate_per_s: Option<f64>,
    /// Latencies so far, or `None` if only a summary of them is known.
    pub times: Option<Latencies>,
    pub summary: Option<LatencyMs>,
}

impl MetricValues for RunningFigures<'_> {
    fn times(&self, source: MetricSource) -> Option<Latencies> {
        (self.stages)(source)?.times
    }

    fn summary(&self, source: MetricSource) -> Option<LatencyMs> {
        (self.stages)(source)?.summary
    }

    fn count(&self, source: MetricSource) -> Option<u64> {
        Some((self.stages)(source)?.count)
    }

    /// Returns 0, because repeated arrivals are known only after the run.
    fn again(&self, _: MetricSource) -> u64 {
        0
    }

    fn rate_per_s(&self, source: MetricSource) -> Option<f64> {
        (self.stages)(source)?.rate_per_s
    }

    fn due(&self) -> Option<u64> {
        Some(self.finished)
    }

    fn created_units(&self) -> Option<u64> {
        Some(self.created_units)
    }

    fn overdue(&self, _: MetricSource) -> Option<Overdue<'_>> {
        None
    }

    fn fate(&self, fate: Fate) -> Option<u64> {
        fate.count(&(self.ledger)())
    }

    fn fresh_windows(&self, _: FreshnessLimit) -> Option<Vec<FreshWindow>> {
        None
    }
}

/// Splits a text such as `<= 50ms` into its comparison operator and the limit. The text must begin with `<` or `>`.
fn split_comparator(text: &str) -> (Comparator, &str) {
    let all = [
        ("<=", Comparator::LessOrEqual),
        (">=", Comparator::MoreOrEqual),
        ("<", Comparator::Less),
        (">", Comparator::More),
    ];
    let parts = all.into_iter().find_map(|(word, comparison)| Some((comparison, text.strip_prefix(word)?)));
    parts.unwrap_or((Comparator::Less, text))
}

/// Splits an expression into the stage of the load at its beginning, if there is one, and the rest. For example, the
/// stage in `stage peak: accepted.p99 < 1s` is `peak`.
fn split_load_stage(text: &str) -> Result<(Option<String>, &str), String> {
    let Some(rest) = text.strip_prefix("stage").filter(|rest| rest.starts_with([' ', ':'])) else {
        return Ok((None, text));
    };
    match rest.split_once(':').map(|(name, condition)| (name.trim(), condition.trim())) {
        Some((name, condition)) if !name.is_empty() => Ok((Some(name.to_owned()), condition)),
        _ => Err(format!("{text:?} names no stage; use something like 'stage peak: accepted.p99 < 500ms'")),
    }
}

/// Fails if a threshold on a stage of the load concerns a figure that is known only for the whole run, such as
/// freshness.
fn check_by_load_stage(subject: Subject, protocol: RunProtocol) -> Result<(), String> {
    let only = "of a stage of the load only created, sent, accepted and delivered are known, and rejected, failed, in_doubt, \
                bounced, lost and not_delivered";
    let is_known = match subject {
        _ if protocol == RunProtocol::Mades => return Err("over MADES stages of the load have no figures".to_owned()),
        Subject::Figure(MetricSource::Stage(stage), _) => STAGES.contains(&stage),
        Subject::Figure(MetricSource::Phase(_), _) | Subject::Fresh(_) => false,
        Subject::Fate(fate) => !matches!(fate, Fate::Duplicates | Fate::Corrupt | Fate::Rewritten | Fate::Copied),
    };
    if is_known { Ok(()) } else { Err(only.to_owned()) }
}

fn parse_subject(text: &str, protocol: RunProtocol) -> Result<Subject, String> {
    if let Some(rest) = text.strip_prefix("fresh") {
        return parse_freshness(rest.trim()).map(Subject::Fresh);
    }
    let Some((place, metric)) = text.split_once('.') else {
        return fate_named(text).map(Subject::Fate).ok_or_else(|| match parse_source(text, protocol) {
            Ok(_) => {
                format!("{text} alone is not a value; use {text}.p99, {text}.rate, {text}.count or {text}.within(60s)")
            }
            Err(error) => error,
        });
    };
    if let Some(fate) = fate_named(place.trim()) {
        let name = fate.name();
        return Err(format!("{name} is a number by itself; use something like '{name} <= 0.1%' or '{name} <= 3'"));
    }
    let place = parse_source(place.trim(), protocol)?;
    let metric = parse_metric(metric.trim())?;
    match (place, metric) {
        (MetricSource::Phase(_), Metric::Rate) => {
            Err(format!("{text}: only stages have a rate: created, sent, accepted, delivered"))
        }
        _ => Ok(Subject::Figure(place, metric)),
    }
}

/// Parses what follows the word `fresh`, for example `(30s) per 15min`. Without `per`, the whole run is one window.
fn parse_freshness(text: &str) -> Result<FreshnessLimit, String> {
    let form = || "use something like fresh(30s) per 15min >= 98%".to_owned();
    let (age, rest) = text.strip_prefix('(').and_then(|rest| rest.split_once(')')).ok_or_else(form)?;
    let age = parse_time(age)?;
    let window = match rest.trim() {
        "" => None,
        rest => Some(parse_time(rest.strip_prefix("per ").ok_or_else(form)?)?),
    };
    if age.is_zero() || window.is_some_and(|window| window < MIN_WINDOW) {
        return Err("the age must be more than zero, and the window at least 1s".to_owned());
    }
    Ok(FreshnessLimit { age, window })
}

fn parse_source(name: &str, protocol: RunProtocol) -> Result<MetricSource, String> {
    let known = sources(protocol);
    if let Some((_, place)) = known.iter().find(|(known, _)| *known == name) {
        return Ok(*place);
    }
    let names = known.iter().map(|(name, _)| *name).chain(Fate::ALL.map(Fate::name));
    let error = unknown("stage, phase or fate", name, &names.collect::<Vec<_>>());
    Err(match protocol {
        RunProtocol::Smtp => error,
        RunProtocol::Mades => format!("{error} (delivered = in the inbox; RECEIVED = end to end)"),
    })
}

fn sources(protocol: RunProtocol) -> Vec<(&'static str, MetricSource)> {
    let stages = STAGES.into_iter().map(|stage| (stage.name(), MetricSource::Stage(stage)));
    match protocol {
        RunProtocol::Smtp => {
            let stages = stages.chain([(MAILBOX_STAGE.name(), MetricSource::Stage(MAILBOX_STAGE))]);
            stages.chain(Phase::ALL.into_iter().map(|phase| (phase.name(), MetricSource::Phase(phase)))).collect()
        }
        RunProtocol::Mades => {
            let notified = (Stage::Notified.name(), MetricSource::Stage(Stage::Notified));
            stages
                .chain([notified])
                .chain(MADES_STAGES.map(|(typed, name)| (typed, MetricSource::Stage(name))))
                .collect()
        }
    }
}

fn parse_metric(text: &str) -> Result<Metric, String> {
    if let Some(rest) = text.strip_prefix("within") {
        let inner = rest.trim().strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
        let inner = inner.ok_or_else(|| format!("{text:?}; use something like within(60s)"))?;
        return parse_measured_time(inner).map(Metric::Within);
    }
    match text {
        "min" => Ok(Metric::Min),
        "med" | "median" => Ok(Metric::Quantile(0.5)),
        "mean" | "avg" => Ok(Metric::Mean),
        "max" => Ok(Metric::Max),
        "stddev" => Ok(Metric::StdDev),
        "rate" => Ok(Metric::Rate),
        "count" => Ok(Metric::Count),
        _ if text.starts_with('p') && text[1..].starts_with(|c: char| c.is_ascii_digit()) => {
            let form = "percentiles are p0 to p100, with a point as in p99.95; p999 is p99.9, p9999 is p99.99";
            parse_quantile(text).map(Metric::Quantile).ok_or_else(|| format!("unknown percentile {text:?}: {form}"))
        }
        _ => Err(match k6_percentile(text) {
            Some(ours) => format!("unknown figure {text:?}; use {ours}"),
            None => unknown("figure", text, &METRICS),
        }),
    }
}

/// Parses a quantile: `p50` is 0.5, and `p99.9` is 0.999. If all digits are nines, the digits after the second nine are
/// decimals, so `p999` means `p99.9`. Other percentiles above 100, such as `p101`, are invalid.
fn parse_quantile(text: &str) -> Option<f64> {
    let digits = text.strip_prefix('p')?;
    let nines = digits.strip_prefix("99").filter(|rest| !rest.is_empty() && rest.bytes().all(|digit| digit == b'9'));
    let percentile = match nines {
        Some(rest) => percent(&format!("99.{rest}%")),
        None if digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') => percent(&format!("{digits}%")),
        None => return None,
    };
    percentile.ok().map(|percentile| percentile / 100.0)
}

fn parse_limit(text: &str, subject: Subject) -> Result<(f64, LimitUnit), String> {
    let text = &*without_commas(text);
    match subject {
        Subject::Fate(_) if !text.ends_with('%') => Ok((count(text)? as f64, LimitUnit::Number)),
        Subject::Fate(_) | Subject::Figure(_, Metric::Within(_)) | Subject::Fresh(_) => {
            Ok((percent(text)?, LimitUnit::Percent))
        }
        Subject::Figure(_, Metric::Rate) => Ok((rate(text)?, LimitUnit::PerSecond)),
        Subject::Figure(_, Metric::Count) => Ok((count(text)? as f64, LimitUnit::Number)),
        Subject::Figure(..) => Ok((parse_measured_time(text)?.as_nanos() as f64 / 1e6, LimitUnit::Milliseconds)),
    }
}

/// Parses the limit of a threshold on a latency or on the length of a phase, such as `50ms`. Refuses a limit of more
/// than 1 h, the longest time that is measured, because every message that arrives would meet it.
fn parse_measured_time(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let limit = parse_time(text)?;
    match text.strip_suffix('m') {
        _ if limit <= Duration::from_nanos(HIGHEST_NS) => Ok(limit),
        Some(number) => Err(format!("{text} is {number} minutes, and times are measured up to 1 h; use {text}s")),
        None => Err(format!("{text} is too long, because times are measured up to 1 h")),
    }
}

/// Parses a time with its unit. The unit is required, because users might mean milliseconds or seconds by a bare
/// number.
fn parse_time(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    match duration(text) {
        Ok(_) if text.ends_with(|c: char| c.is_ascii_digit() || c == '.') => {
            Err(format!("{text:?} is not a valid time; use something like {text}ms, {text}s or {text}min"))
        }
        read => read,
    }
}

fn without_comparison(text: &str) -> String {
    match text.split_once('=') {
        Some((subject, limit)) => {
            let (subject, limit) = (subject.trim(), limit.trim_start_matches('=').trim());
            format!("a limit has one side; use '{subject} <= {limit}' or '{subject} >= {limit}'")
        }
        None => "it has no comparison; use something like 'accepted.p99 < 50ms' or 'rejected <= 0.1%'".to_owned(),
    }
}

/// Returns advice if a subject is written as for k6, a load generator for HTTP. Examples are `p(95)` or `rate` without
/// a stage, and figures of HTTP such as `http_req_duration: p(95)`.
fn of_k6(subject: &str) -> Option<String> {
    if subject.starts_with("http_req") {
        let example = if subject.starts_with("http_req_failed") { "failed <= 1%" } else { "accepted.p95 < 500ms" };
        return Some(format!("{subject:?} is a figure of HTTP; use something like '{example}'"));
    }
    let figure = k6_percentile(subject).unwrap_or_else(|| subject.to_owned());
    let example = match parse_metric(&figure).ok()? {
        Metric::Rate => "accepted.rate > 100/s; the share of messages in time is accepted.within(1s) >= 99%".to_owned(),
        Metric::Count => "accepted.count >= 100".to_owned(),
        Metric::Within(_) => format!("accepted.{figure} >= 99%"),
        _ => format!("accepted.{figure} < 500ms"),
    };
    Some(format!("{subject:?} is a figure; name its stage or phase and the unit: {example}"))
}

/// Translates a percentile from k6's form to ours: `p(95)` becomes `p95`.
fn k6_percentile(text: &str) -> Option<String> {
    text.strip_prefix("p(").and_then(|rest| rest.strip_suffix(')')).map(|percent| format!("p{percent}"))
}

/// Makes the error for an unknown name, and suggests the most similar known name, if one is similar enough.
fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    match nearest(name, known.iter().copied()) {
        Some(nearest) => format!("unknown {what} {name:?}; did you mean {nearest:?}?"),
        None => format!("unknown {what} {name:?}; known: {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::StageRow;

    fn read(text: &str) -> Threshold {
        Threshold::parse(text, RunProtocol::Smtp).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn what_the_manual_says_is_read() {
        for (text, limit, unit) in [
            ("accepted.p99 < 50ms", 50.0, LimitUnit::Milliseconds),
            ("accepted.p99<0.05s", 50.0, LimitUnit::Milliseconds),
            ("rejected <= 0.1%", 0.1, LimitUnit::Percent),
            ("rejected<=3", 3.0, LimitUnit::Number),
            ("delivered.rate > 5000/s", 5_000.0, LimitUnit::PerSecond),
            ("delivered.rate > 5k", 5_000.0, LimitUnit::PerSecond),
            (" delivered.within( 60s ) >= 95 % ", 95.0, LimitUnit::Percent),
            ("connect.max < 1m", 60_000.0, LimitUnit::Milliseconds),
            ("connect.max < 60m", 3_600_000.0, LimitUnit::Milliseconds),
            ("delivered.within(1h) >= 95%", 95.0, LimitUnit::Percent),
            ("fresh(2h) per 1d >= 98%", 98.0, LimitUnit::Percent),
            ("created.count >= 1,000", 1_000.0, LimitUnit::Number),
            ("accepted.p99 < 1,000ms", 1_000.0, LimitUnit::Milliseconds),
            ("delivered.rate > 30k/h", 30_000.0 / 3_600.0, LimitUnit::PerSecond),
            ("sent.mean < 200us", 0.2, LimitUnit::Milliseconds),
            ("accepted.stddev < 5ms", 5.0, LimitUnit::Milliseconds),
            ("fresh(30s) per 15min >= 98%", 98.0, LimitUnit::Percent),
            ("fresh( 30s )per 7d>99.9%", 99.9, LimitUnit::Percent),
            ("fresh(2min) >= 99.9%", 99.9, LimitUnit::Percent),
        ] {
            let threshold = read(text);
            assert_eq!((threshold.limit, threshold.unit), (limit, unit), "{text}");
            assert_eq!(threshold.expression(), text.trim());
        }
    }

    #[test]
    fn a_comparison_holds_below_at_and_above_its_limit_as_its_sign_says() {
        for (sign, holds) in [
            ("<", [true, false, false]),
            ("<=", [true, true, false]),
            (">", [false, false, true]),
            (">=", [false, true, true]),
        ] {
            let threshold = read(&format!("rejected {sign} 3"));
            assert_eq!(
                [2.0, 3.0, 4.0].map(|value| threshold.comparison.holds(value, threshold.limit)),
                holds,
                "{sign}"
            );
        }
    }

    #[test]
    fn percentiles_are_from_0_to_100_and_have_one_reading() {
        for (text, quantile) in [
            ("p0", 0.0),
            ("p5", 0.05),
            ("p50", 0.5),
            ("p99", 0.99),
            ("p99.9", 0.999),
            ("p999", 0.999),
            ("p9999", 0.9999),
            ("p99.95", 0.9995),
            ("p100", 1.0),
        ] {
            assert!((parse_quantile(text).unwrap() - quantile).abs() < 1e-12, "{text}");
        }
        for text in ["p", "p9é9", "pé", "p-1", "pp", "p9x", "p101", "p200", "p995", "p100.1", "p99,9", "q99", ""] {
            assert_eq!(parse_quantile(text), None, "{text}");
        }
    }

    #[test]
    fn mistakes_are_named_with_what_may_have_been_meant() {
        for (text, expected) in [
            ("acepted.p99 < 5ms", "did you mean \"accepted\"?"),
            ("rejceted < 1", "did you mean \"rejected\"?"),
            ("accepted.p99", "no comparison"),
            ("accepted < 5", "accepted.p99, accepted.rate"),
            ("accepted.rat > 5", "did you mean \"rate\"?"),
            ("accepted.latency < 5ms", "known: p50, p90"),
            ("frobnicate < 5", "known: created, sent"),
            ("accepted.p200 < 5ms", "unknown percentile \"p200\": percentiles are p0 to p100"),
            ("accepted.p101 < 5ms", "p999 is p99.9"),
            ("accepted.p99 < 5", "not a valid time; use something like 5ms, 5s"),
            ("accepted.p99 < 0,5s", "not a valid time"),
            ("accepted.p99 < -5ms", "must not be negative"),
            ("accepted.p99 < ms", "not a valid time"),
            ("accepted.rate > infinity", "not a valid rate"),
            ("accepted.rate > 0,1", "not a valid rate"),
            ("accepted.count > 1.5", "not a whole number"),
            ("rejected <= 0,1%", "not a valid share"),
            ("rejected <= 0,001", "not a valid count"),
            ("rejected < 101%", "more than 100%"),
            ("rejected.count < 1", "use something like 'rejected <= 0.1%'"),
            ("Accepted.p99 < 5ms", "did you mean \"accepted\"?"),
            ("DELIVERED.p99 < 5ms", "did you mean \"delivered\"?"),
            ("delivered.within(60) > 5%", "not a valid time"),
            ("delivered.within > 5%", "within(60s)"),
            ("delivered.within(1s) > 5", "not a valid share"),
            ("rcpt.rate > 5/s", "have a rate"),
            ("settled.p99 < 1s", "unknown stage"),
            ("p(95)<500", "accepted.p95 < 500ms"),
            ("p(99.9)<500", "accepted.p99.9 < 500ms"),
            ("accepted.p(99)<500ms", "unknown figure \"p(99)\"; use p99"),
            ("med < 500", "accepted.med < 500ms"),
            ("http_req_duration: p(95)<500", "use something like 'accepted.p95 < 500ms'"),
            ("http_req_failed: rate<0.01", "use something like 'failed <= 1%'"),
            ("rate>0.99", "accepted.within(1s) >= 99%"),
            ("count>100", "accepted.count >= 100"),
            ("rejected == 0", "use 'rejected <= 0' or 'rejected >= 0'"),
            ("accepted.p99 = 5ms", "use 'accepted.p99 <= 5ms'"),
            ("accepted.p99 < 500m", "500m is 500 minutes, and times are measured up to 1 h; use 500ms"),
            ("accepted.p99 < 61min", "61min is too long, because times are measured up to 1 h"),
            ("accepted.max <= 3600001ms", "measured up to 1 h"),
            ("delivered.within(2h) >= 95%", "2h is too long, because times are measured up to 1 h"),
            ("delivered.within( 90m ) >= 95%", "90m is 90 minutes, and times are measured up to 1 h; use 90ms"),
            ("received.within(2min) >= 99%", "unknown stage"),
            ("fresh(30s) per 15min < 98%", "is a minimum"),
            ("fresh(30s) per 15min >= 98", "not a valid share"),
            ("fresh(30) >= 98%", "not a valid time"),
            ("fresh(30s) per 10ms >= 98%", "at least 1s"),
            ("fresh(0s) >= 98%", "more than zero"),
            ("fresh(30s) each 1h >= 98%", "fresh(30s) per 15min"),
            ("fresh >= 98%", "fresh(30s) per 15min"),
            ("stage peak accepted.p99 < 5ms", "names no stage; use something like 'stage peak: accepted.p99 < 500ms'"),
            ("stage : accepted.p99 < 5ms", "names no stage"),
            ("stage peak: rcpt.p99 < 5ms", "of a stage of the load only created, sent"),
            ("stage peak: duplicates <= 3", "of a stage of the load only created, sent"),
            ("stage peak: fresh(30s) >= 98%", "of a stage of the load only created, sent"),
            ("stage peak: acepted.p99 < 5ms", "did you mean \"accepted\"?"),
            ("stage peak: accepted.p99", "no comparison"),
        ] {
            let error = Threshold::parse(text, RunProtocol::Smtp).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(Threshold::parse("settled.p99 < 1s", RunProtocol::Mades).is_ok());
        assert!(Threshold::parse("rcpt.p99 < 1s", RunProtocol::Mades).is_err());
        assert!(Threshold::parse("stage peak: settled.p99 < 1s", RunProtocol::Mades).is_err());
        let of_stage = Threshold::parse("stage peak: lost <= 0", RunProtocol::Smtp).unwrap();
        assert_eq!((of_stage.load_stage(), fate_of(of_stage.expression())), (Some("peak"), None));
        let source = |text| Threshold::parse(text, RunProtocol::Mades).unwrap().source();
        let received = source("received.within(2min) >= 99.9%");
        assert_eq!(received, Some(MetricSource::Stage(Stage::ReceivedEvent)));
        assert_eq!(received, source("received-event.within(2min) >= 99.9%"));
        assert_eq!(received, source("RECEIVED.within(2min) >= 99.9%"));
        assert_eq!(source("DELIVERED.p99 < 1s"), source("delivered-event.p99 < 1s"));
        assert_eq!(source("TRACING.p99 < 1s"), source("tracing.p99 < 1s"));
    }

    #[test]
    fn figures_are_written_as_a_person_would() {
        for (value, unit, text) in [
            (61.23, "ms", "61.2 ms"),
            (0.005, "ms", "5 µs"),
            (-0.1234, "ms", "-123.4 µs"),
            (0.0, "ms", "0 ms"),
            (5_000.0, "/s", "5,000/s"),
            (0.123, "%", "0.12 %"),
            (17.0, "", "17"),
            (1234.5, "/s", "1,235/s"),
        ] {
            assert_eq!(format_value(value, unit), text);
        }
    }

    #[test]
    fn a_requirement_on_latency_is_a_share_that_may_be_lost() {
        let goal = |text: &str| Threshold::parse(text, RunProtocol::Smtp).unwrap().loss_goal();
        for (text, ratio) in [
            ("delivered.p99 < 1s", 0.01),
            ("accepted.p999 <= 50ms", 0.001),
            ("delivered.within(60s) >= 100%", 0.0),
            ("delivered.within(60s) >= 95%", 0.05),
            ("accepted.max < 1s", 0.0),
            ("rejected <= 0.5%", 0.005),
        ] {
            let goal = goal(text).unwrap_or_else(|| panic!("{text}"));
            assert!((goal.loss_ratio() - ratio).abs() < 1e-9 && goal.expression() == text, "{goal:?}");
        }
        for text in
            ["delivered.rate > 5000/s", "accepted.mean < 5ms", "created.p99 < 1s", "mail.p99 < 1s", "lost <= 1%"]
        {
            assert_eq!(goal(text), None, "{text}");
        }
    }

    #[test]
    fn what_was_due_and_never_came_is_lost() {
        let goal = Threshold::parse("accepted.p99 < 50ms", RunProtocol::Smtp).unwrap().loss_goal().unwrap();
        let mut times = Latencies::default();
        (1..=100).for_each(|ms| times.record(Duration::from_millis(ms)));
        let mut record = Record::empty();
        assert_eq!(goal.lost_share(&record, 100), None, "nobody saw it");
        let accepted = StageRow::new(Stage::Accepted, "source");
        record.stages.push(StageRow { count: 100, histogram: times.encoded(), ..accepted });
        for (due, lost) in [(100, 0.5), (200, 0.75), (50, 0.5)] {
            let share = goal.lost_share(&record, due).unwrap();
            assert!((share - lost).abs() < 0.011, "{due}: {share}");
        }
        record.stages[0].duplicates = 20;
        for (due, lost) in [(80, 0.5), (180, 0.75)] {
            let share = goal.lost_share(&record, due).unwrap();
            assert!((share - lost).abs() < 0.011, "80 of {due} arrived, and 20 of them twice: {share}");
        }
        record.stages[0].duplicates = 0;
        let spread = Threshold::parse("accepted.stddev < 50ms", RunProtocol::Smtp).unwrap();
        let row = spread.evaluate(&record);
        assert!(row.passed && (row.value.unwrap() - 28.87).abs() < 0.1, "of 1 to 100 ms: {row:?}");
        let within = Threshold::parse("accepted.within(50ms) >= 60%", RunProtocol::Smtp).unwrap();
        let row = within.evaluate(&Record { due: Some(50), ..record });
        assert!(!row.passed && (row.value.unwrap() - 50.0).abs() < 1.1, "100 arrived, and half of them late: {row:?}");
    }
}
