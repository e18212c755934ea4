//! Tests of the spool's promises from outside, with different kinds of disks.
#![allow(clippy::unwrap_used)] // The lint exempts `#[test]` functions but not the functions that they call
mod crash;
mod damage;
mod exclusion;
mod failures;
mod model;
mod recovery;
mod room;
