//! Tests of the spool's promises from outside, with different kinds of disks.
#![allow(clippy::unwrap_used)] // the lint spares `#[test]` functions and not what they call
mod crash;
mod damage;
mod exclusion;
mod failures;
mod model;
mod recovery;
mod room;
