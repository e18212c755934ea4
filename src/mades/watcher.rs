//! Somebody who looks on: hears of every stage that a message reaches, and may ask for the end.
use super::stages::Stage;
use crate::interrupt::Asked;
use std::fmt::Debug;
use std::time::Duration;

/// Who looks on. It is on the run's own thread: what takes it long takes the run long.
pub(crate) trait Watcher: Debug {
    /// A message that is waited for has reached a stage for the first time, so long after it was taken up.
    fn reached(&self, stage: Stage, latency: Duration, now: Duration);

    /// It looks, fifty times a second; what it asks for.
    fn look(&self, view: &View) -> Asked;
}

/// What it sees of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) now: Duration,
    /// When the run began.
    pub(crate) began: Duration,
    /// When something of it last came.
    pub(crate) heard: Duration,
    /// What the user has asked for.
    pub(crate) asked: Asked,
}
