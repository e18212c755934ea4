//! Readable quantities in options and rules: those of [`journey::quantities`].
pub(crate) use journey::quantities::*;
