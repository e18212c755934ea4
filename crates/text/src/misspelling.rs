//! Finds misspelt names, so that an error message can suggest the known name.
use strsim::damerau_levenshtein;

/// Minimum length of a known name for which two wrong letters are tolerated.
const LONG_NAME: usize = 6;

/// Returns true if `name` can be a misspelling of `known`: with one wrong letter for a short name
/// or two for a long one. Two swapped letters count as one.
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
