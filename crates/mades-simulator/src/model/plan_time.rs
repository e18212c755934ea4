use super::quantity;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A time with its unit, such as `250ms`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PlanTime(pub Duration);

impl TryFrom<String> for PlanTime {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        quantity::time(&text).map(Self)
    }
}

impl From<PlanTime> for String {
    fn from(time: PlanTime) -> Self {
        format!("{:?}", time.0)
    }
}
