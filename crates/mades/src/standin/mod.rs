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
pub mod quantity;
mod truth;

pub use delay::Delay;
pub use hop::Capacity;
pub use model::{Consumed, Happened, Key, Model, Refusal, Reply, Step};
pub use outage::{Outage, Place};
pub use plan::{Faults, Leg, Mode, PRESETS, Plan, ReceivedOn, Time, TracingValue};
pub use truth::{Fate, Story, Totals, Wrongs};

/// A number for the chances of a message that has none of its own: made of its id.
pub fn number_of(id: &[u8]) -> u64 {
    chance::number_of(id)
}
