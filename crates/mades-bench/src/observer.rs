//! Observes a run. An observer sees every stage that a message reaches, and can end the run.
use super::stages::MessageStage;
use mailrun_process::interrupt::StopRequest;
use std::fmt::Debug;
use std::time::Duration;

/// An observer of a run. The thread of the run calls it, so a slow observer slows the run down.
pub trait RunObserver: Debug {
    /// Called when an expected message reaches a stage for the first time. `latency` is the time
    /// since the message was due or created.
    fn stage_reached(&self, stage: MessageStage, latency: Duration, now: Duration);

    /// Called fifty times per second. Returns what the observer asks the run to do.
    fn poll(&self, view: &RunView) -> StopRequest;
}

#[derive(Clone, Copy, Debug)]
pub struct RunView {
    /// Current time on the clock of `began`.
    pub now: Duration,
    pub began: Duration,
    /// Time at which a message of the run last arrived.
    pub last_arrival: Duration,
    pub asked: StopRequest,
}
