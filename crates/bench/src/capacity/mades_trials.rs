//! Trials of a MADES endpoint: runs of the bench of MADES, against the stand-in or an endpoint of the user's.
use super::MadesCapacityOptions;
use super::judgement::TrialSubject;
use super::trial_series::{TrialOrder, TrialSeries};
use crate::mades::{self, MadesTarget};
use anyhow::Result;
use mailrun_capacity::TrialLoad;
use mailrun_journey::record::{Arrival, Record};
use mailrun_party::interrupt::Interrupted;

pub(super) struct MadesTrials<'a> {
    options: &'a MadesCapacityOptions,
}

impl<'a> MadesTrials<'a> {
    pub(super) fn new(options: &'a MadesCapacityOptions) -> Self {
        Self { options }
    }
}

impl TrialSeries for MadesTrials<'_> {
    fn run(&mut self, order: TrialOrder<'_>) -> Result<Option<Record>> {
        let mut options = self.options.bench.clone();
        options.bench_options.extend(words(&order));
        let no_preflight = "--no-preflight".to_owned();
        let is_repeated = !order.is_first && options.target != MadesTarget::StandIn;
        if is_repeated && !options.bench_options.contains(&no_preflight) {
            // The first has shown that an endpoint answers; under load its answers come late.
            options.bench_options.push(no_preflight);
        }
        options.out = Some(order.directory.to_owned());
        options.name = order.name.to_owned();
        options.title = Some(order.title);
        options.workload.duration_limit_s = Some(order.trial.duration_s);
        options.workload.seed = order.seed;
        (options.workload.arrival, options.workload.rate_per_s) = match order.trial.load {
            TrialLoad::FlatOut => (Arrival::Closed, None),
            TrialLoad::RatePerS(rate) => (order.arrival, Some(rate)),
        };
        let outcome = match mades::run(&options) {
            Err(error) if error.downcast_ref::<Interrupted>().is_some() => return Ok(None),
            outcome => outcome?,
        };
        outcome.unwritten.map_or(Ok(Some(outcome.record)), Err)
    }

    fn subject(&self) -> TrialSubject {
        TrialSubject::Server
    }

    fn finish(&mut self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// The load of a trial as options of `mailrun mades`.
fn words(order: &TrialOrder<'_>) -> Vec<String> {
    let mut words = vec![format!("--duration={:.0}us", order.trial.duration_s * 1e6), format!("--seed={}", order.seed)];
    if let TrialLoad::RatePerS(rate) = order.trial.load {
        let arrival = if order.arrival == Arrival::Poisson { "poisson" } else { "constant" };
        words.extend([format!("--rate={rate}"), format!("--arrival={arrival}")]);
    }
    words
}
