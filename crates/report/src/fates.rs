//! Tables of the errors, of the thresholds, and of what became of the messages. Messages are counted in units: a unit
//! is one message to one recipient, so a message to two recipients is two units.
use super::figures::{Section, SectionBody, errors_once};
use super::seconds::seconds_of_errors;
use mailrun_measurement::record::{ErrorRow, LedgerRow, MadesTrouble, Record, ThresholdRow};
use mailrun_measurement::threshold;
use mailrun_text::numbers::{count, share};
use mailrun_text::table::{Align, Cell, Table, plain, right};

/// Returns the ledger, a table of how many messages were delivered, lost and so on, with other counts such as
/// duplicates.
pub(crate) fn ledger(record: &Record) -> Option<Section> {
    let ledger = &record.ledger;
    let mut table = Table::new([("fate", Align::Left), right("units"), right("share")]).leave_out(&["share"]);
    let created = ledger.created;
    let share_of = |number: u64| match created {
        Some(whole) if whole > 0 => Cell::Number(number as f64 / whole as f64 * 100.0, share(number, whole)),
        Some(whole) => Cell::from(share(number, whole)),
        None => Cell::from(""),
    };
    let fates = fates(record);
    let last = fates.len();
    if let Some(created) = created {
        table.row(vec![Cell::from("created"), Cell::Count(created), Cell::from("")]);
    }
    for (place, (name, number)) in fates.into_iter().enumerate() {
        let branch = if created.is_none() {
            ""
        } else if place + 1 == last {
            "└ "
        } else {
            "├ "
        };
        table.row(vec![Cell::from(format!("{branch}{name}")), Cell::Count(number), share_of(number)]);
    }
    for (name, number) in beside(record) {
        table.row(vec![Cell::from(format!("+ {name}")), Cell::Count(number), Cell::from("")]);
    }
    let unit = if record.mades.is_some() { "message" } else { "message for a recipient" };
    (!table.is_empty()).then(|| Section {
        title: "Ledger",
        note: Some(sum(ledger, unit)),
        body: SectionBody::Figures(table),
    })
}

/// Returns all counts of the ledger under the names that they have in `run.json`: `created`, `accepted`, each fate such
/// as `delivered` or `lost`, and other counts such as `duplicates`.
pub(crate) fn units(record: &Record) -> Vec<(&'static str, Option<u64>)> {
    let ledger = &record.ledger;
    let first = [("created", ledger.created), ("accepted", ledger.accepted)];
    [first.as_slice(), &units_by_fate(ledger), &units_beside(ledger)].concat()
}

fn units_by_fate(ledger: &LedgerRow) -> [(&'static str, Option<u64>); 10] {
    [
        ("delivered", ledger.delivered),
        ("bounced", ledger.bounced),
        ("rejected", ledger.rejected),
        ("failed", ledger.failed),
        ("in_doubt", ledger.in_doubt),
        ("expired", ledger.expired),
        ("queued", ledger.queued),
        ("lost", ledger.lost),
        ("not_delivered", ledger.not_delivered),
        ("in_flight", ledger.in_flight),
    ]
}

fn units_beside(ledger: &LedgerRow) -> [(&'static str, Option<u64>); 11] {
    [
        ("duplicates", ledger.duplicates),
        ("rewritten", ledger.rewritten),
        ("copied", ledger.copied),
        ("corrupt", ledger.corrupt),
        ("converted", ledger.converted),
        ("foreign", ledger.foreign),
        ("delay_notices", ledger.delay_notices),
        ("repeated_notices", ledger.repeated_notices),
        ("untimed", ledger.untimed),
        ("negative", ledger.negative),
        ("overflow", ledger.overflow),
    ]
}

pub(crate) fn fates(record: &Record) -> Vec<(&'static str, u64)> {
    // If deliveries were not observed, nothing is known about an accepted message, so do not call it "in flight".
    let on_the_way = if record.ledger.delivered.is_none() { "accepted" } else { "in flight" };
    some(&units_by_fate(&record.ledger), |name| match name {
        "in_flight" => on_the_way,
        "not_delivered" => "not delivered",
        "in_doubt" => "in doubt",
        name => name,
    })
}

/// Returns the counts of the ledger that do not say what became of a message, such as the number of duplicates. Leaves
/// out counts of zero.
fn beside(record: &Record) -> Vec<(&'static str, u64)> {
    some(&units_beside(&record.ledger), |name| match name {
        "overflow" => "not recorded",
        "delay_notices" => "delay notices",
        "repeated_notices" => "repeated notices",
        "negative" => "with a negative time",
        name => name,
    })
}

/// Returns the rows with a count above zero. `shown` turns a name such as `not_delivered` into readable words.
fn some(
    rows: &[(&'static str, Option<u64>)],
    shown: impl Fn(&'static str) -> &'static str,
) -> Vec<(&'static str, u64)> {
    let occurred = rows.iter().filter_map(|(name, number)| Some((*name, number.filter(|number| *number > 0)?)));
    occurred.map(|(name, number)| (shown(name), number)).collect()
}

/// Returns a line such as `created 15,145 · delivered 14,154 · failed 991`. Returns `None` if all messages have the
/// same fate and nothing else was counted, because the line would then say nothing new.
pub(crate) fn ledger_in_short(record: &Record) -> Option<String> {
    let fates = fates(record);
    let beside = beside(record);
    if fates.len() < 2 && beside.is_empty() {
        return None;
    }
    let created = record.ledger.created.map(|created| ("created", created));
    let rows = created.into_iter().chain(fates).chain(beside);
    Some(rows.map(|(name, number)| format!("{name} {}", count(number))).collect::<Vec<_>>().join(" · "))
}

const MAX_REWRITES: usize = 20;

/// Returns the table of recipients that the server rewrote or added: mail arrived at these addresses, although the
/// source had not sent mail to them. Returns `None` if there are no such addresses.
pub(crate) fn rewrites(record: &Record) -> Option<Section> {
    let mut table = Table::new([("recipient", Align::Wrapped), ("arrived for", Align::Wrapped), right("arrivals")]);
    for row in record.rewrites.iter().take(MAX_REWRITES) {
        let original = row.original.clone().unwrap_or_else(|| "(added by the server)".to_owned());
        table.row(match row.address.as_str() {
            "" => vec!["further addresses".to_owned(), String::new(), count(row.count)],
            address => vec![original, address.to_owned(), count(row.count)],
        });
    }
    let more = record.rewrites.len().saturating_sub(MAX_REWRITES);
    let note = (more > 0)
        .then(|| format!("the {MAX_REWRITES} most frequent; {} more in run.json (rewrites)", count(more as u64)));
    Section::figures("Rewritten and copied", note, table)
}

fn sum(ledger: &LedgerRow, unit: &str) -> String {
    let Some(created) = ledger.created else {
        return format!("a unit is a {unit}; how many were created is unknown here");
    };
    let total = mailrun_measurement::account::sum_of_fates(ledger);
    if total == created {
        return format!("a unit is a {unit}; rows add up to all units");
    }
    format!("a unit is a {unit}; rows add up to {}, which is NOT what was created", count(total))
}

/// Returns the table of 4xx and 5xx replies, cut connections and time-outs, or `None` if there were no errors.
pub(crate) fn errors(record: &Record) -> Option<Section> {
    let mut table = Table::new([("phase", Align::Left), right("code"), right("count"), ("first text", Align::Wrapped)]);
    for row in errors_once(record) {
        let code = if row.code == 0 { "–".to_owned() } else { row.code.to_string() };
        table.row(vec![row.phase.name().to_owned(), code, count(row.count), clipped(&row.text)]);
    }
    Section::figures("Errors", when(record), table)
}

/// Returns the period in which errors occurred, for example `in seconds 1 to 4`.
pub(super) fn when(record: &Record) -> Option<String> {
    seconds_of_errors(record).map(|(first, last)| match first == last {
        true => format!("in second {}", count(first)),
        false => format!("in seconds {} to {}", count(first), count(last)),
    })
}

/// Returns one line for each of the `limit` most frequent kinds of error, and the number of kinds that are left out.
pub(crate) fn errors_in_short(record: &Record, limit: usize) -> (Vec<String>, usize) {
    let row_text = |place: &str, what: &str, number: u64, text: &str| {
        let place = if what.is_empty() { format!("at {place}") } else { format!("{what} at {place}") };
        format!("{} × {place}: {}", count(number), plain(text))
    };
    let mut lines: Vec<(u64, String)> = match &record.mades {
        Some(mades) => {
            let line =
                |row: &MadesTrouble| (row.count, row_text(&plain(&row.kind), &plain(&row.code), row.count, &row.text));
            mades.troubles.iter().map(line).collect()
        }
        None => {
            let code = |row: &ErrorRow| if row.code == 0 { String::new() } else { row.code.to_string() };
            let line = |row: &ErrorRow| (row.count, row_text(row.phase.name(), &code(row), row.count, &row.text));
            errors_once(record).map(line).collect()
        }
    };
    lines.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    let more = lines.len().saturating_sub(limit);
    (lines.into_iter().take(limit).map(|(_, line)| line).collect(), more)
}

/// Shortens a reply for the table, because a server may answer with kilobytes. `run.json` contains the whole reply.
fn clipped(text: &str) -> String {
    const MAX_REPLY_CHARS: usize = 200;
    match text.char_indices().nth(MAX_REPLY_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

pub(crate) fn thresholds(record: &Record) -> Option<Section> {
    Section::figures("Thresholds", None, table_of(record.thresholds.iter()))
}

pub(crate) fn thresholds_by_result(record: &Record, passed: bool) -> Option<Section> {
    let rows = record.thresholds.iter().filter(|row| row.passed == passed);
    Section::figures("Thresholds", None, table_of(rows))
}

/// Returns a table of at most `limit` thresholds, and the number of thresholds that are left out. If there are more
/// than `limit`, the thresholds that did not pass come first, because the reader needs them most.
pub(crate) fn threshold_table(record: &Record, limit: usize) -> (Table, usize) {
    let mut rows: Vec<&ThresholdRow> = record.thresholds.iter().collect();
    if rows.len() > limit {
        rows.sort_by_key(|row| row.passed);
    }
    let more = rows.len().saturating_sub(limit);
    (table_of(rows.into_iter().take(limit)), more)
}

fn table_of<'a>(rows: impl Iterator<Item = &'a ThresholdRow>) -> Table {
    let mut table =
        Table::new([("threshold", Align::Wrapped), right("value"), right("limit"), right("margin"), ("", Align::Left)])
            .leave_out(&["margin", "limit"]);
    for row in rows {
        let shown = |value: Option<f64>| {
            value
                .map_or_else(|| Cell::from("–"), |value| Cell::Number(value, threshold::format_value(value, &row.unit)))
        };
        let word = match row {
            row if row.passed => "passed",
            row if row.missed => "MISSED",
            row if row.why.is_empty() => "NOT SEEN",
            _ => "UNDECIDED",
        };
        let value = row.beyond.map_or_else(|| shown(row.value), |_| Cell::from(threshold::format_row(row)));
        let cells = [value, shown(row.limit), shown(row.margin)];
        let names = [row.expression.as_str(), word].map(Cell::from);
        let [expression, word] = names;
        table.row([expression].into_iter().chain(cells).chain([word]).collect());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::exports::ExportFormat;
    use mailrun_measurement::record::ErrorRow;
    use mailrun_measurement::stage::Phase;

    fn text(section: Option<Section>) -> String {
        let section = section.expect("the sample has it");
        let note = section.note.unwrap_or_default();
        match section.body {
            SectionBody::Figures(table) => format!("{note}\n{}", table.terminal(100)),
            body => panic!("not figures: {body:?}"),
        }
    }

    #[test]
    fn fates_sum_to_what_was_created() {
        let text = text(ledger(&sample::lossy()));
        assert!(text.contains("rows add up to all units"), "{text}");
        assert!(text.contains("lost") && text.contains("0.10 %"), "{text}");
    }

    #[test]
    fn books_that_do_not_balance_are_said_so() {
        let mut record = sample::held();
        record.ledger.delivered = Some(199_999);
        assert!(text(ledger(&record)).contains("NOT what was created"));
    }

    #[test]
    fn what_the_sink_did_as_ordered_is_not_counted_twice() {
        let row = |text: &str| ErrorRow {
            phase: Phase::Rcpt,
            code: 500,
            text: text.to_owned(),
            count: 15,
            ..ErrorRow::default()
        };
        let rows = [row("5.3.0 Error: command failed"), row("on purpose: rcpt: hard reject 1%")];
        let both = Record { errors: rows.to_vec(), ..sample::held() };
        assert_eq!(errors_in_short(&both, 3).0, ["15 × 500 at rcpt: 5.3.0 Error: command failed"]);
        let text = text(errors(&both));
        assert!(text.contains("command failed") && !text.contains("on purpose"), "{text}");
        let metrics = ExportFormat::Prometheus.render(&[both]);
        let line = "mailrun_run_errors_total{phase=\"rcpt\",code=\"500\"} 15";
        assert!(metrics.lines().any(|other| other == line), "{line} in\n{metrics}");
        let alone = Record { errors: rows[1..].to_vec(), ..sample::held() };
        assert_eq!(errors_in_short(&alone, 3).0, ["15 × 500 at rcpt: on purpose: rcpt: hard reject 1%"]);
    }

    #[test]
    fn what_is_zero_or_unknown_has_no_row() {
        let text = text(ledger(&sample::held()));
        assert!(!text.contains("lost") && !text.contains("duplicates") && text.contains("└ delivered"), "{text}");
        let text = self::text(ledger(&sample::unwatched()));
        assert!(!text.contains("delivered") && text.contains("└ accepted"), "{text}");
        assert_eq!(ledger_in_short(&sample::held()), None, "the verdict says it");
        let expected = "created 200,000 · delivered 199,800 · lost 200";
        assert_eq!(ledger_in_short(&sample::lossy()).as_deref(), Some(expected));
    }

    #[test]
    fn errors_carry_what_was_said() {
        let mut record = sample::held();
        assert!(errors(&record).is_none());
        let reply = "452 4.3.1 Insufficient system storage";
        record.errors = vec![ErrorRow {
            phase: Phase::Reply,
            code: 452,
            text: reply.to_owned(),
            count: 1_234,
            ..ErrorRow::default()
        }];
        let text = text(errors(&record));
        assert!(text.contains(reply) && text.contains("1,234") && text.contains("reply"), "{text}");
    }

    #[test]
    fn an_endless_reply_is_clipped() {
        assert_eq!(clipped(&"é".repeat(5_000)).chars().count(), 201);
        assert_eq!(clipped("short"), "short");
    }
}
