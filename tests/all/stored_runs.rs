//! `mailrun report` and `--export`: stored runs in the formats of other programs, which must be able to read them.
use crate::manual::page;
use crate::party::{BenchRun, MAILRUN, Process, Sink, bench, low_port, mailrun, peer, run, stage, wait_until};
use crate::rows::is_refusal;
use crate::skipped::skip;
use mailrun_measurement::record::Record;
use mailrun_measurement::stage::{Phase, Stage};
use mailrun_report::exports::{CsvTable, ExportFormat};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Directory into which scripts/install-test-peers.sh installs Python modules.
const PYTHON_MODULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/peers/python");

fn small_run() -> BenchRun {
    bench(&["--messages", "300", "--sessions", "5", "--label", "small", "--threshold", "accepted.p99 < 60s"])
}

fn rendered(run: &BenchRun, format: &str) -> String {
    let ended = mailrun(&["report", run.path().to_str().unwrap(), "--format", format]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{format}");
    ended.out
}

/// Runs a Python program on a file. Returns its output, or `None` if the module is not installed.
fn python(module: &str, program: &str, file: &Path) -> Option<String> {
    let python = peer("python3")?;
    let path = format!("PYTHONPATH={PYTHON_MODULES}");
    if run("env", &[&path, &python, "-c", &format!("import {module}")]).code != Some(0) {
        skip(module, "Python has no such module");
        return None;
    }
    let ended = run("env", &[&path, &python, "-c", program, file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    Some(ended.out)
}

/// Reports whether two texts differ only in the last digits of numbers, which a JSON round trip may change.
fn is_alike(one: &str, other: &str) -> bool {
    let words = |text: &str| -> Vec<String> {
        let is_end = |letter: char| letter.is_whitespace() || ",:|".contains(letter);
        text.split(is_end).map(str::to_owned).collect()
    };
    let is_near = |(one, other): (&String, &String)| match (one.parse::<f64>(), other.parse::<f64>()) {
        (Ok(one), Ok(other)) => (one - other).abs() <= one.abs() * 1e-9,
        _ => one == other,
    };
    let one = words(one);
    let other = words(other);
    one.len() == other.len() && one.iter().zip(&other).all(is_near)
}

#[test]
fn a_run_writes_the_formats_that_mailrun_report_renders() {
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str| place.path().join("new").join(name);
    let formats =
        ["junit", "csv", "csv:stages", "prometheus", "openmetrics", "hlog", "github", "json", "share", "html"];
    let names: Vec<String> = formats.iter().map(|format| format.replace(':', "-")).collect();
    // The directory of these files does not exist, so the run must create it.
    let targets: Vec<String> =
        formats.iter().zip(&names).map(|(format, name)| format!("{format}={}", file(name).display())).collect();
    let mut words = vec!["--messages", "200", "--sessions", "5"];
    targets.iter().for_each(|target| words.extend(["--export", target]));
    let run = bench(&words);
    for (format, name) in formats.iter().zip(&names) {
        let written = fs::read_to_string(file(name)).unwrap();
        assert!(!written.is_empty(), "{format}");
        if !["html", "github"].contains(format) {
            assert!(is_alike(&written, &rendered(&run, format)), "{format}:\n{written}");
        }
    }
}

#[test]
fn every_format_and_column_is_described() {
    let page = page("docs/report.md");
    let rows = page.rows("Stored runs, and other formats").into_iter().skip(1);
    let described: BTreeSet<String> =
        rows.flat_map(|row| row[0].split(", ").map(str::to_owned).collect::<Vec<_>>()).collect();
    let names = ExportFormat::NAMED.iter().map(|format| format.name()).chain(["csv:TABLE"]);
    assert_eq!(described, names.map(str::to_owned).collect());
    let rows = page.rows("CSV");
    assert_eq!(rows.len(), CsvTable::ALL.len() + 1);
    for (row, table) in rows.iter().skip(1).zip(CsvTable::ALL) {
        let (own, _) = row[2].split_once(", then").unwrap_or((&row[2], ""));
        let mut columns = table.columns().split_off(2);
        // Leave out the columns of the phases, because the manual describes them in words.
        let phases = if table == CsvTable::Slowest { Phase::ALL.len() } else { 0 };
        columns.truncate(columns.len() - phases);
        assert_eq!((row[0].as_str(), own), (table.name(), columns.join(", ").as_str()));
    }
}

#[test]
fn an_exported_record_is_valid_against_the_schema() {
    let validator = jsonschema::validator_for(&crate::manual::schema()).unwrap();
    let run = small_run();
    let text = rendered(&run, "json");
    let record: Value = serde_json::from_str(&text).unwrap();
    let faults: Vec<String> = validator.iter_errors(&record).map(|error| error.to_string()).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(is_alike(&text, &run.file("run.json")), "{text}");
    assert!(record["host"]["disk"]["file_system"].is_string(), "{}", record["host"]);
}

#[test]
fn a_run_comes_from_standard_input_too() {
    let stored = small_run();
    let line = format!("{MAILRUN} report - --share short < {}", stored.path().join("run.json").display());
    let ended = run("sh", &["-c", &line]);
    assert_eq!((ended.code, ended.out.lines().count()), (Some(0), 5), "{ended:?}");
    assert!(ended.out.contains("(computed from the rate)"), "{}", ended.out);
}

#[test]
fn several_runs_share_a_file_or_get_one_each() {
    let place = tempfile::tempdir().unwrap();
    let runs = [small_run(), small_run()];
    let paths = runs.each_ref().map(|run| run.path().to_str().unwrap());
    let report = |words: &[&str]| mailrun(&[&["report", paths[0], paths[1]], words].concat());
    let table = report(&["--format", "csv:ledger"]);
    assert_eq!((table.code, table.out.lines().count()), (Some(0), 47), "{}", table.out);
    let refused = report(&["--format", "prometheus"]);
    assert!(is_refusal(&refused, ["format prometheus has one run", "-o DIR/"]), "{refused:?}");
    let directory = format!("{}/new/", place.path().display());
    let each = report(&["--format", "prometheus", "-o", &directory]);
    assert_eq!((each.code, each.out.lines().count()), (Some(0), 2), "{each:?}");
    for path in each.out.lines() {
        assert!(path.ends_with(".prom") && fs::read_to_string(path).unwrap().contains("mailrun_run_info"), "{path}");
    }
}

#[test]
fn what_is_no_run_is_refused_in_one_line() {
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = place.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let newer = file("newer.json", "{\"format\": \"mailrun-run/7\", \"version\": \"9.9.9\"}");
    let foreign = file("k6.json", "{\"metrics\": {}}");
    let text = file("notes.txt", "not JSON \u{1b}[2J");
    let empty = place.path().to_str().unwrap();
    let run = small_run();
    let known = run.path().to_str().unwrap();
    let parent = tempfile::tempdir().unwrap();
    let below = parent.path().join("round-1");
    fs::create_dir(&below).unwrap();
    fs::copy(run.path().join("run.json"), below.join("run.json")).unwrap();
    for (words, said) in [
        (vec![newer.as_str()], "mailrun-run/7, of mailrun 9.9.9"),
        (vec![&foreign], "no run record of mailrun"),
        (vec![&text], "no run record of mailrun"),
        (vec![empty], "has no run.json"),
        (vec!["/nowhere"], "No such file"),
        (vec![parent.path().to_str().unwrap()], "1 runs below it"),
        (vec!["-", "-"], "standard input has one run"),
        (vec![known, "--against", known], "--against requires --format html"),
        (vec![known, "-f", "csv", "-o", "/dev/null/x"], "cannot write /dev/null/x"),
        (vec![known, "--format", "csv:x"], "the tables are series"),
    ] {
        let ended = mailrun(&[&["report"], words.as_slice()].concat());
        assert!(is_refusal(&ended, [said]), "{words:?}: {ended:?}");
    }
    let twice = mailrun(&["bench", "--export", "md=a", "--export", "csv=a", "--messages", "1"]);
    assert!(is_refusal(&twice, ["a is named twice"]), "{twice:?}");
    let unwritable = mailrun(&["bench", "--export", "md=/dev/null/a", "--messages", "1"]);
    assert!(is_refusal(&unwritable, ["cannot write /dev/null/a"]), "{unwritable:?}");
}

#[test]
fn in_actions_a_run_writes_the_summary_and_annotates_failures() {
    let place = tempfile::tempdir().unwrap();
    let summary = place.path().join("summary");
    let variable = format!("GITHUB_STEP_SUMMARY={}", summary.display());
    let out = place.path().join("out");
    let bench = |actions: &str| {
        let words = ["bench", "--relay", "none", "--messages", "50", "--out", out.to_str().unwrap()];
        let more = ["--threshold", "accepted.count > 1k"];
        run("env", &[&[&variable, actions, MAILRUN], &words[..], &more[..]].concat())
    };
    let outside = bench("GITHUB_ACTIONS=");
    assert!(!summary.exists() && !outside.out.contains("::error"), "{outside:?}");
    let inside = bench("GITHUB_ACTIONS=true");
    // The run fails because it misses the threshold. If this busy machine was itself the bottleneck, the run is invalid
    // instead.
    let is_failure = inside.code == Some(1);
    let level = if is_failure { "error" } else { "warning" };
    let word = if is_failure { "FAIL" } else { "INVALID" };
    assert!(inside.out.starts_with(&format!("::{level} title=mailrun bench%3A {word}::")), "{inside:?}");
    assert!(inside.out.contains("::accepted.count > 1k: it was 50\n"), "{inside:?}");
    assert!(inside.out.trim_end().lines().last().unwrap().starts_with(word), "{inside:?}");
    let text = fs::read_to_string(&summary).unwrap();
    let heading = format!("## mailrun bench: {word}");
    assert_eq!(text.matches(&heading).count(), 1, "once, and not by each process: {text}");
    // Outside of GitHub Actions, the summary must be written if the user asks for this format.
    let asked = run("env", &[&variable, MAILRUN, "report", out.to_str().unwrap(), "--format", "github"]);
    assert_eq!(asked.out.lines().filter(|line| !line.starts_with("::")).count(), 0, "{asked:?}");
    assert_eq!(fs::read_to_string(&summary).unwrap().matches(&heading).count(), 2);
}

const JUNIT: &str = "\
import sys, junitparser
xml = junitparser.JUnitXml.fromfile(sys.argv[1])
for suite in xml:
    for case in suite:
        print(suite.name, '|', case.name, '|', [type(one).__name__ for one in case.result])
";

#[test]
fn a_parser_of_junit_reads_the_test_cases() {
    let run = small_run();
    let file = run.path().join("junit.xml");
    fs::write(&file, rendered(&run, "junit")).unwrap();
    let Some(said) = python("junitparser", JUNIT, &file) else { return };
    let is_judged = run.record().verdict.valid;
    let verdict = if is_judged { "small | verdict | []" } else { "small | verdict | ['Error']" };
    assert_eq!(said.lines().collect::<Vec<_>>(), [verdict, "small | accepted.p99 < 60s | []"]);
}

#[test]
fn promtool_accepts_the_metrics() {
    let Some(promtool) = peer("promtool") else { return };
    let stored = small_run();
    let file = stored.path().join("metrics");
    fs::write(&file, rendered(&stored, "prometheus")).unwrap();
    let line = format!("{promtool} check metrics < {}", file.display());
    let ended = run("sh", &["-c", &line]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{}", ended.out);
}

#[test]
fn a_source_and_a_sink_have_live_metrics() {
    let sink = Sink::start(&[]);
    let port = low_port();
    let http = format!("127.0.0.1:{port}");
    let words = ["source", &sink.address(), "--rate", "50", "--duration", "3s", "--http", &http];
    let source = Process::start(MAILRUN, &words);
    let ask = |http: &str| -> Option<String> {
        let answer = ureq::get(&format!("{http}/metrics")).call().ok()?;
        answer.into_body().read_to_string().ok()
    };
    let number = |text: &str, name: &str| -> Option<f64> {
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    let text = wait_until("messages in the metrics", || {
        let text = ask(&format!("http://{http}"))?;
        number(&text, "mailrun_source_accepted_total ").filter(|accepted| *accepted > 0.0).map(|_| text)
    });
    assert!(number(&text, "mailrun_source_latency_seconds{quantile=\"0.99\"}").is_some(), "{text}");
    if let Some(promtool) = peer("promtool") {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("metrics");
        fs::write(&file, text + &ask(sink.url()).unwrap()).unwrap();
        let ended = run("sh", &["-c", &format!("{promtool} check metrics < {}", file.display())]);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{}", ended.out);
    }
    let ended = source.finish();
    // Status 3 is allowed, because a busy machine may be the bottleneck itself.
    assert!([Some(0), Some(3)].contains(&ended.code), "{ended:?}");
    let text = ask(sink.url()).unwrap();
    for counted in ["mailrun_sink_messages_total ", "mailrun_sink_stage_seconds_count{stage=\"delivered\"} "] {
        assert!(number(&text, counted).is_some_and(|messages| messages > 0.0), "{counted} in {text}");
    }
}

const HLOG: &str = "\
import sys
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader
reader = HistogramLogReader(sys.argv[1], HdrHistogram(1000, 3600000000000, 3))
while True:
    one = reader.get_next_interval_histogram()
    if one is None:
        break
    print(one.get_tag() if hasattr(one, 'get_tag') else one.tag, one.get_total_count(), one.get_value_at_percentile(99))
";

#[test]
fn hdr_histogram_of_python_reads_the_log() {
    let run = small_run();
    let file = run.path().join("stages.hlog");
    fs::write(&file, rendered(&run, "hlog")).unwrap();
    let Some(said) = python("hdrh", HLOG, &file) else { return };
    let record = run.record();
    let accepted = said.lines().find(|line| line.starts_with("accepted ")).unwrap_or_else(|| panic!("{said}"));
    let numbers: Vec<f64> = accepted.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
    let row = stage(&record, Stage::Accepted);
    assert_eq!(numbers[0], 300.0);
    let p99_ms = row.latency_ms.unwrap().p99;
    assert!((numbers[1] / 1e6 - p99_ms).abs() <= p99_ms * 0.01, "{accepted} and {p99_ms} ms");
    let phases = record.phases.iter().filter(|row| row.histogram.is_some());
    assert!(phases.clone().count() > 0);
    for row in phases {
        assert!(said.lines().any(|line| line.starts_with(&format!("{} {} ", row.name.name(), row.count))), "{said}");
    }
}

const CSV: &str = "\
import csv, sys
rows = list(csv.reader(open(sys.argv[1], newline='', encoding='utf-8'), strict=True))
assert all(len(row) == len(rows[0]) for row in rows)
column = rows[0].index('accepted')
print(len(rows) - 1, sum(int(row[column]) for row in rows[1:]))
";

#[test]
fn csv_of_python_reads_the_seconds() {
    let run = small_run();
    let file = run.path().join("series.csv");
    fs::write(&file, rendered(&run, "csv")).unwrap();
    let Some(said) = python("csv", CSV, &file) else { return };
    let record: Record = run.record();
    assert_eq!(said.trim(), format!("{} 300", record.series.len()));
}

const JSON_AND_CSV: &str = "\
import csv, json, os, sys
for name in sorted(os.listdir(sys.argv[1])):
    text = open(os.path.join(sys.argv[1], name), newline='', encoding='utf-8')
    if name.endswith('.json'):
        json.load(text)
    if name.endswith('.csv'):
        rows = list(csv.reader(text, strict=True))
        assert all(len(row) == len(rows[0]) for row in rows), name
        assert not any(cell.lstrip()[:1] in ('=', '@') for row in rows for cell in row), name
print('read')
";

/// Exports a record whose texts are megabytes long and contain markup and terminal escapes to a file in each format.
fn hostile_files(place: &Path) {
    let stored = place.join("run.json");
    fs::write(&stored, mailrun_report::sample_runs::hostile().to_json().unwrap()).unwrap();
    let tables = CsvTable::ALL.map(|table| format!("csv:{}", table.name()));
    let names = ExportFormat::NAMED.map(|format| format.name().to_owned());
    for format in names.iter().filter(|name| name.as_str() != "csv").chain(&tables) {
        let known = ExportFormat::named(format).unwrap();
        let file = place.join(format!("{}.{}", format.replace(':', "-"), known.file_extension()));
        let words = ["report", stored.to_str().unwrap(), "--format", format, "-o", file.to_str().unwrap()];
        let ended = mailrun(&words);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{format}");
        let text = fs::read_to_string(&file).unwrap();
        if format == "json" {
            continue;
        }
        // The record contains a reply of 10 MB, which every format must shorten. A megabyte is enough for the longest
        // table, with 50 messages of 10 recipients each.
        assert!(text.len() < 1_000_000, "{format}: {} bytes", text.len());
        let hidden =
            text.chars().find(|letter| !"\r\n".contains(*letter) && mailrun_text::printable::is_hidden(*letter));
        assert!(format == "html" || hidden.is_none(), "{format} shows {hidden:?}");
        let is_markup = ["html", "md", "github", "share", "junit"].contains(&format.as_str());
        assert!(!is_markup || !text.replace("\\<", "").contains("<img"), "{format}:\n{text}");
    }
}

#[test]
fn texts_of_peers_do_nothing_to_the_programs_that_read_a_format() {
    let place = tempfile::tempdir().unwrap();
    hostile_files(place.path());
    let file = |name: &str| place.path().join(name);
    if let Some(said) = python("csv", JSON_AND_CSV, place.path()) {
        assert_eq!(said.trim(), "read");
    }
    if let Some(said) = python("junitparser", JUNIT, &file("junit.xml")) {
        assert_eq!(said.lines().count(), 1 + mailrun_report::sample_runs::hostile().thresholds.len(), "{said}");
    }
    if let Some(said) = python("hdrh", HLOG, &file("hlog.hlog")) {
        assert!(said.lines().any(|line| line.starts_with("accepted ")), "{said}");
    }
    let Some(promtool) = peer("promtool") else { return };
    let line = format!("{promtool} check metrics < {}", file("prometheus.prom").display());
    let ended = run("sh", &["-c", &line]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{}", ended.out);
}
