//! `mailrun source`: turns the arguments into the options of a source.
pub(crate) mod bounce_domain;
pub(crate) mod offer;
pub(crate) mod shard;

use super::options;
use super::report::results::Strictness;
use crate::options::connection::ConnectionArgs;
use crate::options::cpus::{CpusArg, ThreadArgs};
use crate::options::keep_awake::KeepAwakeArg;
use crate::options::party_outputs::{OutputArgs, exit_with_parent, finish};
use crate::options::server::ServerArg;
use crate::options::values;
use anyhow::{Result, bail};
use clap::Args;
use mailrun_load::source::{
    self, AddressPattern, AllowedTargets, CorpusOptions, DialogueOutput, Distribution, DsnParameters,
    InvalidMessagePolicy, OfferedRate, Preflight, RateStage, RecipientTags, SourceOptions, TraceHeaders,
};
use mailrun_measurement::record::{Arrival, Pipelining, Workload};
use mailrun_measurement::threshold::{RunProtocol, Threshold};
use mailrun_process::live::LiveMode;
use mailrun_process::local_address::is_on_this_host;
use mailrun_process::outputs::Outputs;
use mailrun_process::party_options::{PartyOptions, TypedOptions};
use offer::{arrival_with, check_closed_loop, check_load_stages, offered_rate};
use shard::{ShardArgs, WholeLoad};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Value of `--give-up` for a Locust worker, which does not have this option. A load ends if connections fail and the
/// server answers no message for this long.
const GIVE_UP_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_MESSAGES: u64 = 10_000;

/// Sends mail and measures the latency of every phase
///
/// Closed loop by default: each session sends its next message when the last one has been answered. With --rate or
/// --stage the loop is open: messages are sent on schedule however slow the server is, and latency counts from the
/// scheduled time. Without --messages and --duration, 10,000 messages are sent.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SourceArgs {
    #[command(flatten)]
    typed: TypedOptions,
    /// Server to send to: HOST, HOST:PORT, smtp://HOST, smtps://HOST (TLS before the greeting), lmtp://HOST or
    /// unix:PATH. The default port is 25.
    #[arg(value_name = "SERVER", value_parser = ServerArg::parse)]
    server: ServerArg,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    cpus: CpusArg,
    #[command(flatten)]
    keep_awake: KeepAwakeArg,
    #[command(flatten)]
    shard: ShardArgs,
    /// Allow public addresses. Use it only with a server of your own.
    #[arg(long, env = "MAILRUN_ALLOW_PUBLIC", value_parser = clap::builder::FalseyValueParser::new(), hide_env = true,
          help_heading = "Connection")]
    allow_public: bool,
    /// Name of the run in reports.
    #[arg(long, value_name = "NAME", default_value = "source", help_heading = "Results")]
    label: String,
    #[command(flatten)]
    approach: ConnectionArgs,
    #[command(flatten)]
    outputs: OutputArgs,
}

/// Options for the load, which the commands source and bench share.
#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
pub(crate) struct LoadArgs {
    /// Number of messages, over all sessions.
    #[arg(short, long, visible_short_alias = 'n', value_name = "N", value_parser = values::some)]
    pub(crate) messages: Option<u64>,
    /// Send messages for this long.
    #[arg(short, long, value_name = "TIME", value_parser = values::some_duration)]
    pub(crate) duration: Option<Duration>,
    /// Number of parallel sessions.
    #[arg(short, long, visible_short_alias = 'c', value_name = "N", default_value = "100", value_parser = values::sessions)]
    pub(crate) sessions: u32,
    /// Open loop: messages per second, however slow the server is.
    #[arg(long, value_name = "PER SECOND", value_parser = values::rate)]
    pub(crate) rate: Option<f64>,
    /// Open loop in stages, repeatable: 10s:100/s for a constant rate, 60s:100/s..1000/s for a ramp, peak=10s:500/s
    /// with a name for thresholds. The run ends after the last stage.
    #[arg(long = "stage", value_name = "TIME:RATE", value_parser = values::stage,
          conflicts_with_all = ["rate", "duration"])]
    stages: Vec<RateStage>,
    /// Distribution of messages over time, with --rate or --stage [default: constant].
    #[arg(long, value_enum)]
    pub(crate) arrival: Option<Arrival>,
    /// Warm up for TIME: messages from this time do not count in rates, latencies and durations. They are sent and
    /// accounted for.
    #[arg(long, value_name = "TIME", value_parser = values::some_duration)]
    pub(crate) warm_up: Option<Duration>,
    #[command(flatten)]
    pub(crate) session: SessionArgs,
    /// Serve live metrics of the load for Prometheus at /metrics.
    #[arg(long, value_name = "HOST:PORT", value_parser = values::tcp_address, help_heading = "Results")]
    http: Option<SocketAddr>,
    #[command(flatten)]
    message: MessageArgs,
    #[command(flatten)]
    pub(crate) asked: CriteriaArgs,
}

/// Options for the work of each session, which the commands source, bench and worker share.
#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
pub(crate) struct SessionArgs {
    /// Reuse connections for N messages each, or for a random number from a range (1..20). Without N, there is no limit
    /// [default: a new connection for each message].
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "0",
          value_parser = values::reuse)]
    reuse: Option<values::Reuse>,
    /// Commands sent without waiting for replies.
    #[arg(long, value_enum, default_value = "off")]
    pub(crate) pipelining: Pipelining,
    /// Pause of a session after each message: 100ms, 50ms..2s, lognormal:100ms,1.
    #[arg(long, value_name = "TIME", value_parser = values::times)]
    pub(crate) think_time: Option<Distribution>,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::seed)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) threads: ThreadArgs,
    /// Time limit for connecting.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::some_duration)]
    connect_timeout: Duration,
    /// Time limit for each reply.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = values::some_duration)]
    timeout: Duration,
}

impl SessionArgs {
    /// Returns the number of messages per connection, or `None` if there is no limit. Without `--reuse`, the number is
    /// one.
    pub(crate) fn reuse(&self) -> Option<Distribution> {
        self.reuse.as_ref().map_or_else(|| Some(Distribution::constant(1)), |reuse| reuse.0.clone())
    }
}

/// Options for the content and the envelope of messages, which the commands source, bench and worker share.
#[derive(Debug, Args)]
pub(crate) struct MessageArgs {
    #[command(flatten)]
    envelope: EnvelopeArgs,
    #[command(flatten)]
    content: ContentArgs,
    #[command(flatten)]
    notices: DsnParameters,
}

/// The sender, the recipients and the name in EHLO.
#[derive(Debug, Args)]
#[command(next_help_heading = "Envelope")]
struct EnvelopeArgs {
    /// Recipient address, or a pattern such as 'user{0..99}@a.example', repeatable: every message goes to each of them.
    #[arg(long, visible_alias = "rcpt", value_name = "ADDRESS", default_value = DEFAULT_RECIPIENT,
          value_parser = values::recipient)]
    to: Vec<AddressPattern>,
    /// Recipients per message: a number, a range 1..5, or by weight 1:90,50:10. The recipients of a message are
    /// different addresses of the --to pattern, which must have enough addresses.
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::recipients)]
    recipients: Distribution,
    /// Add a number to the local part of each recipient (to0, to1, user17+2), to tell the recipients of a message
    /// apart. With several recipients, the default --to always gets a number. See docs/workloads.md.
    #[arg(long)]
    tag_recipients: bool,
    /// Sender address, which gets the bounces, <> for none, or a pattern of addresses. For example,
    /// user{0..9999}@{a.example:70,b.example:30} picks a number at random, and a domain by weight.
    #[arg(long, value_name = "ADDRESS", default_value = "from@example.com", value_parser = values::sender)]
    from: AddressPattern,
    /// Host name to send in EHLO or LHLO.
    #[arg(long, value_name = "NAME", default_value = "mailrun.example.com", value_parser = values::host_name)]
    ehlo: String,
}

/// Recipient of all messages if the user gives no `--to`. If a message has several recipients, the source adds a number
/// to this address. The address cannot belong to a stranger, because example.com is reserved (RFC 2606).
const DEFAULT_RECIPIENT: &str = "to@example.com";

impl EnvelopeArgs {
    fn recipient_tags(&self) -> RecipientTags {
        let is_default = matches!(self.to.as_slice(), [only] if only.expression() == DEFAULT_RECIPIENT);
        if self.tag_recipients || is_default { RecipientTags::On } else { RecipientTags::Off }
    }

    /// Returns the number of recipients per message. With a single address pattern, this is the value of
    /// `--recipients`. With several patterns, each of them gives one recipient.
    ///
    /// # Errors
    ///
    /// Fails if `--recipients` is given with several patterns, or if there are fewer addresses than recipients.
    fn recipients(&self) -> Result<Distribution> {
        let recipients = values::recipients_of(&self.to, &self.recipients)?;
        source::check_recipients(&self.to, recipients.max(), self.recipient_tags())?;
        Ok(recipients)
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Messages")]
struct ContentArgs {
    /// Size of a message in bytes, header included: 400, 64k, a range 400..64k, by weight 400:80,64k:15,1M:5, or
    /// lognormal:MEDIAN,SIGMA[,MAX] [default: 400; with --mime lognormal:24k,1.5].
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = values::sizes)]
    message_size: Option<Distribution>,
    /// Send messages from files, chosen at random: an mbox, a Maildir, a directory of .eml files, or one .eml file.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["message_size", "mime"])]
    corpus: Option<PathBuf>,
    /// Largest size of the corpus in memory; a larger corpus is rejected [default: 1G].
    #[arg(long, value_name = "BYTES", value_parser = values::bytes, requires = "corpus")]
    max_corpus_size: Option<u64>,
    /// Skip invalid messages instead of rejecting the corpus. A message is invalid if it is empty, has NUL bytes or
    /// lines of more than 998 bytes, or begins with a byte order mark or a line that is not a header field.
    #[arg(long, requires = "corpus")]
    corpus_skip_bad: bool,
    /// Send generated MIME messages: text, HTML, and an attachment that fills up the size.
    #[arg(long)]
    mime: bool,
    /// Send this message (header, empty line, body) instead of a generated one.
    #[arg(long, value_name = "MESSAGE.EML", conflicts_with_all = ["message_size", "subject", "corpus", "mime"])]
    file: Option<PathBuf>,
    /// Subject of the messages; none by default.
    #[arg(long, value_name = "TEXT", conflicts_with = "corpus")]
    subject: Option<String>,
    /// Add Auto-Submitted: auto-generated (RFC 3834), so that vacation programs send no answers. A bench with --mailbox
    /// always adds it.
    #[arg(long)]
    auto_submitted: bool,
    /// Add no trace header. mailrun can then check only which messages were accepted, but not which were delivered.
    #[arg(long)]
    no_trace: bool,
}

/// Options that may differ between the machines that send a load together, because they decide neither which messages
/// are sent nor when.
const HOST_OPTIONS: [&str; 7] = ["http", "cacert", "tls-cert", "tls-key", "password-file", "bind", "give-up"];

const DEFAULT_CORPUS_BYTES: u64 = 1 << 30;

impl ContentArgs {
    fn corpus(&self) -> Option<CorpusOptions> {
        let unfit = if self.corpus_skip_bad { InvalidMessagePolicy::Skip } else { InvalidMessagePolicy::Reject };
        let limit_bytes = self.max_corpus_size.unwrap_or(DEFAULT_CORPUS_BYTES);
        self.corpus.clone().map(|path| CorpusOptions { path, limit_bytes, invalid_messages: unfit })
    }
}

impl LoadArgs {
    /// Returns true if the run must be valid and conclusive to succeed. This is the case with thresholds, `--strict` or
    /// an open loop.
    pub(crate) fn is_strict(&self) -> bool {
        self.asked.is_strict() || self.rate.is_some() || !self.stages.is_empty()
    }

    pub(crate) fn warn_of_bounces(&self, server: &str) {
        let envelope = &self.message.envelope;
        bounce_domain::warn(&envelope.from, &envelope.to, server);
    }

    /// Returns an error if a threshold is for a figure that the run does not have, for example for a stage that no
    /// `--stage` defines. Also fails if `--recipients` is given with several patterns of recipients.
    pub(crate) fn check_thresholds(&self) -> Result<()> {
        self.message.envelope.recipients()?;
        check_load_stages(&self.asked.thresholds, &self.stages)?;
        if self.rate.is_some() || !self.stages.is_empty() {
            return Ok(());
        }
        check_closed_loop(self.asked.thresholds.iter().chain(&self.asked.abort_on))
    }

    pub(crate) fn offer(&self) -> Result<Option<OfferedRate>> {
        offered_rate(self.rate, &self.stages)
    }

    pub(crate) fn has_trace(&self) -> bool {
        !self.message.content.no_trace
    }

    /// Returns how messages are distributed over time. In a closed loop, each session sends one message after the
    /// other. In an open loop, messages are distributed as `--arrival` says.
    ///
    /// # Errors
    ///
    /// Returns an error if `--arrival` is given in a closed loop.
    pub(crate) fn arrival(&self, offer: Option<&OfferedRate>) -> Result<Arrival> {
        if self.arrival.is_some() && offer.is_none() {
            bail!("--arrival requires --rate or --stage");
        }
        Ok(arrival_with(self.arrival, offer))
    }

    /// Returns how a capacity search distributes the messages of a trial over time. Unlike [`Self::arrival`], needs no
    /// rate, because the search chooses the rate of each trial only later.
    pub(crate) fn arrival_of_trials(&self) -> Arrival {
        self.arrival.unwrap_or(Arrival::Constant)
    }

    pub(crate) fn without_arrival(self) -> Self {
        Self { arrival: None, ..self }
    }

    /// Refuses a warm-up that is not shorter than the run, because nothing would be left to measure.
    pub(crate) fn check_warm_up(&self, offer: Option<&OfferedRate>) -> Result<()> {
        let all_due = offer.zip(self.messages).map(|(offer, messages)| offer.due_s(messages as f64));
        let all_due = all_due.and_then(|due_s| Duration::try_from_secs_f64(due_s).ok());
        let limit = self.duration.into_iter().chain(offer.and_then(OfferedRate::length)).chain(all_due).min();
        match (self.warm_up, limit) {
            (Some(warm_up), Some(limit)) if warm_up >= limit => {
                bail!("--warm-up {warm_up:?} leaves nothing of {limit:?} to measure; use a shorter one")
            }
            _ => Ok(()),
        }
    }

    /// Returns the properties of the load that are known before it starts, for the run record.
    ///
    /// # Errors
    ///
    /// Returns an error if options contradict each other, for example if the warm-up is longer than the run.
    pub(crate) fn workload(&self) -> Result<Workload> {
        let offer = self.offer()?;
        self.check_thresholds()?;
        self.check_warm_up(offer.as_ref())?;
        let staged = offer.as_ref().and_then(OfferedRate::length);
        Ok(Workload {
            messages: self.messages,
            duration_limit_s: self.duration.or(staged).map(|limit| limit.as_secs_f64()),
            sessions: self.sessions,
            pipelining: self.session.pipelining,
            arrival: self.arrival(offer.as_ref())?,
            rate_per_s: self.rate,
            stages: offer.as_ref().map(OfferedRate::stages).unwrap_or_default(),
            seed: self.session.seed,
            ..Workload::default()
        })
    }

    /// Returns a description of the whole load, even if this machine sends only a part of it. Each number is written in
    /// a single form, for example `10k` as `10000`, because all machines must compute the same hash of the options.
    pub(crate) fn whole(&self, typed: &TypedOptions, approach: &ConnectionArgs, server: &str) -> WholeLoad {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        let options = load_options(typed)
            .and(approach.of_url())
            .without(&HOST_OPTIONS)
            .with_some("messages", self.messages)
            .with("sessions", self.sessions)
            .with_some("rate", self.rate)
            .with_some("duration", seconds(self.duration))
            .with_some("warm-up", seconds(self.warm_up));
        WholeLoad {
            words: options.argument(server).words(),
            messages: self.messages,
            sessions: self.sessions,
            has_trace: self.has_trace(),
        }
    }
}

/// Returns the options for the load and the connection that a bench passes on to its source. Options for the verdict
/// and for the test connection are left out, because the bench handles them itself.
pub(crate) fn load_options(typed: &TypedOptions) -> PartyOptions {
    typed.of::<LoadArgs>().and(typed.of::<ConnectionArgs>()).without(&["threshold", "strict", "no-preflight"])
}

/// Options for the requirements on a run, which the commands source and bench share.
#[derive(Debug, Args)]
#[command(next_help_heading = "Verdict")]
pub(crate) struct CriteriaArgs {
    /// Condition that the run must meet, repeatable: 'accepted.p99 < 50ms', 'delivered.rate > 5000/s',
    /// 'delivered.within(60s) >= 95%', 'rejected <= 0.1%'. The name of a stage or phase is followed by p50, p99.9, min,
    /// mean, max, count or within(TIME), or, for a stage, rate. By default, rejected, failed, lost, duplicates and
    /// corrupt must be 0. 'stage peak: accepted.p99 < 50ms' applies only to the messages of the --stage named peak.
    #[arg(long = "threshold", value_name = "EXPRESSION", value_parser = threshold)]
    pub(crate) thresholds: Vec<Threshold>,
    /// End the run as soon as the source sees that this condition is not met. The syntax is that of --threshold.
    #[arg(long, value_name = "EXPRESSION", value_parser = aborting_threshold)]
    abort_on: Vec<Threshold>,
    /// End the run if connections fail and the server has neither accepted nor rejected a message for this long.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::some_duration)]
    give_up: Duration,
    /// Skip the test connection (EHLO, TLS, AUTH, MAIL, RCPT) before the run.
    #[arg(long)]
    no_preflight: bool,
    /// Exit with status 3 if the verdict is INVALID or INCONCLUSIVE, even without --threshold, --rate or --stage.
    #[arg(long)]
    strict: bool,
}

impl CriteriaArgs {
    fn is_strict(&self) -> bool {
        self.strict || !self.thresholds.is_empty() || !self.abort_on.is_empty()
    }

    pub(crate) fn preflight(&self) -> Preflight {
        if self.no_preflight { Preflight::Off } else { Preflight::On }
    }
}

pub(crate) fn threshold(text: &str) -> Result<Threshold, String> {
    Threshold::parse(text, RunProtocol::Smtp)
}

fn aborting_threshold(text: &str) -> Result<Threshold, String> {
    let threshold = threshold(text)?;
    if threshold.load_stage().is_some() {
        return Err("a stage of the load has figures only at the end of the run; use --threshold".to_owned());
    }
    if threshold.is_of_delivery() {
        return Err("this value is known only at the end of the run; use --threshold".to_owned());
    }
    if threshold.needs_the_end() {
        return Err("a minimum cannot end a run early; use --threshold".to_owned());
    }
    Ok(threshold)
}

const EXAMPLES: &str = "\
Examples:
  mailrun source 127.0.0.1:2525 -m 1000 -s 10
  mailrun source mx.example --to ann@mx.example --duration 30s --rate 500
  mailrun source smtps://mx.example --user ann --password-file password
  mailrun source 127.0.0.1:2525 --reuse --pipelining stream -l 64k --json run.json
  mailrun source 127.0.0.1:2525 -l lognormal:4k,1.2 --recipients 1..5 --think-time 50ms..2s
  mailrun source 127.0.0.1:2525 --corpus mail.mbox --to 'user{0..9999}@a.example'
  mailrun source 127.0.0.1:2525 --warm-up 5s --stage 10s:100/s --stage 60s:100/s..1000/s
  mailrun source 127.0.0.1:2525 --threshold 'accepted.p99 < 50ms' --quiet";

impl SourceArgs {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        self.cpus.place()?;
        let is_shown = self.load.messages == Some(1) && self.outputs.report.begin_dialogue();
        let outputs = Outputs { http: self.load.http, ..self.outputs.outputs()? };
        let report = self.outputs.report.clone();
        let details = self.outputs.out.clone();
        let live = outputs.live;
        exit_with_parent(live);
        let load = self.load.workload()?;
        let offer = self.load.offer()?;
        let criteria = &self.load.asked;
        let reach = if self.allow_public { AllowedTargets::Public } else { AllowedTargets::Local };
        let base = source_options(&self.server, &self.load.session, &self.load.message, &self.approach, reach)?;
        let approach = self.approach.for_server(&self.server)?;
        let part = self.shard.part(self.load.whole(&self.typed, &approach, self.server.address()))?;
        let is_staged = matches!(offer, Some(OfferedRate::Stages(_)));
        let strictness = Strictness::of(self.load.is_strict());
        let is_limited = self.load.messages.is_some() || self.load.duration.is_some() || is_staged;
        // Print nothing here if a bench started this process (`LiveMode::Json`), because the bench has already printed
        // these warnings and announcements.
        if live != LiveMode::Json {
            self.load.warn_of_bounces(self.server.address());
            self.shard.announce();
            options::announce_load(live, &load);
        }
        let is_own_run = live != LiveMode::Json;
        let is_usual = is_own_run && !is_on_this_host(self.server.address());
        let _awake = self.keep_awake.begin_load(is_usual, &load, self.load.session.reuse().as_ref())?;
        let finished = source::run(SourceOptions {
            name: self.label,
            messages: self.load.messages.or((!is_limited).then_some(DEFAULT_MESSAGES)),
            duration: self.load.duration,
            sessions: self.load.sessions,
            workers: self.load.session.threads.workers.or(self.cpus.workers()).unwrap_or(base.workers),
            warm_up: self.load.warm_up,
            arrival: load.arrival,
            offered_rate: offer,
            run: self.outputs.run_id.or_else(|| part.as_ref().map(shard::run_id)),
            shard: part,
            thresholds: criteria.thresholds.clone(),
            abort_on: criteria.abort_on.clone(),
            give_up_timeout: criteria.give_up,
            preflight: if is_shown { Preflight::Off } else { criteria.preflight() },
            dialogue: if is_shown { DialogueOutput::Stdout } else { DialogueOutput::Nowhere },
            outputs,
            ..base
        })?;
        finish(finished, &report, live, strictness, details.as_deref())
    }
}

/// Returns the options of a closed loop with one session that runs until it is stopped. A caller that needs another
/// load replaces these values.
///
/// # Errors
///
/// Returns an error if options contradict each other or the URL of the server, or if a password is missing.
pub(crate) fn source_options(
    server: &ServerArg,
    session: &SessionArgs,
    message: &MessageArgs,
    approach: &ConnectionArgs,
    allowed_targets: AllowedTargets,
) -> Result<SourceOptions> {
    let approach = approach.for_server(server)?;
    let MessageArgs { envelope, content, notices } = message;
    Ok(SourceOptions {
        name: "source".to_owned(),
        to: server.address().to_owned(),
        messages: None,
        duration: None,
        sessions: 1,
        workers: session.threads.workers.unwrap_or_else(mailrun_net::worker::default_count),
        busy_poll: session.threads.busy_poll.value(),
        sizes: content.message_size.clone(),
        corpus: content.corpus(),
        mime: content.mime,
        recipients: envelope.recipients()?,
        reuse: session.reuse(),
        think: session.think_time.clone(),
        warm_up: None,
        pipelining: session.pipelining,
        from: envelope.from.clone(),
        recipient_patterns: envelope.to.clone(),
        recipient_tags: envelope.recipient_tags(),
        body_parameter: approach.declaration(),
        dsn_parameters: notices.clone(),
        subject: content.subject.clone(),
        file: content.file.clone(),
        arrival: Arrival::Closed,
        offered_rate: None,
        connect_timeout: session.connect_timeout,
        timeout: session.timeout,
        seed: session.seed,
        hello: envelope.ehlo.clone(),
        auto_submitted: content.auto_submitted,
        trace_headers: if content.no_trace { TraceHeaders::Off } else { TraceHeaders::On },
        run: None,
        shard: None,
        allowed_targets,
        transport: approach.options()?,
        thresholds: Vec::new(),
        abort_on: Vec::new(),
        give_up_timeout: GIVE_UP_TIMEOUT,
        preflight: Preflight::On,
        dialogue: DialogueOutput::Nowhere,
        outputs: Outputs { json: None, ledger: None, hlog: None, live: LiveMode::Off, http: None },
        control: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct OneSource {
        #[command(flatten)]
        source: SourceArgs,
    }

    fn plan(options: &str) -> Vec<String> {
        let words = ["source", "127.0.0.1:25"].into_iter().chain(options.split(' '));
        let SourceArgs { load, typed, approach, server, .. } = OneSource::parse_from(words).source;
        load.whole(&typed, &approach, server.address()).words
    }

    #[test]
    fn a_plan_is_what_is_sent_and_not_how_it_was_written_or_where() {
        let one = plan("-m 10k --rate 1k --duration 1m --warm-up 1s --tls starttls --cacert /a/ca.pem");
        assert_eq!(
            one,
            plan("--messages 10000 --rate 1000 --duration 60s --warm-up 1000ms --tls starttls --cacert ca.pem")
        );
        assert_ne!(one, plan("-m 10k --rate 1k --duration 2m --warm-up 1s --tls starttls --cacert /a/ca.pem"));
        assert_ne!(plan("-m 10 --seed 1"), plan("-m 10 --seed 2"));
        assert_ne!(plan("-m 10 -l 1k"), plan("-m 10 -l 2k"));
    }
}
