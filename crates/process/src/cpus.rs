//! Restricts a process to the processors that the user lists, for example `0,2-3`. A processor on which the kernel does
//! not let this process run is an error.
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::OnceLock;

/// Numbers of processors: at least one, in ascending order, without duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

static PLACED: OnceLock<Placed> = OnceLock::new();

#[derive(Debug)]
struct Placed {
    cpus: CpuList,
    cores_before: usize,
}

impl CpuList {
    /// Sorts the numbers and removes duplicates. Returns `None` if `numbers` is empty.
    pub fn new(mut numbers: Vec<usize>) -> Option<Self> {
        numbers.sort_unstable();
        numbers.dedup();
        (!numbers.is_empty()).then_some(Self(numbers))
    }

    /// Returns the processors on which this thread may run.
    ///
    /// # Errors
    /// Returns an error if sched_getaffinity(2) fails or names no processor.
    pub fn available() -> io::Result<Self> {
        let allowed = sched_getaffinity(None)?;
        let numbers = (0..CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number)).collect();
        Self::new(numbers).ok_or_else(|| io::Error::other("no processor is available"))
    }

    pub fn numbers(&self) -> &[usize] {
        &self.0
    }

    /// Checks that this thread may run on all processors of the list.
    ///
    /// # Errors
    /// Returns an error that names the first unavailable processor and those that are available.
    pub fn check(&self) -> io::Result<()> {
        self.check_within(&Self::available()?)
    }

    fn check_within(&self, available: &Self) -> io::Result<()> {
        match self.0.iter().find(|number| !available.0.contains(number)) {
            None => Ok(()),
            Some(number) => {
                let reason = format!("processor {number} is not available; available: {available}");
                Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
            }
        }
    }

    /// Restricts this thread, and all threads that it starts later, to the processors of the list.
    /// The process must call this before it starts other threads, because running threads are not
    /// moved.
    ///
    /// # Errors
    /// Returns an error if a processor is not available.
    pub fn place_this_process(&self) -> io::Result<()> {
        self.check()?;
        let cores_before = cores();
        sched_setaffinity(None, &self.set())?;
        PLACED.get_or_init(|| Placed { cpus: self.clone(), cores_before });
        Ok(())
    }

    pub(crate) fn set(&self) -> CpuSet {
        let mut set = CpuSet::new();
        self.0.iter().for_each(|number| set.set(*number));
        set
    }
}

pub(crate) fn placement() -> Option<String> {
    PLACED.get().map(|placed| placed.cpus.to_string())
}

/// Returns the number of processors that were available before this process restricted itself to some of them. Run
/// records describe the host with this number, because it does not depend on the restriction.
pub(crate) fn host_cores() -> usize {
    PLACED.get().map_or_else(cores, |placed| placed.cores_before)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl FromStr for CpuList {
    type Err = String;

    /// Parses numbers and ranges that are separated by commas, for example `0,2-3`.
    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("{text:?}: use numbers of processors and ranges, such as 0,1 or 0-3");
        let number = |word: &str| {
            let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
            let number = word.parse::<usize>().ok().filter(|_| is_number);
            number.filter(|number| *number < CpuSet::MAX_CPU).ok_or_else(error)
        };
        let mut numbers = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first = number(first)?;
            let last = number(last)?;
            if first > last {
                return Err(error());
            }
            numbers.extend(first..=last);
        }
        Self::new(numbers).ok_or_else(error)
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.0.chunk_by(|one, next| one + 1 == *next).map(|range| match range {
            [first, .., last] => format!("{first}-{last}"),
            single => single.iter().map(ToString::to_string).collect(),
        });
        f.write_str(&ranges.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> CpuList {
        text.parse().expect(text)
    }

    #[test]
    fn a_list_has_numbers_and_ranges() {
        for (text, numbers, shown) in [
            ("0", &[0][..], "0"),
            ("1,0", &[0, 1], "0-1"),
            ("0-3", &[0, 1, 2, 3], "0-3"),
            ("7,2-3,3-4", &[2, 3, 4, 7], "2-4,7"),
            ("1023", &[1023], "1023"),
        ] {
            assert_eq!(list(text).numbers(), numbers, "{text}");
            assert_eq!(list(text).to_string(), shown, "{text}");
        }
        for text in ["", ",", "0,", "a", "-1", "1-", "3-1", "0 1", "+1", "1024", "0-99999999999999999999", "½"] {
            assert!(text.parse::<CpuList>().is_err_and(|error| error.contains("such as 0,1 or 0-3")), "{text}");
        }
    }

    #[test]
    fn processors_that_are_not_available_are_refused() {
        let error = list("1-4").check_within(&list("0-2,5")).unwrap_err().to_string();
        assert_eq!(error, "processor 3 is not available; available: 0-2,5");
        assert!(list("5,0").check_within(&list("0-2,5")).is_ok());
        assert!(CpuList::available().unwrap().check().is_ok());
    }

    #[test]
    fn a_thread_and_those_that_it_starts_run_where_it_was_placed() {
        let threads = std::thread::spawn(|| {
            let first = CpuList::new(vec![CpuList::available().unwrap().numbers()[0]]).unwrap();
            sched_setaffinity(None, &first.set()).unwrap();
            (first, std::thread::spawn(CpuList::available).join().unwrap().unwrap())
        });
        let (first, of_the_next) = threads.join().unwrap();
        assert_eq!(first, of_the_next);
    }
}
