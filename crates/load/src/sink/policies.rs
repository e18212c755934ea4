//! Policies that remember what clients did before: rate limit, greylist, open transactions per
//! domain, tarpit and slow reading. None of them reads a clock, because the caller passes the time.
//! If sessions share a policy, the caller must lock it.
use mailrun_smtp::Domain;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::Duration;

/// A rate limit as a token bucket. It stores only the time at which the bucket will be full (GCRA, ITU-T I.371), so the
/// rate does not drift, and nothing has to refill the bucket.
///
/// ```text
/// tokens in the bucket now = burst − (full_at − now) × rate
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GcraLimiter {
    token_time: Duration,
    fill_time: Duration,
    full_at: Duration,
}

impl GcraLimiter {
    pub(super) fn new(rate_per_s: f64, burst: u32) -> Self {
        let token = Duration::from_secs_f64(1.0 / rate_per_s);
        Self { token_time: token, fill_time: token.saturating_mul(burst.max(1)), full_at: Duration::ZERO }
    }

    pub(super) fn take(&mut self, now: Duration) -> bool {
        let full_at = self.full_at.max(now).saturating_add(self.token_time);
        let has_one = full_at.saturating_sub(now) <= self.fill_time;
        if has_one {
            self.full_at = full_at;
        }
        has_one
    }
}

/// A separate rate limit for each key, such as a recipient.
#[derive(Debug)]
pub(super) struct KeyedLimiter {
    full_bucket: GcraLimiter,
    buckets: HashMap<u64, GcraLimiter>,
    /// Hasher with a random seed, so that no client can send keys that collide.
    hasher: RandomState,
}

impl KeyedLimiter {
    /// When there are this many keys, all full buckets are removed, to limit the memory to 5 MB. This changes no
    /// decision, because a new bucket for the same key is full as well. If no bucket is full, all buckets are removed.
    /// Each of their keys may then have another burst.
    const MAX_KEYS: usize = 100_000;

    pub(super) fn new(rate_per_s: f64, burst: u32) -> Self {
        let full_bucket = GcraLimiter::new(rate_per_s, burst);
        Self { full_bucket, buckets: HashMap::new(), hasher: RandomState::new() }
    }

    pub(super) fn take(&mut self, key: impl Hash, now: Duration) -> bool {
        if self.buckets.len() >= Self::MAX_KEYS {
            self.buckets.retain(|_, bucket| bucket.full_at > now);
        }
        if self.buckets.len() >= Self::MAX_KEYS {
            self.buckets.clear();
        }
        let key = self.hasher.hash_one(key);
        self.buckets.entry(key).or_insert_with(|| self.full_bucket.clone()).take(now)
    }
}

/// A greylist. Mail with a new triplet of client, sender and recipient is deferred at first, and accepted when it comes
/// again later (Harris 2003; RFC 6647 §2.4). If the list is full, it forgets the oldest triplet, whose mail then has to
/// wait again.
#[derive(Debug)]
pub(super) struct Greylist {
    delay: Duration,
    capacity: usize,
    /// Maps the hash of each triplet to the time at which the triplet was first seen.
    seen: HashMap<u64, Duration>,
    order: VecDeque<u64>,
    /// Hasher with a random seed, so that no client can send triplets that collide.
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Triplet<'a> {
    pub(super) client: std::net::IpAddr,
    pub(super) sender: &'a [u8],
    pub(super) recipient: &'a [u8],
}

impl Greylist {
    pub(super) fn new(delay: Duration, max_entries: usize) -> Self {
        let seen = HashMap::new();
        let order = VecDeque::new();
        Self { delay, capacity: max_entries.max(1), seen, order, hasher: RandomState::new() }
    }

    /// Returns true if the triplet was first seen at least `delay` ago, so that its mail is accepted. Remembers an
    /// unknown triplet as first seen at `now`.
    pub(super) fn passes(&mut self, triplet: Triplet<'_>, now: Duration) -> bool {
        let key = self.hasher.hash_one(triplet);
        if let Some(first) = self.seen.get(&key) {
            return now.saturating_sub(*first) >= self.delay;
        }
        if self.order.len() >= self.capacity
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        self.seen.insert(key, now);
        self.order.push_back(key);
        self.delay.is_zero()
    }
}

/// Limits the number of open transactions of each domain. A domain is forgotten when its last transaction ends.
#[derive(Debug)]
pub(super) struct DomainCap {
    limit: u32,
    open: HashMap<u64, u32>,
    hasher: RandomState,
}

/// Hash of a domain name. An open transaction keeps it, so that [`DomainCap`] can reduce the domain's count when the
/// transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DomainKey(u64);

impl DomainCap {
    pub(super) fn new(max: u32) -> Self {
        Self { limit: max, open: HashMap::new(), hasher: RandomState::new() }
    }

    pub(super) fn key(&self, name: &[u8]) -> DomainKey {
        DomainKey(self.hasher.hash_one(Domain::new(name)))
    }

    pub(super) fn acquire(&mut self, domain: DomainKey) -> bool {
        let open = self.open.get(&domain.0).copied().unwrap_or(0);
        let has_room = open < self.limit;
        if has_room {
            self.open.insert(domain.0, open + 1);
        }
        has_room
    }

    pub(super) fn release(&mut self, domain: DomainKey) {
        match self.open.get_mut(&domain.0) {
            Some(open) if *open > 1 => *open -= 1,
            _ => drop(self.open.remove(&domain.0)),
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.open.len()
    }
}

pub(super) fn tarpit(step: Duration, max: Duration, before: u32) -> Duration {
    step.saturating_mul(before).min(max)
}

/// Limits how many bytes of a message are read per second, by allowing 20 small reads per second. The wait comes before
/// each read, so that reading a message of n bytes takes at least n / rate.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ReadThrottle {
    octets_per_s: f64,
    /// Time before which the session must not read again.
    due: Duration,
}

impl ReadThrottle {
    const READS_PER_S: f64 = 20.0;

    pub(super) fn new(octets_per_s: u64, now: Duration) -> Self {
        let octets_per_s = octets_per_s.max(1) as f64;
        let mut throttle = Self { octets_per_s, due: now };
        throttle.due = now + throttle.duration_of(throttle.read_size());
        throttle
    }

    /// Returns the number of bytes that may be read now. If none may be read yet, returns as an error the time at which
    /// the caller should ask again.
    pub(super) fn next_read(&self, now: Duration) -> Result<usize, Duration> {
        if now < self.due { Err(self.due) } else { Ok(self.read_size()) }
    }

    /// Records that `octets` bytes have been read. A peer that was slower than the rate for some time cannot exceed
    /// the rate afterwards to catch up.
    pub(super) fn record_read(&mut self, octets: usize, now: Duration) {
        self.due = self.due.max(now.saturating_sub(self.duration_of(self.read_size()))) + self.duration_of(octets);
    }

    fn read_size(&self) -> usize {
        (self.octets_per_s / Self::READS_PER_S).max(1.0) as usize
    }

    fn duration_of(&self, octets: usize) -> Duration {
        Duration::from_secs_f64(octets as f64 / self.octets_per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    fn triplet<'a>(sender: &'a [u8], recipient: &'a [u8]) -> Triplet<'a> {
        Triplet { client: [127, 0, 0, 1].into(), sender, recipient }
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let mut bucket = GcraLimiter::new(100.0, 5);
        let count = (0..20).filter(|_| bucket.take(MS * 1000)).count();
        assert_eq!(count, 5);
        assert!(!bucket.take(MS * 1009) && bucket.take(MS * 1010) && !bucket.take(MS * 1010));
        assert!((0..5).all(|_| bucket.take(MS * 9000)) && !bucket.take(MS * 9000), "it fills up, and no further");
    }

    #[test]
    fn each_key_has_its_own_bucket_and_there_are_only_so_many() {
        let mut limits = KeyedLimiter::new(1.0, 2);
        let mut take = |key: usize, at: u32| limits.take(key, MS * at);
        assert_eq!([take(1, 1), take(1, 1), take(1, 1), take(2, 1)], [true, true, false, true]);
        assert!(take(1, 1001) && !take(1, 1001), "a token per second");
        assert!((0..KeyedLimiter::MAX_KEYS).all(|key| take(key + 10, 9_000)));
        assert!(take(1, 9_000) && take(1, 9_000) && !take(1, 9_000), "a bucket that was full is forgotten and full");
        assert!(limits.buckets.len() <= KeyedLimiter::MAX_KEYS, "{}", limits.buckets.len());
    }

    #[test]
    fn a_greylist_takes_who_comes_back_late_enough() {
        let mut list = Greylist::new(MS * 300, 100);
        assert!(!list.passes(triplet(b"a@b", b"c@d"), MS));
        assert!(!list.passes(triplet(b"a@b", b"c@d"), MS * 300));
        assert!(list.passes(triplet(b"a@b", b"c@d"), MS * 301));
        assert!(!list.passes(triplet(b"x@b", b"c@d"), MS * 301), "each triplet waits for itself");
        let other = Triplet { client: [127, 0, 0, 2].into(), ..triplet(b"a@b", b"c@d") };
        assert!(!list.passes(other, MS * 301));
    }

    #[test]
    fn a_greylist_forgets_the_oldest_first() {
        let mut list = Greylist::new(MS, 3);
        for name in [b"1", b"2", b"3", b"4"] {
            assert!(!list.passes(triplet(name, b"c@d"), MS));
        }
        assert_eq!((list.seen.len(), list.order.len()), (3, 3));
        assert!(list.passes(triplet(b"2", b"c@d"), MS * 9) && !list.passes(triplet(b"1", b"c@d"), MS * 9));
    }

    #[test]
    fn a_domain_has_so_many_transactions_and_then_none() {
        let mut domains = DomainCap::new(2);
        let one = domains.key(b"example.com");
        let other = domains.key(b"example.net");
        assert_eq!(one, domains.key(b"EXAMPLE.com"));
        assert!(domains.acquire(one) && domains.acquire(one) && !domains.acquire(one) && domains.acquire(other));
        domains.release(one);
        assert!(domains.acquire(one));
        [one, one, other].into_iter().for_each(|domain| domains.release(domain));
        assert_eq!(domains.len(), 0, "what is over takes no room");
    }

    #[test]
    fn a_tarpit_grows_up_to_its_limit() {
        let delays = [0, 1, 2, 9, u32::MAX].map(|before| tarpit(MS * 100, MS * 500, before));
        assert_eq!(delays, [Duration::ZERO, MS * 100, MS * 200, MS * 500, MS * 500]);
    }

    #[test]
    fn sips_take_their_time_however_little_comes() {
        for piece in [1, 7, usize::MAX] {
            let mut now = MS * 500;
            let mut left = 10_000_usize;
            let mut throttle = ReadThrottle::new(5_000, now);
            while left > 0 {
                match throttle.next_read(now) {
                    Err(then) => now = then,
                    Ok(limit) => {
                        let octets = limit.min(piece).min(left);
                        throttle.record_read(octets, now);
                        left -= octets;
                    }
                }
            }
            let elapsed = now - MS * 500;
            assert!((MS * 1990..MS * 2300).contains(&elapsed), "two seconds' worth in pieces of {piece}: {elapsed:?}");
        }
    }

    proptest! {
        /// In any period, the limiter must grant at most the burst plus what the rate allows in this period.
        #[test]
        fn a_bucket_never_gives_more_than_it_may(
            rate in 1.0..1000.0_f64, burst in 1..50_u32, steps in proptest::collection::vec(0..30_u64, 1..300)
        ) {
            let mut bucket = GcraLimiter::new(rate, burst);
            let mut now = Duration::ZERO;
            let mut times = Vec::new();
            for step in steps {
                now += MS * step as u32;
                if bucket.take(now) {
                    times.push(now);
                }
            }
            for (first, from) in times.iter().enumerate() {
                for (last, to) in times.iter().enumerate().skip(first) {
                    let allowed = f64::from(burst) + (*to - *from).as_secs_f64() * rate;
                    prop_assert!((last - first + 1) as f64 <= allowed + 1e-3);
                }
            }
        }

        #[test]
        fn domains_that_are_left_as_often_as_entered_are_empty(names in proptest::collection::vec("[a-c]", 0..40)) {
            let mut domains = DomainCap::new(3);
            let mut inside: Vec<DomainKey> = names.iter().map(|name| domains.key(name.as_bytes())).collect();
            inside.retain(|domain| domains.acquire(*domain));
            prop_assert!(domains.open.values().all(|open| *open <= 3));
            inside.into_iter().for_each(|domain| domains.release(domain));
            prop_assert_eq!(domains.len(), 0);
        }
    }
}
