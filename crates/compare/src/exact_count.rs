//! Counts that chance has no part in, such as system calls or syncs per message: any change is one.

/// A change of an exact count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExactChange {
    /// All runs of both have the same count.
    None,
    /// Each side has one count, and they differ.
    Changed {
        /// The count of A.
        a: f64,
        /// The count of B.
        b: f64,
    },
    /// The runs of a side differ among themselves: it is no exact count.
    NotExact,
}

/// Compares a count of runs of A and of B; `None` if a side has no run.
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
