pub(crate) mod bench;
pub(crate) mod compare;
pub(crate) mod endpoint;
pub(crate) mod ladder;
pub(crate) mod queues;

use super::options;
use crate::capacity::arguments::refuse_in_search;
use crate::options::keep_awake::KeepAwakeArg;
use crate::options::party_outputs::exit_with_parent;
use crate::options::values;
use crate::report::results::{ReportArgs, Strictness, exit_code};
use crate::source::offer::{arrival_with, check_closed_loop, offered_rate};
use anyhow::{Result, anyhow, bail};
use clap::Args;
use jiff::tz::TimeZone;
use ladder::PayloadLadder;
use mailrun_load::source::{Distribution, OfferedRate, RateStage};
use mailrun_mades::{Broker, BrokerSecurity, BrokerUrl, Password, SaslMechanism, TlsSetup, Verification};
use mailrun_mades_bench::{
    AcknowledgementMode, AcknowledgementOptions, Leftovers, MAX_ACCELERATION, MadesMode, MadesOptions, MadesPreflight,
    MarketLoad, MarketShape, MessagePath, PayloadKind,
};
use mailrun_measurement::record::{Arrival, Mades, Workload};
use mailrun_measurement::threshold::{MetricSource, RunProtocol, Threshold};
use mailrun_measurement::{RunId, Stage};
use mailrun_process::live::LiveMode;
use mailrun_process::local_address::{is_local_address, is_on_this_host};
use mailrun_process::outputs::FinishedRun;
use mailrun_process::party_options::PartyOptions;
use mailrun_process::reason::reason;
use mailrun_process::users::PASSWORD_VARIABLE;
use queues::QueueNameArgs;
use std::env::VarError;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Number of messages if the user gives neither a number nor a duration.
const DEFAULT_MESSAGES: u64 = 10_000;
const INBOX_PASSWORD_VARIABLE: &str = "MAILRUN_INBOX_PASSWORD";
/// Default of `--max-in-transit` in a closed loop, in which this number determines the load.
const CLOSED_LOOP_IN_TRANSIT: usize = 1_000;
const OPEN_LOOP_IN_TRANSIT: usize = 100_000;
/// Default of `--max-unsettled`, the number of transfers that may wait for the broker's disposition.
const MAX_UNSETTLED: u32 = 1_000;
const DEFAULT_SEED: u64 = 1;
const DEFAULT_URL: &str = "amqp://localhost:5672";
/// Default payload size in bytes, the same as in the published runs of go-mades-bench.
const DEFAULT_PAYLOAD_SIZE: &str = "3000";

/// Measures an ECP endpoint or an EDX toolbox (MADES), stage by stage
///
/// Uses the Business Application API over AMQP 1.0: sends messages to the outbox, and receives replies, events and the
/// messages of the inbox. By default, the loop is closed, with --max-in-transit messages in transit. With --rate, the
/// loop is open: messages are sent on schedule, however slow the endpoint is. mailrun leaves messages of other senders
/// in the queues. The exit status is 1 if a message or one of its answers is lost, duplicated, corrupt or rejected.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MadesArgs {
    /// What to measure: endpoint (ECP), toolbox (EDX), amqp (broker only) or tracing
    #[arg(long, value_enum, value_name = "MODE", default_value = "endpoint")]
    mode: MadesMode,
    #[command(flatten)]
    load: MadesLoadArgs,
    /// Measure growing payload sizes, such as 1M..20M, until messages take longer than --message-timeout
    ///
    /// The sizes are FROM, TO, and 1, 2, 5, 10, 20 and so on between them. Of each size, 5 messages are sent one after
    /// the other, unless --messages and --max-in-transit say otherwise. Stops after the first size at which messages
    /// take longer than --message-timeout, and prints a table. With --out, each size has a directory of its own.
    #[arg(long, value_name = "FROM..TO", help_heading = "Load", hide_short_help = true,
          conflicts_with_all = ["payload_size", "rate", "stages", "shapes", "arrival", "duration", "thresholds", "abort_on",
                                "strict", "json", "exports", "report", "verbose", "run_id", "http"])]
    payload_ladder: Option<PayloadLadder>,
    #[command(flatten)]
    brokers: BrokerArgs,
    #[command(flatten)]
    queues: QueueNameArgs,
    #[command(flatten)]
    waiting: TimeoutArgs,
    /// Outbox at --inbox-broker to which --acknowledge sends its documents [default: the name of --outbox].
    #[arg(long, value_name = "QUEUE", requires = "acknowledge", help_heading = "Queue names", hide_short_help = true)]
    acknowledge_outbox: Option<String>,
    #[command(flatten)]
    keep_awake: KeepAwakeArg,
    #[command(flatten)]
    report: ReportArgs,
    /// Write run.json, report.md, report.html and latency.hlog into DIR
    #[arg(long, value_name = "DIR", value_parser = values::directory, help_heading = "Results")]
    out: Option<PathBuf>,
    /// Name of the run in reports.
    #[arg(long, value_name = "TEXT", default_value = "mades", help_heading = "Results", hide_short_help = true)]
    label: String,
    /// Serve live metrics of the load for Prometheus at /metrics.
    #[arg(long, value_name = "HOST:PORT", value_parser = values::tcp_address, help_heading = "Results")]
    http: Option<SocketAddr>,
    /// Progress: a line on a terminal, JSON lines on standard output, or nothing.
    #[arg(long, value_enum, value_name = "HOW", default_value = "line", hide = true)]
    live: LiveMode,
    /// Run id, 32 hexadecimal digits [default: random].
    #[arg(long, value_name = "HEX", hide = true)]
    run_id: Option<RunId>,
}

/// Options for time limits, and for what the run may do to the queues.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits and safety")]
pub(crate) struct TimeoutArgs {
    /// Time limit for each message; after that it counts as lost.
    #[arg(long, value_name = "TIME", default_value = "60s", hide_short_help = true, value_parser = values::some_duration)]
    message_timeout: Duration,
    /// How long to keep receiving after the last answer, to detect duplicates.
    #[arg(long, value_name = "TIME", default_value = "500ms", hide_short_help = true, value_parser = values::duration)]
    linger_time: Duration,
    /// How long to try to reconnect when a connection is lost. A run without a time limit also ends if no message is
    /// answered for this long (but not before --message-timeout).
    #[arg(long, value_name = "TIME", default_value = "2m", hide_short_help = true, value_parser = values::duration)]
    reconnect_timeout: Duration,
    /// Remove all messages from replies, events and inbox before the run, including messages of other senders.
    #[arg(long, hide_short_help = true)]
    purge: bool,
    /// Skip the test message that is sent before the run to check that an endpoint reads the outbox.
    #[arg(long, hide_short_help = true)]
    no_preflight: bool,
    /// Allow brokers at public addresses. Use it only with an endpoint of your own.
    #[arg(long, env = "MAILRUN_ALLOW_PUBLIC", value_parser = clap::builder::FalseyValueParser::new(), hide_env = true,
          hide_short_help = true)]
    allow_public: bool,
}

/// The messages to send: their number, size and rate.
#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
pub(crate) struct MadesLoadArgs {
    /// End the run after N messages
    ///
    /// By default, mailrun mades sends 10000 messages, unless --duration is given. mailrun bench mades sends 500/s for
    /// 8s.
    #[arg(short = 'm', visible_short_alias = 'n', long, value_name = "N", value_parser = values::some)]
    pub(crate) messages: Option<u64>,
    /// Send messages for this long
    #[arg(short = 'd', long, value_name = "TIME", value_parser = values::some_duration)]
    pub(crate) duration: Option<Duration>,
    /// Size of each payload in bytes [default: 3000]
    ///
    /// Other examples: 64k, the range 400..64k, sizes by weight 400:80,64k:15,1M:5, or lognormal:MEDIAN,SIGMA[,MAX].
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = values::payload_sizes)]
    payload_size: Option<Distribution>,
    /// Content of the payloads: random bytes, xml (a market document, which compresses well), or a FILE to be sent
    /// unchanged.
    #[arg(long, value_name = "WHAT", default_value = "random", hide_short_help = true)]
    payload: String,
    /// Receiver's component code
    ///
    /// The endpoint with this code receives the messages.
    #[arg(long, value_name = "CODE", default_value = "ecp-endpoint")]
    receiver: String,
    /// Message type of each message, sent as the property messageType.
    #[arg(long, value_name = "TYPE", default_value = "TEST-MESSAGE", hide_short_help = true)]
    message_type: String,
    /// Send an acknowledgement document back for each message that arrives
    ///
    /// mailrun acts as the receiving application, and addresses the document to the sender. The document's arrival in
    /// the sender's inbox is the stage 'acknowledged'. If a document does not come back, the run fails.
    #[arg(long, alias = "acknowledgement-documents", hide_short_help = true)]
    acknowledge: bool,
    /// Await an acknowledgement document of the receiver for each message
    ///
    /// A document names the mRID of the message that it acknowledges, so use --shape or --payload xml. Other payloads
    /// have no mRID, so receivers other than mailrun cannot acknowledge them. The document's arrival in the sender's
    /// inbox is the stage 'acknowledged'. The run fails if a document does not arrive or rejects its message.
    #[arg(long, hide_short_help = true, conflicts_with = "acknowledge")]
    await_acknowledgements: bool,
    /// Message type of the acknowledgement documents [default: the type of --message-type].
    #[arg(long, value_name = "TYPE", requires = "acknowledge", hide_short_help = true)]
    acknowledge_type: Option<String>,
    /// Send durable messages, which the broker keeps over a restart.
    #[arg(long, value_name = "BOOL", default_value = "true", num_args = 0..=1, default_missing_value = "true",
          action = clap::ArgAction::Set, hide_short_help = true)]
    durable: bool,
    /// Closed loop: number of messages in transit
    ///
    /// In a closed loop, this number sets the load. In an open loop, it is only a limit [default: 1000; at open loop
    /// 100000].
    #[arg(long, value_name = "N", value_parser = values::sessions)]
    pub(crate) max_in_transit: Option<u32>,
    /// Maximum number of transfers that the broker has not settled [default: 1000].
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = values::sessions)]
    pub(crate) max_unsettled: Option<u32>,
    /// Link credit: messages that the broker may send ahead, per queue.
    #[arg(long, value_name = "N", default_value = "1000", hide_short_help = true, value_parser = values::sessions)]
    credit: u32,
    /// Open loop: messages per second
    ///
    /// Messages are sent on schedule, however slow the endpoint is. Write the rate as 500, 500/s, 500/m or 30k/h.
    #[arg(long, value_name = "RATE", value_parser = values::rate)]
    pub(crate) rate: Option<f64>,
    /// Open loop in stages, repeatable: 10s:100/s is a constant rate, 60s:100/s..1000/s a ramp. The run ends after the
    /// last stage.
    #[arg(long = "stage", value_name = "STAGE", value_parser = values::stage, conflicts_with_all = ["rate", "duration"])]
    pub(crate) stages: Vec<RateStage>,
    /// Open loop: documents at the usual times of an energy market, repeatable: 'heartbeat every 5m'
    ///
    /// A shape says which documents are sent, and when. 'heartbeat 12m,7m30s,3m before quarter' sends a small document
    /// 12, 7.5 and 3 minutes before each quarter-hour. 'every 10s' sends a document of one time series. The shape
    /// quarter-hour sends 100 bid documents of 4,000 time series at the start of each quarter-hour, and
    /// quarter-hour:20x500 sends 20 of 500. After semicolons, a shape can have a message type and thresholds: 'every
    /// 10s; type ACE; received.within(30s) >= 99%'. All times are times of day, and do not count from the start of the
    /// run. The run lasts an hour of the market's time unless --messages or --duration is given.
    #[arg(long = "shape", value_name = "SHAPE", conflicts_with_all = ["rate", "stages", "arrival", "payload_size", "payload"])]
    pub(crate) shapes: Vec<MarketShape>,
    /// With --shape: send the documents of an hour in 1/N hour. Time limits and deadlines stay as they are.
    #[arg(long, value_name = "N", hide_short_help = true, requires = "shapes",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_ACCELERATION)))]
    accelerate: Option<u32>,
    /// With --shape: time zone of the market's days and of the windows in the report, such as Europe/Oslo [default:
    /// UTC].
    #[arg(long, value_name = "ZONE", hide_short_help = true, requires = "shapes", value_parser = time_zone)]
    time_zone: Option<TimeZone>,
    /// Distribution of messages over time, with --rate or --stage [default: constant].
    #[arg(long, value_enum, hide_short_help = true)]
    arrival: Option<Arrival>,
    /// Seed of all random choices [default: 1, or the seed of the simulated endpoint's plan].
    #[arg(long, value_name = "N", hide_short_help = true,
          value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub(crate) seed: Option<u64>,
    /// Condition that the run must meet, repeatable: 'delivered.p99 < 2s'
    ///
    /// More examples: 'received-event.within(60s) >= 95%', 'rejected <= 0.1%'. The name of a stage (created, sent,
    /// settled, replied, inbox, delivered, acknowledged, notified …) is followed by p50, p99, mean, max, count, rate or
    /// within(TIME). By default, rejected, lost, duplicates and corrupt must be 0.
    #[arg(long = "threshold", value_name = "CONDITION", value_parser = threshold)]
    thresholds: Vec<Threshold>,
    /// End the run as soon as this condition is not met. The syntax is that of --threshold.
    #[arg(long, value_name = "CONDITION", hide_short_help = true, value_parser = aborting_threshold)]
    abort_on: Vec<Threshold>,
    /// Exit with status 3 if the verdict is INVALID or INCONCLUSIVE, even without --threshold, --rate or --stage.
    #[arg(long, hide_short_help = true)]
    strict: bool,
}

/// The brokers, and how to log in to them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Brokers")]
pub(crate) struct BrokerArgs {
    /// Broker with the sending endpoint's queues
    ///
    /// The URL is amqp://[USER[:PASSWORD]@]HOST[:PORT], or amqps:// for TLS. By default, mailrun mades connects to
    /// amqp://localhost:5672, and mailrun capacity mades measures a simulated endpoint.
    #[arg(long, value_name = "URL")]
    broker: Option<String>,
    /// Broker of the receiving endpoint, if not --broker
    ///
    /// The inbox is at this broker; the outbox, replies and events are at --broker.
    #[arg(long, value_name = "URL")]
    inbox_broker: Option<String>,
    /// User at the broker, unless the URL names one
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// File with the password
    ///
    /// The first line of the file is the password [default: the environment variable MAILRUN_PASSWORD].
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// User name for --inbox-broker, if it differs from --user.
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    inbox_user: Option<String>,
    /// File with the password for --inbox-broker in its first line [default: the environment variable
    /// MAILRUN_INBOX_PASSWORD].
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    inbox_password_file: Option<PathBuf>,
    /// Authentication mechanism: PLAIN, ANONYMOUS, EXTERNAL, SCRAM-SHA-1, SCRAM-SHA-256 or SCRAM-SHA-512 [default:
    /// PLAIN with a user, ANONYMOUS without].
    #[arg(long, value_name = "MECHANISM", hide_short_help = true, value_parser = mechanism)]
    auth_mechanism: Option<SaslMechanism>,
    /// Trust these certificates
    ///
    /// A PEM file, used instead of the system's authorities.
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Client certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_key", hide_short_help = true)]
    tls_cert: Option<PathBuf>,
    /// Private key of the client certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert", hide_short_help = true)]
    tls_key: Option<PathBuf>,
    /// Name to expect in the certificate of the broker [default: the host].
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    tls_name: Option<String>,
    /// Accept any certificate, for tests.
    #[arg(long, conflicts_with = "cacert", hide_short_help = true)]
    insecure: bool,
    /// Time limit for each step of connecting.
    #[arg(long, value_name = "TIME", default_value = "10s", hide_short_help = true, value_parser = values::some_duration)]
    connect_timeout: Duration,
}

const EXAMPLES: &str = "\
Examples:
  mailrun mades --broker amqp://endpoint@broker.local --password-file pw -m 1000
  mailrun mades --broker amqps://a --inbox-broker amqps://b --cacert ca.pem
  mailrun mades --mode amqp --broker amqp://user@broker --inbox QUEUE    the broker alone
  mailrun mades --mode toolbox --rate 50 --arrival poisson -d 10m --out results
  mailrun mades --rate 50 -d 1m --threshold 'delivered.p99 < 2s'
  mailrun mades --shape quarter-hour --shape 'heartbeat every 5m; type HEARTBEAT' -d 1h
  mailrun mades --payload-ladder 1M..20M --message-timeout 1m
  mailrun mades -m 1000 --json - --report none | jq .verdict
  mailrun bench mades           on this host, with a stand-in for the endpoints";

fn threshold(text: &str) -> Result<Threshold, String> {
    Threshold::parse(text, RunProtocol::Mades)
}

fn aborting_threshold(text: &str) -> Result<Threshold, String> {
    let threshold = threshold(text)?;
    if threshold.needs_the_end() {
        return Err("a minimum cannot end a run early; use --threshold".to_owned());
    }
    Ok(threshold)
}

fn time_zone(text: &str) -> Result<TimeZone, String> {
    TimeZone::get(text).map_err(|_| format!("this system knows no time zone {text:?}; use something like Europe/Oslo"))
}

pub(crate) fn mechanism(text: &str) -> Result<SaslMechanism, String> {
    text.parse().map_err(|error: mailrun_mades::Error| error.to_string())
}

impl MadesArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let report = self.report.clone();
        let live = report.live(self.live);
        exit_with_parent(live);
        let strictness = Strictness::of(self.load.is_strict());
        let directory = self.out.clone();
        self.check_effects()?;
        let ladder = self.payload_ladder.clone();
        let is_alone = live != LiveMode::Json && !self.brokers.are_here();
        let _awake = self.keep_awake.begin(is_alone)?;
        let load = self.load.workload()?;
        let options = self.options()?;
        if let Some(ladder) = ladder {
            return ladder::climb(&ladder, &options);
        }
        report.open(live)?;
        options::announce_load(live, &load);
        let FinishedRun { record, write_error: unwritten } = mailrun_mades_bench::run(options)?;
        if live != LiveMode::Json {
            report.finish(&record, directory.as_deref())?;
        }
        unwritten.map_or_else(|| Ok(exit_code(&record, strictness)), Err)
    }

    /// Refuses options that have no effect, such as `--inbox-broker` in mode tracing, which has no inbox.
    fn check_effects(&self) -> Result<()> {
        self.load.check_effects()?;
        self.load.check_acknowledge(self.mode)?;
        if self.payload_ladder.is_some() && matches!(payload(&self.load.payload), PayloadKind::File(_)) {
            bail!("--payload-ladder cannot be used with --payload FILE, which has one size; use random or xml");
        }
        let far = [("--acknowledge-outbox", self.acknowledge_outbox.is_some())];
        if self.mode == MadesMode::Amqp {
            options::refuse_without_effect(&far, "in mode amqp, where the documents go into the inbox queue")?;
        }
        if self.brokers.inbox_broker.is_none() {
            let why = "without --inbox-broker: the endpoint sends to itself, through --outbox. Two endpoints at one broker are \
                       not supported with --acknowledge";
            options::refuse_without_effect(&far, why)?;
        }
        self.queues.check_effects(self.mode)?;
        let brokers = &self.brokers;
        let inbox = [
            ("--inbox-broker", brokers.inbox_broker.is_some()),
            ("--inbox-user", brokers.inbox_user.is_some()),
            ("--inbox-password-file", brokers.inbox_password_file.is_some()),
        ];
        if self.mode == MadesMode::Tracing {
            options::refuse_without_effect(&inbox, "in mode tracing, which has no inbox")?;
        }
        brokers.check_effects()
    }

    fn options(mut self) -> Result<MadesOptions> {
        if self.payload_ladder.is_some() {
            self.load.messages.get_or_insert(ladder::MESSAGES);
            self.load.max_in_transit.get_or_insert(ladder::IN_TRANSIT);
        }
        let offer = offered_rate(self.load.rate, &self.load.stages)?;
        self.load.check_thresholds(self.mode)?;
        let has_far_outbox = self.brokers.inbox_broker.is_some() && self.mode != MadesMode::Amqp;
        let queues = self.queues.names(self.mode);
        let far_outbox =
            has_far_outbox.then(|| self.acknowledge_outbox.clone().unwrap_or_else(|| queues.outbox.clone()));
        let acknowledgement = self.load.acknowledgement(far_outbox, self.brokers.inbox_broker.is_some());
        let is_staged = matches!(offer, Some(OfferedRate::Stages(_)));
        let is_limited = self.load.messages.is_some() || self.load.length().is_some() || is_staged;
        let max_in_transit = self.load.in_transit_limit();
        let window = self.load.unsettled_limit();
        let sizes = self.load.sizes();
        let arrival = self.load.arrival_with(offer.as_ref());
        let market = self.load.market();
        let length = self.load.length();
        let seed = self.load.seed();
        let (mut outbox, mut inbox) = self.brokers.brokers()?;
        if !self.waiting.allow_public {
            restrict_to_local(&mut outbox)?;
            restrict_to_local(&mut inbox)?;
        }
        Ok(MadesOptions {
            name: self.label,
            mode: self.mode,
            outbox,
            inbox,
            queues,
            messages: self.load.messages.or((!is_limited).then_some(DEFAULT_MESSAGES)),
            duration: length,
            sizes,
            payload: payload(&self.load.payload),
            receiver: self.load.receiver,
            message_type: self.load.message_type,
            sender_application: "mailrun".to_owned(),
            priority: None,
            first_number: 0,
            is_durable: self.load.durable,
            max_in_transit,
            window,
            credit: self.load.credit,
            arrival,
            offer,
            market,
            seed,
            timeout: self.waiting.message_timeout,
            linger: self.waiting.linger_time,
            reconnect: self.waiting.reconnect_timeout,
            leftovers: if self.waiting.purge { Leftovers::Purged } else { Leftovers::Kept },
            preflight: if self.waiting.no_preflight { MadesPreflight::Off } else { MadesPreflight::On },
            acknowledgement,
            run: self.run_id,
            out: self.out,
            live: self.report.live(self.live),
            http: self.http,
            observer: None,
            command: mailrun_process::outputs::command_line().iter().map(|word| without_login(word)).collect(),
            thresholds: self.load.thresholds,
            abort_on: self.load.abort_on,
        })
    }
}

impl TimeoutArgs {
    pub(crate) fn message_timeout(&self) -> Duration {
        self.message_timeout
    }

    /// Returns the options that the user gave and that make sense only with a real endpoint, such as `--purge`. A run
    /// with a simulated endpoint refuses them.
    pub(crate) fn of_endpoint(&self) -> PartyOptions {
        PartyOptions::default().flag("purge", self.purge).flag("no-preflight", self.no_preflight)
    }
}

impl MadesLoadArgs {
    /// Refuses options whose values a capacity search chooses itself, such as `--rate`.
    pub(crate) fn check_search(&self) -> Result<()> {
        let refused = [
            (self.messages.is_some(), "--messages"),
            (self.duration.is_some(), "--duration"),
            (self.rate.is_some(), "--rate"),
            (!self.stages.is_empty(), "--stage"),
            (!self.shapes.is_empty(), "--shape"),
            (
                self.strict || !self.thresholds.is_empty() || !self.abort_on.is_empty(),
                "--threshold, --abort-on or --strict",
            ),
        ];
        refuse_in_search(&refused)
    }

    /// Returns how all trials of a capacity search distribute messages over time. The trials differ only in rate.
    pub(crate) fn arrival_of_trials(&self) -> Arrival {
        self.arrival.unwrap_or(Arrival::Constant)
    }

    /// Returns true if the run must be valid and conclusive to succeed. This is the case with thresholds, `--strict` or
    /// an open loop.
    pub(crate) fn is_strict(&self) -> bool {
        self.strict || !self.thresholds.is_empty() || !self.abort_on.is_empty() || !self.is_closed_loop()
    }

    /// Refuses thresholds that the run cannot judge, such as a threshold for a stage that does not exist in this mode.
    pub(crate) fn check_thresholds(&self, mode: MadesMode) -> Result<()> {
        let thresholds = self.thresholds.iter().chain(&self.abort_on);
        if self.is_closed_loop() {
            check_closed_loop(thresholds.clone())?;
        }
        check_stages(self.path(mode), thresholds.chain(self.shapes.iter().flat_map(MarketShape::thresholds)))
    }

    pub(crate) fn path(&self, mode: MadesMode) -> MessagePath {
        let is_on = self.acknowledge || self.await_acknowledgements;
        let acknowledgement = if is_on { AcknowledgementMode::On } else { AcknowledgementMode::Off };
        MessagePath { mode, acknowledgement }
    }

    /// Returns true if the bench waits for the receiver's acknowledgement documents.
    pub(crate) fn awaits_acknowledgements(&self) -> bool {
        self.await_acknowledgements
    }

    /// Refuses acknowledgements in a mode without an inbox. Also refuses `--await-acknowledgements` in mode amqp, which
    /// has no receiver, and with `--payload FILE`. All messages with the same FILE have the same mRID, so an
    /// acknowledgement could not name its message.
    pub(crate) fn check_acknowledge(&self, mode: MadesMode) -> Result<()> {
        let is_idle = self.acknowledge && mode == MadesMode::Tracing;
        options::refuse_without_effect(&[("--acknowledge", is_idle)], "in mode tracing, which has no inbox")?;
        let awaited = [("--await-acknowledgements", self.await_acknowledgements)];
        match mode {
            MadesMode::Tracing => options::refuse_without_effect(&awaited, "in mode tracing, which has no inbox")?,
            MadesMode::Amqp => {
                options::refuse_without_effect(&awaited, "in mode amqp, which has no receiver; use --acknowledge")?;
            }
            MadesMode::Endpoint | MadesMode::Toolbox => {}
        }
        if self.await_acknowledgements && matches!(payload(&self.payload), PayloadKind::File(_)) {
            bail!(
                "--await-acknowledgements cannot be used with --payload FILE: all messages would have one mRID; use --payload xml or \
                 --shape"
            );
        }
        Ok(())
    }

    /// Returns whether the run sends or awaits acknowledgement documents, or `None` if it does neither. `far_outbox` is
    /// the outbox of the receiving endpoint, if that endpoint is at another broker.
    fn acknowledgement(&self, far_outbox: Option<String>, is_far: bool) -> Option<AcknowledgementOptions> {
        if self.await_acknowledgements {
            return Some(AcknowledgementOptions::Awaited { is_far });
        }
        let message_type = self.acknowledge_type.clone().unwrap_or_else(|| self.message_type.clone());
        self.acknowledge.then_some(AcknowledgementOptions::Sent { message_type, far_outbox })
    }

    fn is_closed_loop(&self) -> bool {
        self.rate.is_none() && self.stages.is_empty() && self.shapes.is_empty()
    }

    /// Returns the market whose schedule decides when documents are sent, or `None` without `--shape`.
    pub(crate) fn market(&self) -> Option<MarketLoad> {
        let load = MarketLoad {
            shapes: self.shapes.clone(),
            acceleration: self.accelerate.unwrap_or(1),
            time_zone: self.time_zone.clone().unwrap_or(TimeZone::UTC),
        };
        Some(load).filter(|load| !load.shapes.is_empty())
    }

    /// Returns the time after which the run ends, or `None` for no limit. With `--shape` and without `--messages`, the
    /// default is an hour, divided by `--accelerate`.
    pub(crate) fn length(&self) -> Option<Duration> {
        let hour = self.market().filter(|_| self.messages.is_none()).map(|market| market.hour());
        self.duration.or(hour)
    }

    fn in_transit_limit(&self) -> usize {
        let usual = if self.is_closed_loop() { CLOSED_LOOP_IN_TRANSIT } else { OPEN_LOOP_IN_TRANSIT };
        self.max_in_transit.map_or(usual, |limit| limit as usize)
    }

    fn unsettled_limit(&self) -> u32 {
        self.max_unsettled.unwrap_or(MAX_UNSETTLED).min(u32::try_from(self.in_transit_limit()).unwrap_or(u32::MAX))
    }

    pub(crate) fn thresholds(&self) -> Vec<Threshold> {
        self.thresholds.iter().chain(&self.abort_on).cloned().collect()
    }

    /// Returns the description of the load for the run record, without the address of the broker.
    ///
    /// # Errors
    ///
    /// Returns an error if no stage offers any messages, or if two stages have the same name.
    pub(crate) fn workload(&self) -> Result<Workload> {
        let offer = offered_rate(self.rate, &self.stages)?;
        let staged = offer.as_ref().and_then(OfferedRate::length);
        let documents = self.market().map(|market| market.sizes());
        let mean_bytes = documents.as_ref().map_or_else(|| self.sizes().mean(), |sizes| sizes.mean);
        let varied =
            documents.map_or_else(|| self.sizes().summary(), |sizes| Some(sizes).filter(|of| of.least < of.most));
        Ok(Workload {
            messages: self.messages,
            duration_limit_s: self.length().or(staged).map(|limit| limit.as_secs_f64()),
            recipients: 1,
            sessions: u32::try_from(self.in_transit_limit()).unwrap_or(u32::MAX),
            message_bytes: mean_bytes.round() as u64,
            sizes_varied: varied,
            tls: "none".to_owned(),
            arrival: self.arrival_with(offer.as_ref()),
            rate_per_s: self.rate,
            stages: offer.as_ref().map(OfferedRate::stages).unwrap_or_default(),
            protocol: "mades".to_owned(),
            rcpt: self.receiver.clone(),
            seed: self.seed(),
            ..Workload::default()
        })
    }

    /// Returns the part of the run record that exists only for runs over MADES.
    pub(crate) fn mades_record(&self, mode: MadesMode, timeout: Duration) -> Mades {
        Mades {
            mode: mode.name().to_owned(),
            receiver: self.receiver.clone(),
            message_type: self.message_type.clone(),
            durable: self.durable,
            payload: payload(&self.payload).typed(),
            market: self.market().map(|market| market.record(&self.message_type)),
            max_in_transit: self.in_transit_limit() as u64,
            window: u64::from(self.unsettled_limit()),
            timeout_s: timeout.as_secs_f64(),
            ..Mades::default()
        }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or(DEFAULT_SEED)
    }

    fn sizes(&self) -> Distribution {
        let usual = || values::payload_sizes(DEFAULT_PAYLOAD_SIZE).expect("the usual size is a size");
        self.payload_size.clone().unwrap_or_else(usual)
    }

    /// Returns how messages are distributed over time. With `--shape`, the schedule of the market decides this.
    fn arrival_with(&self, offer: Option<&OfferedRate>) -> Arrival {
        if self.shapes.is_empty() { arrival_with(self.arrival, offer) } else { Arrival::Market }
    }

    /// Refuses options that have no effect, such as `--payload-size` with `--payload FILE`.
    pub(crate) fn check_effects(&self) -> Result<()> {
        let is_closed = self.is_closed_loop();
        options::refuse_without_effect(
            &[("--arrival", is_closed && self.arrival.is_some())],
            "without --rate or --stage",
        )?;
        let is_file = matches!(payload(&self.payload), PayloadKind::File(_));
        options::refuse_without_effect(
            &[("--payload-size", is_file && self.payload_size.is_some())],
            "with --payload FILE",
        )
    }
}

const ADD_ACKNOWLEDGE: &str = "; add --acknowledge or --await-acknowledgements";

/// Refuses thresholds for stages that do not exist in this mode. The error lists the existing stages.
pub(crate) fn check_stages<'t>(path: MessagePath, thresholds: impl IntoIterator<Item = &'t Threshold>) -> Result<()> {
    let mode = path.mode;
    for threshold in thresholds {
        let has = match threshold.source() {
            Some(MetricSource::Stage(stage)) => path.find(stage).is_some(),
            _ => true,
        };
        if !has {
            let names: Vec<&str> = path.stages().iter().map(|stage| stage.name()).collect();
            let expression = threshold.expression();
            let is_acknowledged = threshold.source() == Some(MetricSource::Stage(Stage::Acknowledged));
            let needs = if is_acknowledged && mode != MadesMode::Tracing { ADD_ACKNOWLEDGE } else { "" };
            bail!("{expression}: mode {} has no such stage; it has {}{needs}", mode.name(), names.join(", "));
        }
    }
    Ok(())
}

fn payload(typed: &str) -> PayloadKind {
    match typed {
        "random" => PayloadKind::Random,
        "xml" => PayloadKind::Xml,
        path => PayloadKind::File(path.into()),
    }
}

impl BrokerArgs {
    /// Returns the URL of the broker to which messages are sent: `--broker`, or the default.
    pub(crate) fn outbox_url(&self) -> &str {
        self.broker.as_deref().unwrap_or(DEFAULT_URL)
    }

    pub(crate) fn is_named(&self) -> bool {
        self.broker.is_some()
    }

    /// Returns true if at least one of the brokers is on this host.
    pub(crate) fn are_here(&self) -> bool {
        let typed = [self.outbox_url()].into_iter().chain(self.inbox_broker.as_deref());
        let mut urls = typed.map(|text| url("--broker", text, None, None));
        urls.any(|url| url.is_ok_and(|url| is_on_this_host(&url.address())))
    }

    /// Refuses options that have no effect, such as `--cacert` without TLS.
    pub(crate) fn check_effects(&self) -> Result<()> {
        let outbox = url("--broker", self.outbox_url(), None, None)?;
        let inbox = self.inbox_broker.as_deref().map(|text| url("--inbox-broker", text, None, None)).transpose()?;
        let urls = || [Some(&outbox), inbox.as_ref()].into_iter().flatten();
        if !urls().any(BrokerUrl::is_tls) {
            let tls = [
                ("--cacert", self.cacert.is_some()),
                ("--insecure", self.insecure),
                ("--tls-cert", self.tls_cert.is_some()),
                ("--tls-name", self.tls_name.is_some()),
            ];
            options::refuse_without_effect(&tls, "without TLS; write --broker amqps://HOST")?;
        }
        self.check_login(&outbox, inbox.as_ref())
    }

    /// Refuses users and passwords that have no effect, such as `--user` if the URL already names a user.
    fn check_login(&self, outbox: &BrokerUrl, inbox: Option<&BrokerUrl>) -> Result<()> {
        let last = inbox.unwrap_or(outbox);
        if let (Some(named), Some(_), true) = (outbox.user(), last.user(), self.user.is_some()) {
            bail!("--user has no effect: the URL of --broker names the user {named}");
        }
        if let (Some(named), true) = (last.user(), self.inbox_user.is_some()) {
            bail!("--inbox-user has no effect: the URL names the user {named}");
        }
        let has_user = self.user.is_some() || outbox.user().is_some() || last.user().is_some();
        let own = [("--password-file", self.password_file.is_some() && !has_user && self.inbox_user.is_none())];
        options::refuse_without_effect(&own, "without a user: --user NAME, or amqp://NAME@HOST")?;
        let has_inbox_user = self.inbox_user.is_some() || self.user.is_some() || last.user().is_some();
        let theirs = [("--inbox-password-file", self.inbox_password_file.is_some() && !has_inbox_user)];
        options::refuse_without_effect(&theirs, "without a user: --inbox-user NAME, or --inbox-broker amqp://NAME@HOST")
    }

    /// Returns the brokers of the outbox and of the inbox. Without `--inbox-broker`, both have the same address.
    fn brokers(self) -> Result<(Broker, Broker)> {
        let security = self.security();
        let own = password(self.password_file.as_deref())?.or(password_from_env(PASSWORD_VARIABLE)?);
        let theirs = password(self.inbox_password_file.as_deref())?.or(password_from_env(INBOX_PASSWORD_VARIABLE)?);
        let inbox_broker = self.inbox_broker.as_deref().unwrap_or(self.outbox_url());
        let outbox = url("--broker", self.outbox_url(), self.user.as_deref(), own.clone())?;
        let inbox_user = self.inbox_user.as_deref().or(self.user.as_deref());
        let inbox = url("--inbox-broker", inbox_broker, inbox_user, theirs.or(own))?;
        let needs_none = matches!(self.auth_mechanism, Some(SaslMechanism::External | SaslMechanism::Anonymous));
        let is_without = |url: &&BrokerUrl| url.password().is_none() && !needs_none;
        if let Some(user) = [&outbox, &inbox].into_iter().filter(is_without).find_map(BrokerUrl::user) {
            bail!("the user {user} requires a password: use --password-file FILE, or set {PASSWORD_VARIABLE}");
        }
        let broker = |url, side: &str| Broker {
            security: security.clone(),
            step_timeout: self.connect_timeout,
            ..Broker::new(url, format!("mailrun-{side}-{}", std::process::id()))
        };
        Ok((broker(outbox, "outbox"), broker(inbox, "inbox")))
    }

    fn security(&self) -> BrokerSecurity {
        BrokerSecurity {
            mechanism: self.auth_mechanism,
            tls: TlsSetup {
                authority: self.cacert.clone(),
                identity: self.tls_cert.clone().zip(self.tls_key.clone()),
                verification: if self.insecure { Verification::Off } else { Verification::On },
                server_name: self.tls_name.clone(),
            },
        }
    }
}

/// Parses the URL of a broker. `user` and `password` are used only if the URL contains none. Errors do not quote the
/// URL, because it may contain a password.
pub(crate) fn url(option: &str, text: &str, user: Option<&str>, password: Option<Password>) -> Result<BrokerUrl> {
    let mut url: BrokerUrl = text.parse().map_err(|error: mailrun_mades::UrlError| anyhow!("{option}: {error}"))?;
    if let Some(user) = user {
        url = url.or_user(user);
    }
    Ok(match password {
        Some(password) if url.user().is_some() => url.or_password(password),
        _ => url,
    })
}

/// Reads the password from the first line of the file. Callers must prefer this password to a password in the
/// environment, because the latter may be meant for another program.
pub(crate) fn password(file: Option<&Path>) -> Result<Option<Password>> {
    Ok(file.map(mailrun_mades::password_from_file).transpose()?)
}

pub(crate) fn password_from_env(variable: &str) -> Result<Option<Password>> {
    match std::env::var(variable) {
        Ok(text) => Ok(Some(Password::new(text))),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => bail!("the environment variable {variable} is not UTF-8"),
    }
}

/// Returns an error if the broker has a public address. Also makes each later connection check its address, because the
/// name may have another address by then.
pub(crate) fn restrict_to_local(broker: &mut Broker) -> Result<()> {
    broker.is_address_allowed = is_local_address;
    ensure_local(&broker.url)
}

pub(crate) fn ensure_local(url: &BrokerUrl) -> Result<()> {
    let addresses = (url.host(), url.port()).to_socket_addrs();
    let unknown = |error| anyhow!("{} has no address; check the name: {}", url.host(), reason(&error));
    let addresses = addresses.map_err(unknown)?;
    if let Some(public) = addresses.map(|address| address.ip()).find(|address| !is_local_address(*address)) {
        bail!(
            "{public} is a public address; only loopback and private addresses are allowed by default. If the \
             endpoint is yours, add --allow-public"
        );
    }
    Ok(())
}

/// Hides the password in a word of the command line, so that a report may show the word. For example,
/// `amqp://user:password@host` becomes `amqp://user:***@host`.
pub(crate) fn without_login(word: &str) -> String {
    let parts = word.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?)));
    match parts {
        Some((scheme, (login, host))) => match login.split_once(':') {
            Some((user, _)) => format!("{scheme}://{user}:***@{host}"),
            None => word.to_owned(),
        },
        None => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct MadesTestCli {
        #[command(flatten)]
        typed: MadesArgs,
    }

    fn parse(words: &str) -> MadesArgs {
        MadesTestCli::try_parse_from(["mades"].into_iter().chain(words.split_whitespace())).unwrap().typed
    }

    fn options(words: &str) -> Result<MadesOptions> {
        parse(words).options()
    }

    #[test]
    fn nothing_typed_is_an_endpoint_on_this_host() {
        let options = options("").unwrap();
        assert_eq!((options.mode, options.max_in_transit, options.window), (MadesMode::Endpoint, 1_000, 1_000));
        assert_eq!((options.messages, options.sizes.as_constant()), (Some(10_000), Some(3_000)));
        assert_eq!(options.queues.reply, "ecp.endpoint.outbox.reply");
        assert!(options.is_durable && options.leftovers == Leftovers::Kept);
        assert_eq!(options.inbox.url, options.outbox.url);
    }

    #[test]
    fn what_is_typed_is_meant() {
        let options = options(
            "--mode toolbox --prefix p --inbox other --rate 50 --arrival poisson --duration 10s --durable=false --max-unsettled 7 \
             --broker amqp://a:b@127.0.0.1:1 --inbox-broker amqp://u:p@127.0.0.2 --payload xml",
        )
        .unwrap();
        assert_eq!((options.queues.reply.as_str(), options.queues.inbox.as_str()), ("p.reply", "other"));
        assert_eq!((options.max_in_transit, options.window, options.messages), (OPEN_LOOP_IN_TRANSIT, 7, None));
        assert_eq!((options.outbox.url.user(), options.inbox.url.user()), (Some("a"), Some("u")));
        assert_eq!(options.payload, PayloadKind::Xml);
        assert!(!options.is_durable);
        assert_eq!(payload("a.xml"), PayloadKind::File("a.xml".into()));
    }

    #[test]
    fn acknowledgements_go_back_the_way_of_the_messages_or_from_the_other_broker() {
        assert_eq!(options("").unwrap().acknowledgement, None);
        let own = options("--acknowledge --message-type t").unwrap().acknowledgement.unwrap();
        assert_eq!(own, AcknowledgementOptions::Sent { message_type: "t".to_owned(), far_outbox: None });
        let far = |words: &str| {
            let line = format!("--inbox-broker amqp://127.0.0.2 --acknowledge {words}");
            match options(&line).unwrap().acknowledgement.unwrap() {
                AcknowledgementOptions::Sent { far_outbox, .. } => far_outbox,
                awaited => panic!("{awaited:?}"),
            }
        };
        assert_eq!(far("--prefix p").as_deref(), Some("p.outbox"));
        assert_eq!(far("--acknowledge-outbox b.outbox").as_deref(), Some("b.outbox"));
        assert_eq!(far("--mode amqp"), None);
        for (words, expected) in [
            ("--acknowledge --mode tracing", "in mode tracing, which has no inbox"),
            ("--acknowledge --acknowledge-outbox b", "Two endpoints at one broker are not supported"),
            ("--acknowledge --acknowledge-outbox b --mode amqp", "in mode amqp"),
            ("--await-acknowledgements --mode amqp", "in mode amqp, which has no receiver; use --acknowledge"),
            ("--await-acknowledgements --mode tracing", "in mode tracing, which has no inbox"),
            ("--await-acknowledgements --payload bid.xml", "all messages would have one mRID"),
        ] {
            let refused = parse(words).check_effects().unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
        let unasked = options("--threshold acknowledged.p99<5s").unwrap_err().to_string();
        assert!(unasked.ends_with(ADD_ACKNOWLEDGE), "{unasked}");
        let awaited = |words: &str| options(&format!("--await-acknowledgements {words}")).unwrap().acknowledgement;
        assert_eq!(awaited(""), Some(AcknowledgementOptions::Awaited { is_far: false }));
        assert_eq!(awaited("--inbox-broker amqp://127.0.0.2"), Some(AcknowledgementOptions::Awaited { is_far: true }));
        assert!(options("--acknowledge --threshold acknowledged.within(2min)>=99.9%").is_ok());
    }

    #[test]
    fn a_ladder_has_few_messages_and_no_load_of_another_kind() {
        let ladder = options("--payload-ladder 1M..20M").unwrap();
        assert_eq!((ladder.messages, ladder.max_in_transit), (Some(5), 1));
        let ladder = options("--payload-ladder 1M..20M --messages 9 --max-in-transit 3").unwrap();
        assert_eq!((ladder.messages, ladder.max_in_transit, ladder.window), (Some(9), 3, 3));
        for other in [
            "--payload-size 1M",
            "--rate 5",
            "--stage 5s:1/s",
            "--shape quarter-hour",
            "--duration 5s",
            "--arrival poisson",
            "--threshold lost<=1",
            "--abort-on lost<=1",
            "--strict",
            "--json -",
            "--export md=x",
            "--run-id 0123456789abcdef0123456789abcdef",
        ] {
            let words = format!("mades --payload-ladder 1M..20M {other}");
            let refused = MadesTestCli::try_parse_from(words.split_whitespace()).map(|_| ()).unwrap_err();
            assert_eq!(refused.kind(), clap::error::ErrorKind::ArgumentConflict, "{other}");
        }
        let file = parse("--payload-ladder 1M..20M --payload bid.xml").check_effects().unwrap_err().to_string();
        assert!(file.contains("which has one size"), "{file}");
    }

    #[test]
    fn a_window_is_no_larger_than_what_may_be_under_way() {
        assert_eq!(options("--max-in-transit 5").unwrap().window, 5);
    }

    #[test]
    fn a_wrong_url_is_named_without_its_password() {
        for url in ["amqp://user:geheim@", "http://user:geheim@host", "amqp://user:geheim@host/x", "geheim"] {
            let error = format!("{:#}", options(&format!("--broker {url}")).unwrap_err());
            assert!(error.starts_with("--broker: ") && !error.contains("geheim"), "{error}");
        }
        assert!(options("--broker amqp://8.8.8.8").unwrap_err().to_string().contains("--allow-public"));
    }

    #[test]
    fn passwords_are_in_no_command_line() {
        for (word, shown) in [
            ("amqp://u:ge@heim@h:1", "amqp://u:***@h:1"),
            ("--broker=amqp://u:geheim@h", "--broker=amqp://u:***@h"),
            ("amqp://u@h", "amqp://u@h"),
            ("x=y", "x=y"),
        ] {
            assert_eq!(without_login(word), shown);
        }
        assert!(!format!("{:?}", options("--broker amqp://u:geheim@127.0.0.1").unwrap()).contains("geheim"));
    }
}
