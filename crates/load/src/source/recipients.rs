//! The recipients of messages: their addresses, and the numbers by which the ledger distinguishes the recipients of a
//! message.
//!
//! A number consists of some bits of the hash of the address. A message's only recipient needs no number if its address
//! is drawn from a pattern. If its address is constant, a number costs nothing, and shows whether mail arrived under
//! another address. For several recipients, the source draws addresses until their numbers differ
//! ([`RecipientNumbering::address_bits`]). More bits cost the ledger more memory, and fewer bits cost more draws.
//!
//! With `--tag-recipients`, the number is written into the address instead. A server may then rewrite the domain, as
//! long as it keeps the local part. `to@b` becomes `to0@b`, `to1@b` and so on. A pattern, or an address that ends in a
//! digit, gets `+0`.
use super::addresses::{AddressPattern, RecipientTag};
use anyhow::{Result, anyhow, bail};
use mailrun_measurement::trace::{MAX_RECIPIENTS, RecipientId, RecipientNumbering};
use mailrun_schedule::distribution::SeededRng;
use std::collections::{BTreeMap, BTreeSet};

/// Minimum number of bits of a recipient's number, for patterns with many addresses. With 6 bits, a message has 64
/// possible numbers, so the ledger takes 64 bits of memory per message.
const MIN_BITS: u32 = 6;
/// The ledger has this many numbers for each recipient of a message, so that two addresses rarely share a number.
const NUMBERS_PER_RECIPIENT: u64 = 8;
/// Minimum number of bits of a recipient's number if there are few addresses. These bits cost no memory, because the
/// ledger's memory then depends only on the number of addresses. With 16 bits, an address that the source did not name
/// has the number of a given recipient with a probability of only 1 in 65,536.
const MIN_BITS_OF_FEW: u32 = 16;
/// Maximum number of random draws for a recipient. After that, the pattern is searched for an address with a free
/// number.
const MAX_DRAWS: u32 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecipientTags {
    /// The ledger distinguishes recipients by their addresses, which stay as they are.
    Off,
    /// The source adds a number to the local part of each recipient.
    On,
}

#[derive(Clone, Debug)]
pub(super) struct Recipients {
    /// One pattern for each recipient of a message, or a single pattern for all of them.
    patterns: Vec<RecipientPattern>,
    numbering: RecipientNumbering,
    /// Numbers of constant addresses, which are recipients of every message. Addresses that are drawn from a pattern
    /// must have other numbers.
    reserved: Vec<u32>,
    /// Number of the only recipient, if all messages have exactly one.
    only: Option<u32>,
}

#[derive(Clone, Debug)]
struct RecipientPattern {
    pattern: AddressPattern,
    tag: RecipientTag,
    /// Number that is added to the recipient's address if there are several patterns. With a single pattern, the
    /// recipient's place in the message is added instead.
    number: u32,
}

impl Recipients {
    /// Prepares recipients for messages with up to `limit` recipients each. With several patterns, each recipient of a
    /// message has its own pattern.
    ///
    /// # Errors
    ///
    /// Fails if there are too few addresses, or if one is malformed.
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

    /// Appends the address of the recipient at this place to `out`, and its number to `numbers`. `numbers` must already
    /// contain the numbers of the message's earlier recipients, so that no number occurs twice.
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
/// Fails if there are too few addresses, or if one is malformed.
pub fn check_recipients(patterns: &[AddressPattern], limit: u64, tags: RecipientTags) -> Result<()> {
    Recipients::new(patterns, limit, tags).map(drop)
}

fn numbering_of_one(patterns: &[AddressPattern]) -> RecipientNumbering {
    match patterns {
        [pattern] if pattern.literal().is_some() => RecipientNumbering::address_bits(MIN_BITS_OF_FEW),
        _ => RecipientNumbering::SINGLE,
    }
}

/// Returns for each pattern how a number is added to its address and, if there are several patterns, which number. A
/// constant address that already ends in a number is not changed, unless an earlier address ends in the same number.
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

/// Returns the smallest number of address bits with which the recipients of every message can have different numbers.
///
/// # Errors
///
/// Fails if a message cannot have that many different addresses.
fn numbering_of(patterns: &[AddressPattern], limit: u64) -> Result<RecipientNumbering> {
    let wide_bits = (limit * NUMBERS_PER_RECIPIENT).next_power_of_two().ilog2().max(MIN_BITS);
    let is_wide = |pattern: &&AddressPattern| pattern.count() > 1 << wide_bits;
    // Map each possible address, as a hash of 32 bits, to whether a pattern consists of this address alone.
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
        // The hashes are sorted, so it is enough to compare neighbours.
        known.is_sorted_by(|left, right| number(left) < number(right))
    };
    let least_bits = if patterns.iter().any(|pattern| is_wide(&pattern)) { wide_bits } else { MIN_BITS_OF_FEW };
    let bits = (least_bits..32).find(|bits| are_different(*bits)).unwrap_or(32);
    Ok(RecipientNumbering::address_bits(bits))
}

/// Checks that each pattern with few addresses has an unused address for each message, whichever addresses are drawn
/// for the message's other recipients.
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

/// Suggests a pattern with enough addresses that resembles the pattern that the user typed.
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

    /// Returns the addresses of a message. Checks that their numbers differ and are the numbers
    /// that the sink reads.
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
