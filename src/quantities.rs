//! Quantities as people write them, in options and in rules: those of [`journey::quantities`].
pub(crate) use journey::quantities::*;
