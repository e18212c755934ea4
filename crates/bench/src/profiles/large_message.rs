//! Measures the transfer of large messages on one connection. The report shows MB/s at several sizes. It also shows how
//! the rate and the CPU time change if, for example, every line begins with a dot, lines are short, or the source
//! writes little at a time.
use super::measurement::ProfileMeasurement;
use super::message_file::BodyLines;
use super::runs::{ProfileLoad, ProfileRuns, ProfiledServer};
use super::smtplib::{self, Smtplib};
use crate::engine::RoundOrder;
use crate::engine::{
    self, ComparedRun, Comparison, ComparisonResults, Contestant, RatioColumn, RatioPair, ReportParts, RunPlan,
    RunTurn, ShownFigures, TableColumn, TextReport, ratio_table, rounds_text, run_remarks, whole,
};
use crate::plan::{BenchTarget, NO_TRACE};
use crate::relays::{LoadShape, ScenarioOptions};
use anyhow::Result;
use clap::ValueEnum;
use mailrun_measurement::record::{Pipelining, Workload};
use mailrun_process::live::LiveMode;
use mailrun_process::party_options::{PartyOptions, value_name};
use mailrun_text::numbers::{figure, megabytes, memory, octets};
use mailrun_text::table::{Table, plain};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// A variation of the plain benchmark. It changes one property of the client, the sink or the message, to measure what
/// this property costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MessageCost {
    /// The source sends BDAT instead of DATA. So the source has no dots to double, and the receiver does not have to
    /// search for the end of the message.
    Chunking,
    /// Every line begins with a dot. The source doubles these dots before the run, and the sink removes the added dots.
    Dots,
    /// Each body line has 4 bytes instead of 80, CRLF included.
    ShortLines,
    /// The source writes at most 4 KiB at a time, instead of as much as the connection takes.
    SmallWrites,
    /// The source adds no trace line, so the sink cannot recognise the messages and does not check their bodies.
    NoTrace,
    /// The sink reads at most 4 KiB at a time, instead of up to 256 KiB.
    SmallReads,
    /// Python's smtplib sends the messages instead of mailrun's source.
    Smtplib,
    /// Smtplib sends the message as it is, without a search for dots to double.
    SmtplibUnquoted,
}

impl MessageCost {
    fn smtplib(self) -> Option<Smtplib> {
        match self {
            Self::Smtplib => Some(Smtplib::Original),
            Self::SmtplibUnquoted => Some(Smtplib::Unquoted),
            _ => None,
        }
    }
}

const PLAIN: &str = "plain";

#[derive(Clone, Debug)]
pub struct LargeMessageOptions {
    pub scenario: ScenarioOptions,
    pub server: ProfiledServer,
    /// Sizes of the message bodies in bytes. Each size gets a group of rows in the tables.
    pub body_sizes: Vec<u64>,
    pub costs: Vec<MessageCost>,
    /// Total bytes of the bodies that a run sends. If a single body is larger, the run sends one message.
    pub volume: u64,
    pub rounds: u32,
    pub order: RoundOrder,
}

#[derive(Clone, Debug)]
struct LargeMessageCase {
    body_bytes: u64,
    cost: Option<MessageCost>,
    file: PathBuf,
}

impl LargeMessageCase {
    fn cost_name(&self) -> String {
        self.cost.map_or_else(|| PLAIN.to_owned(), value_name)
    }
}

type LargeMessageContestant = Contestant<LargeMessageCase, ProfileMeasurement>;
type LargeMessageResults = ComparisonResults<LargeMessageCase, ProfileMeasurement>;
type Column<'a> = TableColumn<'a, LargeMessageCase, ProfileMeasurement>;

/// Each ratio divides a row's figure by the figure of the plain row, which has the same body size but no added cost.
const RATIOS: [RatioColumn<ProfileMeasurement>; 3] = [
    RatioColumn::higher("× MB/s", |run| Some(run.bytes_per_s)),
    RatioColumn::lower("× source CPU", |run| run.source_cpu_ms),
    RatioColumn::lower("× sink CPU", |run| run.sink_cpu_ms),
];

fn lines(cost: Option<MessageCost>) -> BodyLines {
    match cost {
        Some(MessageCost::Dots) => BodyLines::DOTTED,
        Some(MessageCost::ShortLines) => BodyLines::SHORT,
        _ => BodyLines::TEXT,
    }
}

/// Returns the source option that causes this cost, such as `--write-size` for small writes. The result is empty if the
/// cost has another cause, such as the sink or the message file. For example, dots at the beginning of lines are in the
/// file.
fn source_option(cost: Option<MessageCost>) -> PartyOptions {
    let none = PartyOptions::default();
    match cost {
        Some(MessageCost::Chunking) => none.flag("chunking", true),
        Some(MessageCost::SmallWrites) => none.with("write-size", "4k"),
        Some(MessageCost::NoTrace) => none.flag(NO_TRACE, true),
        _ => none,
    }
}

fn sink_option(cost: Option<MessageCost>) -> PartyOptions {
    let none = PartyOptions::default();
    if cost == Some(MessageCost::SmallReads) { none.with("fault", "read at most 4k") } else { none }
}

fn meaning(cost: MessageCost) -> &'static str {
    match cost {
        MessageCost::Chunking => {
            "chunking: BDAT if the server offers it: no dots, and no search for the end of the message"
        }
        MessageCost::Dots => {
            "dots: every line begins with a dot, which the receiver removes; the source doubles them before the run \
             (cargo bench -p mailrun-smtp --bench protocol -- stuff measures that)"
        }
        MessageCost::ShortLines => "short-lines: lines of 4 bytes; plain has lines of 80",
        MessageCost::SmallWrites => {
            "small-writes: writes of at most 4 KiB; plain writes as much as the connection takes"
        }
        MessageCost::SmallReads => "small-reads: the sink reads at most 4 KiB at a time; plain reads up to 256 KiB",
        MessageCost::SmtplibUnquoted => {
            "smtplib-unquoted: smtplib without its search for dots to double, as its author proposed in 2009"
        }
        MessageCost::Smtplib => {
            "smtplib: Python's smtplib sends the messages, without a trace, in place of mailrun's source"
        }
        MessageCost::NoTrace => {
            "no-trace: no trace line, and no body is checked: plain without the cost of its account; what arrives is not known"
        }
    }
}

/// Returns the reason why a cost cannot be measured with this target, or `None` if it can be measured.
fn missing(cost: MessageCost, target: &BenchTarget) -> Option<&'static str> {
    match cost {
        MessageCost::Smtplib | MessageCost::SmtplibUnquoted => smtplib::missing(target),
        MessageCost::SmallReads if !matches!(target, BenchTarget::OwnSink) => {
            Some("small-reads: not run, because it is a cost of mailrun's sink.")
        }
        _ => None,
    }
}

/// Runs rounds until all are complete, or until SIGINT or SIGTERM. The report covers the completed runs.
///
/// # Errors
/// Returns an error if no run could be started at all. A single run that fails is named in the table instead.
pub fn run(options: &LargeMessageOptions) -> Result<TextReport> {
    let missing: BTreeSet<_> = options.costs.iter().filter_map(|cost| missing(*cost, &options.server.target)).collect();
    let mut options = options.clone();
    options.costs.retain(|cost| self::missing(*cost, &options.server.target).is_none());
    let options = &options;
    let runs = ProfileRuns::prepare(&options.scenario, &options.server)?;
    let cases = cases(options, &runs)?;
    let plan = RunPlan {
        compared: 1 + options.costs.len(),
        rounds: options.rounds,
        order: options.order,
        // The runner shows no progress, because each run is a bench, which shows its own progress.
        live: LiveMode::Off,
    };
    let comparison = LargeMessageComparison { options, runs };
    let results = engine::run_all(&comparison, cases, plan, &|| comparison.runs.is_stopped());
    let files = results.contestants.iter().map(|contestant| &contestant.case.file);
    comparison.runs.save(report(&results, options, &missing), files)
}

/// Creates the cases to measure, and writes their message files. Each body size has a plain case, and a case for each
/// cost.
fn cases(options: &LargeMessageOptions, runs: &ProfileRuns) -> Result<Vec<LargeMessageCase>> {
    let mut cases = Vec::new();
    let mut written_files = BTreeSet::new();
    for &body_bytes in &options.body_sizes {
        for cost in std::iter::once(None).chain(options.costs.iter().copied().map(Some)) {
            let file = runs.path(lines(cost), body_bytes);
            if written_files.insert(file.clone()) {
                lines(cost).write_message(&file, body_bytes)?;
            }
            cases.push(LargeMessageCase { body_bytes, cost, file });
        }
    }
    Ok(cases)
}

struct LargeMessageComparison<'o> {
    options: &'o LargeMessageOptions,
    runs: ProfileRuns,
}

impl Comparison for LargeMessageComparison<'_> {
    type Case = LargeMessageCase;
    type Measurement = ProfileMeasurement;

    fn name(&self, case: &LargeMessageCase) -> String {
        format!("{}, {}", octets(case.body_bytes), case.cost_name())
    }

    fn run(&self, case: &LargeMessageCase, turn: &mut RunTurn<'_>) -> Result<Option<ComparedRun<ProfileMeasurement>>> {
        if let Some(smtplib) = case.cost.and_then(MessageCost::smtplib) {
            return self.runs.run_smtplib(smtplib, &case.file, messages(self.options.volume, case), turn);
        }
        let load = ProfileLoad {
            place: format!("round-{}-{}-{}", turn.round + 1, case.body_bytes, case.cost_name()),
            file: &case.file,
            shape: LoadShape { sessions: 1, message_bytes: case.body_bytes, reuse: None, pipelining: Pipelining::Off },
            workload: Workload { messages: Some(messages(self.options.volume, case)), ..Workload::default() },
            source_options: source_option(case.cost),
            sink_options: sink_option(case.cost),
        };
        self.runs.run(load, turn)
    }
}

fn messages(volume: u64, case: &LargeMessageCase) -> u64 {
    (volume / case.body_bytes).max(1)
}

fn report(results: &LargeMessageResults, options: &LargeMessageOptions, missing: &BTreeSet<&str>) -> TextReport {
    let (ratios, ratio_notes) = ratios(results);
    let mut notes: Vec<String> = options.costs.iter().map(|cost| format!("{}.", meaning(*cost))).collect();
    notes.extend(missing.iter().map(|reason| (*reason).to_owned()));
    notes.push(
        "CPU: user and system time of the whole process; the source's includes the reading of the message, once."
            .to_owned(),
    );
    notes.extend(ratio_notes);
    // Leave out the remarks on `no-trace` runs. They say that deliveries were not checked, but the note on `no-trace`
    // above already says so.
    let traced = results.contestants.iter().filter(|contestant| contestant.case.cost != Some(MessageCost::NoTrace));
    notes.extend(run_remarks(traced));
    let rounds = rounds_text(options.rounds, ShownFigures::Spreads);
    let server = options.server.description();
    let name = &options.scenario.name;
    let volume = memory(options.volume);
    results.report(ReportParts {
        title: plain(&format!("{name}: {volume} per run on one connection to {server}; {rounds}")),
        tables: vec![engine::table(&results.contestants, &columns(), &["messages"]), ratios],
        runs: Some(engine::runs_table(&results.contestants, &columns())),
        notes,
        pass: "every message accepted",
        wrong: results.defects(),
        is_strict: !options.scenario.thresholds.is_empty(),
    })
}

fn columns<'a>() -> [Column<'a>; 6] {
    [
        Column::figure("body", |contestant| octets(contestant.case.body_bytes)),
        Column::words("cost", |contestant| contestant.case.cost_name().to_owned()),
        Column::median("messages", |run| Some(run.messages as f64), whole),
        Column::spread("MB/s", |run| Some(run.bytes_per_s), megabytes),
        Column::median("source CPU ms/MB", |run| run.source_cpu_ms, figure),
        Column::median("sink CPU ms/MB", |run| run.sink_cpu_ms, figure),
    ]
}

fn ratios(results: &LargeMessageResults) -> (Table, Vec<String>) {
    let base_of = |contestant: &LargeMessageContestant| {
        let is_base = |other: &&LargeMessageContestant| {
            other.case.cost.is_none() && other.case.body_bytes == contestant.case.body_bytes
        };
        results.contestants.iter().find(is_base)
    };
    let with_cost =
        results.contestants.iter().filter(|contestant| contestant.case.cost.is_some() && !contestant.runs.is_empty());
    let pairs = with_cost.filter_map(|contestant| {
        let cells = vec![octets(contestant.case.body_bytes), contestant.case.cost_name().to_owned()];
        Some(RatioPair { cells, contestant, base: base_of(contestant)? })
    });
    ratio_table(&["body", "against plain"], pairs.collect(), &RATIOS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relays::sample_options;
    use mailrun_report::sample;

    fn options() -> LargeMessageOptions {
        LargeMessageOptions {
            scenario: sample_options("large-message"),
            server: ProfiledServer { target: BenchTarget::OwnSink, recipient: "to@example.com".to_owned() },
            body_sizes: vec![1 << 20],
            costs: MessageCost::value_variants().into(),
            volume: 500 << 20,
            rounds: 2,
            order: RoundOrder::Alternating,
        }
    }

    fn contestant(cost: Option<MessageCost>, rates: [f64; 2]) -> LargeMessageContestant {
        let case = LargeMessageCase { body_bytes: 1 << 20, cost, file: "m.eml".into() };
        let run = |bytes_per_s| {
            let measured = ProfileMeasurement::of(&sample::held(), None).unwrap();
            ComparedRun::Sound(ProfileMeasurement { bytes_per_s, ..measured })
        };
        Contestant { runs: rates.map(run).into(), ..Contestant::new(format!("1 MiB, {}", case.cost_name()), case) }
    }

    #[test]
    fn each_cost_is_a_ratio_to_the_plain_row_of_its_size_and_round() {
        let plain = contestant(None, [1e9, 2e9]);
        let dots = contestant(Some(MessageCost::Dots), [0.5e9, 0.5e9]);
        let results = ComparisonResults { contestants: vec![plain, dots], done: 4, planned: 4 };
        let report = report(&results, &options(), &BTreeSet::from(["smtplib: not run."]));
        assert!(report.text.contains("\nsmtplib: not run."), "{}", report.text);
        let row = report.text.lines().filter(|line| line.contains("dots")).nth(1).unwrap();
        assert!(row.contains("0.38 (0.25–0.50)"), "{}", report.text);
        assert!(report.text.contains("large-message: 500 MiB per run on one connection"), "{}", report.text);
        assert!(report.text.contains("1,500 (1,000–2,000)"), "{}", report.text);
        for &cost in MessageCost::value_variants() {
            assert!(report.text.contains(&format!("\n{}: ", value_name(cost))), "{cost:?}: {}", report.text);
        }
    }

    #[test]
    fn a_run_has_the_volume_and_one_message_at_least() {
        let case = |body_bytes| LargeMessageCase { body_bytes, cost: None, file: PathBuf::new() };
        assert_eq!((messages(500, &case(100)), messages(500, &case(501))), (5, 1));
    }

    #[test]
    fn a_cost_is_in_the_body_in_an_option_or_in_the_client() {
        let places = |cost: Option<MessageCost>| {
            let options = [source_option(cost), sink_option(cost)].map(|options| options.names().next().is_some());
            let is_of_smtplib = cost.and_then(MessageCost::smtplib).is_some();
            [lines(cost) != lines(None), is_of_smtplib].into_iter().chain(options).filter(|is_here| *is_here).count()
        };
        for cost in MessageCost::value_variants() {
            assert_eq!(places(Some(*cost)), 1, "{cost:?}");
        }
        assert_eq!(places(None), 0);
    }
}
