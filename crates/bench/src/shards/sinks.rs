//! The sinks of a run. The merge asks a running sink over HTTP, and reads the files of a sink that has ended from its
//! directory. A message has arrived if at least one of these sinks has received it.
use super::parts::{Parts, SinkHostClock, read_ledger, read_record};
use crate::gather::SinkResults;
use crate::remote_sink::{POLL_INTERVAL, QUIET_TIMEOUT, RemoteSink};
use anyhow::{Result, anyhow, bail, ensure};
use mailrun_measurement::account;
use mailrun_measurement::ledger::Ledger;
use mailrun_measurement::record::{LedgerRow, Record};
use mailrun_measurement::trace::RunId;
use mailrun_measurement::union::RecordUnion;
use mailrun_process::interrupt::{Interrupt, Interrupted, StopRequest};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

pub(super) struct Sinks(Vec<SinkPlace>);

pub(super) struct AllArrivals {
    pub(super) results: SinkResults,
    /// Clocks of the sinks that received mail of this run. Delivery times are wrong by up to the difference between
    /// these clocks and the clocks of the sources.
    pub(super) clocks: Vec<SinkHostClock>,
}

enum SinkPlace {
    Running { sink: RemoteSink, address: String },
    Ended(PathBuf),
}

struct SinkFiles {
    record: Option<Record>,
    /// Units (messages for one recipient) that arrived, that bounced, and that arrived only under other addresses.
    ledgers: [Ledger; 3],
}

impl Sinks {
    /// Connects to all running sinks, so that a missing sink is noticed before the merge waits for arrivals.
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

    /// Waits until all accepted messages have arrived, or until no new ones arrive. Then merges the results of all
    /// sinks. Returns `None` if there are no sinks.
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
        let mut sum = ArrivalSum::default();
        let mut clocks = Vec::new();
        for (number, place) in self.0.iter().enumerate() {
            let results = place.results(run)?;
            let ledgers = results.ledgers.map(|units| units_within(units, parts.numbers.as_deref()));
            let has_arrivals = ledgers[0].count() > 0;
            sum.add(&ledgers);
            let name = if self.0.len() == 1 { "sink".to_owned() } else { format!("sink {number}") };
            if let Some(record) = results.record {
                if has_arrivals {
                    let boot = record.clock.as_ref().map(|clock| clock.boot.clone()).unwrap_or_default();
                    clocks.push(SinkHostClock { sink: place.name(), boot });
                }
                union.add(record, &name).map_err(|reason| anyhow!("{}: {reason}", place.name()))?;
            }
        }
        let mut record = union.finish("sink");
        if let Some(record) = &mut record {
            sum.enter(&mut record.ledger);
        }
        let ArrivalSum { units, bounced, .. } = sum;
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
                // Compare the ledgers, because the sinks' counts may be high enough although mail is missing. A sink
                // also counts mail of parts that are not merged here, and mail whose 250 never reached its source.
                if account::unsettled(&parts.units, &self.ledgers(run)?) == 0 {
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

    fn ledgers(&self, run: RunId) -> Result<[Ledger; 3]> {
        let mut sum = ArrivalSum::default();
        for place in &self.0 {
            sum.add(&place.results(run)?.ledgers);
        }
        Ok([sum.units, sum.bounced, sum.rewritten])
    }
}

/// Sum of the arrivals at several sinks. A unit is a message for one recipient. A unit that arrived at two sinks counts
/// as a duplicate, or as a copy if one of the sinks received it only under another address, such as an alias.
struct ArrivalSum {
    units: Ledger,
    bounced: Ledger,
    /// Messages that arrived only under an address to which they had not been sent, such as an alias.
    rewritten: Ledger,
    duplicates: u64,
    copied: u64,
    overflow: u64,
}

impl Default for ArrivalSum {
    fn default() -> Self {
        let [units, bounced, rewritten] = [(); 3].map(|()| Ledger::with_limit(super::parts::MAX_LEDGER_BYTES));
        Self { units, bounced, rewritten, duplicates: 0, copied: 0, overflow: 0 }
    }
}

impl ArrivalSum {
    fn add(&mut self, [units, bounced, rewritten]: &[Ledger; 3]) {
        let own = |units: &Ledger, rewritten: &Ledger| {
            let mut own = units.clone();
            own.remove(rewritten);
            own
        };
        let [ours, theirs] = [own(&self.units, &self.rewritten), own(units, rewritten)];
        // If two sinks received a message under the address to which it was sent, count a duplicate. If one of the
        // sinks received the message under another address, such as an alias, count a copy.
        let again = theirs.count() - theirs.count_without(&ours);
        let merged = self.units.merge(units);
        self.duplicates = self.duplicates.saturating_add(again);
        self.copied = self.copied.saturating_add(merged.again - again);
        self.overflow = self.overflow.saturating_add(merged.full);
        self.bounced.merge(bounced);
        self.rewritten.merge(rewritten);
        self.rewritten.remove(&ours);
        self.rewritten.remove(&theirs);
    }

    /// Completes `ledger`, the sum of the sinks' own counts, with figures that no single sink knows, for example the
    /// number of units that arrived at two sinks.
    fn enter(&self, ledger: &mut LedgerRow) {
        let add = |count: &mut Option<u64>, more: u64| *count = Some(count.unwrap_or_default().saturating_add(more));
        add(&mut ledger.duplicates, self.duplicates);
        add(&mut ledger.copied, self.copied);
        add(&mut ledger.overflow, self.overflow);
        ledger.rewritten = Some(self.rewritten.count());
    }
}

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
                Ok(SinkFiles { record, ledgers: sink.units(run)? })
            }
            Self::Ended(path) => {
                let record = read_record(&path.join("run.json"))?;
                ensure!(
                    record.run_id == run.to_string(),
                    "{} is of run {}, and the parts are of {run}: give the sink --run-id",
                    path.display(),
                    record.run_id
                );
                Ok(SinkFiles { record: Some(record), ledgers: read_ledger(path)? })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_at_two_sinks_is_a_copy_if_it_is_at_one_under_another_address() {
        const U: &[u64] = &[1];
        // Each sink has two lists. The first list has all messages that arrived at the sink. The second list has the
        // messages that arrived only under an alias, and not under the address to which they were sent.
        for (what, sinks, [delivered, duplicates, copied, rewritten]) in [
            ("at one sink", &[[U, &[]], [&[2], &[]]][..], [2, 0, 0, 0]),
            ("twice under its own address", &[[U, &[]], [U, &[]]], [1, 1, 0, 0]),
            ("an alias of two, each at a sink", &[[U, U], [U, U]], [1, 0, 1, 1]),
            ("itself, and another", &[[U, &[]], [U, U]], [1, 0, 1, 0]),
            ("another, and itself", &[[U, U], [U, &[]]], [1, 0, 1, 0]),
            ("others, and itself twice", &[[U, U], [U, &[]], [U, U], [U, &[]]], [1, 1, 2, 0]),
        ] {
            let mut sum = ArrivalSum::default();
            for [arrived, rewritten] in sinks {
                let ledger = |sequences: &[u64]| {
                    let mut ledger = Ledger::default();
                    sequences.iter().for_each(|sequence| _ = ledger.mark(*sequence, 0));
                    ledger
                };
                sum.add(&[ledger(arrived), Ledger::default(), ledger(rewritten)]);
            }
            let mut row = LedgerRow { duplicates: Some(0), ..LedgerRow::default() };
            sum.enter(&mut row);
            assert_eq!(sum.units.count(), delivered, "{what}");
            let expected = [duplicates, copied, rewritten].map(Some);
            assert_eq!([row.duplicates, row.copied, row.rewritten], expected, "{what}");
        }
    }
}
