//! Finds the highest rate at which a server meets a goal, by a series of trials, and computes from this rate how many
//! servers are needed.
//!
//! ```text
//! CapacitySearch ── next_step ──→ SearchStep::Measure(SearchTrial) ── the caller loads the server ──┐
//!       ↑                                                                                           │
//!       └────────────────────── report(SearchTrial, TrialOutcome) ──────────────────────────────────┘
//!                                 SearchStep::Finished(SearchResult)
//! ```
//!
//! The method comes from RFC 9971 (MLRsearch). A requirement on latency is a **loss ratio**: a message that is later
//! than the limit counts as lost, so `p99 < 1s` means "at most 1 % lost". A load is judged by several short trials, and
//! a share of these trials may be bad (the exceed ratio). A stall that has nothing to do with the load then spoils a
//! trial, but not the search. In simulations with such stalls, a bisection with a single trial per load found only a
//! fifth of the true capacity. If there are several goals, each trial is judged for all of them.
//!
//! This crate uses no socket, clock, runtime or random source. It describes each trial as a value, and the caller runs
//! it.
//!
//! ```
//! use mailrun_capacity::{CapacityGoal, CapacitySearch, SearchSettings, SearchStep, TrialFigures, TrialLoad, TrialOutcome};
//!
//! // This server handles 800 messages per second. Of a higher load, the excess is late.
//! let mut search = CapacitySearch::new(SearchSettings::default(), vec![CapacityGoal::new(0.01)?])?;
//! let result = loop {
//!     match search.next_step() {
//!         SearchStep::Finished(result) => break result,
//!         SearchStep::Measure(trial) => {
//!             let rate = match trial.load {
//!                 TrialLoad::FlatOut => 800.0,
//!                 TrialLoad::RatePerS(rate) => rate,
//!             };
//!             let loss = (1.0 - 800.0 / rate).max(0.0);
//!             let figures = TrialFigures::new(vec![loss], rate.min(800.0));
//!             search.report(trial, TrialOutcome::Measured(figures));
//!         }
//!     }
//! };
//! let rate = result.capacity_per_s().unwrap();
//! assert!((780.0..=808.0).contains(&rate), "{rate}");
//! # Ok::<(), mailrun_capacity::SearchError>(())
//! ```
#![allow(missing_docs)] // only crates that other programs embed document every public item

mod goal_search;
mod history;
mod planning;
mod result;
mod search;
mod settings;
mod trial;

pub use planning::{CapacityPlan, PlanningError, PlanningInputs};
pub use result::{GoalFinding, GoalOutcome, SearchEnding, SearchResult, TrialEntry};
pub use search::{CapacitySearch, SearchStep};
pub use settings::{CapacityGoal, SearchError, SearchLevel, SearchSettings, SearchStart};
pub use trial::{
    BACKLOG_GROWTH_LIMIT, BacklogSample, CONFIRMATION_SHARES, ConfirmationTrial, SearchTrial, TrialFigures, TrialLoad,
    TrialOutcome, VoidCause, backlog_growth, confirmation_trials,
};
