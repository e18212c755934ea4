//! Run records in, text out: what a person reads after a run.
//!
//! ```text
//! Record ─→ headline   what it came to, how many, how fast    ┐
//!        ├→ sections   stages, phases, seconds, ledger, hosts ┼→ terminal (--report full) | markdown (report.md)
//!        └→ short      the same in 23 lines                   ┴→ terminal (--report short)
//! ```
//!
//! What is said is decided once, in `headline` and the sections; `terminal` and `markdown` only lay it out.
//! A record may be one party's own (a sink's or a source's), and then says less.
mod disturbances;
mod encryption;
mod ending;
mod fates;
mod headline;
mod mades;
mod markdown;
pub(crate) mod numbers;
pub(crate) mod part;
mod parties;
pub(crate) mod relay;
mod seconds;
mod section;
mod short;
pub(crate) mod spark;
mod stages;
pub(crate) mod table;
mod terminal;
mod workload;
pub(crate) mod wrap;

#[cfg(test)]
pub(crate) mod sample;

pub(crate) use ending::outcome_word;
pub(crate) use markdown::markdown;
pub(crate) use terminal::Ink;
#[cfg(test)]
pub(crate) use terminal::terminal;

use journey::record::Record;

/// How much of a report is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The verdict, in one line.
    Verdict,
    /// What a terminal of 80×24 can show.
    Short,
    /// All tables.
    Full,
}

/// The report for whoever looks at a stream of `width` columns; `details` names the file that has all of it.
pub(crate) fn shown(record: &Record, extent: Extent, width: usize, ink: Ink, details: Option<&str>) -> String {
    match extent {
        Extent::Verdict => ending::verdict_alone(record, ink),
        Extent::Short => short::short(record, width, ink, details),
        Extent::Full => terminal::full(record, width, ink, details),
    }
}
