//! `mailrun source`: what was typed, to what it means.
use super::{ArrivalTyped, OutputsTyped, PipeliningTyped, end_with_parent, finish, values};
use crate::source::{self, Reach, SourceOptions, Trace};
use anyhow::Result;
use clap::Args;
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
    /// The server.
    #[arg(long, value_name = "HOST:PORT")]
    to: String,
    #[command(flatten)]
    load: Load,
    /// Threads that carry load [default: half of the processors].
    #[arg(long, value_name = "N", value_parser = values::workers)]
    workers: Option<usize>,
    /// The sender.
    #[arg(long, value_name = "ADDRESS", default_value = "from@example.com")]
    from: String,
    /// The recipient; several recipients get a number at the end of the local part.
    #[arg(long, value_name = "ADDRESS", default_value = "to@example.com")]
    rcpt: String,
    /// The Subject; none by default.
    #[arg(long, value_name = "TEXT")]
    subject: Option<String>,
    /// Send this message (a header, an empty line, a body) in place of a generated one.
    #[arg(long, value_name = "MESSAGE.EML", conflicts_with_all = ["size", "subject"])]
    file: Option<PathBuf>,
    /// How long a connection may take to stand.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::some_duration)]
    connect_timeout: Duration,
    /// How long a reply may take.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = values::some_duration)]
    timeout: Duration,
    /// The name to say EHLO with.
    #[arg(long, value_name = "NAME", default_value = "mailrun.example.com")]
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
    /// Octets of a message, header included; k and M are understood.
    #[arg(long, value_name = "BYTES", default_value = "400", value_parser = values::bytes)]
    pub(super) size: u64,
    /// Recipients of each message.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) recipients: u32,
    /// Send N messages over a connection, or without N as many as there are [default: a connection a message].
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    reuse: Option<u64>,
    /// How far commands run ahead of replies.
    #[arg(long, value_enum, default_value = "off")]
    pub(super) pipelining: PipeliningTyped,
    /// Open loop: that many messages a second, whatever the server does.
    #[arg(long, value_name = "PER SECOND", value_parser = values::rate)]
    pub(super) rate: Option<f64>,
    /// How they are spread, with --rate.
    #[arg(long, value_enum, default_value = "constant")]
    pub(super) arrival: ArrivalTyped,
    /// The seed of everything random.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(super) seed: u64,
}

impl Load {
    /// Messages a connection carries; `None` for as many as there are.
    pub(super) fn reuse(&self) -> Option<u64> {
        match self.reuse {
            None => Some(1),
            Some(0) => None,
            Some(number) => Some(number),
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  mailrun source --to 127.0.0.1:2525 --messages 1000 --sessions 10
  mailrun source --to 127.0.0.1:2525 --duration 30s --rate 500 --arrival poisson
  mailrun source --to 127.0.0.1:2525 --reuse --pipelining stream --size 64k --json run.json";

impl Typed {
    pub(super) fn run(self) -> Result<ExitCode> {
        let outputs = self.outputs.outputs();
        let live = outputs.live;
        end_with_parent(live);
        let is_limited = self.load.messages.is_some() || self.load.duration.is_some();
        let record = source::run(SourceOptions {
            name: self.name,
            to: self.to,
            messages: self.load.messages.or((!is_limited).then_some(DEFAULT_MESSAGES)),
            duration: self.load.duration,
            sessions: self.load.sessions,
            workers: self.workers.unwrap_or_else(net::worker::default_count),
            size: self.load.size,
            recipients: self.load.recipients,
            reuse: self.load.reuse(),
            pipelining: self.load.pipelining.into(),
            from: self.from,
            recipient: self.rcpt,
            subject: self.subject,
            file: self.file,
            rate_per_s: self.load.rate,
            arrival: self.load.arrival.with(self.load.rate),
            connect_timeout: self.connect_timeout,
            timeout: self.timeout,
            seed: self.load.seed,
            hello: self.hello,
            trace: if self.no_trace { Trace::Off } else { Trace::On },
            run: self.outputs.run_id,
            reach: if self.allow_public { Reach::Public } else { Reach::Local },
            outputs,
        })?;
        finish(&record, live)
    }
}
