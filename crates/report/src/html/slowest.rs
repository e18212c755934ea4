//! Shows the messages that did not arrive, and the slowest messages with the times that they spent waiting and in each
//! phase. Ten of each are visible, and the others are collapsed.
use super::escape::{escaped, isolated};
use super::plot;
use super::tables::{self, BarColumn, PagePart, PageRuns};
use crate::short::kept;
use mailrun_measurement::account::is_open_loop;
use mailrun_measurement::record::{Record, SlowMessage};
use mailrun_measurement::stage::Phase;
use mailrun_text::numbers::{self, fixed, latency, octets};
use mailrun_text::table::{Align, Cell, Table, right};

/// The page shows this many messages at first. The others are collapsed until the reader unfolds them.
pub(super) const SHOWN_MESSAGES: usize = 10;
const MAX_MESSAGES: usize = 50;
const MAX_RECIPIENTS: usize = 3;
const MAX_PHASES: usize = 2;
/// The table names a part of a message's time, such as a phase, only if it took at least this share of the whole time.
const NAMED_SHARE: f64 = 0.02;
/// A bar leaves out a phase that took less than this share of the slowest message's time, because it would be too
/// narrow to see.
const DRAWN_SHARE: f64 = 0.002;

/// Returns the slowest messages, sorted by the time until delivery or, if the delivery is unknown, until acceptance.
/// Returns `None` if the record lists no slow messages.
pub(super) fn part(runs: PageRuns<'_>) -> Option<PagePart> {
    let record = runs.record;
    let mut messages: Vec<&SlowMessage> = record.slowest.iter().collect();
    messages.sort_by(|one, other| other.latency_ms().total_cmp(&one.latency_ms()));
    messages.truncate(MAX_MESSAGES);
    if messages.is_empty() {
        return None;
    }
    let since = if is_open_loop(record) { "was due" } else { "was created" };
    let bars = messages.iter().map(|message| bar(message, &messages, record)).collect();
    let note = format!("Times in ms from when the message {since}.");
    let body = worst("The slowest messages", table(&messages, record), bars, &note) + &legend(&messages, record);
    Some(PagePart { id: "slowest", title: "Slowest messages", body })
}

/// Shows the first rows of a table and collapses the other rows. If the recipients, the size or the reply is the same
/// in all rows, removes this column and states the value in the note below the table.
fn worst(caption: &str, mut table: Table, mut bars: Vec<String>, note: &str) -> String {
    let mut common = Vec::new();
    for title in ["recipients", "size", "reply"] {
        let text = table.take_constant(title).filter(|text| !text.is_empty());
        common.extend(text.map(|text| format!("{title} {}", isolated(&text))));
    }
    let common = if common.is_empty() { String::new() } else { format!(" The same for all: {}.", common.join(", ")) };
    let note = format!("<p class=\"note\">{}{common}</p>", escaped(note));
    let other_bars = bars.split_off(bars.len().min(SHOWN_MESSAGES));
    let more = other_bars.len();
    let (shown, others) = table.split(SHOWN_MESSAGES);
    let drawn = |table: &Table, cells: Vec<String>| {
        let bars = cells.iter().any(|cell| !cell.is_empty()).then_some(BarColumn { title: "phases", cells });
        tables::table(caption, table, None, bars.as_ref())
    };
    let more =
        if more == 0 { String::new() } else { tables::folded(&format!("{more} more"), &drawn(&others, other_bars)) };
    drawn(&shown, bars) + &note + &more
}

fn table(messages: &[&SlowMessage], record: &Record) -> Table {
    let mut table = Table::new([
        ("message", Align::Left),
        right("at s"),
        right("delivered"),
        right("accepted"),
        right("waited"),
        ("longest phases", Align::Wrapped),
        ("recipients", Align::Wrapped),
        right("size"),
        ("reply", Align::Wrapped),
    ])
    .hide_zero(&["waited", "delivered", "reply"]);
    for message in messages {
        table.row(vec![
            Cell::Count(message.message),
            Cell::Number(message.created_s, fixed(message.created_s, 2)),
            message.delivered_ms.map_or_else(|| Cell::from("–"), Cell::Millis),
            message.accepted_ms.map_or_else(|| Cell::from("–"), Cell::Millis),
            Cell::Millis(message.waited_ms),
            Cell::from(longest(message, record)),
            Cell::from(recipients(&message.recipients, message.recipient_count)),
            Cell::Number(message.bytes as f64, octets(message.bytes)),
            Cell::from(message.reply.clone().unwrap_or_default()),
        ]);
    }
    table
}

/// Returns a table of the messages that did not arrive, or `None` if all arrived. Each row shows the server's reply, so
/// that the reader can find the message in the server's log.
pub(super) fn missing(runs: PageRuns<'_>) -> Option<PagePart> {
    let messages = &runs.record.missing;
    if messages.is_empty() {
        return None;
    }
    let columns = [
        ("message", Align::Left),
        ("what", Align::Left),
        right("at s"),
        ("recipients", Align::Wrapped),
        ("the server's reply", Align::Wrapped),
    ];
    let mut table = Table::new(columns).hide_zero(&["at s", "recipients"]);
    for message in messages.iter().take(MAX_MESSAGES) {
        table.row(vec![
            Cell::Count(message.message),
            Cell::from(message.fate.name()),
            message.created_s.map_or_else(|| Cell::from(""), |at| Cell::Number(at, fixed(at, 2))),
            Cell::from(recipients(&message.recipients, message.recipient_count)),
            Cell::from(message.reply.as_deref().unwrap_or("–").to_owned()),
        ]);
    }
    let note = match messages.len().saturating_sub(MAX_MESSAGES) {
        0 => String::new(),
        more => format!("{more} more in run.json."),
    };
    let note = kept(runs.record).map_or_else(|| note.clone(), |kept| format!("{note} {kept}.").trim_start().to_owned());
    let no_bars = vec![String::new(); messages.len().min(MAX_MESSAGES)];
    let body = worst("Messages that did not arrive", table, no_bars, &note);
    Some(PagePart { id: "missing", title: "Messages that did not arrive", body })
}

/// Names the longest parts of a message's time, such as `waited 1.20 s · reply 812 ms`.
fn longest(message: &SlowMessage, record: &Record) -> String {
    let mut parts = parts(message, record);
    let whole = whole(&parts);
    parts.retain(|(_, _, ms)| *ms >= whole * NAMED_SHARE && *ms > 0.0);
    parts.sort_by(|one, other| other.2.total_cmp(&one.2));
    let named = parts.iter().take(MAX_PHASES).map(|(name, _, ms)| format!("{name} {}", latency(*ms)));
    named.collect::<Vec<_>>().join(" · ")
}

fn recipients(names: &[String], count: u32) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_RECIPIENTS).map(String::as_str).collect();
    let count = usize::try_from(count).unwrap_or(usize::MAX).max(shown.len());
    match count.saturating_sub(shown.len()) {
        0 => shown.join(", "),
        _ if shown.is_empty() => String::new(),
        more => format!("{} and {} more", shown.join(", "), numbers::count(more as u64)),
    }
}

/// A part of a message's time: its name, its colour, and its length in milliseconds.
type TimePart = (&'static str, &'static str, f64);

/// Draws the bar of a message. The scale is chosen so that the bar of the slowest message takes the whole width.
fn bar(message: &SlowMessage, all: &[&SlowMessage], record: &Record) -> String {
    let longest = longest_whole(all, record);
    let mut before = 0.0;
    let mut drawn = String::new();
    for (_, colour, ms) in parts(message, record) {
        if ms / longest >= DRAWN_SHARE {
            drawn.push_str(&plot::bar(before / longest, (before + ms) / longest, colour));
        }
        before += ms;
    }
    plot::bars(&drawn)
}

fn longest_whole(all: &[&SlowMessage], record: &Record) -> f64 {
    let longest = all.iter().map(|message| whole(&parts(message, record))).fold(0.0, f64::max);
    if longest > 0.0 { longest } else { 1.0 }
}

fn whole(parts: &[TimePart]) -> f64 {
    parts.iter().map(|(_, _, ms)| *ms).sum()
}

/// Returns the parts of a message's time in sequence: the wait, each phase, and the way to the sink.
fn parts(message: &SlowMessage, record: &Record) -> Vec<TimePart> {
    let real = |ms: f64| if ms.is_finite() { ms.max(0.0) } else { 0.0 };
    let is_mades = record.mades.is_some();
    let name = |phase: Phase| match phase {
        Phase::Body if is_mades => "sent",
        Phase::Reply if is_mades => "settled",
        phase => phase.name(),
    };
    let mut parts = vec![("waited", "created", real(message.waited_ms))];
    parts.extend(message.phases.iter().map(|phase| (name(phase.name), colour(phase.name), real(phase.ms))));
    let accepted_ms = message.accepted_ms.unwrap_or_default();
    if message.phases.is_empty() {
        parts.push((if is_mades { "settled" } else { "to the 250" }, "accepted", real(accepted_ms)));
    }
    let delivery = message.delivered_ms.map_or(0.0, |delivered| real(delivered - accepted_ms));
    parts.push((if is_mades { "to the inbox" } else { "to the sink" }, "delivered", delivery));
    parts
}

/// Returns the colour of a phase, which is the same for phases that belong together, such as connecting and TLS.
fn colour(phase: Phase) -> &'static str {
    match phase {
        Phase::Connect | Phase::Banner | Phase::Ehlo | Phase::Tls | Phase::Auth => "sent",
        Phase::Mail | Phase::Rcpt | Phase::Data => "queued",
        Phase::Body => "teal",
        Phase::Reply | Phase::Quit => "accepted",
    }
}

fn legend(messages: &[&SlowMessage], record: &Record) -> String {
    let names = if record.mades.is_some() {
        ["", "", "sent", "settled", "to the inbox"]
    } else {
        ["connect to auth", "mail, rcpt, data", "body", "reply", "to the sink"]
    };
    let [connect, envelope, body, reply, end] = names;
    let kinds = [
        ("created", "waited for a session"),
        ("sent", connect),
        ("queued", envelope),
        ("teal", body),
        ("accepted", reply),
        ("delivered", end),
    ];
    let longest = longest_whole(messages, record);
    let drawn: Vec<&str> = messages
        .iter()
        .flat_map(|message| parts(message, record))
        .filter(|(_, _, ms)| ms / longest >= DRAWN_SHARE)
        .map(|(_, colour, _)| colour)
        .collect();
    let row = |(colour, name): (&str, &str)| {
        format!(
            "<li><svg width=\"14\" height=\"10\" aria-hidden=\"true\"><rect class=\"f {colour}\" width=\"14\" height=\"10\"/>\
             </svg> {name}</li>"
        )
    };
    let rows: String = kinds.into_iter().filter(|(colour, _)| drawn.contains(colour)).map(row).collect();
    format!("<ul class=\"legend\">{rows}</ul>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_runs;
    use mailrun_measurement::record::MissingMessage;

    fn page_part(record: &Record, part: fn(PageRuns<'_>) -> Option<PagePart>) -> String {
        part(PageRuns { record, baseline: None }).expect("the record has such messages").body
    }

    #[test]
    fn ten_are_shown_by_delivery_and_the_others_are_folded() {
        let mut record = sample_runs::failed();
        record.slowest.truncate(14);
        for (at, message) in record.slowest.iter_mut().enumerate() {
            message.message = 100 + at as u64;
            message.delivered_ms = Some(at as f64);
        }
        let body = page_part(&record, part);
        let (shown, folded) = body.split_once("<details>").expect("four are folded");
        assert!(shown.find(">113<") < shown.find(">112<") && shown.contains(">104<"), "{shown}");
        assert!(!shown.contains(">103<") && folded.contains("4 more") && folded.contains(">103<"), "{folded}");
    }

    #[test]
    fn a_list_of_missing_messages_that_was_cut_says_so() {
        let mut record = sample_runs::failed();
        let one = record.missing[0].clone();
        record.ledger.rejected = Some(38);
        (record.ledger.lost, record.ledger.not_delivered, record.ledger.failed) = (Some(0), Some(0), Some(0));
        record.missing = vec![MissingMessage { recipient_count: 1, ..one.clone() }; 14];
        assert!(page_part(&record, missing).contains("<p class=\"note\">14 of 38 are kept."));
        record.missing = vec![MissingMessage { recipient_count: 1, ..one }; 38];
        assert!(!page_part(&record, missing).contains("are kept"));
    }

    #[test]
    fn what_all_messages_have_in_common_is_no_column() {
        let mut record = sample_runs::failed();
        record.slowest.iter_mut().for_each(|message| message.recipients = vec!["a@b.example".to_owned()]);
        let body = page_part(&record, part);
        assert_eq!(body.matches("a@b.example").count(), 1, "{body}");
        assert!(!body.contains(">recipients</th>") && body.contains("queued as"), "{body}");
    }

    #[test]
    fn a_run_over_mades_has_no_words_of_smtp() {
        let mut record = sample_runs::mades();
        record.slowest = sample_runs::failed().slowest.into_iter().take(1).collect();
        record.slowest[0].waited_ms = 0.0;
        let body = page_part(&record, part);
        assert!(body.contains("to the inbox") && !body.contains("rcpt") && !body.contains("to the sink"), "{body}");
    }
}
