//! The report of an audit, which injects faults into a server: what became of the mail under each kind of fault, and
//! which messages are missing.
use super::figures::{Section, SectionBody};
use mailrun_measurement::audit::bound_text;
use mailrun_measurement::record::{Audit, AuditLoss, Record};
use mailrun_text::numbers::{count, seconds};
use mailrun_text::table::{Align, Table, plain, right};

pub(crate) fn faults(record: &Record) -> Option<Section> {
    let audit = record.audit.as_ref()?;
    let version = if audit.version.is_empty() { String::new() } else { format!("server: {}; ", plain(&audit.version)) };
    Section::figures("Audit", Some(format!("{version}seed {}", audit.seed)), table(audit))
}

pub(crate) fn in_short(record: &Record, width: usize) -> Vec<String> {
    let table = record.audit.as_ref().map(table);
    table.map_or_else(Vec::new, |table| table.terminal(width).lines().map(str::to_owned).collect())
}

fn table(audit: &Audit) -> Table {
    let figures = [
        "rounds",
        "void",
        "answered 250",
        "lost",
        "not delivered",
        "bounced",
        "after restart",
        "duplicates",
        "corrupt",
        "never back",
        "not supported",
        "back within",
        "bound",
    ];
    let mut table = Table::new([("fault", Align::Wrapped)].into_iter().chain(figures.map(right)));
    for row in &audit.faults {
        let counts = [
            row.void,
            row.answered,
            row.lost,
            row.not_delivered,
            row.bounced,
            row.after_restart,
            row.duplicates,
            row.corrupt,
            row.never_back,
            row.not_supported,
        ];
        let back = row.back_s.map_or_else(|| "–".to_owned(), seconds);
        // Show an upper bound of the loss. A text such as "0 of 363,826 messages" would sound like a proof that no
        // message is ever lost, which a few rounds cannot give.
        let bound = row.bound.map_or_else(|| "–".to_owned(), |bound| format!("< {}", bound_text(bound)));
        let cells = [plain(&row.fault), count(row.rounds)].into_iter().chain(counts.map(count)).chain([back, bound]);
        table.row(cells.collect());
    }
    table.hide_zero(&["void", "not delivered", "bounced", "after restart", "corrupt", "never back", "not supported"])
}

/// Returns the table of messages that the server accepted with 250 but that did not arrive.
pub(crate) fn losses(record: &Record) -> Option<Section> {
    losses_in(&record.audit.as_ref()?.losses)
}

pub(crate) fn losses_in(losses: &[AuditLoss]) -> Option<Section> {
    let columns = [right("round"), ("fault", Align::Left), right("message"), right("answered at"), right("fault at")];
    let mut table = Table::new(columns.into_iter().chain([("reply", Align::Left)]));
    for loss in losses {
        let dash = || "–".to_owned();
        let times = [loss.answered_s.map_or_else(dash, seconds), seconds(loss.fault_s)];
        let place = [count(loss.round), plain(&loss.fault), count(loss.message)];
        let reply = loss.reply.as_deref().map_or_else(dash, plain);
        table.row(place.into_iter().chain(times).chain([reply]).collect());
    }
    Some(Section { title: "Missing mail", note: None, body: SectionBody::Figures(table) })
        .filter(|_| !losses.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_measurement::record::AuditRow;

    #[test]
    fn the_name_of_a_fault_is_whole_however_many_columns_there_are() {
        let fault = "power-cut on btrfs".to_owned();
        let row = AuditRow { fault, void: 1, not_delivered: 1, after_restart: 1, corrupt: 1, ..AuditRow::default() };
        for width in 40..120 {
            let text = table(&Audit { faults: vec![row.clone()], ..Audit::default() }).terminal(width);
            assert!(!text.contains('…') && text.contains("power-cut") && text.contains("btrfs"), "{width}\n{text}");
        }
    }
}
