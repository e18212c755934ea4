//! Counts what became of the mail to each recipient domain. Only a limited number of domains have their own counts.
use crate::record::DomainRow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of domains that have a row of their own. All other domains share one row, so that a record stays
/// small.
pub const MAX_DOMAINS: usize = 100;

/// Number of recipients in one domain, by what became of their mail as far as the source knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainFates {
    pub created: u64,
    pub accepted: u64,
    pub rejected: u64,
    pub failed: u64,
    pub in_doubt: u64,
}

/// A source's counts, indexed by the number of the recipient domain. Empty if there is only one domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainTally(Vec<DomainFates>);

impl DomainTally {
    pub fn open(&mut self, domain: u16) -> &mut DomainFates {
        let place = usize::from(domain);
        if self.0.len() <= place {
            self.0.resize(place + 1, DomainFates::default());
        }
        &mut self.0[place]
    }

    pub fn merge(&mut self, other: &Self) {
        for (domain, theirs) in (0..).zip(&other.0) {
            let ours = self.open(domain);
            ours.created += theirs.created;
            ours.accepted += theirs.accepted;
            ours.rejected += theirs.rejected;
            ours.failed += theirs.failed;
            ours.in_doubt += theirs.in_doubt;
        }
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns one row of the run record for each recipient domain with mail. The domain with the most recipients comes
    /// first. `names[n]` is the name of domain number n. Domains beyond [`MAX_DOMAINS`] share a row with an empty name.
    pub fn rows(&self, names: &[String]) -> Vec<DomainRow> {
        let row = |(place, fates): (usize, &DomainFates)| DomainRow {
            domain: names.get(place).cloned().unwrap_or_default(),
            created: fates.created,
            accepted: fates.accepted,
            rejected: fates.rejected,
            failed: fates.failed,
            in_doubt: fates.in_doubt,
            ..DomainRow::default()
        };
        let mut rows: Vec<DomainRow> = self.0.iter().enumerate().map(row).collect();
        rows.retain(|row| row.created > 0);
        sort(&mut rows);
        rows
    }
}

/// A message-recipient pair that a sink worker received for a domain other than the worker's first domain. The sink
/// counts such pairs only when it merges its workers' counts, because duplicates may have arrived at different workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainUnit {
    pub sequence: u64,
    pub recipient: u32,
    pub domain: u16,
}

/// Arrivals at a sink, by the name of the recipient's domain. Domains beyond [`MAX_DOMAINS`] share the empty name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainArrivals(BTreeMap<Arc<str>, ArrivedUnits>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrivedUnits {
    pub delivered: u64,
    pub duplicates: u64,
}

impl DomainArrivals {
    /// Returns the counts of the domain `name`. If the domain is new and [`MAX_DOMAINS`] domains already have counts of
    /// their own, returns the counts that all further domains share.
    pub fn open(&mut self, name: &Arc<str>) -> &mut ArrivedUnits {
        let is_full = self.0.len() >= MAX_DOMAINS && !self.0.contains_key(name);
        self.0.entry(if is_full { Arc::default() } else { Arc::clone(name) }).or_default()
    }

    pub fn rows(&self) -> Vec<DomainRow> {
        let arrived = self.0.iter().filter(|(_, units)| units.delivered + units.duplicates > 0);
        let mut rows: Vec<DomainRow> = arrived
            .map(|(name, units)| DomainRow {
                domain: name.to_string(),
                delivered: Some(units.delivered),
                duplicates: Some(units.duplicates),
                ..DomainRow::default()
            })
            .collect();
        sort(&mut rows);
        rows
    }
}

/// Combines the source's and the sink's row of each domain. One of them may have counted a domain in the shared row of
/// all further domains, although the other has a row for this domain. All counts of the domain then go to the shared
/// row, because a shared row cannot be divided by domain.
///
/// Returns the rows of `source` unchanged if there are fewer than two, or if no sink counted arrivals (not
/// `is_observed`).
pub fn join(source: Vec<DomainRow>, sink: &[DomainRow], is_observed: bool) -> Vec<DomainRow> {
    if source.len() < 2 || !is_observed {
        return source;
    }
    let has_others = |rows: &[DomainRow]| rows.iter().any(|row| row.domain.is_empty());
    let has = |rows: &[DomainRow], domain: &str| rows.iter().any(|row| row.domain == domain);
    let source_is_cut = has_others(&source);
    let sink_is_cut = has_others(sink);
    let mut joined: BTreeMap<String, DomainRow> = BTreeMap::new();
    for (row, is_lumped) in source
        .iter()
        .map(|row| (row, sink_is_cut && !has(sink, &row.domain)))
        .chain(sink.iter().map(|row| (row, source_is_cut && !has(&source, &row.domain))))
    {
        let domain = if is_lumped { String::new() } else { row.domain.clone() };
        let unseen =
            || DomainRow { domain: domain.clone(), delivered: Some(0), duplicates: Some(0), ..DomainRow::default() };
        add(joined.entry(domain.clone()).or_insert_with(unseen), row);
    }
    let mut rows: Vec<DomainRow> = joined.into_values().collect();
    sort(&mut rows);
    rows
}

fn add(row: &mut DomainRow, more: &DomainRow) {
    let sum = |one: Option<u64>, other: Option<u64>| one.unwrap_or_default().saturating_add(other.unwrap_or_default());
    row.created = row.created.saturating_add(more.created);
    row.accepted = row.accepted.saturating_add(more.accepted);
    row.rejected = row.rejected.saturating_add(more.rejected);
    row.failed = row.failed.saturating_add(more.failed);
    row.in_doubt = row.in_doubt.saturating_add(more.in_doubt);
    row.delivered = Some(sum(row.delivered, more.delivered));
    row.duplicates = Some(sum(row.duplicates, more.duplicates));
}

/// Sorts the rows by size, the largest first. The shared row of all other domains comes last.
fn sort(rows: &mut [DomainRow]) {
    let size = |row: &DomainRow| row.created.max(row.delivered.unwrap_or_default());
    rows.sort_by(|one, other| {
        let last = one.domain.is_empty().cmp(&other.domain.is_empty());
        last.then_with(|| size(other).cmp(&size(one))).then_with(|| one.domain.cmp(&other.domain))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(domain: &str, created: u64) -> DomainRow {
        DomainRow { domain: domain.to_owned(), created, accepted: created, ..DomainRow::default() }
    }

    fn sink(domain: &str, delivered: u64, duplicates: u64) -> DomainRow {
        DomainRow {
            domain: domain.to_owned(),
            delivered: Some(delivered),
            duplicates: Some(duplicates),
            ..DomainRow::default()
        }
    }

    fn figures(rows: &[DomainRow]) -> Vec<(&str, u64, Option<u64>, Option<u64>)> {
        rows.iter().map(|row| (row.domain.as_str(), row.created, row.delivered, row.duplicates)).collect()
    }

    #[test]
    fn both_ends_are_joined_by_name_and_the_largest_is_first() {
        let rows = join(vec![source("a", 3), source("b", 9)], &[sink("b", 8, 2), sink("c", 1, 0)], true);
        let expected = [("b", 9, Some(8), Some(2)), ("a", 3, Some(0), Some(0)), ("c", 0, Some(1), Some(0))];
        assert_eq!(figures(&rows), expected);
        assert!(join(vec![], &[sink("b", 8, 2)], true).is_empty(), "the source had one domain");
        let unknown = join(vec![source("a", 3), source("b", 9)], &[], false);
        assert_eq!(figures(&unknown), [("a", 3, None, None), ("b", 9, None, None)]);
    }

    #[test]
    fn a_domain_that_one_end_has_no_row_for_is_among_the_others() {
        let rows = join(vec![source("a", 3), source("b", 5), source("", 2)], &[sink("a", 3, 0), sink("x", 1, 0)], true);
        assert_eq!(figures(&rows), [("b", 5, Some(0), Some(0)), ("a", 3, Some(3), Some(0)), ("", 2, Some(1), Some(0))]);
        let rows = join(vec![source("a", 3), source("b", 5)], &[sink("a", 3, 0), sink("", 5, 1)], true);
        assert_eq!(figures(&rows), [("a", 3, Some(3), Some(0)), ("", 5, Some(5), Some(1))]);
    }

    #[test]
    fn counts_of_workers_are_added_by_domain() {
        let mut one = DomainTally::default();
        let mut other = DomainTally::default();
        one.open(1).created += 2;
        other.open(0).created += 1;
        other.open(2).failed += 1;
        other.open(2).created += 1;
        one.merge(&other);
        let rows = one.rows(&["a".to_owned(), "b".to_owned()]);
        let figures: Vec<_> = rows.iter().map(|row| (row.domain.as_str(), row.created, row.failed)).collect();
        assert_eq!(figures, [("b", 2, 0), ("a", 1, 0), ("", 1, 1)]);
    }

    #[test]
    fn arrivals_of_ever_new_domains_share_a_row() {
        let mut arrivals = DomainArrivals::default();
        for number in 0..500 {
            arrivals.open(&format!("d{number}").into()).delivered += 1;
        }
        let rows = arrivals.rows();
        assert_eq!((rows.len(), rows.iter().filter_map(|row| row.delivered).sum::<u64>()), (MAX_DOMAINS + 1, 500));
        assert_eq!(rows.last().map(|row| (row.domain.as_str(), row.delivered)), Some(("", Some(400))));
    }
}
