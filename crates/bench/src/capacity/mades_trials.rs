//! Runs the trials of a capacity search for a MADES endpoint. Each trial is a run of the MADES bench, against an
//! endpoint that the bench simulates or against the user's endpoint.
use super::judgement::{MadesCapacityOptions, TrialOrder, TrialSeries, TrialSubject};
use crate::mades::{self, MadesTarget};
use anyhow::Result;
use mailrun_capacity::TrialLoad;
use mailrun_measurement::record::{Arrival, Record};
use mailrun_process::party_options::value_name;

pub(super) struct MadesTrials<'a> {
    options: &'a MadesCapacityOptions,
}

impl<'a> MadesTrials<'a> {
    pub(super) fn new(options: &'a MadesCapacityOptions) -> Self {
        Self { options }
    }
}

impl TrialSeries for MadesTrials<'_> {
    fn run(&mut self, order: TrialOrder<'_>) -> Result<Record> {
        let mut options = self.options.bench.clone();
        let (arrival, rate) = match order.trial.load {
            TrialLoad::FlatOut => (Arrival::Closed, None),
            TrialLoad::RatePerS(rate) => (order.arrival, Some(rate)),
        };
        options.bench_options = options
            .bench_options
            .with("duration", format!("{:.0}us", order.trial.duration_s * 1e6))
            .with("seed", order.seed)
            .with_some("rate", rate)
            .with_some("arrival", rate.map(|_| value_name(arrival)))
            // With a real endpoint, only the first trial sends a preflight message, to show that the endpoint answers.
            // After a trial with a high load, the endpoint might answer a preflight message too late.
            .flag("no-preflight", !order.is_first && options.target != MadesTarget::StandIn);
        options.out = Some(order.directory.to_owned());
        options.name = order.name.to_owned();
        options.title = Some(order.title);
        options.workload.duration_limit_s = Some(order.trial.duration_s);
        options.workload.seed = order.seed;
        (options.workload.arrival, options.workload.rate_per_s) = (arrival, rate);
        let outcome = mades::run(&options)?;
        outcome.unwritten.map_or(Ok(outcome.record), Err)
    }

    fn subject(&self) -> TrialSubject {
        TrialSubject::Server
    }

    fn finish(&mut self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}
