//! The behaviour of a pair of endpoints with a network between them: the steps of each message, and the times of these
//! steps. The model has no clock and no sockets: its callers pass the current time.
//!
//! ```text
//! plan       all settings, as a plan file has them
//! plan_file  reads a plan file
//! quantity   times, rates and counts in a plan
//! delay      durations of the steps, and random decisions, which depend on the seed
//! capacity   rates and workers of the steps
//! outage     times in which a part is down
//! simulator  the next step of each message
//! truth      the record of what the simulator did
//! ```
mod capacity;
mod delay;
mod outage;
mod plan;
pub mod plan_file;
pub mod quantity;
mod simulator;
mod truth;

pub use capacity::Capacity;
pub use delay::DelayDistribution;
pub use outage::{Outage, OutageTarget};
pub use plan::{EndpointMode, Faults, Leg, PRESETS, ReceivedOn, SimulatorPlan, TracingValue};
pub use quantity::PlanTime;
pub use simulator::{ConsumedMessage, EndpointStep, MessageKey, RefusalReason, ReplyKind, SendEventKind, Simulator};
pub use truth::{DocumentKind, InjectedFaults, MessageFate, MessageRecord, SimulationTotals};

/// Derives a number from the id of a message that has no number, because no bench sent it. Random decisions about the
/// message depend on this number.
pub fn number_of(id: &[u8]) -> u64 {
    delay::hash_text(id)
}
