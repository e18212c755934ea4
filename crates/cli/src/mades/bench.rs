use crate::mades::MadesLoadArgs;
use crate::mades::endpoint::{EndpointFaultArgs, NetworkArgs, mades_mode, read_plan, resolve_files};
use crate::options;
use crate::options::keep_awake::KeepAwakeArg;
use crate::options::values;
use crate::report::results::{ReportArgs, Strictness};
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use mailrun_bench::mades::{self, MadesBenchOptions, MadesTarget};
use mailrun_mades_bench::MadesMode;
use mailrun_mades_simulator::model::{EndpointMode, PRESETS, SimulatorPlan};
use mailrun_process::live::LiveMode;
use mailrun_process::party_options::{PartyOptions, TypedOptions};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Plan of the simulated endpoint if the user gives none. The simulated network has delays, so that the waterfall in
/// the report has visible steps.
const DEFAULT_PLAN: &str = "\
receive = 'exp:8ms'
[accept]
delay = 'exp:2ms'
[network]
delay = 'lognormal:20ms,0.5'
[acknowledge]
delay = 'exp:5ms'
";
const DEFAULT_RATE_PER_S: f64 = 500.0;
const DEFAULT_DURATION: Duration = Duration::from_secs(8);

/// Measures MADES on this host, with simulated endpoints
///
/// Sends messages through a simulated pair of ECP endpoints, and compares the counts of sender and endpoints.
///
/// No other software is required, because the simulated endpoints are their own broker. The default load is 500
/// messages per second for eight seconds, over a network with a delay of about 20 ms. Writes mailrun-results/TIME-NAME/
/// with run.json, report.md, report.html, the plan and the log of the simulated endpoints. Exit status 1 if a message
/// is lost, duplicated or corrupt, or if the counts disagree.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MadesBenchArgs {
    #[command(flatten)]
    typed: TypedOptions,
    /// What is measured: endpoint (ECP), toolbox (EDX), amqp (the broker only) or tracing
    ///
    /// The default is the mode in the TOML file of --plan, or endpoint if no file sets a mode.
    #[arg(long, value_enum, value_name = "MODE")]
    mode: Option<MadesMode>,
    #[command(flatten)]
    load: MadesLoadArgs,
    /// Time limit for each message; after that it counts as lost.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = values::some_duration, help_heading = "Load",
          hide_short_help = true)]
    message_timeout: Duration,
    #[command(flatten)]
    stand_in: StandInArgs,
    /// Write what the simulated endpoints did with each message to FILE, one line of JSON per message.
    #[arg(long, value_name = "FILE", hide_short_help = true, help_heading = "Stand-in for the endpoints")]
    log_messages: Option<PathBuf>,
    #[command(flatten)]
    way: NetworkArgs,
    #[command(flatten)]
    faults: EndpointFaultArgs,
    #[command(flatten)]
    keep_awake: KeepAwakeArg,
    #[command(flatten)]
    report: ReportArgs,
    /// Run directory [default: a new one]
    ///
    /// The new directory is mailrun-results/TIME-NAME.
    #[arg(long, value_name = "DIR", value_parser = values::directory, help_heading = "Results")]
    out: Option<PathBuf>,
    /// Name of the run in reports.
    #[arg(long, value_name = "TEXT", default_value = "mades", help_heading = "Results", hide_short_help = true)]
    label: String,
}

/// Options that choose how the stand-in, a pair of simulated endpoints, behaves.
#[derive(Debug, Args)]
#[command(next_help_heading = "Stand-in for the endpoints")]
pub(crate) struct StandInArgs {
    /// Built-in plan: ideal, ecp-2022 or custom-1563
    ///
    /// ecp-2022 has the maximum rates of an ECP endpoint in 2022: 10.8 replies, 7.3 deliveries and 6.5 acknowledgements
    /// per second. custom-1563 delivers up to 1,563 messages per second, and ideal has no limit. Without --preset and
    /// --plan, the rate has no limit either, but each step takes a random delay of about 2 to 20 ms.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(PRESETS),
          hide_possible_values = true)]
    preset: Option<String>,
    /// TOML file: how the simulated endpoints behave
    ///
    /// mailrun mades-endpoint --help prints an example plan. The mode and the seed of this plan also apply to the load.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  mailrun bench mades
  mailrun bench mades --preset ideal -m 100k --max-in-transit 1000
  mailrun bench mades --preset ecp-2022 --rate 6 -d 15s
  mailrun bench mades --shape quarter-hour:20x500 --shape 'every 10s' --accelerate 300
  mailrun bench mades --drop 1% --reject 1%   checks that faults are detected
  mailrun bench mades --plan plan.toml -v";

impl MadesBenchArgs {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        let strictness = Strictness::of(self.load.is_strict());
        self.report.open(LiveMode::Line)?;
        self.set_load_defaults();
        let (mode, plan) = self.mode_and_plan()?;
        let microseconds = |time: Duration| format!("{}us", time.as_micros());
        let bench_options = self.typed.of::<MadesLoadArgs>();
        let bench_options = bench_options
            .with("mode", mode.name())
            .with("seed", self.load.seed())
            .with("message-timeout", microseconds(self.message_timeout))
            .with_some("rate", self.load.rate)
            .with_some("duration", self.load.duration.map(microseconds));
        let log = self.log_messages.as_ref().map(|path| path.display());
        let _awake = self.keep_awake.begin(true)?;
        let workload = self.load.workload()?;
        let live = self.report.live(LiveMode::Line);
        options::announce_load(live, &workload);
        let outcome = mades::run(&MadesBenchOptions {
            name: self.label,
            out: self.out,
            target: MadesTarget::StandIn,
            plan: toml::to_string(&plan).context("a plan is always TOML")?,
            faults: faults(&plan),
            endpoint_options: PartyOptions::default().with_some("log-messages", log),
            bench_options,
            workload,
            mades: self.load.mades_record(mode, self.message_timeout),
            thresholds: self.load.thresholds(),
            live,
            title: None,
            command: mailrun_process::outputs::command_line(),
        })?;
        self.report.finish(&outcome.record, Some(&outcome.directory))?;
        outcome.unwritten.map_or_else(|| Ok(crate::report::results::exit_code(&outcome.record, strictness)), Err)
    }

    /// Sets the default rate and the default duration if the user did not describe the load otherwise. For example,
    /// there is no default rate with `--max-in-transit`, because this option means a closed loop.
    fn set_load_defaults(&mut self) {
        let load = &mut self.load;
        let is_closed = load.max_in_transit.is_some() || load.max_unsettled.is_some();
        if load.rate.is_none() && load.stages.is_empty() && load.shapes.is_empty() && !is_closed {
            load.rate = Some(DEFAULT_RATE_PER_S);
        }
        if load.messages.is_none() && load.length().is_none() && load.stages.is_empty() {
            load.duration = Some(DEFAULT_DURATION);
        }
    }

    /// Refuses options that have no effect in this mode, such as options of the simulated endpoint in mode amqp, which
    /// has no endpoint. `complete_plan` refuses options whose effect depends on the plan.
    fn check_effects(&self, mode: MadesMode) -> Result<()> {
        self.load.check_effects()?;
        self.load.check_acknowledge(mode)?;
        if mode != MadesMode::Amqp {
            return Ok(());
        }
        let of_stand_in = typed_stand_in(&self.typed).flag("log-messages", self.log_messages.is_some());
        options::refuse_all(&of_stand_in, "in mode amqp, which has no endpoint; add --mode endpoint")
    }

    /// Returns the mode of the run and the plan of the simulated endpoint. Fails if an option has no effect on this
    /// run.
    fn mode_and_plan(&mut self) -> Result<(MadesMode, SimulatorPlan)> {
        let (mode, plan) = self.stand_in.mode_and_plan(self.mode)?;
        self.load.check_thresholds(mode)?;
        self.check_effects(mode)?;
        let plan = complete_plan(plan, &self.way, &self.faults, &mut self.load)?;
        Ok((mode, plan))
    }
}

/// Returns the options of the simulated endpoint that the user gave. The caller must refuse them if the run uses no
/// simulated endpoint.
pub(crate) fn typed_stand_in(typed: &TypedOptions) -> PartyOptions {
    typed.of::<StandInArgs>().and(typed.of::<NetworkArgs>()).and(typed.of::<EndpointFaultArgs>())
}

impl StandInArgs {
    /// Returns the mode of the run, and the plan of `--preset` as changed by the file of `--plan`. Without `--mode`,
    /// this plan determines the mode.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or if `--mode` and the file set different modes.
    pub(crate) fn mode_and_plan(&self, typed: Option<MadesMode>) -> Result<(MadesMode, SimulatorPlan)> {
        let usual = || toml::from_str(DEFAULT_PLAN).expect("the plan is a constant, and a test reads it");
        let mut plan = match (&self.preset, &self.plan) {
            (Some(name), _) => SimulatorPlan::preset(name).unwrap_or_default(),
            (None, Some(_)) => SimulatorPlan::default(),
            (None, None) => usual(),
        };
        // Apply `--mode` before reading the plan file, because a plan file without a mode must keep this mode.
        plan.mode = typed.map_or(plan.mode, endpoint_mode);
        if let Some(path) = &self.plan {
            plan = read_plan(path, &plan)?;
        }
        let mode = typed.unwrap_or(mades_mode(plan.mode));
        if plan.mode != endpoint_mode(mode) {
            bail!("--mode {} contradicts the plan, whose mode is {}", mode.name(), mades_mode(plan.mode).name());
        }
        Ok((mode, plan))
    }
}

/// Converts the mode of the bench into the mode of the simulated endpoints. In mode amqp, the bench uses only the
/// endpoints' broker, so their mode does not matter, and `Endpoint` is returned.
fn endpoint_mode(mode: MadesMode) -> EndpointMode {
    match mode {
        MadesMode::Endpoint | MadesMode::Amqp => EndpointMode::Endpoint,
        MadesMode::Toolbox => EndpointMode::Toolbox,
        MadesMode::Tracing => EndpointMode::Tracing,
    }
}

/// Applies the options to the plan of the simulated endpoint. Also gives the plan and the load the same seed: the seed
/// that the user typed or, if there is none, the seed of the plan.
///
/// # Errors
///
/// Returns an error if an option has no effect on the plan, if the plan sends acknowledgement documents that the load
/// does not await, or if a file that the plan names cannot be read.
pub(crate) fn complete_plan(
    mut plan: SimulatorPlan,
    way: &NetworkArgs,
    faults: &EndpointFaultArgs,
    load: &mut MadesLoadArgs,
) -> Result<SimulatorPlan> {
    if plan.acknowledgement_documents && !load.awaits_acknowledgements() {
        bail!("the plan of the stand-in sends acknowledgement documents: add --await-acknowledgements");
    }
    plan.acknowledgement_documents = load.awaits_acknowledgements();
    way.apply_to(&mut plan);
    faults.apply_to(&mut plan);
    way.check_effects(&plan)?;
    faults.check_effects(&plan)?;
    plan.seed = *load.seed.get_or_insert(plan.seed);
    resolve_files(&mut plan).map_err(|error| anyhow!("the plan of the stand-in: {error:#}"))?;
    Ok(plan)
}

fn faults(plan: &SimulatorPlan) -> Vec<String> {
    let faults = &plan.faults;
    let shares = [
        ("reject", faults.reject),
        ("no-reply", faults.no_reply),
        ("drop", faults.drop),
        ("fail", faults.fail),
        ("duplicate", faults.duplicate),
        ("corrupt", faults.corrupt),
        ("reorder", faults.reorder),
        ("reject-documents", faults.reject_documents),
    ];
    let texts = shares.into_iter().filter(|(_, share)| *share > 0.0).map(|(name, share)| format!("{name} {share}"));
    texts.chain(plan.outages.iter().map(|outage| format!("outage {}", String::from(outage.clone())))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct MadesBenchTestCli {
        #[command(flatten)]
        typed: MadesBenchArgs,
    }

    fn parse(words: &str) -> MadesBenchArgs {
        let words = ["mades"].into_iter().chain(words.split_whitespace());
        let mut typed = MadesBenchTestCli::try_parse_from(words).unwrap().typed;
        typed.set_load_defaults();
        typed
    }

    #[test]
    fn without_options_it_is_an_open_loop_over_a_network() {
        let mut usual = parse("");
        assert_eq!((usual.load.rate, usual.load.duration), (Some(DEFAULT_RATE_PER_S), Some(DEFAULT_DURATION)));
        let plan = usual.mode_and_plan().unwrap().1;
        assert_ne!(plan.network, SimulatorPlan::default().network);
        assert_eq!(toml::from_str::<SimulatorPlan>(&toml::to_string(&plan).unwrap()).unwrap(), plan);
        assert!(faults(&plan).is_empty());
    }

    #[test]
    fn what_is_typed_is_meant() {
        let mut closed = parse("--max-in-transit 100 --messages 5 --preset ideal --mode tracing --seed 9 --drop 0.5");
        assert_eq!((closed.load.rate, closed.load.duration), (None, None));
        let plan = closed.mode_and_plan().unwrap().1;
        assert_eq!(
            (plan.mode, plan.seed, plan.network == SimulatorPlan::default().network),
            (EndpointMode::Tracing, 9, true)
        );
        assert_eq!(faults(&plan), vec!["drop 0.5".to_owned()]);
        let staged = parse("--stage 2s:5/s");
        assert_eq!((staged.load.rate, staged.load.duration), (None, None));
        assert!(parse("--drop 7e-1 --accept-delay 5ms").mode_and_plan().unwrap().1.faults.drop > 0.6);
        let mut awaited = parse("--await-acknowledgements --document-delay 1s --reject-documents 1%");
        let awaited = awaited.mode_and_plan().unwrap().1;
        assert!(awaited.acknowledgement_documents && awaited.faults.reject_documents == 0.01);
        let idle = parse("--acknowledge --document-delay 1s").mode_and_plan().unwrap_err().to_string();
        assert!(idle.contains("without acknowledgement documents of the receiver"), "{idle}");
    }

    #[test]
    fn what_is_not_typed_comes_from_the_plan() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("plan.toml");
        let modes_and_seeds = |text: &str, words: &str| {
            std::fs::write(&path, text).unwrap();
            let mut typed = parse(&format!("--plan {} {words}", path.display()));
            let resolved = typed.mode_and_plan().map_err(|error| error.to_string());
            resolved.map(|(mode, plan)| (mode, plan.mode, typed.load.seed(), plan.seed))
        };
        let toolbox = "mode = 'toolbox'\nseed = 7\n";
        for (text, words, expected) in [
            (toolbox, "", Ok((MadesMode::Toolbox, EndpointMode::Toolbox, 7, 7))),
            (toolbox, "--mode toolbox --seed 9", Ok((MadesMode::Toolbox, EndpointMode::Toolbox, 9, 9))),
            (toolbox, "--mode endpoint", Err("--mode endpoint contradicts the plan, whose mode is toolbox".to_owned())),
            ("credit = 5\n", "", Ok((MadesMode::Endpoint, EndpointMode::Endpoint, 1, 1))),
            ("credit = 5\n", "--mode tracing", Ok((MadesMode::Tracing, EndpointMode::Tracing, 1, 1))),
        ] {
            assert_eq!(modes_and_seeds(text, words), expected, "{text:?} {words}");
        }
    }
}
