//! The report of the comparison: the figures of each tool with their spread, and ratios. Each ratio divides a figure of
//! `mailrun mades` by the figure of another tool in the same round.
use super::contestants::CompareCase;
use super::options::CompareOptions;
use super::options::MadesTool;
use super::options::{CompareMode, SendWindow};
use super::reported::ReportedLatency;
use super::runs::CompareMeasurement;
use crate::engine::{
    self, ComparisonResults, Contestant, Defects, RatioColumn, RatioPair, ReportParts, ShownFigures, TableColumn,
    TextReport, bytes, ratio_table, rounds_text,
};
use crate::programs::ComparedProgram;
use mailrun_process::party_options::value_name;
use mailrun_text::numbers::{count, counted, figure, octets, rate};
use mailrun_text::table::Table;

type CompareResults = ComparisonResults<CompareCase, CompareMeasurement>;

type Column<'a> = TableColumn<'a, CompareCase, CompareMeasurement>;

/// Notes on the tools, which a reader should know before comparing their figures.
const ABOUT: [(&[MadesTool], &str); 4] = [
    (
        &[MadesTool::Mailrun],
        "mailrun mades: latency from when a message is created, just before it is sent, to its last stage, which is its \
         receipt in mode amqp.",
    ),
    (
        &[MadesTool::GoMadesBench],
        "go-mades-bench: latency is its flight time, in whole milliseconds; the window is its -goroutines.",
    ),
    (
        &[MadesTool::Quiver, MadesTool::QuiverPython],
        "quiver: latency from before a message is sent to its receipt, between two processes that start at the same \
         time, in whole milliseconds. It has no window: it sends what the broker gives it credit for. CPU is that of its \
         two clients and of the Python programs that start and evaluate them, max RSS that of the largest.",
    ),
    (
        &[MadesTool::ArtemisPerf],
        "artemis-perf: latency is its transfer time, from before a message is sent to its receipt, in one process. Rates \
         are from its samples of each second, without the first one, but CPU and latency include the start of Java. The \
         window is its --max-pending; messages in transit are not limited.",
    ),
];

/// Each ratio divides a figure of `mailrun mades` by the same figure of another tool with the same send window.
const RATIOS: [RatioColumn<CompareMeasurement>; 2] = [
    RatioColumn::higher("× msg/s", |run| Some(run.reported.rate_per_s)),
    RatioColumn::lower("× CPU/msg", |run| Some(run.costs.cpu_s())),
];

/// Reports the figures and ratios of all tools. `left_out` contains notes that name the programs that are not compared.
/// These notes come first below the tables.
pub(super) fn of(results: &CompareResults, left_out: Vec<String>, options: &CompareOptions) -> TextReport {
    let (ratios, ratio_notes) = ratios(results);
    let mut notes = left_out;
    notes.push(
        "msg/s: from each tool's own report, from the first message created to the last one finished.".to_owned(),
    );
    notes.extend(killed_note(results));
    notes.extend(ratio_notes);
    let is_compared = |tool: MadesTool| results.contestants.iter().any(|contestant| contestant.case.tool == tool);
    let about = ABOUT.iter().filter(|(tools, _)| tools.iter().any(|tool| is_compared(*tool)));
    notes.extend(about.map(|(_, note)| (*note).to_owned()));
    let [mut figures, latencies] = [figure_columns(options), latency_columns()];
    let tables = vec![
        engine::table(&results.contestants, &figures, &["stand-in CPU µs/msg", "max RSS"]),
        engine::table(&results.contestants, &latencies, &["mean ms", "p90 ms"]),
        ratios,
    ];
    figures.extend(latencies);
    results.report(ReportParts {
        title: title(options),
        tables,
        runs: Some(engine::runs_table(&results.contestants, &figures)),
        notes,
        pass: "none of which failed",
        wrong: Defects::default(),
        is_strict: false,
    })
}

fn killed_note(results: &CompareResults) -> Option<String> {
    let killed: usize = results
        .contestants
        .iter()
        .map(|contestant| contestant.measurements().filter(|run| run.was_killed).count())
        .sum();
    (killed > 0).then(|| {
        let runs = counted(killed as u64, "run");
        format!("go-mades-bench did not end by itself after its report in {runs}, and was killed 5 s later. Its figures are complete.")
    })
}

fn title(options: &CompareOptions) -> String {
    let environment = match (&options.broker, options.mode) {
        (None, CompareMode::Amqp) => "the embedded listener",
        (None, _) => "the embedded stand-in",
        (Some(_), CompareMode::Amqp) => "the broker",
        (Some(_), _) => "the stand-in on the broker",
    };
    format!(
        "mades-compare: mode {} at {environment}, {} of {} per run, durable, {}",
        value_name(options.mode),
        counted(options.messages, "message"),
        octets(options.message_bytes),
        rounds_text(options.rounds, ShownFigures::Spreads)
    )
}

fn window(window: SendWindow) -> String {
    match window {
        SendWindow::Same(window) => count(u64::from(window)),
        SendWindow::Defaults => "defaults".to_owned(),
    }
}

fn figure_columns(options: &CompareOptions) -> Vec<Column<'_>> {
    let micros_per_message = |seconds: f64| 1e6 * seconds / options.messages as f64;
    vec![
        Column::words("tool", |contestant| contestant.case.tool.name().to_owned()),
        Column::figure("window", |contestant| window(contestant.case.window)),
        Column::spread("msg/s", |run| Some(run.reported.rate_per_s), rate),
        Column::spread("CPU µs/msg", move |run| Some(micros_per_message(run.costs.cpu_s())), figure),
        Column::median("max RSS", |run| run.costs.max_rss_bytes.map(|bytes| bytes as f64), bytes),
        Column::median("stand-in CPU µs/msg", move |run| run.stand_in_cpu_s.map(micros_per_message), figure),
    ]
}

/// Makes columns for the figures that the tools report in addition to a rate, such as latencies. The latencies of
/// different tools cannot be compared, because each tool measures latency in its own way.
fn latency_columns<'a>() -> Vec<Column<'a>> {
    let column = |title, value: fn(&ReportedLatency) -> Option<f64>| {
        Column::median(title, move |run| run.reported.latency.as_ref().and_then(value), figure)
    };
    vec![
        Column::words("as the tool reports it", |contestant| contestant.case.tool.name().to_owned()),
        Column::figure("window", |contestant| window(contestant.case.window)),
        Column::median("sent/s", |run| run.reported.sent_per_s, rate),
        column("mean ms", |latency| Some(latency.mean)),
        column("p50 ms", |latency| Some(latency.p50)),
        column("p90 ms", |latency| latency.p90),
        column("p99 ms", |latency| latency.p99),
    ]
}

fn ratios(results: &CompareResults) -> (Table, Vec<String>) {
    let is_own = |contestant: &&Contestant<CompareCase, CompareMeasurement>| contestant.case.tool == MadesTool::Mailrun;
    let pairs = results.contestants.iter().filter(is_own).flat_map(|contestant| {
        let bases = results.contestants.iter().filter(move |other| {
            other.case.window == contestant.case.window && other.case.tool != contestant.case.tool
        });
        bases.map(move |base| {
            let cells = vec![base.case.tool.name().to_owned(), window(contestant.case.window)];
            RatioPair { cells, contestant, base }
        })
    });
    ratio_table(&["mailrun against", "window"], pairs.collect(), &RATIOS)
}

#[cfg(test)]
mod tests {
    use super::super::contestants::sample;
    use super::super::reported::ReportedResult;
    use super::*;
    use crate::engine::{ComparedRun, Costs};

    type Run = ComparedRun<CompareMeasurement>;

    fn run(rate_per_s: f64, cpu_s: f64, fault: Option<&str>) -> Run {
        let costs = Costs { user_s: cpu_s, max_rss_bytes: Some(8 << 20), ..Costs::default() };
        let reported = ReportedResult { rate_per_s, sent_per_s: None, latency: None, fault: fault.map(str::to_owned) };
        let measured = CompareMeasurement { reported, costs, stand_in_cpu_s: None, was_killed: false };
        ComparedRun::of(measured, fault.map(str::to_owned))
    }

    fn contestant(tool: MadesTool, runs: Vec<Run>) -> Contestant<CompareCase, CompareMeasurement> {
        let case = CompareCase { tool, window: SendWindow::Same(16) };
        Contestant { runs, ..Contestant::new(case.description(), case) }
    }

    fn results(theirs: Vec<Run>, own: Vec<Run>) -> CompareResults {
        let contestants = vec![contestant(MadesTool::GoMadesBench, theirs), contestant(MadesTool::Mailrun, own)];
        CompareResults { contestants, done: 6, planned: 6 }
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let theirs = vec![run(100.0, 0.5, None), run(200.0, 0.5, None), run(100.0, 0.5, None)];
        // In the three rounds, our tool is 3, 1 and 2 times as fast as the other tool, so the report must show a ratio
        // of 2 and its spread, 1 to 3. Dividing the medians of the rates would give 2 as well, but no spread.
        let own = vec![run(300.0, 0.1, None), run(200.0, 0.5, None), run(200.0, 0.25, None)];
        let report = of(&results(theirs, own), Vec::new(), &sample());
        assert!(report.is_good(), "{}", report.text);
        assert!(
            report.text.contains("2.00 (1.00–3.00)") && report.text.contains("0.50 (0.20–1.00)"),
            "{}",
            report.text
        );
        let row = report.text.lines().find(|line| line.starts_with(" mailrun mades")).unwrap();
        assert_eq!(row.split_whitespace().nth(3), Some("200.0"), "{row}");
    }

    #[test]
    fn what_hung_is_named_and_has_no_figures() {
        let theirs =
            vec![ComparedRun::Failed("it did not end within 5 s\nand was killed".to_owned()), run(100.0, 0.5, None)];
        let own = vec![run(300.0, 0.1, Some("lost 7.")), run(200.0, 0.5, None)];
        let report = of(&results(theirs, own), Vec::new(), &sample());
        assert!(!report.is_good());
        for line in [
            "NOT OK: go-mades-bench, window 16: it did not end within 5 s and was killed",
            "NOT OK: mailrun mades, window 16: lost 7.",
        ] {
            assert!(report.text.lines().any(|text| text == line), "{}", report.text);
        }
        assert!(!report.text.contains("300") && report.text.contains(" 2.00 "), "{}", report.text);
    }

    #[test]
    fn who_is_not_there_is_named() {
        let alone = vec![contestant(MadesTool::Mailrun, vec![run(300.0, 0.1, None)])];
        let left_out = vec!["go-mades-bench is not here.".to_owned()];
        let report = of(&CompareResults { contestants: alone, done: 1, planned: 2 }, left_out, &sample());
        assert!(!report.is_good() && report.text.contains("Stopped after 1 of 2 runs."), "{}", report.text);
        assert!(report.text.contains("go-mades-bench is not here.") && !report.text.contains('×'), "{}", report.text);
    }
}
