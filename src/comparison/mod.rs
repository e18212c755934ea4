//! Comparisons of stored runs: which runs may be compared, their figures, and what came of it.
mod runs;
mod stored;

pub(crate) use stored::{ComparisonOutcome, StoredComparison, StoredComparisonOptions, compare_stored};
