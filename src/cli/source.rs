//! `mailrun source`: what was typed, to what it means.
use super::approach::ApproachTyped;
use super::notices::NoticesTyped;
use super::{ArrivalTyped, OutputsTyped, PipeliningTyped, Strictness, end_with_parent, finish, values};
use crate::source::{
    self, CorpusOptions, Offer, Pattern, Preflight, RateStage, Reach, SourceOptions, Spread, Trace, Unfit,
};
use anyhow::{Result, bail};
use clap::Args;
use journey::Stage;
use journey::threshold::{Place, Protocol, Threshold};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Messages where neither a number nor a time was given.
const DEFAULT_MESSAGES: u64 = 10_000;

/// Sends mail and measures the latency of every phase
///
/// Closed loop by default: each session sends its next message when the last one has been answered. With --rate or
/// --stage the loop is open: messages are sent on schedule however slow the server is, and latency counts from the
/// scheduled time. Without --messages and --duration, 10,000 messages are sent.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Typed {
    /// Server to send to: HOST:PORT, or unix:PATH for a unix-domain socket.
    #[arg(long, value_name = "HOST:PORT")]
    to: String,
    #[command(flatten)]
    load: Load,
    /// Worker threads [default: half of the processors].
    #[arg(long, value_name = "N", value_parser = values::workers)]
    workers: Option<usize>,
    /// Subject of the messages; none by default.
    #[arg(long, value_name = "TEXT")]
    subject: Option<String>,
    /// Send this message (header, empty line, body) instead of a generated one.
    #[arg(long, value_name = "MESSAGE.EML", conflicts_with_all = ["size", "subject", "corpus", "mime"])]
    file: Option<PathBuf>,
    /// Time limit for connecting.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::some_duration)]
    connect_timeout: Duration,
    /// Time limit for each reply.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = values::some_duration)]
    timeout: Duration,
    /// Host name to send in EHLO or LHLO.
    #[arg(long, value_name = "NAME", default_value = "mailrun.example.com", value_parser = values::hello)]
    hello: String,
    /// Add no trace header: what was delivered then cannot be checked, only what was accepted.
    #[arg(long)]
    no_trace: bool,
    /// Allow public addresses. Use it only with a server of your own.
    #[arg(long, env = "MAILRUN_ALLOW_PUBLIC", value_parser = clap::builder::FalseyValueParser::new(), hide_env = true)]
    allow_public: bool,
    /// Name of the run in reports.
    #[arg(long, value_name = "NAME", default_value = "source")]
    name: String,
    #[command(flatten)]
    approach: ApproachTyped,
    #[command(flatten)]
    outputs: OutputsTyped,
}

/// The load, in the words that source and bench share.
#[derive(Debug, Args)]
pub(super) struct Load {
    /// Number of messages, over all sessions.
    #[arg(long, value_name = "N", value_parser = values::some)]
    pub(super) messages: Option<u64>,
    /// Length of the run.
    #[arg(long, value_name = "TIME", value_parser = values::some_duration)]
    pub(super) duration: Option<Duration>,
    /// Parallel sessions.
    #[arg(long, value_name = "N", default_value = "100", value_parser = values::sessions)]
    pub(super) sessions: u32,
    /// Size of a message in bytes, header included: 400, 64k, a range 400..64k, by weight 400:80,64k:15,1M:5, or
    /// lognormal:MEDIAN,SIGMA[,MAX] [default: 400; with --mime lognormal:24k,1.5].
    #[arg(long, value_name = "BYTES", value_parser = values::sizes)]
    pub(super) size: Option<Spread>,
    /// Send messages from files, chosen at random: an mbox, a Maildir, a directory of .eml files, or one .eml file.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["size", "mime"])]
    corpus: Option<PathBuf>,
    /// Largest size of the corpus in memory; a larger corpus is rejected.
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = values::bytes, requires = "corpus")]
    corpus_limit: u64,
    /// Skip messages of the corpus that no mail server has to accept: with NUL bytes, or lines of more than 998 bytes.
    #[arg(long, requires = "corpus")]
    corpus_skip_bad: bool,
    /// Send generated MIME messages: text, HTML, and an attachment that fills up the size.
    #[arg(long)]
    mime: bool,
    /// Sender address, or a pattern: user{0..9999}@{a.example:70,b.example:30} picks a number at random, and a domain
    /// by weight.
    #[arg(long, value_name = "ADDRESS", default_value = "from@example.com", value_parser = values::pattern)]
    pub(super) from: Pattern,
    /// Recipient address, or a pattern. If it is needed to tell recipients apart, mailrun adds the index of the
    /// recipient to the local part: to0, to1, user17+0 (see docs/workloads.md).
    #[arg(long, value_name = "ADDRESS", default_value = "to@example.com", value_parser = values::pattern)]
    pub(super) rcpt: Pattern,
    /// Recipients per message: a number, a range 1..5, or by weight 1:90,50:10.
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::recipients)]
    pub(super) recipients: Spread,
    /// Reuse connections for N messages each, or for a random number from a range (1..20). Without N, there is no limit
    /// [default: a new connection for each message].
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "0",
          value_parser = values::reuse)]
    reuse: Option<values::Reuse>,
    /// Pause of a session after each message: 100ms, 50ms..2s, lognormal:100ms,1.
    #[arg(long, value_name = "TIME", value_parser = values::times)]
    pub(super) think: Option<Spread>,
    /// Commands sent without waiting for replies.
    #[arg(long, value_enum, default_value = "off")]
    pub(super) pipelining: PipeliningTyped,
    /// Open loop: messages per second, however slow the server is.
    #[arg(long, value_name = "PER SECOND", value_parser = values::rate)]
    pub(super) rate: Option<f64>,
    /// Open loop in stages, repeatable: 10s:100/s for a constant rate, 60s:100/s..1000/s for a ramp. The run ends after
    /// the last stage.
    #[arg(long = "stage", visible_alias = "ramp", value_name = "TIME:RATE", value_parser = values::stage,
          conflicts_with_all = ["rate", "duration"])]
    stages: Vec<RateStage>,
    /// Leave messages of the first TIME out of rates, latencies and durations. They are sent and accounted for.
    #[arg(long, value_name = "TIME", value_parser = values::some_duration)]
    pub(super) warm_up: Option<Duration>,
    /// Distribution of messages over time, with --rate or --stage.
    #[arg(long, value_enum, default_value = "constant")]
    pub(super) arrival: ArrivalTyped,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(super) seed: u64,
    #[command(flatten)]
    pub(super) asked: AskedTyped,
    #[command(flatten)]
    notices: NoticesTyped,
}

impl Load {
    /// Whether something is asked of the run that an invalid or inconclusive one does not give.
    pub(super) fn is_strict(&self) -> bool {
        self.asked.is_strict() || self.rate.is_some() || !self.stages.is_empty()
    }

    /// Messages a connection carries; `None` for as many as there are.
    pub(super) fn reuse(&self) -> Option<Spread> {
        self.reuse.as_ref().map_or_else(|| Some(Spread::always(1)), |reuse| reuse.0.clone())
    }

    /// Refuses thresholds of what a run does not have.
    ///
    /// # Errors
    /// The first such threshold, and what there is.
    pub(super) fn check_thresholds(&self) -> Result<()> {
        let is_closed = self.rate.is_none() && self.stages.is_empty();
        let asked = self.asked.thresholds.iter().chain(&self.asked.abort_on);
        let created = Some(Place::Stage(Stage::Created));
        if let Some(threshold) = asked.filter(|_| is_closed).find(|one| one.is_of_time() && one.place() == created) {
            bail!(
                "{}: in a closed loop a message is due when it is created; say --rate, or ask for sent",
                threshold.expression()
            );
        }
        Ok(())
    }

    /// What is offered at open loop.
    ///
    /// # Errors
    /// If that is nothing.
    pub(super) fn offer(&self) -> Result<Option<Offer>> {
        if self.stages.is_empty() {
            return Ok(self.rate.map(Offer::Steady));
        }
        if self.stages.iter().all(|stage| stage.from_per_s + stage.to_per_s == 0.0) {
            bail!("--stage: these stages offer no messages");
        }
        Ok(Some(Offer::Stages(self.stages.clone())))
    }

    fn corpus(&self) -> Option<CorpusOptions> {
        let unfit = if self.corpus_skip_bad { Unfit::Skipped } else { Unfit::Refused };
        self.corpus.clone().map(|path| CorpusOptions { path, limit_bytes: self.corpus_limit, unfit })
    }

    /// What is offered, in the words of a source, but for what a bench decides itself: how much, how long, how many
    /// sessions, how they go about it.
    pub(super) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut push = |option: &str, value: &str| words.push(format!("{option}={value}"));
        if let Some(sizes) = &self.size {
            push("--size", sizes.expression());
        }
        if let Some(corpus) = &self.corpus {
            push("--corpus", &corpus.to_string_lossy());
            push("--corpus-limit", &self.corpus_limit.to_string());
        }
        push("--from", self.from.typed());
        push("--rcpt", self.rcpt.typed());
        push("--recipients", self.recipients.expression());
        match self.reuse() {
            None => words.push("--reuse".to_owned()),
            Some(reuse) => words.push(format!("--reuse={}", reuse.expression())),
        }
        words.extend(self.think.iter().map(|think| format!("--think={}", think.expression())));
        words.extend(self.stages.iter().map(|stage| format!("--stage={}", stage.typed())));
        words.extend(self.warm_up.map(|length| format!("--warm-up={}us", length.as_micros())));
        let flags = [(self.mime, "--mime"), (self.corpus_skip_bad, "--corpus-skip-bad")];
        words.extend(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.to_owned()));
        words.extend(self.notices.words());
        // What the source can see, and can end for, it judges itself; the rest is for who sees both ends.
        words.extend(self.asked.abort_on.iter().map(|threshold| format!("--abort-on={}", threshold.expression())));
        words.push(format!("--give-up={}us", self.asked.give_up.as_micros()));
        words
    }
}

/// What is asked of a run, in the words that source and bench share.
#[derive(Debug, Args)]
pub(super) struct AskedTyped {
    /// Condition that the run must meet, repeatable: 'accepted.p99 < 50ms', 'delivered.rate > 5000/s',
    /// 'delivered.within(60s) >= 95%', 'rejected <= 0.1%'. A stage or phase takes p50, p99, p999, min, mean, max, count
    /// or within(TIME); a stage also takes rate. rejected, failed, lost, duplicates and corrupt must be 0 by default.
    #[arg(long = "threshold", value_name = "EXPRESSION", value_parser = threshold)]
    pub(super) thresholds: Vec<Threshold>,
    /// Condition like --threshold, on what the source sees; the run ends as soon as it is not met.
    #[arg(long, value_name = "EXPRESSION", value_parser = aborting_threshold)]
    abort_on: Vec<Threshold>,
    /// End the run if connections fail and the server has accepted nothing for this long.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::some_duration)]
    give_up: Duration,
    /// Skip the test connection (EHLO, TLS, AUTH, MAIL, RCPT) before the run.
    #[arg(long)]
    no_preflight: bool,
    /// Exit with status 3 if the verdict is INVALID or INCONCLUSIVE, even without --threshold, --rate or --stage.
    #[arg(long)]
    strict: bool,
}

impl AskedTyped {
    fn is_strict(&self) -> bool {
        self.strict || !self.thresholds.is_empty() || !self.abort_on.is_empty()
    }

    /// Whether a connection is tried first.
    pub(super) fn preflight(&self) -> Preflight {
        if self.no_preflight { Preflight::Off } else { Preflight::On }
    }
}

pub(super) fn threshold(text: &str) -> Result<Threshold, String> {
    Threshold::parse(text, Protocol::Smtp)
}

fn aborting_threshold(text: &str) -> Result<Threshold, String> {
    let threshold = threshold(text)?;
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
  mailrun source --to 127.0.0.1:2525 --messages 1000 --sessions 10
  mailrun source --to 127.0.0.1:2525 --duration 30s --rate 500 --arrival poisson
  mailrun source --to 127.0.0.1:2525 --reuse --pipelining stream --size 64k --json run.json
  mailrun source --to 127.0.0.1:2525 --size lognormal:4k,1.2 --recipients 1..5 --think 50ms..2s
  mailrun source --to 127.0.0.1:2525 --corpus mail.mbox --rcpt 'user{0..9999}@a.example'
  mailrun source --to 127.0.0.1:2525 --warm-up 5s --stage 10s:100/s --stage 60s:100/s..1000/s
  mailrun source --to 127.0.0.1:2525 --threshold 'accepted.p99 < 50ms' --quiet";

impl Typed {
    pub(super) fn run(self) -> Result<ExitCode> {
        let outputs = self.outputs.outputs()?;
        let report = self.outputs.report.clone();
        let live = outputs.live;
        end_with_parent(live);
        let offer = self.load.offer()?;
        self.load.check_thresholds()?;
        if offer.is_none() && matches!(self.load.arrival, ArrivalTyped::Poisson) {
            bail!("--arrival poisson requires --rate or --stage");
        }
        let is_staged = matches!(offer, Some(Offer::Stages(_)));
        let strictness = Strictness::of(self.load.is_strict());
        let is_limited = self.load.messages.is_some() || self.load.duration.is_some() || is_staged;
        let finished = source::run(SourceOptions {
            name: self.name,
            to: self.to,
            messages: self.load.messages.or((!is_limited).then_some(DEFAULT_MESSAGES)),
            duration: self.load.duration,
            sessions: self.load.sessions,
            workers: self.workers.unwrap_or_else(net::worker::default_count),
            sizes: self.load.size.clone(),
            corpus: self.load.corpus(),
            mime: self.load.mime,
            recipients: self.load.recipients.clone(),
            reuse: self.load.reuse(),
            think: self.load.think.clone(),
            warm_up: self.load.warm_up,
            pipelining: self.load.pipelining.into(),
            from: self.load.from,
            recipient: self.load.rcpt,
            declaration: self.approach.declaration(),
            notices: self.load.notices.notices(),
            subject: self.subject,
            file: self.file,
            arrival: self.load.arrival.with(offer.as_ref()),
            offer,
            connect_timeout: self.connect_timeout,
            timeout: self.timeout,
            seed: self.load.seed,
            hello: self.hello,
            trace: if self.no_trace { Trace::Off } else { Trace::On },
            run: self.outputs.run_id,
            reach: if self.allow_public { Reach::Public } else { Reach::Local },
            approach: self.approach.options()?,
            thresholds: self.load.asked.thresholds.clone(),
            abort_on: self.load.asked.abort_on.clone(),
            give_up: self.load.asked.give_up,
            preflight: self.load.asked.preflight(),
            outputs,
        })?;
        finish(finished, &report, live, strictness)
    }
}
