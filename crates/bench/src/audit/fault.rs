//! The kinds of faults that an audit causes, and the random moments at which they occur.
use mailrun_crashfs::Profile;
use mailrun_measurement::seeded::SeededRng;
use std::str::FromStr;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditFault {
    /// SIGKILL to every process of the server.
    Kill,
    /// SIGTERM to the server, which may finish its work before it exits.
    Stop,
    /// Power cut of the disk that holds the mail. Data that was not synced may be lost, and all
    /// processes of the server are killed.
    PowerCut,
    /// The disk that holds the mail is full for half a second.
    DiskFull,
    /// SIGKILL to every process of the server. While the server restarts, one of its first 20 reads
    /// from the disk fails.
    ReadError,
    /// One write to the disk that holds the mail fails. The server is killed soon afterwards.
    WriteError,
    /// One sync of a file on the disk that holds the mail fails, and the data that it should have written is dropped.
    /// The power is cut soon afterwards, because otherwise the server could read the mail back from memory.
    SyncError,
}

impl AuditFault {
    const ALL: [Self; 7] =
        [Self::Kill, Self::Stop, Self::PowerCut, Self::DiskFull, Self::ReadError, Self::WriteError, Self::SyncError];

    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::PowerCut => "power-cut",
            Self::DiskFull => "disk-full",
            Self::ReadError => "read-error",
            Self::WriteError => "write-error",
            Self::SyncError => "sync-error",
        }
    }

    /// Reports whether the fault needs the mail to be on the in-memory disk of `mailrun_crashfs`,
    /// which can lose unsynced data and fail operations.
    pub(super) fn needs_disk(self) -> bool {
        !matches!(self, Self::Kill | Self::Stop)
    }

    pub(super) fn cuts_power(self) -> bool {
        matches!(self, Self::PowerCut | Self::SyncError)
    }

    /// Reports whether the fault can lose mail even if it strikes an idle server. If so, some rounds send only a single
    /// message, and cause the fault after the server has answered this message.
    pub(super) fn strikes_at_rest(self) -> bool {
        matches!(self, Self::Kill | Self::Stop | Self::PowerCut | Self::ReadError)
    }

    /// Reports whether the fault can strike again while the server recovers from it.
    pub(super) fn strikes_recovery(self) -> bool {
        matches!(self, Self::Kill | Self::PowerCut)
    }

    pub(super) fn event(self) -> &'static str {
        match self {
            Self::Kill => "the server is killed",
            Self::Stop => "the server is stopped",
            Self::PowerCut => "the power is cut",
            Self::DiskFull => "the disk is full",
            Self::ReadError => "the server is killed, and a read will fail",
            Self::WriteError => "a write will fail, and then the server is killed",
            Self::SyncError => "a sync will fail, and then the power is cut",
        }
    }
}

impl FromStr for AuditFault {
    type Err = String;

    fn from_str(typed: &str) -> Result<Self, String> {
        let fault = Self::ALL.into_iter().find(|fault| fault.name() == typed);
        fault.ok_or_else(|| format!("{typed:?} is not one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// Fault that the audit causes in a round. If the fault cuts the power, `file_system` decides which unsynced changes
/// the disk may lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AuditCase {
    pub(super) fault: AuditFault,
    pub(super) file_system: Option<Profile>,
    /// If set, the audit tests this file system only in rounds whose number modulo 5 is this value. A loss is then only
    /// a remark and does not change the verdict, because the user did not ask for this file system.
    remark_turn: Option<u32>,
}

impl AuditCase {
    pub(super) fn new(fault: AuditFault, file_system: Option<Profile>) -> Self {
        Self { fault, file_system, remark_turn: None }
    }

    /// Returns the cases to try: each fault, and for a power cut each file system in `named`. If `named` is empty, a
    /// power cut is tried on ext4 and XFS in each round, and on each of the other file systems in every fifth round. A
    /// sync error is tried on a single file system: the first in `named`, or ext4.
    pub(super) fn all(faults: &[AuditFault], named: &[Profile]) -> Vec<Self> {
        let mut cases = Vec::new();
        for fault in faults.iter().copied() {
            let file_systems = match (fault, named) {
                (AuditFault::PowerCut, []) => &Profile::ALL[..],
                (AuditFault::PowerCut, named) => named,
                // Test sync errors on only one file system, because a failed sync loses the same data on all of them.
                (AuditFault::SyncError, []) => &[Profile::Ext4],
                (AuditFault::SyncError, named) => &named[..1],
                _ => &[],
            };
            let remark_turn = |file_system: Profile| match file_system {
                Profile::Btrfs => Some(3),
                Profile::Strict => Some(0),
                Profile::Ext4 | Profile::Xfs => None,
            };
            cases.extend(file_systems.iter().map(|file_system| Self {
                remark_turn: remark_turn(*file_system).filter(|_| named.is_empty()),
                ..Self::new(fault, Some(*file_system))
            }));
            if file_systems.is_empty() {
                cases.push(Self::new(fault, None));
            }
        }
        cases
    }

    /// Returns the name of the fault, followed by the file system if there is one: `kill`, or `power-cut on ext4`.
    pub(super) fn name(self) -> String {
        let fault = self.fault.name();
        self.file_system.map_or_else(|| fault.to_owned(), |file_system| format!("{fault} on {}", file_system.name()))
    }

    pub(super) fn is_due(self, round: u32) -> bool {
        self.remark_turn.is_none_or(|turn| round % 5 == turn)
    }

    pub(super) fn is_remark(self) -> bool {
        self.remark_turn.is_some()
    }
}

/// Draws the random values of a round, such as the time of the fault. The same seed gives the same values again.
#[derive(Clone, Debug)]
pub(super) struct Moments(SeededRng);

impl Moments {
    pub(super) fn new(seed: u64, fault: AuditFault, round: u64) -> Self {
        Self(SeededRng::new(seed, fault as u64, round))
    }

    pub(super) fn within(&mut self, from: Duration, to: Duration) -> Duration {
        from + to.saturating_sub(from).mul_f64(self.0.unit())
    }

    /// Draws a random number from 1 to `max`, both included.
    pub(super) fn number(&mut self, max: u64) -> u64 {
        1 + self.0.below(max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_cut_is_tried_on_several_file_systems() {
        let rounds = |named: &[Profile]| {
            let cases = AuditCase::all(&[AuditFault::Kill, AuditFault::PowerCut, AuditFault::SyncError], named);
            let of_case = |case: &AuditCase| {
                (case.name(), case.is_remark(), (1..=15).filter(|round| case.is_due(*round)).count())
            };
            cases.iter().map(of_case).collect::<Vec<_>>()
        };
        let case = |name: &str, is_remark, rounds| (name.to_owned(), is_remark, rounds);
        let usual = [
            case("kill", false, 15),
            case("power-cut on ext4", false, 15),
            case("power-cut on xfs", false, 15),
            case("power-cut on btrfs", true, 3),
            case("power-cut on strict", true, 3),
            case("sync-error on ext4", false, 15),
        ];
        assert_eq!(rounds(&[]), usual);
        let named =
            [case("kill", false, 15), case("power-cut on strict", false, 15), case("sync-error on strict", false, 15)];
        assert_eq!(rounds(&[Profile::Strict]), named, "what the user asks for decides");
    }

    #[test]
    fn a_fault_is_named_as_it_is_typed() {
        for fault in AuditFault::ALL {
            assert_eq!(fault.name().parse(), Ok(fault));
        }
        assert_eq!(
            "fire".parse::<AuditFault>(),
            Err("\"fire\" is not one of kill, stop, power-cut, disk-full, read-error, write-error, sync-error"
                .to_owned())
        );
    }
}
