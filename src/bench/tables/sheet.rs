//! The tables as they are read: figures with their ratios to smtp-source, or what was proved; below, all that went wrong.
use super::cases::{Case, Connections};
use super::contenders::Tool;
use super::course::{Finds, Lane, Measured, Run};
use super::{Conclusion, Sheet, TableOptions, proof, runs_concluded};
use crate::report::numbers::{count, counted, figure, memory};
use crate::report::table::{Align, Table, plain};
use journey::record::Outcome;

/// Text in place of a missing figure.
const NONE: &str = "–";
/// The table of costs.
pub(super) fn figures(finds: &Finds, options: &TableOptions) -> Sheet {
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
    let lanes = finds.lanes.iter().filter(|lane| !lane.runs.is_empty());
    lanes.for_each(|lane| table.row(figures_row(lane, finds, options.messages)));
    let mut remarks = troubles(finds, |case, run| shortfall(case, run, options.messages));
    let conclusion = runs_concluded(&remarks, finds.done, finds.planned);
    remarks.push("× msg/s, × CPU: multiple of smtp-source's value in the same round.".to_owned());
    let what = format!("smtp-source-table: {} per run, {}", counted(options.messages, "message"), rounds(options));
    assembled(&what, table, finds, remarks, conclusion)
}

fn rounds(options: &TableOptions) -> String {
    match options.rounds {
        1 => "one round".to_owned(),
        rounds => format!("medians of {rounds} rounds, interleaved"),
    }
}

fn figures_row(lane: &Lane, finds: &Finds, messages: u64) -> Vec<String> {
    let of = |value: fn(&Measured) -> f64| shown(median(measured(lane).map(value)));
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
        rss.map_or_else(|| NONE.to_owned(), |bytes| memory(bytes as u64)),
        rate.map_or_else(|| NONE.to_owned(), |rate| count(rate.round() as u64)),
        two_places(of_rate),
        two_places(of_cpu),
        of(|run| run.sink.cpu_s()),
    ]);
    row
}

fn case_cells(case: &Case) -> Vec<String> {
    let reuse = match case.connections {
        Connections::Each => NONE,
        Connections::Kept => "-d",
    };
    vec![
        case.tool.name().to_owned(),
        case.receiver.name().to_owned(),
        count(u64::from(case.sessions)),
        reuse.to_owned(),
    ]
}

fn measured(lane: &Lane) -> impl Iterator<Item = &Measured> {
    lane.runs.iter().filter_map(|run| match run {
        Run::Done(measured) => Some(measured.as_ref()),
        Run::Failed(_) => None,
    })
}

/// The median of round by round comparisons with smtp-source, so that a slow minute weighs on both sides.
fn ratio(lane: &Lane, finds: &Finds, compare: fn(&Measured, &Measured) -> f64) -> Option<f64> {
    let base = finds.lanes.iter().find(|other| other.case == lane.case.by(Tool::SmtpSource))?;
    median(lane.runs.iter().zip(&base.runs).filter_map(|pair| match pair {
        (Run::Done(run), Run::Done(base)) => Some(compare(run, base)),
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
    value.map_or_else(|| NONE.to_owned(), figure)
}

fn two_places(value: Option<f64>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| format!("{value:.2}"))
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| format!("{value:.0}"))
}

/// Messages that the sink did not get, where it counts by itself.
fn shortfall(_: &Case, run: &Measured, messages: u64) -> Option<String> {
    let arrived = run.counts?.messages;
    (arrived != messages).then(|| format!("the sink has {} of {} messages", count(arrived), count(messages)))
}

/// The table of proofs.
pub(super) fn proofs(finds: &Finds, options: &TableOptions) -> Sheet {
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
    let fault = |case: &Case, run: &Measured| proof::fault(run, options.messages, case.recipients);
    let lanes = finds.lanes.iter().filter(|lane| !lane.runs.is_empty());
    lanes.for_each(|lane| table.row(proofs_row(lane, options.messages)));
    let mut remarks = troubles(finds, fault);
    let conclusion = runs_concluded(&remarks, finds.done, finds.planned);
    if conclusion.outcome == Outcome::Pass {
        let units = "every recipient received every message once and unchanged";
        remarks.push(format!("OK: in total {}, {units}.", counted(finds.done as u64, "run")));
    }
    let what = format!("smtp-source-check: {} per run, {}", counted(options.messages, "message"), rounds(options));
    assembled(&what, table, finds, remarks, conclusion)
}

/// Row of proofs: of several rounds the first that is not OK is shown.
fn proofs_row(lane: &Lane, messages: u64) -> Vec<String> {
    let recipients = lane.case.recipients;
    let is_bad = |run: &&Run| match run {
        Run::Done(run) => proof::fault(run, messages, recipients).is_some(),
        Run::Failed(_) => true,
    };
    let bad = lane.runs.iter().find(is_bad);
    let mut row = case_cells(&lane.case);
    row.push(count(u64::from(recipients)));
    match bad.or(lane.runs.last()) {
        Some(Run::Done(run)) if run.deliveries.is_some() => row.extend(run.deliveries.iter().flat_map(|kept| {
            let units = messages * u64::from(recipients);
            [
                format!("{} of {}", count(kept.messages), count(messages)),
                format!("{} of {}", count(kept.recipients), count(units)),
                count(kept.twice()),
                count(kept.changed),
            ]
        })),
        _ => row.extend([NONE; 4].map(str::to_owned)),
    }
    row.push(if bad.is_some() { "NOT OK" } else { "OK" }.to_owned());
    row
}

/// A line for each run that failed or in which a fault was found.
fn troubles(finds: &Finds, fault: impl Fn(&Case, &Measured) -> Option<String>) -> Vec<String> {
    let mut lines = Vec::new();
    for lane in &finds.lanes {
        lines.extend(lane.runs.iter().filter_map(|run| {
            let why = match run {
                Run::Done(measured) => fault(&lane.case, measured)?,
                Run::Failed(why) => why.clone(),
            };
            Some(plain(&format!("NOT OK: {}: {why}", lane.case.words())))
        }));
    }
    lines
}

fn assembled(what: &str, table: Table, finds: &Finds, mut remarks: Vec<String>, conclusion: Conclusion) -> Sheet {
    if finds.done < finds.planned {
        remarks.push(format!("Stopped after {} of {} runs.", finds.done, finds.planned));
    }
    if !finds.missing.is_empty() {
        remarks.push(format!("Not compared because not installed: {}.", finds.missing.join(", ")));
    }
    Sheet::new(what, vec![table], remarks, conclusion)
}

#[cfg(test)]
mod tests {
    use super::super::Proof;
    use super::super::contenders::Receiver;
    use super::super::sinks::Counts;
    use super::super::timed::Costs;
    use super::*;
    use crate::party::Live;
    use std::time::Duration;

    fn run(user_s: f64, elapsed_s: f64, arrived: u64) -> Run {
        let source = Costs { user_s, sys_s: 0.5, elapsed_s, max_rss_bytes: Some(8 << 20) };
        Run::Done(Box::new(Measured {
            source,
            sink: Costs::default(),
            counts: Some(Counts { messages: arrived, recipients: arrived }),
            deliveries: None,
        }))
    }

    fn lane(tool: Tool, runs: Vec<Run>) -> Lane {
        let (receiver, connections) = (Receiver::Mailrun, Connections::Kept);
        Lane { case: Case { tool, receiver, sessions: 100, connections, recipients: 1 }, runs }
    }

    fn options() -> TableOptions {
        TableOptions {
            messages: 1000,
            rounds: 3,
            sessions: vec![100],
            recipients: vec![1],
            proof: Proof::None,
            limit: Duration::from_secs(1),
            sink_options: Vec::new(),
            live: Live::Off,
        }
    }

    fn finds(lanes: Vec<Lane>) -> Finds {
        Finds { lanes, missing: vec!["go-smtp-source"], done: 6, planned: 6 }
    }

    #[test]
    fn figures_are_medians_and_ratios_are_of_the_same_round() {
        let theirs = vec![run(0.5, 1.0, 1000), run(1.5, 2.0, 1000), run(0.7, 9.0, 1000)];
        // 2, 1 and 3 times as fast as theirs in its round; the medians, of 2 s each, would show no difference.
        let ours = vec![run(0.0, 0.5, 1000), run(0.5, 2.0, 1000), run(0.1, 3.0, 1000)];
        let sheet = figures(&finds(vec![lane(Tool::SmtpSource, theirs), lane(Tool::Mailrun, ours)]), &options());
        let row = sheet.text.lines().find(|line| line.starts_with(" mailrun")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        let expected =
            ["mailrun", "mailrun", "100", "-d", "0.100", "0.500", "2.000", "50", "8.0", "MiB", "500", "2.00", "0.50"];
        assert_eq!(cells[..13], expected, "{}", sheet.text);
        assert!(sheet.is_good() && sheet.text.contains("not installed: go-smtp-source."), "{}", sheet.text);
    }

    #[test]
    fn what_hung_is_named_and_has_no_figures() {
        let theirs = vec![Run::Failed("it did not end\nwithin 1 s".to_owned())];
        let sheet = figures(&finds(vec![lane(Tool::SmtpSource, theirs)]), &options());
        let named = "NOT OK: smtp-source → mailrun sink, 100 sessions, -d: it did not end within 1 s";
        assert!(!sheet.is_good() && sheet.text.contains(named), "{}", sheet.text);
    }

    #[test]
    fn a_source_that_loses_mail_in_silence_is_found_out() {
        let sheet = figures(&finds(vec![lane(Tool::Mailrun, vec![run(0.1, 1.0, 998)])]), &options());
        assert!(!sheet.is_good() && sheet.text.contains("the sink has 998 of 1,000 messages"), "{}", sheet.text);
    }

    #[test]
    fn what_was_not_run_is_no_proof() {
        let stopped = Finds { done: 1, ..finds(vec![lane(Tool::Mailrun, vec![run(0.1, 1.0, 1000)])]) };
        let sheet = proofs(&stopped, &options());
        assert!(!sheet.is_good() && sheet.text.contains("Stopped after 1 of 6 runs."), "{}", sheet.text);
        assert!(sheet.text.contains(" OK"), "{}", sheet.text);
    }
}
