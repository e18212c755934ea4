//! The live dashboard of a run: its figures at a moment, what a key does, and how both are drawn. It has no
//! terminal, no clock and no thread: `party::dashboard_display` has these.
//!
//! ```text
//! RunSnapshot ─→ Dashboard::update ─┐
//! DashboardKey ─→ Dashboard::press ─┴→ draw ─→ ratatui Frame
//! ```
#![allow(missing_docs)] // only crates that other programs embed document every public item

mod compact;
mod draw;
mod history;
mod palette;
mod panes;
#[cfg(test)]
mod picture;
mod progress;
#[cfg(any(test, feature = "sample"))]
pub mod sample;
mod snapshot;
mod state;

pub use draw::draw;
pub use palette::Palette;
pub use snapshot::{MessageCounts, PartyLoad, RunSnapshot, StageTimes, ThresholdState, TimesMs};
pub use state::{Dashboard, DashboardAction, DashboardKey};

/// Minimum columns for all panes.
pub const MIN_COLUMNS: u16 = 80;
/// Minimum rows for all panes.
pub const MIN_ROWS: u16 = 24;
