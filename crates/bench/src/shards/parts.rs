//! Reads the directories with the results of the parts of a load. The directories are read one after another, so that a
//! thousand parts need no more memory than one.
pub(super) use crate::stored::read_run as read_record;
use anyhow::{Context, Result, bail, ensure};
use mailrun_measurement::clocks::ClockError;
use mailrun_measurement::ledger::Ledger;
use mailrun_measurement::reason::Reason;
use mailrun_measurement::record::{Cause, Record, ShardRow};
use mailrun_measurement::union::RecordUnion;
use mailrun_process::reason::reason;
use mailrun_schedule::shard::Shard;
use mailrun_text::printable::printable;
use mailrun_text::words::{counted, listed};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Memory limit for a merged ledger. A ledger has one bit for each recipient of each message, so 512 MiB have room for
/// 4 billion messages with one recipient.
pub(super) const MAX_LEDGER_BYTES: usize = 512 << 20;
/// Maximum delay of a source in seconds. If a source begins later than this after its planned start, the server did not
/// get the load that was planned.
const MAX_LATE_S: f64 = 1.0;
/// Maximum number of names that a message to the user lists. If there are more names, the message says how many others
/// there are.
const MAX_NAMED: usize = 10;
/// Possible names of the file with the ledger. `mailrun bench` writes the first, `mailrun source` and `mailrun sink`
/// write the second.
const LEDGER_FILES: [&str; 2] = ["source.ledger", "ledger"];

pub(super) struct Parts {
    /// The records of all parts, merged as if one source had sent everything.
    pub(super) source: Record,
    /// The plan of the load, taken from the first part.
    pub(super) plan: ShardRow,
    /// Units that the server answered 250, merged from the ledgers of all parts. A unit is a message for one recipient.
    pub(super) units: Ledger,
    /// Ranges of message numbers, one for each part that was read. Arrivals with other numbers belong to missing parts
    /// and do not count. `None` if no part is missing.
    pub(super) numbers: Option<Vec<Range<u64>>>,
    /// The record of each part, without its long lists, which would take much memory.
    pub(super) summaries: Vec<Record>,
    /// Reasons for the verdict, for example that a part of the load is missing or began late.
    pub(super) reasons: Vec<Reason>,
}

struct ReadPart {
    record: Record,
    shard: ShardRow,
    part: Shard,
    units: Ledger,
}

struct PartsBuilder {
    union: RecordUnion,
    units: Ledger,
    plan: Option<(ShardRow, String)>,
    known: BTreeMap<u32, (PathBuf, Record)>,
    late: Vec<(u32, f64)>,
    overflow: u64,
    reasons: Vec<Reason>,
}

impl Parts {
    /// Reads the result of each source, which sent one part of the load, and merges the results. Returns an error if no
    /// part can be read or if two parts belong to different plans or runs.
    pub(super) fn read(directories: &[PathBuf]) -> Result<Self> {
        let mut builder = PartsBuilder {
            union: RecordUnion::default(),
            units: Ledger::with_limit(MAX_LEDGER_BYTES),
            plan: None,
            known: BTreeMap::new(),
            late: Vec::new(),
            overflow: 0,
            reasons: Vec::new(),
        };
        for directory in directories {
            match ReadPart::read(directory) {
                Ok(part) => builder.add(directory, part)?,
                Err(error) => builder.unreadable(directory, &format!("{error:#}")),
            }
        }
        builder.finish()
    }
}

impl ReadPart {
    fn read(directory: &Path) -> Result<Self> {
        let record = read_record(&directory.join("run.json"))?;
        let shard = record.shard.clone().context("it is no part of a load: it was sent without --shard")?;
        let part = Shard::new(shard.index, shard.count);
        let part = part.with_context(|| format!("there is no part {}/{}", shard.index, shard.count))?;
        let [units, ..] = read_ledger(directory)?;
        let numbers = part.numbers(shard.workload.messages);
        let is_own = units.within(&[numbers]).count() == units.count();
        ensure!(is_own, "its ledger has messages of other parts");
        Ok(Self { record, shard, part, units })
    }
}

/// Reads the three ledgers of a source or a sink. The first contains the units that the server accepted from the source
/// or that arrived at the sink. The second contains units that bounced, and the third contains units that arrived only
/// under other addresses. A source fills only the first ledger.
pub(super) fn read_ledger(directory: &Path) -> Result<[Ledger; 3]> {
    let path = LEDGER_FILES.iter().map(|name| directory.join(name)).find(|path| path.exists());
    let path = path.context("it has no ledger")?;
    let file = File::open(&path).map_err(|error| anyhow::anyhow!("{}: {}", path.display(), reason(&error)))?;
    Ledger::read_arrivals(BufReader::new(file)).with_context(|| format!("{} is no ledger", path.display()))
}

impl PartsBuilder {
    fn add(&mut self, directory: &Path, read: ReadPart) -> Result<()> {
        let ReadPart { record, shard, part, units } = read;
        match &self.plan {
            None => self.plan = Some((shard.clone(), record.run_id.clone())),
            Some((plan, run_id)) => check_same_plan(directory, plan, run_id, &shard, &record)?,
        }
        if let Some((first, known)) = self.known.get(&part.index()) {
            let is_copy = *known == without_rows(&record);
            self.reasons.push(duplicate_reason(part, first, directory, is_copy));
            return Ok(());
        }
        let summary = without_rows(&record);
        if let Err(reason) = self.union.add(record, &format!("source {part}")) {
            self.unreadable(directory, &reason);
            return Ok(());
        }
        if shard.late_s > MAX_LATE_S {
            self.late.push((part.index(), shard.late_s));
        }
        self.overflow = self.overflow.saturating_add(self.units.merge(&units).full);
        self.known.insert(part.index(), (directory.to_owned(), summary));
        Ok(())
    }

    fn unreadable(&mut self, directory: &Path, reason: &str) {
        let place = directory.display().to_string();
        let text = format!("{} is not in the figures: {}.", printable(&place), printable(reason));
        self.reasons.push(Reason::new(Cause::RateNotOffered, text));
    }

    fn finish(mut self) -> Result<Parts> {
        let Some((plan, run_id)) = self.plan else {
            let reason = self.reasons.first().map_or_else(|| "there is none".to_owned(), |reason| reason.text.clone());
            bail!("no part of a load can be read: {reason}");
        };
        let mut source = self.union.finish("source").context("no part of a load can be read")?;
        source.run_id = run_id;
        source.ledger.overflow = Some(source.ledger.overflow.unwrap_or_default().saturating_add(self.overflow));
        let missing: Vec<u32> = (0..plan.count).filter(|index| !self.known.contains_key(index)).collect();
        self.reasons.extend(missing_reason(&missing, plan.count));
        self.reasons.extend(late_reason(&self.late, plan.count));
        let numbers = self.known.keys().filter_map(|index| Shard::new(*index, plan.count));
        let numbers = (!missing.is_empty()).then(|| numbers.map(|part| part.numbers(plan.workload.messages)).collect());
        let summaries = self.known.into_values().map(|(_, summary)| summary).collect();
        Ok(Parts { source, plan, units: self.units, numbers, summaries, reasons: self.reasons })
    }
}

/// Returns the record without its long lists. The remaining fields are enough to tell a copy of a
/// part from a second run of the same part.
fn without_rows(record: &Record) -> Record {
    Record {
        started_at: record.started_at.clone(),
        origin_ns: record.origin_ns,
        duration_s: record.duration_s,
        ledger: record.ledger.clone(),
        clock: record.clock.clone(),
        ..Record::empty()
    }
}

fn check_same_plan(directory: &Path, plan: &ShardRow, run_id: &str, shard: &ShardRow, record: &Record) -> Result<()> {
    let place = directory.display();
    ensure!(shard.count == plan.count, "{place} is one of {} parts, and the others are of {}", shard.count, plan.count);
    ensure!(shard.plan == plan.plan, "{place} has another plan than the others: their options differ");
    ensure!(
        shard.start_at == plan.start_at,
        "{place} began at {}, and the others at {}",
        shard.start_at,
        plan.start_at
    );
    ensure!(record.run_id == run_id, "{place} is of run {}, and the others are of {run_id}", record.run_id);
    ensure!(
        shard.workload.messages == plan.workload.messages,
        "{place} has another number of messages than the others"
    );
    ensure!(shard.thresholds == plan.thresholds, "{place} has other thresholds than the others");
    Ok(())
}

fn missing_reason(missing: &[u32], count: u32) -> Option<Reason> {
    let first = missing.first()?;
    let text = match missing.len() {
        1 => format!("Part {first}/{count} is missing: its share of the load is not in the figures."),
        number => format!(
            "{number} parts of {count} are missing ({}): their share of the load is not in the figures.",
            named(missing.iter().map(u32::to_string))
        ),
    };
    Some(Reason::new(Cause::RateNotOffered, text))
}

fn late_reason(late: &[(u32, f64)], count: u32) -> Option<Reason> {
    let (first, by_s) = late.first()?;
    let text = match late.len() {
        1 => format!("Part {first}/{count} began {by_s:.1} s late: it did not send with the others."),
        number => format!(
            "{number} parts of {count} began late ({}): they did not send with the others.",
            named(late.iter().map(|(index, by_s)| format!("{index} by {by_s:.1} s")))
        ),
    };
    Some(Reason::new(Cause::RateNotOffered, format!("{text} Use a later --start-at.")))
}

fn duplicate_reason(part: Shard, first: &Path, second: &Path, is_copy: bool) -> Reason {
    let first = first.display().to_string();
    let second = second.display().to_string();
    let places = format!("{} and {}", printable(&first), printable(&second));
    match is_copy {
        true => Reason::new(Cause::Remark, format!("Part {part} was named twice, as {places}: it counts once.")),
        false => Reason::new(
            Cause::RateNotOffered,
            format!(
                "Part {part} was sent twice, as {places}: only the first counts. Let no job of a part be repeated."
            ),
        ),
    }
}

pub(super) fn threshold_reason(error: String) -> Reason {
    Reason::new(Cause::ThresholdUnseen, format!("A threshold of the parts cannot be read: {}.", printable(&error)))
}

pub(super) fn named(names: impl ExactSizeIterator<Item = String>) -> String {
    let other_count = names.len().saturating_sub(MAX_NAMED);
    let mut named: Vec<String> = names.take(MAX_NAMED).collect();
    if other_count > 0 {
        named.push(counted(other_count as u64, "other"));
    }
    listed(&named)
}

pub(super) struct SinkHostClock {
    pub(super) sink: String,
    /// Boot ID of the sink's host. A source that has compared its clock with the sink's clock names the sink by this ID
    /// in its record. The ID is empty if an older version wrote the sink's record, and the clock error is then unknown.
    pub(super) boot: String,
}

impl Parts {
    /// Returns the largest clock error between the host of any source and the host of any sink.
    pub(super) fn clock_error(&self, sinks: &[SinkHostClock]) -> ClockError {
        sinks.iter().map(|sink| self.error_to(sink)).fold(ClockError::None, ClockError::or_larger)
    }

    /// Returns a remark that names the sinks with which at least one source has not compared its clock. Returns `None`
    /// if there are no such sinks.
    pub(super) fn unknown_clocks(&self, sinks: &[SinkHostClock]) -> Option<Reason> {
        let unknown = sinks.iter().filter(|sink| self.error_to(sink) == ClockError::Unknown);
        let names: Vec<String> = unknown.map(|sink| printable(&sink.sink).to_string()).collect();
        let text = format!("Not every part has compared its clock with that of {}.", named(names.clone().into_iter()));
        (!names.is_empty()).then(|| Reason::new(Cause::Remark, text))
    }

    fn error_to(&self, sink: &SinkHostClock) -> ClockError {
        let errors = self.summaries.iter().map(|part| ClockError::between(part, &sink.boot));
        errors.fold(ClockError::None, ClockError::or_larger)
    }
}
