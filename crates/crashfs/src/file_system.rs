//! A file system in memory that distinguishes synced data from unsynced data, so that a simulated power cut can drop
//! the unsynced data.
//!
//! [`crate::Disk`] serves this file system over FUSE, with a clock and threads. Data of a file is durable after `fsync`
//! or `fdatasync` of the file, or after a write with `O_DSYNC`. The table shows what else can survive, depending on the
//! [`Profile`]:
//!
//! | profile | changes of names are durable after | of other changes of names, a power cut leaves | of unsynced data, a power cut leaves |
//! |---|---|---|---|
//! | strict | `fsync` of the directory | none, all, the first few, or any subset. A rename to another directory counts as two changes, of which the second removes the old name | each sector of 512 bytes as it was or as any later write made it, independently of other sectors, and any length that the file has had since. A sector that was all zeros may be torn |
//! | ext4 | `fsync` of anything, or 6 s | the first few | none of it, all of it, or any part of what replaced earlier data. A rename that replaces a file first makes the data of the new file durable (auto_da_alloc) |
//! | xfs | `fsync` of anything, or 31 s | the first few | the same as with ext4, but a rename makes no data durable |
//! | btrfs | `fsync` of the file or of the directory, or 31 s | the first few | none of it, or all of it |
//!
//! Except with `strict`, unsynced data becomes durable after 36 s: every 5 s, the kernel writes data older than 30 s,
//! and one second is added. `sync` and `syncfs` make everything durable ([`crate::Disk::heed_sync_calls`]). A failed
//! sync marks its pages as clean, as Linux does, so the next sync reports success without writing these pages.
mod inspect;

use crate::calls::{Call, CallLog, Loss};
use crate::types::{
    FileKind, Inode, Owner, Profile, SpecialFile, SurvivingData, SurvivingSector, Survivors, error_name,
};
use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// FUSE reserves this inode number for the directory at the mount point.
pub const ROOT: Inode = 1;

/// Size of a sector in bytes. After a power cut, a sector that held data before contains one of its versions whole, and
/// not parts of two versions.
pub const SECTOR: usize = 512;

/// Age at which unsynced data counts as durable, because the kernel has written it by then.
const WRITEBACK: Duration = Duration::from_secs(36);

/// All files, both as processes see them and as the media has them.
#[derive(Clone, Debug)]
pub struct FileSystem {
    nodes: BTreeMap<Inode, Node>,
    next: Inode,
    capacity: u64,
    /// Changes of directory entries that are not durable yet, oldest first. Each has the time at which it was made.
    changes: Vec<(NameChange, SystemTime)>,
    profile: Profile,
    /// Current time, which becomes the time stamp of changed files. The caller sets it, because this type reads no
    /// clock.
    now: SystemTime,
    log: Option<CallLog>,
}

#[derive(Clone, Debug)]
struct Node {
    permissions: u16,
    owner: Owner,
    times: Times,
    /// Number of open descriptors. While a file is open, it exists even without a name.
    opened: u32,
    /// Number of hard links that processes see, including those that are not durable yet.
    names: u32,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    File(File),
    Directory(Directory),
    /// A FIFO or a socket, whose content the kernel handles.
    Special(SpecialFile),
}

impl Content {
    fn kind(&self) -> FileKind {
        match self {
            Self::File(_) => FileKind::Regular,
            Self::Directory(_) => FileKind::Directory,
            Self::Special(special) => FileKind::Special(*special),
        }
    }
}

/// Times at which a file was changed. Servers rely on them: at its start, OpenSMTPD reads only files that are older
/// than the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Time of the last change of the content, unless utimes(2) has set another time.
    pub modified: SystemTime,
    /// Time of the last change of content or attributes.
    pub changed: SystemTime,
}

#[derive(Clone, Debug, Default)]
struct File {
    /// Content of the file as processes read it.
    seen: Vec<u8>,
    /// Content of the file that survives any power cut.
    durable: Vec<u8>,
    /// Contents that each changed sector has had since the last sync, oldest first.
    versions: BTreeMap<usize, Vec<Sector>>,
    /// Lengths that the file has had since the last sync, oldest first.
    lengths: Vec<usize>,
    /// Time at which the oldest of the unsynced data was written.
    dirty_since: Option<SystemTime>,
}

type Sector = [u8; SECTOR];

#[derive(Clone, Debug, Default)]
struct Directory {
    seen: BTreeMap<String, Inode>,
    durable: BTreeMap<String, Inode>,
}

/// A creation, removal or renaming of a directory entry that is not durable yet.
#[derive(Clone, Debug)]
pub enum NameChange {
    /// A file or directory was created, or a file got another name with link(2).
    Add {
        directory: Inode,
        name: String,
        inode: Inode,
    },
    Remove {
        directory: Inode,
        name: String,
        inode: Inode,
    },
    Rename {
        from: (Inode, String),
        to: (Inode, String),
        inode: Inode,
        /// Set if the rename is atomic: the old name disappears when the new name appears. Otherwise, the removal of
        /// the old name is a separate change, which a power cut may lose.
        is_whole: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    pub inode: Inode,
    pub kind: FileKind,
    /// Length of a file's content in bytes, or 0 for a directory or special file.
    pub bytes: u64,
    pub permissions: u16,
    pub owner: Owner,
    pub times: Times,
    /// Number of hard links, as `st_nlink` shows it.
    pub names: u32,
}

/// How much of a file's unsynced data survives a power cut.
#[derive(Clone, Copy, Debug)]
enum Survival {
    Nothing,
    Everything,
    /// Any part of the data can survive, for example a later write without an earlier one.
    Any,
    /// Like `Any`, but a sector that was all zeros before may be torn, so that only its first bytes are written.
    Torn,
    /// Data that was added to the file is lost, but any part of the data that replaced earlier data can survive.
    Overwritten,
}

impl Survival {
    fn choose(rng: &mut StdRng, profile: Profile) -> Self {
        match (profile, rng.random_range(0..6)) {
            (Profile::Strict, 0) | (Profile::Btrfs, 0..3) | (Profile::Ext4 | Profile::Xfs, 0 | 1) => Self::Nothing,
            (Profile::Strict, 1) | (Profile::Btrfs, _) | (Profile::Ext4 | Profile::Xfs, 2 | 3) => Self::Everything,
            (Profile::Strict, 2 | 3) => Self::Any,
            (Profile::Strict, _) => Self::Torn,
            (Profile::Ext4 | Profile::Xfs, _) => Self::Overwritten,
        }
    }
}

impl NameChange {
    fn concerns(&self, inode: Inode) -> bool {
        self.directories().contains(&inode)
    }

    /// Returns the two directories whose entries change. If only one directory changes, returns it twice. A rename
    /// without `is_whole` changes only the new directory, because the removal of the old name is a separate change.
    pub fn directories(&self) -> [Inode; 2] {
        match self {
            Self::Add { directory, .. } | Self::Remove { directory, .. } => [*directory; 2],
            Self::Rename { to, is_whole: false, .. } => [to.0; 2],
            Self::Rename { from, to, .. } => [from.0, to.0],
        }
    }

    /// Returns the directory entry that the change creates, or `None` for a removal.
    fn given(&self) -> Option<(Inode, &str)> {
        match self {
            Self::Add { directory, name, .. } => Some((*directory, name)),
            Self::Rename { to, .. } => Some((to.0, &to.1)),
            Self::Remove { .. } => None,
        }
    }

    pub fn inode(&self) -> Inode {
        match self {
            Self::Add { inode, .. } | Self::Remove { inode, .. } | Self::Rename { inode, .. } => *inode,
        }
    }
}

impl File {
    fn sector(&self, number: usize) -> Sector {
        sector_of(&self.seen, number)
    }

    /// Records the new content of changed sectors, because a power cut may leave any version since the last sync.
    fn remember(&mut self, sectors: std::ops::Range<usize>) {
        for number in sectors {
            let now = self.sector(number);
            let before = self.versions.get(&number).and_then(|versions| versions.last().copied());
            if now != before.unwrap_or_else(|| sector_of(&self.durable, number)) {
                self.versions.entry(number).or_default().push(now);
            }
        }
    }

    fn resize(&mut self, length: usize) {
        if length != self.seen.len() {
            let shorter = length.min(self.seen.len());
            let longer = length.max(self.seen.len());
            self.seen.resize(length, 0);
            self.lengths.push(length);
            self.remember(shorter / SECTOR..longer.div_ceil(SECTOR));
        }
    }

    fn write(&mut self, bytes: &[u8], at: usize) {
        let end = at + bytes.len();
        if end > self.seen.len() {
            self.seen.resize(end, 0);
            self.lengths.push(end);
        }
        self.seen[at..end].copy_from_slice(bytes);
        self.remember(at / SECTOR..end.div_ceil(SECTOR));
    }

    fn sync(&mut self) {
        self.durable.resize(self.seen.len(), 0);
        for number in std::mem::take(&mut self.versions).into_keys() {
            let sector = self.sector(number);
            put_sector(&mut self.durable, number, &sector);
        }
        self.lengths.clear();
        self.dirty_since = None;
    }

    /// Makes the unsynced data durable if the oldest of it has reached the age `WRITEBACK`. If no unsynced data
    /// remains, `now` counts as the time at which the next data is written.
    fn write_back(&mut self, now: SystemTime) {
        let has_waited = |since: SystemTime| now.duration_since(since).is_ok_and(|age| age >= WRITEBACK);
        if self.dirty_since.is_some_and(has_waited) {
            self.sync();
        }
        self.dirty_since.get_or_insert(now);
    }

    /// Chooses at random which part of the unsynced data a failing sync has written.
    fn choose_written(&self, rng: &mut StdRng) -> SurvivingData {
        let SurvivingData { mut length, mut sectors } = self.all_survives();
        if rng.random() {
            length = self.durable.len();
        }
        sectors.retain(|_| rng.random());
        SurvivingData { length, sectors }
    }

    /// Applies a failed sync: only `written` reaches the media. The rest of the unsynced data is never written, because
    /// the kernel has marked its pages as clean.
    fn fail_sync(&mut self, written: &SurvivingData) {
        self.make_durable(written);
        self.versions.clear();
        self.lengths.clear();
        self.dirty_since = None;
    }

    fn is_clean(&self) -> bool {
        self.versions.is_empty() && self.lengths.is_empty()
    }

    /// Chooses at random which part of the unsynced data a power cut leaves. Except with `Strict`, data that extends a
    /// file survives whole or not at all, because a file system allocates blocks for it only when it writes the data to
    /// the disk.
    fn choose_survivors(&self, profile: Profile, rng: &mut StdRng) -> SurvivingData {
        let survival = Survival::choose(rng, profile);
        let length = match (survival, self.lengths.last()) {
            (Survival::Nothing, _) | (_, None) => self.durable.len(),
            (Survival::Everything, Some(last)) => *last,
            (Survival::Overwritten, _) => self.durable.len(),
            _ => match rng.random_range(0..=self.lengths.len()).checked_sub(1) {
                None => self.durable.len(),
                Some(at) => self.lengths[at],
            },
        };
        let mut sectors = Vec::new();
        for (number, versions) in &self.versions {
            let version = match survival {
                Survival::Nothing => None,
                Survival::Everything => versions.len().checked_sub(1),
                _ => rng.random_range(0..=versions.len()).checked_sub(1),
            };
            let Some(version) = version else { continue };
            let may_be_torn = matches!(survival, Survival::Torn) && sector_of(&self.durable, *number) == [0; SECTOR];
            let torn_at = (may_be_torn && rng.random_ratio(1, 8)).then(|| rng.random_range(0..SECTOR));
            sectors.push(SurvivingSector { number: *number, version, torn_at });
        }
        SurvivingData { length, sectors }
    }

    /// Describes a power cut or sync that loses nothing: all unsynced data of the file reaches the media.
    fn all_survives(&self) -> SurvivingData {
        let length = self.lengths.last().copied().unwrap_or(self.durable.len());
        let last = |(number, versions): (&usize, &Vec<Sector>)| {
            let version = versions.len().checked_sub(1)?;
            Some(SurvivingSector { number: *number, version, torn_at: None })
        };
        SurvivingData { length, sectors: self.versions.iter().filter_map(last).collect() }
    }

    /// Makes a part of the unsynced data durable: the part that survives a power cut, or that a failed sync wrote.
    /// Skips a length or a version of a sector that the file never had, because somebody may have edited a stored log.
    fn make_durable(&mut self, SurvivingData { length, sectors }: &SurvivingData) {
        if self.lengths.contains(length) {
            self.durable.resize(*length, 0);
        }
        for SurvivingSector { number, version, torn_at } in sectors {
            let Some(mut sector) = self.versions.get(number).and_then(|versions| versions.get(*version)).copied()
            else {
                continue;
            };
            sector[torn_at.unwrap_or(SECTOR).min(SECTOR)..].fill(0);
            put_sector(&mut self.durable, *number, &sector);
        }
    }

    /// Returns the file as a power cut leaves it: the durable content, and the part `surviving` of the unsynced data.
    fn cut(mut self, surviving: Option<&SurvivingData>) -> Self {
        surviving.into_iter().for_each(|data| self.make_durable(data));
        Self { seen: self.durable.clone(), durable: self.durable, ..Self::default() }
    }
}

/// Returns a sector of a file, with zeros after the file's end.
fn sector_of(bytes: &[u8], number: usize) -> Sector {
    let mut sector = [0; SECTOR];
    let from = (number * SECTOR).min(bytes.len());
    let part = &bytes[from..(from + SECTOR).min(bytes.len())];
    sector[..part.len()].copy_from_slice(part);
    sector
}

/// Copies sector `number` into the content of a file. Drops the part of the sector that is beyond the file's end.
fn put_sector(bytes: &mut [u8], number: usize, sector: &Sector) {
    let from = (number * SECTOR).min(bytes.len());
    let to = (from + SECTOR).min(bytes.len());
    bytes[from..to].copy_from_slice(&sector[..to - from]);
}

impl FileSystem {
    pub fn new(capacity: u64) -> Self {
        let root = Node {
            permissions: 0o755,
            owner: Owner::default(),
            times: Times { modified: UNIX_EPOCH, changed: UNIX_EPOCH },
            opened: 0,
            names: 1,
            content: Content::Directory(Directory::default()),
        };
        Self {
            nodes: BTreeMap::from([(ROOT, root)]),
            next: ROOT + 1,
            capacity,
            changes: Vec::new(),
            profile: Profile::Strict,
            now: UNIX_EPOCH,
            log: None,
        }
    }

    /// Starts a log of the calls that change files or make them durable. If the log would exceed `limit` bytes, all its
    /// calls are discarded. `clock` provides the time of each call.
    pub fn record_calls(&mut self, limit: usize, clock: fn() -> Duration) {
        self.log = Some(CallLog::new(limit, clock));
    }

    /// Returns the log of the calls so far, and stops logging.
    pub fn take_calls(&mut self) -> Option<CallLog> {
        self.log.take()
    }

    fn record(&mut self, call: impl FnOnce() -> Call) {
        if let Some(log) = &mut self.log {
            log.push(self.now, call);
        }
    }

    /// Discards all logged calls, because the caller is about to make a change that the log cannot express.
    fn give_up_log(&mut self, reason: Loss) {
        if let Some(log) = &mut self.log {
            log.give_up(reason);
        }
    }

    /// Logs that the power is off from now on. [`Self::cut`] decides later which data survives.
    pub fn turn_off(&mut self) {
        self.record(|| Call::PowerOff);
    }

    /// Executes a call that a [`CallLog`] recorded. Executing all calls of a log rebuilds the recorded files.
    ///
    /// # Errors
    ///
    /// Fails if the call is impossible, for example because a file is missing. In that case, the log was recorded on a
    /// file system with other content.
    pub fn apply(&mut self, call: &Call) -> Result<(), Errno> {
        match call {
            Call::Profile { profile } => self.set_profile(*profile),
            Call::Make { directory, name, permissions, kind, inode } => {
                let content = match kind {
                    FileKind::Regular => Content::File(File::default()),
                    FileKind::Directory => Content::Directory(Directory::default()),
                    FileKind::Special(special) => Content::Special(*special),
                };
                let made = self.add(*directory, name, *permissions, content)?;
                return if made.inode == *inode { Ok(()) } else { Err(Errno::INVAL) };
            }
            Call::Open { inode } => return self.open(*inode),
            Call::Close { inode } => self.close(*inode),
            Call::Write { inode, at, bytes, are_zeros: true, .. } => {
                if *bytes as u64 > self.capacity {
                    return Err(Errno::NOSPC);
                }
                return self.write(*inode, *at, &vec![0; *bytes]);
            }
            Call::Write { inode, at, data, .. } => return self.write(*inode, *at, data),
            Call::SetLength { inode, bytes } => return self.set_length(*inode, *bytes),
            Call::SetPermissions { inode, permissions } => return self.set_permissions(*inode, *permissions),
            Call::SetOwner { inode, owner } => return self.set_owner(*inode, *owner),
            Call::SetModified { inode, time } => return self.set_modified(*inode, time.system_time()),
            Call::Sync { inode } => return self.sync(*inode),
            Call::FailedSync { inode, error, written } => return self.fail_sync_after(*inode, error, written),
            Call::SyncDirectory { inode } => return self.sync_directory(*inode),
            Call::SyncAll => self.sync_all(),
            Call::Link { inode, directory, name } => return self.link(*inode, *directory, name).map(drop),
            Call::Remove { directory, name } => return self.remove(*directory, name),
            Call::Rename { from, to } => return self.rename((from.0, &from.1), (to.0, &to.1)),
            Call::PowerOff => self.turn_off(),
            Call::Cut { survivors } => self.cut_to(survivors),
        }
        Ok(())
    }

    /// Sets the current time, which becomes the time stamp of changed files and determines which unsynced data the
    /// kernel would have written by now.
    pub fn set_time(&mut self, now: SystemTime) {
        self.now = now;
    }

    fn mark_modified(&mut self, inode: Inode) {
        let now = self.now;
        if let Ok(node) = self.node(inode) {
            node.times = Times { modified: now, changed: now };
        }
    }

    fn mark_changed(&mut self, inode: Inode) -> Result<&mut Node, Errno> {
        let now = self.now;
        let node = self.node(inode)?;
        node.times.changed = now;
        Ok(node)
    }

    /// Returns the total size of all files that have a name or are open, and the capacity of the disk.
    pub fn used_and_capacity(&self) -> (u64, u64) {
        (self.files().map(|(_, file)| file.seen.len() as u64).sum(), self.capacity)
    }

    fn files(&self) -> impl Iterator<Item = (Inode, &File)> {
        self.nodes.iter().filter_map(|(inode, node)| match &node.content {
            Content::File(file) if node.opened > 0 || node.names > 0 => Some((*inode, file)),
            _ => None,
        })
    }

    /// Returns true if at least one name of the file is on the media. Without such a name, a power cut may lose the
    /// whole file.
    pub fn is_durably_named(&self, inode: Inode) -> bool {
        self.directories().any(|directory| directory.durable.values().any(|named| *named == inode))
    }

    /// Returns true if the file has this name on the media, in any directory.
    pub fn is_durably_called(&self, inode: Inode, name: &str) -> bool {
        self.directories().any(|directory| directory.durable.get(name) == Some(&inode))
    }

    /// Returns true if the header of a relay's spool segment is on the media. While the relay creates a segment, all
    /// bytes at the place of the header are zeros.
    pub fn has_durable_header(&self, inode: Inode) -> bool {
        const HEADERS_BYTES: usize = 8192;
        self.files()
            .any(|(other, file)| other == inode && file.durable.iter().take(HEADERS_BYTES).any(|byte| *byte != 0))
    }

    fn directories(&self) -> impl Iterator<Item = &Directory> {
        self.nodes.values().filter_map(|node| match &node.content {
            Content::Directory(directory) => Some(directory),
            Content::File(_) | Content::Special(_) => None,
        })
    }

    /// Returns true if a power cut would lose no data, except in files whose names are not durable anyway.
    pub fn is_clean(&self) -> bool {
        self.files().all(|(inode, file)| file.is_clean() || !self.is_durably_named(inode))
    }

    fn node(&mut self, inode: Inode) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&inode).ok_or(Errno::NOENT)
    }

    fn file(&mut self, inode: Inode) -> Result<&mut File, Errno> {
        match &mut self.node(inode)?.content {
            Content::File(file) => Ok(file),
            Content::Directory(_) => Err(Errno::ISDIR),
            Content::Special(_) => Err(Errno::INVAL),
        }
    }

    fn directory(&mut self, inode: Inode) -> Result<&mut Directory, Errno> {
        match &mut self.node(inode)?.content {
            Content::Directory(directory) => Ok(directory),
            Content::File(_) | Content::Special(_) => Err(Errno::NOTDIR),
        }
    }

    pub fn attributes(&self, inode: Inode) -> Result<Attributes, Errno> {
        let node = self.nodes.get(&inode).ok_or(Errno::NOENT)?;
        let bytes = match &node.content {
            Content::File(file) => file.seen.len() as u64,
            Content::Directory(_) | Content::Special(_) => 0,
        };
        let kind = node.content.kind();
        let &Node { permissions, owner, times, names, .. } = node;
        Ok(Attributes { inode, kind, bytes, permissions, owner, times, names })
    }

    pub fn look_up(&mut self, directory: Inode, name: &str) -> Result<Attributes, Errno> {
        let inode = *self.directory(directory)?.seen.get(name).ok_or(Errno::NOENT)?;
        self.attributes(inode)
    }

    pub fn list(&mut self, directory: Inode) -> Result<Vec<(String, Attributes)>, Errno> {
        let names = self.directory(directory)?.seen.clone();
        names.into_iter().map(|(name, inode)| Ok((name, self.attributes(inode)?))).collect()
    }

    pub fn create(&mut self, directory: Inode, name: &str, permissions: u16) -> Result<Attributes, Errno> {
        self.add(directory, name, permissions, Content::File(File::default()))
    }

    pub fn make_directory(&mut self, directory: Inode, name: &str, permissions: u16) -> Result<Attributes, Errno> {
        self.add(directory, name, permissions, Content::Directory(Directory::default()))
    }

    pub fn make_special(
        &mut self,
        directory: Inode,
        name: &str,
        permissions: u16,
        special: SpecialFile,
    ) -> Result<Attributes, Errno> {
        self.add(directory, name, permissions, Content::Special(special))
    }

    fn add(&mut self, directory: Inode, name: &str, permissions: u16, content: Content) -> Result<Attributes, Errno> {
        let inode = self.next;
        let names = &mut self.directory(directory)?.seen;
        if names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        names.insert(name.to_owned(), inode);
        self.next += 1;
        let kind = content.kind();
        let times = Times { modified: self.now, changed: self.now };
        let owner = Owner::default();
        let node = Node { permissions, owner, times, opened: 0, names: 1, content };
        self.nodes.insert(inode, node);
        self.mark_modified(directory);
        self.note(NameChange::Add { directory, name: name.to_owned(), inode });
        self.record(|| Call::Make { directory, name: name.to_owned(), permissions, kind, inode });
        self.attributes(inode)
    }

    pub fn remove(&mut self, directory: Inode, name: &str) -> Result<(), Errno> {
        let inode = self.look_up(directory, name)?.inode;
        if self.directory(inode).is_ok_and(|removed| !removed.seen.is_empty()) {
            return Err(Errno::NOTEMPTY);
        }
        self.directory(directory)?.seen.remove(name);
        self.lose_name(inode);
        self.mark_modified(directory);
        self.note(NameChange::Remove { directory, name: name.to_owned(), inode });
        self.record(|| Call::Remove { directory, name: name.to_owned() });
        Ok(())
    }

    fn note(&mut self, change: NameChange) {
        self.changes.push((change, self.now));
    }

    fn lose_name(&mut self, inode: Inode) {
        if let Ok(node) = self.node(inode) {
            node.names = node.names.saturating_sub(1);
        }
    }

    pub fn link(&mut self, inode: Inode, directory: Inode, name: &str) -> Result<Attributes, Errno> {
        if self.directory(inode).is_ok() {
            return Err(Errno::PERM);
        }
        if self.directory(directory)?.seen.contains_key(name) {
            return Err(Errno::EXIST);
        }
        let node = self.mark_changed(inode)?;
        node.names += 1;
        self.directory(directory)?.seen.insert(name.to_owned(), inode);
        self.mark_modified(directory);
        self.note(NameChange::Add { directory, name: name.to_owned(), inode });
        self.record(|| Call::Link { inode, directory, name: name.to_owned() });
        self.attributes(inode)
    }

    /// Renames a file or directory. An existing file or empty directory with the new name is replaced. If both names
    /// already belong to the same file, nothing changes, as in rename(2).
    pub fn rename(&mut self, from: (Inode, &str), to: (Inode, &str)) -> Result<(), Errno> {
        let inode = self.look_up(from.0, from.1)?.inode;
        let replaced = self.directory(to.0)?.seen.get(to.1).copied();
        // rename(2) must not replace a directory that has entries. The kernel leaves this check to the file system.
        let holds_names = |directory: &mut Directory| !directory.seen.is_empty();
        if replaced.is_some_and(|other| other != inode && self.directory(other).is_ok_and(holds_names)) {
            return Err(Errno::NOTEMPTY);
        }
        self.directory(to.0)?.seen.insert(to.1.to_owned(), inode);
        if from != to && replaced == Some(inode) {
            return Ok(());
        }
        if from != to {
            self.directory(from.0)?.seen.remove(from.1);
            replaced.into_iter().for_each(|other| self.lose_name(other));
        }
        if replaced.is_some() && self.profile == Profile::Ext4 {
            // ext4 writes the data of a file that replaces another one before its journal records the rename, so that a
            // power cut leaves either the old or the new content.
            self.file(inode).into_iter().for_each(File::sync);
        }
        self.mark_modified(from.0);
        self.mark_modified(to.0);
        self.mark_changed(inode)?;
        let owned = |place: (Inode, &str)| (place.0, place.1.to_owned());
        // POSIX does not promise that two directories reach the disk together, so the profile `Strict` treats moving a
        // file to another directory as two separate changes.
        let is_whole = self.profile != Profile::Strict || from.0 == to.0 || self.directory(inode).is_ok();
        self.note(NameChange::Rename { from: owned(from), to: owned(to), inode, is_whole });
        if !is_whole {
            self.note(NameChange::Remove { directory: from.0, name: from.1.to_owned(), inode });
        }
        self.record(|| Call::Rename { from: owned(from), to: owned(to) });
        Ok(())
    }

    /// Counts another open descriptor of a file. An open file remains until it is closed, even without a name.
    pub fn open(&mut self, inode: Inode) -> Result<(), Errno> {
        self.node(inode)?.opened += 1;
        self.record(|| Call::Open { inode });
        Ok(())
    }

    pub fn close(&mut self, inode: Inode) {
        if let Ok(node) = self.node(inode) {
            node.opened = node.opened.saturating_sub(1);
            self.record(|| Call::Close { inode });
        }
    }

    pub fn set_permissions(&mut self, inode: Inode, permissions: u16) -> Result<(), Errno> {
        self.mark_changed(inode)?.permissions = permissions;
        self.record(|| Call::SetPermissions { inode, permissions });
        Ok(())
    }

    pub fn set_owner(&mut self, inode: Inode, owner: Owner) -> Result<(), Errno> {
        self.mark_changed(inode)?.owner = owner;
        self.record(|| Call::SetOwner { inode, owner });
        Ok(())
    }

    pub fn set_modified(&mut self, inode: Inode, modified: SystemTime) -> Result<(), Errno> {
        self.mark_changed(inode)?.times.modified = modified;
        self.record(|| Call::SetModified { inode, time: modified.into() });
        Ok(())
    }

    /// Makes the disk larger or smaller. Existing data is kept, even if it no longer fits.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.capacity = bytes;
    }

    /// Reads bytes as processes see them, synced or not. At the end of the file, returns fewer bytes than requested.
    pub fn read(&mut self, inode: Inode, at: u64, bytes: usize) -> Result<&[u8], Errno> {
        let seen = &self.file(inode)?.seen;
        let from = seen.len().min(at as usize);
        Ok(&seen[from..seen.len().min(from + bytes)])
    }

    pub fn write(&mut self, inode: Inode, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.check_room(inode, at.checked_add(bytes.len() as u64).ok_or(Errno::FBIG)?)?;
        self.write_back(inode)?;
        self.file(inode)?.write(bytes, at as usize);
        self.mark_modified(inode);
        self.record(|| Call::write(inode, at, bytes));
        Ok(())
    }

    /// Sets the length of a file in bytes. Cuts off the rest of a longer file, and extends a shorter file with zeros.
    pub fn set_length(&mut self, inode: Inode, bytes: u64) -> Result<(), Errno> {
        self.check_room(inode, bytes)?;
        self.write_back(inode)?;
        self.file(inode)?.resize(bytes as usize);
        self.mark_modified(inode);
        self.record(|| Call::SetLength { inode, bytes });
        Ok(())
    }

    /// Extends a file with zeros until it has `bytes` bytes. A longer file keeps its content.
    pub fn allocate(&mut self, inode: Inode, bytes: u64) -> Result<(), Errno> {
        let longest = self.attributes(inode)?.bytes.max(bytes);
        self.set_length(inode, longest)
    }

    fn check_room(&mut self, inode: Inode, end: u64) -> Result<(), Errno> {
        let grows_by = end.saturating_sub(self.file(inode)?.seen.len() as u64);
        let (used, capacity) = self.used_and_capacity();
        if grows_by > 0 && used.saturating_add(grows_by) > capacity { Err(Errno::NOSPC) } else { Ok(()) }
    }

    /// Makes unsynced data durable if it is so old that the kernel would have written it. Does nothing with `Strict`,
    /// because POSIX promises nothing about data that was not synced, however old it is.
    fn write_back(&mut self, inode: Inode) -> Result<(), Errno> {
        let now = self.now;
        if self.profile != Profile::Strict {
            self.file(inode)?.write_back(now);
        }
        Ok(())
    }

    pub fn set_profile(&mut self, profile: Profile) {
        self.profile = profile;
        self.record(|| Call::Profile { profile });
    }

    /// Makes the data and the length of a file durable. With ext4 and xfs, all changes of names become durable as well,
    /// and with btrfs the names of the file and of the directories above it.
    pub fn sync(&mut self, inode: Inode) -> Result<(), Errno> {
        self.file(inode)?.sync();
        match self.profile {
            Profile::Ext4 | Profile::Xfs => self.make_all_names_durable(),
            Profile::Btrfs => self.make_own_names_durable(inode),
            Profile::Strict => {}
        }
        self.record(|| Call::Sync { inode });
        Ok(())
    }

    /// Makes the names of a file and of all directories above it durable, so that the file can still be reached after a
    /// power cut.
    fn make_own_names_durable(&mut self, inode: Inode) {
        let mut own = BTreeSet::from([inode]);
        // Go from the newest change to the oldest. A directory is created before the files in it, so the loop has
        // already added the directory to `own` when it reaches the directory's creation.
        for (change, _) in self.changes.iter().rev() {
            if own.contains(&change.inode()) {
                own.extend(change.directories());
            }
        }
        self.make_names_durable(|change| own.contains(&change.inode()));
    }

    /// Makes each name change durable if `are_durable` returns true for it. If such a change is an atomic rename
    /// (`is_whole`), the earlier change that created the old name becomes durable as well. Otherwise, that change could
    /// become durable later and restore the old name.
    fn make_names_durable(&mut self, are_durable: impl Fn(&NameChange) -> bool) {
        let mut renamed = BTreeSet::new();
        let mut durable = Vec::new();
        for (change, _) in self.changes.iter().rev() {
            let is_renamed =
                change.given().is_some_and(|(directory, name)| renamed.remove(&(directory, name, change.inode())));
            durable.push(is_renamed || are_durable(change));
            if let (Some(true), NameChange::Rename { from, inode, is_whole: true, .. }) = (durable.last(), change) {
                renamed.insert((from.0, from.1.as_str(), *inode));
            }
        }
        let mut is_durable = durable.into_iter().rev();
        for (change, _) in self.changes.extract_if(.., |_| is_durable.next() == Some(true)).collect::<Vec<_>>() {
            self.make_durable(change);
        }
        self.forget_unused();
    }

    fn make_all_names_durable(&mut self) {
        self.make_names_durable(|_| true);
    }

    /// Injects a failed sync of a file, which writes a random part of the unsynced data to the media. `error` is
    /// recorded in the log of calls, and has no other effect.
    pub fn fail_sync(&mut self, inode: Inode, error: Errno, rng: &mut StdRng) -> Result<(), Errno> {
        let written = self.file(inode)?.choose_written(rng);
        self.fail_sync_after(inode, error_name(error), &written)
    }

    /// Injects a failed sync that writes only the data in `written`. In a replay of a log, `written` comes from the
    /// log, so that the same data survives as in the logged run.
    fn fail_sync_after(&mut self, inode: Inode, error: &str, written: &SurvivingData) -> Result<(), Errno> {
        self.file(inode)?.fail_sync(written);
        self.record(|| Call::FailedSync { inode, error: error.to_owned(), written: written.clone() });
        Ok(())
    }

    /// Makes the names in a directory durable. With ext4 and xfs, the names in all other directories become durable as
    /// well.
    pub fn sync_directory(&mut self, inode: Inode) -> Result<(), Errno> {
        self.directory(inode)?;
        let syncs_all = self.profile.syncs_all_names();
        self.make_names_durable(|change| syncs_all || change.concerns(inode));
        self.record(|| Call::SyncDirectory { inode });
        Ok(())
    }

    fn make_durable(&mut self, change: NameChange) {
        match change {
            NameChange::Add { directory, name, inode } => _ = self.durable_names(directory).insert(name, inode),
            NameChange::Remove { directory, name, inode } => self.remove_durable(directory, &name, inode),
            NameChange::Rename { from, to, inode, is_whole } => {
                if is_whole {
                    self.remove_durable(from.0, &from.1, inode);
                }
                self.durable_names(to.0).insert(to.1, inode);
            }
        }
    }

    fn durable_names(&mut self, directory: Inode) -> &mut BTreeMap<String, Inode> {
        &mut self.directory(directory).expect("a directory with changes is kept").durable
    }

    /// Removes a name from the durable entries of a directory, unless the name now belongs to another file.
    fn remove_durable(&mut self, directory: Inode, name: &str, inode: Inode) {
        let names = self.durable_names(directory);
        if names.get(name) == Some(&inode) {
            names.remove(name);
        }
    }

    /// Frees files that are not open and have no name: no name that processes see, no name on the media, and no name in
    /// an unsynced change.
    fn forget_unused(&mut self) {
        let mut used = BTreeSet::from([ROOT]);
        for directory in self.directories() {
            used.extend(directory.seen.values().chain(directory.durable.values()));
        }
        for (change, _) in &self.changes {
            used.insert(change.inode());
            used.extend(change.directories());
        }
        self.nodes.retain(|inode, node| node.opened > 0 || used.contains(inode));
    }

    pub fn sync_all(&mut self) {
        for node in self.nodes.values_mut() {
            if let Content::File(file) = &mut node.content {
                file.sync();
            }
        }
        self.make_all_names_durable();
        self.record(|| Call::SyncAll);
    }

    /// Cuts the power and restores it. `rng` decides which unsynced data survives.
    pub fn cut(&mut self, rng: &mut StdRng) {
        self.settle();
        let survivors = self.choose_survivors(rng);
        self.cut_to(&survivors);
    }

    /// Cuts the power and restores it. Of the unsynced data, only `survivors` remains.
    pub fn cut_to(&mut self, survivors: &Survivors) {
        self.settle();
        for (at, (change, _)) in std::mem::take(&mut self.changes).into_iter().enumerate() {
            if survivors.names.contains(&at) {
                self.make_durable(change);
            }
        }
        let surviving: BTreeMap<Inode, &SurvivingData> =
            survivors.files.iter().map(|(inode, data)| (*inode, data)).collect();
        self.revive(&surviving);
        self.record(|| Call::Cut { survivors: survivors.clone() });
    }

    /// Makes all changes durable that the kernel or the journal would have written to the disk by now.
    pub fn settle(&mut self) {
        let now = self.now;
        let is_committed = |at: SystemTime| {
            let age = now.duration_since(at).unwrap_or_default();
            self.profile.commits_after().is_some_and(|limit| age >= limit)
        };
        // Look at every name change instead of bisecting, because the times are not sorted if the clock was set back.
        let committed = self.changes.iter().rposition(|(_, at)| is_committed(*at)).map_or(0, |last| last + 1);
        for (change, _) in self.changes.drain(..committed).collect::<Vec<_>>() {
            self.make_durable(change);
        }
        if self.profile != Profile::Strict {
            for node in self.nodes.values_mut() {
                if let Content::File(file) = &mut node.content {
                    file.write_back(now);
                }
            }
        }
    }

    /// Chooses at random which of the unsynced changes survive if the power is cut now. The power cut discards all
    /// other unsynced changes.
    fn choose_survivors(&self, rng: &mut StdRng) -> Survivors {
        let all = self.changes.len();
        let survival = if self.profile == Profile::Strict { rng.random_range(0..4) } else { 2 };
        let first = rng.random_range(0..=all);
        let survives = |at: usize, rng: &mut StdRng| match survival {
            0 => false,
            1 => true,
            2 => at < first,
            _ => rng.random(),
        };
        let names = (0..all).filter(|at| survives(*at, rng)).collect();
        let dirty = self.nodes.iter().filter_map(|(inode, node)| match &node.content {
            Content::File(file) if !file.is_clean() => Some((*inode, file.choose_survivors(self.profile, rng))),
            _ => None,
        });
        Survivors { names, files: dirty.collect() }
    }

    /// Rebuilds the tree after a power cut from the files and directories whose names are durable. All of them except
    /// the root directory get new inode numbers, so that the kernel cannot confuse them with files that it remembers.
    fn revive(&mut self, surviving: &BTreeMap<Inode, &SurvivingData>) {
        let mut old = std::mem::take(&mut self.nodes);
        // Map each old inode number to the new one, so that all hard links of a file lead to the same restored file.
        let mut revived = BTreeMap::new();
        let mut found: Vec<(Inode, Inode, Node)> =
            old.remove(&ROOT).map(|root| (ROOT, ROOT, root)).into_iter().collect();
        while let Some((former, number, node)) = found.pop() {
            let content = match node.content {
                Content::File(file) => Content::File(file.cut(surviving.get(&former).copied())),
                Content::Special(special) => Content::Special(special),
                Content::Directory(directory) => {
                    let mut names = BTreeMap::new();
                    let mut below_here = Vec::new();
                    for (name, inode) in directory.durable {
                        if let Some(new) = revived.get(&inode) {
                            names.insert(name, *new);
                            continue;
                        }
                        // If a directory has a second name, keep only the first name.
                        let Some(below) = old.remove(&inode) else { continue };
                        let new = self.next;
                        self.next += 1;
                        if below.content.kind() != FileKind::Directory {
                            revived.insert(inode, new);
                        }
                        names.insert(name, new);
                        below_here.push((inode, new, below));
                    }
                    found.extend(below_here);
                    Content::Directory(Directory { seen: names.clone(), durable: names })
                }
            };
            self.nodes.insert(number, Node { opened: 0, names: 1, content, ..node });
        }
        let mut names = BTreeMap::<Inode, u32>::new();
        for inode in self.directories().flat_map(|directory| directory.seen.values()) {
            *names.entry(*inode).or_default() += 1;
        }
        for (inode, node) in &mut self.nodes {
            node.names = names.get(inode).copied().unwrap_or(1);
        }
    }

    /// Flips a random bit of the byte at offset `at` of a file, both in the content that processes see and on the
    /// media. The bit therefore stays flipped after a power cut.
    pub fn flip_bit(&mut self, inode: Inode, at: u64, rng: &mut StdRng) -> Result<(), Errno> {
        self.give_up_log(Loss::FlippedBit);
        let bit = 1 << (rng.next_u32() % 8);
        let file = self.file(inode)?;
        for bytes in [&mut file.seen, &mut file.durable] {
            if let Some(byte) = bytes.get_mut(at as usize) {
                *byte ^= bit;
            }
        }
        Ok(())
    }
}
