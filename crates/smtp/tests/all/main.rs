//! Tests of the session cores from outside: dialogs, client and server joined by a link, and
//! properties of any input.
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
