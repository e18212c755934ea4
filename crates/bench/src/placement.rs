//! Placement: which processors each process of a bench runs on.
//!
//! On a host with enough processors, load and server get separate processors, so that the load does not slow the server
//! down and change its figures. Logical processors of one core share its execution units, so a core is never divided
//! between two processes.
use mailrun_process::cpus::CpuList;
use std::collections::BTreeMap;
use std::fs;

/// By default, each process gets processors of its own if the host has at least this number of processors. With fewer,
/// a process's share would be too small for its work.
pub const APART_FROM: usize = 8;
/// Minimum number of cores at which each process gets its own processors. With a relay, source and sink get a quarter
/// of the cores each, and a quarter of fewer than 4 cores is less than a whole core. The host must also have at least
/// [`APART_FROM`] processors.
const MIN_CORES: usize = 4;

/// Processors on which each process of the bench may run. `None` means all processors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    pub source: Option<CpuList>,
    /// Processors of the relay and of everything that it starts.
    pub relay: Option<CpuList>,
    pub sink: Option<CpuList>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayPresence {
    Present,
    Absent,
}

impl Placement {
    /// Gives each process its own processors of this host, if the host has enough of them.
    pub fn apart(relay: RelayPresence) -> Self {
        let available = CpuList::available().map(|list| list.numbers().to_vec()).unwrap_or_default();
        Self::divide(&cores_of(&available, siblings), relay)
    }

    /// Divides the processors of `cores` between the processes. Without a relay, source and sink get half each. With a
    /// relay, which has the most work, source and sink get a quarter each and the relay gets the rest. If there are
    /// fewer than [`APART_FROM`] processors or [`MIN_CORES`] cores, every process may use all processors.
    fn divide(cores: &[Vec<usize>], relay: RelayPresence) -> Self {
        let count: usize = cores.iter().map(Vec::len).sum();
        if count < APART_FROM || cores.len() < MIN_CORES {
            return Self::default();
        }
        let end_cores = match relay {
            RelayPresence::Absent => cores.len() / 2,
            RelayPresence::Present => cores.len() / 4,
        };
        let (source, others) = cores.split_at(end_cores);
        let (relay_part, sink) = match relay {
            RelayPresence::Absent => (&[][..], others),
            RelayPresence::Present => others.split_at(others.len() - end_cores),
        };
        let list = |part: &[Vec<usize>]| CpuList::new(part.concat());
        Self { source: list(source), relay: list(relay_part), sink: list(sink) }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Groups the available processors by core. The cores are in the order of their lowest processor numbers.
fn cores_of(available: &[usize], siblings: impl Fn(usize) -> Option<CpuList>) -> Vec<Vec<usize>> {
    let mut cores: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for number in available {
        let first = siblings(*number).and_then(|list| list.numbers().first().copied());
        cores.entry(first.unwrap_or(*number)).or_default().push(*number);
    }
    cores.into_values().collect()
}

/// Returns all logical processors of the core to which processor `number` belongs, as the kernel lists them in sysfs.
fn siblings(number: usize) -> Option<CpuList> {
    let path = format!("/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(placement: &Placement) -> [String; 3] {
        let Placement { source, relay, sink } = placement;
        [source, relay, sink].map(|list| list.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string))
    }

    fn single(count: usize) -> Vec<Vec<usize>> {
        (0..count).map(|number| vec![number]).collect()
    }

    #[test]
    fn a_small_host_is_left_as_it_is() {
        for relay in [RelayPresence::Absent, RelayPresence::Present] {
            for cores in
                [single(0), single(1), single(2), single(APART_FROM - 1), vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]]]
            {
                assert!(Placement::divide(&cores, relay).is_empty(), "{cores:?}");
            }
        }
    }

    #[test]
    fn parts_do_not_overlap_and_leave_nothing() {
        let divide = |count: usize, relay: RelayPresence| shown(&Placement::divide(&single(count), relay));
        assert_eq!(divide(8, RelayPresence::Absent), ["0-3", "-", "4-7"]);
        assert_eq!(divide(8, RelayPresence::Present), ["0-1", "2-5", "6-7"]);
        assert_eq!(divide(11, RelayPresence::Absent), ["0-4", "-", "5-10"]);
        assert_eq!(divide(11, RelayPresence::Present), ["0-1", "2-8", "9-10"]);
    }

    #[test]
    fn a_core_is_not_divided() {
        // The host has four cores. Core n has the logical processors n and n + 4, which must stay together.
        let siblings = |number: usize| CpuList::new(vec![number % 4, number % 4 + 4]);
        let cores = cores_of(&[0, 1, 2, 3, 4, 5, 6, 7], siblings);
        assert_eq!(cores, [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(shown(&Placement::divide(&cores, RelayPresence::Absent)), ["0-1,4-5", "-", "2-3,6-7"]);
        assert_eq!(shown(&Placement::divide(&cores, RelayPresence::Present)), ["0,4", "1-2,5-6", "3,7"]);
        assert_eq!(cores_of(&[2, 5], |_| None), [[2], [5]], "without a topology each is a core");
    }
}
