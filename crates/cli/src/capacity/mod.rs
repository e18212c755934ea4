pub(crate) mod arguments;
pub(crate) mod mades;

use crate::bench::BenchArgs;
use crate::bench::relays::BenchRelayArgs;
use crate::options::connection::ConnectionArgs;
use crate::options::keep_awake::KeepAwakeArg;
use crate::options::rare;
use crate::options::server::ServerArg;
use crate::options::values;
use crate::source::{LoadArgs, threshold};
use anyhow::{Context, Result, bail};
use arguments::{CapacityOutputArgs, PlanningArgs, SearchArgs, exit_status, loss_goal, refuse_in_search, worse_status};
use clap::{Args, Subcommand};
use mades::CapacityMadesArgs;
use mailrun_bench::capacity::{CapacityOptions, SearchCourse, check_goals, default_goal, search};
use mailrun_bench::relay::Relay;
use mailrun_bench::{BenchOptions, BenchTarget};
use mailrun_measurement::threshold::LossGoal;
use mailrun_process::party_options::TypedOptions;
use mailrun_process::server_cores;
use mailrun_report::core_capacity::{CoreCapacity, core_capacity_text};
use std::process::ExitCode;
use std::time::Duration;

/// Default of `--lost-after`, for servers whose queue cannot be read: if no mail has arrived for this long, missing
/// mail counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(60);

/// Finds the highest rate at which a server still meets its goals
///
/// Searches by short trials at open loop (multiple loss ratio search, RFC 9971): a message later than a goal's limit
/// counts as lost, and so does a rejected or missing one. A trial is also bad if the backlog behind the server grows.
/// One stall spoils a trial but not the search, because a rate is good if half of its trials are. Then confirms the
/// result with trials at 80, 100 and 120 % of the rate that was found.
///
/// Without SERVER, measures mailrun's own sink, which shows the limit of this host. With --relay, measures a relay,
/// which is started once for all trials.
#[derive(Debug, Args)]
#[command(after_help = rare::help("run-id", EXAMPLES), args_conflicts_with_subcommands = true, disable_help_subcommand = true,
          subcommand_value_name = "mades", subcommand_help_heading = "Other protocols",
          mut_args(rare::hide_for_capacity),
          override_usage = "mailrun capacity [OPTIONS] [SERVER]\n       mailrun capacity mades [OPTIONS]")]
pub(crate) struct CapacityArgs {
    #[command(flatten)]
    typed: TypedOptions,
    #[command(subcommand)]
    other: Option<CapacitySubject>,
    /// Server to measure, written as for mailrun bench.
    #[arg(value_name = "SERVER", value_parser = ServerArg::parse)]
    server: Option<ServerArg>,
    /// Goal, repeatable: 'delivered.p99 < 1s', 'accepted.max < 100ms', 'delivered.within(60s) >= 95%', 'rejected <=
    /// 0.1%' [default: delivered.within(60s) >= 100%, or accepted if nobody sees deliveries].
    #[arg(long = "goal", value_name = "EXPRESSION", value_parser = goal, help_heading = "Search")]
    goals: Vec<LossGoal>,
    #[command(flatten)]
    search: SearchArgs,
    /// Pause in deliveries after which accepted mail that is still missing counts as lost, and the search ends. Mail
    /// that arrives earlier counts as late. SERVER's queue cannot be read, so the pause must be longer than SERVER's
    /// wait before its first retry [default: 60s].
    #[arg(long, value_name = "TIME", value_parser = values::some_duration, hide_short_help = true, help_heading = "Search")]
    lost_after: Option<Duration>,
    #[command(flatten)]
    planning: PlanningArgs,
    /// Numbers of processors to give the server under test, separated by commas. Each number gets a search of its own.
    /// The source, and the sink behind a relay, may use all processors.
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = core_count, help_heading = "Planning")]
    server_cores: Vec<u32>,
    /// HTTP address of the mailrun sink that SERVER delivers to.
    #[arg(long, value_name = "http://HOST:PORT", requires = "server", conflicts_with = "sink_listen")]
    sink: Option<String>,
    #[command(flatten)]
    relay: BenchRelayArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    keep_awake: KeepAwakeArg,
    #[command(flatten)]
    approach: ConnectionArgs,
    #[command(flatten)]
    output: CapacityOutputArgs,
    /// Allow a server at a public address. Use it only with a server of your own.
    #[arg(long, env = "MAILRUN_ALLOW_PUBLIC", value_parser = clap::builder::FalseyValueParser::new(), hide_env = true,
          help_heading = "Connection")]
    allow_public: bool,
}

/// Subcommands that search for the capacity of something other than a mail server.
#[derive(Debug, Subcommand)]
enum CapacitySubject {
    Mades(Box<CapacityMadesArgs>),
}

fn core_count(text: &str) -> Result<u32, String> {
    u32::try_from(values::some(text)?).map_err(|_| format!("{text} processors are too many"))
}

const EXAMPLES: &str = "\
Examples:
  mailrun capacity mx.example --goal 'accepted.p99 < 1s' --to ann@mx.example
  mailrun capacity 127.0.0.1:25 --sink-listen 127.0.0.1:2526 --goal 'delivered.p99 < 1s'
  mailrun capacity --relay mailrun --quick --reuse --peak 300/s --safety 0.6
  mailrun capacity --relay mailrun --quick --reuse --server-cores 1,2
  mailrun capacity --relay postfix --goal 'delivered.p99 < 5s' --goal 'accepted.p95 < 100ms'
  mailrun capacity 127.0.0.1:25 --rfc2544 --max-rate 5000/s
  mailrun capacity --quick --json - | jq .capacity.rate_per_s
  mailrun capacity mades --preset custom-1563 --goal 'delivered.p99 < 2s'

Exit status:
    0  a capacity was found; that trials overload the server is no failure
    1  a goal was missed at the lowest rate, or mail was lost or changed
    2  it could not run
    3  source, sink or host were the limit at every rate, the time was over,
       longer trials did not confirm what was found, or mail was not delivered
  130  interrupted; what is known is printed";

fn goal(text: &str) -> Result<LossGoal, String> {
    loss_goal(&threshold(text)?)
}

impl CapacityArgs {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        if let Some(CapacitySubject::Mades(mades)) = self.other.take() {
            return mades.run();
        }
        let output = self.output.clone();
        output.check()?;
        let counts = self.core_counts()?;
        let keep_awake = self.keep_awake;
        let options = self.options()?;
        let _awake = keep_awake.begin(!options.bench.target.has_server_here())?;
        output.announce(&options.course, counts.len().max(1));
        let mut by_cores = Vec::new();
        let mut status = 0;
        let mut value = String::new();
        let mut failed = None;
        for (cores, options) in searches(options, &counts) {
            let (run, error) = search(&options)?;
            failed = error;
            by_cores.extend(cores.map(|cores| CoreCapacity::new(cores, &run)));
            value = output.report(&run, &by_cores)?;
            status = worse_status(status, exit_status(&run));
            if run.interrupted || failed.is_some() {
                break;
            }
        }
        if !by_cores.is_empty() {
            output.print_more(format!("\n{}", core_capacity_text(&by_cores)))?;
        }
        output.write_json(&value)?;
        failed.map_or(Ok(ExitCode::from(status)), Err)
    }

    /// Returns the numbers of processors with which the server is to be measured, in ascending order and without
    /// repetitions.
    ///
    /// # Errors
    ///
    /// Returns an error if mailrun does not start the server itself, or if this host has fewer processors.
    fn core_counts(&self) -> Result<Vec<u32>> {
        let mut counts = self.server_cores.clone();
        counts.sort_unstable();
        counts.dedup();
        let Some(max_count) = counts.last() else { return Ok(counts) };
        if self.server.is_some() {
            bail!(
                "--server-cores requires a server that mailrun starts, its own sink or --relay; start yours with taskset(1)"
            );
        }
        let available = server_cores::available().context("cannot count the processors")?;
        if *max_count > available {
            bail!("--server-cores {max_count}: only {available} processors available");
        }
        Ok(counts)
    }

    fn options(self) -> Result<CapacityOptions> {
        self.check()?;
        let confirm = self.search.confirm();
        let planning = self.planning.inputs()?;
        let lost_after = self.lost_after;
        let arrival = self.load.arrival_of_trials();
        let live = self.output.live();
        let relay = if self.server.is_none() { self.relay.or_none() } else { self.relay };
        let bench = BenchArgs::of_trials(
            self.server,
            self.sink,
            relay,
            (self.load.without_arrival(), self.typed),
            self.approach,
            (self.output.label, self.output.out),
            self.allow_public,
        );
        let mut bench = bench.trial_options(live)?;
        bench.lost_after = pause_of_loss(&bench, lost_after)?;
        let goals = if self.goals.is_empty() { vec![default_goal(&bench.target)?] } else { self.goals };
        check_goals(&goals, &bench.target)?;
        let course = SearchCourse {
            settings: self.search.settings_for(&goals)?,
            goals,
            confirm,
            arrival,
            seed: bench.workload.seed,
            planning,
            command: bench.command.clone(),
        };
        Ok(CapacityOptions { bench, course })
    }

    /// Refuses options of the load that the search chooses itself, such as `--rate`.
    fn check(&self) -> Result<()> {
        let load = &self.load;
        let refused = [
            (load.messages.is_some(), "--messages"),
            (load.duration.is_some(), "--duration"),
            (load.rate.is_some(), "--rate"),
            (load.warm_up.is_some(), "--warm-up"),
            (load.session.think_time.is_some(), "--think-time"),
            (load.is_strict(), "--threshold, --abort-on, --strict or --stage"),
        ];
        refuse_in_search(&refused)
    }
}

/// Returns the pause in arrivals after which missing mail counts as lost. Returns `None` if the server's queue can be
/// read, or if no sink sees the arrivals.
///
/// # Errors
///
/// Fails if the user gave `--lost-after` but no pause is needed, because the option would have no effect.
fn pause_of_loss(bench: &BenchOptions, typed: Option<Duration>) -> Result<Option<Duration>> {
    let is_hidden = match &bench.target {
        BenchTarget::OwnSink | BenchTarget::Relay(Relay::Mailrun(_)) => false,
        BenchTarget::Relay(_) => true,
        BenchTarget::Server { sink, .. } => sink.is_some(),
    };
    if typed.is_some() && !is_hidden {
        bail!(
            "--lost-after requires a server whose deliveries are seen and whose queue cannot be read: SERVER with --sink or --sink-listen, or another --relay than mailrun"
        );
    }
    Ok(is_hidden.then(|| typed.unwrap_or(LOST_AFTER)))
}

/// Returns one search for each number of processors in `counts`, or a single search if `counts` is empty. With several
/// searches, `cores-N` is added to the name and the directory of each search, so that they do not overwrite each other.
fn searches(options: CapacityOptions, counts: &[u32]) -> Vec<(Option<u32>, CapacityOptions)> {
    if counts.is_empty() {
        return vec![(None, options)];
    }
    let search = |cores: &u32| {
        let mut options = options.clone();
        options.bench.server_cores = Some(*cores);
        options.course.planning.cores = Some(f64::from(*cores));
        if counts.len() > 1 {
            let part = format!("cores-{cores}");
            options.bench.name = format!("{}-{part}", options.bench.name);
            options.bench.out = options.bench.out.map(|out| out.join(part));
        }
        (Some(*cores), options)
    };
    counts.iter().map(search).collect()
}
