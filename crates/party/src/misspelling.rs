//! Misspelt names: the known name that an error may suggest in place of an unknown one.
use strsim::damerau_levenshtein;

/// Least length of a name that may have two wrong letters.
const LONG_NAME: usize = 6;

/// Reports whether a name can be a misspelling of a known one: one wrong letter in a short name, two in a long one. Two
/// swapped letters count once.
pub fn is_misspelling(name: &str, known: &str) -> bool {
    let letters = known.trim_start_matches('-').chars().count();
    let limit = if letters < LONG_NAME { 1 } else { 2 };
    damerau_levenshtein(name, known) <= limit
}

#[cfg(test)]
mod tests {
    use super::*;

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
