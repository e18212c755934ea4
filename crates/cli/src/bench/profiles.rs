//! Options of the scenarios that measure how a server depends on the size of messages: `kotlin-profile`, `sizes` and
//! `large-message`.
use crate::bench::relays::{raise_open_files, scenario_options};
use crate::options::server::{Scheme, ServerArg};
use crate::options::{Measurement, RoundsArgs, values};
use crate::report::results::TableReportArgs;
use anyhow::{Result, bail};
use clap::Args;
use mailrun_bench::profiles::{self, LargeMessageOptions, MessageCost, ProfileOptions, ProfiledServer};
use mailrun_bench::relay::Relay;
use mailrun_bench::relays::ScenarioOptions;
use mailrun_bench::{BenchTarget, TextReport};
use mailrun_load::source::AddressPattern;
use mailrun_measurement::record::Pipelining;
use mailrun_measurement::threshold::Threshold;
use std::path::PathBuf;
use std::time::Duration;

/// Options that name the server to measure, which either runs already or is started by the bench.
#[derive(Debug, Args)]
struct ProfiledServerArgs {
    /// Server to profile: HOST or HOST:PORT, without TLS. Without SERVER, the bench starts the server of --relay.
    #[arg(value_name = "SERVER", value_parser = ServerArg::parse, conflicts_with = "relay")]
    server: Option<ServerArg>,
    /// Server that the bench starts: none (only mailrun's sink), mailrun (its relay before the sink; also
    /// mailrun:write, mailrun:memory), postfix (a private instance; requires root), or a command with {to}, {listen}
    /// and {spool} in it.
    #[arg(long, value_name = "WHICH", help_heading = "Relay")]
    relay: Option<Relay>,
    /// Address on which the bench's own sink listens for the mail that SERVER delivers.
    #[arg(long, value_name = "HOST:PORT", requires = "server", value_parser = values::listening, help_heading = "Relay")]
    sink_listen: Option<String>,
    /// Recipient of all messages.
    #[arg(long, value_name = "ADDRESS", default_value = "to@example.com", value_parser = values::recipient)]
    to: AddressPattern,
}

impl ProfiledServerArgs {
    /// Returns SERVER if the user gave one, else the relay of `--relay`, which by default is only mailrun's sink. Fails
    /// if SERVER's URL asks for TLS or LMTP, because profiles speak only SMTP without TLS.
    fn server(&self) -> Result<ProfiledServer> {
        let recipient = self.to.expression().to_owned();
        let Some(server) = &self.server else {
            return Ok(ProfiledServer { target: BenchTarget::of(self.started()), recipient });
        };
        if server.scheme() != Scheme::Smtp {
            bail!("this scenario speaks SMTP without TLS: write {}", server.address());
        }
        let address = server.address().to_owned();
        let target = match self.sink_listen.clone() {
            Some(sink) => BenchTarget::Relay(Relay::Running { address, sink }),
            None => BenchTarget::Server { address, sink: None },
        };
        Ok(ProfiledServer { target, recipient })
    }

    fn started(&self) -> Relay {
        self.relay.clone().unwrap_or(Relay::None)
    }
}

/// Measures rate and latency of a server at several message sizes, as the performance guide of Kotlin SMTP does
///
/// Prints messages per second, the average, p50, p95, p99 and maximum of the time until 250, and how long 1,000, 10,000
/// and 100,000 messages take at that rate. Without SERVER the server is mailrun's own sink. Ctrl-C ends the run and
/// prints the table so far (exit status 130). Exit status 1 if a run failed, a message was lost or a threshold was
/// missed.
#[derive(Debug, Args)]
#[command(after_help = PROFILE_EXAMPLES)]
pub(crate) struct ProfileArgs {
    /// Messages per run, over all sessions.
    #[arg(short, long, visible_short_alias = 'n', value_name = "N", value_parser = values::scenario_messages)]
    messages: Option<u64>,
    /// Length of a run; it ends earlier if all its messages are sent.
    #[arg(short, long, value_name = "TIME", value_parser = values::some_duration)]
    duration: Option<Duration>,
    /// Exclude the first TIME of each run from the figures; 0s counts all messages.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = mailrun_text::quantities::duration)]
    warm_up: Duration,
    /// Sizes of the message body to measure, in bytes, separated by commas: 256,4k,64k.
    #[arg(short = 'l', long, value_name = "BYTES,BYTES", value_delimiter = ',', required = true,
          value_parser = values::body_size)]
    body_sizes: Vec<u64>,
    /// Parallel SMTP sessions (clients).
    #[arg(short, long, visible_short_alias = 'c', value_name = "N", default_value = "8", value_parser = values::sessions)]
    sessions: u32,
    /// Messages per connection; without N, or with 0, no limit.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_value = "1",
          default_missing_value = "0", value_parser = values::count)]
    reuse: u64,
    /// Commands sent without waiting for replies.
    #[arg(long, value_enum, default_value = "off")]
    pipelining: Pipelining,
    #[command(flatten)]
    rounds: ProfileRoundArgs,
    #[command(flatten)]
    server: ProfiledServerArgs,
    #[command(flatten)]
    tables: TableReportArgs,
}

/// Measures large messages on one connection, and the extra cost of dots, short lines, small writes and tracing
///
/// Sends messages of each size over one connection, one after the other, and prints MB/s. Then repeats this with each
/// of --costs, and prints the ratio to the plain run of the same round. Without SERVER the server is mailrun's own
/// sink. Ctrl-C ends the run and prints the table so far (exit status 130). Exit status 1 if a run failed, a message
/// was lost or a threshold was missed.
#[derive(Debug, Args)]
#[command(after_help = LARGE_MESSAGE_EXAMPLES)]
pub(crate) struct LargeMessageArgs {
    /// Sizes of the message body to measure, in bytes, separated by commas: 1M,10M,100M.
    #[arg(short = 'l', long, value_name = "BYTES,BYTES", value_delimiter = ',', required = true,
          value_parser = values::body_size)]
    body_sizes: Vec<u64>,
    /// Extra costs to compare with the plain run, separated by commas: chunking (BDAT), dots, short-lines,
    /// small-writes, no-trace, small-reads, smtplib (Python's client), smtplib-unquoted.
    #[arg(
        long,
        value_name = "COST,COST",
        value_delimiter = ',',
        value_enum,
        required = true,
        hide_possible_values = true
    )]
    costs: Vec<MessageCost>,
    /// Total size of the message bodies in a run. A body that is larger is still sent once.
    #[arg(long, value_name = "BYTES", value_parser = values::some_bytes)]
    volume: u64,
    #[command(flatten)]
    rounds: ProfileRoundArgs,
    #[command(flatten)]
    server: ProfiledServerArgs,
    #[command(flatten)]
    tables: TableReportArgs,
}

/// Options for the rounds and the thresholds. In each round, every row of the table is measured.
#[derive(Debug, Args)]
struct ProfileRoundArgs {
    #[command(flatten)]
    rounds: RoundsArgs,
    /// Condition that every run must meet, repeatable: 'accepted.p99 < 50ms', 'accepted.rate > 5000/s',
    /// 'rejected <= 0.1%'. See mailrun bench --help.
    #[arg(long = "threshold", value_name = "EXPRESSION", value_parser = values::closed_loop_threshold)]
    thresholds: Vec<Threshold>,
    /// Directory for all files, instead of a new one in mailrun-results.
    #[arg(long, value_name = "DIR", value_parser = values::directory)]
    out: Option<PathBuf>,
}

impl ProfileRoundArgs {
    fn scenario(&self, name: &str, tables: &TableReportArgs) -> ScenarioOptions {
        let thresholds = self.thresholds.clone();
        ScenarioOptions { thresholds, ..scenario_options(name, self.out.clone(), tables) }
    }
}

const PROFILE_EXAMPLES: &str = "\
Examples:
  mailrun bench kotlin-profile                                       mailrun's own sink
  mailrun bench kotlin-profile 127.0.0.1:2525 --to ann@a.example     a server of yours
  mailrun bench kotlin-profile --messages 100000                     100,000 messages, measured
  mailrun bench sizes --relay mailrun                                through the durable relay
  mailrun bench sizes --body-sizes 1k,1M --sessions 100 --reuse";

const LARGE_MESSAGE_EXAMPLES: &str = "\
Examples:
  mailrun bench large-message                                    some minutes
  mailrun bench large-message --body-sizes 10M --volume 100M --rounds 1
  mailrun bench large-message 127.0.0.1:2525 --costs dots,chunking";

impl Measurement for ProfileArgs {
    fn run(self: Box<Self>, name: &str) -> Result<TextReport> {
        if self.messages.is_none() && self.duration.is_none() {
            bail!("a profile needs --messages or --duration, or one of these keys in the scenario's [workload]");
        }
        raise_open_files(self.sessions);
        let server = self.server.server()?;
        let _awake = self.tables.keep_awake.begin(!server.target.has_server_here())?;
        profiles::run_profile(&ProfileOptions {
            scenario: self.rounds.scenario(name, &self.tables),
            server,
            body_sizes: self.body_sizes,
            messages: self.messages,
            duration: self.duration,
            warm_up: self.warm_up,
            sessions: self.sessions,
            reuse: Some(self.reuse).filter(|messages| *messages > 0),
            pipelining: self.pipelining,
            rounds: self.rounds.rounds.rounds,
            order: self.rounds.rounds.order,
        })
    }

    fn tables(&self) -> &TableReportArgs {
        &self.tables
    }
}

impl Measurement for LargeMessageArgs {
    fn run(self: Box<Self>, name: &str) -> Result<TextReport> {
        let server = self.server.server()?;
        let _awake = self.tables.keep_awake.begin(!server.target.has_server_here())?;
        profiles::run_large_message(&LargeMessageOptions {
            scenario: self.rounds.scenario(name, &self.tables),
            server,
            body_sizes: self.body_sizes,
            costs: self.costs,
            volume: self.volume,
            rounds: self.rounds.rounds.rounds,
            order: self.rounds.rounds.order,
        })
    }

    fn tables(&self) -> &TableReportArgs {
        &self.tables
    }
}
