//! `mailrun bench`: what was typed, to what it means.
use super::Strictness;
use super::approach::ApproachTyped;
use super::relays::{self, RelayTyped};
use super::results::ReportTyped;
use super::scenarios::Scenario;
use super::sink::FaultsTyped;
use super::source::Load;
use crate::bench::relays::Contestant;
use crate::bench::{self, BenchOptions, Target, Tracing};
use crate::party::Live;
use crate::source::{self, Offer};
use anyhow::{Result, bail};
use clap::Args;
use journey::record::Workload;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures a relay or a mail server from source to sink, and prints a report
///
/// Without options: starts a sink and a durable relay on free ports of this host, and sends 400-byte messages over 100
/// sessions for eight seconds, with a new connection for each message. Writes run.json, report.md and interval logs to
/// mailrun-results/TIME-NAME/; the relay stores its mail there during the run.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(super) struct Typed {
    #[command(subcommand)]
    scenario: Option<Scenario>,
    #[command(flatten)]
    load: Load,
    /// Server that is already running, instead of the bench's own relay and sink.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["relay", "no_relay", "relay_address"])]
    to: Option<String>,
    /// HTTP address of the mailrun sink that the server delivers to, to check that every message arrives.
    #[arg(long, value_name = "http://HOST:PORT", requires = "to")]
    sink: Option<String>,
    /// Name of the run in reports.
    #[arg(long, value_name = "NAME", default_value = "bench")]
    name: String,
    /// Run directory, instead of a new one in mailrun-results.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Allow public addresses. Use it only with a server of your own.
    #[arg(long)]
    allow_public: bool,
    #[command(flatten)]
    report: ReportTyped,
    #[command(flatten)]
    relay: RelayTyped,
    #[command(flatten)]
    approach: ApproachTyped,
    #[command(flatten)]
    faults: FaultsTyped,
}

const EXAMPLES: &str = "\
Examples:
  mailrun bench
  mailrun bench --messages 200000 --sessions 100 --reuse --out D
  mailrun bench --relay none           without a relay: the limit of this host
  mailrun bench --relay postfix        through a private Postfix (as root)
  mailrun bench --drop 0.001           checks that mailrun detects losses
  mailrun bench --rate 2000 --arrival poisson --duration 30s
  mailrun bench --tls starttls --reuse=10 --pipelining stream
  mailrun bench --to 127.0.0.1:25 --sink http://127.0.0.1:8025
  mailrun bench --to 127.0.0.1:25 --threshold 'accepted.p99 < 50ms'
  mailrun bench --json - --report none | jq .verdict
  mailrun bench relay-400 --compare mailrun,postfix
  mailrun bench relay-latency          see also relay-backlog and relay-soak
  mailrun bench smtp-source-table      smtp-source, go-smtp-source and mailrun
  mailrun bench mades                  MADES, with a stand-in for the endpoints
  mailrun bench mades-compare          go-mades-bench and mailrun mades";

impl Typed {
    pub(super) fn run(self) -> Result<ExitCode> {
        if let Some(scenario) = self.scenario {
            return scenario.run();
        }
        let faults = self.faults.words();
        if self.to.is_some() && !faults.is_empty() {
            bail!("{} applies to the bench's own sink; give it to the sink that you start", faults[0]);
        }
        let load = &self.load;
        let offer = load.offer()?;
        load.check_thresholds()?;
        let staged = offer.as_ref().and_then(Offer::length);
        let workload = Workload {
            messages: load.messages,
            duration_limit_s: load.duration.or(staged).map(|limit| limit.as_secs_f64()),
            sessions: load.sessions,
            pipelining: load.pipelining.into(),
            arrival: load.arrival.with(offer.as_ref()),
            rate_per_s: load.rate,
            stages: offer.as_ref().map(Offer::stages).unwrap_or_default(),
            seed: load.seed,
            ..Workload::default()
        };
        let strictness = Strictness::of(load.is_strict());
        self.report.open(Live::Line)?;
        let between = self.between()?;
        // Whatever is wrong with it is better said here than by the source.
        self.approach.options()?;
        let mut sink_options = faults;
        // Behind a relay the sink is not who the source speaks to.
        let is_direct = self.to.is_none() && between == Contestant::None;
        sink_options.extend(is_direct.then(|| self.approach.sink_words()).into_iter().flatten());
        let trusts_own_sink = is_direct && self.approach.needs_trust();
        let target = match self.to {
            Some(address) => Target::Server { address, sink: self.sink },
            None => between.target(),
        };
        let mut source_options = load.words();
        source_options.extend(self.approach.words());
        source_options.extend(self.allow_public.then(|| "--allow-public".to_owned()));
        let outcome = bench::run(BenchOptions {
            name: self.name,
            out: self.out,
            target,
            workload,
            source_options,
            sink_options,
            tracing: Tracing::Off,
            trusts_own_sink,
            thresholds: self.load.asked.thresholds.clone(),
            preflight: match self.load.asked.preflight() {
                source::Preflight::On => bench::Preflight::On,
                source::Preflight::Off => bench::Preflight::Off,
            },
            live: self.report.live(Live::Line),
            title: None,
            command: crate::party::command_line(),
        })?;
        self.report.finish(&outcome.record, Some(&outcome.directory))?;
        outcome.unwritten.map_or_else(|| Ok(super::exit_code(&outcome.record, strictness)), Err)
    }

    /// The relay between the bench's own source and sink.
    fn between(&self) -> Result<Contestant> {
        let Some(option) = self.approach.to_be_agreed_on() else {
            return Ok(self.relay.asked().unwrap_or_else(relays::usual));
        };
        match self.relay.asked() {
            // The relay that a bench starts offers none of it.
            None | Some(Contestant::None) => Ok(Contestant::None),
            // It is the user's, and knows what it was set up for.
            Some(relay @ Contestant::Running { .. }) => Ok(relay),
            Some(relay) => bail!(
                "{option} cannot be used with the {relay} that bench starts; add --relay none, or start a server and \
                 name it with --to"
            ),
        }
    }
}
