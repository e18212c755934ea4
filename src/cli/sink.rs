//! `mailrun sink`: what was typed, to what it means.
use super::{OutputsTyped, end_with_parent, finish, values};
use crate::sink::{self, Faults, SinkOptions, Stall};
use anyhow::Result;
use clap::Args;
use smtp::Limits;
use std::process::ExitCode;
use std::time::Duration;

/// Takes mail at full speed, verifies traces and keeps the ledger
///
/// Ends after --messages, on Ctrl-C or on SIGTERM, and reports.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Typed {
    /// Where to listen; port 0 lets the kernel choose.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:2525")]
    listen: String,
    /// Serve status and ledger as JSON here: /status, /ledger, /ledger/RUN, /record/RUN.
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// End after that many messages, all answered.
    #[arg(long, value_name = "N", value_parser = values::some)]
    messages: Option<u64>,
    /// Threads that serve [default: half of the processors].
    #[arg(long, value_name = "N", value_parser = values::workers)]
    workers: Option<usize>,
    /// Sessions at a time; more are answered 421.
    #[arg(long, value_name = "N", default_value = "100000", value_parser = values::sessions)]
    sessions: u32,
    /// The largest message taken; SIZE announces it.
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = values::bytes)]
    message_limit: u64,
    /// The longest line of a message, its end included (RFC 5321 §4.5.3.1.6).
    #[arg(long, value_name = "BYTES", default_value = "1000", value_parser = values::bytes)]
    line_limit: u64,
    /// Recipients of one message.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = values::sessions)]
    recipient_limit: u32,
    /// How long a client may be silent.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = values::some_duration)]
    idle: Duration,
    /// The name to greet with.
    #[arg(long, value_name = "NAME", default_value = "mailrun.example.com")]
    hello: String,
    #[command(flatten)]
    faults: FaultsTyped,
    /// The seed of the faults.
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// What reports call it.
    #[arg(long, value_name = "NAME", default_value = "sink")]
    name: String,
    #[command(flatten)]
    outputs: OutputsTyped,
}

/// What a sink is to do wrong, in the words that sink and bench share.
#[derive(Debug, Args)]
#[command(next_help_heading = "Faults, answered 250 all the same, to test the ruler with")]
pub(super) struct FaultsTyped {
    /// Forget messages with this probability.
    #[arg(long, value_name = "P", default_value = "0", value_parser = values::probability)]
    drop: f64,
    /// Count messages twice with this probability.
    #[arg(long, value_name = "P", default_value = "0", value_parser = values::probability)]
    duplicate: f64,
    /// Change a byte of messages with this probability.
    #[arg(long, value_name = "P", default_value = "0", value_parser = values::probability)]
    corrupt: f64,
    /// Wait before each answer to the final dot.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = values::duration)]
    delay: Duration,
    /// From AT after the first connection, answer no final dot FOR that long.
    #[arg(long, value_name = "AT,FOR", value_parser = values::stall)]
    stall: Option<Stall>,
}

impl FaultsTyped {
    fn faults(&self, seed: u64) -> Faults {
        Faults {
            drop: self.drop,
            duplicate: self.duplicate,
            corrupt: self.corrupt,
            delay: self.delay,
            stall: self.stall,
            seed,
        }
    }

    /// As options again, for a sink that the bench starts.
    pub(super) fn words(&self) -> Vec<String> {
        let faults = self.faults(0);
        faults.words().iter().flat_map(|word| word.split(' ').map(str::to_owned).collect::<Vec<_>>()).collect()
    }
}

const EXAMPLES: &str = "\
Examples:
  mailrun sink --listen 127.0.0.1:2525
  mailrun sink --listen 127.0.0.1:0 --http 127.0.0.1:8025 --messages 10000 --json sink.json
  mailrun sink --drop 0.001 --seed 1                  loses one message in a thousand, on purpose";

impl Typed {
    pub(super) fn run(self) -> Result<ExitCode> {
        let outputs = self.outputs.outputs();
        let live = outputs.live;
        end_with_parent(live);
        let record = sink::run(SinkOptions {
            name: self.name,
            listen: self.listen,
            http: self.http,
            messages: self.messages,
            workers: self.workers.unwrap_or_else(net::worker::default_count),
            sessions: self.sessions as usize,
            limits: Limits {
                text_line_bytes: usize::try_from(self.line_limit).unwrap_or(usize::MAX),
                message_bytes: self.message_limit,
                recipients: self.recipient_limit as usize,
                idle: self.idle,
                ..Limits::default()
            },
            hello: self.hello,
            faults: self.faults.faults(self.seed),
            run: self.outputs.run_id,
            outputs,
        })?;
        finish(&record, live)
    }
}
