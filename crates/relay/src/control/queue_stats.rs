//! Statistics of the queues of all workers: the totals, and the next hops with the most entries.
use crate::control::protocol::{HopRow, TotalsRow};
use crate::qmgr::DestinationStats;
use crate::worker::RelayWorker;
use crate::worker_calls::{RunningRelay, WorkerUnavailable};
use mailrun_net::clock;
use std::collections::HashMap;
use std::rc::Rc;

/// Maximum number of next hops that are listed individually. The others are summed up in one row,
/// because a queue may have a hundred thousand next hops.
const MAX_DESTINATIONS: usize = 100;
/// Name of the row that sums up all next hops that are not listed individually. No next hop can have this name.
const OTHERS: &str = "(others)";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueStats {
    pub(crate) totals: TotalsRow,
    /// The next hops with the most queue entries, the largest first. A last row may sum up all other next hops.
    pub(crate) hops: Vec<HopRow>,
}

/// Collects the statistics of all workers, and blocks until all have answered. Fails if one of them does not answer.
pub(crate) fn collect_queue_stats(relay: &RunningRelay) -> Result<QueueStats, WorkerUnavailable> {
    let mut stats = QueueStats { totals: totals(relay), hops: Vec::new() };
    let mut hops = HashMap::new();
    for answer in relay.workers.call_all(worker_stats) {
        let (totals, known, rows) = answer?;
        stats.totals.hops += known as u64;
        stats.totals.workers += 1;
        stats.totals.messages += totals.messages as u64;
        stats.totals.entries += totals.entries as u64;
        stats.totals.connections += u64::from(totals.connections);
        stats.totals.message_bytes += totals.message_bytes;
        rows.into_iter().for_each(|row| merge_by_name(&mut hops, row));
    }
    stats.hops = largest(hops.into_values().collect());
    Ok(stats)
}

fn totals(relay: &RunningRelay) -> TotalsRow {
    let usage = relay.context.spool.stats();
    let counters = &relay.context.counters;
    TotalsRow {
        durability: relay.context.durability().to_owned(),
        spool_messages: usage.messages,
        spool_bytes: usage.bytes,
        spool_disk_bytes: usage.disk_bytes,
        accepted: counters.accepted.value(),
        delivered: counters.delivered.value(),
        deferred: counters.deferred.value(),
        failed: counters.failed.value(),
        incoming_bytes: relay.context.memory_budget.used_bytes(),
        ..TotalsRow::default()
    }
}

/// Returns a worker's totals, its number of next hops, and rows for the `MAX_DESTINATIONS` next hops with the most
/// entries. The others are only summed up, because copying all of them would block the worker's event loop.
fn worker_stats(worker: &Rc<RelayWorker>) -> (crate::qmgr::QueueTotals, usize, Vec<HopRow>) {
    let queue = worker.queue.borrow();
    let hops = worker.destinations().borrow();
    let mut all: Vec<DestinationStats> = queue.destination_stats().collect();
    if all.len() > MAX_DESTINATIONS {
        all.select_nth_unstable_by_key(MAX_DESTINATIONS, |stats| std::cmp::Reverse(entries(stats)));
    }
    let rest = all.split_off(all.len().min(MAX_DESTINATIONS));
    let mut rows: Vec<HopRow> = all.iter().map(|stats| row(stats, &hops.name(stats.destination))).collect();
    if !rest.is_empty() {
        let mut others = HopRow { hop: OTHERS.to_owned(), ..HopRow::default() };
        rest.iter().for_each(|stats| merge(&mut others, &counts(stats)));
        rows.push(HopRow { shut_for_s: None, ..others });
    }
    (queue.totals(), hops.len(), rows)
}

fn entries(stats: &DestinationStats) -> u64 {
    [stats.ready, stats.deferred, stats.in_flight, stats.held, stats.awaiting_dsn].map(u64::from).iter().sum()
}

fn row(stats: &DestinationStats, name: &str) -> HopRow {
    HopRow { hop: name.to_owned(), refusal: stats.refusal.as_deref().map(Into::into), ..counts(stats) }
}

fn counts(stats: &DestinationStats) -> HopRow {
    let shut = stats.backoff_until.saturating_sub(clock::now()).as_secs();
    HopRow {
        hop: String::new(),
        ready: u64::from(stats.ready),
        deferred: u64::from(stats.deferred),
        sending: u64::from(stats.in_flight),
        held: u64::from(stats.held),
        awaiting_dsn: u64::from(stats.awaiting_dsn),
        connections: u64::from(stats.connections),
        idle: u64::from(stats.idle),
        oldest_unix_s: stats.oldest_unix_s,
        shut_for_s: (shut > 0).then_some(shut),
        refusal: None,
    }
}

fn merge_by_name(hops: &mut HashMap<String, HopRow>, row: HopRow) {
    match hops.get_mut(&row.hop) {
        Some(sum) => merge(sum, &row),
        None => drop(hops.insert(row.hop.clone(), row)),
    }
}

fn merge(sum: &mut HopRow, row: &HopRow) {
    sum.ready += row.ready;
    sum.deferred += row.deferred;
    sum.sending += row.sending;
    sum.held += row.held;
    sum.awaiting_dsn += row.awaiting_dsn;
    sum.connections += row.connections;
    sum.idle += row.idle;
    sum.oldest_unix_s = [sum.oldest_unix_s, row.oldest_unix_s].into_iter().flatten().min();
    sum.shut_for_s = sum.shut_for_s.max(row.shut_for_s);
    if sum.refusal.is_none() {
        sum.refusal.clone_from(&row.refusal);
    }
}

/// Returns the rows of the largest next hops, followed by a row that sums up the others.
fn largest(mut hops: Vec<HopRow>) -> Vec<HopRow> {
    // The workers have summed up small next hops in the row `OTHERS`. Put this row after all named next hops. The code
    // below then sums up this row and the named next hops beyond `MAX_DESTINATIONS`.
    hops.sort_by(|a, b| {
        let key = |hop: &HopRow| (hop.hop == OTHERS, std::cmp::Reverse(hop.entries()));
        key(a).cmp(&key(b)).then_with(|| a.hop.cmp(&b.hop))
    });
    let named = hops.iter().position(|hop| hop.hop == OTHERS).unwrap_or(hops.len());
    let mut rest = hops.split_off(named.min(MAX_DESTINATIONS)).into_iter();
    if let Some(first) = rest.next() {
        let mut others = HopRow { hop: OTHERS.to_owned(), shut_for_s: None, refusal: None, ..first };
        rest.for_each(|row| merge(&mut others, &row));
        (others.shut_for_s, others.refusal) = (None, None);
        hops.push(others);
    }
    hops
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(name: &str, ready: u64) -> HopRow {
        HopRow { hop: name.to_owned(), ready, oldest_unix_s: Some(ready), ..HopRow::default() }
    }

    #[test]
    fn however_many_hops_there_are_few_are_named_and_none_is_lost() {
        for many in [0, 1, MAX_DESTINATIONS, MAX_DESTINATIONS + 1, 3 * MAX_DESTINATIONS] {
            let rows: Vec<HopRow> = (0..many).map(|number| hop(&format!("mx:{number}"), number as u64)).collect();
            let sums = largest(rows.clone());
            assert!(
                sums.len() <= MAX_DESTINATIONS + 1 && (sums.len() <= MAX_DESTINATIONS) == (many <= MAX_DESTINATIONS),
                "{many}"
            );
            let sum = |rows: &[HopRow]| rows.iter().map(HopRow::entries).sum::<u64>();
            assert_eq!(sum(&sums), sum(&rows));
            assert!(sums.is_sorted_by_key(|row| (row.hop == OTHERS, std::cmp::Reverse(row.ready))), "{sums:?}");
            assert_eq!(largest(sums.clone()), sums, "what is summed up stays so");
        }
    }

    #[test]
    fn the_same_hop_of_two_workers_is_one() {
        let mut hops = HashMap::new();
        let refusal =
            crate::control::protocol::RefusalRow { code: 450, enhanced: None, text: "no".into(), by: "".into() };
        merge_by_name(&mut hops, hop("mx:a", 3));
        merge_by_name(
            &mut hops,
            HopRow { refusal: Some(refusal.clone()), shut_for_s: Some(9), held: 1, ..hop("mx:a", 2) },
        );
        let row = &hops["mx:a"];
        assert_eq!((row.ready, row.held, row.oldest_unix_s, row.shut_for_s), (5, 1, Some(2), Some(9)));
        assert_eq!(row.refusal, Some(refusal));
    }
}
