//! Facts about every message of a run of any length: a byte each while messages are under way, and next to nothing once
//! a page of them is finished.
//!
//! ```text
//! sequence >> 12 ──► page:  under way   4,096 bytes, one a message
//!                           settled     the exceptions alone: (number, byte), sorted
//!                           whole       nothing: each of its messages got through
//! ```
//! 100 million messages that get through cost 24,415 entries of 24 bytes, and a message in a hundred that does not adds
//! four bytes for each. A late answer, or a doubled one, still finds its message.
use super::stages::Facts;

const PAGE_LOG2: u32 = 12;
const PAGE: usize = 1 << PAGE_LOG2;
/// A page with more exceptions than this keeps its bytes: they take no more room.
const MOST_EXCEPTIONS: usize = PAGE / 8;

/// Facts about messages, by their number.
#[derive(Debug)]
pub(super) struct Register {
    /// The facts about a message that got through.
    whole: Facts,
    pages: Vec<Page>,
    /// Messages below this number are finished.
    over: u64,
    /// Pages below this number have been looked at.
    packed: usize,
}

#[derive(Clone, Debug)]
enum Page {
    UnderWay(Box<[u8; PAGE]>),
    Settled(Vec<(u16, u8)>),
}

/// Novelty of a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    First,
    Again,
}

impl Register {
    pub(super) fn new(whole: Facts) -> Self {
        Self { whole, pages: Vec::new(), over: 0, packed: 0 }
    }

    /// Adds facts about a message; returns whether any of them was new, and all facts known now.
    pub(super) fn add(&mut self, sequence: u64, facts: Facts) -> (News, Facts) {
        let (page, number) = place(sequence);
        while self.pages.len() <= page {
            self.pages.push(Page::UnderWay(Box::new([0; PAGE])));
        }
        let before = self.facts(sequence);
        let after = before.and(facts);
        if after == before {
            return (News::Again, before);
        }
        match &mut self.pages[page] {
            Page::UnderWay(bytes) => bytes[number] = after.bits(),
            Page::Settled(exceptions) => amend(exceptions, number as u16, after, self.whole),
        }
        (News::First, after)
    }

    /// The facts about a message.
    pub(super) fn facts(&self, sequence: u64) -> Facts {
        let (page, number) = place(sequence);
        match self.pages.get(page) {
            None => Facts::default(),
            Some(Page::UnderWay(bytes)) => Facts::of(bytes[number]),
            Some(Page::Settled(exceptions)) => {
                let found = exceptions.binary_search_by_key(&(number as u16), |(number, _)| *number);
                found.map_or(self.whole, |at| Facts::of(exceptions[at].1))
            }
        }
    }

    /// Declares that no message below `sequence` is waited for any more: pages of such messages are packed.
    pub(super) fn is_over_below(&mut self, sequence: u64) {
        self.over = self.over.max(sequence);
        let full = (self.over >> PAGE_LOG2) as usize;
        while self.packed < full.min(self.pages.len()) {
            pack(&mut self.pages[self.packed], self.whole);
            self.packed += 1;
        }
    }

    /// Memory used for pages.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        let page = |page: &Page| match page {
            Page::UnderWay(_) => PAGE,
            Page::Settled(exceptions) => exceptions.capacity() * 4,
        };
        self.pages.capacity() * size_of::<Page>() + self.pages.iter().map(page).sum::<usize>()
    }
}

fn place(sequence: u64) -> (usize, usize) {
    ((sequence >> PAGE_LOG2) as usize, sequence as usize & (PAGE - 1))
}

fn pack(page: &mut Page, whole: Facts) {
    let Page::UnderWay(bytes) = page else { return };
    let is_exception = |(_, bits): &(usize, &u8)| **bits != whole.bits();
    let count = bytes.iter().enumerate().filter(is_exception).count();
    if count <= MOST_EXCEPTIONS {
        let mut exceptions = Vec::with_capacity(count);
        exceptions.extend(bytes.iter().enumerate().filter(is_exception).map(|(number, bits)| (number as u16, *bits)));
        *page = Page::Settled(exceptions);
    }
}

/// Writes a message's byte into a packed page. One that got through after all is no exception any more.
fn amend(exceptions: &mut Vec<(u16, u8)>, number: u16, facts: Facts, whole: Facts) {
    match exceptions.binary_search_by_key(&number, |(number, _)| *number) {
        Ok(at) if facts == whole => drop(exceptions.remove(at)),
        Ok(at) => exceptions[at].1 = facts.bits(),
        Err(at) => exceptions.insert(at, (number, facts.bits())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::stages::Mode;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn whole() -> Facts {
        Mode::Endpoint.whole()
    }

    #[test]
    fn a_hundred_million_that_get_through_cost_next_to_nothing() {
        let mut register = Register::new(whole());
        // Every page is opened and packed like this one; checking some is enough.
        for sequence in 0..400_000_u64 {
            register.add(sequence, whole());
            register.is_over_below(sequence.saturating_sub(1_000));
        }
        assert!(register.bytes() < 30_000, "{}", register.bytes());
        assert_eq!(register.add(5, whole()).0, News::Again);
    }

    #[test]
    fn the_lost_cost_their_exception_and_can_still_turn_up() {
        let mut register = Register::new(whole());
        let taken = Facts::default().with(super::super::stages::Stage::Settled);
        for sequence in 0..200_000_u64 {
            register.add(sequence, if sequence % 100 == 0 { taken } else { whole() });
            register.is_over_below(sequence);
        }
        assert!(register.bytes() < 50_000, "{}", register.bytes());
        assert_eq!(register.facts(500), taken);
        assert_eq!(register.add(500, whole()), (News::First, whole()));
        assert_eq!(register.facts(500), whole());
    }

    proptest! {
        /// Packed or not, it agrees with a map.
        #[test]
        fn it_knows_what_a_map_knows(
            steps in proptest::collection::vec((0_u64..10_000, 0_u8..=255, any::<bool>()), 1..300),
        ) {
            let mut register = Register::new(whole());
            let mut map: BTreeMap<u64, u8> = BTreeMap::new();
            (0..10_000).step_by(3).for_each(|sequence| {
                register.add(sequence, whole());
                map.insert(sequence, whole().bits());
            });
            for (sequence, bits, packs) in steps {
                let known = map.entry(sequence).or_default();
                let news = if *known | bits == *known { News::Again } else { News::First };
                *known |= bits;
                prop_assert_eq!(register.add(sequence, Facts::of(bits)), (news, Facts::of(*known)));
                if packs {
                    register.is_over_below(sequence);
                }
            }
            for sequence in 0..10_000 {
                prop_assert_eq!(register.facts(sequence).bits(), map.get(&sequence).copied().unwrap_or_default());
            }
        }
    }
}
