pub(crate) mod queue;
pub(crate) mod spool;

use super::options::party_outputs::DialogueArgs;
use crate::options::cpus::{BusyPollArg, CpusArg};
use crate::options::keep_awake::KeepAwakeArg;
use crate::options::values;
use crate::report::results::StdoutUse;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use mailrun_process::live::LiveMode;
use mailrun_process::log_writer::LogWriter;
use mailrun_relay::config::{
    Config, ConfigError, ConfigErrors, DEFAULT_LISTEN, DeliveryScope, DurabilityLevel, LogLevel,
};
use mailrun_relay::{ConfigLoader, RelayOptions};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Registry;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::Handle;
use tracing_subscriber::util::SubscriberInitExt;

/// Stores mail on disk and forwards it until it is delivered or bounced
///
/// By default, the relay answers 250 only when the message is on disk. The relay runs until Ctrl-C or SIGTERM. On
/// SIGHUP, it reads FILE again.
#[derive(Clone, Debug, Args)]
#[command(after_help = manual(), override_usage = USAGE)]
pub(crate) struct RelayArgs {
    /// Next hop of all mail: HOST[:PORT] (default port 25), smtp://, smtps:// or lmtp://HOST[:PORT], lmtp:unix:PATH, or
    /// discard.
    #[arg(
        long,
        value_name = "WHERE",
        conflicts_with = "config",
        requires = "spool",
        help = "Next hop: HOST[:PORT], lmtp://HOST, discard",
        help_heading = CONFIGURATION
    )]
    to: Option<String>,
    /// Directory that stores the messages, readable by this user only (mode 0700).
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with = "config",
        requires = "to",
        help = "Directory that stores the messages",
        help_heading = CONFIGURATION
    )]
    spool: Option<PathBuf>,
    /// Address to listen on; port 0 picks a free port, unix:PATH makes a unix-domain socket [default: 127.0.0.1:2525].
    #[arg(
        long,
        value_name = "HOST:PORT",
        conflicts_with = "config",
        help = "Address to listen on [default: 127.0.0.1:2525]",
        help_heading = CONFIGURATION
    )]
    listen: Option<String>,
    /// Configuration file (TOML): listeners, networks, routes, aliases, limits. All keys are shown below.
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present_any = ["to", "spool"],
        help = "Configuration file (TOML)",
        help_heading = CONFIGURATION
    )]
    config: Option<PathBuf>,
    /// Check FILE and exit. Errors are printed as FILE:LINE:COLUMN. The exit status is 2 if there are errors, otherwise
    /// 0.
    #[arg(long, requires = "config", help = "Check FILE, print its errors, and exit", help_heading = CONFIGURATION)]
    check: bool,
    /// When the relay answers 250 to a message [default: sync].
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        hide_short_help = true,
        help_heading = STORAGE
    )]
    durability: Option<DurabilityLevel>,
    /// Do not start if the spool is damaged: report the damage, change nothing, and exit.
    #[arg(long, hide_short_help = true, help_heading = STORAGE)]
    refuse_damage: bool,
    /// Worker threads [default: half of the processors].
    #[arg(long, value_name = "N", value_parser = values::workers, hide_short_help = true)]
    workers: Option<usize>,
    #[command(flatten)]
    busy_poll: BusyPollArg,
    #[command(flatten)]
    cpus: CpusArg,
    #[command(flatten)]
    keep_awake: KeepAwakeArg,
    #[command(flatten)]
    dialogue: DialogueArgs,
    /// Allow delivery to public addresses. The environment variable MAILRUN_ALLOW_PUBLIC=1 does the same.
    #[arg(
        long,
        env = "MAILRUN_ALLOW_PUBLIC",
        value_parser = clap::builder::FalseyValueParser::new(),
        hide_env = true,
        help = "Allow delivery to public addresses"
    )]
    allow_public: bool,
    /// Address of the HTTP interface, which serves /metrics, /health and /ready.
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_parser = values::tcp_address,
        help = "Serve /metrics, /health and /ready",
        help_heading = OBSERVATION
    )]
    http: Option<SocketAddr>,
    /// Control socket for `mailrun queue` [default: control.sock in the spool directory].
    #[arg(long, value_name = "PATH", hide_short_help = true, help_heading = OBSERVATION)]
    control: Option<PathBuf>,
    /// Write the run record (mailrun-run/1) to FILE at the end. With -, the record goes to standard output, and the
    /// summary to standard error.
    #[arg(long, value_name = "FILE", hide_short_help = true, help_heading = OBSERVATION)]
    json: Option<PathBuf>,
    /// Minimum severity of logged messages; info logs each delivery [default: warn; with --config: info].
    #[arg(
        long,
        value_enum,
        value_name = "LEVEL",
        hide_short_help = true,
        help_heading = OBSERVATION
    )]
    log: Option<LogLevel>,
    /// Log each delivery: the same as --log info.
    #[arg(short, long, conflicts_with_all = ["log", "quiet"], help = "Log each delivery", help_heading = OBSERVATION)]
    verbose: bool,
    /// Print and log errors only: the same as --log error, without the progress line and the summary.
    #[arg(short, long, conflicts_with = "log", help = "Print errors only", help_heading = OBSERVATION)]
    quiet: bool,
    /// Progress: a line on a terminal, JSON lines on standard output, or nothing.
    #[arg(long, value_enum, value_name = "HOW", default_value = "line", hide = true)]
    live: LiveMode,
}

const CONFIGURATION: &str = "Configuration";
const STORAGE: &str = "Storage";
const OBSERVATION: &str = "Log and metrics";

const USAGE: &str = "mailrun relay [OPTIONS] --to <WHERE> --spool <DIR>
       mailrun relay [OPTIONS] --config <FILE>";

const EXAMPLES: &str = "\
Examples:
  mailrun relay --to 127.0.0.1:2526 --spool /var/lib/mailrun
  mailrun relay --to lmtp:unix:/run/lmtp.sock --spool DIR --http 127.0.0.1:8025
  mailrun relay --to discard --spool DIR --durability write -v
  mailrun relay --config relay.toml
  mailrun relay --config relay.toml --check

A small FILE; it works as it is:

";
const KEYS: &str = "
Only spool.directory is required. All keys:

";
const RULES: &str = "
Lines of the alias file: NAME: TARGET, TARGET...
  sales: ann, bob@elsewhere.example        for all local domains
  sales@b.example: ann                     for this domain only
  nobody: .                                accepted and discarded
  ann: ann, keeper                         to ann, with a copy to keeper

Access: everyone may send to existing mailboxes and aliases in local domains
(others: 550 5.1.1). Only clients in `networks` and authenticated clients may
send to other domains (others: 554 5.7.1).

Exit status:
  0  stopped by Ctrl-C or SIGTERM, or --check found no fault
  2  it could not start or go on, or the configuration has a fault";

fn manual() -> String {
    [EXAMPLES, mailrun_relay::config::MINIMAL, KEYS, mailrun_relay::config::EXAMPLE, RULES].concat()
}

/// Runs the relay or, with `--check`, only checks the configuration file.
pub(crate) fn run(typed: &RelayArgs) -> Result<ExitCode> {
    if typed.check
        && let Some(file) = &typed.config
    {
        let outcome = Config::check(file, typed.reach(), &mailrun_relay::can_store_in);
        let (text, is_good) = check_result(&outcome);
        crate::report::messages::say(&format!("{text}\n"))?;
        return Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::from(2) });
    }
    typed.cpus.place()?;
    let live = typed.live();
    let stdout = StdoutUse::of(live, typed.json.as_deref())?;
    let dialogue = typed.dialogue.clone().options(stdout)?;
    let config = typed.config()?;
    let _awake = typed.keep_awake.begin(false)?;
    let (level, changes) = tracing_subscriber::reload::Layer::new(level_filter(config.log));
    let log = LogWriter::to_stderr().context("cannot start the log")?;
    log.report_panics();
    let lines = tracing_subscriber::fmt::layer().with_writer(log.clone()).with_ansi(false);
    tracing_subscriber::registry().with(level).with(lines).init();
    crate::options::party_outputs::exit_with_parent(live);
    let reread = reload(typed, changes);
    let orders = RelayOptions { reread, json: typed.json.clone(), live, log: log.clone(), dialogue };
    // Write through the log's writer, because a direct write would block if the reader of standard error has stopped
    // reading. Write each line on its own, because the writer would escape line feeds inside a text.
    let write_log = |text: &str| text.lines().for_each(|line| log.write_line(line.as_bytes()));
    let code = match mailrun_relay::run(config, orders) {
        Ok(done) => {
            match stdout {
                _ if typed.quiet => {}
                StdoutUse::Text => crate::report::messages::say(&summary(&done))?,
                StdoutUse::Record => write_log(&summary(&done)),
                StdoutUse::Events => {}
            }
            match done.record_error {
                None => ExitCode::SUCCESS,
                Some(error) => {
                    write_log(&crate::report::messages::failure(&error));
                    ExitCode::from(2)
                }
            }
        }
        Err(error) => {
            write_log(&crate::report::messages::failure(&error));
            ExitCode::from(2)
        }
    };
    log.flush();
    Ok(code)
}

/// Returns a function that reads the configuration again and applies the new log level. The relay calls it on SIGHUP.
/// Returns `None` without a configuration file.
fn reload(typed: &RelayArgs, level: Handle<LevelFilter, Registry>) -> Option<ConfigLoader> {
    typed.config.as_ref()?;
    let typed = typed.clone();
    Some(Box::new(move || {
        let config = typed.config()?;
        level.reload(level_filter(config.log))?;
        Ok(config)
    }))
}

pub(crate) fn summary(done: &mailrun_relay::RelayOutcome) -> String {
    let mut text = String::new();
    for (name, meaning, value) in done.rows() {
        let _ = writeln!(text, "{value:>12}  {name:<20} {meaning}");
    }
    text
}

fn level_filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    }
}

impl RelayArgs {
    fn reach(&self) -> DeliveryScope {
        if self.allow_public { DeliveryScope::Anywhere } else { DeliveryScope::Local }
    }

    /// Returns how the relay shows its progress. `--quiet` turns off the progress line, but not the JSON lines that a
    /// bench reads.
    fn live(&self) -> LiveMode {
        match self.live {
            LiveMode::Line if self.quiet => LiveMode::Off,
            live => live,
        }
    }

    /// Builds the configuration from the file or from the options `--to`, `--spool` and `--listen`. The remaining
    /// options, such as `--durability` and `--http`, override the file.
    ///
    /// # Errors
    ///
    /// Fails if the configuration is wrong. The error names all problems, one per line.
    pub(crate) fn config(&self) -> Result<Config> {
        let reach = self.reach();
        let mut config = match (&self.config, &self.to, &self.spool) {
            (Some(file), ..) => Config::read_within(file, reach)?,
            (None, Some(to), Some(spool)) => {
                let listen = self.listen.as_deref().unwrap_or(DEFAULT_LISTEN);
                Config::from_flags(listen, to, spool, reach).map_err(|what| anyhow!(what))?
            }
            _ => bail!("no configuration: give --config FILE, or --to HOST:PORT and --spool DIR"),
        };
        config.spool.durability = self.durability.unwrap_or(config.spool.durability);
        config.spool.refuse_damage |= self.refuse_damage;
        config.log = match (self.log, &self.config) {
            _ if self.quiet => LogLevel::Error,
            _ if self.verbose => LogLevel::Info,
            (Some(log), _) => log,
            (None, Some(_)) => config.log,
            // Without a configuration file, log only warnings, because the user did not ask for a log of deliveries.
            (None, None) => LogLevel::Warn,
        };
        config.workers = self.workers.or(config.workers).or(self.cpus.workers());
        config.busy_poll = self.busy_poll.value();
        config.http = self.http.or(config.http);
        config.control = self.control.clone().unwrap_or(config.control);
        Ok(config)
    }
}

/// Returns the text that `--check` prints, and true if the file is valid.
pub(crate) fn check_result(outcome: &Result<Config, ConfigErrors>) -> (String, bool) {
    match outcome {
        Err(complaints) => {
            let many = complaints.errors.len();
            let noun = if many == 1 { "error" } else { "errors" };
            let ConfigError { line, .. } = &complaints.errors[0];
            (format!("{complaints}\n{many} {noun}, the first in line {line}"), false)
        }
        Ok(config) => {
            let listeners: Vec<String> = config.listeners().map(ToString::to_string).collect();
            let aliases = config.router.aliases();
            let bounds = format!(
                "at most {} bytes of incoming mail, {} bytes of queued mail in memory, {} bytes of spool",
                config.limits.incoming_bytes, config.spool.memory_bytes, config.spool.max_bytes
            );
            let warnings: String = config.warnings().iter().map(|warning| format!("warning: {warning}\n")).collect();
            let listeners = listeners.join(", ");
            (format!("{warnings}configuration OK: listens on {listeners}, {aliases} aliases; {bounds}"), true)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::fs;

    #[derive(Debug, Parser)]
    struct RelayTestCli {
        #[command(flatten)]
        typed: RelayArgs,
    }

    fn parse(words: &[&str]) -> Result<RelayArgs, clap::Error> {
        RelayTestCli::try_parse_from([&["relay"], words].concat()).map(|line| line.typed)
    }

    #[test]
    fn three_flags_make_a_relay() {
        let words = ["--listen", "127.0.0.1:0", "--to", "127.0.0.1:2526", "--spool", "/tmp/s", "--durability", "write"];
        let config = parse(&words).unwrap().config().unwrap();
        assert_eq!(config.spool.durability, DurabilityLevel::Write);
        assert_eq!((config.spool.directory, config.control), ("/tmp/s".into(), "/tmp/s/control.sock".into()));
        assert_eq!((config.listen[0].to_string(), config.log), ("127.0.0.1:0".to_owned(), LogLevel::Warn));
        let public = ["--to", "8.8.8.8:25", "--spool", "/tmp/s"];
        let error = parse(&public).unwrap().config().unwrap_err().to_string();
        assert!(error.contains("public") && error.contains("--allow-public"), "{error}");
        assert!(parse(&[&public[..], &["--allow-public"]].concat()).unwrap().config().is_ok());
    }

    #[test]
    fn flags_change_what_a_file_says() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("relay.toml");
        fs::write(&path, "workers = 7\nspool.directory = 's'\n").unwrap();
        let file = path.to_str().unwrap();
        let config = parse(&["--config", file]).unwrap().config().unwrap();
        assert_eq!((config.workers, config.spool.directory), (Some(7), place.path().join("s")));
        assert_eq!(config.log, LogLevel::Info);
        assert_eq!(parse(&["--config", file, "--log", "error"]).unwrap().config().unwrap().log, LogLevel::Error);
        let words =
            ["--config", file, "--workers", "3", "--http", "127.0.0.1:0", "--control", "/c", "--json", "r.json"];
        let typed_words = parse(&words).unwrap();
        assert_eq!(typed_words.json, Some("r.json".into()));
        let config = typed_words.config().unwrap();
        assert_eq!((config.workers, config.control), (Some(3), "/c".into()));
        assert!(config.http.is_some() && parse(&["--config", file, "--check"]).unwrap().check);
        let (text, holds) = check_result(&Config::read_within(&path, DeliveryScope::Local));
        assert!(holds && text.contains("134217728 bytes of incoming mail"), "{text}");
    }

    #[test]
    fn allow_public_on_the_command_line_holds_for_the_file() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("relay.toml");
        fs::write(&path, "spool.directory = 's'\n[[route]]\nto = '*'\nsmtp = '8.8.8.8:25'\n").unwrap();
        let file = path.to_str().unwrap();
        let error = parse(&["--config", file]).unwrap().config().unwrap_err().to_string();
        assert!(error.contains("relay.toml:4:8: 8.8.8.8 is a public address"), "{error}");
        let config = parse(&["--config", file, "--allow-public"]).unwrap().config().unwrap();
        assert_eq!(config.delivery_scope, DeliveryScope::Anywhere);
        let (text, holds) = check_result(&Config::read_within(&path, DeliveryScope::Local));
        assert!(!holds && text.ends_with("1 error, the first in line 4"), "{text}");
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for words in [
            &[][..],
            &["--to", "127.0.0.1:1"],
            &["--spool", "s"],
            &["--check"],
            &["--config", "f", "--to", "127.0.0.1:1", "--spool", "s"],
            &["--config", "f", "--durability", "never"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
