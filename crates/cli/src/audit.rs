//! `mailrun audit RECIPE`: checks whether a server keeps the mail that it accepted with 250.
use crate::options::values;
use crate::report::results::{ReportArgs, Strictness};
use crate::source;
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use mailrun_bench::audit::{AuditFault, AuditLength, AuditOptions, Profile};
use mailrun_bench::recipe::Recipe;
use mailrun_measurement::threshold::Threshold;
use mailrun_process::live::LiveMode;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Audits whether a server keeps the mail that it answered 250, when it is killed or stopped
///
/// Starts the server by its recipe in a directory of its own, sends mail through it to a sink for two seconds, and makes a
/// fault at a random moment. In every second round it sends a single message, and makes the fault after the 250, because load
/// hides what is never synced. Then starts the server again, waits until its queue is empty, and does both once more, because a
/// server may leave mail that it could not read until its next start. Accounts for every message that was answered 250.
/// Each round has a new directory, which is kept if mail is missing.
///
/// The verdict is PASS only if nothing that was answered 250 is missing. Duplicates are counted and allowed, unless a
/// --threshold limits them: a server that was killed cannot know what it had delivered.
///
/// A round counts only if mail was answered 250 before the fault, and if the fault ended every process of the server. A fault
/// without a round that counts is no PASS. First, the recipe's [queue] command is tried without a fault: if it does not show
/// mail that waits, the verdict is INCONCLUSIVE.
///
/// Faults: kill is SIGKILL to all processes, in every second pair of rounds up to three times more while the server
/// starts again. It does not show whether the server syncs, because what it wrote is in the memory of the kernel. stop
/// is SIGTERM. The others put the mail on a file system of mailrun's own, as root with /dev/fuse and tracefs: power-cut
/// kills all processes, also while the server starts again, and drops unsynced data as a real file system may
/// (--file-system); with disk-full there is no room for half a second; read-error is kill, and a read fails while the
/// server starts again; with write-error a write fails once, and then the server is killed; with sync-error a sync
/// fails once, and then the power is cut.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true,
          disable_help_subcommand = true, override_usage = "mailrun audit [OPTIONS] <RECIPE>\n       mailrun audit explain <RUN> [MESSAGE]")]
pub(super) struct AuditArgs {
    #[command(subcommand)]
    explain: Option<AuditCommand>,
    /// Recipe of the server: a name (mailrun recipe list), or FILE.toml.
    #[arg(value_name = "RECIPE", value_parser = recipe, required = true)]
    recipe: Option<Recipe>,
    /// Faults, separated by commas: kill, stop, power-cut, disk-full, read-error, write-error, sync-error.
    #[arg(long, value_name = "FAULT,FAULT", value_delimiter = ',', default_value = "kill,stop,power-cut")]
    inject: Vec<AuditFault>,
    /// File systems that the disk behaves like when its power is cut, separated by commas: ext4, xfs, btrfs, strict
    /// (POSIX's letter). Without this option, ext4 and xfs in every round, and btrfs and strict in one of five: mail
    /// that only these two lose is a remark.
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_parser = file_system)]
    file_system: Vec<Profile>,
    /// Rounds of each fault. 15 without a loss show that fewer than 18.2 % of such faults lose mail, at 95 % confidence; 59
    /// show 5 %, and 200 show 1.5 %.
    #[arg(long, value_name = "N", default_value = "15", value_parser = values::rounds)]
    rounds: u32,
    /// Runs rounds for this time instead, for example 2h.
    #[arg(long = "for", value_name = "TIME", value_parser = values::some_duration, conflicts_with = "rounds")]
    time: Option<Duration>,
    /// Messages of a round, sent at a constant rate in two seconds.
    #[arg(short, long, visible_short_alias = 'n', value_name = "N", default_value = "400", value_parser = values::scenario_messages)]
    messages: u64,
    /// Seed from which the moments of the faults are drawn.
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Pause in arrivals after which no more mail is expected, if the recipe has no [queue], or the queue does not become
    /// empty.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::some_duration)]
    lost_after: Duration,
    /// Condition that all rounds together must meet, repeatable: 'lost <= 0.1%', 'duplicates <= 1%'.
    #[arg(long = "threshold", value_name = "EXPRESSION", value_parser = source::threshold, help_heading = "Verdict")]
    thresholds: Vec<Threshold>,
    #[command(flatten)]
    report: ReportArgs,
    /// Run directory, instead of a new one in mailrun-results. The server keeps its mail there.
    #[arg(long, value_name = "DIR", value_parser = values::directory, help_heading = "Results")]
    out: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    Explain(ExplainArgs),
}

/// Explains why a power cut took a message that was answered 250
///
/// Prints the reply and its time, the calls on the server's files that concern the message, what was not durable when the 250
/// came, and the call that is missing, for example "no fsync of queue/4F00A1 before 250". Each round with a power cut that lost
/// mail has the log of these calls in its directory: calls.jsonl, and calls.data with what was written.
///
/// Files belong to a message if they ever held its trace (X-Mailrun), or if their names or contents have the queue id of its
/// reply. Logs and files of several messages do not. What is durable depends on the file system of the round.
#[derive(Debug, Args)]
#[command(after_help = EXPLAIN_EXAMPLES)]
struct ExplainArgs {
    /// Directory of an audit, or of one of its rounds.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Number of the message. Without it, lists what was lost.
    #[arg(value_name = "MESSAGE")]
    message: Option<u64>,
    /// Start the server on what the power cut left, as root, and tell what it delivers. Then find out, in at most 50
    /// restarts, how much of the unsynced data may survive while the message is still lost, and how much must survive
    /// to save it. This runs the recipe that is in RUN, so do it only with an audit that you trust.
    #[arg(long, requires = "message")]
    restart: bool,
}

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  mailrun audit explain DIR                    lists what was lost
  mailrun audit explain DIR 17                 why message 17 was lost
  mailrun audit explain DIR/round-2-power-cut-on-ext4 0
  mailrun audit explain DIR 17 --restart       as root

Exit status: 0 explained, or not lost, which is said; 2 no such run or message, or
a damaged file.";

const EXAMPLES: &str = "\
Examples:
  mailrun audit mailrun                        mailrun's own relay
  mailrun audit mailrun:memory --inject kill   finds what it loses
  mailrun audit mailrun:write --inject power-cut
  mailrun audit postfix --for 2h               as root
  mailrun audit mailrun --threshold 'duplicates <= 50%'
  mailrun recipe show postfix > my.toml    then: mailrun audit my.toml
  mailrun audit explain DIR                    why mail was lost by a power cut

Exit status:
    0  PASS: nothing that was answered 250 is missing
    1  FAIL: mail is lost or changed, the server did not come back, or a
       threshold was missed
    2  the server could not run; one line says why
    3  INCONCLUSIVE: mail did not arrive, and may be in the server's queue;
       no round of a fault counts; a round failed that had needed more than
       the audit's disk can do; or the [queue] command is wrong
  130  interrupted; the rounds so far are reported";

fn file_system(typed: &str) -> Result<Profile, String> {
    let found = Profile::ALL.into_iter().find(|profile| profile.name() == typed);
    found.ok_or_else(|| format!("{typed:?} is not one of {}", Profile::ALL.map(Profile::name).join(", ")))
}

fn recipe(typed: &str) -> Result<Recipe, String> {
    Recipe::load(typed).map_err(|error| format!("{error:#}"))
}

impl AuditArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        if let Some(AuditCommand::Explain(ExplainArgs { run, message, restart })) = self.explain {
            crate::report::messages::say(&mailrun_bench::audit::explain(&run, message, restart)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let recipe = self.recipe.context("no recipe was named")?;
        let live = self.report.live(LiveMode::Line);
        self.report.open(live)?;
        let outcome = mailrun_bench::audit::run(&AuditOptions {
            recipe,
            faults: self.inject,
            file_systems: self.file_system,
            length: self.time.map_or(AuditLength::Rounds(self.rounds), AuditLength::Time),
            seed: self.seed,
            messages: self.messages,
            lost_after: self.lost_after,
            thresholds: self.thresholds,
            out: self.out,
            live,
            command: mailrun_process::outputs::command_line(),
        })?;
        self.report.finish(&outcome.record, Some(&outcome.directory))?;
        let status = crate::report::results::exit_code(&outcome.record, Strictness::Strict);
        outcome.unwritten.map_or(Ok(status), Err)
    }
}
