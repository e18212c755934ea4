//! Mail that arrived under an address that the source had not named, because a server rewrote or added a recipient. A
//! sink recognizes such mail by the parameters ORCPT and NOTIFY of RCPT (RFC 3461).
//!
//! ```text
//! RCPT TO:<a@x> ORCPT=rfc822;to@y             to@y was rewritten to a@x; a further address is a copy
//! RCPT TO:<audit@x> NOTIFY=NEVER              a copy, as of always_bcc, if the source did not ask for NEVER itself
//! ```
//!
//! If a message arrives both under the address of its recipient and under another one, the address was not rewritten,
//! and the second arrival is a copy. A further arrival under the same address is a duplicate.
use crate::ledger::{Ledger, MarkResult};
use crate::record::RewriteRow;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Maximum number of pairs of original and new address that are counted separately.
pub const MAX_REWRITES: usize = 1000;
/// Maximum number of arrivals under other addresses that are remembered to recognise duplicates. Remembering so many
/// takes 32 MB. Beyond the limit, a duplicate counts as a copy.
const MAX_SEEN: usize = 1 << 20;

/// An address under which mail arrived, with the recipient that ORCPT names. All pairs beyond [`MAX_REWRITES`] are
/// counted together as a pair with an empty address.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rewrite {
    /// The recipient that the source had named. `None` if the server added the recipient, as with Postfix's
    /// `always_bcc`.
    pub original: Option<String>,
    pub address: String,
}

/// An arrival under an address that the source had not named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewrittenUnit {
    pub sequence: u64,
    /// Number of the recipient that the source had named. If the server added the recipient, number of the address
    /// under which the message arrived.
    pub recipient: u32,
    /// Index of the recipient's domain in the worker's list of domains.
    pub domain: u16,
    /// Index of the original and the new address in the worker's list of such pairs.
    pub pair: u16,
    /// Hash of the address under which the message arrived.
    pub address: u32,
    /// True if the server added the recipient, so that the arrival is a copy.
    pub is_added: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RewriteResult {
    /// The message had not arrived for this recipient before, so the recipient's address was rewritten.
    Rewritten,
    Copied,
    Duplicate,
    Full,
}

/// The arrivals of a run under addresses that the source had not named. Only merged tallies have them, because each
/// worker sees only part of the arrivals.
#[derive(Clone, Debug, Default)]
pub struct Rewrites {
    /// Message-recipient pairs that arrived only under addresses that the source had not named.
    pub units: Ledger,
    /// Number of arrivals under addresses that the source had not named, without duplicates.
    arrivals: u64,
    seen: HashSet<(u64, u32, u32)>,
    pairs: BTreeMap<Arc<Rewrite>, u64>,
}

impl Rewrites {
    /// Adds an arrival, and returns how it counts. `arrived` contains the message-recipient pairs that have arrived
    /// under any address. Unless the server added the recipient, the pair is also added to `arrived`.
    pub(crate) fn add(&mut self, unit: &RewrittenUnit, pair: &Arc<Rewrite>, arrived: &mut Ledger) -> RewriteResult {
        let RewrittenUnit { sequence, recipient, address, is_added, .. } = *unit;
        let is_new = self.seen.len() >= MAX_SEEN || self.seen.insert((sequence, recipient, address));
        if !is_new {
            return RewriteResult::Duplicate;
        }
        let result = match is_added {
            true => RewriteResult::Copied,
            false => match arrived.mark(sequence, recipient) {
                MarkResult::First if self.units.mark(sequence, recipient) == MarkResult::First => {
                    RewriteResult::Rewritten
                }
                MarkResult::Again => RewriteResult::Copied,
                MarkResult::First | MarkResult::Full => return RewriteResult::Full,
            },
        };
        self.arrivals += 1;
        let is_full = self.pairs.len() >= MAX_REWRITES && !self.pairs.contains_key(pair);
        *self.pairs.entry(if is_full { Arc::default() } else { Arc::clone(pair) }).or_default() += 1;
        result
    }

    /// Returns the number of copies, which are all counted arrivals except the first of each rewritten pair.
    pub fn copied(&self) -> u64 {
        self.arrivals - self.units.count()
    }

    /// Returns the counted pairs of original and new address, the most frequent first.
    pub fn rows(&self) -> Vec<RewriteRow> {
        let row = |(pair, count): (&Arc<Rewrite>, &u64)| RewriteRow {
            original: pair.original.clone(),
            address: pair.address.clone(),
            count: *count,
        };
        join(self.pairs.iter().map(row).collect(), Vec::new())
    }
}

/// Adds up two sinks' rows, the most frequent first. The row for all pairs beyond [`MAX_REWRITES`] comes last.
pub(crate) fn join(mut rows: Vec<RewriteRow>, more: Vec<RewriteRow>) -> Vec<RewriteRow> {
    for row in more {
        match rows.iter_mut().find(|known| (&known.address, &known.original) == (&row.address, &row.original)) {
            Some(known) => known.count = known.count.saturating_add(row.count),
            None => rows.push(row),
        }
    }
    rows.sort_by_key(|row| (row.address.is_empty(), std::cmp::Reverse(row.count)));
    if rows.len() > MAX_REWRITES + 1 {
        let rest = rows.split_off(MAX_REWRITES);
        let count = rest.iter().map(|row| row.count).fold(0, u64::saturating_add);
        rows.push(RewriteRow { count, ..RewriteRow::default() });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_beyond_the_limit_share_a_row() {
        let [mut rewrites, mut arrived] = [(); 2].map(|()| Rewrites::default());
        let arrived = &mut arrived.units;
        for number in 0..2 * MAX_REWRITES as u32 {
            let pair = Arc::new(Rewrite { original: Some(format!("{number}@x")), address: format!("{number}@y") });
            let unit = RewrittenUnit {
                sequence: number.into(),
                recipient: 0,
                domain: 0,
                pair: 0,
                address: number,
                is_added: false,
            };
            assert_eq!(rewrites.add(&unit, &pair, arrived), RewriteResult::Rewritten);
        }
        for rows in [rewrites.rows(), join(rewrites.rows(), rewrites.rows())] {
            assert_eq!(rows.len(), MAX_REWRITES + 1);
            let last = rows.last().unwrap();
            assert!(last.address.is_empty() && last.count >= MAX_REWRITES as u64, "{last:?}");
        }
    }
}
