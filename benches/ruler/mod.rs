//! Tools that measure every contestant in the same way: the same octets, the same clock, the same
//! figures of the kernel.

pub(crate) mod contestants;
pub(crate) mod party;
pub(crate) mod place;
pub(crate) mod processor;
pub(crate) mod scale;
pub(crate) mod shapes;
pub(crate) mod spread;
pub(crate) mod standing;
