//! Behaviour of a pair of endpoints with a network between them: each step of a message, and its time. Pure: no
//! clock, no sockets.
//!
//! ```text
//! plan      all its knobs
//! chance    what a seed decides
//! delay     how long a part of the way takes
//! hop       what a part of the way can carry
//! outage    when what is down
//! model     what is to be done next
//! truth     what was done
//! ```
mod chance;
mod delay;
mod hop;
mod model;
mod outage;
mod plan;
mod plan_time;
pub mod quantity;
mod truth;

pub use delay::DelayDistribution;
pub use hop::Capacity;
pub use model::{ConsumedMessage, EndpointStep, EventKind, MessageKey, RefusalReason, ReplyKind, Simulator};
pub use outage::{Outage, OutageTarget};
pub use plan::{EndpointMode, Faults, Leg, PRESETS, ReceivedOn, SimulatorPlan, TracingValue};
pub use plan_time::PlanTime;
pub use truth::{InjectedFaults, MessageFate, MessageRecord, SimulationTotals};

/// Derives a number from the id of a message that has no number. The random decisions about the message use it.
pub fn number_of(id: &[u8]) -> u64 {
    chance::hash_text(id)
}
