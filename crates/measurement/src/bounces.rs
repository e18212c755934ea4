//! Mail that servers gave up on, as reported by the notifications that reach a sink (RFC 3464).
use crate::ledger::{Ledger, MarkResult};
use crate::record::{BounceRow, Record};
use crate::trace::{MessageName, RecipientId};
use mailrun_mime::{Notice, NoticeAction, NoticeRecipient};

/// Maximum number of reasons that are listed separately. Further reasons count under the last one.
const MAX_REASONS: usize = 64;

/// Counts of the notifications about the messages of one run.
#[derive(Clone, Debug, Default)]
pub struct Bounces {
    /// Units that no server will deliver, as a set: a unit that was named twice is in it once.
    pub units: Ledger,
    /// Number of notifications, whether they report failures or delays.
    pub notices: u64,
    /// Number of reports about a unit that an earlier notification had already named.
    pub repeated: u64,
    /// Number of reports about a unit that a server will try again.
    pub delayed: u64,
    pub overflow: u64,
    reasons: Vec<BounceRow>,
}

impl Bounces {
    /// Counts a notification about a message, and the units that it reports.
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

    /// Adds the notifications of another worker, or of this worker since its last tick. A unit that
    /// both have seen counts as repeated.
    pub fn merge(&mut self, other: &Self) {
        let merged = self.units.merge(&other.units);
        self.notices += other.notices;
        self.repeated += other.repeated + merged.again;
        self.delayed += other.delayed;
        self.overflow += other.overflow + merged.full;
        other.reasons.iter().for_each(|row| add_reason(&mut self.reasons, row.clone()));
    }

    /// Returns the reasons, the most frequent first.
    pub fn rows(&self) -> Vec<BounceRow> {
        join(self.reasons.clone(), Vec::new())
    }
}

/// Adds units to the row of their reason. When there are `MAX_REASONS` rows, a new reason counts
/// under the last.
fn add_reason(rows: &mut Vec<BounceRow>, row: BounceRow) {
    let is_full = rows.len() >= MAX_REASONS;
    // Texts often contain the recipient, so only the status and the reply code distinguish reasons.
    let code = |row: &BounceRow| row.text.get(..3).map(str::to_owned);
    let known = rows.iter().position(|known| known.status == row.status && code(known) == code(&row));
    match known.or(is_full.then_some(MAX_REASONS - 1)) {
        Some(known) => rows[known].count = rows[known].count.saturating_add(row.count),
        None => rows.push(row),
    }
}

/// Adds the notifications that a second sink has seen to the record of the first. A notification
/// that both have seen is counted twice here. The sinks' ledgers know each message and count it
/// once.
pub fn add(record: &mut Record, second: Record) {
    let sum = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).reduce(u64::saturating_add);
    record.bounces = join(std::mem::take(&mut record.bounces), second.bounces);
    record.ledger.delay_notices = sum(record.ledger.delay_notices, second.ledger.delay_notices);
    record.ledger.repeated_notices = sum(record.ledger.repeated_notices, second.ledger.repeated_notices);
}

/// Joins the reasons of two sinks, the most frequent first.
pub(crate) fn join(mut rows: Vec<BounceRow>, more: Vec<BounceRow>) -> Vec<BounceRow> {
    more.into_iter().for_each(|row| add_reason(&mut rows, row));
    rows.sort_by_key(|row| std::cmp::Reverse(row.count));
    rows
}
