//! Tests of the spool's promises from outside, on any kind of disk.
#![allow(clippy::unwrap_used)] // the lint spares `#[test]` functions and not what they call
mod crash;
mod damage;
mod exclusion;
mod failures;
mod model;
mod recovery;
mod room;
