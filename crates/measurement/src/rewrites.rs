//! Mail that arrived under an address that the source had not named, because a server rewrote or added a recipient. A
//! sink recognizes such mail by the parameters ORCPT and NOTIFY of RCPT (RFC 3461).
//!
//! ```text
//! RCPT TO:<a@x> ORCPT=rfc822;to@y             to@y was rewritten to a@x; a further address is a copy
//! RCPT TO:<audit@x> NOTIFY=NEVER              a copy, as of always_bcc, if the source did not ask for NEVER itself
//! ```
//!
//! If a message arrives both under its recipient's own address and under another address, the recipient was not
//! rewritten, and the arrival under the other address is a copy. A further arrival under the same address is a
//! duplicate.
use crate::ledger::{Ledger, MarkResult};
use crate::record::RewriteRow;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Maximum number of pairs of original and new address that are counted separately. All further pairs share a count.
pub const MAX_REWRITES: usize = 1000;
/// [`Rewrites`] remembers at most this many arrivals (32 MB) to recognize a further arrival at the same address as a
/// duplicate. Beyond the limit, duplicates count as copies, as if the server had used another address.
const MAX_SEEN: usize = 1 << 20;

/// An address at which mail arrived although the source had not named it, and the original recipient from ORCPT. All
/// such pairs beyond [`MAX_REWRITES`] are counted together as a pair with an empty address.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rewrite {
    /// The address that the source named in RCPT. `None` if the server added a recipient of its own, as with Postfix's
    /// `always_bcc`.
    pub original: Option<String>,
    pub address: String,
}

/// An arrival under an address that the source had not named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewrittenUnit {
    pub sequence: u64,
    /// Number of the original recipient, derived from the address in ORCPT. If the server added the recipient, the
    /// number is derived from the address at which the message arrived.
    pub recipient: u32,
    /// Index of the recipient's domain in the worker's list of domains.
    pub domain: u16,
    /// Index of the pair of original and new address in the worker's `SinkTally::rewrites`.
    pub pair: u16,
    /// Hash of the address under which the message arrived.
    pub address: u32,
    /// True if the server added the recipient, so that the arrival is a copy.
    pub is_added: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RewriteResult {
    /// The message arrived for this recipient for the first time, and at another address than the recipient's own, so a
    /// server rewrote the address.
    Rewritten,
    Copied,
    Duplicate,
    Full,
}

/// Mail of a run that arrived at addresses to which the source had not sent it. Such mail is counted only when the
/// workers' counts are merged, because each worker sees only part of the arrivals.
#[derive(Clone, Debug, Default)]
pub struct Rewrites {
    /// Message-recipient pairs whose mail arrived only at rewritten addresses, not at the recipient's own.
    pub units: Ledger,
    /// Number of arrivals at addresses to which the source had not sent the message, without duplicates.
    arrivals: u64,
    seen: HashSet<(u64, u32, u32)>,
    pairs: BTreeMap<Arc<Rewrite>, u64>,
}

impl Rewrites {
    /// Counts an arrival, and returns whether it is a rewrite, a copy or a duplicate. Also adds the message-recipient
    /// pair to `arrived`, the pairs that arrived at any address, unless the server added the recipient.
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

    /// Returns the number of copies. For each rewritten recipient, one arrival counts as the delivery. All other
    /// arrivals are copies.
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

/// Adds up two sinks' counts of each address pair. Sorts the rows by count. The row that all further pairs share comes
/// last.
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
