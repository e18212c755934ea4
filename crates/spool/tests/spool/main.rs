//! Tests of the spool from outside: it keeps its promises, whatever the disk does.
#![allow(clippy::unwrap_used)] // the lint spares `#[test]` functions and not what they call
mod crash;
mod damage;
mod exclusion;
mod failures;
mod model;
mod recovery;
mod room;
