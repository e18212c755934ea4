use super::cases::{ConnectionReuse, SourceTool, TableCase, TableOptions};
use super::runs::TableMeasurement;
use crate::engine::{
    self, ComparisonResults, Contestant, Defects, MISSING, RATIO_NOTE, RatioColumn, RatioVerdict, ReportParts,
    ShownFigures, TableColumn, TextReport, bytes, rounds_text, shown, whole,
};
use crate::programs::ComparedProgram;
use mailrun_text::numbers::{count, counted, figure};

type TableContestant = Contestant<TableCase, TableMeasurement>;

pub(super) type TableResults = ComparisonResults<TableCase, TableMeasurement>;

type Column<'a> = TableColumn<'a, TableCase, TableMeasurement>;

const RATIOS: [RatioColumn<TableMeasurement>; 2] = [
    RatioColumn::higher("× msg/s", |run| Some(1.0 / run.source.elapsed_s)),
    RatioColumn::lower("× CPU", |run| Some(run.source.cpu_s())),
];

/// Builds the report. The last notes below the table are `left_out`, which name the programs that are not compared.
pub(super) fn figures(results: &TableResults, left_out: Vec<String>, options: &TableOptions) -> TextReport {
    let messages = options.messages as f64;
    let mut columns = case_columns();
    columns.extend([
        Column::median("user s", |run| Some(run.source.user_s), figure),
        Column::median("sys s", |run| Some(run.source.sys_s), figure),
        Column::median("elapsed s", |run| Some(run.source.elapsed_s), figure),
        Column::median(
            "CPU %",
            |run| Some(100.0 * run.source.cpu_s() / run.source.elapsed_s),
            |value| format!("{value:.0}"),
        ),
        Column::median("max RSS", |run| run.source.max_rss_bytes.map(|bytes| bytes as f64), bytes),
        Column::median("msg/s", |run| Some(messages / run.source.elapsed_s), whole),
    ]);
    columns.extend(RATIOS.iter().map(|ratio| {
        Column::figure(ratio.title, |contestant| {
            shown(base(contestant, results), |base| {
                RatioVerdict::of(contestant, base, &RATIOS).cell(ratio, contestant, base)
            })
        })
    }));
    columns.extend([
        Column::median("sink CPU s", |run| Some(run.sink.cpu_s()), figure),
        Column::median("faults", |run| run.source.faults.map(|faults| faults as f64), whole),
        Column::median("storage", |run| run.source.storage_bytes.map(|bytes| bytes as f64), bytes),
    ]);
    let leave_out =
        ["storage", "faults", "sink CPU s", "max RSS", "sys s", "user s", "CPU %", "× CPU", "elapsed s", "reuse"];
    let table = engine::table(&results.contestants, &columns, &leave_out);
    let runs = engine::runs_table(&results.contestants, &columns);
    let mut notes = vec![
        "× msg/s, × CPU: multiple of smtp-source's value.".to_owned(),
        "faults: page faults, minor and major. storage: bytes read from storage and written to it.".to_owned(),
        RATIO_NOTE.to_owned(),
    ];
    notes.extend(left_out);
    let rounds = rounds_text(options.rounds, ShownFigures::Medians);
    results.report(ReportParts {
        title: format!("smtp-source-table: {} per run, {rounds}", counted(options.messages, "message")),
        tables: vec![table],
        runs: Some(runs),
        notes,
        pass: "none of which failed",
        wrong: Defects::default(),
        is_strict: false,
    })
}

/// Returns the row with which this row is compared: smtp-source with the same sink and load. Returns `None` if
/// smtp-source is not in the table.
fn base<'r>(contestant: &TableContestant, results: &'r TableResults) -> Option<&'r TableContestant> {
    let case = contestant.case.with_tool(SourceTool::SmtpSource);
    results.contestants.iter().find(|other| other.case == case)
}

fn case_columns<'a>() -> Vec<Column<'a>> {
    let reuse = |contestant: &TableContestant| match contestant.case.connections {
        ConnectionReuse::PerMessage => MISSING.to_owned(),
        ConnectionReuse::Reused => "-d".to_owned(),
    };
    vec![
        Column::words("tool", |contestant| contestant.case.tool.name().to_owned()),
        Column::words("sink", |contestant| contestant.case.receiver.name().to_owned()),
        Column::figure("sessions", |contestant| count(u64::from(contestant.case.sessions))),
        Column::words("reuse", reuse),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{ComparedRun, Costs, RoundOrder, miscount};
    use crate::tables::cases::SinkTool;
    use mailrun_process::live::LiveMode;
    use std::time::Duration;

    fn case(tool: SourceTool) -> TableCase {
        let receiver = SinkTool::Mailrun;
        TableCase { tool, receiver, sessions: 100, connections: ConnectionReuse::Reused, recipients: 1 }
    }

    fn run(user_s: f64, elapsed_s: f64, arrived: u64) -> ComparedRun<TableMeasurement> {
        let source = Costs { user_s, sys_s: 0.5, elapsed_s, max_rss_bytes: Some(8 << 20), ..Costs::default() };
        let measured = TableMeasurement { source, sink: Costs::default(), arrived: Some(arrived) };
        let fault = miscount(arrived, 1000);
        ComparedRun::of(measured, fault)
    }

    fn contestant(tool: SourceTool, runs: Vec<ComparedRun<TableMeasurement>>) -> TableContestant {
        TableContestant { runs, ..TableContestant::new(case(tool).description(), case(tool)) }
    }

    fn options() -> TableOptions {
        TableOptions {
            messages: 1000,
            tools: vec![SourceTool::SmtpSource, SourceTool::Mailrun],
            receivers: vec![SinkTool::Mailrun],
            rounds: 3,
            order: RoundOrder::Alternating,
            sessions: vec![100],
            recipients: vec![1],
            limit: Duration::from_secs(1),
            live: LiveMode::Off,
        }
    }

    fn results(contestants: Vec<TableContestant>) -> TableResults {
        TableResults { contestants, done: 6, planned: 6 }
    }

    #[test]
    fn figures_are_medians_and_ratios_are_of_the_same_round() {
        let theirs = vec![run(0.5, 1.0, 1000), run(1.5, 2.0, 1000), run(0.7, 9.0, 1000)];
        // In the three rounds, mailrun is 2, 1 and 3 times as fast as smtp-source, so the ratio must be 2, the median.
        // The ratio of the median times would be 1, because both median times are 2 s.
        let ours = vec![run(0.0, 0.5, 1000), run(0.5, 2.0, 1000), run(0.1, 3.0, 1000)];
        let report = figures(
            &results(vec![contestant(SourceTool::SmtpSource, theirs), contestant(SourceTool::Mailrun, ours)]),
            vec!["go-smtp-source is not here.".to_owned()],
            &options(),
        );
        let row = report.text.lines().find(|line| line.starts_with(" mailrun")).unwrap();
        let cells = row.split_whitespace().collect::<Vec<_>>().join(" ");
        let expected = "mailrun mailrun 100 -d 0.100 0.500 2.000 50 8.0 MiB 500 2.00 (1.00–3.00) 0.50 ";
        assert!(cells.starts_with(expected), "{}", report.text);
        assert!(report.is_good() && report.text.contains("go-smtp-source is not here."), "{}", report.text);
    }

    #[test]
    fn what_hung_is_named_and_has_no_figures() {
        let theirs = vec![ComparedRun::Failed("it did not end\nwithin 1 s".to_owned())];
        let report = figures(&results(vec![contestant(SourceTool::SmtpSource, theirs)]), Vec::new(), &options());
        let named = "NOT OK: smtp-source → mailrun sink, 100 sessions, -d: it did not end within 1 s";
        assert!(!report.is_good() && report.text.contains(named), "{}", report.text);
    }

    #[test]
    fn a_source_that_loses_mail_in_silence_is_found_out() {
        let report =
            figures(&results(vec![contestant(SourceTool::Mailrun, vec![run(0.1, 1.0, 998)])]), Vec::new(), &options());
        assert!(!report.is_good() && report.text.contains("the sink has 998 of 1,000 messages"), "{}", report.text);
    }

    #[test]
    fn what_was_not_run_is_no_proof() {
        let stopped =
            TableResults { done: 1, ..results(vec![contestant(SourceTool::Mailrun, vec![run(0.1, 1.0, 1000)])]) };
        let report = figures(&stopped, Vec::new(), &options());
        assert!(!report.is_good() && report.text.contains("Stopped after 1 of 6 runs."), "{}", report.text);
    }
}
