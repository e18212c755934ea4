//! The ledger: the set of message-recipient pairs seen so far. It has one bit for each pair, in pages that are
//! allocated when a bit in them is first set.
//!
//! ```text
//! (recipient, sequence >> 15) ──index──► page of 32,768 bits (4 KB)      bit = sequence & 32,767
//! ```
//!
//! 100 million messages with one recipient take 3,052 pages (12.5 MB). No other memory grows with the number of
//! messages. Mail with forged sequence numbers could take a page for each message, so the number of pages is limited.
//! Pairs that would need more pages are not recorded, and the run's verdict reports their number.
use crate::trace::{WARM_UP_SEQUENCE, load_stage_of, message_number};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};
use std::ops::Range;

const PAGE_WORDS: usize = 512;
const PAGE_BYTES: usize = PAGE_WORDS * 8;
const PAGE_BITS_LOG2: u32 = 15;
const PAGE_BITS: u64 = 1 << PAGE_BITS_LOG2;
const MAGIC: &[u8; 8] = b"MRLEDGR1";
/// Number of empty pages that [`Ledger::clear`] keeps for reuse, 1 MB in total. A worker thread clears its ledger each
/// time that its counts are merged. Even at the highest speed measured so far, this many pages are enough for twice the
/// time between two merges.
const SPARE_PAGES: usize = 256;

type LedgerPage = Box<[u64; PAGE_WORDS]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkResult {
    First,
    Again,
    /// The message-recipient pair was not recorded, because it would need a page beyond the memory limit.
    Full,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeResult {
    pub again: u64,
    pub full: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct PageKey {
    recipient: u32,
    number: u64,
}

impl PageKey {
    fn sequence(self) -> u64 {
        self.number << PAGE_BITS_LOG2
    }
}

#[derive(Clone, Debug)]
pub struct Ledger {
    pages: Vec<LedgerPage>,
    spare: Vec<LedgerPage>,
    index: HashMap<PageKey, usize>,
    latest: Option<(PageKey, usize)>,
    count: u64,
    page_limit: usize,
}

impl Default for Ledger {
    fn default() -> Self {
        Self::with_limit(Self::LIMIT_BYTES)
    }
}

impl Ledger {
    /// Default memory limit of a ledger's pages, 64 MB, which is enough for 536 million message-recipient pairs.
    pub const LIMIT_BYTES: usize = 64 << 20;

    pub fn with_limit(bytes: usize) -> Self {
        Self {
            pages: Vec::new(),
            spare: Vec::new(),
            index: HashMap::new(),
            latest: None,
            count: 0,
            page_limit: bytes / PAGE_BYTES,
        }
    }

    pub fn mark(&mut self, sequence: u64, recipient: u32) -> MarkResult {
        let key = PageKey { recipient, number: sequence >> PAGE_BITS_LOG2 };
        let Some(page) = self.open_page(key) else { return MarkResult::Full };
        let (word, bit) = bit_position(sequence);
        let word = &mut self.pages[page][word];
        if *word & bit != 0 {
            return MarkResult::Again;
        }
        *word |= bit;
        self.count += 1;
        MarkResult::First
    }

    /// Removes a message-recipient pair, and returns true if the ledger contained it.
    pub fn unmark(&mut self, sequence: u64, recipient: u32) -> bool {
        let (word, bit) = bit_position(sequence);
        let key = PageKey { recipient, number: sequence >> PAGE_BITS_LOG2 };
        let Some(page) = self.index.get(&key) else { return false };
        let word = &mut self.pages[*page][word];
        let was_there = *word & bit != 0;
        *word &= !bit;
        self.count -= u64::from(was_there);
        was_there
    }

    /// Removes all message-recipient pairs that are in `other`, and returns how many pairs were removed.
    pub fn remove(&mut self, other: &Self) -> u64 {
        let mut removed = 0;
        for (key, page) in &self.index {
            let Some(theirs) = other.page(*key) else { continue };
            for (ours, theirs) in self.pages[*page].iter_mut().zip(theirs.iter()) {
                removed += u64::from((*ours & theirs).count_ones());
                *ours &= !theirs;
            }
        }
        self.count -= removed;
        removed
    }

    pub fn contains(&self, sequence: u64, recipient: u32) -> bool {
        let (word, bit) = bit_position(sequence);
        let key = PageKey { recipient, number: sequence >> PAGE_BITS_LOG2 };
        self.page(key).is_some_and(|page| page[word] & bit != 0)
    }

    /// Returns how many recipients of the message with this number are in the ledger. The number alone does not tell to
    /// which stage of the load the message belongs, or whether it belongs to the warm-up, so the pages of all stages
    /// and of the warm-up are searched.
    pub fn units_of(&self, number: u64) -> u32 {
        let (word, bit) = bit_position(number);
        let is_meant = |key: &PageKey| message_number(key.sequence()) >> PAGE_BITS_LOG2 == number >> PAGE_BITS_LOG2;
        let pages = self.index.iter().filter(|(key, _)| is_meant(key));
        pages.filter(|(_, page)| self.pages[**page][word] & bit != 0).count() as u32
    }

    pub fn merge(&mut self, other: &Self) -> MergeResult {
        let mut merged = MergeResult::default();
        for (&key, &theirs) in &other.index {
            let theirs = &other.pages[theirs];
            match self.open_page(key) {
                Some(ours) => merged.again += merge_page(&mut self.pages[ours], theirs),
                None => merged.full += count_ones(theirs),
            }
        }
        self.count += other.count - merged.again - merged.full;
        merged
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn count_without(&self, other: &Self) -> u64 {
        self.index.iter().map(|(&key, &page)| count_ones_without(&self.pages[page], other.page(key))).sum()
    }

    /// Returns the sequence numbers of the first `limit` messages that have recipients in `self` but not in `other`,
    /// each with the number of these recipients.
    pub fn messages_without(&self, other: &Self, limit: usize) -> Vec<(u64, u32)> {
        let mut keys: Vec<(PageKey, usize)> = self.index.iter().map(|(&key, &page)| (key, page)).collect();
        keys.sort_unstable_by_key(|(key, _)| (key.number, key.recipient));
        let mut messages: Vec<(u64, u32)> = Vec::new();
        for pages in keys.chunk_by(|(one, _), (other, _)| one.number == other.number) {
            let mut counts = BTreeMap::new();
            for (key, page) in pages {
                let theirs = other.page(*key);
                for (number, word) in self.pages[*page].iter().enumerate() {
                    let mut bits = word & !theirs.map_or(0, |theirs| theirs[number]);
                    while bits != 0 {
                        let sequence =
                            key.number << PAGE_BITS_LOG2 | (number as u64) << 6 | u64::from(bits.trailing_zeros());
                        *counts.entry(sequence).or_insert(0) += 1;
                        bits &= bits - 1;
                    }
                }
            }
            messages.extend(counts);
            if messages.len() >= limit {
                break;
            }
        }
        messages.truncate(limit);
        messages
    }

    /// Calls `found` for each message that is in both ledgers and has recipients in `self` that are not in `other`. The
    /// arguments of `found` are the message's sequence number, its recipients that are only in `self`, and its
    /// recipients in `other`.
    pub fn for_each_stranger(&self, other: &Self, mut found: impl FnMut(u64, &[u32], &[u32])) {
        let mut ours: BTreeMap<u64, Vec<PageKey>> = BTreeMap::new();
        for (&key, &page) in &self.index {
            if count_ones_without(&self.pages[page], other.page(key)) > 0 {
                ours.entry(key.number).or_default().push(key);
            }
        }
        let mut theirs: HashMap<u64, Vec<PageKey>> = HashMap::new();
        for key in other.index.keys().filter(|key| ours.contains_key(&key.number)) {
            theirs.entry(key.number).or_default().push(*key);
        }
        for (number, mut keys) in ours {
            let Some(others) = theirs.get_mut(&number) else { continue };
            keys.sort_unstable();
            others.sort_unstable();
            for word in 0..PAGE_WORDS {
                let bits = |ledger: &Self, key: &PageKey| ledger.page(*key).map_or(0, |page| page[word]);
                let strangers = |key: &PageKey| bits(self, key) & !bits(other, key);
                let known = others.iter().fold(0, |sum, key| sum | bits(other, key));
                // Each bit of a word stands for one message, so this compares 64 messages at once.
                let mut messages = keys.iter().fold(0, |sum, key| sum | strangers(key)) & known;
                while messages != 0 {
                    let bit = messages & messages.wrapping_neg();
                    messages ^= bit;
                    let with = |keys: &[PageKey], bits: &dyn Fn(&PageKey) -> u64| -> Vec<u32> {
                        keys.iter().filter(|key| bits(key) & bit != 0).map(|key| key.recipient).collect()
                    };
                    let sequence = number << PAGE_BITS_LOG2 | (word as u64) << 6 | u64::from(bit.trailing_zeros());
                    found(sequence, &with(&keys, &strangers), &with(others, &|key| bits(other, key)));
                }
            }
        }
    }

    /// Returns a ledger with only the messages whose numbers are in one of these ranges, including messages of the
    /// warm-up.
    pub fn within(&self, numbers: &[Range<u64>]) -> Self {
        let mut subset = Self { page_limit: self.page_limit, ..Self::with_limit(0) };
        for (&key, &page) in &self.index {
            let sequence = key.sequence();
            let first = message_number(sequence);
            let bits = |range: &Range<u64>| {
                let begin = range.start.clamp(first, first + PAGE_BITS) - first;
                begin..range.end.clamp(first, first + PAGE_BITS).saturating_sub(first)
            };
            let parts =
                numbers.iter().map(bits).filter(|bits| bits.start < bits.end && sequence < 2 * WARM_UP_SEQUENCE);
            for bits in parts {
                if let Some(kept) = subset.open_page(key) {
                    copy_bits(&mut subset.pages[kept], &self.pages[page], &bits);
                }
            }
        }
        subset.count = subset.pages.iter().map(count_ones).sum();
        subset
    }

    /// Returns a ledger with only the messages that were due in this stage of the load. Stages count from 1.
    pub fn of_load_stage(&self, stage: u8) -> Self {
        self.pages_where(|sequence| load_stage_of(sequence) == stage)
    }

    pub fn without_warm_up(&self) -> Self {
        self.pages_where(|sequence| sequence < WARM_UP_SEQUENCE)
    }

    /// Returns a copy of the ledger with only the pages for which `is_meant` is true. `is_meant` gets the first
    /// sequence number of a page. This is enough, because all messages of a page belong to the same stage of the load,
    /// and either all or none of them to the warm-up.
    fn pages_where(&self, is_meant: impl Fn(u64) -> bool) -> Self {
        let mut subset = Self { page_limit: self.page_limit, ..Self::with_limit(0) };
        for (&key, &page) in self.index.iter().filter(|(key, _)| is_meant(key.sequence())) {
            if let Some(kept) = subset.open_page(key) {
                subset.pages[kept].clone_from(&self.pages[page]);
            }
        }
        subset.count = subset.pages.iter().map(count_ones).sum();
        subset
    }

    pub fn bytes(&self) -> usize {
        (self.pages.len() + self.spare.len()) * PAGE_BYTES
    }

    /// Empties the ledger, but keeps up to `SPARE_PAGES` pages, so that a worker does not allocate them anew each time
    /// that its counts are merged.
    pub fn clear(&mut self) {
        let room = SPARE_PAGES.saturating_sub(self.spare.len());
        self.pages.truncate(room);
        self.pages.iter_mut().for_each(|page| page.fill(0));
        self.spare.append(&mut self.pages);
        self.index.clear();
        self.latest = None;
        self.count = 0;
    }

    /// Writes the ledger: the magic number, the number of pages, and each page. A page is written as its recipient, its
    /// page number, and a bit for each message. All numbers are little-endian.
    pub fn write_to(&self, mut to: impl Write) -> io::Result<()> {
        let mut order: Vec<(PageKey, usize)> = self.index.iter().map(|(&key, &page)| (key, page)).collect();
        order.sort_unstable();
        to.write_all(MAGIC)?;
        to.write_all(&(order.len() as u64).to_le_bytes())?;
        for (key, page) in order {
            to.write_all(&key.recipient.to_le_bytes())?;
            to.write_all(&key.number.to_le_bytes())?;
            to.write_all(&page_to_bytes(&self.pages[page]))?;
        }
        to.flush()
    }

    /// Reads a ledger that [`Self::write_to`] has written. Fails if the input is something else, or if its pages take
    /// more than [`Self::LIMIT_BYTES`]. Memory grows only with the bytes that are actually read, whatever the header
    /// announces.
    pub fn read_from(from: impl Read) -> io::Result<Self> {
        match Self::read_arrivals(from)? {
            [ledger, bounced, rewritten] if bounced.index.is_empty() && rewritten.index.is_empty() => Ok(ledger),
            _ => Err(malformed("it is longer than announced")),
        }
    }

    /// Writes the three ledgers of a sink one after the other: mail that arrived, mail that notifications reported as
    /// undeliverable, and mail that arrived only at addresses that the source had not named. Empty ledgers at the end
    /// are left out.
    pub fn write_arrivals(ledgers: [&Self; 3], mut to: impl Write) -> io::Result<()> {
        let last = ledgers.iter().rposition(|ledger| ledger.count() > 0).unwrap_or_default();
        ledgers[..=last].iter().try_for_each(|ledger| ledger.write_to(&mut to))
    }

    /// Reads the three ledgers of a sink that [`Self::write_arrivals`] has written. Fails if the input is something
    /// else, or if the pages of one ledger take more than [`Self::LIMIT_BYTES`].
    pub fn read_arrivals(mut from: impl Read) -> io::Result<[Self; 3]> {
        let mut ledgers = [Self::default(), Self::default(), Self::default()];
        ledgers[0].read_pages(&mut from)?;
        let mut first = [0];
        let mut last = 0;
        while from.read(&mut first)? == 1 {
            last += 1;
            let next = ledgers.get_mut(last).ok_or_else(|| malformed("it is longer than announced"))?;
            next.read_pages(&mut first.as_slice().chain(&mut from))?;
        }
        if last > 0 && ledgers[last].index.is_empty() {
            return Err(malformed("it is longer than announced"));
        }
        Ok(ledgers)
    }

    fn read_pages(&mut self, from: &mut impl Read) -> io::Result<()> {
        if &read_array::<8>(from)? != MAGIC {
            return Err(malformed("it does not start like a ledger"));
        }
        let pages = u64::from_le_bytes(read_array(from)?);
        (0..pages).try_for_each(|_| self.read_page(from))
    }

    fn read_page(&mut self, from: &mut impl Read) -> io::Result<()> {
        let recipient = u32::from_le_bytes(read_array(from)?);
        let number = u64::from_le_bytes(read_array(from)?);
        let key = PageKey { recipient, number };
        if number >> (64 - PAGE_BITS_LOG2) != 0 || self.index.contains_key(&key) {
            return Err(malformed("a page is out of range or duplicate"));
        }
        let bytes = read_array::<PAGE_BYTES>(from)?;
        let page = self.open_page(key).ok_or_else(|| malformed("it has too many pages"))?;
        for (word, bytes) in self.pages[page].iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        self.count += count_ones(&self.pages[page]);
        Ok(())
    }

    fn page(&self, key: PageKey) -> Option<&LedgerPage> {
        self.index.get(&key).map(|&page| &self.pages[page])
    }

    /// Returns the index in `pages` of the page for this recipient and this range of messages, and adds the page if
    /// needed. Returns `None` if the new page would exceed the limit.
    #[inline]
    fn open_page(&mut self, key: PageKey) -> Option<usize> {
        match self.latest {
            Some((latest, page)) if latest == key => Some(page),
            _ => self.select_page(key),
        }
    }

    fn select_page(&mut self, key: PageKey) -> Option<usize> {
        let page = match self.index.get(&key) {
            Some(&page) => page,
            None => self.add_page(key)?,
        };
        self.latest = Some((key, page));
        Some(page)
    }

    fn add_page(&mut self, key: PageKey) -> Option<usize> {
        if self.pages.len() >= self.page_limit {
            return None;
        }
        let page = self.pages.len();
        self.pages.push(self.spare.pop().unwrap_or_else(|| Box::new([0; PAGE_WORDS])));
        self.index.insert(key, page);
        Some(page)
    }
}

/// Finds the bit of a sequence number in its page. Returns the index of the bit's 64-bit word, and the bit's mask.
fn bit_position(sequence: u64) -> (usize, u64) {
    ((sequence >> 6) as usize % PAGE_WORDS, 1 << (sequence & 63))
}

/// Sets all bits in `ours` that are set in `theirs`. Returns how many of these bits were already set in `ours`.
fn merge_page(ours: &mut LedgerPage, theirs: &LedgerPage) -> u64 {
    let mut again = 0;
    for (ours, theirs) in ours.iter_mut().zip(theirs.iter()) {
        again += u64::from((*ours & theirs).count_ones());
        *ours |= theirs;
    }
    again
}

/// Copies the bits in the range `bits` from `page` to `kept`. The other bits of `kept` do not change.
fn copy_bits(kept: &mut LedgerPage, page: &LedgerPage, bits: &Range<u64>) {
    for (number, (kept, word)) in kept.iter_mut().zip(page.iter()).enumerate() {
        let first = number as u64 * 64;
        let below = |end: u64| match end.saturating_sub(first) {
            0 => 0,
            64.. => u64::MAX,
            bits => (1 << bits) - 1,
        };
        *kept |= word & below(bits.end) & !below(bits.start);
    }
}

fn count_ones(page: &LedgerPage) -> u64 {
    page.iter().map(|word| u64::from(word.count_ones())).sum()
}

fn count_ones_without(page: &LedgerPage, other: Option<&LedgerPage>) -> u64 {
    let Some(other) = other else { return count_ones(page) };
    page.iter().zip(other.iter()).map(|(ours, theirs)| u64::from((ours & !theirs).count_ones())).sum()
}

fn page_to_bytes(page: &LedgerPage) -> [u8; PAGE_BYTES] {
    let mut bytes = [0; PAGE_BYTES];
    for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(page.iter()) {
        *bytes = word.to_le_bytes();
    }
    bytes
}

fn read_array<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a mailrun ledger: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_new_once() {
        let mut ledger = Ledger::default();
        for (sequence, recipient) in [(0, 0), (0, 1), (32_767, 0), (32_768, 0), (u64::MAX, 1023), (63, 0), (64, 0)] {
            assert!(!ledger.contains(sequence, recipient));
            assert_eq!(ledger.mark(sequence, recipient), MarkResult::First);
            assert_eq!(ledger.mark(sequence, recipient), MarkResult::Again);
            assert!(ledger.contains(sequence, recipient));
        }
        assert_eq!(ledger.count(), 7);
    }

    #[test]
    fn a_full_ledger_says_so_and_keeps_what_it_has() {
        let mut ledger = Ledger::with_limit(2 * PAGE_BYTES);
        assert_eq!(ledger.mark(0, 0), MarkResult::First);
        assert_eq!(ledger.mark(1 << 40, 0), MarkResult::First);
        assert_eq!(ledger.mark(1 << 50, 0), MarkResult::Full);
        assert_eq!(ledger.mark(0, 0), MarkResult::Again);
        assert_eq!((ledger.count(), ledger.bytes()), (2, 2 * PAGE_BYTES));
    }

    #[test]
    fn merging_counts_what_both_had_and_what_did_not_fit() {
        let mut ours = Ledger::with_limit(PAGE_BYTES);
        let mut theirs = Ledger::default();
        (0..10).for_each(|sequence| _ = ours.mark(sequence, 0));
        (5..15).for_each(|sequence| _ = theirs.mark(sequence, 0));
        (0..3).for_each(|sequence| _ = theirs.mark(sequence, 1));
        assert_eq!(ours.merge(&theirs), MergeResult { again: 5, full: 3 });
        assert_eq!(ours.count(), 15);
        assert_eq!(theirs.count_without(&ours), 3);
        assert_eq!(ours.count_without(&theirs), 5);
    }

    #[test]
    fn units_are_removed_one_by_one_and_together() {
        let mut ledger = Ledger::default();
        let mut others = Ledger::default();
        (0..10).for_each(|sequence| _ = ledger.mark(sequence, 3));
        (8..12).for_each(|sequence| _ = others.mark(sequence, 3));
        (0..10).for_each(|sequence| _ = others.mark(sequence, 4));
        assert_eq!([ledger.unmark(5, 3), ledger.unmark(5, 3), ledger.unmark(5, 4)], [true, false, false]);
        assert_eq!((ledger.remove(&others), ledger.count()), (2, 7));
        assert_eq!((ledger.remove(&others), ledger.contains(8, 3)), (0, false));
    }

    #[test]
    fn strangers_are_found_among_the_units_of_known_messages() {
        let [mut known, mut arrived] = [Ledger::default(), Ledger::default()];
        for sequence in [1, 40_000] {
            [7, 9].into_iter().for_each(|recipient| _ = known.mark(sequence, recipient));
        }
        for (sequence, recipient) in [(1, 9), (1, 2), (1, 800), (2, 800), (40_000, 7), (40_000, 9), (90_000, 1)] {
            arrived.mark(sequence, recipient);
        }
        let mut found = Vec::new();
        arrived.for_each_stranger(&known, |sequence, strangers, known| {
            found.push((sequence, strangers.to_vec(), known.to_vec()));
        });
        assert_eq!(found, [(1, vec![2, 800], vec![7, 9])], "message 2 is unknown, and 40,000 has no stranger");
    }

    #[test]
    fn the_units_of_some_messages_are_found_in_the_warm_up_too() {
        let mut ledger = Ledger::default();
        for sequence in (0..100_000).step_by(3) {
            ledger.mark(sequence, 0);
            ledger.mark(sequence | WARM_UP_SEQUENCE, 2);
        }
        ledger.mark(5 * WARM_UP_SEQUENCE, 0);
        for (first, second) in
            [(10..11, 0..0), (9..10, 0..0), (0..64, 0..0), (63..40_001, 40_000..99_999), (0..1 << 48, 0..9)]
        {
            let ranges = [first, second];
            let subset = ledger.within(&ranges);
            let is_meant = |sequence: u64| ranges.iter().any(|range| range.contains(&sequence));
            let expected: Vec<u64> = (0..100_000).step_by(3).filter(|sequence| is_meant(*sequence)).collect();
            assert_eq!(subset.count(), 2 * expected.len() as u64, "{ranges:?}");
            assert!(expected.iter().all(|sequence| subset.contains(*sequence, 0)));
            assert!(expected.iter().all(|sequence| subset.contains(sequence | WARM_UP_SEQUENCE, 2)));
        }
    }

    #[test]
    fn a_cleared_ledger_reuses_clean_pages_and_keeps_few() {
        let mut ledger = Ledger::default();
        (0..1000).for_each(|page| _ = ledger.mark(page << PAGE_BITS_LOG2, 0));
        ledger.clear();
        assert_eq!((ledger.count(), ledger.bytes()), (0, SPARE_PAGES * PAGE_BYTES));
        assert_eq!(ledger.mark(0, 0), MarkResult::First);
        assert_eq!((ledger.count(), ledger.bytes()), (1, SPARE_PAGES * PAGE_BYTES));
    }

    fn written() -> Vec<u8> {
        let mut ledger = Ledger::default();
        ledger.mark(1, 0);
        ledger.mark(99_999, 3);
        let mut bytes = Vec::new();
        ledger.write_to(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_is_no_ledger_is_refused() {
        let good = written();
        assert_eq!(Ledger::read_from(good.as_slice()).unwrap().count(), 2);
        let one_page = 12 + PAGE_BYTES;
        let twice = [&good[..16], &good[16..16 + one_page], &good[16..16 + one_page]].concat();
        let mut many = good.clone();
        many[8..16].fill(0xff);
        let mut number = good.clone();
        number[20..28].fill(0xff);
        let longer = [good.as_slice(), b"x"].concat();
        for bad in [b"".as_slice(), b"MRLEDGR2", &good[..good.len() - 1], &twice, &many, &number, &longer] {
            assert!(Ledger::read_from(bad).is_err());
        }
    }

    #[test]
    fn a_sink_writes_what_arrived_and_what_was_reported_as_undeliverable() {
        let arrived = Ledger::read_from(written().as_slice()).unwrap();
        let mut bounced = Ledger::default();
        bounced.mark(7, 1);
        let none = Ledger::default();
        for [bounced, rewritten] in [[&none, &none], [&bounced, &none], [&none, &arrived], [&bounced, &arrived]] {
            let mut bytes = Vec::new();
            Ledger::write_arrivals([&arrived, bounced, rewritten], &mut bytes).unwrap();
            let [first, second, third] = Ledger::read_arrivals(bytes.as_slice()).unwrap();
            assert_eq!(
                (first.count(), second.count(), second.contains(7, 1), third.count()),
                (2, bounced.count(), bounced.count() > 0, rewritten.count())
            );
            assert_eq!(
                Ledger::read_from(bytes.as_slice()).is_ok(),
                bounced.count() + rewritten.count() == 0,
                "nobody takes one for the other"
            );
            assert!(Ledger::read_arrivals([&bytes[..], b"M"].concat().as_slice()).is_err());
            assert!(Ledger::read_arrivals(&bytes[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    fn an_endless_ledger_is_cut_off() {
        let pages = (0u64..).flat_map(|number| {
            let head = [0u32.to_le_bytes().as_slice(), &number.to_le_bytes()].concat();
            head.into_iter().chain([0; PAGE_BYTES])
        });
        let endless: Vec<u8> = MAGIC.iter().copied().chain([0xff; 8]).chain(pages).take(100_000).collect();
        let error = Ledger::with_limit(16 * PAGE_BYTES).read_pages(&mut endless.as_slice()).unwrap_err();
        assert!(error.to_string().contains("too many pages"), "{error}");
    }
}
