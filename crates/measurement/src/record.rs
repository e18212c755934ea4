//! The run record, `run.json`: everything that a run measured, in the format `mailrun-run/1`.
//!
//! The format is stable: new versions of mailrun may add keys, but never rename or remove any. A source or a sink
//! writes the same format as a whole run and fills in the parts that it knows. `merge::merge_records` joins these
//! records into one. Reports are made from records alone, so they can be made again at any time.
pub use crate::audit::{Audit, AuditLoss, AuditRow, MAX_LOSSES};
pub use crate::mades::{
    AcknowledgementSender, Mades, MadesAcknowledgements, MadesBroker, MadesCount, MadesHop, MadesMarket, MadesNoCredit,
    MadesOutage, MadesQueue, MadesShape, MadesTimes, MadesTrouble, MadesTruth, MadesWindow,
};
use crate::stage::{Phase, Stage};
use serde::{Deserialize, Serialize};

/// Name and version of the format. This is the first key of every record, so that a program recognizes the format
/// before it reads the rest.
pub const FORMAT: &str = "mailrun-run/1";

#[cfg(feature = "schema")]
#[must_use]
pub fn schema() -> String {
    format!("{:#}\n", schemars::schema_for!(Record).to_value())
}

/// The record of a whole run, or of what a single process, such as a sink, observed of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Record {
    /// Name and version of the format, always `mailrun-run/1`.
    pub format: String,
    /// Identity of the run, 32 hexadecimal digits. Mail carries it in the header `X-Mailrun`.
    pub run_id: String,
    /// Name of the run: a label that the user gave, or a name that mailrun chose, for example `audit-postfix`.
    pub name: String,
    /// Time at which the run started, in UTC (RFC 3339).
    pub started_at: String,
    /// CLOCK_MONOTONIC of `host` in nanoseconds at second 0, which is the moment at which the load began. All times of
    /// the record count from this moment. A sink does not know when the load began, so second 0 of its record may be
    /// some whole seconds earlier or later.
    pub origin_ns: u64,
    /// The moment of `origin_ns` in UTC (RFC 3339), by the host's clock.
    pub zero_at: String,
    /// Seconds from the creation of the first message after the warm-up until a message reached a stage for the last
    /// time.
    pub duration_s: f64,
    /// End of the observation in seconds since `origin_ns`. Until then, the run waited for messages that had not
    /// arrived.
    pub observed_until_s: Option<f64>,
    /// Time in which load was offered, in seconds, without the warm-up. In an open loop, it begins when the first
    /// message is due, and ends at the planned end of the load. It ends earlier if the load is stopped, and later if a
    /// late source begins the last message after the planned end. In a closed loop, it begins when a session starts to
    /// send the first message, and ends when the last message was accepted or failed. `null` if no load was offered.
    pub offered_s: Option<f64>,
    /// Messages that were due after the warm-up and before the planned end of the load, sent or not; `null` in a closed
    /// loop. Messages that were never sent count as infinitely late in latencies.
    pub due: Option<u64>,
    /// The command line with which the run was started, one text for each argument.
    pub command: Vec<String>,
    /// Version of mailrun that made the record.
    pub version: String,
    /// Commit from which mailrun was built, if known.
    pub commit: Option<String>,
    /// The machine on which the source or, in a sink's record, the sink ran.
    pub host: Host,
    /// Clock from which `origin_ns` was read, and how far Unix time and the clocks of sinks differ from it.
    pub clock: Option<ClockRow>,
    /// The load that the source was asked to offer. A sink's record has only the part that the sink knows.
    pub workload: Workload,
    /// Part of the load that this record is about, if several machines sent the load; `null` for a whole run.
    pub shard: Option<ShardRow>,
    /// The server's description of itself on the test connection; `null` if there was no test connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerRow>,
    /// Processes that took part in the run, such as source, sink and relay, as far as the record's writer knows them.
    pub parties: Vec<Party>,
    /// Counts, rates and latencies of the messages at each stage, such as accepted and delivered.
    pub stages: Vec<StageRow>,
    /// Figures of the messages that were due in each stage of the load (`--stage`), for the first 63 stages; empty if
    /// the load has no stages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load_stages: Vec<LoadStageRow>,
    /// Durations of the phases of the SMTP dialogue that occurred, for example `rcpt`, in the order of the dialogue.
    pub phases: Vec<PhaseRow>,
    /// Numbers of TLS handshakes, by process, TLS version and cipher suite; empty without TLS.
    pub tls: Vec<TlsRow>,
    /// Delay with which the source began messages in an open loop although a session was free. Unlike the latency of
    /// the stage `created`, this delay does not include the time that messages waited for a free session.
    pub lag_ms: Option<LatencyMs>,
    /// Other activity on the host during the run; `null` if it was not observed.
    pub surroundings: Option<Surroundings>,
    /// File descriptors and ports that ran out, by process; empty if there were enough.
    pub exhausted: Vec<ExhaustedRow>,
    /// Phases of the SMTP dialogue whose durations look like delayed ACKs; empty if there were none.
    pub pauses: Vec<PauseRow>,
    /// The warm-up, whose messages count in no rate or latency; `null` if there was none.
    pub warm_up: Option<WarmUp>,
    /// Time until the server delivered at its full rate again after its next hop had held mail back. Present only if
    /// the bench made the next hop hold mail back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// Settings and results that only a run over MADES has; `null` for any other run.
    pub mades: Option<Mades>,
    /// Results that only an audit of a server has; `null` for any other run.
    pub audit: Option<Audit>,
    /// Counts and latencies of each second, in the order of time.
    pub series: Vec<SeriesRow>,
    /// Processor time and memory of each process of the run by second; empty if they were not observed.
    pub usage: Vec<PartyUsage>,
    /// Changes during the run that explain its figures, such as a lost server, in the order of time.
    pub events: Vec<EventRow>,
    /// The messages that took longest to arrive or, if no sink was watched, to be accepted: at most 50, the slowest
    /// first.
    pub slowest: Vec<SlowMessage>,
    /// Messages that were rejected or failed, or that the sink has not seen; at most 1000 are listed.
    pub missing: Vec<MissingMessage>,
    /// What became of the mail to each recipient domain, the domain with the most mail first; empty if there was only
    /// one domain.
    pub domains: Vec<DomainRow>,
    /// Periods of a second or more in which messages waited but none was accepted or, over MADES, delivered.
    pub stalls: Vec<StallRow>,
    /// Reason why the load ended; `null` if no load was offered.
    pub ending: Option<Ending>,
    /// What became of the units, which are pairs of message and recipient: how many were delivered, lost and so on.
    pub ledger: LedgerRow,
    /// Reasons why mail bounced, by status code, the most frequent first; empty if nothing bounced.
    pub bounces: Vec<BounceRow>,
    /// Addresses under which mail arrived although the source had not named them: up to 1000 addresses, and a row for
    /// all others. The sink recognizes such addresses by ORCPT and NOTIFY in a server's RCPT (RFC 3461). Empty if it
    /// recognized none.
    pub rewrites: Vec<RewriteRow>,
    /// Errors: replies of 4xx and 5xx, cut connections and time-outs.
    pub errors: Vec<ErrorRow>,
    /// Thresholds that the user set, and whether they were met.
    pub thresholds: Vec<ThresholdRow>,
    /// Outcome of the run, with the reasons for it.
    pub verdict: Verdict,
}

impl Record {
    pub fn from_json(json: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(json)
    }

    /// Returns the text of `run.json`, without a line end. In practice, this never fails, because everything in a
    /// record can be written as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// Returns the row of the stage `name` or, in a run over MADES, of the stage that [`stage_named`] uses instead.
    pub fn stage(&self, name: Stage) -> Option<&StageRow> {
        stage_named(&self.stages, name)
    }

    pub fn phase(&self, name: Phase) -> Option<&PhaseRow> {
        self.phases.iter().find(|row| row.name == name)
    }

    /// Adds the number of accepted messages of the warm-up to `count`, which does not include them. Callers need the
    /// sum to compute costs per message, because processor time and written bytes include the warm-up.
    pub fn with_warm_up(&self, count: u64) -> u64 {
        count.saturating_add(self.warm_up.map_or(0, |warm_up| warm_up.accepted))
    }

    /// Returns a record in which only the format is set. The caller sets the fields that it needs.
    pub fn empty() -> Self {
        Self { format: FORMAT.to_owned(), ..Self::default() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClockRow {
    /// Identity of the host's boot, 8 hexadecimal digits. Times of the same boot come from one monotonic clock, so they
    /// can be compared exactly.
    pub boot: String,
    /// Unix time minus CLOCK_MONOTONIC in nanoseconds, by the host's own clock. Adding this offset to a monotonic time
    /// of the host gives Unix time. Times of several hosts can then be compared, as exactly as the hosts' clocks agree.
    pub unix_offset_ns: u64,
    /// Clocks of sinks on other hosts, as measured from this host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sinks: Vec<SinkClockRow>,
}

/// Clock of a sink's host, measured from another host by an exchange of messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SinkClockRow {
    /// Identity of the boot of the sink's host, the same as `clock.boot` in the sink's own record.
    pub boot: String,
    /// Unix time of the sink's host minus Unix time of this host in nanoseconds, by the exchange with the shortest
    /// round trip.
    pub difference_ns: i64,
    /// Maximum error of the difference in nanoseconds: half of the shortest round trip, plus the change of the
    /// difference between the measurements before and after the load.
    pub error_ns: u64,
    /// Number of exchanges that compared the clocks. The exchange with the shortest round trip gave `difference_ns`.
    pub exchanges: u32,
    /// Maximum difference of the clocks in nanoseconds according to chrony's estimates on both hosts. Present only if
    /// it is smaller than `difference_ns` plus `error_ns`. The verdict then uses it instead of this sum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chrony_bound_ns: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShardRow {
    /// Index of this machine's part of the load, counted from 0.
    pub index: u32,
    /// Number of machines among which the load was divided.
    pub count: u32,
    /// Identity of the plan for the load, 64 hexadecimal digits. All parts of one run have the same plan.
    pub plan: String,
    /// Time at which all machines were to begin their parts of the load (RFC 3339).
    pub start_at: String,
    /// Time at which this machine began its part of the load, in seconds since `origin_ns` of the record.
    pub began_s: f64,
    /// Delay of this machine's start after the planned time, in seconds by the clock of its host.
    pub late_s: f64,
    /// Message number at which this machine's part of the load begins.
    pub first_message: u64,
    /// Number of messages that this machine had to send; `null` if the run was limited by time.
    pub messages: Option<u64>,
    /// The load of all machines together. Each record contains it, so that `mailrun merge` can judge the whole run.
    pub workload: Workload,
    /// Thresholds for the whole run, which `mailrun merge` judges after it has added up the records of all machines.
    pub thresholds: Vec<String>,
    /// The delays that `lag_ms` of the record summarizes, as an HdrHistogram of nanoseconds (V2, deflated, base64);
    /// `null` if nothing was measured.
    pub lag_histogram: Option<String>,
}

/// A server's description of itself. Reports take the name of the server from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServerRow {
    /// Text of the server's greeting, in which reports look for the name of the server's program.
    pub banner: String,
    /// Keywords of the server's reply to EHLO with their parameters. With TLS, they come from the server's reply over
    /// TLS.
    pub extensions: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TlsRow {
    /// Process, such as source or sink, that counted the handshakes.
    pub party: String,
    /// Version of TLS, for example `TLSv1.3`.
    pub version: String,
    /// Name of the cipher suite, for example `TLS13_AES_256_GCM_SHA384`.
    pub cipher: String,
    /// Number of handshakes by this process with this version and cipher, including resumed ones.
    pub handshakes: u64,
    /// Number of handshakes that resumed an earlier session.
    pub resumed: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Host {
    /// Operating system, as in `/etc/os-release`, for example `Debian GNU/Linux 12 (bookworm)`.
    pub os: String,
    /// Kernel release, as `uname -r` prints it.
    pub kernel: String,
    /// Model of the processor, as in `/proc/cpuinfo`.
    pub cpu_model: String,
    /// Number of processors that the process could use before it was pinned to some of them.
    pub cores: u32,
    /// Physical memory of the host in bytes.
    pub memory_bytes: u64,
    /// The disk under the run directory, or for a relay the disk under its spool; `null` if no directory was used.
    pub disk: Option<HostDisk>,
    /// Whether the processors were kept from sleeping during the run (`--keep-awake`); `null` if unknown. A sleeping
    /// processor takes time to wake up, which adds to latencies.
    pub keep_awake: Option<KeepAwake>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum KeepAwake {
    /// mailrun or another program held `/dev/cpu_dma_latency` at 0, so the kernel did not let idle processors sleep.
    On,
    /// Idle processors could sleep, because of `--keep-awake off` or because `auto` did not apply to this run.
    Off,
    /// Idle processors were allowed to sleep, because mailrun could not write `/dev/cpu_dma_latency`, or the file does
    /// not exist.
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

/// The disk on which a process of the run kept its data. Its kind explains how long writing and syncing take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostDisk {
    /// File system, as in `/proc/self/mountinfo`, for example ext4, xfs or tmpfs.
    pub file_system: String,
    /// Block device of the file system; `null` if there is none, for example in memory or on a network.
    pub device: Option<String>,
    /// Model of the disk, as in `/sys/block`; `null` if unknown.
    pub model: Option<String>,
    /// True if the disk has moving parts; `null` if unknown, for example in a virtual machine.
    pub rotational: Option<bool>,
}

/// Other activity on the host during a run. All figures are for the whole host, except that the TCP counters are for
/// the network namespace, with all of its listeners. `null` means unknown: the kernel does not report the figure, or
/// the run was too short.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Surroundings {
    /// Available processor time in seconds: the observed time times the number of processors.
    pub processor_s: Option<f64>,
    /// Share (0 to 1) of the available processor time that processes and the kernel used, without interrupts.
    pub busy_share: Option<f64>,
    /// Share of `processor_s` used by processes that belong neither to the run nor to the bench; `null` if a server
    /// took part whose processor time is unknown.
    pub other_busy_share: Option<f64>,
    /// Share of `processor_s` that the hypervisor gave to other guests.
    pub steal_share: Option<f64>,
    /// Connections that found a listener's queue full (TcpExt ListenOverflows).
    pub listen_overflows: Option<u64>,
    /// SYNs and connections that listeners dropped, including `listen_overflows` (TcpExt ListenDrops).
    pub listen_drops: Option<u64>,
    /// SYNs dropped because the queue of half-open connections was full (TcpExt TCPReqQFullDrop).
    pub syn_drops: Option<u64>,
    /// Maximum length of a listener's queue, `net.core.somaxconn`.
    pub somaxconn: Option<u64>,
    /// Bytes that the disk under the run directory wrote, as counted by the device; `null` if no relay kept mail there,
    /// or if there is no such device.
    pub disk_written_bytes: Option<u64>,
    /// Available processor time in seconds while the source ran: its running time times the number of processors.
    pub load_processor_s: Option<f64>,
    /// Share of `load_processor_s` that was not idle. Interrupts and steal, which is time that the hypervisor gave to
    /// other guests, count as not idle.
    pub used_share: Option<f64>,
    /// Processes of this host that used processor time while the source ran, by name, the busiest first, at most 8. The
    /// processes of the run itself are left out, but a server under test on this host is included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<HostProcess>,
    /// How much processor time foreign programs used while messages were sent, and how long the run's processes waited
    /// for a processor; `null` if these figures were not observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreign: Option<ForeignLoad>,
}

/// Processor time of foreign programs, which belong neither to the run nor to the server under test, and how long the
/// run's processes waited for a processor. If foreign programs used much, the verdict may excuse missed thresholds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ForeignLoad {
    /// Share (0 to 1) of the available processor time that foreign programs used; `null` if they cannot be
    /// distinguished from the server.
    pub share: Option<f64>,
    /// Reason why foreign programs cannot be distinguished from the server; empty if they can.
    pub unknown: String,
    /// True if the server is on another host. The server's waits for its own processors are then unknown.
    pub server_elsewhere: bool,
    /// Length of the period that each row of `waits` covers, in seconds.
    pub window_s: f64,
    /// How long the run's processes waited for a processor while load was offered: a row for each period of `window_s`
    /// seconds.
    pub waits: Vec<WaitRow>,
}

/// Time that source, sink and server waited for a processor although they could have run, according to the kernel
/// (`/proc/PID/task/TID/schedstat`). Of several threads, or several processes with the same name, only the longest wait
/// counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitRow {
    /// Milliseconds that source, sink and server waited in total, capped at the length of the row's period.
    pub waited_ms: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostProcess {
    /// Name of the command, as in `/proc/PID/stat`.
    pub name: String,
    /// Number of processes that have this name.
    pub processes: u64,
    /// Processor time in seconds, including children that ended.
    pub processor_s: f64,
    /// Resident memory of all these processes at the end, in bytes. Shared memory counts once for each process.
    pub rss_bytes: u64,
    /// True if these processes certainly belong neither to the run nor to the server under test.
    pub foreign: bool,
}

/// Resources of a host or process that can run out. Connections then fail through no fault of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// File descriptors of the process (EMFILE), limited by `ulimit -n`.
    Descriptors,
    /// File descriptors of the whole host (ENFILE), limited by the sysctl fs.file-max.
    HostDescriptors,
    /// Local ports for outgoing connections (EADDRNOTAVAIL), limited by the sysctl net.ipv4.ip_local_port_range.
    Ports,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExhaustedRow {
    /// Name of the process that ran out of the resource.
    pub party: String,
    /// The resource that ran out: descriptors or ports.
    pub resource: Resource,
    /// Number of operations of the process, such as connecting, that failed because the resource had run out.
    pub count: u64,
    /// Available amount of the resource, if known.
    pub limit: Option<u64>,
    /// Amount of the resource that the requested load needs, if known.
    pub needed: Option<u64>,
}

/// A phase in which many durations lie between 38 and 45 ms, which is the signature of delayed ACKs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PauseRow {
    /// Process, such as source or sink, that timed the phase.
    pub party: String,
    /// The slow phase: at a source, the wait for the server's reply; at a sink, the wait for the sender's message.
    pub phase: Phase,
    /// Number of durations between 38 and 45 ms.
    pub count: u64,
    /// Number of all durations of this phase that the process measured.
    pub of: u64,
}

/// Which commands a session sends without waiting for the replies to its earlier commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Pipelining {
    /// A session sends one command at a time, and waits for the reply.
    #[default]
    Off,
    /// A session sends MAIL, RCPT and DATA in one write (RFC 2920).
    Group,
    /// A session sends a message and MAIL, RCPT and DATA of the next message in one write, so each message takes one
    /// round trip.
    Stream,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Arrival {
    /// A session starts a message when its previous message is done, so the load waits for the server.
    #[default]
    #[cfg_attr(feature = "clap", value(skip))]
    Closed,
    /// Messages become due at constant intervals.
    Constant,
    /// Messages become due at exponentially distributed intervals.
    Poisson,
    /// Messages become due at the times of a market's documents (`mades.market`).
    #[cfg_attr(feature = "clap", value(skip))]
    Market,
}

/// A number that varied from message to message, for example the size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Varied {
    /// Distribution as the user typed it, for example `400..64k`, `lognormal:4k,1.2` or `400:80,64k:20`.
    pub expression: String,
    /// Smallest value that the distribution can produce.
    pub least: f64,
    /// Mean of the distribution itself. The mean of the values that occurred in the run may differ.
    pub mean: f64,
    /// Largest value that the distribution can produce.
    pub most: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CorpusRow {
    /// Path from which the messages were read.
    pub path: String,
    /// Kind of the path: mbox, maildir, directory or message.
    pub kind: String,
    /// Number of messages in the corpus that could be sent.
    pub messages: u64,
    /// Total size of the messages in bytes, as SIZE counts them.
    pub bytes: u64,
    /// Number of messages that were left out because they could not be sent.
    pub skipped: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OfferedStage {
    /// Name that the user gave this stage of the load; absent if the user gave none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Length of this stage of the load in seconds.
    pub length_s: f64,
    /// Offered messages per second at the beginning of the stage.
    pub from_per_s: f64,
    /// Offered messages per second at the end of the stage. In between, the rate changes linearly.
    pub to_per_s: f64,
}

impl OfferedStage {
    /// Returns the name that thresholds use for the stage: its own name or, if it has none, its number, counted from 1.
    /// `place` is the index of the stage, counted from 0.
    pub fn name_at(&self, place: usize) -> String {
        self.name.clone().unwrap_or_else(|| (place + 1).to_string())
    }
}

/// Latencies and outcomes of the messages that were due in one stage of the load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoadStageRow {
    /// Number of the stage in `workload.stages`, from 1.
    pub number: u32,
    /// Name of the stage, or its number if it has no name.
    pub name: String,
    /// Time at which the stage began, in seconds since `origin_ns`.
    pub begin_s: f64,
    /// Time at which the stage ended, in seconds since `origin_ns`.
    pub end_s: f64,
    /// Messages that were due in the stage, sent or not, without those that were due in the warm-up.
    pub due: Option<u64>,
    /// Counts and latencies of the messages in `due`: a row for accepted messages, a row for delivered messages, and so
    /// on.
    pub stages: Vec<StageRow>,
    /// What became of the message-recipient pairs that were due in the stage, including the warm-up. Counts that are
    /// known only for the whole run are `null`.
    pub ledger: LedgerRow,
}

/// The beginning of a run that the figures leave out. Its messages count in the ledger, but in no rate, latency or
/// duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WarmUp {
    /// Length of the warm-up in seconds, from the beginning of the load.
    pub length_s: f64,
    /// Messages that were created in the warm-up.
    pub created: u64,
    /// Messages that were created in the warm-up and accepted during or after it.
    pub accepted: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Recovery {
    /// Time at which the next hop stopped holding mail back, in seconds since `origin_ns`.
    pub back_s: f64,
    /// The server's full rate in deliveries per second. At least half of the mail arrived in seconds with this many
    /// deliveries or more.
    pub full_rate_per_s: f64,
    /// Seconds from `back_s` to the first second with 90 % of the full rate or more; 0 if `back_s` is in that second.
    pub after_s: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Workload {
    /// Number of requested messages; `null` if the run was limited by time alone.
    pub messages: Option<u64>,
    /// Requested length of the load in seconds, if the run was limited by time.
    pub duration_limit_s: Option<f64>,
    /// Number of recipients of each message; the maximum if the number varies (`recipients_varied`).
    pub recipients: u32,
    /// Number of sessions that may send messages at the same time.
    pub sessions: u32,
    /// Size of each message in bytes, including headers, before dot-stuffing (as SIZE counts, RFC 1870); the mean if
    /// sizes vary (`sizes_varied`, `corpus`).
    pub message_bytes: u64,
    /// Messages per connection, or the maximum if the number varies (`reuse_varied`); `null` without a limit.
    pub reuse: Option<u64>,
    /// Which commands a session sent without waiting for the replies to its earlier commands (RFC 2920).
    pub pipelining: Pipelining,
    /// True if messages were sent with BDAT instead of DATA (RFC 3030).
    pub chunking: bool,
    /// Use of TLS: none, starttls or implicit.
    pub tls: String,
    /// Rule by which messages became due, for example at constant intervals.
    pub arrival: Arrival,
    /// Requested messages per second in an open loop. With `stages`, this is the mean over the time after the warm-up.
    pub rate_per_s: Option<f64>,
    /// Protocol of the load: smtp, lmtp or mades.
    pub protocol: String,
    /// Server to which the load was sent, as HOST:PORT or unix:PATH; over MADES, the URL of the outbox's broker.
    pub target: String,
    /// Seed of all random values of the load. A run with the same options and the same seed sends the same load again.
    pub seed: u64,
    /// Distribution of the message sizes in bytes; `null` if all messages have the same size.
    pub sizes_varied: Option<Varied>,
    /// Distribution of the number of recipients of a message; `null` if the number does not vary.
    pub recipients_varied: Option<Varied>,
    /// Distribution of the number of messages per connection; `null` if the number does not vary.
    pub reuse_varied: Option<Varied>,
    /// Distribution of the pause of a session after each message, in milliseconds; `null` without a pause.
    pub think_ms: Option<Varied>,
    /// The sender, or the pattern from which senders were generated.
    pub from: String,
    /// The recipient, or the pattern from which recipients were generated.
    pub rcpt: String,
    /// Describes the existing messages that the source sent; `null` if the source generated its messages.
    pub corpus: Option<CorpusRow>,
    /// Number of different MIME messages that were generated; `null` if the messages were plain text.
    pub mime_messages: Option<u64>,
    /// Parts of the load with their own rates, in an open loop; empty if there was a single rate.
    pub stages: Vec<OfferedStage>,
    /// DSN parameters (RFC 3461) of MAIL and RCPT, for example `NOTIFY=NEVER RET=HDRS`; `null` without any.
    pub dsn: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The process sends the load.
    Source,
    /// The process receives mail and forwards it. This process may be the server under test.
    Relay,
    /// The process receives mail as its final destination.
    Sink,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Relay => "relay",
            Self::Sink => "sink",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Party {
    /// Whether the process sent the load, forwarded mail or received it.
    pub role: Role,
    /// Name by which reports and other rows of the record refer to the process, for example `source`.
    pub name: String,
    /// Command that started the process; empty if the process was already running.
    pub command: Vec<String>,
    /// Processor time in user mode, in seconds; `null` if it could not be measured.
    pub user_s: Option<f64>,
    /// Processor time in the kernel, in seconds; `null` if it could not be measured.
    pub sys_s: Option<f64>,
    /// Peak resident memory of the process in bytes.
    pub max_rss_bytes: Option<u64>,
    /// Bytes that the process caused to be written to storage.
    pub write_bytes: Option<u64>,
    /// How durable a message is when the process answers 250: sync, write, memory or none.
    pub durability: String,
    /// Faults that the process was told to cause, such as rules of a sink; empty if the user asked for none.
    pub faults: Vec<String>,
    /// Number of threads that send or receive mail.
    pub workers: Option<u32>,
    /// Sessions that ended because of a defect of the process itself; `null` if such sessions are not counted.
    pub failed_sessions: Option<u64>,
    /// Faults that the process caused because the user asked for them; `null` for processes without such options.
    pub ordered: Option<Ordered>,
    /// How the process ended unexpectedly during the run; `null` if it did not.
    pub died: Option<Death>,
    /// Busy polling of the process's workers; `null` if it was off.
    pub busy_poll: Option<BusyPollRow>,
    /// Processors to which the process was pinned, for example 0,2-3; `null` if it was not pinned.
    pub cpus: Option<String>,
    /// How late the workers of a source woke up from timers that they set only for this measurement; `null` if it was
    /// not measured.
    pub wake_up_ms: Option<LatencyMs>,
    /// What a sink observed besides mail of the run, such as connections and mail without a trace header; `null` for
    /// processes other than a sink.
    pub reception: Option<Reception>,
}

impl Party {
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

    /// Returns the user time plus the system time that the process spent on its work, in seconds. Time in which its
    /// workers polled in vain is left out, because busy polling would otherwise look like load.
    pub fn work_s(&self) -> Option<f64> {
        let used_s = self.user_s? + self.sys_s?;
        let looked_s = self.busy_poll.as_ref().map_or(0.0, |row| row.looked_s);
        Some((used_s - looked_s).max(0.0))
    }
}

/// Busy polling: workers poll for events for a while before they sleep, which costs processor time and saves wake-ups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BusyPollRow {
    /// Time for which a worker polls before it sleeps, for example 50us.
    pub mode: String,
    /// Seconds that the workers spent in polling for events. This time is part of `user_s` and `sys_s`. It is left out
    /// of the processor time per message, and of the test whether the source or the sink was the limit.
    pub looked_s: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Death {
    /// Time at which the process ended, in seconds since the load began.
    pub at_s: f64,
    /// Signal or exit status with which the process ended.
    pub how: String,
    /// Last line that the process wrote to its standard error; empty if it wrote none.
    pub said: String,
    /// True if the process ran out of memory: an allocation failed, or the kernel killed the process for that reason.
    pub out_of_memory: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reception {
    /// Number of connections of clients, whether they belonged to the run or not.
    pub connections: u64,
    /// Number of connections that have ended, by the phase of the client's last command.
    pub ended: Vec<EndedRow>,
    /// Messages without a readable trace header. They may be mail of the run whose header a server removed.
    pub untraced: u64,
    /// `From` of the first message without a trace header; `null` if it had no `From`.
    pub untraced_from: Option<String>,
    /// `Subject` of the first message without a trace header; `null` if it had no `Subject`.
    pub untraced_subject: Option<String>,
    /// Rules of the sink that had an effect: they rejected, delayed, dropped or changed mail, or cut connections.
    pub rules: Vec<RuleRow>,
    /// How the sink watched mailboxes; `null` if it listened for connections instead.
    pub mailboxes: Option<Watched>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Watched {
    /// Number of mailboxes that the sink watched for mail of the run.
    pub count: u64,
    /// Number of mailboxes whose server reports new messages by itself (IDLE).
    pub idle: u64,
    /// Longest interval at which the sink asked mailboxes without IDLE for new messages, in milliseconds; `null` if all
    /// mailboxes have IDLE. Times of the stages announced and delivered may be late by up to this interval.
    pub poll_ms: Option<f64>,
    /// True if messages were fetched whole, so that their bodies were checked as well.
    pub whole: bool,
    /// Number of sessions that broke and were opened again.
    pub broken: u64,
    /// Messages of the run that were deleted from the mailboxes because the user asked for it.
    pub deleted: u64,
    /// Mailboxes that were not open at the end, because their session had broken and was not open again yet. Missing
    /// mail may be in these mailboxes.
    pub closed: u64,
    /// Number of times that a server renumbered a mailbox (UIDVALIDITY). The sink then misses messages that came while
    /// it had no session open.
    pub renumbered: u64,
}

impl Watched {
    pub fn may_hide_mail(&self) -> bool {
        self.closed > 0 || self.renumbered > 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EndedRow {
    /// Phase of the last command that the client sent before the connection ended, for example `rcpt`.
    pub phase: Phase,
    /// Number of connections that ended after a command of this phase.
    pub count: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RuleRow {
    /// The rule as the user typed it, for example `rcpt: greylist 4s`.
    pub rule: String,
    /// Number of commands, messages or recipients on which the rule acted.
    pub count: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ordered {
    /// Number of 4xx and 5xx replies that the sink gave because a rule asked for them.
    pub replies: u64,
    /// Number of connections that the sink closed or reset because a rule asked for it.
    pub cuts: u64,
    /// Message-recipient pairs that the sink counted as arrived but did not answer with 250, so they may be sent again.
    pub unanswered: u64,
    /// Message-recipient pairs that the sink answered with 250 and then dropped.
    pub lost: u64,
    /// Arrivals that the sink made up because a rule asked for duplicates.
    pub duplicates: u64,
    /// Messages that a rule of the sink changed. A message that another rule duplicates counts twice.
    pub corrupt: u64,
}

impl Ordered {
    /// Subtracts the earlier counts `before`, for example to get the faults of one run from the counts of a process.
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

/// A latency distribution in milliseconds. If messages never arrived, or arrived after their time-out, figures that
/// depend on their latencies are `null` in JSON and infinite in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LatencyMs {
    /// Smallest latency, in milliseconds.
    #[serde(deserialize_with = "or_infinite")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    pub min: f64,
    /// Arithmetic mean of all latencies, in milliseconds.
    #[serde(deserialize_with = "or_infinite")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    pub mean: f64,
    /// Median: half of the latencies are at most this long.
    #[serde(deserialize_with = "or_infinite")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    pub p50: f64,
    /// 90th percentile: 90 % of the latencies are at most this long.
    #[serde(deserialize_with = "or_infinite")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    pub p90: f64,
    /// 95th percentile: 95 % of the latencies are at most this long.
    #[serde(deserialize_with = "or_infinite")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    pub p95: f64,
    /// 99th percentile: 99 % of the latencies are at most this long.
    #[serde(deserialize_with = "or_infinite")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    pub p99: f64,
    /// 99.9th percentile: 999 of 1,000 latencies are at most this long.
    #[serde(deserialize_with = "or_infinite")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    pub p999: f64,
    /// Largest latency, in milliseconds.
    #[serde(deserialize_with = "or_infinite")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    pub max: f64,
}

/// Reads `null` as infinity. JSON has no infinite numbers, so records contain `null` instead.
fn or_infinite<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
}

/// A stage, such as accepted: how many messages reached it, at which rate, and after which latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StageRow {
    /// Name of the stage, for example `accepted`, or of a MADES stage, for example `settled`.
    pub name: Stage,
    /// Process, such as source or sink, that observed the stage.
    pub party: String,
    /// Messages that reached the stage. Each arrival counts, including those in `late` and, over SMTP, in `duplicates`.
    pub count: u64,
    /// Messages that failed before they reached the stage. Failures that `party` cannot see are not counted.
    pub failed: u64,
    /// Messages that should have reached the stage but did not. Over SMTP, bounced mail is included. Over MADES,
    /// messages with a known reason, such as the event FAILED, are left out.
    pub missing: u64,
    /// Messages that reached the stage after their time-out (`mades.timeout_s`). They have no latency.
    pub late: u64,
    /// Arrivals of a message after its first arrival.
    pub duplicates: u64,
    /// Total size of the messages that reached the stage, in bytes.
    pub bytes: u64,
    /// Messages per second that reached the stage. The rate is measured from the first arrival until 95 % of the
    /// messages have arrived or, if that is later, until the last message was due. `null` if fewer than 20 messages
    /// arrived, which are too few for a rate.
    pub rate_per_s: Option<f64>,
    /// Seconds from the first created message to the last message that reached the stage.
    pub duration_s: f64,
    /// Stage from which latencies count; `null` if no latency is known, for example because no message had a trace
    /// header.
    pub since: Option<Stage>,
    /// Latency from the stage `since` to this stage, for all messages that were due; `null` if unknown.
    pub latency_ms: Option<LatencyMs>,
    /// Figures in `latency_ms` that are `null`, because messages came late or never, exceed this time in milliseconds.
    /// Over SMTP, it is at least the time for which the run waited; over MADES, it is the time-out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beyond_ms: Option<f64>,
    /// Latencies of the messages that reached the stage in time, as an HdrHistogram of nanoseconds (V2, deflated,
    /// base64), as in interval logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histogram: Option<String>,
    /// Service time: the latency without the time that a message had to wait because all sessions were busy or, over
    /// MADES, too many messages were under way. It counts from when a session began the message or, over MADES, when
    /// the message was created. `null` if it equals the latency (closed loop) or is unknown.
    pub service_ms: Option<LatencyMs>,
    /// Service times as an HdrHistogram, in the format of `histogram`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_histogram: Option<String>,
    /// Times of the arrivals (deflated, base64). `mailrun merge` computes the rate of several machines from them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<String>,
}

impl StageRow {
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

/// Returns the row of the stage `name`. A run over MADES has other stages, so the corresponding stage is returned: for
/// `accepted`, the stage `settled`, and for `delivered`, the stage `inbox` or, for tracing messages, `TRACING`. For
/// `notified`, it is the last stage of the run, unless this is the stage for `delivered` already.
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PhaseRow {
    /// Phase of the SMTP dialogue, for example `rcpt`.
    pub name: Phase,
    /// Number of times that the phase occurred.
    pub count: u64,
    /// Minimum, mean, percentiles and maximum of the time that the phase took.
    pub latency_ms: LatencyMs,
    /// Durations of the phase as an HdrHistogram of nanoseconds (V2, deflated, base64), as in interval logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histogram: Option<String>,
}

/// A period in which messages waited for a stage but none reached it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StallRow {
    /// Stage that no message reached: `accepted` or, only over MADES, `delivered`.
    pub stage: Stage,
    /// Start of the stall in seconds since `origin_ns`. This is when a message last reached the stage or, if no message
    /// was waiting then, when the next message began to wait. The first stall may begin with the load. If connections
    /// fail after a rejection, a new stall begins with the last rejection, because the server was reachable until then.
    pub from_s: f64,
    /// End of the stall: the time at which a message reached the stage again, or the load ended, or the next stall
    /// began.
    pub to_s: f64,
    /// True if the stall lasted until the load ended.
    pub to_the_end: bool,
    /// Messages that the server rejected (4xx, 5xx) during the stall.
    pub rejected: u64,
    /// Messages whose connection failed during the stall.
    pub failed: u64,
}

impl Default for StallRow {
    fn default() -> Self {
        Self { stage: Stage::Accepted, from_s: 0.0, to_s: 0.0, to_the_end: false, rejected: 0, failed: 0 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The requested load was offered completely.
    Complete,
    /// The user stopped the run, for example with Ctrl-C (SIGINT, SIGTERM or SIGHUP).
    Interrupted,
    /// The server was unreachable or answered nothing for as long as `--give-up` or `--reconnect-timeout` allows.
    GaveUp,
    /// A threshold of `--abort-on` was missed.
    Aborted,
    /// A server that the bench had started ended unexpectedly.
    ServerEnded,
    /// The sink ended, or no longer answered.
    SinkEnded,
}

/// Counts and latencies of one second of the run. In a long run, a row covers several seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SeriesRow {
    /// Number of whole seconds from `origin_ns` to the start of this second. The last second may be incomplete.
    pub second: u64,
    /// Messages that were due in this second (open loop) or that a session began in this second (closed loop).
    pub created: u64,
    /// Messages whose last byte was sent in this second.
    pub sent: u64,
    /// Messages that were accepted in this second.
    pub accepted: u64,
    /// Messages that were delivered in this second.
    pub delivered: u64,
    /// Messages that were accepted but not yet delivered at the end of this second.
    pub queued: u64,
    /// Number of errors that happened in this second.
    pub errors: u64,
    /// Median latency, in milliseconds, of the messages that reached the last observed stage in this second; 0 if no
    /// message did. This stage is `delivered` or, if no sink was watched, `accepted`.
    pub p50_ms: f64,
    /// 95th percentile of the latency in this second, in milliseconds; 0 if nothing arrived.
    pub p95_ms: f64,
    /// 99th percentile of the latency in this second, in milliseconds; 0 if nothing arrived.
    pub p99_ms: f64,
    /// 99.9th percentile of the latency in this second, in milliseconds; 0 if nothing arrived.
    pub p999_ms: f64,
    /// Largest latency in this second, in milliseconds; 0 if nothing arrived.
    pub max_ms: f64,
    /// Maximum age of the newest delivered message in this second, in milliseconds since the message was due. It grows
    /// until a newer message is delivered. `null` if nothing was delivered yet, or if deliveries were not observed.
    pub oldest_ms: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PartyUsage {
    /// Name of the process that used the processors and the memory, for example `source`.
    pub party: String,
    /// A row for each second in which the process was observed.
    pub seconds: Vec<UsageRow>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UsageRow {
    /// Start of the second, in seconds since `origin_ns` of the record.
    pub second: u64,
    /// Average number of processors that the process used, including time in the kernel.
    pub cores: f64,
    /// Resident memory at the end of the second, in bytes.
    pub rss_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The warm-up ended. From here on, messages count in the figures.
    WarmUpEnded,
    /// The offered rate changed to the rate of the next stage.
    RateStage,
    /// A requested fault began: for example, the sink started to reject mail because of a rule.
    FaultOn,
    /// A requested fault ended: for example, the sink stopped rejecting mail.
    FaultOff,
    /// The server stopped answering, so connections or messages failed.
    ServerLost,
    /// The server answered again after it had stopped answering.
    ServerBack,
    /// The server delivered at its full rate again, after its next hop had held mail back.
    FullRate,
    /// A process of the run ended unexpectedly, for example by a signal.
    Died,
    /// The user stopped the run, or a threshold ended it.
    Stopped,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EventRow {
    /// Time of the event, in seconds since `origin_ns` of the record.
    pub at_s: f64,
    /// Kind of the event, such as `server_lost`, by which programs recognize it.
    pub kind: EventKind,
    /// Description of the event for a human reader, without its time.
    pub text: String,
}

pub const MAX_SLOW_RECIPIENTS: usize = 10;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlowMessage {
    /// Number of the message in the run, as in its trace header.
    pub message: u64,
    /// Time at which the message was created (closed loop) or due (open loop), in seconds since `origin_ns`.
    pub created_s: f64,
    /// Time from `created_s` to the server's 250; `null` if unknown, because the source remembers only the 50 messages
    /// that were slowest to be accepted.
    pub accepted_ms: Option<f64>,
    /// Time from `created_s` to the last arrival at the sink; `null` if the message did not arrive, or if no sink was
    /// watched.
    pub delivered_ms: Option<f64>,
    /// Time that the message waited for a session (open loop); 0 if the source no longer remembers the message.
    pub waited_ms: f64,
    /// Duration of each phase of the message's dialogue, in the order of the phases; empty if the source no longer
    /// remembers the message.
    pub phases: Vec<SlowPhase>,
    /// Recipients of the message, of which at most 10 are listed.
    pub recipients: Vec<String>,
    /// Number of all recipients of the message, including those that are not listed.
    pub recipient_count: u32,
    /// Size of the message in bytes, including its headers.
    pub bytes: u64,
    /// The server's reply to the end of the message, usually with a queue id; `null` if unknown.
    pub reply: Option<String>,
}

impl SlowMessage {
    /// Returns how long the message took until its arrival or, if that is unknown, until the 250. Lists of slow
    /// messages are sorted by this time.
    pub fn latency_ms(&self) -> f64 {
        self.delivered_ms.or(self.accepted_ms).unwrap_or_default()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MissingMessage {
    /// Number of the message in the run, as in its trace header.
    pub message: u64,
    /// Time at which the message was created (closed loop) or due (open loop), in seconds since `origin_ns`; `null` if
    /// the server accepted the message, because the source does not keep this time for accepted messages.
    pub created_s: Option<f64>,
    /// Reason why the message did not arrive, as far as source and sink together can tell.
    pub fate: MissingFate,
    /// Time at which the server accepted the message, in seconds since `origin_ns`; `null` if it did not accept it, or
    /// if the time is unknown.
    pub answered_s: Option<f64>,
    /// The server's last reply to the message, with the queue id if the message was accepted; `null` if the server sent
    /// none, or if a newer reply has overwritten it. Each worker thread keeps only its last 8192 replies.
    pub reply: Option<String>,
    /// Recipients of the message, of which at most 10 are listed.
    pub recipients: Vec<String>,
    /// Number of recipients whom the message did not reach.
    pub recipient_count: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MissingFate {
    /// The server accepted the message, but the sink has not seen it.
    #[default]
    NotSeen,
    /// The server accepted the message, but reported in a notification that it had given up on it.
    Bounced,
    /// The connection broke after the whole message was sent and before the reply.
    InDoubt,
    /// The server rejected the message with 4xx or 5xx.
    Rejected,
    /// The connection was refused, was cut or timed out.
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

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlowPhase {
    /// Phase of the message's SMTP dialogue, for example `reply`.
    pub name: Phase,
    /// Time that the message spent in the phase, in milliseconds. If a phase repeats (RCPT), its times are added up.
    pub ms: f64,
}

/// How many message-recipient pairs of a recipient domain were accepted, delivered and so on; `null` means unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DomainRow {
    /// The domain in lower case; empty in the row that adds up all domains without a row of their own.
    pub domain: String,
    /// Message-recipient pairs whose message the source began to send, whether or not the server accepted it.
    pub created: u64,
    /// Message-recipient pairs for which the source received a 250.
    pub accepted: u64,
    /// Message-recipient pairs that the server rejected with 4xx or 5xx, whether they arrived or not.
    pub rejected: u64,
    /// Message-recipient pairs whose connection was refused, was cut or timed out.
    pub failed: u64,
    /// Message-recipient pairs whose connection broke after the last byte of the message was sent and before the reply
    /// came, whether they arrived or not.
    pub in_doubt: u64,
    /// Distinct message-recipient pairs that reached the sink, even if the source received no 250 for them.
    pub delivered: Option<u64>,
    /// Arrivals of a message-recipient pair after its first arrival.
    pub duplicates: Option<u64>,
}

/// What became of each unit, which is a pair of message and recipient: how many were delivered, lost and so on. A count
/// is `null` if the process that can see it, source or sink, was not observed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LedgerRow {
    /// Message-recipient pairs whose message the source began to send, whether or not the server accepted it.
    pub created: Option<u64>,
    /// Message-recipient pairs for which the source received a 250.
    pub accepted: Option<u64>,
    /// Distinct message-recipient pairs that reached the sink, even if the source received no 250 for them.
    pub delivered: Option<u64>,
    /// Message-recipient pairs that did not arrive because a server gave up on them. The server reported this in a
    /// notification that reached the sink.
    pub bounced: Option<u64>,
    /// Message-recipient pairs that the server rejected with 4xx or 5xx and that did not arrive. If `failed` is `null`,
    /// pairs whose connection failed are included.
    pub rejected: Option<u64>,
    /// Message-recipient pairs whose connection was refused, was cut or timed out, and that did not arrive.
    pub failed: Option<u64>,
    /// Message-recipient pairs whose connection broke after the last byte of the message was sent and before the reply
    /// came, and that did not arrive. The server may have them.
    pub in_doubt: Option<u64>,
    /// Message-recipient pairs that mailrun's relay gave up on, without a notification that reached the sink.
    pub expired: Option<u64>,
    /// Message-recipient pairs that did not arrive because they are in the queue of mailrun's relay.
    pub queued: Option<u64>,
    /// Accepted message-recipient pairs that were lost; `null` if they may be in a queue that the bench cannot see.
    pub lost: Option<u64>,
    /// Message-recipient pairs that a server accepted and that did not arrive, if the bench cannot see the server's
    /// queue. They are lost, or still in the queue.
    pub not_delivered: Option<u64>,
    /// Message-recipient pairs whose outcome was unknown when the run ended.
    pub in_flight: Option<u64>,
    /// Arrivals of a message-recipient pair after its first arrival.
    pub duplicates: Option<u64>,
    /// Message-recipient pairs that were delivered, but not under the address that the source had named.
    pub rewritten: Option<u64>,
    /// Arrivals under an address that the source had not named. If a recipient's mail arrived only under such an
    /// address, it counts in `rewritten` instead.
    pub copied: Option<u64>,
    /// Messages that arrived with a wrong checksum.
    pub corrupt: Option<u64>,
    /// Messages that a relay converted to 7-bit for a server without 8BITMIME, and whose checksum matches the original.
    pub converted: Option<u64>,
    /// Messages that do not belong to this run, because their trace names another run or they have no trace.
    pub foreign: Option<u64>,
    /// Number of reports in notifications that a delivery is delayed and that a server will try it again. If several
    /// notifications report the same message-recipient pair, each of them counts.
    pub delay_notices: Option<u64>,
    /// Number of reports of bounces that an earlier notification had already reported.
    pub repeated_notices: Option<u64>,
    /// Messages without a latency, because the sink cannot use their creation time. For example, it comes from another
    /// host's monotonic clock.
    pub untimed: Option<u64>,
    /// Messages without a latency, because their creation time is later than their arrival: the clocks of the source's
    /// and the sink's host differ.
    pub negative: Option<u64>,
    /// Message-recipient pairs that the source or the sink could not remember, because its ledger had reached the
    /// memory limit. Their outcomes are unknown.
    pub overflow: Option<u64>,
}

impl LedgerRow {
    /// Returns the row of a run in which nothing has happened and everything is known, so each count is zero.
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

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BounceRow {
    /// Enhanced status code of the bounce, for example `5.1.1`; empty if the notification had none.
    pub status: String,
    /// Reply of the next hop or another reason, as given in the first notification of this kind.
    pub text: String,
    /// Number of message-recipient pairs that bounced for this reason.
    pub count: u64,
    /// First recipient whose mail bounced for this reason.
    pub sample: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RewriteRow {
    /// Recipient that the source had named, as the server gives it in ORCPT; `null` if the server added the recipient,
    /// as with Postfix's `always_bcc`.
    pub original: Option<String>,
    /// Address under which the mail arrived; empty in the last row, which counts arrivals at all other addresses.
    pub address: String,
    /// How often mail arrived under `address`.
    pub count: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorRow {
    /// Phase of the dialogue in which the error happened.
    pub phase: Phase,
    /// Reply code; 0 if there was no reply.
    pub code: u16,
    /// Text of the first reply with this code in this phase, or a description of the error if there was no reply.
    pub text: String,
    /// Number of errors with this code in this phase.
    pub count: u64,
    /// Time of the first error, in seconds since `origin_ns` of the record; `null` if unknown.
    pub first_s: Option<f64>,
    /// Time of the last error, in seconds since `origin_ns` of the record; `null` if unknown.
    pub last_s: Option<f64>,
    /// Recipient that the first error concerned; `null` if the client had not named a recipient yet.
    pub sample: Option<String>,
}

impl ErrorRow {
    /// Beginning of the text of errors that a sink caused on purpose, because a rule of the user asked for them.
    pub const ORDERED_PREFIX: &str = "on purpose: ";

    /// Returns true if a sink caused these errors on purpose, because a rule of the user asked for them.
    pub fn is_ordered(&self) -> bool {
        self.text.starts_with(Self::ORDERED_PREFIX)
    }
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

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThresholdRow {
    /// The threshold as the user typed it, for example `accepted.p99 < 50ms`.
    pub expression: String,
    /// Limit with which the measured value is compared, in `unit`.
    pub limit: Option<f64>,
    /// The measured value, in `unit`; `null` if it is unknown.
    pub value: Option<f64>,
    /// Lower bound of the value in `unit`, if the exact value is unknown because messages never arrived or arrived
    /// after their time-out.
    pub beyond: Option<f64>,
    /// Distance of the value from the limit, in `unit`; negative if the limit was missed.
    pub margin: Option<f64>,
    /// Unit of the limit and the value: ms, /s, % or empty for a plain number.
    pub unit: String,
    /// True if the threshold was certainly met.
    pub passed: bool,
    /// True if the threshold was certainly missed. If both `passed` and `missed` are false, nobody knows whether the
    /// threshold was met.
    pub missed: bool,
    /// Reason why the threshold cannot be decided, or why it was missed without a measured value; empty if the value
    /// explains the result.
    pub why: String,
    /// Parts of the run that a `fresh` threshold judged separately. `value` is the lowest `fresh_percent` of all parts.
    pub windows: Vec<FreshWindow>,
}

/// A part of a run, and the share of its time in which the newest delivered message was fresh enough for a threshold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FreshWindow {
    /// Start of this part of the run, in seconds since `origin_ns`.
    pub from_s: f64,
    /// End of this part of the run, in seconds since `origin_ns`.
    pub to_s: f64,
    /// Messages that were due in this part of the run.
    pub created: u64,
    /// Messages that were delivered in this part of the run.
    pub delivered: u64,
    /// Number of errors that happened in this part of the run.
    pub errors: u64,
    /// Largest latency of the messages that were delivered in this part of the run, in milliseconds.
    pub max_ms: f64,
    /// Maximum age of the newest delivered message in this part of the run, in milliseconds since the message was due.
    pub oldest_ms: f64,
    /// Seconds during which the newest delivered message was older than the threshold allows.
    pub stale_s: f64,
    /// Percentage of the time in which the newest delivered message was not older than the threshold allows.
    pub fresh_percent: f64,
}

/// Outcome of a run in a word, which also decides the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Everything that was required was observed, and nothing counts against the run.
    Pass,
    /// Mail was lost, duplicated, changed, rejected or given up beyond what was allowed, or a threshold was missed.
    Fail,
    /// The figures do not describe the server, because the generator, the sink or the host was the bottleneck.
    Invalid,
    /// A required figure could not be observed, so a longer or better observed run is needed.
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

/// Kind of problem that a reason in a verdict reports. The kinds are sorted by weight, and the weightiest problem of a
/// run decides its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Sessions of source or sink ended because of a defect of mailrun itself.
    Defect,
    /// The counts contradict each other, or are incomplete.
    Unaccounted,
    /// A process that the bench had started ended unexpectedly.
    Died,
    /// The server accepted mail that then got lost.
    Lost,
    /// A message arrived more than once for the same recipient.
    Duplicates,
    /// A message arrived with a changed body.
    Corrupt,
    /// Messages never reached a stage although no reason was reported (MADES), or more messages were not delivered than
    /// a threshold allows.
    Missing,
    /// A threshold on time was missed because messages never arrived, and not because others were too slow.
    NeverCame,
    /// The server went away during the load and did not come back.
    ServerGone,
    /// Connections were refused, cut or timed out.
    Failed,
    /// Connections broke after a whole message was sent, and before its reply.
    InDoubt,
    /// The server rejected mail with 4xx or 5xx.
    Rejected,
    /// A server gave up on mail and reported it in notifications that reached the sink.
    Bounced,
    /// More mail arrived at rewritten addresses than a threshold allows.
    Rewritten,
    /// More copies arrived at addresses that were no recipients than a threshold allows.
    Copied,
    /// mailrun's relay gave up on mail and reported this.
    Expired,
    /// No message was accepted. Over MADES: no message was delivered.
    NothingAccepted,
    /// The server did not accept the requested rate.
    RateMissed,
    /// A defect of mailrun's relay ended sessions.
    RelayDefect,
    /// The generator did not offer the requested rate.
    RateNotOffered,
    /// The generator fell behind its schedule, which may have changed the result of a threshold.
    Late,
    /// A threshold judges times between two hosts whose clocks differ too much or by an unknown amount.
    Clocks,
    /// Source or sink was busy almost all the time, so it may have been the limit instead of the server.
    Busy,
    /// A process of the run ran out of descriptors or ports, which limited the load.
    Exhausted,
    /// The hypervisor gave the processors to other guests.
    Stolen,
    /// Other programs used the processors of this host, which explains why a rate or threshold was missed.
    HostBusy,
    /// All messages were created during the warm-up, so there are no figures.
    NothingTimed,
    /// A threshold was missed, and no other cause explains why.
    ThresholdMissed,
    /// The sink went away, so later arrivals are unknown.
    SinkGone,
    /// A threshold concerns something that was not observed.
    ThresholdUnseen,
    /// Mail did not arrive, and it is unknown whether it is lost or in the server's queue.
    NotDelivered,
    /// When the run ended, mail was in the relay's queue or still in flight.
    Unfinished,
    /// The user ended the run before its planned end.
    Interrupted,
    /// The user requested the fault, so it does not count against the run.
    Ordered,
    /// The server accepted nothing for a while, which by itself is no fault.
    Stalled,
    /// A remark for the reader, which does not affect the outcome.
    Remark,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Verdict {
    /// Outcome of the run; `null` in the record of a sink or a relay alone, which cannot see the whole run.
    pub outcome: Option<Outcome>,
    /// Main reason for the outcome, in a sentence.
    pub why: String,
    /// True if every message-recipient pair is accounted for: the counts add up to the created pairs, no pair is lost,
    /// duplicate or corrupt, and deliveries were observed.
    pub closed: bool,
    /// True if the figures describe the server: neither the generator nor the sink nor the host limited them.
    pub valid: bool,
    /// Whole sentences about what counts against the run, such as lost mail or a busy host, and about further facts
    /// that a reader must know. The weightiest comes first.
    pub reasons: Vec<String>,
    /// Kind of problem of each text in `reasons`, in the same order, so that programs can recognize the reason.
    pub causes: Vec<Cause>,
}
