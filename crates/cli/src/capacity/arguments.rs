//! The options that `mailrun capacity` has for both SMTP and MADES: how to search, for which demand to plan, and where
//! to write the results.
use crate::options;
use crate::options::values;
use anyhow::{Result, bail};
use clap::Args;
use mailrun_bench::capacity::{SearchCourse, save, short_trials_remark};
use mailrun_capacity::{CONFIRMATION_SHARES, PlanningInputs, SearchEnding, SearchSettings};
use mailrun_measurement::record::Outcome;
use mailrun_measurement::threshold::{LossGoal, Threshold};
use mailrun_process::interrupt::INTERRUPTED_STATUS;
use mailrun_process::live::LiveMode;
use mailrun_process::output_file::{self, is_standard_output};
use mailrun_process::terminal::CharacterSet;
use mailrun_report::capacity::{CapacityRun, capacity_json, capacity_text, capacity_verdict};
use mailrun_report::core_capacity::{CoreCapacity, core_capacity_json};
use std::path::PathBuf;
use std::time::Duration;

/// Default of `--confirm`, the length of each confirmation trial. With `--quick`, the default is `QUICK_CONFIRM`.
const CONFIRM: Duration = Duration::from_secs(60);
const QUICK_CONFIRM: Duration = Duration::from_secs(10);
/// Options that say where a search writes its results, and how much of them it prints.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Results")]
pub(crate) struct CapacityOutputArgs {
    /// Directory of the results, instead of a new one in mailrun-results.
    #[arg(long, value_name = "DIR", value_parser = values::directory)]
    pub(crate) out: Option<PathBuf>,
    /// Name of the search in reports.
    #[arg(long, value_name = "NAME", default_value = "capacity")]
    pub(crate) label: String,
    /// Write the result as JSON to FILE; - is standard output, to which then nothing else is written.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print the verdict alone.
    #[arg(short, long)]
    quiet: bool,
}

/// Options for the rates that a search tries, and for the time that it may take.
#[derive(Debug, Args)]
#[command(next_help_heading = "Search")]
pub(crate) struct SearchArgs {
    /// Search in a fifth of the time, with trials of 2 s and bounds within 5 % instead of 2 %.
    #[arg(long, conflicts_with = "rfc2544")]
    quick: bool,
    /// Search by bisection as in RFC 2544: a rate gets one trial of 60 s, and is rejected if this trial is bad.
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
    /// Maximum total time of all trials, without the confirmation [default: 20m; with --rfc2544 1h].
    #[arg(long, value_name = "TIME", value_parser = values::some_duration)]
    max_time: Option<Duration>,
    /// Length of each of the three confirmation trials; 0s skips them [default: 60s; with --quick 10s].
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    confirm: Option<Duration>,
}

/// Options for the plan in the report, which says how many instances of the server a given peak rate needs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Planning")]
pub(crate) struct PlanningArgs {
    /// Peak rate for which to plan the number of instances and their headroom.
    #[arg(long, value_name = "RATE", value_parser = values::rate)]
    peak: Option<f64>,
    /// Share of its capacity that each instance may use, as a number from 0 to 1.
    #[arg(long, value_name = "SHARE", default_value = "0.6", value_parser = values::probability)]
    safety: f64,
    /// Plan for users who each cause this number of messages in the busy hour.
    #[arg(long, value_name = "N", value_parser = values::some)]
    messages_per_user: Option<u64>,
}

/// Converts a threshold into a goal for the search.
///
/// # Errors
///
/// Returns an error if the threshold is not a limit on late, rejected or failed messages, because the search can judge
/// only these.
pub(crate) fn loss_goal(threshold: &Threshold) -> Result<LossGoal, String> {
    Some(threshold).filter(|threshold| threshold.load_stage().is_none()).and_then(Threshold::loss_goal).ok_or_else(
        || {
            "a goal is a percentile, max or within() of sent, accepted or delivered, or rejected or failed in percent"
                .to_owned()
        },
    )
}

impl PlanningArgs {
    /// Returns the peak rate, the messages per user and the other inputs of the plan. The field `capacity_per_s` is 0,
    /// because the search has yet to find the capacity. Fails if `--safety` is not above zero.
    pub(crate) fn inputs(&self) -> Result<PlanningInputs> {
        if self.safety <= 0.0 {
            bail!("--safety must be above zero");
        }
        Ok(PlanningInputs {
            capacity_per_s: 0.0,
            safety: self.safety,
            peak_per_s: self.peak,
            messages_per_user: self.messages_per_user.map(|messages| messages as f64),
            cores: std::thread::available_parallelism().ok().map(|cores| cores.get() as f64),
        })
    }
}

impl CapacityOutputArgs {
    pub(crate) fn live(&self) -> LiveMode {
        if self.quiet || self.json.is_some() { LiveMode::Off } else { LiveMode::Line }
    }

    /// If the searches print no progress, tells the user how long they can take at most. Without this text, a long
    /// search would look like a program that hangs.
    pub(crate) fn announce(&self, course: &SearchCourse, searches: usize) {
        let trials = Duration::try_from_secs_f64(course.settings.time_limit_s).unwrap_or_default();
        let confirmation = course.confirm.unwrap_or_default() * CONFIRMATION_SHARES.len() as u32;
        let work = if searches == 1 { "this search takes at most about" } else { "these searches take at most about" };
        options::announce(self.live(), work, (trials + confirmation) * searches as u32);
    }

    /// Checks that the file of `--json` can be written. Must be called before the search, so that the user learns of a
    /// mistake in the path at once, and not after many minutes.
    pub(crate) fn check(&self) -> Result<()> {
        self.json.as_ref().filter(|_| self.has_text()).map_or(Ok(()), |path| output_file::check(path))
    }

    /// Saves the result of a search, and prints it unless standard output is for JSON. Returns the result as JSON.
    pub(crate) fn report(&self, run: &CapacityRun, by_cores: &[CoreCapacity]) -> Result<String> {
        let value = run_json(run, by_cores)?;
        let text = capacity_text(run);
        save(run, &value, &text)?;
        if self.has_text() {
            say(if self.quiet { capacity_verdict(run) } else { text })?;
        }
        Ok(value)
    }

    /// Writes the JSON to the file or to standard output. Does nothing without `--json`.
    pub(crate) fn write_json(&self, value: &str) -> Result<()> {
        match &self.json {
            Some(path) if self.has_text() => output_file::write(path, value),
            Some(_) => crate::report::messages::say(value),
            None => Ok(()),
        }
    }

    /// Prints text such as a further table, unless `--quiet` or `--json -` has suppressed the report.
    pub(crate) fn print_more(&self, text: String) -> Result<()> {
        if self.has_text() && !self.quiet { say(text) } else { Ok(()) }
    }

    /// Returns false if the JSON goes to standard output, because no other text may be printed there.
    fn has_text(&self) -> bool {
        !self.json.as_deref().is_some_and(is_standard_output)
    }
}

impl SearchArgs {
    /// Returns the settings of a search. They include the longest latency limit in `goals`, because each trial must
    /// last at least 20 times this limit. Ignores limits for which trials cannot last that long, and warns the user
    /// about such a limit if it is shorter than a trial. Fails if the lowest rate is not below the highest.
    pub(crate) fn settings_for(&self, goals: &[LossGoal]) -> Result<SearchSettings> {
        let settings = self.settings()?;
        // In an overload, a trial must give the backlog time to grow until messages exceed a goal's latency limit. So a
        // trial lasts at least 20 times the longest limit. Ignore a limit if trials cannot last that long.
        let limits = goals.iter().filter_map(LossGoal::limit).map(|limit| limit.as_secs_f64());
        let goal_limit_s = limits.filter(|limit_s| settings.holds_limit(*limit_s)).fold(0.0, f64::max);
        // Warn before the search about trials that are too short, because the report says so only many minutes later.
        for remark in goals.iter().filter_map(|goal| short_trials_remark(goal, &settings)) {
            mailrun_process::tell!("mailrun: {remark}");
        }
        Ok(SearchSettings { goal_limit_s, ..settings })
    }

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

    /// Returns the length of a confirmation trial, or `None` if the user turned confirmation off with a length of 0.
    pub(crate) fn confirm(&self) -> Option<Duration> {
        let usual = if self.quick { QUICK_CONFIRM } else { CONFIRM };
        Some(self.confirm.unwrap_or(usual)).filter(|length| !length.is_zero())
    }
}

/// Returns the worse of the exit statuses of two searches. A failed server (1) is worse than a search without a result
/// (3), and an interrupt is worse than both.
pub(crate) fn worse_status(one: u8, other: u8) -> u8 {
    let rank = |status: &u8| [0, 3, 1, INTERRUPTED_STATUS].iter().position(|known| known == status);
    std::cmp::max_by_key(one, other, rank)
}

/// Returns an error if the user gave one of these options, because a search chooses their values itself. The boolean
/// before an option's name is true if the user gave this option.
pub(crate) fn refuse_in_search(options: &[(bool, &str)]) -> Result<()> {
    match options.iter().find(|(is_set, _)| *is_set) {
        Some((_, option)) => {
            bail!("{option} has no effect on a search, which chooses rates and lengths itself; requirements are --goal")
        }
        None => Ok(()),
    }
}

pub(crate) fn exit_status(run: &CapacityRun) -> u8 {
    let CapacityRun { result, lost, interrupted, .. } = run;
    match result.ending {
        _ if matches!(lost, Some((Outcome::Fail, _))) => 1,
        _ if lost.is_some() => 3,
        _ if *interrupted => INTERRUPTED_STATUS,
        SearchEnding::Complete | SearchEnding::TimeLimit if run.capacity_per_s().is_some() => 0,
        SearchEnding::Complete if result.has_capacity() => 3,
        SearchEnding::Complete | SearchEnding::MailLost => 1,
        SearchEnding::TimeLimit | SearchEnding::Void | SearchEnding::Stopped => 3,
    }
}

fn run_json(run: &CapacityRun, by_cores: &[CoreCapacity]) -> Result<String> {
    let mut value = capacity_json(run);
    if !by_cores.is_empty() {
        value["by_cores"] = core_capacity_json(by_cores);
    }
    Ok(format!("{}\n", serde_json::to_string_pretty(&value)?))
}

fn say(text: String) -> Result<()> {
    crate::report::messages::say(&CharacterSet::of_environment().encode(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_about_the_server_is_not_hidden_by_a_search_without_one() {
        let of = |statuses: &[u8]| statuses.iter().copied().fold(0, worse_status);
        assert_eq!([of(&[0, 0]), of(&[3, 0]), of(&[3, 1]), of(&[1, 3]), of(&[1, 130])], [0, 3, 1, 1, 130]);
    }
}
