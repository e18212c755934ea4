//! Exact counts per message, measured over one session: the system calls and syncs of a load
//! generator under strace, and the bytes that a contestant exchanges with the server or the sink.
use super::case::{LiveCase, LiveKind};
use super::round_run::{RoundCase, RoundRun, RoundRuns};
use super::wire_counter::WireBytes;
use crate::engine::RunTurns;
use crate::launch::strace;
use mailrun_compare::{ExactRow, RoundComparison, RoundLoad};
use mailrun_process::live_line::LiveLine;
use std::path::Path;
use std::time::Duration;

/// Number of messages in the longer of the two runs in which costs are counted. The shorter run sends one message. So
/// the difference between the two is the cost of 100 messages, without the cost of the startup.
const MESSAGES: u64 = 101;
/// Each kind of cost is counted this many times. If the results differ, the report says that they are not exact.
const RUNS: usize = 2;
/// Time limit for a counted run. strace slows the load generator down, so the limit is generous.
const LIMIT: Duration = Duration::from_secs(120);

const CALLS: [&str; 2] = ["system calls a message", "syncs a message"];
const BYTES: [&str; 2] = ["bytes sent a message", "bytes received a message"];

/// Kind of cost that is counted. Each kind yields two figures per message, such as bytes sent and bytes received. They
/// are computed from the difference between two runs, one with a single message and one with `MESSAGES`.
#[derive(Clone, Copy, Debug)]
enum CountingWay<'o> {
    Calls(&'o Path),
    Bytes,
}

impl CountingWay<'_> {
    fn titles(self) -> [&'static str; 2] {
        match self {
            Self::Calls(_) => CALLS,
            Self::Bytes => BYTES,
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::Calls(_) => "system calls",
            Self::Bytes => "bytes",
        }
    }

    /// Divides the difference between the two runs by the number of additional messages. Returns `None` if strace or
    /// the proxy has not counted the costs of both runs.
    fn per_message(self, one: &RoundRun, many: &RoundRun) -> Option<[f64; 2]> {
        match self {
            Self::Calls(_) => {
                let counts = one.calls.zip(many.calls).filter(|(one, many)| one.all > 0 && many.all > 0);
                let (one, many) = counts?;
                Some(strace::per_message(one, many, MESSAGES).into())
            }
            Self::Bytes => {
                let (one, many) = one.wire.zip(many.wire)?;
                let each =
                    |count: fn(WireBytes) -> u64| count(many).saturating_sub(count(one)) as f64 / (MESSAGES - 1) as f64;
                Some([each(|wire| wire.sent), each(|wire| wire.received)])
            }
        }
    }
}

pub(super) struct Counting<'r, 't> {
    pub(super) runs: &'r RoundRuns,
    pub(super) kind: LiveKind,
    pub(super) message_bytes: u64,
    pub(super) cases: Vec<&'r LiveCase>,
    pub(super) turns: &'r mut RunTurns<'t>,
}

impl Counting<'_, '_> {
    pub(super) fn add_to(mut self, comparison: &mut RoundComparison) {
        // Only load generators can be traced, because the processes of a server are not the bench's children.
        if self.kind == LiveKind::Source {
            match strace::find() {
                Some(strace) => self.add_rows(comparison, CountingWay::Calls(&strace)),
                None => {
                    comparison.course.notes.push("System calls are not counted: strace is not installed.".to_owned());
                }
            }
        }
        self.add_rows(comparison, CountingWay::Bytes);
    }

    fn add_rows(&mut self, comparison: &mut RoundComparison, way: CountingWay<'_>) {
        let cases = self.cases.clone().into_iter();
        let counted: Vec<(&str, [Vec<f64>; 2])> =
            cases.map(|case| (case.name.as_str(), self.figures_per_message(case, way))).collect();
        for (name, _) in counted.iter().filter(|(_, figures)| figures[0].is_empty()) {
            comparison.course.notes.push(format!("The {} of {name} could not be counted.", way.noun()));
        }
        let Some((_, reference)) = counted.iter().find(|(name, _)| *name == comparison.reference) else { return };
        for (name, figures) in counted.iter().filter(|(name, _)| *name != comparison.reference) {
            let rows = way.titles().into_iter().zip(reference.iter().zip(figures));
            let rows = rows
                .filter_map(|(title, (against, values))| ExactRow::new(name, title, against.clone(), values.clone()));
            comparison.counts.extend(rows);
        }
    }

    /// Counts one kind of cost `RUNS` times. Returns a list of values for each of the two figures per message, for
    /// example for system calls and for syncs. Both lists are empty if a run failed or the user stopped it.
    fn figures_per_message(&mut self, case: &LiveCase, way: CountingWay<'_>) -> [Vec<f64>; 2] {
        let mut figures = [Vec::new(), Vec::new()];
        for _ in 0..RUNS {
            let one = self.counted_run(case, way, 1);
            let many = one.as_ref().and_then(|_| self.counted_run(case, way, MESSAGES));
            let each = one.zip(many).and_then(|(one, many)| way.per_message(&one, &many));
            let Some(each) = each else { return [Vec::new(), Vec::new()] };
            figures.iter_mut().zip(each).for_each(|(figures, one)| figures.push(one));
        }
        figures
    }

    fn counted_run(&mut self, contestant: &LiveCase, way: CountingWay<'_>, messages: u64) -> Option<RoundRun> {
        let load = RoundLoad { messages, sessions: 1, message_bytes: self.message_bytes };
        let (strace, counts_bytes) = match way {
            CountingWay::Calls(strace) => (Some(strace), false),
            CountingWay::Bytes => (None, true),
        };
        let case = RoundCase { contestant, load, limit: LIMIT, is_thorough: false, strace, counts_bytes };
        let line = LiveLine::sentence(None, format!("counting {}: {}", way.noun(), contestant.name));
        self.runs.measure(&case, &mut self.turns.next(line)).ok()??.sound().cloned()
    }
}
