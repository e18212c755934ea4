//! Writes runs as tables of comma-separated values (RFC 4180). Each table has a header line, and the column names
//! contain the units.
//!
//! Spreadsheets treat a cell that begins with `=`, `+`, `-` or `@` as a formula. A text of a peer that begins with one
//! of these characters gets an apostrophe in front. Figures stay unchanged, so a negative number is still a number.
use crate::fates::units;
use crate::figures::errors;
use mailrun_measurement::record::{EventKind, LatencyMs, Record, StageRow};
use mailrun_measurement::stage::{Phase, Stage};
use mailrun_text::printable::printable;

macro_rules! cells {
    ($($value:expr),+ $(,)?) => { vec![$(CsvCell::from($value)),+] };
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CsvTable {
    #[default]
    Series,
    Stages,
    Phases,
    Errors,
    Thresholds,
    Ledger,
    Slowest,
    Missing,
    Domains,
    Usage,
    Events,
}

const RUN_COLUMNS: [&str; 2] = ["run_id", "run"];

impl CsvTable {
    pub const ALL: [Self; 11] = [
        Self::Series,
        Self::Stages,
        Self::Phases,
        Self::Errors,
        Self::Thresholds,
        Self::Ledger,
        Self::Slowest,
        Self::Missing,
        Self::Domains,
        Self::Usage,
        Self::Events,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Series => "series",
            Self::Stages => "stages",
            Self::Phases => "phases",
            Self::Errors => "errors",
            Self::Thresholds => "thresholds",
            Self::Ledger => "ledger",
            Self::Slowest => "slowest",
            Self::Missing => "missing",
            Self::Domains => "domains",
            Self::Usage => "usage",
            Self::Events => "events",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name)
    }

    pub fn columns(self) -> Vec<String> {
        let own: &[&str] = match self {
            Self::Series => &[
                "second",
                "created",
                "sent",
                "accepted",
                "delivered",
                "queued",
                "errors",
                "p50_ms",
                "p95_ms",
                "p99_ms",
                "p999_ms",
                "max_ms",
            ],
            Self::Stages => &[
                "stage",
                "party",
                "since",
                "count",
                "failed",
                "bytes",
                "duration_s",
                "rate_per_s",
                "missing",
                "late",
                "duplicates",
                "beyond_ms",
                "min_ms",
                "mean_ms",
                "p50_ms",
                "p90_ms",
                "p95_ms",
                "p99_ms",
                "p999_ms",
                "max_ms",
            ],
            Self::Phases => {
                &["phase", "count", "min_ms", "mean_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms"]
            }
            Self::Errors => &["phase", "code", "text", "count", "first_s", "last_s", "sample"],
            Self::Thresholds => &["expression", "limit", "value", "beyond", "margin", "unit", "passed", "missed"],
            Self::Ledger => &["fate", "units"],
            Self::Slowest => &[
                "message",
                "created_s",
                "accepted_ms",
                "delivered_ms",
                "waited_ms",
                "bytes",
                "recipient_count",
                "recipients",
                "reply",
            ],
            Self::Missing => &["message", "fate", "created_s", "recipient_count", "recipients", "reply"],
            Self::Domains => {
                &["domain", "created", "accepted", "rejected", "failed", "in_doubt", "delivered", "duplicates"]
            }
            Self::Usage => &["party", "second", "cores", "rss_bytes"],
            Self::Events => &["at_s", "kind", "text"],
        };
        let phases = Phase::ALL.iter().filter(|_| self == Self::Slowest).map(|phase| format!("{}_ms", phase.name()));
        RUN_COLUMNS.iter().chain(own).map(|name| (*name).to_owned()).chain(phases).collect()
    }

    fn rows(self, record: &Record) -> Vec<Vec<CsvCell<'_>>> {
        match self {
            Self::Series => series(record),
            Self::Stages => record.stages.iter().map(stage).collect(),
            Self::Phases => phases(record),
            Self::Errors => error_rows(record),
            Self::Thresholds => thresholds(record),
            Self::Ledger => units(record).into_iter().map(|(fate, units)| cells![fate, units]).collect(),
            Self::Slowest => slowest(record),
            Self::Missing => missing(record),
            Self::Domains => domains(record),
            Self::Usage => usage(record),
            Self::Events => events(record),
        }
    }
}

pub(super) fn csv(records: &[Record], table: CsvTable) -> String {
    let mut text = table.columns().join(",") + "\r\n";
    for record in records {
        for row in table.rows(record) {
            let run = [CsvCell::from(record.run_id.as_str()), CsvCell::from(record.name.as_str())];
            let cells: Vec<String> = run.iter().chain(&row).map(CsvCell::text).collect();
            text.push_str(&cells.join(","));
            text.push_str("\r\n");
        }
    }
    text
}

#[derive(Clone, Debug)]
enum CsvCell<'a> {
    /// Text that may come from a peer. It is written so that spreadsheets do not read it as a formula.
    Words(&'a str),
    Owned(String),
    Count(u64),
    Number(f64),
    Empty,
}

impl<'a> From<&'a str> for CsvCell<'a> {
    fn from(text: &'a str) -> Self {
        Self::Words(text)
    }
}

impl From<String> for CsvCell<'_> {
    fn from(text: String) -> Self {
        Self::Owned(text)
    }
}

impl From<u64> for CsvCell<'_> {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<f64> for CsvCell<'_> {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl<'a, T: Into<CsvCell<'a>>> From<Option<T>> for CsvCell<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Empty, Into::into)
    }
}

impl CsvCell<'_> {
    fn text(&self) -> String {
        match self {
            Self::Words(text) => harmless(text),
            Self::Owned(text) => harmless(text),
            Self::Count(count) => count.to_string(),
            Self::Number(number) if number.is_finite() => number.to_string(),
            Self::Number(_) | Self::Empty => String::new(),
        }
    }
}

/// Writes a text as a cell: on one line, protected against being read as a formula, and quoted if RFC 4180 requires it.
fn harmless(text: &str) -> String {
    let line = printable(text);
    // Check the full-width forms as well, because spreadsheets in East Asian languages also take them for the beginning
    // of a formula.
    let is_formula = line.trim_start().starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠']);
    let line = if is_formula { format!("'{line}") } else { line.into_owned() };
    let needs_quotes = line.contains(['"', ',', '\r', '\n']) || line.trim() != line;
    if needs_quotes { format!("\"{}\"", line.replace('"', "\"\"")) } else { line }
}

fn series(record: &Record) -> Vec<Vec<CsvCell<'_>>> {
    let rows = record.series.iter().map(|row| {
        let counts = [row.second, row.created, row.sent, row.accepted, row.delivered, row.queued, row.errors];
        let times = [row.p50_ms, row.p95_ms, row.p99_ms, row.p999_ms, row.max_ms];
        counts.into_iter().map(CsvCell::from).chain(times.into_iter().map(CsvCell::from)).collect()
    });
    rows.collect()
}

fn stage(row: &StageRow) -> Vec<CsvCell<'_>> {
    let mut cells = cells![
        row.name.name(),
        row.party.as_str(),
        row.since.map_or("", Stage::name),
        row.count,
        row.failed,
        row.bytes,
        row.duration_s,
        row.rate_per_s,
        row.missing,
        row.late,
        row.duplicates,
        row.beyond_ms
    ];
    cells.extend(latency(row.latency_ms));
    cells
}

fn latency<'a>(times: Option<LatencyMs>) -> [CsvCell<'a>; 8] {
    let of = |figure: fn(LatencyMs) -> f64| CsvCell::from(times.map(figure));
    [
        of(|times| times.min),
        of(|times| times.mean),
        of(|times| times.p50),
        of(|times| times.p90),
        of(|times| times.p95),
        of(|times| times.p99),
        of(|times| times.p999),
        of(|times| times.max),
    ]
}

fn phases(record: &Record) -> Vec<Vec<CsvCell<'_>>> {
    let rows = record.phases.iter().map(|row| {
        let mut cells = cells![row.name.name(), row.count];
        cells.extend(latency(Some(row.latency_ms)));
        cells
    });
    rows.collect()
}

fn error_rows(record: &Record) -> Vec<Vec<CsvCell<'_>>> {
    let rows = errors(record)
        .into_iter()
        .map(|row| cells![row.phase, row.code, row.text, row.count, row.first_s, row.last_s, row.sample]);
    rows.collect()
}

fn thresholds(record: &Record) -> Vec<Vec<CsvCell<'_>>> {
    let rows = record.thresholds.iter().map(|row| {
        cells![
            row.expression.as_str(),
            row.limit,
            row.value,
            row.beyond,
            row.margin,
            row.unit.as_str(),
            if row.passed { "true" } else { "false" },
            if row.missed { "true" } else { "false" }
        ]
    });
    rows.collect()
}

fn slowest(record: &Record) -> Vec<Vec<CsvCell<'_>>> {
    let rows = record.slowest.iter().map(|row| {
        let mut cells = cells![
            row.message,
            row.created_s,
            row.accepted_ms,
            row.delivered_ms,
            row.waited_ms,
            row.bytes,
            u64::from(row.recipient_count),
            row.recipients.join(" "),
            row.reply.as_deref().unwrap_or_default()
        ];
        let time = |phase: Phase| row.phases.iter().find(|row| row.name == phase).map(|row| row.ms);
        cells.extend(Phase::ALL.map(|phase| CsvCell::from(time(phase))));
        cells
    });
    rows.collect()
}

fn missing(record: &Record) -> Vec<Vec<CsvCell<'_>>> {
    let rows = record.missing.iter().map(|row| {
        cells![
            row.message,
            row.fate.name(),
            row.created_s,
            u64::from(row.recipient_count),
            row.recipients.join(" "),
            row.reply.as_deref().unwrap_or_default()
        ]
    });
    rows.collect()
}

fn domains(record: &Record) -> Vec<Vec<CsvCell<'_>>> {
    let rows = record.domains.iter().map(|row| {
        cells![
            row.domain.as_str(),
            row.created,
            row.accepted,
            row.rejected,
            row.failed,
            row.in_doubt,
            row.delivered,
            row.duplicates
        ]
    });
    rows.collect()
}

fn usage(record: &Record) -> Vec<Vec<CsvCell<'_>>> {
    let rows = record.usage.iter().flat_map(|party| {
        party.seconds.iter().map(|row| cells![party.party.as_str(), row.second, row.cores, row.rss_bytes])
    });
    rows.collect()
}

fn events(record: &Record) -> Vec<Vec<CsvCell<'_>>> {
    let rows = record.events.iter().map(|row| cells![row.at_s, event_kind(row.kind), row.text.as_str()]);
    rows.collect()
}

fn event_kind(kind: EventKind) -> &'static str {
    match kind {
        EventKind::WarmUpEnded => "warm_up_ended",
        EventKind::RateStage => "rate_stage",
        EventKind::FaultOn => "fault_on",
        EventKind::FaultOff => "fault_off",
        EventKind::ServerLost => "server_lost",
        EventKind::ServerBack => "server_back",
        EventKind::FullRate => "full_rate",
        EventKind::Died => "died",
        EventKind::Stopped => "stopped",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_second_is_a_row_under_the_names_of_its_figures() {
        let text = csv(&[sample::held()], CsvTable::Series);
        let mut lines = text.split("\r\n");
        assert_eq!(
            lines.next(),
            Some("run_id,run,second,created,sent,accepted,delivered,queued,errors,p50_ms,p95_ms,p99_ms,p999_ms,max_ms")
        );
        assert_eq!(lines.next(), Some("000102030405060708090a0b0c0d0e0f,quick,0,0,54000,54000,54000,0,0,1.4,0,3,0,0"));
        assert_eq!(text.matches("\r\n").count(), 5);
    }

    #[test]
    fn every_row_is_as_wide_as_the_header() {
        for table in CsvTable::ALL {
            for record in [sample::held(), sample::mades(), sample::sink_alone()] {
                for row in table.rows(&record) {
                    assert_eq!(row.len() + RUN_COLUMNS.len(), table.columns().len(), "{table:?}");
                }
            }
            assert_eq!(CsvTable::named(table.name()), Some(table));
        }
    }

    #[test]
    fn a_strangers_cell_is_no_formula() {
        for (text, cell) in [
            ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
            ("+1", "'+1"),
            ("-1+1", "'-1+1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("  =1", "\"'  =1\"".trim()),
            ("\t=1", "\\t=1"),
            ("＝1", "'＝1"),
            ("550 a,b \"c\"", "\"550 a,b \"\"c\"\"\""),
            ("a\r\nb\u{202e}", "a\\r\\nb\\u{202e}"),
            ("plain", "plain"),
        ] {
            let shown = harmless(text);
            assert_eq!(shown.trim_matches('"'), cell.trim_matches('"'), "{text:?}");
        }
        assert_eq!(CsvCell::from(-1.5).text(), "-1.5", "a figure stays one");
        assert_eq!(CsvCell::from(f64::NAN).text(), "");
    }
}
