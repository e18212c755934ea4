//! Defines the terms of a mail measurement and computes its results: stages, the trace in each message, the ledger of
//! seen messages, histograms, series, and the run record.
//!
//! ```
//! use mailrun_measurement::{ClockId, Ledger, RunId, Trace, TraceReader, TraceResult, trace};
//! use std::time::Duration;
//!
//! // The source: a header line that says which message this is, when it was created, and what its body must be.
//! let body = b"hello\r\n";
//! let clock = ClockId::monotonic("this host");
//! let created = Duration::from_secs(1);
//! let numbering = trace::RecipientNumbering::SINGLE;
//! let run = RunId([7; 16]);
//! let zero = trace::ZeroPhase::of(created);
//! let sent = Trace { run, sequence: 42, zero, numbering, created, clock, checksum: trace::checksum(body) };
//! let mut header = [0; Trace::HEADER_BYTES];
//! sent.write(&mut header);
//! let mut accepted = Ledger::default();
//! accepted.mark(sent.sequence, 0);
//!
//! // The sink: recognises it behind whatever relays have put before it.
//! let mut arrived = Ledger::default();
//! let mut reader = TraceReader::default();
//! reader.receive(&[b"Received: from somewhere\r\n", &header[..], b"\r\n", body].concat());
//! if let TraceResult::Intact(trace) = reader.finish() {
//!     arrived.mark(trace.sequence, 0);
//! }
//! assert_eq!(accepted.count_without(&arrived), 0, "nothing is lost");
//! ```
//!
//! This crate uses no clock, socket, file, environment or random source. Times are arguments, given as `Duration` since
//! the zero of CLOCK_MONOTONIC, so a test can state the exact times for which a rule must hold.
//!
//! ```text
//! trace      header by which the far end recognises a message
//! ledger     set of (message, recipient) seen so far, one bit each
//! latencies  a distribution of times, and its log per second
//! buckets    times in a few fixed buckets, for Prometheus
//! tally      counts of a worker between two ticks; the collector merges them
//! rows       tallies as rows of a record
//! throughput times at which messages reached a stage, and their rate
//! seconds    events of a worker by the second in which they happened
//! series     a row for each second of the run
//! errors     errors by phase and code, with the first of each
//! slowest    the slowest messages
//! reply_text a server's reply in memory of fixed size
//! missing    messages that did not arrive
//! domains    fates by domain of the recipients
//! delayed_acks  the signature of a delayed ACK in a phase's times
//! validity   limits and disturbances of a run, with their remedies
//! mades      the part of a record that only a run over MADES has
//! overdue    messages that did not reach a stage in time, in its figures
//! bounces    what notifications say about mail that servers gave up on
//! load_stages  the stages of a load, each with its own figures and account
//! account    the conservation check: the fates sum to the created units
//! reason     a sentence of the verdict, and its cause
//! judge      a record's verdict: reasons by their weight, and the outcome
//! threshold  requirements of a user on a run, read and evaluated
//! freshness  share of time in which the newest message is young, by windows
//! recovery   when a server delivered at its full rate again
//! stalls     times in which a server accepted nothing
//! seeded     random numbers from a seed
//! merge      the parties' records joined into the run's
//! time_axis  times of one record on the clock of another
//! union      the records of parts of a load, or of several sinks, added
//! record     the run record, `run.json`
//! ```

#![allow(missing_docs)] // only crates that other programs embed document every public item

pub mod account;
pub mod audit;
pub mod bounces;
pub mod buckets;
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
pub mod clocks;
mod delayed_acks;
pub mod domains;
pub mod errors;
mod foreign_load;
pub mod freshness;
pub mod handshakes;
pub mod judge;
mod latencies;
pub mod ledger;
pub mod load_stages;
pub mod mades;
pub mod merge;
pub mod missing;
pub mod overdue;
pub mod reason;
pub mod record;
pub mod recovery;
pub mod reply_text;
pub mod rewrites;
mod rows;
pub mod seconds;
pub mod seeded;
pub mod series;
pub mod slowest;
pub mod stage;
pub mod stalls;
pub mod tally;
pub mod threshold;
mod throughput;
mod time_axis;
pub mod trace;
pub mod union;
pub mod validity;

pub use delayed_acks::{DelayedAcks, TimesApart};
pub use errors::Errors;
pub use handshakes::Handshakes;
pub use latencies::{IntervalLog, Latencies};
pub use ledger::{Ledger, MarkResult};
pub use record::Record;
pub use rows::StageFigures;
pub use series::Series;
pub use stage::{Phase, Stage};
pub use tally::{ExhaustedCounts, LatencyKind, RunTally, SinkTally, SourceTally, WarmUpCounts};
pub use throughput::{MIN_ARRIVALS, Throughput};
pub use trace::{ClockId, RunId, Trace, TraceReader, TraceResult};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
