use crate::mades::{ensure_local, password, password_from_env, url};
use crate::options;
use crate::options::{Measurement, NoThresholdArgs, RoundsArgs, values};
use crate::report::results::TableReportArgs;
use anyhow::{Result, bail};
use clap::Args;
use mailrun_bench::TextReport;
use mailrun_bench::mades_compare::{self, CompareBroker, CompareMode, CompareOptions, MadesTool, SendWindow};
use mailrun_process::party_options::{TypedOptions, value_name};
use mailrun_process::users::PASSWORD_VARIABLE;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  mailrun bench mades-compare
  mailrun bench mades-compare --mode endpoint -m 1000 --windows 16,defaults
  mailrun bench mades-compare --mode endpoint --drop 1% --max-time 20s
  mailrun bench mades-compare --broker amqp://127.0.0.1:5672
  mailrun bench mades-compare --compare mailrun,quiver,artemis-perf --windows 128,defaults -m 100k";

/// Default user and password, the same as in go-mades-bench.
const DEFAULT_USER: &str = "endpoint";
const DEFAULT_PASSWORD: &str = "password";

/// Measures go-mades-bench and `mailrun mades` side by side
///
/// The two programs run in turns, with the same durable messages and the same number of outstanding sends. The messages
/// pass through a simulated ECP endpoint with its own queues, or through your broker (--broker). --compare chooses
/// other tools. Rates and latencies come from each tool's own report, but CPU time and memory count the whole process.
/// go-mades-bench waits forever for a lost message, so --max-time ends it. Ctrl-C ends the run and prints the table so
/// far. Exit status 1 if a run failed, hung or lost messages.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MadesCompareArgs {
    #[command(flatten)]
    typed: TypedOptions,
    /// What is measured: amqp (the broker only), endpoint (ECP), toolbox (EDX) or tracing
    #[arg(long, value_enum, value_name = "MODE", default_value = "amqp")]
    mode: CompareMode,
    /// Messages per run
    #[arg(short = 'm', visible_short_alias = 'n', long, value_name = "N", value_parser = values::scenario_messages)]
    messages: u64,
    /// Size of each payload in bytes
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = values::bytes)]
    payload_size: u64,
    #[command(flatten)]
    rounds: RoundsArgs,
    /// Tools to measure, if they are installed
    ///
    /// The tools are looked up in PATH as go-mades-bench, quiver and artemis. quiver and artemis-perf require mode
    /// amqp. artemis-perf runs only with a number from --windows, because its own default is 1. quiver runs only with
    /// the word defaults in --windows, because it sends as much as the broker gives it credit for.
    #[arg(long, value_name = "TOOL,TOOL", value_delimiter = ',', value_enum, required = true)]
    compare: Vec<MadesTool>,
    /// Limits on outstanding sends, measured one by one
    ///
    /// The list can also contain the word defaults: each tool then uses its own default limit.
    #[arg(long, value_name = "N,N",
          value_delimiter = ',', required = true, value_parser = values::window)]
    windows: Vec<SendWindow>,
    /// Maximum number of messages in transit
    ///
    /// If --windows has the word defaults, each tool uses its own maximum in these runs instead.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = values::sessions)]
    max_in_transit: u32,
    /// Time limit of a run
    ///
    /// A run that takes longer is killed, and the report names it.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = values::some_duration)]
    max_time: Duration,
    /// Share of messages that the simulated endpoint loses
    ///
    /// Use this option to see how each tool reports lost messages. Write the share as 1% or 0.01.
    #[arg(long, value_name = "P", default_value = "0", value_parser = values::probability)]
    drop: f64,
    /// Your own broker; its queues with --prefix are purged
    ///
    /// This broker replaces the queues of the simulated endpoint. The queues with --prefix are purged before each run.
    #[arg(long, value_name = "URL", help_heading = "Broker")]
    broker: Option<String>,
    /// Prefix of the queue names.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "mailrun.compare",
        help_heading = "Broker",
        hide_short_help = true
    )]
    prefix: String,
    /// User name at the broker [default: endpoint]
    #[arg(long, value_name = "NAME", help_heading = "Broker")]
    user: Option<String>,
    /// File with the password for the broker
    ///
    /// The password is the first line of the file [default: the environment variable MAILRUN_PASSWORD, or password].
    /// The other tools take the password on their command line, where it is visible in the process list.
    #[arg(long, value_name = "FILE", help_heading = "Broker")]
    password_file: Option<PathBuf>,
    /// Trust the certificates in this PEM file
    ///
    /// These certificates replace the system's authorities. The other tools trust any certificate.
    #[arg(long, value_name = "FILE", help_heading = "Broker")]
    cacert: Option<PathBuf>,
    #[command(flatten)]
    no_thresholds: NoThresholdArgs,
    /// Allow a broker at a public address. Use it only with a broker of your own.
    #[arg(long, env = "MAILRUN_ALLOW_PUBLIC", value_parser = clap::builder::FalseyValueParser::new(), hide_env = true,
          help_heading = "Broker", hide_short_help = true)]
    allow_public: bool,
    #[command(flatten)]
    tables: TableReportArgs,
}

impl Measurement for MadesCompareArgs {
    fn run(self: Box<Self>, _name: &str) -> Result<TextReport> {
        if self.drop > 0.0 && self.mode == CompareMode::Amqp {
            bail!("--drop has no effect in mode amqp, which has no stand-in; add --mode endpoint");
        }
        self.check_effects()?;
        let live = self.tables.live();
        let _awake = self.tables.keep_awake.begin(true)?;
        let broker = self.broker()?;
        let Self { mode, messages, payload_size, rounds, windows, max_in_transit, max_time, drop, prefix, .. } = *self;
        mades_compare::run(&CompareOptions {
            mode,
            messages,
            message_bytes: payload_size,
            tools: self.compare,
            rounds: rounds.rounds,
            order: rounds.order,
            windows,
            max_in_transit,
            broker,
            prefix,
            drop,
            max_time,
            live,
        })
    }

    fn tables(&self) -> &TableReportArgs {
        &self.tables
    }
}

impl MadesCompareArgs {
    /// Refuses options that have no effect, and a public broker unless `--allow-public` is given.
    fn check_effects(&self) -> Result<()> {
        let is_defaults = self.windows.iter().all(|window| *window == SendWindow::Defaults);
        let idle = [("--max-in-transit", is_defaults && self.typed.of::<Self>().has("max-in-transit"))];
        options::refuse_without_effect(&idle, "with --windows defaults")?;
        if self.mode != CompareMode::Amqp && self.compare.iter().any(|tool| tool.is_plain_amqp()) {
            bail!("quiver and artemis-perf speak plain AMQP; compare them without --mode, or leave them out");
        }
        let is_idle = |tool: &&MadesTool| !self.windows.iter().any(|window| tool.takes(*window));
        if let Some(tool) = self.compare.iter().find(is_idle) {
            let needed = if tool.takes(SendWindow::Defaults) { "the word defaults" } else { "a number" };
            bail!("--windows needs {needed} for {}, or leave that out of --compare", value_name(*tool));
        }
        let Some(broker) = &self.broker else {
            let of_a_broker = [
                ("--user", self.user.is_some()),
                ("--password-file", self.password_file.is_some()),
                ("--cacert", self.cacert.is_some()),
            ];
            return options::refuse_without_effect(&of_a_broker, "without --broker URL");
        };
        let url = url("--broker", broker, None, None)?;
        let idle = [("--cacert", self.cacert.is_some() && !url.is_tls())];
        options::refuse_without_effect(&idle, "without TLS; write --broker amqps://HOST")?;
        if self.allow_public { Ok(()) } else { ensure_local(&url) }
    }

    /// Returns the broker of `--broker` and the login for all tools, or `None` to use the simulated endpoint.
    fn broker(&self) -> Result<Option<CompareBroker>> {
        let Some(url) = self.broker.clone() else { return Ok(None) };
        let secret = password(self.password_file.as_deref())?.or(password_from_env(PASSWORD_VARIABLE)?);
        let password = secret.map_or_else(|| DEFAULT_PASSWORD.to_owned(), |secret| secret.reveal().to_owned());
        Ok(Some(CompareBroker {
            url,
            user: self.user.clone().unwrap_or_else(|| DEFAULT_USER.to_owned()),
            password,
            cacert: self.cacert.clone(),
        }))
    }
}
