//! Scenario files in TOML. A scenario says what a bench of several runs measures. Each kind of
//! measurement has its own keys.
//!
//! ```text
//! measure = "throughput"  ─→ head ─→ the measurement's own keys, each checked ─→ Scenario
//! parties, rounds, order             a mistake: FILE:LINE:COLUMN: words
//! [workload] [matrix] [search] [targets]
//! ```
//! Most keys are defaults for options of `mailrun bench SCENARIO`.
use super::contestant::{Contestant, ContestantDurability};
use super::toml_file::{MAX_BYTES, error_at, parse};
use mailrun_journey::Stage;
use mailrun_journey::record::{Arrival, Pipelining};
use mailrun_journey::threshold::{MetricSource, RunProtocol, Threshold};
use mailrun_text::quantities::{bytes, count, count_up_to, duration, positive, probability, rate};
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::time::Duration;

const MAX_LIST: usize = 100;
const MAX_TITLE: usize = 120;
/// Maximum number of recipients of a message. Sinks accept no more.
const MAX_RECIPIENTS: u64 = 1_000;

#[derive(Clone, Debug, PartialEq)]
pub struct ScenarioSetting<T> {
    pub value: T,
}

pub(crate) trait ScenarioValue: Sized {
    /// Parses the value as users type it.
    fn read(text: &str) -> Result<Self, String>;
}

impl<'de, T: ScenarioValue> Deserialize<'de> for ScenarioSetting<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The visitor also parses the text, so that an error contains the position of this value
        // within a list.
        deserializer.deserialize_any(SettingVisitor(PhantomData)).map(|value| Self { value })
    }
}

/// Reads numbers as well as texts, and passes both on as text.
struct SettingVisitor<T>(PhantomData<T>);

impl<T: ScenarioValue> Visitor<'_> for SettingVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a text")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::read(text).map_err(E::custom)
    }
}

/// Reads a list of at least one value.
fn some_values<'de, D, T>(deserializer: D) -> Result<Vec<ScenarioSetting<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: ScenarioValue,
{
    let list = Vec::<ScenarioSetting<T>>::deserialize(deserializer)?;
    match list.len() {
        0 => Err(de::Error::custom("the list must have at least one value")),
        1..=MAX_LIST => Ok(list),
        _ => Err(de::Error::custom(format!("the list must have at most {MAX_LIST} values"))),
    }
}

/// Reads a list of exactly one value, for measurements that support only one relay.
fn one_value<'de, D, T>(deserializer: D) -> Result<ScenarioSetting<T>, D::Error>
where
    D: Deserializer<'de>,
    T: ScenarioValue,
{
    let mut list = some_values(deserializer)?;
    match (list.pop(), list.is_empty()) {
        (Some(only), true) => Ok(only),
        _ => Err(de::Error::custom("this measurement is of one relay; remove the others")),
    }
}

fn choose<T: Copy>(text: &str, names: &[(&str, T)]) -> Result<T, String> {
    match names.iter().find(|(name, _)| *name == text) {
        Some((_, value)) => Ok(*value),
        None => {
            let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
            Err(format!("{text:?} is not one of {}", known.join(", ")))
        }
    }
}

/// Reads the number of messages of a run. The limit keeps the recipient counters of smtp-source,
/// which are of type int, from overflowing with up to 21 recipients per message.
pub fn messages(text: &str) -> Result<u64, String> {
    count_up_to(text, 100_000_000)
}

pub fn rounds(text: &str) -> Result<u32, String> {
    small_count(text, 1_000)
}

pub fn steps(text: &str) -> Result<u32, String> {
    small_count(text, 100)
}

pub fn sessions(text: &str) -> Result<u32, String> {
    small_count(text, 1_000_000)
}

pub fn recipient_count(text: &str) -> Result<u32, String> {
    count_up_to(text, MAX_RECIPIENTS).map(|number| number as u32)
}

/// Reads the size of a message. The minimum leaves room for the header and the trace; relays accept
/// no more than the maximum.
pub fn message_size(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        bytes @ 300..=67_108_864 => Ok(bytes),
        _ => Err(format!("{text:?}: the size must be between 300 bytes and 64M")),
    }
}

/// Reads the size of a message's body. The minimum is an empty line. The maximum is what a source
/// can easily hold in memory.
pub fn body_size(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        bytes @ 2..=268_435_456 => Ok(bytes),
        _ => Err(format!("{text:?}: the size of a body must be between 2 bytes and 256M")),
    }
}

pub fn message_cost(text: &str) -> Result<MessageCost, String> {
    MessageCost::read(text)
}

/// Reads the number of outstanding sends.
pub fn window(text: &str) -> Result<SendWindow, String> {
    match text {
        "defaults" => Ok(SendWindow::Defaults),
        number => sessions(number).map(SendWindow::Same),
    }
}

fn small_count(text: &str, max: u32) -> Result<u32, String> {
    count_up_to(text, u64::from(max)).map(|number| number as u32)
}

/// Defines types for values that are numbers or times.
macro_rules! values {
    ($($(#[$doc:meta])* $name:ident($value:ty) = $read:expr;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq)]
            pub struct $name(pub $value);

            impl ScenarioValue for $name {
                fn read(text: &str) -> Result<Self, String> {
                    let read: fn(&str) -> Result<$value, String> = $read;
                    read(text).map($name)
                }
            }
        )*
    };
}

values! {
    MessageCount(u64) = messages;
    /// Bytes of a message including its header.
    MessageBytes(u64) = message_size;
    BodyBytes(u64) = body_size;
    /// Bytes of a payload, which may be 0.
    PayloadBytes(u64) = bytes;
    /// Bytes of memory or disk space.
    SpaceBytes(u64) = |text| positive(text, bytes);
    SessionCount(u32) = sessions;
    RecipientCount(u32) = recipient_count;
    /// Messages per connection. 0 means no limit.
    ConnectionMessages(u64) = count;
    RoundCount(u32) = rounds;
    StepCount(u32) = steps;
    /// A time longer than 0.
    TimeLength(Duration) = |text| positive(text, duration);
    OfferedPerSecond(f64) = |text| positive(text, rate);
    /// A share greater than 0.
    RateShare(f64) = |text| positive(text, probability);
    /// A factor of at least 1.
    GrowthFactor(f64) = growth;
}

fn growth(text: &str) -> Result<f64, String> {
    let factor = text.parse::<f64>().ok().filter(|factor| (1.0..=1_000.0).contains(factor));
    factor.ok_or_else(|| format!("{text:?} is not a valid factor; a factor is a number from 1 to 1000, such as 1.2"))
}

/// Defines how values with fixed names are read.
macro_rules! named_values {
    ($($type:ty { $($name:literal => $value:path,)* })*) => {
        $(impl ScenarioValue for $type {
            fn read(text: &str) -> Result<Self, String> {
                choose(text, &[$(($name, $value)),*])
            }
        })*
    };
}

/// Like `named_values`, but also defines `name`.
macro_rules! named_values_with_name {
    ($($type:ident { $($name:literal => $value:path,)* })*) => {
        $(
            named_values! { $type { $($name => $value,)* } }

            impl $type {
                /// Returns the name that scenario files use.
                pub(crate) fn name(self) -> &'static str {
                    match self {
                        $($value => $name,)*
                    }
                }
            }
        )*
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MeasureKind {
    /// Time until a number of messages is accepted, and until it is delivered.
    Throughput,
    /// Latency of the 250 at a share of the highest sustained rate.
    Latency,
    /// A queue that builds up while the next hop is down, and a restart with that queue.
    Backlog,
    /// Memory and disk use over many messages.
    Soak,
    Sources,
    /// Check that sources deliver what they should.
    SourceCheck,
    /// Comparison of programs that measure MADES.
    Mades,
    /// Rate and latency at several message sizes.
    Profile,
    /// Large messages on one connection, and what dots, lines and tracing cost.
    LargeMessage,
}

/// Order in which the parties run in each round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoundOrder {
    /// Every other round has the opposite order, so that no party always runs first.
    #[default]
    Alternating,
    /// Every round has the order of the list.
    Fixed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceTool {
    /// Postfix's `smtp-source`, with which the others are compared.
    SmtpSource,
    GoSmtpSource,
    /// mailrun as `mailrun smtp-source`.
    Mailrun,
    /// mailrun as `mailrun smtp-source --busy-poll 50us`.
    MailrunBusyPoll,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkTool {
    /// Postfix's `smtp-sink`.
    SmtpSink,
    /// mailrun as `mailrun sink`.
    Mailrun,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadesTool {
    /// The program with which mailrun is compared.
    GoMadesBench,
    /// mailrun as `mailrun mades`.
    Mailrun,
}

/// A change to the source or to the message that makes a large message cheaper or more expensive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageCost {
    /// The source sends BDAT, so there are no dots to double and no end of the message to search
    /// for.
    Chunking,
    /// Every line begins with a dot, which the source doubles and the sink removes.
    Dots,
    /// The lines have four bytes each.
    ShortLines,
    /// The source writes at most 4 KiB at a time.
    SmallWrites,
    /// There is no trace line, and the body is not checked.
    NoTrace,
    /// Python's smtplib sends the messages instead of mailrun's source.
    Smtplib,
}

/// Path of the MADES messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareMode {
    Amqp,
    /// Through an ECP endpoint.
    Endpoint,
    /// Through an EDX toolbox.
    Toolbox,
    /// The connectivity test of an ECP endpoint.
    Tracing,
}

/// Number of sends that may be outstanding at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendWindow {
    /// All programs get the same number.
    Same(u32),
    /// Each program uses its own default.
    Defaults,
}

named_values! {
    MeasureKind {
        "throughput" => Self::Throughput,
        "latency" => Self::Latency,
        "backlog" => Self::Backlog,
        "soak" => Self::Soak,
        "sources" => Self::Sources,
        "source-check" => Self::SourceCheck,
        "mades" => Self::Mades,
        "profile" => Self::Profile,
        "large-message" => Self::LargeMessage,
    }
    RoundOrder { "alternating" => Self::Alternating, "fixed" => Self::Fixed, }
    MadesTool { "go-mades-bench" => Self::GoMadesBench, "mailrun" => Self::Mailrun, }
    Pipelining { "off" => Self::Off, "group" => Self::Group, "stream" => Self::Stream, }
    Arrival { "constant" => Self::Constant, "poisson" => Self::Poisson, }
    ContestantDurability { "mailrun" => Self::Sync, "mailrun:write" => Self::Write, }
}

named_values_with_name! {
    SourceTool {
        "smtp-source" => Self::SmtpSource,
        "go-smtp-source" => Self::GoSmtpSource,
        "mailrun" => Self::Mailrun,
        "mailrun-busy-poll" => Self::MailrunBusyPoll,
    }
    SinkTool { "smtp-sink" => Self::SmtpSink, "mailrun" => Self::Mailrun, }
    CompareMode {
        "amqp" => Self::Amqp,
        "endpoint" => Self::Endpoint,
        "toolbox" => Self::Toolbox,
        "tracing" => Self::Tracing,
    }
    MessageCost {
        "chunking" => Self::Chunking,
        "dots" => Self::Dots,
        "short-lines" => Self::ShortLines,
        "small-writes" => Self::SmallWrites,
        "no-trace" => Self::NoTrace,
        "smtplib" => Self::Smtplib,
    }
}

impl ScenarioValue for SendWindow {
    fn read(text: &str) -> Result<Self, String> {
        window(text)
    }
}

impl ScenarioValue for Contestant {
    fn read(text: &str) -> Result<Self, String> {
        match text.contains(',') {
            // A comma would be ambiguous, because the option takes several relays separated by
            // commas.
            true => Err(format!("{text:?}: the command of a relay must not contain a comma")),
            false => text.parse(),
        }
    }
}

impl ScenarioValue for Threshold {
    fn read(text: &str) -> Result<Self, String> {
        Self::parse(text, RunProtocol::Smtp)
    }
}

/// A threshold for runs in a closed loop.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClosedLoopThreshold;

impl ScenarioValue for ClosedLoopThreshold {
    fn read(text: &str) -> Result<Self, String> {
        closed_loop_threshold(text).map(|_| Self)
    }
}

/// Parses a threshold for runs in a closed loop. Refuses times that start at the creation, because
/// a message is due when it is created.
pub fn closed_loop_threshold(text: &str) -> Result<Threshold, String> {
    let threshold = Threshold::parse(text, RunProtocol::Smtp)?;
    if threshold.is_of_time() && threshold.source() == Some(MetricSource::Stage(Stage::Created)) {
        return Err("in a closed loop a message is due when it is created; ask for sent or accepted".to_owned());
    }
    Ok(threshold)
}

/// A line of text that says what the scenario measures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScenarioTitle(String);

impl ScenarioValue for ScenarioTitle {
    fn read(text: &str) -> Result<Self, String> {
        match text.chars().count() {
            1..=MAX_TITLE if !text.chars().any(char::is_control) => Ok(Self(text.to_owned())),
            _ => Err(format!("a title is one line of at most {MAX_TITLE} characters")),
        }
    }
}

/// A measurement of relays as in the published benchmark.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThroughputScenario {
    measure: ScenarioSetting<MeasureKind>,
    title: Option<ScenarioSetting<ScenarioTitle>>,
    #[serde(deserialize_with = "some_values")]
    pub(crate) parties: Vec<ScenarioSetting<Contestant>>,
    pub(crate) rounds: Option<ScenarioSetting<RoundCount>>,
    pub order: Option<ScenarioSetting<RoundOrder>>,
    #[serde(default)]
    pub(crate) thresholds: Vec<ScenarioSetting<ClosedLoopThreshold>>,
    pub workload: ThroughputWorkload,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [workload]")]
pub struct ThroughputWorkload {
    pub(crate) messages: ScenarioSetting<MessageCount>,
    /// Number of messages with `--full`.
    pub published_messages: Option<ScenarioSetting<MessageCount>>,
    #[serde(default = "usual_size")]
    pub message_size: ScenarioSetting<MessageBytes>,
    pub(crate) sessions: Option<ScenarioSetting<SessionCount>>,
    pub(crate) reuse: Option<ScenarioSetting<ConnectionMessages>>,
    pub(crate) pipelining: Option<ScenarioSetting<Pipelining>>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyScenario {
    measure: ScenarioSetting<MeasureKind>,
    title: Option<ScenarioSetting<ScenarioTitle>>,
    #[serde(deserialize_with = "one_value")]
    pub(crate) parties: ScenarioSetting<Contestant>,
    pub(crate) rounds: Option<ScenarioSetting<RoundCount>>,
    #[serde(default)]
    pub(crate) thresholds: Vec<ScenarioSetting<Threshold>>,
    pub(crate) workload: LatencyWorkload,
    #[serde(default)]
    pub search: RateSearch,
    #[serde(default)]
    pub targets: LatencyTargets,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [workload]")]
pub(crate) struct LatencyWorkload {
    #[serde(default = "usual_size")]
    pub(crate) message_size: ScenarioSetting<MessageBytes>,
    pub(crate) sessions: Option<ScenarioSetting<SessionCount>>,
    pub(crate) reuse: Option<ScenarioSetting<ConnectionMessages>>,
    pub(crate) pipelining: Option<ScenarioSetting<Pipelining>>,
    pub(crate) arrival: Option<ScenarioSetting<Arrival>>,
    pub(crate) duration: Option<ScenarioSetting<TimeLength>>,
    /// Rate of the rounds. If set, there is no search.
    pub(crate) rate: Option<ScenarioSetting<OfferedPerSecond>>,
}

/// The search for the highest sustained rate.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [search]")]
pub struct RateSearch {
    pub(crate) step: Option<ScenarioSetting<TimeLength>>,
    pub(crate) steps: Option<ScenarioSetting<StepCount>>,
    /// The rounds offer the rate that was found multiplied by this share.
    pub share: Option<ScenarioSetting<RateShare>>,
    /// A rate is sustained if everything is delivered at most `max_delay` plus `max_delay_share` of
    /// the step's length after the step's end, and if at least the share `min_sent` was sent.
    pub max_delay: Option<ScenarioSetting<TimeLength>>,
    pub max_delay_share: Option<ScenarioSetting<RateShare>>,
    pub min_sent: Option<ScenarioSetting<RateShare>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [targets]")]
pub struct LatencyTargets {
    pub accept_p99: Option<ScenarioSetting<TimeLength>>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BacklogScenario {
    measure: ScenarioSetting<MeasureKind>,
    title: Option<ScenarioSetting<ScenarioTitle>>,
    /// mailrun's own relay, with a durability that keeps the queue on disk.
    #[serde(deserialize_with = "one_value")]
    pub parties: ScenarioSetting<ContestantDurability>,
    pub(crate) workload: StoredWorkload,
    #[serde(default)]
    pub targets: BacklogTargets,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [workload]")]
pub(crate) struct StoredWorkload {
    pub(crate) messages: ScenarioSetting<MessageCount>,
    #[serde(default = "usual_size")]
    pub(crate) message_size: ScenarioSetting<MessageBytes>,
    pub(crate) sessions: Option<ScenarioSetting<SessionCount>>,
    pub(crate) reuse: Option<ScenarioSetting<ConnectionMessages>>,
    pub(crate) pipelining: Option<ScenarioSetting<Pipelining>>,
}

/// Targets of a backlog, and for each target the maximum number of messages for which it applies.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [targets]")]
pub struct BacklogTargets {
    pub memory: Option<ScenarioSetting<SpaceBytes>>,
    pub memory_messages: Option<ScenarioSetting<MessageCount>>,
    pub ready: Option<ScenarioSetting<TimeLength>>,
    pub ready_messages: Option<ScenarioSetting<MessageCount>>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoakScenario {
    measure: ScenarioSetting<MeasureKind>,
    title: Option<ScenarioSetting<ScenarioTitle>>,
    #[serde(deserialize_with = "one_value")]
    pub(crate) parties: ScenarioSetting<Contestant>,
    #[serde(default)]
    pub(crate) thresholds: Vec<ScenarioSetting<Threshold>>,
    pub(crate) workload: SoakWorkload,
    #[serde(default)]
    pub targets: SoakTargets,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [workload]")]
pub(crate) struct SoakWorkload {
    pub(crate) messages: ScenarioSetting<MessageCount>,
    #[serde(default = "usual_size")]
    pub(crate) message_size: ScenarioSetting<MessageBytes>,
    pub(crate) sessions: Option<ScenarioSetting<SessionCount>>,
    pub(crate) reuse: Option<ScenarioSetting<ConnectionMessages>>,
    pub(crate) pipelining: Option<ScenarioSetting<Pipelining>>,
    pub(crate) rate: Option<ScenarioSetting<OfferedPerSecond>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [targets]")]
pub struct SoakTargets {
    /// Maximum ratio of the peak memory after the first tenth of the messages to the peak in that
    /// tenth.
    pub memory_growth: Option<ScenarioSetting<GrowthFactor>>,
    /// Memory that may be used in addition to this ratio.
    pub memory_allowance: Option<ScenarioSetting<SpaceBytes>>,
    /// Maximum disk space of mailrun's own relay when its queue is empty.
    pub idle_spool: Option<ScenarioSetting<SpaceBytes>>,
}

/// A table that compares sources, or a check of their deliveries.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourcesScenario {
    measure: ScenarioSetting<MeasureKind>,
    title: Option<ScenarioSetting<ScenarioTitle>>,
    #[serde(deserialize_with = "some_values")]
    pub parties: Vec<ScenarioSetting<SourceTool>>,
    #[serde(deserialize_with = "some_values")]
    pub sinks: Vec<ScenarioSetting<SinkTool>>,
    pub(crate) rounds: Option<ScenarioSetting<RoundCount>>,
    pub order: Option<ScenarioSetting<RoundOrder>>,
    pub(crate) max_time: Option<ScenarioSetting<TimeLength>>,
    pub(crate) workload: SourcesWorkload,
    pub matrix: SourcesMatrix,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [workload]")]
pub(crate) struct SourcesWorkload {
    pub(crate) messages: ScenarioSetting<MessageCount>,
}

/// Rows of a table of sources. Each combination has two rows: with one message per connection and
/// with many.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [matrix]")]
pub struct SourcesMatrix {
    #[serde(deserialize_with = "some_values")]
    pub(crate) sessions: Vec<ScenarioSetting<SessionCount>>,
    #[serde(deserialize_with = "some_values")]
    pub recipients: Vec<ScenarioSetting<RecipientCount>>,
}

/// A comparison of programs that measure MADES.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MadesScenario {
    measure: ScenarioSetting<MeasureKind>,
    title: Option<ScenarioSetting<ScenarioTitle>>,
    #[serde(deserialize_with = "some_values")]
    pub parties: Vec<ScenarioSetting<MadesTool>>,
    pub(crate) rounds: Option<ScenarioSetting<RoundCount>>,
    pub order: Option<ScenarioSetting<RoundOrder>>,
    pub(crate) max_time: Option<ScenarioSetting<TimeLength>>,
    pub workload: MadesWorkload,
    pub(crate) matrix: MadesMatrix,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [workload]")]
pub struct MadesWorkload {
    pub(crate) mode: Option<ScenarioSetting<CompareMode>>,
    pub(crate) messages: ScenarioSetting<MessageCount>,
    pub(crate) payload_size: ScenarioSetting<PayloadBytes>,
    pub max_in_transit: Option<ScenarioSetting<SessionCount>>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [matrix]")]
pub(crate) struct MadesMatrix {
    #[serde(deserialize_with = "some_values")]
    pub(crate) windows: Vec<ScenarioSetting<SendWindow>>,
}

/// A measurement of rate and latency at several message sizes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileScenario {
    measure: ScenarioSetting<MeasureKind>,
    title: Option<ScenarioSetting<ScenarioTitle>>,
    #[serde(deserialize_with = "one_value")]
    pub(crate) parties: ScenarioSetting<Contestant>,
    pub(crate) rounds: Option<ScenarioSetting<RoundCount>>,
    pub order: Option<ScenarioSetting<RoundOrder>>,
    #[serde(default)]
    pub(crate) thresholds: Vec<ScenarioSetting<ClosedLoopThreshold>>,
    pub(crate) workload: ProfileWorkload,
    pub(crate) matrix: ProfileMatrix,
}

/// The load of a profile. A run ends after the given number of messages or after the given time,
/// whichever comes first.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [workload]")]
pub(crate) struct ProfileWorkload {
    pub(crate) messages: Option<ScenarioSetting<MessageCount>>,
    pub(crate) duration: Option<ScenarioSetting<TimeLength>>,
    pub(crate) warm_up: Option<ScenarioSetting<TimeLength>>,
    pub(crate) sessions: Option<ScenarioSetting<SessionCount>>,
    pub(crate) reuse: Option<ScenarioSetting<ConnectionMessages>>,
    pub(crate) pipelining: Option<ScenarioSetting<Pipelining>>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [matrix]")]
pub(crate) struct ProfileMatrix {
    #[serde(deserialize_with = "some_values")]
    pub(crate) body_sizes: Vec<ScenarioSetting<BodyBytes>>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LargeMessageScenario {
    measure: ScenarioSetting<MeasureKind>,
    title: Option<ScenarioSetting<ScenarioTitle>>,
    #[serde(deserialize_with = "one_value")]
    pub(crate) parties: ScenarioSetting<Contestant>,
    pub(crate) rounds: Option<ScenarioSetting<RoundCount>>,
    pub order: Option<ScenarioSetting<RoundOrder>>,
    #[serde(default)]
    pub(crate) thresholds: Vec<ScenarioSetting<ClosedLoopThreshold>>,
    pub(crate) workload: LargeMessageWorkload,
    pub(crate) matrix: LargeMessageMatrix,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [workload]")]
pub(crate) struct LargeMessageWorkload {
    /// Total bytes of all messages of a run.
    pub(crate) volume: ScenarioSetting<SpaceBytes>,
}

/// Rows of the table. Each size has a plain row and a row for each cost.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [matrix]")]
pub(crate) struct LargeMessageMatrix {
    #[serde(deserialize_with = "some_values")]
    pub(crate) body_sizes: Vec<ScenarioSetting<BodyBytes>>,
    #[serde(deserialize_with = "some_values")]
    pub(crate) costs: Vec<ScenarioSetting<MessageCost>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Measure {
    Throughput(ThroughputScenario),
    Latency(LatencyScenario),
    Backlog(BacklogScenario),
    Soak(SoakScenario),
    Sources(SourcesScenario),
    SourceCheck(SourcesScenario),
    Mades(MadesScenario),
    Profile(ProfileScenario),
    LargeMessage(LargeMessageScenario),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Text that says what the scenario measures.
    pub title: Option<String>,
    pub measure: Measure,
    /// The values of all keys as they are written in the file. A list contributes all its values.
    pub values: BTreeMap<String, Vec<String>>,
}

/// Default size of messages, the same as for `mailrun bench`.
fn usual_size() -> ScenarioSetting<MessageBytes> {
    ScenarioSetting { value: MessageBytes(400) }
}

/// The keys that decide how the other keys are read.
#[derive(Deserialize)]
struct ScenarioHead {
    measure: ScenarioSetting<MeasureKind>,
    title: Option<ScenarioSetting<ScenarioTitle>>,
}

impl Scenario {
    /// Parses a scenario. An error is the first mistake as one line: `FILE:LINE:COLUMN: words`.
    pub fn read(text: &str, file: &Path) -> Result<Self, String> {
        if text.len() > MAX_BYTES {
            return Err(error_at(text, file, 0, &format!("a scenario has at most {MAX_BYTES} bytes")));
        }
        let has_key = |key: &str| text.parse::<toml::Table>().is_ok_and(|keys| keys.contains_key(key));
        if has_key("command") && !has_key("measure") {
            let name = file.display();
            return Err(format!(
                "{name} is a recipe: name it in the parties of a scenario, or use mailrun bench --relay {name}"
            ));
        }
        let head: ScenarioHead = parse(text, file)?;
        let measure = match head.measure.value {
            MeasureKind::Throughput => Measure::Throughput(parse(text, file)?),
            MeasureKind::Latency => Measure::Latency(parse(text, file)?),
            MeasureKind::Backlog => Measure::Backlog(parse(text, file)?),
            MeasureKind::Soak => Measure::Soak(parse(text, file)?),
            MeasureKind::Sources => Measure::Sources(parse(text, file)?),
            MeasureKind::SourceCheck => Measure::SourceCheck(parse(text, file)?),
            MeasureKind::Mades => Measure::Mades(parse(text, file)?),
            MeasureKind::Profile => Measure::Profile(parse_profile(text, file)?),
            MeasureKind::LargeMessage => Measure::LargeMessage(parse(text, file)?),
        };
        let mut values = BTreeMap::new();
        collect_values(parse(text, file)?, &mut values);
        Ok(Self { title: head.title.map(|title| title.value.0), measure, values })
    }

    /// Returns the kind of measurement as the file spells it.
    pub fn kind(&self) -> String {
        self.values.get("measure").map(|kind| kind.concat()).unwrap_or_default()
    }
}

/// Collects the values of a table and of the tables in it. No kind of measurement uses the same key
/// in two tables, so no value overwrites another.
fn collect_values(table: toml::Table, values: &mut BTreeMap<String, Vec<String>>) {
    for (key, value) in table {
        match value {
            toml::Value::Table(inner) => collect_values(inner, values),
            toml::Value::Array(list) => {
                values.insert(key, list.iter().map(value_text).collect());
            }
            value => {
                values.insert(key, vec![value_text(&value)]);
            }
        }
    }
}

/// Writes a value as users type it on the command line.
fn value_text(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        number => number.to_string(),
    }
}

/// Reads a profile and checks that its runs have an end.
fn parse_profile(text: &str, file: &Path) -> Result<ProfileScenario, String> {
    let scenario: ProfileScenario = parse(text, file)?;
    match (&scenario.workload.messages, &scenario.workload.duration) {
        (None, None) => Err(format!("{}:1:1: [workload] needs the key messages or duration", file.display())),
        _ => Ok(scenario),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SMALL: &str = "measure = \"throughput\"\nparties = [\"mailrun\"]\nrounds = 2\nthresholds = [\"rejected < 1%\"]\n\
                         [workload]\nmessages = 100\nmessage_size = \"1k\"\n";

    fn read(text: &str) -> Result<Scenario, String> {
        Scenario::read(text, Path::new("my.toml"))
    }

    #[test]
    fn values_are_kept_as_they_are_written_and_as_they_are_meant() {
        let Ok(Scenario { title: None, measure: Measure::Throughput(scenario), values }) = read(SMALL) else {
            panic!()
        };
        assert_eq!(
            (values["measure"].concat().as_str(), scenario.parties[0].value.to_string().as_str()),
            ("throughput", "mailrun")
        );
        let size = &scenario.workload.message_size;
        assert_eq!((values["message_size"].concat().as_str(), size.value), ("1k", MessageBytes(1_024)));
        assert_eq!(scenario.rounds.map(|rounds| rounds.value), Some(RoundCount(2)));
        let expected = [("message_size", "1k"), ("messages", "100"), ("rounds", "2"), ("thresholds", "rejected < 1%")];
        assert!(expected.iter().all(|(key, text)| values[*key] == [*text]), "{values:?}");
    }

    #[test]
    fn messages_have_the_size_of_those_of_bench_unless_it_is_written() {
        let Ok(Scenario { measure: Measure::Throughput(usual), .. }) =
            read(&SMALL.replace("message_size = \"1k\"\n", ""))
        else {
            panic!()
        };
        assert_eq!(usual.workload.message_size.value, MessageBytes(400));
    }

    #[test]
    fn a_recipe_is_no_scenario() {
        let error = read("durability = \"sync\"\ncommand = [\"mta\", \"{listen}\", \"{to}\"]\n").unwrap_err();
        let text = "my.toml is a recipe: name it in the parties of a scenario, or use mailrun bench --relay my.toml";
        assert_eq!(error, text);
    }

    #[test]
    fn a_factor_and_a_number_are_said_as_they_are_typed() {
        let soak = SMALL.replace("throughput", "soak").replace("rounds = 2\n", "") + "[targets]\nmemory_growth = 1.0\n";
        let Ok(Scenario { measure: Measure::Soak(soak), values, .. }) = read(&soak) else { panic!() };
        assert_eq!(soak.targets.memory_growth.map(|growth| growth.value), Some(GrowthFactor(1.0)));
        assert_eq!(
            (values["messages"].as_slice(), values["memory_growth"].as_slice()),
            (["100".to_owned()].as_slice(), ["1.0".to_owned()].as_slice())
        );
    }

    #[test]
    fn a_mistake_has_its_place_and_its_remedy() {
        for (from, to, reason) in [
            ("messages = 100", "mesages = 100", "my.toml:6:1: unknown key \"mesages\"; did you mean \"messages\"?"),
            ("messages = 100", "burst = 1", "my.toml:6:1: unknown key \"burst\"; known keys: messages, "),
            ("messages = 100", "messages = 0", "my.toml:6:12: \"0\": must be more than zero"),
            ("messages = 100", "messages = [1]", "my.toml:6:12: invalid type: sequence, expected a number or a text"),
            ("messages = 100\n", "", "the key \"messages\" is missing"),
            ("rounds = 2", "rounds = 1001", "my.toml:3:10: \"1001\" is too large; at most 1000"),
            ("[\"mailrun\"]", "[]", "my.toml:2:11: the list must have at least one value"),
            ("[\"mailrun\"]", "[\"sendmail\"]", "my.toml:2:12: sendmail is not one of mailrun"),
            ("[\"mailrun\"]", "[\"a {to},b\"]", "must not contain a comma"),
            ("parties = [\"mailrun\"]\n", "", "the key \"parties\" is missing"),
            ("throughput", "speed", "my.toml:1:11: \"speed\" is not one of throughput, latency, backlog"),
            ("\"rejected < 1%\"", "\"rejected\"", "my.toml:4:15: "),
            ("[workload]", "[workload", "my.toml:5:"),
            ("\"1k\"", "\"1\"", "my.toml:7:16: \"1\": the size must be between 300 bytes and 64M"),
        ] {
            let error = read(&SMALL.replace(from, to)).expect_err(to);
            assert!(error.contains(reason) && !error.contains('\n'), "{to}: {error}");
        }
        let two = SMALL.replace("throughput", "soak").replace("[\"mailrun\"]", "[\"mailrun\", \"none\"]");
        assert!(read(&two.replace("rounds = 2\n", "")).is_err_and(|error| error.contains("of one relay")));
        assert!(read(&" ".repeat(MAX_BYTES + 1)).is_err_and(|error| error.contains("at most")));
    }

    proptest! {
        #[test]
        fn whatever_is_cut_out_it_is_read_or_refused_in_a_line_with_a_place(from in 0..200_usize, length in 0..40_usize,
                                                                            put in "[a-z0-9\\[\\]\"= \n]{0,12}") {
            let mut text: Vec<char> = SMALL.chars().collect();
            let from = from.min(text.len());
            text.splice(from..(from + length).min(text.len()), put.chars());
            let text: String = text.into_iter().collect();
            crate::checks::scenario::check(text.as_bytes());
        }
    }
}
