//! Outcomes of messages that were sent.
use crate::error::{Error, one_line};
use mailrun_amqp::{DeliveryOutcome, PeerError};
use tokio::sync::oneshot;

/// Reports the outcome of a message to the one that waits for it.
pub(crate) type SettlementSender = oneshot::Sender<Result<Disposition, Error>>;

/// Outcome of a message, as the broker reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The broker has taken responsibility for it.
    Accepted,
    /// It will never take it.
    Rejected {
        /// The condition, such as `amqp:resource-limit-exceeded`; empty if none was given.
        condition: String,
        /// Description in text.
        description: String,
    },
    /// It does not take it now.
    Released,
    /// It does not take it as it is.
    Modified {
        /// It counts as a failed attempt.
        has_failed: bool,
    },
}

impl Disposition {
    pub(crate) fn of(outcome: DeliveryOutcome, error: Option<&PeerError>) -> Self {
        match outcome {
            DeliveryOutcome::Accepted => Self::Accepted,
            DeliveryOutcome::Rejected => Self::Rejected {
                condition: error.map(|error| one_line(&error.condition)).unwrap_or_default(),
                description: error.map(|error| one_line(&error.description)).unwrap_or_default(),
            },
            DeliveryOutcome::Released => Self::Released,
            DeliveryOutcome::Modified { failed } => Self::Modified { has_failed: failed },
        }
    }
}
