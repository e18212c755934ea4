//! A figure of a stage, such as its rate, must have the same value in every form in which a run can be shown (text,
//! HTML, JSON, CSV and so on). The test changes one figure in the record of a run. In each form, only numbers that show
//! this figure may change, and they must show the new value. A form that computed the figure in a different way would
//! keep the old value or show a wrong one.
use mailrun_compare::{RunSide, compare_stored};
use mailrun_measurement::record::{LatencyMs, Record, StageRow};
use mailrun_measurement::threshold::{RunProtocol, Threshold};
use mailrun_report::exports::{CsvTable, ExportFormat};
use mailrun_report::{ReportLength, TextStyle, render, sample};
use proptest::prelude::*;

struct Figure {
    /// Name of the figure in a threshold, for example `p50`.
    metric: &'static str,
    /// Text by which a comparison names the figure after the name of the stage, for example ` p50, ms`. `None` if
    /// comparisons leave the figure out.
    compared: Option<&'static str>,
    set: fn(&mut StageRow, f64),
}

fn times(row: &mut StageRow) -> &mut LatencyMs {
    row.latency_ms.get_or_insert_default()
}

const FIGURES: [Figure; 9] = [
    Figure { metric: "rate", compared: Some(", msg/s"), set: |row, value| row.rate_per_s = Some(value) },
    Figure { metric: "min", compared: None, set: |row, value| times(row).min = value },
    Figure { metric: "avg", compared: None, set: |row, value| times(row).mean = value },
    Figure { metric: "p50", compared: Some(" p50, ms"), set: |row, value| times(row).p50 = value },
    Figure { metric: "p90", compared: Some(" p90, ms"), set: |row, value| times(row).p90 = value },
    Figure { metric: "p95", compared: None, set: |row, value| times(row).p95 = value },
    Figure { metric: "p99", compared: Some(" p99, ms"), set: |row, value| times(row).p99 = value },
    Figure { metric: "p99.9", compared: None, set: |row, value| times(row).p999 = value },
    Figure { metric: "max", compared: None, set: |row, value| times(row).max = value },
];

/// Returns the output formats that must show a figure of the last stage. `metric` is the name of this figure in a
/// threshold, for example `p50`.
fn shown_in(metric: &str) -> Vec<&'static str> {
    let all = ["text", "md", "html", "json", "csv:stages", "csv:thresholds", "prometheus", "openmetrics", "junit"];
    let more: &[&str] = match metric {
        "rate" => &["-q", "short", "github", "share", "bigger"],
        "p99" => &["-q", "short", "github", "smaller"],
        "p50" => &["short", "github", "smaller"],
        _ => &[],
    };
    all.iter().chain(more).copied().collect()
}

fn forms(record: &Record) -> Vec<(&'static str, String)> {
    let runs = std::slice::from_ref(record);
    let export = |name, format: ExportFormat| (name, format.render(runs));
    // In CSV, a comma always separates values. Replace it, because `numbers` would take it for part of a number.
    let csv = |name, table| (name, ExportFormat::Csv(table).render(runs).replace(',', ";"));
    vec![
        ("-q", render(record, ReportLength::Verdict, 100, TextStyle::Plain, None)),
        export("short", ExportFormat::Short),
        export("text", ExportFormat::Text),
        export("md", ExportFormat::Markdown),
        ("html", without_tags(&ExportFormat::Html.render(runs))),
        export("json", ExportFormat::Json),
        csv("csv:stages", CsvTable::Stages),
        csv("csv:thresholds", CsvTable::Thresholds),
        export("junit", ExportFormat::Junit),
        export("prometheus", ExportFormat::Prometheus),
        export("openmetrics", ExportFormat::OpenMetrics),
        export("github", ExportFormat::Github),
        ("share", without_times_from_the_rate(&ExportFormat::Share.render(runs))),
        export("bigger", ExportFormat::ActionBenchmarkBigger),
        export("smaller", ExportFormat::ActionBenchmarkSmaller),
    ]
}

/// Returns the text of an HTML page, without its tags and without the labels of its curves (SVG's `<text>`).
fn without_tags(page: &str) -> String {
    let pieces = page.split('<').filter(|piece| !piece.starts_with("text"));
    pieces.map(|piece| piece.split_once('>').map_or(piece, |(_, text)| text)).collect::<Vec<_>>().join(" ")
}

/// Returns the template without the lines that show times computed from the rate, such as the time for 10,000 messages.
/// The numbers in these lines change with the rate, but do not show the rate itself.
fn without_times_from_the_rate(template: &str) -> String {
    template.lines().filter(|line| !line.contains("computed from the rate")).collect::<Vec<_>>().join("\n")
}

/// Returns the numbers in a text. A comma between digits is part of the number.
fn numbers(text: &str) -> Vec<&str> {
    let is_part = |letter: char| letter.is_ascii_digit() || letter == '.' || letter == ',';
    let tokens = text.split("..").flat_map(|piece| piece.split(move |letter| !is_part(letter)));
    tokens.map(|token| token.trim_matches(['.', ','])).filter(|token| !token.is_empty()).collect()
}

/// Returns true if `number` is one of `values`, rounded to as many decimals as `number` has.
fn shows(number: &str, values: &[f64]) -> bool {
    let number = number.replace(',', "");
    let decimals = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let half = 0.5 / 10_f64.powi(decimals as i32);
    number
        .parse::<f64>()
        .is_ok_and(|shown| values.iter().any(|value| (shown - value).abs() <= half * 1.001 + value * 1e-9))
}

/// Returns true if both texts show the same number. One of them may have fewer decimals, because the number of decimals
/// in a column depends on the largest number of the column.
fn are_one(left: &str, right: &str) -> bool {
    let value = |number: &str| number.replace(',', "").parse::<f64>();
    left == right
        || value(left).is_ok_and(|value| shows(right, &[value]))
        || value(right).is_ok_and(|value| shows(left, &[value]))
}

/// Returns a copy of the record `base` in which the stage at index `place` has `value` as its `figure`. The copy also
/// has a threshold that `value` misses, so that the text about the missed threshold must show the value, too.
fn with(base: &Record, place: usize, figure: &Figure, value: f64) -> Record {
    let mut record = base.clone();
    let row = &mut record.stages[place];
    // Set the bytes to 0, so that no form shows bytes per second, which would change together with the rate.
    row.bytes = 0;
    (figure.set)(row, value);
    let limit = if figure.metric == "rate" { "<= 0/s" } else { "<= 0s" };
    let protocol = if record.mades.is_some() { RunProtocol::Mades } else { RunProtocol::Smtp };
    let expression = format!("{}.{} {limit}", record.stages[place].name.name(), figure.metric);
    let threshold = Threshold::parse(&expression, protocol).expect("a threshold");
    record.thresholds = vec![threshold.evaluate(&record)];
    assert!(
        shows(&record.thresholds[0].value.expect("measured").to_string(), &[value]),
        "{expression}: {:?}",
        record.thresholds
    );
    record
}

fn check(base: &Record, place: usize, figure: &Figure, old: f64, new: f64) {
    let (before, after) = (with(base, place, figure, old), with(base, place, figure, new));
    let row = &after.stages[place];
    let what = format!("{}.{}", row.name.name(), figure.metric);
    // Most forms show a time in milliseconds, and some show it in seconds. The Prometheus form shows the sum of all
    // times, which is the mean multiplied by the count.
    let values = |value: f64| [value, value / 1e3, value / 1e3 * row.count as f64];
    let is_last = place + 1 == after.stages.len();
    for ((form, old_text), (_, new_text)) in forms(&before).iter().zip(&forms(&after)) {
        let (old_numbers, new_numbers) = (numbers(old_text), numbers(new_text));
        assert_eq!(old_numbers.len(), new_numbers.len(), "{what} in {form}");
        let mut changes = 0;
        for (from, to) in old_numbers.iter().zip(&new_numbers).filter(|(from, to)| !are_one(from, to)) {
            changes += 1;
            assert!(
                shows(from, &values(old)) && shows(to, &values(new)),
                "{what} {old} → {new} in {form}: {from} → {to}"
            );
        }
        assert!(changes > 0 || !is_last || !shown_in(figure.metric).contains(form), "{what} is not in {form}");
    }
    if let Some(name) = figure.compared.filter(|_| is_last) {
        let side = |record: &Record, id: &str| {
            // Use a ledger without losses, because runs that lost mail are not compared.
            let run = Record { run_id: id.repeat(32), ledger: sample::held().ledger, ..record.clone() };
            RunSide { name: "runs".to_owned(), runs: vec![("run.json".to_owned(), run)], ..RunSide::default() }
        };
        let compared = compare_stored(&side(&after, "a"), &side(&before, "b"), 0.05).expect("runs of one load");
        let name = format!("{}{name}", row.name.name());
        let metric = compared.metrics.iter().find(|metric| metric.name == name).expect("the comparison has it");
        assert_eq!(
            (metric.against_values.as_slice(), metric.values.as_slice()),
            ([old].as_slice(), [new].as_slice()),
            "{what}"
        );
    }
}

proptest! {
    // One case is enough, because every case goes through all figures.
    #![proptest_config(ProptestConfig::with_cases(1))]

    #[test]
    fn a_figure_has_one_value_in_all_forms(old in 1.0..900.0_f64, factor in 1.5..9.0_f64) {
        for base in [sample::held(), sample::relayed(), sample::mades()] {
            for place in 0..base.stages.len() {
                for figure in &FIGURES {
                    check(&base, place, figure, old, old * factor);
                }
            }
        }
    }
}
