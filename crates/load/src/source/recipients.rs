//! Chooses the recipients of each message, and the numbers by which the ledger distinguishes the recipients of the same
//! message.
//!
//! A recipient's number consists of some bits of the hash of the address ([`RecipientNumbering::address_bits`]). If two
//! recipients of a message have the same number, the source chooses another random address for one of them. With more
//! bits per number, the ledger takes more memory. With fewer bits, equal numbers are more frequent. If each message has
//! a single recipient, an address from a pattern always has the number 0. Even then, the number of a constant address
//! comes from its hash. This costs no memory, and shows whether mail arrived under another address.
//!
//! With `--tag-recipients`, the source instead writes the number into the local part of the address. A server may then
//! rewrite the domain, as long as it keeps the local part. For example, `to@b` becomes `to0@b`, `to1@b` and so on. If
//! the address comes from a pattern or its local part ends in a digit, a `+` separates the number: `to7@b` becomes
//! `to7+0@b`.
use super::addresses::{AddressPattern, RecipientTag};
use anyhow::{Result, anyhow, bail};
use mailrun_measurement::trace::{MAX_RECIPIENTS, RecipientId, RecipientNumbering};
use mailrun_schedule::distribution::SeededRng;
use std::collections::{BTreeMap, BTreeSet};

/// If a pattern has many addresses, a recipient's number consists of at least this many bits of the address's hash.
/// With 6 bits, there are 64 numbers. For each number, the ledger takes one bit of memory per message.
const MIN_BITS: u32 = 6;
/// For each recipient of a message, there are at least this many different numbers. For example, a message with 10
/// recipients needs at least 80, so that two random addresses rarely have the same number.
const NUMBERS_PER_RECIPIENT: u64 = 8;
/// If the patterns have few addresses, a recipient's number consists of at least this many bits of the address's hash.
/// More bits then cost no memory, because the ledger takes memory only for numbers that occur, at most one for each
/// address. With 16 bits, a wrong address to which the server delivers has the expected number with a probability of
/// only 1 in 65,536.
const MIN_BITS_OF_FEW: u32 = 16;
/// If another recipient of the message has the same number, the source chooses another random address, at most this
/// many times. After that, it tries the addresses of the pattern one after another until one has an unused number.
const MAX_DRAWS: u32 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecipientTags {
    /// The source does not change the addresses, and the ledger distinguishes recipients by the hashes of their
    /// addresses.
    Off,
    /// The source adds a number to the local part of each recipient.
    On,
}

#[derive(Clone, Debug)]
pub(super) struct Recipients {
    /// One pattern for each recipient of a message, or a single pattern for all of them.
    patterns: Vec<RecipientPattern>,
    numbering: RecipientNumbering,
    /// Recipient numbers of the constant addresses, for example of `ann@x`. Every message goes to these addresses, so
    /// an address from a pattern must have another number.
    reserved: Vec<u32>,
    /// Number of each message's only recipient, or `None` if messages may have several recipients.
    only: Option<u32>,
}

#[derive(Clone, Debug)]
struct RecipientPattern {
    pattern: AddressPattern,
    tag: RecipientTag,
    /// Number that `--tag-recipients` adds to the address if there are several patterns. With a single pattern, the
    /// source adds the position of the recipient in the message instead.
    number: u32,
}

impl Recipients {
    /// Checks the patterns, and chooses how to number the recipients of a message. A message has at most `limit`
    /// recipients. With several patterns, `limit` must be the number of patterns, because each message then has one
    /// recipient from each pattern.
    ///
    /// # Errors
    ///
    /// Fails if the patterns have too few addresses for `limit` recipients, or if an address is malformed.
    pub(super) fn new(patterns: &[AddressPattern], limit: u64, tags: RecipientTags) -> Result<Self> {
        if !(1..=u64::from(MAX_RECIPIENTS)).contains(&limit) {
            bail!("a message must have at least one recipient, and the ledger supports at most {MAX_RECIPIENTS}");
        }
        if patterns.is_empty() || patterns.iter().any(|pattern| pattern.literal() == Some("")) {
            bail!("--to: a message must have a recipient");
        }
        let (numbering, tagged) = match tags {
            _ if limit == 1 => (numbering_of_one(patterns), vec![(RecipientTag::Bare, 0); patterns.len()]),
            RecipientTags::On => (RecipientNumbering::TAG, tags_of(patterns)),
            RecipientTags::Off => (numbering_of(patterns, limit)?, vec![(RecipientTag::Bare, 0); patterns.len()]),
        };
        let mut all = Vec::new();
        for (pattern, (tag, number)) in patterns.iter().zip(tagged) {
            pattern.check(tag).map_err(|reason| anyhow!("--to {reason}"))?;
            all.push(RecipientPattern { pattern: pattern.clone(), tag, number });
        }
        let literals = patterns.iter().filter_map(AddressPattern::literal);
        let reserved: Vec<u32> =
            literals.map(|address| numbering.number(RecipientId::new(address.as_bytes()))).collect();
        let only = (limit == 1).then(|| reserved.first().copied().unwrap_or_default());
        Ok(Self { patterns: all, numbering, reserved, only })
    }

    pub(super) fn numbering(&self) -> RecipientNumbering {
        self.numbering
    }

    /// Returns true if all messages with the same number of recipients have the same recipients.
    pub(super) fn is_literal(&self) -> bool {
        self.patterns.iter().all(|recipient| recipient.pattern.literal().is_some())
    }

    /// Appends the address of a recipient to `out`, and the recipient's number to `numbers`. `place` is the index of
    /// the recipient in the message. `numbers` must already contain the numbers of the message's earlier recipients, so
    /// that no number occurs twice.
    pub(super) fn write(&self, rng: &mut SeededRng, place: u32, numbers: &mut Vec<u32>, out: &mut Vec<u8>) {
        let start = out.len();
        let (RecipientPattern { pattern, tag, .. }, tagged) = match self.patterns.as_slice() {
            [only] => (only, place),
            several => (&several[place as usize], several[place as usize].number),
        };
        pattern.write(rng, *tag, tagged, out);
        if let Some(number) = self.only {
            numbers.push(number);
            return;
        }
        let mut number = self.number(&out[start..]);
        let mut draws = 0;
        let is_drawn = *tag == RecipientTag::Bare && pattern.literal().is_none();
        while is_drawn && draws < MAX_DRAWS && !self.is_free(number, numbers) {
            draws += 1;
            out.truncate(start);
            pattern.write(rng, *tag, tagged, out);
            number = self.number(&out[start..]);
        }
        if draws == MAX_DRAWS {
            let count = pattern.count();
            let first = rng.below(count);
            let mut others = (first..count).chain(0..first);
            while !self.is_free(number, numbers)
                && let Some(place) = others.next()
            {
                out.truncate(start);
                pattern.write_at(place, out);
                number = self.number(&out[start..]);
            }
        }
        numbers.push(number);
    }

    fn number(&self, address: &[u8]) -> u32 {
        self.numbering.number(RecipientId::new(address))
    }

    fn is_free(&self, number: u32, numbers: &[u32]) -> bool {
        !numbers.contains(&number) && !self.reserved.contains(&number)
    }
}

/// Checks that messages can have up to `limit` recipients from these patterns.
///
/// # Errors
///
/// Fails if the patterns have too few addresses for `limit` recipients, or if an address is malformed.
pub fn check_recipients(patterns: &[AddressPattern], limit: u64, tags: RecipientTags) -> Result<()> {
    Recipients::new(patterns, limit, tags).map(drop)
}

fn numbering_of_one(patterns: &[AddressPattern]) -> RecipientNumbering {
    match patterns {
        [pattern] if pattern.literal().is_some() => RecipientNumbering::address_bits(MIN_BITS_OF_FEW),
        _ => RecipientNumbering::SINGLE,
    }
}

/// Returns for each pattern how `--tag-recipients` changes its addresses. With several patterns, also returns the
/// number of each pattern's recipient. A constant address among several patterns stays unchanged and has the number in
/// which its local part ends, or 0 if there is no such number below `MAX_RECIPIENTS`. If an earlier constant address
/// has the same number, or if the pattern is not constant, the source adds the lowest unused number to the address.
fn tags_of(patterns: &[AddressPattern]) -> Vec<(RecipientTag, u32)> {
    if let [pattern] = patterns {
        return vec![(pattern.tag(), 0)];
    }
    let mut numbers = BTreeSet::new();
    let mut own = |pattern: &AddressPattern| {
        let id = RecipientId::new(pattern.literal()?.as_bytes());
        Some(RecipientNumbering::TAG.number(id)).filter(|number| numbers.insert(*number))
    };
    let own: Vec<Option<u32>> = patterns.iter().map(&mut own).collect();
    let mut free = (0..MAX_RECIPIENTS).filter(|number| !numbers.contains(number));
    let tagged = own.into_iter().map(|own| match own {
        Some(number) => (RecipientTag::Bare, number),
        None => (RecipientTag::PlusDigits, free.next().unwrap_or_default()),
    });
    tagged.collect()
}

/// Chooses how many bits of an address's hash become the recipient's number. Takes at least the minimum, and more bits
/// if two addresses from patterns with few addresses would otherwise have the same number.
///
/// # Errors
///
/// Fails if the patterns do not have enough different addresses for `limit` recipients.
fn numbering_of(patterns: &[AddressPattern], limit: u64) -> Result<RecipientNumbering> {
    let wide_bits = (limit * NUMBERS_PER_RECIPIENT).next_power_of_two().ilog2().max(MIN_BITS);
    let is_wide = |pattern: &&AddressPattern| pattern.count() > 1 << wide_bits;
    // Each key is the 32-bit hash of an address that a pattern can produce. Its value is true if one of the patterns
    // can produce only this address.
    let mut known = BTreeMap::new();
    for pattern in patterns.iter().filter(|pattern| !is_wide(pattern)) {
        let mut address = Vec::new();
        for place in 0..pattern.count() {
            address.clear();
            pattern.write_at(place, &mut address);
            let hash = RecipientNumbering::address_bits(32).number(RecipientId::new(&address));
            let is_literal = pattern.literal().is_some();
            let has_literal = known.entry(hash).or_insert(false);
            if std::mem::replace(has_literal, *has_literal || is_literal) && is_literal {
                bail!(
                    "--to {}: a message cannot go to one address twice; remove it, or add --tag-recipients",
                    pattern.expression()
                );
            }
        }
    }
    if let [pattern] = patterns
        && !is_wide(&pattern)
        && (known.len() as u64) < limit
    {
        let addresses = if known.len() == 1 { "one address".to_owned() } else { format!("{} addresses", known.len()) };
        bail!(
            "--recipients {limit} needs as many different addresses, and --to {} is {addresses}; use a pattern such as \
             --to {}, or add --tag-recipients",
            pattern.expression(),
            pattern_for(pattern, limit)
        );
    }
    if let [_, _, ..] = patterns {
        check_free(patterns, is_wide)?;
    }
    let known: Vec<u32> = known.into_keys().collect();
    let are_different = |bits: u32| {
        let number = |hash: &u32| hash.checked_shr(32 - bits).unwrap_or_default();
        // The numbers are the upper bits of sorted hashes, so equal numbers would be neighbours.
        known.is_sorted_by(|left, right| number(left) < number(right))
    };
    let least_bits = if patterns.iter().any(|pattern| is_wide(&pattern)) { wide_bits } else { MIN_BITS_OF_FEW };
    let bits = (least_bits..32).find(|bits| are_different(*bits)).unwrap_or(32);
    Ok(RecipientNumbering::address_bits(bits))
}

/// Checks that each pattern with few addresses always has an unused address for its own recipient. Fails if the other
/// recipients of a message can take all addresses of the pattern.
fn check_free(patterns: &[AddressPattern], is_wide: impl Fn(&&AddressPattern) -> bool) -> Result<()> {
    let literals: BTreeSet<String> =
        patterns.iter().filter_map(AddressPattern::literal).map(str::to_ascii_lowercase).collect();
    let drawn: Vec<&AddressPattern> = patterns.iter().filter(|pattern| pattern.literal().is_none()).collect();
    for pattern in drawn.iter().filter(|pattern| !is_wide(pattern)) {
        let mut free = BTreeSet::new();
        for place in 0..pattern.count() {
            let mut address = Vec::new();
            pattern.write_at(place, &mut address);
            free.insert(String::from_utf8_lossy(&address).to_ascii_lowercase());
        }
        if free.difference(&literals).count() < drawn.len() {
            bail!(
                "--to {}: the other recipients can take all addresses of this pattern; use a longer one, or add \
                 --tag-recipients",
                pattern.expression()
            );
        }
    }
    Ok(())
}

/// Suggests a pattern with enough addresses, in the domain of the pattern that the user typed.
fn pattern_for(typed: &AddressPattern, limit: u64) -> String {
    let mut address = Vec::new();
    typed.write_at(0, &mut address);
    let address = String::from_utf8_lossy(&address);
    let domain = address.rsplit_once('@').map_or("example.com", |(_, domain)| domain);
    format!("'user{{0..{}}}@{domain}'", limit - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_schedule::distribution::RandomStream;

    fn patterns(typed: &[&str]) -> Vec<AddressPattern> {
        typed.iter().map(|typed| AddressPattern::parse(typed).unwrap()).collect()
    }

    fn recipients(typed: &[&str], most: u64, tags: RecipientTags) -> Result<Recipients> {
        Recipients::new(&patterns(typed), most, tags)
    }

    /// Writes the recipients of one message, and returns their addresses. Checks that the recipients have different
    /// numbers, and that a sink can compute each number from the address alone.
    fn message(recipients: &Recipients, number: u64, count: u32) -> Vec<String> {
        let mut rng = SeededRng::new(1, RandomStream::Recipient, number);
        let mut numbers = Vec::new();
        let mut addresses = Vec::new();
        for place in 0..count {
            let mut out = b"kept".to_vec();
            recipients.write(&mut rng, place, &mut numbers, &mut out);
            let address = String::from_utf8(out).unwrap().strip_prefix("kept").unwrap().to_owned();
            let read = recipients.numbering().number(RecipientId::new(address.as_bytes()));
            assert_eq!(numbers.last(), Some(&read), "{address}");
            addresses.push(address);
        }
        assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), numbers.len(), "{addresses:?}");
        addresses
    }

    #[test]
    fn recipients_are_the_addresses_that_were_typed() {
        for (typed, bits) in [("user{0..99}@x", 0), ("user{0..9999}@{a,b}.example", 0), ("bob7@x", 16), ("to+@x", 16)] {
            let one = recipients(&[typed], 1, RecipientTags::Off).unwrap();
            assert_eq!(one.numbering(), RecipientNumbering::address_bits(bits), "{typed}");
            assert!((0..100).all(|number| !message(&one, number, 1)[0].contains("+0")), "{typed}");
        }
        for (typed, most) in [
            ("user{0..9}@x", 10),
            ("user{0..9}@x", 2),
            ("user{0..999}@x", 1000),
            ("user{0..1024}@x", 3),
            ("user{0..99999999}@{a,b}.example", 50),
            ("{ann:1000000,bob:1}@x", 2),
            ("{a,A,b}@x", 2),
        ] {
            let several = recipients(&[typed], most, RecipientTags::Off).unwrap();
            for number in 0..20 {
                let addresses = message(&several, number, most as u32);
                assert_eq!(addresses.len() as u64, most, "{typed}");
                assert!(addresses.iter().all(|address| !address.contains('+')), "{addresses:?}");
            }
        }
        let each = recipients(&["ann@x", "bob@x", "u{0..9}@y", "u{5..6}@y"], 4, RecipientTags::Off).unwrap();
        for number in 0..50 {
            let addresses = message(&each, number, 4);
            assert_eq!(addresses[..2], ["ann@x", "bob@x"]);
        }
        let many: Vec<String> = (0..300).map(|number| format!("first.last.{number}@example.com")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let many = recipients(&many, 300, RecipientTags::Off).unwrap();
        assert_eq!(message(&many, 0, 300).len(), 300);
    }

    #[test]
    fn numbers_cost_the_ledger_little() {
        for (typed, most, bits) in [("u{0..9999}@x", 2, 6), ("u{0..9999}@x", 100, 10), ("u{0..99}@x", 100, 17)] {
            let numbering = recipients(&[typed], most, RecipientTags::Off).unwrap().numbering();
            let least = (0..=bits).map(RecipientNumbering::address_bits).collect::<Vec<_>>();
            assert!(least.contains(&numbering), "{typed}: {numbering:?}");
        }
    }

    #[test]
    fn too_few_addresses_are_refused_with_a_pattern() {
        for (typed, most, named) in [
            (
                &["ann@a.example"][..],
                3,
                "is one address; use a pattern such as --to 'user{0..2}@a.example', or add --tag",
            ),
            (&["u{0..9}@x"], 11, "is 10 addresses; use a pattern such as --to 'user{0..10}@x'"),
            (&["{a,A}@x"], 2, "is one address"),
            (&["a@x", "b@x", "A@x"], 3, "one address twice"),
            (&["u{0..1}@x", "u0@x", "u1@x"], 3, "take all addresses"),
            (&["u{0..1}@x", "u{0..1}@x", "u{0..1}@x"], 3, "take all addresses"),
            (&[], 1, "must have a recipient"),
            (&["a@x", ""], 2, "must have a recipient"),
            (&["a@x"], 0, "at least one"),
            (&["a@x"], 2000, "at most 1024"),
        ] {
            let error = recipients(typed, most, RecipientTags::Off).unwrap_err().to_string();
            assert!(error.contains(named), "{typed:?}: {error}");
        }
    }

    #[test]
    fn tags_are_written_where_recipients_need_them() {
        let tagged =
            |typed: &[&str], most| message(&recipients(typed, most, RecipientTags::On).unwrap(), 7, most as u32);
        assert_eq!(tagged(&["to@x"], 1), ["to@x"], "one recipient needs none");
        assert_eq!(tagged(&["to@x"], 3), ["to0@x", "to1@x", "to2@x"]);
        assert_eq!(tagged(&["bob7@x"], 2), ["bob7+0@x", "bob7+1@x"]);
        for (typed, expected) in [
            (["a@x", "b@y", "c@x"], ["a@x", "b+1@y", "c+2@x"]),
            (["a1@x", "a2@x", "a@x"], ["a1@x", "a2@x", "a@x"]),
            (["a@x", "b@x", "c1@x"], ["a@x", "b+2@x", "c1@x"]),
            (["a@x", "a@x", "A@x"], ["a@x", "a+1@x", "A+2@x"]),
        ] {
            assert_eq!(tagged(&typed, 3), expected, "{typed:?}");
        }
        let drawn = tagged(&["user{0..9999}@x", "a@y"], 2);
        assert!(drawn[0].ends_with("+1@x") && drawn[1] == "a@y", "{drawn:?}");
    }
}
