//! The journal is the file in which a probe records what became of its messages, so that it does not lose this
//! knowledge in a restart.
//!
//! The first line is a snapshot of the account (counts and messages in flight), and each further line is a later event.
//! Every line begins with its CRC-32C. If a probe is killed, the file may end in part of a line, which the next probe
//! ignores. From time to time, the file is replaced by a new one with only a snapshot, so it stays small.
use super::account::{Account, Event};
use mailrun_measurement::trace::checksum;
use mailrun_process::reason::reason;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Number of bytes of events after which a new snapshot replaces the file, so that the file stays small.
const MAX_EVENT_BYTES: usize = 256 << 10;
const MAX_FILE_BYTES: u64 = 256 << 20;
const VERSION: u32 = 1;
/// Length in bytes of the checksum at the beginning of a line and the space after it.
const PREFIX_BYTES: usize = 9;

/// The file operations that a journal needs. In tests, memory replaces the file.
pub(super) trait Storage {
    /// Returns the content of the file, or `None` if it does not exist yet.
    fn read(&mut self) -> io::Result<Option<Vec<u8>>>;
    /// Replaces the file's content. On success, the new content is on disk. On failure, the file has either the old
    /// content or the new content, and no mixture.
    fn replace(&mut self, content: &[u8]) -> io::Result<()>;
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Waits until everything appended is on disk.
    fn sync(&mut self) -> io::Result<()>;
}

#[derive(Serialize, Deserialize)]
struct Snapshot<A> {
    version: u32,
    account: A,
}

pub(super) struct Journal<S> {
    storage: S,
    snapshot_bytes: usize,
    event_bytes: usize,
    /// Reason why the last write failed. Such a write may leave part of a line, so the file must be replaced before
    /// further events are appended.
    fault: Option<String>,
    /// Number of writes that have failed since the probe started, for `/metrics`.
    pub(super) failures: u64,
}

#[derive(Debug, PartialEq)]
pub(super) struct Recovered {
    pub(super) account: Account,
    /// Number of damaged lines, whose events are lost. An unfinished last line does not count.
    pub(super) damaged: u64,
}

impl<S: Storage> Journal<S> {
    pub(super) fn new(storage: S) -> Self {
        Self { storage, snapshot_bytes: 0, event_bytes: 0, fault: None, failures: 0 }
    }

    /// Reads the account from the file: the snapshot and the events after it. Returns `None` if there is no file.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or if its first line is damaged.
    pub(super) fn recover(&mut self) -> Result<Option<Recovered>, String> {
        let content = self.storage.read().map_err(|error| reason(&error))?;
        content.map(|content| recover(&content)).transpose()
    }

    /// Replaces the file with a new file that contains only a snapshot of this account. This also repairs the file
    /// after a write that has failed.
    pub(super) fn compact(&mut self, account: &Account) -> Result<(), String> {
        let result = line(&Snapshot { version: VERSION, account }).and_then(|content| {
            self.storage.replace(&content)?;
            Ok(content.len())
        });
        match result {
            Ok(bytes) => {
                (self.snapshot_bytes, self.event_bytes, self.fault) = (bytes, 0, None);
                Ok(())
            }
            Err(error) => Err(self.fail(&error)),
        }
    }

    /// Appends events to the file. If `durable` is set, waits until they are on disk. If the file is too long, or the
    /// last write failed, a snapshot of `account` first replaces the file. `account` must therefore not contain these
    /// events yet.
    pub(super) fn append(&mut self, events: &[Event], account: &Account, durable: bool) -> Result<(), String> {
        if self.fault.is_some() || self.event_bytes > MAX_EVENT_BYTES {
            self.compact(account)?;
        }
        let written = events.iter().map(line).collect::<io::Result<Vec<_>>>().and_then(|lines| {
            let bytes = lines.concat();
            self.storage.append(&bytes)?;
            if durable {
                self.storage.sync()?;
            }
            Ok(bytes.len())
        });
        match written {
            Ok(bytes) => {
                self.event_bytes += bytes;
                Ok(())
            }
            Err(error) => Err(self.fail(&error)),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.snapshot_bytes + self.event_bytes) as u64
    }

    pub(super) fn is_writable(&self) -> bool {
        self.fault.is_none()
    }

    fn fail(&mut self, error: &io::Error) -> String {
        self.failures += 1;
        self.fault.insert(reason(error)).clone()
    }
}

fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(value)?;
    let mut line = format!("{:08x} ", checksum(&json)).into_bytes();
    line.extend_from_slice(&json);
    line.push(b'\n');
    Ok(line)
}

fn json(line: &[u8]) -> Option<&[u8]> {
    let (prefix, json) = line.split_at_checked(PREFIX_BYTES)?;
    let digits = std::str::from_utf8(prefix.strip_suffix(b" ")?).ok()?;
    (u32::from_str_radix(digits, 16) == Ok(checksum(json))).then_some(json)
}

fn recover(content: &[u8]) -> Result<Recovered, String> {
    // Ignore the bytes after the last line end, because they belong to a line that was not written completely.
    let end = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let mut lines = content[..end].split_inclusive(|byte| *byte == b'\n').map(|line| &line[..line.len() - 1]);
    let first = lines.next().and_then(json).ok_or("its first line, which has the account, is damaged")?;
    let snapshot: Snapshot<Account> =
        serde_json::from_slice(first).map_err(|error| format!("its account cannot be read: {error}"))?;
    if snapshot.version != VERSION {
        return Err(format!("it has version {}, and this program reads version {VERSION}", snapshot.version));
    }
    let mut recovered = Recovered { account: snapshot.account, damaged: 0 };
    for line in lines {
        match json(line).and_then(|json| serde_json::from_slice::<Event>(json).ok()) {
            Some(event) => recovered.account.apply(&event),
            None => recovered.damaged += 1,
        }
    }
    Ok(recovered)
}

/// The journal's file, in a directory that is locked so that two probes cannot use it at the same time.
pub(super) struct FileStorage {
    directory: PathBuf,
    lock: File,
    file: Option<File>,
}

const FILE_NAME: &str = "account";
const NEW_NAME: &str = "account.new";

impl FileStorage {
    /// Locks the directory for this process. Creates it if it does not exist, readable by this user only.
    ///
    /// # Errors
    ///
    /// Fails if the directory cannot be created, or if another probe uses it.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let lock = File::open(directory)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => io::Error::other("another probe uses it"),
            error => error.into(),
        })?;
        Ok(Self { directory: directory.to_owned(), lock, file: None })
    }
}

impl Storage for FileStorage {
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(self.directory.join(FILE_NAME)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut content = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut content)?;
        Ok(Some(content))
    }

    fn replace(&mut self, content: &[u8]) -> io::Result<()> {
        let new = self.directory.join(NEW_NAME);
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(&new)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&new, self.directory.join(FILE_NAME))?;
        // Use the new file even if syncing the directory fails, because it has already replaced the old file.
        self.file = Some(file);
        self.lock.sync_all()
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.as_mut().ok_or(io::ErrorKind::NotFound)?.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.as_mut().ok_or(io::ErrorKind::NotFound)?.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::account::Answer;
    use crate::probe::simulation::MemoryStorage;
    use crate::sink::arrivals::{Arrival, ArrivalKind};

    fn events() -> Vec<Event> {
        let arrival = Arrival { number: 0, kind: ArrivalKind::Delivered, delivered_ns: Some(7), announced_ns: None };
        vec![
            Event::Created { number: 0, due_ns: 1, watched: true },
            Event::Answered { number: 0, answer: Answer::Accepted, took_ns: 5, at_ns: 6 },
            Event::Created { number: 1, due_ns: 1 << 60, watched: true },
            Event::Arrived { arrival, at_ns: 9 },
            Event::ClockSet { by_ns: -3 },
            Event::Answered { number: 1, answer: Answer::Unknown, took_ns: 5, at_ns: 6 },
            Event::Overdue { number: 1, looked: true },
        ]
    }

    fn account() -> Account {
        let mut account = Account::new("run".to_owned());
        account.open_route("a");
        account
    }

    /// Returns the content of a journal with all test events, and the account before the first and after each event.
    fn written() -> (Vec<u8>, Vec<Account>) {
        let storage = MemoryStorage::default();
        let mut journal = Journal::new(storage.clone());
        assert_eq!(journal.recover(), Ok(None));
        let mut account = account();
        journal.compact(&account).unwrap();
        let mut accounts = vec![account.clone()];
        for event in events() {
            journal.append(&[event], &account, true).unwrap();
            account.apply(&event);
            accounts.push(account.clone());
        }
        let content = storage.content.borrow().clone().unwrap();
        assert_eq!(journal.bytes(), content.len() as u64);
        (content, accounts)
    }

    #[test]
    fn a_file_that_ends_at_any_byte_has_what_was_written_before() {
        let (content, accounts) = written();
        let first = content.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        for length in 0..=content.len() {
            let lines = content[..length].iter().filter(|byte| **byte == b'\n').count();
            match recover(&content[..length]) {
                Ok(recovered) => {
                    assert_eq!(
                        recovered,
                        Recovered { account: accounts[lines - 1].clone(), damaged: 0 },
                        "{length} bytes"
                    );
                }
                Err(error) => assert!(length < first, "{length} bytes: {error}"),
            }
        }
    }

    #[test]
    fn a_byte_that_changes_costs_its_line_and_no_other() {
        let (content, accounts) = written();
        let first = content.iter().position(|byte| *byte == b'\n').unwrap();
        for place in 0..content.len() {
            let mut damaged = content.clone();
            damaged[place] ^= 0x41;
            match recover(&damaged) {
                Ok(recovered) => {
                    assert!(place > first, "byte {place}");
                    // The last byte is a line end. If it changes, the last line counts as unfinished and not as
                    // damaged.
                    let is_last = place == content.len() - 1;
                    assert!(recovered.damaged >= 1 || is_last, "byte {place}");
                    let route = &recovered.account.routes[&0];
                    assert_eq!(route.counts.created, route.in_flight() + route.counts.settled(), "byte {place}");
                    assert!(accounts.last().unwrap().routes[&0].counts.created >= route.counts.created);
                }
                Err(_) => assert!(place <= first, "byte {place}"),
            }
        }
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        let snapshot = |version, account| line(&Snapshot { version, account }).unwrap();
        for (content, expected) in [
            (b"hello\n".to_vec(), "its first line, which has the account, is damaged"),
            (Vec::new(), "its first line, which has the account, is damaged"),
            (snapshot(2, account()), "it has version 2, and this program reads version 1"),
            (line(&Snapshot { version: 1, account: 5 }).unwrap(), "its account cannot be read"),
        ] {
            let error = recover(&content).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_full_disk_is_told_and_afterwards_nothing_is_missing() {
        for room in 0..400 {
            let storage = MemoryStorage::default();
            let mut journal = Journal::new(storage.clone());
            let mut account = account();
            journal.compact(&account).unwrap();
            storage.room.set(Some(room));
            for event in events() {
                // Apply the event even if the journal cannot store it, because it has happened.
                let _ = journal.append(&[event], &account, false);
                account.apply(&event);
            }
            assert!(!journal.is_writable() && journal.failures >= 1, "{room} bytes are not enough");
            storage.room.set(None);
            journal.append(&[], &account, true).unwrap();
            assert!(journal.is_writable());
            let recovered = Journal::new(storage).recover().unwrap().unwrap();
            assert_eq!(recovered, Recovered { account, damaged: 0 }, "{room} bytes");
        }
    }

    #[test]
    fn the_file_stays_small() {
        let storage = MemoryStorage::default();
        let mut journal = Journal::new(storage.clone());
        let mut account = account();
        journal.compact(&account).unwrap();
        for number in 0..20_000 {
            let events = [
                Event::Created { number, due_ns: 1, watched: false },
                Event::Answered { number, answer: Answer::Accepted, took_ns: 5, at_ns: 6 },
            ];
            journal.append(&events, &account, false).unwrap();
            events.iter().for_each(|event| account.apply(event));
            assert!(storage.content.borrow().as_ref().unwrap().len() < MAX_EVENT_BYTES + 8192);
        }
        let recovered = Journal::new(storage).recover().unwrap().unwrap();
        assert_eq!(recovered.account, account);
    }

    #[test]
    fn a_directory_belongs_to_one_probe_and_its_file_is_replaced_whole() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("state");
        let mut journal = Journal::new(FileStorage::open(&directory).unwrap());
        let error = FileStorage::open(&directory).err().unwrap();
        assert_eq!(error.to_string(), "another probe uses it");
        let mut account = account();
        journal.compact(&account).unwrap();
        for event in events() {
            journal.append(&[event], &account, true).unwrap();
            account.apply(&event);
        }
        drop(journal);
        let mut journal = Journal::new(FileStorage::open(&directory).unwrap());
        assert_eq!(journal.recover().unwrap().unwrap().account, account);
        journal.compact(&account).unwrap();
        assert_eq!(journal.recover().unwrap().unwrap().account, account);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "no other file stays");
        assert_eq!(fs::metadata(directory.join(FILE_NAME)).unwrap().len(), journal.bytes());
    }
}
