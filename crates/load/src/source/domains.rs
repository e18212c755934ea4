//! Numbers the domains of the recipients before the run, so that results can be counted for each domain.
//!
//! If all recipients of a run are in one domain, the totals are enough, so there is no table.
use super::addresses::AddressPattern;
use mailrun_measurement::domains::{DomainTally, MAX_DOMAINS};
use memchr::memrchr;
use std::collections::HashMap;

#[derive(Debug)]
pub(super) struct RecipientDomains {
    names: Vec<String>,
    numbers: HashMap<Vec<u8>, u16>,
}

impl RecipientDomains {
    /// Returns the domains of the patterns, or `None` if there is only one. Domains beyond
    /// [`MAX_DOMAINS`] are not listed.
    pub(super) fn of(patterns: &[AddressPattern]) -> Option<Self> {
        let mut names: Vec<String> = Vec::new();
        let mut is_cut = false;
        for pattern in patterns {
            let domains = pattern.domains(MAX_DOMAINS);
            is_cut |= domains.is_cut;
            for name in domains.names {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        names.truncate(MAX_DOMAINS);
        let numbers = names.iter().zip(0..).map(|(name, number)| (name.clone().into_bytes(), number)).collect();
        (names.len() > 1 || is_cut).then_some(Self { names, numbers })
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the index of the address's domain in `names`. All domains that are not in the table share one index: the
    /// length of `names`.
    pub(super) fn number_of(&self, address: &[u8]) -> u16 {
        let domain = memrchr(b'@', address).map_or(&[][..], |at| &address[at + 1..]);
        let known = self.numbers.get(domain).or_else(|| self.numbers.get(&domain.to_ascii_lowercase()));
        known.copied().unwrap_or(self.names.len() as u16)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnitFate {
    Accepted,
    Rejected,
    Failed,
    InDoubt,
}

/// For each recipient of a message, the index of its domain in [`RecipientDomains`]. Empty if domains are not counted.
#[derive(Debug, Default)]
pub(super) struct MessageDomains(Vec<u16>);

/// Bit of a recipient's entry in [`MessageDomains`]. It is set once the server has rejected the recipient.
const REJECTED: u16 = 1 << 15;

impl MessageDomains {
    pub(super) fn new(numbers: Vec<u16>) -> Self {
        Self(numbers)
    }

    pub(super) fn reject(&mut self, place: usize) {
        if let Some(domain) = self.0.get_mut(place) {
            *domain |= REJECTED;
        }
    }

    pub(super) fn count_created(&self, tally: &mut DomainTally) {
        self.0.iter().for_each(|domain| tally.open(*domain).created += 1);
    }

    /// Adds each recipient's result to the counts of its domain. `fate` returns the result of the recipient with the
    /// given index in the envelope. It is not called for recipients that the server has rejected.
    pub(super) fn count_ended(&self, tally: &mut DomainTally, fate: impl Fn(usize) -> UnitFate) {
        for (place, domain) in self.0.iter().enumerate() {
            let fates = tally.open(domain & !REJECTED);
            let was_rejected = domain & REJECTED != 0;
            match if was_rejected { UnitFate::Rejected } else { fate(place) } {
                UnitFate::Accepted => fates.accepted += 1,
                UnitFate::Rejected => fates.rejected += 1,
                UnitFate::Failed => fates.failed += 1,
                UnitFate::InDoubt => fates.in_doubt += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::addresses::RecipientTag;
    use super::*;
    use mailrun_schedule::distribution::{RandomStream, SeededRng};
    use proptest::prelude::*;

    fn of(typed: &[&str]) -> Option<RecipientDomains> {
        let patterns: Vec<AddressPattern> = typed.iter().map(|typed| AddressPattern::parse(typed).unwrap()).collect();
        RecipientDomains::of(&patterns)
    }

    #[test]
    fn one_domain_needs_no_table() {
        assert!(of(&["user{0..99}@example.org", "{a,b}@EXAMPLE.org"]).is_none());
        assert!(of(&["postmaster"]).is_none());
    }

    #[test]
    fn domains_are_numbered_in_the_order_of_the_patterns() {
        let table = of(&["u{0..9}@{b.example:70,A.example:30}", "x@c.example", "y@a.example"]).unwrap();
        assert_eq!(table.names(), ["b.example", "a.example", "c.example"]);
        assert_eq!(table.number_of(b"u7@A.Example"), 1);
        assert_eq!(table.number_of(b"u7@elsewhere.example"), 3, "of no name");
        let words = of(&["{a@one.example,b@two.example}"]).unwrap();
        assert_eq!(words.names(), ["one.example", "two.example"]);
    }

    #[test]
    fn numbered_domains_are_bounded() {
        let table = of(&["u@d{0..99999}.example"]).unwrap();
        assert_eq!((table.names().len(), table.names()[7].as_str()), (MAX_DOMAINS, "d7.example"));
        assert_eq!(table.number_of(b"u@d4711.example"), MAX_DOMAINS as u16);
    }

    #[test]
    fn a_rejected_recipient_stays_rejected() {
        let mut domains = MessageDomains::new(vec![0, 1, 1, 1]);
        let mut tally = DomainTally::default();
        domains.count_created(&mut tally);
        domains.reject(1);
        domains.reject(99);
        domains.count_ended(&mut tally, |place| {
            [UnitFate::Accepted, UnitFate::Failed, UnitFate::Failed, UnitFate::InDoubt][place]
        });
        let rows = tally.rows(&["a".to_owned(), "b".to_owned()]);
        let figures: Vec<_> =
            rows.iter().map(|row| (row.created, row.accepted, row.rejected, row.failed, row.in_doubt)).collect();
        assert_eq!(figures, [(3, 0, 1, 1, 1), (1, 1, 0, 0, 0)]);
    }

    proptest! {
        /// Every address that a pattern produces must be counted under its own domain. If a pattern has only one
        /// domain, there is no table to check.
        #[test]
        fn every_address_is_counted_under_its_domain(
            typed in "(u|\\{0\\.\\.9\\}|\\{a,b\\}){1,2}@(x|\\{1\\.\\.3\\}|\\{c,D\\}){1,3}\\.(example|\\{e,F\\})",
            seed: u64,
        ) {
            let pattern = AddressPattern::parse(&typed).unwrap();
            let table = RecipientDomains::of(std::slice::from_ref(&pattern));
            let mut seen = std::collections::BTreeSet::new();
            for number in 0..20 {
                let mut address = Vec::new();
                let mut rng = SeededRng::new(seed, RandomStream::Recipient, number);
                pattern.write(&mut rng, RecipientTag::Bare, 0, &mut address);
                let address = String::from_utf8(address).unwrap();
                let domain = address.split_once('@').unwrap().1.to_ascii_lowercase();
                if let Some(table) = &table {
                    prop_assert_eq!(&table.names()[usize::from(table.number_of(address.as_bytes()))], &domain);
                }
                seen.insert(domain);
            }
            prop_assert!(table.is_some() || seen.len() == 1, "{seen:?}");
        }
    }
}
