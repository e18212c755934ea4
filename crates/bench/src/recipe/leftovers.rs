//! Finds and kills servers that an earlier mailrun started from a recipe and left behind, for example because it was
//! killed. A token in the environment of a server's processes tells which mailrun started them. Some servers, such as
//! OpenSMTPD, overwrite their environment when they set the titles that ps(1) shows. If such a server runs in a root
//! directory of its own, mailrun reads the token from a file beside this root directory. An audit also adopts the
//! orphans of its server (`adopt_orphans`), so that it can recognise a process without the token as one of its own
//! descendants.
use crate::usage::tree;
use mailrun_lock::lock;
use mailrun_process::proc_stat::{self, ProcessStat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, set_child_subreaper, waitid};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Environment variable with the token, which is `PID:START:DIRECTORY`: the process ID and the start time of the
/// mailrun that started the process, and the server's directory.
pub(crate) const VARIABLE: &str = "MAILRUN_RECIPE";

/// File in the server's directory with the token that says which mailrun started the server.
const FILE: &str = ".recipe";

/// Time limit for processes to end after SIGKILL. A process that waits for a disk may take longer.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the token that marks all processes of a server as started by this mailrun process in `directory`.
pub(crate) fn token(directory: &Path) -> OsString {
    let pid = std::process::id();
    let start = started(pid).unwrap_or_default();
    let mut token = OsString::from(format!("{pid}:{start}:"));
    token.push(directory);
    token
}

/// Writes the token into a file in the server's directory. This file identifies the processes of servers that overwrite
/// their environment.
pub(crate) fn mark(directory: &Path) -> std::io::Result<()> {
    fs::write(directory.join(FILE), token(directory).as_encoded_bytes())
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecipeProcess {
    pub(crate) pid: u32,
    pub(crate) name: String,
    token: String,
}

/// Set once `adopt_orphans` has made this process the parent of every descendant whose own parent ends.
static ADOPTS_ORPHANS: AtomicBool = AtomicBool::new(false);
/// IDs of the sources and sinks that this process has started, which must not be killed together with a server.
static OTHERS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Makes this process the parent of every descendant whose own parent ends (prctl(2), PR_SET_CHILD_SUBREAPER). From
/// then on, everything that descends from this process, except sources and sinks, belongs to the server. This includes
/// a process that has left its group, cleared its environment, or lives in another PID namespace. The caller must run
/// only one server at a time.
pub(crate) fn adopt_orphans() -> rustix::io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    ADOPTS_ORPHANS.store(true, Ordering::Relaxed);
    Ok(())
}

/// Records a child, such as a source or a sink, that must not be killed together with a server.
pub(crate) fn add_other(pid: u32) {
    lock(&OTHERS).insert(pid);
}

pub(crate) fn remove_other(pid: u32) {
    lock(&OTHERS).remove(&pid);
}

/// Reaps adopted processes that have ended. The caller must have no other children, because their
/// exit status would be lost.
pub(crate) fn reap_orphans() {
    while let Ok(Some(_)) = waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {}
}

/// Returns the running processes of the server that this mailrun started in `directory`.
pub(crate) fn processes_in(directory: &Path) -> Vec<RecipeProcess> {
    let token = token(directory).to_string_lossy().into_owned();
    let mut found: Vec<_> = all().into_iter().filter(|process| process.token == token).collect();
    let others = descendants().into_iter().filter(|pid| !found.iter().any(|process| process.pid == *pid));
    let named = |pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim().to_owned();
        Some(RecipeProcess { pid, name, token: token.clone() })
    };
    let others: Vec<_> = others.filter_map(named).collect();
    found.extend(others);
    found
}

/// Returns this process's running descendants that belong to a server, or none before `adopt_orphans` is called.
fn descendants() -> Vec<u32> {
    if !ADOPTS_ORPHANS.load(Ordering::Relaxed) {
        return Vec::new();
    }
    let own = std::process::id();
    let others = lock(&OTHERS);
    let mut family = BTreeSet::from([own]);
    // `members` lists parents before their children, so one pass finds all descendants.
    let members = tree::members(own).into_iter().skip(1);
    let of_server = members.filter(|member| {
        let is_of_server = family.contains(&member.parent) && !others.contains(&member.pid);
        is_of_server.then(|| family.insert(member.pid)).is_some() && !has_ended(member)
    });
    of_server.map(|member| member.pid).collect()
}

fn has_ended(process: &ProcessStat) -> bool {
    ['Z', 'X'].contains(&process.state)
}

/// Sends SIGKILL to the processes but does not wait until they have ended.
pub(crate) fn send_kill(processes: &[RecipeProcess]) {
    for pid in processes.iter().filter_map(|process| Pid::from_raw(process.pid as i32)) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Unmounts the file systems that a mailrun process left behind when it died. Returns a line about each of them for the
/// user.
fn unmount_dead() -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = mounts.lines().filter_map(|line| line.split_once(' '));
    let ours = fields.filter(|(source, _)| *source == mailrun_crashfs::FILE_SYSTEM);
    let path = |rest: &str| PathBuf::from(rest.split(' ').next().unwrap_or_default().replace("\\040", " "));
    let is_dead = |path: &PathBuf| rustix::fs::statfs(path).is_err_and(|error| error == Errno::NOTCONN);
    let dead = ours.map(|(_, rest)| path(rest)).filter(is_dead);
    let unmounted = dead.filter(|path| unmount(path, UnmountFlags::DETACH).is_ok());
    unmounted.map(|path| format!("mailrun: unmounted {}, which an earlier mailrun had left", path.display())).collect()
}

/// Kills the processes of the server in `directory`. Repeats this for at most `KILL_TIMEOUT`, until no process is left,
/// because a process may start another one just before it is killed.
pub(crate) fn kill_in(directory: &Path) {
    kill_all(|| processes_in(directory));
}

/// Kills the processes and unmounts the file systems that a mailrun process left behind when it died. Returns a line
/// about each server and each file system for the user.
pub(crate) fn remove() -> Vec<String> {
    let orphans = || all().into_iter().filter(|process| !owner_lives(&process.token)).collect::<Vec<_>>();
    let mut processes = orphans();
    let survivors = kill_all(orphans);
    processes.retain(|process| !survivors.contains(process));
    let directory = |process: &RecipeProcess| process.token.splitn(3, ':').nth(2).unwrap_or_default().to_owned();
    processes.sort_by_key(directory);
    let servers = processes.chunk_by(|one, other| directory(one) == directory(other));
    let line = |processes: &[RecipeProcess]| {
        format!(
            "mailrun: killed what an earlier mailrun had left of the server in {}: {} ({})",
            directory(&processes[0]),
            processes[0].name,
            processes.iter().map(|process| process.pid.to_string()).collect::<Vec<_>>().join(", ")
        )
    };
    servers.map(line).chain(unmount_dead()).collect()
}

/// Kills the processes until none is left, or until `KILL_TIMEOUT` has passed. Returns the processes that still run,
/// for example because they wait for a disk, and prints a line about each of them.
fn kill_all(processes: impl Fn() -> Vec<RecipeProcess>) -> Vec<RecipeProcess> {
    let limit = Instant::now() + KILL_TIMEOUT;
    loop {
        let survivors = processes();
        if survivors.is_empty() || Instant::now() > limit {
            for RecipeProcess { pid, name, .. } in &survivors {
                let seconds = KILL_TIMEOUT.as_secs();
                mailrun_process::tell!("mailrun: process {pid} ({name}) still runs {seconds} s after SIGKILL");
            }
            return survivors;
        }
        send_kill(&survivors);
        thread::sleep(Duration::from_millis(2));
    }
}

/// Returns all running processes of servers from recipes. They may have been started by this mailrun or by another one.
fn all() -> Vec<RecipeProcess> {
    proc_stat::pids().filter_map(process).collect()
}

fn process(pid: u32) -> Option<RecipeProcess> {
    // Skip processes in another PID namespace, such as a container. The token in their environment may contain a
    // process ID of that namespace. In our own namespace, this ID belongs to another process.
    if namespace("self")? != namespace(&pid.to_string())? {
        return None;
    }
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let token = environment
        .split(|byte| *byte == 0)
        .find_map(|line| String::from_utf8_lossy(line).strip_prefix(VARIABLE)?.strip_prefix('=').map(str::to_owned))
        .or_else(|| token_of_root(&fs::read_link(format!("/proc/{pid}/root")).ok()?))?;
    started(pid)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim().to_owned();
    Some(RecipeProcess { pid, name, token })
}

/// Reads the server's token from the file `.recipe` beside the root directory of a process, or beside a directory above
/// this root directory.
fn token_of_root(root: &Path) -> Option<String> {
    let mut above = root.ancestors().filter(|place| place.parent().is_some());
    above.find_map(|place| fs::read_to_string(place.parent()?.join(FILE)).ok())
}

fn namespace(process: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/pid")).ok()
}

/// Returns the start time of a process in clock ticks since boot (proc(5)). Returns `None` if the process has ended.
fn started(pid: u32) -> Option<u64> {
    ProcessStat::of(pid).filter(|stat| !has_ended(stat)).map(|stat| stat.started)
}

fn owner_lives(token: &str) -> bool {
    let mut parts = token.splitn(3, ':');
    let mut number = || parts.next()?.parse::<u64>().ok();
    match (number(), number()) {
        (Some(pid), Some(start)) => u32::try_from(pid).ok().and_then(started) == Some(start),
        // The token has no process ID and start time, so mailrun did not write it. Return true, because mailrun must
        // not kill a process that somebody else started.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn all_processes_of_a_server_are_found_and_killed() {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 600 & wait"]).env(VARIABLE, token(place.path())).stdout(Stdio::null());
        let mut shell = command.spawn().unwrap();
        let limit = Instant::now() + Duration::from_secs(30);
        while processes_in(place.path()).len() < 2 {
            assert!(Instant::now() < limit);
            thread::sleep(Duration::from_millis(5));
        }
        assert!(processes_in(place.path()).iter().any(|process| process.pid == shell.id()));
        kill_in(place.path());
        assert!(!shell.wait().unwrap().success() && processes_in(place.path()).is_empty());
    }

    #[test]
    fn a_process_without_its_environment_is_known_by_its_root() {
        let place = tempfile::tempdir().unwrap();
        let empty = place.path().join("root/var/empty");
        fs::create_dir_all(&empty).unwrap();
        assert_eq!(token_of_root(&empty), None);
        mark(place.path()).unwrap();
        let token = Some(token(place.path()).to_string_lossy().into_owned());
        assert_eq!([token_of_root(&empty), token_of_root(&place.path().join("root"))], [token.clone(), token]);
        assert_eq!(token_of_root(Path::new("/")), None);
    }

    #[test]
    fn a_token_that_is_none_is_nobodys() {
        assert!(owner_lives("") && owner_lives("x:y:z"));
        assert!(owner_lives(&token(Path::new("/x")).to_string_lossy()) && !owner_lives("1:1:/x"));
    }
}
