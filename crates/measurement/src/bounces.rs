//! Mail that servers gave up on, as reported by the notifications that reach a sink (RFC 3464).
use crate::ledger::{Ledger, MarkResult};
use crate::record::{BounceRow, Record};
use crate::trace::{MessageName, RecipientId};
use mailrun_mime::{Notice, NoticeAction, NoticeRecipient};

/// Maximum number of rows for bounce reasons. Once all rows are used, bounces with a new reason count in the last row.
const MAX_REASONS: usize = 64;

#[derive(Clone, Debug, Default)]
pub struct Bounces {
    /// Message-recipient pairs that notifications reported as undeliverable. A pair counts once, even if several
    /// notifications report it.
    pub units: Ledger,
    /// Number of notifications, whether they report failures, delays or anything else.
    pub notices: u64,
    /// Number of reports of undeliverable pairs that an earlier notification had already reported.
    pub repeated: u64,
    /// Number of reports that a delivery is delayed and that a server will try it again.
    pub delayed: u64,
    pub overflow: u64,
    reasons: Vec<BounceRow>,
}

impl Bounces {
    /// Counts a notification about a message, and the failed and delayed recipients that the notification lists.
    pub fn add(&mut self, message: &MessageName, notice: &Notice) {
        self.notices += 1;
        for recipient in &notice.recipients {
            match recipient.action {
                NoticeAction::Failed => self.add_failed(message, recipient),
                NoticeAction::Delayed => self.delayed += 1,
                NoticeAction::Other => {}
            }
        }
    }

    fn add_failed(&mut self, message: &MessageName, recipient: &NoticeRecipient) {
        let number = message.numbering.number(RecipientId::new(recipient.known_as().as_bytes()));
        match self.units.mark(message.sequence, number) {
            MarkResult::First => add_reason(
                &mut self.reasons,
                BounceRow {
                    status: recipient.status.clone(),
                    text: recipient.diagnostic.clone(),
                    count: 1,
                    sample: recipient.known_as().to_owned(),
                },
            ),
            MarkResult::Again => self.repeated += 1,
            MarkResult::Full => self.overflow += 1,
        }
    }

    /// Adds the counts in `other`, which are a worker's counts since its last merge. If `self` and `other` contain the
    /// same message-recipient pair, the pair stays in `units` once, and its second report counts as repeated.
    pub fn merge(&mut self, other: &Self) {
        let merged = self.units.merge(&other.units);
        self.notices += other.notices;
        self.repeated += other.repeated + merged.again;
        self.delayed += other.delayed;
        self.overflow += other.overflow + merged.full;
        other.reasons.iter().for_each(|row| add_reason(&mut self.reasons, row.clone()));
    }

    /// Returns the reasons why mail bounced, with the most frequent reason first.
    pub fn rows(&self) -> Vec<BounceRow> {
        join(self.reasons.clone(), Vec::new())
    }
}

/// Adds the count of `row` to the row with the same reason, or appends `row`. When there are `MAX_REASONS` rows, a new
/// reason is counted in the last row.
fn add_reason(rows: &mut Vec<BounceRow>, row: BounceRow) {
    let is_full = rows.len() >= MAX_REASONS;
    // Compare only the reply codes of the texts, because the rest of a text often contains its recipient.
    let code = |row: &BounceRow| row.text.get(..3).map(str::to_owned);
    let known = rows.iter().position(|known| known.status == row.status && code(known) == code(&row));
    match known.or(is_full.then_some(MAX_REASONS - 1)) {
        Some(known) => rows[known].count = rows[known].count.saturating_add(row.count),
        None => rows.push(row),
    }
}

/// Adds the notifications that a second sink has seen to the record of the first sink. A notification that reached both
/// sinks counts twice here. The number of bounced recipients stays correct, because it comes from the sinks' ledgers.
/// When these are merged, each bounced recipient counts once.
pub fn add(record: &mut Record, second: Record) {
    let sum = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).reduce(u64::saturating_add);
    record.bounces = join(std::mem::take(&mut record.bounces), second.bounces);
    record.ledger.delay_notices = sum(record.ledger.delay_notices, second.ledger.delay_notices);
    record.ledger.repeated_notices = sum(record.ledger.repeated_notices, second.ledger.repeated_notices);
}

pub(crate) fn join(mut rows: Vec<BounceRow>, more: Vec<BounceRow>) -> Vec<BounceRow> {
    more.into_iter().for_each(|row| add_reason(&mut rows, row));
    rows.sort_by_key(|row| std::cmp::Reverse(row.count));
    rows
}
