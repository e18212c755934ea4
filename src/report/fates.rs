//! What became of every (message, recipient), what went wrong on the way, and the goals.
use super::numbers::{count, known, share};
use super::section::{Body, Section};
use super::table::{Align, Table};
use journey::record::{LedgerRow, Record};
use journey::threshold;

/// The ledger: the fates, their sum, and what is counted beside them.
pub(crate) fn ledger(record: &Record) -> Option<Section> {
    let ledger = &record.ledger;
    let mut table = Table::new([("fate", Align::Left), ("units", Align::Right), ("share", Align::Right)]);
    for (name, number) in rows(ledger) {
        let share = number.zip(ledger.created).map_or_else(String::new, |(part, whole)| share(part, whole));
        table.row(vec![name.to_owned(), known(number), share]);
    }
    let beside = [("+ duplicates", ledger.duplicates), ("+ corrupt", ledger.corrupt), ("+ foreign", ledger.foreign)];
    let seldom =
        [("+ converted", ledger.converted), ("+ untimed", ledger.untimed), ("+ not recorded", ledger.overflow)];
    let seldom = seldom.into_iter().filter(|(_, number)| number.is_some_and(|number| number > 0));
    for (name, number) in beside.into_iter().chain(seldom) {
        table.row(vec![name.to_owned(), known(number), String::new()]);
    }
    let unit = if record.mades.is_some() { "message" } else { "(message, recipient)" };
    Some(Section { title: "Ledger", note: Some(sum(ledger, unit)), body: Body::Figures(table) })
}

fn rows(ledger: &LedgerRow) -> Vec<(&'static str, Option<u64>)> {
    let mut rows = vec![("created", ledger.created)];
    rows.extend([
        ("├ delivered", ledger.delivered),
        ("├ rejected", ledger.rejected),
        ("├ failed", ledger.failed),
        ("├ expired", ledger.expired),
    ]);
    rows.extend(ledger.queued.filter(|queued| *queued > 0).map(|queued| ("├ queued", Some(queued))));
    rows.extend([("├ lost", ledger.lost), ("└ in flight", ledger.in_flight)]);
    rows
}

fn sum(ledger: &LedgerRow, unit: &str) -> String {
    let Some(created) = ledger.created else {
        return format!("a unit is a {unit}; how many were created is unknown here");
    };
    let total = journey::account::sum_of_fates(ledger);
    let verdict = if total == created { "all that were created" } else { "NOT what was created" };
    format!("a unit is a {unit}; the known fates sum to {}: {verdict}", count(total))
}

/// Replies of 4xx and 5xx, cut connections, time-outs.
pub(crate) fn errors(record: &Record) -> Option<Section> {
    let body = if record.errors.is_empty() {
        Body::Sentence("None: no refusals, no cut connections, no time-outs.".to_owned())
    } else {
        let mut table = Table::new([
            ("phase", Align::Left),
            ("code", Align::Right),
            ("count", Align::Right),
            ("what was said first", Align::Left),
        ]);
        for row in &record.errors {
            let code = if row.code == 0 { "–".to_owned() } else { row.code.to_string() };
            table.row(vec![row.phase.name().to_owned(), code, count(row.count), clipped(&row.text)]);
        }
        Body::Figures(table)
    };
    Some(Section { title: "Errors", note: None, body })
}

/// A server may answer with kilobytes; a report shows what fits a few lines and `run.json` has the rest.
fn clipped(text: &str) -> String {
    const LETTERS: usize = 200;
    match text.char_indices().nth(LETTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The thresholds, where any were set.
pub(crate) fn thresholds(record: &Record) -> Option<Section> {
    let mut table = Table::new([
        ("threshold", Align::Left),
        ("limit", Align::Right),
        ("value", Align::Right),
        ("margin", Align::Right),
        ("", Align::Left),
    ]);
    for row in &record.thresholds {
        let shown =
            |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| threshold::figure(value, &row.unit));
        let word = match (row.passed, row.value) {
            (true, _) => "met",
            (false, Some(_)) => "MISSED",
            (false, None) => "NOT SEEN",
        };
        let cells = [row.limit, row.value, row.margin].map(shown);
        table.row([row.expression.clone()].into_iter().chain(cells).chain([word.to_owned()]).collect());
    }
    (!table.is_empty()).then_some(Section { title: "Thresholds", note: None, body: Body::Figures(table) })
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use journey::record::ErrorRow;
    use journey::stage::Phase;

    fn text(section: Option<Section>) -> String {
        let section = section.expect("the sample has it");
        let note = section.note.unwrap_or_default();
        match section.body {
            Body::Figures(table) => format!("{note}\n{}", table.terminal(100)),
            Body::Sentence(text) => text,
            body => panic!("not figures: {body:?}"),
        }
    }

    #[test]
    fn fates_sum_to_what_was_created() {
        let text = text(ledger(&sample::lossy()));
        assert!(text.contains("sum to 200,000: all that were created"), "{text}");
        assert!(text.contains("lost") && text.contains("0.10 %"), "{text}");
    }

    #[test]
    fn books_that_do_not_balance_are_said_so() {
        let mut record = sample::held();
        record.ledger.delivered = Some(199_999);
        assert!(text(ledger(&record)).contains("NOT what was created"));
    }

    #[test]
    fn unknown_is_said_and_not_nought() {
        let text = text(ledger(&sample::unwatched()));
        let delivered = text.lines().find(|line| line.contains("delivered")).expect("a row");
        assert!(delivered.contains("unknown"), "{text}");
    }

    #[test]
    fn errors_carry_what_was_said() {
        let mut record = sample::held();
        assert!(text(errors(&record)).starts_with("None"));
        let said = "452 4.3.1 Insufficient system storage";
        record.errors = vec![ErrorRow { phase: Phase::Reply, code: 452, text: said.to_owned(), count: 1_234 }];
        let text = text(errors(&record));
        assert!(text.contains(said) && text.contains("1,234") && text.contains("reply"), "{text}");
    }

    #[test]
    fn an_endless_reply_is_clipped() {
        assert_eq!(clipped(&"é".repeat(5_000)).chars().count(), 201);
        assert_eq!(clipped("short"), "short");
    }
}
