//! Exact counts, such as system calls or syncs per message. They have no random part, so any difference is a change.

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExactChange {
    /// All runs of both sides have the same count.
    None,
    /// Each side has a single count, and they differ.
    Changed { a: f64, b: f64 },
    /// The runs of one side differ, so the count is not exact.
    NotExact,
}

/// Compares a count between the runs of A and B. `None` if a side has no run.
pub fn compare_counts(a: &[f64], b: &[f64]) -> Option<ExactChange> {
    let first_a = *a.first()?;
    let first_b = *b.first()?;
    if a.iter().any(|count| *count != first_a) || b.iter().any(|count| *count != first_b) {
        return Some(ExactChange::NotExact);
    }
    Some(if first_a == first_b { ExactChange::None } else { ExactChange::Changed { a: first_a, b: first_b } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_change_is_one() {
        assert_eq!(compare_counts(&[3.0, 3.0], &[3.0]), Some(ExactChange::None));
        assert_eq!(compare_counts(&[3.0], &[4.0, 4.0]), Some(ExactChange::Changed { a: 3.0, b: 4.0 }));
        assert_eq!(compare_counts(&[3.0], &[4.0, 5.0]), Some(ExactChange::NotExact));
        assert_eq!(compare_counts(&[f64::NAN], &[1.0]), Some(ExactChange::NotExact));
        assert_eq!(compare_counts(&[], &[1.0]), None);
    }
}
