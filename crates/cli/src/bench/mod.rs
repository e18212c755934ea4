pub(crate) mod files;
pub(crate) mod load_file;
pub(crate) mod profiles;
pub(crate) mod relays;
pub(crate) mod scenarios;

use super::options;
use crate::options::connection::ConnectionArgs;
use crate::options::cpus::{PlacementArgs, ThreadArgs};
use crate::options::keep_awake::KeepAwakeArg;
use crate::options::server::ServerArg;
use crate::options::{rare, values};
use crate::report::results::{ReportArgs, Strictness};
use crate::sink::SinkFaultArgs;
use crate::sink::mailboxes::MailboxArgs;
use crate::source::shard::{self, ShardArgs};
use crate::source::{LoadArgs, load_options};
use anyhow::{Result, anyhow, bail};
use clap::Args;
use mailrun_bench::relay::{ListenerOptions, Relay};
use mailrun_bench::{BenchOptions, BenchTarget, SyscallCounting, TrustedCertificate, is_toml_file, recipe};
use mailrun_load::source::{self, AllowedTargets};
use mailrun_measurement::RunId;
use mailrun_process::live::LiveMode;
use mailrun_process::party_options::TypedOptions;
use mailrun_text::words::is_misspelling;
use relays::BenchRelayArgs;
use scenarios::ScenarioCommand;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Measures a mail server, or without a server demonstrates mailrun's own relay, and prints a report
///
/// With SERVER: sends 400-byte messages to it over 100 sessions for ten seconds, with a new connection for each
/// message. Their delivery is checked only if the server delivers to a mailrun sink (--sink or --sink-listen).
///
/// Without SERVER: a demonstration on this host. Starts a sink and mailrun's durable relay on free ports, and sends
/// through them for eight seconds.
///
/// Writes run.json, report.md, report.html and interval logs to mailrun-results/TIME-NAME/; the bench's own relay
/// stores its mail there during the run.
#[derive(Debug, Args)]
#[command(after_help = rare::help("", EXAMPLES), args_conflicts_with_subcommands = true, mut_args(conflicting_with_list),
          disable_help_subcommand = true, subcommand_value_name = "SCENARIO", subcommand_help_heading = "Scenarios",
          mut_args(rare::hide),
          override_usage = "mailrun bench [OPTIONS] [SERVER]\n       mailrun bench <SCENARIO> [OPTIONS]\n       mailrun bench <FILE.toml> [OPTIONS]")]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    typed: TypedOptions,
    #[command(subcommand)]
    scenario: Option<ScenarioCommand>,
    /// List the built-in scenarios.
    #[arg(long)]
    list: bool,
    /// Server to measure: HOST, HOST:PORT, smtp://HOST, smtps://HOST (TLS before the greeting), lmtp://HOST or
    /// unix:PATH. The default port is 25.
    #[arg(value_name = "SERVER", value_parser = server)]
    server: Option<ServerArg>,
    /// HTTP address of the mailrun sink that SERVER delivers to, to check that every message arrives. With --shard, the
    /// sinks only serve to compare their clocks with the clock of this host.
    #[arg(long, value_name = "http://HOST:PORT", requires = "server", conflicts_with = "sink_listen")]
    sink: Vec<String>,
    /// HTTP address of a second mailrun sink, to which SERVER delivers bounces (the notifications to --from). Without
    /// this option, bounces count only if SERVER delivers them to the same sink as the mail.
    #[arg(long, value_name = "http://HOST:PORT", requires = "server", hide_short_help = true)]
    bounces_to: Option<String>,
    /// Stop waiting for accepted mail if none arrives for this long. If SERVER defers mail, this time must be longer
    /// than SERVER's wait before its first retry [default: 10s, 2s without a relay].
    #[arg(long, value_name = "TIME", value_parser = values::some_duration, hide_short_help = true)]
    lost_after: Option<Duration>,
    #[command(flatten)]
    relay: BenchRelayArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    shard: ShardArgs,
    #[command(flatten)]
    keep_awake: KeepAwakeArg,
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    approach: ConnectionArgs,
    #[command(flatten)]
    faults: SinkFaultArgs,
    #[command(flatten)]
    mailboxes: MailboxArgs,
    #[command(flatten)]
    report: ReportArgs,
    /// Run directory, instead of a new one in mailrun-results.
    #[arg(long, value_name = "DIR", value_parser = values::directory, help_heading = "Results")]
    out: Option<PathBuf>,
    /// Name of the run in reports.
    #[arg(long, value_name = "NAME", default_value = "bench", help_heading = "Results")]
    label: String,
    /// Run id, 32 hexadecimal digits, in the trace header of each message [default: random; with --shard a hash of the
    /// plan and --start-at].
    #[arg(long, value_name = "HEX", help_heading = "Results", hide_short_help = true)]
    run_id: Option<RunId>,
    /// Write these options to FILE.toml instead of running them; mailrun bench FILE.toml runs them.
    #[arg(long, value_name = "FILE.toml", help_heading = "Results", hide_short_help = true)]
    write_file: Option<PathBuf>,
    /// Allow a server at a public address. Use it only with a server of your own.
    #[arg(long, env = "MAILRUN_ALLOW_PUBLIC", value_parser = clap::builder::FalseyValueParser::new(), hide_env = true,
          help_heading = "Connection")]
    allow_public: bool,
}

pub(crate) fn options() -> clap::Command {
    BenchArgs::augment_args(clap::Command::new("mailrun"))
}

/// Makes every argument except `--allow-public` conflict with `--list`. An environment variable may set
/// `--allow-public`, and `--list` must work even then.
fn conflicting_with_list(argument: clap::Arg) -> clap::Arg {
    match argument.get_id().as_str() {
        "list" | "allow_public" => argument,
        _ => argument.conflicts_with("list"),
    }
}

const EXAMPLES: &str = "\
Examples:
  mailrun bench
  mailrun bench mx.example --to ann@mx.example
  mailrun bench 127.0.0.1:25 --sink http://127.0.0.1:8025
  mailrun bench 127.0.0.1:25 --sink-listen 127.0.0.1:2526
  mailrun bench mx.example --to 'user{0..99}@mx.example' --mailbox 'imaps://user{0..99}@mx.example'
  mailrun bench smtps://mx.example --user ann --password-file password
  mailrun bench 127.0.0.1:25 --threshold 'accepted.p99 < 50ms'
  mailrun bench 127.0.0.1:25 --json - --report none | jq .verdict
  mailrun bench --messages 200k --sessions 100 --reuse --out D
  mailrun bench --relay none           without a relay: the limit of this host
  mailrun bench --relay postfix        through a private Postfix (as root)
  mailrun bench --fault 'drop 0.1%'    checks that mailrun detects losses
  mailrun bench --rate 2000 --duration 30s --arrival poisson
  mailrun bench mx.example --dsn-notify never
  mailrun bench --tls starttls --reuse 10 --pipelining stream
  mailrun bench mx.example --shard 0/3 --start-at 2026-11-23T12:00:00Z
  mailrun bench relay-400 --compare mailrun,postfix
  mailrun bench relay-latency          see also backlog and relay-soak
  mailrun bench --rate 200 --threshold 'accepted.p99 < 50ms' --write-file load.toml
  mailrun bench --list                 the scenarios; of your own: mailrun bench FILE.toml
  mailrun bench smtp-source-table      smtp-source, go-smtp-source and mailrun
  mailrun bench mades                  MADES, with a stand-in for the endpoints
  mailrun bench mades-compare          go-mades-bench and mailrun mades";

/// Parses SERVER, but refuses the name of a scenario. The name of a scenario must come before all options. After an
/// option, it would be taken for SERVER and looked up as a host.
fn server(text: &str) -> Result<ServerArg, String> {
    if is_scenario(text) || is_toml_file(text) {
        return Err(format!("options of {text} must follow it: write mailrun bench {text} first"));
    }
    ServerArg::parse(text)
}

pub(crate) fn is_scenario(word: &str) -> bool {
    scenarios::names().any(|name| name == word)
}

/// Looks up the server's name, so that a wrong name is reported before anything is started. The error suggests a
/// scenario or recipe with a similar name.
fn check_server(server: &ServerArg, reach: AllowedTargets) -> Result<()> {
    source::look_up(server.address(), reach).map(drop).map_err(|error| {
        let host = server.address().rsplit_once(':').map_or("", |(host, _)| host);
        let is_recipe = host == "mailrun" || recipe::names().any(|name| name == host);
        match scenarios::names().find(|name| is_misspelling(host, name)) {
            _ if is_recipe => anyhow!("{error:#}; a server that mailrun starts is --relay {host}"),
            Some(name) => anyhow!("{error:#}; did you mean the scenario {name:?}?"),
            None => error,
        }
    })
}

impl BenchArgs {
    /// Builds the arguments of `bench` for the trials of a capacity search. Arguments that are not parameters of this
    /// function stay unset.
    pub(crate) fn of_trials(
        server: Option<ServerArg>,
        sink: Option<String>,
        relay: BenchRelayArgs,
        (load, typed): (LoadArgs, TypedOptions),
        approach: ConnectionArgs,
        (label, out): (String, Option<PathBuf>),
        allow_public: bool,
    ) -> Self {
        Self {
            typed,
            scenario: None,
            list: false,
            server,
            sink: sink.into_iter().collect(),
            bounces_to: None,
            lost_after: None,
            relay,
            load,
            shard: ShardArgs::default(),
            keep_awake: KeepAwakeArg::default(),
            placement: PlacementArgs::default(),
            approach,
            faults: SinkFaultArgs::default(),
            mailboxes: MailboxArgs::default(),
            report: ReportArgs::default(),
            out,
            label,
            run_id: None,
            write_file: None,
            allow_public,
        }
    }

    /// Returns the options of the trials of a capacity search, except for rate, length and directory. The search sets
    /// these for each trial.
    ///
    /// # Errors
    ///
    /// Returns an error if an option has no effect, or if the server's name is unknown.
    pub(crate) fn trial_options(self, live: LiveMode) -> Result<BenchOptions> {
        self.check()?;
        Ok(BenchOptions { live, ..self.options()? })
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        if let Some(scenario) = self.scenario {
            return scenario.run();
        }
        if self.list {
            crate::report::messages::say(&scenarios::list_text())?;
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(text) = self.faults.list_text() {
            crate::report::messages::say(text.trim_end())?;
            return Ok(ExitCode::SUCCESS);
        }
        self.check()?;
        if let Some(path) = &self.write_file {
            return load_file::write(path, self.server.as_ref(), &self.typed.of::<Self>());
        }
        let report = self.report.clone();
        let strictness = Strictness::of(self.load.is_strict());
        let announced = self.shard.clone();
        let keep_awake = self.keep_awake;
        let reuse = self.load.session.reuse();
        let options = self.options()?;
        report.open(LiveMode::Line)?;
        let _awake = keep_awake.begin_load(!options.target.has_server_here(), &options.workload, reuse.as_ref())?;
        announced.announce();
        options::announce_load(options.live, &options.workload);
        let outcome = mailrun_bench::run(options)?;
        report.finish(&outcome.record, Some(&outcome.directory))?;
        outcome.unwritten.map_or_else(|| Ok(super::report::results::exit_code(&outcome.record, strictness)), Err)
    }

    /// Refuses options that have no effect, such as faults of the bench's own sink if the bench starts no sink.
    fn check(&self) -> Result<()> {
        self.check_mailboxes()?;
        self.check_mailboxes_of_relay()?;
        let has_own_sink = self.server.is_none() || self.relay.has_own_sink() || self.mailboxes.is_used();
        if let Some(fault) = self.typed.of::<SinkFaultArgs>().names().next().filter(|_| !has_own_sink) {
            bail!("--{fault} applies to the bench's own sink; give it to the sink that you start");
        }
        let has_own_relay = self.server.is_none() && self.relay.named_relay() != Some(Relay::None);
        self.placement.check(has_own_sink, has_own_relay)?;
        if self.shard.is_part() {
            self.check_shard()?;
        } else if self.sink.len() > 1 {
            bail!("only one --sink without --shard: add --shard 0/1, and name all of them to mailrun merge --sink");
        }
        if self.server.is_none() && self.load.asked.preflight() == source::Preflight::Off {
            bail!("--no-preflight requires a server: the bench's own is not tried first");
        }
        if !self.load.has_trace() && (has_own_sink || !self.sink.is_empty()) {
            bail!("--no-trace cannot be used with a sink: without the trace header no delivery can be checked");
        }
        Ok(())
    }

    /// Refuses `--mailbox` without a server that delivers to the mailboxes, and together with another sink or with
    /// faults of a sink. Also checks the mailboxes' URLs and password files.
    fn check_mailboxes(&self) -> Result<()> {
        if !self.mailboxes.is_used() {
            return Ok(());
        }
        if self.server.is_none() {
            bail!("--mailbox requires the server that delivers to it: mailrun bench HOST:PORT --mailbox URL");
        }
        if !self.sink.is_empty() || self.relay.has_own_sink() {
            bail!("--mailbox cannot be used with --sink or --sink-listen: the mailboxes are the sink");
        }
        if self.typed.of::<SinkFaultArgs>().names().next().is_some() {
            bail!("--fault, --rules and --rules-like need a sink that listens, and cannot be used with --mailbox");
        }
        // Check URLs and password files now, so that a mistake in them is reported before the sink is started.
        let run = self.run_id.unwrap_or(RunId([0; 16]));
        self.mailboxes.options(Some(run), self.reach()).map(drop)
    }

    /// Refuses options for mailboxes if there are no mailboxes. If the bench's relay delivers to mailboxes, refuses
    /// options that need a listening sink. Also refuses `--to`, because the relay's recipe names the mailboxes.
    fn check_mailboxes_of_relay(&self) -> Result<()> {
        let relay = self.relay.named_relay().filter(Relay::has_mailboxes);
        match (relay, self.mailboxes.way_of_watching()) {
            (None, Some(option)) if !self.mailboxes.is_used() => {
                bail!("{option} requires mailboxes: --mailbox URL, or a --relay that has some, such as dovecot")
            }
            (Some(relay), _) if self.typed.of::<SinkFaultArgs>().names().next().is_some() => {
                bail!("--fault, --rules and --rules-like need a sink that listens, and {relay} delivers to mailboxes")
            }
            (Some(relay), _) if load_options(&self.typed).has("to") => {
                bail!(
                    "--to cannot be used with --relay {relay}: its recipe says who has a mailbox (mailrun recipe show)"
                )
            }
            _ => Ok(()),
        }
    }

    fn reach(&self) -> AllowedTargets {
        if self.allow_public { AllowedTargets::Public } else { AllowedTargets::Local }
    }

    /// Refuses `--shard` if the bench starts the server or the sink itself. All parts of a load must send to the same
    /// server, so none of them may start its own.
    fn check_shard(&self) -> Result<()> {
        if self.server.is_none() {
            bail!("--shard requires a server: mailrun bench HOST:PORT --shard I/N");
        }
        if self.mailboxes.is_used() {
            bail!(
                "--mailbox cannot be used with --shard: start a mailrun sink --mailbox, and name it to mailrun merge --sink"
            );
        }
        if self.relay.has_own_sink() {
            bail!(
                "--sink-listen cannot be used with --shard: start a mailrun sink, and name it to mailrun merge --sink"
            );
        }
        Ok(())
    }

    /// Returns the options of the source's connections, including TLS or LMTP if SERVER is a URL that implies them.
    /// Fails if the server's name cannot be looked up, or if an option contradicts the URL.
    fn connection_args(&self) -> Result<ConnectionArgs> {
        let Some(server) = &self.server else { return Ok(self.approach.clone()) };
        check_server(server, self.reach())?;
        self.approach.for_server(server)
    }

    fn options(self) -> Result<BenchOptions> {
        let workload = self.load.workload()?;
        let approach = self.connection_args()?;
        // Check the connection options now, so that a mistake in them is reported before the source is started.
        approach.options()?;
        let target = self.target(&approach)?;
        if self.bounces_to.is_some() && self.sink.is_empty() && !self.relay.has_own_sink() {
            bail!("--bounces-to names a second sink: name that of the mail with --sink or --sink-listen");
        }
        if let Some(server) = &self.server {
            self.load.warn_of_bounces(server.address());
        }
        // Pass the source's connection options to the sink only if the source sends directly to the sink.
        let is_direct = target == BenchTarget::OwnSink;
        let sink_options = self.typed.of::<SinkFaultArgs>();
        let sink_options = if is_direct { sink_options.and(approach.sink_options()) } else { sink_options };
        let has_mailboxes = self.mailboxes.is_used();
        let sink_options =
            sink_options.and(self.typed.of::<MailboxArgs>()).flag("allow-public", has_mailboxes && self.allow_public);
        let has_own_relay = matches!(target, BenchTarget::Relay(Relay::Mailrun(_)));
        let source_options = load_options(&self.typed).and(self.typed.of::<ShardArgs>()).and(approach.of_url());
        let address = self.server.as_ref().map_or("", ServerArg::address);
        let part = self.shard.part(self.load.whole(&self.typed, &approach, address))?;
        Ok(BenchOptions {
            name: self.label,
            out: self.out,
            run: self.run_id.or_else(|| part.as_ref().map(shard::run_id)),
            workload,
            source_options: source_options
                .flag("allow-public", self.allow_public)
                .flag("auto-submitted", has_mailboxes),
            party_options: self.typed.of::<ThreadArgs>(),
            sink_options,
            syscall_counting: SyscallCounting::Off,
            server_cores: None,
            placement: self.placement.placement(&target, self.load.session.threads.workers),
            target,
            trusted: match approach.needs_trust() {
                true if is_direct => TrustedCertificate::OwnSink,
                true if has_own_relay => TrustedCertificate::OwnRelay,
                _ => TrustedCertificate::Configured,
            },
            listener: if has_own_relay { approach.listener()? } else { ListenerOptions::default() },
            thresholds: self.load.asked.thresholds.clone(),
            preflight: match self.load.asked.preflight() {
                source::Preflight::On => mailrun_bench::BenchPreflight::On,
                source::Preflight::Off => mailrun_bench::BenchPreflight::Off,
            },
            clock_sinks: if part.is_some() { self.sink } else { Vec::new() },
            lost_after: self.lost_after,
            bounces_to: self.bounces_to.filter(|_| part.is_none()),
            live: self.report.live(LiveMode::Line),
            title: None,
            command: mailrun_process::outputs::command_line(),
        })
    }

    fn target(&self, approach: &ConnectionArgs) -> Result<BenchTarget> {
        let Some(server) = &self.server else { return Ok(BenchTarget::of(self.chosen_relay(approach)?)) };
        if self.mailboxes.is_used() {
            let address = server.address().to_owned();
            return Ok(BenchTarget::Relay(Relay::Running { address, sink: String::new() }));
        }
        Ok(match self.relay.running(server) {
            Some(running) => BenchTarget::Relay(running),
            None => BenchTarget::Server { address: server.address().to_owned(), sink: self.delivery_sink() },
        })
    }

    /// Returns the sink from which this bench learns what was delivered. Returns `None` with `--shard`, because
    /// `mailrun merge` asks the sinks later, and the bench uses them only to compare clocks.
    fn delivery_sink(&self) -> Option<String> {
        self.sink.first().filter(|_| !self.shard.is_part()).cloned()
    }

    /// Returns the relay that runs between the bench's source and sink. Fails if the relay does not support the options
    /// of the connection.
    fn chosen_relay(&self, approach: &ConnectionArgs) -> Result<Relay> {
        let relay = self.relay.named_relay().unwrap_or_else(relays::default_relay);
        let needed = approach.negotiated_option();
        match (&relay, needed) {
            (Relay::None, _) | (_, None) => Ok(relay),
            (Relay::Mailrun(_), Some(_)) => match approach.unsupported_by_relay() {
                None => Ok(relay),
                Some(what) => bail!("{what}; add --relay none, or name a server: mailrun bench HOST:PORT"),
            },
            (_, Some(option)) => bail!(
                "{option} cannot be used with the {relay} that bench starts; add --relay none, or start a server and \
                 name it: mailrun bench HOST:PORT"
            ),
        }
    }
}
