//! Tests that hostile texts in a record do no harm in any format. A parser of the format reads each output back.
use super::{CsvTable, ExportFormat, annotations};
use crate::sample;
use mailrun_measurement::record::{
    DomainRow, ErrorRow, EventKind, EventRow, MissingMessage, Record, SlowMessage, ThresholdRow,
};
use mailrun_measurement::stage::Phase;
use mailrun_text::printable::is_hidden;
use proptest::prelude::*;
use quick_xml::events::Event;
use quick_xml::reader::Reader;

/// Texts that have done harm in other programs: markup, control characters, formulas, and ends of quoted text.
const HOSTILE: [&str; 8] = [
    "<img src=x onerror=alert(1)>",
    "\u{202e}550\u{2066} gnp.exe\u{200f}",
    "a\0b\u{1b}[2J\u{7f}\u{9b}",
    "]]><![CDATA[",
    "=HYPERLINK(\"http://evil.example\")",
    "x\r\n::error::y\n# TYPE evil gauge\nevil 1",
    "\"},{\"a\\",
    "\u{fffe}\u{ffff}\u{feff}",
];

/// Returns a copy of `base` in which `text` replaces every text that a peer or a user could have chosen.
fn said(text: &str, base: Record) -> Record {
    let mut record = base;
    let text = text.to_owned();
    record.name.clone_from(&text);
    record.command = vec![text.clone()];
    record.verdict.why.clone_from(&text);
    record.verdict.reasons = vec![text.clone()];
    record.workload.target.clone_from(&text);
    record.host.cpu_model.clone_from(&text);
    record.errors = vec![ErrorRow {
        phase: Phase::Rcpt,
        code: 550,
        text: text.clone(),
        count: 3,
        sample: Some(text.clone()),
        ..ErrorRow::default()
    }];
    record.events = vec![EventRow { at_s: 1.0, kind: EventKind::FaultOn, text: text.clone() }];
    record.slowest = vec![SlowMessage { recipients: vec![text.clone()], ..SlowMessage::default() }];
    record.missing = vec![MissingMessage { reply: Some(text.clone()), ..MissingMessage::default() }];
    record.domains = vec![DomainRow { domain: text.clone(), ..DomainRow::default() }];
    record.thresholds = vec![ThresholdRow { expression: text.clone(), value: Some(1.0), ..ThresholdRow::default() }];
    record.stages.iter_mut().for_each(|row| row.party.clone_from(&text));
    if let Some(own) = &mut record.mades {
        own.troubles.iter_mut().for_each(|row| row.text.clone_from(&text));
        own.outages.iter_mut().for_each(|row| row.why.clone_from(&text));
    }
    record
}

fn formats() -> Vec<ExportFormat> {
    let tables = CsvTable::ALL.map(ExportFormat::Csv);
    // Leave out the HTML page, because it has tests of its own.
    ExportFormat::NAMED.into_iter().chain(tables).filter(|format| *format != ExportFormat::Html).collect()
}

fn check(record: &Record) {
    for format in formats() {
        let text = format.render(std::slice::from_ref(record));
        if format == ExportFormat::Json {
            assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), *record);
            continue;
        }
        let hidden = text.chars().find(|letter| !"\r\n".contains(*letter) && is_hidden(*letter));
        assert!(hidden.is_none(), "{format:?} shows {hidden:?}");
        match format {
            ExportFormat::Csv(table) => check_csv(&text, table),
            ExportFormat::Junit => check_xml(&text),
            ExportFormat::Prometheus | ExportFormat::OpenMetrics => check_metrics(&text),
            ExportFormat::ActionBenchmarkBigger | ExportFormat::ActionBenchmarkSmaller => {
                serde_json::from_str::<serde_json::Value>(&text).unwrap();
            }
            ExportFormat::Markdown | ExportFormat::Github | ExportFormat::Share => {
                let unescaped = text.replace("\\<", "");
                assert!(!unescaped.contains('<'), "{text}");
            }
            ExportFormat::ShareShort => assert_eq!(text.lines().count(), 5, "{text}"),
            _ => {}
        }
    }
    for line in annotations(record).lines() {
        assert!(line.starts_with("::error ") || line.starts_with("::warning "), "{line}");
    }
}

fn csv_rows(text: &str) -> Vec<Vec<String>> {
    let mut rows = vec![vec![String::new()]];
    let mut is_quoted = false;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let row = rows.last_mut().unwrap();
        match letter {
            '"' if is_quoted && letters.next_if_eq(&'"').is_some() => row.last_mut().unwrap().push('"'),
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => row.push(String::new()),
            '\r' if !is_quoted && letters.next_if_eq(&'\n').is_some() => rows.push(vec![String::new()]),
            letter => row.last_mut().unwrap().push(letter),
        }
    }
    assert!(!is_quoted, "an open quote");
    assert_eq!(rows.pop(), Some(vec![String::new()]), "the last line has its end");
    rows
}

fn check_csv(text: &str, table: CsvTable) {
    for row in csv_rows(text) {
        assert_eq!(row.len(), table.columns().len(), "{row:?}");
        let begins = |cell: &String| cell.trim_start().starts_with(['=', '+', '@']);
        assert!(!row.iter().any(begins), "{row:?}");
    }
}

fn check_xml(text: &str) {
    assert!(!text.chars().any(|letter| matches!(letter, '\u{fffe}' | '\u{ffff}')));
    let mut reader = Reader::from_str(text);
    let mut cases = 0;
    loop {
        match reader.read_event().unwrap() {
            Event::Eof => break,
            Event::Start(tag) | Event::Empty(tag) => {
                assert!(tag.attributes().all(|attribute| attribute.is_ok()), "{text}");
                let known = ["testsuites", "testsuite", "properties", "property", "testcase", "failure", "error"];
                let name = tag.name();
                let name = known.iter().find(|known| name.as_ref() == **known);
                assert!(name.is_some(), "{text}");
                cases += usize::from(name == Some(&"testcase"));
            }
            Event::CData(_) | Event::PI(_) | Event::DocType(_) | Event::Comment(_) => panic!("{text}"),
            _ => {}
        }
    }
    assert_eq!(cases, 2, "{text}");
}

fn check_metrics(text: &str) {
    for line in text.lines() {
        let is_known = ["# HELP mailrun_run_", "# TYPE mailrun_run_", "mailrun_run_", "# EOF"];
        assert!(is_known.iter().any(|begin| line.starts_with(begin)), "{line}");
    }
}

#[test]
fn hostile_text_does_nothing_in_any_format() {
    for text in HOSTILE {
        for base in [sample::held(), sample::lossy(), sample::mades(), sample::sink_alone()] {
            check(&said(text, base));
        }
    }
}

#[test]
fn ten_megabytes_of_reply_are_cut() {
    let record = said(&"550 x ".repeat(10 << 20 >> 2), sample::lossy());
    for format in formats().into_iter().filter(|format| *format != ExportFormat::Json) {
        let text = format.render(std::slice::from_ref(&record));
        assert!(text.len() < 100_000, "{format:?}: {} bytes", text.len());
    }
    assert!(annotations(&record).len() < 10_000);
}

#[test]
fn several_runs_share_a_file_where_the_format_allows_it() {
    let runs = [sample::held(), sample::lossy()];
    for format in formats().into_iter().filter(|format| format.takes_several_runs()) {
        let both = format.render(&runs).len();
        assert!(both > format.render(&runs[..1]).len() || format_is_empty(format), "{format:?}");
    }
}

/// Returns true for the CSV tables that stay empty, because the sample runs have no rows for them.
fn format_is_empty(format: ExportFormat) -> bool {
    use CsvTable::{Domains, Errors, Events, Missing, Slowest, Thresholds, Usage};
    let empty = [Domains, Errors, Events, Missing, Slowest, Thresholds, Usage];
    matches!(format, ExportFormat::Csv(table) if empty.contains(&table))
}

#[test]
fn names_of_formats_are_read_back() {
    for format in ExportFormat::NAMED {
        assert_eq!(ExportFormat::named(format.name()), Some(format));
    }
    assert_eq!(ExportFormat::named("csv:stages"), Some(ExportFormat::Csv(CsvTable::Stages)));
    assert_eq!((ExportFormat::named("pdf"), ExportFormat::named("csv:x")), (None, None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_text_breaks_a_format(text in "[a-z<>\\[\\]|&`%:,;=+@\"'\\\\\\u{0}\\u{202e}\\u{feff}\\r\\n ]{0,40}|.*") {
        check(&said(&text, sample::lossy()));
        check(&said(&text, sample::mades()));
    }

    #[test]
    fn no_figure_breaks_a_format(value in any::<f64>(), count in any::<u64>()) {
        let mut record = sample::lossy();
        record.duration_s = value;
        for row in &mut record.stages {
            row.rate_per_s = Some(value);
            row.count = count;
            row.latency_ms.iter_mut().for_each(|times| times.mean = value);
        }
        record.series.iter_mut().for_each(|row| row.p99_ms = value);
        for format in formats() {
            let _ = format.render(std::slice::from_ref(&record));
        }
    }
}
