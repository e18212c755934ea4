//! `mailrun source`: what was typed, to what it means.
use super::approach::ApproachTyped;
use super::notices::NoticesTyped;
use super::{ArrivalTyped, OutputsTyped, PipeliningTyped, Strictness, end_with_parent, finish, values};
use crate::source::{
    self, CorpusOptions, Offer, Pattern, Preflight, RateStage, Reach, SourceOptions, Spread, Trace, Unfit,
};
use anyhow::{Result, bail};
use clap::Args;
use journey::threshold::{Protocol, Threshold};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Messages where neither a number nor a time was given.
const DEFAULT_MESSAGES: u64 = 10_000;

/// Sends mail and times every phase of it
///
/// Closed loop by default: each session sends its next message when the last is answered. With --rate the loop is
/// open: messages are due at their times whatever the server does, and latency counts from when each was due.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Typed {
    /// The server; unix:PATH for a unix-domain socket.
    #[arg(long, value_name = "HOST:PORT")]
    to: String,
    #[command(flatten)]
    load: Load,
    /// Threads that carry load [default: half of the processors].
    #[arg(long, value_name = "N", value_parser = values::workers)]
    workers: Option<usize>,
    /// The Subject; none by default.
    #[arg(long, value_name = "TEXT")]
    subject: Option<String>,
    /// Send this message (a header, an empty line, a body) in place of a generated one.
    #[arg(long, value_name = "MESSAGE.EML", conflicts_with_all = ["size", "subject", "corpus", "mime"])]
    file: Option<PathBuf>,
    /// How long a connection may take to stand.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::some_duration)]
    connect_timeout: Duration,
    /// How long a reply may take.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = values::some_duration)]
    timeout: Duration,
    /// The name to say EHLO with.
    #[arg(long, value_name = "NAME", default_value = "mailrun.example.com", value_parser = values::hello)]
    hello: String,
    /// Send no trace: the ledger then ends at acceptance.
    #[arg(long)]
    no_trace: bool,
    /// Send to public addresses too: the server is yours.
    #[arg(long, env = "MAILRUN_ALLOW_PUBLIC", value_parser = clap::builder::FalseyValueParser::new(), hide_env = true)]
    allow_public: bool,
    /// What reports call the run.
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
    /// How many messages, over all sessions [10000 where no --duration is given].
    #[arg(long, value_name = "N", value_parser = values::some)]
    pub(super) messages: Option<u64>,
    /// For how long.
    #[arg(long, value_name = "TIME", value_parser = values::some_duration)]
    pub(super) duration: Option<Duration>,
    /// Parallel sessions.
    #[arg(long, value_name = "N", default_value = "100", value_parser = values::sessions)]
    pub(super) sessions: u32,
    /// Octets of a message, header included: 400, 64k, a range 400..64k, by weight 400:80,64k:15,1M:5, or
    /// lognormal:MEDIAN,SIGMA[,MOST] [default: 400; with --mime lognormal:24k,1.5].
    #[arg(long, value_name = "BYTES", value_parser = values::sizes)]
    pub(super) size: Option<Spread>,
    /// Send real messages, picked by the seed: an mbox, a Maildir, a directory of .eml files, or one of them.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["size", "mime"])]
    corpus: Option<PathBuf>,
    /// Memory that the corpus may take; a larger one is refused.
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = values::bytes, requires = "corpus")]
    corpus_limit: u64,
    /// Leave messages of the corpus out that no mail server may take: NUL, lines above 998 octets.
    #[arg(long, requires = "corpus")]
    corpus_skip_bad: bool,
    /// Send generated MIME messages: text, HTML, and an attachment that makes up the size.
    #[arg(long)]
    mime: bool,
    /// The sender, or a pattern: user{0..9999}@{a.example:70,b.example:30} draws a number, and a word by its weight.
    #[arg(long, value_name = "ADDRESS", default_value = "from@example.com", value_parser = values::pattern)]
    pub(super) from: Pattern,
    /// The recipient, or a pattern. Where the ledger needs it, the recipient's place in the message goes to the end of
    /// the local part: to0, to1, user17+0; see docs/workloads.md.
    #[arg(long, value_name = "ADDRESS", default_value = "to@example.com", value_parser = values::pattern)]
    pub(super) rcpt: Pattern,
    /// Recipients of each message: a number, a range 1..5, or by weight 1:90,50:10.
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::recipients)]
    pub(super) recipients: Spread,
    /// Send N messages over a connection, or a number drawn from 1..20 for each, or without N as many as there are
    /// [default: a connection a message].
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "0",
          value_parser = values::reuse)]
    reuse: Option<values::Reuse>,
    /// How long a session rests after each message: 100ms, 50ms..2s, lognormal:100ms,1.
    #[arg(long, value_name = "TIME", value_parser = values::times)]
    pub(super) think: Option<Spread>,
    /// How far commands run ahead of replies.
    #[arg(long, value_enum, default_value = "off")]
    pub(super) pipelining: PipeliningTyped,
    /// Open loop: that many messages a second, whatever the server does.
    #[arg(long, value_name = "PER SECOND", value_parser = values::rate)]
    pub(super) rate: Option<f64>,
    /// Open loop in stages, as often as needed: 10s:100/s, or 60s:100/s..1000/s for a ramp. The last ends the run.
    #[arg(long = "stage", visible_alias = "ramp", value_name = "TIME:RATE", value_parser = values::stage,
          conflicts_with_all = ["rate", "duration"])]
    stages: Vec<RateStage>,
    /// Messages of the first TIME are sent and accounted for, and left out of rates, latencies and durations.
    #[arg(long, value_name = "TIME", value_parser = values::some_duration)]
    pub(super) warm_up: Option<Duration>,
    /// How they are spread, with --rate or --stage.
    #[arg(long, value_enum, default_value = "constant")]
    pub(super) arrival: ArrivalTyped,
    /// The seed of everything random.
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

    /// What is offered at open loop.
    ///
    /// # Errors
    /// If that is nothing.
    pub(super) fn offer(&self) -> Result<Option<Offer>> {
        if self.stages.is_empty() {
            return Ok(self.rate.map(Offer::Steady));
        }
        if self.stages.iter().all(|stage| stage.from_per_s + stage.to_per_s == 0.0) {
            bail!("--stage: these stages offer no message at all");
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
    /// What the run is to reach, as often as needed: 'accepted.p99 < 50ms', 'delivered.rate > 5000/s',
    /// 'delivered.within(60s) >= 95%', 'rejected <= 0.1%'. STAGE or PHASE with p50, p99, p999, min, mean, max, count or
    /// within(TIME), a stage with rate; or rejected, failed, lost, duplicates, corrupt, which else are to be 0.
    #[arg(long = "threshold", value_name = "EXPRESSION", value_parser = threshold)]
    pub(super) thresholds: Vec<Threshold>,
    /// The same, of what the source sees; a run that misses it ends at once.
    #[arg(long, value_name = "EXPRESSION", value_parser = aborting_threshold)]
    abort_on: Vec<Threshold>,
    /// End a run whose server has accepted nothing for that long, while connections failed.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::some_duration)]
    give_up: Duration,
    /// Send at once: try no connection with EHLO, TLS, AUTH, MAIL and RCPT first.
    #[arg(long)]
    no_preflight: bool,
    /// Exit with status 3 where the verdict is INVALID or INCONCLUSIVE, though no threshold and no rate was asked for.
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

fn threshold(text: &str) -> Result<Threshold, String> {
    Threshold::parse(text, Protocol::Smtp)
}

fn aborting_threshold(text: &str) -> Result<Threshold, String> {
    let threshold = threshold(text)?;
    if threshold.is_of_delivery() {
        return Err("what arrives is known at the end alone: say --threshold".to_owned());
    }
    if threshold.needs_the_end() {
        return Err("a number that is still to grow cannot end a run: say --threshold".to_owned());
    }
    Ok(threshold)
}

const EXAMPLES: &str = "\
Examples:
  mailrun source --to 127.0.0.1:2525 --messages 1000 --sessions 10
  mailrun source --to 127.0.0.1:2525 --duration 30s --rate 500 --arrival poisson
  mailrun source --to 127.0.0.1:2525 --reuse --pipelining stream --size 64k --json run.json
  mailrun source --to 127.0.0.1:2525 --size lognormal:4k,1.2 --recipients 1..5 --reuse=1..20 --think 50ms..2s
  mailrun source --to 127.0.0.1:2525 --corpus ~/mail.mbox --rcpt 'user{0..9999}@{a.example:70,b.example:30}'
  mailrun source --to 127.0.0.1:2525 --warm-up 5s --stage 10s:100/s --stage 60s:100/s..1000/s
  mailrun source --to 127.0.0.1:2525 --threshold 'accepted.p99 < 50ms' --abort-on 'rejected <= 1%'";

impl Typed {
    pub(super) fn run(self) -> Result<ExitCode> {
        let outputs = self.outputs.outputs()?;
        let report = self.outputs.report.clone();
        let live = outputs.live;
        end_with_parent(live);
        let offer = self.load.offer()?;
        if offer.is_none() && matches!(self.load.arrival, ArrivalTyped::Poisson) {
            bail!("--arrival poisson is for open loop: say --rate or --stage too");
        }
        let is_staged = matches!(offer, Some(Offer::Stages(_)));
        let strictness = Strictness::of(self.load.is_strict());
        let is_limited = self.load.messages.is_some() || self.load.duration.is_some() || is_staged;
        let record = source::run(SourceOptions {
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
        finish(&record, &report, live, strictness)
    }
}
