//! The slowest accepted messages, each with the time that it waited and the times of its phases.
use super::plot;
use super::runs::{PagePart, PageRuns};
use super::tables::{self, BarColumn};
use crate::numbers::{self, counted, fixed, latency, octets};
use crate::table::{Align, Cell, Table, right};
use mailrun_journey::record::SlowMessage;
use mailrun_journey::stage::Phase;

/// Largest number of messages on the page.
const MAX_MESSAGES: usize = 50;
/// Largest number of a message's recipients on the page.
const MAX_RECIPIENTS: usize = 3;
/// Share of a message's time that a phase must have to be named.
const NAMED_SHARE: f64 = 0.02;

/// The slowest messages; `None` if the record has none.
pub(super) fn part(runs: PageRuns<'_>) -> Option<PagePart> {
    let messages: Vec<&SlowMessage> = runs.record.slowest.iter().take(MAX_MESSAGES).collect();
    if messages.is_empty() {
        return None;
    }
    let bars = BarColumn { title: "phases", cells: messages.iter().map(|message| bar(message, &messages)).collect() };
    let table = table(&messages);
    let body = format!(
        "{}{}<p class=\"note\">Times in ms, from when the message was created, or at open loop was due. {}</p>",
        legend(),
        tables::table("The slowest messages", &table, None, Some(&bars)),
        counted(messages.len() as u64, "message")
    );
    Some(PagePart { id: "slowest", title: "Slowest messages", body })
}

fn table(messages: &[&SlowMessage]) -> Table {
    let mut table = Table::new([
        ("message", Align::Left),
        right("at s"),
        right("accepted"),
        right("delivered"),
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
            Cell::Millis(message.accepted_ms),
            message.delivered_ms.map_or_else(|| Cell::from("–"), Cell::Millis),
            Cell::Millis(message.waited_ms),
            Cell::from(longest(message)),
            Cell::from(recipients(&message.recipients, message.recipient_count)),
            Cell::Number(message.bytes as f64, octets(message.bytes)),
            Cell::from(message.reply.clone().unwrap_or_default()),
        ]);
    }
    table
}

/// The messages that did not arrive, with the replies by which the server's log has them; `None` if there are none.
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
    let more = match messages.len().saturating_sub(MAX_MESSAGES) {
        0 => String::new(),
        more => format!("<p class=\"note\">{more} more in run.json.</p>"),
    };
    let body = format!("{}{more}", tables::table("Messages that did not arrive", &table, None, None));
    Some(PagePart { id: "missing", title: "Messages that did not arrive", body })
}

/// `waited 1.20 s · reply 812 ms`
fn longest(message: &SlowMessage) -> String {
    let whole = whole(message);
    let mut parts: Vec<(&str, f64)> = parts(message).into_iter().map(|(name, _, ms)| (name, ms)).collect();
    parts.retain(|(_, ms)| *ms >= whole * NAMED_SHARE && *ms > 0.0);
    parts.sort_by(|one, other| other.1.total_cmp(&one.1));
    parts.iter().take(4).map(|(name, ms)| format!("{name} {}", latency(*ms))).collect::<Vec<_>>().join(" · ")
}

fn recipients(named: &[String], count: u32) -> String {
    let shown: Vec<&str> = named.iter().take(MAX_RECIPIENTS).map(String::as_str).collect();
    let count = usize::try_from(count).unwrap_or(usize::MAX).max(shown.len());
    match count.saturating_sub(shown.len()) {
        0 => shown.join(", "),
        more => format!("{} and {} more", shown.join(", "), numbers::count(more as u64)),
    }
}

/// The bar of a message; the slowest takes the whole width.
fn bar(message: &SlowMessage, all: &[&SlowMessage]) -> String {
    let most = all.iter().map(|message| whole(message)).fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    let mut before = 0.0;
    let mut drawn = String::new();
    for (_, colour, ms) in parts(message) {
        if ms / most >= 0.002 {
            drawn.push_str(&plot::bar(before / most, (before + ms) / most, colour));
        }
        before += ms;
    }
    plot::bars(&drawn)
}

/// All time of a message that is known.
fn whole(message: &SlowMessage) -> f64 {
    parts(message).iter().map(|(_, _, ms)| *ms).sum()
}

/// The wait, each phase, and the way to the sink: name, colour and milliseconds.
fn parts(message: &SlowMessage) -> Vec<(&'static str, &'static str, f64)> {
    let real = |ms: f64| if ms.is_finite() { ms.max(0.0) } else { 0.0 };
    let mut parts = vec![("waited", "created", real(message.waited_ms))];
    parts.extend(message.phases.iter().map(|phase| (phase.name.name(), colour(phase.name), real(phase.ms))));
    let delivery = message.delivered_ms.map_or(0.0, |delivered| real(delivered - message.accepted_ms));
    parts.push(("to the sink", "delivered", delivery));
    parts
}

/// The colour of a phase; phases of a kind share one.
fn colour(phase: Phase) -> &'static str {
    match phase {
        Phase::Connect | Phase::Banner | Phase::Ehlo | Phase::Tls | Phase::Auth => "sent",
        Phase::Mail | Phase::Rcpt | Phase::Data => "queued",
        Phase::Body => "teal",
        Phase::Reply | Phase::Quit => "accepted",
    }
}

fn legend() -> String {
    let kinds = [
        ("created", "waited for a session"),
        ("sent", "connect to auth"),
        ("queued", "mail, rcpt, data"),
        ("teal", "body"),
        ("accepted", "reply"),
        ("delivered", "250 to sink"),
    ];
    let row = |(colour, name): (&str, &str)| {
        format!(
            "<li><svg width=\"14\" height=\"10\" aria-hidden=\"true\"><rect class=\"f {colour}\" width=\"14\" height=\"10\"/>\
             </svg> {name}</li>"
        )
    };
    format!("<ul class=\"legend\">{}</ul>", kinds.into_iter().map(row).collect::<String>())
}
