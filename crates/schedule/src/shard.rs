//! Divides a load among machines that do not communicate. Each machine computes its part from the
//! plan of the whole load.
//!
//! ```text
//! 3 shards, 8 messages     sequence numbers       due in the whole run at position
//!                          0/3   0 1 2            0 3 6
//!                          1/3   3 4 5            1 4 7
//!                          2/3   6 7              2 5
//! ```
//! Totals are divided exactly: the parts add up to the total, and their sizes differ by at most one. The sequence
//! numbers of a part are contiguous, so that its ledger, a bitmap of messages and recipients, stays small. In the whole
//! run, the parts take turns message by message, so that all of them together send as evenly as one source.
//!
//! This module does no I/O. The machines agree because they compute everything from the same plan.
use mailrun_measurement::trace::{MESSAGE_NUMBERS, RunId};
use sha2::{Digest, Sha256};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

pub const MAX_SHARDS: u32 = 65_536;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: u32,
    count: u32,
}

impl Shard {
    /// The whole load, which a single machine sends alone.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Creates part `index` of `count`, counted from 0, or returns `None` if there is no such part.
    pub fn new(index: u32, count: u32) -> Option<Self> {
        (index < count && count <= MAX_SHARDS).then_some(Self { index, count })
    }

    pub fn index(self) -> u32 {
        self.index
    }

    pub fn count(self) -> u32 {
        self.count
    }

    /// Returns how much of `total`, for example of all sessions, this part gets. If the division leaves a remainder of
    /// r, each of the first r parts gets one more.
    pub fn share(self, total: u64) -> u64 {
        let count = u64::from(self.count);
        total / count + u64::from(u64::from(self.index) < total % count)
    }

    /// Returns the position at which this part's share of `total` begins: the sum of the shares of all parts with a
    /// smaller index.
    fn before(self, total: u64) -> u64 {
        let count = u64::from(self.count);
        let index = u64::from(self.index);
        (total / count) * index + index.min(total % count)
    }

    /// Returns the range of sequence numbers of this part's messages. `messages` is the number of messages in the whole
    /// load, or `None` if the load ends at a certain time and not after a number of messages. In that case, all
    /// `MESSAGE_NUMBERS` numbers are divided among the parts.
    pub fn numbers(self, messages: Option<u64>) -> Range<u64> {
        let total = messages.unwrap_or(MESSAGE_NUMBERS).min(MESSAGE_NUMBERS);
        let first = self.before(total);
        first..first + self.share(total)
    }

    /// Checks that each part gets at least one session and one message.
    ///
    /// # Errors
    /// Returns an error if there are fewer sessions or fewer messages than parts.
    pub fn check_totals(self, messages: Option<u64>, sessions: u32) -> Result<(), String> {
        let totals = [("--sessions", Some(u64::from(sessions))), ("--messages", messages)];
        let small = totals.into_iter().find(|(_, total)| total.is_some_and(|total| total < u64::from(self.count)));
        match small {
            Some((option, total)) => {
                Err(format!("{option} {} is too few for {} parts", total.unwrap_or_default(), self.count))
            }
            None => Ok(()),
        }
    }

    /// Returns the position in the whole run of this part's next message, after the part has sent `sent` messages.
    pub fn position(self, sent: u64) -> u64 {
        sent.saturating_mul(u64::from(self.count)).saturating_add(u64::from(self.index))
    }

    /// Returns the rate at which this part sends if the whole load has the rate `per_s`. All parts send at the same
    /// rate.
    pub fn rate(self, per_s: f64) -> f64 {
        per_s / f64::from(self.count)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || format!("{text:?} is not a part of a load; use I/N, such as 0/8 for the first of eight parts");
        let (index, count) = text.split_once('/').ok_or_else(error)?;
        let read = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse::<u32>().ok().filter(|_| is_number).ok_or_else(error)
        };
        let index = read(index)?;
        let count = read(count)?;
        match (count, Self::new(index, count)) {
            (0, _) => Err(format!("{text:?}: a load has at least one part")),
            (MAX_SHARDS.., None) if count > MAX_SHARDS => {
                Err(format!("{text:?}: a load has at most {MAX_SHARDS} parts"))
            }
            (_, None) => Err(format!("{text:?}: parts count from 0, so the last of {count} is {}/{count}", count - 1)),
            (_, Some(shard)) => Ok(shard),
        }
    }
}

/// Hash of everything that decides which messages are sent and when. All parts of a run must have the same hash,
/// because they would otherwise send parts of different loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanHash([u8; 32]);

impl PlanHash {
    /// Hashes the words of a plan in their order and with their lengths, so that `ab`, `c` and `a`, `bc` have different
    /// hashes.
    pub fn of<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let mut hash = Sha256::new();
        for word in words {
            hash.update((word.len() as u64).to_le_bytes());
            hash.update(word.as_bytes());
        }
        Self(hash.finalize().into())
    }

    /// Returns the ID of the run that executes the plan at the given time. All parts of the run compute the same ID,
    /// although they do not communicate.
    pub fn run_id(&self, start_at: &str) -> RunId {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(start_at.as_bytes());
        let digest: [u8; 32] = hash.finalize().into();
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        RunId(id)
    }
}

impl fmt::Display for PlanHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offered_rate::{OfferedRate, RateStage};
    use crate::pacing::ArrivalSchedule;
    use mailrun_measurement::record::Arrival;
    use proptest::prelude::*;
    use std::time::Duration;

    fn parts(count: u32) -> impl Iterator<Item = Shard> {
        (0..count).map(move |index| Shard::new(index, count).unwrap())
    }

    #[test]
    fn a_table_of_parts() {
        assert_eq!("0/1".parse(), Ok(Shard::WHOLE));
        assert_eq!("7/8".parse::<Shard>().unwrap().to_string(), "7/8");
        for (text, named) in [
            ("8/8", "the last of 8 is 7/8"),
            ("1", "use I/N"),
            ("/8", "use I/N"),
            ("-1/8", "use I/N"),
            ("+1/8", "use I/N"),
            ("1/8/9", "use I/N"),
            ("0/0", "at least one part"),
            ("0/65537", "at most 65536"),
            ("0/99999999999", "use I/N"),
            ("", "use I/N"),
        ] {
            let error = text.parse::<Shard>().expect_err(text);
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn a_plan_is_its_words_and_a_run_is_its_plan_and_its_time() {
        let plan = PlanHash::of(["--seed=1", "--rate=5"]);
        assert_eq!(plan, PlanHash::of(["--seed=1", "--rate=5"]));
        assert_ne!(plan, PlanHash::of(["--seed=1--rate=5"]));
        assert_eq!(plan.to_string().len(), 64);
        let noon = plan.run_id("2026-11-23T12:00:00Z");
        assert_eq!(noon, plan.run_id("2026-11-23T12:00:00Z"));
        assert_ne!(noon, plan.run_id("2026-11-23T12:00:01Z"));
        assert_ne!(noon, PlanHash::of(["--seed=2", "--rate=5"]).run_id("2026-11-23T12:00:00Z"));
    }

    #[test]
    fn poisson_parts_have_draws_of_their_own_whatever_their_workers() {
        let first = |shard: Shard, worker: u64, workers: u64| {
            let number = shard.position(worker) as usize;
            let workers = (workers * u64::from(shard.count())) as usize;
            let offer = OfferedRate::Constant(100.0);
            ArrivalSchedule::new(Arrival::Poisson, offer, Duration::ZERO, number, workers, 1).due()
        };
        let shards: Vec<Shard> = parts(2).collect();
        let dues = [first(shards[0], 0, 1), first(shards[1], 0, 1)];
        assert_ne!(dues[0], dues[1]);
    }

    proptest! {
        #[test]
        fn parts_sum_to_the_total_and_numbers_cover_it_once(total in 0_u64..1_000_000, count in 1_u32..300) {
            let mut next = 0;
            for shard in parts(count) {
                let numbers = shard.numbers(Some(total));
                prop_assert_eq!(numbers.start, next);
                prop_assert_eq!(numbers.end - numbers.start, shard.share(total));
                prop_assert!(shard.share(total).abs_diff(total / u64::from(count)) <= 1);
                next = numbers.end;
            }
            prop_assert_eq!(next, total);
        }

        #[test]
        fn numbers_of_a_timed_run_never_overlap_nor_reach_the_warm_up(count in 1_u32..=MAX_SHARDS, index in 0_u32..MAX_SHARDS) {
            let index = index % count;
            let numbers = Shard::new(index, count).unwrap().numbers(None);
            prop_assert!(numbers.end <= MESSAGE_NUMBERS && numbers.end - numbers.start >= MESSAGE_NUMBERS / u64::from(count));
            if let Some(next) = Shard::new(index + 1, count) {
                prop_assert_eq!(next.numbers(None).start, numbers.end);
            }
        }

        #[test]
        fn positions_of_all_parts_are_those_of_one_source(total in 0_u64..2_000, count in 1_u32..40) {
            let mut all: Vec<u64> =
                parts(count).flat_map(|shard| (0..shard.share(total)).map(move |sent| shard.position(sent))).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..total).collect::<Vec<_>>());
        }

        #[test]
        fn parts_send_when_one_source_would(count in 1_u32..12, workers in 1_usize..5, messages in 1_usize..50) {
            let ramp = RateStage::parse("20s:10/s..300/s").unwrap();
            let offer = OfferedRate::Stages(vec![ramp]);
            for shard in parts(count) {
                let all = workers * count as usize;
                for worker in 0..workers {
                    let number = shard.position(worker as u64) as usize;
                    let mut schedule =
                        ArrivalSchedule::new(Arrival::Constant, offer.clone(), Duration::ZERO, number, all, 1);
                    for sent in 0..messages {
                        let position = shard.position((sent * workers + worker) as u64);
                        prop_assert_eq!(schedule.due(), Duration::from_secs_f64(offer.due_s(position as f64)));
                        schedule.advance();
                    }
                }
            }
        }
    }
}
