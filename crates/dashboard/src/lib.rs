//! Shows the progress of a run on the terminal, as a line or as the dashboard.
//!
//! ```text
//! RunSnapshot ─→ Dashboard::update ─┐
//! DashboardKey ─→ Dashboard::press ─┴→ draw ─→ ratatui Frame     no terminal, no clock, no thread
//!
//! live_figures       RunSnapshot of the progress that the parties report
//! dashboard_display  the dashboard on the terminal of this process
//! live_display       the line, which the dashboard replaces once the run is long enough
//! progress_output    live_display, JSON events, and metrics over HTTP: what a party tells while it runs
//! monitor            ticks: takes the counts of a run, shows them, and ends a load that has to end early
//! ```
#![allow(missing_docs)] // only crates that other programs embed document every public item

mod compact;
mod dashboard_display;
mod draw;
mod history;
pub mod live_display;
pub mod live_figures;
pub mod monitor;
mod panes;
#[cfg(test)]
mod picture;
mod progress;
pub mod progress_output;
#[cfg(any(test, feature = "sample"))]
pub mod sample;
mod snapshot;
mod state;

pub use snapshot::{MessageCounts, PartyLoad, RunSnapshot, StageTimes, ThresholdState, TimesMs};
