//! Sender and recipient addresses: either a constant address, or a pattern from which the source draws an address for
//! each message.
//!
//! ```text
//! to@example.com                                               always this one
//! user{0..9999}@{a.example:70,b.example:20,c.example:10}       a number, and one of three domains by weight
//! {000..999}                                                   numbers padded as the smaller one is written
//! {{x}}@example.com                                            a brace itself is written twice
//! ```
use mailrun_measurement::trace::MAX_RECIPIENTS;
use mailrun_schedule::distribution::{SeededRng, parse_weight, scale, weight_error};
use mailrun_smtp::Path;
use memchr::memrchr;
use std::collections::BTreeSet;
use std::io::Write;

/// Maximum number of combinations of words in a pattern. For example, `{a,b}@{x,y,z}` has six. The number is limited
/// because the source checks every combination before the run.
const MAX_COMBINATIONS: usize = 100_000;

/// An address, or a pattern of addresses. Every address that it can produce is well-formed.
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
    /// `{n}`, which stands for the message's number in the run. Only text patterns ([`AddressPattern::text`]) can
    /// contain it, for example a pattern for ENVID.
    MessageNumber,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct WeightedText {
    text: String,
    weight: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PatternDomains {
    pub(super) names: Vec<String>,
    /// True if the pattern has more domains than `names` lists.
    pub(super) is_cut: bool,
}

/// Form in which a recipient's number is added to the local part of its address. The sink reads the number there to
/// tell the recipients of a message apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecipientTag {
    /// No number is added to the address.
    Bare,
    Digits,
    /// The number follows a `+`, which separates it from digits at the end of the local part.
    PlusDigits,
}

impl AddressPattern {
    /// Parses a pattern of addresses such as `user{0..99}@example.com`. An error names the mistake and the correct
    /// form.
    pub fn parse(typed: &str) -> Result<Self, String> {
        let pattern = Self { expression: typed.to_owned(), parts: parse_parts(typed)? };
        pattern.check(RecipientTag::Bare)?;
        Ok(pattern)
    }

    /// Parses a pattern of texts, for example of ENVIDs. `{n}` in it stands for the number of the message.
    ///
    /// # Errors
    ///
    /// Fails if the pattern is malformed, or if the check `fits` rejects a text that the pattern can produce.
    pub(crate) fn text(typed: &str, fits: impl Fn(&[u8]) -> Result<(), String>) -> Result<Self, String> {
        let mut pieces = parse_parts(typed)?;
        for piece in &mut pieces {
            if matches!(piece, PatternPart::OneOf { choices, .. } if matches!(choices.as_slice(), [word] if word.text == "n"))
            {
                *piece = PatternPart::MessageNumber;
            }
        }
        let pattern = Self { expression: typed.to_owned(), parts: pieces };
        pattern.check_all(|text| fits(&text).map_err(|reason| pattern.address_error(&text, &reason)))?;
        Ok(pattern)
    }

    pub(super) fn write_text(&self, rng: &mut SeededRng, number: u64, out: &mut Vec<u8>) {
        for piece in &self.parts {
            match piece {
                PatternPart::MessageNumber => push_number(number, 1, out),
                piece => piece.write(rng, out),
            }
        }
    }

    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// Returns the address if it is constant, or `None` if the pattern can produce several addresses.
    pub(super) fn literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            [PatternPart::Text(text)] => Some(text),
            _ => None,
        }
    }

    pub(super) fn tag(&self) -> RecipientTag {
        match self.literal() {
            Some(text) if !ends_in_digit(local_part(text)) => RecipientTag::Digits,
            _ => RecipientTag::PlusDigits,
        }
    }

    /// Draws a random address and appends it to `out`. `tag` says how `number` is added to its local part.
    pub(super) fn write(&self, rng: &mut SeededRng, tag: RecipientTag, number: u32, out: &mut Vec<u8>) {
        let start = out.len();
        for piece in &self.parts {
            piece.write(rng, out);
        }
        append_tag(tag, number, start, out);
    }

    /// Returns the number of texts that the pattern can produce. A text that the pattern can produce in two ways counts
    /// twice.
    pub(crate) fn count(&self) -> u64 {
        self.parts.iter().fold(1, |count, piece| count.saturating_mul(piece.count()))
    }

    pub(crate) fn write_at(&self, mut place: u64, out: &mut Vec<u8>) {
        for piece in &self.parts {
            match piece {
                PatternPart::Number { least, digits, .. } => push_number(least + place % piece.count(), *digits, out),
                piece => piece.write_choice((place % piece.count()) as usize, out),
            }
            place /= piece.count();
        }
    }

    /// Returns a domain of the pattern's addresses in lower case, or `None` for the null sender.
    pub fn first_domain(&self) -> Option<String> {
        self.domains(1).names.into_iter().next().filter(|domain| !domain.is_empty())
    }

    /// Returns the domains of the pattern's addresses in lower case, at most `limit` of them.
    pub(super) fn domains(&self, limit: usize) -> PatternDomains {
        let mut domains = PatternDomains::default();
        let mut ends = vec![String::new()];
        // Build each domain backwards, from the last part of the address to the `@`.
        for piece in self.parts.iter().rev() {
            let mut longer: Vec<String> = Vec::new();
            for end in &ends {
                for text in piece.texts(limit + 1) {
                    let whole = text + end;
                    match whole.rsplit_once('@') {
                        Some((_, domain)) => domains.names.push(domain.to_ascii_lowercase()),
                        None => longer.push(whole),
                    }
                    // Each unfinished domain in `longer` leads to at least one whole domain, and the caller gets only
                    // `limit` domains. So stop once `longer` has more than `limit` entries.
                    if longer.len() > limit || domains.names.len() > MAX_COMBINATIONS {
                        break;
                    }
                }
            }
            longer.dedup();
            ends = longer;
        }
        domains.names.extend(ends.first().map(|_| String::new()));
        let mut known = BTreeSet::new();
        domains.names.retain(|name| known.insert(name.clone()));
        domains.is_cut = domains.names.len() > limit;
        domains.names.truncate(limit);
        domains
    }

    /// Checks that every address of the pattern is well-formed (RFC 5321 §4.1.2), even with the longest number that
    /// `tag` can add. The error names the first malformed address.
    pub(super) fn check(&self, tag: RecipientTag) -> Result<(), String> {
        self.check_all(|mut address| {
            append_tag(tag, MAX_RECIPIENTS - 1, 0, &mut address);
            Path::mailbox(&address).map(drop).map_err(|error| self.address_error(&address, &error.to_string()))
        })
    }

    /// Calls `check` for every text that the pattern can produce. Of a range such as `{0..99}`, uses only the largest
    /// number, because a text that is short enough with this number is also short enough with the others.
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

    fn address_error(&self, text: &[u8], reason: &str) -> String {
        let text = String::from_utf8_lossy(text);
        if text == self.expression {
            format!("{text:?}: {reason}")
        } else {
            format!("{:?} gives {text:?}: {reason}", self.expression)
        }
    }
}

impl PatternPart {
    fn write(&self, rng: &mut SeededRng, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => out.extend_from_slice(text.as_bytes()),
            Self::MessageNumber => {}
            Self::Number { least, most, digits } => {
                push_number(least + rng.below(most - least + 1), *digits, out);
            }
            Self::OneOf { choices: words, total_weight: total } => {
                let mut place = scale(rng.next_u64(), *total);
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

    /// Returns the texts of this part, such as `a` and `b` for `{a,b}`. A range gives only its first `limit` numbers.
    fn texts(&self, limit: usize) -> Vec<String> {
        match self {
            Self::Text(text) => vec![text.clone()],
            Self::MessageNumber => vec![String::new()],
            Self::Number { least, most: last, digits } => {
                (*least..=*last).take(limit).map(|number| format!("{number:0digits$}", digits = *digits)).collect()
            }
            Self::OneOf { choices, .. } => choices.iter().map(|choice| choice.text.clone()).collect(),
        }
    }

    /// Returns how many texts of this part `check_all` must check. All numbers of a range together count as one,
    /// because the longest stands for all of them.
    fn choice_count(&self) -> usize {
        match self {
            Self::Text(_) | Self::Number { .. } | Self::MessageNumber => 1,
            Self::OneOf { choices: words, .. } => words.len(),
        }
    }

    fn write_choice(&self, choice: usize, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => out.extend_from_slice(text.as_bytes()),
            // Write the largest number of the range. It has the most digits, so `check_all` checks the longest address.
            Self::Number { most, digits, .. } => push_number(*most, *digits, out),
            Self::MessageNumber => push_number(u64::MAX, 1, out),
            Self::OneOf { choices: words, .. } => out.extend_from_slice(words[choice].text.as_bytes()),
        }
    }

    fn count(&self) -> u64 {
        match self {
            Self::Number { least, most, .. } => most - least + 1,
            piece => piece.choice_count() as u64,
        }
    }
}

pub(super) fn expressions(patterns: &[AddressPattern]) -> String {
    patterns.iter().map(AddressPattern::expression).collect::<Vec<_>>().join(", ")
}

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

/// Parses the text inside braces, for example `0..9999` or `a:70,b:30`.
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
    let error = || format!("{{{inside}}} is not a valid range of numbers; use something like {{0..9999}}");
    let read = |digits: &str| digits.parse::<u64>().ok().filter(|number| *number < u64::MAX).ok_or_else(error);
    let digits = if least.starts_with('0') && least.len() > 1 { least.len() } else { 1 };
    let least = read(least)?;
    let most = read(most)?;
    if digits > 20 {
        return Err(error());
    }
    if least > most {
        Err(format!("{{{inside}}}: write the smaller value first"))
    } else {
        Ok(PatternPart::Number { least, most, digits })
    }
}

fn parse_weighted_text(typed: &str) -> Result<WeightedText, String> {
    // The last colon precedes the weight, as in `a.example:70`. If the text ends in `]`, its colons belong to an
    // address literal such as [IPv6:::1], and there is no weight.
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

/// Inserts the recipient's number before the `@` of the address that begins at `start`. Depending on `tag`, `to@b`
/// becomes `to1@b` or `to+1@b`, or stays as it is.
fn append_tag(tag: RecipientTag, number: u32, start: usize, out: &mut Vec<u8>) {
    let plus = match tag {
        RecipientTag::Bare => return,
        RecipientTag::Digits => "",
        RecipientTag::PlusDigits => "+",
    };
    let at = memrchr(b'@', &out[start..]).map_or(out.len(), |at| start + at);
    let end = out.len();
    write!(out, "{plus}{number}").expect("a vector takes all");
    let added = out.len() - end;
    out[at..].rotate_right(added);
}

fn local_part(address: &str) -> &str {
    address.rsplit_once('@').map_or(address, |(local, _)| local)
}

fn ends_in_digit(text: &str) -> bool {
    text.ends_with(|last: char| last.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_measurement::trace::{RecipientId, RecipientNumbering};
    use mailrun_schedule::distribution::RandomStream;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn pattern(typed: &str) -> AddressPattern {
        AddressPattern::parse(typed).unwrap_or_else(|error| panic!("{error}"))
    }

    fn address(pattern: &AddressPattern, tag: RecipientTag, number: u64, place: u32) -> String {
        let mut out = b"kept".to_vec();
        pattern.write(&mut SeededRng::new(1, RandomStream::Recipient, number), tag, place, &mut out);
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

    #[test]
    fn a_pattern_gives_addresses_by_its_weights() {
        let pattern = pattern("user{0..99}@{a.example:70,b.example:20,c.example:10}");
        let mut domains = BTreeMap::new();
        let mut users = BTreeSet::new();
        for number in 0..20_000 {
            let address = address(&pattern, RecipientTag::Bare, number, 0);
            let (user, domain) = address.split_once('@').unwrap();
            *domains.entry(domain.to_owned()).or_insert(0_u32) += 1;
            users.insert(user.to_owned());
        }
        assert_eq!((users.len(), users.first().unwrap().as_str()), (100, "user0"));
        for (domain, expected) in [("a.example", 14_000), ("b.example", 4_000), ("c.example", 2_000)] {
            assert!(domains[domain].abs_diff(expected) < 300, "{domains:?}");
        }
        assert_eq!(address(&pattern, RecipientTag::Bare, 7, 0), address(&pattern, RecipientTag::Bare, 7, 0));
    }

    #[test]
    fn numbers_are_padded_as_the_smaller_is_written() {
        let all: BTreeSet<String> =
            (0..100).map(|number| address(&pattern("u{08..11}@b"), RecipientTag::Bare, number, 0)).collect();
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
            let error = AddressPattern::parse(typed).expect_err(typed);
            assert!(error.contains(named), "{typed}: {error}");
        }
        let words = format!("{{{}}}", vec!["a"; 100].join(","));
        assert!(AddressPattern::parse(&format!("{words}{words}{words}@b")).unwrap_err().contains("combinations"));
        assert!(AddressPattern::parse(&format!("{}{{0..9999}}@b", "l".repeat(61))).unwrap_err().contains("too long"));
        assert!(pattern(&format!("{}{{0..9}}@b", "l".repeat(61))).check(RecipientTag::PlusDigits).is_err());
    }

    #[test]
    fn every_text_of_a_pattern_has_a_place() {
        let all = |typed: &str| -> Vec<String> {
            let pattern = pattern(typed);
            let at = |place| {
                let mut out = Vec::new();
                pattern.write_at(place, &mut out);
                String::from_utf8(out).unwrap()
            };
            (0..pattern.count()).map(at).collect()
        };
        assert_eq!(all("to@b"), ["to@b"]);
        assert_eq!(all("u{08..10}@{b,c:2}"), ["u08@b", "u09@b", "u10@b", "u08@c", "u09@c", "u10@c"]);
        assert_eq!(pattern("{0..18446744073709551614}{0..9}@b").count(), u64::MAX);
    }

    #[test]
    fn a_tag_is_a_number_that_the_sink_reads_back() {
        for typed in ["to@example.com", "bob7@b", "to+@b", "u{0..9999}@{a,b:2}", "u{0..9}{@a,@b.c}", "postmaster"] {
            let pattern = pattern(typed);
            for number in [0, 1, 9, 10, 999, 1_023] {
                let address = address(&pattern, pattern.tag(), 5, number);
                let id = RecipientId::new(address.as_bytes());
                assert_eq!(RecipientNumbering::TAG.number(id), number, "{address}");
            }
        }
        assert_eq!(address(&pattern("a@b"), RecipientTag::Digits, 0, 1), "a1@b");
        assert_eq!(address(&pattern("a1@b"), RecipientTag::PlusDigits, 0, 2), "a1+2@b");
    }

    proptest! {
        #[test]
        fn any_text_gives_addresses_or_a_reason(typed in "[a-c0-2{}.,:@+\"]{0,24}") {
            crate::source::checks::addresses::check(typed.as_bytes());
        }
    }
}
