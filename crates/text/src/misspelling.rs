//! Finds misspelt names, so that an error message can suggest the known name.
use strsim::damerau_levenshtein;

/// Minimum length of a known name for which two wrong letters are tolerated.
const LONG_NAME: usize = 6;

/// Returns true if `name` can be a misspelling of `known`: with one wrong letter for a short name
/// or two for a long one. Two swapped letters count as one.
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
