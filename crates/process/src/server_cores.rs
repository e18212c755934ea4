//! Starts a child on certain processors. The thread that starts the child moves to these processors
//! for a moment, and the child inherits the placement.
use crate::cpus::CpuList;
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use std::io;
use std::process::{Child, Command};

/// Returns the number of processors on which this thread may run.
///
/// # Errors
///
/// Returns an error if sched_getaffinity(2) fails.
pub fn available() -> io::Result<u32> {
    Ok(sched_getaffinity(None)?.count())
}

/// Starts a child on the first `count` of the processors on which this thread may run. All threads
/// and children of the child run on the same processors.
///
/// # Errors
///
/// Returns an error if fewer than `count` processors are available or if the child cannot be
/// started.
pub fn spawn_on(command: &mut Command, count: u32) -> io::Result<Child> {
    spawn_within(command, &first_of(&CpuList::available()?, count)?)
}

/// Starts a child that may run only on the processors of `cpus`.
///
/// # Errors
///
/// Returns an error if a processor is not available or if the child cannot be started.
pub fn spawn_within(command: &mut Command, cpus: &CpuList) -> io::Result<Child> {
    cpus.check()?;
    let ours = sched_getaffinity(None)?;
    sched_setaffinity(None, &cpus.set())?;
    let started = command.spawn();
    let restored = sched_setaffinity(None, &ours);
    let mut child = started?;
    if let Err(error) = restored {
        child.kill()?;
        child.wait()?;
        return Err(error.into());
    }
    Ok(child)
}

fn first_of(all: &CpuList, count: u32) -> io::Result<CpuList> {
    let numbers = all.numbers();
    numbers.get(..count as usize).and_then(|first| CpuList::new(first.to_vec())).ok_or_else(|| {
        let reason = format!("{count} processors were asked for, and {} are there", numbers.len());
        io::Error::new(io::ErrorKind::InvalidInput, reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::CpuSet;
    use std::process::Stdio;

    fn set(numbers: &[usize]) -> CpuList {
        CpuList::new(numbers.to_vec()).unwrap()
    }

    #[test]
    fn the_first_of_those_that_are_allowed_are_chosen() {
        assert_eq!(first_of(&set(&[1, 3, 6]), 2).unwrap(), set(&[1, 3]));
        assert_eq!(first_of(&set(&[5]), 1).unwrap(), set(&[5]));
        let error = first_of(&set(&[0, 1]), 3).unwrap_err().to_string();
        assert_eq!(error, "3 processors were asked for, and 2 are there");
        assert!(first_of(&set(&[0]), 0).is_err());
    }

    #[test]
    fn a_child_has_them_and_this_thread_keeps_its_own() {
        let before = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|number| before.is_set(*number)).unwrap();
        let mut command = Command::new("/bin/sh");
        // The command `true` makes the shell start grep as its own child, which must inherit the shell's processor.
        command.args(["-c", "grep Cpus_allowed_list /proc/self/status; true"]).stdout(Stdio::piped());
        let output = spawn_on(&mut command, 1).unwrap().wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["Cpus_allowed_list:", &first.to_string()]);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        assert!(spawn_on(&mut command, before.count() + 1).is_err());
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        assert_eq!(available().unwrap(), before.count());
    }
}
