//! Behaviour of a pair of endpoints with a network between them: each step of a message, and its time. Pure: no
//! clock, no sockets.
//!
//! ```text
//! plan       all settings, as a plan file has them
//! plan_time  times in a plan
//! quantity   rates and counts in a plan
//! chance     decisions that a seed makes
//! delay      durations of the steps
//! capacity   rates and workers of the steps
//! outage     times in which a part is down
//! model      the next step of each message
//! truth      the record of what was done
//! ```
mod capacity;
mod chance;
mod delay;
mod model;
mod outage;
mod plan;
pub mod plan_file;
mod plan_time;
pub mod quantity;
mod truth;

pub use capacity::Capacity;
pub use delay::DelayDistribution;
pub use model::{ConsumedMessage, EndpointStep, MessageKey, RefusalReason, ReplyKind, SendEventKind, Simulator};
pub use outage::{Outage, OutageTarget};
pub use plan::{EndpointMode, Faults, Leg, PRESETS, ReceivedOn, SimulatorPlan, TracingValue};
pub use plan_time::PlanTime;
pub use truth::{DocumentKind, InjectedFaults, MessageFate, MessageRecord, SimulationTotals};

/// Derives a number from the id of a message without a number. Random decisions about the message use it.
pub fn number_of(id: &[u8]) -> u64 {
    chance::hash_text(id)
}
