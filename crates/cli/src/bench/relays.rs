//! Options that select the relay between source and sink, and options of the scenarios that compare relays.
use crate::options::server::{Scheme, ServerArg};
use crate::options::{Measurement, NoThresholdArgs, RoundsArgs, values};
use crate::report::results::TableReportArgs;
use crate::source::threshold;
use anyhow::{Context, Result, bail};
use clap::Args;
use mailrun_bench::relay::{Relay, RelayDurability, name_apart};
use mailrun_bench::relays::{
    self, BacklogOptions, BacklogReceiver, LatencyOptions, MemoryGrowth, MemoryTarget, ReadyTarget,
    RelayComparisonOptions, ScenarioOptions, SoakOptions, SustainedLimits,
};
use mailrun_bench::{BenchTarget, TextReport};
use mailrun_load::sink::Receiver;
use mailrun_measurement::record::{Arrival, Pipelining};
use mailrun_measurement::threshold::Threshold;
use std::path::PathBuf;
use std::time::Duration;

/// Number of file descriptors that a process needs for everything other than sessions, such as files and pipes.
const SPARE_FILES: u64 = 256;

/// The relay through which a run sends its mail.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Relay")]
pub(crate) struct BenchRelayArgs {
    /// Relay between source and sink: none, mailrun (also mailrun:write, mailrun:memory, with less durability), a
    /// recipe or a command [default: mailrun]. A recipe is a file or a name from mailrun recipe list, such as postfix
    /// (a private instance; requires root). A command has {to}, {listen} and {spool} in it, such as 'mta -l {listen} -n
    /// {to} -q {spool}'.
    #[arg(long, value_name = "WHICH", conflicts_with = "server", hide_default_value = true)]
    relay: Option<Relay>,
    /// Address on which the bench's own sink listens for the mail that SERVER delivers.
    #[arg(long, value_name = "HOST:PORT", requires = "server", value_parser = values::listening)]
    sink_listen: Option<String>,
}

impl BenchRelayArgs {
    /// Lets the source send directly to the sink unless the user chose a relay. Without this call, the default is
    /// mailrun's own relay.
    pub(crate) fn or_none(self) -> Self {
        Self { relay: self.relay.or(Some(Relay::None)), ..self }
    }

    pub(crate) fn named_relay(&self) -> Option<Relay> {
        self.relay.clone()
    }

    /// Returns true if the bench starts a sink to which SERVER delivers, because `--sink-listen` was given.
    pub(crate) fn has_own_sink(&self) -> bool {
        self.sink_listen.is_some()
    }

    /// Returns SERVER as a running relay that delivers to the sink of `--sink-listen`. Returns `None` without
    /// `--sink-listen`, because the bench then starts no sink to which SERVER could deliver.
    pub(crate) fn running(&self, server: &ServerArg) -> Option<Relay> {
        let sink = self.sink_listen.clone()?;
        Some(Relay::Running { address: server.address().to_owned(), sink })
    }
}

/// The relay of a scenario, which is either started by the bench or a running server that delivers to the bench's sink.
#[derive(Clone, Debug, Args)]
pub(crate) struct ScenarioRelayArgs {
    /// Relay that is already running, and delivers to --sink-listen: HOST or HOST:PORT.
    #[arg(value_name = "SERVER", value_parser = ServerArg::parse, requires = "sink_listen", conflicts_with = "relay",
          help_heading = None::<&str>)]
    server: Option<ServerArg>,
    #[command(flatten)]
    relay: BenchRelayArgs,
}

impl ScenarioRelayArgs {
    fn is_typed(&self) -> bool {
        self.server.is_some() || self.relay.relay.is_some()
    }

    /// Returns SERVER if the user gave one, else the relay of `--relay`, which is mailrun's own by default.
    ///
    /// # Errors
    ///
    /// Returns an error if SERVER is given without `--sink-listen`, or if its URL asks for TLS or LMTP, because these
    /// scenarios speak only SMTP without TLS.
    fn chosen(&self) -> Result<Relay> {
        let Some(server) = &self.server else { return Ok(self.relay.named_relay().unwrap_or_else(default_relay)) };
        if server.scheme() != Scheme::Smtp {
            bail!("this scenario speaks SMTP without TLS: write {}", server.address());
        }
        self.relay.running(server).context("SERVER requires --sink-listen HOST:PORT")
    }

    /// Returns SERVER or the relay of `--relay`. If the user gave neither, returns the relays of `--compare`, for which
    /// the scenario's file has a default.
    fn chosen_or(&self, mut compared: Vec<Relay>) -> Result<Vec<Relay>> {
        if self.is_typed() {
            return Ok(vec![self.chosen()?]);
        }
        name_apart(&mut compared);
        Ok(compared)
    }
}

pub(crate) fn default_relay() -> Relay {
    Relay::Mailrun(RelayDurability::Sync)
}

/// Measures a relay as the benchmark of Mailismus does: 250 sessions, 5 domains, a new connection for each message
///
/// Measures the time until all messages are accepted, the time until all are delivered, and what the relay used: CPU
/// time of all its processes, bytes written, memory. The sink is always mailrun's own, and every message must be
/// accounted for. Several relays are measured in turns. Ctrl-C ends the run and prints the table so far (exit
/// status 130). Exit status 1 if a run failed, a message was lost or a threshold was missed.
#[derive(Debug, Args)]
#[command(after_help = COMPARISON_EXAMPLES)]
pub(crate) struct RelayComparisonArgs {
    /// Messages per run.
    #[arg(short, long, visible_short_alias = 'n', value_name = "N", value_parser = values::scenario_messages)]
    messages: u64,
    /// Use as many messages as the benchmark of Mailismus (relay-400: 500,000).
    #[arg(long, conflicts_with = "messages")]
    full: bool,
    /// Messages per second to offer [default: as fast as the relays accept them].
    #[arg(long, value_name = "PER SECOND", value_parser = values::rate)]
    rate: Option<f64>,
    /// Number of messages with --full.
    #[arg(long, value_name = "N", hide = true, value_parser = values::scenario_messages)]
    published_messages: Option<u64>,
    #[command(flatten)]
    shape: LoadShapeArgs,
    #[command(flatten)]
    rounds: RoundsArgs,
    /// Relays to compare, measured in turns: mailrun,postfix,my.toml. Ratios are relative to Postfix, or to the last
    /// relay.
    #[arg(long, value_name = "WHICH,WHICH", value_delimiter = ',', conflicts_with_all = ["relay", "server"])]
    compare: Vec<Relay>,
    /// Count system calls too, in separate short runs under strace.
    #[arg(long)]
    syscalls: bool,
    /// Condition that every run must meet, repeatable: 'accepted.p99 < 50ms', 'delivered.rate > 5000/s',
    /// 'rejected <= 0.1%'. See mailrun bench --help.
    #[arg(long = "threshold", value_name = "EXPRESSION", value_parser = values::closed_loop_threshold)]
    thresholds: Vec<Threshold>,
    /// Directory for all files, instead of a new one in mailrun-results. The relays store their mail there.
    #[arg(long, value_name = "DIR", value_parser = values::directory)]
    out: Option<PathBuf>,
    #[command(flatten)]
    relay: ScenarioRelayArgs,
    #[command(flatten)]
    tables: TableReportArgs,
}

const COMPARISON_EXAMPLES: &str = "\
Examples:
  mailrun bench relay-400 --compare mailrun,postfix     against Postfix, as root
  mailrun bench relay-400 --compare mailrun,none        against no relay
  mailrun bench mailbox --compare dovecot,cyrus         mail by LMTP, read by IMAP
  mailrun bench relay-400 --sessions 100 --reuse --pipelining stream --messages 200000
  mailrun bench relay-400 --relay 'mta -l {listen} -n {to} -q {spool}'
  mailrun bench relay-400 127.0.0.1:25 --sink-listen 127.0.0.1:2526     a relay that is running";

pub(crate) fn scenario_options(name: &str, out: Option<PathBuf>, tables: &TableReportArgs) -> ScenarioOptions {
    let command = mailrun_process::outputs::command_line();
    ScenarioOptions { name: name.to_owned(), out, command, thresholds: Vec::new(), live: tables.live() }
}

/// Raises the limit of open files now, so that all processes of the bench inherit it. Allows two files per session,
/// because a relay may hold two connections for each message in transit, or run a process for it.
pub(crate) fn raise_open_files(sessions: u32) {
    mailrun_net::open_files::raise(2 * u64::from(sessions) + SPARE_FILES);
}

impl Measurement for RelayComparisonArgs {
    fn run(self: Box<Self>, name: &str) -> Result<TextReport> {
        let contestants = self.relay.chosen_or(self.compare.clone())?;
        let messages = self.messages()?;
        let is_alone = contestants.iter().all(|one| !BenchTarget::of(one.clone()).has_server_here());
        let _awake = self.tables.keep_awake.begin(contestants.len() > 1 || is_alone)?;
        relays::run(&RelayComparisonOptions {
            scenario: ScenarioOptions { thresholds: self.thresholds, ..scenario_options(name, self.out, &self.tables) },
            contestants,
            messages,
            rate_per_s: self.rate,
            shape: self.shape.shape(),
            rounds: self.rounds.rounds,
            order: self.rounds.order,
            counts_syscalls: self.syscalls,
        })
    }

    fn tables(&self) -> &TableReportArgs {
        &self.tables
    }
}

impl RelayComparisonArgs {
    fn messages(&self) -> Result<u64> {
        match self.published_messages.filter(|_| self.full) {
            Some(published) => Ok(published),
            None if self.full => bail!("--full needs the key published_messages in the scenario's [workload]"),
            None => Ok(self.messages),
        }
    }
}

/// Options for the sessions, connections and messages of the load, which several scenarios share.
#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
struct LoadShapeArgs {
    /// Parallel SMTP sessions (clients).
    #[arg(short, long, visible_short_alias = 'c', value_name = "N", default_value = "100", value_parser = values::sessions)]
    sessions: u32,
    /// Size of a message in bytes, header included: 400, 64k.
    #[arg(short = 'l', long, value_name = "BYTES", default_value = "400", value_parser = values::message_size)]
    message_size: u64,
    /// Messages per connection; without N, or with 0, no limit.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_value = "0",
          default_missing_value = "0", value_parser = values::count)]
    reuse: u64,
    /// Commands sent without waiting for replies.
    #[arg(long, value_enum, default_value = "off")]
    pipelining: Pipelining,
}

impl LoadShapeArgs {
    fn shape(&self) -> relays::LoadShape {
        raise_open_files(self.sessions);
        relays::LoadShape {
            sessions: self.sessions,
            message_bytes: self.message_size,
            reuse: Some(self.reuse).filter(|messages| *messages > 0),
            pipelining: self.pipelining,
        }
    }
}

/// Measures how soon a relay answers 250 at half of its highest sustainable rate (target: p99 under 20 ms)
///
/// First estimates the rate with a closed loop, in which each session waits for replies. Then searches with an open
/// loop, one fixed rate in each step. A rate is sustained if the source kept up with it, and if all messages of the
/// step were delivered when it ended or shortly after. Finally measures in several rounds at half of the highest
/// sustained rate. Latency counts from the time at which each message was due. Ctrl-C ends the run and prints the table
/// so far (exit status 130). Exit status 1 if the target is missed, 3 if it could not be measured.
#[derive(Debug, Args)]
#[command(after_help = LATENCY_EXAMPLES)]
pub(crate) struct LatencyArgs {
    /// Time for which the search tries each rate.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = values::some_duration)]
    step: Duration,
    /// Maximum number of steps of the search.
    #[arg(long, value_name = "N", default_value = "7", value_parser = values::steps)]
    steps: u32,
    /// Measure at this rate, without a search.
    #[arg(long, value_name = "PER SECOND", value_parser = values::rate)]
    rate: Option<f64>,
    /// Distribution of the sending times in a measured round.
    #[arg(long, value_enum, default_value = "poisson")]
    arrival: Arrival,
    /// Length of each measured round.
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = values::some_duration)]
    duration: Duration,
    /// Number of rounds after the search.
    #[arg(long, value_name = "N", default_value = "3", value_parser = values::rounds)]
    rounds: u32,
    #[command(flatten)]
    shape: LoadShapeArgs,
    #[command(flatten)]
    targets: LatencyTargetArgs,
    /// Further condition that every round must meet, repeatable: 'delivered.p99 < 50ms'. See mailrun bench --help.
    #[arg(long = "threshold", value_name = "EXPRESSION", value_parser = threshold)]
    thresholds: Vec<Threshold>,
    /// Directory for all files, instead of a new one in mailrun-results. The relay stores its mail there.
    #[arg(long, value_name = "DIR", value_parser = values::directory)]
    out: Option<PathBuf>,
    #[command(flatten)]
    relay: ScenarioRelayArgs,
    #[command(flatten)]
    tables: TableReportArgs,
}

const LATENCY_EXAMPLES: &str = "\
Examples:
  mailrun bench relay-latency                                 about 90 s
  mailrun bench relay-latency --reuse=1 --sessions 250        a new connection for each message
  mailrun bench relay-latency --rate 2000 --duration 30s      at a given rate
  mailrun bench relay-latency --relay postfix                 as root";

/// Limits that decide whether a rate is sustained, and the target for the latency at a share of the highest sustained
/// rate. The file of a scenario sets them.
#[derive(Debug, Args)]
struct LatencyTargetArgs {
    /// Rate of the rounds, as a share of the highest sustained rate.
    #[arg(long, value_name = "P", hide = true, default_value = "50%", value_parser = values::some_share)]
    share: f64,
    /// Time after the end of a search step in which its last messages may still be delivered. --max-delay-share adds a
    /// share of the step's length.
    #[arg(long, value_name = "TIME", hide = true, default_value = "100ms", value_parser = values::some_duration)]
    max_delay: Duration,
    /// Share of a search step's length that is added to the time in which its last messages may be delivered.
    #[arg(long, value_name = "P", hide = true, default_value = "5%", value_parser = values::some_share)]
    max_delay_share: f64,
    /// A rate is sustained only if at least this share of the messages that were due was sent.
    #[arg(long, value_name = "P", hide = true, default_value = "98%", value_parser = values::some_share)]
    min_sent: f64,
    /// Limit for the p99 of the time until 250. The median of the p99 of all rounds must be below it.
    #[arg(long, value_name = "TIME", hide = true, value_parser = values::some_duration)]
    accept_p99: Option<Duration>,
}

impl Measurement for LatencyArgs {
    fn run(self: Box<Self>, name: &str) -> Result<TextReport> {
        let relay = self.relay.chosen()?;
        let _awake = self.tables.keep_awake.begin(!BenchTarget::of(relay.clone()).has_server_here())?;
        relays::run_latency(&LatencyOptions {
            relay,
            shape: self.shape.shape(),
            step: self.step,
            steps: self.steps,
            rate_per_s: self.rate,
            arrival: self.arrival,
            sustained: SustainedLimits {
                max_delay: self.targets.max_delay,
                max_delay_share: self.targets.max_delay_share,
                min_sent: self.targets.min_sent,
            },
            share: self.targets.share,
            length: self.duration,
            rounds: self.rounds,
            accept_p99: self.targets.accept_p99,
            scenario: ScenarioOptions { thresholds: self.thresholds, ..scenario_options(name, self.out, &self.tables) },
        })
    }

    fn tables(&self) -> &TableReportArgs {
        &self.tables
    }
}

/// Fills a relay's queue while the next hop is down, restarts the relay, and measures how it delivers the queue
///
/// Before anything is written, the bench prints the required disk space and checks that it is free. A source fills the
/// relay's queue while the next hop does not listen, and the bench measures rate, memory and disk space. Next, the
/// bench stops the relay with SIGTERM, starts it again, and measures the time until it is ready. Then the sink listens
/// and the bench flushes the queue. Every message that was answered 250 must arrive, and the times until the first and
/// the last message arrive are measured. SERVER is not restarted, and delivers its queue at its own next retry.
///
/// The target for every relay is that no message is lost. mailrun's own relay must also use less than 256 MiB of memory
/// with up to 100,000 queued messages, and be ready in less than 10 s with up to 1,000,000.
///
/// Ctrl-C ends the run and prints the table so far (exit status 130). Exit status 1 if a target is missed, 3 if one
/// could not be measured.
#[derive(Debug, Args)]
#[command(after_help = BACKLOG_EXAMPLES)]
pub(crate) struct BacklogArgs {
    /// Number of messages to queue.
    #[arg(short, long, visible_short_alias = 'n', value_name = "N", value_parser = values::scenario_messages)]
    messages: u64,
    /// Relays to measure one after the other, for one table: postfix,exim,my.toml.
    #[arg(long, value_name = "WHICH,WHICH", value_delimiter = ',', conflicts_with_all = ["relay", "server"])]
    compare: Vec<Relay>,
    #[command(flatten)]
    shape: LoadShapeArgs,
    /// Stop waiting for the rest of the queue if nothing is delivered for this long. A server whose recipe has no
    /// queue.flush may wait for minutes before a retry.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = values::some_duration)]
    lost_after: Duration,
    /// Send this many fresh messages per second while the queue is delivered, and measure their latency.
    #[arg(long, value_name = "PER SECOND", value_parser = values::rate)]
    fresh: Option<f64>,
    /// Do not run queue.flush of the recipe when the next hop is back, so that the server retries on its own schedule.
    /// The time until it delivers at its full rate then includes its waits between retries.
    #[arg(long)]
    no_flush: bool,
    /// Let the next hop listen while the queue fills, and hold mail back by this rule of the sink: 'read 50K/s', 'delay
    /// 80ms', 'mail: limit 10/s "421 4.7.0 Later"', or like:NAME for the limits of a known receiver (mailrun sink
    /// --rules-like). See mailrun sink --help.
    #[arg(long, value_name = "RULE", value_parser = receiver)]
    receiver: Option<BacklogReceiver>,
    #[command(flatten)]
    no_thresholds: NoThresholdArgs,
    #[command(flatten)]
    targets: BacklogTargetArgs,
    /// Directory for all files, instead of a new one in mailrun-results. The relay stores its mail there, 7 GB by
    /// default.
    #[arg(long, value_name = "DIR", value_parser = values::directory)]
    out: Option<PathBuf>,
    #[command(flatten)]
    relay: ScenarioRelayArgs,
    #[command(flatten)]
    tables: TableReportArgs,
}

/// Limits for the relay's memory and for its start in a backlog scenario. The file of the scenario sets these limits.
#[derive(Debug, Args)]
struct BacklogTargetArgs {
    /// Maximum peak memory of the relay.
    #[arg(long, value_name = "BYTES", hide = true, value_parser = values::some_bytes)]
    memory: Option<u64>,
    /// Longest queue, in messages, for which the limit on the relay's peak memory applies.
    #[arg(long, value_name = "N", hide = true, default_value = "100M", value_parser = values::scenario_messages)]
    memory_messages: u64,
    /// Maximum time in which the relay must have read its queue after a start.
    #[arg(long, value_name = "TIME", hide = true, value_parser = values::some_duration)]
    ready: Option<Duration>,
    /// Longest queue, in messages, for which the limit on the time to read the queue after a start applies.
    #[arg(long, value_name = "N", hide = true, default_value = "100M", value_parser = values::scenario_messages)]
    ready_messages: u64,
}

/// Parses how the next hop holds mail back: `like:NAME` stands for the limits of a known receiver, and any other text
/// is a rule of the sink. The rule is passed on to the sink as text, so it is only checked for mistakes here.
fn receiver(text: &str) -> Result<BacklogReceiver, String> {
    match text.strip_prefix("like:") {
        Some(name) => Receiver::named(name).map(|known| BacklogReceiver::Like(known.name.to_owned())),
        None => crate::sink::rule(text).map(|_| BacklogReceiver::Rule(text.to_owned())),
    }
}

const BACKLOG_EXAMPLES: &str = "\
Examples:
  mailrun bench backlog                                    100,000 of 64 KiB: 7 GB of disk
  mailrun bench backlog --messages 1000000 -l 400          1.5 GB of disk
  mailrun bench backlog --relay postfix --messages 50000 -l 4k      as root
  mailrun bench backlog --compare postfix,exim,mailrun --messages 50000 -l 4k
  mailrun bench backlog 127.0.0.1:25 --sink-listen 127.0.0.1:2526 --lost-after 10m
  mailrun bench backlog --out /mnt/other/run";

impl Measurement for BacklogArgs {
    fn run(self: Box<Self>, name: &str) -> Result<TextReport> {
        let relays = self.relay.chosen_or(self.compare)?;
        let first = relays.first().cloned().unwrap_or_else(default_relay);
        let is_alone = !BenchTarget::of(first.clone()).has_server_here();
        let _awake = self.tables.keep_awake.begin(relays.len() > 1 || is_alone)?;
        let BacklogTargetArgs { memory, memory_messages, ready, ready_messages } = self.targets;
        let options = BacklogOptions {
            relay: first,
            shape: self.shape.shape(),
            messages: self.messages,
            lost_after: self.lost_after,
            fresh_per_s: self.fresh,
            flushes: !self.no_flush,
            receiver: self.receiver,
            memory_target: memory.map(|bytes| MemoryTarget { bytes, messages: memory_messages }),
            ready_target: ready.map(|time| ReadyTarget { time, messages: ready_messages }),
            scenario: scenario_options(name, self.out, &self.tables),
        };
        if relays.len() > 1 { relays::compare_backlogs(&options, &relays) } else { relays::run_backlog(&options) }
    }

    fn tables(&self) -> &TableReportArgs {
        &self.tables
    }
}

/// Sends a million messages through a relay, which must not use more and more memory, keep disk space or lose mail
///
/// The peak memory after the first tenth of the messages must be at most 1.2 times the peak in the first tenth plus 16
/// MiB. At the end the relay's spool must be as small as an empty one. Ctrl-C stops the source, lets the relay deliver
/// the mail that it has accepted, and prints the table (exit status 130). Exit status 1 if a target is missed, 3 if one
/// could not be measured.
#[derive(Debug, Args)]
#[command(after_help = SOAK_EXAMPLES)]
pub(crate) struct SoakArgs {
    /// Number of messages to send.
    #[arg(short, long, visible_short_alias = 'n', value_name = "N", value_parser = values::scenario_messages)]
    messages: u64,
    /// Messages per second to offer [default: as fast as the relay accepts them].
    #[arg(long, value_name = "PER SECOND", value_parser = values::rate)]
    rate: Option<f64>,
    #[command(flatten)]
    shape: LoadShapeArgs,
    #[command(flatten)]
    targets: SoakTargetArgs,
    /// Further condition that the run must meet, repeatable: 'delivered.p99 < 50ms'. See mailrun bench --help.
    #[arg(long = "threshold", value_name = "EXPRESSION", value_parser = threshold)]
    thresholds: Vec<Threshold>,
    /// Directory for all files, instead of a new one in mailrun-results. The relay stores its mail there.
    #[arg(long, value_name = "DIR", value_parser = values::directory)]
    out: Option<PathBuf>,
    #[command(flatten)]
    relay: ScenarioRelayArgs,
    #[command(flatten)]
    tables: TableReportArgs,
}

const SOAK_EXAMPLES: &str = "\
Examples:
  mailrun bench relay-soak
  mailrun bench relay-soak --pipelining stream                one round trip per message: the fastest
  mailrun bench relay-soak --rate 5000 --message-size 4k
  mailrun bench relay-soak --messages 50000 --relay postfix   as root";

/// The targets of a soak scenario, which the file of the scenario sets.
#[derive(Debug, Args)]
struct SoakTargetArgs {
    /// Maximum growth of memory: the peak after the first tenth of the messages, divided by the peak before.
    #[arg(long, value_name = "FACTOR", hide = true, value_parser = values::growth)]
    memory_growth: Option<f64>,
    /// Bytes by which the relay may exceed the memory that --memory-growth allows.
    #[arg(long, value_name = "BYTES", hide = true, default_value = "0", value_parser = values::bytes)]
    memory_allowance: u64,
    /// Maximum disk space of mailrun's own relay when its queue is empty.
    #[arg(long, value_name = "BYTES", hide = true, value_parser = values::some_bytes)]
    idle_spool: Option<u64>,
}

impl Measurement for SoakArgs {
    fn run(self: Box<Self>, name: &str) -> Result<TextReport> {
        let relay = self.relay.chosen()?;
        let _awake = self.tables.keep_awake.begin(!BenchTarget::of(relay.clone()).has_server_here())?;
        relays::run_soak(&SoakOptions {
            relay,
            shape: self.shape.shape(),
            messages: self.messages,
            rate_per_s: self.rate,
            memory_growth: self
                .targets
                .memory_growth
                .map(|factor| MemoryGrowth { factor, allowance_bytes: self.targets.memory_allowance }),
            max_idle_spool_bytes: self.targets.idle_spool,
            scenario: ScenarioOptions { thresholds: self.thresholds, ..scenario_options(name, self.out, &self.tables) },
        })
    }

    fn tables(&self) -> &TableReportArgs {
        &self.tables
    }
}
