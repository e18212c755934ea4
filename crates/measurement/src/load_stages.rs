//! Computes latencies, and counts of delivered, lost and other mail, separately for each stage of a load (`--stage`).
//!
//! ```text
//! source   counts a message in the stage in which it was due, and puts the stage into the sequence number
//! sink     counts an arrival in the stage that its sequence number names, without knowing the load
//! ledgers  have separate pages for each stage, so the account of a stage uses only the pages of the stage
//! ```
use crate::account::{AccountInputs, Arrivals, RelayInputs, ServerQueue, reconcile};
use crate::ledger::Ledger;
use crate::record::{LedgerRow, LoadStageRow, Record, StageRow, Workload};
use crate::stage::Stage;
use crate::tally::{RunTally, SourceTally};
use std::time::Duration;

impl SourceTally {
    /// Makes the record's row for a stage of the load from the source's counts. Stages are numbered from 1. Accepted
    /// mail counts as in flight, because the source does not see arrivals. `open` is the number of message-recipient
    /// pairs that had no result yet when the source stopped.
    pub fn load_stage_row(&self, number: u8, since: Stage, origin: Duration, open: u64) -> LoadStageRow {
        let nothing = Self::default();
        let tally = self.load_stages.get(usize::from(number) - 1).unwrap_or(&nothing);
        let ledger = reconcile(AccountInputs {
            recipients_created: tally.recipients_created,
            accepted: &self.accepted_units.of_load_stage(number),
            rejected: tally.recipients_rejected,
            failed: tally.recipients_failed,
            in_doubt: tally.recipients_in_doubt,
            has_reply_for_each: false,
            open,
            overflow: 0,
            arrivals: None,
            queue: ServerQueue::Unknown,
        });
        LoadStageRow {
            number: number.into(),
            stages: tally.stages("source", since, origin),
            ledger: known_by_stage(ledger, self.overflow > 0),
            ..LoadStageRow::default()
        }
    }
}

impl RunTally {
    /// Makes a row for each stage of the load with at least one arrival. The rows have no names, because a sink does
    /// not know the names of the stages.
    pub fn load_stage_rows(&self, party: &str, origin: Duration) -> Vec<LoadStageRow> {
        let row = |(place, tally): (usize, &Self)| LoadStageRow {
            number: place as u32 + 1,
            stages: vec![tally.stage(party, Stage::Created, origin)],
            ..LoadStageRow::default()
        };
        let stages = self.load_stages.iter().enumerate();
        stages.filter(|(_, tally)| tally.messages > 0).map(row).collect()
    }
}

impl LoadStageRow {
    /// Returns a record that describes this stage of the load as if it were a whole run. A threshold on the stage is
    /// then evaluated by the same code as a threshold on a run. `run` is the record of the whole run.
    pub fn as_run(&self, run: &Record) -> Record {
        let is_within = |second: u64| (self.begin_s.floor()..self.end_s).contains(&(second as f64));
        let length_s = self.end_s - self.begin_s;
        let rate_per_s = self.due.filter(|_| length_s > 0.0).map(|due| due as f64 / length_s);
        Record {
            stages: self.stages.clone(),
            ledger: self.ledger.clone(),
            due: self.due,
            series: run.series.iter().filter(|row| is_within(row.second)).cloned().collect(),
            observed_until_s: run.observed_until_s,
            // This record has no warm-up, so `offered_s` counts from second 0 of the run, as `end_s` does.
            offered_s: Some(self.end_s),
            workload: Workload { arrival: run.workload.arrival, rate_per_s, ..Workload::default() },
            lag_ms: run.lag_ms,
            ending: run.ending,
            origin_ns: run.origin_ns,
            clock: run.clock.clone(),
            ..Record::empty()
        }
    }
}

/// Counts how many messages of each load stage were delivered, lost and so on, once the arrivals are known. `whole` has
/// the message-recipient pairs of the whole run. This function divides them among the stages.
pub fn close_accounts(record: &mut Record, whole: &AccountInputs<'_>) {
    for row in &mut record.load_stages {
        let Ok(number) = u8::try_from(row.number) else { continue };
        let count = |count: Option<u64>| count.unwrap_or_default();
        let accepted = whole.accepted.of_load_stage(number);
        let nothing = Ledger::default();
        let arrived = whole.arrivals.map(|arrivals| arrivals.units.of_load_stage(number));
        let bounced = whole.arrivals.map(|arrivals| arrivals.bounced.of_load_stage(number));
        let arrivals = arrived.as_ref().zip(bounced.as_ref()).map(|(units, bounced)| {
            // A sink counts changed messages only for the whole run, so their number is unknown for this stage.
            Arrivals { corrupt: None, ..Arrivals::unharmed(units, bounced) }
        });
        let (queued, has_given_up) = match whole.queue {
            ServerQueue::Known(relay) => (Some(relay.queued.of_load_stage(number)), relay.given_up > 0),
            ServerQueue::Absent | ServerQueue::Unknown => (None, false),
        };
        let queue = match whole.queue {
            ServerQueue::Known(_) => {
                ServerQueue::Known(RelayInputs { queued: queued.as_ref().unwrap_or(&nothing), given_up: 0 })
            }
            other => other,
        };
        let of_source = row.ledger.clone();
        let ledger = reconcile(AccountInputs {
            recipients_created: count(of_source.created),
            accepted: &accepted,
            rejected: count(of_source.rejected),
            failed: count(of_source.failed),
            in_doubt: count(of_source.in_doubt),
            has_reply_for_each: whole.has_reply_for_each,
            // `open` must count only messages without a result, but a source's `in_flight` includes accepted messages.
            open: count(of_source.in_flight).saturating_sub(count(of_source.accepted)),
            overflow: 0,
            arrivals,
            queue,
        });
        let has_overflow = whole.overflow > 0 || whole.arrivals.is_some_and(|arrivals| arrivals.overflow > 0);
        row.ledger = known_by_stage(ledger, has_overflow);
        if has_given_up {
            // The relay does not say on which messages it gave up. So it is unknown whether a missing message of this
            // stage is lost or expired.
            (row.ledger.lost, row.ledger.expired) = (None, None);
        }
    }
}

/// Sets the number of duplicates in a sink's record, for the run and for each stage of its load. This is the number of
/// arrivals minus the number of distinct messages in `arrived`, but at most the number of duplicates and copies that
/// the sink counted itself. Does nothing if the `source` sent messages with several recipients, because `arrived` then
/// contains several pairs for a message, and does not tell the number of messages.
pub fn count_duplicates(sink: &mut Record, arrived: &Ledger, source: &Record) {
    if !has_single_recipients(source) {
        return;
    }
    // `arrived` lacks messages that did not fit into its memory, or that belong to a missing part of the load. `again`
    // counts such messages as duplicates. So never report more duplicates than the sink itself counted.
    let most = sink.ledger.duplicates.map_or(u64::MAX, |count| count.saturating_add(sink.ledger.copied.unwrap_or(0)));
    let again =
        |stage: &StageRow, units: &Ledger| stage.count.saturating_sub(units.without_warm_up().count()).min(most);
    for stage in sink.stages.iter_mut().filter(|stage| stage.name == Stage::Delivered) {
        stage.duplicates = again(stage, arrived);
    }
    for row in &mut sink.load_stages {
        let Ok(number) = u8::try_from(row.number) else { continue };
        let units = arrived.of_load_stage(number);
        row.stages.iter_mut().for_each(|stage| stage.duplicates = again(stage, &units));
    }
}

/// Removes the counts that are known only for the whole run and not for one stage, such as corrupt mail. If a ledger
/// had no room for some mail, also removes all counts that come from ledgers, because nobody knows to which stage that
/// mail belongs.
fn known_by_stage(ledger: LedgerRow, has_overflow: bool) -> LedgerRow {
    let known = |count: Option<u64>| count.filter(|_| !has_overflow);
    LedgerRow {
        created: ledger.created,
        accepted: known(ledger.accepted),
        delivered: known(ledger.delivered),
        bounced: known(ledger.bounced),
        rejected: ledger.rejected,
        failed: ledger.failed,
        in_doubt: ledger.in_doubt,
        expired: known(ledger.expired),
        queued: known(ledger.queued),
        lost: known(ledger.lost),
        not_delivered: known(ledger.not_delivered),
        in_flight: known(ledger.in_flight),
        ..LedgerRow::default()
    }
}

/// True if each message has one recipient. The ledger's counts of message-recipient pairs are then numbers of messages.
fn has_single_recipients(record: &Record) -> bool {
    let created = record.stage(Stage::Created).map_or(0, |row| row.count);
    let of_warm_up = record.warm_up.map_or(0, |warm_up| warm_up.created);
    record.ledger.created == Some(created.saturating_add(of_warm_up))
}

/// Adds the sink's arrivals to each stage of the source's load. If it is known that no mail of a stage arrived, adds a
/// row with zero arrivals to that stage.
pub(crate) fn join(
    rows: &mut [LoadStageRow],
    sink: &[LoadStageRow],
    as_seen: impl Fn(StageRow, &LedgerRow) -> StageRow,
) {
    for row in rows {
        let seen = sink.iter().filter(|seen| seen.number == row.number).flat_map(|seen| &seen.stages);
        let mut seen: Vec<StageRow> = seen.filter(|seen| seen.name == Stage::Delivered).cloned().collect();
        if seen.is_empty() && row.ledger.delivered == Some(0) {
            seen.push(StageRow::new(Stage::Delivered, "sink"));
        }
        row.stages.extend(seen.into_iter().map(|stage| as_seen(stage, &row.ledger)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign_load::BusyHost;
    use crate::record::{Arrival, ForeignLoad, OfferedStage, Surroundings, ThresholdRow};
    use crate::threshold::{RunProtocol, Threshold, is_explained_by_host};
    use crate::trace::sequence_of;
    use crate::union::RecordUnion;

    const ORIGIN: Duration = Duration::from_secs(100);

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    /// Returns the counts and the record of a simulated source. Its load has two stages of a second each. `stages`
    /// contains, for each message of the first and of the second stage, the milliseconds until it was accepted.
    fn source(stages: [&[u64]; 2]) -> (SourceTally, Record) {
        let mut tally = SourceTally::default();
        let mut number = 0;
        for (place, times) in stages.into_iter().enumerate() {
            for took in times {
                let due = ORIGIN + ms(1_000 * place as u64);
                tally.created += 1;
                tally.recipients_created += 1;
                tally.accepted_units.mark(sequence_of(number, place as u8 + 1, false), 0);
                number += 1;
                let stage = tally.of_load_stage(place as u8 + 1).unwrap();
                stage.created += 1;
                stage.recipients_created += 1;
                stage.created_times.record(due, due);
                stage.accepted += 1;
                stage.accepted_latency.record(ms(*took));
                stage.accepted_times.record(due + ms(*took), due);
            }
        }
        let names =
            ["calm", "peak"].map(|name| OfferedStage { name: Some(name.to_owned()), ..OfferedStage::default() });
        let row = |place: usize| LoadStageRow {
            name: names[place].name_at(place),
            begin_s: place as f64,
            end_s: place as f64 + 1.0,
            due: Some(stages[place].len() as u64),
            ..tally.load_stage_row(place as u8 + 1, Stage::Scheduled, ORIGIN, 0)
        };
        let record = Record {
            origin_ns: ORIGIN.as_nanos() as u64,
            load_stages: vec![row(0), row(1)],
            stages: tally.stages("source", Stage::Scheduled, ORIGIN),
            ledger: LedgerRow { created: Some(number), ..LedgerRow::default() },
            observed_until_s: Some(10.0),
            ..Record::empty()
        };
        (tally, record)
    }

    fn sink(stages: &[(u64, u8)]) -> (Ledger, Record) {
        let mut tally = RunTally::default();
        for (number, stage) in stages {
            tally.units.mark(sequence_of(*number, *stage, false), 0);
            let of_stage = tally.of_load_stage(*stage).unwrap();
            (of_stage.messages, of_stage.recipients) = (of_stage.messages + 1, of_stage.recipients + 1);
            of_stage.delivered.record(ms(50));
        }
        let record = Record {
            origin_ns: ORIGIN.as_nanos() as u64,
            load_stages: tally.load_stage_rows("sink", ORIGIN),
            ..Record::empty()
        };
        (tally.units, record)
    }

    fn inputs<'a>(accepted: &'a Ledger, arrived: &'a Ledger, bounced: &'a Ledger) -> AccountInputs<'a> {
        AccountInputs {
            recipients_created: accepted.count(),
            accepted,
            rejected: 0,
            failed: 0,
            in_doubt: 0,
            has_reply_for_each: false,
            open: 0,
            overflow: 0,
            queue: ServerQueue::Absent,
            arrivals: Some(Arrivals::unharmed(arrived, bounced)),
        }
    }

    #[test]
    fn a_message_that_a_stage_lost_is_lost_in_no_other() {
        let (tally, mut record) = source([&[5, 10], &[20, 500, 900]]);
        // Message 1 of the first stage is lost, and message 2 of the second stage arrives twice.
        let (arrived, mut far_end) = sink(&[(0, 1), (2, 2), (2, 2), (3, 2), (4, 2)]);
        let nothing = Ledger::default();
        let mut with_queue = record.clone();
        let whole = inputs(&tally.accepted_units, &arrived, &nothing);
        count_duplicates(&mut far_end, &arrived, &record);
        close_accounts(&mut record, &whole);
        let known = |record: &Record| -> Vec<[Option<u64>; 4]> {
            let rows = record.load_stages.iter().map(|row| &row.ledger);
            rows.map(|ledger| [ledger.accepted, ledger.delivered, ledger.lost, ledger.duplicates]).collect()
        };
        assert_eq!(known(&record), [[Some(2), Some(1), Some(1), None], [Some(3), Some(3), Some(0), None]]);
        let ledger = reconcile(whole);
        let run = crate::merge::merge_records(record, Some(far_end), ledger);
        let rows: Vec<(u64, u64, u64)> = run
            .load_stages
            .iter()
            .map(|row| {
                let delivered = row.stages.iter().find(|stage| stage.name == Stage::Delivered).unwrap();
                (delivered.count, delivered.duplicates, delivered.missing)
            })
            .collect();
        assert_eq!(rows, [(1, 0, 1), (4, 1, 0)]);
        let value = |text: &str| {
            let row = Threshold::parse(text, RunProtocol::Smtp).unwrap().evaluate_run(&run);
            (row.passed, row.missed)
        };
        for (text, expected) in [
            ("stage calm: accepted.p99 < 15ms", (true, false)),
            ("stage peak: accepted.p99 < 15ms", (false, true)),
            ("stage peak: accepted.max < 950ms", (true, false)),
            ("stage peak: accepted.count >= 3", (true, false)),
            ("stage calm: lost <= 0", (false, true)),
            ("stage calm: lost <= 50%", (true, false)),
            ("stage peak: lost <= 0", (true, false)),
            // The stage `calm` has lost a message. A lost message misses any time limit, even an hour.
            ("stage calm: delivered.max < 1h", (false, true)),
            ("stage peak: delivered.within(60ms) >= 100%", (true, false)),
            ("stage night: accepted.p99 < 1s", (false, false)),
        ] {
            assert_eq!(value(text), expected, "{text}");
        }
        // The relay gave up on a message, but does not say on which. So the missing message may be lost or expired.
        let queue = ServerQueue::Known(RelayInputs { queued: &nothing, given_up: 1 });
        close_accounts(&mut with_queue, &AccountInputs { queue, ..whole });
        assert_eq!(known(&with_queue)[0], [Some(2), Some(1), None, None]);
        close_accounts(&mut with_queue, &AccountInputs { overflow: 1, ..whole });
        assert_eq!(known(&with_queue)[0], [None; 4], "the ledger was full");
    }

    #[test]
    fn a_unit_at_two_sinks_has_arrived_again_in_the_row_of_the_run() {
        let (tally, source) = source([&[5, 10], &[20]]);
        let duplicates = |arrivals, counted| {
            let delivered = StageRow { count: arrivals, ..StageRow::new(Stage::Delivered, "sink") };
            let ledger = LedgerRow { duplicates: counted, ..LedgerRow::default() };
            let mut sinks = Record { stages: vec![delivered], ledger, ..Record::empty() };
            count_duplicates(&mut sinks, &tally.accepted_units, &source);
            sinks.stages[0].duplicates
        };
        assert_eq!(duplicates(4, Some(1)), 1);
        assert_eq!(duplicates(3, Some(0)), 0);
        assert_eq!(duplicates(2, Some(1)), 0, "it arrived again in the warm-up");
        assert_eq!(duplicates(7, Some(1)), 1, "the others are units that the ledger does not have");
    }

    #[test]
    fn stages_of_several_parts_are_added_one_by_one() {
        let [(_, mut one), (_, mut other)] = [source([&[5, 10], &[20]]), source([&[15], &[30, 40, 50]])];
        for record in [&mut one, &mut other] {
            crate::overdue::complete_stages(record);
        }
        let mut union = RecordUnion::default();
        union.add(one, "one").unwrap();
        union.add(other, "other").unwrap();
        let whole = union.finish("source").unwrap();
        let rows: Vec<_> = whole
            .load_stages
            .iter()
            .map(|row| {
                let accepted = row.stages.iter().find(|stage| stage.name == Stage::Accepted).unwrap();
                (
                    row.name.as_str(),
                    row.due,
                    row.ledger.created,
                    accepted.count,
                    accepted.latency_ms.unwrap().max.round(),
                )
            })
            .collect();
        assert_eq!(rows, [("calm", Some(3), Some(3), 3, 15.0), ("peak", Some(4), Some(4), 4, 50.0)]);
    }

    #[test]
    fn a_busy_host_excuses_no_rate_above_the_rate_of_the_stage() {
        let (_, mut run) = source([&[5; 40], &[5; 10]]);
        run.workload.arrival = Arrival::Constant;
        let foreign = Some(ForeignLoad { share: Some(0.9), window_s: 0.25, ..ForeignLoad::default() });
        run.surroundings = Some(Surroundings { used_share: Some(0.99), foreign, ..Surroundings::default() });
        let host = BusyHost::of(&run).unwrap();
        for (limit, is_explained) in [(30, true), (60, false)] {
            let expression = format!("stage calm: accepted.rate > {limit}/s");
            let row = ThresholdRow { expression, value: Some(18.0), missed: true, ..ThresholdRow::default() };
            assert_eq!(is_explained_by_host(&run, &row, &host), is_explained, "40/s were offered: {row:?}");
        }
    }

    #[test]
    fn a_sink_that_has_seen_nothing_leaves_no_stage_without_arrivals() {
        let (tally, mut record) = source([&[5], &[5]]);
        let nothing = Ledger::default();
        let whole = inputs(&tally.accepted_units, &nothing, &nothing);
        close_accounts(&mut record, &whole);
        let run = crate::merge::merge_records(record, None, reconcile(whole));
        let lost: Vec<Option<u64>> = run
            .load_stages
            .iter()
            .map(|row| Some(row.stages.last()?.missing).filter(|_| row.stages.len() == 4))
            .collect();
        assert_eq!(lost, [Some(1), Some(1)]);
    }

    #[test]
    fn a_sink_that_does_not_count_by_stage_says_nothing_about_them() {
        let (tally, mut record) = source([&[5], &[5]]);
        let (arrived, _) = sink(&[(0, 1)]);
        let nothing = Ledger::default();
        let whole = inputs(&tally.accepted_units, &arrived, &nothing);
        close_accounts(&mut record, &whole);
        let run = crate::merge::merge_records(record, Some(Record::empty()), reconcile(whole));
        let seen: Vec<Option<u64>> = run
            .load_stages
            .iter()
            .map(|row| row.stages.iter().find(|stage| stage.name == Stage::Delivered).map(|stage| stage.count))
            .collect();
        assert_eq!(seen, [None, Some(0)], "that nothing of the second arrived is known from the ledger");
    }
}
