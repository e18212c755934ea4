//! Run records in, text out: what a person reads after a run.
//!
//! ```text
//! Record ─→ headline   did it hold, how many, how fast        ┐
//!        └→ sections   stages, phases, seconds, ledger, hosts ┴→ terminal | markdown
//! ```
//!
//! What is said is decided once, in `headline` and the sections; `terminal` and `markdown` only lay it out.
//! A record may be one party's own (a sink's or a source's), and then says less.
mod disturbances;
mod encryption;
mod fates;
mod headline;
mod mades;
mod markdown;
pub(crate) mod numbers;
mod parties;
pub(crate) mod relay;
mod seconds;
mod section;
pub(crate) mod spark;
mod stages;
pub(crate) mod table;
mod terminal;
mod workload;

#[cfg(test)]
pub(crate) mod sample;

pub(crate) use markdown::markdown;
#[cfg(test)]
pub(crate) use terminal::terminal;
pub(crate) use terminal::{Ink, terminal_in};
