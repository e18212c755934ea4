//! The comparison as it is read: figures with their spread, ratios to go-mades-bench in the same round, and below them all
//! that went wrong.
use super::contestants::MadesTool;
use super::runner::{CompareMeasurement, CompareResults, CompareRun, CompareSeries};
use super::{CompareMode, CompareOptions, SendWindow};
use crate::bench::relays::MedianRange;
use crate::bench::tables::{TextReport, conclude_runs};
use report::numbers::{count, counted, figure, memory, octets, rate};
use report::table::{Align, Table, plain};

/// The tables.
pub(super) fn of(finds: &CompareResults, options: &CompareOptions) -> TextReport {
    let mut remarks = faults(finds);
    let conclusion = conclude_runs(&remarks, finds.done, finds.planned);
    remarks.extend(notes(finds));
    TextReport::new(&title(options), vec![figures(finds, options), ratios(finds)], remarks, conclusion)
}

fn title(options: &CompareOptions) -> String {
    let rounds = match options.rounds {
        1 => "one round".to_owned(),
        rounds => format!("medians (least–most) of {rounds} rounds, interleaved"),
    };
    let ground = match (&options.broker, options.mode) {
        (None, CompareMode::Amqp) => "the embedded listener",
        (None, _) => "the embedded stand-in",
        (Some(_), CompareMode::Amqp) => "the broker",
        (Some(_), _) => "the stand-in on the broker",
    };
    format!(
        "mades-compare: mode {} at {ground}, {} of {} per run, durable, {rounds}",
        options.mode.name(),
        counted(options.messages, "message"),
        octets(options.message_bytes)
    )
}

fn window(window: SendWindow) -> String {
    match window {
        SendWindow::Same(window) => count(u64::from(window)),
        SendWindow::Defaults => "defaults".to_owned(),
    }
}

fn figures(finds: &CompareResults, options: &CompareOptions) -> Table {
    let right = |title| (title, Align::Right);
    let mut table = Table::new([
        ("tool", Align::Left),
        right("window"),
        right("msg/s"),
        right("CPU µs/msg"),
        right("max RSS"),
        right("stand-in CPU µs/msg"),
    ])
    .leave_out(&["stand-in CPU µs/msg", "max RSS"]);
    let each = |seconds: f64| 1e6 * seconds / options.messages as f64;
    for lane in finds.series.iter().filter(|lane| !lane.runs.is_empty()) {
        let of =
            |value: &dyn Fn(&CompareMeasurement) -> Option<f64>| MedianRange::of(complete_runs(lane).filter_map(value));
        table.row(vec![
            lane.case.tool.name().to_owned(),
            window(lane.case.window),
            of(&|run| Some(run.reported.rate_per_s)).render(rate),
            of(&|run| Some(each(run.costs.cpu_s()))).render(figure),
            of(&|run| run.costs.max_rss_bytes.map(|bytes| bytes as f64)).median(|bytes| memory(bytes as u64)),
            of(&|run| run.stand_in_cpu_s.map(each)).median(figure),
        ]);
    }
    table
}

/// A comparison of two runs of a round: title and ratio.
type CompareRatio = (&'static str, fn(&CompareMeasurement, &CompareMeasurement) -> f64);

const COMPARISONS: [CompareRatio; 2] = [
    ("× msg/s", |run, base| run.reported.rate_per_s / base.reported.rate_per_s),
    ("× CPU/msg", |run, base| run.costs.cpu_s() / base.costs.cpu_s()),
];

/// Ours as a multiple of the other's.
fn ratios(finds: &CompareResults) -> Table {
    let [speed, cpu] = COMPARISONS.map(|(title, _)| (title, Align::Right));
    let mut table = Table::new([("mailrun against go-mades-bench, window", Align::Left), speed, cpu]);
    for lane in finds.series.iter().filter(|lane| lane.case.tool == MadesTool::Mailrun) {
        let is_base = |other: &&CompareSeries| {
            other.case.tool == MadesTool::GoMadesBench && other.case.window == lane.case.window
        };
        let Some(base) = finds.series.iter().find(is_base) else { continue };
        let mut row = vec![window(lane.case.window)];
        row.extend(COMPARISONS.map(|(_, compare)| {
            let pairs = lane.runs.iter().zip(&base.runs);
            let pairs = pairs.filter_map(|(run, base)| measured(run).zip(measured(base)));
            MedianRange::of(pairs.map(|(run, base)| compare(run, base))).render(|value| format!("{value:.2}"))
        }));
        table.row(row);
    }
    table
}

/// Runs in which every message got through: figures of the others are of other work.
fn complete_runs(lane: &CompareSeries) -> impl Iterator<Item = &CompareMeasurement> {
    lane.runs.iter().filter_map(measured)
}

fn measured(run: &CompareRun) -> Option<&CompareMeasurement> {
    match run {
        CompareRun::Done(measured) => Some(measured.as_ref()).filter(|measured| measured.reported.fault.is_none()),
        CompareRun::Failed(_) => None,
    }
}

/// A line for each run that failed, hung or did not get everything through.
fn faults(finds: &CompareResults) -> Vec<String> {
    let line = |lane: &CompareSeries, run: &CompareRun| {
        let why = match run {
            CompareRun::Done(measured) => measured.reported.fault.clone()?,
            CompareRun::Failed(why) => why.clone(),
        };
        Some(plain(&format!("NOT OK: {}: {why}", lane.case.description())))
    };
    finds.series.iter().flat_map(|lane| lane.runs.iter().filter_map(move |run| line(lane, run))).collect()
}

/// Notes that a reader must know besides.
fn notes(finds: &CompareResults) -> Vec<String> {
    let mut notes = Vec::new();
    if finds.done < finds.planned {
        notes.push(format!("Stopped after {} of {} runs.", finds.done, finds.planned));
    }
    if finds.lacks_original {
        notes.push("Not compared because it is not installed: go-mades-bench.".to_owned());
    }
    notes.push(
        "msg/s: from each tool's own report, from the first message created to the last one finished.".to_owned(),
    );
    if finds.has_original {
        notes.push(
            "Ratios compare the two runs of the same round. The window of go-mades-bench is its -goroutines."
                .to_owned(),
        );
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::contestants::{CompareCase, sample};
    use super::super::reported::ReportedResult;
    use super::*;
    use crate::bench::tables::Costs;

    fn run(rate_per_s: f64, cpu_s: f64, fault: Option<&str>) -> CompareRun {
        let costs = Costs { user_s: cpu_s, max_rss_bytes: Some(8 << 20), ..Costs::default() };
        let findings = ReportedResult { rate_per_s, fault: fault.map(str::to_owned) };
        CompareRun::Done(Box::new(CompareMeasurement { reported: findings, costs, stand_in_cpu_s: None }))
    }

    fn series(tool: MadesTool, runs: Vec<CompareRun>) -> CompareSeries {
        CompareSeries { case: CompareCase { tool, window: SendWindow::Same(16) }, runs }
    }

    fn results(theirs: Vec<CompareRun>, own: Vec<CompareRun>) -> CompareResults {
        let lanes = vec![series(MadesTool::GoMadesBench, theirs), series(MadesTool::Mailrun, own)];
        CompareResults { series: lanes, has_original: true, lacks_original: false, done: 6, planned: 6 }
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let theirs = vec![run(100.0, 0.5, None), run(200.0, 0.5, None), run(100.0, 0.5, None)];
        // 3, 1 and 2 times as fast; the medians would give 2 times as well, but not the spread.
        let own = vec![run(300.0, 0.1, None), run(200.0, 0.5, None), run(200.0, 0.25, None)];
        let sheet = of(&results(theirs, own), &sample());
        assert!(sheet.is_good(), "{}", sheet.text);
        assert!(sheet.text.contains("2.00 (1.00–3.00)") && sheet.text.contains("0.50 (0.20–1.00)"), "{}", sheet.text);
        let row = sheet.text.lines().find(|line| line.starts_with(" mailrun mades")).unwrap();
        assert_eq!(row.split_whitespace().nth(3), Some("200.0"), "{row}");
    }

    #[test]
    fn what_hung_is_named_and_has_no_figures() {
        let theirs =
            vec![CompareRun::Failed("it did not end within 5 s\nand was killed".to_owned()), run(100.0, 0.5, None)];
        let own = vec![run(300.0, 0.1, Some("lost 7.")), run(200.0, 0.5, None)];
        let sheet = of(&results(theirs, own), &sample());
        assert!(!sheet.is_good());
        for line in [
            "NOT OK: go-mades-bench, window 16: it did not end within 5 s and was killed",
            "NOT OK: mailrun mades, window 16: lost 7.",
        ] {
            assert!(sheet.text.lines().any(|said| said == line), "{}", sheet.text);
        }
        assert!(!sheet.text.contains("300") && sheet.text.contains(" 2.00 "), "{}", sheet.text);
    }

    #[test]
    fn who_is_not_there_is_named() {
        let alone = vec![series(MadesTool::Mailrun, vec![run(300.0, 0.1, None)])];
        let sheet = of(
            &CompareResults { series: alone, has_original: false, lacks_original: true, done: 1, planned: 2 },
            &sample(),
        );
        assert!(!sheet.is_good() && sheet.text.contains("Stopped after 1 of 2 runs."), "{}", sheet.text);
        assert!(sheet.text.contains("not installed: go-mades-bench.") && !sheet.text.contains('×'), "{}", sheet.text);
    }
}
