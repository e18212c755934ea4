//! Tools that measure all contestants in the same way: with messages of the same size, by the same clock, and with the
//! CPU times from the kernel.

pub(crate) mod contestants;
pub(crate) mod party;
pub(crate) mod place;
pub(crate) mod processor;
pub(crate) mod scale;
pub(crate) mod shapes;
pub(crate) mod spread;
pub(crate) mod standing;
