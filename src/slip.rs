//! Names that may be slips for one another: what an error may suggest in place of an unknown name.
use strsim::damerau_levenshtein;

/// Letters from which on a name may have two slips in it.
const LONG_NAME: usize = 6;

/// Tells whether one name can be a slip for a known one: one letter in a short name, two in a long one. Two letters that
/// are swapped count once.
pub(crate) fn is_near(name: &str, known: &str) -> bool {
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
            assert!(is_near(name, known), "{name} {known}");
        }
        for (name, known) in [("foo", "log"), ("foo", "from"), ("--out", "--auth"), ("--dump", "--user"), ("", "a.b")] {
            assert!(!is_near(name, known), "{name} {known}");
        }
    }
}
