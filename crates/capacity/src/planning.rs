use thiserror::Error;

const HOUR_S: f64 = 3_600.0;
/// Maximum number of servers in a plan. A larger number probably comes from a mistake in the inputs.
const MAX_INSTANCES: f64 = 1e6;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanningInputs {
    pub capacity_per_s: f64,
    /// Share of the capacity at which a server should run. For example, 0.6 leaves room for bursts, retries and a slow
    /// disk.
    pub safety: f64,
    pub peak_per_s: Option<f64>,
    /// Number of messages that a user causes in the busy hour.
    pub messages_per_user: Option<f64>,
    pub cores: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapacityPlan {
    /// Rate that one server can sustain: capacity × safety.
    pub stable_per_s: f64,
    /// Number of servers that are needed for the peak rate. `None` if no peak rate was given.
    pub instances: Option<u64>,
    /// Share by which the rate that all planned servers can sustain together exceeds the peak rate, for example 0.2 for
    /// 20 %. `None` if no peak rate was given.
    pub headroom: Option<f64>,
    /// Number of users that one server can serve in the busy hour. `None` if `messages_per_user` was not given.
    pub users: Option<u64>,
    pub per_core_per_s: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum PlanningError {
    #[error("a capacity of {0}/s gives no plan")]
    Capacity(f64),
    #[error("the safety is above 0 and at most 1 (0.6 is usual), and not {0}")]
    Safety(f64),
    #[error("a peak of {0}/s cannot be planned for")]
    Peak(f64),
    #[error("{0} messages per user in the busy hour are not a number to divide by")]
    MessagesPerUser(f64),
    #[error("{0} cores give no rate per core")]
    Cores(f64),
    #[error("a peak of {peak_per_s}/s needs more than a million servers of {stable_per_s:.3}/s")]
    TooManyInstances { peak_per_s: f64, stable_per_s: f64 },
}

impl PlanningInputs {
    /// Computes how many servers the peak needs, and how much one server can do.
    ///
    /// # Errors
    /// Fails if an input is not positive, if the safety is above 1, or if the peak needs more than a million servers.
    pub fn plan(&self) -> Result<CapacityPlan, PlanningError> {
        let is_amount = |value: f64| value.is_finite() && value > 0.0;
        let invalid = |value: Option<f64>| value.filter(|value| !is_amount(*value));
        match () {
            () if !is_amount(self.capacity_per_s) => return Err(PlanningError::Capacity(self.capacity_per_s)),
            () if !(is_amount(self.safety) && self.safety <= 1.0) => return Err(PlanningError::Safety(self.safety)),
            () => {}
        }
        if let Some(peak) = invalid(self.peak_per_s) {
            return Err(PlanningError::Peak(peak));
        }
        if let Some(messages) = invalid(self.messages_per_user) {
            return Err(PlanningError::MessagesPerUser(messages));
        }
        if let Some(cores) = invalid(self.cores) {
            return Err(PlanningError::Cores(cores));
        }
        let stable_per_s = self.capacity_per_s * self.safety;
        let instances = self.peak_per_s.map(|peak| instances(peak, stable_per_s)).transpose()?;
        let headroom = |peak: f64| Some(instances? as f64 * stable_per_s / peak - 1.0);
        Ok(CapacityPlan {
            stable_per_s,
            instances,
            headroom: self.peak_per_s.and_then(headroom),
            users: self.messages_per_user.map(|messages| (stable_per_s * HOUR_S / messages) as u64),
            per_core_per_s: self.cores.map(|cores| self.capacity_per_s / cores),
        })
    }
}

fn instances(peak_per_s: f64, stable_per_s: f64) -> Result<u64, PlanningError> {
    // A quotient of 3.0000000001 is 3 with a rounding error, and must not add a fourth server.
    let needed = (peak_per_s / stable_per_s - 1e-9).ceil().max(1.0);
    if needed <= MAX_INSTANCES {
        Ok(needed as u64)
    } else {
        Err(PlanningError::TooManyInstances { peak_per_s, stable_per_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUTS: PlanningInputs = PlanningInputs {
        capacity_per_s: 200.0,
        safety: 0.6,
        peak_per_s: Some(300.0),
        messages_per_user: Some(4.0),
        cores: Some(2.0),
    };

    #[test]
    fn a_peak_needs_whole_servers() {
        let plan = INPUTS.plan().unwrap();
        assert!((plan.stable_per_s - 120.0).abs() < 1e-9);
        assert_eq!((plan.instances, plan.users, plan.per_core_per_s), (Some(3), Some(108_000), Some(100.0)));
        assert!((plan.headroom.unwrap() - 0.2).abs() < 1e-9, "{plan:?}");
        for (peak, instances) in [(0.1, 1), (120.0, 1), (120.1, 2), (360.0, 3), (361.0, 4)] {
            let plan = PlanningInputs { peak_per_s: Some(peak), ..INPUTS }.plan().unwrap();
            assert_eq!(plan.instances, Some(instances), "{peak}");
            assert!(plan.headroom.unwrap() > -1e-6, "{plan:?}");
        }
        let bare = PlanningInputs { peak_per_s: None, messages_per_user: None, cores: None, ..INPUTS }.plan().unwrap();
        assert_eq!((bare.instances, bare.headroom, bare.users, bare.per_core_per_s), (None, None, None, None));
    }

    #[test]
    fn what_gives_no_plan_is_refused() {
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            for inputs in [
                PlanningInputs { capacity_per_s: value, ..INPUTS },
                PlanningInputs { safety: value, ..INPUTS },
                PlanningInputs { peak_per_s: Some(value), ..INPUTS },
                PlanningInputs { messages_per_user: Some(value), ..INPUTS },
                PlanningInputs { cores: Some(value), ..INPUTS },
            ] {
                assert!(inputs.plan().is_err(), "{inputs:?}");
            }
        }
        assert_eq!(PlanningInputs { safety: 1.1, ..INPUTS }.plan(), Err(PlanningError::Safety(1.1)));
        let far = PlanningInputs { peak_per_s: Some(1e12), ..INPUTS }.plan();
        assert!(matches!(far, Err(PlanningError::TooManyInstances { .. })), "{far:?}");
    }
}
