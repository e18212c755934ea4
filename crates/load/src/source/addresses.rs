//! Sender and recipient addresses: a constant one, or a pattern that gives each message its own.
//!
//! ```text
//! to@example.com                                               always this one
//! user{0..9999}@{a.example:70,b.example:20,c.example:10}       a number, and one of three domains by weight
//! {000..999}                                                   numbers padded as the smaller one is written
//! {{x}}@example.com                                            a brace itself is written twice
//! ```
//! The ledger tells the recipients of a message apart by the number, below 1024 and of at most four digits, that ends
//! the local part ([`journey::trace::recipient_number`]). To make this possible, and to need no page of memory for each
//! of a thousand numbers, an address gets `+N` at the end of its local part, where N is its place in the message, if
//!
//! - messages may have several recipients (a literal address that ends in no digit gets the bare N), or
//! - the numbers of a pattern that end the local part are more than 64 different ones to the ledger: `user{0..9999}`
//!   becomes `user17+0`. The ledger reads no numbers of five digits (`user{00000..09999}`), or with a letter after.
//!
//! If a message goes to several patterns, an address stays as it is if its number is always the same and no earlier
//! pattern has it ([`distinct_numbers`]); the others get `+N`, N being a free number.
use super::distribution::{parse_weight, weight_error};
use super::random::{SeededRng, scale};
use journey::trace::{MAX_RECIPIENTS, recipient_number};
use memchr::memrchr;
use smtp::Path;
use std::collections::BTreeSet;
use std::io::Write;

/// Number of different numbers at the end of the local part that the ledger can store well: pages of 4 KB each for
/// every 32,768 messages.
const MAX_LEDGER_NUMBERS: u64 = 64;
/// Largest number of digits that the ledger reads.
const MAX_LEDGER_DIGITS: usize = 4;
/// Largest number of combinations of words that are checked before the run.
const MAX_COMBINATIONS: usize = 100_000;

/// An address, or a pattern of addresses, all of them well-formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressPattern {
    expression: String,
    parts: Vec<PatternPart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternPart {
    Text(String),
    Number {
        least: u64,
        most: u64,
        digits: usize,
    },
    OneOf {
        choices: Vec<WeightedText>,
        total_weight: u64,
    },
    /// The message's number; in texts only, not in addresses.
    MessageNumber,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct WeightedText {
    text: String,
    weight: u64,
}

/// Domains of a pattern's addresses, in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PatternDomains {
    pub(super) names: Vec<String>,
    /// Set if there are more.
    pub(super) is_cut: bool,
}

/// The characters between the pattern's local part and `@`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecipientNumbering {
    /// Nothing: there is one recipient, and the ledger takes its address unchanged.
    Bare,
    /// The place in the message.
    Digits,
    /// `+` and the place in the message.
    PlusDigits,
}

impl AddressPattern {
    /// Parses a pattern of addresses.
    ///
    /// # Errors
    /// If it is malformed: the mistake, and the correct form.
    pub fn parse(typed: &str) -> Result<Self, String> {
        let pattern = Self { expression: typed.to_owned(), parts: parse_parts(typed)? };
        pattern.check(RecipientNumbering::Bare)?;
        Ok(pattern)
    }

    /// Parses a pattern of texts that need not be addresses; in it `{n}` is the message's number.
    ///
    /// # Errors
    /// If it is malformed, or `fits` refuses one of its texts.
    pub(crate) fn text(typed: &str, fits: impl Fn(&[u8]) -> Result<(), String>) -> Result<Self, String> {
        let mut pieces = parse_parts(typed)?;
        for piece in &mut pieces {
            if matches!(piece, PatternPart::OneOf { choices, .. } if matches!(choices.as_slice(), [word] if word.text == "n"))
            {
                *piece = PatternPart::MessageNumber;
            }
        }
        let pattern = Self { expression: typed.to_owned(), parts: pieces };
        pattern.check_all(|text| fits(&text).map_err(|why| pattern.address_error(&text, &why)))?;
        Ok(pattern)
    }

    /// Appends the text of the message with that number to `out`.
    pub(super) fn write_text(&self, chance: &mut SeededRng, number: u64, out: &mut Vec<u8>) {
        for piece in &self.parts {
            match piece {
                PatternPart::MessageNumber => push_number(number, 1, out),
                piece => piece.write(chance, out),
            }
        }
    }

    /// The pattern as the user gave it.
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// The address, if it is always the same.
    pub(super) fn literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            [PatternPart::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Numbering of this pattern's recipients if messages have up to `most` of them.
    pub(super) fn numbering(&self, most: u64) -> RecipientNumbering {
        match self.literal() {
            Some(_) if most <= 1 => RecipientNumbering::Bare,
            Some(text) if !ends_in_digit(local_part(text)) => RecipientNumbering::Digits,
            None if most <= 1 && self.ledger_numbers() <= MAX_LEDGER_NUMBERS => RecipientNumbering::Bare,
            _ => RecipientNumbering::PlusDigits,
        }
    }

    /// Appends an address to `out`, for the recipient at `place` of its message.
    pub(super) fn write(&self, chance: &mut SeededRng, numbering: RecipientNumbering, place: u32, out: &mut Vec<u8>) {
        let start = out.len();
        for piece in &self.parts {
            piece.write(chance, out);
        }
        append_number(numbering, place, start, out);
    }

    /// The number that the ledger reads in its addresses, if that is always the same.
    fn constant_number(&self) -> Option<u32> {
        let choices: Vec<usize> = self.parts.iter().map(PatternPart::choice_count).collect();
        (self.ledger_numbers() == 1).then(|| recipient_number(&self.combination(0, &choices)))
    }

    /// Number of different numbers that the ledger would read at the end of the local part.
    fn ledger_numbers(&self) -> u64 {
        let mut numbers = 1_u64;
        let mut digits = 0_usize;
        for piece in self.local_part_parts().iter().rev() {
            let (count, width, goes_on) = piece.trailing_numbers();
            numbers = numbers.saturating_mul(count);
            digits += width;
            if !goes_on {
                break;
            }
        }
        if digits > MAX_LEDGER_DIGITS { 1 } else { numbers.min(u64::from(MAX_RECIPIENTS)) }
    }

    /// The pieces of the local part; all pieces if the `@` is within a choice of words.
    fn local_part_parts(&self) -> Vec<PatternPart> {
        let mut local = Vec::new();
        for piece in &self.parts {
            match piece {
                PatternPart::Text(text) if text.contains('@') => {
                    local.push(PatternPart::Text(local_part(text).to_owned()));
                    return local;
                }
                PatternPart::OneOf { choices: words, total_weight: total }
                    if words.iter().any(|word| word.text.contains('@')) =>
                {
                    let words = words
                        .iter()
                        .map(|word| WeightedText { text: local_part(&word.text).to_owned(), ..word.clone() });
                    local.push(PatternPart::OneOf { choices: words.collect(), total_weight: *total });
                    return local;
                }
                piece => local.push(piece.clone()),
            }
        }
        local
    }

    /// The domains of its addresses, at most that many.
    pub(super) fn domains(&self, most: usize) -> PatternDomains {
        let mut found = PatternDomains::default();
        let mut ends = vec![String::new()];
        for piece in self.parts.iter().rev() {
            let mut longer: Vec<String> = Vec::new();
            for end in &ends {
                for text in piece.texts(most + 1) {
                    let whole = text + end;
                    match whole.rsplit_once('@') {
                        Some((_, domain)) => found.names.push(domain.to_ascii_lowercase()),
                        None => longer.push(whole),
                    }
                    // More ends than domains may be had: the rest of the pattern only makes them longer.
                    if longer.len() > most || found.names.len() > MAX_COMBINATIONS {
                        break;
                    }
                }
            }
            longer.dedup();
            ends = longer;
        }
        found.names.extend(ends.first().map(|_| String::new()));
        let mut known = BTreeSet::new();
        found.names.retain(|name| known.insert(name.clone()));
        found.is_cut = found.names.len() > most;
        found.names.truncate(most);
        found
    }

    /// Checks that every address of the pattern is well-formed (RFC 5321 §4.1.2).
    ///
    /// # Errors
    /// If an address is not: the first such address.
    pub(super) fn check(&self, numbering: RecipientNumbering) -> Result<(), String> {
        self.check_all(|mut address| {
            append_number(numbering, MAX_RECIPIENTS - 1, 0, &mut address);
            Path::mailbox(&address).map(drop).map_err(|why| self.address_error(&address, &why.to_string()))
        })
    }

    /// Checks every text of the pattern; of its numbers, the longest stands for all.
    fn check_all(&self, check: impl Fn(Vec<u8>) -> Result<(), String>) -> Result<(), String> {
        let choices: Vec<usize> = self.parts.iter().map(PatternPart::choice_count).collect();
        let combinations = choices.iter().try_fold(1_usize, |all, count| all.checked_mul(*count));
        let Some(combinations) = combinations.filter(|count| *count <= MAX_COMBINATIONS) else {
            return Err(format!(
                "{:?} has more than {MAX_COMBINATIONS} combinations of words; use a range, as in user{{0..9999}}",
                self.expression
            ));
        };
        (0..combinations).try_for_each(|combination| check(self.combination(combination, &choices)))
    }

    fn combination(&self, mut combination: usize, choices: &[usize]) -> Vec<u8> {
        let mut text = Vec::new();
        for (piece, count) in self.parts.iter().zip(choices) {
            piece.write_choice(combination % count, &mut text);
            combination /= count;
        }
        text
    }

    fn address_error(&self, text: &[u8], why: &str) -> String {
        let text = String::from_utf8_lossy(text);
        if text == self.expression {
            format!("{text:?}: {why}")
        } else {
            format!("{:?} gives {text:?}: {why}", self.expression)
        }
    }
}

impl PatternPart {
    fn write(&self, chance: &mut SeededRng, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => out.extend_from_slice(text.as_bytes()),
            Self::MessageNumber => {}
            Self::Number { least, most, digits } => {
                push_number(least + chance.below(most - least + 1), *digits, out);
            }
            Self::OneOf { choices: words, total_weight: total } => {
                let mut place = scale(chance.next_u64(), *total);
                for word in words {
                    if place < word.weight {
                        out.extend_from_slice(word.text.as_bytes());
                        return;
                    }
                    place -= word.weight;
                }
            }
        }
    }

    /// Its texts, at most that many.
    fn texts(&self, most: usize) -> Vec<String> {
        match self {
            Self::Text(text) => vec![text.clone()],
            Self::MessageNumber => vec![String::new()],
            Self::Number { least, most: last, digits } => {
                (*least..=*last).take(most).map(|number| format!("{number:0digits$}", digits = *digits)).collect()
            }
            Self::OneOf { choices, .. } => choices.iter().map(|choice| choice.text.clone()).collect(),
        }
    }

    /// Number of different texts, as far as well-formedness is concerned: all numbers are alike.
    fn choice_count(&self) -> usize {
        match self {
            Self::Text(_) | Self::Number { .. } | Self::MessageNumber => 1,
            Self::OneOf { choices: words, .. } => words.len(),
        }
    }

    fn write_choice(&self, choice: usize, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => out.extend_from_slice(text.as_bytes()),
            // The longest.
            Self::Number { most, digits, .. } => push_number(*most, *digits, out),
            Self::MessageNumber => push_number(u64::MAX, 1, out),
            Self::OneOf { choices: words, .. } => out.extend_from_slice(words[choice].text.as_bytes()),
        }
    }

    /// Facts about the digits that it ends in: the number of different values, the least number of digits, and whether
    /// the digits before it belong to them.
    fn trailing_numbers(&self) -> (u64, usize, bool) {
        match self {
            Self::Number { least, most, digits } => {
                (most - least + 1, digits.max(&digit_count(*least)).to_owned(), true)
            }
            Self::MessageNumber => (1, 0, false),
            Self::Text(text) => (1, trailing_digits(text), trailing_digits(text) == text.len()),
            Self::OneOf { choices: words, .. } => {
                let widths = || words.iter().map(|word| trailing_digits(&word.text));
                let goes_on = words.iter().any(|word| trailing_digits(&word.text) == word.text.len());
                let count = if widths().any(|width| width > 0) { words.len() as u64 } else { 1 };
                (count, widths().min().unwrap_or(0), goes_on)
            }
        }
    }
}

/// Patterns as the user gave them, in a list.
pub(super) fn expressions(patterns: &[AddressPattern]) -> String {
    patterns.iter().map(AddressPattern::expression).collect::<Vec<_>>().join(", ")
}

/// Numbering of each of several patterns that a message goes to, so that the ledger can tell its recipients apart; with
/// the number that the ledger reads in each.
///
/// There are fewer patterns than [`MAX_RECIPIENTS`].
pub(super) fn distinct_numbers(patterns: &[AddressPattern]) -> Vec<(RecipientNumbering, u32)> {
    let mut taken = BTreeSet::new();
    let own: Vec<Option<u32>> =
        patterns.iter().map(|pattern| pattern.constant_number().filter(|number| taken.insert(*number))).collect();
    let mut free = (0..MAX_RECIPIENTS).filter(|number| !taken.contains(number));
    let numbered = own.into_iter().map(|own| match own {
        Some(number) => (RecipientNumbering::Bare, number),
        None => (RecipientNumbering::PlusDigits, free.next().expect("there are more numbers than patterns")),
    });
    numbered.collect()
}

/// Parses the pieces of a pattern.
fn parse_parts(typed: &str) -> Result<Vec<PatternPart>, String> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut rest = typed;
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            text.push_str(brace);
            rest = after;
            continue;
        }
        let end = rest.find('}').filter(|_| brace == "{");
        let end = end.ok_or_else(|| format!("{typed:?} has an unpaired {brace:?}; write a literal brace twice"))?;
        if !text.is_empty() {
            pieces.push(PatternPart::Text(std::mem::take(&mut text)));
        }
        pieces.push(parse_choice(&rest[..end])?);
        rest = &rest[end + 1..];
    }
    text.push_str(rest);
    if !text.is_empty() {
        pieces.push(PatternPart::Text(text));
    }
    Ok(pieces)
}

/// Parses the text in braces: `0..9999` or `a:70,b:30`.
fn parse_choice(inside: &str) -> Result<PatternPart, String> {
    if let Some((least, most)) = inside.split_once("..")
        && !inside.contains(',')
        && inside.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        return parse_number_range(inside, least, most);
    }
    let words: Vec<WeightedText> = inside.split(',').map(parse_weighted_text).collect::<Result<_, _>>()?;
    let total = words.iter().map(|word| word.weight).sum();
    Ok(PatternPart::OneOf { choices: words, total_weight: total })
}

fn parse_number_range(inside: &str, least: &str, most: &str) -> Result<PatternPart, String> {
    let wrong = || format!("{{{inside}}} is not a valid range of numbers; use something like {{0..9999}}");
    let read = |digits: &str| digits.parse::<u64>().ok().filter(|number| *number < u64::MAX).ok_or_else(wrong);
    let digits = if least.starts_with('0') && least.len() > 1 { least.len() } else { 1 };
    let least = read(least)?;
    let most = read(most)?;
    if digits > 20 {
        return Err(wrong());
    }
    if least > most {
        Err(format!("{{{inside}}}: write the smaller value first"))
    } else {
        Ok(PatternPart::Number { least, most, digits })
    }
}

fn parse_weighted_text(typed: &str) -> Result<WeightedText, String> {
    // The colons of an address literal, [IPv6:::1], do not begin a weight.
    let (text, weight) = match typed.rsplit_once(':') {
        Some((text, weight)) if !weight.ends_with(']') => {
            (text, parse_weight(weight).ok_or_else(|| weight_error(typed, weight))?)
        }
        _ => (typed, 1),
    };
    if text.is_empty() || text.contains('{') {
        return Err(format!("{typed:?} is not a valid choice; use something like {{a.example:70,b.example:30}}"));
    }
    Ok(WeightedText { text: text.to_owned(), weight })
}

fn push_number(number: u64, digits: usize, out: &mut Vec<u8>) {
    write!(out, "{number:0digits$}").expect("a vector takes all");
}

/// Inserts the place into the address that begins at `start`.
fn append_number(numbering: RecipientNumbering, place: u32, start: usize, out: &mut Vec<u8>) {
    let plus = match numbering {
        RecipientNumbering::Bare => return,
        RecipientNumbering::Digits => "",
        RecipientNumbering::PlusDigits => "+",
    };
    let at = memrchr(b'@', &out[start..]).map_or(out.len(), |at| start + at);
    let end = out.len();
    write!(out, "{plus}{place}").expect("a vector takes all");
    let added = out.len() - end;
    out[at..].rotate_right(added);
}

fn local_part(address: &str) -> &str {
    address.rsplit_once('@').map_or(address, |(local, _)| local)
}

fn ends_in_digit(text: &str) -> bool {
    trailing_digits(text) > 0
}

fn trailing_digits(text: &str) -> usize {
    text.bytes().rev().take_while(u8::is_ascii_digit).count()
}

fn digit_count(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::super::random::RandomStream;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn pattern(typed: &str) -> AddressPattern {
        AddressPattern::parse(typed).unwrap_or_else(|why| panic!("{why}"))
    }

    fn address(pattern: &AddressPattern, numbering: RecipientNumbering, number: u64, place: u32) -> String {
        let mut out = b"kept".to_vec();
        pattern.write(&mut SeededRng::new(1, RandomStream::Recipient, number), numbering, place, &mut out);
        String::from_utf8(out).unwrap().strip_prefix("kept").unwrap().to_owned()
    }

    #[test]
    fn a_literal_address_stays_as_it_is() {
        for typed in ["to@example.com", "\"a b\"@example.com", "a@[IPv6:::1]", "postmaster", "", "jürgen@exämple.org"]
        {
            assert_eq!(pattern(typed).literal(), Some(typed));
        }
        assert_eq!(pattern("{{x}}@example.com").literal(), Some("{x}@example.com"));
        assert_eq!(pattern("user{1..2}@b").literal(), None);
    }

    fn several(typed: &[&str]) -> Vec<String> {
        let patterns: Vec<AddressPattern> = typed.iter().map(|typed| pattern(typed)).collect();
        let numbered = patterns.iter().zip(distinct_numbers(&patterns));
        numbered
            .map(|(pattern, (numbering, number))| {
                let address = address(pattern, numbering, 7, number);
                assert_eq!(recipient_number(address.as_bytes()), number, "{address}");
                address
            })
            .collect()
    }

    #[test]
    fn several_patterns_keep_the_addresses_that_can_be_told_apart() {
        for (typed, expected) in [
            (["a@x", "b@y", "c@x"], ["a@x", "b+1@y", "c+2@x"]),
            (["a1@x", "a2@x", "a@x"], ["a1@x", "a2@x", "a@x"]),
            (["a@x", "b@x", "c1@x"], ["a@x", "b+2@x", "c1@x"]),
            (["a7@x", "b7@y", "c12345@x"], ["a7@x", "b7+1@y", "c12345@x"]),
            (["a@x", "a@x", "A@x"], ["a@x", "a+1@x", "A+2@x"]),
            (["a@{x}", "u{3..3}@x", "u{00003..00003}@x"], ["a@x", "u3@x", "u00003+1@x"]),
        ] {
            assert_eq!(several(&typed), expected, "{typed:?}");
        }
        let drawn = several(&["user{0..9999}@x", "{a,b}@y", "{a1,b}@y"]);
        assert!(drawn[0].ends_with("+1@x") && !drawn[1].contains('+') && drawn[2].ends_with("+2@y"), "{drawn:?}");
    }

    #[test]
    fn a_pattern_gives_addresses_by_its_weights() {
        let pattern = pattern("user{0..99}@{a.example:70,b.example:20,c.example:10}");
        let mut domains = BTreeMap::new();
        let mut users = BTreeSet::new();
        for number in 0..20_000 {
            let address = address(&pattern, RecipientNumbering::Bare, number, 0);
            let (user, domain) = address.split_once('@').unwrap();
            *domains.entry(domain.to_owned()).or_insert(0_u32) += 1;
            users.insert(user.to_owned());
        }
        assert_eq!((users.len(), users.first().unwrap().as_str()), (100, "user0"));
        for (domain, expected) in [("a.example", 14_000), ("b.example", 4_000), ("c.example", 2_000)] {
            assert!(domains[domain].abs_diff(expected) < 300, "{domains:?}");
        }
        assert_eq!(
            address(&pattern, RecipientNumbering::Bare, 7, 0),
            address(&pattern, RecipientNumbering::Bare, 7, 0)
        );
    }

    #[test]
    fn numbers_are_padded_as_the_smaller_is_written() {
        let all: BTreeSet<String> =
            (0..100).map(|number| address(&pattern("u{08..11}@b"), RecipientNumbering::Bare, number, 0)).collect();
        assert_eq!(all.into_iter().collect::<Vec<_>>(), ["u08@b", "u09@b", "u10@b", "u11@b"]);
    }

    #[test]
    fn what_is_malformed_names_what_is_wrong() {
        for (typed, named) in [
            ("nobody", "nobody"),
            ("user{0..9@b", "has an unpaired"),
            ("user0..9}@b", "has an unpaired"),
            ("user{}@b", "not a valid choice"),
            ("user{a,}@b", "not a valid choice"),
            ("user{9..0}@b", "smaller value first"),
            ("user{0..}@b", "not a valid range"),
            ("user{..9}@b", "not a valid range"),
            ("user{0..99999999999999999999}@b", "not a valid range"),
            ("user{000000000000000000000..9}@b", "not a valid range"),
            ("u@{a:x,b}", "weight"),
            ("u@{a:0,b}", "weight"),
            ("u@{a b,c}", "a b"),
            ("a{b,.}{c,.}d@x", "a..d@x"),
            ("u{a,b}", "ua"),
            ("a@b{c,>\r\nDATA}", "gives"),
            ("u{{a,b}}{c", "has an unpaired"),
            ("{a{b,c}@d", "not a valid choice"),
        ] {
            let why = AddressPattern::parse(typed).expect_err(typed);
            assert!(why.contains(named), "{typed}: {why}");
        }
        let words = format!("{{{}}}", vec!["a"; 100].join(","));
        assert!(AddressPattern::parse(&format!("{words}{words}{words}@b")).unwrap_err().contains("combinations"));
        assert!(AddressPattern::parse(&format!("{}{{0..9999}}@b", "l".repeat(61))).unwrap_err().contains("too long"));
        assert!(pattern(&format!("{}{{0..9}}@b", "l".repeat(61))).check(RecipientNumbering::PlusDigits).is_err());
    }

    #[test]
    fn the_ledgers_number_comes_only_where_it_is_needed() {
        use RecipientNumbering::{Bare, Digits, PlusDigits};
        for (typed, one, several) in [
            ("to@example.com", Bare, Digits),
            ("bob7@example.com", Bare, PlusDigits),
            ("to+@example.com", Bare, Digits),
            ("u{a,b}@example.com", Bare, PlusDigits),
            ("u{1..50}@example.com", Bare, PlusDigits),
            ("u{1..64}@example.com", Bare, PlusDigits),
            ("u{1..65}@example.com", PlusDigits, PlusDigits),
            ("u{0..9999}@{a.example,b.example}", PlusDigits, PlusDigits),
            ("u{0..99999999}@example.com", PlusDigits, PlusDigits),
            ("u{00000..09999}@example.com", Bare, PlusDigits),
            ("u{10000..19999}@example.com", Bare, PlusDigits),
            ("u{0..9999}x@example.com", Bare, PlusDigits),
            ("u{0..9}{0..9}@example.com", PlusDigits, PlusDigits),
            ("u{0..9999}-{a,b}@example.com", Bare, PlusDigits),
            ("to@host{0..9999}.example", Bare, PlusDigits),
            ("u{0..999}{@a.example,@b.example}", PlusDigits, PlusDigits),
        ] {
            let pattern = pattern(typed);
            assert_eq!((pattern.numbering(1), pattern.numbering(5)), (one, several), "{typed}");
        }
    }

    #[test]
    fn places_are_numbers_that_the_sink_reads_back() {
        for typed in ["to@example.com", "bob7@b", "to+@b", "u{0..9999}@{a,b:2}", "u{0..9}{@a,@b.c}", "postmaster"] {
            let pattern = pattern(typed);
            for place in [0, 1, 9, 10, 999, 1_023] {
                let address = address(&pattern, pattern.numbering(1_024), 5, place);
                assert_eq!(recipient_number(address.as_bytes()), place, "{address}");
            }
        }
        assert_eq!(address(&pattern("a@b"), RecipientNumbering::Digits, 0, 1), "a1@b");
        assert_eq!(address(&pattern("a1@b"), RecipientNumbering::PlusDigits, 0, 2), "a1+2@b");
    }

    proptest! {
        #[test]
        fn bare_numbers_cost_the_ledger_little(least in 0_u64..2_000, more in 0_u64..20_000, pad in 1_usize..7, tail in "[a-z0-9]{0,2}") {
            let pattern = pattern(&format!("u{{{least:0pad$}..{}}}{tail}@example.com", least + more));
            prop_assume!(pattern.numbering(1) == RecipientNumbering::Bare);
            let numbers: BTreeSet<u32> = (0..3_000)
                .map(|number| recipient_number(address(&pattern, RecipientNumbering::Bare, number, 0).as_bytes()))
                .collect();
            prop_assert!(numbers.len() as u64 <= MAX_LEDGER_NUMBERS + 1, "{} of {}", numbers.len(), pattern.expression());
        }

        #[test]
        fn any_text_gives_addresses_or_a_reason(typed in "[a-c0-2{}.,:@+\"]{0,24}", number: u64, place in 0_u32..1_024) {
            match AddressPattern::parse(&typed) {
                Err(why) => prop_assert!(!why.is_empty()),
                Ok(pattern) => {
                    let bare = address(&pattern, RecipientNumbering::Bare, number, place);
                    prop_assert!(Path::mailbox(bare.as_bytes()).is_ok(), "{bare}");
                    let numbering = pattern.numbering(9);
                    if pattern.check(numbering).is_ok() {
                        let numbered = address(&pattern, numbering, number, place);
                        prop_assert!(Path::mailbox(numbered.as_bytes()).is_ok(), "{numbered}");
                        prop_assert_eq!(recipient_number(numbered.as_bytes()), place);
                    }
                }
            }
        }
    }
}
