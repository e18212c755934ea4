//! The short report, which fits on a terminal of 80×24 and ends with the verdict. The bench's screen also uses [`fit`]
//! to leave out the least important parts.
//!
//! ```text
//! mailrun bench: 400 B messages to 127.0.0.1:25 (SMTP), 100 sessions, …      the run
//! accepted/s  ▄▇██▇███▅  min 4,329  median 5,615  max 6,039                  its course
//!  in ms         p50     p90     p99     max   msg/s                         latencies
//! created 15,145 · delivered 14,154 · failed 991                             fates
//! errors …  thresholds …  ! what to do                                       troubles
//! details: mailrun-results/…/report.md
//! FAIL  The server stopped answering at 1.5 s of 4.0 s …
//! ```
//! The report has at most 23 lines, so that the prompt of the shell fits below it. A longer report loses its empty
//! lines first, and then whole parts, the least important first (`SectionPriority`).
use super::ending::{TextStyle, bold};
use super::fates::{errors_in_short, ledger_in_short, threshold_table, when};
use super::parties::costs_in_short;
use super::seconds::rate_over_time;
use super::stages::time_cell;
use super::workload::sizes;
use super::{audit, ending, relay};
use mailrun_measurement::record::{Arrival, LatencyMs, Mades, MissingFate, Outcome, Record, Role, StageRow, Workload};
use mailrun_measurement::stage::Stage;
use mailrun_text::numbers::{count, counted, latency, rate, seconds};
use mailrun_text::table::{Align, Cell, Table, plain, right};
use mailrun_text::wrap::{clipped_words, display_width, wrapped};

const MAX_LINES: usize = 23;
const MAX_WIDTH: usize = 80;
const MIN_WIDTH: usize = 20;
const MAX_ERRORS: usize = 3;
const MAX_THRESHOLDS: usize = 4;
const MAX_LOAD_STAGES: usize = 5;
const MAX_NOTES: usize = 3;
/// Columns reserved for text, such as the median, in the line that plots the rate over time. The bars get the rest.
const BARS_MARGIN: usize = 55;

/// Priorities of the parts of a report, lowest first. If a report is too long, [`fit`] leaves out the parts with the
/// lowest priority first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SectionPriority {
    Costs,
    Slowest,
    OverTime,
    LoadStages,
    ThirdRemark,
    SecondRemark,
    MinorErrors,
    FirstRemark,
    Ledger,
    Errors,
    Thresholds,
    Latencies,
    Workload,
    Always,
}

/// Returns the short report for `width` columns. The line above the verdict names `details`, the path of the complete
/// report.
pub(crate) fn short(record: &Record, width: usize, style: TextStyle, details: Option<&str>) -> String {
    let width = width.clamp(MIN_WIDTH, MAX_WIDTH);
    let mut parts = parts(record, width, style);
    let end = ending::verdict(record, width, style);
    parts.push(ReportPart { priority: SectionPriority::Always, has_gap: true, lines: Vec::new() });
    parts.push(ReportPart { priority: SectionPriority::Always, has_gap: false, lines: end });
    let details = details.map(|file| format!("details: {file}"));
    let room = MAX_LINES - details.as_ref().map_or(0, |line| display_width(line).div_ceil(width));
    let is_cut = fit(&mut parts, room, SectionPriority::Always);
    let hint = details.or_else(|| is_cut.then(|| "all of it: --report full".to_owned()));
    if let Some(place) = parts.len().checked_sub(2) {
        parts[place].lines = hint.into_iter().collect();
    }
    lines(parts).fold(String::new(), |text, line| text + &line + "\n")
}

fn parts(record: &Record, width: usize, style: TextStyle) -> Vec<ReportPart<SectionPriority>> {
    let part = |rank, has_gap, lines: Vec<String>| {
        (!lines.is_empty()).then_some(ReportPart { priority: rank, has_gap, lines })
    };
    let is_failed = record.verdict.outcome.is_some_and(|outcome| outcome != Outcome::Pass);
    let errors = if is_failed { SectionPriority::Errors } else { SectionPriority::MinorErrors };
    let line = |text: Option<String>, rest: &str| text.map_or_else(Vec::new, |text| wrapped(&text, "", rest, width));
    let mut parts: Vec<ReportPart<SectionPriority>> = [
        part(SectionPriority::Workload, false, head(record, width, style)),
        part(SectionPriority::Always, true, audit::in_short(record, width)),
        part(SectionPriority::OverTime, true, over_time(record, width)),
        part(SectionPriority::Latencies, true, latencies(record, width)),
        part(SectionPriority::LoadStages, true, load_stages(record, width)),
        part(SectionPriority::Slowest, false, line(slowest(record), "  ")),
        part(SectionPriority::Ledger, true, line(ledger_in_short(record), "  ")),
        part(
            SectionPriority::Costs,
            false,
            line(costs_in_short(record).map(|costs| format!("CPU, memory: {costs}")), "  "),
        ),
        part(errors, true, errors_part(record, width)),
        part(errors, false, line(not_seen(record), "  ")),
        part(SectionPriority::Thresholds, true, thresholds(record, width)),
    ]
    .into_iter()
    .flatten()
    .collect();
    let ranks = [SectionPriority::FirstRemark, SectionPriority::SecondRemark, SectionPriority::ThirdRemark];
    let notes = ending::notes_to_act_on(record);
    for (place, (text, rank)) in notes.iter().take(MAX_NOTES).zip(ranks).enumerate() {
        // Show a note whole or not at all, because its end says what to do.
        let lines = ending::note(text, width);
        parts.push(ReportPart { priority: rank, has_gap: place == 0, lines });
    }
    parts
}

fn head(record: &Record, width: usize, style: TextStyle) -> Vec<String> {
    let first = format!("mailrun {}: ", plain(&record.name));
    let mut lines = wrapped(&described(record), &first, "  ", width);
    let name = first.trim_end();
    if let Some(line) = lines.first_mut().filter(|line| line.starts_with(name)) {
        *line = line.replacen(name, &bold(name, style), 1);
    }
    lines
}

fn described(record: &Record) -> String {
    let workload = &record.workload;
    let length = seconds(record.offered_s.unwrap_or(record.duration_s));
    let mut words = match &record.mades {
        Some(mades) => mades_words(mades, workload),
        None if record.parties.iter().all(|party| party.role == Role::Sink) => {
            Some(place(workload)).filter(|_| !workload.target.is_empty()).into_iter().collect()
        }
        None => mail_words(record),
    };
    words.push(length);
    words.join(", ")
}

fn mail_words(record: &Record) -> Vec<String> {
    let workload = &record.workload;
    let recipients = match (&workload.recipients_varied, workload.recipients) {
        (Some(varied), _) => format!(" for {} recipients", plain(&varied.expression)),
        (None, 0 | 1) => String::new(),
        (None, many) => format!(" for {} recipients", count(u64::from(many))),
    };
    let connections = match (&workload.reuse_varied, workload.reuse) {
        (Some(varied), _) => format!("{} messages per connection", plain(&varied.expression)),
        (None, None) => "connections reused".to_owned(),
        (None, Some(1)) => "one connection per message".to_owned(),
        (None, Some(number)) => format!("{} per connection", counted(number, "message")),
    };
    vec![
        format!("{}{}", messages_and_relay(record, &recipients), place(workload)),
        counted(u64::from(workload.sessions), "session"),
        connections,
        loop_words(workload),
    ]
}

/// Names the messages and the relay, for example `messages of 400 B to postfix at `. For mailrun's own relay, the text
/// begins with `demonstration with mailrun's own relay: `, except in an audit.
fn messages_and_relay(record: &Record, recipients: &str) -> String {
    let messages = format!("messages of {}{recipients} to ", sizes(&record.workload));
    match relay::party(record).map(|relay| plain(&relay.name)) {
        None => messages,
        // Leave out a name that is only the target's address, because the address follows anyway.
        Some(name) if name == plain(&record.workload.target) => messages,
        Some(name) if name == "mailrun" && record.audit.is_none() => {
            format!("demonstration with mailrun's own relay: {messages}")
        }
        Some(name) => format!("{messages}{name} at "),
    }
}

fn mades_words(mades: &Mades, workload: &Workload) -> Vec<String> {
    vec![
        format!("messages of {} to {} (mode {})", sizes(workload), plain(&mades.outbox_url), plain(&mades.mode)),
        format!("at most {} in transit", count(mades.max_in_transit)),
        loop_words(workload),
    ]
}

/// Describes the target, for example `127.0.0.1:25 (SMTP, STARTTLS)`.
fn place(workload: &Workload) -> String {
    let tls = match workload.tls.as_str() {
        "" | "none" => String::new(),
        "starttls" => ", STARTTLS".to_owned(),
        _ => ", TLS".to_owned(),
    };
    format!("{} ({}{tls})", plain(&workload.target), plain(&workload.protocol).to_uppercase())
}

fn loop_words(workload: &Workload) -> String {
    let paced = match (workload.stages.as_slice(), workload.rate_per_s) {
        ([], Some(pace)) => format!("open loop at {} msg/s", rate(pace)),
        ([], None) => "open loop".to_owned(),
        (stages, _) => {
            let top = stages.iter().map(|stage| stage.from_per_s.max(stage.to_per_s)).fold(0.0, f64::max);
            format!("open loop in {} up to {} msg/s", counted(stages.len() as u64, "stage"), rate(top))
        }
    };
    match workload.arrival {
        Arrival::Closed => "closed loop".to_owned(),
        Arrival::Constant => paced,
        Arrival::Poisson => format!("{paced} (Poisson)"),
        Arrival::Market => "open loop at the times of a market".to_owned(),
    }
}

fn over_time(record: &Record, width: usize) -> Vec<String> {
    let room = width.saturating_sub(BARS_MARGIN).max(8);
    let Some([name, bars, smallest, median, largest]) = rate_over_time(record, room) else { return Vec::new() };
    wrapped(&format!("{name}  {bars}  min {smallest}, median {median}, max {largest}"), "", "  ", width)
}

fn latencies(record: &Record, width: usize) -> Vec<String> {
    let columns = [("in ms", Align::Left), right("p50"), right("p90"), right("p99"), right("max"), right("msg/s")];
    let mut table = Table::new(columns).leave_out(&["p90", "max"]);
    for row in rows(record) {
        let cells =
            |times: LatencyMs| [times.p50, times.p90, times.p99, times.max].map(|ms| time_cell(ms, row.beyond_ms));
        let times = row.latency_ms.map_or_else(|| vec![Cell::from("–"); 4], |times| cells(times).to_vec());
        let rate = row.rate_per_s.map_or_else(|| Cell::from("–"), Cell::Figure);
        table.row([Cell::from(row.name.name())].into_iter().chain(times).chain([rate]).collect());
    }
    if table.is_empty() { Vec::new() } else { compact(&table, width) }
}

/// Returns a table with a row for each stage of the load. The row shows how far the messages of this stage got, for
/// example to `delivered`, with their latencies and their rate.
fn load_stages(record: &Record, width: usize) -> Vec<String> {
    let columns = [
        ("stage", Align::Left),
        ("reached", Align::Left),
        right("p50"),
        right("p99"),
        right("msg/s"),
        right("missing"),
    ];
    let mut table = Table::new(columns).leave_out(&["reached", "p50"]).hide_zero(&["missing"]);
    for load_stage in record.load_stages.iter().take(MAX_LOAD_STAGES) {
        let Some(row) = load_stage.stages.last() else { continue };
        let times = row.latency_ms.map(|times| [times.p50, times.p99].map(|ms| time_cell(ms, row.beyond_ms)));
        let times = times.map_or_else(|| vec![Cell::from("–"); 2], |times| times.to_vec());
        let rate = row.rate_per_s.map_or_else(|| Cell::from("–"), Cell::Figure);
        let names = [Cell::from(plain(&load_stage.name)), Cell::from(row.name.name())];
        let missing = Cell::Count(row.failed.saturating_add(row.missing));
        table.row(names.into_iter().chain(times).chain([rate, missing]).collect());
    }
    if table.is_empty() {
        return Vec::new();
    }
    let mut lines = compact(&table, width);
    let more = record.workload.stages.len().saturating_sub(MAX_LOAD_STAGES);
    if more > 0 {
        lines.push(format!(" and {} more", count(more as u64)));
    }
    lines
}

/// Returns the stages whose latencies are shown: accepted, announced and delivered. For MADES, returns all stages that
/// have a latency.
fn rows(record: &Record) -> impl Iterator<Item = &StageRow> {
    let is_shown = |row: &&StageRow| match record.mades {
        Some(_) => row.latency_ms.is_some(),
        None => [Stage::Accepted, Stage::Announced, Stage::Delivered].contains(&row.name),
    };
    record.stages.iter().filter(is_shown)
}

/// Formats a table without the line below its titles, because the short report has few lines.
fn compact(table: &Table, width: usize) -> Vec<String> {
    let text = table.terminal(width);
    text.lines().enumerate().filter(|(number, _)| *number != 1).map(|(_, line)| line.to_owned()).collect()
}

fn slowest(record: &Record) -> Option<String> {
    if let Some(mades) = &record.mades {
        let timed = mades.hops.iter().filter_map(|hop| Some((hop, hop.latency_ms?)));
        let (hop, times) = timed.max_by(|(_, one), (_, other)| one.p99.total_cmp(&other.p99))?;
        return Some(format!("slowest step: {} → {}, p99 {}", plain(&hop.from), plain(&hop.to), latency(times.p99)));
    }
    let row = record.phases.iter().max_by(|one, other| one.latency_ms.p99.total_cmp(&other.latency_ms.p99))?;
    Some(format!("slowest phase: {}, p99 {}", row.name.name(), latency(row.latency_ms.p99)))
}

/// Names one message that did not arrive, and the server's reply to it, so that the reader can find the message in the
/// server's log.
pub(crate) fn not_seen(record: &Record) -> Option<String> {
    let first =
        record.missing.iter().find(|message| message.fate == MissingFate::NotSeen && message.reply.is_some())?;
    let reply = plain(first.reply.as_deref().unwrap_or_default());
    let kept = kept(record).map_or_else(String::new, |kept| format!("; {kept}"));
    Some(format!("not seen by the sink: message {}, {reply}; others in run.json (missing){kept}", first.message))
}

/// Says how many of the missing messages the record lists, for example `14 of 38 are kept`. Returns `None` if the list
/// is complete.
pub(crate) fn kept(record: &Record) -> Option<String> {
    let kept: u64 = record.missing.iter().map(|message| u64::from(message.recipient_count.max(1))).sum();
    let ledger = &record.ledger;
    let fates = [ledger.lost, ledger.not_delivered, ledger.bounced, ledger.rejected, ledger.failed, ledger.in_doubt];
    let all = fates.into_iter().flatten().fold(0, u64::saturating_add);
    (0 < kept && kept < all).then(|| format!("{} of {} are kept", count(kept), count(all)))
}

fn errors_part(record: &Record, width: usize) -> Vec<String> {
    let (errors, more) = errors_in_short(record, MAX_ERRORS);
    if errors.is_empty() {
        return errors;
    }
    let more = if more > 0 { format!(", and {} more", counted(more as u64, "kind")) } else { String::new() };
    let when = when(record).map_or_else(String::new, |when| format!(" {when}"));
    let title = format!("errors{when}{more}");
    wrapped(&title, "", "  ", width)
        .into_iter()
        .chain(errors.iter().map(|line| clipped_words(&format!("  {line}"), width)))
        .collect()
}

fn thresholds(record: &Record, width: usize) -> Vec<String> {
    let (table, more) = threshold_table(record, MAX_THRESHOLDS);
    if table.is_empty() {
        return Vec::new();
    }
    let mut lines = compact(&table, width);
    if more > 0 {
        lines.push(format!(" and {} more", count(more as u64)));
    }
    lines
}

/// Lines that a report shows or leaves out together.
pub struct ReportPart<Rank> {
    /// If a report is too long, [`fit`] leaves out the parts with the lowest priority first.
    pub priority: Rank,
    /// Set if an empty line precedes the part. If a report is too long, [`fit`] removes empty lines before parts.
    pub has_gap: bool,
    pub lines: Vec<String>,
}

/// Returns the number of lines of all parts, including the empty lines between them.
pub fn lines_in<Rank>(parts: &[ReportPart<Rank>]) -> usize {
    parts.iter().map(|part| part.lines.len() + usize::from(part.has_gap)).sum()
}

/// Shortens a report to `room` lines. Removes empty lines first, and then the parts with the lowest priority. Parts
/// with the priority `always` stay, even if they do not fit. Returns true if a part was left out.
pub fn fit<Rank: Copy + Ord>(parts: &mut Vec<ReportPart<Rank>>, room: usize, always: Rank) -> bool {
    let mut is_cut = false;
    while lines_in(parts) > room {
        if let Some(part) = parts.iter_mut().rev().find(|part| part.has_gap) {
            part.has_gap = false;
            continue;
        }
        let lowest = parts.iter().map(|part| part.priority).min().filter(|rank| *rank < always);
        let Some(lowest) = lowest else { break };
        parts.retain(|part| part.priority != lowest);
        is_cut = true;
    }
    is_cut
}

pub fn lines<Rank>(parts: Vec<ReportPart<Rank>>) -> impl Iterator<Item = String> {
    parts.into_iter().flat_map(|part| part.has_gap.then(String::new).into_iter().chain(part.lines))
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::super::terminal::full;
    use super::*;
    use mailrun_measurement::record::{Cause, ErrorRow, MadesTrouble, ThresholdRow, Verdict};
    use mailrun_measurement::stage::Phase;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn text(record: &Record) -> String {
        short(record, 80, TextStyle::Plain, Some("mailrun-results/20261122T060105Z-bench/report.md"))
    }

    fn with_verdict(record: Record, outcome: Outcome, reason: &str) -> Record {
        let verdict = Verdict { outcome: Some(outcome), why: reason.to_owned(), ..record.verdict.clone() };
        Record { verdict, ..record }
    }

    #[test]
    fn a_run_that_passed_says_how_fast_and_ends_with_its_verdict() {
        let text = text(&sample::relayed());
        for words in [
            "mailrun quick: demonstration with mailrun's own relay: messages of 400 B to\n  127.0.0.1:40001 (SMTP), 100 sessions,",
            "accepted/s ",
            "min 54,000, median 54,500, max 55,000",
            "p50",
            "p99",
            "54,321",
            "slowest phase: ",
            "CPU, memory: source 0.81 cores, 12.0 MiB; mailrun 1.36 cores",
        ] {
            assert!(text.contains(words), "{words} in\n{text}");
        }
        let last: Vec<&str> = text.lines().rev().take(2).collect();
        assert_eq!(
            last,
            ["PASS 200,000 delivered, none lost", "details: mailrun-results/20261122T060105Z-bench/report.md"]
        );
        assert!(!text.contains("lost 0") && !text.contains("errors"), "{text}");
    }

    #[test]
    fn a_remark_that_nobody_can_act_on_is_in_the_full_report_alone() {
        let mut record = sample::relayed();
        record.verdict.reasons =
            vec![mailrun_measurement::judge::NO_SERVER.to_owned(), "Use an idle machine.".to_owned()];
        let text = text(&record);
        assert!(text.contains("! Use an idle machine.") && !text.contains("There was no server"), "{text}");
        assert!(full(&record, 80, TextStyle::Plain, None).contains("! There was no server"));
    }

    #[test]
    fn a_run_that_failed_says_why_and_what_was_heard() {
        let mut record = with_verdict(sample::lossy(), Outcome::Fail, "Lost: 200 of 200,000 messages. See there.");
        let row = |phase, code, text: &str, count| ErrorRow {
            phase,
            code,
            text: text.to_owned(),
            count,
            ..ErrorRow::default()
        };
        record.errors = vec![
            row(Phase::Connect, 0, "Connection refused", 1_900),
            row(Phase::Rcpt, 450, "4.2.0 Busy", 7),
            row(Phase::Mail, 451, "4.3.0 No", 3),
            row(Phase::Data, 451, "4.3.0 No", 2),
        ];
        record.series[1].errors = 900;
        let text = text(&record);
        assert!(text.contains("errors in second 1, and 1 kind more"), "{text}");
        assert!(text.contains("  1,900 × at connect: Connection refused\n  7 × 450 at rcpt: 4.2.0 Busy\n"), "{text}");
        assert!(text.contains("created 200,000 · delivered 199,800 · lost 200"), "{text}");
        assert!(text.contains("! See there.") && text.ends_with("FAIL Lost: 200 of 200,000 messages.\n"), "{text}");
    }

    #[test]
    fn what_is_worth_least_makes_room_and_the_verdict_stays() {
        let mut record = with_verdict(sample::mades(), Outcome::Fail, &"why not ".repeat(15));
        record.verdict.reasons = vec!["something to do ".repeat(20); 9];
        record.thresholds =
            vec![ThresholdRow { expression: "delivered.p99 < 2s".to_owned(), ..ThresholdRow::default() }; 9];
        if let Some(mades) = &mut record.mades {
            let trouble = MadesTrouble { kind: "error reply".to_owned(), count: 3, ..MadesTrouble::default() };
            mades.troubles = vec![trouble; 7];
        }
        let text = text(&record);
        assert!(text.lines().count() <= MAX_LINES, "{text}");
        for words in ["NOT SEEN", "and 5 more", "RECEIVED", "error reply", "details: ", "FAIL why not"] {
            assert!(text.contains(words), "{words} in\n{text}");
        }
        assert!(!text.contains("CPU, memory"), "{text}");
    }

    #[test]
    fn a_sink_by_itself_says_what_it_received() {
        let mut record = sample::sink_alone();
        record.verdict.why = "In all 200,000 messages for 200,000 recipients.".to_owned();
        let text = short(&record, 80, TextStyle::Plain, None);
        assert!(text.ends_with("RECEIVED In all 200,000 messages for 200,000 recipients.\n"), "{text}");
    }

    prop_compose! {
        fn times()(figures in vec(0.0_f64..1e7, 8)) -> LatencyMs {
            let [min, mean, p50, p90, p95, p99, p999, max] = figures.try_into().expect("eight of them");
            LatencyMs { min, mean, p50, p90, p95, p99, p999, max }
        }
    }

    /// Generates texts without digits, so that every number in a report is a figure of the record.
    fn words() -> impl Strategy<Value = String> {
        "[a-zäß日 :()/<>\\u{1b}\\n-]{0,200}"
    }

    fn sample_of(kind: usize) -> Record {
        match kind {
            0 => sample::held(),
            1 => sample::lossy(),
            2 => sample::unwatched(),
            3 => sample::relayed(),
            4 => sample::sink_alone(),
            _ => sample::mades(),
        }
    }

    prop_compose! {
        fn records()(
            kind in 0_usize..6,
            numbers in vec(prop_oneof![Just(0_u64), 0_u64..1_000, 0_u64..1 << 58], 16),
            figures in vec(prop_oneof![Just(0.0), 0.0..1e9], 8),
            latencies in vec(times(), 8),
            texts in vec(words(), 8),
            rows in 0_usize..9,
        ) -> Record {
            let mut record = sample_of(kind);
            let number = |at: usize| numbers[at % numbers.len()];
            let figure = |at: usize| figures[at % figures.len()];
            record.duration_s = figure(0);
            record.workload.message_bytes = number(0);
            record.workload.sessions = u32::try_from(number(1)).unwrap_or(u32::MAX);
            record.workload.target.clone_from(&texts[0]);
            record.name.clone_from(&texts[1]);
            for (at, stage) in record.stages.iter_mut().enumerate() {
                (stage.count, stage.failed, stage.bytes) = (number(at), number(at + 1), number(at + 2));
                (stage.rate_per_s, stage.duration_s) = (Some(figure(at)), figure(at + 2));
                stage.missing = number(at + 1);
                stage.latency_ms = Some(latencies[at % latencies.len()]);
            }
            for (at, phase) in record.phases.iter_mut().enumerate() {
                (phase.count, phase.latency_ms) = (number(at), latencies[at % latencies.len()]);
            }
            for (at, second) in record.series.iter_mut().enumerate() {
                (second.accepted, second.queued, second.errors) = (number(at), number(at + 3), number(at + 5) % 9);
                (second.p50_ms, second.p99_ms) = (figure(at), figure(at + 1));
            }
            if let Some(mades) = &mut record.mades {
                mades.troubles[0].text.clone_from(&texts[2]);
                mades.outbox_url.clone_from(&texts[3]);
            }
            (record.ledger.created, record.ledger.rejected) = (Some(number(6)), Some(number(7)));
            (record.ledger.failed, record.ledger.duplicates) = (Some(number(8)), Some(number(9)));
            let error = |at: usize| {
                ErrorRow { phase: Phase::ALL[at % 11], code: 450, text: texts[at % 8].clone(), count: number(at), ..ErrorRow::default() }
            };
            record.errors = (0..rows).map(error).collect();
            let threshold = |at: usize| ThresholdRow {
                expression: format!("accepted.p{at}0 < {}ms", number(at)),
                limit: Some(figure(at)),
                value: (!at.is_multiple_of(3)).then(|| figure(at + 1)),
                margin: Some(-figure(at + 2)),
                unit: "ms".to_owned(),
                passed: at.is_multiple_of(2),
                missed: !at.is_multiple_of(2),
                ..ThresholdRow::default()
            };
            record.thresholds = (0..rows).map(threshold).collect();
            record.verdict.outcome = Some(if rows.is_multiple_of(2) { Outcome::Pass } else { Outcome::Fail });
            record.verdict.why = format!("{} of {} failed. {}", number(3), count(number(4)), texts[4]);
            record.verdict.reasons = texts[5..].to_vec();
            record.verdict.causes = vec![Cause::Remark; 3];
            record
        }
    }

    fn numbers(text: &str) -> HashSet<String> {
        let is_part = |character: char| character.is_ascii_digit() || character == ',' || character == '.';
        let numbers = text.split(|character| !is_part(character)).map(|number| number.trim_matches(['.', ',']));
        numbers.filter(|number| !number.is_empty()).map(str::to_owned).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn no_line_is_too_wide_and_no_number_is_split(record in records(), width in 40_usize..=200) {
            let whole = numbers(&full(&record, 4_000, TextStyle::Plain, None));
            let text = full(&record, width, TextStyle::Plain, None);
            for line in text.lines() {
                prop_assert!(display_width(line) <= width, "{width}: {line}");
            }
            let split: Vec<String> = numbers(&text).difference(&whole).cloned().collect();
            prop_assert!(split.is_empty(), "{split:?} in\n{text}");
        }

        #[test]
        fn the_short_report_fits(record in records(), width in 40_usize..=200) {
            let text = short(&record, width, TextStyle::Plain, Some("d/report.md"));
            for line in text.lines() {
                prop_assert!(display_width(line) <= width.min(80), "{width}: {line}");
            }
            prop_assert!(text.lines().count() <= MAX_LINES, "{} lines\n{text}", text.lines().count());
            let verdict = text.lines().rev().take(8).any(|line| line.starts_with("PASS ") || line.starts_with("FAIL "));
            prop_assert!(verdict, "{text}");
            let whole = numbers(&short(&record, 80, TextStyle::Plain, Some("d/report.md")));
            let wider = numbers(&full(&record, 4_000, TextStyle::Plain, None));
            let known = |number: &String| whole.contains(number) || wider.contains(number);
            let split: Vec<String> = numbers(&text).into_iter().filter(|number| !known(number)).collect();
            prop_assert!(split.is_empty(), "{split:?} in\n{text}");
        }
    }
}
