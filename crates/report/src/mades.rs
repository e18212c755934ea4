//! Reports a run over MADES (the Business Application API): its stages, the times between the stages, and the errors
//! with the codes of the endpoint.
use super::fates::when;
use super::figures::{Section, SectionBody};
use super::stages::time_cell;
use super::workload::{arrival, security, sizes};
use mailrun_measurement::record::{
    AcknowledgementSender, Arrival, Mades, MadesAcknowledgements, MadesHop, MadesWindow, Record,
};
use mailrun_text::numbers::{count, counted, figure, latency, seconds};
use mailrun_text::table::{Align, Cell, Table, plain, right};

const WATERFALL_WIDTH: usize = 20;

pub(crate) fn offered(record: &Record, mades: &Mades) -> Option<Section> {
    let workload = &record.workload;
    let how_many = match (workload.messages, workload.duration_limit_s) {
        (Some(number), Some(limit)) => format!("{} for at most {}", counted(number, "message"), seconds(limit)),
        (Some(number), None) => counted(number, "message"),
        (None, Some(limit)) => format!("messages for {}", seconds(limit)),
        (None, None) => "messages until stopped".to_owned(),
    };
    let durable = if mades.durable { "durable" } else { "not durable" };
    let brokers = match (plain(&mades.outbox_url), plain(&mades.inbox_url)) {
        (one, other) if one == other => format!("{one}, {}", security(workload)),
        (outbox, inbox) => format!("outbox at {outbox}, inbox at {inbox}, {}", security(workload)),
    };
    let queue =
        |queue: &mailrun_measurement::record::MadesQueue| format!("{} {}", plain(&queue.role), plain(&queue.name));
    let mut facts = vec![
        ("mode", mode(&mades.mode)),
        ("load", format!("{how_many}, {} each, {durable}", sizes(workload))),
        ("payload", plain(&mades.payload)),
        ("addressed", format!("to {}, type {}", plain(&mades.receiver), plain(&mades.message_type))),
        ("arrival", arrival_of(record)),
        ("in transit", in_transit(mades)),
        ("broker", [Some(brokers), products(mades)].into_iter().flatten().collect::<Vec<_>>().join("; ")),
        ("queues", mades.queues.iter().map(queue).collect::<Vec<_>>().join(" · ")),
    ];
    facts.extend(mades.acknowledgements.as_ref().map(|back| ("acknowledged", acknowledged(back))));
    Some(Section { title: "Workload", note: None, body: SectionBody::Facts(facts) })
}

/// Tells who sent the acknowledgements and how many were unusual, for example `by a document of ecp-endpoint; 2
/// rejecting, 1 for unknown documents`. If the bench itself acknowledged the messages, says how it sent the
/// acknowledgements: `by a document to mailrun-endpoint-a, type TEST-MESSAGE, through ecp.endpoint.outbox; 300 sent`.
fn acknowledged(back: &MadesAcknowledgements) -> String {
    let mut text = match back.sender {
        AcknowledgementSender::Bench => format!(
            "by a document to {}, type {}, through {}; {} sent",
            plain(&back.receiver),
            plain(&back.message_type),
            plain(&back.outbox),
            count(back.sent)
        ),
        AcknowledgementSender::Receiver => format!("by a document of {}", plain(&back.receiver)),
    };
    let odd = [(back.rejecting, "rejecting"), (back.unknown, "for unknown documents"), (back.unreadable, "unreadable")];
    let odd = odd.into_iter().filter(|(number, _)| *number > 0);
    let odd: Vec<String> = odd.map(|(number, what)| format!("{} {what}", count(number))).collect();
    if !odd.is_empty() {
        text.push_str(&format!("; {}", odd.join(", ")));
    }
    text
}

/// Returns the product and version of the brokers, for example `apache-activemq-artemis 2.40.0`. If the brokers differ,
/// names each product.
fn products(mades: &Mades) -> Option<String> {
    let mut products: Vec<String> = Vec::new();
    for broker in mades.brokers.iter().filter(|broker| !broker.product.is_empty()) {
        let product = format!("{} {}", plain(&broker.product), plain(&broker.version)).trim_end().to_owned();
        if !products.contains(&product) {
            products.push(product);
        }
    }
    (!products.is_empty()).then(|| products.join(" and "))
}

fn mode(mode: &str) -> String {
    let what = match mode {
        "endpoint" => "an ECP endpoint: reply, inbox and events",
        "toolbox" => "an EDX toolbox: inbox, and the final status as reply",
        "amqp" => "the broker alone: into a queue and out of it",
        "tracing" => "an ECP endpoint's connectivity test: reply and one event",
        _ => "",
    };
    format!("{}, {what}", plain(mode))
}

fn arrival_of(record: &Record) -> String {
    match record.workload.arrival {
        Arrival::Closed => "closed loop: a new message is sent when another is done or given up".to_owned(),
        Arrival::Constant | Arrival::Poisson => arrival(&record.workload),
        Arrival::Market => market(record),
    }
}

/// Describes the times at which messages were due, for example `open loop, at the times of a market: quarter-hour,
/// every 10s; times in Europe/Oslo; 60 times as fast`.
fn market(record: &Record) -> String {
    let Some(market) = record.mades.as_ref().and_then(|mades| mades.market.as_ref()) else {
        return arrival(&record.workload);
    };
    let shapes = market.shapes.iter().map(|shape| plain(&shape.name)).collect::<Vec<_>>().join(", ");
    let speed = match market.acceleration {
        0 | 1 => String::new(),
        times => format!("; {} times as fast", count(times.into())),
    };
    format!("{}: {shapes}; times in {}{speed}", arrival(&record.workload), plain(&market.time_zone))
}

fn in_transit(mades: &Mades) -> String {
    format!(
        "at most {}, {} on average · at most {} not settled · given up after {}",
        count(mades.max_in_transit),
        figure(mades.in_transit_mean),
        count(mades.window),
        seconds(mades.timeout_s)
    )
}

pub(crate) fn shapes(mades: &Mades) -> Option<Section> {
    let mut table = Table::new([
        ("shape", Align::Wrapped),
        ("type", Align::Left),
        right("created"),
        right("done"),
        right("p50 ms"),
        right("p99 ms"),
        right("max ms"),
    ])
    .leave_out(&["type", "created"]);
    for shape in &mades.market.as_ref()?.shapes {
        let (Some(first), Some(last)) = (shape.stages.first(), shape.stages.last()) else { continue };
        let times = last.latency_ms.unwrap_or_default();
        let mut cells = vec![Cell::from(plain(&shape.name)), Cell::from(plain(&shape.message_type))];
        cells.extend([first.count, last.count].map(Cell::Count));
        cells.extend([times.p50, times.p99, times.max].map(|ms| time_cell(ms, last.beyond_ms)));
        table.row(cells);
    }
    Section::figures("Shapes", Some("from due to the last stage".to_owned()), table)
}

const MAX_WINDOWS: usize = 48;

/// Returns a table with one row for each quarter-hour and load shape. A load shape is a pattern of due times, such as
/// `every 10s`. If there are too many rows, the table shows the rows with the most incomplete or late messages.
pub(crate) fn windows(mades: &Mades) -> Option<Section> {
    let windows = &mades.market.as_ref()?.windows;
    let mut table = Table::new([
        ("quarter-hour", Align::Left),
        right("from s"),
        ("shape", Align::Wrapped),
        right("due"),
        right("not sent"),
        right("arrived"),
        right("done"),
        right("late"),
        right("slowest ms"),
    ])
    .leave_out(&["from s", "arrived", "late", "not sent"])
    .hide_zero(&["not sent", "late"]);
    let mut shown_windows: Vec<&MadesWindow> = windows.iter().collect();
    // Show only the quarter-hours with the most unfinished or late messages, because a long run has too many
    // quarter-hours for a table.
    let unmet = |window: &MadesWindow| window.due + window.late - window.completed.min(window.due);
    shown_windows.sort_by(|one, other| unmet(other).cmp(&unmet(one)).then(other.slowest_ms.total_cmp(&one.slowest_ms)));
    shown_windows.truncate(MAX_WINDOWS);
    shown_windows.sort_by(|one, other| one.from_s.total_cmp(&other.from_s));
    for window in &shown_windows {
        table.row(vec![
            Cell::from(plain(&window.begin)),
            Cell::Figure(window.from_s),
            Cell::from(plain(&window.shape)),
            Cell::Count(window.due),
            Cell::Count(window.due.saturating_sub(window.created)),
            Cell::Count(window.arrived),
            Cell::Count(window.completed),
            Cell::Count(window.late),
            Cell::Figure(window.slowest_ms),
        ]);
    }
    let text = "messages by the quarter-hour in which they were due; done is at the last stage";
    let left_out = windows.len() - shown_windows.len();
    let note = if left_out > 0 {
        format!("{text}; the worst, without {}", counted(left_out as u64, "other"))
    } else {
        text.to_owned()
    };
    Section::figures("Windows", Some(note), table)
}

pub(crate) fn waterfall(mades: &Mades) -> Option<Section> {
    let mut table = Table::new([
        ("step", Align::Left),
        ("time", Align::Left),
        right("share"),
        right("mean"),
        right("p50"),
        right("p99"),
        right("max"),
        right("overtaken"),
    ])
    .leave_out(&["overtaken", "max", "p50", "time", "share", "mean"])
    .hide_zero(&["overtaken"]);
    let mean = |hop: &MadesHop| hop.latency_ms.map_or(0.0, |times| times.mean);
    let whole: f64 = mades.hops.iter().map(mean).sum();
    let mut before = 0.0;
    for hop in &mades.hops {
        let share = if whole > 0.0 { mean(hop) / whole } else { 0.0 };
        let step = format!("{} → {}", plain(&hop.from), plain(&hop.to));
        let mut cells = [step, bar(before, share)].map(Cell::from).to_vec();
        cells.push(Cell::Number(share * 100.0, format!("{:.1} %", share * 100.0)));
        before += share;
        let figures = hop.latency_ms.map(|times| [times.mean, times.p50, times.p99, times.max].map(Cell::Millis));
        cells.extend(figures.map_or_else(|| vec![Cell::from(""); 4], |figures| figures.to_vec()));
        cells.push(Cell::Count(hop.overtaken));
        table.row(cells);
    }
    let is_overtaken = mades.hops.iter().any(|hop| hop.overtaken > 0);
    let overtaken =
        if is_overtaken { "; overtaken: the end was seen before the beginning, which counts as 0" } else { "" };
    let note = Some(format!(
        "in ms, of messages that were timed at both ends; the means sum to {}{overtaken}",
        latency(whole)
    ));
    Section::figures("Waterfall", note, table)
}

/// Draws the bar of a step, such as `·····████··············`. The bar begins where the previous step ends, and has at
/// least one `█` if the step took any time.
fn bar(before: f64, share: f64) -> String {
    let columns = |share: f64| ((share.clamp(0.0, 1.0) * WATERFALL_WIDTH as f64).round() as usize).min(WATERFALL_WIDTH);
    let begins = columns(before).min(WATERFALL_WIDTH - 1);
    let ends = columns(before + share).max(begins + usize::from(share > 0.0));
    (0..WATERFALL_WIDTH).map(|at| if (begins..ends).contains(&at) { '█' } else { '·' }).collect()
}

pub(crate) fn troubles(record: &Record, mades: &Mades) -> Option<Section> {
    let mut table =
        Table::new([("what", Align::Left), ("code", Align::Left), right("count"), ("first text", Align::Wrapped)]);
    for row in &mades.troubles {
        let names = [&row.kind, &row.code].map(|text| Cell::from(plain(text)));
        table.row(names.into_iter().chain([Cell::Count(row.count), Cell::from(plain(&row.text))]).collect());
    }
    Section::figures("Errors", when(record), table)
}

/// Compares the simulator's message counts with the bench's counts. The simulator handled the messages itself, so its
/// counts are the true ones.
pub(crate) fn truth_counts(mades: &Mades) -> Option<Section> {
    let truth = mades.truth.as_ref()?;
    let mut table = Table::new([("messages", Align::Left), right("stand-in"), right("bench"), right("difference")]);
    for row in &truth.counts {
        let difference = i128::from(row.seen) - i128::from(row.done);
        let difference = if difference == 0 { "0".to_owned() } else { format!("{difference:+}") };
        table.row(vec![
            Cell::from(plain(&row.name)),
            Cell::Count(row.done),
            Cell::Count(row.seen),
            Cell::from(difference),
        ]);
    }
    let note = Some("what the stand-in reports, and what the bench saw of it".to_owned());
    Section::figures("Truth", note, table)
}

/// Compares the latencies that the simulator measured with the latencies that the bench measured.
pub(crate) fn truth_times(mades: &Mades) -> Option<Section> {
    let truth = mades.truth.as_ref()?;
    let mut table = Table::new([
        ("stage", Align::Left),
        right("stand-in p50"),
        right("p99"),
        right("max"),
        right("bench p50"),
        right("p99"),
        right("max"),
        right("between p50"),
        right("between p99"),
    ])
    .leave_out(&["between p99", "max", "p99", "between p50"]);
    for row in &truth.times {
        let (Some(done), Some(seen)) = (row.done_ms, row.seen_ms) else { continue };
        let between = [seen.p50 - done.p50, seen.p99 - done.p99];
        let figures = [done.p50, done.p99, done.max, seen.p50, seen.p99, seen.max].into_iter().chain(between);
        table.row(std::iter::once(Cell::from(plain(&row.stage))).chain(figures.map(Cell::Millis)).collect());
    }
    let note = "in ms: by the stand-in since it took the message out of the outbox, by the bench since it was created or \
                due; between: the way to and from the queues";
    let note = Some(note.to_owned());
    Section::figures("True times", note, table)
}

pub(crate) fn outages(mades: &Mades) -> Option<Section> {
    let mut table =
        Table::new([("connection", Align::Left), right("lost after"), right("for"), ("reason", Align::Wrapped)]);
    for row in &mades.outages {
        let lasted = if row.to_the_end { "to the end".to_owned() } else { seconds(row.lasted_s) };
        table.row(vec![plain(&row.side), seconds(row.began_s), lasted, plain(&row.why)]);
    }
    let note = Some("for: from the loss until all links were up again".to_owned());
    Section::figures("Outages", note, table)
}

#[cfg(test)]
mod tests {
    use super::super::{markdown, sample, terminal};
    use super::*;
    use mailrun_measurement::record::{LatencyMs, MadesCount, MadesTimes, MadesTruth};
    use mailrun_text::wrap::display_width;

    #[test]
    fn of_many_windows_the_worst_are_shown_in_the_order_of_time() {
        let window = |number: u32| mailrun_measurement::record::MadesWindow {
            begin: format!("window {number}"),
            from_s: f64::from(number),
            due: 3,
            created: 3,
            completed: if number == 90 { 2 } else { 3 },
            slowest_ms: if number == 7 { 50.0 } else { 1.0 },
            ..Default::default()
        };
        let market =
            mailrun_measurement::record::MadesMarket { windows: (0..100).map(window).collect(), ..Default::default() };
        let section = super::windows(&Mades { market: Some(market), ..Mades::default() }).unwrap();
        assert!(section.note.as_deref().unwrap_or_default().ends_with("; the worst, without 52 others"));
        let text = format!("{section:?}");
        assert!(text.find("window 7\"") < text.find("window 90\"") && text.contains("window 90\""), "{text}");
        assert!(super::windows(&Mades::default()).is_none());
    }

    #[test]
    fn each_stage_and_each_step_has_its_row() {
        let text = terminal(&sample::mades(), 100);
        for word in ["STAGES", "WATERFALL", "replied → inbox", "RECEIVED", "missing", "overtaken", "ECP-1034"] {
            assert!(text.contains(word), "{word} in\n{text}");
        }
        assert!(text.contains("(created to RECEIVED)"), "{text}");
        assert!(!text.contains("PHASES") && !text.contains("recipient"), "words of mail\n{text}");
        let markdown = markdown(&sample::mades());
        assert!(markdown.contains("## Waterfall") && markdown.contains("| replied → inbox"), "{markdown}");
    }

    #[test]
    fn what_nobody_received_has_no_rate() {
        let mut record = sample::mades();
        assert!(super::super::terminal(&record, 100).contains(" msg/s · "));
        record.ledger.delivered = Some(0);
        assert_eq!(super::super::headline::figures(&record), mailrun_text::numbers::seconds(record.duration_s));
        assert_eq!(super::super::headline::rate_and_p99(&record), None);
    }

    #[test]
    fn truth_stands_beside_what_was_seen() {
        let mut record = sample::mades();
        let times = |p50: f64| Some(LatencyMs { p50, p99: p50 * 2.0, max: p50 * 3.0, ..LatencyMs::default() });
        if let Some(mades) = &mut record.mades {
            mades.truth = Some(MadesTruth {
                counts: vec![MadesCount { name: "lost".to_owned(), done: 17, seen: 15 }],
                times: vec![MadesTimes { stage: "inbox".to_owned(), done_ms: times(20.0), seen_ms: times(20.5) }],
            });
        }
        let text = terminal(&record, 100);
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        let row = |name: &str, after: &str| {
            let from = text.find(after).unwrap_or_else(|| panic!("{after} in\n{text}"));
            let line = text[from..].lines().find(|line| line.trim_start().starts_with(name));
            line.unwrap_or_default().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("lost", "TRUTH"), ["lost", "17", "15", "-2"]);
        let expected = ["inbox", "20.000", "40.000", "60.000", "20.500", "41.000", "61.500", "0.500", "1.000"];
        assert_eq!(row("inbox", "TRUE TIMES"), expected);
        assert!(!terminal(&sample::mades(), 100).contains("TRUTH"), "nobody told it");
    }

    #[test]
    fn a_waterfall_falls() {
        assert_eq!(bar(0.0, 0.5), format!("{}{}", "█".repeat(10), "·".repeat(10)));
        assert_eq!(bar(0.5, 0.25), format!("{}{}{}", "·".repeat(10), "█".repeat(5), "·".repeat(5)));
        assert_eq!(bar(1.0, 0.001), format!("{}█", "·".repeat(19)), "what is short is seen still");
        assert_eq!(bar(0.3, 0.0), "·".repeat(20));
        assert_eq!(bar(f64::NAN, f64::NAN).chars().count(), 20);
    }

    #[test]
    fn a_hostile_endpoint_moves_no_cursor() {
        let mut record = sample::mades();
        if let Some(mades) = &mut record.mades {
            mades.troubles[0].text = "\u{1b}[2J".to_owned();
            mades.troubles[0].code = "\u{7}".to_owned();
            mades.outages[0].why = "\u{1b}[31m".to_owned();
        }
        assert!(!terminal(&record, 100).contains(['\u{1b}', '\u{7}']));
    }

    #[test]
    fn no_line_is_wider_than_asked() {
        for width in 40..=200 {
            let text = terminal(&sample::mades(), width);
            for line in text.lines() {
                assert!(display_width(line) <= width, "{width}: {line}\n{text}");
            }
        }
    }
}
