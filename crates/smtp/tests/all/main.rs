//! Tests of the session cores from outside: dialogs, client and server joined by a link, and
//! properties of any input.
#![allow(clippy::unwrap_used)] // the lint spares `#[test]` functions and not what they call

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
