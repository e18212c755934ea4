//! Lists the messages of a run one by one, roughly in the order in which the sink received them. A probe asks the sink
//! for this list, because the probe records what happened to each message.
//!
//! The sink derives this list from tallies. A tally has the counts and histograms that one worker has collected in a
//! quarter of a second. Under a light load, a tally covers one message, so its histograms contain the times of this
//! message. If a tally covers several messages, the list may assign the time of one message to another.
use mailrun_measurement::trace::message_number;
use mailrun_measurement::{Latencies, Ledger, RunId, RunTally, SinkTally};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Maximum number of arrived messages that the sink keeps for the next request of a probe.
const MAX_KEPT: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ArrivalKind {
    Delivered,
    /// A notification reported that the message was not delivered.
    Bounced,
    /// The message had been delivered before, so this is a further copy.
    Duplicate,
}

/// A message that arrived, or that a notification reported as undeliverable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Arrival {
    pub(crate) number: u64,
    pub(crate) kind: ArrivalKind,
    /// Time from the creation of the message to its delivery in nanoseconds, if known.
    pub(crate) delivered_ns: Option<u64>,
    /// Time from the creation of the message until the server of its mailbox announced it, in nanoseconds, if known.
    pub(crate) announced_ns: Option<u64>,
}

/// Lists one by one the messages that a worker has counted, and remembers them to recognise duplicates.
#[derive(Debug, Default)]
pub(crate) struct ArrivalFinder {
    delivered: Ledger,
    bounced: Ledger,
}

impl ArrivalFinder {
    /// Returns the messages of `run` that are counted in `tally`. This must be the tally of a single worker, because a
    /// merged tally would not show which time belongs to which message.
    pub(crate) fn of_worker(&mut self, tally: &SinkTally, run: RunId) -> Vec<Arrival> {
        tally.of_run(run).map(|tally| self.of_run(&tally)).unwrap_or_default()
    }

    fn of_run(&mut self, tally: &RunTally) -> Vec<Arrival> {
        let untimed = |number, kind| Arrival { number, kind, delivered_ns: None, announced_ns: None };
        let mut delivered = times(&tally.delivered);
        let mut announced = times(&tally.told);
        let mut arrivals = Vec::new();
        for number in numbers(&tally.units) {
            let is_known = self.delivered.contains(number, 0);
            let kind = if is_known { ArrivalKind::Duplicate } else { ArrivalKind::Delivered };
            arrivals.push(Arrival { number, kind, delivered_ns: delivered.next(), announced_ns: announced.next() });
        }
        // A tally counts duplicates, but does not tell which messages they copy. So list each duplicate as a copy of
        // the tally's first message.
        if let Some(number) = numbers(&tally.units).next() {
            arrivals.extend((0..tally.duplicates).map(|_| untimed(number, ArrivalKind::Duplicate)));
        }
        let bounced = numbers(&tally.bounces.units).filter(|number| !self.bounced.contains(*number, 0));
        arrivals.extend(bounced.map(|number| untimed(number, ArrivalKind::Bounced)));
        self.delivered.merge(&tally.units);
        self.bounced.merge(&tally.bounces.units);
        arrivals
    }
}

fn numbers(units: &Ledger) -> impl Iterator<Item = u64> {
    let none = Ledger::with_limit(0);
    units.messages_without(&none, usize::MAX).into_iter().map(|(sequence, _)| message_number(sequence))
}

/// Returns each recorded time in nanoseconds, in ascending order. A time that occurs twice is
/// returned twice.
fn times(latencies: &Latencies) -> impl Iterator<Item = u64> + '_ {
    latencies.buckets().flat_map(|(ns, count)| (0..count).map(move |_| ns))
}

/// The messages of a run that have arrived. The sink keeps this list once an HTTP client has asked for it.
#[derive(Debug, Default)]
pub(super) struct ArrivalLog {
    name: String,
    finder: ArrivalFinder,
    /// Number of arrivals that were removed from the list because it exceeded [`MAX_KEPT`].
    forgotten: u64,
    kept: VecDeque<Arrival>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ArrivalList {
    /// Name by which a client notices that a new list has begun. If the name has changed, the sink was restarted or has
    /// dropped the counts of the run. The client must then ask from the beginning.
    pub(crate) sink: String,
    /// Number of earlier arrivals, which `arrivals` leaves out. If it exceeds the number that the client asked to skip,
    /// the sink has removed the arrivals in between.
    pub(crate) first: u64,
    /// Number of arrivals so far. The next request should pass this number as `after`.
    pub(crate) next: u64,
    pub(crate) arrivals: Vec<Arrival>,
}

impl ArrivalLog {
    /// Starts the log of a run, and fills it with the messages in `so_far`, which have arrived before. Their times are
    /// unknown, because the counts of all workers were merged. `name` must be new, so that clients notice a new log.
    pub(super) fn begin(name: String, so_far: Option<&RunTally>) -> Self {
        let mut log = Self { name, ..Self::default() };
        if let Some(tally) = so_far {
            let arrivals = log.finder.of_run(tally);
            log.keep(arrivals);
            for arrival in &mut log.kept {
                (arrival.delivered_ns, arrival.announced_ns) = (None, None);
            }
        }
        log
    }

    /// Adds the messages of a run that are counted in `tally`, which must be the tally of a single worker.
    pub(super) fn add(&mut self, tally: &SinkTally, run: RunId) {
        let arrivals = self.finder.of_worker(tally, run);
        self.keep(arrivals);
    }

    fn keep(&mut self, arrivals: Vec<Arrival>) {
        self.kept.extend(arrivals);
        let excess = self.kept.len().saturating_sub(MAX_KEPT);
        self.kept.drain(..excess);
        self.forgotten += excess as u64;
    }

    /// Returns all arrivals except the first `after`, which the client already has, and any that were removed.
    pub(super) fn after(&self, after: u64) -> ArrivalList {
        let skipped = usize::try_from(after.saturating_sub(self.forgotten)).unwrap_or(usize::MAX).min(self.kept.len());
        ArrivalList {
            sink: self.name.clone(),
            first: self.forgotten + skipped as u64,
            next: self.forgotten + self.kept.len() as u64,
            arrivals: self.kept.iter().skip(skipped).copied().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_measurement::domains::DomainUnit;
    use mailrun_measurement::rewrites::RewrittenUnit;
    use std::time::Duration;

    fn tally(numbers: &[u64], duplicates: u64, milliseconds: &[u64]) -> RunTally {
        let mut tally = RunTally { duplicates, ..RunTally::default() };
        for number in numbers {
            tally.units.mark(*number, 0);
        }
        milliseconds.iter().for_each(|ms| tally.delivered.record(Duration::from_millis(*ms)));
        tally
    }

    const RUN: RunId = RunId([1; 16]);

    fn worker(run: RunTally) -> SinkTally {
        let mut worker = SinkTally::default();
        *worker.runs.open(RUN) = run;
        worker
    }

    #[test]
    fn units_that_only_a_merge_counts_are_listed_too() {
        let mut run = tally(&[5], 0, &[]);
        run.domain_units = vec![DomainUnit { sequence: 7, recipient: 0, domain: 1 }];
        let elsewhere = RewrittenUnit { sequence: 9, recipient: 0, domain: 0, pair: 0, address: 3, is_added: false };
        run.rewritten_units = vec![elsewhere];
        let listed = ArrivalFinder::default().of_worker(&worker(run), RUN);
        assert_eq!(shown(&listed), "5 Delivered, 7 Delivered, 9 Delivered");
    }

    fn shown(arrivals: &[Arrival]) -> String {
        let one = |arrival: &Arrival| {
            let ms = arrival.delivered_ns.map_or_else(String::new, |ns| format!(" {}", ns / 1_000_000));
            format!("{} {:?}{ms}", arrival.number, arrival.kind)
        };
        arrivals.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn each_message_is_listed_with_its_time_and_copies_are_told_apart() {
        let mut finder = ArrivalFinder::default();
        let mut bounced = tally(&[], 0, &[]);
        bounced.bounces.units.mark(9, 0);
        for (tally, expected) in [
            (tally(&[5], 0, &[30]), "5 Delivered 30"),
            (tally(&[7, 8], 0, &[40, 20]), "7 Delivered 20, 8 Delivered 40"),
            (tally(&[5], 0, &[900]), "5 Duplicate 900"),
            (tally(&[6], 2, &[1, 2, 3]), "6 Delivered 1, 6 Duplicate, 6 Duplicate"),
            (tally(&[10], 0, &[]), "10 Delivered"),
            (
                tally(&[11, 1 << 32, 2 << 32], 0, &[1, 2, 3]),
                "11 Delivered 1, 4294967296 Delivered 2, 8589934592 Delivered 3",
            ),
            (bounced.clone(), "9 Bounced"),
            (bounced, ""),
        ] {
            assert_eq!(shown(&finder.of_run(&tally)), expected);
        }
    }

    #[test]
    fn a_log_tells_what_came_since_and_is_bounded() {
        let mut log = ArrivalLog::begin("a".to_owned(), Some(&tally(&[1], 0, &[5])));
        assert_eq!(shown(&log.after(0).arrivals), "1 Delivered", "its time was not kept");
        log.add(&worker(tally(&[2], 0, &[5])), RUN);
        let list = log.after(1);
        assert_eq!((list.first, list.next, shown(&list.arrivals).as_str()), (1, 2, "2 Delivered 5"));
        let list = log.after(2);
        assert_eq!((list.first, list.next, list.arrivals), (2, 2, Vec::new()));
        (3..MAX_KEPT as u64 + 10).for_each(|number| log.add(&worker(tally(&[number], 0, &[])), RUN));
        let list = log.after(0);
        assert_eq!((list.next, list.arrivals.len()), (MAX_KEPT as u64 + 9, MAX_KEPT));
        assert_eq!((list.first, list.arrivals[0].number), (9, 10), "the oldest are forgotten, and the list says so");
    }
}
