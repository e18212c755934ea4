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
/// Each round starts the server by its recipe, sends mail through it to a sink for two seconds, and causes a fault at a
/// random moment. In every second round of kill, stop, power-cut and read-error, it sends a single message and causes
/// the fault after the 250. Under load, the sync for another message could hide a missing one. After the fault, the
/// round starts the server again and waits until its queue is empty. Then the round restarts the server and waits once
/// more, because some servers retry unreadable mail only at their next start. The audit accounts for every message that
/// was answered 250. Each round has a new directory, which is kept if mail is missing.
///
/// The verdict is PASS only if nothing that was answered 250 is missing. Duplicates are counted and allowed, unless a
/// --threshold limits them: a server that was killed cannot know what it had delivered.
///
/// A round counts only if mail was answered 250 before the fault, and if the fault ended every process of the server.
/// If no round of a fault counts, the verdict cannot be PASS. Before the rounds, the audit tries the recipe's [queue]
/// command without a fault. If this command does not report mail that waits, the verdict is INCONCLUSIVE.
///
/// With kill, all processes get SIGKILL. In the rounds 3, 4, 7, 8 and so on, they get it up to three times more while
/// the server starts again. A kill does not show whether the server syncs, because the kernel keeps the data that was
/// written. With stop, the server gets SIGTERM.
///
/// The other faults put the mail on a file system of mailrun's own, which requires root, /dev/fuse and tracefs. With
/// power-cut, all processes are killed, also while the server starts again, and unsynced data is lost as on a real file
/// system (--file-system). With disk-full, the disk has no room for half a second. With read-error, all processes are
/// killed, and a read fails while the server starts again. With write-error, a write fails once, and the server is then
/// killed. With sync-error, a sync fails once, and the power is then cut.
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
    /// File systems to simulate in power cuts, separated by commas: ext4, xfs, btrfs, strict (keeps only what POSIX
    /// demands). By default, the audit uses ext4 and xfs in every round, and btrfs and strict in one of five. Mail that
    /// only btrfs or strict loses leads to a remark, and does not change the verdict.
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_parser = file_system)]
    file_system: Vec<Profile>,
    /// Number of rounds of each fault. At 95 % confidence, 15 rounds without a loss show that at most 18.2 % of such
    /// faults lose mail, 59 rounds 5 %, and 200 rounds 1.5 %.
    #[arg(long, value_name = "N", default_value = "15", value_parser = values::rounds)]
    rounds: u32,
    /// Repeat the rounds for this time instead of --rounds, for example 2h.
    #[arg(long = "for", value_name = "TIME", value_parser = values::some_duration, conflicts_with = "rounds")]
    time: Option<Duration>,
    /// Messages per round, sent at a constant rate in two seconds. Rounds with a single message ignore it.
    #[arg(short, long, visible_short_alias = 'n', value_name = "N", default_value = "400", value_parser = values::scenario_messages)]
    messages: u64,
    /// Seed of the random moments at which the faults occur.
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Stop waiting for mail if none arrives for this long. This matters if the recipe has no [queue], or if the queue
    /// does not become empty.
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

/// Explains why a power cut lost a message that was answered 250
///
/// Prints the reply and its time, the system calls on the message's files, the data that was not durable when the 250
/// came, and the call that is missing, for example "no fsync of queue/4F00A1 before 250". If a power cut loses mail,
/// the directory of the round has the log of these calls: calls.jsonl, and calls.data with the data that was written.
///
/// A file belongs to a message if it ever held the message's trace header (X-Mailrun), or if its name or contents have
/// the queue id from the reply. Log files and files with several messages do not count. The file system that the round
/// simulates decides which data is durable.
#[derive(Debug, Args)]
#[command(after_help = EXPLAIN_EXAMPLES)]
struct ExplainArgs {
    /// Directory of an audit, or of one of its rounds.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Number of the message whose loss is explained. Without a number, all lost messages are listed.
    #[arg(value_name = "MESSAGE")]
    message: Option<u64>,
    /// Start the server on the files that the power cut left (requires root), and list the messages that it delivers.
    /// Then restart it, at most 50 times, to find the least unsynced data that must survive to save the message, and
    /// the least with which it is lost. The commands come from the recipe stored in RUN, so use this option only with
    /// an audit that you trust.
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
