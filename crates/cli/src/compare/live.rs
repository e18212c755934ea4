use crate::compare::output::CompareOutputArgs;
use crate::options;
use crate::options::keep_awake::KeepAwakeArg;
use crate::options::values;
use anyhow::{Result, bail, ensure};
use clap::Args;
use mailrun_bench::rounds::{LiveCase, LiveKind, RoundSinkPlace, RoundsOptions, compare_live};
use mailrun_process::interrupt::INTERRUPTED_STATUS;
use mailrun_process::live::LiveMode;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

const SESSIONS: u32 = 10;
const MESSAGE_BYTES: u64 = 400;
const ROUNDS: usize = 80;
/// Default of `--budget`, the time after which no further round begins.
const BUDGET: Duration = Duration::from_secs(120);
/// Default of `--rounds` for scenarios, which is small because their runs take minutes.
const SCENARIO_ROUNDS: usize = 6;
const SCENARIO_BUDGET: Duration = Duration::from_secs(86_400);

/// Options of `mailrun compare` for contestants that it runs now, in rounds, instead of stored runs.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Rounds")]
pub(crate) struct CompareLiveArgs {
    /// Contestant, repeatable: a command, a server or a scenario. A command is a load generator that sends {messages}
    /// messages of {size} bytes over {sessions} sessions to mailrun's sink at {host} port {port}. Its words are split
    /// as a shell does, but no shell is started. A server is HOST:PORT, to which mailrun's source sends. A scenario is
    /// a name such as relay-400, or a file.
    #[arg(long = "contestant", value_name = "NAME=COMMAND", conflicts_with_all = ["runs", "against"])]
    contestants: Vec<LiveCase>,
    /// Contestant with which the others are compared [default: the first].
    #[arg(long, value_name = "NAME", requires = "contestants", hide_short_help = true)]
    reference: Option<String>,
    /// Compare a contestant with itself, which shows the noise of this host. Without --contestant, mailrun's own source
    /// is compared.
    #[arg(long = "self", conflicts_with_all = ["runs", "against", "reference"])]
    is_self: bool,
    /// Recipient address if contestants are servers [default: to@example.com].
    #[arg(long, visible_alias = "rcpt", value_name = "ADDRESS", requires = "contestants", hide_short_help = true)]
    to: Option<String>,
    /// HTTP address of the mailrun sink that the servers deliver to.
    #[arg(
        long,
        value_name = "http://HOST:PORT",
        requires = "contestants",
        conflicts_with = "sink_listen",
        hide_short_help = true
    )]
    sink: Option<String>,
    /// Address at which mailrun itself starts the sink that the servers deliver to.
    #[arg(long, value_name = "HOST:PORT", requires = "contestants", value_parser = values::tcp_address, hide_short_help = true)]
    sink_listen: Option<SocketAddr>,
    /// Sessions of each contestant [default: 10].
    #[arg(short, long, visible_short_alias = 'c', value_name = "N", value_parser = values::sessions)]
    sessions: Option<u32>,
    /// Size of a message [default: 400].
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = values::message_size)]
    message_size: Option<u64>,
    /// Messages of each contestant in a round [default: as many as the fastest sends in about 0.4 s].
    #[arg(short, long, visible_short_alias = 'n', value_name = "N", value_parser = values::some)]
    messages: Option<u64>,
    /// Rounds after the warm-up [default: 80; of scenarios 6].
    #[arg(long, value_name = "N", value_parser = values::some)]
    rounds: Option<u64>,
    /// Time after which no further round begins [default: 120s; of scenarios a day].
    #[arg(long, value_name = "TIME", value_parser = values::some_duration)]
    budget: Option<Duration>,
    /// End after half of the rounds if every metric is decided by then. The two checks, at half and at the end, share
    /// the risk of a false alarm.
    #[arg(long)]
    until_decided: bool,
    /// Also count the bytes per message in each direction and, for a load generator, the system calls and syncs. The
    /// counts come from separate runs over one session, under strace.
    #[arg(long, hide_short_help = true)]
    counts: bool,
    #[command(flatten)]
    keep_awake: KeepAwakeArg,
    /// Print no progress.
    #[arg(short, long)]
    quiet: bool,
}

impl CompareLiveArgs {
    /// Returns true if contestants must be run now, and false if stored runs must be compared.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_self || !self.contestants.is_empty()
    }

    /// Refuses the options of live rounds, which have no effect when stored runs are compared.
    pub(crate) fn check_unused(&self) -> Result<()> {
        let options = [
            ("--sessions", self.sessions.is_some()),
            ("--message-size", self.message_size.is_some()),
            ("--messages", self.messages.is_some()),
            ("--rounds", self.rounds.is_some()),
            ("--budget", self.budget.is_some()),
            ("--until-decided", self.until_decided),
            ("--counts", self.counts),
            ("--quiet", self.quiet),
        ];
        match options.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => bail!("{option} has no effect on stored runs: it needs --contestant or --self"),
            None => Ok(()),
        }
    }

    /// Lets the contestants run in rounds, prints how they compare, and writes the requested files.
    ///
    /// # Errors
    ///
    /// Returns an error if there are fewer than two contestants, if two of them have the same name, if the sink cannot
    /// run, or if a file cannot be written.
    pub(crate) fn run(&self, output: &CompareOutputArgs) -> Result<ExitCode> {
        let reference = self.reference_place()?;
        let contestants = self.all_contestants()?;
        let kind = contestants[0].kind();
        self.check_kind(kind)?;
        let usual = match kind {
            LiveKind::Scenario => (SCENARIO_ROUNDS, SCENARIO_BUDGET),
            LiveKind::Source | LiveKind::Server => (ROUNDS, BUDGET),
        };
        let options = RoundsOptions {
            contestants,
            reference,
            to: self.to.clone(),
            sink: self.sink_place(kind),
            sessions: self.sessions.unwrap_or(SESSIONS),
            message_bytes: self.message_size.unwrap_or(MESSAGE_BYTES),
            messages: self.messages,
            rounds: self.rounds.map_or(usual.0, |rounds| usize::try_from(rounds).unwrap_or(usize::MAX)),
            budget: self.budget.unwrap_or(usual.1),
            margin: output.margin,
            is_until_decided: self.until_decided,
            counts: self.counts,
            is_self: self.is_self,
            live: if self.quiet || output.is_json_out() { LiveMode::Off } else { LiveMode::Line },
        };
        let _awake = self.keep_awake.begin(true)?;
        options::announce(options.live, "these rounds take at most", options.budget);
        let comparison = compare_live(&options)?;
        let status = output.finish(comparison.page(output.fail_on_regression), &comparison)?;
        Ok(if comparison.course.interrupted { ExitCode::from(INTERRUPTED_STATUS) } else { status })
    }

    fn all_contestants(&self) -> Result<Vec<LiveCase>> {
        let mut contestants = self.contestants.clone();
        if self.is_self {
            ensure!(contestants.len() <= 1, "--self takes one --contestant");
            let one = contestants.pop().unwrap_or_else(LiveCase::own_source);
            return Ok(vec![one.clone(), one.again()]);
        }
        ensure!(contestants.len() > 1, "a comparison needs two contestants: give --contestant twice, or --self");
        for (place, one) in contestants.iter().enumerate() {
            let is_new = contestants[..place].iter().all(|other| other.name != one.name);
            ensure!(is_new, "two contestants are named {}: give each a name of its own", one.name);
        }
        Ok(contestants)
    }

    /// Refuses contestants of different kinds, and options without effect, such as `--sessions` for scenarios.
    fn check_kind(&self, kind: LiveKind) -> Result<()> {
        self.contestants.iter().try_for_each(LiveCase::check)?;
        let is_mixed = self.contestants.iter().any(|other| other.kind() != kind);
        ensure!(!is_mixed, "contestants must be of one kind: commands, or servers, or scenarios");
        let has_load = self.sessions.is_some() || self.message_size.is_some() || self.messages.is_some();
        ensure!(
            kind != LiveKind::Scenario || !has_load,
            "--sessions, --message-size and --messages have no effect on scenarios: they have their own"
        );
        ensure!(
            kind != LiveKind::Scenario || !self.counts,
            "--counts is for contestants that are commands or servers: a scenario has runs of its own"
        );
        let has_server = self.to.is_some() || self.sink.is_some() || self.sink_listen.is_some();
        ensure!(
            kind == LiveKind::Server || !has_server,
            "--to, --sink and --sink-listen are for contestants that are servers: NAME=HOST:PORT"
        );
        Ok(())
    }

    fn sink_place(&self, kind: LiveKind) -> Option<RoundSinkPlace> {
        match kind {
            LiveKind::Source => Some(RoundSinkPlace::Own),
            LiveKind::Server => {
                let running = self.sink.clone().map(RoundSinkPlace::Running);
                running.or_else(|| Some(RoundSinkPlace::Listen(self.sink_listen?.to_string())))
            }
            LiveKind::Scenario => None,
        }
    }

    fn reference_place(&self) -> Result<usize> {
        let Some(name) = &self.reference else { return Ok(0) };
        match self.contestants.iter().position(|contestant| contestant.name == *name) {
            Some(place) => Ok(place),
            None => bail!("--reference {name:?} is not the name of a contestant"),
        }
    }
}
