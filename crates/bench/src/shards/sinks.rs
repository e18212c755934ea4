//! The sinks of a run: running sinks, and directories of sinks that have ended. A message has
//! arrived if it is at any of them.
use super::clocks::SinkHostClock;
use super::parts::{Parts, read_ledger, read_record};
use crate::gather::SinkResults;
use crate::remote_sink::{POLL_INTERVAL, QUIET_TIMEOUT, RemoteSink};
use anyhow::{Result, anyhow, bail, ensure};
use mailrun_journey::ledger::Ledger;
use mailrun_journey::record::Record;
use mailrun_journey::trace::RunId;
use mailrun_journey::union::RecordUnion;
use mailrun_party::interrupt::{Interrupt, Interrupted, StopRequest};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

pub(super) struct Sinks(Vec<SinkPlace>);

/// What arrived at all sinks together.
pub(super) struct AllArrivals {
    pub(super) results: SinkResults,
    /// Clocks of the sinks at which something arrived.
    pub(super) clocks: Vec<SinkHostClock>,
}

enum SinkPlace {
    Running { sink: RemoteSink, address: String },
    Ended(PathBuf),
}

struct SinkFiles {
    record: Option<Record>,
    units: Ledger,
    bounced: Ledger,
}

impl Sinks {
    /// Connects to the running sinks before any part is read, so that a missing sink is noticed
    /// early.
    pub(super) fn open(places: &[String]) -> Result<Self> {
        let open = |place: &String| {
            let path = PathBuf::from(place);
            if path.is_dir() {
                return Ok(SinkPlace::Ended(path));
            }
            Ok(SinkPlace::Running { sink: RemoteSink::connect(place)?, address: place.clone() })
        };
        Ok(Self(places.iter().map(open).collect::<Result<_>>()?))
    }

    /// Waits until everything that was accepted has arrived, or until nothing new arrives. Then
    /// merges the results of all sinks. Returns `None` if there are no sinks.
    ///
    /// # Errors
    /// Returns an error if a sink does not answer or its files cannot be read.
    pub(super) fn collect(&self, parts: &Parts) -> Result<Option<AllArrivals>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let run: RunId = parts.source.run_id.parse().map_err(|error| anyhow!("{error}: {}", parts.source.run_id))?;
        self.await_arrivals(run, parts)?;
        let mut union = RecordUnion::default();
        let mut units = Ledger::with_limit(super::parts::MAX_LEDGER_BYTES);
        let mut bounced = Ledger::with_limit(super::parts::MAX_LEDGER_BYTES);
        let mut clocks = Vec::new();
        let mut duplicate_count = 0_u64;
        let mut overflow_count = 0_u64;
        for (number, place) in self.0.iter().enumerate() {
            let results = place.results(run)?;
            let sink_units = units_within(results.units, parts.numbers.as_deref());
            let merged = units.merge(&sink_units);
            bounced.merge(&units_within(results.bounced, parts.numbers.as_deref()));
            duplicate_count = duplicate_count.saturating_add(merged.again);
            overflow_count = overflow_count.saturating_add(merged.full);
            let name = if self.0.len() == 1 { "sink".to_owned() } else { format!("sink {number}") };
            if let Some(record) = results.record {
                if sink_units.count() > 0 {
                    let boot = record.clock.as_ref().map(|clock| clock.boot.clone()).unwrap_or_default();
                    clocks.push(SinkHostClock { sink: place.name(), boot });
                }
                union.add(record, &name).map_err(|reason| anyhow!("{}: {reason}", place.name()))?;
            }
        }
        let mut record = union.finish("sink");
        if let Some(record) = &mut record {
            let ledger = &mut record.ledger;
            // A unit that is at two sinks is a duplicate.
            ledger.duplicates = Some(ledger.duplicates.unwrap_or_default().saturating_add(duplicate_count));
            ledger.overflow = Some(ledger.overflow.unwrap_or_default().saturating_add(overflow_count));
        }
        Ok(Some(AllArrivals { results: SinkResults { record, units: Some(units), bounced }, clocks }))
    }

    /// Waits while messages are still on their way to a running sink.
    fn await_arrivals(&self, run: RunId, parts: &Parts) -> Result<()> {
        let running: Vec<&RemoteSink> = self.0.iter().filter_map(SinkPlace::running).collect();
        if running.is_empty() {
            return Ok(());
        }
        let interrupt = Interrupt::watch()?;
        let mut arrived = None;
        let mut quiet_since = Instant::now();
        loop {
            let mut now = 0_u64;
            for sink in &running {
                now = now.saturating_add(sink.run_status(run)?.settled());
            }
            if Some(now) > arrived {
                arrived = Some(now);
                quiet_since = Instant::now();
                // Counts are not enough: a sink may also have mail of a part that is missing here,
                // and messages whose 250 never reached the source.
                if parts.units.count_without(&self.settled(run)?) == 0 {
                    return Ok(());
                }
            }
            if quiet_since.elapsed() >= QUIET_TIMEOUT {
                return Ok(());
            }
            if interrupt.requested() != StopRequest::Nothing {
                bail!(Interrupted::BEFORE_REPORT);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the units whose fate some sink knows.
    fn settled(&self, run: RunId) -> Result<Ledger> {
        let mut units = Ledger::with_limit(super::parts::MAX_LEDGER_BYTES);
        for place in &self.0 {
            let results = place.results(run)?;
            units.merge(&results.units);
            units.merge(&results.bounced);
        }
        Ok(units)
    }
}

/// Keeps the units of the messages with the given numbers. `None` keeps all units.
fn units_within(units: Ledger, numbers: Option<&[Range<u64>]>) -> Ledger {
    match numbers {
        Some(numbers) => units.within(numbers),
        None => units,
    }
}

impl SinkPlace {
    fn name(&self) -> String {
        match self {
            Self::Running { address, .. } => address.clone(),
            Self::Ended(path) => path.display().to_string(),
        }
    }

    fn running(&self) -> Option<&RemoteSink> {
        match self {
            Self::Running { sink, .. } => Some(sink),
            Self::Ended(_) => None,
        }
    }

    fn results(&self, run: RunId) -> Result<SinkFiles> {
        match self {
            Self::Running { sink, .. } => {
                let record = sink.record(run)?;
                let (units, bounced) = sink.units(run)?;
                Ok(SinkFiles { record, units, bounced })
            }
            Self::Ended(path) => {
                let record = read_record(&path.join("run.json"))?;
                ensure!(
                    record.run_id == run.to_string(),
                    "{} is of run {}, and the parts are of {run}: give the sink --run-id",
                    path.display(),
                    record.run_id
                );
                let (units, bounced) = read_ledger(path)?;
                Ok(SinkFiles { record: Some(record), units, bounced })
            }
        }
    }
}
