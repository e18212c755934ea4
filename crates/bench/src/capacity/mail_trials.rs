//! Runs the trials of a capacity search for a mail server. Each trial is a run of the bench, and consecutive runs share
//! one relay.
use super::judgement::{CapacityOptions, TrialOrder, TrialSeries, TrialSubject};
use crate::programs::own_program;
use crate::relay_keeper::RelayKeeper;
use crate::{BenchPreflight, BenchTarget, run_in_series};
use anyhow::Result;
use mailrun_capacity::TrialLoad;
use mailrun_measurement::record::{Arrival, Record};
use std::path::{Path, PathBuf};

/// Maximum length of a trial's warm-up in seconds. The load already runs during the warm-up, but is not judged yet.
const MAX_WARM_UP_S: f64 = 2.0;
/// Length of a trial's warm-up, as a share of the length of the judged part that follows.
const WARM_UP_SHARE: f64 = 0.5;

pub(super) struct MailTrials<'a> {
    options: &'a CapacityOptions,
    program: PathBuf,
    keeper: RelayKeeper,
}

impl<'a> MailTrials<'a> {
    pub(super) fn new(options: &'a CapacityOptions, directory: &Path) -> Result<Self> {
        Ok(Self { options, program: own_program()?, keeper: RelayKeeper::in_directory(directory) })
    }
}

impl TrialSeries for MailTrials<'_> {
    fn run(&mut self, order: TrialOrder<'_>) -> Result<Record> {
        let mut options = self.options.bench.clone();
        options.out = Some(order.directory.to_owned());
        options.name = order.name.to_owned();
        options.title = Some(order.title);
        // Begin each trial with a warm-up, in which the server starts processes and opens connections. Otherwise, mail
        // that waits for these processes and connections would count as a backlog.
        let warm_up_s = (order.trial.duration_s * WARM_UP_SHARE).min(MAX_WARM_UP_S);
        options.source_options = options.source_options.with("warm-up", format!("{:.0}us", warm_up_s * 1e6));
        options.workload.duration_limit_s = Some(warm_up_s + order.trial.duration_s);
        options.workload.seed = order.seed;
        (options.workload.arrival, options.workload.rate_per_s) = match order.trial.load {
            TrialLoad::FlatOut => (Arrival::Closed, None),
            TrialLoad::RatePerS(rate) => (order.arrival, Some(rate)),
        };
        if !order.is_first {
            // Only the first trial sends a preflight message, to show that the server accepts such mail. After a trial
            // with a high load, the server might refuse the preflight message.
            options.preflight = BenchPreflight::Off;
        }
        let outcome = run_in_series(&self.program, &options, &mut self.keeper)?;
        outcome.unwritten.map_or(Ok(outcome.record), Err)
    }

    fn subject(&self) -> TrialSubject {
        match self.options.bench.target {
            BenchTarget::OwnSink => TrialSubject::Sink,
            BenchTarget::Relay(_) | BenchTarget::Server { .. } => TrialSubject::Server,
        }
    }

    fn finish(&mut self) -> Result<Vec<String>> {
        self.keeper.finish(&self.options.bench)?;
        Ok(self.keeper.remarks())
    }
}
