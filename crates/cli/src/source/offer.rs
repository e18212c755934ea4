//! Converts `--rate`, `--stage` and `--arrival` into the load that a closed or an open loop offers, and checks that
//! thresholds fit this load.
use anyhow::{Result, bail};
use mailrun_load::source::{OfferedRate, RateStage};
use mailrun_measurement::Stage;
use mailrun_measurement::record::Arrival;
use mailrun_measurement::threshold::{MetricSource, Threshold};
use mailrun_measurement::trace::MAX_LOAD_STAGES;
use mailrun_text::words::listed;

/// Returns how messages are distributed over time. Without a rate or stages, the load is a closed loop.
pub(crate) fn arrival_with(typed: Option<Arrival>, offer: Option<&OfferedRate>) -> Arrival {
    offer.map_or(Arrival::Closed, |_| typed.unwrap_or(Arrival::Constant))
}

/// Returns the rates that an open loop offers, or `None` for a closed loop.
///
/// # Errors
///
/// Returns an error if no stage offers any messages, or if two stages have the same name.
pub(crate) fn offered_rate(rate: Option<f64>, stages: &[RateStage]) -> Result<Option<OfferedRate>> {
    if stages.is_empty() {
        return Ok(rate.map(OfferedRate::Constant));
    }
    if stages.iter().all(|stage| stage.from_per_s + stage.to_per_s == 0.0) {
        bail!("--stage: these stages offer no messages");
    }
    let names = stages.iter().filter_map(|stage| stage.name.as_ref());
    if let Some(name) = names.clone().find(|name| names.clone().filter(|other| other == name).count() > 1) {
        bail!("--stage: two stages are named {name}: give each a name of its own");
    }
    Ok(Some(OfferedRate::Stages(stages.to_vec())))
}

/// Refuses thresholds for the time from when a message is due until it is created. In a closed loop, this time is
/// always 0, because a message is due when it is created.
pub(crate) fn check_closed_loop<'t>(mut thresholds: impl Iterator<Item = &'t Threshold>) -> Result<()> {
    let created = Some(MetricSource::Stage(Stage::Created));
    match thresholds.find(|threshold| threshold.is_of_time() && threshold.source() == created) {
        Some(threshold) => bail!(
            "{}: in a closed loop a message is due when it is created; say --rate, or ask for sent",
            threshold.expression()
        ),
        None => Ok(()),
    }
}

/// Refuses thresholds for stages that the load does not have, or that have no figures of their own because they come
/// after the first [`MAX_LOAD_STAGES`].
pub(crate) fn check_load_stages(thresholds: &[Threshold], stages: &[RateStage]) -> Result<()> {
    let names: Vec<String> = stages.iter().enumerate().map(|(place, stage)| stage.name_at(place)).collect();
    for threshold in thresholds {
        let Some(name) = threshold.load_stage() else { continue };
        match names.iter().position(|known| known == name) {
            Some(place) if place < MAX_LOAD_STAGES => {}
            Some(_) => bail!(
                "{}: only the first {MAX_LOAD_STAGES} stages of a load have figures of their own",
                threshold.expression()
            ),
            None if names.is_empty() => {
                bail!("{}: the load has no stages: use --stage {name}=TIME:RATE", threshold.expression())
            }
            None => bail!("{}: the load has no stage {name}; it has {}", threshold.expression(), listed(&names)),
        }
    }
    Ok(())
}
