//! Mail that arrived under another address than the one that the source named. Servers tell a sink
//! about it with ORCPT and NOTIFY (RFC 3461).
//!
//! ```text
//! RCPT TO:<a@x> ORCPT=rfc822;to@y             to@y was rewritten to a@x; a further address is a copy
//! RCPT TO:<audit@x> NOTIFY=NEVER              a copy, as of always_bcc, if the source did not ask for NEVER itself
//! ```
//!
//! A unit that arrives both under its own address and under another one was not rewritten: the second
//! is a copy. A further arrival under the same address is a duplicate.
use crate::ledger::{Ledger, MarkResult};
use crate::record::RewriteRow;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Maximum number of pairs of addresses that are told apart.
pub const MAX_REWRITES: usize = 1000;
/// Maximum number of arrivals under other addresses that are remembered to recognise duplicates.
/// They take 32 MB. A duplicate of a later arrival counts as a copy.
const MAX_SEEN: usize = 1 << 20;

/// An address under which mail arrived, with the recipient that ORCPT names. All further pairs share
/// the empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rewrite {
    /// `None` if the server added the recipient, as `always_bcc` does.
    pub original: Option<String>,
    pub address: String,
}

/// An arrival under another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewrittenUnit {
    pub sequence: u64,
    /// Number of the recipient that the source named, or of the address if the server added it.
    pub recipient: u32,
    /// Number of that recipient's domain at the worker.
    pub domain: u16,
    /// Number of the pair of addresses at the worker.
    pub pair: u16,
    /// Hash of the address.
    pub address: u32,
    /// Set if the server added the recipient.
    pub is_added: bool,
}

/// The meaning of an arrival under another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RewriteResult {
    /// It is the first arrival of this message for this recipient.
    Rewritten,
    Copied,
    Duplicate,
    Full,
}

/// The arrivals of a run under other addresses. Only merged tallies have them.
#[derive(Clone, Debug, Default)]
pub struct Rewrites {
    /// Units that arrived under other addresses only.
    pub units: Ledger,
    /// Arrivals under other addresses, without duplicates.
    arrivals: u64,
    seen: HashSet<(u64, u32, u32)>,
    pairs: BTreeMap<Arc<Rewrite>, u64>,
}

impl Rewrites {
    /// Adds an arrival. `arrived` contains the units that have arrived under any address.
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

    /// Number of arrivals that were neither the first of their unit nor duplicates.
    pub fn copied(&self) -> u64 {
        self.arrivals - self.units.count()
    }

    /// Returns the pairs of addresses, the most frequent first.
    pub fn rows(&self) -> Vec<RewriteRow> {
        let row = |(pair, count): (&Arc<Rewrite>, &u64)| RewriteRow {
            original: pair.original.clone(),
            address: pair.address.clone(),
            count: *count,
        };
        join(self.pairs.iter().map(row).collect(), Vec::new())
    }
}

/// Joins the pairs of two sinks, the most frequent first. The shared pair of all further ones is last.
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
