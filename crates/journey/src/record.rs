//! The run record, `run.json`: everything a run learned, in the format `mailrun-run/1`.
//!
//! The stable contract: keys are added freely and never changed. A source or a sink writes the same format as
//! a whole run, with the parts it knows; `fold` makes one record of them. Reports read these and nothing else.
pub use crate::mades::{
    Mades, MadesCount, MadesHop, MadesOutage, MadesQueue, MadesStage, MadesTimes, MadesTrouble, MadesTruth,
};
use crate::stage::{Phase, Stage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The format's name and version, the first key of every record.
pub const FORMAT: &str = "mailrun-run/1";

/// A run, or one party's view of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// Always `mailrun-run/1`.
    pub format: String,
    /// 32 hexadecimal digits; the trace of each message carries it.
    pub run_id: String,
    /// What the user called it.
    pub name: String,
    /// UTC, RFC 3339.
    pub started_at: String,
    /// CLOCK_MONOTONIC of `host`, nanoseconds, at second 0 of `series`; a whole second, so that the series of
    /// parties on one host line up.
    pub origin_ns: u64,
    /// From the first message created to the last event.
    pub duration_s: f64,
    /// How long load was offered. Open loop: from when the first message was due to the end of the offer. Closed loop:
    /// from the first message taken up to the end of the last attempt. `null` where nobody offered any.
    #[serde(default)]
    pub offered_s: Option<f64>,
    /// The command line.
    pub command: Vec<String>,
    /// mailrun's version.
    pub version: String,
    /// The commit it was built from, where known.
    pub commit: Option<String>,
    /// Where it ran.
    pub host: Host,
    /// What was offered.
    pub workload: Workload,
    /// Who took part.
    pub parties: Vec<Party>,
    /// When messages reached each stage.
    pub stages: Vec<StageRow>,
    /// How long each phase of the dialogue took.
    pub phases: Vec<PhaseRow>,
    /// TLS handshakes, by party and by what was agreed on; none where there was no TLS.
    #[serde(default)]
    pub tls: Vec<TlsRow>,
    /// Open loop: how late the source itself was with messages that a session was waiting for. What messages waited
    /// for a free session is not in it; that is the latency of the created stage.
    #[serde(default)]
    pub lag_ms: Option<LatencyMs>,
    /// What else happened on the host meanwhile; `null` where nobody looked.
    #[serde(default)]
    pub surroundings: Option<Surroundings>,
    /// Descriptors and ports that ran out, by party; none where all were enough.
    #[serde(default)]
    pub exhausted: Vec<ExhaustedRow>,
    /// Phases that bear the signature of delayed ACKs; none where there was none.
    #[serde(default)]
    pub pauses: Vec<PauseRow>,
    /// What was left out of the figures at the beginning; `null` where nothing was.
    #[serde(default)]
    pub warm_up: Option<WarmUp>,
    /// What only a run over MADES has; `null` for others.
    #[serde(default)]
    pub mades: Option<Mades>,
    /// A row for each second.
    pub series: Vec<SeriesRow>,
    /// Times of a second and more in which messages waited and none was accepted, or over MADES delivered.
    #[serde(default)]
    pub stalls: Vec<StallRow>,
    /// Why the load ended; `null` where nobody offered any, and in older records.
    #[serde(default)]
    pub ending: Option<Ending>,
    /// What became of every (message, recipient).
    pub ledger: LedgerRow,
    /// Replies of 4xx and 5xx, cut connections, time-outs.
    pub errors: Vec<ErrorRow>,
    /// Goals and whether they were met.
    pub thresholds: Vec<ThresholdRow>,
    /// Whether to believe it.
    pub verdict: Verdict,
}

/// TLS handshakes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TlsRow {
    /// Who counted them.
    pub party: String,
    /// `TLSv1.3`.
    pub version: String,
    /// The cipher suite's name.
    pub cipher: String,
    /// How many there were.
    pub handshakes: u64,
    /// How many of them went on from an earlier session.
    pub resumed: u64,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Host {
    /// Operating system, as in `/etc/os-release`.
    pub os: String,
    /// `uname -r`.
    pub kernel: String,
    /// As in `/proc/cpuinfo`.
    pub cpu_model: String,
    /// Online processors.
    pub cores: u32,
    /// Physical memory.
    pub memory_bytes: u64,
}

/// What the host did besides while a run lasted. All of it is host-wide: the counters of TCP are those of the network
/// namespace, whichever listener they concern. `null` is unknown: the kernel does not tell, or the run was too short.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Surroundings {
    /// Processor time that there was: time by processors.
    pub processor_s: Option<f64>,
    /// The share of it (0 to 1) that processes used, kernel included, interrupts left out.
    pub busy_share: Option<f64>,
    /// The share of it that processes used which are neither parties of the run nor the bench; `null` where a server
    /// took part whose use is not known.
    pub other_busy_share: Option<f64>,
    /// The share of it that the hypervisor gave to others.
    pub steal_share: Option<f64>,
    /// Connections that found a listener's queue full (TcpExt ListenOverflows).
    pub listen_overflows: Option<u64>,
    /// SYNs and connections that listeners dropped, those of `listen_overflows` among them (TcpExt ListenDrops).
    pub listen_drops: Option<u64>,
    /// SYNs dropped because the queue of half-open connections was full (TcpExt TCPReqQFullDrop).
    pub syn_drops: Option<u64>,
    /// `net.core.somaxconn`, the longest queue that a listener may have.
    pub somaxconn: Option<u64>,
    /// Bytes that the disk under the run directory wrote, by the device's own count; `null` where no relay kept mail there,
    /// or there is no such device.
    #[serde(default)]
    pub disk_written_bytes: Option<u64>,
}

/// What a party can run out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// The process's descriptors (EMFILE).
    Descriptors,
    /// The host's descriptors (ENFILE).
    HostDescriptors,
    /// Local ports for outgoing connections (EADDRNOTAVAIL).
    Ports,
}

/// What a party ran out of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExhaustedRow {
    /// Who.
    pub party: String,
    /// Of what.
    pub resource: Resource,
    /// How often something failed for the lack of it.
    pub count: u64,
    /// How many there were, where known.
    pub limit: Option<u64>,
    /// How many would have been enough for what it was asked to do, where known.
    pub needed: Option<u64>,
}

/// A phase in which a cluster of times of 38 to 45 ms stands out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PauseRow {
    /// Who timed it.
    pub party: String,
    /// What took so long: at a source, the server's reply; at a sink, the sender's message.
    pub phase: Phase,
    /// Times in the cluster.
    pub count: u64,
    /// All times of the phase.
    pub of: u64,
}

/// Whether the next transaction may start before the last one is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pipelining {
    /// One command at a time.
    #[default]
    Off,
    /// MAIL, RCPT and DATA in one write (RFC 2920).
    Group,
    /// The message and the next MAIL, RCPT and DATA in one write: one round trip a message.
    Stream,
}

/// How messages come to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Arrival {
    /// The next when the last is done: the load waits for the server.
    #[default]
    Closed,
    /// At even distances.
    Constant,
    /// At exponentially distributed distances.
    Poisson,
}

/// A number that varied from message to message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Varied {
    /// The distribution as it was typed: `400..64k`, `lognormal:4k,1.2`, `400:80,64k:20`.
    pub expression: String,
    /// The smallest that could be drawn.
    pub least: f64,
    /// The mean of what is drawn.
    pub mean: f64,
    /// The largest that could be drawn.
    pub most: f64,
}

/// Messages that were ready before the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CorpusRow {
    /// Where they came from.
    pub path: String,
    /// mbox, maildir, directory or message.
    pub kind: String,
    /// How many.
    pub messages: u64,
    /// Their octets together, as SIZE counts them.
    pub bytes: u64,
    /// How many more were not fit to be sent and were left out.
    pub skipped: u64,
}

/// A part of the run with a rate of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OfferedStage {
    /// How long it lasts.
    pub length_s: f64,
    /// Messages a second at its beginning.
    pub from_per_s: f64,
    /// Messages a second at its end; in between the rate changes evenly.
    pub to_per_s: f64,
}

/// The beginning of a run: its messages are in the ledger, and in no rate, latency or duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WarmUp {
    /// How long it lasted.
    pub length_s: f64,
    /// Messages created in it.
    pub created: u64,
    /// How many of these were accepted, then or later.
    pub accepted: u64,
}

/// What was offered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Workload {
    /// Messages asked for; `null` where the run was limited by time alone.
    pub messages: Option<u64>,
    /// Time asked for, where it was limited by time.
    pub duration_limit_s: Option<f64>,
    /// Recipients of each message; the most, where they vary (`recipients_varied`).
    pub recipients: u32,
    /// Parallel sessions.
    pub sessions: u32,
    /// Octets of each message, headers included, before dot-stuffing (as SIZE counts them, RFC 1870); the mean, where
    /// they vary (`sizes_varied`, `corpus`).
    pub message_bytes: u64,
    /// Messages a connection carries; `null` for as many as there are. The most, where they vary (`reuse_varied`).
    pub reuse: Option<u64>,
    /// Whether commands wait for each other.
    pub pipelining: Pipelining,
    /// BDAT in place of DATA (RFC 3030).
    pub chunking: bool,
    /// none, starttls or implicit.
    pub tls: String,
    /// How messages come to be sent.
    pub arrival: Arrival,
    /// Messages a second, at open loop; with `stages` their mean over the time that counts.
    pub rate_per_s: Option<f64>,
    /// smtp, lmtp or mades.
    pub protocol: String,
    /// Where the load went.
    pub target: String,
    /// Seed of everything random.
    pub seed: u64,
    /// Octets of a message, where they vary; `null` where all are equal.
    #[serde(default)]
    pub sizes_varied: Option<Varied>,
    /// Recipients of a message, where they vary.
    #[serde(default)]
    pub recipients_varied: Option<Varied>,
    /// Messages a connection carries, where they vary.
    #[serde(default)]
    pub reuse_varied: Option<Varied>,
    /// How long a session rests after a message, in milliseconds; `null` where it does not.
    #[serde(default)]
    pub think_ms: Option<Varied>,
    /// The sender, or the pattern of senders.
    #[serde(default)]
    pub from: String,
    /// The recipient, or the pattern of recipients.
    #[serde(default)]
    pub rcpt: String,
    /// The messages that were sent, where they were not generated.
    #[serde(default)]
    pub corpus: Option<CorpusRow>,
    /// How many different MIME messages were generated; `null` where plain text was.
    #[serde(default)]
    pub mime_messages: Option<u64>,
    /// The rates that followed each other, at open loop; empty where there was one.
    #[serde(default)]
    pub stages: Vec<OfferedStage>,
    /// The parameters of DSN (RFC 3461) that envelopes had, as `NOTIFY=NEVER RET=HDRS`; `null` where they had none.
    #[serde(default)]
    pub dsn: Option<String>,
}

/// What a party is in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Offers load.
    Source,
    /// Stands between.
    Relay,
    /// Takes mail at the end.
    Sink,
}

/// A process in the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Party {
    /// What it is in the run.
    pub role: Role,
    /// What reports call it.
    pub name: String,
    /// How it was started; empty where it was running already.
    pub command: Vec<String>,
    /// Processor time in user mode; `null` where it could not be seen.
    pub user_s: Option<f64>,
    /// Processor time in the kernel.
    pub sys_s: Option<f64>,
    /// Peak resident memory.
    pub max_rss_bytes: Option<u64>,
    /// Bytes it caused to be written to storage.
    pub write_bytes: Option<u64>,
    /// sync, write, memory or none.
    pub durability: String,
    /// What it was told to do wrong, in its own options' words; empty for honest parties.
    pub faults: Vec<String>,
    /// Threads that carry load.
    pub workers: Option<u32>,
    /// Sessions that ended by a defect of the party's own; `null` where nobody counts them.
    #[serde(default)]
    pub failed_sessions: Option<u64>,
    /// How often it did something wrong because it was told to; `null` for parties that cannot be told to.
    #[serde(default)]
    pub ordered: Option<Ordered>,
    /// How it ended by itself in the middle of the run; `null` for one that did not.
    #[serde(default)]
    pub died: Option<Death>,
}

/// The end of a process that nobody had told to end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Death {
    /// When, in seconds since the load began.
    pub at_s: f64,
    /// By which signal or with which exit status.
    pub how: String,
    /// The last line that it wrote to its standard error; empty where it wrote none.
    pub said: String,
}

/// How often a sink did something wrong because its rules told it to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ordered {
    /// Replies of 4xx and 5xx.
    pub replies: u64,
    /// Connections that it closed or reset.
    pub cuts: u64,
    /// Units whose 250 it kept to itself.
    pub unanswered: u64,
    /// Units that it answered 250 and forgot.
    pub lost: u64,
    /// Units that it counted once more.
    pub duplicates: u64,
    /// Messages that it changed.
    pub corrupt: u64,
}

/// A latency distribution in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyMs {
    /// Smallest.
    pub min: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest.
    pub max: f64,
}

/// A stage of the journey: how many reached it, how fast, how long after `since`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageRow {
    /// Which stage.
    pub name: Stage,
    /// Whose observation it is.
    pub party: String,
    /// Messages that reached it.
    pub count: u64,
    /// Messages that should have and did not, as far as this party knows.
    pub failed: u64,
    /// Message octets that reached it.
    pub bytes: u64,
    /// `count / duration_s`.
    pub rate_per_s: f64,
    /// `bytes / duration_s`.
    pub bytes_per_s: f64,
    /// From the first message created to the last that reached this stage.
    pub duration_s: f64,
    /// `count` over the time in which load was offered (`offered_s` of the record); `null` where nobody offered any.
    #[serde(default)]
    pub offered_rate_per_s: Option<f64>,
    /// The stage that latency counts from; `null` where no latency is known (no traces).
    pub since: Option<Stage>,
    /// Latency since `since`; `null` where unknown.
    pub latency_ms: Option<LatencyMs>,
    /// The same as an HdrHistogram of nanoseconds (V2, deflated, base64), as it stands in interval logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<String>,
}

/// A phase of the dialogue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PhaseRow {
    /// Which phase.
    pub name: Phase,
    /// How often.
    pub count: u64,
    /// How long.
    pub latency_ms: LatencyMs,
    /// The same as an HdrHistogram of nanoseconds (V2, deflated, base64), as it stands in interval logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<String>,
}

/// A time in which messages waited and none reached a stage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StallRow {
    /// The stage that none reached: accepted, or over MADES delivered too.
    #[serde(default = "accepted")]
    pub stage: Stage,
    /// When the last message before it got there, in seconds since the run began.
    pub from_s: f64,
    /// When the first message after it got there, or the load ended.
    pub to_s: f64,
    /// Whether it lasted until the load ended.
    pub to_the_end: bool,
    /// Messages that the server refused (4xx, 5xx) meanwhile.
    pub rejected: u64,
    /// Messages whose connection failed meanwhile.
    pub failed: u64,
}

impl Default for StallRow {
    fn default() -> Self {
        Self { stage: accepted(), from_s: 0.0, to_s: 0.0, to_the_end: false, rejected: 0, failed: 0 }
    }
}

/// The stage of a stall in records that name none.
fn accepted() -> Stage {
    Stage::Accepted
}

/// Why the load ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// All was offered that was asked for.
    Complete,
    /// SIGINT or SIGTERM.
    Interrupted,
    /// The server was gone for as long as `--give-up` allows.
    GaveUp,
    /// A threshold of `--abort-on` was missed.
    Aborted,
    /// A server that the bench had started ended by itself.
    ServerEnded,
    /// The sink ended, or answered no more.
    SinkEnded,
}

/// One second of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeriesRow {
    /// Seconds since `origin_ns`; the first and the last may be part seconds.
    pub second: u64,
    /// Messages handed over in it.
    pub sent: u64,
    /// Messages accepted in it.
    pub accepted: u64,
    /// Messages delivered in it.
    pub delivered: u64,
    /// Accepted and not yet delivered at its end.
    pub queued: u64,
    /// Errors in it.
    pub errors: u64,
    /// Median latency to the last stage this party sees; 0 where nothing arrived.
    pub p50_ms: f64,
    /// 99th percentile likewise.
    pub p99_ms: f64,
}

/// What became of every (message, recipient). `null` is unknown: nobody watched that end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerRow {
    /// Units that a session took up.
    pub created: Option<u64>,
    /// Units that the source heard 250 for.
    pub accepted: Option<u64>,
    /// Distinct units that reached the sink.
    pub delivered: Option<u64>,
    /// Units that the server refused with 4xx or 5xx, and that did not arrive. In records without `failed` those that
    /// failed are among them.
    pub rejected: Option<u64>,
    /// Units whose connection was refused, cut or timed out, and that did not arrive.
    #[serde(default)]
    pub failed: Option<u64>,
    /// Units that a relay gave up on and said so.
    pub expired: Option<u64>,
    /// Units that did not arrive because they are in the queue of our relay.
    #[serde(default)]
    pub queued: Option<u64>,
    /// Units accepted and gone.
    pub lost: Option<u64>,
    /// Units whose fate was open when the run ended.
    pub in_flight: Option<u64>,
    /// Arrivals of a unit after its first.
    pub duplicates: Option<u64>,
    /// Arrivals whose checksum did not fit.
    pub corrupt: Option<u64>,
    /// Arrivals that a relay made 7-bit for a server without 8BITMIME, and whose checksum fits what they were.
    pub converted: Option<u64>,
    /// Arrivals that are not of this run: another run's trace, or none.
    pub foreign: Option<u64>,
    /// Arrivals without a usable creation time (another host's clock), so without a latency.
    pub untimed: Option<u64>,
    /// Units that a ledger had no room for: their fates are unknown.
    pub overflow: Option<u64>,
}

/// A kind of error and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorRow {
    /// Where in the dialogue.
    pub phase: Phase,
    /// Reply code; 0 where there was no reply.
    pub code: u16,
    /// The first reply text seen, or what happened.
    pub text: String,
    /// How often.
    pub count: u64,
}

/// A threshold, and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThresholdRow {
    /// As typed.
    pub expression: String,
    /// Its limit, in `unit`.
    #[serde(default)]
    pub limit: Option<f64>,
    /// What was measured, in `unit`; `null` where it could not be seen.
    pub value: Option<f64>,
    /// How far the value is on the good side of the limit, in `unit`; negative where it was missed.
    #[serde(default)]
    pub margin: Option<f64>,
    /// ms, /s, % or empty for a number.
    #[serde(default)]
    pub unit: String,
    /// Whether it holds.
    pub passed: bool,
}

/// What a run came to, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// All that was asked for was seen.
    Pass,
    /// Mail was lost, doubled, changed, refused or given up beyond what was granted, or a threshold was missed.
    Fail,
    /// The figures are not the server's: the generator, the sink or the host was the limit.
    Invalid,
    /// What was asked for could not be seen.
    Inconclusive,
}

/// What a reason of the verdict is about. The order is that of their weight: the first decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Sessions of source or sink that ended by a defect of mailrun's own.
    Defect,
    /// The books contradict each other, or do not hold all.
    Unaccounted,
    /// A process that the bench had started ended by itself.
    Died,
    /// Accepted and gone.
    Lost,
    /// Arrived more than once.
    Duplicates,
    /// Arrived changed.
    Corrupt,
    /// A stage that messages never reached, and nobody said why (MADES).
    Missing,
    /// The server went away.
    ServerGone,
    /// Connections refused, cut, timed out.
    Failed,
    /// Replies of 4xx and 5xx.
    Rejected,
    /// A relay gave up on it and said so.
    Expired,
    /// Not one message was accepted, or over MADES delivered.
    NothingAccepted,
    /// The server did not take the rate that was asked for.
    RateMissed,
    /// Sessions of our relay that ended by a defect of its own.
    RelayDefect,
    /// The generator did not offer the rate that was asked for.
    RateNotOffered,
    /// The generator fell behind its schedule.
    Late,
    /// Source or sink used all of its processor time.
    Busy,
    /// Descriptors or ports ran out.
    Exhausted,
    /// The hypervisor gave the processors to others.
    Stolen,
    /// All messages were created in the warm-up.
    NothingTimed,
    /// A threshold was missed.
    ThresholdMissed,
    /// The sink went away.
    SinkGone,
    /// A threshold speaks of what nobody saw.
    ThresholdUnseen,
    /// Mail that is in the relay's queue, or was in flight at the end.
    Unfinished,
    /// The user ended the run.
    Interrupted,
    /// It went wrong because the user ordered it.
    Ordered,
    /// The server accepted nothing for a while.
    Stalled,
    /// Worth knowing.
    Remark,
}

/// Whether to believe the run, and what it came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// What it came to; `null` for a sink or a relay by itself, and in older records.
    #[serde(default)]
    pub outcome: Option<Outcome>,
    /// Why, in a sentence.
    #[serde(default)]
    pub why: String,
    /// The fates sum to what was created, nothing is lost, doubled or corrupt, and delivery was observed.
    pub closed: bool,
    /// Neither the generator nor the sink was the limit of what is being claimed.
    pub valid: bool,
    /// Why not, and what a reader must know, in whole sentences, the weightiest first.
    pub reasons: Vec<String>,
    /// What each of them is about, in the same order; empty in older records.
    #[serde(default)]
    pub causes: Vec<Cause>,
}
