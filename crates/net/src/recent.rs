//! Tables that hold data about each client, and forget clients that were not seen recently. Their size is limited, so
//! that many unknown clients cannot fill the memory.
use mailrun_lock::lock;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard};

/// A map that forgets keys which were not used recently. It holds at most `capacity` keys, and always the
/// `capacity / 2` keys that were used last.
///
/// The keys are divided into an older and a younger generation. A key that is used moves to the younger generation.
/// When the younger generation is full, the map drops the older generation, and the full generation becomes the older
/// one. Thus each use costs one or two look-ups, and the map never searches for the oldest key.
#[derive(Debug)]
pub struct RecentMap<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    generation: usize,
}

impl<K: Hash + Eq, V> RecentMap<K, V> {
    /// Creates an empty map, without allocating memory. A capacity below two counts as two.
    pub fn new(capacity: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), generation: (capacity / 2).max(1) }
    }

    /// Returns the value of a key, and marks the key as used.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        if !self.young.contains_key(key) {
            let (key, value) = self.old.remove_entry(key)?;
            self.insert(key, value);
        }
        self.young.get_mut(key)
    }

    /// Returns the value of a key, and marks the key as used. If the map lacks the key, creates its value with `make`.
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        if !self.young.contains_key(&key) {
            let value = self.old.remove(&key).unwrap_or_else(make);
            self.make_room();
            return self.young.entry(key).or_insert(value);
        }
        // `young` contains the key here, so `make` is never called.
        self.young.entry(key).or_insert_with(make)
    }

    /// Sets the value of a key, and marks the key as used. May forget other keys, to make room.
    pub fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if !self.young.contains_key(&key) {
            self.make_room();
        }
        self.young.insert(key, value);
    }

    /// Forgets a key at once, and returns its value if the key was known.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.young.remove(key).or_else(|| self.old.remove(key))
    }

    /// Returns the number of keys that the map holds, which is at most its capacity.
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Returns true if the map holds no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes room in `young` for a key. If `young` is full, forgets the keys in `old`, and makes `young` the new `old`.
    fn make_room(&mut self) {
        if self.young.len() >= self.generation {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

/// Number of shards, which exceeds the usual number of workers, so that two workers rarely wait for the same lock.
const SHARDS: usize = 64;

/// Several tables, each with its own lock. The hash of a key decides to which table it belongs. The hash function has a
/// random seed, so that clients cannot choose keys that all go to one table.
#[derive(Debug)]
pub struct Shards<T> {
    shards: Box<[Mutex<T>]>,
    hasher: RandomState,
}

impl<T> Shards<T> {
    /// Creates 64 tables, whose capacities add up to at least `capacity`. `make` gets the capacity of one table.
    pub fn new(capacity: usize, make: impl Fn(usize) -> T) -> Self {
        let share = capacity.div_ceil(SHARDS);
        let shards = (0..SHARDS).map(|_| Mutex::new(make(share))).collect();
        Self { shards, hasher: RandomState::new() }
    }

    /// Locks and returns the table to which the key belongs.
    pub fn lock(&self, key: &impl Hash) -> MutexGuard<'_, T> {
        let number = self.hasher.hash_one(key) as usize % self.shards.len();
        // Use the table even if a thread has panicked while it held the lock. At worst, a counter is wrong by one.
        lock(&self.shards[number])
    }

    /// Returns all tables one after the other. Each is locked when the iterator reaches it.
    pub fn iter(&self) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.shards.iter().map(lock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn keys_that_are_used_stay() {
        let mut map = RecentMap::new(8);
        map.insert("kept", 7);
        for number in 0..1000 {
            map.insert(Box::leak(number.to_string().into_boxed_str()), number);
            assert_eq!(map.get_mut(&"kept"), Some(&mut 7), "{number}");
        }
        assert!(map.len() <= 8 && map.get_mut(&"0").is_none());
        assert_eq!(map.remove(&"kept"), Some(7));
        assert!(map.get_mut(&"kept").is_none());
    }

    proptest! {
        /// Makes random calls, and keeps a list of the keys in the order of their last use. The map must hold the
        /// latest `capacity / 2` keys of the list with their values, and at most `capacity` keys.
        #[test]
        fn the_latest_keys_are_held(
            capacity in 2..40_usize, steps in prop::collection::vec((0..60_u8, 0..4_u8), 0..400)
        ) {
            let mut map = RecentMap::new(capacity);
            // A removed key becomes `None` in this list, but still counts as one of the latest keys, because the map
            // may have dropped an older key to make room for it.
            let mut used: VecDeque<Option<(u8, usize)>> = VecDeque::new();
            for (number, (key, what)) in steps.into_iter().enumerate() {
                let at = used.iter().position(|one| one.is_some_and(|(one, _)| one == key));
                let known = at.and_then(|at| if what == 1 { used[at].take() } else { used.remove(at).flatten() });
                let value = match what {
                    0 => {
                        map.insert(key, number);
                        Some(number)
                    }
                    1 => {
                        prop_assert!(map.remove(&key).is_none_or(|value| Some((key, value)) == known));
                        None
                    }
                    2 => {
                        let value = *map.get_or_insert_with(key, || number);
                        prop_assert!(value == number || Some((key, value)) == known);
                        Some(value)
                    }
                    _ => {
                        let value = map.get_mut(&key).copied();
                        prop_assert!(value.is_none_or(|value| Some((key, value)) == known));
                        value
                    }
                };
                if let Some(value) = value {
                    used.push_front(Some((key, value)));
                }
                prop_assert!(map.len() <= capacity);
                for (key, value) in used.iter().take(capacity / 2).flatten() {
                    prop_assert!(map.young.get(key).or_else(|| map.old.get(key)) == Some(value), "{key} of {used:?}");
                }
            }
        }
    }

    #[test]
    fn shards_share_the_keys() {
        // The hash may put all 500 keys into one shard, so each shard needs room for all of them.
        let shards = Shards::new(SHARDS * 1000, RecentMap::new);
        for key in 0..500_u32 {
            shards.lock(&key).insert(key, key);
        }
        assert!(shards.iter().filter(|shard| !shard.is_empty()).count() > SHARDS / 2);
        assert_eq!(shards.lock(&77_u32).get_mut(&77), Some(&mut 77));
    }
}
