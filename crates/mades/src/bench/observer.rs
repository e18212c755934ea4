//! An observer of a run: it is called for every stage that a message reaches, and may ask for the end.
use super::stages::MessageStage;
use mailrun_party::interrupt::StopRequest;
use std::fmt::Debug;
use std::time::Duration;

/// An observer of a run. It is called on the run's own thread, so a slow observer slows the run down.
pub trait RunObserver: Debug {
    /// Called when a message that is waited for reaches a stage for the first time, with the latency since it was taken
    /// up.
    fn stage_reached(&self, stage: MessageStage, latency: Duration, now: Duration);

    /// Called fifty times per second; returns what the observer asks for.
    fn poll(&self, view: &RunView) -> StopRequest;
}

/// The observer's view of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunView {
    /// Time since the run began.
    pub now: Duration,
    /// Time at which the run began.
    pub began: Duration,
    /// Time at which a message of the run last came.
    pub last_arrival: Duration,
    /// The user's request.
    pub asked: StopRequest,
}
