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
//! // The sink: finds this header, although relays have put other headers before it.
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
//! stage         the stages on a message's way, and the phases of an SMTP dialogue
//! trace         header by which the sink recognizes a message
//! ledger        set of the (message, recipient) pairs seen so far, with one bit for each pair
//! latencies     a distribution of times, and the log of such distributions by interval
//! buckets       times in a few fixed buckets, for Prometheus
//! tally         counts of a worker between two ticks, which the collector merges
//! rows          converts tallies to rows of a record
//! throughput    times at which messages reached a stage, and their rate
//! seconds       events of a worker by the second in which they happened
//! series        a row for each second of the run
//! errors        errors by phase and code, with the first error of each kind
//! slowest       the slowest messages
//! reply_text    a server's reply in memory of fixed size
//! missing       messages that did not arrive
//! domains       what became of mail, by domain of the recipients
//! rewrites      mail that arrived at addresses to which the source had not sent it
//! handshakes    TLS handshakes by version and cipher
//! delayed_acks  detects delayed ACKs by the durations of a phase
//! validity      limits and disturbances of a run, and what to do about them
//! foreign_load  decides whether other programs on the host explain a missed limit
//! clocks        clock errors of times between two hosts
//! mades         the part of a record that only a run over MADES has
//! audit         the part of a record that only an audit has
//! overdue       messages that did not reach a stage in time
//! bounces       mail that servers gave up on, as reported by notifications
//! load_stages   figures for each stage of a load
//! account       accounts for every (message, recipient) pair: delivered, lost, rejected and so on
//! reason        a sentence of the verdict, and its cause
//! judge         the verdict on a record: reasons by their weight, and the outcome
//! threshold     parses and evaluates a user's requirements on a run
//! freshness     share of time in which the newest message is young, by windows
//! recovery      when a server delivered at its full rate again
//! stalls        times in which no message was accepted or delivered
//! seeded        random numbers from a seed
//! merge         joins the records of source and sink into the record of the run
//! time_axis     converts the times of one record to the clock of another
//! union         adds up the records of parts of a load, or of several sinks
//! record        the run record, `run.json`
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
