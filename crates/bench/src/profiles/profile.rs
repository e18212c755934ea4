//! Measures the rate and the latency of a server at several message sizes, for the scenarios `kotlin-profile` and
//! `sizes`.
use super::measurement::ProfileMeasurement;
use super::message_file::BodyLines;
use super::runs::{ProfileLoad, ProfileRuns, ProfiledServer};
use crate::engine::RoundOrder;
use crate::engine::{
    self, ComparedRun, Comparison, ComparisonResults, ReportParts, RunPlan, RunTurn, ShownFigures, TableColumn,
    TextReport, rounds_text, run_remarks, whole,
};
use crate::relays::{LoadShape, ScenarioOptions, reuse_text};
use anyhow::Result;
use mailrun_measurement::record::{Pipelining, Workload};
use mailrun_process::live::LiveMode;
use mailrun_process::party_options::PartyOptions;
use mailrun_text::numbers::{counted, latency, megabytes, octets, rate, seconds};
use mailrun_text::table::{Table, plain};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct ProfileOptions {
    pub scenario: ScenarioOptions,
    pub server: ProfiledServer,
    /// Sizes of the bodies in bytes. Each table has a row for each size.
    pub body_sizes: Vec<u64>,
    /// Number of messages after which a run ends. If `duration` is set as well, the first limit
    /// that is reached ends the run.
    pub messages: Option<u64>,
    pub duration: Option<Duration>,
    /// Time at the start of each run in which messages are sent but not measured.
    pub warm_up: Duration,
    pub sessions: u32,
    /// Maximum number of messages per connection, or `None` for no limit.
    pub reuse: Option<u64>,
    pub pipelining: Pipelining,
    pub rounds: u32,
    pub order: RoundOrder,
}

#[derive(Clone, Debug)]
struct ProfileCase {
    body_bytes: u64,
    file: PathBuf,
}

type ProfileResults = ComparisonResults<ProfileCase, ProfileMeasurement>;
type Column<'a> = TableColumn<'a, ProfileCase, ProfileMeasurement>;

/// Runs rounds until all are complete, or until SIGINT or SIGTERM. The report covers the completed runs.
///
/// # Errors
/// Returns an error if no run could be started at all. A single run that fails is named in the
/// table instead.
pub fn run(options: &ProfileOptions) -> Result<TextReport> {
    let runs = ProfileRuns::prepare(&options.scenario, &options.server)?;
    let mut cases = Vec::new();
    for &body_bytes in &options.body_sizes {
        let file = runs.path(BodyLines::GUIDE, body_bytes);
        BodyLines::GUIDE.write_message(&file, body_bytes)?;
        cases.push(ProfileCase { body_bytes, file });
    }
    // The runner shows no progress, because each run is a bench, which shows its own progress.
    let plan = RunPlan { compared: cases.len(), rounds: options.rounds, order: options.order, live: LiveMode::Off };
    let comparison = ProfileComparison { options, runs };
    let results = engine::run_all(&comparison, cases, plan, &|| comparison.runs.is_stopped());
    let files = results.contestants.iter().map(|contestant| &contestant.case.file);
    comparison.runs.save(report(&results, options), files)
}

struct ProfileComparison<'o> {
    options: &'o ProfileOptions,
    runs: ProfileRuns,
}

impl Comparison for ProfileComparison<'_> {
    type Case = ProfileCase;
    type Measurement = ProfileMeasurement;

    fn name(&self, case: &ProfileCase) -> String {
        octets(case.body_bytes)
    }

    fn run(&self, case: &ProfileCase, turn: &mut RunTurn<'_>) -> Result<Option<ComparedRun<ProfileMeasurement>>> {
        let options = self.options;
        let is_warmed_up = !options.warm_up.is_zero();
        let load = ProfileLoad {
            place: format!("round-{}-{}", turn.round + 1, case.body_bytes),
            file: &case.file,
            shape: LoadShape {
                sessions: options.sessions,
                message_bytes: case.body_bytes,
                reuse: options.reuse,
                pipelining: options.pipelining,
            },
            workload: Workload {
                messages: options.messages,
                duration_limit_s: options.duration.map(|duration| duration.as_secs_f64()),
                ..Workload::default()
            },
            source_options: PartyOptions::default()
                .with_some("warm-up", is_warmed_up.then(|| format!("{}us", options.warm_up.as_micros()))),
            sink_options: PartyOptions::default(),
        };
        self.runs.run(load, turn)
    }
}

fn report(results: &ProfileResults, options: &ProfileOptions) -> TextReport {
    results.report(ReportParts {
        title: title(options),
        tables: vec![figures(results), times(results)],
        runs: None,
        notes: notes(results, options),
        pass: "every message accepted",
        wrong: results.defects(),
        is_strict: !options.scenario.thresholds.is_empty(),
    })
}

/// Makes the title, for example `kotlin-profile: 1,600 messages per run over 8 sessions to
/// mailrun's sink, a new connection per message; medians …`.
fn title(options: &ProfileOptions) -> String {
    let messages = options.messages.map(|messages| counted(messages, "message"));
    let duration = options.duration.map(|duration| seconds(duration.as_secs_f64()));
    let ends: Vec<String> = messages.into_iter().chain(duration).collect();
    let reuse = reuse_text(options.reuse);
    plain(&format!(
        "{}: {} per run over {} to {}, {reuse}; {}",
        options.scenario.name,
        ends.join(" or "),
        counted(u64::from(options.sessions), "session"),
        options.server.description(),
        rounds_text(options.rounds, ShownFigures::Spreads)
    ))
}

fn figures(results: &ProfileResults) -> Table {
    let columns = [
        Column::figure("body", |contestant| octets(contestant.case.body_bytes)),
        Column::median("messages", |run| Some(run.messages as f64), whole),
        Column::spread("msg/s", |run| Some(run.rate_per_s), rate),
        Column::median("MB/s", |run| Some(run.bytes_per_s), megabytes),
        Column::median("avg", |run| Some(run.accept?.mean), latency),
        Column::median("p50", |run| Some(run.accept?.p50), latency),
        Column::median("p95", |run| Some(run.accept?.p95), latency),
        Column::median("p99", |run| Some(run.accept?.p99), latency),
        Column::median("max", |run| Some(run.accept?.max), latency),
    ];
    engine::table(&results.contestants, &columns, &["MB/s", "messages", "p99"])
}

/// Shows how long 1,000, 10,000 and 100,000 messages would take at the measured rate. The published guide of Kotlin
/// SMTP shows these times, so readers can compare the two.
fn times(results: &ProfileResults) -> Table {
    let column =
        |title: &'static str, messages: f64| Column::median(title, move |run| Some(messages / run.rate_per_s), seconds);
    let columns = [
        Column::figure("body", |contestant| octets(contestant.case.body_bytes)),
        column("1,000 messages", 1e3),
        column("10,000 messages", 1e4),
        column("100,000 messages", 1e5),
    ];
    engine::table(&results.contestants, &columns, &[])
}

fn notes(results: &ProfileResults, options: &ProfileOptions) -> Vec<String> {
    let mut notes = Vec::new();
    if results.contestants.iter().any(|contestant| !contestant.runs.is_empty()) {
        notes.push(
            "Times of 1,000, 10,000 and 100,000 messages: extrapolated from msg/s, not measured; --messages measures one."
                .to_owned(),
        );
    }
    let begin = if options.reuse == Some(1) { "before the connection" } else { "when a session took the message" };
    notes.push(format!(
        "avg, p50, p95, max: from {begin} to the 250 for the message, in a closed loop. msg/s: from the first message to \
         the last 250. The size is that of the body; header and trace line come on top."
    ));
    let quits: Vec<String> = results
        .contestants
        .iter()
        .filter(|_| options.reuse == Some(1))
        .filter_map(|contestant| {
            let spread = engine::MedianRange::of(contestant.measurements().filter_map(|run| run.quit_ms));
            Some(spread).filter(|_| contestant.measurements().any(|run| run.quit_ms.is_some()))
        })
        .map(|spread| spread.median(latency))
        .collect();
    if !quits.is_empty() {
        notes.push(format!("QUIT and its reply are not in them: {} on average.", quits.join(", ")));
    }
    notes.extend(run_remarks(results.contestants.iter()));
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Contestant;
    use crate::plan::BenchTarget;
    use crate::relays::sample_options;
    use mailrun_measurement::record::{LatencyMs, Outcome};
    use mailrun_report::sample;

    fn options() -> ProfileOptions {
        ProfileOptions {
            scenario: sample_options("kotlin-profile"),
            server: ProfiledServer { target: BenchTarget::OwnSink, recipient: "to@example.com".to_owned() },
            body_sizes: vec![4_096],
            messages: Some(1_600),
            duration: None,
            warm_up: Duration::ZERO,
            sessions: 8,
            reuse: Some(1),
            pipelining: Pipelining::Off,
            rounds: 3,
            order: RoundOrder::Alternating,
        }
    }

    fn run(rate_per_s: f64, p50: f64) -> ProfileMeasurement {
        let measured = ProfileMeasurement::of(&sample::held(), None).unwrap();
        let accept = LatencyMs {
            mean: 2.0 * p50,
            p50,
            p95: 3.0 * p50,
            p99: 4.0 * p50,
            max: 5.0 * p50,
            ..measured.accept.unwrap_or_default()
        };
        ProfileMeasurement { messages: 1_600, rate_per_s, accept: Some(accept), quit_ms: Some(0.25), ..measured }
    }

    fn results(runs: Vec<ComparedRun<ProfileMeasurement>>) -> ProfileResults {
        let case = ProfileCase { body_bytes: 4_096, file: "m.eml".into() };
        let done = runs.len();
        let one = Contestant { runs, ..Contestant::new("4 KiB".to_owned(), case) };
        ComparisonResults { contestants: vec![one], done, planned: 3 }
    }

    #[test]
    fn the_tables_are_those_of_the_guide() {
        let runs = [(100.0, 1.0), (400.0, 2.0), (200.0, 3.0)];
        let report = report(&results(runs.map(|(rate, p50)| ComparedRun::Sound(run(rate, p50))).into()), &options());
        assert_eq!(report.conclusion.outcome, Outcome::Pass, "{}", report.text);
        for expected in [
            "kotlin-profile: 1,600 messages per run over 8 sessions to mailrun's sink, a new connection per message;",
            "200.0 (100.0–400.0)",
            "4.00 ms",
            "2.00 ms",
            "6.00 ms",
            "10.00 ms",
            "5.00 s",
            "50.00 s",
            "8 min 20 s",
            "extrapolated",
            "QUIT and its reply are not in them: 250 µs on average.",
        ] {
            assert!(report.text.contains(expected), "{expected} in\n{}", report.text);
        }
    }

    #[test]
    fn a_run_that_failed_is_named_and_in_no_figure() {
        let mut lost = run(9_999.0, 1.0);
        lost.flaws.fault = Some("lost 1".to_owned());
        let runs = vec![ComparedRun::of_bench(lost), ComparedRun::Sound(run(100.0, 1.0))];
        let report = report(&results(runs), &options());
        assert!(report.text.contains("NOT OK: 4 KiB: lost 1") && !report.text.contains("9,999"), "{}", report.text);
        assert!(report.text.contains("Stopped after 2 of 3 runs.") && report.conclusion.is_interrupted);
    }

    #[test]
    fn a_title_names_the_ends_of_a_run_and_the_server() {
        let duration = Some(Duration::from_secs(3));
        let server = ProfiledServer {
            target: BenchTarget::Server { address: "127.0.0.1:25".to_owned(), sink: None },
            recipient: "a@b".to_owned(),
        };
        let options = ProfileOptions { duration, server, reuse: None, ..options() };
        let title = title(&options);
        let expected = "1,600 messages or 3.00 s per run over 8 sessions to 127.0.0.1:25, connections reused";
        assert!(title.contains(expected), "{title}");
    }
}
