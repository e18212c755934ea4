//! `mailrun bench mades-compare`: what was typed, to what it means.
use super::mades::{exported, password, stay_at_home, url};
use super::results::TablesTyped;
use super::scenarios::NoThresholds;
use super::values;
use crate::bench::mades_compare::{self, Broker, CompareOptions, Way, Window};
use crate::bench::tables::Sheet;
use crate::mades::PASSWORD_VARIABLE;
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Password of who gives none: go-mades-bench's own.
const USUAL_PASSWORD: &str = "password";

/// Measures go-mades-bench and `mailrun mades` side by side
///
/// Runs both in turns, with the same durable messages and the same number of outstanding sends, through the stand-in
/// for an ECP endpoint with queues of its own, or a broker of yours. Rates are those of each one's own report; CPU time
/// and memory are those of the whole process. go-mades-bench waits forever for a lost message: --max-time ends it. Ctrl-C
/// ends the run and prints the table so far. Exit status 1 if a run failed, hung or lost messages.
#[derive(Debug, Args)]
pub(super) struct CompareTyped {
    /// What the messages are sent through.
    #[arg(long, value_enum, default_value = "amqp")]
    mode: WayTyped,
    /// Messages per run.
    #[arg(short = 'm', visible_short_alias = 'n', long, value_name = "N", default_value = "10000", value_parser = values::some)]
    messages: u64,
    /// Size of a payload in bytes.
    #[arg(short = 'l', long, value_name = "BYTES", default_value = "3000", value_parser = values::bytes)]
    payload_size: u64,
    /// Runs per row; the tables show medians.
    #[arg(long, value_name = "N", default_value = "3", value_parser = values::rounds)]
    rounds: u32,
    /// Outstanding sends, a comma-separated list of numbers to run; each tool also runs with its own defaults.
    #[arg(long, value_name = "N,N", default_value = "2,16,128,1000,defaults", value_delimiter = ',', value_parser = window)]
    windows: Vec<Window>,
    /// Maximum number of messages in transit, if the window is the same for both.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = values::sessions)]
    max_in_transit: u32,
    /// Time limit of a run; a run that exceeds it is killed and reported.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = values::some_duration)]
    max_time: Duration,
    /// Share of messages that the stand-in loses, to see how each tool reports it.
    #[arg(long, value_name = "P", default_value = "0", value_parser = values::probability)]
    drop: f64,
    /// Broker to use instead of the queues of the stand-in. Both tools purge the queues of --prefix at each start.
    #[arg(long, value_name = "URL")]
    broker: Option<String>,
    /// Prefix of the queue names.
    #[arg(long, value_name = "TEXT", default_value = "mailrun.compare")]
    prefix: String,
    /// User at the broker.
    #[arg(long, value_name = "NAME", default_value = "endpoint", requires = "broker")]
    user: String,
    /// File with the password of the user in its first line [default: the environment variable MAILRUN_PASSWORD].
    /// go-mades-bench takes the password on its command line, where it is visible in the process list.
    #[arg(long, value_name = "FILE", requires = "broker")]
    password_file: Option<PathBuf>,
    /// Trust the certificates in this PEM file; go-mades-bench trusts any.
    #[arg(long, value_name = "FILE", requires = "broker")]
    cacert: Option<PathBuf>,
    #[command(flatten)]
    no_thresholds: NoThresholds,
    /// Allow public addresses. Use it only with a broker of your own.
    #[arg(long, env = "MAILRUN_ALLOW_PUBLIC", value_parser = clap::builder::FalseyValueParser::new(), hide_env = true)]
    allow_public: bool,
    #[command(flatten)]
    pub(super) tables: TablesTyped,
}

/// What the messages go through, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WayTyped {
    /// The broker only: into a queue and out of it
    Amqp,
    /// An ECP endpoint
    Endpoint,
    /// An EDX toolbox
    Toolbox,
    /// An ECP endpoint's connectivity test
    Tracing,
}

impl From<WayTyped> for Way {
    fn from(typed: WayTyped) -> Self {
        match typed {
            WayTyped::Amqp => Self::Amqp,
            WayTyped::Endpoint => Self::Endpoint,
            WayTyped::Toolbox => Self::Toolbox,
            WayTyped::Tracing => Self::Tracing,
        }
    }
}

fn window(text: &str) -> Result<Window, String> {
    match text {
        "defaults" => Ok(Window::Defaults),
        number => values::sessions(number).map(Window::Same),
    }
}

impl CompareTyped {
    pub(super) fn run(self) -> Result<Sheet> {
        if self.drop > 0.0 && self.mode == WayTyped::Amqp {
            bail!("--drop has no effect in mode amqp, which has no stand-in; add --mode endpoint");
        }
        if let Some(broker) = self.broker.as_deref().filter(|_| !self.allow_public) {
            stay_at_home(&url("--broker", broker, None, None)?)?;
        }
        let live = self.tables.live();
        let broker = self.broker()?;
        let Self { mode, messages, payload_size, rounds, windows, max_in_transit, max_time, drop, prefix, .. } = self;
        mades_compare::run(&CompareOptions {
            way: mode.into(),
            messages,
            message_bytes: payload_size,
            rounds,
            windows,
            max_in_transit,
            broker,
            prefix,
            drop,
            max_time,
            live,
        })
    }

    /// The broker that was named, and how both log in to it.
    fn broker(&self) -> Result<Option<Broker>> {
        let Some(url) = self.broker.clone() else { return Ok(None) };
        let secret = password(self.password_file.as_deref())?.or(exported(PASSWORD_VARIABLE)?);
        let password = secret.map_or_else(|| USUAL_PASSWORD.to_owned(), |secret| secret.reveal().to_owned());
        Ok(Some(Broker { url, user: self.user.clone(), password, cacert: self.cacert.clone() }))
    }
}
