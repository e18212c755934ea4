//! Tests of the client and server sessions through their public interface: dialogs, a client and a server joined by a
//! simulated link, and properties that must hold for any input.
#![allow(clippy::unwrap_used)] // The lint exempts `#[test]` functions but not the functions that they call

mod adversary;
mod caller;
mod clocks;
#[path = "../../../../tests/dialogs/dialog.rs"]
mod dialog;
mod dialogs;
mod extended;
mod host;
mod hostile;
mod link;
mod pair;
mod rendered;
