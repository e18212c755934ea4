//! Remembers which stages each message of a run has reached, so that a late or duplicate answer is still recognised.
//! The messages are stored in pages of 4,096. An open page takes two bytes per message, and a settled page much less.
//!
//! ```text
//! sequence >> 12 ──▶ page:  open      8,192 bytes, two for each message
//!                           settled   only the incomplete messages: (number, facts), sorted
//! ```
//! A page whose messages are all complete takes only 24 bytes, so the 24,415 pages of 100 million complete messages
//! take 0.6 MB. Each incomplete message adds four bytes. A page with many incomplete messages stays open.
use super::stages::MessageFlags;

const PAGE_SHIFT: u32 = 12;
const PAGE_MESSAGES: usize = 1 << PAGE_SHIFT;
/// A page with at most this many incomplete messages is packed: only these messages are stored. Even at this limit,
/// packing shrinks the page from 8 KiB to 2 KiB.
const MAX_EXCEPTIONS: usize = PAGE_MESSAGES / 8;

#[derive(Debug)]
pub(super) struct MessageHistory {
    complete: MessageFlags,
    pages: Vec<HistoryPage>,
    finished_below: u64,
    packed_pages: usize,
}

#[derive(Clone, Debug)]
enum HistoryPage {
    Open(Box<[u16; PAGE_MESSAGES]>),
    Settled(Vec<(u16, u16)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Novelty {
    New,
    Known,
}

impl MessageHistory {
    pub(super) fn new(whole: MessageFlags) -> Self {
        Self { complete: whole, pages: Vec::new(), finished_below: 0, packed_pages: 0 }
    }

    /// Sets flags of a message, such as the stages that it has reached. Returns whether any flag was new, and all flags
    /// of the message.
    pub(super) fn add(&mut self, sequence: u64, flags: MessageFlags) -> (Novelty, MessageFlags) {
        let (page, number) = position(sequence);
        while self.pages.len() <= page {
            self.pages.push(HistoryPage::Open(Box::new([0; PAGE_MESSAGES])));
        }
        let before = self.flags(sequence);
        let after = before.union(flags);
        if after == before {
            return (Novelty::Known, before);
        }
        match &mut self.pages[page] {
            HistoryPage::Open(bytes) => bytes[number] = after.bits(),
            HistoryPage::Settled(exceptions) => set_exception(exceptions, number as u16, after, self.complete),
        }
        (Novelty::New, after)
    }

    pub(super) fn flags(&self, sequence: u64) -> MessageFlags {
        let (page, number) = position(sequence);
        match self.pages.get(page) {
            None => MessageFlags::default(),
            Some(HistoryPage::Open(bytes)) => MessageFlags::from_bits(bytes[number]),
            Some(HistoryPage::Settled(exceptions)) => {
                let exception = exceptions.binary_search_by_key(&(number as u16), |(number, _)| *number);
                exception.map_or(self.complete, |at| MessageFlags::from_bits(exceptions[at].1))
            }
        }
    }

    /// Packs the pages whose messages all have numbers below `sequence`, to save memory. The caller must expect no more
    /// answers to these messages, but a late answer is still recorded.
    pub(super) fn is_over_below(&mut self, sequence: u64) {
        self.finished_below = self.finished_below.max(sequence);
        let full = (self.finished_below >> PAGE_SHIFT) as usize;
        while self.packed_pages < full.min(self.pages.len()) {
            pack(&mut self.pages[self.packed_pages], self.complete);
            self.packed_pages += 1;
        }
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        let page = |page: &HistoryPage| match page {
            HistoryPage::Open(_) => PAGE_MESSAGES * 2,
            HistoryPage::Settled(exceptions) => exceptions.capacity() * 4,
        };
        self.pages.capacity() * size_of::<HistoryPage>() + self.pages.iter().map(page).sum::<usize>()
    }
}

fn position(sequence: u64) -> (usize, usize) {
    ((sequence >> PAGE_SHIFT) as usize, sequence as usize & (PAGE_MESSAGES - 1))
}

fn pack(page: &mut HistoryPage, whole: MessageFlags) {
    let HistoryPage::Open(bytes) = page else { return };
    let is_exception = |(_, bits): &(usize, &u16)| **bits != whole.bits();
    let count = bytes.iter().enumerate().filter(is_exception).count();
    if count <= MAX_EXCEPTIONS {
        let mut exceptions = Vec::with_capacity(count);
        exceptions.extend(bytes.iter().enumerate().filter(is_exception).map(|(number, bits)| (number as u16, *bits)));
        *page = HistoryPage::Settled(exceptions);
    }
}

/// Stores the flags of a message in a packed page. Such a page lists only incomplete messages, so a complete message is
/// removed from the list.
fn set_exception(exceptions: &mut Vec<(u16, u16)>, number: u16, flags: MessageFlags, whole: MessageFlags) {
    match exceptions.binary_search_by_key(&number, |(number, _)| *number) {
        Ok(at) if flags == whole => drop(exceptions.remove(at)),
        Ok(at) => exceptions[at].1 = flags.bits(),
        Err(at) => exceptions.insert(at, (number, flags.bits())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::stages::{MadesMode, MessagePath};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn whole() -> MessageFlags {
        MessagePath::from(MadesMode::Endpoint).complete_flags()
    }

    #[test]
    fn a_hundred_million_that_get_through_cost_next_to_nothing() {
        let mut history = MessageHistory::new(whole());
        // All pages are packed in the same way, so 400,000 messages are enough to show the cost of a hundred million.
        for sequence in 0..400_000_u64 {
            history.add(sequence, whole());
            history.is_over_below(sequence.saturating_sub(1_000));
        }
        assert!(history.bytes() < 30_000, "{}", history.bytes());
        assert_eq!(history.add(5, whole()).0, Novelty::Known);
    }

    #[test]
    fn the_lost_cost_their_exception_and_can_still_turn_up() {
        let mut history = MessageHistory::new(whole());
        let settled = MessageFlags::default().with(super::super::stages::MessageStage::Settled);
        for sequence in 0..200_000_u64 {
            history.add(sequence, if sequence % 100 == 0 { settled } else { whole() });
            history.is_over_below(sequence);
        }
        assert!(history.bytes() < 50_000, "{}", history.bytes());
        assert_eq!(history.flags(500), settled);
        assert_eq!(history.add(500, whole()), (Novelty::New, whole()));
        assert_eq!(history.flags(500), whole());
    }

    proptest! {
        /// The history must return the same flags as a simple map, even after it has packed pages to save memory.
        #[test]
        fn it_knows_what_a_map_knows(
            steps in proptest::collection::vec((0_u64..10_000, 0_u16..1024, any::<bool>()), 1..300),
        ) {
            let mut history = MessageHistory::new(whole());
            let mut map: BTreeMap<u64, u16> = BTreeMap::new();
            (0..10_000).step_by(3).for_each(|sequence| {
                history.add(sequence, whole());
                map.insert(sequence, whole().bits());
            });
            for (sequence, bits, packs) in steps {
                let known = map.entry(sequence).or_default();
                let news = if *known | bits == *known { Novelty::Known } else { Novelty::New };
                *known |= bits;
                prop_assert_eq!(history.add(sequence, MessageFlags::from_bits(bits)), (news, MessageFlags::from_bits(*known)));
                if packs {
                    history.is_over_below(sequence);
                }
            }
            for sequence in 0..10_000 {
                prop_assert_eq!(history.flags(sequence).bits(), map.get(&sequence).copied().unwrap_or_default());
            }
        }
    }
}
