//! A contest's tables as they are read: figures with their spread, ratios to one of the contestants, and below them all
//! that went wrong and all that must be known.
use super::comparison::{RelayComparisonOptions, RelayComparisonResults, RelayRun, RelaySeries, SyscallsPerMessage};
use super::contestant::Contestant;
use super::measure::RelayMeasurement;
use crate::bench::tables::{Conclusion, Defects, TextReport, conclude, strip_mark};
use report::numbers::{count, counted, figure, megabytes, memory, rate};
use report::table::{Align, Table, plain};

/// Text in place of a missing figure.
const MISSING: &str = "–";

/// The tables.
pub(super) fn of(finds: &RelayComparisonResults, options: &RelayComparisonOptions) -> TextReport {
    let mut remarks = faults(finds);
    let conclusion = conclusion(finds, &remarks, !options.scenario.thresholds.is_empty());
    let base = base(finds);
    let ratios = base.map(|base| ratios(finds, base));
    remarks.extend(notes(finds, options));
    let mut tables = vec![figures(finds), costs(finds)];
    if let Some(RatioTable { table, notes: more }) = ratios {
        tables.push(table);
        remarks.extend(more);
    }
    if finds.done < finds.planned {
        remarks.push(format!("Stopped after {} of {} runs.", finds.done, finds.planned));
    }
    TextReport::new(&title(options), tables, remarks, conclusion)
}

/// Conclusion of the contest; `faults` are the runs whose account does not close.
fn conclusion(finds: &RelayComparisonResults, faults: &[String], is_strict: bool) -> Conclusion {
    let mut wrong = Defects { failed: faults.iter().map(|fault| strip_mark(fault)).collect(), ..Defects::default() };
    for lane in &finds.series {
        let named = |text: &String| format!("{}: {text}", lane.contestant);
        for run in &lane.runs {
            let RelayRun::Done(measure) = run else { continue };
            wrong.invalid.extend(measure.invalid.as_ref().map(named));
            wrong.missed.extend(measure.missed.iter().map(named));
            wrong.unobserved.extend(measure.unobserved.iter().map(named));
        }
    }
    let pass = format!("{}, the account of each closed", counted(finds.done as u64, "run"));
    conclude(wrong, finds.done, finds.planned, &pass, is_strict)
}

fn title(options: &RelayComparisonOptions) -> String {
    let rounds = match options.rounds {
        1 => "one round".to_owned(),
        rounds => format!("medians of {rounds} rounds, interleaved, and their spread"),
    };
    format!("{}: {} {}; {rounds}", options.scenario.name, count(options.messages), options.shape.description())
}

fn figures(finds: &RelayComparisonResults) -> Table {
    let right = |title| (title, Align::Right);
    let mut table = Table::new([
        ("relay", Align::Left),
        ("durability", Align::Left),
        right("accept s"),
        right("accepted/s"),
        right("deliver s"),
        right("delivered/s"),
        right("MB/s"),
        right("drain s"),
        right("queue"),
        ("ledger", Align::Left),
    ])
    .leave_out(&["queue", "drain s", "MB/s", "durability", "accept s", "deliver s"]);
    for lane in finds.series.iter().filter(|lane| !lane.runs.is_empty()) {
        let of = |value: &dyn Fn(&RelayMeasurement) -> Option<f64>, show: fn(f64) -> String| {
            spread(lane, value).render(show)
        };
        let median = |value: &dyn Fn(&RelayMeasurement) -> Option<f64>| spread(lane, value).median(figure);
        table.row(vec![
            lane.contestant.to_string(),
            lane.contestant.durability().to_owned(),
            median(&|run| Some(run.figures.accept_s)),
            of(&|run| Some(run.figures.accepted_per_s), rate),
            median(&|run| Some(run.figures.deliver_s)),
            of(&|run| Some(run.figures.delivered_per_s), rate),
            spread(lane, &|run| Some(run.figures.delivered_bytes_per_s)).median(megabytes),
            median(&|run| Some(run.figures.drain_s())),
            of(&|run| run.figures.deepest.map(|(most, _)| most as f64), whole),
            ledger(lane),
        ]);
    }
    table
}

/// Table of the relays' costs.
fn costs(finds: &RelayComparisonResults) -> Table {
    let right = |title| (title, Align::Right);
    let mut table = Table::new([
        ("relay", Align::Left),
        right("CPU ms/1,000"),
        right("calls/msg"),
        right("syncs/msg"),
        right("written/msg"),
        right("disk/msg"),
        right("max RSS"),
    ])
    .leave_out(&["written/msg", "syncs/msg", "calls/msg", "max RSS"]);
    let relays = finds.series.iter().filter(|lane| lane.contestant != Contestant::None);
    for lane in relays.filter(|lane| !lane.runs.is_empty()) {
        let of = |value: &dyn Fn(&RelayMeasurement) -> Option<f64>, show: fn(f64) -> String| {
            spread(lane, value).render(show)
        };
        let (calls, syncs) = match &lane.syscalls {
            SyscallsPerMessage::Counted { all, syncs } => (figure(*all), figure(*syncs)),
            SyscallsPerMessage::NotMeasured(_) => ("not measured".to_owned(), "not measured".to_owned()),
        };
        table.row(vec![
            lane.contestant.to_string(),
            of(&|run| run.cpu_ms_per_1000, figure),
            calls,
            syncs,
            of(&|run| run.written_per_message, bytes),
            of(&|run| run.disk_per_message, bytes),
            of(&|run| run.max_rss_bytes.map(|bytes| bytes as f64), bytes),
        ]);
    }
    table
}

fn whole(value: f64) -> String {
    count(value.round() as u64)
}

fn bytes(value: f64) -> String {
    memory(value.round() as u64)
}

fn ledger(lane: &RelaySeries) -> String {
    let bad = lane.runs.iter().filter(|run| !is_sound(run)).count();
    match bad {
        0 => "closed".to_owned(),
        bad => format!("NOT OK in {bad} of {}", lane.runs.len()),
    }
}

fn is_sound(run: &RelayRun) -> bool {
    matches!(run, RelayRun::Done(measure) if measure.fault.is_none())
}

/// The middle and both ends of what the rounds gave.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::bench) struct MedianRange(Option<[f64; 3]>);

impl MedianRange {
    pub(in crate::bench) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let ends = sorted.first().copied().zip(sorted.last().copied());
        Self(ends.map(|(least, most)| {
            let median = f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
            [least, median, most]
        }))
    }

    pub(in crate::bench) fn median(self, show: fn(f64) -> String) -> String {
        self.0.map_or_else(|| MISSING.to_owned(), |[_, median, _]| show(median))
    }

    pub(super) fn is_median_below(self, limit: f64) -> bool {
        self.0.is_some_and(|[_, median, _]| median < limit)
    }

    /// `12.3 (11.9–12.8)`, or `12.3` where all are shown alike.
    pub(in crate::bench) fn render(self, show: fn(f64) -> String) -> String {
        let Some(values) = self.0 else { return MISSING.to_owned() };
        let [least, median, most] = values.map(show);
        if least == most { median } else { format!("{median} ({least}–{most})") }
    }
}

/// Spread over the runs whose account closes: figures of the others are of other work.
fn spread(lane: &RelaySeries, value: &dyn Fn(&RelayMeasurement) -> Option<f64>) -> MedianRange {
    MedianRange::of(lane.runs.iter().filter_map(|run| match run {
        RelayRun::Done(measure) if measure.fault.is_none() => value(measure),
        RelayRun::Done(_) | RelayRun::Failed(_) => None,
    }))
}

/// The relay that the others are compared with: Postfix, or the last that was named. Source and sink alone are never
/// the base.
fn base(finds: &RelayComparisonResults) -> Option<&RelaySeries> {
    let postfix = finds.series.iter().find(|lane| lane.contestant == Contestant::Postfix);
    let last = || finds.series.iter().rfind(|lane| lane.contestant != Contestant::None);
    postfix.or_else(last).filter(|_| finds.series.len() > 1)
}

struct RatioTable {
    table: Table,
    notes: Vec<String>,
}

/// A comparison: its title, and the ratio of two runs of a round.
type RelayRatio = (&'static str, fn(&RelayMeasurement, &RelayMeasurement) -> Option<f64>);

const COMPARISONS: [RelayRatio; 4] = [
    ("× accepted/s", |run, base| Some(run.figures.accepted_per_s / base.figures.accepted_per_s)),
    ("× delivered/s", |run, base| Some(run.figures.delivered_per_s / base.figures.delivered_per_s)),
    ("× CPU", |run, base| Some(run.cpu_ms_per_1000? / base.cpu_ms_per_1000?)),
    ("× disk", |run, base| Some(run.disk_per_message? / base.disk_per_message?)),
];

fn ratios(finds: &RelayComparisonResults, base: &RelaySeries) -> RatioTable {
    let columns = COMPARISONS.map(|(title, _)| (title, Align::Right));
    let [accepted, delivered, cpu, disk] = columns;
    let titles = [("relay", Align::Left), ("against", Align::Left), accepted, delivered, cpu, disk];
    let mut table = Table::new(titles);
    let mut remarks = Vec::new();
    for lane in finds.series.iter().filter(|lane| !std::ptr::eq(*lane, base) && !lane.runs.is_empty()) {
        let mut row = vec![lane.contestant.to_string(), base.contestant.to_string()];
        for (title, compare) in COMPARISONS {
            let ratio = ratio(lane, base, compare);
            row.push(ratio.render(|value| format!("{value:.2}")));
            if ratio.0.is_some_and(|[least, _, most]| least < 1.0 && most > 1.0) {
                remarks.push(format!(
                    "{} {title}: some rounds are above 1 and some below: no significant difference.",
                    lane.contestant
                ));
            }
        }
        table.row(row);
    }
    if !table.is_empty() {
        remarks.push("Ratios compare the two runs of the same round.".to_owned());
    }
    RatioTable { table, notes: remarks }
}

fn ratio(
    lane: &RelaySeries,
    base: &RelaySeries,
    compare: fn(&RelayMeasurement, &RelayMeasurement) -> Option<f64>,
) -> MedianRange {
    MedianRange::of(lane.runs.iter().zip(&base.runs).filter_map(|pair| match pair {
        (RelayRun::Done(run), RelayRun::Done(base)) if run.fault.is_none() && base.fault.is_none() => {
            compare(run, base)
        }
        _ => None,
    }))
}

/// A line for each run that failed or whose account does not close.
fn faults(finds: &RelayComparisonResults) -> Vec<String> {
    let line = |lane: &RelaySeries, run: &RelayRun| {
        let why = match run {
            RelayRun::Done(measure) => measure.fault.clone()?,
            RelayRun::Failed(why) => why.clone(),
        };
        Some(plain(&format!("NOT OK: {}: {why}", lane.contestant)))
    };
    let lanes = finds.series.iter();
    lanes.flat_map(|lane| lane.runs.iter().filter_map(move |run| line(lane, run))).collect()
}

/// Notes that a reader must know besides.
fn notes(finds: &RelayComparisonResults, options: &RelayComparisonOptions) -> Vec<String> {
    let mut notes: Vec<String> = finds.series.iter().flat_map(remarks).collect();
    for lane in finds.series.iter().filter(|_| options.counts_syscalls) {
        if let SyscallsPerMessage::NotMeasured(why) = &lane.syscalls {
            notes.push(plain(&format!("calls of {}: not measured: {why}.", lane.contestant)));
        }
    }
    if !options.counts_syscalls {
        notes.push(
            "calls/msg, syncs/msg: not measured (--syscalls measures them in separate runs under strace).".to_owned(),
        );
    }
    notes.push(
        "accept s, deliver s: from the first message created to the last accepted, or delivered. queue: maximum of \
         messages accepted and not delivered, at the end of each second. CPU: user and system time of all processes \
         of the relay, from its start until it is idle. written: bytes charged by the kernel, in whole pages. disk: \
         bytes written by the device for all processes of the host, including journals."
            .to_owned(),
    );
    notes
}

/// Remarks on the verdicts of its runs. The same remark with other figures, in another round, is shown once.
fn remarks(lane: &RelaySeries) -> Vec<String> {
    let without_figures = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
    let mut known: Vec<String> = Vec::new();
    for run in &lane.runs {
        let RelayRun::Done(measure) = run else { continue };
        for remark in &measure.notes {
            if !known.iter().any(|before| without_figures(before) == without_figures(remark)) {
                known.push(remark.clone());
            }
        }
    }
    known.into_iter().map(|remark| plain(&format!("{}: {remark}", lane.contestant))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::contestant::ContestantDurability;
    use super::super::scenario::{LoadShape, ScenarioOptions};
    use super::*;
    use crate::bench::scenario::RoundOrder;
    use journey::record::Pipelining;
    use report::sample;

    fn measure(deliver_s: f64, cpu_ms: f64) -> RelayMeasurement {
        let mut measure = RelayMeasurement::of(&sample::relayed(), Some(200_000 * 512), 200_000).unwrap();
        measure.figures.deliver_s = deliver_s;
        measure.figures.delivered_per_s = 1_000.0 / deliver_s;
        measure.cpu_ms_per_1000 = Some(cpu_ms);
        measure
    }

    fn done(deliver_s: f64, cpu_ms: f64) -> RelayRun {
        RelayRun::Done(Box::new(measure(deliver_s, cpu_ms)))
    }

    fn series(contestant: Contestant, runs: Vec<RelayRun>) -> RelaySeries {
        RelaySeries {
            contestant,
            runs,
            syscalls: SyscallsPerMessage::NotMeasured("--syscalls was not said".to_owned()),
        }
    }

    fn results(ours: Vec<RelayRun>, theirs: Vec<RelayRun>) -> RelayComparisonResults {
        let done = ours.len() + theirs.len();
        let ours = series(Contestant::Mailrun(ContestantDurability::Sync), ours);
        RelayComparisonResults { series: vec![ours, series(Contestant::Postfix, theirs)], done, planned: done }
    }

    fn options() -> RelayComparisonOptions {
        RelayComparisonOptions {
            scenario: ScenarioOptions {
                name: "relay-64k".to_owned(),
                out: None,
                command: Vec::new(),
                thresholds: Vec::new(),
                live: party::live::LiveMode::Off,
            },
            contestants: Vec::new(),
            messages: 200_000,
            shape: LoadShape { sessions: 250, message_bytes: 64 << 10, reuse: Some(1), pipelining: Pipelining::Off },
            rounds: 3,
            order: RoundOrder::Alternating,
            counts_syscalls: false,
        }
    }

    fn line<'t>(text: &'t str, start: &str) -> &'t str {
        text.lines().find(|line| line.trim_start().starts_with(start)).unwrap_or_else(|| panic!("{start} in\n{text}"))
    }

    #[test]
    fn figures_have_their_spread_and_ratios_are_of_the_same_round() {
        // 2, 10 and 5 times as fast as theirs in its round; the medians, 4 s and 10 s, would give 2.5.
        let ours = vec![done(4.0, 10.0), done(1.0, 10.0), done(8.0, 10.0)];
        let theirs = vec![done(8.0, 100.0), done(10.0, 100.0), done(40.0, 100.0)];
        let sheet = of(&results(ours, theirs), &options());
        assert!(sheet.is_good(), "{}", sheet.text);
        assert!(
            line(&sheet.text, "mailrun ").contains("4.000")
                && line(&sheet.text, "mailrun ").contains("250.0 (125.0–1,000)"),
            "{}",
            sheet.text
        );
        let ratios = sheet.text.lines().find(|line| line.contains("mailrun") && line.contains("postfix")).unwrap();
        assert!(ratios.contains("5.00 (2.00–10.00)") && ratios.contains("0.10"), "{}", sheet.text);
        assert!(sheet.text.contains("200,000 messages of 64 KiB over 250 sessions"), "{}", sheet.text);
        assert!(sheet.text.contains("calls/msg, syncs/msg: not measured"), "{}", sheet.text);
    }

    #[test]
    fn a_run_that_does_not_close_is_marked_and_in_no_figure() {
        let mut lossy = measure(1.0, 1.0);
        lossy.fault = Some("lost 5".to_owned());
        let ours = vec![RelayRun::Done(Box::new(lossy)), done(4.0, 10.0)];
        let sheet = of(&results(ours, vec![done(8.0, 100.0), done(8.0, 100.0)]), &options());
        assert!(!sheet.is_good() && sheet.text.contains("NOT OK: mailrun: lost 5"), "{}", sheet.text);
        let row = line(&sheet.text, "mailrun ");
        assert!(row.contains("NOT OK in 1 of 2") && !row.contains("1,000"), "{}", sheet.text);
        let ratios = sheet.text.lines().find(|line| line.contains("mailrun") && line.contains("postfix")).unwrap();
        assert!(ratios.contains(" 2.00 "), "the round that closed: {}", sheet.text);
    }

    #[test]
    fn a_contestant_that_cannot_run_is_named() {
        let sheet = of(&results(vec![RelayRun::Failed("no\nspool".to_owned())], vec![done(8.0, 1.0)]), &options());
        assert!(!sheet.is_good() && sheet.text.contains("NOT OK: mailrun: no spool"), "{}", sheet.text);
        assert!(line(&sheet.text, "mailrun ").contains("NOT OK in 1 of 1"), "{}", sheet.text);
    }

    #[test]
    fn no_difference_is_claimed_within_the_spread() {
        let sheet =
            of(&results(vec![done(4.0, 9.0), done(6.0, 9.0)], vec![done(5.0, 10.0), done(5.0, 10.0)]), &options());
        assert!(sheet.text.contains("mailrun × delivered/s: some rounds are above 1 and some below"), "{}", sheet.text);
        assert!(!sheet.text.contains("× CPU: some"), "{}", sheet.text);
    }

    #[test]
    fn what_disturbed_several_rounds_is_said_once() {
        let disturbed = |percent: u32| {
            let mut measure = measure(4.0, 10.0);
            measure.notes = vec![format!("Other processes used {percent} % of it.")];
            RelayRun::Done(Box::new(measure))
        };
        let sheet =
            of(&results(vec![disturbed(30), disturbed(40)], vec![done(8.0, 10.0), done(8.0, 10.0)]), &options());
        assert_eq!(sheet.text.matches("Other processes").count(), 1, "{}", sheet.text);
        assert!(sheet.is_good() && sheet.text.contains("mailrun: Other processes used 30 % of it."), "{}", sheet.text);
    }

    #[test]
    fn a_lone_relay_has_no_ratios() {
        let finds = RelayComparisonResults {
            series: vec![series(Contestant::Postfix, vec![done(8.0, 1.0)])],
            done: 1,
            planned: 3,
        };
        let sheet = of(&finds, &options());
        assert!(!sheet.text.contains('×') && sheet.text.contains("Stopped after 1 of 3 runs."), "{}", sheet.text);
    }
}
