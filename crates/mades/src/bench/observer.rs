//! Observes a run: sees every stage that a message reaches, and can end the run.
use super::stages::MessageStage;
use mailrun_party::interrupt::StopRequest;
use std::fmt::Debug;
use std::time::Duration;

/// An observer of a run. It is called on the run's own thread, so a slow observer slows the run down.
pub trait RunObserver: Debug {
    /// Called when an expected message reaches a stage for the first time, with the latency since its start.
    fn stage_reached(&self, stage: MessageStage, latency: Duration, now: Duration);

    /// Called fifty times per second. Returns the observer's request.
    fn poll(&self, view: &RunView) -> StopRequest;
}

#[derive(Clone, Copy, Debug)]
pub struct RunView {
    /// Current time, on the same clock as `began`.
    pub now: Duration,
    pub began: Duration,
    /// Time at which a message of the run last arrived.
    pub last_arrival: Duration,
    pub asked: StopRequest,
}
