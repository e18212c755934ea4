//! The tables as they are read: figures with their ratios to smtp-source, or what was proved; below, all that went wrong.
use super::cases::{ConnectionReuse, TableCase};
use super::contestants::SourceTool;
use super::runner::{TableMeasurement, TableResults, TableRun, TableSeries};
use super::{Conclusion, TableOptions, TextReport, conclude_runs, delivery_check};
use journey::record::Outcome;
use report::numbers::{count, counted, figure, memory};
use report::table::{Align, Table, plain};

/// Text in place of a missing figure.
const MISSING: &str = "–";
/// The table of costs.
pub(super) fn figures(finds: &TableResults, options: &TableOptions) -> TextReport {
    let right = |title| (title, Align::Right);
    let mut table = Table::new([
        ("tool", Align::Left),
        ("sink", Align::Left),
        right("sessions"),
        ("reuse", Align::Left),
        right("user s"),
        right("sys s"),
        right("elapsed s"),
        right("CPU %"),
        right("max RSS"),
        right("msg/s"),
        right("× msg/s"),
        right("× CPU"),
        right("sink CPU s"),
    ])
    .leave_out(&["sink CPU s", "max RSS", "sys s", "user s", "CPU %", "× CPU", "elapsed s", "reuse"]);
    let lanes = finds.series.iter().filter(|lane| !lane.runs.is_empty());
    lanes.for_each(|lane| table.row(figures_row(lane, finds, options.messages)));
    let mut remarks = faults(finds, |case, run| shortfall(case, run, options.messages));
    let conclusion = conclude_runs(&remarks, finds.done, finds.planned);
    remarks.push("× msg/s, × CPU: multiple of smtp-source's value in the same round.".to_owned());
    let what = format!("smtp-source-table: {} per run, {}", counted(options.messages, "message"), rounds(options));
    assemble(&what, table, finds, remarks, conclusion)
}

fn rounds(options: &TableOptions) -> String {
    match options.rounds {
        1 => "one round".to_owned(),
        rounds => format!("medians of {rounds} rounds, interleaved"),
    }
}

fn figures_row(lane: &TableSeries, finds: &TableResults, messages: u64) -> Vec<String> {
    let of = |value: fn(&TableMeasurement) -> f64| shown(median(measured(lane).map(value)));
    let rss = median(measured(lane).filter_map(|run| run.source.max_rss_bytes).map(|bytes| bytes as f64));
    let rate = median(measured(lane).map(|run| messages as f64 / run.source.elapsed_s));
    let of_rate = ratio(lane, finds, |run, base| base.source.elapsed_s / run.source.elapsed_s);
    let of_cpu = ratio(lane, finds, |run, base| run.source.cpu_s() / base.source.cpu_s());
    let mut row = case_cells(&lane.case);
    row.extend([
        of(|run| run.source.user_s),
        of(|run| run.source.sys_s),
        of(|run| run.source.elapsed_s),
        percent(median(measured(lane).map(|run| 100.0 * run.source.cpu_s() / run.source.elapsed_s))),
        rss.map_or_else(|| MISSING.to_owned(), |bytes| memory(bytes as u64)),
        rate.map_or_else(|| MISSING.to_owned(), |rate| count(rate.round() as u64)),
        two_places(of_rate),
        two_places(of_cpu),
        of(|run| run.sink.cpu_s()),
    ]);
    row
}

fn case_cells(case: &TableCase) -> Vec<String> {
    let reuse = match case.connections {
        ConnectionReuse::PerMessage => MISSING,
        ConnectionReuse::Reused => "-d",
    };
    vec![
        case.tool.name().to_owned(),
        case.receiver.name().to_owned(),
        count(u64::from(case.sessions)),
        reuse.to_owned(),
    ]
}

fn measured(lane: &TableSeries) -> impl Iterator<Item = &TableMeasurement> {
    lane.runs.iter().filter_map(|run| match run {
        TableRun::Done(measured) => Some(measured.as_ref()),
        TableRun::Failed(_) => None,
    })
}

/// The median of round by round comparisons with smtp-source, so that a slow minute weighs on both sides.
fn ratio(
    lane: &TableSeries,
    finds: &TableResults,
    compare: fn(&TableMeasurement, &TableMeasurement) -> f64,
) -> Option<f64> {
    let base = finds.series.iter().find(|other| other.case == lane.case.with_tool(SourceTool::SmtpSource))?;
    median(lane.runs.iter().zip(&base.runs).filter_map(|pair| match pair {
        (TableRun::Done(run), TableRun::Done(base)) => Some(compare(run, base)),
        _ => None,
    }))
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(f64::midpoint(sorted[(sorted.len() - 1) / 2], upper))
}

fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| MISSING.to_owned(), figure)
}

fn two_places(value: Option<f64>) -> String {
    value.map_or_else(|| MISSING.to_owned(), |value| format!("{value:.2}"))
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| MISSING.to_owned(), |value| format!("{value:.0}"))
}

/// Messages that the sink did not get, where it counts by itself.
fn shortfall(_: &TableCase, run: &TableMeasurement, messages: u64) -> Option<String> {
    let arrived = run.counts?.messages;
    (arrived != messages).then(|| format!("the sink has {} of {} messages", count(arrived), count(messages)))
}

/// The table of proofs.
pub(super) fn check_report(finds: &TableResults, options: &TableOptions) -> TextReport {
    let mut table = Table::new([
        ("tool", Align::Left),
        ("sink", Align::Left),
        ("sessions", Align::Right),
        ("reuse", Align::Left),
        ("recipients", Align::Right),
        ("messages", Align::Right),
        ("deliveries", Align::Right),
        ("twice", Align::Right),
        ("changed", Align::Right),
        ("verdict", Align::Left),
    ])
    .leave_out(&["changed", "twice", "recipients", "reuse", "messages"]);
    let fault =
        |case: &TableCase, run: &TableMeasurement| delivery_check::fault(run, options.messages, case.recipients);
    let lanes = finds.series.iter().filter(|lane| !lane.runs.is_empty());
    lanes.for_each(|lane| table.row(check_row(lane, options.messages)));
    let mut remarks = faults(finds, fault);
    let conclusion = conclude_runs(&remarks, finds.done, finds.planned);
    if conclusion.outcome == Outcome::Pass {
        let units = "every recipient received every message once and unchanged";
        remarks.push(format!("OK: in total {}, {units}.", counted(finds.done as u64, "run")));
    }
    let what = format!("smtp-source-check: {} per run, {}", counted(options.messages, "message"), rounds(options));
    assemble(&what, table, finds, remarks, conclusion)
}

/// Row of proofs: of several rounds the first that is not OK is shown.
fn check_row(lane: &TableSeries, messages: u64) -> Vec<String> {
    let recipients = lane.case.recipients;
    let is_bad = |run: &&TableRun| match run {
        TableRun::Done(run) => delivery_check::fault(run, messages, recipients).is_some(),
        TableRun::Failed(_) => true,
    };
    let bad = lane.runs.iter().find(is_bad);
    let mut row = case_cells(&lane.case);
    row.push(count(u64::from(recipients)));
    match bad.or(lane.runs.last()) {
        Some(TableRun::Done(run)) if run.deliveries.is_some() => row.extend(run.deliveries.iter().flat_map(|kept| {
            let units = messages * u64::from(recipients);
            [
                format!("{} of {}", count(kept.messages), count(messages)),
                format!("{} of {}", count(kept.recipients), count(units)),
                count(kept.duplicates()),
                count(kept.changed),
            ]
        })),
        _ => row.extend([MISSING; 4].map(str::to_owned)),
    }
    row.push(if bad.is_some() { "NOT OK" } else { "OK" }.to_owned());
    row
}

/// A line for each run that failed or in which a fault was found.
fn faults(finds: &TableResults, fault: impl Fn(&TableCase, &TableMeasurement) -> Option<String>) -> Vec<String> {
    let mut lines = Vec::new();
    for lane in &finds.series {
        lines.extend(lane.runs.iter().filter_map(|run| {
            let why = match run {
                TableRun::Done(measured) => fault(&lane.case, measured)?,
                TableRun::Failed(why) => why.clone(),
            };
            Some(plain(&format!("NOT OK: {}: {why}", lane.case.description())))
        }));
    }
    lines
}

fn assemble(
    what: &str,
    table: Table,
    finds: &TableResults,
    mut remarks: Vec<String>,
    conclusion: Conclusion,
) -> TextReport {
    if finds.done < finds.planned {
        remarks.push(format!("Stopped after {} of {} runs.", finds.done, finds.planned));
    }
    if !finds.missing.is_empty() {
        remarks.push(format!("Not compared because not installed: {}.", finds.missing.join(", ")));
    }
    TextReport::new(what, vec![table], remarks, conclusion)
}

#[cfg(test)]
mod tests {
    use super::super::DeliveryCheck;
    use super::super::contestants::SinkTool;
    use super::super::sinks::ReportedCounts;
    use super::super::timed::Costs;
    use super::*;
    use party::live::LiveMode;
    use std::time::Duration;

    fn run(user_s: f64, elapsed_s: f64, arrived: u64) -> TableRun {
        let source = Costs { user_s, sys_s: 0.5, elapsed_s, max_rss_bytes: Some(8 << 20) };
        TableRun::Done(Box::new(TableMeasurement {
            source,
            sink: Costs::default(),
            counts: Some(ReportedCounts { messages: arrived, recipients: arrived }),
            deliveries: None,
        }))
    }

    fn series(tool: SourceTool, runs: Vec<TableRun>) -> TableSeries {
        let receiver = SinkTool::Mailrun;
        let connections = ConnectionReuse::Reused;
        TableSeries { case: TableCase { tool, receiver, sessions: 100, connections, recipients: 1 }, runs }
    }

    fn options() -> TableOptions {
        TableOptions {
            messages: 1000,
            tools: vec![SourceTool::SmtpSource, SourceTool::Mailrun],
            receivers: vec![SinkTool::Mailrun],
            rounds: 3,
            order: crate::bench::scenario::RoundOrder::Alternating,
            sessions: vec![100],
            recipients: vec![1],
            check: DeliveryCheck::None,
            limit: Duration::from_secs(1),
            sink_options: Vec::new(),
            live: LiveMode::Off,
        }
    }

    fn results(lanes: Vec<TableSeries>) -> TableResults {
        TableResults { series: lanes, missing: vec!["go-smtp-source"], done: 6, planned: 6 }
    }

    #[test]
    fn figures_are_medians_and_ratios_are_of_the_same_round() {
        let theirs = vec![run(0.5, 1.0, 1000), run(1.5, 2.0, 1000), run(0.7, 9.0, 1000)];
        // 2, 1 and 3 times as fast as theirs in its round; the medians, of 2 s each, would show no difference.
        let ours = vec![run(0.0, 0.5, 1000), run(0.5, 2.0, 1000), run(0.1, 3.0, 1000)];
        let sheet = figures(
            &results(vec![series(SourceTool::SmtpSource, theirs), series(SourceTool::Mailrun, ours)]),
            &options(),
        );
        let row = sheet.text.lines().find(|line| line.starts_with(" mailrun")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        let expected =
            ["mailrun", "mailrun", "100", "-d", "0.100", "0.500", "2.000", "50", "8.0", "MiB", "500", "2.00", "0.50"];
        assert_eq!(cells[..13], expected, "{}", sheet.text);
        assert!(sheet.is_good() && sheet.text.contains("not installed: go-smtp-source."), "{}", sheet.text);
    }

    #[test]
    fn what_hung_is_named_and_has_no_figures() {
        let theirs = vec![TableRun::Failed("it did not end\nwithin 1 s".to_owned())];
        let sheet = figures(&results(vec![series(SourceTool::SmtpSource, theirs)]), &options());
        let named = "NOT OK: smtp-source → mailrun sink, 100 sessions, -d: it did not end within 1 s";
        assert!(!sheet.is_good() && sheet.text.contains(named), "{}", sheet.text);
    }

    #[test]
    fn a_source_that_loses_mail_in_silence_is_found_out() {
        let sheet = figures(&results(vec![series(SourceTool::Mailrun, vec![run(0.1, 1.0, 998)])]), &options());
        assert!(!sheet.is_good() && sheet.text.contains("the sink has 998 of 1,000 messages"), "{}", sheet.text);
    }

    #[test]
    fn what_was_not_run_is_no_proof() {
        let stopped = TableResults { done: 1, ..results(vec![series(SourceTool::Mailrun, vec![run(0.1, 1.0, 1000)])]) };
        let sheet = check_report(&stopped, &options());
        assert!(!sheet.is_good() && sheet.text.contains("Stopped after 1 of 6 runs."), "{}", sheet.text);
        assert!(sheet.text.contains(" OK"), "{}", sheet.text);
    }
}
