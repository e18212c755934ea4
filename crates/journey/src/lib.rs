//! The words and the arithmetic of a mail measurement: stages, trace, ledger, histograms, series, the run record.
//!
//! No clock, socket, file, environment or random source in here: times are arguments, as `Duration` since the zero
//! of CLOCK_MONOTONIC, and so every rule can be tested by writing the times down.
//!
//! ```text
//! trace      what a message carries so that the far end can recognise it
//! ledger     which (message, recipient) have been seen, a bit each
//! latencies  a distribution of times, and its log a second at a time
//! tally      what a worker gathers between two ticks; the collector merges them
//! rows       tallies made into the rows of a record
//! series     a row for each second
//! pauses     the signature of a delayed ACK in a phase's times
//! doubts     what limited or spoiled a run, and what to change
//! mades      what a run over MADES has besides
//! account    the conservation check: the fates sum to what was created
//! judge      a record's verdict: reasons by their weight, and what the run came to
//! threshold  what a user asks of a run, read and evaluated
//! stalls     times in which a server accepted nothing
//! chance     what a seed decides
//! fold       the parties' records made into the run's
//! record     the run record, `run.json`
//! words      numbers in sentences
//! ```
pub mod account;
pub mod chance;
pub mod doubts;
pub mod fold;
pub mod handshakes;
pub mod judge;
mod latencies;
pub mod ledger;
pub mod mades;
mod pauses;
pub mod quantities;
pub mod record;
mod rows;
pub mod series;
pub mod stage;
pub mod stalls;
pub mod tally;
pub mod threshold;
pub mod trace;
pub mod words;

pub use handshakes::Handshakes;
pub use latencies::{IntervalLog, Latencies};
pub use ledger::{Ledger, Mark};
pub use pauses::Pauses;
pub use record::Record;
pub use series::Series;
pub use stage::{Phase, Stage};
pub use tally::{Errors, RunTally, Shortages, SinkTally, SourceTally, Timed, WarmUpCounts};
pub use trace::{ClockId, Found, RunId, Trace, TraceReader};
