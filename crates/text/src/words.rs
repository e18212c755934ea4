//! Numbers and lists in sentences: digits grouped by thousands, and nouns in singular or plural.
use strsim::damerau_levenshtein;

/// Formats a number with thousands separators, for example `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with its noun, for example `1 message` or `1,200 messages`.
pub fn counted(number: u64, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", grouped(number))
}

/// Joins words for a sentence: `a`, `a and b`, or `a, b and c`.
pub fn listed(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Minimum length of a known name for which two wrong letters are tolerated. If shorter names
/// allowed two, unrelated words such as `foo` and `log` would count as similar.
const LONG_NAME: usize = 6;

/// Returns true if `name` can be a misspelling of `known`. A short name may have one wrong letter,
/// and a long name two. Two swapped letters count as one wrong letter.
pub fn is_misspelling(name: &str, known: &str) -> bool {
    damerau_levenshtein(name, known) <= tolerated(known)
}

fn tolerated(known: &str) -> usize {
    if known.trim_start_matches('-').chars().count() < LONG_NAME { 1 } else { 2 }
}

/// Returns the known name that is most similar to `name`, if `name` can be a misspelling of it. Case
/// does not matter.
pub fn nearest<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let name = name.to_lowercase();
    let known = known.into_iter().map(|known| (damerau_levenshtein(&name, &known.to_lowercase()), known));
    known
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, known)| *distance <= tolerated(known))
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_a_person_writes_them() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ];
        for (number, text) in cases {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(
            (counted(1, "message"), counted(1_200, "message")),
            ("1 message".to_owned(), "1,200 messages".to_owned())
        );
        let words = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(
            [listed(&words[..0]), listed(&words[..1]), listed(&words[..2]), listed(&words)],
            ["", "a", "a and b", "a, b and c"]
        );
    }

    #[test]
    fn the_most_similar_name_is_suggested() {
        for (name, suggested) in [("DELIVRED", Some("delivered")), ("sendt", Some("sent")), ("x", None)] {
            assert_eq!(nearest(name, ["delivered", "seen", "sent"]), suggested, "{name}");
        }
    }

    #[test]
    fn only_a_slip_is_near() {
        for (name, known) in [("lisen", "listen"), ("--tiemout", "--timeout"), ("rpct", "rcpt"), ("bnech", "bench")] {
            assert!(is_misspelling(name, known), "{name} {known}");
        }
        for (name, known) in [("foo", "log"), ("foo", "from"), ("--out", "--auth"), ("--dump", "--user"), ("", "a.b")] {
            assert!(!is_misspelling(name, known), "{name} {known}");
        }
    }
}
