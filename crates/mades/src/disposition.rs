use crate::error::{Error, one_line};
use mailrun_amqp::{DeliveryOutcome, PeerError};
use tokio::sync::oneshot;

pub(crate) type SettlementSender = oneshot::Sender<Result<Disposition, Error>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The broker has taken responsibility for the message.
    Accepted,
    /// The broker will never accept the message.
    Rejected {
        /// The condition, such as `amqp:resource-limit-exceeded`. Empty if the broker gave none.
        condition: String,
        description: String,
    },
    /// The broker does not accept the message now.
    Released,
    /// The broker does not accept the message in this form.
    Modified { has_failed: bool },
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
