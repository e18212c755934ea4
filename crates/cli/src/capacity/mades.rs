use crate::capacity::arguments::{CapacityOutputArgs, PlanningArgs, SearchArgs, exit_status, loss_goal};
use crate::mades::bench::{StandInArgs, complete_plan, typed_stand_in};
use crate::mades::endpoint::{EndpointFaultArgs, NetworkArgs};
use crate::mades::queues::QueueNameArgs;
use crate::mades::{BrokerArgs, MadesLoadArgs, TimeoutArgs, check_stages, without_login};
use crate::options;
use crate::options::keep_awake::KeepAwakeArg;
use anyhow::{Context, Result, bail};
use clap::Args;
use mailrun_bench::capacity::{MadesCapacityOptions, SearchCourse, default_mades_goal, search_mades};
use mailrun_bench::mades::{MadesBenchOptions, MadesTarget};
use mailrun_mades_bench::MadesMode;
use mailrun_measurement::threshold::{LossGoal, RunProtocol, Threshold};
use mailrun_process::party_options::{PartyOptions, TypedOptions};
use std::process::ExitCode;

/// Finds the highest rate at which a MADES endpoint still meets its goals
///
/// Searches as mailrun capacity does, with trials of mailrun mades at open loop: a message later than a goal's limit
/// counts as lost, and so does a rejected message. A message that has not arrived within --message-timeout ends the
/// search.
///
/// With --broker, measures an endpoint of yours. Without --broker, measures a simulated pair of endpoints on this host.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CapacityMadesArgs {
    #[command(flatten)]
    typed: TypedOptions,
    /// What is measured: endpoint (ECP), toolbox (EDX), amqp (the broker only) or tracing
    ///
    /// The default is the mode in the file of --plan. Without a plan, it is the mode endpoint.
    #[arg(long, value_enum, value_name = "MODE")]
    mode: Option<MadesMode>,
    /// Goal, repeatable: 'delivered.p99 < 2s', 'RECEIVED.within(60s) >= 95%', 'rejected <= 0.1%'. delivered is the
    /// arrival in the inbox, and RECEIVED the event of that name [default: delivered.within(60s) >= 100%].
    #[arg(long = "goal", value_name = "EXPRESSION", value_parser = goal, help_heading = "Search")]
    goals: Vec<Threshold>,
    #[command(flatten)]
    search: SearchArgs,
    #[command(flatten)]
    planning: PlanningArgs,
    #[command(flatten)]
    load: MadesLoadArgs,
    #[command(flatten)]
    brokers: BrokerArgs,
    #[command(flatten)]
    queues: QueueNameArgs,
    #[command(flatten)]
    waiting: TimeoutArgs,
    #[command(flatten)]
    stand_in: StandInArgs,
    #[command(flatten)]
    way: NetworkArgs,
    #[command(flatten)]
    faults: EndpointFaultArgs,
    #[command(flatten)]
    keep_awake: KeepAwakeArg,
    #[command(flatten)]
    output: CapacityOutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  mailrun capacity mades --quick --goal 'delivered.p99 < 2s'
  mailrun capacity mades --preset custom-1563 --quick
  mailrun capacity mades --broker amqp://endpoint@broker.local --password-file pw";

fn goal(text: &str) -> Result<Threshold, String> {
    let threshold = Threshold::parse(text, RunProtocol::Mades)?;
    loss_goal(&threshold)?;
    Ok(threshold)
}

impl CapacityMadesArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let output = self.output.clone();
        output.check()?;
        let has_endpoint_here = self.brokers.is_named() && self.brokers.are_here();
        let _awake = self.keep_awake.begin(!has_endpoint_here)?;
        let options = self.options()?;
        output.announce(&options.course, 1);
        let (run, failed) = search_mades(&options)?;
        let value = output.report(&run, &[])?;
        output.write_json(&value)?;
        failed.map_or_else(|| Ok(ExitCode::from(exit_status(&run))), Err)
    }

    fn options(mut self) -> Result<MadesCapacityOptions> {
        let (mode, plan) = self.stand_in.mode_and_plan(self.mode)?;
        self.check(mode)?;
        let plan = complete_plan(plan, &self.way, &self.faults, &mut self.load)?;
        let goals: Vec<LossGoal> = self.goals.iter().filter_map(Threshold::loss_goal).collect();
        let goals = if goals.is_empty() { vec![default_mades_goal()?] } else { goals };
        let command: Vec<String> =
            mailrun_process::outputs::command_line().iter().map(|word| without_login(word)).collect();
        let course = SearchCourse {
            settings: self.search.settings_for(&goals)?,
            goals,
            confirm: self.search.confirm(),
            arrival: self.load.arrival_of_trials(),
            seed: self.load.seed(),
            planning: self.planning.inputs()?,
            command: command.clone(),
        };
        let bench_options = self.typed.of::<TimeoutArgs>().and(self.typed.of::<MadesLoadArgs>());
        let bench_options = bench_options.with("mode", mode.name()).with("seed", self.load.seed());
        let bench = MadesBenchOptions {
            target: self.target()?,
            plan: toml::to_string(&plan).context("a plan is always TOML")?,
            // Do not tell the bench about the faults of the simulated endpoint. Messages that the endpoint loses on
            // purpose then count as lost, as with a real endpoint.
            faults: Vec::new(),
            endpoint_options: PartyOptions::default(),
            bench_options,
            workload: self.load.workload()?,
            mades: self.load.mades_record(mode, self.waiting.message_timeout()),
            thresholds: Vec::new(),
            live: self.output.live(),
            title: None,
            command,
            name: self.output.label,
            out: self.output.out,
        };
        Ok(MadesCapacityOptions { bench, course })
    }

    fn target(&self) -> Result<MadesTarget> {
        if !self.brokers.is_named() {
            return Ok(MadesTarget::StandIn);
        }
        let url = self.brokers.outbox_url().to_owned();
        let options = self.typed.of::<BrokerArgs>().and(self.typed.of::<QueueNameArgs>()).with("broker", &url);
        if options.words().iter().any(|word| without_login(word) != *word) {
            bail!("a URL with a password would be in the records of all trials: use --password-file");
        }
        Ok(MadesTarget::Running { url, options })
    }

    fn check(&self, mode: MadesMode) -> Result<()> {
        self.load.check_search()?;
        self.load.check_acknowledge(mode)?;
        check_stages(self.load.path(mode), &self.goals)?;
        self.queues.check_effects(mode)?;
        let of_stand_in = typed_stand_in(&self.typed);
        if self.brokers.is_named() {
            self.brokers.check_effects()?;
            return options::refuse_all(&of_stand_in, "with --broker, whose endpoint is no stand-in");
        }
        if mode == MadesMode::Amqp {
            options::refuse_all(&of_stand_in, "in mode amqp, which has no endpoint; add --mode endpoint")?;
        }
        let of_endpoint = self.typed.of::<BrokerArgs>().and(self.typed.of::<QueueNameArgs>());
        let of_endpoint = of_endpoint.and(self.waiting.of_endpoint());
        options::refuse_all(&of_endpoint, "without --broker: the stand-in has a broker of its own")
    }
}
