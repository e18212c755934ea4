//! The run record, `run.json`: everything a run learned, in the format `mailrun-run/1`.
//!
//! This format is a stable contract: keys are added freely and never changed. A source or a sink
//! writes the same format as a whole run, with the parts that it knows. `merge::merge_records`
//! joins these records into one. Reports read only records.
pub use crate::audit::{Audit, AuditLoss, AuditRow, MAX_LOSSES};
pub use crate::mades::{
    AcknowledgementSender, Mades, MadesAcknowledgements, MadesBroker, MadesCount, MadesHop, MadesMarket, MadesNoCredit,
    MadesOutage, MadesQueue, MadesShape, MadesTimes, MadesTrouble, MadesTruth, MadesWindow,
};
use crate::stage::{Phase, Stage};
use serde::{Deserialize, Serialize};

/// Name and version of the format, which are the first key of every record.
pub const FORMAT: &str = "mailrun-run/1";

#[cfg(feature = "schema")]
#[must_use]
pub fn schema() -> String {
    format!("{:#}\n", schemars::schema_for!(Record).to_value())
}

/// A run, or one party's view of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Record {
    /// Always `mailrun-run/1`.
    pub format: String,
    /// 32 hexadecimal digits; the trace of each message carries it.
    pub run_id: String,
    /// Name given by the user.
    pub name: String,
    /// UTC, RFC 3339.
    pub started_at: String,
    /// CLOCK_MONOTONIC of `host`, nanoseconds, at second 0: the moment at which the load began. All times of the record count
    /// from it. A sink, which cannot know that moment, begins a whole number of seconds before or after it.
    pub origin_ns: u64,
    /// The same in UTC, RFC 3339, by the host's clock.
    pub zero_at: String,
    /// From the first message created to the last event.
    pub duration_s: f64,
    /// End of the observation, in seconds since `origin_ns`: messages that did not arrive were waited for until then.
    pub observed_until_s: Option<f64>,
    /// Time in which load was offered. Open loop: from the time at which the first message was due to the end of the
    /// offer. Closed loop: from the first message taken up to the end of the last attempt. `null` if no load was
    /// offered.
    pub offered_s: Option<f64>,
    /// Messages that were due after the warm-up and before the planned end of the load, sent or not; `null` at closed loop.
    /// Those that were never sent count as late.
    pub due: Option<u64>,
    /// The command line.
    pub command: Vec<String>,
    /// mailrun's version.
    pub version: String,
    /// The commit that it was built from, if known.
    pub commit: Option<String>,
    /// The machine that it ran on.
    pub host: Host,
    /// Clock of `origin_ns`.
    pub clock: Option<ClockRow>,
    /// The load that was offered.
    pub workload: Workload,
    /// The part of a load that this is, where several machines sent it; `null` for a whole run.
    pub shard: Option<ShardRow>,
    /// The server's description of itself on the test connection; `null` if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerRow>,
    /// Processes that took part.
    pub parties: Vec<Party>,
    /// Messages that reached each stage, with their times.
    pub stages: Vec<StageRow>,
    /// The same for each stage of the load, of the first 63; empty without stages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load_stages: Vec<LoadStageRow>,
    /// Duration of each phase of the dialogue.
    pub phases: Vec<PhaseRow>,
    /// TLS handshakes, by party and by what was agreed on; empty without TLS.
    pub tls: Vec<TlsRow>,
    /// Open loop: delay of messages by the source itself while a session was waiting for them. The time that messages
    /// waited for a free session is not in it; that is the latency of the created stage.
    pub lag_ms: Option<LatencyMs>,
    /// Other activity on the host during the run; `null` if it was not observed.
    pub surroundings: Option<Surroundings>,
    /// Descriptors and ports that ran out, by party; empty if all were enough.
    pub exhausted: Vec<ExhaustedRow>,
    /// Phases that have the signature of delayed ACKs; empty if there were none.
    pub pauses: Vec<PauseRow>,
    /// The part at the beginning that the figures leave out; `null` if there was none.
    pub warm_up: Option<WarmUp>,
    /// When the server delivered at its full rate again, after its next hop had held mail back; missing unless the bench
    /// had it do so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// The part that only a run over MADES has; `null` for others.
    pub mades: Option<Mades>,
    /// The part that only an audit of a server has; `null` for other runs.
    pub audit: Option<Audit>,
    /// A row for each second.
    pub series: Vec<SeriesRow>,
    /// Processor time and memory of each party by second; empty if they were not observed.
    pub usage: Vec<PartyUsage>,
    /// Changes during the run that explain its figures, in the order of time.
    pub events: Vec<EventRow>,
    /// The slowest accepted messages, over MADES those that took longest to arrive, the slowest first, at most 50.
    pub slowest: Vec<SlowMessage>,
    /// Messages that were rejected or failed, or that the sink has not seen, at most 1000.
    pub missing: Vec<MissingMessage>,
    /// The ledger by domain of the recipients, the largest first; empty if there was only one.
    pub domains: Vec<DomainRow>,
    /// Times of a second and more in which messages waited and none was accepted, or over MADES delivered.
    pub stalls: Vec<StallRow>,
    /// Reason why the load ended; `null` if no load was offered.
    pub ending: Option<Ending>,
    /// Fate of every (message, recipient).
    pub ledger: LedgerRow,
    /// Reasons of bounced units by status code, the most frequent first; empty if nothing bounced.
    pub bounces: Vec<BounceRow>,
    /// Addresses under which mail arrived that the source had not named, the most frequent first, at most 1001; empty if
    /// servers told of none.
    pub rewrites: Vec<RewriteRow>,
    /// Replies of 4xx and 5xx, cut connections, time-outs.
    pub errors: Vec<ErrorRow>,
    /// Goals, and whether they were reached.
    pub thresholds: Vec<ThresholdRow>,
    /// Outcome of the run, and its validity.
    pub verdict: Verdict,
}

impl Record {
    pub fn from_json(json: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(json)
    }

    /// Writes `run.json` without a line end. In practice, this never fails, because everything in a
    /// record can be written as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// Returns the row of a stage, under its name or under the one that it has over MADES ([`stage_named`]).
    pub fn stage(&self, name: Stage) -> Option<&StageRow> {
        stage_named(&self.stages, name)
    }

    /// Returns the row of a phase, if it occurred.
    pub fn phase(&self, name: Phase) -> Option<&PhaseRow> {
        self.phases.iter().find(|row| row.name == name)
    }

    /// Returns the record of a run in which nothing has happened.
    pub fn empty() -> Self {
        Self { format: FORMAT.to_owned(), ..Self::default() }
    }
}

/// The clock that the times of a record were read from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClockRow {
    /// The boot of the host, 8 hexadecimal digits: times of one boot can be compared exactly.
    pub boot: String,
    /// Unix time minus CLOCK_MONOTONIC, in nanoseconds, by the host's own clock: it joins times of several hosts, as exactly
    /// as their clocks agree.
    pub unix_offset_ns: u64,
    /// Clocks of sinks on other hosts, as this one measured them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sinks: Vec<SinkClockRow>,
}

/// Clock of a sink's host, measured from another host by an exchange of messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SinkClockRow {
    /// The boot of the sink's host, as in its own record.
    pub boot: String,
    /// The sink's Unix time minus this host's, in nanoseconds, by the exchange with the shortest round trip.
    pub difference_ns: i64,
    /// The most by which the difference may be wrong: half of that round trip, and what the difference changed from before
    /// the load to after it.
    pub error_ns: u64,
    /// Number of exchanges.
    pub exchanges: u32,
    /// The most by which the clocks differ by chrony's estimates of both hosts, where that is less than by the exchange: then it
    /// counts as the error of times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chrony_bound_ns: Option<u64>,
}

/// The part of a load that one of several machines sent (`--shard`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShardRow {
    /// Number of the part, from 0.
    pub index: u32,
    /// Number of all parts.
    pub count: u32,
    /// Identity of the plan, 64 hexadecimal digits: parts of one run have the same.
    pub plan: String,
    /// Time at which all parts were to begin, RFC 3339.
    pub start_at: String,
    /// Time at which this part began, in seconds since `origin_ns` of the record.
    pub began_s: f64,
    /// Time by which that was too late, by the clock of its host.
    pub late_s: f64,
    /// Number of its first message.
    pub first_message: u64,
    /// Number of its messages; `null` if time ended the run.
    pub messages: Option<u64>,
    /// The load of all parts together.
    pub workload: Workload,
    /// Thresholds that all parts together must meet.
    pub thresholds: Vec<String>,
    /// `lag_ms` as an HdrHistogram of nanoseconds (V2, deflated, base64); `null` if nothing was measured.
    pub lag_histogram: Option<String>,
}

/// A server's description of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServerRow {
    /// Text of its greeting.
    pub banner: String,
    /// Keywords of its reply to EHLO with their parameters; with TLS those that it sent over TLS.
    pub extensions: Vec<String>,
}

/// TLS handshakes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TlsRow {
    /// Party that counted them.
    pub party: String,
    /// Version, such as `TLSv1.3`.
    pub version: String,
    /// The cipher suite's name.
    pub cipher: String,
    /// Number of handshakes.
    pub handshakes: u64,
    /// Number of resumed sessions among them.
    pub resumed: u64,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Host {
    /// Operating system, as in `/etc/os-release`.
    pub os: String,
    /// Kernel release, as `uname -r` prints it.
    pub kernel: String,
    /// Processor, as in `/proc/cpuinfo`.
    pub cpu_model: String,
    /// Online processors.
    pub cores: u32,
    /// Physical memory.
    pub memory_bytes: u64,
    /// The disk under the run directory; of a relay that under its spool. `null` without a directory.
    pub disk: Option<HostDisk>,
    /// Whether the processors were kept from sleeping during the run (`--keep-awake`); `null` is unknown.
    pub keep_awake: Option<KeepAwake>,
}

/// Whether the processors of a host were kept from sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum KeepAwake {
    /// `/dev/cpu_dma_latency` was held at 0, by mailrun or by another program.
    On,
    /// They slept when they were idle.
    Off,
    /// The same, because mailrun may not write that file, or the file is not there.
    Unavailable,
}

impl KeepAwake {
    pub fn words(self) -> &'static str {
        match self {
            Self::On => "processors kept awake",
            Self::Off => "processors may sleep",
            Self::Unavailable => "processors may sleep (--keep-awake unavailable)",
        }
    }
}

/// The disk under a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostDisk {
    /// File system, as in `/proc/self/mountinfo`: ext4, xfs, tmpfs.
    pub file_system: String,
    /// Block device of the file system; `null` if it has none, as in memory or on a network.
    pub device: Option<String>,
    /// Model of the disk, as in `/sys/block`; `null` if it is unknown.
    pub model: Option<String>,
    /// True for a disk with moving parts; `null` if it is unknown, as in a virtual machine.
    pub rotational: Option<bool>,
}

/// Other activity on the host during a run. All of it is host-wide: the counters of TCP belong to the network
/// namespace, whichever listener they concern. `null` is unknown: the kernel does not report it, or the run was too
/// short.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Surroundings {
    /// Available processor time: duration times processors.
    pub processor_s: Option<f64>,
    /// The share of it (0 to 1) that processes used, kernel included, interrupts left out.
    pub busy_share: Option<f64>,
    /// The share of it used by processes that are neither parties of the run nor the bench; `null` if a server took
    /// part whose use is not known.
    pub other_busy_share: Option<f64>,
    /// The share of it that the hypervisor gave to others.
    pub steal_share: Option<f64>,
    /// Connections that found a listener's queue full (TcpExt ListenOverflows).
    pub listen_overflows: Option<u64>,
    /// SYNs and connections that listeners dropped, `listen_overflows` among them (TcpExt ListenDrops).
    pub listen_drops: Option<u64>,
    /// SYNs dropped because the queue of half-open connections was full (TcpExt TCPReqQFullDrop).
    pub syn_drops: Option<u64>,
    /// `net.core.somaxconn`, the longest queue that a listener may have.
    pub somaxconn: Option<u64>,
    /// Bytes that the disk under the run directory wrote, by the device's own count; `null` if no relay kept mail
    /// there, or there is no such device.
    pub disk_written_bytes: Option<u64>,
    /// Available processor time while the source ran: its duration times processors.
    pub load_processor_s: Option<f64>,
    /// The share of it that was not idle, interrupts and steal included.
    pub used_share: Option<f64>,
    /// Processes of this host that used processor time while the source ran, without the processes of the run itself,
    /// by name, the busiest first, at most 8. A server under test on this host is among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<HostProcess>,
    /// What foreign programs did while load was offered, and how long the parties waited for a processor; `null` if nobody
    /// observed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreign: Option<ForeignLoad>,
}

/// Programs that belong neither to the run nor to the server under test, and what the parties of the run had to wait for a
/// processor. The verdict excuses a missed threshold by these figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ForeignLoad {
    /// Share (0 to 1) of the available processor time that these programs used; `null` if they cannot be told from the
    /// server.
    pub share: Option<f64>,
    /// Why they cannot be told from the server; empty if they can.
    pub unknown: String,
    /// The server is on another host, so its processors are others, and its waits are not known.
    pub server_elsewhere: bool,
    /// Length of a row of `waits`.
    pub window_s: f64,
    /// The time in which load was offered, in rows of `window_s`.
    pub waits: Vec<WaitRow>,
}

/// Times in which source, sink and server could have run and waited for a processor, by the kernel's account
/// (`/proc/PID/task/TID/schedstat`). Of several processes of one name, and of several threads, the one that waited longest
/// counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitRow {
    /// Sum of these times, at most the length of the row.
    pub waited_ms: f64,
}

/// Processes of one name that are not the run's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostProcess {
    /// Name of the command, as in `/proc/PID/stat`.
    pub name: String,
    /// Number of processes.
    pub processes: u64,
    /// Processor time, including children that ended.
    pub processor_s: f64,
    /// Resident memory at the end, of all together; what they share counts for each.
    pub rss_bytes: u64,
    /// They certainly belong neither to the run nor to the server under test; see `foreign` of the surroundings.
    pub foreign: bool,
}

/// Resources that a party can run out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// The process's descriptors (EMFILE).
    Descriptors,
    /// The host's descriptors (ENFILE).
    HostDescriptors,
    /// Local ports for outgoing connections (EADDRNOTAVAIL).
    Ports,
}

/// A resource that a party ran out of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExhaustedRow {
    /// Name of the party.
    pub party: String,
    /// The resource.
    pub resource: Resource,
    /// Number of failures for lack of it.
    pub count: u64,
    /// Amount that was available, if known.
    pub limit: Option<u64>,
    /// Amount that would have been enough for the requested load, if known.
    pub needed: Option<u64>,
}

/// A phase in which a cluster of times of 38 to 45 ms stands out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PauseRow {
    /// Party that timed it.
    pub party: String,
    /// The slow phase: at a source, the server's reply; at a sink, the sender's message.
    pub phase: Phase,
    /// Times in the cluster.
    pub count: u64,
    /// All times of the phase.
    pub of: u64,
}

/// Sending of the next transaction before the last one is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Pipelining {
    /// One command at a time.
    #[default]
    Off,
    /// MAIL, RCPT and DATA in one write (RFC 2920).
    Group,
    /// The message and the next MAIL, RCPT and DATA in one write: one round trip per message.
    Stream,
}

/// Timing of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Arrival {
    /// Each message starts when the last one is done: the load waits for the server.
    #[default]
    #[cfg_attr(feature = "clap", value(skip))]
    Closed,
    /// At constant intervals.
    Constant,
    /// At exponentially distributed intervals.
    Poisson,
    /// At the times of a market's documents (`mades.market`).
    #[cfg_attr(feature = "clap", value(skip))]
    Market,
}

/// A number that varied from message to message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Varied {
    /// The distribution as it was typed: `400..64k`, `lognormal:4k,1.2`, `400:80,64k:20`.
    pub expression: String,
    /// The smallest value that could be drawn.
    pub least: f64,
    /// The mean of the drawn values.
    pub mean: f64,
    /// The largest value that could be drawn.
    pub most: f64,
}

/// Messages that existed before the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CorpusRow {
    /// Path that they were read from.
    pub path: String,
    /// mbox, maildir, directory or message.
    pub kind: String,
    /// Number of messages.
    pub messages: u64,
    /// Bytes of all of them, as SIZE counts them.
    pub bytes: u64,
    /// Number of further messages that were unfit to be sent and left out.
    pub skipped: u64,
}

/// A part of the run with a rate of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OfferedStage {
    /// Name given by the user; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Length of the stage.
    pub length_s: f64,
    /// Messages per second at its beginning.
    pub from_per_s: f64,
    /// Messages per second at its end; in between the rate changes linearly.
    pub to_per_s: f64,
}

impl OfferedStage {
    /// Returns the name by which thresholds name the stage at a place in the load, counted from 0.
    pub fn name_at(&self, place: usize) -> String {
        self.name.clone().unwrap_or_else(|| (place + 1).to_string())
    }
}

/// The account of the messages that were due in a stage of the load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoadStageRow {
    /// Number of the stage in `workload.stages`, from 1.
    pub number: u32,
    /// Its name, or its number if it has none.
    pub name: String,
    /// Seconds since `origin_ns` at which it began.
    pub begin_s: f64,
    /// Seconds since `origin_ns` at which it ended.
    pub end_s: f64,
    /// Messages that were due in it after the warm-up, sent or not.
    pub due: Option<u64>,
    /// Its messages that reached each stage of their way, with their times.
    pub stages: Vec<StageRow>,
    /// Fate of each (message, recipient) that was due in it, with the fates of the warm-up; fates that are known only
    /// for the whole run are `null`.
    pub ledger: LedgerRow,
}

/// The beginning of a run: its messages are in the ledger, and in no rate, latency or duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WarmUp {
    /// Length of the warm-up.
    pub length_s: f64,
    /// Messages created in it.
    pub created: u64,
    /// Number of these that were accepted, then or later.
    pub accepted: u64,
}

/// Recovery of a server after its next hop had held mail back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Recovery {
    /// Time at which the next hop held back no more, in seconds since `origin_ns`.
    pub back_s: f64,
    /// Deliveries per second at the full rate: half of the mail was delivered in seconds at least as fast.
    pub full_rate_per_s: f64,
    /// From `back_s` to the first second with at least 90 % of the full rate; 0 if it is the second of `back_s`.
    pub after_s: f64,
}

/// The load that was offered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Workload {
    /// Messages requested; `null` if the run was limited by time alone.
    pub messages: Option<u64>,
    /// Time requested, if the run was limited by time.
    pub duration_limit_s: Option<f64>,
    /// Recipients of each message; the maximum, if they vary (`recipients_varied`).
    pub recipients: u32,
    /// Parallel sessions.
    pub sessions: u32,
    /// Bytes of each message, headers included, before dot-stuffing (as SIZE counts them, RFC 1870); the mean, if they
    /// vary (`sizes_varied`, `corpus`).
    pub message_bytes: u64,
    /// Messages per connection; `null` for no limit. The maximum, if they vary (`reuse_varied`).
    pub reuse: Option<u64>,
    /// Sending of commands before replies.
    pub pipelining: Pipelining,
    /// BDAT in place of DATA (RFC 3030).
    pub chunking: bool,
    /// none, starttls or implicit.
    pub tls: String,
    /// Timing of messages.
    pub arrival: Arrival,
    /// Messages per second, at open loop; with `stages` their mean over the time that counts.
    pub rate_per_s: Option<f64>,
    /// smtp, lmtp or mades.
    pub protocol: String,
    /// Address that the load went to.
    pub target: String,
    /// Seed of all random values.
    pub seed: u64,
    /// Bytes of a message, if they vary; `null` if all are equal.
    pub sizes_varied: Option<Varied>,
    /// Recipients of a message, if they vary.
    pub recipients_varied: Option<Varied>,
    /// Messages per connection, if they vary.
    pub reuse_varied: Option<Varied>,
    /// Pause of a session after a message, in milliseconds; `null` if there is none.
    pub think_ms: Option<Varied>,
    /// The sender, or the pattern of senders.
    pub from: String,
    /// The recipient, or the pattern of recipients.
    pub rcpt: String,
    /// The messages that were sent, if they were not generated.
    pub corpus: Option<CorpusRow>,
    /// Number of different MIME messages that were generated; `null` if plain text was.
    pub mime_messages: Option<u64>,
    /// The rates that followed each other, at open loop; empty if there was only one.
    pub stages: Vec<OfferedStage>,
    /// The parameters of DSN (RFC 3461) in envelopes, as `NOTIFY=NEVER RET=HDRS`; `null` if there were none.
    pub dsn: Option<String>,
}

/// Roles of a party in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Offers load.
    Source,
    /// Receives mail and forwards it.
    Relay,
    /// Receives mail at the end.
    Sink,
}

impl Role {
    /// Returns the name in reports and file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Relay => "relay",
            Self::Sink => "sink",
        }
    }
}

/// A process in the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Party {
    /// Role in the run.
    pub role: Role,
    /// Name in reports.
    pub name: String,
    /// Command that started it; empty if it was running already.
    pub command: Vec<String>,
    /// Processor time in user mode; `null` if it could not be measured.
    pub user_s: Option<f64>,
    /// Processor time in the kernel.
    pub sys_s: Option<f64>,
    /// Peak resident memory.
    pub max_rss_bytes: Option<u64>,
    /// Bytes it caused to be written to storage.
    pub write_bytes: Option<u64>,
    /// sync, write, memory or none.
    pub durability: String,
    /// Faults that were requested with its options; empty without faults.
    pub faults: Vec<String>,
    /// Threads that carry load.
    pub workers: Option<u32>,
    /// Sessions that ended by a defect of the party itself; `null` if they are not counted.
    pub failed_sessions: Option<u64>,
    /// Number of faults that it made because they were ordered; `null` for parties that cannot take such orders.
    pub ordered: Option<Ordered>,
    /// Its own end in the middle of the run; `null` if it did not end.
    pub died: Option<Death>,
    /// Busy polling of its workers; `null` if it was off.
    pub busy_poll: Option<BusyPollRow>,
    /// Processors that it was placed on, such as 0,2-3; `null` if it was not placed.
    pub cpus: Option<String>,
    /// Delay with which the workers of a source ran after timers that they set to learn this; `null` if it was not measured.
    pub wake_up_ms: Option<LatencyMs>,
    /// Observations and actions of a sink besides taking mail of the run; `null` for other parties.
    pub reception: Option<Reception>,
}

impl Party {
    /// Creates a party of which only the role and the name are known.
    pub fn new(role: Role, name: &str) -> Self {
        Self {
            role,
            name: name.to_owned(),
            command: Vec::new(),
            user_s: None,
            sys_s: None,
            max_rss_bytes: None,
            write_bytes: None,
            durability: "none".to_owned(),
            faults: Vec::new(),
            workers: None,
            failed_sessions: None,
            ordered: None,
            died: None,
            busy_poll: None,
            cpus: None,
            wake_up_ms: None,
            reception: None,
        }
    }

    /// Returns the processor time of the party's work, user and system. The time in which its
    /// workers looked for events in vain is left out.
    pub fn work_s(&self) -> Option<f64> {
        let used_s = self.user_s? + self.sys_s?;
        let looked_s = self.busy_poll.as_ref().map_or(0.0, |row| row.looked_s);
        Some((used_s - looked_s).max(0.0))
    }
}

/// Busy polling of the workers of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BusyPollRow {
    /// Time for which a worker looks before it sleeps, such as 50us.
    pub mode: String,
    /// Time that its workers spent in looking for events. It is part of `user_s` and `sys_s`, and left out of the processor
    /// time of a message and of the test whether the source or the sink was the limit.
    pub looked_s: f64,
}

/// The end of a process that was not told to end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Death {
    /// Time, in seconds since the load began.
    pub at_s: f64,
    /// Signal or exit status.
    pub how: String,
    /// The last line that it wrote to its standard error; empty if it wrote none.
    pub said: String,
    /// It lacked memory: an allocation failed, or the kernel killed it for that reason.
    pub out_of_memory: bool,
}

/// Observations and actions of a sink besides taking mail of the run, since the run began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reception {
    /// Connections of clients, whoever they were.
    pub connections: u64,
    /// Connections that have ended, by the last command of the client.
    pub ended: Vec<EndedRow>,
    /// Messages without a readable trace, which may be mail of the run whose header was removed.
    pub untraced: u64,
    /// `From` of the first of these messages; `null` if it had none.
    pub untraced_from: Option<String>,
    /// `Subject` of the first of these messages; `null` if it had none.
    pub untraced_subject: Option<String>,
    /// Rules that rejected, delayed, dropped or changed mail, or cut connections.
    pub rules: Vec<RuleRow>,
    /// How the sink watched mailboxes; `null` if it listened.
    pub mailboxes: Option<Watched>,
}

/// How a sink watched mailboxes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Watched {
    /// Number of mailboxes.
    pub count: u64,
    /// Mailboxes whose server tells of messages by itself (IDLE).
    pub idle: u64,
    /// Longest interval at which the other mailboxes were asked for messages, in milliseconds; `null` if
    /// there are none. Announced and delivered are exact only to this interval.
    pub poll_ms: Option<f64>,
    /// Whether messages were fetched whole, and their bodies checked.
    pub whole: bool,
    /// Sessions that broke and were made again.
    pub broken: u64,
    /// Messages of the run that were deleted because the user asked for it.
    pub deleted: u64,
    /// Mailboxes that were not open at the end, because their session broke and none could be made again yet.
    /// Missing mail may be in them.
    pub closed: u64,
    /// Times that a mailbox was numbered anew (UIDVALIDITY), so that messages which came while no session was
    /// open were not seen.
    pub renumbered: u64,
}

impl Watched {
    /// Returns true if the mailboxes may hold mail that the sink has not seen.
    pub fn may_hide_mail(&self) -> bool {
        self.closed > 0 || self.renumbered > 0
    }
}

/// Connections that ended after the same command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EndedRow {
    /// Phase of the last command.
    pub phase: Phase,
    /// Number of connections.
    pub count: u64,
}

/// A rule of a sink, and how often it acted during the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RuleRow {
    /// The rule as it was given.
    pub rule: String,
    /// Number of commands, messages or recipients on which it acted.
    pub count: u64,
}

/// Number of faults that a sink made because its rules ordered them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ordered {
    /// Replies of 4xx and 5xx.
    pub replies: u64,
    /// Connections that it closed or reset.
    pub cuts: u64,
    /// Units whose 250 it did not send.
    pub unanswered: u64,
    /// Units that it answered 250 and dropped.
    pub lost: u64,
    /// Units that it counted twice.
    pub duplicates: u64,
    /// Messages that it changed.
    pub corrupt: u64,
}

impl Ordered {
    /// Returns the faults that were made after `before` was counted.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            replies: self.replies.saturating_sub(before.replies),
            cuts: self.cuts.saturating_sub(before.cuts),
            unanswered: self.unanswered.saturating_sub(before.unanswered),
            lost: self.lost.saturating_sub(before.lost),
            duplicates: self.duplicates.saturating_sub(before.duplicates),
            corrupt: self.corrupt.saturating_sub(before.corrupt),
        }
    }
}

/// A latency distribution in milliseconds. A figure is `null` (infinite in memory) if it falls among messages that never
/// came, or came after their time-out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LatencyMs {
    /// Smallest.
    #[serde(deserialize_with = "or_infinite")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    pub min: f64,
    /// Arithmetic mean.
    #[serde(deserialize_with = "or_infinite")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    pub mean: f64,
    /// Median.
    #[serde(deserialize_with = "or_infinite")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    pub p50: f64,
    /// 90th percentile.
    #[serde(deserialize_with = "or_infinite")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    pub p90: f64,
    /// 95th percentile.
    #[serde(deserialize_with = "or_infinite")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    pub p95: f64,
    /// 99th percentile.
    #[serde(deserialize_with = "or_infinite")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    pub p99: f64,
    /// 99.9th percentile.
    #[serde(deserialize_with = "or_infinite")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    pub p999: f64,
    /// Largest.
    #[serde(deserialize_with = "or_infinite")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    pub max: f64,
}

/// Reads `null` as an infinite number, which JSON does not have.
fn or_infinite<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
}

/// A stage on the way of messages: the number of messages that reached it, their rate, and their latency since `since`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StageRow {
    /// Name of the stage.
    pub name: Stage,
    /// Party that observed it.
    pub party: String,
    /// Messages that reached it, each arrival counted: `late` and, over SMTP, `duplicates` are part of it.
    pub count: u64,
    /// Messages that this party knows to have failed before this stage.
    pub failed: u64,
    /// Messages that never reached it, although nobody reported a reason.
    pub missing: u64,
    /// Messages that reached it after their time-out (`mades.timeout_s`); these have no latency.
    pub late: u64,
    /// Arrivals after a message's first.
    pub duplicates: u64,
    /// Message bytes that reached it.
    pub bytes: u64,
    /// Messages per second that reached it, from the first to the one after which 95 % had arrived, or if that is later to the
    /// time at which the last message was due. `null` if fewer than 20 arrived: so few have no rate.
    pub rate_per_s: Option<f64>,
    /// From the first message created to the last that reached this stage.
    pub duration_s: f64,
    /// The stage that latency counts from; `null` if no latency is known (no traces).
    pub since: Option<Stage>,
    /// Latency since `since` of all messages that were due; `null` if unknown.
    pub latency_ms: Option<LatencyMs>,
    /// The time that figures which are `null` in `latency_ms` exceed, in milliseconds: that for which messages were waited,
    /// or over MADES their time-out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beyond_ms: Option<f64>,
    /// The latencies of the messages that reached it in time, as an HdrHistogram of nanoseconds (V2, deflated, base64), as in interval logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histogram: Option<String>,
    /// Service time of the stage, since a session began the message, or over MADES since it was created: without the time
    /// that it waited for a session, or for a place. `null` where it is the latency itself (closed loop) or is unknown.
    pub service_ms: Option<LatencyMs>,
    /// The service time as an HdrHistogram, as `histogram`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_histogram: Option<String>,
    /// The times of the arrivals, from which `mailrun merge` computes the rate of several machines (deflated, base64).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<String>,
}

impl StageRow {
    /// Makes a row without figures.
    pub fn new(name: Stage, party: &str) -> Self {
        Self {
            name,
            party: party.to_owned(),
            count: 0,
            failed: 0,
            missing: 0,
            late: 0,
            duplicates: 0,
            bytes: 0,
            rate_per_s: None,
            duration_s: 0.0,
            since: None,
            latency_ms: None,
            beyond_ms: None,
            histogram: None,
            service_ms: None,
            service_histogram: None,
            arrivals: None,
        }
    }

    /// Returns the message bytes per second, or `None` if the stage has no rate.
    pub fn bytes_per_s(&self) -> Option<f64> {
        Some(self.rate_per_s? * self.bytes as f64 / self.count.max(1) as f64)
    }
}

/// Returns the row of a stage. A run over MADES has names of its own for the stages that all protocols share: a message is
/// accepted when the broker has settled it, delivered when it is in the inbox or, if it is a tracing message, when its event
/// has come, and notified when it has reached the last stage.
pub fn stage_named(rows: &[StageRow], name: Stage) -> Option<&StageRow> {
    let find = |name: Stage| rows.iter().find(|row| row.name == name);
    find(name).or_else(|| match name {
        Stage::Accepted => find(Stage::Settled),
        Stage::Delivered => find(Stage::Inbox).or_else(|| find(Stage::TracingEvent)),
        Stage::Notified => {
            let arrival = stage_named(rows, Stage::Delivered)?.name;
            rows.last().filter(|row| row.name != arrival)
        }
        _ => None,
    })
}

/// A phase of the dialogue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PhaseRow {
    /// Name of the phase.
    pub name: Phase,
    /// Number of times.
    pub count: u64,
    /// Its durations.
    pub latency_ms: LatencyMs,
    /// The same as an HdrHistogram of nanoseconds (V2, deflated, base64), as in interval logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histogram: Option<String>,
}

/// A time in which messages waited and none reached a stage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StallRow {
    /// The stage that no message reached: accepted, or over MADES delivered too.
    pub stage: Stage,
    /// Time at which the last message before it reached the stage, or messages began to wait again, or the load began, in
    /// seconds since `origin_ns` of the record.
    pub from_s: f64,
    /// Time at which the first message after it reached the stage, or the load ended.
    pub to_s: f64,
    /// True if it lasted until the load ended.
    pub to_the_end: bool,
    /// Messages that the server rejected (4xx, 5xx) meanwhile.
    pub rejected: u64,
    /// Messages whose connection failed meanwhile.
    pub failed: u64,
}

impl Default for StallRow {
    fn default() -> Self {
        Self { stage: Stage::Accepted, from_s: 0.0, to_s: 0.0, to_the_end: false, rejected: 0, failed: 0 }
    }
}

/// Reasons why the load ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The requested load was offered completely.
    Complete,
    /// SIGINT or SIGTERM.
    Interrupted,
    /// The server was gone, or answered nothing, for as long as `--give-up` or `--reconnect-timeout` allows.
    GaveUp,
    /// A threshold of `--abort-on` was missed.
    Aborted,
    /// A server that the bench had started ended unexpectedly.
    ServerEnded,
    /// The sink ended, or did not answer any more.
    SinkEnded,
}

/// One second of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SeriesRow {
    /// Seconds since `origin_ns`; the last may be a part second.
    pub second: u64,
    /// Messages due in it: begun by a session in a closed loop, scheduled in an open one.
    pub created: u64,
    /// Messages handed over in it.
    pub sent: u64,
    /// Messages accepted in it.
    pub accepted: u64,
    /// Messages delivered in it.
    pub delivered: u64,
    /// Messages accepted and not yet delivered at its end.
    pub queued: u64,
    /// Errors in it.
    pub errors: u64,
    /// Median latency to the last stage that this party observes; 0 if nothing arrived.
    pub p50_ms: f64,
    /// 95th percentile of the same.
    pub p95_ms: f64,
    /// 99th percentile of the same.
    pub p99_ms: f64,
    /// 99.9th percentile of the same.
    pub p999_ms: f64,
    /// Largest of the same.
    pub max_ms: f64,
    /// Greatest age of the newest message delivered so far, since it was due; `null` before the first, and where this
    /// party sees no deliveries.
    pub oldest_ms: Option<f64>,
}

/// Processor time and memory of a party by second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PartyUsage {
    /// Name of the party.
    pub party: String,
    /// A row for each second in which it was observed.
    pub seconds: Vec<UsageRow>,
}

/// One second of a party.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UsageRow {
    /// Seconds since `origin_ns` of the record.
    pub second: u64,
    /// Processor time per second, kernel included: 1 is one processor.
    pub cores: f64,
    /// Resident memory at its end.
    pub rss_bytes: u64,
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The warm-up ended.
    WarmUpEnded,
    /// The offered rate changed to the rate of the next stage.
    RateStage,
    /// An ordered fault began.
    FaultOn,
    /// An ordered fault ended.
    FaultOff,
    /// The server stopped answering.
    ServerLost,
    /// The server answered again.
    ServerBack,
    /// The server delivered at its full rate again.
    FullRate,
    /// A process of the run ended unexpectedly.
    Died,
    /// The user asked for the end, or a threshold ended the run.
    Stopped,
}

/// A change during the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EventRow {
    /// Time, in seconds since `origin_ns` of the record.
    pub at_s: f64,
    /// Kind of the event.
    pub kind: EventKind,
    /// The event in words, without the time.
    pub text: String,
}

/// Maximum number of recipients that are named for a slow message.
pub const MAX_SLOW_RECIPIENTS: usize = 10;

/// A message that took long: to arrive if a sink saw that, and to be accepted otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlowMessage {
    /// Number of the message in the run, as in its trace.
    pub message: u64,
    /// Time at which it was created (closed loop) or due (open loop), in seconds since `origin_ns`.
    pub created_s: f64,
    /// From then to the server's 250; `null` if the source does not remember the message, because others took longer to be
    /// accepted.
    pub accepted_ms: Option<f64>,
    /// From then to its last arrival at the sink; `null` if it did not arrive, or if no sink was watched.
    pub delivered_ms: Option<f64>,
    /// Time that it waited for a session (open loop); 0 if the source does not remember it.
    pub waited_ms: f64,
    /// Duration of each phase of its dialogue, in their order; empty if the source does not remember it.
    pub phases: Vec<SlowPhase>,
    /// Its recipients, at most 10.
    pub recipients: Vec<String>,
    /// Number of all of them.
    pub recipient_count: u32,
    /// Bytes of the message.
    pub bytes: u64,
    /// The server's reply to its end, with its queue id if it tells one; `null` if unknown.
    pub reply: Option<String>,
}

impl SlowMessage {
    /// Returns the time by which slow messages are sorted.
    pub fn latency_ms(&self) -> f64 {
        self.delivered_ms.or(self.accepted_ms).unwrap_or_default()
    }
}

/// A message that did not arrive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MissingMessage {
    /// Number of the message in the run, as in its trace.
    pub message: u64,
    /// Time at which it was created (closed loop) or due (open loop), in seconds since `origin_ns`; `null` if the sink has
    /// not seen it.
    pub created_s: Option<f64>,
    /// What became of it.
    pub fate: MissingFate,
    /// Time at which the server accepted it, in seconds since `origin_ns`; `null` if it did not, or if that is unknown.
    pub answered_s: Option<f64>,
    /// The server's last reply to it, with its queue id if it was accepted; `null` if there was none, or if it is not among
    /// the last 8192 of a thread.
    pub reply: Option<String>,
    /// Its recipients, at most 10.
    pub recipients: Vec<String>,
    /// Number of its recipients that it did not reach.
    pub recipient_count: u32,
}

/// Reasons why a message did not arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MissingFate {
    /// The server accepted it, and the sink has not seen it.
    #[default]
    NotSeen,
    /// The server accepted it, and reported in a notification that it gave up.
    Bounced,
    /// The connection broke after the whole message was sent, and before the reply.
    InDoubt,
    /// The server refused it with 4xx or 5xx.
    Rejected,
    /// The connection was refused, cut or timed out.
    Failed,
}

impl MissingFate {
    pub fn name(self) -> &'static str {
        match self {
            Self::NotSeen => "not seen",
            Self::Bounced => "bounced",
            Self::InDoubt => "in doubt",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
        }
    }
}

/// A phase of a slow message.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlowPhase {
    /// Name of the phase.
    pub name: Phase,
    /// Its duration.
    pub ms: f64,
}

/// Fates of the units of a recipient domain. `null` is unknown, as in the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DomainRow {
    /// The domain in lower case; empty for all domains that have no row of their own.
    pub domain: String,
    /// Units that a session began.
    pub created: u64,
    /// Units that the source received 250 for.
    pub accepted: u64,
    /// Units that the server rejected with 4xx or 5xx.
    pub rejected: u64,
    /// Units whose connection was refused, cut or timed out.
    pub failed: u64,
    /// Units whose connection broke after the last byte of the message was sent and before the reply came, whether they
    /// arrived or not.
    pub in_doubt: u64,
    /// Distinct units that reached the sink.
    pub delivered: Option<u64>,
    /// Arrivals of a unit after its first.
    pub duplicates: Option<u64>,
}

/// Fate of every (message, recipient). `null` is unknown: that end was not observed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LedgerRow {
    /// Units that a session began.
    pub created: Option<u64>,
    /// Units that the source received 250 for.
    pub accepted: Option<u64>,
    /// Distinct units that reached the sink.
    pub delivered: Option<u64>,
    /// Units that did not arrive because a server gave up on them, which it reported in a notification that reached the
    /// sink.
    pub bounced: Option<u64>,
    /// Units that the server rejected with 4xx or 5xx, and that did not arrive. In records without `failed` this
    /// includes those that failed.
    pub rejected: Option<u64>,
    /// Units whose connection was refused, cut or timed out, and that did not arrive.
    pub failed: Option<u64>,
    /// Units whose connection broke after the last byte of the message was sent and before the reply came, and that did not
    /// arrive: the server may have them.
    pub in_doubt: Option<u64>,
    /// Units that our relay gave up on, and whose notification did not reach the sink.
    pub expired: Option<u64>,
    /// Units that did not arrive because they are in the queue of our relay.
    pub queued: Option<u64>,
    /// Units accepted and lost; `null` while units are not delivered and the server's queue is unknown.
    pub lost: Option<u64>,
    /// Units that a server whose queue is unknown accepted, and that did not arrive: lost, or still in its queue.
    pub not_delivered: Option<u64>,
    /// Units without a known fate when the run ended.
    pub in_flight: Option<u64>,
    /// Arrivals of a unit after its first.
    pub duplicates: Option<u64>,
    /// Delivered units that arrived under other addresses only.
    pub rewritten: Option<u64>,
    /// Arrivals under an address that was no recipient, beside the address of the recipient or of the copy that counts
    /// for it.
    pub copied: Option<u64>,
    /// Arrivals whose checksum was wrong.
    pub corrupt: Option<u64>,
    /// Arrivals that a relay converted to 7-bit for a server without 8BITMIME, and whose checksum matches the original.
    pub converted: Option<u64>,
    /// Arrivals that do not belong to this run: another run's trace, or none.
    pub foreign: Option<u64>,
    /// Units in notifications that a server tries again.
    pub delay_notices: Option<u64>,
    /// Bounced units that a further notification named again.
    pub repeated_notices: Option<u64>,
    /// Arrivals without a usable creation time (another host's clock), so without a latency.
    pub untimed: Option<u64>,
    /// Arrivals whose delivered time would be negative, because the clocks of two hosts differ: without a latency.
    pub negative: Option<u64>,
    /// Units that a ledger had no room for: their fates are unknown.
    pub overflow: Option<u64>,
}

impl LedgerRow {
    /// Returns the row of a run about which everything is known and in which nothing has happened.
    /// Each count is zero.
    pub fn zero() -> Self {
        let zero = Some(0);
        Self {
            created: zero,
            accepted: zero,
            delivered: zero,
            bounced: zero,
            rejected: zero,
            failed: zero,
            in_doubt: zero,
            queued: zero,
            expired: zero,
            lost: zero,
            not_delivered: zero,
            in_flight: zero,
            duplicates: zero,
            rewritten: zero,
            copied: zero,
            corrupt: zero,
            converted: zero,
            foreign: zero,
            delay_notices: zero,
            repeated_notices: zero,
            untimed: zero,
            negative: zero,
            overflow: zero,
        }
    }
}

/// A reason for which units bounced, and their number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BounceRow {
    /// Enhanced status code, such as `5.1.1`; empty without one.
    pub status: String,
    /// Reply of the next hop or another reason, as the first notification of the kind gives it.
    pub text: String,
    /// Number of units.
    pub count: u64,
    /// Recipient of the first.
    pub sample: String,
}

/// An address under which mail arrived that the source had not named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RewriteRow {
    /// Recipient that the source had named, as the server gives it in ORCPT; `null` if the server added the recipient, as
    /// Postfix's `always_bcc` does.
    pub original: Option<String>,
    /// The address; empty in the last row, which counts all further pairs.
    pub address: String,
    /// Number of arrivals.
    pub count: u64,
}

/// A kind of error, and its number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorRow {
    /// Phase of the dialogue.
    pub phase: Phase,
    /// Reply code; 0 if there was no reply.
    pub code: u16,
    /// The first reply text, or a description of the event.
    pub text: String,
    /// Number of errors.
    pub count: u64,
    /// Time of the first, in seconds since `origin_ns` of the record; `null` if unknown.
    pub first_s: Option<f64>,
    /// Time of the last.
    pub last_s: Option<f64>,
    /// Recipient of the first; `null` if none had been named.
    pub sample: Option<String>,
}

impl Default for ErrorRow {
    fn default() -> Self {
        Self {
            phase: Phase::Connect,
            code: 0,
            text: String::new(),
            count: 0,
            first_s: None,
            last_s: None,
            sample: None,
        }
    }
}

/// A threshold, and its result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThresholdRow {
    /// The expression as it was typed.
    pub expression: String,
    /// Its limit, in `unit`.
    pub limit: Option<f64>,
    /// The measured value, in `unit`; `null` if it is unknown.
    pub value: Option<f64>,
    /// The value is unknown, but greater than this, in `unit`: it belongs to messages that never came, or came after
    /// their time-out.
    pub beyond: Option<f64>,
    /// Distance of the value from the limit on its good side, in `unit`; negative if the limit was missed.
    pub margin: Option<f64>,
    /// Unit: ms, /s, % or empty for a number.
    pub unit: String,
    /// True if it holds.
    pub passed: bool,
    /// True if it certainly does not hold. If it is neither passed nor missed, nobody can tell.
    pub missed: bool,
    /// Why nobody can tell, or why it was missed without a value; empty if the value says all.
    pub why: String,
    /// The windows of a threshold on freshness, which is judged for each of them; its value is the worst window's.
    pub windows: Vec<FreshWindow>,
}

/// A window of a run in which freshness is judged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FreshWindow {
    /// Its beginning, in seconds since `origin_ns`.
    pub from_s: f64,
    /// Its end.
    pub to_s: f64,
    /// Messages due in it.
    pub created: u64,
    /// Messages delivered in it.
    pub delivered: u64,
    /// Errors in it.
    pub errors: u64,
    /// Largest latency of messages that were delivered in it.
    pub max_ms: f64,
    /// Greatest age of the newest message delivered so far.
    pub oldest_ms: f64,
    /// Seconds in which that age was above the limit.
    pub stale_s: f64,
    /// Share of its time in which it was not, in percent.
    pub fresh_percent: f64,
}

/// Outcome of a run, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Everything that was required was seen.
    Pass,
    /// Mail was lost, doubled, changed, rejected or given up beyond what was granted, or a threshold was missed.
    Fail,
    /// The figures are not the server's: the generator, the sink or the host was the limit.
    Invalid,
    /// A required figure could not be seen.
    Inconclusive,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Invalid => "INVALID",
            Self::Inconclusive => "INCONCLUSIVE",
        }
    }
}

/// Cause of a reason in the verdict. The order is by weight: the first decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Sessions of source or sink that ended by a defect of mailrun itself.
    Defect,
    /// The counts contradict each other, or are not complete.
    Unaccounted,
    /// A process that the bench had started ended unexpectedly.
    Died,
    /// Mail was accepted and lost.
    Lost,
    /// Mail arrived more than once.
    Duplicates,
    /// Mail arrived changed.
    Corrupt,
    /// Messages never reached a stage, without a reason being reported (MADES), or more of them were not delivered than a
    /// threshold allows.
    Missing,
    /// A threshold on time was missed because of messages that never came, whatever delayed the others.
    NeverCame,
    /// The server went away.
    ServerGone,
    /// Connections were refused, cut or timed out.
    Failed,
    /// Connections broke after a whole message was sent, and before its reply.
    InDoubt,
    /// The server replied 4xx or 5xx.
    Rejected,
    /// A server gave up on mail and reported it in notifications that reached the sink.
    Bounced,
    /// Mail arrived under other addresses than its recipients', more than a threshold allows.
    Rewritten,
    /// Mail arrived at addresses that were no recipients, more than a threshold allows.
    Copied,
    /// A relay gave up on mail and reported it.
    Expired,
    /// Not one message was accepted, or over MADES delivered.
    NothingAccepted,
    /// The server did not accept the requested rate.
    RateMissed,
    /// A defect of mailrun's relay ended sessions.
    RelayDefect,
    /// The generator did not offer the requested rate.
    RateNotOffered,
    /// The generator fell behind its schedule.
    Late,
    /// A threshold judges times between clocks whose error is too large for it.
    Clocks,
    /// Source or sink used all of its processor time.
    Busy,
    /// Descriptors or ports ran out.
    Exhausted,
    /// The hypervisor gave the processors to others.
    Stolen,
    /// Other programs of this host had the processors, which explains what was missed.
    HostBusy,
    /// All messages were created in the warm-up.
    NothingTimed,
    /// A threshold was missed.
    ThresholdMissed,
    /// The sink went away.
    SinkGone,
    /// A threshold concerns something that was not seen.
    ThresholdUnseen,
    /// Mail did not arrive, and is lost or in a queue that cannot be read.
    NotDelivered,
    /// Mail is in the relay's queue, or was in flight at the end.
    Unfinished,
    /// The user ended the run.
    Interrupted,
    /// The user ordered the fault.
    Ordered,
    /// The server accepted nothing for a while.
    Stalled,
    /// A remark.
    Remark,
}

/// Outcome of the run, and its validity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Verdict {
    /// The outcome; `null` for a sink or a relay by itself.
    pub outcome: Option<Outcome>,
    /// The reason, in a sentence.
    pub why: String,
    /// The fates sum to the created units, nothing is lost, doubled or corrupt, and delivery was observed.
    pub closed: bool,
    /// Neither the generator nor the sink was the limit of the claimed figures.
    pub valid: bool,
    /// Reasons against the run, and further facts that a reader must know, in whole sentences, the weightiest first.
    pub reasons: Vec<String>,
    /// Cause of each of them, in the same order.
    pub causes: Vec<Cause>,
}
