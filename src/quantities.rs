//! Quantities in the form that people write, in options and in rules: those of [`journey::quantities`].
pub(crate) use journey::quantities::*;
