//! `mailrun capacity`: what was typed, to the search for the highest rate that meets the goals.
use super::bench::BenchArgs;
use super::connection::ConnectionArgs;
use super::relays::BenchRelayArgs;
use super::server::ServerArg;
use super::source::{LoadArgs, threshold};
use super::values;
use crate::bench::capacity::{CapacityOptions, check_goals, default_goal, save, search};
use ::capacity::{PlanningInputs, SearchEnding, SearchSettings};
use anyhow::{Result, bail};
use clap::Args;
use journey::threshold::{LossGoal, Threshold};
use party::interrupt::INTERRUPTED_STATUS;
use party::live::LiveMode;
use party::outputs::cannot_write;
use party::terminal::CharacterSet;
use report::capacity::{CapacityRun, capacity_json, capacity_text, capacity_verdict};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Length of a trial of the confirmation.
const CONFIRM: Duration = Duration::from_secs(60);
/// The same with --quick.
const QUICK_CONFIRM: Duration = Duration::from_secs(10);
/// Finds the highest rate that a server takes and still meets its goals
///
/// Searches by short trials at open loop (multiple loss ratio search, RFC 9971): a message later than a goal's limit counts as
/// lost, and so does a rejected or missing one. A trial is bad also if the backlog behind the server grows. One stall spoils a
/// trial, and not the search: a load is good if half of its trials are. Then confirms 80, 100 and 120 % of what was found.
///
/// Without SERVER: mailrun's own sink, the limit of this host. With --relay: through a relay that is started for each trial.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CapacityArgs {
    /// Server to measure, as for mailrun bench.
    #[arg(value_name = "SERVER", value_parser = ServerArg::parse)]
    server: Option<ServerArg>,
    #[command(flatten)]
    search: SearchArgs,
    #[command(flatten)]
    planning: PlanningArgs,
    /// HTTP address of the mailrun sink that SERVER delivers to.
    #[arg(long, value_name = "http://HOST:PORT", requires = "server", conflicts_with = "sink_listen")]
    sink: Option<String>,
    #[command(flatten)]
    relay: BenchRelayArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    approach: ConnectionArgs,
    /// Directory of the results, instead of a new one in mailrun-results.
    #[arg(long, value_name = "DIR", help_heading = "Results")]
    out: Option<PathBuf>,
    /// Name in reports.
    #[arg(long, value_name = "NAME", default_value = "capacity", help_heading = "Results")]
    label: String,
    /// Write the result as JSON to FILE; with - it goes to standard output, which then has nothing else.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    json: Option<PathBuf>,
    /// Print the verdict alone.
    #[arg(short, long, help_heading = "Results")]
    quiet: bool,
    /// Allow public addresses. Use it only with a server of your own.
    #[arg(long, env = "MAILRUN_ALLOW_PUBLIC", value_parser = clap::builder::FalseyValueParser::new(), hide_env = true,
          help_heading = "Connection")]
    allow_public: bool,
}

/// Goals and effort of the search.
#[derive(Debug, Args)]
#[command(next_help_heading = "Search")]
struct SearchArgs {
    /// Goal, repeatable: 'delivered.p99 < 1s', 'accepted.max < 100ms', 'delivered.within(60s) >= 95%', 'rejected <= 0.1%'
    /// [default: delivered.within(60s) >= 100%, or accepted where nobody sees deliveries].
    #[arg(long = "goal", value_name = "EXPRESSION", value_parser = goal)]
    goals: Vec<LossGoal>,
    /// Search in a fifth of the time: trials of 2 s, bounds within 5 %.
    #[arg(long, conflicts_with = "rfc2544")]
    quick: bool,
    /// Search as RFC 2544 does: one trial of 60 s for each rate, none of which may be bad, by bisection.
    #[arg(long, requires = "max_rate")]
    rfc2544: bool,
    /// Lowest rate to try.
    #[arg(long, value_name = "RATE", default_value = "10/s", value_parser = values::rate)]
    min_rate: f64,
    /// Highest rate to try [default: 1M/s].
    #[arg(long, value_name = "RATE", value_parser = values::rate)]
    max_rate: Option<f64>,
    /// Length of a trial [default: 5s; with --quick 2s, with --rfc2544 60s].
    #[arg(long, value_name = "TIME", value_parser = values::some_duration)]
    trial: Option<Duration>,
    /// Longest time of all trials, without the confirmation [default: 20m; with --rfc2544 1h].
    #[arg(long, value_name = "TIME", value_parser = values::some_duration)]
    max_time: Option<Duration>,
    /// Length of each of the three trials of the confirmation; 0s for none [default: 60s; with --quick 10s].
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    confirm: Option<Duration>,
}

/// Demand that a plan is made for.
#[derive(Debug, Args)]
#[command(next_help_heading = "Planning")]
struct PlanningArgs {
    /// Plan for this rate at the peak: instances and headroom.
    #[arg(long, value_name = "RATE", value_parser = values::rate)]
    peak: Option<f64>,
    /// Share of the capacity that an instance is to be loaded with.
    #[arg(long, value_name = "SHARE", default_value = "0.6", value_parser = values::probability)]
    safety: f64,
    /// Plan for users who cause so many messages each in the busy hour.
    #[arg(long, value_name = "N", value_parser = values::some)]
    messages_per_user: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  mailrun capacity mx.example --goal 'accepted.p99 < 1s' --to ann@mx.example
  mailrun capacity 127.0.0.1:25 --sink-listen 127.0.0.1:2526 --goal 'delivered.p99 < 1s'
  mailrun capacity --relay mailrun --quick --reuse --peak 300/s --safety 0.6
  mailrun capacity --relay postfix --goal 'delivered.p99 < 5s' --goal 'accepted.p95 < 100ms'
  mailrun capacity 127.0.0.1:25 --rfc2544 --max-rate 5000/s
  mailrun capacity --quick --json - | jq .capacity.rate_per_s

Exit status:
    0  a capacity was found; that trials overload the server is no failure
    1  a goal was missed at the lowest rate, or mail was lost or changed
    2  it could not run
    3  source, sink or host were the limit at every rate, or the time was over
  130  interrupted; what is known is printed";

fn goal(text: &str) -> Result<LossGoal, String> {
    let threshold: Threshold = threshold(text)?;
    threshold.loss_goal().ok_or_else(|| {
        "a goal is a percentile, max or within() of sent, accepted or delivered, or rejected or failed in percent"
            .to_owned()
    })
}

impl SearchArgs {
    fn settings(&self) -> Result<SearchSettings> {
        let mut settings = match (self.quick, self.rfc2544) {
            (true, _) => SearchSettings::quick(),
            (_, true) => SearchSettings::rfc2544(),
            _ => SearchSettings::default(),
        };
        if let Some(trial) = self.trial {
            let scale = trial.as_secs_f64() / settings.trial_s;
            settings.trial_s *= scale;
            settings.sum_s *= scale;
        }
        settings.min_rate_per_s = self.min_rate;
        settings.max_rate_per_s = self.max_rate.unwrap_or(settings.max_rate_per_s);
        settings.time_limit_s = self.max_time.map_or(settings.time_limit_s, |limit| limit.as_secs_f64());
        if settings.min_rate_per_s >= settings.max_rate_per_s {
            bail!("--min-rate must be below --max-rate");
        }
        Ok(settings)
    }

    /// Length of a trial of the confirmation; `None` for no confirmation.
    fn confirm(&self) -> Option<Duration> {
        let usual = if self.quick { QUICK_CONFIRM } else { CONFIRM };
        Some(self.confirm.unwrap_or(usual)).filter(|length| !length.is_zero())
    }
}

impl CapacityArgs {
    /// Searches and reports.
    ///
    /// # Errors
    /// If an option has no effect here, a trial could not run, or a file cannot be written.
    pub(super) fn run(self) -> Result<ExitCode> {
        let json = self.json.clone();
        let is_quiet = self.quiet;
        let options = self.options()?;
        let run = search(&options)?;
        let value = format!("{}\n", serde_json::to_string_pretty(&capacity_json(&run))?);
        let text = capacity_text(&run);
        save(&run.directory, &value, &text)?;
        let shown = CharacterSet::of_environment().encode(&if is_quiet { capacity_verdict(&run) } else { text });
        match json {
            Some(path) if path.as_os_str() == "-" => super::say(&value),
            Some(path) => {
                fs::write(&path, value).map_err(|error| cannot_write(&path, &error))?;
                super::say(&shown);
            }
            None => super::say(&shown),
        }
        Ok(exit_status(&run))
    }

    fn options(self) -> Result<CapacityOptions> {
        self.check()?;
        let settings = self.search.settings()?;
        let confirm = self.search.confirm();
        let planning = PlanningInputs {
            capacity_per_s: 0.0,
            safety: self.planning.safety,
            peak_per_s: self.planning.peak,
            messages_per_user: self.planning.messages_per_user.map(|messages| messages as f64),
            cores: std::thread::available_parallelism().ok().map(|cores| cores.get() as f64),
        };
        if planning.safety <= 0.0 {
            bail!("--safety must be above zero");
        }
        let goals = self.search.goals.clone();
        let live = if self.quiet || self.json.is_some() { LiveMode::Off } else { LiveMode::Line };
        let relay = if self.server.is_none() { self.relay.or_none() } else { self.relay };
        let bench = BenchArgs::of_trials(
            self.server,
            self.sink,
            relay,
            self.load,
            self.approach,
            (self.label, self.out),
            self.allow_public,
        );
        let bench = bench.trial_options(live)?;
        let goals = if goals.is_empty() { vec![default_goal(&bench.target)?] } else { goals };
        check_goals(&goals, &bench.target)?;
        Ok(CapacityOptions { bench, settings, goals, confirm, planning })
    }

    /// Refuses options of the load that the search decides itself.
    fn check(&self) -> Result<()> {
        let load = &self.load;
        let refused = [
            (load.messages.is_some(), "--messages"),
            (load.duration.is_some(), "--duration"),
            (load.rate.is_some(), "--rate"),
            (load.warm_up.is_some(), "--warm-up"),
            (load.arrival.is_some(), "--arrival"),
            (load.think_time.is_some(), "--think-time"),
            (load.is_strict(), "--threshold, --abort-on, --strict or --stage"),
        ];
        match refused.into_iter().find(|(is_set, _)| *is_set) {
            Some((_, option)) => bail!(
                "{option} has no effect on a search, which chooses rates and lengths itself; requirements are --goal"
            ),
            None => Ok(()),
        }
    }
}

fn exit_status(run: &CapacityRun) -> ExitCode {
    let CapacityRun { result, lost, interrupted, .. } = run;
    match result.ending {
        _ if lost.is_some() => ExitCode::from(1),
        _ if *interrupted => ExitCode::from(INTERRUPTED_STATUS),
        SearchEnding::Complete if result.has_capacity() => ExitCode::SUCCESS,
        SearchEnding::TimeLimit if run.capacity_per_s().is_some() => ExitCode::SUCCESS,
        SearchEnding::Complete | SearchEnding::MailLost => ExitCode::from(1),
        SearchEnding::TimeLimit | SearchEnding::Void | SearchEnding::Stopped => ExitCode::from(3),
    }
}
