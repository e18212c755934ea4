//! Totals over the lives of all spools: the faults, and the fates of the mail.
use mailrun_crashfs::Fault;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    pub(crate) cuts: u64,
    /// Power cuts before the relay listened.
    pub(crate) cuts_at_start: u64,
    pub(crate) kills: u64,
    pub(crate) stops: u64,
    faults: BTreeMap<String, u64>,
    pub(crate) messages: u64,
    /// Messages that got a reply other than 250. The field `messages` does not count them.
    pub(crate) refused: u64,
    /// Recipients of messages that got a 250. The fields below count recipients as well.
    pub(crate) answered: u64,
    pub(crate) delivered: u64,
    pub(crate) lost: u64,
    pub(crate) duplicates: u64,
}

impl Account {
    pub(crate) fn count_fault(&mut self, fault: Fault) {
        *self.faults.entry(fault.to_string()).or_default() += 1;
    }
}

impl AddAssign for Account {
    fn add_assign(&mut self, other: Self) {
        self.cuts += other.cuts;
        self.cuts_at_start += other.cuts_at_start;
        self.kills += other.kills;
        self.stops += other.stops;
        for (fault, count) in other.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        self.messages += other.messages;
        self.refused += other.refused;
        self.answered += other.answered;
        self.delivered += other.delivered;
        self.lost += other.lost;
        self.duplicates += other.duplicates;
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: u64 = self.faults.values().sum();
        writeln!(
            f,
            "power cuts                  {:>9}  ({} before the relay listened)",
            self.cuts, self.cuts_at_start
        )?;
        writeln!(f, "kills, stops                {:>9}  {}", self.kills, self.stops)?;
        writeln!(f, "faults of the disk          {faults:>9}")?;
        for (fault, count) in &self.faults {
            writeln!(f, "  {fault:<26}{count:>9}")?;
        }
        writeln!(f, "messages answered 250       {:>9}  ({} answered otherwise)", self.messages, self.refused)?;
        writeln!(f, "  their recipients          {:>9}", self.answered)?;
        writeln!(f, "  delivered                 {:>9}", self.delivered)?;
        writeln!(f, "  lost                      {:>9}", self.lost)?;
        write!(f, "  duplicates                {:>9}", self.duplicates)
    }
}
