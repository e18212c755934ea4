//! Kinds of faults, and the moments at which they come.
use mailrun_journey::seeded::SeededRng;
use std::str::FromStr;
use std::time::Duration;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditFault {
    /// SIGKILL to every process of the server, sometimes during its start too.
    Kill,
    /// SIGTERM.
    Stop,
    /// The power of the disk with the mail is cut: what was not synced may be gone, and all processes are.
    PowerCut,
    /// The disk with the mail is full for half a second.
    DiskFull,
    /// SIGKILL, and a read fails once while the server starts again.
    ReadError,
}

impl AuditFault {
    const ALL: [Self; 5] = [Self::Kill, Self::Stop, Self::PowerCut, Self::DiskFull, Self::ReadError];

    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::PowerCut => "power-cut",
            Self::DiskFull => "disk-full",
            Self::ReadError => "read-error",
        }
    }

    /// Whether the mail is on the disk that forgets.
    pub(super) fn needs_disk(self) -> bool {
        matches!(self, Self::PowerCut | Self::DiskFull | Self::ReadError)
    }

    /// The event of the record.
    pub(super) fn event(self) -> &'static str {
        match self {
            Self::Kill => "the server is killed",
            Self::Stop => "the server is stopped",
            Self::PowerCut => "the power is cut",
            Self::DiskFull => "the disk is full",
            Self::ReadError => "the server is killed, and a read will fail",
        }
    }
}

impl FromStr for AuditFault {
    type Err = String;

    fn from_str(typed: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|fault| fault.name() == typed);
        found.ok_or_else(|| format!("{typed:?} is not one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// The moments of a round, which a seed brings back.
#[derive(Clone, Debug)]
pub(super) struct Moments(SeededRng);

impl Moments {
    pub(super) fn new(seed: u64, fault: AuditFault, round: u64) -> Self {
        Self(SeededRng::new(seed, fault as u64, round))
    }

    /// A moment in that time.
    pub(super) fn within(&mut self, from: Duration, to: Duration) -> Duration {
        from + to.saturating_sub(from).mul_f64(self.0.unit())
    }

    /// A number from 1 up to that.
    pub(super) fn number(&mut self, most: u64) -> u64 {
        1 + self.0.below(most)
    }

    /// True once in so many times.
    pub(super) fn once_in(&mut self, times: u64) -> bool {
        self.0.below(times) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_named_as_it_is_typed() {
        for fault in AuditFault::ALL {
            assert_eq!(fault.name().parse(), Ok(fault));
        }
        assert_eq!(
            "fire".parse::<AuditFault>(),
            Err("\"fire\" is not one of kill, stop, power-cut, disk-full, read-error".to_owned())
        );
    }
}
