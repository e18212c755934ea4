use crate::mades::queues::QueueNameArgs;
use crate::mades::{password, password_from_env, restrict_to_local, url};
use crate::options;
use crate::options::party_outputs::exit_with_parent;
use crate::options::values;
use crate::report::messages::say;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use mailrun_dashboard::progress_output::ProgressOutput;
use mailrun_mades::{Broker, BrokerSecurity, Password, SaslMechanism, TlsSetup, Verification};
use mailrun_mades_bench::MadesMode;
use mailrun_mades_simulator::embedded::{
    self, ListenOptions, ListenerAuth, ListenerCounts, PlainCredentials, QueueLimits,
};
use mailrun_mades_simulator::endpoint::{self, EndpointOptions, EndpointSnapshot, QueueBackend};
use mailrun_mades_simulator::model::{
    DelayDistribution, EndpointMode, Leg, Outage, PRESETS, PlanTime, ReceivedOn, SimulationTotals, SimulatorPlan,
    TracingValue,
};
use mailrun_net::Endpoint;
use mailrun_process::event_output::EventOutput;
use mailrun_process::interrupt::{Interrupt, StopRequest};
use mailrun_process::live::{LiveEvent, LiveMode, LiveProgress};
use mailrun_process::live_line::{LiveLine, NonTerminalOutput};
use mailrun_process::local_address::is_local_address;
use mailrun_process::output_file::{self, LogFile, is_standard_output};
use mailrun_process::reason::reason;
use mailrun_process::text_file;
use mailrun_process::users::PASSWORD_VARIABLE;
use mailrun_text::numbers::counted;
use std::cell::RefCell;
use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

const DEFAULT_LISTEN: &str = "127.0.0.1:5672";

/// Simulates a pair of ECP endpoints or EDX toolboxes, with a network between them
///
/// Takes messages from the outbox and handles them as the plan says: sends replies, inbox messages and events, on time,
/// late, twice, changed, or not at all. Uses a broker, or with --embedded its own queues and AMQP 1.0 listener. Ends on
/// Ctrl-C or SIGTERM, and then prints its totals.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MadesEndpointArgs {
    #[command(flatten)]
    place: EndpointBrokerArgs,
    #[command(flatten)]
    behaviour: BehaviourArgs,
    #[command(flatten)]
    way: NetworkArgs,
    #[command(flatten)]
    faults: EndpointFaultArgs,
    #[command(flatten)]
    bounds: EndpointLimitArgs,
    #[command(flatten)]
    queues: QueueNameArgs,
    #[command(flatten)]
    files: MessageLogArgs,
    /// Allow public addresses for --broker and --listen.
    #[arg(long, env = "MAILRUN_ALLOW_PUBLIC", value_parser = clap::builder::FalseyValueParser::new(), hide_env = true,
          hide_short_help = true)]
    allow_public: bool,
    /// Progress: a line on a terminal, JSON lines on standard output, or nothing.
    #[arg(long, value_enum, value_name = "HOW", default_value = "line", hide = true)]
    live: LiveMode,
}

/// Options for what the simulated endpoints do with messages, and for the seed of their random choices.
#[derive(Debug, Args)]
#[command(next_help_heading = "Behaviour")]
struct BehaviourArgs {
    /// What is simulated: endpoint (ECP), toolbox (EDX) or tracing (connectivity tests)
    ///
    /// The default is the mode of --plan, or endpoint.
    #[arg(long, value_enum, value_name = "MODE")]
    mode: Option<EndpointMode>,
    /// Built-in plan: ideal, ecp-2022 or custom-1563 [default: ideal]
    ///
    /// ideal takes no time. ecp-2022 makes 10.8 replies, 7.3 deliveries and 6.5 acknowledgements per second, as an ECP
    /// endpoint did in 2022. custom-1563 delivers 1,563 messages per second.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(PRESETS),
          hide_possible_values = true)]
    preset: Option<String>,
    /// TOML file: what to simulate; --help prints an example
    ///
    /// The plan overrides the preset, and options override the plan. An example with all keys is below.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Send an acknowledgement document back for each message
    ///
    /// The receiving application acknowledges each message with an Acknowledgement_MarketDocument (IEC 62325-451-1),
    /// which names the mRID of the received document. The acknowledgement arrives in the inbox at --broker or, with
    /// --embedded, in the only inbox. mailrun mades awaits it with --await-acknowledgements.
    #[arg(long, hide_short_help = true)]
    acknowledgement_documents: bool,
    /// Answer connectivity tests with DELIVERED instead of TRACING, because go-mades-bench waits forever for DELIVERED.
    #[arg(long, hide_short_help = true)]
    go_mades_bench_compat: bool,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: Option<u64>,
}

/// Options for the log of what was done with each message.
#[derive(Debug, Args)]
#[command(next_help_heading = "Results")]
struct MessageLogArgs {
    /// Log to FILE what was done with each message
    ///
    /// The file has a line of JSON per message, then the totals. Memory grows with the number of messages.
    #[arg(long, value_name = "FILE")]
    log_messages: Option<PathBuf>,
    /// Write only the totals to FILE, in the format of the last line of --log-messages. With - they are the last line
    /// of standard output.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    summary: Option<PathBuf>,
}

/// Options for the queues: in this process, or at a broker.
#[derive(Debug, Args)]
#[command(next_help_heading = "Queues: embedded, or of a broker")]
struct EndpointBrokerArgs {
    /// Run without a broker: serve the queues in this process
    ///
    /// The queues are in memory, and clients reach them through an AMQP 1.0 listener.
    #[arg(long, conflicts_with = "broker", required_unless_present = "broker")]
    embedded: bool,
    /// Address to listen on [default: 127.0.0.1:5672]
    ///
    /// This option requires --embedded. Port 0 picks a free port, and :5672 listens on all addresses.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Broker of the sending endpoint
    ///
    /// amqp://[USER[:PASSWORD]@]HOST[:PORT], or amqps:// for TLS.
    #[arg(long, value_name = "URL")]
    broker: Option<String>,
    /// Broker of the receiving endpoint, if not --broker
    ///
    /// This broker has the inbox, and --broker has the outbox, the replies and the events.
    #[arg(long, value_name = "URL")]
    inbox_broker: Option<String>,
    /// User at the broker
    ///
    /// With --embedded, only this user may log in [default: anyone].
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// File with the password of --user
    ///
    /// The password is the first line of the file [default: the environment variable MAILRUN_PASSWORD].
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Authentication mechanism [default: PLAIN with a user, ANONYMOUS without].
    #[arg(long, value_name = "MECHANISM", value_parser = crate::mades::mechanism, hide_short_help = true)]
    auth_mechanism: Option<SaslMechanism>,
    /// Trust the certificates in this PEM file instead of the system's.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    cacert: Option<PathBuf>,
    /// Name to expect in the certificate of the broker [default: the host].
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    tls_name: Option<String>,
    /// Accept any certificate of the broker, for tests.
    #[arg(long, conflicts_with = "cacert", hide_short_help = true)]
    insecure: bool,
    /// Certificate chain (PEM) to listen with TLS, or to present to the broker of --broker.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Maximum number of messages in a queue, with --embedded [default: 100k].
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = values::some)]
    max_queue_messages: Option<u64>,
    /// Maximum size of a queue in bytes, with --embedded [default: 256M].
    #[arg(long, value_name = "BYTES", hide_short_help = true, value_parser = values::bytes)]
    max_queue_size: Option<u64>,
}

/// Delays and maximum rates on a message's way. A delay is 10ms, 5ms..20ms, exp:10ms, lognormal:10ms,0.8 or file:PATH.
#[derive(Debug, Args)]
#[command(next_help_heading = "Delays (10ms, 5ms..20ms, exp:10ms, lognormal:10ms,0.8, file:PATH), rates")]
pub(crate) struct NetworkArgs {
    /// Delay of the endpoint's reply to a sent message.
    #[arg(long, value_name = "TIMES", value_parser = DelayDistribution::parse, hide_short_help = true)]
    accept_delay: Option<DelayDistribution>,
    /// Time from the reply to the receiver's inbox
    #[arg(long, value_name = "TIMES", value_parser = DelayDistribution::parse)]
    network_delay: Option<DelayDistribution>,
    /// Time from arrival in the inbox to the event DELIVERED or, in mode toolbox, to the reply.
    #[arg(long, value_name = "TIMES", value_parser = DelayDistribution::parse, hide_short_help = true)]
    acknowledge_delay: Option<DelayDistribution>,
    /// Time from DELIVERED to RECEIVED.
    #[arg(long, value_name = "TIMES", value_parser = DelayDistribution::parse, hide_short_help = true)]
    receive_delay: Option<DelayDistribution>,
    /// Time from the inbox to the sending of the acknowledgement document, with --acknowledgement-documents.
    #[arg(long, value_name = "TIMES", value_parser = DelayDistribution::parse, hide_short_help = true)]
    document_delay: Option<DelayDistribution>,
    /// Maximum number of replies per second.
    #[arg(long, value_name = "RATE", value_parser = values::rate, hide_short_help = true)]
    accept_rate: Option<f64>,
    /// Maximum number of messages per second to the inbox.
    #[arg(long, value_name = "RATE", value_parser = values::rate, hide_short_help = true)]
    network_rate: Option<f64>,
    /// Maximum number of acknowledgements per second.
    #[arg(long, value_name = "RATE", value_parser = values::rate, hide_short_help = true)]
    acknowledge_rate: Option<f64>,
    /// Maximum number of bytes per second that the sending endpoint accepts.
    #[arg(long, value_name = "BYTES", value_parser = values::bytes, hide_short_help = true)]
    accept_bytes: Option<u64>,
    /// Maximum number of bytes per second that the network carries.
    #[arg(long, value_name = "BYTES", value_parser = values::bytes, hide_short_help = true)]
    network_bytes: Option<u64>,
    /// Number of messages that the sending endpoint processes in parallel, with --accept-work.
    #[arg(long, value_name = "N", value_parser = values::sessions, hide_short_help = true)]
    accept_workers: Option<u32>,
    /// Time to process each message, with --accept-workers.
    #[arg(long, value_name = "TIME", value_parser = values::duration, hide_short_help = true)]
    accept_work: Option<Duration>,
    /// Time in which all steps are slower, at first by a factor of ten. It begins with the first message and again
    /// after each outage of the sending endpoint.
    #[arg(long, value_name = "TIME", value_parser = values::duration, hide_short_help = true)]
    slow_start: Option<Duration>,
    /// Outage, repeatable, with times since the first message: 'A.down 10s..15s' (the sending endpoint),
    /// 'B.down 5s..1m' (the receiving endpoint), 'net.down 1s..2s' (the network).
    #[arg(long = "outage", value_name = "OUTAGE", value_parser = Outage::parse)]
    outages: Vec<Outage>,
    /// When a message counts as received: when it is in the inbox or, with --embedded, when it is accepted from there.
    #[arg(long, value_enum, value_name = "WHEN", hide_short_help = true)]
    received_on: Option<ReceivedOn>,
}

/// Faults of the simulated endpoints, with their probabilities.
#[derive(Debug, Args)]
#[command(next_help_heading = "Faults: P is a probability, 1% or 0.01")]
pub(crate) struct EndpointFaultArgs {
    /// A message is lost silently
    #[arg(long, value_name = "P", value_parser = values::probability)]
    drop: Option<f64>,
    /// A message arrives twice
    #[arg(long, value_name = "P", value_parser = values::probability)]
    duplicate: Option<f64>,
    /// A byte of the payload changes
    #[arg(long, value_name = "P", value_parser = values::probability)]
    corrupt: Option<f64>,
    /// The endpoint replies with an error
    ///
    /// go-mades-bench exits when it gets an error reply.
    #[arg(long, value_name = "P", value_parser = values::probability)]
    reject: Option<f64>,
    /// errorCode in the error replies that --reject causes.
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    reject_code: Option<String>,
    /// errorMessage in the error replies that --reject causes.
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    reject_message: Option<String>,
    /// A message does not arrive, and the endpoint reports the event or status FAILED.
    #[arg(long, value_name = "P", value_parser = values::probability)]
    fail: Option<f64>,
    /// There is no reply; the message is still delivered.
    #[arg(long, value_name = "P", value_parser = values::probability, hide_short_help = true)]
    no_reply: Option<f64>,
    /// A message is delayed, so that later messages overtake it.
    #[arg(long, value_name = "P", value_parser = values::probability, hide_short_help = true)]
    reorder: Option<f64>,
    /// Maximum delay of the messages that --reorder delays.
    #[arg(long, value_name = "TIME", value_parser = values::duration, hide_short_help = true)]
    reorder_by: Option<Duration>,
    /// An acknowledgement document rejects the message that it acknowledges (reason A02).
    #[arg(long, value_name = "P", value_parser = values::probability, hide_short_help = true)]
    reject_documents: Option<f64>,
}

/// Limits on what the simulated endpoint accepts.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
struct EndpointLimitArgs {
    /// Component code of a known receiver, repeatable. Messages to others are rejected [default: all are known].
    #[arg(long = "receiver", value_name = "CODE", hide_short_help = true)]
    receivers: Vec<String>,
    /// Maximum size of a payload in bytes; messages with larger payloads are rejected.
    #[arg(long, value_name = "BYTES", value_parser = values::bytes, hide_short_help = true)]
    max_payload_size: Option<u64>,
    /// Maximum number of messages taken from the outbox and not accepted yet.
    #[arg(long, value_name = "N", value_parser = values::sessions, hide_short_help = true)]
    credit: Option<u32>,
    /// Maximum number of stored messages. At this number, the endpoint takes no more messages from the outbox.
    #[arg(long, value_name = "N", value_parser = values::sessions, hide_short_help = true)]
    max_stored_messages: Option<u32>,
    /// Maximum total size of stored messages in bytes. At this size, the endpoint stops reading the outbox.
    #[arg(long, value_name = "BYTES", value_parser = values::bytes, hide_short_help = true)]
    max_stored_size: Option<u64>,
}

/// Explains why an option for acknowledgement documents has no effect. Both mailrun mades-endpoint and mailrun bench
/// mades print this text, so it names the missing option of each of them.
const WITHOUT_DOCUMENTS: &str = "without acknowledgement documents of the receiver: --acknowledgement-documents, or --await-acknowledgements of mailrun bench \
     mades";

const EXAMPLES: &str = "\
Examples:
  mailrun mades-endpoint --embedded            no broker required
  mailrun mades-endpoint --embedded --preset ecp-2022 --log-messages log.jsonl
  mailrun mades-endpoint --embedded --outage 'B.down 10s..40s' --duplicate 0.1%
  mailrun mades-endpoint --broker amqp://127.0.0.1 --drop 1% --network-delay exp:20ms
  mailrun mades-endpoint --embedded --plan plan.toml

A plan, with all keys:

mode = 'endpoint'               # or 'toolbox', 'tracing'
tracing_value = 'TRACING'       # or 'DELIVERED', for go-mades-bench
received_on = 'inbox'           # or 'consume'
seed = 1
receivers = ['ecp-endpoint']    # [] knows all
sender_code = 'mailrun-endpoint-a'
receive = 'exp:57ms'
acknowledgement_documents = false
document_delay = 'exp:2s'
slow_start = '10s'
outages = ['A.down 10s..15s', 'net.down 20s..21s']
max_payload_size = '64M'
credit = 200
max_stored_messages = '1M'
max_stored_size = '1G'

[accept]                        # [network] and [acknowledge] have the same keys
delay = 'lognormal:10ms,0.8'

[accept.capacity]
rate_per_s = 10.8               # messages; '500/m' is a rate too
bytes_per_s = '1M'
workers = 4
work = '20ms'

[faults]
drop = '1%'
duplicate = '0.1%'
corrupt = 0.001
reject = 0.0
reject_code = 'ECP-STANDIN-001'
reject_message = 'told to'
fail = 0.0
no_reply = 0.0
reorder = 0.0
reorder_by = '50ms'
reject_documents = 0.0";

impl MessageLogArgs {
    /// Checks before the run starts that the summary file can be written.
    fn open(&self) -> Result<()> {
        let Some(path) = self.summary.as_deref().filter(|path| !is_standard_output(path)) else { return Ok(()) };
        output_file::check(path)
    }
}

impl MadesEndpointArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let live = self.live;
        exit_with_parent(live);
        self.place.check_effects()?;
        let plan = self.plan()?;
        self.files.open()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start the event loop")?;
        let file = self.files.summary.clone();
        let totals = runtime.block_on(self.work(plan, live))?;
        let line = totals.to_line() + "\n";
        let is_on_stdout = file.as_deref().is_some_and(is_standard_output);
        let written = match file.filter(|_| !is_on_stdout) {
            Some(path) => output_file::write(&path, &line),
            None => Ok(()),
        };
        if live == LiveMode::Json {
            EventOutput::new(live).event(&LiveEvent::Done);
        } else {
            say(&if is_on_stdout { line } else { summary(&totals) })?;
        }
        written.map(|()| ExitCode::SUCCESS)
    }

    /// Builds the plan from a preset, the plan file and the options. The file overrides the preset, and the options
    /// override both.
    fn plan(&self) -> Result<SimulatorPlan> {
        let preset = self.behaviour.preset.as_deref().and_then(SimulatorPlan::preset).unwrap_or_default();
        let mut plan = match &self.behaviour.plan {
            Some(path) => read_plan(path, &preset)?,
            None => preset,
        };
        if let Some(mode) = self.behaviour.mode {
            plan.mode = mode;
        }
        if self.behaviour.go_mades_bench_compat {
            plan.tracing_value = TracingValue::Delivered;
        }
        plan.acknowledgement_documents |= self.behaviour.acknowledgement_documents;
        self.way.apply_to(&mut plan);
        self.faults.apply_to(&mut plan);
        replace(&mut plan.seed, self.behaviour.seed.as_ref());
        self.bounds.apply_to(&mut plan);
        self.check_effects(&plan)?;
        resolve_files(&mut plan)?;
        Ok(plan)
    }

    /// Refuses options that have no effect with this plan, such as `--acknowledgement-documents` in mode tracing.
    fn check_effects(&self, plan: &SimulatorPlan) -> Result<()> {
        self.queues.check_effects(mades_mode(plan.mode))?;
        let is_tracing = plan.mode == EndpointMode::Tracing;
        let compat = self.behaviour.go_mades_bench_compat && !is_tracing;
        options::refuse_without_effect(&[("--go-mades-bench-compat", compat)], "without --mode tracing")?;
        let documents = [("--acknowledgement-documents", self.behaviour.acknowledgement_documents && is_tracing)];
        options::refuse_without_effect(&documents, "in mode tracing, which has no inbox")?;
        self.way.check_effects(plan)?;
        self.faults.check_effects(plan)
    }

    async fn work(self, plan: SimulatorPlan, live: LiveMode) -> Result<SimulationTotals> {
        let interrupt = Interrupt::watch()?;
        let stop = interrupt.wait_for(StopRequest::Stop);
        let truth = self.files.log_messages.as_deref().map(truth_file).transpose()?;
        let names = self.queues.names(mades_mode(plan.mode));
        let (backend, serving) = self.place.open(self.allow_public, plan.max_message_bytes()).await?;
        let address = serving.as_ref().map(|serving| serving.address.to_string());
        let setup =
            EndpointOptions { plan, names: names.clone(), backend, clock: mailrun_net::clock::now, message_log: truth };
        let output = RefCell::new(ProgressOutput::new(live, NonTerminalOutput::Nothing));
        let began = mailrun_net::clock::now();
        let ready = || announce(output.borrow().events(), live, address.as_deref(), &names.outbox);
        let mut watch = |sight: &EndpointSnapshot<'_>| {
            report_progress(&mut output.borrow_mut(), sight, mailrun_net::clock::now().saturating_sub(began))
        };
        let work = endpoint::run(setup, Box::pin(stop), &ready, &mut watch);
        let totals = match serving {
            None => work.await?,
            Some(EmbeddedListener { listen, counts, .. }) => {
                let totals = tokio::select! {
                    totals = work => totals?,
                    () = listen => bail!("the listener ended"),
                };
                warn_of_refused(&counts);
                totals
            }
        };
        Ok(totals)
    }
}

/// Returns the mode in which a bench measures endpoints of this mode. Default queue names depend on the bench's mode,
/// and the endpoints must use the same names.
pub(crate) fn mades_mode(mode: EndpointMode) -> MadesMode {
    match mode {
        EndpointMode::Endpoint => MadesMode::Endpoint,
        EndpointMode::Toolbox => MadesMode::Toolbox,
        EndpointMode::Tracing => MadesMode::Tracing,
    }
}

/// Reads the files with delay times that the plan names, and checks the values of the plan, for example that each
/// probability is between 0 and 1.
pub(crate) fn resolve_files(plan: &mut SimulatorPlan) -> Result<()> {
    for delay in plan.delays_mut() {
        if let Some(path) = delay.file().map(str::to_owned) {
            let text = read_text(Path::new(&path))?;
            delay.read_times(&text).map_err(|error| anyhow!("{path}: {error}"))?;
        }
    }
    plan.check().map_err(|error| anyhow!(error))
}

pub(crate) fn read_plan(path: &Path, preset: &SimulatorPlan) -> Result<SimulatorPlan> {
    let text = read_text(path)?;
    mailrun_mades_simulator::model::plan_file::read(&text, path, preset).map_err(|error| anyhow!(error))
}

fn read_text(path: &Path) -> Result<String> {
    let text = text_file::read(path, text_file::MAX_BYTES);
    text.map_err(|error| anyhow!("cannot read {}: {}", path.display(), reason(&error)))
}

fn truth_file(path: &Path) -> Result<Box<dyn Write + Send>> {
    Ok(Box::new(LogFile::new(path)?))
}

/// AMQP listener for the queues that `--embedded` keeps in this process instead of at a broker.
struct EmbeddedListener {
    address: SocketAddr,
    listen: std::pin::Pin<Box<dyn Future<Output = ()>>>,
    counts: Arc<ListenerCounts>,
}

impl EndpointBrokerArgs {
    fn check_effects(&self) -> Result<()> {
        let of_a_listener = [
            ("--listen", self.listen.is_some()),
            ("--max-queue-messages", self.max_queue_messages.is_some()),
            ("--max-queue-size", self.max_queue_size.is_some()),
        ];
        let of_a_client = [
            ("--inbox-broker", self.inbox_broker.is_some()),
            ("--auth-mechanism", self.auth_mechanism.is_some()),
            ("--cacert", self.cacert.is_some()),
            ("--tls-name", self.tls_name.is_some()),
            ("--insecure", self.insecure),
        ];
        let Some(broker) = &self.broker else {
            return options::refuse_without_effect(&of_a_client, "without --broker URL");
        };
        options::refuse_without_effect(&of_a_listener, "without --embedded")?;
        let outbox = url("--broker", broker, None, None)?;
        let inbox = self.inbox_broker.as_deref().map(|text| url("--inbox-broker", text, None, None)).transpose()?;
        let last = inbox.as_ref().unwrap_or(&outbox);
        if !outbox.is_tls() && !last.is_tls() {
            let of_tls = [&of_a_client[2..], &[("--tls-cert", self.tls_cert.is_some())]].concat();
            options::refuse_without_effect(&of_tls, "without TLS; write --broker amqps://HOST")?;
        }
        if let (Some(named), Some(_), true) = (outbox.user(), last.user(), self.user.is_some()) {
            bail!("--user has no effect: the URL of --broker names the user {named}");
        }
        let has_user = self.user.is_some() || outbox.user().is_some() || last.user().is_some();
        let idle = [("--password-file", self.password_file.is_some() && !has_user)];
        options::refuse_without_effect(&idle, "without a user: --user NAME, or amqp://NAME@HOST")
    }

    async fn open(
        self,
        allow_public: bool,
        max_message_bytes: u64,
    ) -> Result<(QueueBackend, Option<EmbeddedListener>)> {
        match &self.broker {
            Some(_) => Ok((self.brokers(allow_public)?, None)),
            None => {
                let whole = |limit| usize::try_from(limit).unwrap_or(usize::MAX);
                let usual = QueueLimits::default();
                let limits = QueueLimits {
                    messages: self.max_queue_messages.map_or(usual.messages, whole),
                    bytes: self.max_queue_size.map_or(usual.bytes, whole),
                };
                let queues = embedded::MemoryQueues::new(limits);
                let serving = self.serve(queues.clone(), allow_public, max_message_bytes).await?;
                Ok((QueueBackend::Embedded(queues), Some(serving)))
            }
        }
    }

    async fn serve(
        self,
        queues: embedded::MemoryQueues,
        allow_public: bool,
        max_message_bytes: u64,
    ) -> Result<EmbeddedListener> {
        let listen = self.listen.as_deref().unwrap_or(DEFAULT_LISTEN);
        let Endpoint::Tcp(address) = Endpoint::listening(listen).context("--listen")? else {
            bail!("--listen {listen} must have the form HOST:PORT");
        };
        if !allow_public && !is_local_address(address.ip()) {
            bail!("--listen {listen} is a public address; add --allow-public to allow it");
        }
        let tls = self.tls_cert.as_deref().zip(self.tls_key.as_deref());
        let tls =
            tls.map(|(chain, key)| embedded::tls_from_pem(chain, key)).transpose().map_err(|error| anyhow!(error))?;
        let typed = password(self.password_file.as_deref())?;
        let mechanisms = login_mechanisms(self.user, typed, password_from_env(PASSWORD_VARIABLE)?)?;
        let listener = mailrun_net::listener::listen(address).and_then(tokio::net::TcpListener::from_std);
        let listener = listener.map_err(|error| listen_error(listen, &error))?;
        let address = listener.local_addr()?;
        let counts = Arc::<ListenerCounts>::default();
        let options = ListenOptions { tls, max_message_bytes, ..ListenOptions::new(mechanisms) };
        let listen = Box::pin(embedded::serve(listener, queues, options, Arc::clone(&counts)));
        Ok(EmbeddedListener { address, listen, counts })
    }

    fn brokers(self, allow_public: bool) -> Result<QueueBackend> {
        let secret = password(self.password_file.as_deref())?.or(password_from_env(PASSWORD_VARIABLE)?);
        let a = self.broker.unwrap_or_default();
        let b = self.inbox_broker.unwrap_or_else(|| a.clone());
        let security = BrokerSecurity {
            mechanism: self.auth_mechanism,
            tls: TlsSetup {
                authority: self.cacert,
                identity: self.tls_cert.zip(self.tls_key),
                verification: if self.insecure { Verification::Off } else { Verification::On },
                server_name: self.tls_name,
            },
        };
        let broker = |option: &str, text: &str, side: &str| -> Result<Box<Broker>> {
            let url = url(option, text, self.user.as_deref(), secret.clone())?;
            let container = format!("mailrun-endpoint-{side}-{}", std::process::id());
            let mut broker = Broker { security: security.clone(), ..Broker::new(url, container) };
            if !allow_public {
                restrict_to_local(&mut broker)?;
            }
            Ok(Box::new(broker))
        };
        Ok(QueueBackend::Brokers { a: broker("--broker", &a, "a")?, b: broker("--inbox-broker", &b, "b")? })
    }
}

/// Returns the logins that the embedded broker accepts: only the user of `--user` with the password or, without
/// `--user`, any login. Fails if there is a user but no password, or a `--password-file` but no user. A password in the
/// environment without a user is ignored, because it may be meant for another program.
fn login_mechanisms(user: Option<String>, typed: Option<Password>, exported: Option<Password>) -> Result<ListenerAuth> {
    match (user, typed) {
        (None, None) => Ok(ListenerAuth::Any),
        (None, Some(_)) => bail!("--password-file has no effect without --user NAME"),
        (Some(user), typed) => match typed.or(exported) {
            Some(password) => Ok(ListenerAuth::Plain(PlainCredentials { user, password })),
            None => bail!("--user requires a password: add --password-file FILE, or set {PASSWORD_VARIABLE}"),
        },
    }
}

fn listen_error(listen: &str, error: &io::Error) -> anyhow::Error {
    let what = reason(error);
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            anyhow!(
                "cannot listen on {listen}: {what}. A broker may be using it; choose another address with --listen."
            )
        }
        _ => anyhow!("cannot listen on {listen}: {what}"),
    }
}

fn replace<T: Clone>(old: &mut T, typed: Option<&T>) {
    if let Some(typed) = typed {
        old.clone_from(typed);
    }
}

fn replace_time(old: &mut PlanTime, typed: Option<Duration>) {
    if let Some(time) = typed {
        *old = PlanTime(time);
    }
}

impl NetworkArgs {
    /// Refuses options that have no effect with this plan, such as `--accept-workers` without `--accept-work`. Must be
    /// called after `apply_to`, because the check reads the values of these options from the plan.
    pub(crate) fn check_effects(&self, plan: &SimulatorPlan) -> Result<()> {
        let capacity = &plan.accept.capacity;
        let workers = self.accept_workers.is_some() && capacity.work.0.is_zero();
        options::refuse_without_effect(&[("--accept-workers", workers)], "without --accept-work TIME")?;
        let work = self.accept_work.is_some() && capacity.workers.is_none();
        options::refuse_without_effect(&[("--accept-work", work)], "without --accept-workers N")?;
        let documents = [("--document-delay", self.document_delay.is_some() && !plan.acknowledgement_documents)];
        options::refuse_without_effect(&documents, WITHOUT_DOCUMENTS)?;
        let mode = &values::value_name(plan.mode);
        let is_endpoint = plan.mode == EndpointMode::Endpoint;
        let idle = [
            ("--receive-delay", self.receive_delay.is_some() && !is_endpoint),
            ("--received-on", self.received_on.is_some() && !is_endpoint),
        ];
        options::refuse_without_effect(&idle, &format!("in mode {mode}, which has no event RECEIVED"))
    }

    pub(crate) fn apply_to(&self, plan: &mut SimulatorPlan) {
        replace(&mut plan.accept.delay, self.accept_delay.as_ref());
        replace(&mut plan.network.delay, self.network_delay.as_ref());
        replace(&mut plan.acknowledge.delay, self.acknowledge_delay.as_ref());
        replace(&mut plan.receive, self.receive_delay.as_ref());
        replace(&mut plan.document_delay, self.document_delay.as_ref());
        limit(&mut plan.accept, self.accept_rate, self.accept_bytes);
        limit(&mut plan.network, self.network_rate, self.network_bytes);
        limit(&mut plan.acknowledge, self.acknowledge_rate, None);
        plan.accept.capacity.workers = self.accept_workers.or(plan.accept.capacity.workers);
        replace_time(&mut plan.accept.capacity.work, self.accept_work);
        replace_time(&mut plan.slow_start, self.slow_start);
        plan.outages.extend(self.outages.iter().cloned());
        plan.received_on = self.received_on.unwrap_or(plan.received_on);
    }
}

fn limit(leg: &mut Leg, rate_per_s: Option<f64>, bytes_per_s: Option<u64>) {
    leg.capacity.rate_per_s = rate_per_s.or(leg.capacity.rate_per_s);
    leg.capacity.bytes_per_s = bytes_per_s.map(|rate| rate as f64).or(leg.capacity.bytes_per_s);
}

impl EndpointFaultArgs {
    /// Refuses options that have no effect with this plan, such as `--reorder-by` without `--reorder`. Must be called
    /// after `apply_to`, because the check reads the values of these options from the plan.
    pub(crate) fn check_effects(&self, plan: &SimulatorPlan) -> Result<()> {
        let faults = &plan.faults;
        let has_codes = faults.reject > 0.0 || faults.fail > 0.0;
        let codes = [
            ("--reject-code", self.reject_code.is_some() && !has_codes),
            ("--reject-message", self.reject_message.is_some() && !has_codes),
        ];
        options::refuse_without_effect(&codes, "without --reject or --fail")?;
        let order = [("--reorder-by", self.reorder_by.is_some() && faults.reorder == 0.0)];
        options::refuse_without_effect(&order, "without --reorder")?;
        let documents = [("--reject-documents", self.reject_documents.is_some() && !plan.acknowledgement_documents)];
        options::refuse_without_effect(&documents, WITHOUT_DOCUMENTS)?;
        let is_tracing = plan.mode == EndpointMode::Tracing;
        let of_an_inbox = [
            ("--duplicate", self.duplicate.is_some() && is_tracing),
            ("--corrupt", self.corrupt.is_some() && is_tracing),
            ("--reorder", self.reorder.is_some() && is_tracing),
        ];
        options::refuse_without_effect(&of_an_inbox, "in mode tracing, which has no inbox")
    }

    pub(crate) fn apply_to(&self, plan: &mut SimulatorPlan) {
        let faults = &mut plan.faults;
        for (old, typed) in [
            (&mut faults.reject, self.reject),
            (&mut faults.no_reply, self.no_reply),
            (&mut faults.drop, self.drop),
            (&mut faults.fail, self.fail),
            (&mut faults.duplicate, self.duplicate),
            (&mut faults.corrupt, self.corrupt),
            (&mut faults.reorder, self.reorder),
            (&mut faults.reject_documents, self.reject_documents),
        ] {
            replace(old, typed.as_ref());
        }
        replace(&mut faults.reject_code, self.reject_code.as_ref());
        replace(&mut faults.reject_message, self.reject_message.as_ref());
        replace_time(&mut faults.reorder_by, self.reorder_by);
    }
}

impl EndpointLimitArgs {
    fn apply_to(&self, plan: &mut SimulatorPlan) {
        if !self.receivers.is_empty() {
            plan.receivers.clone_from(&self.receivers);
        }
        replace(&mut plan.max_payload_size, self.max_payload_size.as_ref());
        replace(&mut plan.credit, self.credit.as_ref());
        replace(&mut plan.max_stored_messages, self.max_stored_messages.as_ref());
        replace(&mut plan.max_stored_size, self.max_stored_size.as_ref());
    }
}

/// Reports that the endpoint now reads the outbox, with an event for programs and a line for the user.
fn announce(events: &EventOutput, live: LiveMode, address: Option<&str>, outbox: &str) {
    events.event(&LiveEvent::Ready { amqp: address.map(str::to_owned).into_iter().collect() });
    if live.is_shown() {
        let on = address.map(|address| format!("AMQP 1.0 on {address}, ")).unwrap_or_default();
        // Ignore the error, because the simulated endpoint must work even if standard output is closed.
        let _ = say(&format!("ready: {on}outbox {outbox}\n"));
    }
}

fn report_progress(output: &mut ProgressOutput, sight: &EndpointSnapshot<'_>, elapsed: Duration) {
    let totals = sight.totals;
    let progress = LiveProgress {
        elapsed_s: elapsed.as_secs_f64(),
        created: totals.consumed,
        accepted: totals.replies,
        delivered: totals.inboxed,
        bytes: totals.bytes,
        errors: totals.refused + totals.undeliverable,
        ..LiveProgress::default()
    };
    output.progress(&progress, totals.consumed, |progress, rate_per_s| {
        let line = LiveLine::of(progress, totals.consumed, "taken", rate_per_s);
        let line = line.with_detail(totals.inboxed, "delivered").with_detail(sight.stored as u64, "in transit");
        line.with_detail(sight.reconnects, "reconnects")
    });
}

fn warn_of_refused(counts: &ListenerCounts) {
    use std::sync::atomic::Ordering::Relaxed;
    let away = counts.refused.load(Relaxed);
    let broken = counts.aborted.load(Relaxed);
    let refused = counts.unauthenticated.load(Relaxed);
    if away + broken + refused > 0 {
        mailrun_process::tell!(
            "mailrun: {}, {broken} of them broken or invalid, {refused} with a rejected login; {away} more rejected",
            counted(counts.connections.load(Relaxed), "connection")
        );
    }
}

/// Formats the totals, with one line for each kind of event. Kinds that did not occur are left out.
fn summary(totals: &SimulationTotals) -> String {
    let back = totals.acknowledgements.as_deref().map(|back| format!("\nacknowledgements:\n{}", summary(back)));
    let mut text = format!("taken from the outbox  {}\n", totals.consumed);
    for (name, count) in [
        ("delivered", totals.delivered),
        ("refused", totals.refused),
        ("lost", totals.lost),
        ("failed", totals.failed),
        ("connectivity tests", totals.traced),
        ("undeliverable", totals.undeliverable),
        ("unfinished", totals.unfinished()),
    ] {
        if count > 0 {
            text.push_str(&format!("  {name:<23}{count}\n"));
        }
    }
    for (name, count) in [
        ("not replied to", totals.unanswered),
        ("put into the inbox twice", totals.duplicated),
        ("changed", totals.corrupted),
        ("held back", totals.held_back),
        ("overtaken", totals.overtaken),
        ("rejecting documents", totals.rejecting),
    ] {
        if count > 0 {
            text.push_str(&format!("{name:<25}{count}\n"));
        }
    }
    for (name, times) in [
        ("to the reply", &totals.to_reply),
        ("to the inbox", &totals.to_inbox),
        ("to DELIVERED", &totals.to_delivered),
        ("to RECEIVED", &totals.to_received),
    ] {
        if let Some(ms) = times.summary() {
            let p50 = ms.p50;
            let p99 = ms.p99;
            let max = ms.max;
            text.push_str(&format!("{name:<25}p50 {p50:.3} ms, p99 {p99:.3} ms, max {max:.3} ms\n"));
        }
    }
    text + back.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct MadesEndpointTestCli {
        #[command(flatten)]
        typed: MadesEndpointArgs,
    }

    fn plan(words: &[&str]) -> Result<SimulatorPlan> {
        let words = ["mades-endpoint", "--embedded"].iter().chain(words);
        MadesEndpointTestCli::try_parse_from(words).map_err(|error| anyhow!(error.to_string()))?.typed.plan()
    }

    #[test]
    fn options_go_before_the_plan_and_that_before_the_preset() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("plan.toml");
        std::fs::write(&path, "seed = 5\n[network.capacity]\nrate_per_s = 9.0\n[faults]\ndrop = 0.5\n").unwrap();
        let path = path.to_str().unwrap();
        let plan = plan(&["--preset", "ecp-2022", "--plan", path, "--drop", "0.25", "--mode", "tracing"]).unwrap();
        assert_eq!((plan.seed, plan.faults.drop, plan.mode), (5, 0.25, EndpointMode::Tracing));
        let rates = [&plan.accept, &plan.network, &plan.acknowledge].map(|leg| leg.capacity.rate_per_s);
        assert_eq!(rates, [Some(10.8), Some(9.0), Some(6.5)]);
    }

    #[test]
    fn what_is_wrong_is_said_where_it_is() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("plan.toml");
        std::fs::write(&path, "seed = 5\n[faults]\nlost = 0.5\n").unwrap();
        let error = plan(&["--plan", path.to_str().unwrap()]).unwrap_err().to_string();
        assert!(error.contains("plan.toml:3:1: unknown key \"lost\" in [faults]; known keys: drop"), "{error}");
        for (words, named) in [
            (&["--drop", "2"][..], "probability"),
            (&["--network-delay", "exp:x"], "not a valid time"),
            (&["--accept-delay", "file:/nowhere/times"], "/nowhere/times"),
            (&["--outage", "C.down 1s..2s"], "not a valid outage"),
            (&["--preset", "other"], "ideal"),
            (&["--accept-work", "3ms"], "without --accept-workers"),
            (&["--broker", "amqp://127.0.0.1"], "cannot be used"),
        ] {
            let error = format!("{:#}", plan(words).expect_err(named));
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn a_password_of_nobody_is_a_mistake_only_if_it_was_typed() {
        let secret = |text: &str| Some(Password::new(text));
        let plain =
            |text: &str| ListenerAuth::Plain(PlainCredentials { user: "u".to_owned(), password: Password::new(text) });
        let user = || Some("u".to_owned());
        for (user, typed, exported, wanted) in [
            (None, None, None, Ok(ListenerAuth::Any)),
            (None, None, secret("e"), Ok(ListenerAuth::Any)),
            (None, secret("t"), None, Err("--password-file has no effect")),
            (None, secret("t"), secret("e"), Err("--password-file has no effect")),
            (user(), None, None, Err("--user requires a password")),
            (user(), None, secret("e"), Ok(plain("e"))),
            (user(), secret("t"), secret("e"), Ok(plain("t"))),
        ] {
            match (login_mechanisms(user, typed, exported), wanted) {
                (Ok(actual), Ok(wanted)) => assert_eq!(actual, wanted),
                (Err(error), Err(wanted)) => assert!(error.to_string().starts_with(wanted), "{error}"),
                (actual, wanted) => panic!("{actual:?}, not {wanted:?}"),
            }
        }
    }

    #[test]
    fn times_may_come_from_a_file() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("times");
        std::fs::write(&path, "5ms\n7ms\n").unwrap();
        let plan = plan(&["--receive-delay", &format!("file:{}", path.display())]).unwrap();
        assert!(plan.receive.file().is_some());
    }
}
